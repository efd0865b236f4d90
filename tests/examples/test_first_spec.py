"""The first example runs, and its file stays short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/01_first_spec.py"


def test_it_runs_and_agrees_with_dense_attention() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "recent:" in done.stdout
    assert float(done.stdout.rsplit(maxsplit=1)[-1]) < 1e-5


def test_it_fits_on_one_screen() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 60
