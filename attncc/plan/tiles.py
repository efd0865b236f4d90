"""Tile sizes of the Triton kernels: short lists, found by compiling for sm_80, sm_90, sm_100 and gfx942.

On every target each list has a config that spills next to nothing, none spills much, and one fits the smallest shared
memory. Reals of four bytes use exact products without matrix instructions, so their tiles are smaller. On gfx942 eight
warps are tried only where a list has nothing else, and fit even so. Kernels that read numbers by distance, vectors
channel by channel (several of them above all), tables, numbers of keys, or several pairs of vectors hold more in
registers: for these there are lists that replace the others. Where tiles of rows add up sums by distance, they have at
most twice as many rows as columns.
"""

from __future__ import annotations

from attncc.graph.ir import Graph
from attncc.graph.ops import Axis, Op
from attncc.plan.model import Tile, Tiles
from attncc.spec.expr import Entry, Expr, Local, Member, walk

_TRIES: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", 2, 64): ((128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3), (64, 32, 4, 2)),
    ("forward", 2, 128): ((128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 2)),
    ("forward", 2, 256): ((64, 32, 8, 2), (64, 32, 4, 2), (32, 32, 4, 1)),
    ("forward", 4, 64): ((64, 32, 8, 2), (32, 32, 4, 1)),
    ("forward", 4, 128): ((32, 32, 8, 1), (16, 16, 4, 1)),
    ("forward", 4, 256): ((16, 16, 4, 1),),
    ("backward_columns", 2, 64): ((64, 64, 8, 2), (32, 128, 8, 2), (32, 64, 8, 2), (32, 64, 4, 2)),
    ("backward_columns", 2, 128): ((32, 64, 8, 2), (32, 64, 8, 1), (32, 64, 4, 1)),
    ("backward_columns", 2, 256): ((32, 32, 8, 1), (16, 32, 4, 1)),
    ("backward_columns", 4, 64): ((32, 32, 8, 1), (16, 32, 4, 1)),
    ("backward_columns", 4, 128): ((16, 32, 8, 2),),
    ("backward_columns", 4, 256): ((16, 16, 8, 2),),
    ("backward_rows", 2, 64): ((128, 64, 8, 2), (128, 32, 8, 3), (64, 64, 4, 2), (64, 32, 4, 2)),
    ("backward_rows", 2, 128): ((128, 64, 8, 2), (128, 32, 8, 3), (64, 64, 4, 2), (64, 32, 4, 2)),
    ("backward_rows", 2, 256): ((64, 32, 8, 2), (32, 32, 4, 1)),
    ("backward_rows", 4, 64): ((64, 32, 8, 2), (16, 32, 4, 1)),
    ("backward_rows", 4, 128): ((32, 16, 8, 2), (16, 16, 8, 2)),
    ("backward_rows", 4, 256): ((16, 16, 8, 2),),
}

_BY_OFFSET: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", 2, 64): ((128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 2)),
    ("forward", 2, 128): ((64, 64, 8, 3), (64, 32, 4, 2)),
    ("backward_columns", 2, 64): ((32, 128, 8, 2), (32, 64, 8, 2), (32, 64, 4, 2)),
    ("backward_columns", 2, 128): ((32, 64, 8, 2), (32, 64, 8, 1), (32, 32, 4, 1)),
    ("backward_rows", 2, 64): ((64, 32, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
    ("backward_rows", 2, 128): ((64, 32, 8, 2), (32, 64, 8, 2), (32, 32, 8, 2), (32, 32, 4, 2)),
    ("backward_rows", 2, 256): ((32, 32, 8, 1), (16, 32, 4, 1)),
}

_BY_CHANNEL: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", 2, 64): ((64, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
    ("forward", 2, 128): ((64, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
    ("backward_columns", 2, 64): ((64, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
    ("backward_columns", 2, 128): ((64, 64, 8, 2), (32, 32, 4, 2)),
    ("backward_rows", 2, 64): ((64, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
    ("backward_rows", 2, 128): ((64, 64, 8, 2), (32, 32, 4, 2)),
    ("backward_rows", 2, 256): ((32, 32, 8, 1), (16, 32, 4, 1)),
}

_BY_CHANNEL_OF_SEVERAL: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("backward_columns", 2, 128): ((64, 32, 8, 2), (32, 32, 8, 2), (32, 16, 4, 1)),
}

_BY_ENTRY: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", 2, 128): ((64, 64, 8, 2), (128, 32, 8, 2), (64, 32, 4, 2)),
}

_OF_SEVERAL_PRODUCTS: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", 2, 64): ((128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 2)),
    ("backward_columns", 2, 64): ((64, 64, 8, 2), (32, 64, 4, 2)),
    ("backward_columns", 2, 128): ((32, 32, 8, 2), (32, 32, 4, 2)),
    ("backward_rows", 2, 128): ((64, 32, 8, 2), (64, 32, 4, 2)),
}

_BY_KEY: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("backward_rows", 2, 128): ((128, 64, 8, 2), (128, 32, 8, 3), (64, 64, 8, 2), (64, 32, 4, 2)),
}

_OF_SEVERAL_TERMS: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", 2, 128): ((128, 64, 8, 3), (64, 64, 4, 3), (32, 32, 4, 2)),
}

_BY_LIST: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("backward_rows", 2, 128): ((64, 64, 8, 2), (64, 32, 8, 2), (64, 32, 4, 2)),
}

# On gfx942 nothing that pairs look up to be related may be loaded ahead in kernels with tiles of keys.
_BY_LIST_AND_TABLE: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", 2, 128): ((64, 32, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
    ("backward_columns", 2, 64): ((32, 64, 8, 2), (32, 64, 4, 1)),
    ("backward_columns", 2, 128): ((32, 64, 8, 2), (32, 32, 8, 2), (32, 32, 4, 1)),
    ("forward", 4, 64): ((64, 32, 8, 2), (32, 32, 4, 2)),
    ("forward", 4, 128): ((32, 32, 8, 2), (16, 16, 4, 2)),
    ("forward", 4, 256): ((16, 16, 8, 2), (16, 16, 4, 2)),
    ("backward_rows", 2, 128): ((64, 32, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
}

# The same where a pair asks several numbers of its row and of its key, or searches what a row names.
_BY_MUCH_ASKED: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", 2, 64): ((64, 64, 8, 2), (64, 32, 4, 2)),
    ("forward", 2, 128): ((64, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
    ("backward_columns", 2, 64): ((64, 64, 8, 2), (32, 64, 8, 2), (32, 64, 4, 1)),
    ("backward_columns", 2, 128): ((32, 64, 8, 2), (32, 64, 8, 1), (32, 32, 4, 1)),
    ("backward_rows", 2, 64): ((64, 32, 8, 2), (64, 32, 4, 2)),
    ("backward_rows", 2, 128): ((64, 64, 8, 2), (64, 32, 8, 2), (32, 32, 4, 1)),
}
_MUCH = 4  # numbers

SMALLEST = (16, 16, 4, 1)


def tiles_for(*graphs: Graph, pattern: Expr, most: int | None = None, terms: int = 0) -> tuple[Tiles, ...]:
    """The lists for the kernels of some graphs.

    Args:
        pattern: which pairs are related, as kernels ask it.
        most: the rows and keys of a tile that lists name, where kernels walk such lists: they take it in parts.
        terms: how many products of features a weight is a sum of, where keys are summed by features.
    """
    nodes = [node for graph in graphs for node in graph]
    own: dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]] = {}
    if most is not None:
        own |= _BY_LIST
    if any(node.axes == (Axis.OFFSET,) for node in nodes):
        own |= _BY_OFFSET
    if terms > 1:
        own |= _OF_SEVERAL_TERMS
    if any(node.axes == (Axis.COLUMN,) for node in nodes):
        own |= _BY_KEY
    if any(node.axes == (Axis.TABLE,) for node in nodes):
        own |= _BY_ENTRY
    if any(sum(node.op is Op.DOT and "d_out" not in node.inputs for node in graph) > 1 for graph in graphs):
        own |= _OF_SEVERAL_PRODUCTS
    if any(node.op in (Op.CHANNELS, Op.SPREAD) for node in nodes):
        own |= _BY_CHANNEL
    if any(sum(node.op is Op.SPREAD and Axis.COLUMN in node.axes for node in graph) > 1 for graph in graphs):
        own |= _BY_CHANNEL_OF_SEVERAL
    asked = list(walk(pattern))
    if any(isinstance(node, Entry) for node in asked):
        own |= _BY_LIST_AND_TABLE
    if any(isinstance(node, Member) for node in asked) or len({x.name for x in asked if isinstance(x, Local)}) > _MUCH:
        own |= _BY_MUCH_ASKED
    found = {key: own.get(key, tries) for key, tries in _TRIES.items()}
    if most is not None:
        found = {key: tuple(each for each in tries if max(each[:2]) <= most) for key, tries in found.items()}
    return tuple(
        Tiles(kernel, size, width, tuple(Tile(*each) for each in (*tries, *_last(size, width))), Tile(*_chunk(tries)))
        for (kernel, size, width), tries in found.items()
    )


def _chunk(tries: tuple[tuple[int, int, int, int], ...]) -> tuple[int, int, int, int]:
    """Of the tiles that a kernel tries, the last one: with the fewest pairs, as states leave it only masked ones."""
    return tries[-1]


def _last(size: int, width: int) -> tuple[tuple[int, int, int, int], ...]:
    """A tile for which every device has room, where the others of a list are large."""
    return (SMALLEST,) if size == 2 and width <= 128 else ()
