"""What a pattern may read of declared data: predicate → None, or the term that it may not and a sentence why.

A comparison that reads no data has to be affine (`affine`). One that does is decided number by number, so any
arithmetic may stand in it, of what is known before weights are: positions, lengths, heads, numbers of tokens and
entries of tables.
"""

from __future__ import annotations

from attncc.spec.affine import PATTERN_NAMES, Refusal, check_affine, why_outside
from attncc.spec.expr import (
    And,
    AtRow,
    Channel,
    Channels,
    Dot,
    Entry,
    Expr,
    Join,
    Let,
    Local,
    MatMul,
    Member,
    Merge,
    Not,
    Or,
    Output,
    OverKeys,
    Reduce,
    Rotate,
    RowSum,
    Select,
    Symbol,
    Token,
    Top,
    Type,
    UpTo,
    Vector,
    Width,
    children,
    type_of,
    walk,
)
from attncc.spec.functions import KEY_FUNCTIONS


def reads_listed(expr: Expr) -> bool:
    """Whether a part of a pattern reads declared data."""
    return any(isinstance(node, Token | Entry | UpTo | Vector | Let | AtRow | Top) for node in walk(expr))


def check_pattern(expr: Expr) -> Refusal | None:
    """The first term of a predicate that a pattern may not have and the reason in a sentence, or None."""
    if not reads_listed(expr):
        return check_affine(expr)
    match expr:
        case And(operands=operands) | Or(operands=operands):
            return next((refusal for refusal in map(check_pattern, operands) if refusal is not None), None)
        case Not(operand=operand):
            return check_pattern(operand)
        case Select(condition=condition, then=then, otherwise=otherwise) if type_of(expr) is Type.BOOL:
            return check_pattern(condition) or check_pattern(then) or check_pattern(otherwise)
    return _check_listed(expr)


def _check_listed(expr: Expr) -> Refusal | None:
    """The first term that is not known before weights are."""
    match expr:
        case Symbol(name=name) if name not in PATTERN_NAMES:
            return expr, why_outside(name)
        case Member(element=element):
            return _check_listed(element)
        case Top(among=among):
            return check_pattern(among)
        case Reduce(function="argmax"):
            return None
        case Dot() | Reduce():
            return expr, "it is made of vectors; a pattern reads numbers that are passed with the call, and choices"
        case OverKeys(function=function, value=value) if KEY_FUNCTIONS[function].of_whole:
            return _check_listed(value)
        case OverKeys(function=function):
            return expr, f"`{function}` runs over all keys; a pattern reads numbers that are passed with the call"
        case (
            Vector()
            | Rotate()
            | Join()
            | MatMul()
            | Channel()
            | Channels()
            | Width()
            | Output()
            | Merge()
            | Entry(is_vector=True)
        ):
            return expr, "it is a vector; a pattern reads numbers that are passed with the call"
        case RowSum() | Local():
            return expr, "it is known only after the weights; a pattern reads numbers that are passed with the call"
        case Let(value=value) if (found := _check_listed(value)) is not None:
            return expr, found[1]
    return next((refusal for refusal in map(_check_listed, children(expr)) if refusal is not None), None)
