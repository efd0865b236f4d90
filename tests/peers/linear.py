"""Recorded runs of layers whose weights are products of features, with and without decay."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from tests.peers.common import Operands, Peer, Tensors, from_file, from_text, split_heads
from tests.peers.learned import hidden


def by_length(*names: str) -> Callable[[Tensors], Operands]:
    """Recorded as [B, n, H, …]."""
    return lambda tensors: tuple(tensors[f"in.{name}"].transpose(1, 2) for name in names)


def by_heads(*names: str) -> Callable[[Tensors], Operands]:
    """Recorded as [B, H, n, …]."""
    return lambda tensors: tuple(tensors[f"in.{name}"] for name in names)


def to_length(tensors: Tensors, out: Tensor) -> Tensor:
    """[B, H, n, e] → [B, n, H, e]"""
    return out.transpose(1, 2)


# cosFormer: [n, B, width], with a bias in every projection


def _projected(heads: int) -> Callable[[Tensors], Operands]:
    def operands(tensors: Tensors) -> Operands:
        x = tensors["in.x"].transpose(0, 1)
        return tuple(
            split_heads(
                functional.linear(x, tensors[f"w.{name}_proj.weight"], tensors[f"w.{name}_proj.bias"]),
                x.shape[-1] // heads,
            )
            for name in "qkv"
        )

    return operands


def _output(tensors: Tensors, out: Tensor) -> Tensor:
    joined = out.transpose(1, 2).flatten(2)
    return functional.linear(joined, tensors["w.out_proj.weight"], tensors["w.out_proj.bias"]).transpose(0, 1)


# FLASH: a quadratic and a linear part, one head


def _flash_operands(tensors: Tensors) -> Operands:
    z, v, _ = hidden(tensors)
    u = functional.silu(functional.linear(z, tensors["w.to_qk.0.weight"], tensors["w.to_qk.0.bias"]))
    q, q2, k, k2 = (
        (u * scale + shift)[:, None]
        for scale, shift in zip(tensors["w.qk_offset_scale.gamma"], tensors["w.qk_offset_scale.beta"], strict=True)
    )
    return q, k, v[:, None], q2, k2, tensors["w.rel_pos_bias.relative_attention_bias.weight"].T


def _flash_output(tensors: Tensors, out: Tensor) -> Tensor:
    gated = out[:, 0] * hidden(tensors)[2]
    return functional.linear(gated, tensors["w.to_out.weight"], tensors["w.to_out.bias"]) + tensors["in.x"]


def _flash(name: str, spec: str, c: int, **arguments: object) -> Peer:
    return Peer(name, from_file(spec, c=c), _flash_operands, arguments, _flash_output)


# Efficient attention: 1 x 1 convolutions of pixels


def _of_pixels(tensors: Tensors) -> Operands:
    tokens = tensors["in.x"].flatten(2).mT
    return tuple(
        functional.linear(tokens, tensors[f"w.{name}.weight"].flatten(1), tensors[f"w.{name}.bias"])
        .unflatten(-1, (2, -1))
        .transpose(1, 2)
        for name in ("queries", "keys", "values")
    )


def _to_pixels(tensors: Tensors, out: Tensor) -> Tensor:
    weight, bias = tensors["w.reprojection.weight"].flatten(1), tensors["w.reprojection.bias"]
    x = tensors["in.x"]
    return functional.linear(out.transpose(1, 2).flatten(2), weight, bias).mT.reshape(x.shape) + x


# Performer: random features


def _with_features(tensors: Tensors) -> Operands:
    return tensors["in.q"], tensors["in.k"], tensors["in.v"], tensors["aux.projection"].T


def _with_features_and_shift(tensors: Tensors) -> Operands:
    """The published code lowers keys by the largest of all, which a causal spec cannot look at: it is given."""
    q, k, v, random = _with_features(tensors)
    features = (k / k.shape[-1] ** 0.25) @ random
    return q, k, v, random, features.amax((-2, -1)).detach()[..., None].expand(features.shape[:3])


_SHIFTED = """
input random[d, 40], shift[B, H, m]
let p = q @ random / d ^ 0.25
let a = exp(p - dot(q, q) / (2 * sqrt(d)) - stop_gradient(largest(p))) + 1e-4
let b = exp(k @ random / d ^ 0.25 - dot(k, k) / (2 * sqrt(d)) - shift) + 1e-4
pattern = causal
weight = dot(a, b)
normalize = rows + 1e-6 * sqrt(40) * sum(a)
"""

QKV = ("q", "k", "v")

LINEAR: tuple[Peer, ...] = (
    Peer("linear_elu", from_file("linear_transformer"), by_length(*QKV), finish=to_length),
    Peer("linear_elu_causal", from_file("linear_transformer_causal"), by_length(*QKV), finish=to_length),
    Peer(
        "linear_elu_padding_cross",
        from_file("linear_transformer"),
        by_length(*QKV),
        {"kv_lengths": (41, 20, 33)},
        to_length,
    ),
    Peer(
        "linear_exp_causal",
        from_text("pattern = causal\nweight = dot(exp(q), exp(k))\nnormalize = rows + 1e-10"),
        by_length(*QKV),
        finish=to_length,
    ),
    Peer("based_taylor", from_file("based"), by_heads(*QKV)),
    Peer("cosformer", from_file("cosformer", longest=48), _projected(2), finish=_output),
    Peer("cosformer_causal", from_file("cosformer_causal", longest=40), _projected(3), finish=_output),
    Peer("retention", from_file("retention"), by_heads(*QKV)),
    Peer("simple_gla", from_file("gated_linear"), by_length(*QKV, "g"), finish=to_length),
    Peer(  # its weights are no product, but it has the gates of those that are
        "forgetting_attention",
        from_text("input g[B, H, m]\nlet G = cumsum(g)\npattern = causal\nscore = scale * dot(q, k) + G[i] - G[j]"),
        by_length(*QKV, "g"),
        finish=to_length,
    ),
    Peer("gla", from_file("gated_linear_vector"), by_length(*QKV, "gk"), finish=to_length),
    Peer("aft_simple", from_file("aft_simple"), by_length(*QKV), finish=to_length),
    Peer("efficient_official", from_file("efficient"), _of_pixels, finish=_to_pixels),
    Peer(
        "efficient_lucidrains_causal",
        from_text("pattern = causal\nweight = dot(softmax_of(q), exp(k)) / sqrt(d)\nnormalize = max(rows, 1e-3)"),
        by_heads(*QKV),
    ),
    Peer(
        "efficient_lucidrains_padding",
        from_text("let k = softmax_over_keys(k)\nweight = dot(softmax_of(q), k) / sqrt(d)\nnormalize = none"),
        by_heads(*QKV),
        {"kv_lengths": (40, 33)},
    ),
    Peer("performer_softmax", from_file("performer", features=32), _with_features),
    Peer("performer_softmax_causal", from_text(_SHIFTED), _with_features_and_shift),
    Peer("performer_relu_causal", from_file("performer_causal", features=24), _with_features),
    Peer(
        "performer_no_projection",
        from_text("let k = softmax_over_keys(k)\nweight = dot(softmax_of(q), k)\nnormalize = rows"),
        by_heads(*QKV),
    ),
    _flash("flash_causal", "local_global_causal", 16),
    _flash("flash_causal_ragged", "local_global_causal", 16),
    _flash("flash_noncausal", "local_global", 16),
    _flash("flash_noncausal_padding", "local_global", 12, kv_lengths=(45, 37)),
)
