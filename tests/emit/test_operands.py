"""Modules of specs with parameters and further inputs, against the same formulas in plain float64 torch."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from attncc.emit.module import emit
from attncc.plan.choose import plan
from tests.modules import cut_small, load_module
from tests.operands import CASES, dense, inputs


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ModuleType]:
    """The module of each case, built once."""
    folder = tmp_path_factory.mktemp("operands")
    known: dict[tuple[str, bool], ModuleType] = {}

    def module(name: str, small: bool = False) -> ModuleType:
        if (name, small) not in known:
            path = folder / f"{name}_{small}.py"
            path.write_text(emit(plan(CASES[name].spec)), encoding="utf-8")
            known[name, small] = load_module(path)
            if small:
                cut_small(known[name, small])
        return known[name, small]

    return module


def leaves(data: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.clone().requires_grad_() if x.is_floating_point() else x for name, x in data.items()}


def slopes(out: Tensor, data: dict[str, Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    real = {name: x for name, x in data.items() if x.requires_grad}
    found = torch.autograd.grad(out, list(real.values()), cotangent, allow_unused=True)
    return {
        name: torch.zeros_like(x) if grad is None else grad for (name, x), grad in zip(real.items(), found, strict=True)
    }


def compare(module: ModuleType, name: str, data: dict[str, Tensor], **options: Any) -> None:
    own, other = leaves(data), leaves(data)
    out, expected = module.attention(*own.values(), **options), dense(CASES[name], other, **options)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    for (key, slope), wanted in zip(slopes(out, own).items(), slopes(expected, other).values(), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-8, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}")


SIZES = [(1, 1), (7, 7), (63, 63), (300, 300), (5, 40), (40, 9)]


@pytest.mark.parametrize("n, m", SIZES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, n: int, m: int, modules: Callable[..., ModuleType]) -> None:
    compare(modules(name), name, inputs(CASES[name], n, m))


@pytest.mark.parametrize("name", CASES)
def test_many_slabs(name: str, modules: Callable[..., ModuleType]) -> None:
    compare(modules(name, small=True), name, inputs(CASES[name], 50, 63))


@pytest.mark.parametrize("name", CASES)
def test_hidden_keys_reach_nothing(name: str, modules: Callable[..., ModuleType]) -> None:
    data = inputs(CASES[name], 33, 41)
    lengths = torch.tensor([41, 17])
    for each in CASES[name].spec.data:
        if each.is_column and not each.whole:
            hidden = (1, ..., slice(17, None), *((slice(None),) if each.is_vector else ()))
            data[each.name][hidden] = torch.nan
    for small in (False, True):
        compare(modules(name, small), name, data, kv_lengths=lengths, q_start=torch.tensor([8, 3]))
