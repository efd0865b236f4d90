"""How dense a plan's tiles are at given lengths: tiles visited, and the pairs in them that are related.

Pieces of a pattern are counted in the coordinates of their layouts, class of rows by class of rows: what a tile has
beside the rows and keys of its class counts as waste.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from attncc.plan.counting import Tiles, ranges_of_tiles, related_pairs
from attncc.plan.evaluate import Column, evaluate
from attncc.plan.layout import PLAIN
from attncc.plan.pieces import Part, Piece
from attncc.plan.ranges import Domain, HeadClass
from attncc.spec.expr import Expr, Name, names_in

_MOST_TILES = 1 << 14  # tiles of rows that are looked at one by one
_MOST_PAIRS = 1 << 26  # pairs in tiles with a mask that are
_SAMPLES = 32  # tiles of rows, or classes, that stand for all of them where there are more
_LANES = 4  # rows that stand for all of a tile


@dataclass(frozen=True, slots=True)
class Call:
    """The lengths of a call, where its first query stands, and how its kernels are tiled."""

    n: int
    m: int
    heads: int
    start: int
    tile: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Density:
    """Counts over all heads; `exact` is False where they are scaled up from a sample of tiles of rows."""

    rows: int
    columns: int
    touched: int
    full: int
    partial: int
    pairs: int
    row_tiles: int  # tiles of rows that visit any
    exact: bool
    small: int = 0  # scores that are not computed because some of the tiles are smaller

    @property
    def scores(self) -> int:
        """Scores computed, lanes without a row or a key included."""
        return self.touched * self.rows * self.columns - self.small

    @property
    def waste(self) -> float:
        """Scores computed for each related pair; 1 is perfect."""
        return self.scores / self.pairs if self.pairs else 0.0


def together(counts: Iterable[tuple[Density, int]]) -> Density:
    """The sum of at least one count, each so many times; said of tiles as large as the first has."""
    found = list(counts)
    names = ("touched", "full", "partial", "pairs", "row_tiles")
    sums = {name: sum(times * getattr(each, name) for each, times in found) for name in names}
    first, _ = found[0]
    total = Density(first.rows, first.columns, **sums, exact=all(each.exact for each, _ in found))
    return replace(total, small=total.scores - sum(times * each.scores for each, times in found))


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The rows of one class, tile after tile, against the keys of the class: both by coordinates."""

    one: HeadClass
    rows: range
    keys: range
    values: Mapping[Name, int]

    def tiles(self, block: int) -> int:
        return -(-len(self.rows) // block)

    def tile(self, at: int, block: int) -> range:
        return self.rows[at * block : (at + 1) * block]


@dataclass(frozen=True, slots=True)
class _Group:
    """The sweeps of a head, one for each class of rows, and how many heads are alike."""

    sweeps: tuple[_Sweep, ...]
    times: int


def density(domain: Domain, call: Call, pairs: int | None = None) -> Density:
    """The density of a call that takes the pattern as a whole; `pairs` are those related, where they are known.

    Raises:
        IndexError: when a list of the pattern has no entry for some head.
    """
    parts = [Part(PLAIN, each, each.pattern) for each in domain.classes]
    return _measured(list(_groups(parts, call)), call.tile, pairs)


def density_of_piece(piece: Piece, call: Call, pairs: int | None = None) -> Density:
    """The density of one piece, in its layout; `pairs` as in `density`.

    Raises:
        IndexError: as `density`.
    """
    return _measured(list(_groups(piece.parts, call)), piece.parts[0].tile(call.tile), pairs)


def _groups(parts: Iterable[Part], call: Call) -> Iterator[_Group]:
    for part in parts:
        own = heads_where(part.one.condition, call.heads)
        alike = Name.HEAD not in names_in(part.one.pattern)
        for head in own[:1] if alike else own:
            yield _Group(tuple(_sweeps(part, call, head)), len(own) if alike else 1)


def _sweeps(part: Part, call: Call, head: int) -> Iterator[_Sweep]:
    values = {Name.HEAD: head, Name.HEADS: call.heads, Name.QUERIES: call.n, Name.KEYS: call.m}
    for residue in range(part.layout.classes):
        rows, keys = part.layout.spans(range(call.start, call.start + call.n), range(call.m), residue)
        yield _Sweep(part.one, rows, keys, {**values, Name.RESIDUE: residue})


def _measured(groups: list[_Group], block: tuple[int, int], known_pairs: int | None = None) -> Density:
    """Exact counts where there is not too much to look at, else those of a sample."""
    rows = block[0]
    tiles = sum(each.tiles(rows) for group in groups for each in group.sweeps)
    if tiles <= _MOST_TILES:
        every = [each for group in groups for each in _every_tile(group, block)]
        masked = sum(_masked(each.ranges) for each in every) * rows * block[1]
        if known_pairs is not None or masked <= _MOST_PAIRS:
            return _summed(every, block, None, known_pairs)
    sampled = [each for group in groups for each in _sampled(group, block)]
    return _summed(sampled, block, _LANES, known_pairs)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile of rows, what it visits, and how many such tiles it stands for."""

    sweep: _Sweep
    rows: range
    ranges: list[Tiles]
    weight: float


def _every_tile(group: _Group, block: tuple[int, int]) -> Iterator[_Tile]:
    weight = float(group.times)
    return _tiles([(each, at, weight) for each in group.sweeps for at in range(each.tiles(block[0]))], block)


def _sampled(group: _Group, block: tuple[int, int]) -> Iterator[_Tile]:
    """Some tiles of rows of some classes."""
    shown = [
        (group.sweeps[which], at, group.times * weight * share)
        for which, weight in _samples(len(group.sweeps)).items()
        for at, share in _samples(group.sweeps[which].tiles(block[0])).items()
    ]
    return _tiles(shown, block)


def _tiles(shown: list[tuple[_Sweep, int, float]], block: tuple[int, int]) -> Iterator[_Tile]:
    """Tiles of sweeps that differ in their class of rows alone, each by its number and with its weight."""
    if not shown:
        return
    first = shown[0][0]
    tiles = [sweep.tile(at, block[0]) for sweep, at, _ in shown]
    residues = [sweep.values[Name.RESIDUE] for sweep, _, _ in shown]
    values: dict[Name, Column] = {**first.values, Name.RESIDUE: residues}
    found = ranges_of_tiles(first.one.by_row, tiles, [sweep.keys for sweep, _, _ in shown], block[1], values)
    for (sweep, _, weight), rows, ranges in zip(shown, tiles, found, strict=True):
        yield _Tile(sweep, rows, ranges, weight)


def _samples(count: int) -> dict[int, float]:
    """Some of so many, and how many each stands for: the first and the last for themselves, others for equal runs."""
    inner = count - 2
    shown = max(0, min(inner, _SAMPLES))
    weights = {0: 1.0, count - 1: 1.0} if count else {}
    return weights | {1 + (2 * at + 1) * inner // (2 * shown): inner / shown for at in range(shown)}


def _summed(tiles: list[_Tile], block: tuple[int, int], lanes: int | None, known_pairs: int | None) -> Density:
    """The counts of tiles of rows, each so many times; pairs by at most so many rows of each."""
    touched = full = pairs = visiting = 0.0
    for tile in tiles:
        own = sum(end - start for start, end, _, _ in tile.ranges)
        touched += tile.weight * own
        full += tile.weight * sum(end - start for _, _, start, end in tile.ranges)
        visiting += tile.weight * (own > 0)
        if known_pairs is None:
            pairs += tile.weight * _pairs(tile, block[1], lanes)
    counts = (round(touched), round(full), round(touched) - round(full))
    return Density(
        *block, *counts, round(pairs) if known_pairs is None else known_pairs, round(visiting), lanes is None
    )


def _masked(ranges: list[Tiles]) -> int:
    return sum(end - start - (full_end - full_start) for start, end, full_start, full_end in ranges)


def _pairs(tile: _Tile, columns: int, lanes: int | None) -> float:
    """The related pairs of a tile of rows, scaled up from a few rows where only these are looked at."""
    sweep, rows = tile.sweep, tile.rows
    step = 1 if lanes is None else max(1, len(rows) // lanes)
    some = rows[step // 2 :: step]
    pairs = 0.0
    for start, end, full_start, full_end in tile.ranges:
        pairs += (full_end - full_start) * columns * len(rows)
        for masked in (range(start, full_start), range(full_end, end)):
            keys = sweep.keys[masked.start * columns : masked.stop * columns]
            if keys:
                found = _related(sweep.one.pattern, some, keys, sweep.values)
                pairs += found * len(rows) / len(some)
    return pairs


def _related(pattern: Expr, rows: range, keys: range, values: Mapping[Name, int]) -> int:
    if rows.step == 1:
        return related_pairs(pattern, rows, keys, values)
    return sum(related_pairs(pattern, range(row, row + 1), keys, values) for row in rows)


def heads_where(condition: Expr, heads: int) -> tuple[int, ...]:
    """The heads that fulfil a condition, of so many."""
    return tuple(head for head in range(heads) if evaluate(condition, {Name.HEAD: head, Name.HEADS: heads}))


def members(heads: int, domain: Domain) -> list[tuple[int, ...]]:
    """The heads of each class, of so many."""
    return [heads_where(each.condition, heads) for each in domain.classes]


def covered(domain: Domain, heads: int) -> int:
    """How many heads, up to so many, all have a pattern: a list of constants may be shorter than that."""
    for most in range(heads, 0, -1):
        if sum(map(len, members(most, domain))) == most:
            return most
    return 0
