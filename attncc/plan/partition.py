"""The choice of pieces: which parts of a pattern leave the layout of positions, and from which length on.

Every conjunction of a pattern may take the layout in which its tiles cover the least area. Conjunctions of one layout
run together; a piece that saves less than it costs goes back to the others. Rows that see much more than their
neighbours may be taken from all of these, and run alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from attncc.plan.domain import BUDGET, Analysis, prover_of
from attncc.plan.isl import Prover
from attncc.plan.layout import PLAIN, Layout, Strips, in_coordinates, with_plain_residue
from attncc.plan.literals import NEVER, Literal, Tree, all_of, negated, union_of
from attncc.plan.own_rows import of_others, of_rows, own_rows
from attncc.plan.pieces import Part, Piece, Pieces, area
from attncc.plan.predicates import outer_tree
from attncc.plan.ranges import Domain, HeadClass, Interval, Segment
from attncc.plan.split import lean, legal_layouts, products_of, tidy, without
from attncc.plan.written import tree_expr
from attncc.spec.expr import Expr, Name, names_in

_REFERENCE = 8192  # rows and keys at which layouts are compared
_LONGEST, _SHORTEST = 16384, 64  # calls among which the shortest is sought that is worth its pieces
_SAVING = 0.8  # the part of the cost up to which another layout, or a piece of its own, is worth having

Product = tuple[Literal, ...]


@dataclass(frozen=True)
class _Group:
    """The conjunctions of a pattern that share a layout, and what its heads do in it if they run by themselves."""

    layout: Layout
    products: tuple[Product, ...]
    cost: float


class _Candidate:
    """What the heads do for a tree over positions, in a layout; how, in full, is found where it is asked for.

    `alone` are the pairs themselves where the tree holds for them among the rows of the layout only.
    """

    def __init__(self, layout: Layout, tree: Tree, alone: Tree | None, analysis: Analysis) -> None:
        self.layout = layout
        self._tree, self._alone, self._analysis = tree, alone, analysis

    @cached_property
    def cost(self) -> float:
        """What its tiles cost in a long call."""
        return area(self.layout, self._analysis.touched(), _REFERENCE).cost

    @cached_property
    def is_empty(self) -> bool:
        """Whether it is known to have no pairs."""
        return self._analysis.is_empty()

    @cached_property
    def part(self) -> Part:
        """Everything about it."""
        pairs = self._tree if self._alone is None else self._alone
        one = _with_plain_residue(self._analysis.head_class(), self.layout)
        return Part(self.layout, one, tree_expr(pairs), self._alone is not None)


def partition(domain: Domain) -> Pieces | None:
    """The pieces of a pattern; None where it is best taken as a whole."""
    split = [_Splitter(each).parts() for each in domain.classes]
    if all(len(parts) == 1 and parts[0].layout.is_plain for parts in split):
        return None
    pieces = _side_by_side(split)
    least = _least(domain, pieces)
    return None if least is None else Pieces(pieces, least)


def _side_by_side(split: list[list[Part]]) -> tuple[Piece, ...]:
    """Parts of different heads with layouts of one kind make one piece: positions as they are first, own rows last."""
    found: dict[tuple[object, ...], list[Part]] = {}
    for parts in split:
        seen: dict[tuple[object, ...], int] = {}
        for part in parts:
            kind = _kind(part)
            seen[kind] = seen.get(kind, 0) + 1
            found.setdefault((*kind, seen[kind]), []).append(part)
    ordered = sorted(found.values(), key=lambda parts: (parts[0].alone, not parts[0].layout.is_plain))
    return tuple(Piece(tuple(parts)) for parts in ordered)


def _kind(part: Part) -> tuple[object, ...]:
    """What the code for a part depends on; other numbers of its layout may differ from head to head."""
    sides = (part.layout.rows, part.layout.keys)
    side_by_side = part.layout if part.layout.copies_keys or part.layout.copies_rows else None
    return part.alone, side_by_side, *((each.is_everything, each.is_list, each.width, each.turn) for each in sides)


class _Splitter:
    """Finds the parts of one class of heads."""

    def __init__(self, one: HeadClass, budget: int = BUDGET) -> None:
        self._one = one
        self._budget = budget
        self._found: dict[tuple[Layout, Tree], _Candidate] = {}

    def parts(self) -> list[Part]:
        """The parts, the one in the layout of positions first; that alone where no other is worth having."""
        whole = Part(PLAIN, self._one, self._one.pattern)
        tree, is_whole = outer_tree(self._one.pattern)
        prover = prover_of(self._budget, names_in(self._one.pattern))
        if not is_whole or prover is None or self._one.facts.empty:
            return [whole]
        prover.start(1.0)
        products = products_of(tree, prover)
        if not products or prover.exhausted:
            return [whole]
        found = self._with_own_rows(tree, products, prover)
        if all(each.layout.is_plain for each in found):
            return [whole]
        is_better = _sum_of(found) <= _SAVING * area(PLAIN, self._one.by_row, _REFERENCE).cost
        return [each.part for each in found] if is_better else [whole]

    def _with_own_rows(self, tree: Tree, products: tuple[Product, ...], prover: Prover) -> list[_Candidate]:
        """The parts, with rows alone that are better not among others."""
        found, apart = self._in_layouts(products, prover), list[Strips]()
        for rows in dict.fromkeys(rows for product in products for rows in own_rows(product, prover)):
            prover.start(1.0)
            others = of_others(products, rows.tree(Name.I), prover)
            other = self._in_layouts(others, prover) or [self._candidate(PLAIN, NEVER)]
            other += self._alone(tree, [*apart, rows], prover)
            if not prover.exhausted and _sum_of(other) <= _SAVING * _sum_of(found):
                found, products, apart = other, others, [*apart, rows]
        return found

    def _alone(self, tree: Tree, apart: list[Strips], prover: Prover) -> Iterator[_Candidate]:
        """Rows by themselves, with all their pairs; where rows are among several, the last has them."""
        prover.start(1.0)
        for at, rows in enumerate(apart):
            left = all_of((tree, *(negated(later.tree(Name.I)) for later in apart[at + 1 :])))
            known = of_rows(left, rows.tree(Name.I), prover)
            yield self._candidate(Layout(rows), known, all_of((rows.tree(Name.I), known)))

    def _in_layouts(self, products: tuple[Product, ...], prover: Prover) -> list[_Candidate]:
        """The parts of conjunctions, each in the layout that suits it."""
        groups = self._grouped([self._best(product, prover) for product in products])
        if any(not each.layout.is_plain for each in groups):
            groups = self._merged_back(groups)
        prover.start(1.0)
        return self._apart(groups, prover)

    def _best(self, product: Product, prover: Prover) -> _Group:
        """A conjunction in the layout that suits it best."""
        best = self._group(PLAIN, (product,))
        limit = _SAVING * best.cost
        for layout in dict.fromkeys(legal_layouts(product, prover)):
            found = self._group(layout, (product,))
            if found.cost <= limit:
                best, limit = found, found.cost
        return best

    def _grouped(self, groups: list[_Group]) -> list[_Group]:
        """One group for each layout, positions first."""
        products: dict[Layout, tuple[Product, ...]] = {}
        for each in groups:
            products[each.layout] = products.get(each.layout, ()) + each.products
        ordered = sorted(products.items(), key=lambda item: not item[0].is_plain)
        return [self._group(layout, found) for layout, found in ordered]

    def _merged_back(self, groups: list[_Group]) -> list[_Group]:
        """The groups without those that cost no less than leaving their conjunctions to the layout of positions."""
        for group in [each for each in groups if not each.layout.is_plain]:
            plain = next((each for each in groups if each.layout.is_plain), None)
            if plain is None:
                continue
            together = self._group(PLAIN, plain.products + group.products)
            if together.cost <= plain.cost + group.cost:
                groups = [together, *(each for each in groups if each not in (plain, group))]
        return groups

    def _apart(self, groups: list[_Group], prover: Prover) -> list[_Candidate]:
        """Each group without the pairs of those before it."""
        found = []
        earlier: tuple[Product, ...] = ()
        for group in groups:
            tree = tidy(union_of(without(all_of(product), earlier, prover) for product in group.products))
            found.append(self._candidate(group.layout, tree))
            earlier += group.products
        return [each for each in found if not each.is_empty]

    def _group(self, layout: Layout, products: tuple[Product, ...]) -> _Group:
        return _Group(layout, products, self._candidate(layout, union_of(map(all_of, products))).cost)

    def _candidate(self, layout: Layout, tree: Tree, alone: Tree | None = None) -> _Candidate:
        """A part that may be worth having; most are asked for several times."""
        if (layout, tree) not in self._found:
            self._found[layout, tree] = _Candidate(layout, tree, alone, self._analysis(layout, tree))
        return self._found[layout, tree]

    def _analysis(self, layout: Layout, tree: Tree) -> Analysis:
        own = tidy(in_coordinates(tree, layout))
        prover = prover_of(self._budget, names_in(self._one.pattern) | {Name.RESIDUE})
        if prover is not None:
            prover.start(0.2)
            own = lean(own, prover)
        return Analysis(self._one.condition, tree_expr(own), own, self._budget)


def _sum_of(candidates: list[_Candidate]) -> float:
    return sum(each.cost for each in candidates)


def _with_plain_residue(one: HeadClass, layout: Layout) -> HeadClass:
    def plain(expr: Expr) -> Expr:
        return with_plain_residue(expr, layout)

    def interval(each: Interval | None) -> Interval | None:
        if each is None:
            return None
        low, high = (None if end is None else plain(end) for end in (each.low, each.high))
        return Interval(low, high, plain(each.when))

    def side(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        found = []
        for each in segments:
            touched = interval(each.touched)
            assert touched is not None
            found.append(replace(each, touched=touched, full=interval(each.full)))
        return tuple(found)

    return HeadClass(one.condition, plain(one.pattern), side(one.by_row), side(one.by_column), one.facts)


def _least(domain: Domain, pieces: tuple[Piece, ...]) -> int | None:
    """The least number of keys from which on pieces cost less than the whole; None where that is never seen."""
    found = None
    length = _LONGEST
    while length >= _SHORTEST and _cost(pieces, length) < _cost_of_whole(domain, length):
        found, length = length, length // 2
    return found


def _cost(pieces: tuple[Piece, ...], length: int) -> float:
    return sum(_cost_at(part.layout, part.one, length) for piece in pieces for part in piece.parts)


def _cost_of_whole(domain: Domain, length: int) -> float:
    return sum(_cost_at(PLAIN, each, length) for each in domain.classes)


def _cost_at(layout: Layout, one: HeadClass, length: int) -> float:
    block = (min(128, max(16, 1 << (length // layout.classes).bit_length())), 64)
    return area(layout, one.by_row, length, block).cost
