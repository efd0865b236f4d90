"""Random specs that use the whole language, against the dense oracle: the torch form.

As in `test_random_specs`, a draw is its number, and ATTNCC_DRAWS=2000 makes so many.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from attncc.check.compare import compare
from attncc.check.oracle import OutsideTable
from attncc.check.properties import causality, empty_rows
from tests.modules import Built, cut_small
from tests.random_language import has_ties, random_language_spec
from tests.random_specs import Pick, random_case
from tests.test_random_specs import drawn, draws, picker, right

LENGTHS = ((37, 37), (20, 61), (61, 20), (1, 9), (9, 0), (0, 5), (70, 70))


def compare_one(
    text: str, built: Built, pick: Pick, form: str, dtype: torch.dtype, lengths: Sequence[tuple[int, int]]
) -> None:
    """One call of a random size; one that a table is too short for is left out."""
    if dtype.itemsize == 2 and has_ties(text):
        dtype = torch.float32
    case = random_case(pick, dtype, lengths)
    try:
        verdict = compare(built.module, built.spec, case, form)
    except OutsideTable:
        return
    assert right(verdict), f"{text}\n{verdict.text}"


@pytest.mark.slow
@pytest.mark.parametrize("number", draws(20), ids=lambda number: f"draw-{number}")
def test_torch(number: int, tmp_path: Path) -> None:
    pick = picker(number)
    text, built = drawn(pick, tmp_path, random_language_spec)
    if pick((True, False)):
        cut_small(built.module)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        compare_one(text, built, pick, "torch", dtype, LENGTHS)
    for probe in (causality, empty_rows):
        found = probe(built.module, built.spec, "torch")
        assert found is None or found.ok, f"{text}\n{found.text}"
