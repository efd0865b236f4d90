"""Specs that once were compiled wrongly, and ones unlike those of the catalogue, against the dense oracle."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from attncc.check.calls import has_pieces, in_pieces
from attncc.check.compare import compare
from attncc.check.sizes import Case
from tests.language_cases import CASES, text_of
from tests.modules import ROOT, build

UNSEEN = sorted((ROOT / "tests/unseen").glob("*.attn"))
TIES = """attention ties {
  input f[B, H, n], g[B, H, m]
  score = scale * dot(q, k) + min(f - g, 0)
}
"""

CALL = Case(batch=2, heads=4, kv_heads=2, n=9, m=13, d=8, e=6, dtype=torch.float64, kv_lengths=(13, 5), name="call")


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, tmp_path: Path) -> None:
    built = build(text_of(name), tmp_path)
    verdict = compare(built.module, built.spec, CALL, "torch")
    assert verdict.ok, verdict.text


@pytest.mark.parametrize("path", UNSEEN, ids=lambda path: path.stem)
def test_unseen_specs(path: Path, tmp_path: Path) -> None:
    built = build(path.read_text(encoding="utf-8"), tmp_path)
    for dtype, pieces in product((torch.float64, torch.bfloat16), (False, True)):
        if pieces and not has_pieces(built.module):
            continue
        case = replace(CALL, n=33, m=41, kv_lengths=(41, 30)) if pieces else CALL
        with in_pieces(built.module) if pieces else nullcontext():
            verdict = compare(built.module, built.spec, replace(case, dtype=dtype), "torch")
        assert verdict.ok, verdict.text


def test_of_two_equal_arguments_the_second_is_chosen_by_kernels_and_oracle(tmp_path: Path) -> None:
    built = build(TIES, tmp_path)
    verdict = compare(built.module, built.spec, replace(CALL, n=60, m=60, dtype=torch.bfloat16, kv_lengths=60), "torch")
    assert verdict.ok, verdict.text
