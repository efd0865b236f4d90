"""Up to which length 32 bits hold what kernels compute."""

from __future__ import annotations

import pytest

from attncc.compiler import compile_source
from attncc.diagnostics import Source
from attncc.plan.choose import plan
from attncc.plan.int32 import longest_call
from attncc.plan.model import Plan

_LARGEST = 2**31 - 1


def _longest(pattern: str) -> int | None:
    found = plan(compile_source(Source("t.attn", f"attention t {{ pattern = {pattern} }}")).spec)
    assert isinstance(found, Plan)
    return longest_call(found)


@pytest.mark.parametrize("pattern", ["true", "j <= i & i - j < 4096", "i // 64 == j // 64", "(i - j) % 16 == 0"])
def test_plain_patterns_reach_nearly_all_positions(pattern: str) -> None:
    found = _longest(pattern)
    assert found is not None
    assert _LARGEST - 10_000 < found <= _LARGEST


@pytest.mark.parametrize(
    "pattern",
    [
        "causal & (i - j) % 1024 == 0",
        "causal & j % 1000 < 3",
        "(i // 64 - j // 64) % 4 == 1",
        "abs(i - j) < 64 | i % 64 == 0",
        "abs(i - j) < 64 | i < 16",
    ],
)
def test_coordinates_of_pieces_reach_as_far(pattern: str) -> None:
    found = _longest(pattern)
    assert found is not None
    assert _LARGEST - 2_000_000 < found <= _LARGEST  # lanes of a tile beyond the last token stand far from it


@pytest.mark.parametrize(("pattern", "slope"), [("1000 * i >= j", 1000), ("3 * i - 7 * j < 5", 7), ("i + j < n", 2)])
def test_steep_formulas_reach_less(pattern: str, slope: int) -> None:
    found = _longest(pattern)
    assert found is not None
    assert _LARGEST // slope - 10_000 < found <= _LARGEST // slope
