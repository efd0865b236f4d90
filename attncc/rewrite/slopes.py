"""Sums and products without their 0s and 1s, and the derivative of every function of one argument."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attncc.spec.expr import Binary, BinaryOp, Call, Compare, CompareOp, Const, Expr, Local, Negate, Select, walk

INNER = Local("inner")  # the argument of a function whose own derivative is asked for


def times(left: Expr, right: Expr) -> Expr:
    """left * right, without the 1s and 0s."""
    if left == Const(1) or right == Const(0):
        return right
    if right == Const(1) or left == Const(0):
        return left
    return Binary(BinaryOp.MULTIPLY, left, right)


def plus(left: Expr, right: Expr) -> Expr:
    """left + right, without the 0s."""
    if left == Const(0):
        return right
    return left if right == Const(0) else Binary(BinaryOp.ADD, left, right)


def depends(expr: Expr, variable: Expr) -> bool:
    """Whether a variable is a leaf of an expression."""
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
    distribution = _over(plus(one, Call("erf", (_over(x, Const(math.sqrt(2))),))), two)
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
        "silu": times(sigmoid, plus(one, times(x, _minus(one, sigmoid)))),
        "gelu": plus(distribution, times(x, density)),
        "softplus": sigmoid,
        "relu": Select(Compare(CompareOp.GREATER, x, Const(0)), one, Const(0)),
        "elu": Call("exp", (Call("min", (x, Const(0))),)),
        "cos": Negate(Call("sin", (x,))),
        "sin": Call("cos", (x,)),
        "erf": times(Const(2 / math.sqrt(math.pi)), Call("exp", (Negate(square),))),
        "floor": Const(0),
        "sign": Const(0),
        "stop_gradient": Const(0),
    }


SLOPES = _slopes(INNER)
