"""The oracle against plain double loops, finite differences, and inputs that break careless formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from attncc.check.oracle import dense, related
from attncc.diagnostics import Source, Span
from attncc.spec import expr as e
from attncc.spec.data import Data, K, Q, V
from attncc.spec.expr import BinaryOp, CompareOp, Expr, Name
from attncc.spec.model import Align, Spec

I, J, H, N, M, SCORE, ROWS, COUNT = (  # noqa: E741
    e.Symbol(name) for name in (Name.I, Name.J, Name.HEAD, Name.QUERIES, Name.KEYS, Name.SCORE, Name.ROWS, Name.COUNT)
)
VALUE = e.Vector("v")
DOT = e.Dot(e.Vector("q"), e.Vector("k"))
ONE = e.Const(1)
EXPONENTIAL = e.Call("exp", (SCORE,))
SCALED = e.Binary(BinaryOp.MULTIPLY, DOT, e.Symbol(Name.SCALE))
SOURCE = Source("test.attn", "")


def op(sign: str, left: Expr, right: Expr) -> Expr:
    return e.Binary(BinaryOp(sign), left, right)


def test(sign: str, left: Expr, right: Expr) -> Expr:
    return e.Compare(CompareOp(sign), left, right)


test.__test__ = False  # type: ignore[attr-defined]


def call(name: str, *arguments: Expr) -> Expr:
    return e.Call(name, arguments)


CAUSAL = test("<=", J, I)


def make(
    pattern: Expr = e.TRUE,
    score: Expr = SCALED,
    weight: Expr = EXPONENTIAL,
    normalizer: Expr = ROWS,
    align: Align = Align.END,
    value: Expr = VALUE,
    data: tuple[Data, ...] = (Q, K, V),
) -> Spec:
    return Spec(
        name="test",
        summary="",
        source=SOURCE,
        span=Span(SOURCE, 1, 1, 1, 1),
        parameters=(),
        pattern=pattern,
        score=score,
        weight=weight,
        normalizer=normalizer,
        value=value,
        align=align,
        data=data,
    )


@dataclass(frozen=True)
class Pair:
    """What a hand-written formula may read."""

    i: int
    j: int
    h: int
    n: int
    m: int
    s: float
    count: int
    valid: int


@dataclass(frozen=True)
class Example:
    """A spec and the same meaning in plain Python."""

    spec: Spec
    pattern: Callable[[Pair], bool]
    weight: Callable[[Pair], float]
    normalizer: Callable[[Pair, list[float], list[Pair]], float]


WINDOW = e.And((test("<=", op("-", I, J), e.Const(2)), test("<=", op("-", J, I), ONE)))
EXAMPLES: dict[str, Example] = {
    "causal softmax": Example(make(CAUSAL), lambda p: p.j <= p.i, lambda p: math.exp(p.s), lambda p, w, r: sum(w)),
    "window relu2 over n": Example(
        make(WINDOW, weight=op("^", call("relu", SCORE), e.Const(2)), normalizer=N),
        lambda p: p.i - p.j <= 2 and p.j - p.i <= 1,
        lambda p: max(p.s, 0) ** 2,
        lambda p, w, r: p.n,
    ),
    "sigmoid, minus log of the valid keys": Example(
        make(weight=call("sigmoid", op("-", SCORE, call("log", e.Symbol(Name.VALID)))), normalizer=ONE),
        lambda p: True,
        lambda p: 1 / (1 + math.exp(math.log(p.valid) - p.s)) if p.valid else 0,
        lambda p, w, r: 1,
    ),
    "softmax with one more": Example(
        make(CAUSAL, normalizer=op("+", ROWS, ONE)),
        lambda p: p.j <= p.i,
        lambda p: math.exp(p.s),
        lambda p, w, r: sum(w) + 1,
    ),
    "count in the weight": Example(
        make(CAUSAL, weight=call("exp", op("*", SCORE, call("log2", op("+", ONE, COUNT))))),
        lambda p: p.j <= p.i,
        lambda p: math.exp(p.s * math.log2(1 + p.count)),
        lambda p, w, r: sum(w),
    ),
    "a slope for each head": Example(
        make(CAUSAL, score=op("-", SCALED, op("*", e.Table((0.5, 2), H), op("-", I, J)))),
        lambda p: p.j <= p.i,
        lambda p: math.exp(p.s - [0.5, 2][p.h] * (p.i - p.j)),
        lambda p, w, r: sum(w),
    ),
    "rows of another weight": Example(
        make(
            weight=op("*", SCORE, call("exp", SCORE)),
            normalizer=op("+", e.RowSum(call("exp", op("*", e.Const(2), SCORE))), ROWS),
        ),
        lambda p: True,
        lambda p: p.s * math.exp(p.s),
        lambda p, w, r: sum(math.exp(2 * each.s) for each in r) + sum(w),
    ),
    "floor division and modulo below zero": Example(
        make(
            e.Or(
                (
                    test("==", op("//", I, e.Const(3)), op("//", J, e.Const(3))),
                    test("==", op("%", op("-", I, J), e.Const(4)), ONE),
                )
            )
        ),
        lambda p: p.i // 3 == p.j // 3 or (p.i - p.j) % 4 == 1,
        lambda p: math.exp(p.s),
        lambda p, w, r: sum(w),
    ),
    "decay without normalizer": Example(
        make(CAUSAL, weight=op("*", op("^", e.Const(0.9), op("-", I, J)), DOT), normalizer=ONE),
        lambda p: p.j <= p.i,
        lambda p: 0.9 ** (p.i - p.j) * p.s * math.sqrt(3),
        lambda p, w, r: 1,
    ),
    "heads differ, selected factor": Example(
        make(
            e.Select(test("==", op("%", H, e.Const(2)), e.Const(0)), CAUSAL, e.Not(CAUSAL)),
            weight=e.Select(
                test(">", SCORE, e.Const(0)), call("exp", SCORE), e.Indicator(test("==", I, op("-", J, ONE)))
            ),
            normalizer=call("max", ROWS, e.Const(0.5)),
        ),
        lambda p: (p.j <= p.i) == (p.h % 2 == 0),
        lambda p: math.exp(p.s) if p.s > 0 else float(p.i == p.j - 1),
        lambda p, w, r: max(sum(w), 0.5),
    ),
}


def loops(
    example: Example, q: Tensor, k: Tensor, v: Tensor, starts: list[int], k_start: int, lengths: list[int]
) -> tuple[Tensor, Tensor]:
    """out and log N by double loops over Python floats."""
    batch, heads, n, d = q.shape
    m = k.shape[2]
    out = torch.zeros(batch, heads, n, v.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads, n), -math.inf, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            g = h * k.shape[1] // heads
            for row in range(n):
                pairs = [
                    Pair(
                        starts[b] + row,
                        k_start + j,
                        h,
                        n,
                        m,
                        float(q[b, h, row] @ k[b, g, j]) / math.sqrt(d),
                        0,
                        min(m, lengths[b]),
                    )
                    for j in range(min(m, lengths[b]))
                ]
                pairs = [pair for pair in pairs if example.pattern(pair)]
                pairs = [Pair(p.i, p.j, p.h, p.n, p.m, p.s, len(pairs), p.valid) for p in pairs]
                weights = [example.weight(pair) for pair in pairs]
                own = pairs[0] if pairs else Pair(starts[b] + row, 0, h, n, m, 0.0, 0, min(m, lengths[b]))
                total = example.normalizer(own, weights, pairs)
                if total:
                    out[b, h, row] = (
                        sum((w * v[b, g, p.j - k_start] for w, p in zip(weights, pairs, strict=True)), torch.zeros(()))
                        / total
                    )
                if total > 0:
                    lse[b, h, row] = math.log(total)
    return out, lse


def tensors(
    batch: int, heads: int, key_heads: int, n: int, m: int, d: int = 3, width: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n * 100 + m)
    shapes = (batch, heads, n, d), (batch, key_heads, m, d), (batch, key_heads, m, width)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return q, k, v


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize(
    ("n", "m", "key_heads", "starts", "k_start", "lengths"),
    [
        (5, 5, 2, None, 0, None),
        (3, 5, 1, None, 0, [5, 2]),
        (5, 3, 2, None, 0, [0, 3]),  # rows at negative positions, a batch entry without keys
        (4, 5, 2, [-3, 7], 4, [5, 9]),  # a length beyond m
        (1, 1, 1, [0, 0], 0, None),
    ],
)
def test_equals_double_loops(
    name: str, n: int, m: int, key_heads: int, starts: list[int] | None, k_start: int, lengths: list[int] | None
) -> None:
    example = EXAMPLES[name]
    q, k, v = tensors(2, 2, key_heads, n, m)
    result = dense(
        example.spec,
        q,
        k,
        v,
        q_start=None if starts is None else torch.tensor(starts),
        k_start=k_start,
        kv_lengths=None if lengths is None else torch.tensor(lengths),
    )
    out, lse = loops(example, q, k, v, starts or [k_start + m - n] * 2, k_start, lengths or [m, m])
    torch.testing.assert_close(result.out, out, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(result.weights @ v.repeat_interleave(2 // key_heads, 1), out, rtol=1e-12, atol=1e-13)
    if result.lse is not None:
        torch.testing.assert_close(result.lse, lse, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", EXAMPLES)
def test_gradients_are_finite_differences(name: str) -> None:
    q, k, v = (each.requires_grad_() for each in tensors(2, 2, 1, 4, 5))

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        result = dense(EXAMPLES[name].spec, q, k, v, kv_lengths=torch.tensor([5, 3]))
        seen = () if result.lse is None else (result.lse.where(result.lse.isfinite(), 0),)
        return (result.out, *seen)

    assert torch.autograd.gradcheck(run, (q, k, v))


FUNCTIONS_OF_SCORE = [
    *(
        call(name, SCORE)
        for name in (
            "abs",
            "exp",
            "exp2",
            "tanh",
            "sigmoid",
            "silu",
            "gelu",
            "softplus",
            "relu",
            "elu",
            "cos",
            "sin",
            "erf",
        )
    ),
    call("sqrt", call("exp", SCORE)),
    call("log", op("+", ONE, call("exp", SCORE))),
    call("log2", op("+", op("*", SCORE, SCORE), ONE)),
    call("clip", SCORE, e.Const(-0.5), e.Const(0.5)),
    call("min", SCORE, e.Const(0.1), call("exp", SCORE)),
    op("/", call("exp", SCORE), op("+", call("exp", SCORE), ONE)),
    op("^", call("exp", SCORE), e.Const(1.5)),
    op("+", call("floor", SCORE), op("*", SCORE, call("sign", SCORE))),
]


@pytest.mark.parametrize("weight", FUNCTIONS_OF_SCORE)
def test_functions_have_their_derivatives(weight: Expr) -> None:
    q, k, v = (each.requires_grad_() for each in tensors(1, 1, 1, 3, 4))
    assert torch.autograd.gradcheck(lambda *qkv: dense(make(weight=weight, normalizer=N), *qkv).out, (q, k, v))


def test_softplus_is_exact_at_large_arguments() -> None:
    q, k, v = torch.full((1, 1, 1, 1), 25.0), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    out = dense(make(score=DOT, weight=call("softplus", SCORE), normalizer=ONE), q, k, v).out
    assert out.item() == pytest.approx(math.log1p(math.exp(-25)) + 25, abs=1e-14)


@pytest.mark.parametrize(
    "normalizer", [ROWS, op("+", ROWS, ONE), call("max", ROWS, e.Const(1e-6)), op("+", ROWS, call("exp", e.Const(3)))]
)
@pytest.mark.parametrize("factor", [e.Const(1), e.Indicator(test("==", op("%", J, e.Const(2)), e.Const(0)))])
def test_extreme_scores(normalizer: Expr, factor: Expr) -> None:
    """Scores of ±1e4 neither overflow nor vanish: the result is that of the largest score, and gradients are finite."""
    q, k, v = (each.requires_grad_() for each in tensors(1, 1, 1, 4, 5))
    score = op("*", SCALED, e.Const(1e4))
    result = dense(make(score=score, weight=op("*", factor, call("exp", SCORE)), normalizer=normalizer), q, k, v)
    assert result.lse is not None
    gradients = torch.autograd.grad((result.out.sum() + result.lse.sum()), (q, k, v))
    assert all(each.isfinite().all() for each in (result.out, result.lse, *gradients))
    scores = (q @ k.mT)[0, 0] * 1e4 / math.sqrt(3)
    scores = scores if factor == e.Const(1) else scores[:, ::2]
    floor = {ROWS: -math.inf, op("+", ROWS, ONE): 0.0, call("max", ROWS, e.Const(1e-6)): math.log(1e-6)}.get(
        normalizer, 3.0
    )
    expected = (
        torch.logaddexp(scores.logsumexp(-1), torch.tensor(floor))
        if "max" not in repr(normalizer)
        else scores.logsumexp(-1).clamp(min=floor)
    )
    torch.testing.assert_close(result.lse[0, 0], expected)


def test_products_of_exponentials_stay_in_range() -> None:
    q, k, v = tensors(1, 1, 1, 3, 4)
    big = op("*", call("exp", op("*", SCORE, e.Const(500))), call("exp", op("*", SCORE, e.Const(500))))
    both = dense(make(weight=big), q, k, v)
    one = dense(make(weight=call("exp", op("*", SCORE, e.Const(1000)))), q, k, v)
    torch.testing.assert_close(both.out, one.out)
    torch.testing.assert_close(both.lse, one.lse)


def test_all_scores_very_negative() -> None:
    q, k, v = tensors(1, 1, 1, 3, 4)
    lowered = make(score=op("-", SCALED, e.Const(20000)))
    torch.testing.assert_close(dense(lowered, q, k, v).out, dense(make(), q, k, v).out, rtol=1e-10, atol=1e-10)
    assert (
        dense(make(score=op("-", SCALED, e.Const(20000)), normalizer=op("+", ROWS, ONE)), q, k, v).lse.abs().max() == 0
    )  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("normalizer", "lse"),
    [
        (ROWS, -math.inf),
        (op("+", ROWS, ONE), 0.0),
        (op("/", ROWS, COUNT), -math.inf),
        (call("max", ROWS, e.Const(0.5)), math.log(0.5)),
    ],
)
def test_rows_without_keys(normalizer: Expr, lse: float) -> None:
    """n > m aligned at the end: the first rows stand before every key."""
    q, k, v = (each.requires_grad_() for each in tensors(1, 2, 1, 5, 3))
    result = dense(make(CAUSAL, normalizer=normalizer), q, k, v)
    assert result.lse is not None
    assert (result.out[:, :, :2] == 0).all()
    assert (result.lse[:, :, :2] == lse).all()
    dq, dk, dv = torch.autograd.grad(
        (result.out, result.lse), (q, k, v), (torch.ones_like(result.out), torch.ones_like(result.lse))
    )
    assert (dq[:, :, :2] == 0).all()
    assert all(each.isfinite().all() for each in (dq, dk, dv))


def test_no_key_at_all() -> None:
    q, k, v = (each.requires_grad_() for each in tensors(2, 2, 1, 3, 0))
    result = dense(make(), q, k, v)
    assert result.out.shape == (2, 2, 3, 2)
    assert (result.out == 0).all()
    assert result.lse is not None
    assert (result.lse == -math.inf).all()
    result.out.sum().backward()
    assert (q.grad == 0).all()


@pytest.mark.parametrize(
    "weight", [call("exp", SCORE), call("sigmoid", SCORE), op("^", call("relu", SCORE), e.Const(2))]
)
def test_garbage_in_hidden_keys(weight: Expr) -> None:
    spec = make(CAUSAL, weight=weight)
    lengths = torch.tensor([3, 0])
    q, k, v = tensors(2, 2, 1, 5, 5)
    clean = dense(spec, *(clean_inputs := [each.clone().requires_grad_() for each in (q, k, v)]), kv_lengths=lengths)
    for b in range(2):
        k[b, :, lengths[b] :], v[b, :, lengths[b] :] = math.nan, math.inf
    result = dense(spec, *(inputs := [each.requires_grad_() for each in (q, k, v)]), kv_lengths=lengths)
    assert torch.equal(result.out, clean.out)
    expected = torch.autograd.grad(clean.out.square().sum(), clean_inputs)
    for gradient, other in zip(torch.autograd.grad(result.out.square().sum(), inputs), expected, strict=True):
        assert torch.equal(gradient, other)


def test_formulas_without_value_at_unrelated_pairs() -> None:
    """sqrt(i - j) has no value for the future, 1 / (i - j) none at i = j: neither may reach a gradient."""
    distance = op("-", I, J)
    spec = make(
        test("<", J, I), weight=op("*", call("exp", op("*", call("sqrt", distance), SCORE)), op("/", ONE, distance))
    )
    q, k, v = (each.requires_grad_() for each in tensors(1, 1, 1, 5, 5))
    assert torch.autograd.gradcheck(lambda *qkv: dense(spec, *qkv).out, (q, k, v))
    selected = make(weight=e.Select(test("<", J, I), spec.weight, call("exp", SCORE)))
    assert torch.autograd.gradcheck(lambda *qkv: dense(selected, *qkv).out, (q, k, v))


def test_unrelated_pairs_may_overflow() -> None:
    """2^(j - i) is beyond float64 in the far future, which is not related."""
    far = make(
        CAUSAL,
        weight=op("*", call("exp", op("*", e.Const(400), op("-", J, I))), call("relu", SCORE)),
        normalizer=op("+", ROWS, ONE),
    )
    q, k, v = (each.requires_grad_() for each in tensors(1, 1, 1, 5, 5))
    out = dense(far, q, k, v).out
    assert all(each.isfinite().all() for each in torch.autograd.grad(out.sum(), (q, k, v)))


def test_positions() -> None:
    causal = make(CAUSAL)
    assert related(causal, 2, 4, 1)[0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert related(make(CAUSAL, align=Align.START), 2, 4, 1)[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]
    moved = related(causal, 1, 3, 2, batch=2, q_start=torch.tensor([4, 6]), k_start=4, kv_lengths=torch.tensor([3, 2]))
    assert moved[:, 1, 0].int().tolist() == [[1, 0, 0], [1, 1, 0]]
    assert related(causal, 1, 3, 2, batch=2, kv_lengths=1).shape == (2, 2, 1, 3)


def test_a_pattern_of_scores() -> None:
    spec = make(test(">", SCORE, e.Const(0)))
    q, k, v = tensors(1, 1, 1, 4, 5)
    assert torch.equal(dense(spec, q, k, v).weights > 0, q @ k.mT > 0)
    with pytest.raises(ValueError, match="depends on q and k"):
        related(spec, 4, 5, 1)


def test_refusals() -> None:
    q, k, v = tensors(1, 3, 3, 2, 2)
    with pytest.raises(ValueError, match="a list of 2 constants is read at 0…2"):
        dense(make(score=op("*", DOT, e.Table((1.0, 2.0), H))), q, k, v)
    with pytest.raises(ValueError, match="`first` has no value here"):
        dense(make(test("<", e.Symbol(Name.FIRST), I)), q, k, v)
    with pytest.raises(ValueError, match="3 query heads cannot share 2 key heads"):
        dense(make(), q, k[:, :2], v[:, :2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes_are_near(dtype: torch.dtype) -> None:
    q, k, v = tensors(2, 4, 2, 40, 50, d=16, width=8)
    exact, near = dense(make(CAUSAL), q, k, v), dense(make(CAUSAL), q, k, v, dtype=dtype)
    assert near.out.dtype == dtype
    torch.testing.assert_close(near.out.double(), exact.out, rtol=0, atol=8 * torch.finfo(dtype).eps)
