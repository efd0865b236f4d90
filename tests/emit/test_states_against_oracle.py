"""The torch form by states against the dense oracle: patterns, weights and normalisers, blocks of any size."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.calls import has_pieces, in_pieces
from attncc.check.compare import compare
from attncc.check.fit import fits, head_counts
from attncc.check.sizes import Case
from tests.modules import build, cut_small

PLAIN = Case(batch=1, heads=4, kv_heads=2, n=45, m=45, d=6, e=9, dtype=torch.float64, name="square, shared heads")
CASES = (
    PLAIN,
    replace(PLAIN, batch=2, kv_heads=4, n=23, m=51, kv_lengths=(40, 0), strided=True, garbage=True, name="hidden keys"),
    replace(PLAIN, batch=2, n=31, m=44, q_start=(15, -9), name="positions of their own"),
    replace(PLAIN, n=39, m=26, k_start=3, q_start=-4, name="later keys, rows before 0"),
    replace(PLAIN, n=1, m=43, dtype=torch.float32, name="one row"),
    replace(PLAIN, n=40, m=5, dtype=torch.float32, name="few keys"),
    replace(PLAIN, n=39, m=51, dtype=torch.bfloat16, name="bfloat16"),
)
ELU = "weight = dot(elu(q) + 1, elu(k) + 1); normalize = rows + 1e-6"
TAYLOR = "weight = 1 + score + score^2 / 2; normalize = rows"
DECAY = "weight = (1 - 2^(-3 - h))^(i - j) * score; normalize = none"
GATED = "input g[B, H, m]; let G = cumsum(-softplus(g)); weight = exp(G[i] - G[j]) * score; normalize = none"
BY_CHANNEL = (
    "input g[B, H, m, d]; let G = cumsum(-softplus(g)); weight = sum(q * k * exp(G[i] - G[j])); normalize = none"
)
PATTERNS = {
    "all": "full",
    "causal": "causal",
    "later keys": "j > i",
    "a window": "window(20)",
    "a window and leading keys": "window(13) & causal | leading(4)",
    "both ways": "window(14, 9)",
    "chunks": "chunk(16)",
    "chunks around": "around(8, 1, 1)",
    "earlier chunks": "earlier_chunks(8)",
    "a prefix": "causal | prefix(21)",
    "all but a window": "!window(5, 5)",
    "leading rows": "window(6, 6) | global(3)",
    "dilated": "dilated(20, 20, 3)",
    "a stride": "causal & (window(7) | stride(5))",
    "of some heads": "by_head [causal, full, window(17), j >= i]",
}
WEIGHTS = {
    "elu": ELU,
    "taylor": TAYLOR,
    "cubes": "weight = (1 + score)^3; normalize = rows^2 + 1",
    "cosine": "weight = dot(relu(q), relu(k)) * cos(pi / 2 * (i - j) / 64); normalize = max(rows, 1e-6)",
    "decay": DECAY,
    "powers of what is below 0": "weight = (h % 2 - 0.5)^(i - j) * dot(exp(q), exp(k)); normalize = none",
    "decay over rows": "weight = 0.9^(i - j) * dot(exp(q), exp(k)); normalize = rows",
    "gated": GATED,
    "gated by channel": BY_CHANNEL,
    "two weights": "weight = score; normalize = rows(score^2) + count",
    "counted": "weight = score; normalize = count",
    "numbers of tokens": "input a[n]; input b[m]; weight = a * b * score + b; normalize = none",
    "distances": "weight = dot(q - k, q - k); normalize = count",
    "by position": "weight = sin(i) * cos(j) * score + i * j / 100; normalize = none",
    "gated and polynomial": "weight = 0.95^(i - j) * (score + score^2); normalize = none",
}


def check(text: str, folder: Path, cases: tuple[Case, ...] = CASES, rows: int = 8) -> None:
    built = build(text, folder)
    cut_small(built.module)
    built.module._ROWS = rows  # type: ignore[attr-defined]
    heads = {each for each, _ in head_counts(built.spec)}
    cases = tuple(each for each in cases if each.heads in heads and fits(built.spec, each))
    assert cases
    for apart in (False, True) if has_pieces(built.module) else (False,):
        with in_pieces(built.module) if apart else nullcontext():
            verdicts = [compare(built.module, built.spec, case, "torch linear") for case in cases]
        assert all(each.ok for each in verdicts), "\n".join(each.text for each in verdicts if not each.ok)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("weight", [ELU, DECAY], ids=["elu", "decay"])
def test_patterns(name: str, weight: str, tmp_path: Path) -> None:
    check(f"attention x {{ pattern = {PATTERNS[name]}; {weight} }}", tmp_path)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("pattern", ["causal", "window(14, 9)"], ids=["causal", "window"])
def test_weights(name: str, pattern: str, tmp_path: Path) -> None:
    check(f"attention x {{ pattern = {pattern}; {WEIGHTS[name]} }}", tmp_path)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_blocks_of_any_size(rows: int, tmp_path: Path) -> None:
    """Blocks of one row are the recurrence, one block of all rows is dense attention."""
    check(f"attention x {{ pattern = causal; {GATED} }}", tmp_path, CASES[:4], rows)


def test_a_window_of_softmax_merged_with_sums_of_all_other_keys(tmp_path: Path) -> None:
    """Features that are never negative are weights that `merge` can count by."""
    near = "branch near { pattern = window(15) }"
    far = "branch far { pattern = i - j > 15; similarity = features(x -> elu(x) + 1) }"
    check(f"attention x {{ {near}; {far}; combine = merge(near, far) }}", tmp_path)
