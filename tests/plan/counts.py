"""Tiles and related pairs of a whole pattern, counted one by one, for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attncc.plan.counting import related_pairs, tile_ranges
from attncc.plan.evaluate import evaluate
from attncc.plan.ranges import Domain, HeadClass
from attncc.spec.expr import Name, names_in


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
