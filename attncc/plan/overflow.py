"""Exponentials that nothing keeps from overflowing → warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from attncc.diagnostics import Diagnostic, Label, Span
from attncc.graph.build import build
from attncc.graph.ir import Graph
from attncc.graph.ops import Op
from attncc.graph.tokens import split
from attncc.plan.size import reads_data, size
from attncc.rewrite.engine import rewrite
from attncc.rewrite.laws import LAWS
from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, Local, Name, Symbol, walk
from attncc.spec.model import Spec

_LARGEST = 3.4e38  # of float32 and of bfloat16
_LARGEST_HALF = 65504


def overflows(spec: Spec, graph: Graph, bounded: frozenset[Span] = frozenset()) -> tuple[Diagnostic, ...]:
    """A warning for each exponential of the rewritten graph that some dot product makes infinite.

    Args:
        bounded: where exponentials stand that are known not to be.
    """
    found = {power: base for power, base in _infinite(graph).items() if power.span not in bounded}
    if not found:
        return ()
    usual, _, _ = rewrite(build(split(replace(spec, normalizer=Symbol(Name.ROWS)))), LAWS)
    by_rows = spec.normalizer != Symbol(Name.ROWS) and not _infinite(usual)
    return tuple(dict.fromkeys(_warning(spec, power, base, by_rows) for power, base in found.items()))


def _infinite(graph: Graph) -> dict[Expr, float]:
    """The exponentials that some dot product makes infinite, with their bases."""
    return {
        power: base
        for node in graph.find(Op.NUMBER)
        for power, base, exponent in _exponentials(node.value)
        # where the row's largest exponent is subtracted, none is positive
        if Local("peak") not in walk(exponent) and reads_data(exponent, graph)
        if size(exponent, graph).high > _limit(_LARGEST, base)
    }


def _exponentials(expr: Expr) -> Iterator[tuple[Expr, float, Expr]]:
    """Every base^exponent in the expression, with its base and exponent."""
    for each in walk(expr):
        match each:
            case Call(function="exp", arguments=(exponent,)):
                yield each, math.e, exponent
            case Call(function="exp2", arguments=(exponent,)):
                yield each, 2, exponent
            case Binary(op=BinaryOp.POWER, left=Const(value=base), right=exponent) if base > 1:
                yield each, base, exponent


def _limit(largest: float, base: float) -> float:
    return math.log(largest) / math.log(base)


def _warning(spec: Spec, power: Expr, base: float, by_rows: bool) -> Diagnostic:
    """`by_rows`: whether the exponential would be harmless if the weights were divided by `rows`."""
    most, most_half = _limit(_LARGEST, base), _limit(_LARGEST_HALF, base)
    labels = [Label(power.span, f"infinite for exponents above {most:.3g}")] if power.span is not None else []
    if by_rows and spec.normalizer.span is not None:
        labels.append(Label(spec.normalizer.span, "no multiple of the row's sum"))
    labels.sort(key=lambda each: each.span.source != spec.source)  # the user's own text comes first
    if not labels or labels[0].span.source != spec.source:
        labels.insert(0, Label(spec.span, "in this attention"))
    limits = f"{most:.3g} in float32 and bfloat16, {most_half:.3g} in float16"
    note = f"where the exponent is above {limits}, outputs are infinite or gradients NaN"
    if by_rows:
        reason = "the row's largest exponent is subtracted first where the normaliser is a multiple of `rows`"
        helps = ("write `normalize = rows`", f"bound the exponent: `min(…, {most_half:.0f})`")
    else:
        reason = "an exponential inside other functions is computed as it stands"
        helps = (
            "`sigmoid(x)` is 1 / (1 + exp(-x)), and `softplus(x)` is log(1 + exp(x)), without overflow",
            f"bound the exponent: `min(…, {most_half:.0f})`",
        )
    return Diagnostic("W301", "an exponential can overflow", tuple(labels), (note, reason), helps)
