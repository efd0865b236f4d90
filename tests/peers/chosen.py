"""Recorded runs of attention whose pairs follow from the data: hash buckets, blocks and keys that are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from attncc.spec.model import Spec
from tests.peers.common import HERE, Operands, Peer, Tensors, from_file, from_text, join_heads, split_heads


def tensors_of(name: str) -> Tensors:
    """Everything recorded of a case, whole numbers too."""
    return load_file(HERE / name / "tensors.safetensors")


# Reformer: queries and keys are the same vectors; a round of hashing gives each a bucket


def reformer_text(rounds: int, c: int, buckets: int, score: str, pattern: str = "true", *, wraps: bool = True) -> str:
    """Sorted chunks of some rounds; a key counts as often as it is seen, by way of the circle of chunks too."""
    names = [f"b{at}" for at in range(rounds)]
    lines = [f"input R[H, {rounds}, d, {buckets // 2}]"]
    lines += [f"let {name} = hash(k, R[h, {at}])" for at, name in enumerate(names)]
    lines += [f"let s{at} = rank({name})" for at, name in enumerate(names)]
    lines += [f"pattern near(s, b) = 0 <= s[i] // {c} - s[j] // {c} <= 1{'' if wraps else ' & b[i] == b[j]'}"]
    lines += [f"pattern around_end(s, before) = s[i] // {c} == 0 & before[j] // {c} == m // {c} - 1"]
    seen = [f"near(s{at}, b{at})" for at in range(rounds)]
    if wraps:
        circle = [*range(rounds), 0]
        seen += [f"around_end(s{at}, s{before})" for before, at in pairwise(circle)]
    lines += [f"pattern = ({pattern}) & ({' | '.join(seen)})"]
    lines += [f"score = i == j ? -100 : {score}"]  # -1e5 there: in both a key counts 0 beside another
    lines += [f"weight = exp(score) * ({' + '.join(f'[{each}]' for each in seen)})"]
    return "\n".join(lines)


def reformer_spec(rounds: int, c: int, buckets: int, score: str, pattern: str = "true", *, wraps: bool = True) -> Spec:
    """The same as a checked spec."""
    return from_text(reformer_text(rounds, c, buckets, score, pattern, wraps=wraps))


def buckets_of(tensors: Tensors) -> Mapping[str, Tensor]:
    """The recorded buckets of each round, [batch, heads, n]; those of padding stand last whatever their number is."""
    recorded = tensors["aux.buckets"]
    recorded = recorded if recorded.dim() == 4 else recorded[:, None]
    rotations = tensors["aux.rotations"]
    buckets, padded = 2 * rotations.shape[-1], "aux.attention_mask" in tensors
    rounds = enumerate(recorded.unbind(2))
    return {f"b{at}": (each - at * (buckets + padded)).clamp(max=buckets - 1) for at, each in rounds}


def shared(tensors: Tensors) -> Operands:
    """q and k are one projection, per head; rotations are [heads, d, rounds, buckets / 2]."""
    rotations = tensors["aux.rotations"]
    heads, width = rotations.shape[:2]
    qk, v = (
        split_heads(functional.linear(tensors["in.x"], tensors[f"w.{name}.weight"]), width)
        for name in ("query_key", "value")
    )
    assert qk.shape[1] == heads
    return qk, qk, v, rotations.transpose(1, 2)


def folded(tensors: Tensors) -> Operands:
    """Heads are folded into the batch, and all share their rotations."""
    qk, v = (tensors[name][:, None] for name in ("in.qk", "in.v"))
    return qk, qk, v, tensors["aux.rotations"].transpose(1, 2)


HUGGING_FACE = "dot(q, rms_norm(k) / sqrt(d))"  # keys of length 1, and no scale


def _hugging_face(name: str, rounds: int, c: int, buckets: int, pattern: str = "causal", **arguments: object) -> Peer:
    spec = reformer_spec(rounds, c, buckets, HUGGING_FACE, pattern)
    return Peer(name, spec, shared, arguments, lambda _, out: join_heads(out), choices=buckets_of)


def _lucidrains(name: str, c: int, buckets: int, pattern: str, *, wraps: bool = True) -> Peer:
    spec = reformer_spec(2, c, buckets, "scale * dot(q, unit(k))", pattern, wraps=wraps)
    return Peer(name, spec, folded, finish=lambda _, out: out[:, 0], choices=buckets_of)


def own_apart(rounds: int, c: int, buckets: int, score: str, pattern: str) -> Spec:
    """A query's own key as a branch of its own, so that it counts -1e5 as there: its sum has no digits to lose."""
    *lines, related, _, weight = reformer_text(rounds, c, buckets, score, pattern).split("\n")
    others = [f"branch others {{ {related} & i != j", f"score = {score}", f"{weight} }}"]
    own = ["branch own { pattern = i == j", "score = -1e5 }"]
    return from_text("\n".join([*lines, *others, *own, "combine = merge(others, own)"]))


# Native sparse attention: blocks are given for each key head


def selected(tensors: Tensors) -> Operands:
    """Everything is [batch, n, heads, …]; query heads of a key head share its blocks."""
    q, k, v = (tensors[f"in.{name}"].transpose(1, 2) for name in "qkv")
    blocks = tensors_of("nsa_selection")["aux.block_indices"].transpose(1, 2)
    return q, k, v, blocks.repeat_interleave(q.shape[1] // k.shape[1], 1)


# Explicit sparse attention: the keys with the largest scores


def padded_rows(tensors: Tensors, out: Tensor) -> Tensor:
    """Heads joined and projected; rows of padding are 0."""
    projected = functional.linear(join_heads(out), tensors["w.to_out.weight"])
    return projected * tensors_of("topk_xtransformers")["aux.mask"][..., None]


def projected(tensors: Tensors) -> Operands:
    """q, k and v are projections of one width."""
    x = tensors["in.x"]
    return tuple(split_heads(functional.linear(x, tensors[f"w.to_{name}.weight"]), 12) for name in "qkv")


CHOSEN = (
    Peer(
        "topk_exact_causal",
        from_file("explicit_topk", keys=8),
        lambda tensors: tuple(tensors[f"in.{name}"].transpose(1, 2) for name in "qkv"),
        finish=lambda _, out: out.transpose(1, 2),
    ),
    Peer(
        "topk_xtransformers",
        from_text("pattern = top(6, by = score)"),
        projected,
        {"kv_lengths": (48, 41)},
        padded_rows,
    ),
    Peer(
        "nsa_selection",
        from_file("nsa_selected", block=8, selected=3),
        selected,
        finish=lambda _, out: out.transpose(1, 2),
    ),
    _hugging_face("reformer_lsh_1round_causal", 1, 8, 8),
    Peer(
        "reformer_lsh_1round_causal",
        own_apart(1, 8, 8, HUGGING_FACE, "causal"),
        shared,
        finish=lambda _, out: join_heads(out),
        variant="own apart",
        choices=buckets_of,
    ),
    _hugging_face("reformer_lsh_4rounds_causal", 4, 16, 8),
    _hugging_face("reformer_lsh_2rounds_padding", 2, 8, 6, "true", kv_lengths=(48, 38)),
    _lucidrains("reformer_pytorch_lsh_causal", 8, 8, "causal"),
    _lucidrains("reformer_pytorch_lsh_same_bucket", 16, 4, "true", wraps=False),
)
