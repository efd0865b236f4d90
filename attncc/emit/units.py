"""The text of a module → its top-level units, so that several modules can become one and what is alike stands once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

GUARD = "if triton is not None:"  # what stands above kernels
_PRIVATE = re.compile(r"_(?<![\w.]_)[A-Za-z]\w*")  # the underscore first: it is quickly found
_HEAD = ("import ", "from ", "try:")
_GOES_ON = ("", " ", "#", ")", "]", "}")
_CLAUSES = ("else:", "elif ", "except ", "except:", "finally:")
_DEFINITION = re.compile(r"(?:def|class) (\w+)")
_TARGETS = re.compile(r"(?:\w+ = )+")


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
        return (_mentioned(self.text) & known).difference(self.names)


@lru_cache(4096)
def _mentioned(text: str) -> frozenset[str]:
    """The private names in a text, for which units are asked again and again."""
    return frozenset(_PRIVATE.findall(text))


def units_of(text: str) -> tuple[Unit, ...]:
    """The units of a module, without its head: comments, imports and their guard."""
    lines = text.split("\n")
    found: list[Unit] = []
    for each in statements_of(lines):
        opening = lines[each.start]
        if opening == GUARD:
            inside = [line.removeprefix("    ") for line in lines[each.start + 1 : each.stop]]
            found += [_unit(inside, one, is_kernel=True) for one in statements_of(inside)]
        elif not opening.startswith(_HEAD):
            found.append(_unit(lines, each, is_kernel=False))
    return tuple(found)


def statements_of(lines: Sequence[str]) -> list[range]:
    """The lines of each outermost statement, decorators included.

    What goes on with a statement is indented, closes a bracket, or begins with a word that can begin none: to parse
    emitted text as Python takes as long as to emit it.
    """
    starts: list[int] = []
    decorated = False
    for at, line in enumerate(lines):
        if line[:1] in _GOES_ON or line.startswith(_CLAUSES):
            continue
        if not decorated:
            starts.append(at)
        decorated = line[0] == "@"
    return [_trimmed(lines, start, stop) for start, stop in pairwise([*starts, len(lines)])]


def _trimmed(lines: Sequence[str], start: int, stop: int) -> range:
    """A statement without what stands below it: blank lines, and comments above the next one."""
    while lines[stop - 1][:1] in ("", "#"):
        stop -= 1
    return range(start, stop)


def _unit(lines: Sequence[str], statement: range, *, is_kernel: bool) -> Unit:
    above = statement.start
    while above > 0 and lines[above - 1].startswith("#"):  # headings stand apart, and are left out
        above -= 1
    own = next(line for line in lines[statement.start : statement.stop] if line[:1] not in (*_GOES_ON, "@"))
    return Unit(_defined(own), "\n".join(lines[above : statement.stop]), is_kernel)


def _defined(opening: str) -> tuple[str, ...]:
    """What a statement defines, by its first line."""
    definition = _DEFINITION.match(opening)
    if definition is not None:
        return (definition[1],)
    targets = _TARGETS.match(opening)
    return () if targets is None else tuple(targets[0].removesuffix(" = ").split(" = "))


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
    return text if not names else _PRIVATE.sub(lambda match: names.get(match[0], match[0]), text)


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
    return "\n".join([GUARD, *(f"    {line}" if line else "" for line in body)])
