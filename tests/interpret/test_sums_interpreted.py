"""Kernels of sums against the dense oracle: patterns, weights and normalisers, interpreted."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.calls import has_pieces, in_pieces
from attncc.check.compare import compare
from attncc.check.fit import fits, head_counts
from attncc.check.oracle import OutsideTable
from attncc.check.sizes import Case
from tests.emit.test_states_against_oracle import BY_CHANNEL, DECAY, ELU, GATED, PATTERNS, WEIGHTS
from tests.modules import build
from tests.random_specs import draws, random_case
from tests.test_random_specs import drawn, picker, right
from tests.test_random_states import random_separable

PLAIN = Case(batch=1, heads=2, kv_heads=1, n=83, m=83, d=6, e=9, dtype=torch.float32, name="square, shared heads")
CASES = (
    PLAIN,
    replace(PLAIN, batch=2, kv_heads=2, n=65, m=91, kv_lengths=(77, 0), strided=True, garbage=True, name="hidden keys"),
    replace(PLAIN, batch=2, n=70, m=84, q_start=(15, -9), name="positions of their own"),
    replace(PLAIN, n=79, m=66, k_start=3, q_start=-4, name="later keys, rows before 0"),
    replace(PLAIN, n=1, m=70, name="one row"),
)
WIDE = replace(PLAIN, n=49, m=49, d=70, e=68, name="several blocks of channels")


def check(text: str, folder: Path, cases: tuple[Case, ...]) -> None:
    built = build(text, folder)
    heads = {each for each, _ in head_counts(built.spec)}
    cases = tuple(each for each in cases if each.heads in heads and fits(built.spec, each))
    assert cases
    for apart in (False, True) if has_pieces(built.module) else (False,):
        with in_pieces(built.module) if apart else nullcontext():
            verdicts = [compare(built.module, built.spec, case, "triton linear") for case in cases]
        assert all(each.ok for each in verdicts), "\n".join(each.text for each in verdicts if not each.ok)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str, tmp_path: Path) -> None:
    """Every case with one pattern, and every pattern with one case, which has all that others have apart."""
    cases = CASES if name == "causal" else CASES[1:2]
    check(f"attention x {{ pattern = {PATTERNS[name]}; {ELU} }}", tmp_path, cases)


@pytest.mark.parametrize("name", ["causal", "later keys", "both ways", "chunks around", "a stride", "of some heads"])
def test_decays(name: str, tmp_path: Path) -> None:
    check(f"attention x {{ pattern = {PATTERNS[name]}; {DECAY} }}", tmp_path, CASES[3:4])


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str, tmp_path: Path) -> None:
    case = PLAIN if name.startswith("gated") else CASES[3]
    case = replace(case, d=3) if name == "cubes" else case
    check(f"attention x {{ pattern = window(44, 30); {WEIGHTS[name]} }}", tmp_path, (case,))


@pytest.mark.parametrize("weight", [ELU, BY_CHANNEL], ids=["elu", "by channel"])
def test_blocks_of_channels(weight: str, tmp_path: Path) -> None:
    check(f"attention x {{ pattern = causal; {weight} }}", tmp_path, (WIDE,))


def test_channels_in_groups(tmp_path: Path) -> None:
    """Sums of products of channels are made for some channels at a time, where all would take too much room."""
    text = "attention x { pattern = causal; weight = score + score^2 * 2^(j - i); normalize = none }"
    built = build(text, tmp_path)
    built.module._MOST_SUMS = 1  # type: ignore[attr-defined]
    case = replace(PLAIN, n=65, m=65, d=20, e=5)
    assert compare(built.module, built.spec, case, "triton linear").ok


@pytest.mark.parametrize("gate", [-1e4, -1e-8])
def test_extreme_gates(gate: float, tmp_path: Path) -> None:
    gated = GATED.replace("-softplus(g)", f"-softplus(g) * {-gate}")
    check(f"attention x {{ pattern = causal; {gated} }}", tmp_path, (PLAIN,))


@pytest.mark.parametrize("number", range(draws(4)), ids=lambda number: f"draw-{number}")
def test_random(number: int, tmp_path: Path) -> None:
    """Random patterns and separable weights."""
    pick = picker(7000 + number)
    text, built = drawn(pick, tmp_path, random_separable)
    for apart in (False, True) if has_pieces(built.module) else (False,):
        case = random_case(pick, torch.float32, ((83, 83), (40, 97), (97, 40)))
        try:
            with in_pieces(built.module) if apart else nullcontext():
                verdict = compare(built.module, built.spec, replace(case, d=min(case.d, 8)), "triton linear")
        except OutsideTable:  # a query whose own gate is asked for stands where no key is
            continue
        assert right(verdict), f"{text}\n\n{verdict.text}"
