"""What patterns ask of tables and tokens: axes of batch entries and heads, and names that lists use themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncc.check.compare import compare
from attncc.check.sizes import Case
from tests.modules import build

CASE = Case(batch=2, heads=4, kv_heads=2, n=40, m=40, d=4, e=4, dtype=torch.float64, name="square")
SPECS = {
    "tables of batch entries": """
  input blocks[B, H, ceil(n / 16), ceil(m / 16)]: bool, until[B, m]: int
  pattern = by_head [blocks[h, i // 16, j // 16], i < until[j]]""",
    "heads that share keys ask these for different things": """
  input kind[B, H, m]: int, pad[B, m]: bool
  pattern = (by_head [kind in [0, 1, 7], !pad]) & pad[j]""",
    "a table that is called tiles": """
  input tiles[H, ceil(m / 8), ceil(m / 8)]: bool, told[m]: int
  pattern = tiles[h, i // 8, j // 8] | told[i] == told[j]""",
}


@pytest.mark.parametrize("name", SPECS)
def test_values_and_gradients(name: str, tmp_path: Path) -> None:
    built = build(f"attention listed {{{SPECS[name]}\n}}\n", tmp_path)
    verdict = compare(built.module, built.spec, CASE)
    assert verdict.ok, verdict.text
