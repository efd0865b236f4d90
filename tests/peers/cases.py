"""Recorded runs of published attention implementations, as calls of one `attention` function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from attncc.spec.expr import And, Compare, CompareOp, Const, Expr, Name, Or, Symbol
from attncc.spec.model import Spec
from tests.peers.chosen import CHOSEN
from tests.peers.common import (
    HERE,
    Peer,
    Tensors,
    description,
    from_file,
    from_text,
    join_heads,
    output_projection,
    split_heads,
)
from tests.peers.learned import LEARNED
from tests.peers.linear import LINEAR
from tests.peers.listed import LISTED

# How layers make their operands


def direct(tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v are recorded as such."""
    return tensors["in.q"], tensors["in.k"], tensors["in.v"]


def projected(width: int, *names: str) -> Callable[[Tensors], tuple[Tensor, Tensor, Tensor]]:
    """q, k, v = x W^T with heads as the slow part of the features."""

    def operands(tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (
            split_heads(functional.linear(tensors["in.x"], tensors[f"w.{name}.weight"]), width) for name in names
        )
        return q, k, v

    return operands


def joined(tensors: Tensors, out: Tensor) -> Tensor:
    """Heads concatenated, no output projection."""
    return join_heads(out)


def bloom_operands(tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """Features are [head, (q, k, v), d]."""
    fused = functional.linear(tensors["in.x"], tensors["w.query_key_value.weight"], tensors["w.query_key_value.bias"])
    q, k, v = fused.unflatten(-1, (4, 3, 8)).permute(3, 0, 2, 1, 4)
    return q, k, v


def mpt_operands(tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """Features are [q | k | v]."""
    q, k, v = (
        split_heads(each, 8) for each in functional.linear(tensors["in.x"], tensors["w.Wqkv.weight"]).chunk(3, -1)
    )
    return q, k, v


def padded_operands(tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values with a visible tail of zeros up to a multiple of 16, as local-attention's autopad leaves it."""
    q, k, v = direct(tensors)
    return q, functional.pad(k, (0, 0, 0, -k.shape[2] % 16)), functional.pad(v, (0, 0, 0, -v.shape[2] % 16))


# Specs


def listed_pairs(mask: Tensor) -> Expr:
    """An arbitrary mask [B, n, m] as a predicate, the batch folded into the head axis (two heads an entry)."""

    def runs(row: list[bool]) -> list[tuple[int, int]]:
        starts = [j for j, seen in enumerate(row) if seen and (j == 0 or not row[j - 1])]
        ends = [j for j, seen in enumerate(row) if seen and (j + 1 == len(row) or not row[j + 1])]
        return list(zip(starts, ends, strict=True))

    def compared(name: Name, op: CompareOp, value: int) -> Expr:
        return Compare(op, Symbol(name), Const(value))

    def row_of(b: int, i: int) -> Expr:
        heads = (compared(Name.HEAD, CompareOp.GREATER_EQUAL, 2 * b), compared(Name.HEAD, CompareOp.LESS, 2 * b + 2))
        keys = (
            And((compared(Name.J, CompareOp.GREATER_EQUAL, low), compared(Name.J, CompareOp.LESS_EQUAL, high)))
            for low, high in runs(mask[b, i].tolist())
        )
        return And((*heads, compared(Name.I, CompareOp.EQUAL, i), Or(tuple(keys))))

    return Or(tuple(row_of(b, i) for b in range(mask.shape[0]) for i in range(mask.shape[1])))


def _dead_rows() -> Peer:
    mask = load_file(HERE / "softmax_dead_rows" / "tensors.safetensors")["aux.attn_mask"][:, 0]

    def folded(tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (each.flatten(0, 1)[None] for each in direct(tensors))
        return q, k, v

    spec = replace(from_file("full"), pattern=listed_pairs(mask))
    return Peer(
        "softmax_dead_rows", spec, folded, finish=lambda tensors, out: out.unflatten(1, (2, 2))[0], compilable=False
    )


START = {"q_start": 0}  # row i stands at position i whatever the number of keys
GEMMA = projected(8, "q_proj", "k_proj", "v_proj")
GEMMA_WIDE = projected(16, "q_proj", "k_proj", "v_proj")

PEERS: dict[str, Peer] = {
    peer.key: peer
    for peer in (
        Peer("softmax_full", from_file("full"), direct),
        Peer("softmax_causal", from_file("causal"), direct),
        Peer("softmax_gqa_causal", from_file("causal"), direct),
        Peer("softmax_cross_dv", from_file("full"), direct),
        Peer("softmax_padding_mask", from_file("full"), direct, {"kv_lengths": (35, 32, 29)}),
        _dead_rows(),
        Peer(
            "sliding_window_causal_mistral",
            from_file("sliding_window", w=16),
            GEMMA,
            finish=output_projection("o_proj"),
        ),
        Peer(
            "softcap_causal_gemma2",
            from_file("soft_cap", cap=5.0),
            GEMMA,
            {"scale": 24**-0.5},
            output_projection("o_proj"),
        ),
        Peer(
            "softcap_sliding_gemma2",
            from_text("pattern = window(11)\nscore = softcap(scale * dot(q, k), 50)"),
            GEMMA_WIDE,
            {"scale": 24**-0.5},
            output_projection("o_proj"),
        ),
        Peer("alibi_bloom", from_file("alibi"), bloom_operands, finish=output_projection("dense")),
        Peer(
            "alibi_mpt",
            from_text("pattern = causal\nscore = scale * dot(q, k) - [0.0625, 0.00390625, 0.25][h] * (i - j)"),
            mpt_operands,
            finish=output_projection("out_proj"),
        ),
        Peer(
            "local_chunk_causal_lookback1",
            from_text("pattern = causal & around(16, 1, 0)"),
            projected(16, "query", "key", "value"),
            finish=joined,
        ),
        Peer(  # 6 chunks in a circle: the first and the last are neighbours
            "local_chunk_circular",
            from_text("pattern = around(8, 1, 1) | i // 8 - j // 8 == 5 | j // 8 - i // 8 == 5"),
            projected(8, "query", "key", "value"),
            finish=joined,
        ),
        Peer("local_window_causal", from_text("pattern = causal & around(16, 1, 0)"), direct),
        Peer("local_window_autopad", from_file("look_around", c=16), padded_operands, START),
        Peer(
            "local_window_exact_causal_padding",
            from_text("pattern = causal & around(8, 1, 0) & i - j <= 8"),
            direct,
            {"kv_lengths": (48, 43)},
        ),
        *LEARNED,
        *LINEAR,
        *CHOSEN,
        *LISTED,
    )
}


# Recorded masks: name of the case, of the tensor, and the spec that means the same


@dataclass(frozen=True)
class Mask:
    """One recorded mask [n, n] or [H, n, n]."""

    case: str
    tensor: str
    spec: Spec

    @property
    def expected(self) -> Tensor:
        """bool [H, n, n]"""
        mask = load_file(HERE / self.case / "tensors.safetensors")[self.tensor]
        return mask if mask.dim() == 3 else mask[None]


def _element_masks() -> list[Mask]:
    texts = {"all": "causal", "local": "window({c} - 1)", "strided": "causal & (i - j) % {c} == 0"}
    return [
        Mask(
            "sparse_transformer_masks",
            each["tensor"],
            from_text(f"pattern = {texts[each['mode']]}".format(c=each["local_attn_ctx"])),
        )
        for each in description("sparse_transformer_masks")["options"]["masks"]
    ]


def _block_masks() -> list[Mask]:
    """`strided` is recorded in transposed token order, where each residue class is a causal chunk of n / ctx tokens."""

    def text(mode: str, n: int, block: int, c: int, verts: int, width: int) -> str:
        match mode:
            case "local":
                return f"window({c - 1})"
            case "strided":
                return f"causal & chunk({n // c})"
            case _:
                last = f"{c // block - 1} - h % {verts} * {width}"
                return f"causal & (chunk({c}) | {last} - {width - 1} <= j // {block} % {c // block} <= {last})"

    return [
        Mask(
            "sparse_transformer_block_masks",
            f"{each['tensor']}.mask",
            from_text(
                "pattern = "
                + text(
                    each["mode"],
                    each["n"],
                    each["blocksize"],
                    each["local_attn_ctx"],
                    each["num_verts"] or 1,
                    each["vertsize"] or 1,
                )
            ),
        )
        for each in description("sparse_transformer_block_masks")["options"]["masks"]
    ]


MASKS: tuple[Mask, ...] = (*_element_masks(), *_block_masks())
