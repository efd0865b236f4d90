"""The torch form in pieces against the dense oracle: layouts of every kind, and what pieces hand on to one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.calls import has_pieces, in_pieces
from attncc.check.compare import compare
from attncc.check.fit import fits, head_counts
from attncc.check.sizes import Case
from tests.modules import build, cut_small
from tests.plan.forced import always

PLAIN = Case(batch=1, heads=4, kv_heads=2, n=37, m=37, d=8, e=12, dtype=torch.float32, name="square, shared heads")
CASES = (
    PLAIN,
    replace(PLAIN, batch=2, kv_heads=4, n=23, m=41, kv_lengths=(30, 0), strided=True, garbage=True, name="hidden keys"),
    replace(PLAIN, batch=2, n=21, m=34, q_start=(5, -9), name="positions of their own"),
    replace(PLAIN, n=29, m=26, k_start=3, q_start=-4, name="later keys, rows before 0"),
    replace(PLAIN, n=1, m=33, name="one row"),
    replace(PLAIN, n=40, m=5, dtype=torch.float64, name="few keys"),
    replace(PLAIN, n=19, m=31, dtype=torch.bfloat16, name="bfloat16"),
)
STRIDED = "causal & (i - j < 5 | (i - j) % 5 == 0)"
OWN_ROWS = "abs(i - j) < 4 | i < 5 | i % 6 == 5 | (i - j) % 7 == 0"
PATTERNS = {
    "dilated": "causal & i - j < 24 & (i - j) % 4 == 0",
    "dilated both ways": "abs(i - j) < 15 & (i - j) % 3 == 0",
    "strided": STRIDED,
    "fixed": "causal & (i // 8 == j // 8 | j % 8 >= 6)",
    "axial": "i // 6 == j // 6 | i % 6 == j % 6",
    "mirrored": "(i + j) % 4 == 3",
    "shifted": "(i - j) % 6 == 2",
    "blocks of blocks": "(i // 2 - j // 2) % 4 == 1 | abs(i - j) < 3",
    "blocks of some heads": "causal & (h < 3 & (i // 3 - j // 3) % 4 == 1 | i - j < 3 | h > 0 & i % 7 < 2)",
    "strips of keys": "causal & j % 7 < 2",
    "three layouts": "causal & (i - j < 4 | (i - j) % 6 == 0 | j % 9 >= 7)",
    "two distances": "causal & ((i - j) % 6 == 1 | (i - j) % 6 == 4)",
    "of some heads": "causal & (h % 2 == 0 ? i - j < 6 : (i - j) % 4 == 0)",
    "unlike in each head": "causal & (h < 2 ? i - j < 3 | (i - j) % 3 == 0 : j % 5 == 1)",
    "rows without keys": "j > i + 2 & (i - j) % 4 == 0",
    "leading rows": "abs(i - j) < 4 | i < 5 | j < 3",
    "rows in the middle": "abs(i - j) < 4 | 11 <= i < 20",
    "rows on strips": "causal & (i - j < 5 | i % 6 == 5)",
    "rows and keys on strips": "abs(i - j) < 3 | i % 5 < 2 | j % 5 < 2",
    "rows of some heads": "causal & (i - j < 5 | h < 2 & i % 4 == 1 | (i - j) % 7 == 0)",
    "classes by head": "causal & (i - j - h) % 4 == 1",
    "strips by head": "causal & j % 8 // 2 == h % 4",
    "unlike strips of one width": "causal & (h < 2 ? j % 8 < 2 : j % 6 >= 4)",
    "rows alone": "i % 3 == 1",
}
MEANINGS = {
    "additive": ("", "score = sum(tanh(q + k))"),
    "a table by position": ("param t[16];", "score = scale * dot(q, k) + t[i % 16]"),
    "a bias by distance": ("param b[H, 99];", "score = scale * dot(q, k) + b[h, clip(i - j + 49, 0, 98)]"),
    "a slope": ("", "score = scale * dot(q, k) - 0.5 ^ (h + 1) * abs(i - j)"),
    "a sink": ("param sink[H] = 0;", "normalize = rows + exp(sink[h])"),
    "squares": ("", "weight = relu(score) ^ 2; normalize = 1"),
    "a gate": ("", "weight = sigmoid(score); normalize = 1"),
    "features": ("", "similarity = features(x -> elu(x) + 1)"),
    "numbers of keys": ("", "weight = exp(score); normalize = count"),
}


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that these small patterns would not be worth are made all the same."""
    always(monkeypatch, apart=True)


ONE_ROW = next(each for each in CASES if each.n == 1)
THREE = "three layouts"


def check(text: str, folder: Path, cases: Sequence[Case] = CASES) -> None:
    built = build(text, folder)
    cut_small(built.module)
    assert has_pieces(built.module)
    heads = {each for each, _ in head_counts(built.spec)}
    cases = [each for each in cases if each.heads in heads and fits(built.spec, each)]
    assert cases
    with in_pieces(built.module):
        verdicts = [compare(built.module, built.spec, case, "torch") for case in cases]
    assert all(each.ok for each in verdicts), "\n".join(each.text for each in verdicts if not each.ok)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str, tmp_path: Path) -> None:
    cases = [each for each in CASES if name != THREE or each != ONE_ROW]
    check(f"attention x {{ pattern = {PATTERNS[name]} }}", tmp_path, cases)


def test_one_row_in_three_pieces(tmp_path: Path) -> None:
    check(f"attention x {{ pattern = {PATTERNS[THREE]} }}", tmp_path, [ONE_ROW])


@pytest.mark.parametrize("name", MEANINGS)
def test_meanings(name: str, tmp_path: Path) -> None:
    data, meaning = MEANINGS[name]
    check(f"attention x {{ {data} pattern = {STRIDED}; {meaning} }}", tmp_path)


@pytest.mark.parametrize("name", [name for name in MEANINGS if name != "a bias by distance"])
def test_meanings_where_some_rows_run_alone(name: str, tmp_path: Path) -> None:
    data, meaning = MEANINGS[name]
    check(f"attention x {{ {data} pattern = {OWN_ROWS}; {meaning} }}", tmp_path, CASES[:3])


MERGED = """attention x {
  branch near { pattern = causal & i - j < 12 & (i - j) % 3 == 0 }
  branch far { pattern = causal & (j % 5 == 0 | i - j < 3 | i % 8 == 1); score = 2 * scale * dot(q, k) }
  combine = merge(near, far)
}"""


def test_merged_branches_each_in_pieces(tmp_path: Path) -> None:
    check(MERGED, tmp_path, CASES[:4])
