"""Pieces of a pattern → a few segments in an order in which each may start where the ones before it ended.

What is proven keeps the result sound; which of the sound arrangements is taken is decided by counting positions for
a handful of sample tiles.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import combinations

from attncc.plan.bounds import Piece
from attncc.plan.isl import Prover
from attncc.plan.linear import variable
from attncc.plan.literals import NEVER, Literal, Tree, any_of, negated
from attncc.plan.reach import Reach, at_least_tree, bounded, hull, is_some, plain_union, reach_tree
from attncc.plan.samples import Samples, cost
from attncc.plan.terms import Term, at_least, extreme
from attncc.spec.expr import Name

MOST_SEGMENTS = 4
_MOST_TRIED = 7  # pieces of which all pairs are tried
_MOST_PROVEN = 4  # pairs for which a merge is carried out before the best one is taken


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
        best = self._reduced(pieces)
        while len(best) > 1:
            merged = self._merged(best, forced=len(best) > MOST_SEGMENTS)
            if merged is None:
                break
            best = merged
        return self._in_order(best)

    def _reduced(self, pieces: list[Piece]) -> list[Piece]:
        """Pieces of one interval joined; then, while there are too many to try all pairs, neighbours."""
        groups: dict[Reach, list[Piece]] = {}
        for piece in pieces:
            groups.setdefault(piece.touched, []).append(piece)
        found = [reduce(self._join, group) for group in groups.values()]
        found.sort(key=lambda piece: self._samples.profile(piece).typical)
        while len(found) > _MOST_TRIED:
            profiles = [self._samples.profile(piece) for piece in found]
            trials = [
                (cost([*profiles[:at], profiles[at].around(profiles[at + 1]), *profiles[at + 2 :]]), at)
                for at in range(len(found) - 1)
            ]
            _, at = min(trials)
            found[at : at + 2] = [self._join(found[at], found[at + 1])]
        return found

    def _merged(self, pieces: list[Piece], *, forced: bool) -> list[Piece] | None:
        """The best list with two pieces merged; None if each costs more than the list as it is."""
        profiles = [self._samples.profile(piece) for piece in pieces]
        trials: list[tuple[float, int, int]] = []
        for one, other in combinations(range(len(pieces)), 2):
            rest = [profile for index, profile in enumerate(profiles) if index not in (one, other)]
            hoped = sorted([*rest, profiles[one].around(profiles[other])], key=lambda profile: profile.typical)
            trials.append((cost(hoped), one, other))
        best, limit = None, self._cost(pieces)
        if forced:
            limit = float("inf")
        # what is hoped of full runs and of the order has to be proven: only the most promising pairs are tried
        for hope, one, other in sorted(trials)[:_MOST_PROVEN]:
            if hope > limit or (best is not None and hope == limit):
                break
            rest_pieces = [piece for index, piece in enumerate(pieces) if index not in (one, other)]
            merged = [*rest_pieces, self._join(pieces[one], pieces[other])]
            found = self._cost(merged)
            if found <= limit:
                best, limit = merged, found
        return best

    def _cost(self, pieces: list[Piece]) -> float:
        return cost(map(self._samples.profile, self._in_order(pieces)))

    def _join(self, one: Piece, other: Piece) -> Piece:
        fulls = [full for full in (one.full, other.full) if full is not None]
        touched = bounded(hull((one.touched, other.touched)))
        return Piece(any_of((one.tree, other.tree)), touched, self._joined_full(fulls))

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
        ordered = sorted(pieces, key=lambda piece: self._samples.profile(piece).typical)
        # from the back: a piece that is not proven to start before a later one is made to
        for index in range(len(ordered) - 2, -1, -1):
            piece = ordered[index]
            for later in ordered[index + 1 :]:
                if not self._starts_before(piece.touched, later.touched):
                    low = _lower(piece.touched.low, later.touched.low)
                    piece = replace(piece, touched=bounded(replace(piece.touched, low=low)))
            ordered[index] = piece
        return ordered

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


def drop_contained(pieces: list[Piece], prover: Prover) -> list[Piece]:
    """The pieces without those that lie in another one."""
    kept = [piece for piece in pieces if piece.tree != NEVER]
    for piece in list(kept):
        others = (other for other in kept if other is not piece)
        if any(prover.within(piece.tree, other.tree) for other in others):
            kept.remove(piece)
    return kept
