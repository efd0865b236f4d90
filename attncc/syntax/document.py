"""Documents: text with the places where lines may break → lines of a given width.

A group is laid out on one line where it fits, and otherwise breaks at every `Line` of its own; groups inside it are
asked again. Comments force the groups around them to break, and are not counted in the width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Text:
    """Characters that stay together."""

    text: str
    is_counted: bool = True  # comments at the end of a line do not make it too long
    forced: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class Line:
    """`flat` where the group around it is on one line, a new line where it is not."""

    flat: str = " "
    forced: bool = False  # a new line in any case, so that no group around it is on one line


@dataclass(frozen=True, slots=True)
class Concat:
    """One after another."""

    parts: tuple[Document, ...]
    forced: bool


@dataclass(frozen=True, slots=True)
class Nest:
    """New lines inside are indented further."""

    columns: int
    inner: Document
    forced: bool


@dataclass(frozen=True, slots=True)
class Group:
    """On one line, if it fits."""

    inner: Document
    forced: bool


Document = Text | Line | Concat | Nest | Group

NOTHING = Text("")
SPACE = Text(" ")
LINE = Line()
SOFT = Line("")
NEW_LINE = Line(forced=True)


def concat(*parts: Document) -> Document:
    """The parts one after another."""
    return Concat(parts, any(each.forced for each in parts))


def joined(separator: Document, parts: Iterable[Document]) -> Document:
    """The parts with a separator between neighbours."""
    found: list[Document] = []
    for each in parts:
        found += [separator, each] if found else [each]
    return concat(*found)


def nest(columns: int, *parts: Document) -> Document:
    """The parts, indented where they begin a line."""
    inner = concat(*parts)
    return Nest(columns, inner, inner.forced)


def group(*parts: Document) -> Document:
    """The parts on one line, if they fit."""
    inner = concat(*parts)
    return Group(inner, inner.forced)


class _Todo(NamedTuple):
    indent: int
    is_flat: bool
    document: Document


def layout(document: Document, width: int) -> str:
    """The text, without white space at line ends."""
    lines = [""]
    todo = [_Todo(0, False, document)]
    while todo:
        indent, is_flat, one = todo.pop()
        match one:
            case Text(text=text):
                lines[-1] += text
            case Line(flat=flat) if is_flat:
                lines[-1] += flat
            case Line():
                lines[-1] = lines[-1].rstrip()
                lines.append(" " * indent)
            case Concat(parts=parts):
                todo += [_Todo(indent, is_flat, each) for each in reversed(parts)]
            case Nest(columns=columns, inner=inner):
                todo.append(_Todo(indent + columns, is_flat, inner))
            case Group(inner=inner):
                fits = is_flat or _fits(inner, todo, width - len(lines[-1]))
                todo.append(_Todo(indent, fits, inner))
    return "\n".join(lines).rstrip()


def _fits(document: Document, after: list[_Todo], room: int) -> bool:
    """Whether the document is no longer than `room` on one line, with what follows it up to the next line end."""
    if document.forced:
        return False
    todo = [(True, document)]
    following = len(after)
    while room >= 0:
        if not todo:
            if following == 0:
                return True
            following -= 1
            todo.append((after[following].is_flat, after[following].document))
        is_flat, one = todo.pop()
        match one:
            case Text(text=text, is_counted=is_counted):
                room -= len(text) if is_counted else 0
            case Line(flat=flat) if is_flat:
                room -= len(flat)
            case Line():
                return True
            case Concat(parts=parts):
                todo += [(is_flat, each) for each in reversed(parts)]
            case Nest(inner=inner) | Group(inner=inner):
                todo.append((is_flat, inner))
    return False
