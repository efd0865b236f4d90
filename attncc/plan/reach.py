"""Intervals of the swept axis whose ends are terms: their hull, their union, and what they say as predicates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attncc.plan.linear import Linear, variable
from attncc.plan.literals import ALWAYS, Tree, all_of, any_of, literal, tree_size
from attncc.plan.terms import Term, at_least, extreme, size_of
from attncc.spec.expr import Name

LONGEST_END = 6  # forms in an end, or literals in a condition, that are still worth their text


@dataclass(frozen=True)
class Reach:
    """The positions low … high (None: unbounded), if `when` holds; the terms and `when` read first and last."""

    low: Term | None
    high: Term | None
    when: Tree = ALWAYS


def hull(reaches: Iterable[Reach]) -> Reach:
    """One interval around all of them."""
    found = list(reaches)
    lows = [reach.low for reach in found if reach.low is not None]
    highs = [reach.high for reach in found if reach.high is not None]
    return Reach(
        extreme(False, lows) if len(lows) == len(found) else None,
        extreme(True, highs) if len(highs) == len(found) else None,
        any_of(reach.when for reach in found),
    )


def bounded(touched: Reach) -> Reach:
    """The interval, opened on a side whose end has become too long a text (conditions likewise)."""
    low = touched.low if touched.low is None or size_of(touched.low) <= LONGEST_END else None
    high = touched.high if touched.high is None or size_of(touched.high) <= LONGEST_END else None
    when = touched.when if tree_size(touched.when) <= LONGEST_END else ALWAYS
    return Reach(low, high, when)


def is_short(reach: Reach) -> bool:
    """Whether the ends and the condition are worth their text."""
    return reach == bounded(reach)


def plain_union(one: Reach, other: Reach) -> Reach | None:
    """The union where it is plainly one interval: both are unbounded on the same side, or one contains the other."""
    if one.when != other.when:
        return None
    if (one.low is None and other.low is None) or (one.high is None and other.high is None):
        return hull((one, other))
    for inner, outer in ((one, other), (other, one)):
        if _reaches_below(outer.low, inner.low) and _reaches_above(outer.high, inner.high):
            return outer
    return None


def _reaches_below(outer: Term | None, inner: Term | None) -> bool:
    return outer is None or (inner is not None and at_least(inner, outer))


def _reaches_above(outer: Term | None, inner: Term | None) -> bool:
    return outer is None or (inner is not None and at_least(outer, inner))


def reach_tree(reach: Reach, swept: Name) -> Tree:
    """The interval as a predicate of the swept position."""
    here = variable(swept)
    parts = [reach.when]
    if reach.low is not None:
        parts.append(at_least_tree(here, reach.low))
    if reach.high is not None:
        parts.append(at_least_tree(reach.high, here))
    return all_of(parts)


def at_least_tree(left: Term, right: Term) -> Tree:
    """left >= right as a predicate."""
    if isinstance(left, Linear) and isinstance(right, Linear):
        return literal(left - right)
    if isinstance(left, Linear):
        assert not isinstance(right, Linear)
        parts = [at_least_tree(left, part) for part in right.parts]
        return all_of(parts) if right.largest else any_of(parts)
    parts = [at_least_tree(part, right) for part in left.parts]
    return any_of(parts) if left.largest else all_of(parts)


def is_some(reach: Reach) -> Tree:
    """Whether the interval has any position in it."""
    if reach.low is None or reach.high is None:
        return reach.when
    return all_of((reach.when, at_least_tree(reach.high, reach.low)))
