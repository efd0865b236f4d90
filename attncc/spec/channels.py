"""`normalize = channels`: a weight that is a number of the pair times a product of features, taken apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attncc.spec.data import Data
from attncc.spec.expr import Binary, BinaryOp, Const, Dot, Expr, Let, Name, Negate, Symbol, substitute
from attncc.spec.sides import Side, side_of

CHANNELS = Symbol(Name.CHANNELS)


@dataclass(frozen=True, slots=True)
class ByChannel:
    """weight = factor * dot(row, column): each feature c of `column` is divided by its own sum of factor * column_c."""

    factor: Expr
    row: Expr
    column: Expr


def by_channel(weight: Expr, score: Expr, data: Mapping[str, Data]) -> ByChannel | None:
    """The parts of a weight; None where it is no such product."""
    factors = list(_factors(substitute(weight, {Symbol(Name.SCORE): score}), divides=False))
    dots = [each for each, divides in factors if isinstance(each, Dot) and not divides and _sides(each, data)]
    if len(dots) != 1:
        return None
    rest: Expr = Const(1)
    for each, divides in factors:
        if each is dots[0]:
            continue
        if divides:
            rest = Binary(BinaryOp.DIVIDE, rest, each)
        else:
            rest = each if rest == Const(1) else Binary(BinaryOp.MULTIPLY, rest, each)
    row, column = _sides(dots[0], data)
    return ByChannel(rest, row, column)


def _factors(expr: Expr, *, divides: bool) -> Iterator[tuple[Expr, bool]]:
    match expr:
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
            yield from _factors(left, divides=divides)
            yield from _factors(right, divides=divides)
        case Binary(op=BinaryOp.DIVIDE, left=left, right=right):
            yield from _factors(left, divides=divides)
            yield right, not divides
        case Negate(operand=operand):
            yield Const(-1), divides
            yield from _factors(operand, divides=divides)
        case Let(value=Dot() | Binary() | Negate() as value):
            yield from _factors(value, divides=divides)
        case _:
            yield expr, divides


def _sides(product: Dot, data: Mapping[str, Data]) -> tuple[Expr, ...]:
    """The vector of the query and that of the key; nothing where there are no such."""
    for row, column in ((product.left, product.right), (product.right, product.left)):
        if side_of(row, data) in (Side.ROW, Side.NONE) and side_of(column, data) is Side.COLUMN:
            return row, column
    return ()
