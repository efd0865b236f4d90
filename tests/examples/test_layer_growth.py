"""The example on how layers grow runs: each of its layers is made and timed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples/layer_growth.py"


def test_layers_are_made_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = importlib.util.spec_from_file_location("layer_growth", EXAMPLE)
    assert found is not None and found.loader is not None
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    for name in ("lama", "linformer"):
        times = example.best(example.made(name, 16, 24), [torch.randn(1, n, 16) for n in (9, 24)], 1)
        assert len(times) == 2 and all(0 < each < 1e5 for each in times)
    assert all((example.LAYERS / f"{name}.attn").exists() for name in example.LINEAR)
