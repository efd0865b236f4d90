"""A handful of sample tiles at which arrangements of segments are compared; nothing is proven here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from attncc.plan.bounds import Piece
from attncc.plan.linear import Linear, Quotient, Remainder, value_at
from attncc.plan.literals import ALWAYS, All, Any, Literal, Tree
from attncc.plan.reach import Reach
from attncc.plan.terms import term_at
from attncc.spec.expr import Name

_FAR = 1e12
_MASKED = 0.5  # what a masked position costs above an unmasked one, for choosing only
Run = tuple[int, int]  # first and last position; empty where the last is smaller
_NOTHING: Run = (0, -1)


@dataclass(frozen=True)
class Profile:
    """What a piece touches, and what of it needs no mask, at each sample tile."""

    met: tuple[bool, ...]  # whether the tile meets the piece's condition
    touched: tuple[Run, ...]  # where it does
    full: tuple[Run, ...]
    typical: tuple[float, float]  # the mean ends, met or not

    def around(self, other: Profile) -> Profile:
        """The profile of a hull whose full run is hoped to be a hull as well."""
        (low, high), (other_low, other_high) = self.typical, other.typical
        ends = min(low, other_low), max(high, other_high)
        met = tuple(one or another for one, another in zip(self.met, other.met, strict=True))
        touched = tuple(
            (min(one[0], another[0]), max(one[1], another[1]))
            for one, another in zip(self.touched, other.touched, strict=True)
        )
        full = tuple(_hull_of_runs(one, another) for one, another in zip(self.full, other.full, strict=True))
        return Profile(met, touched, full, ends)


def _hull_of_runs(one: Run, other: Run) -> Run:
    if one[0] > one[1]:
        return other
    return one if other[0] > other[1] else (min(one[0], other[0]), max(one[1], other[1]))


def cost(profiles: Iterable[Profile]) -> float:
    """Positions swept at the sample tiles, those without a mask counting less."""
    ordered = list(profiles)
    total, tiles = 0.0, len(ordered[0].touched) if ordered else 0
    for tile in range(tiles):
        start = 0
        for profile in ordered:
            low, high = profile.touched[tile]
            low = max(low, start)
            if low > high or not profile.met[tile]:
                continue
            start = high + 1
            full_low, full_high = profile.full[tile]
            unmasked = max(0, min(high, full_high) - max(low, full_low) + 1)
            total += (1 + _MASKED) * (high - low + 1) - _MASKED * unmasked
    return total


class Samples:
    """Tiles spread over a call several times longer than every constant of the pattern."""

    def __init__(self, tree: Tree) -> None:
        self.length = 8 * max([256, *_constants(tree)])
        call = {Name.HEAD: 1, Name.HEADS: 8, Name.QUERIES: self.length, Name.KEYS: self.length, Name.RESIDUE: 1}
        self._tiles = [
            {Name.FIRST: int(self.length * start), Name.LAST: int(self.length * start) + size - 1, **call}
            for start, size in ((0, 128), (0, 16), (0.118, 16), (0.373, 128), (0.534, 16), (0.791, 128))
        ]
        self._runs: dict[Reach, tuple[Run, ...]] = {}

    def profile(self, piece: Piece) -> Profile:
        """The profile of a piece."""
        low, high = piece.touched.low, piece.touched.high
        # pieces are ordered by their ends alone: not every tile meets them, and not the same tiles
        ends = (
            -_FAR if low is None else sum(term_at(low, values) for values in self._tiles) / len(self._tiles),
            _FAR if high is None else sum(term_at(high, values) for values in self._tiles) / len(self._tiles),
        )
        met = tuple(holds(piece.touched.when, values) for values in self._tiles)
        return Profile(met, self.runs(replace(piece.touched, when=ALWAYS)), self.runs(piece.full), ends)

    def runs(self, reach: Reach | None) -> tuple[Run, ...]:
        """The interval at each sample tile, clipped to the positions that exist."""
        if reach is None:
            return (_NOTHING,) * len(self._tiles)
        if reach not in self._runs:
            self._runs[reach] = tuple(self._run(reach, values) for values in self._tiles)
        return self._runs[reach]

    def _run(self, reach: Reach, values: dict[Name, int]) -> Run:
        if not holds(reach.when, values):
            return _NOTHING
        low = 0 if reach.low is None else max(0, term_at(reach.low, values))
        high = self.length - 1 if reach.high is None else min(self.length - 1, term_at(reach.high, values))
        return low, high

    def size(self, reach: Reach | None) -> int:
        """Positions in an interval, over all sample tiles."""
        return sum(max(0, high - low + 1) for low, high in self.runs(reach))


def _constants(tree: Tree) -> Iterator[int]:
    if isinstance(tree, Literal):
        yield from _numbers(tree.form)
    else:
        for part in tree.parts:
            yield from _constants(part)


def _numbers(form: Linear) -> Iterator[int]:
    yield abs(form.constant)
    for atom, _ in form.terms:
        if isinstance(atom, Quotient | Remainder):
            yield atom.divisor
            yield from _numbers(atom.numerator)


def holds(tree: Tree, values: dict[Name, int]) -> bool:
    """Whether the tree holds for given symbols."""
    match tree:
        case Literal(form=form):
            return value_at(form, values) >= 0
        case All(parts=parts):
            return all(holds(part, values) for part in parts)
        case Any(parts=parts):
            return any(holds(part, values) for part in parts)
