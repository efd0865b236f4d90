"""What holds of a whole pattern: tree → `Facts`; each fact is proven or left open."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, lcm

from attncc.plan.bounds import Piece
from attncc.plan.isl import Prover
from attncc.plan.linear import Linear, Quotient, Remainder, substitute_names, value_range, variable, with_remainders
from attncc.plan.literals import ALWAYS, NEVER, All, Any, Literal, Tree, all_of, any_of, literal, negated
from attncc.plan.ranges import Facts
from attncc.plan.terms import Extreme, Term
from attncc.spec.expr import Name

I, J = variable(Name.I), variable(Name.J)  # noqa: E741
_MOST_SHIFTS = 6  # candidates that are worth a proof


def facts_of(tree: Tree, rows: list[Piece], prover: Prover | None, *, exact: bool) -> Facts:
    """The facts of a pattern whose pieces, swept by rows, are `rows`."""
    back, ahead = _largest(tree, I - J, rows, prover), _largest(tree, J - I, rows, prover)
    return Facts(
        full=tree == ALWAYS or _empty(prover, negated(tree)),
        causal=tree == NEVER or (ahead is not None and ahead <= 0) or _empty(prover, tree, literal(J - I - 1)),
        self_related=tree == ALWAYS or _empty(prover, negated(tree), literal(I - J), literal(J - I)),
        empty=is_empty(tree, prover),
        shift=_shift(tree, prover),
        reach_back=back,
        reach_ahead=ahead,
        exact=exact,
    )


def is_empty(tree: Tree, prover: Prover | None) -> bool:
    """Whether no pair is related."""
    return tree == NEVER or _empty(prover, tree)


def _empty(prover: Prover | None, *trees: Tree) -> bool:
    return prover is not None and bool(prover.empty(*trees))


def _largest(tree: Tree, distance: Linear, rows: list[Piece], prover: Prover | None) -> int | None:
    """The largest distance of a related pair; an upper bound of it where isl has no answer."""
    found = prover.largest(tree, distance) if prover is not None else None
    if found is not None or (prover is not None and not prover.exhausted):
        return found
    bounds = [_distance_bound(piece, back=distance == I - J) for piece in rows]
    known = [bound for bound in bounds if bound is not None]
    return max(known) if known and len(known) == len(bounds) else None


def _distance_bound(piece: Piece, *, back: bool) -> int | None:
    """How far a piece's positions lie from a tile of a single row, at most."""
    end = piece.touched.low if back else piece.touched.high
    if end is None:
        return None
    bounds = [_distance(part, back=back) for part in _parts(end, largest=back)]
    known = [bound for bound in bounds if bound is not None]
    return min(known, default=None)


def _parts(end: Term, *, largest: bool) -> tuple[Term, ...]:
    return end.parts if isinstance(end, Extreme) and end.largest == largest else (end,)


def _distance(part: Term, *, back: bool) -> int | None:
    if isinstance(part, Extreme):
        return None
    here = variable(Name.FIRST)
    at_row = substitute_names(part, {Name.LAST: here})
    return value_range(with_remainders(here - at_row if back else at_row - here))[1]


def _shift(tree: Tree, prover: Prover | None) -> int | None:
    """The smallest candidate by which both positions may move without changing the pattern."""
    moduli = sorted({_period(atom) for form in _forms(tree) for atom in _divisions(form)})
    if len(moduli) > _MOST_SHIFTS:
        moduli = [lcm(*moduli)]
    candidates = sorted({1, *moduli, lcm(*moduli)})
    for step in candidates:
        if _moved(tree, step) == tree:
            return step
    if prover is None:
        return None
    return next((step for step in candidates if prover.equal(tree, _moved(tree, step))), None)


def _period(atom: Quotient | Remainder) -> int:
    """The smallest move of both positions that leaves the remainder of an atom unchanged (1 for i - j)."""
    pace = sum(count for name, count in atom.numerator.terms if name in (Name.I, Name.J))
    return atom.divisor // gcd(atom.divisor, pace)


def _moved(tree: Tree, step: int) -> Tree:
    match tree:
        case Literal(form=form):
            return literal(substitute_names(form, {Name.I: I + step, Name.J: J + step}))
        case All(parts=parts):
            return all_of(_moved(part, step) for part in parts)
        case Any(parts=parts):
            return any_of(_moved(part, step) for part in parts)


def _forms(tree: Tree) -> Iterator[Linear]:
    if isinstance(tree, Literal):
        yield tree.form
    else:
        for part in tree.parts:
            yield from _forms(part)


def _divisions(form: Linear) -> Iterator[Quotient | Remainder]:
    for atom, _ in form.terms:
        if not isinstance(atom, Name):
            yield atom
            yield from _divisions(atom.numerator)
