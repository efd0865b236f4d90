"""Choices: whole numbers that are made of real ones, by comparing. They are values of their own, with a `let`'s name.

Rounding may decide a choice, so callers can ask for those that were made, and pass others in their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attncc.spec.data import Size
from attncc.spec.expr import Entry, Expr, Let, Name, Reduce, Top, Type, children, names_in, type_of, walk
from attncc.spec.model import Spec
from attncc.spec.sides import Side, side_of


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice, a whole number of each query or of each key.

    Attributes:
        of_rows: whether each query has one; else each key.
        by_query_head: whether query heads that share a key head choose apart.
        entries: how many positions of keys it is, -1 for those that are missing; None for a single whole number.
        block: so many keys make one entry, which counts such blocks from position 0.
    """

    name: str
    let: Let
    of_rows: bool
    by_query_head: bool
    entries: int | None = None
    block: int = 1


def is_choice(expr: Expr) -> bool:
    """Whether an expression is a named choice."""
    if not isinstance(expr, Let):
        return False
    return isinstance(expr.value, Top) or (type_of(expr) is Type.INT and any(map(_compares, walk(expr))))


def choices_of(spec: Spec) -> tuple[Choice, ...]:
    """The choices of a spec, each once, those that others are made of first."""
    data = {each.name: each for core in (spec, *spec.cores) for each in core.data}
    found: dict[str, Choice] = {}
    for let in _lets(_fields(spec)):
        if isinstance(let.value, Top):
            top = let.value
            found.setdefault(
                let.name,
                Choice(let.name, let, True, not top.grouped, entries=top.count, block=top.block),
            )
            continue
        of_rows = side_of(let, data) is not Side.COLUMN
        tables = {node.name for node in walk(let) if isinstance(node, Entry)}
        by_query_head = of_rows or Name.HEAD in names_in(let) or any(Size.HEADS in data[each].axes for each in tables)
        found.setdefault(let.name, Choice(let.name, let, of_rows, by_query_head))
    return tuple(found.values())


def clashing(spec: Spec) -> tuple[Let, Let] | None:
    """Two different choices of one name."""
    first: dict[str, Let] = {}
    for let in _lets(_fields(spec)):
        if first.setdefault(let.name, let) != let:
            return first[let.name], let
    return None


def unnamed(expr: Expr) -> Expr | None:
    """What compares in an expression outside every choice, if anything does."""
    if is_choice(expr):
        return None
    if _compares(expr):
        return expr
    return next((found for each in children(expr) if (found := unnamed(each)) is not None), None)


def _fields(spec: Spec) -> Iterator[Expr]:
    for core in spec.cores:
        yield from (core.pattern, core.score, core.weight, core.normalizer, core.value)
    if spec.combine is not None:
        yield spec.combine


def _lets(exprs: Iterable[Expr]) -> Iterator[Let]:
    """Choices as they are written, those that others are made of first."""
    for expr in exprs:
        yield from _lets(children(expr))
        if isinstance(expr, Let) and is_choice(expr):
            yield expr


def _compares(expr: Expr) -> bool:
    """Whether rounding may decide what a whole number is."""
    return isinstance(expr, Reduce) and expr.function == "argmax"
