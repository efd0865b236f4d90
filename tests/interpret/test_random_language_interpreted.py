"""Random specs that use the whole language, against the dense oracle: the Triton form in the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.random_branches import random_branches_spec
from tests.test_random_language import compare_one, drawn, draws, picker

LENGTHS = ((19, 19), (9, 23), (21, 7))


@pytest.mark.slow
@pytest.mark.parametrize("number", draws(4), ids=lambda number: f"draw-{number}")
def test_triton(number: int, tmp_path: Path) -> None:
    pick = picker(100_000 + number)
    text, built = drawn(pick, tmp_path)
    compare_one(text, built, pick, "triton", pick((torch.float32, torch.float16)), LENGTHS)


@pytest.mark.slow
@pytest.mark.parametrize("number", draws(4), ids=lambda number: f"draw-{number}")
def test_triton_of_branches(number: int, tmp_path: Path) -> None:
    pick = picker(200_000 + number)
    text, built = drawn(pick, tmp_path, random_branches_spec)
    compare_one(text, built, pick, "triton", pick((torch.float32, torch.float16)), LENGTHS)
