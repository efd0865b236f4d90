"""Exact counts of a planned pattern in plain integers: tiles and related pairs."""

from __future__ import annotations

from collections.abc import Mapping

from attncc.plan.evaluate import PAIRS_AT_ONCE, evaluate, on_arrays
from attncc.plan.ranges import Interval, Segment
from attncc.spec.expr import Expr, Name

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
