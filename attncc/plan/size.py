"""How large the numbers of a pair can become: intervals that hold whatever the dot products are.

Only data counts. Positions and lengths differ from call to call, so they stand for numbers of moderate size; `scale`
for a positive one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from attncc.graph.ir import Graph
from attncc.graph.ops import Op
from attncc.rewrite.exponential import never_negative
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Const,
    Expr,
    Indicator,
    Local,
    Name,
    Negate,
    Select,
    Symbol,
    Table,
    walk,
)
from attncc.spec.fold import NoValue, call
from attncc.spec.functions import FUNCTIONS

_RISING = frozenset(
    {"exp", "exp2", "log", "log2", "sqrt", "tanh", "sigmoid", "softplus", "relu", "elu", "erf", "floor"}
)


@dataclass(frozen=True, slots=True)
class Size:
    """Every value lies in low … high, which may be infinite."""

    low: float
    high: float

    def __add__(self, other: Size) -> Size:
        return Size(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Size:
        return Size(-self.high, -self.low)

    def __mul__(self, other: Size) -> Size:
        products = [_product(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Size(min(products), max(products))

    def __or__(self, other: Size) -> Size:
        return Size(min(self.low, other.low), max(self.high, other.high))


_ANY = Size(-math.inf, math.inf)
_MODERATE = Size(-1, 1)


def size(expr: Expr, graph: Graph) -> Size:
    """The size of an expression whose Locals are nodes of the graph."""
    match expr:
        case Const(value=value):
            return Size(value, value)
        case Table(values=values):
            return Size(min(values), max(values))
        case Local(name=name) if graph[name].op is Op.NUMBER:
            return size(graph[name].value, graph)
        case Negate(operand=operand):
            return -size(operand, graph)
        case Binary(op=BinaryOp.MULTIPLY, left=Negate(operand=left), right=right):
            return -size(replace(expr, left=left), graph)
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right) if left != right:
            return size(left, graph) * size(right, graph)
        case _ if not reads_data(expr, graph):
            positive = never_negative(expr) or expr == Symbol(Name.SCALE)
            return Size(0, 1) if positive else _MODERATE
        case Select(then=then, otherwise=otherwise):
            return size(then, graph) | size(otherwise, graph)
        case Indicator():
            return Size(0, 1)
        case Binary(op=op, left=left, right=right):
            return _binary(op, left, right, graph)
        case Call(function=name, arguments=arguments):
            return _call(name, [size(each, graph) for each in arguments])
    return _ANY


def reads_data(expr: Expr, graph: Graph) -> bool:
    """Whether a dot product, or a sum of what came from one, is read."""
    read = (graph[each.name] for each in walk(expr) if isinstance(each, Local))
    return any(node.op is not Op.NUMBER or reads_data(node.value, graph) for node in read)


def _binary(op: BinaryOp, left: Expr, right: Expr, graph: Graph) -> Size:
    first, second = size(left, graph), size(right, graph)
    match op:
        case BinaryOp.ADD:
            return first + second
        case BinaryOp.SUBTRACT:
            return first + -second
        case BinaryOp.MULTIPLY:  # of a number with itself
            return _even(first, 2)
        case BinaryOp.DIVIDE if isinstance(right, Const):
            return first * Size(1 / right.value, 1 / right.value)
        case BinaryOp.DIVIDE if not reads_data(right, graph):
            return first * second
        case BinaryOp.POWER if isinstance(right, Const) and isinstance(right.value, int) and right.value > 0:
            if right.value % 2 == 0:
                return _even(first, right.value)
            return Size(_power(first.low, right.value), _power(first.high, right.value))
        case BinaryOp.POWER if first.low >= 0:
            return Size(0, math.inf)
    return _ANY


def _call(name: str, sizes: list[Size]) -> Size:
    first = sizes[0]
    lows, highs = [each.low for each in sizes], [each.high for each in sizes]
    match name:
        case "min":
            return Size(min(lows), min(highs))
        case "max":
            return Size(max(lows), max(highs))
        case "clip":
            return Size(min(max(first.low, lows[1]), lows[2]), min(max(first.high, highs[1]), highs[2]))
        case "stop_gradient":
            return first
        case "abs":
            return Size(max(0, first.low, -first.high), max(-first.low, first.high))
    low, high = FUNCTIONS[name].low, FUNCTIONS[name].high
    range_ = Size(-math.inf if low is None else low, math.inf if high is None else high)
    if name not in _RISING:
        return range_
    return Size(_value(name, first.low, range_.low), _value(name, first.high, range_.high))


def _value(name: str, x: float, otherwise: float) -> float:
    """The value of a function at an end of an interval; `otherwise` where it has none there."""
    try:
        return float(call(name, [x])) if math.isfinite(x) else otherwise
    except NoValue:
        return otherwise


def _even(base: Size, power: int) -> Size:
    return Size(0, max(_power(base.low, power), _power(base.high, power)))


def _power(x: float, power: int) -> float:
    try:
        return float(x) ** power
    except OverflowError:
        return math.inf if x > 0 or power % 2 == 0 else -math.inf


def _product(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b
