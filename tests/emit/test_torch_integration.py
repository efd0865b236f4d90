"""Generated modules inside torch: compile, export, derivatives, vmap, autocast, operators, refusals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from attncc.check.oracle import dense
from tests.modules import SMALL, Built, build, build_file, load_module

BOUNDED, UNBOUNDED = "sliding_window", "causal"  # compiled as plain operations, and as one opaque operator
EVERY_KIND = (BOUNDED, UNBOUNDED, "gau", "softmax_one", "laplace", "streaming_sinks")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Specs by name, each built once."""
    folder = tmp_path_factory.mktemp("modules")
    known: dict[str, Built] = {}

    def module(name: str) -> Built:
        if name not in known:
            known[name] = build_file(name, folder, **SMALL[name])
        return known[name]

    return module


def operands(
    n: int = 45,
    m: int = 45,
    *,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    d: int = 8,
    e: int = 12,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n + m)
    shapes = ((batch, heads, n, d), (batch, kv_heads, m, d), (batch, kv_heads, m, e))
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(**options) for shape in shapes)
    return q, k, v


def gradients(call: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The result, and the gradients of the sum of its sines."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    out = call(*leaves)
    return out.detach(), *torch.autograd.grad(out.sin().sum(), leaves)


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 1e-5) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


# --- compilers ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [BOUNDED, UNBOUNDED])
def test_compiled_equals_eager(name: str, modules: Callable[[str], Built]) -> None:
    attention = modules(name).module.attention
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for n, m in ((45, 61), (150, 150)):  # in this order one program serves both
        inputs = operands(n, m, dtype=torch.float32)
        close(gradients(compiled, inputs), gradients(attention, inputs))


@pytest.mark.slow
def test_inductor_compiles_both_kinds(modules: Callable[[str], Built]) -> None:
    for name in (BOUNDED, UNBOUNDED):
        attention = modules(name).module.attention
        torch._dynamo.reset()
        inputs = operands(dtype=torch.float32)
        close(gradients(torch.compile(attention, fullgraph=True, dynamic=True), inputs), gradients(attention, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", [BOUNDED, UNBOUNDED])
def test_export_keeps_the_length_free(name: str, modules: Callable[[str], Built]) -> None:
    module = modules(name).module.Attention()
    length = torch.export.Dim("length", min=2, max=4096)
    free = {axis: {2: length} for axis in ("q", "k", "v")}
    exported = torch.export.export(module, operands(40, 40, dtype=torch.float32), dynamic_shapes=free)
    for n in (40, 71, 300):
        inputs = operands(n, n, dtype=torch.float32)
        torch.testing.assert_close(exported.module()(*inputs), module(*inputs), rtol=1e-5, atol=1e-5)


# --- operators ----------------------------------------------------------------------------------------------------

OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def operator_arguments(module: ModuleType, inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
    reads_scale = "scale" in module.attention.__kwdefaults__
    keep_residual = (inputs[0].element_size() == 2,) if hasattr(module, "_keeps_residual") else ()
    return (*inputs, *((0.3,) if reads_scale else ()), 0, 0, None, None, "torch", *keep_residual)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EVERY_KIND)
def test_operator_is_registered_properly(name: str, dtype: torch.dtype, modules: Callable[[str], Built]) -> None:
    module = modules(name).module
    inputs = tuple(each.requires_grad_() for each in operands(20, 20, dtype=dtype))
    operator = getattr(torch.ops.attncc, module._OPERATOR).default
    result = torch.library.opcheck(operator, operator_arguments(module, inputs), test_utils=OPCHECKS)
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EVERY_KIND)
def test_backward_operator_is_registered_properly(
    name: str, dtype: torch.dtype, modules: Callable[[str], Built]
) -> None:
    module = modules(name).module
    inputs = operands(20, 20, dtype=dtype)
    outs = getattr(torch.ops.attncc, module._OPERATOR)(*operator_arguments(module, inputs))
    outs = outs if isinstance(outs, tuple) else (outs,)
    upstream = [torch.randn_like(outs[0])]
    if "return_lse" in module.attention.__kwdefaults__:
        upstream.append(torch.randn(outs[0].shape[:3]))
    numbers = operator_arguments(module, inputs)[3:]
    numbers = numbers[: numbers.index("torch") + 1]
    arguments = (*inputs, *outs, *upstream, *numbers)
    operator = getattr(torch.ops.attncc, f"{module._OPERATOR}_backward").default
    result = torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
    assert set(result.values()) == {"SUCCESS"}


# --- tensors without numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY_KIND)
@pytest.mark.parametrize("device", ("meta", "cpu", "cuda"))
def test_shapes_alone_give_shapes(name: str, device: str, modules: Callable[[str], Built]) -> None:
    module = modules(name).module
    with nullcontext() if device == "meta" else FakeTensorMode():
        q, k, v = (
            torch.empty(2, heads, length, width, device=device, dtype=torch.bfloat16, requires_grad=device != "cuda")
            for heads, length, width in ((4, 9, 8), (2, 13, 8), (2, 13, 5))
        )
        lengths = torch.tensor([3, 13], device=device)
        for keywords in ({}, {"kv_lengths": lengths, "q_start": lengths}):
            out = module.attention(q, k, v, **keywords)
            assert (out.shape, out.dtype, out.device.type) == ((2, 4, 9, 5), torch.bfloat16, device)
            if device != "cuda":  # autograd and slices of a GPU that is not there fail in torch itself
                grads = torch.autograd.grad(out.sum(), (q, k, v))
                assert [each.shape for each in grads] == [q.shape, k.shape, v.shape]
                assert module.weights(q, k, **keywords).shape == (2, 4, 9, 13)
        if "return_lse" in module.attention.__kwdefaults__:
            _, lse = module.attention(q, k, v, return_lse=True)
            assert (lse.shape, lse.dtype) == ((2, 4, 9), torch.float32)


def test_a_call_without_numbers_leaves_nothing_behind(modules: Callable[[str], Built]) -> None:
    attention = modules(BOUNDED).module.attention
    inputs = operands(20, 20, dtype=torch.float32)
    expected = attention(*inputs)
    with FakeTensorMode():
        attention(*(torch.empty(1, 2, 21, 8) for _ in range(3)))
    torch.testing.assert_close(attention(*inputs), expected)
    assert attention(*(torch.ones(1, 2, 21, 8) for _ in range(3))).isfinite().all()


# --- derivatives --------------------------------------------------------------------------------------------------


FEW: dict[str, Any] = {"batch": 1, "heads": 2, "kv_heads": 1, "d": 3, "e": 2}  # every number is moved on its own


@pytest.mark.parametrize("name", EVERY_KIND)
def test_derivatives(name: str, modules: Callable[[str], Built]) -> None:
    attention = modules(name).module.attention
    inputs = [each.requires_grad_() for each in operands(5, 6, **FEW, dtype=torch.float64)]
    assert torch.autograd.gradcheck(attention, inputs)
    assert torch.autograd.gradgradcheck(attention, inputs)


def test_derivatives_of_the_log_sum_exp(modules: Callable[[str], Built]) -> None:
    attention = modules("softmax_one").module.attention
    inputs = [each.requires_grad_() for each in operands(4, 5, **FEW, dtype=torch.float64)]

    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = attention(q, k, v, return_lse=True)
        return out, lse

    assert torch.autograd.gradcheck(both, inputs)
    assert torch.autograd.gradgradcheck(both, inputs)


@pytest.mark.parametrize("name", EVERY_KIND)
def test_two_runs_give_the_same_bits(name: str, modules: Callable[[str], Built]) -> None:
    attention, inputs = modules(name).module.attention, operands(300, 300, dtype=torch.float32)
    runs = [gradients(attention, inputs) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_only_wanted_gradients_are_asked_for(modules: Callable[[str], Built]) -> None:
    attention, (q, k, v) = modules(BOUNDED).module.attention, operands(dtype=torch.float32)
    everything = gradients(attention, (q, k, v))
    close(gradients(lambda v: attention(q, k, v), (v,)), (everything[0], everything[3]))
    close(gradients(lambda q: attention(q, k, v), (q,)), everything[:2])


# --- transforms and contexts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [BOUNDED, UNBOUNDED, "gau"])
def test_vmap_is_a_loop(name: str, modules: Callable[[str], Built]) -> None:
    attention = modules(name).module.attention
    stacked = [torch.stack([each, each.flip(2), 2 * each]) for each in operands(20, 20, dtype=torch.float64)]

    def total(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attention(q, k, v).sin().sum()
        return out

    mapped = torch.func.vmap(attention)(*stacked)
    torch.testing.assert_close(mapped, torch.stack([attention(*each) for each in zip(*stacked, strict=True)]))
    shared = torch.func.vmap(attention, in_dims=(0, None, 0))(stacked[0], stacked[1][0], stacked[2])
    torch.testing.assert_close(shared[1], attention(stacked[0][1], stacked[1][0], stacked[2][1]))
    gradient = torch.func.vmap(torch.func.grad(total, (0, 1, 2)))(*stacked)
    for at in range(3):
        expected = gradients(attention, tuple(each[at] for each in stacked))[1:]
        close(tuple(each[at] for each in gradient), expected, 1e-9)


@pytest.mark.parametrize("name", [BOUNDED, UNBOUNDED])
def test_autocast_is_what_sdpa_does(name: str, modules: Callable[[str], Built]) -> None:
    attention, (q, k, v) = modules(name).module.attention, operands(kv_heads=4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v)
        like = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert out.dtype == like.dtype == torch.bfloat16
    torch.testing.assert_close(out, attention(*(each.bfloat16() for each in (q, k, v))))
    leaf = q.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        attention(leaf, k, v).float().sum().backward()
    assert leaf.grad is not None and leaf.grad.dtype == torch.float32


@pytest.mark.parametrize("name", ["differences", "channels"])
def test_autocast_of_branches(name: str, tmp_path: Path) -> None:
    text = {
        "differences": "branch a { pattern = causal }; branch b { pattern = window(9) }; combine = a - 0.5 * b",
        "channels": "pattern = causal; weight = dot(softmax_of(q), exp(min(k, 5))); normalize = channels",
    }[name]
    attention, (q, k, v) = build(f"attention x {{ {text} }}", tmp_path).module.attention, operands(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, k, v).dtype == torch.bfloat16


def test_autocast_allows_mixed_dtypes(modules: Callable[[str], Built]) -> None:
    q, k, v = operands(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert modules(UNBOUNDED).module.attention(q, k.bfloat16(), v).dtype == torch.bfloat16


# --- results ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY_KIND)
def test_weights_are_the_oracles(name: str, modules: Callable[[str], Built]) -> None:
    built = modules(name)
    q, k, v = operands(40, 52, dtype=torch.float64)
    given: dict[str, Any] = {"kv_lengths": torch.tensor([52, 31]), "q_start": torch.tensor([12, 3])}
    for options in (given, {}):
        expected = dense(built.spec, q, k, v, **options).weights
        for rows in (slice(0, 16), slice(8, None, 5), slice(None)):
            found = built.module.weights(q, k, rows=rows, **options)
            torch.testing.assert_close(found, expected[:, :, rows], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("q_start", [7, torch.tensor([7, -4]), torch.tensor([0, 30], dtype=torch.int32)], ids=str)
@pytest.mark.parametrize("name", EVERY_KIND)
def test_positions_and_log_sum_exp(name: str, q_start: int | Tensor, modules: Callable[[str], Built]) -> None:
    built = modules(name)
    attention, inputs = built.module.attention, operands(30, 44, dtype=torch.float64)
    expected = dense(built.spec, *inputs, q_start=q_start)
    torch.testing.assert_close(attention(*inputs, q_start=q_start), expected.out)
    if "return_lse" in attention.__kwdefaults__:
        _, lse = attention(*inputs, q_start=q_start, return_lse=True)
        torch.testing.assert_close(lse, expected.lse)


def test_tensor_of_one_start_equals_the_number(modules: Callable[[str], Built]) -> None:
    attention, inputs = modules(BOUNDED).module.attention, operands(30, 44, dtype=torch.float32)
    torch.testing.assert_close(attention(*inputs, q_start=9), attention(*inputs, q_start=torch.tensor([9, 9])))


def test_lengths_as_number_and_tensor(modules: Callable[[str], Built]) -> None:
    attention, inputs = modules(UNBOUNDED).module.attention, operands(dtype=torch.float32)
    torch.testing.assert_close(attention(*inputs, kv_lengths=20), attention(*inputs, kv_lengths=torch.tensor([20, 20])))


def test_two_copies_live_side_by_side(modules: Callable[[str], Built], tmp_path: Path) -> None:
    module = modules(UNBOUNDED).module
    copy = tmp_path / "copy_of_causal.py"
    copy.write_text(Path(str(module.__file__)).read_text(encoding="utf-8"), encoding="utf-8")
    second = load_module(copy)
    assert second._OPERATOR == module._OPERATOR
    inputs = operands(dtype=torch.float32)
    torch._dynamo.reset()
    for each in (module, second):
        compiled = torch.compile(each.attention, fullgraph=True, backend="aot_eager")
        close(gradients(compiled, inputs), gradients(module.attention, inputs))


def test_module(modules: Callable[[str], Built]) -> None:
    module = modules(BOUNDED).module
    layer, inputs = module.Attention(scale=0.5), operands(dtype=torch.float32)
    assert torch.equal(layer(*inputs), module.attention(*inputs, scale=0.5))
    assert torch.equal(layer(*inputs, kv_lengths=9), module.attention(*inputs, scale=0.5, kv_lengths=9))
    assert list(layer.parameters()) == [] and dict(layer.state_dict()) == {}
    assert "scale=0.5" in repr(layer)


def test_nothing_to_compute(modules: Callable[[str], Built]) -> None:
    for name in EVERY_KIND:
        attention = modules(name).module.attention
        for n, m in ((0, 5), (5, 0), (0, 0)):
            inputs = operands(n, m, dtype=torch.float32)
            out, *slopes = gradients(attention, inputs)
            assert out.shape == (2, 4, n, 12)
            assert all((each == 0).all() for each in (out, *slopes))


# --- refusals -----------------------------------------------------------------------------------------------------

Q, K, V = operands(dtype=torch.float32)
REFUSED: dict[str, tuple[Callable[[Any], object], tuple[str, ...]]] = {
    "dropout": (lambda attention: attention(Q, K, V, dropout_p=0.1), ("dropout_p", "0.1", "0.0")),
    "mixed dtypes": (lambda attention: attention(Q, K.double(), V), ("k", "torch.float64", "torch.float32")),
    "whole numbers": (lambda attention: attention(Q.long(), K.long(), V.long()), ("q", "torch.int64", "float32")),
    "three axes": (lambda attention: attention(Q[0], K, V), ("q", "[4, 45, 8]", "four axes")),
    "no tensor": (lambda attention: attention(Q, None, V), ("k", "NoneType", "tensor")),
    "batch": (lambda attention: attention(Q, K[:1], V[:1]), ("batch", "[1, 2, 45, 8]", "one size")),
    "heads": (lambda attention: attention(Q[:, :3], K, V), ("heads", "[2, 3, 45, 8]", "multiple")),
    "length of v": (lambda attention: attention(Q, K, V[:, :, :9]), ("v", "[2, 2, 9, 12]", "length of k")),
    "width of k": (lambda attention: attention(Q, K[..., :5], V), ("k", "[2, 2, 45, 5]", "width of q, 8")),
    "wide": (lambda attention: attention(*(x.repeat(1, 1, 1, 33) for x in (Q, K)), V), ("width", "264", "256")),
    "lengths, type": (
        lambda attention: attention(Q, K, V, kv_lengths=torch.tensor([3.0, 4.0])),
        ("kv_lengths", "float32", "whole numbers"),
    ),
    "lengths, shape": (
        lambda attention: attention(Q, K, V, kv_lengths=torch.tensor([3, 4, 5])),
        ("kv_lengths", "[3]", "2 batch entries"),
    ),
    "lengths, truth": (
        lambda attention: attention(Q, K, V, kv_lengths=torch.tensor([True, False])),
        ("kv_lengths", "bool", "whole numbers"),
    ),
    "start, shape": (
        lambda attention: attention(Q, K, V, q_start=torch.zeros(2, 1, dtype=torch.int64)),
        ("q_start", "[2, 1]", "2 batch entries"),
    ),
    "k_start": (lambda attention: attention(Q, K, V, k_start=torch.tensor([3, 3])), ("k_start", "tensor", "whole")),
    "k_start, negative": (lambda attention: attention(Q, K, V, k_start=-3), ("k_start", "-3", "0 or more")),
    "k_start, real": (lambda attention: attention(Q, K, V, k_start=1.5), ("k_start", "1.5", "whole number")),
    "start, list": (lambda attention: attention(Q, K, V, q_start=[1, 2]), ("q_start", "[1, 2]", "whole number")),
    "start, far": (lambda attention: attention(Q, K, V, q_start=2**40), ("q_start", "1099511627776", "32 bits")),
    "lengths, list": (
        lambda attention: attention(Q, K, V, kv_lengths=[3, 4]),
        ("kv_lengths", "[3, 4]", "whole"),
    ),
    "lengths, negative": (lambda attention: attention(Q, K, V, kv_lengths=-4), ("kv_lengths", "-4", "0 or more")),
    "lengths, one truth": (lambda attention: attention(Q, K, V, kv_lengths=True), ("kv_lengths", "True", "whole")),
    "no heads": (lambda attention: attention(Q[:, :0], K, V), ("heads", "[2, 0, 45, 8]", "one or more")),
    "q, no tensor": (lambda attention: attention([1], K, V), ("q", "list", "tensor")),
    "scale, tensor": (lambda attention: attention(Q, K, V, scale=torch.tensor(0.3)), ("scale", "0.3", "finite number")),
    "scale, NaN": (lambda attention: attention(Q, K, V, scale=float("nan")), ("scale", "nan", "finite number")),
    "form": (lambda attention: attention(Q, K, V, form="cuda"), ("form", "'cuda'", "'triton', 'c' or 'torch'")),
    "float64 in Triton": (
        lambda attention: attention(Q.double(), K.double(), V.double(), form="triton"),
        ("q", "float64", "float32, bfloat16 or float16"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_argument_found_and_expected(case: str, modules: Callable[[str], Built]) -> None:
    call, words = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        call(modules(UNBOUNDED).module.attention)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_too_many_heads_for_a_list(tmp_path: Path) -> None:
    attention = build("attention few { score = dot(q, k) * [1, 2][h] }", tmp_path).module.attention
    with pytest.raises(ValueError, match=r"heads is 4, expected at most 2"):
        attention(Q, K, V)
