"""Random patterns and separable weights, through the torch form by states, against the dense oracle."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest
import torch

from attncc.check.calls import has_pieces, in_pieces, ways_of
from attncc.check.compare import compare
from attncc.check.oracle import OutsideTable
from tests.modules import cut_small
from tests.random_specs import Pick, draws, random_case, random_pattern
from tests.test_random_specs import drawn, picker, right

LENGTHS = ((37, 37), (20, 61), (61, 20), (1, 9), (70, 70))
DOTS = ("score", "dot(elu(q) + 1, elu(k) + 1)", "dot(relu(q), relu(k))", "dot(unit(q), unit(k))", "dot(q, k) / 8")
NUMBERS = ("0.5", "cos((i - j) / 40)", "sin(i) * cos(j)", "[j % 3 == 0]", "(1 + h) / 8", "1 / (1 + abs(i))")
DECAYS = ("0.9^(i - j)", "exp(-(i - j) / 20)", "(1 - 2^(-2 - h))^(i - j)", "exp(G[i] - G[j])")
NORMALIZERS = ("none", "rows + 300", "max(rows, 5)", "count + 1", "rows(1 + 0 * i) + 2", "H")


def random_separable(pick: Pick) -> str:
    """A spec whose weight is a sum of products."""
    terms = []
    for _ in range(pick((1, 1, 2, 3))):
        factors = [pick(DOTS) for _ in range(pick((0, 1, 1, 2)))]
        factors += [pick(NUMBERS) for _ in range(pick((0, 1)))]
        terms.append(" * ".join(factors) or "1")
    weight = " + ".join(terms)
    pattern = random_pattern(pick, 2)
    gates = ""
    if pick((True, False)):
        weight = f"({weight}) * {pick(DECAYS)}"
        pattern = f"causal & ({pattern})"
        gates = "input g[B, H, m]\n  let G = cumsum(-softplus(g))\n  " if "G[" in weight else ""
    return (
        f"attention random {{\n  {gates}pattern = {pattern}\n  weight = {weight}\n  normalize = {pick(NORMALIZERS)}\n}}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", range(draws(14)), ids=lambda number: f"draw-{number}")
def test_torch(number: int, tmp_path: Path) -> None:
    pick = picker(5000 + number)
    text, built = drawn(pick, tmp_path, random_separable)
    cut_small(built.module)
    ways = ways_of(built.module, "torch")
    if len(ways) > 1:
        built.module._ROWS = Random(number).choice([4, 8, 16])  # type: ignore[attr-defined]
    for apart in (False, True) if has_pieces(built.module) else (False,):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            case = random_case(pick, dtype, LENGTHS)
            try:
                with in_pieces(built.module) if apart else nullcontext():
                    verdict = compare(built.module, built.spec, case, ways[-1])
            except OutsideTable:  # a query whose own gate is asked for stands where no key is
                continue
            assert right(verdict), f"{text}\n\n{verdict.text}"
