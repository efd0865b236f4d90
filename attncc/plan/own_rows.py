"""Rows that see much more than their neighbours, such as those of global tokens: which they are, and what is left.

Where the rows of a conjunction are a short list, or lie on strips, a piece may have these rows alone. It has all of
their pairs, so that no other tile of rows has to look at what they see.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncc.plan.isl import Prover
from attncc.plan.layout import Strips
from attncc.plan.linear import names_read
from attncc.plan.literals import ALWAYS, NEVER, All, Any, Literal, Tree, all_of, any_of, conjunctions, negated
from attncc.plan.split import I, periods, range_of, strips_of
from attncc.spec.expr import Name

_LONGEST = 128  # rows of a list


def may_have(tree: Tree) -> bool:
    """Whether positions of rows alone decide any pair: without that, no rows are unlike others."""
    if isinstance(tree, Literal):
        return Name.I in names_read(tree.form) and Name.J not in names_read(tree.form)
    return any(map(may_have, tree.parts))


def own_rows(product: tuple[Literal, ...], prover: Prover) -> Iterator[Strips]:
    """The rows that a conjunction has, where they are a short list or lie on strips."""
    tree = all_of(product)
    first, last = range_of(tree, I, prover)
    if last is not None and last - (first or 0) < _LONGEST:
        yield Strips(first=first, stop=last + 1)
        return
    for period, _ in periods(product):
        strips = strips_of(tree, I, period, prover)
        if strips is not None:
            yield strips


def of_rows(tree: Tree, rows: Tree, prover: Prover) -> Tree:
    """A tree that holds for the same pairs of some rows; what is known of these rows is not asked again."""
    match tree:
        case Literal():
            if prover.empty(rows, negated(tree)):
                return ALWAYS
            return NEVER if prover.empty(rows, tree) else tree
        case All(parts=parts):
            return all_of(of_rows(part, rows, prover) for part in parts)
        case Any(parts=parts):
            return any_of(of_rows(part, rows, prover) for part in parts)


def of_others(products: tuple[tuple[Literal, ...], ...], rows: Tree, prover: Prover) -> tuple[tuple[Literal, ...], ...]:
    """The conjunctions without the pairs of some rows."""
    outside = conjunctions(negated(rows), 2) or ()
    found: list[tuple[Literal, ...]] = []
    for product in products:
        tree = all_of(product)
        if prover.empty(tree, rows):
            found.append(product)
        elif not prover.within(tree, rows):
            found += [(*other, *product) for other in outside if not prover.empty(tree, all_of(other))]
    return tuple(found)
