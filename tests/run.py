"""Run every check of the project, or some: `python tests/run.py [STEP …]`. Stops at the first that fails.

In Python rather than in the Makefile, so that it needs nothing but the virtual environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent  # of the virtual environment that runs this file

# Two workers on two cores: more threads would only wait for each other. Who is done takes of what the other has left.
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

STEPS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "lint": ((sys.executable, "-m", "ruff", "check", "."), {}),
    "format": ((sys.executable, "-m", "ruff", "format", "--check", "."), {}),
    "types": ((sys.executable, "-m", "mypy"), {}),
    "layers": ((str(BIN / "lint-imports"),), {}),
    "generated": ((sys.executable, "-m", "attncc", "build", "specs", "-o", "generated", "--fresh", "-q"), {}),
    "unit": ((*PYTEST, "--ignore", "tests/interpret"), ONE_THREAD),
    "interpret": ((*PYTEST, "tests/interpret"), ONE_THREAD | {"TRITON_INTERPRET": "1"}),
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        print(f"no step {', '.join(unknown)}; there are {', '.join(STEPS)}", file=sys.stderr)
        return 2
    for name in names or STEPS:
        print(f"--- {name}", flush=True)
        started = time.monotonic()
        command, variables = STEPS[name]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=False)
        if done.returncode != 0:
            print(f"{name} failed", file=sys.stderr)
            return 1
        print(f"{time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
