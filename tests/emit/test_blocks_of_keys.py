"""Means of blocks of keys against means written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.modules import build

SPEC = """attention blocks {
  let k = pool(k, %d, %d) at %d * j + %d
  let v = pool(v, %d, %d) at %d * j + %d
  pattern = causal
}
"""


def text_of(width: int, stride: int) -> str:
    """The spec in which a query sees blocks that are full."""
    return SPEC % ((width, stride, stride, width - 1) * 2)


def by_hand(q: Tensor, k: Tensor, v: Tensor, width: int, stride: int) -> Tensor:
    """Softmax over the means of blocks that lie before each query, 0 where there are none."""
    n, count = q.shape[2], max(0, (k.shape[2] - width) // stride + 1)
    if not count:
        return torch.zeros_like(q)
    keys, values = (
        functional.avg_pool1d(x.flatten(0, 1).mT, width, stride).mT.unflatten(0, x.shape[:2]) for x in (k, v)
    )
    seen = stride * torch.arange(count) + width - 1 <= torch.arange(n)[:, None]
    scores = (q @ keys.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1).nan_to_num() @ values


@pytest.mark.parametrize(("width", "stride"), [(8, 8), (8, 4), (5, 2), (1, 1), (3, 7)])
@pytest.mark.parametrize("n", [1, 7, 64, 101])
def test_means(width: int, stride: int, n: int, tmp_path: Path) -> None:
    module = build(text_of(width, stride), tmp_path).module
    generator = torch.Generator().manual_seed(n)
    data = [torch.randn(2, 3, n, 8, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    found, wanted = module.attention(*data), by_hand(*data, width, stride)
    torch.testing.assert_close(found, wanted)
    if wanted.requires_grad:
        d_out = torch.randn_like(wanted)
        for one, other in zip(*(torch.autograd.grad(x, data, d_out) for x in (found, wanted)), strict=True):
            torch.testing.assert_close(one, other)


def test_keys_begin_with_a_block(tmp_path: Path) -> None:
    module = build(text_of(8, 4), tmp_path).module
    q = torch.randn(1, 1, 20, 8)
    torch.testing.assert_close(module.attention(q, q, q, k_start=4), module.attention(q, q, q))
    with pytest.raises(ValueError, match="k_start is 6, expected a multiple of 4"):
        module.attention(q, q, q, k_start=6)


def test_hidden_keys_take_no_part(tmp_path: Path) -> None:
    module = build(text_of(8, 4), tmp_path).module
    q, k, v = torch.randn(3, 2, 1, 40, 8)
    lengths = torch.tensor([40, 21])
    kept = module.attention(q, k, v, kv_lengths=lengths)
    k[1, :, 21:], v[1, :, 21:] = torch.nan, torch.inf
    assert torch.equal(kept, module.attention(q, k, v, kv_lengths=lengths))
    assert hasattr(module, "step")
