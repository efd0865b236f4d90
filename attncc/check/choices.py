"""Whether choices are right: what a module chose by comparing is compared with what float64 would choose.

A choice is right where its number is within rounding of the best: results are then compared under the very choices that
the module made, and no rounding makes two right answers differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncc.check.calls import Tensors, attention_of, choice_name, offers_choices
from attncc.check.formulas import Scope
from attncc.check.oracle import every_pair, laid_choices
from attncc.check.sizes import Case, arguments
from attncc.spec.choices import Choice, choices_of
from attncc.spec.expr import Expr, Reduce, Top, children
from attncc.spec.model import Spec

ROUNDINGS = 64.0  # so many roundings of the largest number that is compared


def with_choices(module: Any, form: str | None, spec: Spec, case: Case, inputs: Tensors) -> Tensors:
    """The inputs of a case with what the module chooses of them."""
    if not offers_choices(module):
        return inputs
    data = [inputs[each.name].detach() for each in spec.data]
    attention = attention_of(module, form, with_lse=False)
    *_, chosen = attention(*data, **arguments(case, inputs), return_choices=True)[0]
    return inputs | {choice_name(name): each for name, each in chosen.items()}


def faults(spec: Spec, case: Case, inputs: Mapping[str, Tensor]) -> list[str]:
    """What is wrong with choices that stand among the inputs, each a sentence."""
    given = {each.name: inputs[choice_name(each.name)] for each in choices_of(spec)}
    found = []
    for core in spec.cores:
        data = [inputs[each.name].double() if each.is_real else inputs[each.name] for each in core.data]
        scope = every_pair(core, *data, **arguments(case, inputs))  # type: ignore[arg-type]
        assert scope.mask is not None
        scope = replace(scope, choices=laid_choices(core, given, scope.mask.shape[1]))
        rounding = torch.finfo(torch.float64 if case.dtype == torch.float64 else torch.float32).eps
        for each in choices_of(core):
            wrong = _wrong(scope, each, given[each.name], rounding)
            if wrong is not None:
                found.append(f"the choice {each.name} is {wrong}")
    return list(dict.fromkeys(found))


def _wrong(scope: Scope, choice: Choice, found: Tensor, rounding: float) -> str | None:
    """How a choice differs from what float64 makes of the same numbers, where rounding does not explain it."""
    laid = scope.choices[choice.name]
    if isinstance(choice.let.value, Top):
        return _wrong_keys(scope, choice.let.value, laid, rounding)
    others = {name: each for name, each in scope.choices.items() if name != choice.name}
    scope = replace(scope, choices=others, _known={}, _masks={})
    own, visible = laid, scope.visible if scope.visible is not None and not choice.of_rows else torch.tensor(True)
    exact = scope.number(choice.let.value).mantissa.expand(own.shape)
    differs = (own != exact) & visible
    for vector in _compared(choice.let.value):
        differs = differs & ~_is_close(scope, vector, rounding)
    if isinstance(choice.let.value, Reduce):
        differs = (own != exact) & visible & ~_is_as_good(scope, choice.let.value.vector, own, rounding)
    if not differs.any():
        return None
    at = tuple(differs.nonzero()[0].tolist())
    return f"{int(own[at])} at {list(at)}, not {int(exact[at])}, nor within rounding of the largest"


def _wrong_keys(scope: Scope, top: Top, found: Tensor, rounding: float) -> str | None:
    """How the keys that rows chose differ from the best ones, where rounding does not explain it."""
    numbers, related, keys = scope.ranked(top)
    chosen = torch.zeros_like(related)
    for entry in found.unbind(-1):
        chosen = chosen | (keys == entry[..., None])
    if (chosen & ~related).any():
        return f"a key that is not related, at {(chosen & ~related).nonzero()[0].tolist()}"
    entries = (found >= 0).sum(-1)
    if (entries != related.sum(-1).clamp(max=top.count)).any() or (entries != chosen.sum(-1)).any():
        return "of another number of keys than there are to choose among"
    if not related.shape[-1]:
        return None
    least = torch.where(chosen, numbers, torch.inf).amin(-1)
    largest = torch.where(related & ~chosen, numbers, -torch.inf).amax(-1)
    size = torch.where(related, numbers, 0).abs().amax(-1)
    wrong = largest > least + ROUNDINGS * rounding * size
    if not wrong.any():
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    return f"a key whose number is {float(least[at]):.6g} at {list(at)}, where another has {float(largest[at]):.6g}"


def _compared(expr: Expr) -> Iterator[Expr]:
    """The vectors of which a value takes the largest feature."""
    if isinstance(expr, Reduce) and expr.function == "argmax":
        yield expr.vector
    for each in children(expr):
        yield from _compared(each)


def _features(scope: Scope, vector: Expr) -> Tensor:
    return scope.vector(vector, scope.width(vector)).value().double()


def _is_close(scope: Scope, vector: Expr, rounding: float) -> Tensor:
    """Where the two largest features are the same but for rounding."""
    values = _features(scope, vector)
    first, second = values.topk(2, -1).values.unbind(-1) if values.shape[-1] > 1 else (values[..., 0], values[..., 0])
    return first - second <= ROUNDINGS * rounding * values.abs().amax(-1)


def _is_as_good(scope: Scope, vector: Expr, chosen: Tensor, rounding: float) -> Tensor:
    """Where the chosen feature is the largest but for rounding."""
    values = _features(scope, vector)
    values = values.expand(*chosen.shape, values.shape[-1])
    in_range = (chosen >= 0) & (chosen < values.shape[-1])
    own = values.gather(-1, chosen.clamp(0, values.shape[-1] - 1)[..., None])[..., 0]
    largest = values.amax(-1)
    return in_range & (largest - own <= ROUNDINGS * rounding * values.abs().amax(-1))
