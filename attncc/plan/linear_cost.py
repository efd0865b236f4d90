"""Plan → what sums by states cost, and from which length on they cost less than pairs: formulas in n, m, d, e and H."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy  # noqa: TID251  formulas of costs, which people read

from attncc.plan.cost import HEADS, D, E, M, N, cost
from attncc.plan.counting import tile_ranges
from attncc.plan.model import Plan
from attncc.plan.ranges import HeadClass
from attncc.spec.expr import Name

Formula = Any  # a sympy expression

_SAMPLE = 8192


@dataclass(frozen=True, slots=True)
class LinearCost:
    """The cost of a batch entry by states.

    Attributes:
        features: how many numbers of a key are multiplied with each value.
        ends: blocks of keys at the ends of runs, which a block of rows meets pair by pair, on average.
        flops: forward, in products.
        crossover: the n = m from which on that is less than pair by pair; None where it does not depend on n.
    """

    features: Formula
    ends: float
    flops: Formula
    crossover: Formula | None


def linear_cost(plan: Plan) -> LinearCost | None:
    """The cost of a plan's states; None where it has none, or where heads have patterns of different cost."""
    found = cost(plan)
    if plan.states is None or len(found.pairs) != 1 or found.pairs[0][1] is None:
        return None
    one, pairs = found.pairs[0]
    features = sum((D ** len(term.factors) for term in plan.states.terms), sympy.Integer(0))
    block = plan.slabs.block
    ends = _ends(one, block)
    per_pair = found.forward.flops_per_pair
    at_ends = per_pair * N * round(ends) * block
    by_states = 2 * (N + M) * features * (E + 1)
    flops = HEADS * (at_ends + by_states)
    return LinearCost(features, ends, flops, _crossover((per_pair * pairs - at_ends - by_states).subs(M, N)))


def _ends(one: HeadClass, block: int) -> float:
    """How many blocks of keys rows in the middle of a long call meet pair by pair."""
    values = {Name.HEAD: 0, Name.HEADS: 8, Name.QUERIES: _SAMPLE, Name.KEYS: _SAMPLE}
    counts = []
    for first in range(_SAMPLE // 4, 3 * _SAMPLE // 4, _SAMPLE // 8):
        found = tile_ranges(one.by_row, first, first + block - 1, 0, _SAMPLE, block, values)
        counts.append(sum(end - start - (full_end - full_start) for start, end, full_start, full_end in found))
    return sum(counts) / len(counts)


def _crossover(saved: Formula) -> Formula | None:
    """The largest n at which nothing is saved; None where the saving grows as n does from the first row on."""
    saved = sympy.expand(saved)
    if saved.coeff(N, 2) == 0:
        return None
    (root,) = [each for each in sympy.solve(saved, N) if each != 0] or [None]
    return None if root is None else sympy.factor_terms(sympy.expand(root))
