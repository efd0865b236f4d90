"""Truth values and whole numbers of tokens in scores, weights and values: the Triton form in the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncc.check.oracle import dense
from tests.emit.test_exact_numbers import BODIES, CALLS, DECLARED, data_of
from tests.modules import build

OF_POSITIONS = [name for name, body in BODIES.items() if "pattern = b" not in body]


@pytest.mark.parametrize("name", OF_POSITIONS)
def test_kernels_equal_the_oracle(name: str, tmp_path: Path) -> None:
    built = build(f"attention exact {{ {DECLARED}{BODIES[name]} }}", tmp_path)
    data = data_of([each.name for each in built.spec.data], far=True)
    data = {x: y.requires_grad_(y.is_floating_point()) for x, y in data.items()}
    exact = {x: (y.double() if y.is_floating_point() else y).detach() for x, y in data.items()}
    exact = {x: y.requires_grad_(y.is_floating_point()) for x, y in exact.items()}
    wanted = dense(built.spec, *exact.values(), **CALLS["lengths"]).out  # type: ignore[arg-type]
    out = built.module.attention(*data.values(), **CALLS["lengths"], form="triton")
    torch.testing.assert_close(out.double(), wanted, rtol=2e-5, atol=2e-5)
    seed = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(3)).double()
    leaves = [[each for each in given.values() if each.requires_grad] for given in (data, exact)]
    found = torch.autograd.grad(out, leaves[0], seed.float(), materialize_grads=True)
    true = torch.autograd.grad(wanted, leaves[1], seed, materialize_grads=True)
    for one, other in zip(found, true, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
