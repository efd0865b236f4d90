"""Calls of a module and of the oracle on the inputs of a case: outputs and gradients, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from attncc.check.drawn import drawn
from attncc.check.fit import whole_values
from attncc.check.given import output_width
from attncc.check.oracle import dense
from attncc.check.sizes import G_LSE, G_OUT, Case, arguments, make_inputs, shape_of
from attncc.spec.choices import choices_of
from attncc.spec.model import Spec

Tensors = dict[str, Tensor]
Attention = Callable[..., tuple[Tensor, ...]]  # (*data, **keywords) -> (out,) or (out, lse)


class HasAttention(Protocol):
    """What a generated module offers to a check."""

    attention: Callable[..., Any]


Module = HasAttention | ModuleType


def gradient_name(name: str) -> str:
    """dq, d_bias"""
    return f"d{name}" if len(name) == 1 else f"d_{name}"


def inputs_of(spec: Spec, case: Case, device: torch.device | str = "cpu") -> Tensors:
    """What a spec is called with in a case, and the gradients of its outputs."""
    shapes = {each.name: torch.Size(shape_of(each, case)) for each in spec.data}
    given = drawn(spec, case)
    inputs = make_inputs(case, device, spec.data, output_width(spec, shapes), given)
    for name, values in whole_values(spec).items():  # drawn anew where most would lie outside a table
        if name not in given:
            inputs[name] = torch.tensor(values, device=device)[inputs[name] % len(values)]
    unsorted = [each.name for each in spec.data if each.ascending and each.name not in given]
    return inputs | {name: inputs[name].sort(-1).values for name in unsorted}


_LEAST_KEYS = "_LEAST_KEYS"  # of a module: the least number of keys whose pattern runs in pieces


def has_pieces(module: Module) -> bool:
    """Whether long calls of the module take the pattern in pieces."""
    return any(name.startswith(_LEAST_KEYS) for name in vars(module))


@contextmanager
def in_pieces(module: Module) -> Iterator[None]:
    """Calls of any length take the pattern in pieces."""
    lengths = {name: value for name, value in vars(module).items() if name.startswith(_LEAST_KEYS)}
    vars(module).update(dict.fromkeys(lengths, 0))
    try:
        yield
    finally:
        vars(module).update(lengths)


def ways_of(module: Module, form: str | None) -> tuple[str | None, ...]:
    """The form, once for each plan that the module can be told to take in it: `torch linear`, `torch blocked`."""
    if "plan" not in inspect.signature(module.attention).parameters:
        return (form,)
    return tuple(f"{form or 'torch'} {plan}" for plan in ("blocked", "linear"))


def offers_lse(module: Module) -> bool:
    """Whether the module's function returns log-sum-exp on request."""
    return "return_lse" in inspect.signature(module.attention).parameters


def offers_choices(module: Module) -> bool:
    """Whether the module's function chooses by comparing, and returns what it chose on request."""
    return "return_choices" in inspect.signature(module.attention).parameters


def choice_name(name: str) -> str:
    """What a choice is called among inputs, beside names of data, which have no spaces."""
    return f"choice {name}"


def attention_of(module: Module, form: str | None, with_lse: bool) -> Attention:
    """The module's function with the keywords that it takes; a form may come with a plan, as in `torch linear`."""
    offered = inspect.signature(module.attention).parameters
    with_lse = with_lse and offers_lse(module)
    fixed: dict[str, object] = {"return_lse": True} if with_lse else {}
    name, _, plan = (form or "").partition(" ")
    if name and "form" in offered:
        fixed["form"] = name
    if plan and "plan" in offered:
        fixed["plan"] = plan

    def call(*data: Tensor, **keywords: Any) -> tuple[Tensor, ...]:
        result = module.attention(*data, **keywords, **fixed)
        return tuple(result) if with_lse else (result,)

    return call


def run(attention: Attention, spec: Spec, case: Case, inputs: Mapping[str, Tensor]) -> Tensors:
    """out, lse if there is one, and the gradients of sum(out · g_out) + sum(lse · g_lse) by all data that are real."""
    data = {each.name: inputs[each.name].detach().requires_grad_(each.is_real) for each in spec.data}
    results = attention(*data.values(), **arguments(case, inputs))
    leaves = {name: each for name, each in data.items() if each.requires_grad}
    upstream = [inputs[name] for name in (G_OUT, G_LSE)]
    reached = [index for index, result in enumerate(results) if result.requires_grad]
    gradients = [torch.zeros_like(leaf) for leaf in leaves.values()]
    if reached:
        outputs, seeds = [results[at] for at in reached], [upstream[at].to(results[at].dtype) for at in reached]
        gradients = list(torch.autograd.grad(outputs, list(leaves.values()), seeds, materialize_grads=True))
    values = [result.detach() for result in results]
    named = dict(zip(map(gradient_name, leaves), gradients, strict=True))
    return dict(zip(("out", "lse"), values, strict=False)) | named


def run_dense(
    spec: Spec, case: Case, inputs: Mapping[str, Tensor], dtype: torch.dtype, with_lse: bool = True
) -> Tensors:
    """The dense formula in `dtype`, gradients by autograd, of the log-sum-exp too where it exists and is wanted.

    Choices are those among the inputs, if there are any.
    """

    choices = {
        each.name: inputs[choice_name(each.name)] for each in choices_of(spec) if choice_name(each.name) in inputs
    }

    def attention(*data: Tensor, **keywords: Any) -> tuple[Tensor, ...]:
        result = dense(spec, *data, dtype=dtype, choices=choices, **keywords)
        return (result.out,) if result.lse is None or not with_lse else (result.out, result.lse)

    real = [each.name for each in spec.data if each.is_real]
    return run(attention, spec, case, {**inputs, **{name: inputs[name].to(dtype) for name in (*real, G_OUT)}})
