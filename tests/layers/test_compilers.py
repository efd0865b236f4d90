"""Layers inside torch: compiled as one graph, exported for every length, and their operators as torch wants them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attncc.check.layers.compare import made_of
from attncc.check.layers.sizes import LayerCase, parameters_of, tensors_of
from attncc.spec.layers.model import Layer
from tests.layers.shared import LAYERS, PATHS, small

CHOSEN = (  # each with operators and cores that the others lack
    "fastformer", "flash_causal", "funnel", "gated_attention_unit", "lama", "linear_attention", "linformer", "mega",
    "nystromformer", "retnet", "spatial_attention", "token_elimination", "transformer_block",
)  # fmt: skip
WITH_OPERATORS = ("multi_head_causal", "longformer_layer")
THOROUGH = bool(os.environ.get("ATTNCC_THOROUGH"))
SLABS = ("token_elimination",)  # one program for as many slabs of rows as the example has


def _paths(names: tuple[str, ...]) -> list[Path]:
    return PATHS if THOROUGH else [LAYERS / f"{name}.attn" for name in names]


def _made(path: Path) -> tuple[Layer, ModuleType, nn.Module]:
    found, module = small(path)
    made = made_of(module, found.spec, parameters_of(found.spec))
    return found.spec, module, made.eval()


def _call(layer: Layer, n: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Inputs of two batch entries, the second one padded."""
    sizes = tuple((name, n if at == 0 else n // 2 + 3) for at, name in enumerate(layer.sequences))
    tensors = tensors_of(layer, LayerCase("compiled", 2, sizes, (), torch.float32), parameters_of(layer))
    inputs = [tensors[each.name] for each in layer.inputs]
    names = {"n": "lengths", "m": "m_lengths"}
    lengths = {names[name]: torch.tensor([size, size // 2 + 1]) for name, size in sizes}
    return [each.float() if each.is_floating_point() else each for each in inputs], lengths


def _gradients(made: Any, inputs: list[Tensor], lengths: Mapping[str, Tensor], learned: nn.Module) -> list[Tensor]:
    leaves = [each.clone().requires_grad_(each.is_floating_point()) for each in inputs]
    out = made(*leaves, **lengths)
    wanted = [*(each for each in leaves if each.requires_grad), *learned.parameters()]
    return [out.detach(), *torch.autograd.grad(out.sin().sum(), wanted, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("path", _paths(CHOSEN), ids=lambda path: path.stem)
def test_it_can_be_compiled_and_exported(path: Path) -> None:
    layer, _, made = _made(path)
    inputs, lengths = _call(layer, 24)
    torch._dynamo.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    found, expected = (_gradients(each, inputs, lengths, made) for each in (compiled, made))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    free = path.stem not in SLABS
    axes = {
        each.name: {at + 1: torch.export.Dim.DYNAMIC for at, axis in enumerate(each.type.axes) if str(axis) in "nm"}
        for each in layer.inputs
    }
    shapes = {**axes, **dict.fromkeys(lengths)} if free else None
    exported = torch.export.export(made, tuple(inputs), lengths, dynamic_shapes=shapes).module()
    for n in (24, 37, 200) if free else (24,):
        if path.stem.startswith(("synthesizer", "linformer")) and n > 96:  # tables are as long
            continue
        inputs, lengths = _call(layer, n)
        expected_out = made(*inputs, **lengths)
        torch.testing.assert_close(exported(*inputs, **lengths), expected_out, rtol=1e-4, atol=1e-4)


class _Operators(TorchDispatchMode):
    """The first call of each operator of attncc."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, tuple[Any, ...]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "attncc":
            self.calls.setdefault(func, args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("path", _paths(WITH_OPERATORS), ids=lambda path: path.stem)
def test_its_operators_are_registered_properly(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, module, made = _made(path)
    inputs, lengths = _call(layer, 20)
    for name in [each for each in vars(module) if each.endswith("_is_shape_only")]:
        monkeypatch.setattr(module, name, lambda x: True)  # so that eager calls take the operator, as compilers do
    with _Operators() as seen:
        _gradients(made, inputs, lengths, made)
    assert len(seen.calls) >= 2 * len(layer.cores)
    for operator, arguments in seen.calls.items():
        is_backward = operator.name().endswith("_backward")
        values = [
            each.detach().clone().requires_grad_(each.is_floating_point() and not is_backward)
            if isinstance(each, Tensor)
            else each
            for each in arguments
        ]
        tests = ["test_schema", "test_faketensor"]
        tests += [] if is_backward else ["test_autograd_registration", "test_aot_dispatch_dynamic"]
        result = torch.library.opcheck(operator, tuple(values), test_utils=tests)
        assert set(result.values()) == {"SUCCESS"}
