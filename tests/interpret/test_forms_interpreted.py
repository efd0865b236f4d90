"""The Triton form of specs against the dense oracle, in the interpreter: masked and full tiles, offsets."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.compare import compare
from attncc.check.fit import fits, head_counts
from attncc.check.properties import causality, empty_rows, extreme_scores
from attncc.check.report import Verdict
from attncc.check.sizes import Case
from attncc.compiler import make_plan, read_source
from attncc.graph.ops import Op
from attncc.plan.choose import plan
from attncc.plan.describe import is_everything
from attncc.plan.model import Mixture, Planned
from attncc.spec.expr import Binary, BinaryOp, Name, names_in, walk
from tests.modules import SMALL, SPECS, build_file

PLAIN = Case(batch=1, heads=2, kv_heads=1, n=75, m=75, d=16, e=24, dtype=torch.float32, name="square")  # tiles: 32 x 16
CASES = (
    PLAIN,
    replace(PLAIN, batch=2, n=40, m=61, kv_lengths=(50, 0), strided=True, garbage=True, name="hidden keys, strided"),
    replace(PLAIN, n=61, m=40, heads=4, kv_heads=2, d=8, k_start=3, name="more rows than keys, shared heads"),
    replace(PLAIN, batch=2, n=33, m=49, q_start=(5, -9), kv_heads=2, name="positions of their own"),
    replace(PLAIN, n=17, m=33, d=40, e=8, dtype=torch.bfloat16, name="bfloat16"),
    replace(PLAIN, n=33, m=20, dtype=torch.float16, kv_heads=2, name="float16"),
    replace(PLAIN, n=20, m=35, kv_heads=2, name="every query stands at a key"),
)
# Scores that are summed channel by channel are slow in the interpreter.
NARROW = (replace(PLAIN, d=5, n=40, m=40), *(replace(case, d=5) for case in CASES[1:]))

IN_ROUNDS = ("longnet", "reformer", "reformer_library")  # the same kernels over and over: slow, and nothing new

_REPEATING = (BinaryOp.FLOOR_DIVIDE, BinaryOp.MODULO)


def features(plan: Planned) -> set[Hashable]:
    """What kernels are put together from: loops and masks by the pattern, and what a tile does by the rest.

    Plans that agree in a half of it differ there in numbers and elementwise formulas alone.
    """
    if isinstance(plan, Mixture):
        return {"branches"}.union(*(features(each) for _, each in plan.branches))
    classes = plan.domain.classes
    sides = [side for each in classes for side in (each.by_row, each.by_column)]
    loops = (
        len(classes) > 1,
        frozenset(len(side) > 1 for side in sides),
        frozenset(segment.full is None for side in sides for segment in side),
        any(is_everything(segment.touched) for side in sides for segment in side),
        any(isinstance(each, Binary) and each.op in _REPEATING for each in walk(plan.spec.pattern)),
    )
    tiles = (
        frozenset(each.kind for each in plan.core.operands),
        frozenset(node.op for graph in (plan.gpu.forward, plan.gpu.backward) for node in graph),
        plan.saved,
        any(Name.HEAD in names_in(each) for each in (plan.core.score, plan.core.weight)),
    )
    return {("loops", loops), ("tiles", tiles)}


def chosen() -> list[str]:
    """Few specs in which every half of the features occurs that occurs in any."""
    found: dict[str, set[Hashable]] = {}
    for name, parameters in SMALL.items():
        given = {key: str(value) for key, value in parameters.items()}
        planned = make_plan(read_source(SPECS / f"{name}.attn"), given)
        plans = [each for _, each in planned.branches] if isinstance(planned, Mixture) else [planned]
        if not any(each.listed for one in plans for each in one.core.operands):  # those have smaller calls of their own
            found[name] = features(planned)
    names = []
    missing: set[Hashable] = set().union(*found.values())
    while missing:
        names.append(max(found, key=lambda name: len(found[name] & missing)))
        missing -= found[names[-1]]
    return names


@pytest.mark.parametrize("name", chosen())
def test_triton(name: str, tmp_path: Path) -> None:
    built = build_file(name, tmp_path, **SMALL[name])
    heads = {each for each, _ in head_counts(built.spec)}
    planned = plan(built.spec)
    by_channel = not isinstance(planned, Mixture) and any(node.op is Op.CHANNELS for node in planned.gpu.forward)
    cases = [case for case in (NARROW if by_channel else CASES) if case.heads in heads and fits(built.spec, case)]
    assert len(cases) >= 4
    if name in IN_ROUNDS:
        cases = cases[:4]
    verdicts = [compare(built.module, built.spec, case, "triton") for case in cases]
    assert all(map(right, verdicts)), "\n".join(each.text for each in verdicts if not right(each))


def right(verdict: Verdict) -> bool:
    """Within the limits; the interpreter cuts off bits of a bfloat16 where GPUs round, which costs twice the error."""
    slack = 2.0 if verdict.case.dtype == torch.bfloat16 else 1.0
    return not verdict.fault and all(not each.fault and each.used <= slack for each in verdict.comparisons)


@pytest.mark.parametrize("probe", [causality, empty_rows, extreme_scores], ids=lambda probe: probe.__name__)
@pytest.mark.parametrize("name", ["longformer", "laplace", "gau", "softmax_one"])
def test_properties(name: str, probe: object, tmp_path: Path) -> None:
    built = build_file(name, tmp_path, **SMALL[name])
    found = probe(built.module, built.spec, "triton", head_counts(built.spec)[0])  # type: ignore[operator]
    assert found is None or found.ok, found.text
