"""A plan at given sizes → everything that `explain` tells, as plain values with stable names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from attncc.graph.ir import Graph, show
from attncc.plan.cost import Cost, Formula, Pass, cost, formula, value
from attncc.plan.density import density, members
from attncc.plan.describe import interval_text, kept_by_decoder, plan_sentence
from attncc.plan.int32 import longest_call
from attncc.plan.model import Mixture, Plan
from attncc.plan.ranges import HeadClass, Segment
from attncc.spec.data import Size
from attncc.spec.expr import TRUE, Name, names_in
from attncc.spec.model import Align, Spec
from attncc.spec.text import text

ELEMENT_BYTES = 2


def of_branches(mixture: Mixture, n: int, m: int, heads: int, d: int, e: int) -> dict[str, Any]:
    """What was derived for each branch, under its name, and what their outputs are combined to."""
    spec = mixture.spec
    assert spec.combine is not None
    return {
        "name": spec.name,
        "spec": spec.source.name,
        "summary": spec.summary,
        "parameters": {each.name: each.value for each in spec.parameters},
        "data": _data(spec),
        "combine": text(spec.combine),
        "branches": {name: explanation(plan, n, m, heads, d, e) for name, plan in mixture.branches},
    }


def explanation(plan: Plan, n: int, m: int, heads: int, d: int, e: int) -> dict[str, Any]:
    """What was derived and what it costs; only plain values, ready for JSON."""
    sizes = {"n": n, "m": m, "H": heads, "d": d, "e": e, "b": ELEMENT_BYTES}
    spec = plan.spec
    found = density(plan.domain, n, m, heads, spec.align is Align.START)
    return {
        "name": spec.name,
        "spec": spec.source.name,
        "summary": spec.summary,
        "parameters": {each.name: each.value for each in spec.parameters},
        "sizes": {"n": n, "m": m, "heads": heads, "d": d, "e": e, "element_bytes": ELEMENT_BYTES},
        "data": _data(spec),
        "meaning": {
            "pattern": text(spec.pattern),
            "score": text(spec.score) if _reads_score(spec) else None,
            "weight": text(spec.weight),
            "normalize": text(spec.normalizer),
            "align": spec.align.value,
        },
        "plan": plan_sentence(plan.domain),
        "derivation": [
            {"law": each.law, "statement": each.statement, "before": list(each.before), "after": list(each.after)}
            for each in plan.steps
        ],
        "not_applied": [asdict(each) for each in plan.refusals],
        "graphs": {
            "dense": _lines(plan.dense),
            "forward": _lines(plan.torch.forward),
            "backward": _lines(plan.torch.backward),
        },
        "head_classes": [
            _head_class(each, own) for each, own in zip(plan.domain.classes, members(heads, plan.domain), strict=True)
        ],
        "longest_call": longest_call(plan),
        "tiles": asdict(found) | {"waste": round(found.waste, 4)},
        "cost": _cost(cost(plan), sizes, found.touched * found.rows * found.columns),
        "saved": {
            "row_numbers": list(plan.saved),
            "out": plan.reads_delta,
            "derived": {each.name: each.kind.value for each in plan.core.derived},
        },
        "autotune": [
            {
                "kernel": each.kernel,
                "element_bytes": each.bytes,
                "width": each.width,
                "tries": [asdict(tile) for tile in each.tries],
            }
            for each in plan.tiles
        ],
    }


def _data(spec: Spec) -> list[dict[str, Any]]:
    """What the emitted function takes, in order."""
    return [
        {
            "name": each.name,
            "role": each.role.value,
            "axes": [axis.value if isinstance(axis, Size) else axis for axis in each.axes],
            "whole": each.whole,
            "initial": each.initial,
        }
        for each in spec.data
    ]


def _reads_score(spec: Spec) -> bool:
    return any(Name.SCORE in names_in(expr) for expr in (spec.weight, spec.normalizer))


def _lines(graph: Graph) -> list[str]:
    return [line.rstrip() for line in show(graph).splitlines()]


def _head_class(one: HeadClass, heads: tuple[int, ...]) -> dict[str, Any]:
    return {
        "condition": text(one.condition),
        "is_every_head": one.condition == TRUE,
        "heads": list(heads),
        "pattern": text(one.pattern),
        "facts": asdict(one.facts),
        "decoder_keeps": kept_by_decoder(one),
        "by_row": [_segment(each, "keys") for each in one.by_row],
        "by_column": [_segment(each, "rows") for each in one.by_column],
    }


def _segment(segment: Segment, what: str) -> dict[str, Any]:
    full = segment.full
    return {
        "touched": interval_text(segment.touched, what),
        "full": None if full is None else interval_text(full, what),
        "when": text(segment.touched.when),
    }


def _cost(found: Cost, sizes: Mapping[str, int], visited: int) -> dict[str, Any]:
    pairs = [None if each is None else formula(each) for _, each in found.pairs]
    return {
        "visited_pairs": {"formulas": pairs, "value": visited},
        "forward": _pass(found, found.forward, sizes, visited),
        "backward": _pass(found, found.backward, sizes, visited),
        "saved_bytes": {"formula": formula(found.saved), "value": value(found.saved, sizes)},
        "dense_matrix_bytes": {"formula": "H·n·m·b", "value": sizes["H"] * sizes["n"] * sizes["m"] * sizes["b"]},
    }


def _pass(found: Cost, one: Pass, sizes: Mapping[str, int], visited: int) -> dict[str, Any]:

    def of_pairs(per_pair: Formula) -> dict[str, Any]:
        total = found.total(per_pair)
        return {
            "formula": None if total is None else formula(total),
            "value": visited * value(per_pair, sizes),
        }

    return {
        "flops_per_pair": formula(one.flops_per_pair),
        "flops": of_pairs(one.flops_per_pair),
        "channels_per_pair": formula(one.channels_per_pair),
        "channels": of_pairs(one.channels_per_pair),
        "bytes": {"formula": formula(one.bytes), "value": value(one.bytes, sizes)},
    }
