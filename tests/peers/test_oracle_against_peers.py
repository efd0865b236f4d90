"""The oracle against recorded outputs and gradients of code written elsewhere."""

from __future__ import annotations

import pytest
import torch
from cases import MASKS, PEERS, Mask, Peer, assert_agrees
from torch import Tensor

from attncc.check.oracle import dense, related


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_layers(peer: Peer, dtype: torch.dtype) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, **arguments: object) -> Tensor:
        return dense(peer.spec, q, k, v, dtype=dtype, **arguments).out  # type: ignore[arg-type]

    assert_agrees(peer, attention, dtype)


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.tensor)
def test_masks(mask: Mask) -> None:
    expected = mask.expected
    heads, n, _ = expected.shape
    assert torch.equal(related(mask.spec, n, n, heads)[0], expected)


@pytest.mark.parametrize("name", ["softmax_padding_mask", "local_window_exact_causal_padding"])
def test_padding_is_a_tail(name: str) -> None:
    """What kv_lengths says is what the recorded mask says."""
    peer = PEERS[name]
    masks = peer.tensors
    visible = masks["aux.attn_mask"][:, 0, 0] if "aux.attn_mask" in masks else masks["aux.mask"]
    lengths = torch.tensor(peer.arguments["kv_lengths"])
    assert torch.equal(visible, torch.arange(visible.shape[1]) < lengths[:, None])


@pytest.mark.parametrize(
    "name", ["sliding_window_causal_mistral", "softcap_causal_gemma2", "softcap_sliding_gemma2", "softmax_dead_rows"]
)
def test_patterns_are_the_recorded_masks(name: str) -> None:
    peer = PEERS[name]
    masks = peer.tensors
    expected = (
        masks["aux.allow"][:1]
        if "aux.allow" in masks
        else masks["aux.attn_mask"].expand(-1, 2, -1, -1).flatten(0, 1)[None]
    )
    n = expected.shape[-1]
    heads = max(expected.shape[1], 2)
    assert torch.equal(related(peer.spec, n, n, heads), expected.expand(1, heads, n, n))
