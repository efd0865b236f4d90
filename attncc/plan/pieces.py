"""What runs apart: the pieces of a pattern, each with the layout in which its keys lie side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attncc.plan.counting import ranges_of_tiles
from attncc.plan.evaluate import Column
from attncc.plan.layout import Layout
from attncc.plan.ranges import HeadClass, Segment
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
        """The rows and columns of its tiles, where usual ones have so many."""
        return tile_of(self.layout, usual)


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


def tile_of(layout: Layout, usual: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of a layout's tiles, where usual ones have so many: a list of rows has small ones."""
    return (min(usual[0], SHORT), usual[1]) if layout.rows.is_list else usual


def area(layout: Layout, by_row: tuple[Segment, ...], length: int, block: tuple[int, int] = (128, 64)) -> Area:
    """The area of one head's tiles in a call of so many rows and keys, estimated from a few classes of rows.

    Args:
        by_row: what tiles of rows touch, in coordinates of the layout.
    """
    classes, block = layout.classes, tile_of(layout, block)
    shown = sorted({at * (classes - 1) // (_CLASSES - 1) for at in range(_CLASSES)})
    tiles, swept, residues = list[range](), list[range](), list[int]()
    for residue in shown:
        rows, keys = layout.spans(range(length), range(length), residue)
        own = [rows[at : at + block[0]] for at in range(0, len(rows), block[0])]
        tiles += own
        swept += [keys] * len(own)
        residues += [residue] * len(own)
    values: dict[Name, Column] = {Name.HEAD: 0, Name.HEADS: 8, Name.QUERIES: length, Name.KEYS: length}
    values[Name.RESIDUE] = residues
    found = ranges_of_tiles(by_row, tiles, swept, block[1], values)
    counts = [sum(end - begin for begin, end, _, _ in ranges) for ranges in found]
    share = classes / len(shown)
    return Area(share * (sum(counts) * block[0] * block[1]), share * sum(count > 0 for count in counts))
