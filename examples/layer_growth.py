"""How the forward time of layers grows with the length of the sequence.

`OMP_NUM_THREADS=1 python examples/layer_growth.py` takes the lengths in turns and prints the best time of each, in
milliseconds of the processor, and the last over the first: 16 for a layer that is linear from 4096 to 65,536 tokens.
Memory that one run frees is kept for the next, so that new pages from the system, which long tensors alone need, are
not what is measured; `--fresh` measures them too.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

import attncc

LAYERS = Path(__file__).parents[1] / "specs" / "layers"
LINEAR = ("linformer", "fastformer", "flash", "flash_causal", "efficient_attention", "lama", "nystromformer", "retnet")


def made(name: str, dim: int, longest: int) -> nn.Module:
    """The layer of a spec, with the largest length that it may see where it asks for that."""
    module: ModuleType = attncc.load(LAYERS / f"{name}.attn")
    layer = getattr(module, "".join(part.capitalize() for part in name.split("_")))
    return layer(dim, longest=longest) if name == "linformer" else layer(dim)


def best(layer: nn.Module, inputs: list[Tensor], repeats: int) -> list[float]:
    """The least time for each input, in milliseconds; the inputs take turns."""
    found = [float("inf")] * len(inputs)
    for _ in range(repeats):
        for at, x in enumerate(inputs):
            start = time.process_time()
            layer(x)
            found[at] = min(found[at], 1e3 * (time.process_time() - start))
    return found


def keep_memory() -> None:
    """Let glibc hold on to memory that is freed: no block is mapped by itself, and none given back."""
    trim_threshold, mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_threshold, 2**30)


def main() -> None:
    """Print a line for each layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default=",".join(LINEAR))
    parser.add_argument("--lengths", default="4096,16384,65536")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fresh", action="store_true")
    given = parser.parse_args()
    if not given.fresh:
        keep_memory()
    torch.manual_seed(0)
    lengths = [int(each) for each in given.lengths.split(",")]
    inputs = [torch.randn(1, n, given.dim) for n in lengths]
    print(f"{'layer':22}" + "".join(f"{n:>10}" for n in lengths) + f"{'growth':>9}")
    for name in given.layers.split(","):
        with torch.no_grad():
            times = best(made(name, given.dim, max(lengths)), inputs, given.repeats)
        print(f"{name:22}" + "".join(f"{each:10.1f}" for each in times) + f"{times[-1] / times[0]:9.1f}", flush=True)


if __name__ == "__main__":
    main()
