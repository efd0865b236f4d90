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


def chunked(q: Tensor, k: Tensor, v: Tensor, chunk: int = 64, segment: int = 512) -> Tensor:
    """elu(x) + 1 features, sums of chunks carried from one to the next; n has to be a multiple of the chunk.

    Segments of rows stay in the cache from their features to their results.
    """
    batch, heads, n, _ = q.shape
    out = q.new_empty(batch, heads, n, v.shape[-1])
    count = segment // chunk
    state = q.new_zeros(count + 1, batch * heads, k.shape[-1], v.shape[-1])  # of the chunks before each
    norm = q.new_zeros(count + 1, batch * heads, 1, k.shape[-1])

    def chunks(x: Tensor) -> Tensor:
        return x.reshape(-1, chunk, x.shape[-1])

    def features(x: Tensor) -> Tensor:
        return chunks(x.clamp(max=0).exp_().add_(x.relu()))

    for start in range(0, n, segment):
        rows, keys, values = (x[:, :, start : start + segment] for x in (q, k, v))
        count = rows.shape[2] // chunk
        rows, keys, values = features(rows), features(keys), chunks(values)
        own_state = torch.bmm(keys.mT, values).view(batch * heads, count, *state.shape[2:])
        own_norm = keys.sum(1).view(batch * heads, count, 1, -1)
        for each in range(count):
            torch.add(state[each], own_state[:, each], out=state[each + 1])
            torch.add(norm[each], own_norm[:, each], out=norm[each + 1])
        within = torch.bmm(rows, keys.mT).tril_()
        total = torch.bmm(within, values)
        total.baddbmm_(rows, state[:count].transpose(0, 1).flatten(0, 1))
        weight = within.sum(-1, keepdim=True)
        weight += (rows * norm[:count].transpose(0, 1).flatten(0, 1)).sum(-1, keepdim=True)
        out[:, :, start : start + segment] = total.div_(weight + 1e-6).view(batch, heads, -1, total.shape[-1])
        state[0], norm[0] = state[count], norm[count]
    return out


def best_of(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The shortest time of each, taken in turns; every round begins with another, as none may follow the same one."""
    best = dict.fromkeys(runs, float("inf"))
    names = list(runs)
    for turn in range(repeats):
        for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
            run = runs[name]
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
