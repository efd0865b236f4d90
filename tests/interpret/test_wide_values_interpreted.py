"""Values wider than 256 features in the Triton form: kernels take them in parts, and the torch form as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.calls import ways_of
from attncc.check.compare import compare
from attncc.check.sizes import Case
from tests.modules import SMALL, build, build_file

WIDE = Case(batch=2, heads=4, kv_heads=2, n=21, m=26, d=8, e=259, dtype=torch.float32, name="wide values")
HALF = Case(batch=1, heads=2, kv_heads=1, n=17, m=17, d=8, e=520, dtype=torch.float16, name="three parts")


@pytest.mark.parametrize(
    ("name", "case"),
    [("sliding_window", HALF), ("sliding_window", WIDE), ("gau_bias", WIDE), ("retention", HALF), ("documents", WIDE)],
)
def test_parts_of_values(name: str, case: Case, tmp_path: Path) -> None:
    built = build_file(name, tmp_path, **SMALL[name])
    for way in (*ways_of(built.module, "triton"), "torch"):
        verdict = compare(built.module, built.spec, case, way)
        assert verdict.ok, verdict.text


def test_numbers_of_whole_values_are_read_by_their_parts(tmp_path: Path) -> None:
    built = build("attention wide { score = scale * dot(q, k) + norm(v) / 20; pattern = causal }", tmp_path)
    verdict = compare(built.module, built.spec, replace(WIDE, m=21), "triton")
    assert verdict.ok, verdict.text


def test_weights_that_read_how_wide_values_are_run_in_torch(tmp_path: Path) -> None:
    text = "attention wide { pattern = causal; weight = sigmoid(dot(q, k) - log(e)); normalize = none }"
    built = build(text, tmp_path)
    assert compare(built.module, built.spec, replace(WIDE, e=40, m=21), "triton").ok
    verdict = compare(built.module, built.spec, replace(WIDE, m=21), "torch")
    assert verdict.ok, verdict.text
    q, k, v = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 257)
    assert built.module.attention(q, k, v).shape == (1, 1, 4, 257)
    with pytest.raises(ValueError, match="'torch', as values have 257 features"):
        built.module.attention(q, k, v, form="triton")
