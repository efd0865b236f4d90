"""Kernels in C before the first call: a module is run once for each kernel that calls may need."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from types import ModuleType

import torch

from attncc.check.bench import Setting, inputs_of
from attncc.check.calls import has_pieces, in_pieces
from attncc.check.layers.compare import called
from attncc.compiler import Built, CompiledLayer

_LENGTHS = (1, 80)  # few rows have small tiles
_LENGTHS_OF_LAYERS = (12, 21)
_THREADS = (1, 64)  # enough heads for all threads, or not: some kernels are for the one, some for the other


def compile_ahead(module: ModuleType, compiled: Built, width: int, dtype: str) -> None:
    """Fill the user's cache with the kernels of a module for vectors of one width and type, gradients and all.

    A layer has the widths of its parameters.

    Raises:
        RuntimeError: where there is no C compiler.
    """
    if not hasattr(module, "_c_found"):  # it has no attention
        return
    _, fault = module._c_found()
    if fault:
        raise RuntimeError(f"{fault}: kernels in C need a compiler, gcc or clang, or what CC names")
    threads = torch.get_num_threads()
    try:
        for count, pieces in product(_THREADS, (False, True) if has_pieces(module) else (False,)):
            torch.set_num_threads(count)
            with in_pieces(module) if pieces else nullcontext():
                _run(module, compiled, width, dtype)
    finally:
        torch.set_num_threads(threads)


def _run(module: ModuleType, compiled: Built, width: int, dtype: str) -> None:
    """A call forward and backward for every tile."""
    if isinstance(compiled, CompiledLayer):
        for n in _LENGTHS_OF_LAYERS:
            layer, inputs = called(module, compiled.plan, n, form="c")
            layer.to(getattr(torch, dtype))
            own = [
                each.to(getattr(torch, dtype)).requires_grad_() if each.is_floating_point() else each for each in inputs
            ]
            leaves = [each for each in (*layer.parameters(), *own) if each.requires_grad]
            torch.autograd.grad(layer(*own).sum(), leaves, allow_unused=True)
        return
    for n in _LENGTHS:
        setting = Setting(n=n, heads=2, kv_heads=2, d=width, e=width, dtype=dtype, backward=True)
        given = inputs_of(compiled.spec, setting, torch.device("cpu"))
        leaves = [each for each in given.data if each.requires_grad]
        torch.autograd.grad(module.attention(*given.data, form="c"), leaves, given.d_out, allow_unused=True)
