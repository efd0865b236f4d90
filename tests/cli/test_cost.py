"""Formulas of cost against counts of the kernels' own ranges."""

from __future__ import annotations

import pytest

from attncc.compiler import make_plan
from attncc.diagnostics import Source
from attncc.plan.cost import cost, formula, value
from attncc.plan.counting import tile_counts
from tests.cli.runs import SPECS

FORMULAS = {
    "full": "m·n",
    "causal": "m·n - n^2/2",
    "window(31)": "32·n",
    "window(3, 4)": "8·n",
    "chunk(64)": "64·n",
    "causal & chunk(64)": "65·n/2",
    "leading(4) & causal | window(60) & causal": "65·n",
    "window(16, 16) | global(8)": "8·m + 41·n",
    "j >= i": "n^2/2",
    "around(32, 1, 1)": "96·n",
}


@pytest.mark.parametrize("pattern", FORMULAS)
def test_visited_pairs_agree_with_counted_ones(pattern: str) -> None:
    plan = make_plan(Source("x.attn", f"attention x {{ pattern = {pattern} }}"))
    ((_, pairs),) = cost(plan).pairs
    assert pairs is not None and formula(pairs) == FORMULAS[pattern]
    n = 768
    counted = tile_counts(plan.domain, n, n, 1, 1, 1).touched
    assert value(pairs, {"n": n, "m": n}) == pytest.approx(counted, rel=0.05)


def test_products_are_counted_once_a_kernel() -> None:
    plan = make_plan(Source("x.attn", (SPECS / "full.attn").read_text(encoding="utf-8")))
    found = cost(plan)
    assert formula(found.forward.flops_per_pair) == "2·(d + e)"
    assert formula(found.backward.flops_per_pair) == "2·(3·e + 4·d)"
    assert formula(found.saved) == "4·H·n·(1 + e)"


def test_bounds_without_a_closed_form_give_no_formula() -> None:
    plan = make_plan(Source("x.attn", "attention x { pattern = j <= 2 * i & j >= i // 2 }"))
    ((_, pairs),) = cost(plan).pairs
    assert pairs is None
