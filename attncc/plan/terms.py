"""Ends of intervals: minima and maxima of linear forms, compared where first <= last decides it, and written out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from attncc.plan.linear import Atom, Linear, Quotient, Remainder, never_negative, value_at
from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, Name, Negate, Symbol


@dataclass(frozen=True)
class Extreme:
    """The largest (or the smallest) of two or more terms."""

    largest: bool
    parts: tuple[Term, ...]

    @cached_property
    def key(self) -> str:
        """A text that orders terms the same way on every machine."""
        return f"{'max' if self.largest else 'min'}({', '.join(part.key for part in self.parts)})"

    def __hash__(self) -> int:
        return hash(self.key)


Term = Linear | Extreme


def size_of(term: Term) -> int:
    """How many forms a term is made of."""
    return 1 if isinstance(term, Linear) else sum(size_of(part) for part in term.parts)


def extreme(largest: bool, parts: Iterable[Term]) -> Term:
    """max or min of the parts: nested ones are flattened, and a part that another one always beats is dropped."""
    flat: list[Term] = []
    for part in parts:
        flat += part.parts if isinstance(part, Extreme) and part.largest == largest else (part,)
    flat = list(dict.fromkeys(flat))
    kept: list[Term] = []
    for index, part in enumerate(flat):
        rivals = kept + flat[index + 1 :]
        beaten = any(at_least(rival, part) if largest else at_least(part, rival) for rival in rivals)
        if not beaten:
            kept.append(part)
    return kept[0] if len(kept) == 1 else Extreme(largest, tuple(kept))


def at_least(left: Term, right: Term) -> bool:
    """Whether left >= right is plain to see for every first <= last (False: not proven here)."""
    match left, right:
        case _, Extreme(largest=True, parts=parts):
            return all(at_least(left, part) for part in parts)
        case Extreme(largest=False, parts=parts), _:
            return all(at_least(part, right) for part in parts)
        case Extreme(largest=True, parts=parts), _:
            return any(at_least(part, right) for part in parts)
        case _, Extreme(largest=False, parts=parts):
            return any(at_least(left, part) for part in parts)
        case Linear(), Linear():
            return never_negative(left - right)
    return False


def shifted(term: Term, distance: int) -> Term:
    """The term plus a whole number."""
    if isinstance(term, Linear):
        return term + distance
    return Extreme(term.largest, tuple(shifted(part, distance) for part in term.parts))


def term_at(term: Term, values: Mapping[Name, int]) -> int:
    """The value of a term for given symbols."""
    if isinstance(term, Linear):
        return value_at(term, values)
    choose = max if term.largest else min
    return choose(term_at(part, values) for part in term.parts)


def term_expr(term: Term) -> Expr:
    """The term as an expression, written as a person would: positive parts first, the constant last."""
    if isinstance(term, Extreme):
        return Call("max" if term.largest else "min", tuple(term_expr(part) for part in term.parts))
    ordered = [each for each in term.terms if each[1] > 0] + [each for each in term.terms if each[1] < 0]
    constant = term.constant
    total: Expr | None = None
    if constant > 0 and ordered and ordered[0][1] < 0:
        total, constant = Const(constant), 0
    for atom, count in ordered:
        size = abs(count)
        piece = _atom_expr(atom) if size == 1 else Binary(BinaryOp.MULTIPLY, Const(size), _atom_expr(atom))
        if total is None:
            total = piece if count > 0 else Negate(piece)
        else:
            total = Binary(BinaryOp.ADD if count > 0 else BinaryOp.SUBTRACT, total, piece)
    if total is None:
        return Const(constant)
    if constant:
        op = BinaryOp.ADD if constant > 0 else BinaryOp.SUBTRACT
        total = Binary(op, total, Const(abs(constant)))
    return total


def _atom_expr(atom: Atom) -> Expr:
    match atom:
        case Name():
            return Symbol(atom)
        case Quotient(numerator=numerator, divisor=divisor):
            return Binary(BinaryOp.FLOOR_DIVIDE, term_expr(numerator), Const(divisor))
        case Remainder(numerator=numerator, divisor=divisor):
            return Binary(BinaryOp.MODULO, term_expr(numerator), Const(divisor))
