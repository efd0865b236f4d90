"""Exponents that are never positive at related pairs: sums over the keys between a query and an earlier key."""

from __future__ import annotations

from collections.abc import Mapping

from attncc.diagnostics import Span
from attncc.graph.far_sums import parted
from attncc.rewrite.exponential import never_negative
from attncc.spec.core_fields import read_fields
from attncc.spec.data import Data
from attncc.spec.expr import AtRow, Binary, BinaryOp, Call, Const, Expr, Let, Negate, OverKeys, walk
from attncc.spec.model import Spec


def decays(spec: Spec, causal: bool) -> frozenset[Span]:
    """Where exponentials of a spec stand that are at most 1 at every related pair."""
    data = {each.name: each for each in spec.data}
    return frozenset(
        node.span
        for field in read_fields(spec)
        for node in walk(field)
        if isinstance(node, Call) and node.function in ("exp", "exp2") and node.span is not None
        if never_positive(node.arguments[0]) or (causal and _falls(node.arguments[0], data))
    )


def _falls(exponent: Expr, data: Mapping[str, Data]) -> bool:
    """Whether an exponent is G[i] - G[j], in which G never rises, beside what is never positive itself."""
    found = parted(exponent, data)
    if found is None or found.sign < 0 or (found.other is not None and not never_positive(found.other)):
        return False
    return found.row == AtRow(found.key) and _never_rises(found.key)


def _never_rises(sums: Expr) -> bool:
    match sums:
        case Let(value=value):
            return _never_rises(value)
        case OverKeys(function="cumsum", value=value):
            return never_positive(value)
        case _:
            return False


def never_positive(expr: Expr) -> bool:
    """Whether a number, or every feature of a vector, is proven to be <= 0."""
    match expr:
        case Const(value=value):
            return value <= 0
        case Let(value=value):
            return never_positive(value)
        case Negate(operand=operand):
            return never_negative(operand)
        case Call(function="min", arguments=arguments):
            return any(map(never_positive, arguments))
        case Call(function="log" | "log2", arguments=(Call(function="sigmoid"),)):
            return True
        case Binary(op=BinaryOp.MULTIPLY | BinaryOp.DIVIDE, left=left, right=right):
            return (never_positive(left) and never_negative(right)) or (
                expr.op is BinaryOp.MULTIPLY and never_negative(left) and never_positive(right)
            )
        case Binary(op=BinaryOp.ADD, left=left, right=right):
            return never_positive(left) and never_positive(right)
        case Binary(op=BinaryOp.SUBTRACT, left=left, right=right):
            return never_positive(left) and never_negative(right)
        case _:
            return False
