"""Between which numbers an expression lies, as far as its form tells: what powers and logarithms need to know."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, Let, Local, Name, Negate, Select, Symbol, Table

Bounds = tuple[float, float]

_ANY = (-math.inf, math.inf)
_COUNTS = frozenset(
    {Name.HEAD, Name.HEADS, Name.QUERIES, Name.KEYS, Name.WIDTH, Name.VALUE_WIDTH, Name.VALID, Name.COUNT}
)
_RISING = {"exp": math.exp, "exp2": lambda x: 2.0**x}
_WITHIN: dict[str, Bounds] = {"sigmoid": (0.0, 1.0), "relu": (0.0, math.inf), "abs": (0.0, math.inf)}


def is_positive(expr: Expr, value_of: Callable[[str], Expr | None]) -> bool:
    """Whether an expression is proven to be > 0.

    Args:
        value_of: what a Local is made of, where that is known.
    """
    return bounds_of(expr, value_of)[0] > 0


def bounds_of(expr: Expr, value_of: Callable[[str], Expr | None]) -> Bounds:
    """A least and a largest number, which need not be reached."""

    def within(part: Expr) -> Bounds:
        return bounds_of(part, value_of)

    match expr:
        case Const(value=value):
            return float(value), float(value)
        case Symbol(name=name) if name in _COUNTS:
            return 0.0, math.inf
        case Table(values=values):
            return float(min(values)), float(max(values))
        case Let(value=value):
            return within(value)
        case Local(name=name):
            found = value_of(name)
            return _ANY if found is None else within(found)
        case Negate(operand=operand):
            low, high = within(operand)
            return -high, -low
        case Select(then=then, otherwise=otherwise):
            return _around([*within(then), *within(otherwise)])
        case Call(function=name, arguments=(argument,)) if name in _RISING:
            return _risen(_RISING[name], within(argument))
        case Call(function=name) if name in _WITHIN:
            return _WITHIN[name]
        case Binary(op=BinaryOp.POWER, left=Const(value=base), right=exponent) if base > 0:
            low, high = within(exponent)
            return _risen(lambda x: float(base) ** x, (low, high) if base >= 1 else (high, low))
        case Binary(op=op, left=left, right=right):
            return _combined(op, within(left), within(right))
        case _:
            return _ANY


def _combined(op: BinaryOp, left: Bounds, right: Bounds) -> Bounds:
    match op:
        case BinaryOp.ADD:
            return left[0] + right[0], left[1] + right[1]
        case BinaryOp.SUBTRACT:
            return left[0] - right[1], left[1] - right[0]
        case BinaryOp.MULTIPLY:
            return _around([_times(x, y) for x, y in product(left, right)])
        case BinaryOp.DIVIDE if right[0] > 0:
            return _around([_times(x, 1 / y) for x, y in product(left, right)])
        case _:
            return _ANY


def _risen(function: Callable[[float], float], of: Bounds) -> Bounds:
    """A function that rises, and is never negative, at both ends."""

    def at(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf

    return at(of[0]), at(of[1])


def _times(x: float, y: float) -> float:
    """Nothing times as much as you like stays nothing."""
    return 0.0 if 0.0 in (x, y) else x * y


def _around(ends: list[float]) -> Bounds:
    return min(ends), max(ends)
