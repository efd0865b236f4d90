"""Ways to run the command line in tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from attncc.cli.main import cli

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "specs"


def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    """The command in this process; stdout and stderr apart."""
    return CliRunner().invoke(cli, [str(each) for each in arguments], input=stdin)


def process(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "attncc", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        check=False,
    )
