"""Whether numbers never fall from one key to the next, as follows from what the numbers are made of."""

from __future__ import annotations

from collections.abc import Callable

from attncc.spec.expr import Binary, BinaryOp, Call, Const, Entry, Expr, Let, Name, Negate, Symbol, Token, UpTo

_NEITHER: frozenset[int] = frozenset()
_RISES = frozenset({1})
_BOTH = frozenset({1, -1})  # the same for every key
_SCALES = (BinaryOp.MULTIPLY, BinaryOp.DIVIDE, BinaryOp.FLOOR_DIVIDE)
_KEEPS = ("floor", "min", "max", "clip")  # never fall in any argument, nor do their rounded values


def rises(expr: Expr, ascends: Callable[[str], bool]) -> bool:
    """Whether a number of keys never falls; `ascends` tells it of declared data.

    Sums, products and quotients are rounded to the nearest number, so what rises does so after rounding. The functions
    that libraries approximate are left out.
    """
    return 1 in _ways(expr, ascends)


def _ways(expr: Expr, ascends: Callable[[str], bool]) -> frozenset[int]:
    """1 where it never falls, -1 where it never rises."""

    def ways(each: Expr) -> frozenset[int]:
        return _ways(each, ascends)

    match expr:
        case Const():
            return _BOTH
        case Symbol(name=name):
            return _RISES if name is Name.J else _BOTH
        case Token(name=name):
            return _RISES if ascends(name) else _NEITHER
        case Entry(indices=indices):
            return _BOTH if all(ways(each) == _BOTH for each in indices) else _NEITHER
        case Let(value=value) | UpTo(value=value):
            return ways(value)
        case Negate(operand=operand):
            return _turned(ways(operand))
        case Binary(op=BinaryOp.ADD, left=left, right=right):
            return ways(left) & ways(right)
        case Binary(op=BinaryOp.SUBTRACT, left=left, right=right):
            return ways(left) & _turned(ways(right))
        case Binary(op=BinaryOp.MULTIPLY, left=Const(value=factor), right=of):
            return _scaled(ways(of), factor)
        case Binary(op=op, left=of, right=Const(value=factor)) if op in _SCALES:
            return _scaled(ways(of), factor)
        case Call(function=function, arguments=arguments) if function in _KEEPS:
            return frozenset.intersection(*map(ways, arguments))
        case _:
            return _NEITHER


def _turned(ways: frozenset[int]) -> frozenset[int]:
    return frozenset(-each for each in ways)


def _scaled(ways: frozenset[int], factor: float) -> frozenset[int]:
    return _turned(ways) if factor < 0 else ways
