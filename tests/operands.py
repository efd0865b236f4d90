"""Specs with learned parameters and further inputs, built by hand, each with its formula in plain float64 torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from attncc.diagnostics import Source, Span
from attncc.spec.data import Axis, Data, K, Q, Role, Size, V
from attncc.spec.expr import (
    And,
    Binary,
    BinaryOp,
    Call,
    Channel,
    Compare,
    CompareOp,
    Const,
    Dot,
    Entry,
    Expr,
    Let,
    MatMul,
    Name,
    Negate,
    Reduce,
    Rotate,
    Symbol,
    Token,
    Vector,
    Width,
)
from attncc.spec.model import Spec

SOURCE = Source("made.attn", "")
SPAN = Span(SOURCE, 1, 1, 1, 1)
B, H, N, M, D = Size.BATCH, Size.HEADS, Size.QUERIES, Size.KEYS, Size.WIDTH
I, J, HEAD = Symbol(Name.I), Symbol(Name.J), Symbol(Name.HEAD)  # noqa: E741
q, k, v = Vector("q"), Vector("k"), Vector("v")


def op(sign: str, left: Expr, right: Expr) -> Expr:
    return Binary(BinaryOp(sign), left, right)


def clip(expr: Expr, low: int, high: int) -> Expr:
    return Call("clip", (expr, Const(low), Const(high)))


def param(name: str, *axes: Axis, initial: float | None = None) -> Data:
    return Data(name=name, role=Role.PARAMETER, axes=axes, initial=initial)


def given(name: str, *axes: Axis, whole: bool = False) -> Data:
    return Data(name=name, role=Role.INPUT, axes=axes, whole=whole)


CAUSAL = Compare(CompareOp.LESS_EQUAL, J, I)
ALL = Compare(CompareOp.GREATER_EQUAL, J, Const(-(2**30)))
WINDOW = And((CAUSAL, Compare(CompareOp.LESS, op("-", I, J), Const(20))))
BY_HEAD = And((CAUSAL, Compare(CompareOp.LESS, op("-", I, J), op("*", Const(9), op("+", HEAD, Const(1))))))
PRODUCT = op("*", Symbol(Name.SCALE), Dot(q, k))
SOFTMAX = Call("exp", (Symbol(Name.SCORE),))


@dataclass(frozen=True)
class Case:
    """A spec and its score, as a function of what `evaluate` makes."""

    spec: Spec
    score: Callable[[Any], Tensor]
    weight: Callable[[Tensor], Tensor] = torch.exp
    norm: Callable[[Any, Tensor], Any] = lambda x, rows: rows
    value: Callable[[Any], Tensor] = lambda x: x.v
    related: Callable[[Any], Tensor] = lambda x: x.j <= x.i
    whole: dict[str, int] = field(default_factory=dict)  # how many different whole numbers data hold


def case(
    name: str,
    score: Expr,
    formula: Callable[[Any], Tensor],
    *data: Data,
    weighted: Expr = SOFTMAX,
    normalizer: Expr | None = None,
    pattern: Expr = CAUSAL,
    values: Expr = v,
    **rest: Any,
) -> Case:
    spec = Spec(
        name=name,
        summary="",
        source=Source("made.attn", name),
        span=SPAN,
        parameters=(),
        pattern=pattern,
        score=score,
        weight=weighted,
        normalizer=normalizer or Symbol(Name.ROWS),
        value=values,
        data=data if Q in data else (Q, K, V, *data),
    )
    return Case(spec, formula, **rest)


def product(x: Any) -> Tensor:
    return x.scale * x.q @ x.k.mT


def turned(x: Tensor, at: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = at * 100.0 ** (-2 * (torch.arange(2 * half) % half).double() / x.shape[-1])
    return x * angle.cos() + torch.cat((-x[..., half:], x[..., :half]), -1) * angle.sin()


def rotation(x: Expr, at: Expr) -> Expr:
    place = op("%", Channel(), op("//", Width(x), Const(2)))
    angle = op("*", at, op("^", Const(100), op("/", op("*", Const(-2), place), Width(x))))
    angle = Let("angle", angle)
    return op("+", op("*", x, Call("cos", (angle,))), op("*", Rotate("half", x), Call("sin", (angle,))))


def unit(x: Expr) -> Expr:
    return op("/", x, Call("sqrt", (op("+", Reduce("sum", op("^", x, Const(2))), Const(0.01)),)))


def entry(name: str, *indices: Expr, vector: bool = False, whole: bool = False) -> Entry:
    return Entry(name, indices, is_vector=vector, whole=whole)


NEAR = op("+", clip(op("-", J, I), -8, 8), Const(8))
EIGHTHS = (op("%", I, Const(8)), op("%", J, Const(8)))
A_OF_HEAD = entry("a", HEAD, vector=True)
CASES = {
    each.spec.name: each
    for each in (
        case(
            "by_distance",
            op("+", PRODUCT, entry("bias", HEAD, NEAR)),
            lambda x: product(x) + x.bias[x.h, (x.j - x.i).clamp(-8, 8) + 8],
            param("bias", H, 17),
        ),
        case(
            "additive",
            Dot(A_OF_HEAD, Call("tanh", (op("+", q, k),))),
            lambda x: (x.a[:, None, None] * (x.q[..., None, :] + x.k[..., None, :, :]).tanh()).sum(-1),
            param("a", H, D),
        ),
        case(
            "concat",
            Call("relu", (Dot(A_OF_HEAD, op("+", q, k)),)),
            lambda x: (x.a[:, None, None] * (x.q[..., None, :] + x.k[..., None, :, :])).sum(-1).relu(),
            param("a", H, D),
        ),
        case(
            "sink",
            PRODUCT,
            product,
            param("sink", H, initial=0.5),
            normalizer=op("+", Symbol(Name.ROWS), Call("exp", (entry("sink", HEAD),))),
            norm=lambda x, rows: rows + x.sink.exp()[:, None, None],
        ),
        case(
            "pair_table",
            op("+", PRODUCT, entry("b", *EIGHTHS)),
            lambda x: product(x) + x.b[x.i % 8, x.j % 8],
            param("b", 8, 8),
        ),
        case(
            "squared_relu",
            op("+", PRODUCT, entry("b", HEAD, *EIGHTHS)),
            lambda x: product(x) + x.b[x.h, x.i % 8, x.j % 8],
            param("b", H, 8, 8),
            weighted=op("^", Call("relu", (Symbol(Name.SCORE),)), Const(2)),
            normalizer=Const(1),
            weight=lambda score: score.relu().square(),
            norm=lambda x, rows: torch.ones_like(rows),
        ),
        case(
            "two_products",
            op("*", Dot(q, k), Dot(q, Call("relu", (k,)))),
            lambda x: (x.q @ x.k.mT) * (x.q @ x.k.relu().mT),
        ),
        case(
            "squared_distance",
            Negate(Reduce("sum", op("^", op("-", q, k), Const(2)))),
            lambda x: -((x.q[..., None, :] - x.k[..., None, :, :]) ** 2).sum(-1),
        ),
        # --- and others
        case(
            "key_bias",
            op("+", PRODUCT, op("+", Token("bias"), Token("own"))),
            lambda x: product(x) + x.bias[:, None, None] + x.own[..., None],
            given("bias", B, M),
            given("own", B, H, N),
        ),
        case(
            "rotated",
            op("*", Symbol(Name.SCALE), Dot(rotation(q, I), rotation(k, J))),
            lambda x: x.scale * turned(x.q, x.i) @ turned(x.k, x.j.mT).mT,
        ),
        case(
            "cosine",
            op("*", entry("heat", HEAD), Dot(unit(q), unit(k))),
            lambda x: (
                x.heat[:, None, None]
                * (x.q / (x.q.square().sum(-1, keepdim=True) + 0.01).sqrt())
                @ (x.k / (x.k.square().sum(-1, keepdim=True) + 0.01).sqrt()).mT
            ),
            param("heat", H, initial=3.0),
        ),
        case(
            "projected",
            op(
                "*",
                Symbol(Name.SCALE),
                Dot(MatMul(q, entry("left", HEAD, vector=True)), MatMul(k, entry("right", HEAD, vector=True))),
            ),
            lambda x: x.scale * (x.q @ x.left) @ (x.k @ x.right).mT,
            param("left", H, D, 6),
            param("right", H, D, 6),
        ),
        case(
            "segments",
            op("+", PRODUCT, entry("b", Token("own", whole=True), Token("other", whole=True))),
            lambda x: product(x) + x.b[x.own[:, None, :, None], x.other[:, None, None]],
            given("own", B, N, whole=True),
            given("other", B, M, whole=True),
            param("b", 3, 4),
            pattern=ALL,
            related=lambda x: x.j > -99999,
            whole={"own": 3, "other": 4},
        ),
        case(
            "by_batch",
            op("*", entry("heat"), op("/", op("+", PRODUCT, entry("bias", NEAR)), Symbol(Name.VALID))),
            lambda x: x.heat[:, None, None, None] * (product(x) + x.bias[(x.j - x.i).clamp(-8, 8) + 8]) / x.valid,
            given("heat", B),
            param("bias", 17),
        ),
        case(
            "near",
            op("+", PRODUCT, op("+", entry("bias", HEAD, op("-", I, J)), entry("b", *EIGHTHS))),
            lambda x: product(x) + x.bias[x.h, (x.i - x.j).clamp(0, 19)] + x.b[x.i % 8, x.j % 8],
            param("bias", H, 20),
            param("b", 8, 8),
            pattern=WINDOW,
            related=lambda x: (x.j <= x.i) & (x.i - x.j < 20),
        ),
        case(
            "far",
            op("+", PRODUCT, entry("bias", op("-", I, J))),
            lambda x: product(x) + x.bias[(x.i - x.j).clamp(0, 319)],
            param("bias", 320),
        ),
        case(
            "by_head",
            op(
                "+",
                op("+", PRODUCT, entry("bias", HEAD, NEAR)),
                op("+", entry("b", HEAD, *EIGHTHS), op("*", entry("slope", HEAD), op("-", J, I))),
            ),
            lambda x: (
                product(x)
                + x.bias[x.h, (x.j - x.i).clamp(-8, 8) + 8]
                + x.b[x.h, x.i % 8, x.j % 8]
                + x.slope[:, None, None] * (x.j - x.i)
            ),
            param("bias", H, 17),
            param("b", H, 8, 8),
            param("slope", H, initial=0.1),
            pattern=BY_HEAD,
            related=lambda x: (x.j <= x.i) & (x.i - x.j < 9 * (x.h + 1)),
        ),
        case(
            "no_keys",
            entry("b", HEAD, *EIGHTHS),
            lambda x: x.b[x.h, x.i % 8, x.j % 8] + 0 * x.q.sum(-1, keepdim=True),
            Q,
            V,
            param("b", H, 8, 8),
        ),
        case(
            "derived_values",
            op("+", op("*", Symbol(Name.SCALE), Dot(q, op("+", k, entry("place", J, vector=True)))), Token("other")),
            lambda x: x.scale * x.q @ (x.k + x.place[x.j[0, 0, 0]]).mT + x.other[..., None, :],
            given("other", B, H, M),
            param("place", 400, D),
            param("gain", H, Size.VALUE_WIDTH, initial=1.0),
            values=op("*", Call("sigmoid", (v,)), entry("gain", HEAD, vector=True)),
            value=lambda x: x.v.sigmoid() * x.gain[:, None],
        ),
    )
}


def inputs(
    made: Case, n: int, m: int, *, kv_heads: int = 2, dtype: torch.dtype = torch.float64, d: int = 8, e: int = 6
) -> dict[str, Tensor]:
    """What the functional form takes, in order, for two batch entries and four heads."""
    generator = torch.Generator().manual_seed(n + 7 * m)
    sizes = {B: 2, H: 4, N: n, M: m, D: d, Size.VALUE_WIDTH: e}
    found = {}
    for each in made.spec.data:
        heads = {H: kv_heads} if each.is_column else {}
        shape = [(sizes | heads)[axis] if isinstance(axis, Size) else axis for axis in each.axes]
        if each.whole:
            found[each.name] = torch.randint(made.whole[each.name], shape, generator=generator)
            continue
        kind = torch.float32 if each.role is Role.PARAMETER and dtype.itemsize < 4 else dtype
        found[each.name] = torch.randn(shape, generator=generator, dtype=torch.float64).to(kind)
    return found


def dense(
    made: Case, data: dict[str, Tensor], *, kv_lengths: Tensor | None = None, q_start: Tensor | int | None = None
) -> Tensor:
    """The attention with every pair at once, in float64."""
    values = {name: x.double() if x.is_floating_point() else x for name, x in data.items()}
    of_keys = [each for each in made.spec.data if each.is_column]
    batch, heads, n, d = values["q"].shape
    m = values["v"].shape[2]
    lengths = torch.full((batch,), m) if kv_lengths is None else kv_lengths
    seen = (torch.arange(m) < lengths[:, None])[:, None, None]
    for each in of_keys:
        x = values[each.name]
        x = x.masked_fill(~(seen.mT if each.is_vector else seen[:, 0] if x.dim() > 2 else seen[:, 0, 0]), 0)
        values[each.name] = x.repeat_interleave(heads // x.shape[1], 1) if H in each.axes else x
    start = m - n if q_start is None else q_start
    start = start[:, None, None, None] if isinstance(start, Tensor) else torch.full((1, 1, 1, 1), start)
    x = SimpleNamespace(**values, i=torch.arange(n)[:, None] + start, j=torch.arange(m)[None, None, None])
    x.h, x.scale, x.valid = torch.arange(heads)[:, None, None], d**-0.5, lengths[:, None, None, None]
    related = made.related(x) & seen
    weight = torch.where(related, made.weight(torch.where(related, made.score(x), 0.0)), 0.0)
    norm = made.norm(x, weight.sum(-1, keepdim=True))
    return weight @ made.value(x) / torch.where(norm == 0, 1.0, norm)
