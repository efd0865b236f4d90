"""Exact counts of a planned pattern in plain integers: tiles and related pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attncc.plan.evaluate import PAIRS_AT_ONCE, Column, on_arrays, on_columns
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
    return ranges_of_tiles(segments, [range(first, last + 1)], [range(low_limit, high_limit)], block, values or {})[0]


def ranges_of_tiles(
    segments: tuple[Segment, ...],
    tiles: Sequence[range],
    swept: Sequence[range],
    block: int,
    values: Mapping[Name, Column],
) -> list[list[Tiles]]:
    """The same of many tiles, each with what it holds, the positions of its swept axis, and values of its own."""
    columns: dict[Name, Column] = {
        **values,
        Name.FIRST: [each.start for each in tiles],
        Name.LAST: [each.stop - 1 for each in tiles],
    }
    found: list[list[Tiles]] = [[] for _ in tiles]
    reached = [0] * len(tiles)
    for segment in segments:
        touched = _clipped(segment.touched, columns, swept)
        full = None if segment.full is None else _clipped(segment.full, columns, swept)
        for at, (low, high) in enumerate(touched):
            start, end = max(low // block, reached[at]), -(-(high + 1) // block)
            if low > high or start >= end:
                found[at].append((reached[at],) * 4)
                continue
            reached[at] = end
            inside = (end, end) if full is None else _full_tiles(*full[at], block, start, end)
            found[at].append((start, end, *inside))
    return found


def _full_tiles(low: int, high: int, block: int, start: int, end: int) -> tuple[int, int]:
    full_start = min(max(-(-low // block), start), end)
    # a last tile that is cut off by the end of the axis is masked, so it does not count as full
    return full_start, max(full_start, min((high + 1) // block, end))


def _clipped(interval: Interval, columns: Mapping[Name, Column], swept: Sequence[range]) -> list[tuple[int, int]]:
    """The interval of each tile, in coordinates of the swept axis."""
    low = [0] * len(swept)
    high = [len(each) - 1 for each in swept]
    if interval.low is not None:
        found = _spread(on_columns(interval.low, columns), len(swept))
        low = [max(0, end - each.start) for end, each in zip(found, swept, strict=True)]
    if interval.high is not None:
        found = _spread(on_columns(interval.high, columns), len(swept))
        high = [min(last, end - each.start) for last, end, each in zip(high, found, swept, strict=True)]
    holds = _spread(on_columns(interval.when, columns), len(swept))
    return [(least, most) if there else (0, -1) for least, most, there in zip(low, high, holds, strict=True)]


def _spread(column: Column, count: int) -> Sequence[int]:
    return column if isinstance(column, list) else [column] * count


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
