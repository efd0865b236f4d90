"""Write the tables of README.md anew that commands print: `python tests/write_tables.py`, after a spec was added."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def printed(block: re.Match[str]) -> str:
    """The comment that names a command, and what the command prints."""
    command = [sys.executable, "-m", *shlex.split(block[1])]
    table = subprocess.run(command, cwd=README.parent, capture_output=True, text=True, check=True).stdout
    return f"<!-- table: {block[1]} -->\n{table}"


def main() -> None:
    text = README.read_text(encoding="utf-8")
    README.write_text(re.sub(r"<!-- table: (.*?) -->\n(?:\|.*\n)*", printed, text), encoding="utf-8")


if __name__ == "__main__":
    main()
