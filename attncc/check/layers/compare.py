"""Comparison of a layer's module with what the layer means: outputs, gradients of inputs and of every parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from attncc.check.layers.chosen import Choices, recorded
from attncc.check.layers.dense import Evaluation
from attncc.check.layers.sizes import LayerCase, cases_of, gradient_of, parameters_of, tensors_of
from attncc.check.report import Comparison, Property, Report, Verdict
from attncc.emit.layers.module import camel_case
from attncc.plan.layers import LayerPlan
from attncc.spec.layers.dims import blocks_of, sequence_of
from attncc.spec.layers.model import Kind, Layer, Type

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 3e-5}  # norm of a row's error over the norm of the row
_ILL_CONDITIONED = 4.0  # so many times the error of the dense evaluation in the same dtype is right too
_ROOT_MEAN_SQUARE = 1.5  # 16 bit: allowed error over that of the dense evaluation in the same dtype
_MAXIMUM = 3.0
_ULPS = 2.0  # 16 bit: allowed on top, in ulps of the largest entry
_RUNS = 6  # of nearby inputs, where one run alone may be right by luck
_TINY = 1e-300
_NOISE = 8.0  # so many roundings of the largest gradient: where exact gradients cancel to 0
Tensors = dict[str, Tensor]


def made_of(module: ModuleType, layer: Layer, parameters: Mapping[str, int | float], **options: Any) -> nn.Module:
    """The layer's module with these parameters."""
    own = {each.name: parameters[each.name] for each in layer.parameters if not each.fixed}
    made: nn.Module = getattr(module, camel_case(layer.name))(**own, **options)
    return made


def run(
    module: nn.Module, layer: Layer, case: LayerCase, tensors: Tensors, device: torch.device | str = "cpu"
) -> Tensors:
    """Output and gradients of a module whose parameters have the values of `tensors`."""
    module = _filled(module.to(device, case.dtype).train(case.training), tensors)
    given = {each.name: _leaf(tensors[each.name].to(device), case.dtype) for each in layer.inputs}
    lengths = {
        _argument(name): None if each is None else torch.tensor(each, device=device) for name, each in case.lengths
    }
    out = module(*given.values(), **lengths)
    leaves = {name: each for name, each in (*given.items(), *module.named_parameters()) if each.requires_grad}
    found = {"out": out.detach()} | _gradients(out, leaves, gradient_of(out, case).to(device))
    if case.training:
        found |= {f"{name} after it": each.clone() for name, each in module.named_buffers()}
    return {name: each.cpu() for name, each in found.items()}


def _filled(module: nn.Module, tensors: Tensors) -> nn.Module:
    """A module with the numbers of these tensors."""
    module.load_state_dict({name: tensors[name] for name in module.state_dict()})
    return module


def run_dense(
    layer: Layer,
    case: LayerCase,
    tensors: Tensors,
    parameters: Mapping[str, int | float],
    dtype: torch.dtype,
    choices: Choices | None = None,
) -> Tensors:
    """The same by the meaning of the layer, computed in `dtype`."""
    fixed = {each.name for each in layer.learned if each.is_fixed}
    leaves = {name: each.to(dtype) if name in fixed else _leaf(each, dtype) for name, each in tensors.items()}
    lengths = {name: None if each is None else torch.tensor(each) for name, each in case.lengths}
    evaluation = Evaluation(layer, parameters, leaves, lengths, dtype, choices, case.training)
    out = evaluation.out()
    running = {each.name for each in layer.learned if each.is_running}
    real = {name: each for name, each in leaves.items() if each.requires_grad and name not in running}
    found = {"out": out.detach()} | _gradients(out, real, gradient_of(out, case))
    return found | {f"{name} after it": evaluation.running[name] for name in running if case.training}


def _argument(name: str) -> str:
    return "lengths" if name == "n" else "m_lengths"


def _leaf(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype).requires_grad_() if tensor.is_floating_point() else tensor


def _gradients(out: Tensor, leaves: Mapping[str, Tensor], gradient: Tensor) -> Tensors:
    found = torch.autograd.grad(out, list(leaves.values()), gradient.to(out.dtype), allow_unused=True)
    return {
        f"d_{name}": torch.zeros_like(leaf) if each is None else each
        for (name, leaf), each in zip(leaves.items(), found, strict=True)
    }


def compare(
    module: ModuleType, layer: Layer, case: LayerCase, form: str | None = None, device: torch.device | str = "cpu"
) -> Verdict:
    """One case against float64; in 16 bits against what the dense evaluation is off by, here or a rounding away."""
    parameters = parameters_of(layer)
    tensors = tensors_of(layer, case, parameters)
    made = made_of(module, layer, parameters, form=form)
    try:
        with recorded(module, layer) as choices:
            found = run(made, layer, case, tensors, device)
    except Exception as error:  # noqa: BLE001  whatever a module raises is a finding
        return Verdict(case.as_case(), form, (), f"raised {type(error).__name__}: {error}")
    if case.dtype == torch.float64:  # there rounding decides nothing: the dense evaluation chooses for itself
        choices = {}
    exact = run_dense(layer, case, tensors, parameters, torch.float64, choices)

    @cache
    def losses(name: str, seed: int | None) -> Tensor:
        its, true = runs(seed)
        return its[name].double() - true[name]

    @cache
    def runs(seed: int | None) -> tuple[Tensors, Tensors]:
        moved = tensors if seed is None else {name: _moved(each, case.dtype, seed) for name, each in tensors.items()}
        true = exact if seed is None else run_dense(layer, case, moved, parameters, torch.float64, choices)
        return run_dense(layer, case, moved, parameters, case.dtype, choices), true

    gradients = [each for name, each in exact.items() if name.startswith("d_") and each.numel()]
    largest = max((float(each.abs().max()) for each in gradients), default=0.0)
    comparisons = []
    for name, each in found.items():
        one = _measured(name, each, exact[name], case.dtype, largest)
        seeds: list[int | None] = [None]
        while not one.fault and (one.used > 1 or (len(seeds) == 1 and case.dtype not in _TOLERANCE)):
            yardstick = torch.stack([losses(name, seed) for seed in seeds])
            one = _against(one, each.double() - exact[name], yardstick, exact[name], case.dtype, largest)
            if one.used <= 1 or len(seeds) > 1:
                break
            seeds += range(_RUNS)
        comparisons.append(one)
    return Verdict(case.as_case(), form, tuple(comparisons))


def _moved(x: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """Every number up or down by about one unit in its last place."""
    if not x.is_floating_point():
        return x
    signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return (x * (1 + signs * torch.finfo(dtype).eps)).to(dtype).double()


def _measured(name: str, found: Tensor, exact: Tensor, dtype: torch.dtype, largest: float) -> Comparison:
    if found.shape != exact.shape or found.dtype != dtype:
        fault = f"{name} is {found.dtype} {list(found.shape)}, not {dtype} {list(exact.shape)}"
        return Comparison(name, float("nan"), float("nan"), float("inf"), fault)
    if not found.isfinite().all() and exact.isfinite().all():
        return Comparison(name, float("nan"), float("nan"), float("inf"), f"{name} has NaN or infinity")
    if not exact.numel():
        return Comparison(name, 0.0, 0.0, 0.0)
    error = (found.double() - exact).reshape(-1, exact.shape[-1] if exact.dim() else 1)
    rows = exact.reshape(error.shape).norm(dim=-1)
    rows = rows.clamp(min=float(0.1 * rows.median()))
    noise = 0.0 if name == "out" else _NOISE * torch.finfo(dtype).eps * largest * error.shape[-1] ** 0.5
    allowed = _TOLERANCE.get(dtype, 0.0) * rows + noise + _TINY
    worst = float((error.norm(dim=-1) / rows.masked_fill(rows == 0, float("inf"))).max())  # of 0 there is no share
    return Comparison(name, float(error.abs().max()), worst, float((error.norm(dim=-1) / allowed).max()))


def _against(
    plain: Comparison, error: Tensor, yardstick: Tensor, exact: Tensor, dtype: torch.dtype, largest: float
) -> Comparison:
    """What the dense evaluation loses in the same dtype, in one run or several, is the yardstick."""
    beyond = torch.finfo(dtype).max  # where the dense evaluation overflows or has no value
    yardstick = yardstick.nan_to_num(beyond, beyond, -beyond)
    most = float(yardstick.abs().max()) if yardstick.numel() else 0.0
    if dtype in _TOLERANCE:
        limit = _ILL_CONDITIONED * most + _TINY
        return replace(plain, used=min(plain.used, float(error.abs().max()) / limit))
    ulp = _ULPS * torch.finfo(dtype).eps * float(exact.abs().max())
    noise = 0.0 if plain.tensor == "out" else torch.finfo(dtype).eps * largest / 8
    maximum = float(error.abs().max()) / (_MAXIMUM * most + ulp + noise + _TINY)
    root = _ROOT_MEAN_SQUARE * float(yardstick.square().mean().sqrt()) + ulp + noise + _TINY
    return replace(plain, used=max(maximum, float(error.square().mean().sqrt()) / root))


def check_layer(
    module: ModuleType,
    plan: LayerPlan,
    forms: tuple[str | None, ...] = (None,),
    quick: bool = False,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[Verdict | Property], None] = lambda _: None,
) -> Report:
    """Every case for each form, and what has to hold exactly."""
    layer = plan.layer
    verdicts: list[Verdict] = []
    for form in forms:
        for case in cases_of(layer, quick):
            if form == "triton" and case.dtype == torch.float64:
                continue
            verdicts.append(compare(module, layer, case, form, device))
            progress(verdicts[-1])
    properties = [each(module, plan) for each in (_state_round_trip, _causal, _steps)]
    found = tuple(each for each in properties if each is not None)
    return Report(tuple(verdicts), found)


def called(
    module: ModuleType, plan: LayerPlan, count: int = 21, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[nn.Module, list[Tensor]]:
    """A module with drawn parameters, and inputs of so many tokens."""
    layer = plan.layer
    case = LayerCase("property", 2, tuple((name, count) for name in layer.sequences), (), dtype)
    parameters = parameters_of(layer)
    tensors = tensors_of(layer, case, parameters)
    made = _filled(made_of(module, layer, parameters, **options).double().eval(), tensors)
    return made, [tensors[each.name] for each in layer.inputs]


def _state_round_trip(module: ModuleType, plan: LayerPlan) -> Property:
    made, inputs = called(module, plan)
    other = made_of(module, plan.layer, parameters_of(plan.layer)).double().eval()
    other.load_state_dict(made.state_dict())
    ok = torch.equal(made(*inputs), other(*inputs)) and made.state_dict().keys() == {
        each.name for each in plan.layer.learned
    }
    return Property("state", None, ok, f"a state dict {'carries' if ok else 'does not carry'} the parameters over")


def _token_axis(type_: Type) -> int | None:
    """Which axis of a tensor holds tokens, the batch axis counted."""
    found = [at + 1 for at, each in enumerate(type_.axes) if sequence_of(each) is not None]
    return found[0] if found else None


def _some_tokens(type_: Type, x: Tensor, start: int, stop: int) -> Tensor:
    axis = _token_axis(type_)
    return x if axis is None else x.narrow(axis, start, stop - start)


def _causal(module: ModuleType, plan: LayerPlan) -> Property | None:
    if not plan.is_causal:
        return None
    layer, count = plan.layer, 45
    made, inputs = called(module, plan, count)
    by = next(each for each in map(blocks_of, layer.out.type.axes) if each is not None)
    block = by.length(parameters_of(layer))  # type: ignore[arg-type]  # real ones are in no axis
    whole, ok = made(*inputs), True
    for cut in (13, 32):
        changed = [_with_others(each.type, x, cut, count) for each, x in zip(layer.inputs, inputs, strict=True)]
        before, after = (_some_tokens(layer.out.type, out, 0, -(-cut // block)) for out in (whole, made(*changed)))
        ok = ok and torch.allclose(before, after, rtol=1e-12, atol=1e-12)
    return Property("causal", None, ok, f"tokens {'read' if ok else 'do not read'} earlier ones alone")


def _with_others(type_: Type, x: Tensor, start: int, stop: int) -> Tensor:
    """The same with other numbers at some tokens."""
    axis = _token_axis(type_)
    if axis is None or type_.kind is not Kind.REAL:
        return x
    own = torch.arange(start, stop)
    return x.index_copy(axis, own, 3 - 2 * x.index_select(axis, own.flip(0)))


def _steps(module: ModuleType, plan: LayerPlan) -> Property | None:
    if plan.decoding:
        return None
    made, inputs = called(module, plan)
    layer = plan.layer

    def some(start: int, stop: int) -> list[Tensor]:
        return [_some_tokens(each.type, x, start, stop) for each, x in zip(layer.inputs, inputs, strict=True)]

    whole = made(*inputs).detach()
    out, cache = made.prefill(*some(0, 9))  # type: ignore[operator]
    parts = [out]
    for start, stop in ((9, 10), (10, 11), (11, 16), (16, 21)):
        out, cache = made.step(*some(start, stop), cache)  # type: ignore[operator]
        parts.append(out)
    axis = _token_axis(layer.out.type)
    assert axis is not None
    error = float((torch.cat(parts, axis) - whole).abs().max())
    ok = error <= 1e-10 * max(float(whole.abs().max()), 1.0)
    text = f"`prefill` and `step` {'equal' if ok else 'differ from'} the forward pass, by {error:.1e}"
    return Property("steps", None, ok, text)
