"""Random specs against the dense oracle: the Triton form in the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncc.check.compare import compare
from tests.random_specs import random_case
from tests.test_random_specs import drawn, draws, picker

LENGTHS = ((37, 37), (20, 41), (41, 20))


@pytest.mark.slow
@pytest.mark.parametrize("number", draws(6), ids=lambda number: f"draw-{number}")
def test_triton(number: int, tmp_path: Path) -> None:
    pick = picker(number)
    text, built = drawn(pick, tmp_path)
    verdict = compare(built.module, built.spec, random_case(pick, torch.float32, LENGTHS), "triton")
    assert verdict.ok, f"{text}\n{verdict.text}"
