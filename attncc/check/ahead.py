"""Kernels in C before the first call: a module is run once for each kernel that calls may need."""

from __future__ import annotations

from types import ModuleType

import torch

from attncc.check.bench import Setting, inputs_of
from attncc.check.layers.compare import called
from attncc.compiler import Built, CompiledLayer

_LENGTHS = (1, 80)  # few rows have small tiles


def compile_ahead(module: ModuleType, compiled: Built, width: int, dtype: str) -> None:
    """Fill the user's cache with the kernels of a module for vectors of one width and type, gradients and all.

    A layer has the widths of its parameters.

    Raises:
        RuntimeError: where there is no C compiler.
    """
    if not hasattr(module, "_c_command"):  # it has no attention
        return
    if module._c_command() is None:
        raise RuntimeError("no C compiler is found: gcc or clang, or what CC names")
    if isinstance(compiled, CompiledLayer):
        layer, inputs = called(module, compiled.plan, dtype=getattr(torch, dtype))
        leaves = [each for each in (*layer.parameters(), *inputs) if each.requires_grad]
        torch.autograd.grad(layer(*inputs).sum(), leaves, allow_unused=True)
        return
    for n in _LENGTHS:
        setting = Setting(n=n, heads=2, kv_heads=2, d=width, e=width, dtype=dtype, backward=True)
        given = inputs_of(compiled.spec, setting, torch.device("cpu"))
        leaves = [each for each in given.data if each.requires_grad]
        torch.autograd.grad(module.attention(*given.data, form="c"), leaves, given.d_out, allow_unused=True)
