"""Formulas of cost against counts of the kernels' own ranges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncc.check.sizes import Case, shape_of
from attncc.compiler import make_plan, read_source
from attncc.diagnostics import Source
from attncc.plan.cost import Cost, cost, formula, value
from tests.cli.runs import SPECS
from tests.modules import build_file
from tests.plan.counts import tile_counts

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


def cost_of(name: str) -> Cost:
    return cost(make_plan(read_source(SPECS / f"{name}.attn")))


def test_products_are_counted_once_a_kernel() -> None:
    found = cost_of("full")
    assert formula(found.forward.flops_per_pair) == "2·(d + e)"
    assert formula(found.backward.flops_per_pair) == "2·(3·e + 4·d)"
    assert formula(found.saved) == "4·H·n·(1 + e)"


def test_a_block_of_keys_counts_as_one() -> None:
    found = cost_of("compressed")  # means, one for each 16 keys
    assert formula(found.forward.bytes) == "H·(4·n + b·(n·(d + e) + m·(d + e)/16))"


def test_bounds_without_a_closed_form_give_no_formula() -> None:
    plan = make_plan(Source("x.attn", "attention x { pattern = j <= 2 * i & j >= i // 2 }"))
    ((_, pairs),) = cost(plan).pairs
    assert pairs is None


def test_formulas_of_channels_are_counted_beside_products() -> None:
    found = cost_of("additive")
    assert formula(found.forward.flops_per_pair) == "2·e"
    assert formula(found.forward.channels_per_pair) == "4·d"  # q + k, tanh, times a, the sum
    assert formula(found.backward.flops_per_pair) == "6·e"
    assert found.backward.channels_per_pair.free_symbols == found.forward.channels_per_pair.free_symbols
    assert formula(cost_of("full").forward.channels_per_pair) == "0"


def test_products_of_derived_vectors_have_their_own_width() -> None:
    assert formula(cost_of("factorized_synthesizer").forward.flops_per_pair) == "2·(8 + e)"


def test_tables_and_numbers_of_distances_are_read() -> None:
    sizes = {"n": 300, "m": 200, "d": 16, "e": 24, "H": 4, "b": 2}
    plain, by_distance = (value(cost_of(name).forward.bytes, sizes) for name in ("causal", "t5_bias"))
    assert by_distance - plain == 4 * 4 * (300 + 200)
    table = value(cost_of("random_synthesizer").forward.bytes, sizes)
    assert table == 4 * (2 * 24 * (200 + 300) + 4 * 300) + 4 * 4 * 512 * 512


@pytest.mark.parametrize("name", ["full", "gau", "random_synthesizer", "softmax_one", "soft_cap"])
def test_what_is_kept_for_backward_is_what_autograd_keeps(name: str, tmp_path: Path) -> None:
    built = build_file(name, tmp_path)
    case = Case(batch=1, heads=4, kv_heads=4, n=70, m=70, d=16, e=24, dtype=torch.float32)
    arguments = [torch.randn(shape_of(each, case)).requires_grad_() for each in built.spec.data]
    given = {each.untyped_storage().data_ptr() for each in arguments}
    kept: dict[int, int] = {}

    def note(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        built.module.attention(*arguments)
    beside = sum(size for at, size in kept.items() if at not in given)
    assert beside == value(cost_of(name).saved, {"n": 70, "m": 70, "d": 16, "e": 24, "H": 4, "b": 4})
