"""What runs apart: the pieces of a pattern, each with the layout in which its keys lie side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attncc.plan.counting import tile_ranges
from attncc.plan.layout import Layout
from attncc.plan.ranges import HeadClass
from attncc.spec.expr import Expr, Name


@dataclass(frozen=True, slots=True)
class Part:
    """What the heads of one class do in a piece: `one` has their pattern and ranges in coordinates of the layout.

    `pattern` says which pairs these are, by positions.
    """

    layout: Layout
    one: HeadClass
    pattern: Expr


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the pattern that runs apart; heads for which no part's condition holds have nothing to do in it.

    The layouts of all parts have strips of the same widths, and turn alike.
    """

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of a pattern in the order in which they run; no pair is in two of them.

    Calls with fewer than `least` keys take the pattern as a whole, whose tiles are mostly needed then.
    """

    pieces: tuple[Piece, ...]
    least: int

    def parts_of(self, heads: HeadClass) -> list[Part]:
        """What the heads of a class of the pattern do, piece after piece."""
        parts = [part for piece in self.pieces for part in piece.parts]
        return [part for part in parts if part.one.condition == heads.condition]

    @property
    def chained(self) -> bool:
        """Whether the rows of some head are in several pieces."""
        conditions = [part.one.condition for piece in self.pieces for part in piece.parts]
        return len(set(conditions)) < len(conditions)


@dataclass(frozen=True, slots=True)
class Area:
    """What tiles cost: scores computed, padding included, and tiles of rows that visit any."""

    scores: float
    tiles: float

    def plus(self, other: Area, times: float = 1.0) -> Area:
        """This and `times` the other."""
        return Area(self.scores + times * other.scores, self.tiles + times * other.tiles)

    @property
    def cost(self) -> float:
        """Scores, and as many again for each tile of rows as one tile of pairs has."""
        return self.scores + self.tiles * _OVERHEAD


NOTHING = Area(0.0, 0.0)
_OVERHEAD = 128 * 64


def area(
    part: Part,
    n: int,
    m: int,
    values: Mapping[Name, int],
    block: tuple[int, int] = (128, 64),
    q_start: int | None = None,
    most_classes: int = 3,
) -> Area:
    """The area of one head's tiles, estimated from at most so many classes of rows."""
    start = m - n if q_start is None else q_start
    classes = part.layout.classes
    shown = range(classes) if classes <= most_classes else [k * (classes - 1) // (most_classes - 1) for k in range(3)]
    total = NOTHING
    for residue in shown:
        total = total.plus(_area_of_class(part, range(start, start + n), m, values, block, residue))
    return Area(total.scores * classes / len(shown), total.tiles * classes / len(shown))


def _area_of_class(
    part: Part, rows: range, m: int, values: Mapping[Name, int], block: tuple[int, int], residue: int
) -> Area:
    layout = part.layout
    first, stop = (layout.rows.below(at, residue) for at in (rows.start, rows.stop))
    low, high = (layout.keys.below(at, residue) for at in (0, m))
    known = {**values, Name.RESIDUE: residue}
    touched = tiles = 0
    for at in range(first, stop, block[0]):
        last = min(at + block[0], stop) - 1
        ranges = tile_ranges(part.one.by_row, at, last, low, high, block[1], known)
        count = sum(end - begin for begin, end, _, _ in ranges)
        touched += count
        tiles += count > 0
    return Area(float(touched * block[0] * block[1]), float(tiles))
