"""Recorded runs of layers in which data decide which pairs are related: masks, marked tokens, tables of blocks."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from tests.peers.common import Operands, Peer, Tensors, from_file, from_text, join_heads, split_heads


def projected(tensors: Tensors, width: int, *names: str) -> list[Tensor]:
    """x W^T + b, with heads as the slow part of the features."""
    return [
        split_heads(functional.linear(tensors["in.x"], tensors[f"w.{name}.weight"], tensors[f"w.{name}.bias"]), width)
        for name in names
    ]


def marked(width: int) -> Callable[[Tensors], Operands]:
    """Two projections of every token: what a window and its marked keys read, and what rows of marked tokens do."""

    def operands(tensors: Tensors) -> Operands:
        own = projected(tensors, width, "query", "key", "value")
        if "w.query_global.weight" in tensors:
            wide = projected(tensors, width, "query_global", "key_global", "value_global")
        else:
            wide = [each.detach() for each in own]  # no token is marked
        return (*own, tensors["aux.is_global"], tensors["aux.is_masked"], *wide)

    return operands


def blocks(width: int, block: int) -> Callable[[Tensors], Operands]:
    """How often each block of queries sees each block of keys at random; the first and the last see all anyway."""

    def operands(tensors: Tensors) -> Operands:
        inner = functional.one_hot(tensors["aux.rand_blocks"], tensors["in.x"].shape[1] // block).sum(2)
        times = functional.pad(inner, (0, 0, 1, 1))
        return (*projected(tensors, width, "query", "key", "value"), times)

    return operands


def masked(of_keys: bool) -> Callable[[Tensors], Operands]:
    """q, k, v and the recorded mask: of keys alone, or as a table of blocks of one token."""

    def operands(tensors: Tensors) -> Operands:
        mask = tensors["aux.attn_mask"][:, 0]
        return tensors["in.q"], tensors["in.k"], tensors["in.v"], ~mask[:, 0] if of_keys else mask

    return operands


def chosen(tensors: Tensors) -> Operands:
    """Vectors with heads before tokens, and the first keys of each query's three blocks, below 0 for none."""
    vectors = [tensors[f"in.{name}"].transpose(1, 2) for name in "qkv"]
    blocks = tensors["aux.block_indices"].permute(3, 0, 2, 1)  # [3, B, kv heads, n]
    return (*vectors, *(8 * blocks.repeat_interleave(2, 2)))


def joined(tensors: Tensors, out: Tensor) -> Tensor:
    """Heads concatenated, no output projection."""
    return join_heads(out)


LISTED = (
    Peer("softmax_padding_mask", from_file("padded"), masked(of_keys=True), variant="as data"),
    Peer(
        "softmax_dead_rows",
        from_text("input seen[B, ceil(n / 1), ceil(m / 1)]: bool\npattern = seen[i, j]\nalign = start"),
        masked(of_keys=False),
        variant="as data",
    ),
    Peer(
        "nsa_selection",
        from_text(
            "input one[B, H, n]: int, two[B, H, n]: int, three[B, H, n]: int\n"
            "pattern block(first) = first[i] <= j < first[i] + 8\n"
            "pattern = causal & (block(one) | block(two) | block(three))"
        ),
        chosen,
        finish=lambda tensors, out: out.transpose(1, 2),
    ),
    Peer("longformer_window", from_file("longformer_marked", w=8), marked(8), finish=joined),
    Peer("longformer_global", from_file("longformer_marked", w=8), marked(8), finish=joined),
    Peer("longformer_global_padding", from_file("longformer_marked", w=4), marked(16), finish=joined),
    Peer("bigbird_random", from_file("bigbird_counted", c=8), blocks(16, 8), finish=joined),
    Peer("bigbird_eval_zero_table", from_file("bigbird_counted", c=8), blocks(8, 8), finish=joined),
)
