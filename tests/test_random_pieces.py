"""Random patterns whose pieces are forced, through the torch form, against the dense oracle."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.calls import has_pieces, in_pieces
from attncc.check.compare import compare
from attncc.check.sizes import Case
from attncc.diagnostics import AttnError
from attncc.spec.text import text
from tests.modules import Built, build, cut_small
from tests.plan.forced import always
from tests.plan.test_pieces import pattern
from tests.random_specs import draws

PLAIN = Case(batch=1, heads=4, kv_heads=2, n=37, m=37, d=8, e=12, dtype=torch.float64, name="shared heads")
CASES = (
    PLAIN,
    replace(PLAIN, batch=2, n=21, m=44, q_start=(5, -9), kv_lengths=(30, 44), strided=True, garbage=True, name="apart"),
    replace(PLAIN, batch=2, n=29, m=26, k_start=3, q_start=-4, dtype=torch.float32, name="later keys"),
)


def drawn(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Built]:
    """The next random pattern that comes apart, as a spec, and its module."""
    draw = random.Random(number)
    always(monkeypatch, apart=number % 2 == 0)
    while True:
        spec = f"attention random {{ pattern = {text(pattern(draw, 2 + number % 2).expr)} }}"
        try:
            built = build(spec, folder)
        except AttnError:  # it relates no pair
            continue
        if has_pieces(built.module):
            return spec, built


@pytest.mark.slow
@pytest.mark.parametrize("number", range(draws(12)))
def test_torch(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, built = drawn(1000 + number, tmp_path, monkeypatch)
    cut_small(built.module)
    with in_pieces(built.module):
        verdicts = [compare(built.module, built.spec, case, "torch") for case in CASES]
    assert all(each.ok for each in verdicts), spec + "".join(each.text for each in verdicts if not each.ok)
