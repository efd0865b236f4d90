"""What a whole number can be at most and at least, wherever its text alone says so."""

from __future__ import annotations

import math

from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, Indicator, Let, Name, Negate, Symbol

Bounds = tuple[float, float]
_EVERYTHING: Bounds = (-math.inf, math.inf)
_LENGTHS = frozenset({Name.HEAD, Name.HEADS, Name.QUERIES, Name.KEYS, Name.WIDTH, Name.VALUE_WIDTH, Name.VALID})


def proven(index: Expr, size: object) -> bool:
    """Whether an index lies within an axis of a known size for every pair of every call."""
    low, high = bounds(index)
    return isinstance(size, int) and low >= 0 and high <= size - 1


def bounds(expr: Expr) -> Bounds:
    """The least and the largest value that the text of a number allows."""
    match expr:
        case Const(value=value):
            return float(value), float(value)
        case Symbol(name=name):
            return (0, math.inf) if name in _LENGTHS else _EVERYTHING
        case Let(value=value):
            return bounds(value)
        case Negate(operand=operand):
            low, high = bounds(operand)
            return -high, -low
        case Indicator():
            return 0, 1
        case Binary(op=BinaryOp.ADD, left=left, right=right):
            one, other = bounds(left), bounds(right)
            return one[0] + other[0], one[1] + other[1]
        case Binary(op=BinaryOp.SUBTRACT, left=left, right=right):
            return bounds(Binary(BinaryOp.ADD, left, Negate(right)))
        case (
            Binary(op=BinaryOp.MULTIPLY, left=Const(value=factor), right=other_expr)
            | Binary(op=BinaryOp.MULTIPLY, left=other_expr, right=Const(value=factor))
        ) if factor:
            ends = sorted(factor * end for end in bounds(other_expr))
            return ends[0], ends[1]
        case Binary(op=BinaryOp.FLOOR_DIVIDE, left=left, right=Const(value=by)) if by > 0:
            low, high = bounds(left)
            return low // by if low > -math.inf else low, high // by if high < math.inf else high
        case Binary(op=BinaryOp.MODULO, right=Const(value=by)) if by > 0:
            return 0, by - 1
        case Call(function="abs", arguments=(argument,)):
            low, high = bounds(argument)
            return max(low, -high, 0), max(abs(low), abs(high))
        case Call(function="floor", arguments=(argument,)):
            low, high = bounds(argument)
            return math.floor(low) if low > -math.inf else low, math.floor(high) if high < math.inf else high
        case Call(function="min" | "max" as function, arguments=arguments):
            lows, highs = zip(*map(bounds, arguments), strict=True)
            return (min(lows), min(highs)) if function == "min" else (max(lows), max(highs))
        case Call(function="clip", arguments=(argument, least, most)):
            return bounds(Call("min", (Call("max", (argument, least)), most)))
        case _:
            return _EVERYTHING
