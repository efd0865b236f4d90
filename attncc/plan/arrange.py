"""Pieces of a pattern → a few segments in an order in which each may start where the ones before it ended.

What is proven keeps the result sound; which of the sound arrangements is taken is decided by counting positions for
a handful of sample tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from attncc.plan.bounds import Piece, Reach, at_least_tree, hull, is_some, plain_union, reach_tree
from attncc.plan.isl import Prover
from attncc.plan.linear import Linear, Quotient, Remainder, Term, at_least, extreme, term_at, value_at, variable
from attncc.plan.literals import NEVER, All, Any, Literal, Tree, any_of, negated
from attncc.spec.expr import Name

MOST_SEGMENTS = 4
_HALF_MASKED = 0.5  # what a masked position costs above an unmasked one, for choosing only
_FAR = 10**12


@dataclass(frozen=True)
class Samples:
    """Tiles at which arrangements are compared: their symbols, and the swept positions that exist."""

    tiles: tuple[dict[Name, int], ...]
    length: int

    def cost(self, pieces: Iterable[Piece]) -> float:
        """Positions swept, those without a mask counting less."""
        return sum(_cost_at(pieces, values, self.length) for values in self.tiles)

    def size(self, reach: Reach | None) -> int:
        """Positions in an interval."""
        if reach is None:
            return 0
        return sum(_length(_clipped(reach, values, self.length)) for values in self.tiles)


def samples_for(tree: Tree) -> Samples:
    """Tiles spread over a call several times longer than every constant of the pattern."""
    unit = max([256, *_constants(tree)])
    length = 8 * unit
    starts = [int(length * part) for part in (0, 0.118, 0.373, 0.534, 0.791)]
    call = {Name.HEAD: 1, Name.HEADS: 8, Name.QUERIES: length, Name.KEYS: length}
    tiles = tuple({Name.FIRST: start, Name.LAST: start + size - 1, **call} for start in starts for size in (16, 128))
    return Samples(tiles, length)


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


def _clipped(reach: Reach, values: dict[Name, int], length: int) -> tuple[int, int]:
    if not holds(reach.when, values):
        return 0, -1
    low = 0 if reach.low is None else max(0, term_at(reach.low, values))
    high = length - 1 if reach.high is None else min(length - 1, term_at(reach.high, values))
    return low, high


def _length(interval: tuple[int, int]) -> int:
    return max(0, interval[1] - interval[0] + 1)


def _cost_at(pieces: Iterable[Piece], values: dict[Name, int], length: int) -> float:
    total, start = 0.0, 0
    for piece in pieces:
        low, high = _clipped(piece.touched, values, length)
        low = max(low, start)
        if low > high:
            continue
        start = high + 1
        whole = (0, -1) if piece.full is None else _clipped(piece.full, values, length)
        unmasked = _length((max(low, whole[0]), min(high, whole[1])))
        total += unmasked + (1 + _HALF_MASKED) * (high - low + 1 - unmasked)
    return total


class Arranger:
    """Merges and orders the pieces of one sweep; `prover` may be None, then only what is plain to see is used."""

    def __init__(self, tree: Tree, fixed: Name, swept: Name, prover: Prover | None, samples: Samples) -> None:
        self._missing = negated(tree)
        self._fixed, self._swept = fixed, swept
        self._prover = prover
        self._samples = samples
        self._ordered: dict[tuple[Reach, Reach], bool] = {}

    def arrange(self, pieces: list[Piece]) -> list[Piece]:
        """At most `MOST_SEGMENTS` pieces in a safe order: pairs are merged while that costs nothing."""
        best = self._in_order(pieces)
        cost = self._samples.cost(best)
        while len(best) > 1:
            forced = len(best) > MOST_SEGMENTS
            choice = self._best_merge(best, limit=None if forced else cost)
            if choice is None:
                break
            best, cost = choice
        return best

    def _best_merge(self, pieces: list[Piece], limit: float | None) -> tuple[list[Piece], float] | None:
        found: tuple[list[Piece], float] | None = None
        for one, other in combinations(pieces, 2):
            rest = [piece for piece in pieces if piece is not one and piece is not other]
            # the hopeful form first: its full interval costs a proof
            fulls = [full for full in (one.full, other.full) if full is not None]
            hopeful = Piece(any_of((one.tree, other.tree)), hull((one.touched, other.touched)), _hull(fulls))
            bound = limit if found is None else found[1]
            if bound is not None and self._samples.cost(self._in_order([*rest, hopeful])) > bound:
                continue
            merged = self._in_order([*rest, replace(hopeful, full=self._joined_full(fulls))])
            cost = self._samples.cost(merged)
            if (limit is None or cost <= limit) and (found is None or cost < found[1]):
                found = merged, cost
        return found

    def _joined_full(self, fulls: list[Reach]) -> Reach | None:
        """The run around both if every lane is related to all of it, else the larger one."""
        if len(fulls) < 2:
            return fulls[0] if fulls else None
        union = plain_union(fulls[0], fulls[1])
        if union is not None:
            return union
        around = hull(fulls)
        if self.is_full(around):
            return around
        return max(fulls, key=self._samples.size)

    def is_full(self, reach: Reach) -> bool:
        """Whether every lane is proven to be related to every position of the interval."""
        lane = variable(self._fixed)
        lanes = Literal(lane - variable(Name.FIRST)), Literal(variable(Name.LAST) - lane)
        inside = reach_tree(reach, self._swept)
        return self._prover is not None and bool(self._prover.empty_in_tile(self._missing, *lanes, inside))

    def larger_full(self, one: Reach | None, other: Reach | None) -> Reach | None:
        """The larger of two runs, the first one where they are alike."""
        return other if self._samples.size(other) > self._samples.size(one) else one

    def _in_order(self, pieces: list[Piece]) -> list[Piece]:
        ordered = sorted(pieces, key=self._typical_ends)
        # from the back: a piece that is not proven to start before a later one is made to
        for index in range(len(ordered) - 2, -1, -1):
            piece = ordered[index]
            for later in ordered[index + 1 :]:
                if not self._starts_before(piece.touched, later.touched):
                    low = _lower(piece.touched.low, later.touched.low)
                    piece = replace(piece, touched=replace(piece.touched, low=low))
            ordered[index] = piece
        return ordered

    def _typical_ends(self, piece: Piece) -> tuple[float, float]:
        reach = piece.touched
        tiles = [values for values in self._samples.tiles if holds(reach.when, values)] or list(self._samples.tiles)
        low = sum(-_FAR if reach.low is None else term_at(reach.low, values) for values in tiles) / len(tiles)
        high = sum(_FAR if reach.high is None else term_at(reach.high, values) for values in tiles) / len(tiles)
        return low, high

    def _starts_before(self, one: Reach, other: Reach) -> bool:
        if (one, other) not in self._ordered:
            self._ordered[one, other] = self._prove_starts_before(one, other)
        return self._ordered[one, other]

    def _prove_starts_before(self, one: Reach, other: Reach) -> bool:
        """Whether low of one <= low of other in every tile in which both have positions."""
        if one.low is None or (other.low is not None and at_least(other.low, one.low)):
            return True
        if self._prover is None:
            return False
        both = (is_some(one), is_some(other))
        if other.low is None:
            return bool(self._prover.empty_in_tile(*both))
        return bool(self._prover.empty_in_tile(*both, negated(at_least_tree(other.low, one.low))))


def _lower(one: Term | None, other: Term | None) -> Term | None:
    return None if one is None or other is None else extreme(False, (one, other))


def _hull(fulls: list[Reach]) -> Reach | None:
    return hull(fulls) if fulls else None


def drop_contained(pieces: list[Piece], prover: Prover) -> list[Piece]:
    """The pieces without those that lie in another one."""
    kept = [piece for piece in pieces if piece.tree != NEVER]
    for piece in list(kept):
        others = (other for other in kept if other is not piece)
        if any(prover.within(piece.tree, other.tree) for other in others):
            kept.remove(piece)
    return kept
