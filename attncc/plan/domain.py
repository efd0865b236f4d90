"""Index analysis: an affine pattern → head classes with the ranges and facts that its kernels need.

Bounds are found atom by atom (`bounds`), sharpened and put in order by isl (`isl`, `arrange`); where isl's budget of
operations ends first, the atom-by-atom bounds stand, which are wider but never wrong.
"""

from __future__ import annotations

from dataclasses import replace

from attncc.plan.arrange import Arranger, drop_contained
from attncc.plan.bounds import Piece, pieces_of
from attncc.plan.facts import facts_of, is_empty
from attncc.plan.headclasses import split_heads
from attncc.plan.isl import Prover
from attncc.plan.literals import ALWAYS, Literal, Tree
from attncc.plan.predicates import outer_tree
from attncc.plan.ranges import Domain, HeadClass, Interval, Segment
from attncc.plan.reach import Reach
from attncc.plan.samples import Samples
from attncc.plan.terms import at_least, term_expr
from attncc.plan.written import tree_expr
from attncc.spec.affine import check_affine
from attncc.spec.expr import Expr, Name, names_in

BUDGET = 100_000  # isl operations for one pattern: about 0.1 s
_OF_FACTS = 0.12  # the part of it that they may spend
_LEAST = 8_000  # what each of many head classes may spend
_PARAMETERS = frozenset({Name.HEAD, Name.HEADS, Name.QUERIES, Name.KEYS, Name.RESIDUE})


def analyse(pattern: Expr, budget: int = BUDGET) -> Domain:
    """The head classes of a pattern that `check_affine` accepts; `budget=0` analyses without isl."""
    refusal = check_affine(pattern)
    if refusal is not None:
        raise ValueError(f"the pattern is not affine: {refusal[1]}")
    classes = split_heads(pattern, lambda condition: _feasible(condition, budget))
    share = max(budget // len(classes), min(budget, _LEAST))
    return Domain(tuple(_analyse_class(condition, inner, share) for condition, inner in classes))


def _feasible(condition: Expr, budget: int) -> bool:
    """Whether some head fulfils a condition (True where that is not known)."""
    prover = prover_of(budget // 10, frozenset({Name.HEAD, Name.HEADS}))
    if prover is None:
        return True
    prover.start(1.0)
    return not prover.empty(outer_tree(condition)[0])


def prover_of(budget: int, names: frozenset[Name]) -> Prover | None:
    """What answers questions about patterns that read these symbols; None without a budget."""
    return Prover(budget, names & _PARAMETERS) if budget > 0 else None


def _analyse_class(condition: Expr, pattern: Expr, budget: int) -> HeadClass:
    tree, is_whole = outer_tree(pattern)
    if not is_whole:
        budget = 0  # what isl proves of a wider pattern is not true of this one
    one = analyse_tree(condition, pattern, tree, budget)
    if is_whole:
        return one
    segments = (tuple(replace(each, full=None) for each in side) for side in (one.by_row, one.by_column))
    by_row, by_column = segments
    facts = replace(one.facts, full=False, self_related=False, shift=None)
    return replace(one, by_row=by_row, by_column=by_column, facts=facts)


def analyse_tree(condition: Expr, pattern: Expr, tree: Tree, budget: int) -> HeadClass:
    """The ranges and facts of a tree that says what `pattern` does, for the heads of one condition."""
    return Analysis(condition, pattern, tree, budget).head_class()


class Analysis:
    """The same as far as it is asked for: to compare layouts, it is enough to know what tiles of rows touch."""

    def __init__(self, condition: Expr, pattern: Expr, tree: Tree, budget: int) -> None:
        self._condition, self._pattern, self._tree = condition, pattern, tree
        self._prover = prover_of(budget, names_in(pattern))
        self._samples = Samples(tree)
        self._rows = _Sweep(tree, Name.I, Name.J, self._prover, self._samples)

    def touched(self) -> tuple[Segment, ...]:
        """The segments of keys that tiles of rows touch, without what is known of full runs."""
        return tuple(Segment(_interval(piece.touched), None) for piece in self._rows.pieces)

    def is_empty(self) -> bool:
        """Whether it is proven that no pair is related."""
        if self._prover is not None:
            self._prover.start(_OF_FACTS)
        return is_empty(self._tree, self._prover)

    def head_class(self) -> HeadClass:
        """Everything."""
        rows = self._rows.with_full()
        column_sweep = _Sweep(self._tree, Name.J, Name.I, self._prover, self._samples)
        columns = column_sweep.with_full()
        if self._prover is not None:
            self._prover.start(_OF_FACTS)
        return HeadClass(
            self._condition,
            self._pattern,
            tuple(_segment(piece, self._samples) for piece in rows),
            tuple(_segment(piece, self._samples) for piece in columns),
            facts_of(self._tree, rows, self._prover, exact=self._rows.exact and column_sweep.exact),
        )


class _Sweep:
    """The segments for tiles of `fixed`, and whether isl has seen them all."""

    def __init__(self, tree: Tree, fixed: Name, swept: Name, prover: Prover | None, samples: Samples) -> None:
        self._tree, self._fixed, self._swept, self._prover = tree, fixed, swept, prover
        pieces = pieces_of(tree, fixed, swept)
        if prover is not None:
            prover.start(0.12)
            pieces = _sharpened(drop_contained(pieces, prover), fixed, swept, prover)
        self.exact = prover is not None and not prover.exhausted
        if prover is not None:
            prover.start(0.06)
        self._arranger = Arranger(tree, fixed, swept, prover, samples)
        self.pieces = self._arranger.arrange(pieces)

    def with_full(self) -> list[Piece]:
        """The pieces with the largest runs of positions that all lanes are related to."""
        prover = self._prover
        if prover is None:
            return self.pieces
        prover.start(0.06)
        found = []
        for piece in self.pieces:
            full = prover.full(self._tree, self._fixed, self._swept, piece.touched)
            found.append(replace(piece, full=self._arranger.larger_full(piece.full, full)))
        return found


def _sharpened(pieces: list[Piece], fixed: Name, swept: Name, prover: Prover) -> list[Piece]:
    """The pieces that touch anything, with the narrowest ends that can be printed."""
    found: list[Piece] = []
    for piece in pieces:
        if prover.empty(piece.tree):
            continue
        touched = prover.touched(piece.tree, fixed, swept, piece.touched)
        found.append(piece if touched is None else replace(piece, touched=touched))
    return found


def _segment(piece: Piece, samples: Samples) -> Segment:
    full = piece.full if piece.full is not None and _is_worth_a_loop(piece.full, samples) else None
    low, high = piece.touched.low, piece.touched.high
    may_end_first = low is not None and high is not None and not at_least(high, low)
    return Segment(_interval(piece.touched), None if full is None else _interval(full), may_end_first)


def _is_worth_a_loop(full: Reach, samples: Samples) -> bool:
    """Whether a run can hold two positions (else no tile lies in it), and under a condition worth its text."""
    if full.low is not None and full.high is not None and at_least(full.low, full.high):
        return False
    return full.when == ALWAYS or isinstance(full.when, Literal) or samples.size(full) > 0


def _interval(reach: Reach) -> Interval:
    return Interval(
        None if reach.low is None else term_expr(reach.low),
        None if reach.high is None else term_expr(reach.high),
        tree_expr(reach.when),
    )
