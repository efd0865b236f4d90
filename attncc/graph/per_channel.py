"""`normalize = channels` as two attentions, of which the second reads what the first gives.

sum_j g_ij sum_c a_ic b_jc / Z_ic v_j = sum_j g_ij dot(a_i / Z_i, b_j) v_j with Z_i = sum_j g_ij b_j: sums over the same
pairs, the first with the weight g and the values b.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from attncc.spec.channels import CHANNELS, by_channel
from attncc.spec.core_fields import needed
from attncc.spec.data import Data, K, Q, Role, Size, V
from attncc.spec.expr import Binary, BinaryOp, Compare, CompareOp, Const, Dot, Expr, Let, Output, Select, Vector, walk
from attncc.spec.model import Spec
from attncc.spec.widths import features_of

STATEMENT = "sums of each channel are taken first, and divide the query's vector, once a query: sum a_c b_c / Z_c."


def divided_by_channel(spec: Spec) -> Spec:
    """A spec without `channels`: each attention that has it becomes two branches."""
    if all(core.normalizer != CHANNELS for core in spec.cores):
        return spec
    taken = {each.name for each in spec.data} | {name for name, _ in spec.branches}
    found: dict[str, Spec] = {}
    for name, core in spec.branches or ((_free("mean", taken), spec),):
        if core.normalizer == CHANNELS:
            sums = _free(f"sums_of_{name}" if spec.branches else "sums", taken)
            taken.add(sums)
            found[sums], found[name] = _apart(core, sums)
        else:
            found[name] = core
    combine = spec.combine or Output(next(reversed(found)))
    return replace(spec, branches=tuple(found.items()), combine=combine)


def _apart(core: Spec, name: str) -> tuple[Spec, Spec]:
    """The sums of channels, and the attention that divides by them."""
    data = {each.name: each for each in core.data}
    parts = by_channel(core.weight, core.score, data)
    width = features_of(parts.column, data) if parts is not None else None
    assert parts is not None and width is not None, "resolving a spec refuses such weights"
    given = Data(name=name, role=Role.INPUT, axes=(Size.BATCH, Size.HEADS, Size.QUERIES, width.axis))
    none = replace(core, normalizer=Const(1, span=core.normalizer.span), branches=(), combine=None)
    sums = replace(none, weight=parts.factor, value=parts.column)
    row = Let(_name(parts.row), _over(parts.row, Vector(name)))
    divided = Dot(row, parts.column, span=core.weight.span)
    weight = divided if parts.factor == Const(1) else Binary(BinaryOp.MULTIPLY, parts.factor, divided)
    rest = replace(none, weight=weight)
    every = tuple(each for each in core.data if each not in (Q, K, V))
    return replace(sums, data=needed(sums, every)), replace(rest, data=needed(rest, (*every, given)))


def _over(row: Expr, sums: Expr) -> Expr:
    """row / sums, and 0 for channels without a sum."""
    empty = Compare(CompareOp.EQUAL, sums, Const(0))
    return Select(empty, Const(0), Binary(BinaryOp.DIVIDE, row, Select(empty, Const(1), sums)))


def _name(row: Expr) -> str:
    """What the query's vector is called, divided or not."""
    named = next((each.name for each in walk(row) if isinstance(each, Let | Vector)), None)
    return named or "a"


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name
