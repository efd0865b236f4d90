"""The torch form of every spec against the dense oracle, with parameters that make patterns end within the case."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncc.check.compare import check, compare
from attncc.check.fit import cases_of
from tests.modules import SMALL, SPECS, build_file, cut_small


def test_every_spec_is_checked() -> None:
    assert sorted(SMALL) == sorted(path.stem for path in SPECS.glob("*.attn"))


IN_ROUNDS = ("longnet", "reformer_library")  # branches of which each has the plan of the others


@pytest.mark.parametrize("name", SMALL)
def test_torch(name: str, tmp_path: Path) -> None:
    """The plain case of each dtype in one slab, then every case in many."""
    built = build_file(name, tmp_path, **SMALL[name])
    for case in cases_of(built.spec, quick=True)[:4]:
        verdict = compare(built.module, built.spec, case, "torch")
        assert verdict.ok, verdict.text
    if name in IN_ROUNDS:
        return
    cut_small(built.module)
    report = check(built.module, built.spec, forms=("torch",), quick=True)
    assert report.ok, "\n".join(report.failures[:8])
