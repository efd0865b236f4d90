"""How long a step takes after a short and after a long context: `python examples/decoding.py [NAME …]`.

Modules are those of `generated/` whose attention takes q, k and v alone; a step that reads a bounded state should take
as long after 100,000 tokens as after 100. The two are timed in turn.
"""

from __future__ import annotations

import statistics
import sys
import time
from importlib import import_module
from pathlib import Path

import torch

CONTEXTS = (100, 100_000)
HEADS, WIDTH = 8, 64
ROUNDS, STEPS = 40, 4  # few steps a round: the short context has to stay short


def main(names: list[str]) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    torch.manual_seed(0)
    for name in names or ["linear_transformer_causal", "sliding_window", "windowed_linear"]:
        times = measured(name)
        short, long = (statistics.median(times[each]) * 1e6 for each in CONTEXTS)
        print(f"{name}: {short:.0f} µs after {CONTEXTS[0]:,} tokens, {long:.0f} µs after {CONTEXTS[1]:,}, "
              f"{long / short:.2f} times as long")  # fmt: skip


def measured(name: str) -> dict[int, list[float]]:
    """Seconds of steps, by the length of the context before them."""
    module = import_module(f"generated.{name}")
    caches = {each: module.prefill(*tokens(each), form="torch")[1] for each in CONTEXTS}
    times: dict[int, list[float]] = {each: [] for each in CONTEXTS}
    for _ in range(ROUNDS):
        for context, cache in caches.items():
            for _ in range(STEPS):
                new = tokens(1)
                started = time.perf_counter()
                module.step(*new, cache)
                times[context].append(time.perf_counter() - started)
    return times


def tokens(count: int) -> tuple[torch.Tensor, ...]:
    """q, k and v of so many tokens."""
    return tuple(torch.randn(1, HEADS, count, WIDTH) for _ in range(3))


if __name__ == "__main__":
    main(sys.argv[1:])
