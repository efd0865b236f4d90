"""Numbers of a layer, made of constants and parameters → their values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

from attncc.spec.layers.model import Node, Op

Number = int | float | bool

_COMPARE: Mapping[str, Callable[[Number, Number], bool]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip
_ARITHMETIC: Mapping[Op, Callable[[Number, Number], Number]] = {
    Op.ADD: operator.add,
    Op.SUBTRACT: operator.sub,
    Op.MULTIPLY: operator.mul,
    Op.DIVIDE: operator.truediv,
    Op.FLOOR_DIVIDE: operator.floordiv,
    Op.MODULO: operator.mod,
    Op.POWER: operator.pow,
}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs, "exp": math.exp, "exp2": lambda x: 2.0**x, "log": math.log, "log2": math.log2, "sqrt": math.sqrt,
    "tanh": math.tanh, "cos": math.cos, "sin": math.sin, "erf": math.erf, "floor": math.floor, "min": min, "max": max,
    "clip": lambda x, low, high: min(max(x, low), high),
}  # fmt: skip
NUMBER_FUNCTIONS = frozenset(_FUNCTIONS)


def value_of(node: Node, sizes: Mapping[str, int | float]) -> Number | None:
    """The value for given parameters; None where one has none, or where the number itself has none."""
    try:
        return _value(node, sizes)
    except (KeyError, ArithmeticError, ValueError):
        return None


def _value(node: Node, sizes: Mapping[str, int | float]) -> Number:
    match node.op:
        case Op.CONST:
            return node.numbers[0]
        case Op.SIZE:
            found = node.dims[0].value(sizes)  # type: ignore[arg-type]  # real parameters are sizes of nothing else
            return int(found) if found.denominator == 1 else float(found)
        case Op.NAME:
            return sizes[node.name]
        case Op.NEGATE:
            return -_value(node.args[0], sizes)
        case Op.FUNCTION:
            return _FUNCTIONS[node.name](*(_value(each, sizes) for each in node.args))
        case Op.COMPARE:
            return _COMPARE[node.name](*(_value(each, sizes) for each in node.args))
        case Op.AND:
            return all(_value(each, sizes) for each in node.args)
        case Op.OR:
            return any(_value(each, sizes) for each in node.args)
        case Op.NOT:
            return not _value(node.args[0], sizes)
    left, right = (_value(each, sizes) for each in node.args)
    return _ARITHMETIC[node.op](left, right)
