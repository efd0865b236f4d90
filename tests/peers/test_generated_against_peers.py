"""Generated modules, torch form, in the middle of published layers: recorded outputs and gradients come out."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from attncc.emit.whole import emit
from attncc.plan.choose import plan
from tests.modules import load_module
from tests.peers.cases import PEERS
from tests.peers.common import Peer, assert_agrees

COMPILABLE = [peer for peer in PEERS.values() if peer.compilable]


def module_of(peer: Peer, folder: Path) -> ModuleType:
    """The peer's spec as a module."""
    path = folder / f"peer_{peer.key.replace('-', '_')}.py"
    path.write_text(emit(plan(peer.spec), in_c=False), encoding="utf-8")
    return load_module(path)


def agrees(peer: Peer, folder: Path, form: str, dtype: torch.dtype) -> None:
    module = module_of(peer, folder)

    def attention(*data: Tensor, **arguments: Any) -> Tensor:
        out: Tensor = module.attention(*data, form=form, **arguments)
        return out

    assert_agrees(peer, attention, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("peer", COMPILABLE, ids=lambda peer: peer.key)
def test_layers(peer: Peer, dtype: torch.dtype, tmp_path: Path) -> None:
    agrees(peer, tmp_path, "torch", dtype)
