"""The law split-union: a pattern → pieces that keep their own layouts, each without the pairs of those before it.

A layout is legal for a conjunction of literals where isl proves that related keys lie on strips, or in the class of
positions that belongs to the class of their query. Which of the legal layouts is taken is decided by the area of the
tiles that it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd

from attncc.plan.isl import Prover
from attncc.plan.layout import Layout, Strips
from attncc.plan.linear import Linear, Quotient, Remainder, quotient, remainder, variable
from attncc.plan.literals import ALWAYS, All, Any, Literal, Tree, all_of, any_of, conjunctions, negated
from attncc.spec.expr import Name

MOST_PRODUCTS = 12  # conjunctions that are told apart
_MOST_PERIODS = 6  # of one conjunction
_LARGEST_PERIOD = 4096
_MOST_IMPLIED = 6  # parts of a conjunction that are tested against each other
I, J = variable(Name.I), variable(Name.J)  # noqa: E741


def products_of(tree: Tree, prover: Prover) -> tuple[tuple[Literal, ...], ...] | None:
    """The conjunctions whose union is the tree, none of them empty or within another; None where they are too many."""
    products = conjunctions(tree, MOST_PRODUCTS)
    if products is None:
        return None
    kept: list[tuple[Literal, ...]] = []
    for product in products:
        tree = all_of(product)
        if prover.empty(tree) or any(prover.within(tree, all_of(other)) for other in kept):
            continue
        kept = [other for other in kept if not prover.within(all_of(other), tree)] + [product]
    return tuple(kept)


def legal_layouts(product: tuple[Literal, ...], prover: Prover) -> Iterator[Layout]:
    """The layouts in which a conjunction may run, beside that of positions."""
    tree = all_of(product)
    for period, width in periods(product):
        yield from _by_class(tree, period, width, prover)
        strips = strips_of(tree, J, period, prover)
        if strips is not None:
            yield Layout(keys=strips)


def _by_class(tree: Tree, period: int, width: int, prover: Prover) -> Iterator[Layout]:
    """Classes of rows whose keys all lie in one class: either that many classes on, or as many short of some class."""
    count = period // width
    for turn in (1, -1):
        of_key, of_row = (quotient(each, width) for each in (J, I))
        step = remainder(of_key - of_row.scaled(turn), count)
        low, high = range_of(tree, step, prover)
        if low is not None and low == high:
            rows = Strips(period, width, 0, 1)
            yield Layout(rows, Strips(period, width, low * width, turn))
            return


def strips_of(tree: Tree, position: Linear, period: int, prover: Prover) -> Strips | None:
    """The strips on which all related positions lie, if they leave any out."""
    low, high = range_of(tree, remainder(position, period), prover)
    if low is None or high is None or high - low + 1 >= period:
        return None
    return Strips(period, high - low + 1, low)


def range_of(tree: Tree, form: Linear, prover: Prover) -> tuple[int | None, int | None]:
    """The least and the largest value of a form where the tree holds."""
    high = prover.largest(tree, form)
    low = prover.largest(tree, -form) if high is not None else None
    return (None if low is None else -low), high


def periods(product: tuple[Literal, ...]) -> list[tuple[int, int]]:
    """After how many positions remainders repeat, and how many neighbours they do not tell apart."""
    found: dict[tuple[int, int], None] = {}
    for each in product:
        for rest in _remainders(each.form):
            widths = {_width(atom) for atom, _ in rest.numerator.terms}
            common = gcd(rest.divisor, *(count for _, count in rest.numerator.terms))
            for width in sorted({1, *widths}):
                period = rest.divisor // common * max(widths, default=1)
                if period <= _LARGEST_PERIOD and period % width == 0 and period > width:
                    found.setdefault((period, width))
    return list(found)[:_MOST_PERIODS]


def has_remainders(tree: Tree) -> bool:
    """Whether remainders of positions decide any pair: without any, there are no layouts to choose from."""
    if isinstance(tree, Literal):
        return any(True for _ in _remainders(tree.form))
    return any(map(has_remainders, tree.parts))


def _remainders(form: Linear) -> Iterator[Remainder]:
    for atom, _ in form.terms:
        if isinstance(atom, Remainder):
            yield atom
        if not isinstance(atom, Name):
            yield from _remainders(atom.numerator)


def _width(atom: object) -> int:
    """How many neighbouring positions an atom may have the same value for."""
    if isinstance(atom, Quotient):
        return atom.divisor * max((_width(inner) for inner, _ in atom.numerator.terms), default=1)
    return 1


def without(tree: Tree, earlier: Iterable[tuple[Literal, ...]], prover: Prover) -> Tree:
    """The tree without the pairs of earlier conjunctions: only what can decide a pair of the tree is left of those."""
    parts = [tree]
    for product in earlier:
        if prover.empty(tree, all_of(product)):
            continue
        outside = [negated(each) for each in product]
        kept = [each for each in outside if not prover.empty(tree, each)]
        if not any(prover.within(tree, each) for each in kept):
            parts.append(any_of(kept))
    return tidy(all_of(parts))


def lean(tree: Tree, prover: Prover | None) -> Tree:
    """The tree without parts of a conjunction that the other parts imply."""
    match tree:
        case Any(parts=parts):
            return any_of(lean(part, prover) for part in parts)
        case Literal() if prover is not None:
            return ALWAYS if prover.empty(negated(tree)) else tree
        case All(parts=parts) if prover is not None and len(parts) <= _MOST_IMPLIED:
            kept = list(parts)
            for part in parts:
                rest = [each for each in kept if each is not part]
                if prover.empty(*rest, negated(part)):
                    kept = rest
            return all_of(kept)
        case _:
            return tree


def tidy(tree: Tree) -> Tree:
    """The tree without literals that another literal of the same conjunction implies."""
    match tree:
        case All(parts=parts):
            least: dict[object, int] = {}
            for part in parts:
                if isinstance(part, Literal):
                    known = least.get(part.form.terms)
                    least[part.form.terms] = min(part.form.constant, part.form.constant if known is None else known)
            return all_of(
                tidy(part)
                for part in parts
                if not isinstance(part, Literal) or part.form.constant == least[part.form.terms]
            )
        case Any(parts=parts):
            return any_of(map(tidy, parts))
        case _:
            return tree
