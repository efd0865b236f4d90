"""float16 in the Triton form: large scores, and weights that are too large or too small for 16 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncc.check.compare import compare
from tests.emit.test_sixteen_bits import CASES, SPECS
from tests.modules import build

WEIGHTS = {
    "weights too large for 16 bits": (
        "attention large { pattern = window(16); weight = relu(3 * dot(q, k))^3; normalize = rows + 1e-6 }"
    ),
    "weights too small for 16 bits": "attention small { weight = relu(dot(q, k) / 100)^4; normalize = rows + 1e-12 }",
}


@pytest.mark.parametrize("name", [*SPECS, *WEIGHTS])
def test_float16(name: str, tmp_path: Path) -> None:
    built = build((SPECS | WEIGHTS)[name], tmp_path)
    verdicts = [compare(built.module, built.spec, case, "triton") for case in CASES]
    assert all(each.ok for each in verdicts), "\n".join(each.text for each in verdicts)
