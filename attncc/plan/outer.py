"""What is known of a pattern that depends on data before the data are: an affine pattern around it."""

from __future__ import annotations

from attncc.spec.expr import FALSE, TRUE, And, Const, Expr, Let, Local, Not, Or, Select, Top, walk
from attncc.spec.sides import reads_data


def outer(pattern: Expr) -> Expr:
    """An affine pattern that relates every pair which `pattern` relates for some data."""
    return _known(pattern, holds=True)


def _known(expr: Expr, *, holds: bool) -> Expr:
    """What follows from positions alone where a predicate holds, or does not."""
    if not _reads_data(expr):
        return expr if holds else _not(expr)
    match expr:
        case And(operands=operands):
            return _joined([_known(each, holds=holds) for each in operands], every=holds)
        case Or(operands=operands):
            return _joined([_known(each, holds=holds) for each in operands], every=not holds)
        case Not(operand=operand):
            return _known(operand, holds=not holds)
        case Let(value=value):
            return _known(value, holds=holds)
        case Top(among=among) if holds:
            return _known(among, holds=True)
        case Select(condition=condition, then=then, otherwise=otherwise):
            sides = [_known(each, holds=holds) for each in (then, otherwise)]
            if _reads_data(condition):
                return _joined(sides, every=False)
            chosen = _joined([condition, sides[0]], every=True), _joined([_not(condition), sides[1]], every=True)
            return _joined(list(chosen), every=False)
        case _:
            return TRUE


def _reads_data(expr: Expr) -> bool:
    """Whether a predicate depends on data, or on what a core has made of these."""
    return reads_data(expr) or any(isinstance(node, Local) for node in walk(expr))


def _not(expr: Expr) -> Expr:
    match expr:
        case Const(value=bool(value)):
            return Const(not value)
        case Not(operand=operand):
            return operand
        case _:
            return Not(expr)


def _joined(parts: list[Expr], *, every: bool) -> Expr:
    """The conjunction of some predicates, or their union."""
    neutral, absorbing = (TRUE, FALSE) if every else (FALSE, TRUE)
    if absorbing in parts:
        return absorbing
    parts = [each for each in parts if each != neutral]
    if len(parts) < 2:
        return parts[0] if parts else neutral
    return And(tuple(parts)) if every else Or(tuple(parts))
