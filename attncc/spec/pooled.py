"""Keys that are made of blocks of keys: how many there are, where they stand, and that all of a core are alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from attncc.spec.data import Data
from attncc.spec.expr import (
    AtRow,
    Binary,
    BinaryOp,
    Const,
    Expr,
    Name,
    OverKeys,
    Pooled,
    Shares,
    Symbol,
    Token,
    Vector,
    children,
    names_in,
    rebuild,
    substitute,
)


@dataclass(frozen=True, slots=True)
class Blocked:
    """The keys of a core: block j is the mean of `width` keys, one for each `stride`, and stands at `at`."""

    width: int
    stride: int
    at: Expr | None


def placed(expr: Expr, at: Expr) -> Expr:
    """The value whose blocks stand somewhere."""
    if isinstance(expr, Pooled):
        return replace(expr, at=at)
    return rebuild(expr, lambda each: placed(each, at))


def step_of(at: Expr) -> tuple[int, int] | None:
    """a and b of a * j + b with a > 0; None for other numbers."""
    match at:
        case Symbol(name=Name.J):
            return 1, 0
        case (
            Binary(op=BinaryOp.MULTIPLY, left=Const(value=int(step)), right=Symbol(name=Name.J))
            | Binary(op=BinaryOp.MULTIPLY, left=Symbol(name=Name.J), right=Const(value=int(step)))
        ):
            return (step, 0) if step > 0 else None
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT as op, left=left, right=Const(value=int(shift))):
            inner = step_of(left)
            return None if inner is None else (inner[0], inner[1] + (shift if op is BinaryOp.ADD else -shift))
        case Binary(op=BinaryOp.ADD, left=Const(value=int(shift)), right=right):
            inner = step_of(right)
            return None if inner is None else (inner[0], inner[1] + shift)
        case _:
            return None


class UnlikeKeys(Exception):
    """Something of single keys beside something of blocks of them (`pooled`), or of other blocks."""

    def __init__(self, term: Expr, pooled: Expr, reason: str) -> None:
        super().__init__(reason)
        self.term = term
        self.pooled = pooled
        self.reason = reason


def blocks_of(exprs: Iterable[Expr], data: Mapping[str, Data]) -> Blocked | None:
    """The blocks that the keys of some expressions are; None where they are the keys of the call.

    Raises:
        UnlikeKeys: where they are several things.
    """
    exprs = tuple(exprs)
    found = [each for expr in exprs for each in _keys(expr, data)]
    made = [(blocks, term) for blocks, term in found if blocks is not None]
    if not made:
        return None
    first, pooled = made[0]
    for blocks, term in found:
        if blocks is None:
            name = f"`{term.name}`" if isinstance(term, Vector | Token) else "this"
            reason = f"{name} has one for each key; pool it as well, alike and `at` the same place"
            raise UnlikeKeys(term, pooled, reason)
        if blocks != first:
            raise UnlikeKeys(term, pooled, "these are other blocks; pool both alike, and `at` the same place")
    for expr in exprs:
        _check_names(expr, first, pooled)
    return first


def _keys(expr: Expr, data: Mapping[str, Data]) -> Iterator[tuple[Blocked | None, Expr]]:
    """What every value of keys in an expression is of."""
    match expr:
        case Pooled(width=width, stride=stride, at=at):
            yield Blocked(width, stride, at), expr
        case AtRow() | Shares():
            return
        case Vector(name=name) | Token(name=name) if data[name].is_column:
            yield None, expr
        case OverKeys():
            yield None, expr
        case _:
            for each in children(expr):
                yield from _keys(each, data)


def _check_names(expr: Expr, blocks: Blocked, pooled: Expr) -> None:
    """Refuse what has no meaning for blocks."""
    for node in outside(expr):
        if isinstance(node, Symbol) and node.name in (Name.KEYS, Name.VALID):
            reason = f"`{node.name.value}` counts keys, and there are fewer blocks; bind a number as a parameter"
            raise UnlikeKeys(node, pooled, reason)
        if isinstance(node, Symbol) and node.name is Name.J and blocks.at is None:
            reason = (
                "`j` is a position, and nothing says where blocks stand; write `let k = pool(k, 16) at 16 * j + 15`"
            )
            raise UnlikeKeys(node, pooled, reason)
        if isinstance(node, AtRow) and any(isinstance(each, Pooled) for each in outside(node)):
            raise UnlikeKeys(node, pooled, "blocks have other positions than queries; read `[i]` of what is pooled")


def outside(expr: Expr) -> Iterator[Expr]:
    """An expression and all inside it, but not inside blocks of keys."""
    yield expr
    if not isinstance(expr, Pooled | Shares):
        for each in children(expr):
            yield from outside(each)


def on_blocks(expr: Expr, at: Expr) -> Expr:
    """An expression in which `j` is the number of a block."""
    if isinstance(expr, Pooled | Shares) or Name.J not in names_in(expr):
        return expr
    if expr == Symbol(Name.J):
        return replace(at, span=expr.span)
    return rebuild(expr, lambda each: on_blocks(each, at))


def position(at: Expr, block: Expr) -> Expr:
    """Where a block stands."""
    return substitute(at, {Symbol(Name.J): block})
