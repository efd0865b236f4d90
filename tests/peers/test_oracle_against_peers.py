"""The oracle against recorded outputs and gradients of code written elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attncc.check.oracle import dense, related
from attncc.plan.domain import analyse
from attncc.plan.partition import partition
from attncc.spec.expr import TRUE, Const, Name, Symbol
from tests.peers.cases import MASKS, PEERS, Mask
from tests.peers.common import Peer, assert_agrees, from_text
from tests.peers.learned import LEARNED
from tests.plan.forced import always, forced, times_of
from tests.plan.test_domain import Call_


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.key)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_layers(peer: Peer, dtype: torch.dtype) -> None:
    def attention(*data: Tensor, **arguments: object) -> Tensor:
        return dense(peer.spec, *data, dtype=dtype, **arguments).out  # type: ignore[arg-type]

    assert_agrees(peer, attention, dtype)


@pytest.mark.parametrize("peer", LEARNED, ids=lambda peer: peer.key)
def test_texts_mean_what_their_expressions_do(peer: Peer) -> None:
    spec = from_text(peer.text)

    def attention(*data: Tensor, **arguments: object) -> Tensor:
        return dense(spec, *data, **arguments).out  # type: ignore[arg-type]

    assert_agrees(peer, attention, torch.float64)


@pytest.mark.parametrize("name", ["t5_relative_bias", "t5_relative_bias_causal"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_buckets_are_the_recorded_ones(name: str, dtype: torch.dtype) -> None:
    """The peer takes the logarithm in float32: borders between buckets may not move in float64."""
    peer = PEERS[name]
    recorded = peer.tensors["aux.position_bias"].to(dtype)
    heads, n = recorded.shape[1:3]
    plain = replace(peer.spec, pattern=TRUE, weight=Symbol(Name.SCORE), normalizer=Const(1))
    table = peer.tensors["w.relative_attention_bias.weight"].T
    q = torch.zeros(1, heads, n, 1)
    assert torch.equal(dense(plain, q, q, q, table, dtype=dtype).weights, recorded)


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.tensor)
def test_masks(mask: Mask) -> None:
    expected = mask.expected
    heads, n, _ = expected.shape
    assert torch.equal(related(mask.spec, n, n, heads)[0], expected)


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.tensor)
def test_masks_in_pieces(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recorded pair is in exactly one piece, no other in any: as planned, and with every layout there is."""
    heads, n, _ = mask.expected.shape
    size = Call_(n, n, q_start=0, k_start=0, block_rows=16, block_columns=8)
    planned = partition(analyse(mask.spec.pattern))
    always(monkeypatch, apart=True)
    for pieces in (planned.pieces if planned else (), forced(mask.spec.pattern)):
        for head, expected in enumerate(mask.expected):
            if pieces:
                assert (times_of(pieces, size, head, heads) == expected.int().numpy()).all()


def test_long_calls_of_strided_and_fixed_patterns_run_in_pieces() -> None:
    found = {mask.tensor for mask in MASKS if partition(analyse(mask.spec.pattern)) is not None}
    assert found == {
        "aux.strided_n64_ctx8",
        "aux.strided_n64_ctx16",
        "aux.strided_n128_ctx32",
        "aux.strided_n100_ctx7",
        "aux.fixed_n64_ctx16_bs4_verts1x1.mask",
        "aux.fixed_n64_ctx16_bs4_verts4x1.mask",
        "aux.fixed_n128_ctx32_bs8_verts2x2.mask",
    }


@pytest.mark.parametrize("name", ["softmax_padding_mask", "local_window_exact_causal_padding", "gau_laplace_padding"])
def test_padding_is_a_tail(name: str) -> None:
    """What kv_lengths says is what the recorded mask says."""
    peer = PEERS[name]
    masks = peer.tensors
    visible = masks["aux.attn_mask"][:, 0, 0] if "aux.attn_mask" in masks else masks["aux.mask"]
    lengths = torch.tensor(peer.arguments["kv_lengths"])
    assert torch.equal(visible, torch.arange(visible.shape[1]) < lengths[:, None])


@pytest.mark.parametrize(
    "name",
    [
        "sliding_window_causal_mistral",
        "softcap_causal_gemma2",
        "softcap_sliding_gemma2",
        "softmax_dead_rows",
        "sinks_causal_gptoss",
        "sinks_sliding_gptoss",
        "t5_relative_bias_causal",
    ],
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
