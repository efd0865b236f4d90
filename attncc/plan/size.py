"""How large the numbers of a pair can become: intervals that hold whatever the dot products are.

Only data counts. Positions and lengths differ from call to call, so they stand for numbers of moderate size; `scale`
for a positive one.
"""

from __future__ import annotations

import math
from dataclasses import replace

from attncc.graph.ir import Graph
from attncc.graph.ops import Op
from attncc.rewrite.exponential import never_negative
from attncc.rewrite.intervals import ANY, Bounds, bounds_of_call
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

_MODERATE = Bounds(-1, 1)


def size(expr: Expr, graph: Graph) -> Bounds:
    """The size of an expression whose Locals are nodes of the graph."""
    match expr:
        case Const(value=value):
            return Bounds(value, value)
        case Table(values=values):
            return Bounds(min(values), max(values))
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
            return Bounds(0, 1) if positive else _MODERATE
        case Select(then=then, otherwise=otherwise):
            return size(then, graph) | size(otherwise, graph)
        case Indicator():
            return Bounds(0, 1)
        case Binary(op=op, left=left, right=right):
            return _binary(op, left, right, graph)
        case Call(function=name, arguments=arguments):
            return bounds_of_call(name, [size(each, graph) for each in arguments])
    return ANY


def reads_data(expr: Expr, graph: Graph) -> bool:
    """Whether a dot product, or a sum of what came from one, is read."""
    read = (graph[each.name] for each in walk(expr) if isinstance(each, Local))
    return any(node.op is not Op.NUMBER or reads_data(node.value, graph) for node in read)


def _binary(op: BinaryOp, left: Expr, right: Expr, graph: Graph) -> Bounds:
    first, second = size(left, graph), size(right, graph)
    match op:
        case BinaryOp.ADD:
            return first + second
        case BinaryOp.SUBTRACT:
            return first + -second
        case BinaryOp.MULTIPLY:  # of a number with itself
            return _even(first, 2)
        case BinaryOp.DIVIDE if isinstance(right, Const):
            return first * Bounds(1 / right.value, 1 / right.value)
        case BinaryOp.DIVIDE if not reads_data(right, graph):
            return first * second
        case BinaryOp.POWER if isinstance(right, Const) and isinstance(right.value, int) and right.value > 0:
            if right.value % 2 == 0:
                return _even(first, right.value)
            return Bounds(_power(first.low, right.value), _power(first.high, right.value))
        case BinaryOp.POWER if first.low >= 0:
            return Bounds(0, math.inf)
    return ANY


def _even(base: Bounds, power: int) -> Bounds:
    return Bounds(0, max(_power(base.low, power), _power(base.high, power)))


def _power(x: float, power: int) -> float:
    try:
        return float(x) ** power
    except OverflowError:
        return math.inf if x > 0 or power % 2 == 0 else -math.inf
