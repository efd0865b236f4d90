"""Random patterns that read data, with weights of all kinds, against the dense oracle: the Triton form, interpreted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.compare import compare
from attncc.check.fit import fits
from attncc.check.sizes import Case
from tests.interpret.test_listed_interpreted import WEIGHTS
from tests.random_listed import listed_spec, random_listed_pattern
from tests.random_specs import Pick
from tests.test_random_specs import drawn, draws, picker

PLAIN = Case(batch=2, heads=4, kv_heads=2, n=37, m=37, d=5, e=8, dtype=torch.float32, name="square")
CASES = (
    PLAIN,
    replace(PLAIN, n=20, m=70, kv_lengths=(61, 33), heads=2, name="later rows, hidden keys"),
    replace(PLAIN, n=70, m=70, kv_heads=4, batch=1, k_start=5, name="two tiles"),
)


@pytest.mark.slow
@pytest.mark.parametrize("number", draws(5), ids=lambda number: f"draw-{number}")
def test_triton(number: int, tmp_path: Path) -> None:
    pick = picker(number)
    case = pick(CASES)

    def text_of(pick: Pick) -> str:
        pattern, _ = random_listed_pattern(pick, pick((1, 2, 2)))
        pattern = re.sub(r"\b(kinds(\[[ij]\])?)(?=[\],])", r"\1 % 4", pattern)  # in whatever way they are drawn
        spec = listed_spec(pattern, case.k_start + case.m - case.n, case.k_start)
        lines = "".join(f"  {line}\n" for line in pick(list(WEIGHTS.values())).split("; ") if line)
        return f"{spec.rstrip().removesuffix('}')}{lines}}}\n"

    text, built = drawn(pick, tmp_path, text_of)
    if fits(built.spec, case):
        verdict = compare(built.module, built.spec, case, "triton")
        assert verdict.ok, f"{text}\n{verdict.text}"
