"""Derivatives of scalar expressions: the rules for sums, chains and functions here, everything else by sympy.

The rules leave parts of an expression as they were written. sympy is loaded only where none of them fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Expr,
    Local,
    Negate,
    Select,
    substitute,
    walk,
)

INNER = Local("inner")  # the argument of a function whose own derivative is asked for


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
        case Select(condition=condition, then=then, otherwise=otherwise):
            # A choice of derivatives, not a sum of products with 0: the other branch may have no value here.
            return Select(condition, derivative(then, variable), derivative(otherwise, variable))
        case Negate(operand=operand):
            return Negate(derivative(operand, variable))
        case Binary(op=BinaryOp.ADD, left=left, right=right):
            return _plus(derivative(left, variable), derivative(right, variable))
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
            return _plus(first, times(left, derivative(right, variable)))
    from attncc.rewrite.symbolic import derivative as by_sympy

    return by_sympy(expr, variable)


def times(left: Expr, right: Expr) -> Expr:
    """left * right, without the 1s and 0s."""
    if left == Const(1) or right == Const(0):
        return right
    if right == Const(1) or left == Const(0):
        return left
    return Binary(BinaryOp.MULTIPLY, left, right)


def _plus(left: Expr, right: Expr) -> Expr:
    if left == Const(0):
        return right
    return left if right == Const(0) else Binary(BinaryOp.ADD, left, right)


def _chooses(expr: Expr, variable: Expr) -> bool:
    """Whether a conditional that depends on the variable is inside."""
    return any(isinstance(node, Select) and depends(node, variable) for node in walk(expr))


def depends(expr: Expr, variable: Expr) -> bool:
    return any(node == variable for node in walk(expr))


def _minus(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryOp.SUBTRACT, left, right)


def _over(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryOp.DIVIDE, left, right)


def _slopes(x: Expr) -> Mapping[str, Expr]:
    """The derivative of every function of one argument."""
    one, two = Const(1), Const(2)
    square = Binary(BinaryOp.POWER, x, two)
    sigmoid = Call("sigmoid", (x,))
    tanh = Call("tanh", (x,))
    distribution = _over(_plus(one, Call("erf", (_over(x, Const(math.sqrt(2))),))), two)
    density = _over(Call("exp", (_over(Negate(square), two),)), Const(math.sqrt(2 * math.pi)))
    return {
        "abs": Call("sign", (x,)),
        "exp": Call("exp", (x,)),
        "exp2": times(Const(math.log(2)), Call("exp2", (x,))),
        "log": _over(one, x),
        "log2": _over(one, times(x, Const(math.log(2)))),
        "sqrt": _over(one, times(two, Call("sqrt", (x,)))),
        "tanh": _minus(one, Binary(BinaryOp.POWER, tanh, two)),
        "sigmoid": times(sigmoid, _minus(one, sigmoid)),
        "silu": times(sigmoid, _plus(one, times(x, _minus(one, sigmoid)))),
        "gelu": _plus(distribution, times(x, density)),
        "softplus": sigmoid,
        "relu": Select(Compare(CompareOp.GREATER, x, Const(0)), one, Const(0)),
        "elu": Call("exp", (Call("min", (x, Const(0))),)),
        "cos": Negate(Call("sin", (x,))),
        "sin": Call("cos", (x,)),
        "erf": times(Const(2 / math.sqrt(math.pi)), Call("exp", (Negate(square),))),
        "floor": Const(0),
        "sign": Const(0),
    }


SLOPES = _slopes(INNER)
