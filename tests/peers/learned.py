"""Recorded runs of layers whose attention has learned parameters of its own: tables, sinks, whole weight matrices.

Each says its spec twice: as expressions, and as the text that means the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from attncc.diagnostics import Source, Span
from attncc.spec.data import Axis, Data, K, Q, Role, Size, V
from attncc.spec.expr import (
    TRUE,
    And,
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Dot,
    Entry,
    Expr,
    Name,
    Negate,
    Select,
    Symbol,
    Vector,
)
from attncc.spec.model import Spec
from tests.peers.common import Operands, Peer, Tensors, join_heads, output_projection, split_heads

I, J, H, M, SCALE, SCORE, ROWS = (  # noqa: E741
    Symbol(name) for name in (Name.I, Name.J, Name.HEAD, Name.KEYS, Name.SCALE, Name.SCORE, Name.ROWS)
)
DOT = Dot(Vector("q"), Vector("k"))
EXP = Call("exp", (SCORE,))
CAUSAL = Compare(CompareOp.LESS_EQUAL, J, I)
SOURCE = Source("peer.attn", "")


def op(sign: str, *operands: Expr | int | float) -> Expr:
    """Operands joined from the left; numbers become constants."""
    first, *rest = (each if isinstance(each, Expr) else Const(each) for each in operands)
    for each in rest:
        first = Binary(BinaryOp(sign), first, each)
    return first


def call(name: str, *operands: Expr | int | float) -> Expr:
    return Call(name, tuple(each if isinstance(each, Expr) else Const(each) for each in operands))


def spec_of(
    *axes: Axis,
    name: str,
    pattern: Expr = TRUE,
    score: Expr = DOT,
    weight: Expr = EXP,
    normalizer: Expr = ROWS,
    given: tuple[Data, ...] = (Q, K, V),
) -> Spec:
    """A spec with one parameter."""
    return Spec(
        name="peer",
        summary="",
        source=SOURCE,
        span=Span(SOURCE, 1, 1, 1, 1),
        parameters=(),
        pattern=pattern,
        score=score,
        weight=weight,
        normalizer=normalizer,
        data=(*given, Data(name=name, role=Role.PARAMETER, axes=axes)),
    )


# Buckets of distances: near ones have their own, far ones share


def _wide_bucket(distance: Expr, buckets: int, farthest: int) -> Expr:
    """`distance` is at least 0; half of the buckets are exact."""
    exact = buckets // 2
    share = op("/", call("log", op("/", call("max", distance, exact), exact)), math.log(farthest / exact))
    far = op("+", exact, call("floor", op("*", share, buckets - exact)))
    return Select(Compare(CompareOp.LESS, distance, Const(exact)), distance, call("min", buckets - 1, far))


def bucket_before(buckets: int, farthest: int) -> Expr:
    """The bucket of i - j; later keys are in the first."""
    return _wide_bucket(call("max", Negate(op("-", J, I)), 0), buckets, farthest)


def bucket_around(buckets: int, farthest: int) -> Expr:
    """The bucket of j - i; later keys have the second half of the buckets."""
    later = Select(Compare(CompareOp.GREATER, op("-", J, I), Const(0)), Const(buckets // 2), Const(0))
    return op("+", later, _wide_bucket(call("abs", op("-", J, I)), buckets // 2, farthest))


def _t5(heads: int, name: str, bucket: Expr, buckets: int, pattern: Expr, text: str, **arguments: object) -> Peer:
    """Scores without a scale, plus a learned number for each head and bucket."""
    entry = Entry("bias", (H, bucket))

    def operands(tensors: Tensors) -> Operands:
        width = tensors["in.x"].shape[-1] // heads
        q, k, v = (
            split_heads(functional.linear(tensors["in.x"], tensors[f"w.{each}.weight"]), width) for each in "qkv"
        )
        return q, k, v, tensors["w.relative_attention_bias.weight"].T

    spec = spec_of(Size.HEADS, buckets, name="bias", pattern=pattern, score=op("+", DOT, entry))
    return Peer(name, spec, operands, arguments, output_projection("o"), text=text)


# Softmax with a learned sink


def _sinks(name: str, pattern: Expr, text: str) -> Peer:
    """A learned number joins each head's normaliser."""

    def operands(tensors: Tensors) -> Operands:
        q, k, v = (
            split_heads(
                functional.linear(tensors["in.x"], tensors[f"w.{each}_proj.weight"], tensors[f"w.{each}_proj.bias"]), 8
            )
            for each in "qkv"
        )
        return q, k, v, tensors["w.sinks"]

    normalizer = op("+", ROWS, call("exp", Entry("sink", (H,))))
    spec = spec_of(Size.HEADS, name="sink", pattern=pattern, score=op("*", SCALE, DOT), normalizer=normalizer)
    return Peer(name, spec, operands, finish=output_projection("o_proj"), text=text)


# Gated attention units


def hidden(tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised input, the values and the gate."""
    x = tensors["in.x"]
    z = functional.layer_norm(x, x.shape[-1:], tensors["w.norm.weight"], tensors["w.norm.bias"], 1e-5)
    hidden = functional.linear(z, tensors["w.to_hidden.0.weight"], tensors["w.to_hidden.0.bias"])
    v, gate = functional.silu(hidden).chunk(2, -1)
    return z, v, gate


def gated_operands(tensors: Tensors) -> Operands:
    z, v, _ = hidden(tensors)
    u = functional.silu(functional.linear(z, tensors["w.to_qk.0.weight"], tensors["w.to_qk.0.bias"]))
    q, k = (u * tensors["w.offsetscale.gamma"][at] + tensors["w.offsetscale.beta"][at] for at in (0, 1))
    return q[:, None], k[:, None], v[:, None], tensors["w.rel_pos_bias.relative_attention_bias.weight"].T


def gated_output(tensors: Tensors, out: Tensor) -> Tensor:
    gated = out[:, 0] * hidden(tensors)[2]
    return functional.linear(gated, tensors["w.to_out.0.weight"], tensors["w.to_out.0.bias"]) + tensors["in.x"]


RELU2 = op("^", call("relu", SCORE), 2)
DEVIATION = math.sqrt(1 / (4 * math.pi)) * math.sqrt(2)
LAPLACE = op("/", op("+", 1, call("erf", op("/", op("-", SCORE, math.sqrt(1 / 2)), DEVIATION))), 2)


def _gated(name: str, bucket: Expr, pattern: Expr, weight: Expr, text: str, **arguments: object) -> Peer:
    """(dot + 4 · bias) / m without a row sum; 4 is the root of the model's width."""
    score = op("/", op("+", DOT, op("*", 4, Entry("bias", (H, bucket)))), M)
    spec = spec_of(Size.HEADS, 32, name="bias", pattern=pattern, score=score, weight=weight, normalizer=Const(1))
    return Peer(name, spec, gated_operands, arguments, gated_output, text=text)


def synthesizer_operands(tensors: Tensors) -> Operands:
    """No vectors of queries and keys are read; q tells how many rows there are."""
    v = functional.linear(tensors["in.x"], tensors["w.value_fc.weight"], tensors["w.value_fc.bias"])[:, None]
    return torch.zeros_like(v[..., :1]), v, tensors["w.attention"]


WINDOW = And((CAUSAL, Compare(CompareOp.LESS_EQUAL, op("-", I, J), Const(9))))
_BIASED = "param bias[H, {buckets}]\nscore = dot(q, k) + bias[h, {bucket}]"
_SUNK = "param sink[H]\nnormalize = rows + exp(sink[h])"
_GATED = "param bias[H, 32]\nscore = (dot(q, k) + 4 * bias[h, {bucket}]) / m\nsimilarity = {similarity}"

LEARNED: tuple[Peer, ...] = (
    _t5(
        4,
        "t5_relative_bias",
        bucket_around(16, 40),
        16,
        TRUE,
        _BIASED.format(buckets=16, bucket="bucket_around(j - i, 16, 40)"),
        kv_lengths=(48, 42),
    ),
    _t5(
        2,
        "t5_relative_bias_causal",
        bucket_before(32, 128),
        32,
        CAUSAL,
        "pattern = causal\n" + _BIASED.format(buckets=32, bucket="bucket_before(j - i, 32, 128)"),
    ),
    _sinks("sinks_causal_gptoss", CAUSAL, "pattern = causal\n" + _SUNK),
    _sinks("sinks_sliding_gptoss", WINDOW, "pattern = window(9)\n" + _SUNK),
    _gated(
        "gau_quadratic",
        bucket_around(32, 128),
        TRUE,
        RELU2,
        _GATED.format(bucket="bucket_around(j - i, 32, 128)", similarity="relu2"),
    ),
    _gated(
        "gau_quadratic_causal",
        bucket_before(32, 128),
        CAUSAL,
        RELU2,
        "pattern = causal\n" + _GATED.format(bucket="bucket_before(j - i, 32, 128)", similarity="relu2"),
    ),
    _gated(
        "gau_laplace_padding",
        bucket_around(32, 128),
        TRUE,
        LAPLACE,
        _GATED.format(bucket="bucket_around(j - i, 32, 128)", similarity="laplace"),
        kv_lengths=(40, 31),
    ),
    Peer(
        "synthesizer_random",
        spec_of(
            Size.HEADS, 40, 40, name="R", weight=Entry("R", (H, I, J)), normalizer=Const(1), given=(Q, V)
        ),  # the usual score, which the weight does not read
        synthesizer_operands,
        finish=lambda tensors, out: join_heads(out),
        text="param R[H, 40, 40]\nweight = R[h, i, j]\nnormalize = none",
    ),
)
