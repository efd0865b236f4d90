"""The torch form of every spec against the dense oracle, with parameters that make patterns end within the case."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncc.check.compare import check
from tests.modules import SMALL, SPECS, build_file, cut_small


def test_every_spec_is_checked() -> None:
    assert sorted(SMALL) == sorted(path.stem for path in SPECS.glob("*.attn"))


@pytest.mark.parametrize("slabs", ["one slab", "many slabs"])
@pytest.mark.parametrize("name", SMALL)
def test_torch(name: str, slabs: str, tmp_path: Path) -> None:
    built = build_file(name, tmp_path, **SMALL[name])
    if slabs == "many slabs":
        cut_small(built.module)
    report = check(built.module, built.spec, forms=("torch",), quick=True)
    assert report.ok, "\n".join(report.failures[:8])
