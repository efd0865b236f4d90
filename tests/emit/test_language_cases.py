"""Specs that once were compiled wrongly, against the dense oracle: the torch form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncc.check.compare import compare
from attncc.check.sizes import Case
from tests.language_cases import CASES, text_of
from tests.modules import build

CALL = Case(batch=2, heads=4, kv_heads=2, n=9, m=13, d=8, e=6, dtype=torch.float64, kv_lengths=(13, 5), name="call")


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, tmp_path: Path) -> None:
    built = build(text_of(name), tmp_path)
    verdict = compare(built.module, built.spec, CALL, "torch")
    assert verdict.ok, verdict.text
