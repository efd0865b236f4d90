"""What runs apart: the pieces of a pattern, each with the layout in which its keys lie side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attncc.plan.counting import tile_ranges
from attncc.plan.layout import Layout
from attncc.plan.ranges import HeadClass
from attncc.spec.expr import Expr, Name


@dataclass(frozen=True, slots=True)
class Part:
    """What the heads of one class do in a piece: `one` has their pattern and ranges in coordinates of the layout.

    `pattern` says which pairs these are, by positions. A part that has its rows `alone` has all pairs of these rows:
    other parts have the rows among theirs, but no pair of them.
    """

    layout: Layout
    one: HeadClass
    pattern: Expr
    alone: bool = False

    def tile(self, usual: tuple[int, int]) -> tuple[int, int]:
        """The rows and columns of its tiles, where usual ones have so many: a list of rows has small ones."""
        return (min(usual[0], SHORT), usual[1]) if self.layout.rows.is_list else usual


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the pattern that runs apart; heads for which no part's condition holds have nothing to do in it.

    The layouts of all parts have strips of the same widths, and turn alike; all have their rows alone, or none has.
    """

    parts: tuple[Part, ...]

    @property
    def alone(self) -> bool:
        """Whether its rows begin and finish in it."""
        return self.parts[0].alone

    @property
    def has_list(self) -> bool:
        """Whether its rows are a list, whose tiles are small."""
        return self.parts[0].layout.rows.is_list


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of a pattern in the order in which they run; no pair is in two of them.

    Those that have their rows alone come last, and write over what others made of these rows.
    Calls with fewer than `least` keys take the pattern as a whole, whose tiles are mostly needed then.
    """

    pieces: tuple[Piece, ...]
    least: int

    def parts_of(self, heads: HeadClass) -> list[Part]:
        """What the heads of a class of the pattern do, piece after piece."""
        parts = [part for piece in self.pieces for part in piece.parts]
        return [part for part in parts if part.one.condition == heads.condition]

    @property
    def have_lists(self) -> bool:
        """Whether the rows of some piece are a list."""
        return any(piece.has_list for piece in self.pieces)

    @property
    def have_own_rows(self) -> bool:
        """Whether some piece has its rows alone."""
        return any(piece.alone for piece in self.pieces)

    @property
    def chained(self) -> bool:
        """Whether the rows of some head go on from piece to piece."""
        return _share_heads(piece for piece in self.pieces if not piece.alone)

    @property
    def adds(self) -> bool:
        """Whether several pieces have gradients for the rows of some head."""
        return _share_heads(self.pieces)


def _share_heads(pieces: Iterable[Piece]) -> bool:
    conditions = [part.one.condition for piece in pieces for part in piece.parts]
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
SHORT = 16  # rows of a tile of a list
_CLASSES = 3  # classes of rows that stand for all of them


def area(part: Part, length: int, block: tuple[int, int] = (128, 64)) -> Area:
    """The area of one head's tiles in a call of so many rows and keys, estimated from a few classes of rows."""
    classes, block = part.layout.classes, part.tile(block)
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
