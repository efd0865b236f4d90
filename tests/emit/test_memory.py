"""Long sequences: what the eager torch form of a window takes does not grow with the square of the length."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.modules import build_file

MEASURE = """
import importlib.util, json, resource, sys, time
import torch

path, length, backward = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "backward"
spec = importlib.util.spec_from_file_location("window", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

def run(n):
    q, k, v = (torch.randn(1, 1, n, 64, requires_grad=backward) for _ in range(3))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    out = module.attention(q, k, v)
    if backward:
        out.backward(torch.ones(()).expand_as(out))
    took = time.perf_counter() - start
    assert out[:, :, -1].isfinite().all()
    return before, took

run(2048)  # what torch itself takes on first use
before, took = run(length)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"mebibytes": (after - before) / 1024, "seconds": took}))
"""


def measured(folder: Path, length: int, passes: str) -> dict[str, float]:
    """Peak memory above the inputs, and seconds."""
    path = str(build_file("sliding_window", folder, w=512).module.__file__)
    command = [sys.executable, "-c", MEASURE, path, str(length), passes]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kibibytes on Linux")
def test_window_at_an_eighth_of_a_million(tmp_path: Path) -> None:
    result = measured(tmp_path, 131_072, "backward")
    assert result["mebibytes"] < 500, result
