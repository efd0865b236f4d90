"""Run every check of the project, or some: `python tests/run.py [STEP …]`. Stops at the first that fails.

In Python rather than in the Makefile, so that it needs nothing but the virtual environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

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
    "layered": (
        (sys.executable, "-m", "attncc", "build", "specs/layers", "-o", "generated/layers", "--fresh", "-q"),
        {},
    ),
    "unit": ((*PYTEST, "--ignore", "tests/interpret"), ONE_THREAD),
    "interpret": ((*PYTEST, "tests/interpret"), ONE_THREAD | {"TRITON_INTERPRET": "1"}),
}


ALONG = ("types", "generated")  # steps of one thread, which run beside those that follow


class Step:
    """A step that has been started; one that runs along keeps its output until it is done."""

    def __init__(self, name: str) -> None:
        self.name, self.started = name, time.monotonic()
        self.output: IO[bytes] | None = tempfile.TemporaryFile() if name in ALONG else None
        command, variables = STEPS[name]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | variables, stdout=self.output, stderr=self.output and subprocess.STDOUT
        )
        if self.output is None:
            print(f"--- {name}", flush=True)

    def passes(self) -> bool:
        """Wait for it, and say how it went."""
        failed = self.process.wait() != 0
        if self.output is not None:
            self.output.seek(0)
            print(f"--- {self.name}\n{self.output.read().decode(errors='replace')}", end="", flush=True)
        if failed:
            print(f"{self.name} failed", file=sys.stderr)
        else:
            print(f"{time.monotonic() - self.started:.0f} s", flush=True)
        return not failed


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        print(f"no step {', '.join(unknown)}; there are {', '.join(STEPS)}", file=sys.stderr)
        return 2
    along: list[Step] = []
    try:
        for name in names or STEPS:
            step = Step(name)
            if name in ALONG:
                along.append(step)
            elif not step.passes():
                return 1
            for other in [each for each in along if each.process.poll() is not None]:
                along.remove(other)
                if not other.passes():
                    return 1
        return 0 if all(step.passes() for step in along) else 1
    finally:
        for step in along:
            step.process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
