"""Modules of specs with parameters and further inputs, against the same formulas in plain float64 torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from attncc.emit.whole import emit
from attncc.plan.choose import plan
from tests.modules import build, cut_small, load_module
from tests.operands import CASES, dense, inputs


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ModuleType]:
    """The module of each case, built once."""
    folder = tmp_path_factory.mktemp("operands")
    known: dict[tuple[str, bool], ModuleType] = {}

    def module(name: str, small: bool = False) -> ModuleType:
        if (name, small) not in known:
            path = folder / f"{name}_{small}.py"
            path.write_text(emit(plan(CASES[name].spec), in_c=False), encoding="utf-8")
            known[name, small] = load_module(path)
            if small:
                cut_small(known[name, small])
        return known[name, small]

    return module


def leaves(data: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.clone().requires_grad_() if x.is_floating_point() else x for name, x in data.items()}


def slopes(out: Tensor, data: dict[str, Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    real = {name: x for name, x in data.items() if x.requires_grad}
    found = torch.autograd.grad(out, list(real.values()), cotangent, allow_unused=True)
    return {
        name: torch.zeros_like(x) if grad is None else grad for (name, x), grad in zip(real.items(), found, strict=True)
    }


def compare(module: ModuleType, name: str, data: dict[str, Tensor], **options: Any) -> None:
    own, other = leaves(data), leaves(data)
    out, expected = module.attention(*own.values(), **options), dense(CASES[name], other, **options)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    for (key, slope), wanted in zip(slopes(out, own).items(), slopes(expected, other).values(), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-8, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}")


SIZES = [(1, 1), (63, 63), (300, 300), (5, 40), (40, 9)]


@pytest.mark.parametrize("n, m", SIZES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, n: int, m: int, modules: Callable[..., ModuleType]) -> None:
    compare(modules(name), name, inputs(CASES[name], n, m))


@pytest.mark.parametrize("name", CASES)
def test_many_slabs(name: str, modules: Callable[..., ModuleType]) -> None:
    compare(modules(name, small=True), name, inputs(CASES[name], 50, 63))


@pytest.mark.parametrize("name", CASES)
def test_hidden_keys_reach_nothing(name: str, modules: Callable[..., ModuleType]) -> None:
    data = inputs(CASES[name], 33, 41)
    lengths = torch.tensor([41, 17])
    for each in CASES[name].spec.data:
        if each.is_column and not each.whole:
            hidden = (1, ..., slice(17, None), *((slice(None),) if each.is_vector else ()))
            data[each.name][hidden] = torch.nan
    for small in (False, True):
        compare(modules(name, small), name, data, kv_lengths=lengths, q_start=torch.tensor([8, 3]))


# --- inside torch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_narrow_types(name: str, dtype: torch.dtype, modules: Callable[..., ModuleType]) -> None:
    data = inputs(CASES[name], 40, 40, dtype=dtype)
    own, other = leaves(data), leaves({key: x.double() if x.is_floating_point() else x for key, x in data.items()})
    out, expected = modules(name).attention(*own.values()), dense(CASES[name], other)
    assert out.dtype == dtype
    near = 1e-4 if dtype is torch.float32 else 8e-2
    torch.testing.assert_close(out.double(), expected, rtol=near, atol=near * float(expected.detach().abs().max()))
    for (key, slope), wanted in zip(slopes(out, own).items(), slopes(expected, other).values(), strict=True):
        assert slope.dtype == own[key].dtype
        distance = (slope.double() - wanted).norm() / wanted.norm().clamp(min=1.0)
        assert distance < near, (key, distance)


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_each_time(name: str, modules: Callable[..., ModuleType]) -> None:
    data = inputs(CASES[name], 70, 90, dtype=torch.float32)
    first, second = (leaves(data) for _ in range(2))
    module = modules(name, small=True)
    found = [slopes(module.attention(*each.values()), each) for each in (first, second)]
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_the_gradient_of_a_long_table_has_the_same_bits_each_time(tmp_path: Path) -> None:
    """Every pair adds to one of 2,048 entries of its head, from several slabs."""
    text = "attention long { param bias[H, 2048]\npattern = causal\nscore = dot(q, k) + bias[h, min(i - j, 2047)] }"
    module = build(text, tmp_path).module
    generator = torch.Generator().manual_seed(5)
    q, k, v, d_out = (torch.randn(1, 2, 2100, 8, generator=generator) for _ in range(4))
    bias = torch.randn(2, 2048, generator=generator)

    def gradients() -> tuple[Tensor, ...]:
        data = [each.clone().requires_grad_() for each in (q, k, v, bias)]
        return torch.autograd.grad(module.attention(*data), data, d_out)

    first, second = gradients(), gradients()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert first[3].all()  # each entry has its pairs


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name: str, modules: Callable[..., ModuleType]) -> None:
    data = leaves(inputs(CASES[name], 4, 5, d=4, e=2))
    real = {key: x for key, x in data.items() if x.requires_grad}

    def run(*changed: Tensor) -> Tensor:
        return modules(name).attention(*(data | dict(zip(real, changed, strict=True))).values())

    assert torch.autograd.gradgradcheck(run, tuple(real.values()), atol=1e-5, rtol=1e-3, fast_mode=True)


@pytest.mark.parametrize("name", CASES)
def test_vmap(name: str, modules: Callable[..., ModuleType]) -> None:
    """Over every tensor, and over the queries alone."""
    attention = modules(name).attention
    samples = [inputs(CASES[name], 9, 11 + 0 * at) for at in range(2)]
    samples[1] = {key: x.flip(0) if x.is_floating_point() else x for key, x in samples[1].items()}
    both = [torch.stack(pair) for pair in zip(*(each.values() for each in samples), strict=True)]
    for every in (True, False):
        dims = tuple(0 if every or key == "q" else None for key in samples[0])
        each = [
            tuple(x[at] if dim == 0 else y for x, y, dim in zip(both, samples[0].values(), dims, strict=True))
            for at in range(2)
        ]
        given = [x if dim == 0 else y for x, y, dim in zip(both, samples[0].values(), dims, strict=True)]
        mapped = torch.func.vmap(attention, in_dims=dims)(*given)
        torch.testing.assert_close(mapped, torch.stack([attention(*one) for one in each]))
        places = tuple(at for at, x in enumerate(given) if x.is_floating_point())

        def loss(*data: Tensor) -> Tensor:
            return attention(*data).square().sum()

        gradient = torch.func.grad(loss, argnums=places)
        found = torch.func.vmap(gradient, in_dims=dims)(*given)
        for at, grads in enumerate(zip(*(gradient(*one) for one in each), strict=True)):
            torch.testing.assert_close(found[at], torch.stack(grads), rtol=1e-7, atol=1e-9)


# Numbers of distances and of heads, whole numbers of tokens, entries, channels, derived vectors: one of each.
# `test_export` and `test_operators` go through the same text for all.
COMPILED = ("by_distance", "sink", "segments", "pair_table", "additive", "projected")


@pytest.mark.parametrize("name", COMPILED)
def test_compile(name: str, modules: Callable[..., ModuleType]) -> None:
    torch._dynamo.reset()
    attention = modules(name).attention
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager", dynamic=True)
    for n, m in ((23, 57), (40, 40)):  # in this order one program serves both
        data = inputs(CASES[name], n, m)
        first, second = leaves(data), leaves(data)
        out, expected = compiled(*first.values()), attention(*second.values())
        torch.testing.assert_close(out, expected)
        for found, wanted in zip(slopes(out, first).values(), slopes(expected, second).values(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_export(name: str, modules: Callable[..., ModuleType]) -> None:
    module = modules(name)

    class Layer(torch.nn.Module):
        def forward(self, *data: Tensor) -> Tensor:
            return module.attention(*data)

    data = tuple(inputs(CASES[name], 40, 40).values())
    program = torch.export.export(Layer(), data)
    torch.testing.assert_close(program.module()(*data), module.attention(*data))


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str, modules: Callable[..., ModuleType]) -> None:
    """The registered operators: schema, shapes without numbers, derivatives."""
    module = modules(name)
    data = tuple(leaves(inputs(CASES[name], 9, 9)).values())
    prepared = _prepared(module, data)
    operator = getattr(torch.ops.attncc, module._OPERATOR).default
    keep_residual = (False,) if hasattr(module, "_keeps_residual") else ()
    torch.library.opcheck(operator, (*prepared, "torch", *keep_residual))


def _prepared(module: ModuleType, data: tuple[Tensor, ...]) -> tuple[Any, ...]:
    scale = (None,) if "scale" in module.attention.__kwdefaults__ else ()
    prepared = module._prepared(*data, *scale, None, None, 0)
    if hasattr(module, "_operands"):
        prepared = (*module._operands(*prepared), *prepared[len(data) :])
    return tuple(x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in prepared)


# --- results ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, torch.tensor([17, 9])], ids=["all keys", "some keys"])
@pytest.mark.parametrize("name", CASES)
def test_weights_make_the_result(name: str, lengths: Tensor | None, modules: Callable[..., ModuleType]) -> None:
    module, data = modules(name), inputs(CASES[name], 12, 17)
    values = data["v"].repeat_interleave(2, 1)
    asked = module.weights.__code__.co_varnames[: module.weights.__code__.co_argcount]
    found = module.weights(*(data[key] for key in asked), rows=slice(2, 9), kv_lengths=lengths)
    if name == "derived_values":
        values = values.sigmoid() * data["gain"][:, None]
    expected = module.attention(*data.values(), kv_lengths=lengths)[:, :, 2:9]
    torch.testing.assert_close(found @ values, expected)


def test_weights_do_not_take_the_values(modules: Callable[..., ModuleType]) -> None:
    code = modules("by_distance").weights.__code__
    assert code.co_varnames[: code.co_argcount] == ("q", "k", "bias")


def test_module_holds_parameters(modules: Callable[..., ModuleType]) -> None:
    data = inputs(CASES["sink"], 9, 9, dtype=torch.float32)
    layer = modules("sink").Attention(heads=4, scale=0.3)
    assert {key: x.tolist() for key, x in layer.state_dict().items()} == {"sink": [0.5] * 4}
    expected = modules("sink").attention(data["q"], data["k"], data["v"], layer.sink, scale=0.3)
    assert torch.equal(layer(data["q"], data["k"], data["v"]), expected)
    layer = modules("derived_values").Attention(heads=4, d=8, e=6)
    assert {key: list(x.shape) for key, x in layer.named_parameters()} == {"place": [400, 8], "gain": [4, 6]}
    assert 0.015 < float(layer.place.std()) < 0.025


def test_a_module_asks_for_no_more_sizes_than_parameters_need(modules: Callable[..., ModuleType]) -> None:
    assert list(modules("pair_table").Attention().state_dict()) == ["b"]
    with pytest.raises(TypeError, match="heads"):
        modules("sink").Attention()


REFUSED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "shape of a parameter": ("by_distance", {"bias": torch.zeros(3, 17).double()}, ("bias", "[3, 17]", "[4, 17]")),
    "type of a parameter": ("by_distance", {"bias": torch.zeros(4, 17).half()}, ("bias", "float16", "float32")),
    "numbers for whole numbers": ("segments", {"own": torch.zeros(2, 9)}, ("own", "float32", "whole numbers")),
    "an index of a token": ("segments", {"own": torch.full((2, 9), 3)}, ("`own` of b", "3 … 3", "0 … 2", "axis 0")),
    "no tensor": ("sink", {"sink": 0.5}, ("sink", "float", "tensor")),
    "positions": ("derived_values", {"q_start": 3, "k_start": 395}, ("`j` of place", "395 … 403", "0 … 399")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, modules: Callable[..., ModuleType]) -> None:
    name, changed, words = REFUSED[case]
    data = inputs(CASES[name], 9, 9)
    options = {key: x for key, x in changed.items() if key not in data}
    with pytest.raises(ValueError) as caught:
        modules(name).attention(*(data | {key: x for key, x in changed.items() if key in data}).values(), **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_distances_beyond_a_table_are_refused_where_pairs_meet_them(modules: Callable[..., ModuleType]) -> None:
    near = inputs(CASES["near"], 9, 9)
    modules("near").attention(*near.values(), q_start=25)  # distances 17 … 33, of which those below 20 are related
    unbounded = inputs(CASES["far"], 321, 321)
    with pytest.raises(ValueError, match=r"index `i - j` of bias is 0 … 320, expected 0 … 319"):
        modules("far").attention(*unbounded.values())
