"""Long sequences: what the eager torch form takes of a window, or of documents, grows as the length, not its square."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

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
    data = eval(sys.argv[4], {"torch": torch, "n": n, "q": q, "k": k, "v": v})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    out = module.attention(q, k, v, *data)
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


def measured(module: ModuleType, length: int, passes: str, data: str = "()") -> dict[str, float]:
    """Peak memory above the inputs, and seconds; `data` are those of the pattern, as a text that reads n."""
    command = [sys.executable, "-c", MEASURE, str(module.__file__), str(length), passes, data]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kibibytes on Linux")
def test_window_at_an_eighth_of_a_million(tmp_path: Path) -> None:
    result = measured(build_file("sliding_window", tmp_path, w=512).module, 131_072, "backward")
    assert result["mebibytes"] < 500, result


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kibibytes on Linux")
@pytest.mark.parametrize(
    ("name", "data"),
    (
        ("documents", "(torch.arange(n)[None] // 400,)"),
        ("routing", "(torch.arange(n)[None, None] * 7919 % (n // 300),)"),
        ("longformer_marked", "((torch.arange(n) % (n // 16) == 5)[None], torch.arange(n)[None] > n - 99, q, k, v)"),
    ),
    ids=("documents", "clusters", "marked tokens"),
)
def test_lists_at_a_thirty_second_of_a_million(name: str, data: str, tmp_path: Path) -> None:
    """Vectors and their gradients take 8 MiB each; scores would take 4 GiB."""
    parameters = {"w": 128} if name == "longformer_marked" else {}
    result = measured(build_file(name, tmp_path, **parameters).module, 32_768, "backward", data)
    assert result["mebibytes"] < 300, result
