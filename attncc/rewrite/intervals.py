"""Arithmetic of intervals: between which numbers sums, products and functions of others lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attncc.spec.fold import NoValue, call
from attncc.spec.functions import FUNCTIONS

_RISING = frozenset(
    {"exp", "exp2", "log", "log2", "sqrt", "tanh", "sigmoid", "softplus", "relu", "elu", "erf", "floor"}
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Every value lies in low … high, which may be infinite."""

    low: float
    high: float

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Bounds:
        return Bounds(-self.high, -self.low)

    def __mul__(self, other: Bounds) -> Bounds:
        products = [_product(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Bounds(min(products), max(products))

    def __or__(self, other: Bounds) -> Bounds:
        return Bounds(min(self.low, other.low), max(self.high, other.high))


ANY = Bounds(-math.inf, math.inf)


def bounds_of_call(name: str, of: list[Bounds]) -> Bounds:
    """Those of a function of the table, by those of its arguments."""
    first = of[0]
    lows, highs = [each.low for each in of], [each.high for each in of]
    match name:
        case "min":
            return Bounds(min(lows), min(highs))
        case "max":
            return Bounds(max(lows), max(highs))
        case "clip":
            return Bounds(min(max(first.low, lows[1]), lows[2]), min(max(first.high, highs[1]), highs[2]))
        case "stop_gradient":
            return first
        case "abs":
            return Bounds(max(0, first.low, -first.high), max(-first.low, first.high))
    low, high = FUNCTIONS[name].low, FUNCTIONS[name].high
    range_ = Bounds(-math.inf if low is None else low, math.inf if high is None else high)
    if name not in _RISING:
        return range_
    return Bounds(_value(name, first.low, range_.low), _value(name, first.high, range_.high))


def _value(name: str, x: float, otherwise: float) -> float:
    """The value of a function at an end of an interval; `otherwise` where it has none there."""
    try:
        return float(call(name, [x])) if math.isfinite(x) else otherwise
    except NoValue:
        return otherwise


def _product(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b
