"""How many pairs a head visits, as a formula in n and m: the width of each segment for a single row, summed over rows.

Everything is taken for long sequences: `i // c` is (i - (c - 1) / 2) / c on average, `min(i, 3)` is 3, and ends that
stick out of the keys do not count. Where a bound has no such form there is no formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy  # noqa: TID251  as in `cost`

from attncc.plan.layout import PLAIN, Layout
from attncc.plan.ranges import HeadClass, Interval
from attncc.spec.expr import TRUE, And, Binary, BinaryOp, Call, Compare, CompareOp, Const, Expr, Name, Negate, Symbol

I = sympy.Symbol("i", integer=True)  # noqa: E741
_POSITIONS = frozenset({Name.FIRST, Name.LAST, Name.I, Name.J})


def visited_pairs(
    one: HeadClass, starts_at_zero: bool, lengths: Mapping[str, Any], layout: Layout = PLAIN
) -> Any | None:
    """The pairs that one head of a class visits, leading terms; None where some bound has no closed form.

    Args:
        starts_at_zero: rows stand at 0 … n - 1 instead of m - n … m - 1.
        lengths: sympy symbols by the names n, m, h and H.
        layout: what the coordinates of the class are.
    """
    n, m = lengths["n"], lengths["m"]
    of_rows, of_keys = (sympy.Rational(each.width, each.period) for each in (layout.rows, layout.keys))
    swept = _Swept(n * of_rows, m * of_rows, m * of_keys, of_keys / of_rows, starts_at_zero, lengths)
    if layout.rows.stop is not None:
        count = sympy.Integer(layout.rows.stop - (layout.rows.first or 0))
        swept = replace(swept, rows=count, end=sympy.Integer(layout.rows.stop), starts_at_zero=False)
    total = sympy.Integer(0)
    for segment in one.by_row:
        found = _segment_pairs(segment.touched, swept)
        if found is None:
            return None
        total += found
    limit = swept.rows * swept.keys  # segments that all reach everywhere overlap
    whole = total.coeff(n * m, 1) == of_rows * of_keys and one.facts.full
    return sympy.expand(layout.classes * (limit if whole else total))


@dataclass(frozen=True)
class _Swept:
    """What the rows of a class meet, in coordinates: how many rows and keys there are, where the rows end.

    A row whose coordinate grows by 1 stands `pace` keys further on.
    """

    rows: Any
    end: Any
    keys: Any
    pace: Any
    starts_at_zero: bool
    lengths: Mapping[str, Any]


def _segment_pairs(touched: Interval, swept: _Swept) -> Any | None:
    n, lengths = swept.rows, swept.lengths
    low = sympy.Integer(0) if touched.low is None else _linear(touched.low, lengths)
    high = swept.keys - 1 if touched.high is None else _linear(touched.high, lengths)
    rows = _rows_where(touched.when, lengths)
    if low is None or high is None or rows is None:
        return None
    width = sympy.expand(high - low + 1)
    slope = width.coeff(I, 1)
    if rows != "all":
        return None if slope != 0 else rows * width
    level = width - slope * I
    positions = n**2 / 2 if swept.starts_at_zero else n * swept.end - n**2 / 2  # the sum of the rows' coordinates
    if slope not in (-swept.pace, 0, swept.pace):
        return None
    return sympy.expand(_leading(slope * positions + level * n, slope, level, n))


def _leading(total: Any, slope: Any, level: Any, n: Any) -> Any:
    """Beside a term of second order, a constant width does not count."""
    return total - level * n if slope != 0 and level.is_number else total


def _rows_where(when: Expr, lengths: Mapping[str, Any]) -> Any | None:
    """How many rows fulfil a condition: a number, or "all" where all but a few do."""
    parts = when.operands if isinstance(when, And) else (when,)
    counts = [_rows_of(part, lengths) for part in parts]
    if any(count is None for count in counts):
        return None
    numbers: list[Any] = [count for count in counts if count != "all"]
    return min(numbers, default="all")


def _rows_of(condition: Expr, lengths: Mapping[str, Any]) -> Any | None:
    if condition == TRUE:
        return "all"
    if not isinstance(condition, Compare):
        return None
    left, right = _linear(condition.left, lengths), _linear(condition.right, lengths)
    if left is None or right is None:
        return None
    match condition.op:
        case CompareOp.LESS:
            room = right - left - 1
        case CompareOp.LESS_EQUAL:
            room = right - left
        case CompareOp.GREATER:
            room = left - right - 1
        case CompareOp.GREATER_EQUAL:
            room = left - right
        case _:
            return None
    room = sympy.expand(room)  # >= 0 where the condition holds
    slope = room.coeff(I, 1)
    rest = room - slope * I
    if not rest.is_number or slope == 0:
        return None
    return "all" if slope > 0 else max(sympy.Integer(0), sympy.floor(rest / -slope) + 1)


def _linear(expr: Expr, lengths: Mapping[str, Any]) -> Any | None:
    """The bound of a single row i as a sympy expression, on average over rows far from the start."""
    match expr:
        case Const(value=int(value)):
            return sympy.Integer(value)
        case Symbol(name=name):
            return I if name in _POSITIONS else lengths.get(name.value)
        case Negate(operand=operand):
            inner = _linear(operand, lengths)
            return None if inner is None else -inner
        case Binary(op=op, left=left, right=right):
            return _binary(op, _linear(left, lengths), _linear(right, lengths))
        case Call(function="min" | "max" as function, arguments=arguments):
            return _extreme(function, [_linear(each, lengths) for each in arguments])
    return None


def _binary(op: BinaryOp, left: Any | None, right: Any | None) -> Any | None:
    if left is None or right is None:
        return None
    match op:
        case BinaryOp.ADD:
            return left + right
        case BinaryOp.SUBTRACT:
            return left - right
        case BinaryOp.MULTIPLY:
            return sympy.expand(left * right)
        case BinaryOp.FLOOR_DIVIDE if right.is_number and left.has(I):
            return sympy.expand((left - (right - 1) / sympy.Integer(2)) / right)
        case BinaryOp.MODULO if right.is_number and left.has(I):
            return (right - 1) / sympy.Integer(2)
    return None


def _extreme(function: str, values: list[Any | None]) -> Any | None:
    """The argument that wins for large i."""
    best = values[0]
    for each in values[1:]:
        if best is None or each is None:
            return None
        gap = sympy.expand(each - best)
        lead = gap.coeff(I, 1) or gap
        if not lead.is_number:
            return None
        if (lead < 0) == (function == "min"):
            best = each
    return best
