"""Between which numbers an expression lies, as far as its form tells: what powers and logarithms need to know."""

from __future__ import annotations

import math
from collections.abc import Callable

from attncc.rewrite.exponential import never_negative
from attncc.rewrite.intervals import ANY, Bounds, bounds_of_call
from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, Let, Local, Name, Negate, Select, Symbol, Table


def is_positive(expr: Expr, value_of: Callable[[str], Expr | None]) -> bool:
    """Whether an expression is proven to be > 0.

    Args:
        value_of: what a Local is made of, where that is known.
    """
    return bounds_of(expr, value_of).low > 0


def bounds_of(expr: Expr, value_of: Callable[[str], Expr | None]) -> Bounds:
    """A least and a largest number, which need not be reached."""

    def within(part: Expr) -> Bounds:
        return bounds_of(part, value_of)

    match expr:
        case Const(value=value):
            return Bounds(float(value), float(value))
        case Symbol(name=name) if name is not Name.J and never_negative(expr):
            return Bounds(0.0, math.inf)
        case Table(values=values):
            return Bounds(float(min(values)), float(max(values)))
        case Let(value=value):
            return within(value)
        case Local(name=name):
            found = value_of(name)
            return ANY if found is None else within(found)
        case Negate(operand=operand):
            return -within(operand)
        case Select(then=then, otherwise=otherwise):
            return within(then) | within(otherwise)
        case Call(function=name, arguments=arguments):
            return bounds_of_call(name, [within(each) for each in arguments])
        case Binary(op=BinaryOp.POWER, left=Const(value=base), right=exponent) if base > 0:
            steps = math.log2(base)
            return bounds_of_call("exp2", [within(exponent) * Bounds(steps, steps)])
        case Binary(op=op, left=left, right=right):
            return _combined(op, within(left), within(right))
        case _:
            return ANY


def _combined(op: BinaryOp, left: Bounds, right: Bounds) -> Bounds:
    match op:
        case BinaryOp.ADD:
            return left + right
        case BinaryOp.SUBTRACT:
            return left + -right
        case BinaryOp.MULTIPLY:
            return left * right
        case BinaryOp.DIVIDE if right.low > 0:
            return left * Bounds(1 / right.high, 1 / right.low)
        case _:
            return ANY
