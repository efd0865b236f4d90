"""Trees → expressions, as a person would write them."""

from __future__ import annotations

from collections.abc import Iterable

from attncc.plan.headclasses import conjunction, disjunction
from attncc.plan.linear import Linear, Remainder, number
from attncc.plan.literals import All, Any, Literal, Tree
from attncc.plan.terms import term_expr
from attncc.spec.expr import Compare, CompareOp, Expr


def tree_expr(tree: Tree) -> Expr:
    """A tree as an expression; two opposite comparisons become one equality, or its negation."""
    match tree:
        case Literal(form=form):
            return _comparison(form)
        case All(parts=parts):
            return conjunction(list(_joined(parts, CompareOp.EQUAL, 0)))
        case Any(parts=parts):
            return disjunction(list(_joined(parts, CompareOp.NOT_EQUAL, -2)))


def _joined(parts: tuple[Tree, ...], op: CompareOp, total: int) -> Iterable[Expr]:
    """The parts in order; f + c >= 0 and -f + d >= 0 with c + d = `total` are written as one comparison."""
    forms = [part.form if isinstance(part, Literal) else None for part in parts]
    taken: set[int] = set()
    for at, form in enumerate(forms):
        if at in taken:
            continue
        opposite = None if form is None else -form + total
        partner = next((k for k, other in enumerate(forms) if k > at and other is not None and other == opposite), None)
        if form is None or partner is None:
            yield tree_expr(parts[at])
            continue
        taken.add(partner)
        yield _compared(op, form - total // 2)


def _comparison(form: Linear) -> Expr:
    """form >= 0 with what is subtracted on the left: `first - g < 0` is written `first < g`."""
    left, right = _sides(form)
    if _is_remainder(left) and right == number(0) and form.constant == 0:
        return Compare(CompareOp.EQUAL, term_expr(left), term_expr(right))
    if not left.terms:
        return Compare(CompareOp.GREATER_EQUAL, term_expr(right), term_expr(Linear((), -form.constant)))
    op = CompareOp.LESS if form.constant == -1 or not right.terms else CompareOp.LESS_EQUAL
    return Compare(op, term_expr(left), term_expr(right + (form.constant + (op is CompareOp.LESS))))


def _is_remainder(form: Linear) -> bool:
    """Whether a form is one remainder, which is 0 where it is at most 0."""
    return len(form.terms) == 1 and isinstance(form.terms[0][0], Remainder) and form.terms[0][1] == 1


def _compared(op: CompareOp, form: Linear) -> Expr:
    """form == 0, or form != 0."""
    left, right = _sides(form)
    if not left.terms:
        left, right = right, left
        return Compare(op, term_expr(left), term_expr(right - form.constant))
    return Compare(op, term_expr(left), term_expr(right + form.constant))


def _sides(form: Linear) -> tuple[Linear, Linear]:
    """What is subtracted and what is added, constants aside."""
    left = Linear(tuple((atom, -count) for atom, count in form.terms if count < 0), 0)
    return left, Linear(tuple(term for term in form.terms if term[1] > 0), 0)
