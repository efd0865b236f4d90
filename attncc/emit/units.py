"""The text of a module → its top-level units, so that several modules can become one and what is alike stands once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_PRIVATE = re.compile(r"(?<![\w.])(_[A-Za-z]\w*)\b")


@dataclass(frozen=True, slots=True)
class Unit:
    """A definition, an assignment or another statement, with the comments above it.

    Attributes:
        names: what it defines.
        is_kernel: whether it stands where triton is known to be there.
    """

    names: tuple[str, ...]
    text: str
    is_kernel: bool

    def reads(self, known: frozenset[str]) -> frozenset[str]:
        """The names of other units that it mentions."""
        return frozenset(_PRIVATE.findall(self.text)) & known - set(self.names)


def units_of(text: str) -> tuple[Unit, ...]:
    """The units of a module, without its head: comments, imports and their guard."""
    lines = text.split("\n")
    found: list[Unit] = []
    tree = ast.parse(text)
    end = 0
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.Try):
            end = statement.end_lineno or 0
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "triton is not None":
            found += _inside(statement, lines)
        else:
            found.append(_unit(statement, lines, end, is_kernel=False))
        end = statement.end_lineno or 0
    return tuple(found)


def _inside(block: ast.If, lines: list[str]) -> list[Unit]:
    end = block.lineno
    found: list[Unit] = []
    for statement in block.body:
        found.append(_unit(statement, lines, end, is_kernel=True))
        end = statement.end_lineno or 0
    return found


def _unit(statement: ast.stmt, lines: list[str], after: int, *, is_kernel: bool) -> Unit:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(each.lineno for each in decorators)])
    last = statement.end_lineno or first
    above = first - 1
    while above > after and lines[above - 1].lstrip().startswith("#"):  # headings stand apart, and are left out
        above -= 1
    text = "\n".join(lines[above:last])
    return Unit(_defined(statement), _dedented(text) if is_kernel else text, is_kernel)


def _dedented(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.split("\n"))


def _defined(statement: ast.stmt) -> tuple[str, ...]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Assign(targets=targets):
            return tuple(each.id for each in targets if isinstance(each, ast.Name))
    return ()


def shared(modules: Sequence[Sequence[Unit]]) -> frozenset[str]:
    """The private names of several modules whose units are the same wherever they are, and mention only such."""
    found: dict[str, list[Unit]] = {}
    for unit in (each for units in modules for each in units):
        for name in unit.names:
            found.setdefault(name, []).append(unit)
    known = frozenset(found)
    alike = {
        name
        for name, units in found.items()
        if name.startswith("_") and len(units) > 1 and all(each.text == units[0].text for each in units)
    }
    while True:
        kept = {name for name in alike if found[name][0].reads(known) <= alike}
        if kept == alike:
            return frozenset(alike)
        alike = kept


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with private names of its module replaced, in strings and comments too."""
    return _PRIVATE.sub(lambda match: names.get(match[1], match[1]), text)


def laid_out(units: Iterable[Unit]) -> str:
    """The units one below the other: kernels where triton is known to be there, everything else around."""
    parts: list[str] = []
    kernels: list[str] = []
    for unit in units:
        if unit.is_kernel:
            kernels.append(unit.text)
            continue
        if kernels:
            parts.append(_guarded(kernels))
            kernels = []
        parts.append(unit.text)
    if kernels:
        parts.append(_guarded(kernels))
    return "\n\n\n".join(parts)


def _guarded(kernels: list[str]) -> str:
    body = "\n\n".join(kernels).split("\n")
    return "\n".join(["if triton is not None:", *(f"    {line}" if line else "" for line in body)])
