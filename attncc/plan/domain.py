"""Index analysis: an affine pattern → head classes with the ranges and facts that its kernels need.

Bounds are found atom by atom (`bounds`), sharpened and put in order by isl (`isl`, `arrange`); where isl's budget of
operations ends first, the atom-by-atom bounds stand, which are wider but never wrong.
"""

from __future__ import annotations

from dataclasses import replace

from attncc.plan.arrange import Arranger, drop_contained
from attncc.plan.bounds import Piece, pieces_of
from attncc.plan.facts import facts_of
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
    prover = prover_of(budget, names_in(pattern))
    samples = Samples(tree)
    rows, rows_exact = _sweep(tree, Name.I, Name.J, prover, samples)
    columns, columns_exact = _sweep(tree, Name.J, Name.I, prover, samples)
    if prover is not None:
        prover.start(0.12)
    return HeadClass(
        condition,
        pattern,
        tuple(_segment(piece, samples) for piece in rows),
        tuple(_segment(piece, samples) for piece in columns),
        facts_of(tree, rows, prover, exact=rows_exact and columns_exact),
    )


def _sweep(tree: Tree, fixed: Name, swept: Name, prover: Prover | None, samples: Samples) -> tuple[list[Piece], bool]:
    """The segments for tiles of `fixed`, and whether isl has seen them all."""
    pieces = pieces_of(tree, fixed, swept)
    if prover is not None:
        prover.start(0.12)
        pieces = _sharpened(drop_contained(pieces, prover), fixed, swept, prover)
    exact = prover is not None and not prover.exhausted
    if prover is not None:
        prover.start(0.06)
    arranger = Arranger(tree, fixed, swept, prover, samples)
    pieces = arranger.arrange(pieces)
    if prover is not None:
        prover.start(0.06)
        pieces = [
            replace(piece, full=arranger.larger_full(piece.full, prover.full(tree, fixed, swept, piece.touched)))
            for piece in pieces
        ]
    return pieces, exact


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
    return Segment(_interval(piece.touched), None if full is None else _interval(full))


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
