"""Exact counts of a planned pattern in plain integers: tiles and related pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attncc.plan.evaluate import PAIRS_AT_ONCE, evaluate, on_arrays
from attncc.plan.ranges import Domain, HeadClass, Interval, Segment
from attncc.spec.expr import (
    Expr,
    Name,
    names_in,
)

Tiles = tuple[int, int, int, int]


def tile_ranges(
    segments: tuple[Segment, ...],
    first: int,
    last: int,
    low_limit: int,
    high_limit: int,
    block: int,
    values: Mapping[Name, int] | None = None,
) -> list[Tiles]:
    """What a kernel visits for one tile: (start, end, full start, full end) of each segment, in swept tiles.

    The tile holds the positions first … last. The swept axis has the positions low_limit … high_limit - 1, and tile t
    of it starts at position low_limit + t * block. Tiles start … end - 1 are visited, and of these full start …
    full end - 1 need no mask. `values` gives h, n, m and H where bounds read them.
    """
    symbols = {**(values or {}), Name.FIRST: first, Name.LAST: last}
    length = max(0, high_limit - low_limit)
    found: list[Tiles] = []
    reached = 0
    for segment in segments:
        low, high = _clipped(segment.touched, symbols, low_limit, length)
        start, end = max(low // block, reached), -(-(high + 1) // block)
        if low > high or start >= end:
            found.append((reached, reached, reached, reached))
            continue
        reached = end
        found.append((start, end, *_full_tiles(segment.full, symbols, low_limit, length, block, start, end)))
    return found


def _full_tiles(
    full: Interval | None, symbols: Mapping[Name, int], low_limit: int, length: int, block: int, start: int, end: int
) -> tuple[int, int]:
    if full is None:
        return end, end
    low, high = _clipped(full, symbols, low_limit, length)
    full_start = min(max(-(-low // block), start), end)
    # a last tile that is cut off by the end of the axis is masked, so it does not count as full
    return full_start, max(full_start, min((high + 1) // block, end))


def _clipped(interval: Interval, symbols: Mapping[Name, int], low_limit: int, length: int) -> tuple[int, int]:
    """The interval in coordinates of the swept axis."""
    if not evaluate(interval.when, symbols):
        return 0, -1
    low = 0 if interval.low is None else max(0, evaluate(interval.low, symbols) - low_limit)
    high = length - 1 if interval.high is None else min(length - 1, evaluate(interval.high, symbols) - low_limit)
    return low, high


@dataclass(frozen=True, slots=True)
class TileCounts:
    """Totals over all heads: tiles that are visited, those of them with and without a mask, and related pairs."""

    touched: int
    full: int
    partial: int
    pairs: int

    def plus(self, other: TileCounts, times: int) -> TileCounts:
        """These counts and `times` the others."""
        return TileCounts(
            self.touched + times * other.touched,
            self.full + times * other.full,
            self.partial + times * other.partial,
            self.pairs + times * other.pairs,
        )


def tile_counts(
    domain: Domain,
    n: int,
    m: int,
    heads: int,
    block_rows: int,
    block_columns: int,
    q_start: int | None = None,
    k_start: int = 0,
) -> TileCounts:
    """The counts of a call: rows stand at q_start … (by default the last n positions of the keys), keys at k_start …"""
    offset = k_start + m - n if q_start is None else q_start
    total = TileCounts(0, 0, 0, 0)
    for one in domain.classes:
        members = [head for head in range(heads) if evaluate(one.condition, {Name.HEAD: head, Name.HEADS: heads})]
        # heads whose pattern does not read h count alike
        alike = Name.HEAD not in names_in(one.pattern)
        for head in members[:1] if alike else members:
            values = {Name.HEAD: head, Name.HEADS: heads, Name.QUERIES: n, Name.KEYS: m}
            found = _count(
                one, range(offset, offset + n), range(k_start, k_start + m), block_rows, block_columns, values
            )
            total = total.plus(found, len(members) if alike else 1)
    return total


def _count(
    one: HeadClass, rows: range, keys: range, block_rows: int, block_columns: int, values: Mapping[Name, int]
) -> TileCounts:
    """The counts of one head."""
    touched = full = pairs = 0
    for first in rows[::block_rows]:
        last = min(first + block_rows, rows.stop) - 1
        for start, end, full_start, full_end in tile_ranges(
            one.by_row, first, last, keys.start, keys.stop, block_columns, values
        ):
            touched += end - start
            full += full_end - full_start
            pairs += (full_end - full_start) * block_columns * (last - first + 1)
            for tiles in (range(start, full_start), range(full_end, end)):
                masked = keys[tiles.start * block_columns : tiles.stop * block_columns]
                pairs += related_pairs(one.pattern, range(first, last + 1), masked, values)
    return TileCounts(touched, full, touched - full, pairs)


def related_pairs(pattern: Expr, rows: range, keys: range, values: Mapping[Name, int]) -> int:
    """How many pairs of the given positions are related."""
    import numpy as np

    total = 0
    step = max(1, PAIRS_AT_ONCE // max(1, len(rows)))
    i = np.arange(rows.start, rows.stop, dtype=np.int64)[:, None]
    for start in range(keys.start, keys.stop, step):
        j = np.arange(start, min(start + step, keys.stop), dtype=np.int64)[None, :]
        mask = on_arrays(pattern, {**values, Name.I: i, Name.J: j})
        total += int(np.broadcast_to(mask, (len(rows), j.shape[1])).sum())
    return total
