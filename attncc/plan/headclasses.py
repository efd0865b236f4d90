"""Heads split into classes: pattern → [(condition on h, pattern without that condition)], exclusive and covering.

A condition on the head alone, a constant looked up by it, or a remainder of it is the same for all positions. Filling
in its value leaves each class one pattern over positions, in which h stays only inside affine bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attncc.spec.expr import (
    FALSE,
    TRUE,
    And,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Indicator,
    Name,
    Negate,
    Not,
    Or,
    Select,
    Symbol,
    Table,
    Type,
    children,
    names_in,
    rebuild,
    substitute,
    type_of,
)

_MOST_REMAINDERS = 8  # classes that a remainder of the head makes
_HEAD_ONLY = frozenset({Name.HEAD, Name.HEADS})
_OPPOSITE = {
    CompareOp.LESS: CompareOp.GREATER_EQUAL,
    CompareOp.LESS_EQUAL: CompareOp.GREATER,
    CompareOp.GREATER: CompareOp.LESS_EQUAL,
    CompareOp.GREATER_EQUAL: CompareOp.LESS,
    CompareOp.EQUAL: CompareOp.NOT_EQUAL,
    CompareOp.NOT_EQUAL: CompareOp.EQUAL,
}


def split_heads(pattern: Expr, feasible: Callable[[Expr], bool]) -> list[tuple[Expr, Expr]]:
    """The classes in the order in which the pattern names them; classes of equal patterns are joined.

    `feasible` may answer True for a condition that no head fulfils; the class is then never used.
    """
    joined: dict[Expr, list[Expr]] = {}
    for condition, inner in _split(_remainders_apart(simplify(pattern)), TRUE, feasible):
        joined.setdefault(inner, []).append(condition)
    return [(TRUE if len(joined) == 1 else disjunction(found), inner) for inner, found in joined.items()]


def _split(pattern: Expr, given: Expr, feasible: Callable[[Expr], bool]) -> list[tuple[Expr, Expr]]:
    decision = _first_decision(pattern)
    if decision is None:
        return [(given, pattern)]
    choices = _choices(decision, pattern)
    possible = [choice for choice in choices if len(choices) == 1 or feasible(conjunction([given, choice[0]]))]
    found: list[tuple[Expr, Expr]] = []
    for condition, mapping in possible:
        inner = simplify(substitute(pattern, mapping))
        # a condition that follows from what is known already is not worth printing
        implied = len(possible) == 1
        found += _split(inner, given if implied else conjunction([given, condition]), feasible)
    return found


def _first_decision(expr: Expr) -> Expr | None:
    """The outermost condition on the head alone, or table, or remainder, that comes first."""
    if isinstance(expr, Table) or _is_remainder_of_head(expr):
        return expr
    if type_of(expr) is Type.BOOL and not isinstance(expr, Const) and names_in(expr) <= _HEAD_ONLY:
        table = next((found for found in map(_first_decision, children(expr)) if isinstance(found, Table)), None)
        return table or expr
    for child in children(expr):
        decision = _first_decision(child)
        if decision is not None:
            return decision
    return None


def _is_remainder_of_head(expr: Expr) -> bool:
    """Whether an expression has one of a few values for each head."""
    match expr:
        case Binary(op=BinaryOp.MODULO, left=left, right=Const(value=int(divisor))):
            return 1 < divisor <= _MOST_REMAINDERS and names_in(left) <= _HEAD_ONLY
    return False


def _remainders_apart(expr: Expr) -> Expr:
    """(i - j + h) % c as (i - j + h % c) % c."""
    expr = rebuild(expr, _remainders_apart)
    match expr:
        case Binary(op=BinaryOp.MODULO, left=left, right=Const(value=int(divisor))) if (
            1 < divisor <= _MOST_REMAINDERS and not names_in(left) <= _HEAD_ONLY
        ):
            return replace(expr, left=_head_apart(left, divisor))
    return expr


def _head_apart(expr: Expr, divisor: int) -> Expr:
    match expr:
        case Symbol(name=Name.HEAD):
            return Binary(BinaryOp.MODULO, expr, Const(divisor))
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT, left=left, right=right):
            return replace(expr, left=_head_apart(left, divisor), right=_head_apart(right, divisor))
        case Binary(op=BinaryOp.MULTIPLY, left=Const(), right=right):
            return replace(expr, right=_head_apart(right, divisor))
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=Const()):
            return replace(expr, left=_head_apart(left, divisor))
        case Negate(operand=operand):
            return replace(expr, operand=_head_apart(operand, divisor))
    return expr


def _choices(decision: Expr, pattern: Expr) -> list[tuple[Expr, dict[Expr, Expr]]]:
    """What can be known of a decision: a condition on the head and the values it gives."""
    if isinstance(decision, Binary):
        assert isinstance(decision.right, Const)
        values = [Const(value) for value in range(int(decision.right.value))]
        return [(Compare(CompareOp.EQUAL, decision, value), {decision: value}) for value in values]
    if not isinstance(decision, Table):
        return [(decision, {decision: TRUE}), (opposite(decision), {decision: FALSE})]
    index = decision.index
    groups: dict[int | float, list[Expr]] = {}
    for position, value in enumerate(decision.values):
        groups.setdefault(value, []).append(Compare(CompareOp.EQUAL, index, Const(position)))
    return [(disjunction(found), {decision: Const(value)}) for value, found in groups.items()]


def opposite(predicate: Expr) -> Expr:
    """not predicate, with the comparison turned round where it is one."""
    match predicate:
        case Compare(op=op):
            return replace(predicate, op=_OPPOSITE[op])
        case Not(operand=operand):
            return operand
        case Const(value=value):
            return Const(not value)
        case _:
            return Not(predicate)


def conjunction(parts: list[Expr]) -> Expr:
    """All of the parts, flattened."""
    flat: list[Expr] = []
    for part in parts:
        flat += part.operands if isinstance(part, And) else (part,)
    if FALSE in flat:
        return FALSE
    kept = tuple(dict.fromkeys(part for part in flat if part != TRUE))
    return kept[0] if len(kept) == 1 else And(kept) if kept else TRUE


def disjunction(parts: list[Expr]) -> Expr:
    """Any of the parts, flattened."""
    flat: list[Expr] = []
    for part in parts:
        flat += part.operands if isinstance(part, Or) else (part,)
    if TRUE in flat:
        return TRUE
    kept = tuple(dict.fromkeys(part for part in flat if part != FALSE))
    return kept[0] if len(kept) == 1 else Or(kept) if kept else FALSE


def simplify(expr: Expr) -> Expr:
    """The expression with constant truth values folded away."""
    expr = rebuild(expr, simplify)
    match expr:
        case And(operands=operands):
            return conjunction(list(operands))
        case Or(operands=operands):
            return disjunction(list(operands))
        case Not(operand=Const(value=value)):
            return Const(not value)
        case Not(operand=Not(operand=inner)):
            return inner
        case Select(condition=Const(value=value), then=then, otherwise=otherwise):
            return then if value else otherwise
        case Select(then=then, otherwise=otherwise) if then == otherwise:
            return then
        case Indicator(predicate=Const(value=value)):
            return Const(int(value))
    return expr
