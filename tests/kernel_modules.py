"""Specs of expression nodes → modules of kernels and their launchers alone, for tests of what kernels read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

from modules import load_module

from attncc.diagnostics import Source, Span
from attncc.emit.finish import finish
from attncc.emit.torch_library import library
from attncc.emit.triton_host import TritonForm
from attncc.plan.choose import plan
from attncc.plan.model import Plan
from attncc.spec.data import Data, K, Q, V
from attncc.spec.expr import Call, Compare, CompareOp, Expr, Name, Symbol
from attncc.spec.model import Spec

_SOURCE = Source("test.attn", "")
_SPAN = Span(_SOURCE, 1, 1, 1, 1)
EXP = Call("exp", (Symbol(Name.SCORE),))
CAUSAL = Compare(CompareOp.LESS_EQUAL, Symbol(Name.J), Symbol(Name.I))

_HEADER = """
import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor


def _wide(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32

"""


def spec_of(
    score: Expr,
    *data: Data,
    weight: Expr = EXP,
    normalizer: Expr = Symbol(Name.ROWS),  # noqa: B008 - a frozen value
    pattern: Expr = CAUSAL,
) -> Spec:
    """A spec whose expressions are given."""
    return Spec(
        name="test",
        summary="",
        source=_SOURCE,
        span=_SPAN,
        parameters=(),
        pattern=pattern,
        score=score,
        weight=weight,
        normalizer=normalizer,
        data=(Q, K, V, *data),
    )


def kernels_of(spec: Spec, folder: Path) -> tuple[Plan, ModuleType]:
    """The plan of a spec, and a module with `_launch_forward` and `_launch_backward`."""
    planned = plan(spec)
    form = TritonForm(planned)
    kernels, launchers = form.kernel_text(), form.launchers()
    used = form.host_used | ({"_table"} if "_table(" in launchers else set())
    text = f"{_HEADER}\nif triton is not None:\n\n{kernels}\n\n{launchers}\n\n{library(frozenset(used))}"
    path = folder / f"kernels_{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    path.write_text(finish(text), encoding="utf-8")
    return planned, load_module(path)
