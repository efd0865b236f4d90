"""Comparison of a generated module with the oracle: forward, log-sum-exp and gradients, and a few properties.

A tensor is right if it stays within a limit that depends on the dtype alone, or, where the mathematics itself is
ill-conditioned, within a small multiple of what the dense formula loses in the same dtype. In 16-bit types the dense
formula is the only yardstick, and where it seems better than the module it is asked again (`nearby`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import product

import torch
from torch import Tensor

from attncc.check.calls import (
    Module,
    Tensors,
    attention_of,
    gradient_name,
    has_pieces,
    in_pieces,
    inputs_of,
    offers_choices,
    offers_lse,
    run,
    run_dense,
    ways_of,
)
from attncc.check.choices import faults, with_choices
from attncc.check.fit import cases_of, fits_everywhere, head_counts, rounds_vectors
from attncc.check.nearby import dense_nearby
from attncc.check.oracle import OutsideTable
from attncc.check.properties import PROBES
from attncc.check.report import Comparison, Property, Report, Verdict
from attncc.check.sizes import G_OUT, Case
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
NOISE_OF_FEATURES = 64.0  # the same by states, where sums over features cancel in place of pairs


_TINY = 1e-300  # keeps 0 / 0 away


def compare(
    module: Module, spec: Spec, case: Case, form: str | None = None, device: torch.device | str = "cpu"
) -> Verdict:
    """Forward and backward of `module.attention` against the oracle on the same rounded inputs.

    Raises:
        OutsideTable: where the case itself reads beside a table of the spec (`fit.cases_of` makes none that does), or
            where the module refuses it because an index would at a pair that is not related.
    """
    inputs = inputs_of(spec, case, device)
    try:
        inputs = with_choices(module, form, spec, case, inputs)
        wrong = faults(spec, case, inputs) if offers_choices(module) else []
    except Exception as error:  # noqa: BLE001  what a module raises is a finding
        return _raised(spec, case, form, error)
    exact = run_dense(spec, case, inputs, torch.float64, offers_lse(module))
    if exact["out"].isnan().any():
        return Verdict(
            case, form, (), "the spec has no value here: of what is drawn, N(0, 1), its own formula makes NaN"
        )
    try:
        found = run(attention_of(module, form, "lse" in exact), spec, case, inputs)
    except Exception as error:  # noqa: BLE001  what a module raises is a finding
        return _raised(spec, case, form, error)
    if wrong:
        return Verdict(case, form, (), "; ".join(wrong))
    roundings = NOISE_OF_FEATURES if form is not None and form.endswith("linear") else NOISE
    return Verdict(case, form, _compare_all(spec, case, inputs, exact, found, roundings))


def _raised(spec: Spec, case: Case, form: str | None, error: Exception) -> Verdict:
    """What a module's error means: a fault, unless the case reads beside a table."""
    if isinstance(error, ValueError) and not fits_everywhere(spec, case):
        raise OutsideTable(str(error)) from error
    return Verdict(case, form, (), f"raised {type(error).__name__}: {error}")


def _compare_all(
    spec: Spec, case: Case, inputs: Mapping[str, Tensor], exact: Tensors, found: Tensors, roundings: float
) -> tuple[Comparison, ...]:
    """One comparison for each tensor; the dense formula in the case's own dtype runs only where it is needed."""
    short = case.dtype in (torch.float16, torch.bfloat16)
    eager = cache(lambda: (exact, run_dense(spec, case, inputs, case.dtype, "lse" in exact)))
    nearby = cache(lambda: [eager(), *dense_nearby(spec, case, inputs, "lse" in exact)])
    tables = {gradient_name(each.name) for each in spec.data if not each.is_token}
    largest = {name: float(each.abs().max()) for name, each in exact.items() if each.numel() and name[0] == "d"}
    of_tokens = max((each for name, each in largest.items() if name not in tables), default=0.0)
    if spec.combine is not None:  # what reaches the branches may cancel, to exactly 0 where one key is all they see
        of_tokens = max(of_tokens, float(inputs[G_OUT].abs().max()) if inputs[G_OUT].numel() else 0.0)
    of_all = max([of_tokens, *largest.values()])
    rounding = torch.finfo(torch.float32 if short else case.dtype).eps

    def compare_one(name: str) -> Comparison:
        fault = _fault(name, found[name], exact[name], case.dtype)
        if fault:
            return Comparison(name, math.nan, math.nan, math.inf, fault)
        noise = roundings * rounding * {"out": 0.0, "lse": 1.0}.get(name, of_all if name in tables else of_tokens)
        long = _measure(name, found[name], exact[name], TOLERANCE[case.dtype], noise)
        if short and eager()[1][name].isfinite().logical_or(~exact[name].isfinite()).all():
            own = case.dtype if name == "lse" and rounds_vectors(spec) else found[name].dtype
            eps = torch.finfo(own).eps

            def part(runs: Sequence[tuple[Tensors, Tensors]]) -> float:
                yardsticks = [_difference(its[name], true[name]) for true, its in runs]
                return _against_eager(name, found[name], exact[name], torch.stack(yardsticks), noise, eps)

        elif short or long.ok:
            return long
        else:

            def part(runs: Sequence[tuple[Tensors, Tensors]]) -> float:
                mine, *its = (
                    _row_errors(name, each[name], true[name], TOLERANCE[case.dtype], noise)[1]
                    for true, each in ((exact, found), *runs)
                )
                limits = (ILL_CONDITIONED * torch.stack(its)).clamp(min=1)
                return max(float(mine.max() / limits.max()), float(mine.median() / limits.median()))

        used = part([eager()])
        return replace(long, used=used if used <= 1 else part(nearby()))

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
    error, reference = (each if each.dim() else each[None] for each in (error, reference))
    if name == "lse":
        error, reference = error[..., None], reference[..., None].abs().clamp(min=1)
    sizes = reference.norm(dim=-1)
    sizes = sizes.clamp(min=SMALL_ROW * _median(sizes[sizes > 0]))
    errors = error.norm(dim=-1)
    allowed = tolerance * sizes + noise * math.sqrt(error.shape[-1])
    return errors / sizes.masked_fill(sizes == 0, float("inf")), errors / (allowed + _TINY)  # of 0 there is no share


def _median(values: Tensor) -> float:
    return float(values.median()) if values.numel() else 0.0


def _against_eager(name: str, found: Tensor, exact: Tensor, yardstick: Tensor, noise: float, eps: float) -> float:
    """The used part of the limits that the dense formula in the same dtype sets, plus an ulp of a row's largest.

    `yardstick` is what it is off by, in some runs; `eps` is an ulp of 1: that of the tensor, or of what it is made of
    where that is rounded on the way.
    """
    if not exact.numel():
        return 0.0
    error = _difference(found, exact)
    rows = torch.where(exact.isfinite(), exact, 0).abs()
    rows = rows.clamp(min=1) if name == "lse" else rows.amax(-1, keepdim=True)
    ulp = eps * rows.clamp(min=torch.finfo(found.dtype).tiny).log2().floor().exp2()
    maximum = MAXIMUM * yardstick.abs().max() + ULPS_MAXIMUM * ulp + noise
    root = ROOT_MEAN_SQUARE * _root_mean_square(yardstick) + ULPS_ROOT_MEAN_SQUARE * _root_mean_square(ulp) + noise
    return max(float((error.abs() / maximum).max()), float(_root_mean_square(error) / root))


def _root_mean_square(values: Tensor) -> Tensor:
    return values.square().mean().sqrt()


def _of_kinds(cases: Sequence[Case], most: int | None) -> tuple[Case, ...]:
    """The cases of the first few types and widths."""
    known = tuple(dict.fromkeys((case.dtype, case.d, case.e) for case in cases))[:most]
    return tuple(case for case in cases if (case.dtype, case.d, case.e) in known)


def check(
    module: Module,
    spec: Spec,
    forms: Sequence[str | None] = (None,),
    quick: bool = False,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[Verdict | Property], None] = lambda _: None,
    kinds: int | None = None,
) -> Report:
    """Every case and every property for each form; `progress` hears of each as it ends.

    `kinds` is how many combinations of a type and widths there are at most: each is compiled for itself.
    """
    verdicts: list[Verdict] = []
    properties: list[Property] = []
    heads, chosen = head_counts(spec), _of_kinds(cases_of(spec, seed, quick), kinds)
    forms = [way for form in forms for way in ways_of(module, form)]
    for form, pieces in product(forms, (False, True) if has_pieces(module) else (False,)):
        for case in chosen:
            if form == "triton" and case.dtype == torch.float64:
                continue
            try:
                with in_pieces(module) if pieces else nullcontext():
                    verdicts.append(replace(compare(module, spec, case, form, device), in_pieces=pieces))
            except OutsideTable:  # an index that the data themselves decide
                continue
            progress(verdicts[-1])
    for form in forms:
        for probe in PROBES:
            try:
                found = probe(module, spec, form, heads[0], device)
            except OutsideTable:
                continue
            except Exception as error:  # noqa: BLE001  as in compare
                found = Property(
                    probe.__name__, form, False, f"{probe.__name__} raised {type(error).__name__}: {error}"
                )
            if found is not None:
                properties.append(found)
                progress(found)
    return Report(tuple(verdicts), tuple(properties))
