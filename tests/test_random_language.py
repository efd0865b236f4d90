"""Random specs that use the whole language, against the dense oracle: the torch form.

A draw is its number: what fails is run again by `pytest -k 'draw-17'`. ATTNCC_DRAWS=2000 makes so many in place of the
usual few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
import torch

from attncc.check.compare import compare
from attncc.check.oracle import OutsideTable
from attncc.check.properties import causality, empty_rows
from attncc.diagnostics import AttnError
from tests.modules import Built, build, cut_small
from tests.random_language import has_ties, random_language_spec
from tests.random_specs import Pick, random_case
from tests.random_specs import draws as how_many
from tests.test_random_specs import right

LENGTHS = ((37, 37), (20, 61), (61, 20), (1, 9), (9, 0), (0, 5), (70, 70))
REFUSED = {"E301", "E213"}  # what a random text may deserve: no pair is related, or it is too long


def draws(usual: int) -> list[int]:
    """The numbers of the draws."""
    return list(range(how_many(usual)))


def picker(number: int) -> Pick:
    """The choices of a draw."""
    random = Random(number)
    return lambda options: random.choice(list(options))


def drawn(pick: Pick, folder: Path, make: Callable[[Pick], str] = random_language_spec) -> tuple[str, Built]:
    """The first spec that is not refused for good reason, and its module."""
    while True:
        text = make(pick)
        try:
            return text, build(text, folder)
        except AttnError as error:
            codes = {each.code for each in error.diagnostics}
            assert codes <= REFUSED, f"{text}\n{error}"


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
@pytest.mark.parametrize("number", draws(60), ids=lambda number: f"draw-{number}")
def test_torch(number: int, tmp_path: Path) -> None:
    pick = picker(number)
    text, built = drawn(pick, tmp_path)
    if pick((True, False)):
        cut_small(built.module)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        compare_one(text, built, pick, "torch", dtype, LENGTHS)
    for probe in (causality, empty_rows):
        found = probe(built.module, built.spec, "torch")
        assert found is None or found.ok, f"{text}\n{found.text}"
