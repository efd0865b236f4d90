"""Derivatives of scalar expressions: the rules for sums, chains and functions here, everything else by sympy.

The rules leave parts of an expression as they were written. sympy is loaded only where none of them fits.
"""

from __future__ import annotations

from attncc.rewrite.slopes import INNER, SLOPES, depends, plus, times
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Const,
    Expr,
    Negate,
    Select,
    substitute,
    walk,
)


def derivative(expr: Expr, variable: Expr) -> Expr:
    """d expr / d variable, simplified no further than sympy does by itself.

    Args:
        variable: a leaf of `expr`, compared by equality; everything else is constant.
    """
    if not depends(expr, variable):
        return Const(0)
    match expr:
        case _ if expr == variable:
            return Const(1)
        case Call(function=name, arguments=(argument,)):
            # By the chain rule, so that the argument comes back exactly as it was written.
            outer = substitute(SLOPES[name], {INNER: argument})
            return times(outer, derivative(argument, variable))
        case Binary(
            op=BinaryOp.POWER, left=Call(function="relu", arguments=(argument,)) as base, right=Const(value=power)
        ) if power > 1:
            # No choice of sides: where relu is 0, so is its power.
            lower = base if power == 2 else Binary(BinaryOp.POWER, base, Const(power - 1))
            return times(times(Const(power), lower), derivative(argument, variable))
        case Binary(op=BinaryOp.POWER, left=left, right=Const(value=int(power))) if power > 1:
            lowered = left if power == 2 else Binary(BinaryOp.POWER, left, Const(power - 1))
            return times(times(Const(power), lowered), derivative(left, variable))
        case Select(condition=condition, then=then, otherwise=otherwise):
            # A choice of derivatives, not a sum of products with 0: the other branch may have no value here.
            return Select(condition, derivative(then, variable), derivative(otherwise, variable))
        case Negate(operand=operand):
            return Negate(derivative(operand, variable))
        case Binary(op=BinaryOp.ADD, left=left, right=right):
            return plus(derivative(left, variable), derivative(right, variable))
        case Binary(op=BinaryOp.SUBTRACT, left=left, right=right) if not depends(right, variable):
            return derivative(left, variable)
        case Binary(op=BinaryOp.SUBTRACT, left=left, right=right):
            return Binary(BinaryOp.SUBTRACT, derivative(left, variable), derivative(right, variable))
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right) if not depends(left, variable):
            return times(left, derivative(right, variable))
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right) if not depends(right, variable):
            return times(derivative(left, variable), right)
        case Binary(op=BinaryOp.DIVIDE, left=left, right=right) if not depends(right, variable):
            return Binary(BinaryOp.DIVIDE, derivative(left, variable), right)
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right) if _chooses(expr, variable):
            first = times(derivative(left, variable), right)
            return plus(first, times(left, derivative(right, variable)))
    from attncc.rewrite.symbolic import derivative as by_sympy

    return by_sympy(expr, variable)


def _chooses(expr: Expr, variable: Expr) -> bool:
    """Whether a conditional that depends on the variable is inside."""
    return any(isinstance(node, Select) and depends(node, variable) for node in walk(expr))
