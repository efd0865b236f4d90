"""Predicates as unions of conjunctions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from attncc.spec.expr import And, Call, Compare, CompareOp, Expr, Negate, Not, Or, Select

_MOST_PARTS = 8  # conjunctions of a union; of more, unions inside stay as they are


def any_of(parts: Sequence[tuple[Expr, ...]]) -> Expr:
    """Whether all predicates of one part hold; parts that ask for more than another does add nothing."""
    sets = [frozenset(each) for each in parts]
    least = [each for each, own in zip(parts, sets, strict=True) if not any(other < own for other in sets)]
    return union([conjunction(each) for each in least])


def union(parts: list[Expr]) -> Expr:
    """What holds where one of some predicates does."""
    each = tuple(dict.fromkeys(parts))
    return each[0] if len(each) == 1 else Or(each)


def conjunctions(pattern: Expr) -> list[Expr]:
    """Conjunctions that a pattern is a union of."""
    parts = _parts(pattern, holds=True)
    return [conjunction(each) for each in parts]


def conjunction(atoms: tuple[Expr, ...]) -> Expr:
    """What holds where all of some predicates do."""
    atoms = tuple(dict.fromkeys(atoms))
    return atoms[0] if len(atoms) == 1 else And(atoms)


def _parts(expr: Expr, *, holds: bool) -> list[tuple[Expr, ...]]:
    match expr:
        case Not(operand=operand):
            return _parts(operand, holds=not holds)
        case And(operands=operands) | Or(operands=operands):
            inner = [_parts(each, holds=holds) for each in operands]
            if isinstance(expr, Or) is holds:
                found = [each for one in inner for each in one]
            else:
                found = [tuple(atom for part in parts for atom in part) for parts in product(*inner)]
            return found if len(found) <= _MOST_PARTS else [(expr if holds else Not(expr),)]
        case Select(condition=condition, then=then, otherwise=otherwise):
            both = Or((And((condition, then)), And((Not(condition), otherwise))))
            return _parts(both, holds=holds)
        case Compare(op=op, left=left, right=right) if not holds:
            return _parts(Compare(_OPPOSITE[op], left, right), holds=True)
        case Compare(op=CompareOp.GREATER | CompareOp.GREATER_EQUAL as op, left=left, right=Call(function="abs")):
            return _parts(Compare(FLIPPED[op], expr.right, left), holds=True)
        case Compare(
            op=CompareOp.LESS | CompareOp.LESS_EQUAL as op, left=Call(function="abs", arguments=(inner,)), right=right
        ):
            return [(Compare(op, inner, right), Compare(op, Negate(inner), right))]
        case _:
            return [(expr if holds else Not(expr),)]


_OPPOSITE = {
    CompareOp.LESS: CompareOp.GREATER_EQUAL,
    CompareOp.LESS_EQUAL: CompareOp.GREATER,
    CompareOp.GREATER: CompareOp.LESS_EQUAL,
    CompareOp.GREATER_EQUAL: CompareOp.LESS,
    CompareOp.EQUAL: CompareOp.NOT_EQUAL,
    CompareOp.NOT_EQUAL: CompareOp.EQUAL,
}


FLIPPED = {
    CompareOp.LESS: CompareOp.GREATER,
    CompareOp.LESS_EQUAL: CompareOp.GREATER_EQUAL,
    CompareOp.GREATER: CompareOp.LESS,
    CompareOp.GREATER_EQUAL: CompareOp.LESS_EQUAL,
    CompareOp.EQUAL: CompareOp.EQUAL,
}
