"""What the gradient of a learned table costs: backward of causal attention with a bias for each distance.

`python examples/table_gradient.py --n 4096` takes a learned table, a fixed one and none in turns, and prints the best.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from attncc import Source, compile_source
from attncc.check.load import load_module

SPECS = {
    "without a table": "attention plain { pattern = causal }",
    "with a fixed table": (
        "attention fixed { input bias[H, ROWS]: int\n"
        "pattern = causal; score = scale * dot(q, k) + bias[h, min(i - j, ROWS - 1)] / 64 }"
    ),
    "with a learned table": (
        "attention biased { param bias[H, ROWS]\n"
        "pattern = causal; score = scale * dot(q, k) + bias[h, min(i - j, ROWS - 1)] }"
    ),
}


def backward_of(text: str, options: argparse.Namespace) -> Callable[[], float]:
    """A function that runs forward and backward, and gives the seconds of backward."""
    compiled = compile_source(Source("table.attn", text))
    attention = load_module(compiled.text, compiled.spec.name).attention
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, options.heads, options.n, options.d)] * 3
    shapes += [(options.heads, options.rows)] * (len(compiled.spec.data) - 3)
    data = [torch.randn(shape, generator=generator) for shape in shapes]
    data = [
        x.requires_grad_() if not each.whole else (64 * x).long()
        for each, x in zip(compiled.spec.data, data, strict=True)
    ]
    learned = [x for x in data if x.requires_grad]
    upstream = torch.randn(shapes[0], generator=generator)

    def run() -> float:
        out = attention(*data)
        started = time.perf_counter()
        torch.autograd.grad(out, learned, upstream)
        return time.perf_counter() - started

    return run


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--rows", type=int, default=2048, help="entries of the table for each head")
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    runs = {name: backward_of(text.replace("ROWS", str(options.rows)), options) for name, text in SPECS.items()}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(options.repeat):
        for name, run in runs.items():
            best[name] = min(best[name], run())
    for name, seconds in best.items():
        print(f"backward {name}: {seconds * 1000:.0f} ms")
    plain, fixed, learned = best.values()
    print(f"the table's gradient takes {(learned - fixed) / learned:.0%} of the backward pass,")
    print(f"the table and its gradient {(learned - plain) / learned:.0%}")


if __name__ == "__main__":
    main()
