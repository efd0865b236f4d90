"""Arithmetic on constants while a spec is resolved: parameters are bound, so most of it can be done at once."""

from __future__ import annotations

import math

from attncc.spec.expr import Binary, BinaryOp, Call, Compare, CompareOp, Const, Expr, Negate, Not

LARGEST = 2**53  # whole numbers beyond this are not exact in float64
_TOO_LARGE = "too large: whole numbers end at 2^53, real ones at about 10^308"


LARGEST_POSITION = 2**30  # in patterns: sums of two such numbers fit into 32 bits


class NoValue(Exception):
    """A constant expression without a value; the text says why."""


def fold(expr: Expr) -> Expr:
    """The constant that `expr` equals if its direct operands are constants, else `expr`.

    Raises:
        NoValue: division by zero, a function outside its domain, or a number too large to be exact.
    """
    match expr:
        case Negate(operand=Const(value=value)):
            return Const(-value, span=expr.span)
        case Not(operand=Const(value=bool(value))):
            return Const(not value, span=expr.span)
        case Binary(op=op, left=Const(value=left), right=Const(value=right)):
            return Const(in_range(arithmetic(op, left, right)), span=expr.span)
        case Binary(op=BinaryOp.FLOOR_DIVIDE | BinaryOp.MODULO | BinaryOp.DIVIDE, right=Const(value=0)):
            raise NoValue("the divisor is 0")
        case Binary(op=BinaryOp.MULTIPLY | BinaryOp.DIVIDE, left=left, right=Const(value=1)):
            return left
        case Compare(op=op, left=Const(value=left), right=Const(value=right)):
            return Const(compare(op, left, right), span=expr.span)
        case Call(function=name, arguments=arguments) if all(isinstance(each, Const) for each in arguments):
            values = [each.value for each in arguments if isinstance(each, Const)]
            return Const(in_range(call(name, values)), span=expr.span)
        case _:
            return expr


def arithmetic(op: BinaryOp, left: int | float, right: int | float) -> int | float:
    """The value of `left op right`; whole operands keep whole results except under `/`."""
    try:
        match op:
            case BinaryOp.ADD:
                return left + right
            case BinaryOp.SUBTRACT:
                return left - right
            case BinaryOp.MULTIPLY:
                return left * right
            case BinaryOp.DIVIDE:
                return left / right
            case BinaryOp.FLOOR_DIVIDE:
                return left // right
            case BinaryOp.MODULO:
                return left % right
            case BinaryOp.POWER:
                return _power(left, right)
    except ZeroDivisionError:
        raise NoValue("the divisor is 0") from None
    except OverflowError:
        raise NoValue(_TOO_LARGE) from None


def _power(left: int | float, right: int | float) -> int | float:
    if isinstance(left, int) and isinstance(right, int) and right >= 0:
        if abs(left) > 1 and right * math.log2(abs(left)) > 53:
            raise NoValue(_TOO_LARGE)
        return int(left**right)
    value = float(left) ** right
    if isinstance(value, complex):
        raise NoValue("a negative number has no fractional power")
    return float(value)


def compare(op: CompareOp, left: int | float, right: int | float) -> bool:
    """The truth of `left op right`."""
    match op:
        case CompareOp.LESS:
            return left < right
        case CompareOp.LESS_EQUAL:
            return left <= right
        case CompareOp.GREATER:
            return left > right
        case CompareOp.GREATER_EQUAL:
            return left >= right
        case CompareOp.EQUAL:
            return left == right
        case CompareOp.NOT_EQUAL:
            return left != right


def call(name: str, values: list[int | float]) -> int | float:
    """The value of a scalar function at constants."""
    try:
        return _call(name, values)
    except ValueError:
        raise NoValue(f"`{name}` has no value at {', '.join(map(str, values))}") from None
    except OverflowError:
        raise NoValue(_TOO_LARGE) from None


def _call(name: str, values: list[int | float]) -> int | float:
    x = values[0]
    match name:
        case "abs":
            return abs(x)
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "clip":
            return min(max(x, values[1]), values[2])
        case "floor":
            return math.floor(x)
        case "sign":
            return (x > 0) - (x < 0)
        case "stop_gradient":
            return x
        case "relu":
            return max(x, 0)
        case "sigmoid":
            return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
        case "silu":
            return x * _call("sigmoid", values)
        case "gelu":
            return x * (1 + math.erf(x / math.sqrt(2))) / 2
        case "softplus":
            return max(x, 0) + math.log1p(math.exp(-abs(x)))
        case "elu":
            return x if x > 0 else math.expm1(x)
        case "exp2":
            return float(2**x)
        case _:
            return float(getattr(math, name)(x))


def in_range(value: int | float) -> int | float:
    """The value of a constant.

    Raises:
        NoValue: when float64 does not hold it, or a whole number is not exact there.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise NoValue(_TOO_LARGE)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise NoValue(_TOO_LARGE)
    return value
