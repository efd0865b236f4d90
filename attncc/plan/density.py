"""How dense a plan's tiles are at given lengths: tiles visited, and the pairs in them that are related."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.plan.counting import TileCounts, evaluate, tile_counts
from attncc.plan.ranges import Domain
from attncc.spec.expr import Name, names_in

_MOST_PAIRS = 1 << 27  # pairs of all heads that are looked at one by one
_SAMPLES = 32  # tiles of rows that stand for all of them where there are more pairs


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
    """The density of a call with n rows and m keys, whose positions follow the spec's alignment."""
    start = 0 if starts_at_zero else m - n
    tiles = -(-n // rows)
    reads_n = any(Name.QUERIES in names_in(each.pattern) for each in domain.classes)
    counted = len({Name.HEAD in names_in(each.pattern) for each in domain.classes}) * heads
    if n * m * counted <= _MOST_PAIRS or tiles <= _SAMPLES or reads_n:
        found = tile_counts(domain, n, m, heads, rows, columns, q_start=start)
        return _density(found, 1.0, rows, columns, exact=True)
    total = TileCounts(0, 0, 0, 0)
    for at in range(_SAMPLES):
        first = (2 * at + 1) * tiles // (2 * _SAMPLES) * rows  # the middle of each of 32 equal runs
        count = min(rows, n - first)
        total = total.plus(tile_counts(domain, count, m, heads, rows, columns, q_start=start + first), 1)
    return _density(total, tiles / _SAMPLES, rows, columns, exact=False)


def _density(found: TileCounts, factor: float, rows: int, columns: int, *, exact: bool) -> Density:
    touched, full, pairs = (round(each * factor) for each in (found.touched, found.full, found.pairs))
    return Density(rows, columns, touched, full, touched - full, pairs, exact)


def members(condition_heads: int, domain: Domain) -> list[tuple[int, ...]]:
    """The heads of each class, of so many."""
    return [
        tuple(
            head
            for head in range(condition_heads)
            if evaluate(each.condition, {Name.HEAD: head, Name.HEADS: condition_heads})
        )
        for each in domain.classes
    ]
