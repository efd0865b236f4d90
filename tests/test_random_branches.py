"""Random specs of several branches against the dense oracle: the torch form.

As in `test_random_specs`, a draw is its number, and ATTNCC_DRAWS=2000 makes so many.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncc.check.properties import causality, empty_rows
from tests.modules import cut_small
from tests.random_branches import random_branches_spec
from tests.test_random_language import LENGTHS, compare_one
from tests.test_random_specs import drawn, draws, picker


@pytest.mark.slow
@pytest.mark.parametrize("number", draws(12), ids=lambda number: f"draw-{number}")
def test_torch(number: int, tmp_path: Path) -> None:
    pick = picker(number)
    text, built = drawn(pick, tmp_path, random_branches_spec)
    if pick((True, False)):
        cut_small(built.module)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        compare_one(text, built, pick, "torch", dtype, LENGTHS)
    for probe in (causality, empty_rows):
        found = probe(built.module, built.spec, "torch")
        assert found is None or found.ok, f"{text}\n{found.text}"
