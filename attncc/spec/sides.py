"""Which tokens a number or vector depends on: the query's, the key's, their distance, or both."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attncc.spec.data import Blocks, Data, Size
from attncc.spec.expr import (
    AtRow,
    Binary,
    BinaryOp,
    Call,
    Compare,
    Const,
    Entry,
    Expr,
    Local,
    MatMul,
    Merge,
    Name,
    Negate,
    Output,
    OverKeys,
    Pooled,
    RowSum,
    Shares,
    Symbol,
    Token,
    Top,
    UpTo,
    Vector,
    children,
    walk,
)


class Side(Enum):
    """What a value is a function of, lengths and the head aside."""

    NONE = "nothing"
    ROW = "the query"
    COLUMN = "the key"
    OFFSET = "i - j"
    PAIR = "the pair"


_LATE = frozenset({Name.SCORE, Name.ROWS, Name.COUNT})  # known only on the way, or after it


def side_of(expr: Expr, data: Mapping[str, Data]) -> Side:
    """What `expr` is a function of; PAIR as well where it reads sums over the keys.

    Positions that are subtracted make a distance: `i - j`, `abs(j - i + 3)`, `j <= i` are functions of i - j alone.
    """
    coefficients = _coefficients(expr)
    if coefficients is not None:
        return _side_of_coefficients(*coefficients)
    match expr:
        case Symbol(name=name):
            return Side.PAIR if name in _LATE else Side.NONE
        case Vector(name=name) | Token(name=name):
            return Side.ROW if data[name].is_row else Side.COLUMN
        case Output() | Merge() | AtRow():
            return Side.ROW
        case OverKeys() | Pooled():
            return Side.COLUMN
        case Local() | RowSum() | Top() | Shares():
            return Side.PAIR
        case Compare(left=left, right=right):
            difference = _coefficients(Binary(BinaryOp.SUBTRACT, left, right))
            if difference is not None:
                return _side_of_coefficients(*difference)
    side = Side.NONE
    for child in children(expr):
        side = join(side, side_of(child, data))
    return side


def join(one: Side, other: Side) -> Side:
    """What a value made of both is a function of."""
    if one is other or other is Side.NONE:
        return one
    return other if one is Side.NONE else Side.PAIR


def of_patterns_alone(expr: Expr, data: Mapping[str, Data]) -> Entry | None:
    """An entry of a table that only patterns may read: one of real numbers with an axis B, or of blocks."""
    for node in walk(expr):
        if isinstance(node, Entry) and data[node.name].is_real:
            axes = data[node.name].axes
            if Size.BATCH in axes or any(isinstance(axis, Blocks) for axis in axes):
                return node
    return None


def reads_data(expr: Expr) -> bool:
    """Whether a value depends on the caller's tensors."""
    tensors = Vector | Token | Entry | UpTo | MatMul | Output | Merge | Top
    return any(isinstance(node, tensors) for node in walk(expr))


def _side_of_coefficients(row: int, column: int) -> Side:
    match row, column:
        case 0, 0:
            return Side.NONE
        case _, 0:
            return Side.ROW
        case 0, _:
            return Side.COLUMN
        case _:
            return Side.OFFSET if row == -column else Side.PAIR


_FIXED = frozenset({Name.HEAD, Name.HEADS, Name.QUERIES, Name.KEYS, Name.WIDTH, Name.VALUE_WIDTH, Name.VALID})


def _coefficients(expr: Expr) -> tuple[int, int] | None:
    """The whole factors of i and j in a sum of positions, lengths and constants; None for anything else."""
    match expr:
        case Const(value=int()):
            return 0, 0
        case Symbol(name=Name.I):
            return 1, 0
        case Symbol(name=Name.J):
            return 0, 1
        case Symbol(name=name):
            return (0, 0) if name in _FIXED else None
        case Negate(operand=operand):
            inner = _coefficients(operand)
            return None if inner is None else (-inner[0], -inner[1])
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT as op, left=left, right=right):
            one, other = _coefficients(left), _coefficients(right)
            if one is None or other is None:
                return None
            sign = 1 if op is BinaryOp.ADD else -1
            return one[0] + sign * other[0], one[1] + sign * other[1]
        case (
            Binary(op=BinaryOp.MULTIPLY, left=Const(value=int(factor)), right=inner_expr)
            | Binary(op=BinaryOp.MULTIPLY, left=inner_expr, right=Const(value=int(factor)))
        ):
            inner = _coefficients(inner_expr)
            return None if inner is None else (factor * inner[0], factor * inner[1])
        case Call(function="floor", arguments=(argument,)):
            return _coefficients(argument)
        case _:
            return None
