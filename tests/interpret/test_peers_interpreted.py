"""Generated modules, Triton form, in the middle of published layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.peers.common import Peer
from tests.peers.test_generated_against_peers import COMPILABLE, agrees


@pytest.mark.parametrize("peer", COMPILABLE, ids=lambda peer: peer.name)
def test_layers(peer: Peer, tmp_path: Path) -> None:
    agrees(peer, tmp_path, "triton", torch.float32)
