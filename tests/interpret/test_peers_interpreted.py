"""Generated modules, Triton form, within published layers: one for each way to call, mask, score and learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.peers.cases import PEERS
from tests.peers.test_generated_against_peers import agrees

CHOSEN = (
    "softmax_gqa_causal",
    "softmax_cross_dv",
    "softmax_padding_mask",
    "softcap_sliding_gemma2",
    "alibi_bloom",
    "local_chunk_circular",
    "local_window_autopad",
    "gau_quadratic_causal",
    "sinks_sliding_gptoss",
    "t5_relative_bias",
    "synthesizer_random",
    "linear_elu_padding_cross",
    "retention",
    "simple_gla",
    "gla",
    "efficient_lucidrains_padding",
    "performer_softmax",
    "aft_simple",
    "flash_causal_ragged",
)


@pytest.mark.parametrize("name", CHOSEN)
def test_layers(name: str, tmp_path: Path) -> None:
    agrees(PEERS[name], tmp_path, "triton", torch.float32)
