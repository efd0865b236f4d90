"""What runs apart: the pieces of a pattern, each with the layout in which its keys lie side by side."""

from __future__ import annotations

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

    @property
    def cost(self) -> float:
        """Scores, and as many again for each tile of rows as one tile of pairs has."""
        return self.scores + self.tiles * _OVERHEAD


_OVERHEAD = 128 * 64
_CLASSES = 3  # classes of rows that stand for all of them


def area(part: Part, length: int, block: tuple[int, int] = (128, 64)) -> Area:
    """The area of one head's tiles in a call of so many rows and keys, estimated from a few classes of rows."""
    classes = part.layout.classes
    shown = sorted({at * (classes - 1) // (_CLASSES - 1) for at in range(_CLASSES)})
    found = [_area_of_class(part, length, block, residue) for residue in shown]
    share = classes / len(shown)
    return Area(share * sum(each.scores for each in found), share * sum(each.tiles for each in found))


def _area_of_class(part: Part, length: int, block: tuple[int, int], residue: int) -> Area:
    rows, keys = part.layout.spans(range(length), range(length), residue)
    values = {Name.HEAD: 0, Name.HEADS: 8, Name.QUERIES: length, Name.KEYS: length, Name.RESIDUE: residue}
    touched = tiles = 0
    for at in range(0, len(rows), block[0]):
        tile = rows[at : at + block[0]]
        ranges = tile_ranges(part.one.by_row, tile[0], tile[-1], keys.start, keys.stop, block[1], values)
        count = sum(end - begin for begin, end, _, _ in ranges)
        touched += count
        tiles += count > 0
    return Area(float(touched * block[0] * block[1]), float(tiles))
