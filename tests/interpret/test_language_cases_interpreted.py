"""Specs that once were compiled wrongly, against the dense oracle: the Triton form in the interpreter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.compare import compare
from tests.emit.test_language_cases import CALL
from tests.language_cases import CASES, text_of
from tests.modules import build


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, tmp_path: Path) -> None:
    built = build(text_of(name), tmp_path)
    verdict = compare(built.module, built.spec, replace(CALL, batch=1, kv_lengths=8, dtype=torch.float32), "triton")
    assert verdict.ok, verdict.text
