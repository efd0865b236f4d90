"""What a layer's module chooses by comparing: rounding may decide it, so that in short types it is taken over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from types import ModuleType
from typing import Any

from torch import Tensor

from attncc.spec.choices import choices_of
from attncc.spec.layers.model import Layer, Op, walk

TOP = "top"
Choices = dict[str, list[Any]]  # by the core, or `top`, in the order of calls


def chooses(layer: Layer) -> bool:
    """Whether a layer compares what rounding may exchange."""
    return any(choices_of(each.spec) for each in layer.cores) or _has_top(layer)


def _has_top(layer: Layer) -> bool:
    return any(node.op is Op.LARGEST_AT for _, value in layer.values for node in walk(value))


@contextmanager
def recorded(module: ModuleType, layer: Layer) -> Iterator[Choices]:
    """What the module chooses meanwhile."""
    made: Choices = {}
    wrapped: dict[str, Callable[..., Any]] = {}

    def wrap(name: str, function: str, call: Callable[..., Any]) -> None:
        wrapped[function] = getattr(module, function)
        made[name] = []
        setattr(module, function, call)

    for core in layer.cores:
        if choices_of(core.spec):
            function = _function_of(module, core.name)
            wrap(core.name, function, _core(getattr(module, function), made, core.name))
    if _has_top(layer):
        wrap(TOP, "_top", _top(module._top, made))
    try:
        yield made
    finally:
        for function, original in wrapped.items():
            setattr(module, function, original)


def _function_of(module: ModuleType, core: str) -> str:
    """What the attention of a core is called: the other name is that of a helper, if there is one."""
    names = [name for name in (f"_{core}", f"_{core}_core") if hasattr(module, name)]
    return next(name for name in names if "return_choices" in signature(getattr(module, name)).parameters)


def _core(original: Callable[..., Any], made: Choices, name: str) -> Callable[..., Any]:
    def call(*values: Tensor, **options: Any) -> Any:
        *outs, chosen = original(*values, **options, return_choices=True)
        made[name].append({each: x.cpu() for each, x in chosen.items()})
        return outs[0] if len(outs) == 1 else tuple(outs)

    return call


def _top(original: Callable[..., Tensor], made: Choices) -> Callable[..., Tensor]:
    def call(*values: Any) -> Tensor:
        made[TOP].append(original(*values))
        found: Tensor = made[TOP][-1]
        return found

    return call
