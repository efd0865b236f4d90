"""What the heads of a call look like, pair by pair: which pairs are related, and what kernels do with each tile.

Numbers only; drawing them is the command line's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from attncc.plan.counting import tile_ranges
from attncc.plan.density import Call, Density, members, together
from attncc.plan.evaluate import PAIRS_AT_ONCE, on_arrays
from attncc.plan.ranges import Domain, HeadClass
from attncc.spec.expr import Name, names_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]
    States = NDArray[np.uint8]


class State(IntEnum):
    """What a kernel does with a tile: skips it, computes and masks it, or computes all of it."""

    EMPTY = 0
    PARTIAL = 1
    FULL = 2


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """Heads that look alike: their related pairs [n, m], and the state of every tile."""

    heads: tuple[int, ...]
    one: HeadClass
    rows: range  # positions of the queries
    keys: range  # positions of the keys
    tile: tuple[int, int]
    related: Mask
    states: States

    @property
    def density(self) -> Density:
        """The counts of one of the heads."""
        visited = self.states != State.EMPTY
        touched, full = int(visited.sum()), int((self.states == State.FULL).sum())
        pairs, row_tiles = int(self.related.sum()), int(visited.any(axis=1).sum())
        return Density(*self.tile, touched, full, touched - full, pairs, row_tiles, exact=True)


def looks(domain: Domain, call: Call, shown: Iterable[int], *, apart: bool) -> list[Look]:
    """What the shown heads look like, in the order of the heads; `apart` gives each head a look of its own.

    Raises:
        IndexError: when a list of the pattern has no entry for some head.
    """
    wanted = set(shown)
    found: list[Look] = []
    for one, every in zip(domain.classes, members(call.heads, domain), strict=True):
        own = tuple(head for head in every if head in wanted)
        # heads whose pattern does not read h look alike
        alike = Name.HEAD not in names_in(one.pattern)
        groups = [own] if alike and own else [(head,) for head in own]
        for group in groups:
            look = _look(one, call, group)
            found += [replace(look, heads=(head,)) for head in group] if apart else [look]
    return sorted(found, key=lambda look: look.heads)


def _look(one: HeadClass, call: Call, heads: tuple[int, ...]) -> Look:
    rows, keys = range(call.start, call.start + call.n), range(call.m)
    values = {Name.HEAD: heads[0], Name.HEADS: call.heads, Name.QUERIES: call.n, Name.KEYS: call.m}
    states = _states(one, rows, keys, call.tile, values)
    return Look(heads, one, rows, keys, call.tile, mask(one, rows, keys, values), states)


def looks_of_pairs(domain: Domain, call: Call, shown: Iterable[int], pairs: Mask, *, apart: bool) -> list[Look]:
    """What heads look like whose pairs [heads, n, m] data decide: a tile that holds any is met, with a mask."""
    wanted = set(shown)
    rows, keys = range(call.start, call.start + call.n), range(call.m)
    found: list[Look] = []
    for one, every in zip(domain.classes, members(call.heads, domain), strict=True):
        groups: dict[bytes | int, list[int]] = {}
        for head in (each for each in every if each in wanted):
            groups.setdefault(head if apart else pairs[head].tobytes(), []).append(head)
        for heads in groups.values():
            own = pairs[heads[0]]
            found.append(Look(tuple(heads), one, rows, keys, call.tile, own, _met(own, call.tile)))
    return sorted(found, key=lambda look: look.heads)


def _met(pairs: Mask, tile: tuple[int, int]) -> States:
    """Tiles that hold a pair."""
    import numpy as np

    block_rows, block_columns = tile
    n, m = pairs.shape
    padded = np.zeros((-(-n // block_rows) * block_rows, -(-m // block_columns) * block_columns), dtype=np.bool_)
    padded[:n, :m] = pairs
    held = padded.reshape(-1, block_rows, padded.shape[1] // block_columns, block_columns).any(axis=(1, 3))
    return np.where(held, State.PARTIAL, State.EMPTY).astype(np.uint8)


def mask(one: HeadClass, rows: range, keys: range, values: Mapping[Name, int]) -> Mask:
    """Which pairs of the given positions are related; `values` gives h, H, n and m.

    The one place where the pairs of a picture get their truth.
    """
    import numpy as np

    related = np.zeros((len(rows), len(keys)), dtype=np.bool_)
    j = np.arange(keys.start, keys.stop, dtype=np.int64)[None, :]
    step = max(1, PAIRS_AT_ONCE // max(1, len(keys)))  # rows at once
    for at in range(0, len(rows), step):
        some = rows[at : at + step]
        i = np.arange(some.start, some.stop, dtype=np.int64)[:, None]
        related[at : at + step] = on_arrays(one.pattern, {**values, Name.I: i, Name.J: j})
    return related


def _states(one: HeadClass, rows: range, keys: range, tile: tuple[int, int], values: Mapping[Name, int]) -> States:
    """The state of every tile, by the ranges that kernels sweep: [tiles of rows, tiles of keys]."""
    import numpy as np

    block_rows, block_columns = tile
    states = np.zeros((-(-len(rows) // block_rows), -(-len(keys) // block_columns)), dtype=np.uint8)
    for at, first in enumerate(rows[::block_rows]):
        last = min(first + block_rows, rows.stop) - 1
        ranges = tile_ranges(one.by_row, first, last, keys.start, keys.stop, block_columns, values)
        for start, end, full_start, full_end in ranges:
            states[at, start:end] = State.PARTIAL
            states[at, full_start:full_end] = State.FULL
    return states


def total(found: Iterable[Look]) -> Density:
    """The counts over every head of some looks."""
    return together((look.density, len(look.heads)) for look in found)


def usual_tile(n: int, m: int) -> tuple[int, int]:
    """Tiles of 128 x 64, or smaller ones where a call is so short that they would show nothing; 16 is the least."""
    return _power(n // 4, 128), _power(m // 8, 64)


def _power(length: int, most: int) -> int:
    """The largest power of two up to a length, from 16 to `most`."""
    return min(most, max(16, 1 << max(0, length.bit_length() - 1)))
