"""What causal linear attention costs beside a chunked version written by hand, and beside dense causal attention.

`python examples/linear_attention.py --n 16384` takes them in turns and prints the best of each, in milliseconds. With
`--lengths 4096,16384,65536,262144` it shows how the module alone grows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from attncc import compile_source, read_source
from attncc.check.load import load_module

SPEC = Path(__file__).parents[1] / "specs" / "linear_transformer_causal.attn"


def chunked(q: Tensor, k: Tensor, v: Tensor, chunk: int = 64) -> Tensor:
    """elu(x) + 1 features, sums of chunks carried from one to the next; n has to be a multiple of the chunk."""
    q, k = functional.elu(q) + 1, functional.elu(k) + 1
    rows, keys, values = (x.flatten(0, 1).unflatten(1, (-1, chunk)) for x in (q, k, v))
    states = keys.mT @ values
    states = states.cumsum(1) - states  # of the chunks before
    counts = keys.sum(2)
    counts = counts.cumsum(1) - counts
    within = (rows @ keys.mT).tril_()
    total = within @ values + rows @ states
    count = within.sum(-1) + (rows @ counts[..., None])[..., 0]
    return (total / (count + 1e-6)[..., None]).view(*q.shape[:3], -1)


def best_of(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The shortest time of each, taken in turns."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=16384)
    parser.add_argument("--lengths", type=lambda text: [int(each) for each in text.split(",")], default=[])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    compiled = compile_source(read_source(SPEC))
    attention = load_module(compiled.text, compiled.spec.name).attention

    def drawn(n: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(1, options.heads, n, options.d, generator=generator) for _ in range(3)]

    q, k, v = drawn(options.n)
    runs: dict[str, Callable[[], object]] = {
        "the module": lambda: attention(q, k, v),
        "chunked by hand": lambda: chunked(q, k, v),
        "dense causal": lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    torch.testing.assert_close(attention(q, k, v), chunked(q, k, v), rtol=1e-4, atol=1e-5)
    best = best_of(runs, options.repeats)
    for name, seconds in best.items():
        print(f"{name:16} {1000 * seconds:9.1f} ms  {seconds / best['the module']:6.2f} times the module")
    for n in options.lengths:
        data = drawn(n)
        seconds = best_of({"": lambda: attention(*data)}, options.repeats)[""]  # noqa: B023
        print(f"n = {n:8,}  {1000 * seconds:9.1f} ms  {1e6 * seconds / n:6.2f} µs a row")


if __name__ == "__main__":
    main()
