"""Differences of sums over many keys, in parts that keep their digits in single precision.

A sum over 100,000 keys may be 10,000 times the difference of two such sums that a weight is made of. In float32 the
difference would keep three digits. Computed in float64 and cut into a whole number and a rest below 1, both parts fit
into float32, and (W_i - W_j) + (r_i - r_j) is as exact as float32 allows: whole numbers up to 2^24 subtract exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attncc.spec.data import Data
from attncc.spec.expr import AtRow, Binary, BinaryOp, Call, Const, Expr, Let, Negate, OverKeys
from attncc.spec.sides import Side, side_of


@dataclass(frozen=True, slots=True)
class Parted:
    """other + sign * (row - key), in which row and key are sums over keys."""

    row: Expr
    key: Expr
    sign: int
    other: Expr | None


def parted(expr: Expr, data: Mapping[str, Data]) -> Parted | None:
    """A sum of a pair in which a far sum at the query and one at the key have opposite signs; None for others."""
    addends = list(_addends(expr, 1))
    far = [(sign, each, side_of(each, data)) for sign, each in addends if _is_far(each)]
    rows, keys = ([(sign, each) for sign, each, side in far if side is wanted] for wanted in (Side.ROW, Side.COLUMN))
    for sign, row in rows:
        for other_sign, key in keys:
            if sign == -other_sign:
                rest = [(own, each) for own, each in addends if each is not row and each is not key]
                return Parted(row, key, sign, _total(rest))
    return None


def whole_of(sums: Expr) -> Expr:
    """The whole part, which has no derivative."""
    return Let(f"{_name(sums)}_whole", Call("floor", (sums,)))


def rest_of(sums: Expr) -> Expr:
    """What the whole part leaves, from 0 to 1."""
    return Let(f"{_name(sums)}_rest", Binary(BinaryOp.SUBTRACT, sums, Call("floor", (sums,))))


def _name(sums: Expr) -> str:
    match sums:
        case Let(name=name):
            return name
        case AtRow(value=value):
            return _name(value)
        case _:
            return "sums"


def _addends(expr: Expr, sign: int) -> Iterator[tuple[int, Expr]]:
    match expr:
        case Binary(op=BinaryOp.ADD, left=left, right=right):
            yield from _addends(left, sign)
            yield from _addends(right, sign)
        case Binary(op=BinaryOp.SUBTRACT, left=left, right=right):
            yield from _addends(left, sign)
            yield from _addends(right, -sign)
        case Negate(operand=operand):
            yield from _addends(operand, -sign)
        case _:
            yield sign, expr


def _is_far(expr: Expr) -> bool:
    """Whether a value grows as a sum over keys does."""
    match expr:
        case OverKeys(function=function):
            return function == "cumsum"
        case Let(value=value) | AtRow(value=value) | Negate(operand=value):
            return _is_far(value)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT, left=left, right=right):
            return _is_far(left) or _is_far(right)
        case Binary(op=BinaryOp.MULTIPLY | BinaryOp.DIVIDE, left=left, right=Const()):
            return _is_far(left)
        case Binary(op=BinaryOp.MULTIPLY, left=Const(), right=right):
            return _is_far(right)
        case _:
            return False


def _total(addends: list[tuple[int, Expr]]) -> Expr | None:
    total: Expr | None = None
    for sign, each in addends:
        if total is None:
            total = each if sign > 0 else Negate(each)
        else:
            total = Binary(BinaryOp.ADD if sign > 0 else BinaryOp.SUBTRACT, total, each)
    return total
