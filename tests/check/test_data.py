"""The oracle on declared data and vectors: every kind of node against a formula written out in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_oracle import CAUSAL, ONE, ROWS, SCALED, SCORE, H, I, J, call, make, op, test
from torch import Tensor
from torch.nn import functional

from attncc.check import formulas
from attncc.check.oracle import OutsideTable, dense
from attncc.spec import expr as e
from attncc.spec.data import Axis, Data, K, Q, Role, Size, V
from attncc.spec.expr import Expr
from attncc.spec.model import Spec

q, k, v = e.Vector("q"), e.Vector("k"), e.Vector("v")
B, HEADS, N, M, D, E = (Size.BATCH, Size.HEADS, Size.QUERIES, Size.KEYS, Size.WIDTH, Size.VALUE_WIDTH)


def param(name: str, *axes: Axis) -> Data:
    return Data(name=name, role=Role.PARAMETER, axes=axes)


def given_as(name: str, *axes: Axis) -> Data:
    return Data(name=name, role=Role.INPUT, axes=axes)


def with_data(*data: Data, value: Expr = v, **fields: Expr) -> Spec:
    return make(data=(Q, K, V, *data), value=value, **fields)  # type: ignore[arg-type]


def drawn(spec: Spec, sizes: dict[Axis, int], seed: int = 0) -> list[Tensor]:
    """float64 data with gradients; `Hk` heads for data of keys."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        [
            sizes["Hk"] if axis is HEADS and each.is_column else sizes[axis] if isinstance(axis, Size) else axis  # type: ignore[index]
            for axis in each.axes
        ]
        for each in spec.data
    )
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


SIZES = {B: 2, HEADS: 4, "Hk": 2, N: 5, M: 7, D: 6, E: 3}


def heads_of(x: Tensor, heads: int = 4) -> Tensor:
    return x.repeat_interleave(heads // x.shape[1], 1)


def softmax(scores: Tensor, values: Tensor, allowed: Tensor | None = None) -> Tensor:
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1) @ values


def agree(spec: Spec, formula: Callable[..., Tensor], sizes: dict[Axis, int] = SIZES, **options: object) -> None:  # type: ignore[assignment]
    """The output and every gradient; formulas get k and v with heads repeated."""
    data = drawn(spec, sizes)
    found = dense(spec, *data, **options).out  # type: ignore[arg-type]
    repeated = [
        heads_of(x) if each.is_column and HEADS in each.axes else x for x, each in zip(data, spec.data, strict=True)
    ]
    expected = formula(*repeated)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    seed = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for name, one, other in zip(
        (each.name for each in spec.data),
        torch.autograd.grad(found, data, seed, materialize_grads=True),
        torch.autograd.grad(expected, data, seed, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")


def positions(n: int = 5, m: int = 7) -> tuple[Tensor, Tensor]:
    return torch.arange(n)[:, None] + m - n, torch.arange(m)


def scaled(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(q.shape[-1])


def test_a_number_for_each_head_and_distance() -> None:
    index = call("clip", op("-", J, I), e.Const(-3), e.Const(2))
    spec = with_data(param("bias", HEADS, 6), score=op("+", SCALED, e.Entry("bias", (H, op("+", index, e.Const(3))))))
    i, j = positions()
    agree(spec, lambda q, k, v, bias: softmax(scaled(q, k) + bias[:, (j - i).clamp(-3, 2) + 3], v))


def test_a_table_of_positions_under_a_mask() -> None:
    spec = with_data(param("b", 7, 7), score=op("+", SCALED, e.Entry("b", (I, J))), pattern=CAUSAL)
    i, j = positions()
    agree(spec, lambda q, k, v, b: softmax(scaled(q, k) + b[i, j], v, j <= i))


def test_a_number_and_a_whole_parameter() -> None:
    spec = with_data(param("tau"), score=op("*", SCALED, call("exp", e.Entry("tau", ()))))
    agree(spec, lambda q, k, v, tau: softmax(scaled(q, k) * tau.exp(), v))


def test_numbers_of_rows_and_keys() -> None:
    spec = with_data(
        given_as("gate", B, HEADS, N),
        given_as("decay", B, HEADS, M),
        given_as("prior", M),
        score=op("+", op("*", SCALED, e.Token("gate")), op("*", e.Token("decay"), e.Token("prior"))),
    )
    agree(
        spec,
        lambda q, k, v, gate, decay, prior: softmax(scaled(q, k) * gate[..., None] + decay[:, :, None] * prior, v),
    )


def test_a_sink_joins_the_normaliser_of_rows_without_keys_too() -> None:
    spec = with_data(param("sink", HEADS), pattern=CAUSAL, normalizer=op("+", ROWS, call("exp", e.Entry("sink", (H,)))))
    sizes = SIZES | {N: 7, M: 4}
    data = drawn(spec, sizes)  # type: ignore[arg-type]
    result = dense(spec, *data)
    q, k, v, sink = data
    i, j = positions(7, 4)
    scores = scaled(q, heads_of(k)).masked_fill(j > i, -math.inf)
    scores = torch.cat((scores, sink[None, :, None, None].expand(2, 4, 7, 1)), -1)
    torch.testing.assert_close(result.out, scores.softmax(-1)[..., :-1] @ heads_of(v))
    torch.testing.assert_close(result.lse, scores.logsumexp(-1))
    assert result.lse is not None
    one, other = (torch.autograd.grad(each.sum(), sink) for each in (result.lse, scores.logsumexp(-1)))
    torch.testing.assert_close(one, other)
    empty = dense(spec, *data, kv_lengths=0)
    torch.testing.assert_close(empty.lse, sink[None, :, None].expand(2, 4, 7))
    assert not empty.out.any()


def test_additive_scores() -> None:
    spec = with_data(
        param("a", HEADS, D),
        score=e.Dot(e.Entry("a", (H,), is_vector=True), call("tanh", op("+", q, k))),
        pattern=CAUSAL,
    )
    i, j = positions()

    def formula(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
        scores = torch.einsum("bhijd,hd->bhij", (q[:, :, :, None] + k[:, :, None]).tanh(), a)
        return softmax(scores, v, j <= i)

    agree(spec, formula)


def test_slabs_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formulas, "_MOST_FEATURES", 700)
    test_additive_scores()
    distances = with_data(score=e.Negate(e.Reduce("sum", op("^", op("-", q, op("*", k, SCALED)), e.Const(2)))))
    agree(
        distances,
        lambda q, k, v: softmax(-((q[:, :, :, None] - k[:, :, None] * scaled(q, k)[..., None]) ** 2).sum(-1), v),
    )


def test_the_largest_feature_of_a_pair() -> None:
    spec = with_data(score=e.Reduce("largest", op("*", q, k)))
    agree(spec, lambda q, k, v: softmax((q[:, :, :, None] * k[:, :, None]).amax(-1), v))


def unit(x: Expr) -> Expr:
    return op("/", x, call("sqrt", call("max", e.Dot(x, x), e.Const(1e-24))))


def test_named_vectors_of_one_token() -> None:
    query, key = e.Let("query", unit(q)), e.Let("key", unit(op("*", k, e.Const(3))))
    spec = with_data(score=op("*", e.Const(5), e.Dot(query, key)), value=e.Let("value", call("silu", v)))
    agree(
        spec,
        lambda q, k, v: softmax(
            5 * functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT, functional.silu(v)
        ),
    )


def softmax_of(x: Expr) -> Expr:
    shifted = call("exp", op("-", x, e.Reduce("largest", x)))
    return op("/", shifted, e.Reduce("sum", shifted))


def test_a_softmax_of_features() -> None:
    spec = with_data(weight=e.Dot(softmax_of(q), call("exp", k)), pattern=CAUSAL)
    i, j = positions()

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q.softmax(-1) @ k.exp().mT) * (j <= i)
        return weights / weights.sum(-1, keepdim=True) @ v

    agree(spec, formula)


def test_exponentials_of_features_have_a_wide_range() -> None:
    """e^±2000 in the features of a vector: where products of plain numbers would be inf · 0."""
    spec = with_data(weight=e.Dot(call("exp", op("*", e.Const(500), q)), call("exp", op("*", e.Const(500), k))))
    data = drawn(spec, SIZES)  # type: ignore[arg-type]
    logs = torch.logsumexp(500 * (data[0][:, :, :, None] + heads_of(data[1])[:, :, None]), -1)
    torch.testing.assert_close(dense(spec, *data).out, softmax(logs, heads_of(data[2])), rtol=1e-9, atol=1e-10)


def test_matrices() -> None:
    spec = with_data(
        param("W", HEADS, D, 8),
        param("U", D, 8),
        param("P", E, 2),
        score=e.Dot(e.MatMul(q, e.Entry("W", (H,), is_vector=True)), e.MatMul(k, e.Entry("U", (), is_vector=True))),
        value=e.MatMul(v, e.Entry("P", (), is_vector=True)),
    )
    agree(
        spec,
        lambda q, k, v, w, u, p: softmax(torch.einsum("bhid,hdf,bhjc,cf->bhij", q, w, k, u), v @ p),
    )


def test_a_matrix_for_each_key() -> None:
    chosen = e.Entry("W", (op("%", J, e.Const(3)),), is_vector=True)
    spec = with_data(param("W", 3, D, D), score=e.Dot(q, e.MatMul(k, chosen)))
    _, j = positions()
    agree(spec, lambda q, k, v, w: softmax(torch.einsum("bhid,bhjc,jcd->bhij", q, k, w[j % 3]), v))


def test_widths_and_channels() -> None:
    """Features weighted by their place, over their number."""
    weighted = op("*", k, op("/", op("+", e.Channel(), ONE), e.Width(k)))
    spec = with_data(score=op("+", e.Dot(q, weighted), e.Dot(k, e.Channel())))
    place = torch.arange(6, dtype=torch.float64)
    agree(spec, lambda q, k, v: softmax(q @ (k * (place + 1) / 6).mT + (k @ place)[:, :, None], v))


def test_choices_feature_by_feature() -> None:
    """The branch that is not taken has no derivative there: sqrt of a negative feature reaches no gradient."""
    leaky = e.Select(test(">", k, e.Const(0)), call("sqrt", k), op("*", e.Const(0.1), k))
    spec = with_data(score=e.Dot(q, leaky), pattern=CAUSAL)
    i, j = positions()
    agree(spec, lambda q, k, v: softmax(q @ torch.where(k > 0, k.clamp(min=1e-9).sqrt(), 0.1 * k).mT, v, j <= i))


def test_functions_of_pairs_without_value_elsewhere() -> None:
    """(q + k) / (i - j) has no value at i = j, which is not related; tokens that no pair has may hold anything."""
    spec = with_data(
        param("a", HEADS, D),
        pattern=test("<", J, I),
        score=e.Dot(e.Entry("a", (H,), is_vector=True), op("/", op("+", q, k), op("-", I, J))),
    )
    i, j = positions()
    agree(
        spec,
        lambda q, k, v, a: softmax(
            torch.einsum("bhijd,hd->bhij", q[:, :, :, None] + k[:, :, None], a) / (i - j).where(i != j, 1), v, j < i
        ),
    )


def rope(x: Expr, position: Expr, layout: str) -> Expr:
    """The rotation as a spec writes it."""
    width = e.Width(x)
    pair = op("%", e.Channel(), op("//", width, e.Const(2))) if layout == "half" else op("//", e.Channel(), e.Const(2))
    angle = op("*", position, op("^", e.Const(10000), op("/", op("*", e.Const(-2), pair), width)))
    return op("+", op("*", x, call("cos", angle)), op("*", e.Rotate(layout, x), call("sin", angle)))


def textbook_rope(x: Tensor, position: Tensor, layout: str) -> Tensor:
    """Complex numbers: pairs of features turned by position · 10000^(-2t/d)."""
    d = x.shape[-1]
    first, second = (x[..., : d // 2], x[..., d // 2 :]) if layout == "half" else (x[..., ::2], x[..., 1::2])
    angles = position.double() * 10000.0 ** (-2 * torch.arange(d // 2, dtype=torch.float64) / d)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    parts = (turned.real, turned.imag)
    return torch.cat(parts, -1) if layout == "half" else torch.stack(parts, -1).flatten(-2)


@pytest.mark.parametrize("layout", ["half", "pairs"])
def test_rotary_positions(layout: str) -> None:
    spec = with_data(score=op("*", e.Symbol(e.Name.SCALE), e.Dot(e.Let("r", rope(q, I, layout)), rope(k, J, layout))))
    i, j = positions()
    agree(
        spec,
        lambda q, k, v: softmax(scaled(textbook_rope(q, i, layout), textbook_rope(k, j[:, None], layout)), v),
    )


@pytest.mark.parametrize("layout", ["half", "pairs"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(width=st.integers(1, 6), shift=st.integers(-50, 50), seed=st.integers(0, 99))
def test_rotary_scores_depend_on_the_distance_alone(layout: str, width: int, shift: int, seed: int) -> None:
    spec = with_data(score=e.Dot(rope(q, I, layout), rope(k, J, layout)))
    data = drawn(spec, {**SIZES, D: 2 * width}, seed)  # type: ignore[arg-type]
    here, there = (dense(spec, *data, q_start=at, k_start=at + 2).out for at in (3, 3 + shift))
    torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("score", [SCALED, e.Dot(q, unit(k)), e.Dot(e.Entry("a", (), is_vector=True), op("*", q, k))])
def test_garbage_in_tokens_that_no_pair_has(score: Expr) -> None:
    spec = with_data(param("a", D), score=score, pattern=CAUSAL, value=call("log", op("+", ONE, call("exp", v))))
    clean = drawn(spec, SIZES | {N: 9})  # type: ignore[arg-type]
    dirty = [each.detach().clone() for each in clean]
    dirty[0][:, :, :2] = math.nan  # rows before every key
    dirty[1][1, :, 4:], dirty[2][1, :, 4:] = math.nan, math.inf  # hidden keys
    dirty = [each.requires_grad_() for each in dirty]
    lengths = torch.tensor([7, 4])
    one, other = (dense(spec, *data, kv_lengths=lengths).out for data in (clean, dirty))
    assert torch.equal(one, other)
    for expected, found in zip(
        torch.autograd.grad(one.square().sum(), clean, materialize_grads=True),
        torch.autograd.grad(other.square().sum(), dirty, materialize_grads=True),
        strict=True,
    ):
        assert torch.equal(expected, found)


def test_indices_beside_a_table() -> None:
    """An index of both tokens counts where a pair is related, whatever a condition chooses there."""
    table = e.Entry("b", (op("-", I, J),))
    everywhere = with_data(param("b", 5), score=op("+", SCALED, table))
    data = drawn(everywhere, SIZES | {M: 5})  # type: ignore[arg-type]
    with pytest.raises(OutsideTable, match="reads -4…-1 along axis 0, which has 5 entries"):
        dense(everywhere, *data)
    causal = with_data(param("b", 5), score=op("+", SCALED, table), pattern=CAUSAL)
    assert dense(causal, *data).out.isfinite().all()
    with pytest.raises(OutsideTable, match="reads 5…6 along axis 0"):
        dense(causal, *data, q_start=2)
    chosen = with_data(param("b", 5), score=op("+", SCALED, e.Select(test("<=", J, I), table, e.Const(0.0))))
    with pytest.raises(OutsideTable, match="reads -4…-1 along axis 0"):
        dense(chosen, *data)
    assert dense(replace(chosen, pattern=CAUSAL), *data).out.isfinite().all()
    assert not dense(everywhere, *data, kv_lengths=0).out.any()


def test_indices_that_one_token_decides_count_for_every_token() -> None:
    """A module refuses them so, whatever the pattern; but what is said of hidden keys does not count."""
    near = e.And((test("<", I, e.Const(3)), test("<", J, e.Const(3))))
    for index, options in ((I, {}), (J, {}), (J, {"kv_lengths": 3})):
        spec = with_data(param("b", 3), score=op("+", SCALED, e.Entry("b", (index,))), pattern=near)
        with pytest.raises(OutsideTable, match="reads 3…4 along axis 0"):
            dense(spec, *drawn(spec, SIZES | {N: 5, M: 5}), **options)  # type: ignore[arg-type]
    kind = replace(given_as("s", Size.BATCH, M), whole=True)
    before = op("-", e.Token("s", whole=True), e.Const(1))
    spec = with_data(kind, param("b", 3), score=op("+", SCALED, e.Entry("b", (before,))))
    *vectors, kinds, table = drawn(spec, SIZES | {M: 5})  # type: ignore[arg-type]
    kinds = torch.tensor([[1, 2, 3, 0, 0], [3, 3, 9, 9, -9]])
    assert dense(spec, *vectors, kinds, table, kv_lengths=torch.tensor([3, 2])).out.isfinite().all()
    with pytest.raises(OutsideTable):
        dense(spec, *vectors, kinds, table, kv_lengths=torch.tensor([3, 3]))


def test_refusals() -> None:
    spec = with_data(param("a", HEADS, D), score=e.Dot(e.Entry("a", (H,), is_vector=True), op("+", q, k)))
    data = drawn(spec, SIZES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`a` has 3 entries along H, not 4"):
        dense(spec, *data[:3], data[3][:3])
    with pytest.raises(ValueError, match="`a` has 1 axes, not 2"):
        dense(spec, *data[:3], data[3][0])
    with pytest.raises(ValueError, match="vectors of 3 and 6 features meet"):
        dense(with_data(score=e.Dot(q, v)), *data[:3])
    with pytest.raises(ValueError, match=r"rotate_half.* turns pairs of features, and there are 3"):
        dense(with_data(value=e.Rotate("half", v)), *data[:3])
    with pytest.raises(ValueError, match="multiplies 6 features by a matrix with 4 rows"):
        dense(
            with_data(param("W", 4, 4), score=e.Dot(q, e.MatMul(k, e.Entry("W", (), is_vector=True)))),
            *data[:3],
            torch.ones(4, 4),
        )
    with pytest.raises(ValueError, match="is a vector, and a number is wanted"):
        dense(with_data(score=q), *data[:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes_are_near(dtype: torch.dtype) -> None:
    spec = with_data(
        param("W", HEADS, D, 8),
        param("bias", HEADS, 13),
        score=op(
            "+",
            e.Dot(
                call("tanh", e.MatMul(q, e.Entry("W", (H,), is_vector=True))),
                call("sigmoid", e.MatMul(k, e.Entry("W", (H,), is_vector=True))),
            ),
            e.Entry("bias", (H, op("+", op("-", J, I), e.Const(6)))),
        ),
        pattern=CAUSAL,
    )
    data = drawn(spec, SIZES | {N: 7})  # type: ignore[arg-type]
    exact, near = (dense(spec, *data, dtype=each).out for each in (torch.float64, dtype))
    assert near.dtype == dtype
    torch.testing.assert_close(near.double(), exact, rtol=0, atol=16 * torch.finfo(dtype).eps)
    gradients = [torch.autograd.grad(each.double().sum(), data)[4] for each in (exact, near)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=32 * torch.finfo(dtype).eps)


def test_a_derived_vector_is_rounded_once_in_sixteen_bits() -> None:
    """What a token's formula comes to is stored in the dtype: the weight sees bfloat16 numbers, not float32 ones."""
    spec = with_data(score=e.Dot(q, e.Let("key", call("tanh", op("*", e.Const(1.5), k)))), weight=SCORE, normalizer=ONE)
    data = [each.detach().bfloat16() for each in drawn(spec, SIZES | {N: 1, M: 1})]  # type: ignore[arg-type]
    stored = (1.5 * heads_of(data[1]).float()).tanh().bfloat16()
    expected = (data[0] @ stored.mT) @ heads_of(data[2])
    assert torch.equal(dense(spec, *data, dtype=torch.bfloat16).out, expected)
