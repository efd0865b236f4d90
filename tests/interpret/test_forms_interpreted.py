"""The Triton form of every spec against the dense oracle, in the interpreter: masked and full tiles, offsets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.compare import compare
from attncc.check.fit import head_counts
from attncc.check.properties import causality, empty_rows, extreme_scores
from attncc.check.report import Verdict
from attncc.check.sizes import Case
from tests.modules import SMALL, build_file

PLAIN = Case(batch=1, heads=2, kv_heads=1, n=75, m=75, d=16, e=24, dtype=torch.float32, name="square")  # tiles: 32 x 16
CASES = (
    PLAIN,
    replace(PLAIN, batch=2, n=40, m=61, kv_lengths=(50, 0), strided=True, garbage=True, name="hidden keys, strided"),
    replace(PLAIN, n=61, m=40, heads=4, kv_heads=2, d=8, k_start=3, name="more rows than keys, shared heads"),
    replace(PLAIN, batch=2, n=33, m=49, q_start=(5, -9), kv_heads=2, name="positions of their own"),
    replace(PLAIN, n=17, m=33, d=40, e=8, dtype=torch.bfloat16, name="bfloat16"),
    replace(PLAIN, n=33, m=20, dtype=torch.float16, kv_heads=2, name="float16"),
)


@pytest.mark.parametrize("name", SMALL)
def test_triton(name: str, tmp_path: Path) -> None:
    built = build_file(name, tmp_path, **SMALL[name])
    verdicts = [compare(built.module, built.spec, case, "triton") for case in CASES]
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
