"""Slabs that are computed together, and features made where they are read, against each slab and each tensor alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.modules import build, build_file

NAMES = ("linear_transformer_causal", "windowed_linear", "dilated_linear", "efficient_causal", "block_causal_linear")
GATED = "input g[B, H, m]; let G = cumsum(-softplus(g)); weight = exp(G[i] - G[j]) * score; normalize = none"


@pytest.fixture(scope="module", params=NAMES)
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    yield build_file(request.param, tmp_path_factory.mktemp(request.param)).module


def drawn(batch: int, n: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    heads = (4, 2, 2)
    return [torch.randn(batch, each, n, 16, generator=generator, dtype=torch.float64).to(dtype) for each in heads]


@pytest.mark.parametrize("plan", ["linear", "blocked"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_without_gradients_it_is_the_same(module: ModuleType, plan: str, dtype: torch.dtype) -> None:
    data = drawn(2, 700, dtype)
    lengths = torch.tensor([700, 411])
    found = module.attention(*data, plan=plan, kv_lengths=lengths)
    with_gradients = module.attention(*(x.requires_grad_() for x in data), plan=plan, kv_lengths=lengths)
    assert not found.requires_grad
    torch.testing.assert_close(found, with_gradients.detach())


@pytest.mark.parametrize("batch", [1, 3])
def test_slabs_together_give_what_each_gives(module: ModuleType, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> tuple[Tensor, ...]:
        data = [x.requires_grad_() for x in drawn(batch, 600)]
        out = module.attention(*data, plan="linear")
        return (out, *torch.autograd.grad(out.square().sum(), data))

    together = results()
    monkeypatch.setattr(module, "_SCORES", 1)
    if hasattr(module, "_slabs_of_lengths"):
        module._slabs_of_lengths.cache_clear()
    for one, other in zip(together, results(), strict=True):
        torch.testing.assert_close(one, other)


def test_gates_of_slabs_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sums are relative to differs between slabs, in each batch entry."""
    module = build(f"attention x {{ pattern = window(150) & causal; {GATED} }}", tmp_path).module
    data = [*drawn(2, 600), torch.randn(2, 2, 600, dtype=torch.float64)]
    together = module.attention(*data, plan="linear")
    monkeypatch.setattr(module, "_SCORES", 1)
    module._slabs_of_lengths.cache_clear()
    torch.testing.assert_close(together, module.attention(*data, plan="linear"))


@pytest.mark.parametrize("heads", [(4, 2), (2, 1), (3, 3)])
@pytest.mark.parametrize("factor", ["1", "(h + 1)"])
def test_numbers_of_entries_and_heads_of_slabs_together(tmp_path: Path, heads: tuple[int, int], factor: str) -> None:
    """Entries that are equally long are computed together, each with numbers of its own."""
    decay = f"exp((G[i] - G[j]) * {factor} / valid)"
    spec = f"input g[B, H, m]; let G = cumsum(-softplus(g)); weight = {decay} * score; normalize = none"
    module = build(f"attention x {{ pattern = causal; {spec} }}", tmp_path).module
    generator = torch.Generator().manual_seed(5)
    shapes = [(2, heads[0], 500, 8), (2, heads[1], 500, 8), (2, heads[1], 500, 8), (2, heads[1], 500)]
    data = [torch.randn(each, generator=generator, dtype=torch.float64, requires_grad=True) for each in shapes]
    results = []
    for plan in ("linear", "blocked"):
        out = module.attention(*data, plan=plan, kv_lengths=torch.tensor([450, 450]))
        results.append((out, *torch.autograd.grad(out.square().sum(), data)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_a_long_call_takes_few_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = build_file("linear_transformer_causal", tmp_path).module
    calls = []
    inner = module._forward_slab
    monkeypatch.setattr(module, "_forward_slab", lambda *args: calls.append(1) or inner(*args))
    q = torch.randn(1, 8, 4096, 64)
    module.attention(q, q, q, plan="linear")
    assert len(calls) <= 9


def test_nothing_is_left_for_the_collector(tmp_path: Path) -> None:
    """What a call made is free when it returns: memory that waits for the collector of cycles adds up."""
    module = build_file("linear_transformer_causal", tmp_path).module
    q = torch.randn(1, 2, 1024, 16)
    module.attention(q, q, q, plan="linear")
    gc.collect()
    gc.disable()
    try:
        module.attention(q, q, q, plan="linear")
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("steps", [(0, 1), (1, 1), (1, 2), (-1, 0), (2, 0)])
def test_sums_of_slabs_lie_in_memory_for_all(module: ModuleType, steps: tuple[int, int]) -> None:
    low_step, high_step = steps
    items = torch.arange(1, 61, dtype=torch.float64)[:, None, None, None]
    blocks = SimpleNamespace(group=1, kv_heads=1)
    runs = module._Runs(lambda item: (items[item],), module._added)
    low, high = (20, 21) if low_step < 0 else (0, 9)
    for _ in range(5):
        slots = module._Slots(4, blocks)
        expected = []
        for at in range(4):
            low, high = min(max(0, low + low_step), high - 1), min(60, high + high_step)
            slots.fill(at, runs, (low, high))
            expected.append(items[low:high].sum())
        (found,) = slots.together()
        assert found.flatten().tolist() == expected, "earlier sums are not written over"
