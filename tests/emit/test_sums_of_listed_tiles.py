"""Weights that come apart where data list tiles: values and gradients, and work that grows as rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from attncc.check.oracle import dense
from tests.modules import Built, build

WEIGHTS = {
    "features": "similarity = features(x -> elu(x) + 1)",
    "two terms": "weight = dot(relu(q), relu(k)) + 1; normalize = max(rows, 1e-3)",
    "positions": "weight = dot(relu(q), relu(k)) * cos(pi / 2 * (i - j) / 400); normalize = rows + 1e-6",
    "none": "weight = scale * dot(q, k); normalize = none",
    "each head": "param a[H] = 1; weight = a[h] * dot(exp(q), exp(k)) + (h % 2 == 0 ? 1 : 2); normalize = rows",
    "gates of keys": "input g[B, H, m]; weight = sigmoid(g) * dot(relu(q), relu(k)) + 0.1; normalize = rows",
}
PATTERNS = {
    "documents": ("input doc[B, m]: int ascending", "causal & doc[i] == doc[j]"),
    "whole documents": ("input doc[B, m]: int ascending", "doc[i] == doc[j]"),
    "buckets": ("input b[B, H, m]: int", "causal & b[i] == b[j]"),
    "ranges": ("input lo[B, n]: int", "lo[i] <= j & j <= i"),
    "padding": ("input pad[B, m]: bool", "causal & !pad[j]"),
    "rows of a kind": ("input on[B, n]: bool", "on[i] & i - j < 200 & j <= i"),
}


def built(pattern: str, weight: str, folder: Path) -> Built:
    declared, related = PATTERNS[pattern]
    return build(f"attention a {{ {declared}; pattern = {related}; {WEIGHTS[weight]} }}", folder)


def data_of(spec: Built, n: int, seed: int) -> list[Tensor]:
    """Two entries of four heads over two key heads: runs that are long, short and of one token."""
    g = torch.Generator().manual_seed(seed)
    made = {
        "q": torch.randn(2, 4, n, 8, generator=g),
        "k": torch.randn(2, 2, n, 8, generator=g),
        "v": torch.randn(2, 2, n, 6, generator=g),
        "doc": torch.stack([torch.tensor([0] * (n - 40) + [1] * 9 + [2] + [5] * 30), torch.arange(n) // 170]),
        "b": torch.stack([torch.randint(0, 2, (2, n), generator=g), torch.zeros(2, n, dtype=torch.int64)]),
        "lo": (torch.arange(n) - torch.randint(0, 300, (2, n), generator=g)).clamp(min=0),
        "pad": torch.rand(2, n, generator=g) < 0.2,
        "on": torch.rand(2, n, generator=g) < 0.9,
        "g": torch.randn(2, 2, n, generator=g),
        "a": torch.rand(4, generator=g) + 0.5,
    }
    found = [made[each.name] for each in spec.spec.data]
    return [x.double().requires_grad_() if x.is_floating_point() else x for x in found]


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [
        (pattern, weight)
        for row, pattern in enumerate(PATTERNS)
        for column, weight in enumerate(WEIGHTS)
        if (row + column) % 3 == 0
    ],
)
def test_against_oracle(pattern: str, weight: str, tmp_path: Path) -> None:
    each = built(pattern, weight, tmp_path)
    data = data_of(each, 330, seed=len(pattern))
    real = [x for x in data if x.is_floating_point()]
    found, wanted = each.module.attention(*data), dense(each.spec, *data).out
    torch.testing.assert_close(found, wanted)
    d_out = torch.randn_like(wanted)
    for one, other in zip(*(torch.autograd.grad(x, real, d_out) for x in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    assert hasattr(each.module, "_sums_of_full")


@pytest.mark.parametrize("kind", ["documents", "buckets"])
def test_work_grows_as_rows(kind: str, tmp_path: Path) -> None:
    """Tiles that are met pair by pair, where all tokens are of one kind."""
    module = built(kind, "features", tmp_path).module
    counts = []
    for n in (1024, 4096):
        q, v = torch.zeros(1, 1, n, 8), torch.zeros(1, 1, n, 6)
        fact = torch.zeros(1, 1, n, dtype=torch.int64)
        ((lists, _),) = module._passes(q, q, v, fact, fact, 0, 0, None, None)
        counts.append(len(lists.met))
    assert counts[1] == 4 * counts[0] <= 4096 // 64 * 2


def test_half_precision(tmp_path: Path) -> None:
    each = built("documents", "features", tmp_path)
    data = [x.detach().bfloat16().requires_grad_() if x.is_floating_point() else x for x in data_of(each, 330, 3)]
    exact = dense(each.spec, *(x.double() if x.is_floating_point() else x for x in data)).out
    out = each.module.attention(*data)
    assert (out.double() - exact).abs().amax() < 0.02
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in data[:3])
