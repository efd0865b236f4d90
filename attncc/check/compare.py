"""Comparison of a generated module with the oracle: forward, log-sum-exp and gradients, and a few properties.

A tensor is right if it stays within a limit that depends on the dtype alone, or, where the mathematics itself is
ill-conditioned, within a small multiple of what the dense formula loses in the same dtype. In 16-bit types the dense
formula is the only yardstick.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from attncc.check.oracle import dense, related
from attncc.check.sizes import Case, arguments, cases, make_inputs
from attncc.spec.model import Spec

TOLERANCE: dict[torch.dtype, float] = {  # norm of a row's error over the norm of the row
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 4e-3,  # 16 bit: used only where the dense formula overflows
    torch.bfloat16: 3e-2,
}
SMALL_ROW = 0.1  # a row counts as at least this part of the median row
ILL_CONDITIONED = 4.0  # 32 and 64 bit: so many times the error of the dense formula in the same dtype is right too
ROOT_MEAN_SQUARE = 1.1  # 16 bit: allowed error over that of the dense formula in the same dtype
MAXIMUM = 2.0
ULPS_ROOT_MEAN_SQUARE = 1.0  # 16 bit: allowed on top, in ulps of the row's largest value
ULPS_MAXIMUM = 1.0
NOISE = 16.0  # so many float32 (float64) roundings of the largest gradient: where exact gradients cancel to 0


Tensors = dict[str, Tensor]
Attention = Callable[..., tuple[Tensor, ...]]  # (q, k, v, **keywords) -> (out,) or (out, lse)
GRADIENTS = ("dq", "dk", "dv")
_TINY = 1e-300  # keeps 0 / 0 away


class HasAttention(Protocol):
    """What a generated module offers to a check."""

    attention: Callable[..., Any]


Module = HasAttention | ModuleType


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor of one case; `error` is its largest absolute error, `row_error` that of a row over the row, in norms.

    `used` is the part of the allowed error that was used: above 1 is wrong.
    """

    tensor: str
    error: float
    row_error: float
    used: float
    fault: str = ""  # what is wrong beyond a number: NaN, a shape, a dtype

    @property
    def ok(self) -> bool:
        """Within the limit and without a fault."""
        return not self.fault and self.used <= 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """One case of one form."""

    case: Case
    form: str | None
    comparisons: tuple[Comparison, ...]
    fault: str = ""  # the call itself failed

    @property
    def ok(self) -> bool:
        """Every tensor is right."""
        return not self.fault and all(each.ok for each in self.comparisons)

    @property
    def text(self) -> str:
        """One line: ok, or which tensors are wrong and by how much."""
        head = f"{self.form or 'default'}: {self.case.name}"
        if self.fault:
            return f"{head}: {self.fault}"
        wrong = [
            each.fault or f"{each.tensor} off by {each.error:.1e}, {each.used:.1f} times the limit"
            for each in self.comparisons
            if not each.ok
        ]
        return f"{head}: {'; '.join(wrong) or 'ok'}"


@dataclass(frozen=True, slots=True)
class Property:
    """A statement that must hold exactly, such as that outputs do not read later keys."""

    name: str
    form: str | None
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a check found."""

    verdicts: tuple[Verdict, ...]
    properties: tuple[Property, ...]

    @property
    def ok(self) -> bool:
        """Nothing failed, and something ran."""
        return bool(self.verdicts) and not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for each failing case or property."""
        found: tuple[Verdict | Property, ...] = (*self.verdicts, *self.properties)
        return tuple(each.text for each in found if not each.ok)

    @property
    def table(self) -> str:
        """One row for each form, dtype and tensor: the worst errors and the case that used most of its limit."""
        groups: dict[tuple[str, str, str], list[tuple[Comparison, Case]]] = {}
        for verdict in self.verdicts:
            dtype = str(verdict.case.dtype).removeprefix("torch.")
            for each in verdict.comparisons:
                groups.setdefault((verdict.form or "default", dtype, each.tensor), []).append((each, verdict.case))
        rows = [("form", "dtype", "tensor", "cases", "max error", "row error", "of limit", "worst case")]
        for key, found in groups.items():
            worst, case = max(found, key=lambda pair: (bool(pair[0].fault), pair[0].used))
            error, row_error = (max(getattr(each, name) for each, _ in found) for name in ("error", "row_error"))
            rows.append((*key, str(len(found)), f"{error:.1e}", f"{row_error:.1e}", f"{worst.used:.0%}", case.name))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )


def compare(
    module: Module, spec: Spec, case: Case, form: str | None = None, device: torch.device | str = "cpu"
) -> Verdict:
    """Forward and backward of `module.attention` against the oracle on the same rounded inputs."""
    inputs = make_inputs(case, device)
    with_lse = "return_lse" in inspect.signature(module.attention).parameters
    exact = _dense(spec, case, inputs, torch.float64, with_lse)
    try:
        found = _run(_attention(module, form, "lse" in exact), case, inputs)
    except Exception as error:  # noqa: BLE001  whatever a generated module raises is a finding
        return Verdict(case, form, (), f"raised {type(error).__name__}: {error}")
    return Verdict(case, form, _compare_all(spec, case, inputs, exact, found))


def _attention(module: Module, form: str | None, has_lse: bool) -> Attention:
    """The module's function with the keywords that it takes."""
    offered = inspect.signature(module.attention).parameters
    with_lse = has_lse and "return_lse" in offered
    fixed: dict[str, object] = {"return_lse": True} if with_lse else {}
    if form is not None and "form" in offered:
        fixed["form"] = form

    def call(q: Tensor, k: Tensor, v: Tensor, **keywords: Any) -> tuple[Tensor, ...]:
        result = module.attention(q, k, v, **keywords, **fixed)
        return tuple(result) if with_lse else (result,)

    return call


def _run(attention: Attention, case: Case, inputs: Mapping[str, Tensor]) -> Tensors:
    """out, lse if there is one, and the gradients dq, dk, dv of sum(out · g_out) + sum(lse · g_lse)."""
    leaves = [inputs[name].detach().requires_grad_() for name in ("q", "k", "v")]
    results = attention(*leaves, **arguments(case, inputs))
    upstream = [inputs[name] for name in ("g_out", "g_lse")]
    reached = [index for index, result in enumerate(results) if result.requires_grad]
    gradients = [torch.zeros_like(leaf) for leaf in leaves]
    if reached:
        outputs, seeds = [results[at] for at in reached], [upstream[at].to(results[at].dtype) for at in reached]
        gradients = list(torch.autograd.grad(outputs, leaves, seeds, materialize_grads=True))
    values = [result.detach() for result in results]
    return dict(zip(("out", "lse"), values, strict=False)) | dict(zip(("dq", "dk", "dv"), gradients, strict=True))


def _dense(spec: Spec, case: Case, inputs: Mapping[str, Tensor], dtype: torch.dtype, with_lse: bool = True) -> Tensors:
    """The dense formula in `dtype`, gradients by autograd, of the log-sum-exp too where it exists and is wanted."""

    def attention(q: Tensor, k: Tensor, v: Tensor, **keywords: Any) -> tuple[Tensor, ...]:
        result = dense(spec, q, k, v, dtype=dtype, **keywords)
        return (result.out,) if result.lse is None or not with_lse else (result.out, result.lse)

    converted = {name: inputs[name].to(dtype) for name in ("q", "k", "v", "g_out")}
    return _run(attention, case, {**inputs, **converted})


def _compare_all(
    spec: Spec, case: Case, inputs: Mapping[str, Tensor], exact: Tensors, found: Tensors
) -> tuple[Comparison, ...]:
    """One comparison for each tensor; the dense formula in the case's own dtype runs only where it is needed."""
    short = case.dtype in (torch.float16, torch.bfloat16)
    eager = cache(lambda: _dense(spec, case, inputs, case.dtype, "lse" in exact))
    gradients = max((float(exact[name].abs().max()) for name in GRADIENTS if exact[name].numel()), default=0.0)
    rounding = torch.finfo(torch.float32 if short else case.dtype).eps

    def compare_one(name: str) -> Comparison:
        fault = _fault(name, found[name], exact[name], case.dtype)
        if fault:
            return Comparison(name, math.nan, math.nan, math.inf, fault)
        noise = NOISE * rounding * {"out": 0.0, "lse": 1.0}.get(name, gradients)
        long = _measure(name, found[name], exact[name], TOLERANCE[case.dtype], noise)
        if short and eager()[name].isfinite().logical_or(~exact[name].isfinite()).all():
            return replace(long, used=_against_eager(found[name], exact[name], eager()[name], noise))
        if short or long.ok:
            return long
        mine, its = (
            _row_errors(name, each, exact[name], TOLERANCE[case.dtype], noise)[1]
            for each in (found[name], eager()[name])
        )
        parts = [float(of(mine) / (ILL_CONDITIONED * of(its)).clamp(min=1)) for of in (torch.max, torch.median)]
        return replace(long, used=max(parts))

    return tuple(compare_one(name) for name in found)


def _fault(name: str, found: Tensor, exact: Tensor, dtype: torch.dtype) -> str:
    """What is wrong with a tensor apart from its accuracy."""
    expected = dtype if name != "lse" else torch.promote_types(dtype, torch.float32)
    if found.shape != exact.shape:
        return f"{name} has shape {list(found.shape)}, not {list(exact.shape)}"
    if found.dtype != expected:
        return f"{name} is {found.dtype}, not {expected}"
    bad = found.isnan() & ~exact.isnan()
    if bad.any():
        return f"{name} has {int(bad.sum())} NaN, the first at {bad.nonzero()[0].tolist()}"
    bad = (found.double() != exact) & (found.isinf() | exact.isinf()) & (exact.isinf() | ~_overflows(exact, dtype))
    if bad.any():
        at = tuple(bad.nonzero()[0].tolist())
        return f"{name} is {float(found[at])} at {list(at)}, not {float(exact[at]):.4g}"
    return ""


def _overflows(exact: Tensor, dtype: torch.dtype) -> Tensor:
    return exact.abs() > torch.finfo(dtype).max


def _difference(found: Tensor, exact: Tensor) -> Tensor:
    """found - exact in float64, 0 where either is infinite (equal, or an overflow that the dtype explains)."""
    return torch.where(found.isfinite() & exact.isfinite(), found.double() - exact, 0)


def _measure(name: str, found: Tensor, exact: Tensor, tolerance: float, noise: float) -> Comparison:
    """The worst errors of a tensor, measured row by row."""
    if not exact.numel():
        return Comparison(name, 0.0, 0.0, 0.0)
    relative, used = _row_errors(name, found, exact, tolerance, noise)
    return Comparison(name, float(_difference(found, exact).abs().max()), float(relative.max()), float(used.max()))


def _row_errors(name: str, found: Tensor, exact: Tensor, tolerance: float, noise: float) -> tuple[Tensor, Tensor]:
    """Norms of the rows' errors, over the norms of the rows and over what is allowed; a row of lse is one number."""
    error, reference = _difference(found, exact), torch.where(exact.isfinite(), exact, 0)
    if name == "lse":
        error, reference = error[..., None], reference[..., None].abs().clamp(min=1)
    sizes = reference.norm(dim=-1)
    sizes = sizes.clamp(min=SMALL_ROW * _median(sizes[sizes > 0]))
    errors = error.norm(dim=-1)
    allowed = tolerance * sizes + noise * math.sqrt(error.shape[-1])
    return errors / (sizes + _TINY), errors / (allowed + _TINY)


def _median(values: Tensor) -> float:
    return float(values.median()) if values.numel() else 0.0


def _against_eager(found: Tensor, exact: Tensor, eager: Tensor, noise: float) -> float:
    """The used part of the limits that the dense formula in the same dtype sets, plus an ulp of a row's largest."""
    if not exact.numel():
        return 0.0
    error, yardstick = _difference(found, exact), _difference(eager, exact)
    rows = torch.where(exact.isfinite(), exact, 0).abs()
    rows = rows.amax(-1, keepdim=True) if exact.dim() == 4 else rows.clamp(min=1)
    ulp = torch.finfo(found.dtype).eps * rows.clamp(min=torch.finfo(found.dtype).tiny).log2().floor().exp2()
    maximum = MAXIMUM * yardstick.abs().max() + ULPS_MAXIMUM * ulp + noise
    root = ROOT_MEAN_SQUARE * _root_mean_square(yardstick) + ULPS_ROOT_MEAN_SQUARE * _root_mean_square(ulp) + noise
    return max(float((error.abs() / maximum).max()), float(_root_mean_square(error) / root))


def _root_mean_square(values: Tensor) -> Tensor:
    return values.square().mean().sqrt()


def check(
    module: Module,
    spec: Spec,
    forms: Sequence[str | None] = (None,),
    quick: bool = False,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[Verdict | Property], None] = lambda _: None,
) -> Report:
    """Every case and every property for each form; `progress` hears of each as it ends."""
    verdicts: list[Verdict] = []
    properties: list[Property] = []
    heads = head_counts(spec)
    for form in forms:
        for case in cases(seed, quick, heads, scale=spec.reads_scale):
            if form == "triton" and case.dtype == torch.float64:
                continue
            verdicts.append(compare(module, spec, case, form, device))
            progress(verdicts[-1])
        for probe in (causality, empty_rows, extreme_scores):
            try:
                found = probe(module, spec, form, heads[0], device)
            except Exception as error:  # noqa: BLE001  as in compare
                found = Property(
                    probe.__name__, form, False, f"{probe.__name__} raised {type(error).__name__}: {error}"
                )
            if found is not None:
                properties.append(found)
                progress(found)
    return Report(tuple(verdicts), tuple(properties))


def head_counts(spec: Spec) -> tuple[tuple[int, int], ...]:
    """The pairs (heads, kv_heads) to run: lists of constants in a spec may limit the number of heads."""

    def fits(heads: int) -> bool:
        one = torch.zeros(1, heads, 1, 1)
        try:
            dense(spec, one, one, one)
        except ValueError:
            return False
        return True

    usual = tuple(pair for pair in ((2, 2), (4, 2), (6, 1)) if fits(pair[0]))
    if usual:
        return usual
    most = max(filter(fits, range(1, 65)))
    return (most, most), (most, 1)


# Properties


def causality(
    module: Module, spec: Spec, form: str | None, heads: tuple[int, int] = (2, 2), device: torch.device | str = "cpu"
) -> Property | None:
    """If no row is related to a later key: later keys change no bit of an output and get no gradient from it."""
    case = _plain(heads, n=70, m=70)
    pairs = related(spec, 70, 70, heads[0], width=case.d, device=device)
    if pairs.triu(1).any():
        return None
    inputs = make_inputs(case, device)
    attention = _attention(module, form, has_lse=False)
    cut = 41
    q, k, v = (inputs[name].requires_grad_() for name in ("q", "k", "v"))
    out = attention(q, k, v)[0][:, :, :cut]
    dk, dv = torch.autograd.grad(out, (k, v), inputs["g_out"][:, :, :cut])
    later = torch.arange(70, device=device)[:, None] >= cut
    changed = attention(q, *(torch.where(later, 3 - each, each) for each in (k, v)))[0][:, :, :cut]
    if not torch.equal(out, changed):
        return Property("causality", form, False, f"{form or 'default'}: outputs change with later keys")
    leaked = bool((dk[:, :, cut:] != 0).any() or (dv[:, :, cut:] != 0).any())
    return Property(
        "causality",
        form,
        not leaked,
        f"{form or 'default'}: {'later keys get a gradient' if leaked else 'later keys have no effect'}",
    )


def empty_rows(
    module: Module, spec: Spec, form: str | None, heads: tuple[int, int] = (2, 2), device: torch.device | str = "cpu"
) -> Property:
    """A row without related keys gives exactly 0 and a gradient of exactly 0."""
    case = replace(_plain(heads, n=40, m=23), kv_lengths=(23, 0))
    inputs = make_inputs(case, device)
    pairs = related(spec, 40, 23, heads[0], batch=2, kv_lengths=inputs["kv_lengths"], width=case.d, device=device)
    empty = ~pairs.any(-1)
    found = _run(_attention(module, form, has_lse=False), case, inputs)
    wrong = [name for name in ("out", "dq") if (found[name][empty] != 0).any()]
    text = f"not exactly 0: {', '.join(wrong)}" if wrong else f"{int(empty.sum())} rows give exactly 0"
    return Property("rows without keys", form, not wrong, f"{form or 'default'}: rows without keys: {text}")


def extreme_scores(
    module: Module, spec: Spec, form: str | None, heads: tuple[int, int] = (2, 2), device: torch.device | str = "cpu"
) -> Property | None:
    """Scores near ±1e4 in float32 give finite results, if the exact results are finite."""
    case = _plain(heads, n=33, m=45)
    inputs = make_inputs(case, device)
    inputs |= {name: inputs[name] * 100 for name in ("q", "k")}
    with_lse = "return_lse" in inspect.signature(module.attention).parameters
    exact = _dense(spec, case, inputs, torch.float64, with_lse)
    if any((each.isnan() | _overflows(each, case.dtype)).any() for name, each in exact.items() if name != "lse"):
        return None
    found = _run(_attention(module, form, "lse" in exact), case, inputs)
    wrong = [name for name, each in found.items() if (each.isfinite() != exact[name].isfinite()).any()]
    text = f"not finite: {', '.join(wrong)}" if wrong else "finite"
    return Property("extreme scores", form, not wrong, f"{form or 'default'}: scores near 1e4: {text}")


def _plain(heads: tuple[int, int], n: int, m: int) -> Case:
    return Case(
        batch=2, heads=heads[0], kv_heads=heads[1], n=n, m=m, d=16, e=24, dtype=torch.float32, name=f"{heads} {n} {m}"
    )
