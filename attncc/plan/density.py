"""How dense a plan's tiles are at given lengths: tiles visited, and the pairs in them that are related."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attncc.plan.counting import related_pairs, tile_counts, tile_ranges
from attncc.plan.evaluate import evaluate
from attncc.plan.ranges import Domain, HeadClass
from attncc.spec.expr import Name, names_in

_MOST_PAIRS = 1 << 27  # pairs of all heads that are looked at one by one
_SAMPLES = 32  # tiles of rows that stand for all of them where there are more pairs
_LANES = 4  # rows that stand for all of a tile
_SHORT = 1 << 15  # keys that are few enough for every row to be looked at


@dataclass(frozen=True, slots=True)
class Density:
    """Counts over all heads; `exact` is False where they are scaled up from a sample of tiles of rows."""

    rows: int
    columns: int
    touched: int
    full: int
    partial: int
    pairs: int
    exact: bool

    @property
    def waste(self) -> float:
        """Scores computed for each related pair; 1 is perfect."""
        return self.touched * self.rows * self.columns / self.pairs if self.pairs else 0.0


def density(
    domain: Domain, n: int, m: int, heads: int, starts_at_zero: bool, rows: int = 128, columns: int = 64
) -> Density:
    """The density of a call with n rows and m keys, whose positions follow the spec's alignment.

    Raises:
        IndexError: when a list of the pattern has no entry for some head.
    """
    start = 0 if starts_at_zero else m - n
    tiles = -(-n // rows)
    if n * m * heads <= _MOST_PAIRS or (tiles <= _SAMPLES and m <= _SHORT):
        found = tile_counts(domain, n, m, heads, rows, columns, q_start=start)
        return Density(rows, columns, found.touched, found.full, found.partial, found.pairs, exact=True)
    touched = full = pairs = 0.0
    samples = _samples(tiles)
    for one, own in zip(domain.classes, members(heads, domain), strict=True):
        alike = Name.HEAD not in names_in(one.pattern)
        for head in own[:1] if alike else own:
            values = {Name.HEAD: head, Name.HEADS: heads, Name.QUERIES: n, Name.KEYS: m}
            for at, weight in samples.items():
                lanes = range(start + at * rows, start + min((at + 1) * rows, n))
                factor = weight * (len(own) if alike else 1)
                each = _tile(one, lanes, m, columns, values)
                touched, full, pairs = touched + factor * each[0], full + factor * each[1], pairs + factor * each[2]
    return Density(rows, columns, round(touched), round(full), round(touched) - round(full), round(pairs), exact=False)


def _samples(tiles: int) -> dict[int, float]:
    """Tiles of rows, and how many each stands for: the first and the last for themselves, others for equal runs."""
    inner = tiles - 2
    count = min(inner, _SAMPLES)
    weights = {0: 1.0, tiles - 1: 1.0} if tiles else {}
    return weights | {1 + (2 * at + 1) * inner // (2 * count): inner / count for at in range(count)}


def _tile(one: HeadClass, lanes: range, m: int, columns: int, values: Mapping[Name, int]) -> tuple[int, int, float]:
    """Tiles that one tile of rows visits, those of them without a mask, and related pairs by a few of its rows."""
    touched = full = 0
    pairs = 0.0
    some = lanes[:: max(1, len(lanes) // _LANES)]
    for start, end, full_start, full_end in tile_ranges(one.by_row, lanes[0], lanes[-1], 0, m, columns, values):
        touched, full = touched + end - start, full + full_end - full_start
        pairs += (full_end - full_start) * columns * len(lanes)
        for masked in (range(start, full_start), range(full_end, end)):
            keys = range(m)[masked.start * columns : masked.stop * columns]
            found = sum(related_pairs(one.pattern, range(lane, lane + 1), keys, values) for lane in some)
            pairs += found * len(lanes) / len(some)
    return touched, full, pairs


def members(heads: int, domain: Domain) -> list[tuple[int, ...]]:
    """The heads of each class, of so many."""
    return [
        tuple(head for head in range(heads) if evaluate(each.condition, {Name.HEAD: head, Name.HEADS: heads}))
        for each in domain.classes
    ]


def covered(domain: Domain, heads: int) -> int:
    """How many heads, up to so many, all have a pattern: a list of constants may be shorter than that."""
    for most in range(heads, 0, -1):
        if sum(map(len, members(most, domain))) == most:
            return most
    return 0
