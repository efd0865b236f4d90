"""Kernels of pieces against the dense oracle, in the interpreter: strips, classes, and sums that pieces hand on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.calls import in_pieces
from attncc.check.compare import compare
from attncc.check.fit import fits, head_counts
from attncc.check.sizes import Case
from tests.emit.test_pieces_against_oracle import MEANINGS, MERGED, OWN_ROWS, PATTERNS, STRIDED
from tests.modules import ROOT, build
from tests.plan.forced import always
from tests.random_specs import draws
from tests.test_random_pieces import drawn

PLAIN = Case(batch=1, heads=4, kv_heads=2, n=37, m=37, d=16, e=8, dtype=torch.float32, name="shared heads")
CASES = (
    PLAIN,
    replace(PLAIN, batch=2, n=21, m=44, q_start=(5, -9), kv_lengths=(30, 44), strided=True, garbage=True, name="apart"),
    replace(PLAIN, n=1, m=33, k_start=3, dtype=torch.float16, name="one row"),
)
CHOSEN = (
    *("dilated", "fixed", "axial", "mirrored", "three layouts", "of some heads", "unlike in each head"),
    *("leading rows", "rows on strips", "rows of some heads"),
    *("classes by head", "strips by head", "unlike strips of one width"),
    *("blocks of blocks", "rows and keys on strips", "blocks of some heads"),
)


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch, apart=True)


def check(text: str, folder: Path, cases: tuple[Case, ...]) -> None:
    built = build(text, folder)
    assert hasattr(built.module, "_forward_kernel_1")
    heads = {each for each, _ in head_counts(built.spec)}
    cases = tuple(each for each in cases if each.heads in heads and fits(built.spec, each))
    assert cases
    with in_pieces(built.module):
        verdicts = [compare(built.module, built.spec, case, "triton") for case in cases]
    assert all(each.ok for each in verdicts), "\n".join(each.text for each in verdicts if not each.ok)


@pytest.mark.parametrize("name", CHOSEN)
def test_patterns(name: str, tmp_path: Path) -> None:
    check(f"attention x {{ pattern = {PATTERNS[name]} }}", tmp_path, CASES)


@pytest.mark.parametrize("name", [name for name in MEANINGS if name != "additive"])
def test_meanings(name: str, tmp_path: Path) -> None:
    data, meaning = MEANINGS[name]
    check(f"attention x {{ {data} pattern = {STRIDED}; {meaning} }}", tmp_path, CASES[:1])


@pytest.mark.parametrize("name", ("a sink", "numbers of keys", "squares"))
def test_meanings_where_some_rows_run_alone(name: str, tmp_path: Path) -> None:
    data, meaning = MEANINGS[name]
    check(f"attention x {{ {data} pattern = {OWN_ROWS}; {meaning} }}", tmp_path, CASES[:1])


@pytest.mark.parametrize("name", ("a slope", "a sink", "additive", "a table by position"))
def test_meanings_in_blocks_by_classes(name: str, tmp_path: Path) -> None:
    data, meaning = MEANINGS[name]
    case = replace(CASES[1], d=5) if name == "additive" else CASES[1]  # channel by channel is slow
    check(f"attention x {{ {data} pattern = {PATTERNS['blocks of some heads']}; {meaning} }}", tmp_path, (case,))


@pytest.mark.parametrize("pattern", ("several classes", "of some heads", "leading rows"))
def test_learned_bias_by_distance(pattern: str, tmp_path: Path) -> None:
    related = PATTERNS.get(pattern, "causal & ((i - j) % 6 == 1 | (i - j) % 6 == 4 | i - j < 3)")
    data, meaning = MEANINGS["a bias by distance"]
    check(f"attention x {{ {data} pattern = {related}; {meaning} }}", tmp_path, CASES[:2])


def test_merged_branches_each_in_pieces(tmp_path: Path) -> None:
    built = build(MERGED, tmp_path)
    with in_pieces(built.module):
        verdict = compare(built.module, built.spec, CASES[1], "triton")
    assert verdict.ok, verdict.text


@pytest.mark.parametrize("name", ("summaries", "near_less_far", "pencil"))
def test_unseen_specs(name: str, tmp_path: Path) -> None:
    built = build((ROOT / f"tests/unseen/{name}.attn").read_text(encoding="utf-8"), tmp_path)
    with in_pieces(built.module):
        verdict = compare(built.module, built.spec, CASES[1], "triton")
    assert verdict.ok, verdict.text


@pytest.mark.slow
@pytest.mark.parametrize("number", range(draws(4)))
def test_random_patterns(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, built = drawn(5000 + 2 * number, tmp_path, monkeypatch)
    with in_pieces(built.module):
        verdict = compare(built.module, built.spec, CASES[number % 2], "triton")
    assert verdict.ok, f"{spec}\n{verdict.text}"
