"""Up to which position 32 bits hold every whole number that kernels compute.

Positions, lengths and indices are numbers of 32 bits in kernels (offsets into memory have 64). Where positions and
lengths lie in 0 … N, every whole number lies between two lines over N; the steepest line says how large N may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from attncc.plan.layout import position
from attncc.plan.model import Plan
from attncc.plan.pieces import Part
from attncc.plan.ranges import Segment
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Const,
    Expr,
    Indicator,
    Let,
    Name,
    Negate,
    Select,
    Symbol,
    Table,
    Type,
    Width,
    type_of,
    walk,
)

_LARGEST = 2**31 - 1
_TILE = 256  # a position may lie beside its tensor by as many as the longest tile has
_FEW = frozenset({Name.HEAD, Name.HEADS, Name.WIDTH, Name.VALUE_WIDTH})
_MOST_HEADS = 2**16  # and features
_MOST_CLASSES = 2**12  # of positions


_Pace = Mapping[Name, Fraction]  # by how much a symbol grows where the longest length grows by one, if not by one


@dataclass(frozen=True, slots=True)
class _Line:
    """slope · N + offset"""

    slope: Fraction
    offset: Fraction

    def plus(self, other: _Line) -> _Line:
        return _Line(self.slope + other.slope, self.offset + other.offset)

    def times(self, factor: Fraction) -> _Line:
        return _Line(self.slope * factor, self.offset * factor)


@dataclass(frozen=True, slots=True)
class _Range:
    """low <= x <= high for every N"""

    low: _Line
    high: _Line

    @property
    def is_constant(self) -> bool:
        return not self.low.slope and not self.high.slope

    def plus(self, other: _Range) -> _Range:
        return _Range(self.low.plus(other.low), self.high.plus(other.high))

    def times(self, factor: Fraction) -> _Range:
        ends = self.low.times(factor), self.high.times(factor)
        return _Range(*(ends if factor >= 0 else reversed(ends)))


def longest_call(plan: Plan) -> int | None:
    """Positions and lengths up to this overflow nowhere; None where a whole number has no bound that follows."""
    limit = _LARGEST - _TILE
    for expr, pace in _numbers(plan):
        for node in walk(expr):
            if type_of(node) is Type.INT:
                found = _range(node, pace)
                if found is None:
                    return None
                limit = min(limit, _limit(found.high), _limit(found.low.times(Fraction(-1))))
    return limit if limit > 0 else None


def _numbers(plan: Plan) -> Iterator[tuple[Expr, _Pace]]:
    """The expressions of kernels, and how far the symbols that they read go."""
    spec = plan.spec
    for expr in (spec.pattern, spec.score, spec.weight, spec.normalizer):
        yield expr, {}
    for one in plan.domain.classes:
        yield from ((end, {}) for end in _ends((*one.by_row, *one.by_column)))
    for piece in plan.pieces.pieces if plan.pieces is not None else ():
        for part in piece.parts:
            yield from _numbers_of_part(part)


def _numbers_of_part(part: Part) -> Iterator[tuple[Expr, _Pace]]:
    """Coordinates grow more slowly than positions; what is made of them may not."""
    layout = part.layout
    rows, keys = (Fraction(each.width, each.period) for each in (layout.rows, layout.keys))
    pace = {Name.I: rows, Name.J: keys}
    yield part.one.pattern, pace
    yield position(layout.rows, Name.I, layout), pace
    yield position(layout.keys, Name.J, layout), pace
    for segments, own in ((part.one.by_row, rows), (part.one.by_column, keys)):
        yield from ((end, {Name.FIRST: own, Name.LAST: own}) for end in _ends(segments))


def _ends(segments: Iterable[Segment]) -> Iterator[Expr]:
    for segment in segments:
        for each in (segment.touched, segment.full):
            ends = (each.low, each.high, each.when) if each is not None else ()
            yield from (end for end in ends if end is not None)


def _limit(line: _Line) -> int:
    """The largest N for which the line stays within 32 bits."""
    if line.slope <= 0:
        return _LARGEST if line.offset <= _LARGEST else 0
    return int((_LARGEST - line.offset) / line.slope)


def _constant(low: float, high: float) -> _Range:
    return _Range(*(_Line(Fraction(0), Fraction(each)) for each in (low, high)))


def _up_to(length: Fraction) -> _Range:
    return _Range(_Line(Fraction(0), Fraction(-_TILE)), _Line(length, Fraction(_TILE)))


def _range(expr: Expr, pace: _Pace) -> _Range | None:
    """The range of a number, real ones made of whole numbers included; None where nothing is known."""
    match expr:
        case Const(value=value):
            return _constant(value, value)
        case Symbol(name=Name.RESIDUE):
            return _constant(0, _MOST_CLASSES)
        case Symbol(name=name) if type_of(expr) is Type.INT:
            return _constant(0, _MOST_HEADS) if name in _FEW else _up_to(pace.get(name, Fraction(1)))
        case Width():
            return _constant(0, _MOST_HEADS)
        case Indicator():
            return _constant(0, 1)
        case Table(values=values):
            return _constant(min(values), max(values))
        case Let(value=value):
            return _range(value, pace)
        case Negate(operand=operand):
            found = _range(operand, pace)
            return None if found is None else found.times(Fraction(-1))
        case Select(then=then, otherwise=otherwise):
            return _hull([_range(then, pace), _range(otherwise, pace)])
        case Binary(op=op, left=left, right=right):
            return _of_binary(op, _range(left, pace), _range(right, pace))
        case Call(function=function, arguments=arguments):
            return _of_call(function, [_range(each, pace) for each in arguments])
        case _:
            return None


def _of_binary(op: BinaryOp, left: _Range | None, right: _Range | None) -> _Range | None:
    if right is None or (left is None and op is not BinaryOp.MODULO):
        return None
    if op is BinaryOp.MODULO:
        return _hull([_constant(0, 0), right])
    assert left is not None
    match op:
        case BinaryOp.ADD:
            return left.plus(right)
        case BinaryOp.SUBTRACT:
            return left.plus(right.times(Fraction(-1)))
        case BinaryOp.MULTIPLY if left.is_constant:
            return _hull([right.times(left.low.offset), right.times(left.high.offset)])
        case BinaryOp.MULTIPLY if right.is_constant:
            return _of_binary(op, right, left)
        case BinaryOp.DIVIDE | BinaryOp.FLOOR_DIVIDE if right.low == right.high and right.is_constant:
            if not right.low.offset:
                return None
            return _rounded(left.times(1 / right.low.offset))
        case _:
            return None


def _of_call(function: str, arguments: list[_Range | None]) -> _Range | None:
    first = arguments[0]
    match function:
        case "abs":
            return None if first is None else _hull([_constant(0, 0), first, first.times(Fraction(-1))])
        case "sign":
            return _constant(-1, 1)
        case "floor":
            return None if first is None else _rounded(first)
        case "log" | "log2" | "sqrt":  # of what is not below 1/2, these are no larger than it, and 1
            return None if first is None else _hull([_constant(-1, 1), first])
        case "clip" if first is None:
            return _hull(arguments[1:])
        case "min" | "max" | "clip":
            return _hull(arguments)
        case _:
            return None


def _rounded(found: _Range) -> _Range:
    return found.plus(_constant(-1, 0))


def _hull(parts: list[_Range | None]) -> _Range | None:
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None
    lows, highs = [each.low for each in known], [each.high for each in known]
    return _Range(
        _Line(min(each.slope for each in lows), min(each.offset for each in lows)),
        _Line(max(each.slope for each in highs), max(each.offset for each in highs)),
    )
