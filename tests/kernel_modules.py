"""Specs of expression nodes → modules of kernels and their launchers alone, for tests of what kernels read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

from modules import load_module

from attncc.diagnostics import Source, Span
from attncc.emit.c_form.module import with_kernels_in_c
from attncc.emit.finish import Finishing
from attncc.emit.torch_form.library import library
from attncc.emit.triton_form.host import TritonForm
from attncc.plan.choose import plan
from attncc.plan.model import Plan
from attncc.spec.data import Data, K, Q, Role, Size, V
from attncc.spec.expr import Binary, BinaryOp, Call, Compare, CompareOp, Const, Dot, Entry, Expr, Name, Symbol, Vector
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


def _unrounded(out, residual):
    return out.float() + residual if residual.shape[-1] else out.float()

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
    planned, path = write_kernels(spec, folder)
    return planned, load_module(path)


def write_kernels(spec: Spec, folder: Path) -> tuple[Plan, Path]:
    """The plan of a spec, and the file of its kernels."""
    planned = plan(spec)
    form = TritonForm(planned)
    kernels, launchers = form.kernel_text(), form.launchers()
    used = form.host_used | ({"_table"} if "_table(" in launchers else set())
    text = f"{_HEADER}\nif triton is not None:\n\n{kernels}\n\n{launchers}\n\n{library(frozenset(used))}"
    path = folder / f"kernels_{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    path.write_text(with_kernels_in_c(Finishing(text), wanted=False), encoding="utf-8")
    return planned, path


def op(sign: str, left: Expr, right: Expr) -> Expr:
    """Arithmetic."""
    return Binary(BinaryOp(sign), left, right)


def param(name: str, *axes: Size | int) -> Data:
    """A learned tensor."""
    return Data(name=name, role=Role.PARAMETER, axes=axes)


def given(name: str, *axes: Size | int) -> Data:
    """Whole numbers that the caller gives."""
    return Data(name=name, role=Role.INPUT, axes=axes, whole=True)


_HEAD, _AHEAD = Symbol(Name.HEAD), op("-", Symbol(Name.J), Symbol(Name.I))
PRODUCT = op("*", Symbol(Name.SCALE), Dot(Vector("q"), Vector("k")))
BIAS = Entry("bias", (_HEAD, Call("clip", (_AHEAD, Const(-8), Const(8)))))
BIASED = spec_of(op("+", PRODUCT, BIAS), param("bias", Size.HEADS, 17))
ADDITIVE = spec_of(
    Dot(Entry("a", (_HEAD,), is_vector=True), Call("tanh", (op("+", Vector("q"), Vector("k")),))),
    param("a", Size.HEADS, Size.WIDTH),
)
