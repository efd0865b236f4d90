"""Sums by states over long sequences: as exact as their type allows, and never NaN, whatever gates do."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.modules import build, build_file


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return build_file("linear_transformer_causal", tmp_path_factory.mktemp("linear")).module


def test_float32_at_131072_rows_against_float64(linear: ModuleType) -> None:
    """The largest error of a row over its length is below 1e-5; float64 by states is compared with dense elsewhere."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, 131_072, 16, generator=generator) for _ in range(3))
    found = linear.attention(q, k, v, plan="linear").double()
    exact = linear.attention(q.double(), k.double(), v.double(), plan="linear")
    error = (found - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert error.max() <= 1e-5


@pytest.mark.parametrize("name", ["gated_linear", "gated_linear_vector"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gates", ["open", "shut", "both"])
def test_extreme_gates(name: str, dtype: torch.dtype, gates: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    module = build_file(name, tmp_path_factory.mktemp(name)).module
    generator = torch.Generator().manual_seed(2)
    n, d = 300, 8
    q, k, v = (torch.randn(1, 2, n, d, generator=generator).to(dtype) for _ in range(3))
    shape = (1, 2, n, d) if name.endswith("vector") else (1, 2, n)
    shut = torch.rand(shape, generator=generator) < {"open": 0.0, "shut": 1.0, "both": 0.3}[gates]
    g = torch.where(shut, -100.0, -1e-6).to(dtype)
    data = [x.requires_grad_() for x in (q, k, v, g)]
    outs = {}
    for plan in ("linear", "blocked"):
        out = module.attention(*data, plan=plan)
        outs[plan] = (out, *torch.autograd.grad(out.float().square().sum(), data))
    for one, other in zip(outs["linear"], outs["blocked"], strict=True):
        assert one.isfinite().all()
        scale = other.float().abs().max() + 1e-6
        assert (one.float() - other.float()).abs().max() <= (0.02 if dtype == torch.bfloat16 else 1e-4) * scale


def test_angles_far_from_the_start(tmp_path: Path) -> None:
    """Sines and cosines of positions are exact at any of them: only distances matter, wherever a sequence stands."""
    text = "attention x { pattern = causal; weight = dot(relu(q), relu(k)) * cos((i - j) / 10); normalize = count }"
    attention = build(text, tmp_path).module.attention
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 1, 500, 8, generator=generator) for _ in range(3))
    exact = attention(q.double(), k.double(), v.double(), plan="blocked")
    for start in (0, 1_000_000):
        found = attention(q, k, v, q_start=start, k_start=start, plan="linear")
        assert (found - exact).abs().max() <= 1e-6 * exact.abs().max()
