"""What is proven of the numbers between which expressions lie."""

from __future__ import annotations

import math

import pytest

from attncc.diagnostics import Source
from attncc.rewrite.bounds import bounds_of
from attncc.spec.resolve import load

PROVEN: dict[str, tuple[float, float]] = {
    "1 - 2^(-5 - h)": (1 - 2**-5, 1),
    "h / 8": (0, math.inf),
    "0.5^h": (0, 1),
    "(h + 1) * (2 - sigmoid(h))": (1, math.inf),
    "(h - 3) / 8": (-3 / 8, math.inf),
    "exp(-h) - 1": (-1, 0),
    "h < 2 ? 0.25 : 3": (0.25, 3),
    "[0.5, 0.25, 2, 8][h % 4]": (0.25, 8),
    "1 / h": (-math.inf, math.inf),
    "scale * h": (-math.inf, math.inf),
    "2^(10 * exp(9 * h))": (2**10, math.inf),
}


@pytest.mark.parametrize("text", PROVEN)
def test_bounds(text: str) -> None:
    spec = load(Source("b.attn", f"attention b {{ weight = {text}; normalize = count }}"))
    found = bounds_of(spec.weight, lambda _: None)
    assert (found.low, found.high) == pytest.approx(PROVEN[text])
