"""Sums over channels → torch statements: a loop over the features, each a tile of pairs that is added and forgotten.

`x_by` holds the vectors of a slab or chunk channel by channel, [width, batch, heads, rows, 1] or
[width, batch, heads, 1, keys]; `x_at` is one channel of it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from attncc.emit.tile import may_fail
from attncc.graph.core import Kind
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.spec.expr import Call, Expr, Local, Vector, Width, children, rebuild, substitute, walk

if TYPE_CHECKING:
    from attncc.emit.tile import Kernel
    from attncc.emit.torch_form.body import TorchBody


def vectors_by_channel(kernel: Kernel) -> tuple[str, ...]:
    """The vectors that formulas of channels read, each once."""
    nodes = [node for sweep in kernel.sweeps for node in (*sweep.body, *sweep.reductions)]
    formulas = [node.value for node in nodes if node.op in (Op.CHANNELS, Op.SPREAD)]
    return tuple(dict.fromkeys(name for formula in formulas for name in _vectors(formula)))


def print_channels(body: TorchBody, node: Node) -> None:
    """The sum itself."""
    writer = body.writer
    total = node.name
    writer.line(f"{total} = {body.tile('0.0')}")
    formula = _at_channel(node.value)
    with writer.block(f"for channel in range({_width(node)}):"):
        _print_channel(body, [node.value])
        if body.in_place:
            writer.line(f"{total}.add_({body.tile_value(formula)[0]})")
        else:
            writer.line(f"{total} = {total} + {body.plain(formula, 5)}")


def print_spreads(body: TorchBody, nodes: list[Node]) -> None:
    """Gradients of vectors: for each channel a tile, summed along rows or keys."""
    writer = body.writer
    formulas = [_at_channel(node.value) for node in nodes]
    with writer.block(f"for channel in range({_width(nodes[0])}):"):
        _print_channel(body, [node.value for node in nodes])
        formulas = _share_calls(body, formulas)
        done: dict[tuple[str, Expr], str] = {}
        for node, formula in zip(nodes, formulas, strict=True):
            kept = body.rename.get(node.inputs[0], node.inputs[0])
            tile = done.get((kept, formula))
            if tile is None:
                tile = done[kept, formula] = f"part_{len(done) + 1}"
                written, owned = body.tile_value(formula)
                product = f"{written}.mul_({kept})" if owned else f"{kept} * {written}"
                if may_fail(node.value):  # 0 times what a formula makes of an unrelated pair is not always 0
                    product = f"({product}).masked_fill({kept} == 0, 0)"
                writer.line(f"{tile} = _pairs({product}, {body.rows})")
            if Axis.COLUMN in node.axes:
                writer.line(f"{node.name}[:, chunk.keys, channel].add_({tile}.sum(-2))")
            else:
                writer.line(f"{node.name}[..., channel].add_({tile}.sum(-1))")


def _share_calls(body: TorchBody, formulas: list[Expr]) -> list[Expr]:
    """Functions of a channel that several gradients read are computed once."""
    calls = Counter(part for formula in formulas for part in walk(formula) if isinstance(part, Call))
    shared = [part for part in calls if calls[part] > 1 and isinstance(part, Call) and body.is_full(part)]
    for part in sorted(shared, key=lambda each: sum(1 for _ in walk(each))):
        name = f"{part.function}_at"
        while name in body.tiles:
            name += "_2"
        body.writer.line(f"{name} = {body.tile_value(part)[0]}")
        body.tiles.add(name)
        body.full.add(name)
        formulas = [substitute(formula, {part: Local(name)}) for formula in formulas]
    return formulas


def _print_channel(body: TorchBody, formulas: list[Expr]) -> None:
    """Names for one channel of each vector."""
    names = list(dict.fromkeys(name for formula in formulas for name in _vectors(formula)))
    if not names:
        return  # the gradient of a formula that is linear in its vectors reads none
    if body.in_place:
        values = [f"{name}_by[channel]" for name in names]
    else:
        values = [
            f"{name}[..., channel].unsqueeze(-2)" if _is_column(body, name) else f"{name}[..., channel, None]"
            for name in names
        ]
    for name in names:
        (body.of_keys if _is_column(body, name) else body.of_rows).add(f"{name}_at")
    body.writer.line(f"{', '.join(f'{name}_at' for name in names)} = {', '.join(values)}")


def _is_column(body: TorchBody, name: str) -> bool:
    return body.operands.core[name].kind is Kind.COLUMN_VECTOR


def _vectors(formula: Expr) -> list[str]:
    """The vectors of which a formula reads a feature."""
    if isinstance(formula, Width):
        return []
    if isinstance(formula, Vector):
        return [formula.name]
    return [name for child in children(formula) for name in _vectors(child)]


def _at_channel(formula: Expr) -> Expr:
    """The formula of one feature, in numbers."""
    match formula:
        case Width():
            return formula
        case Vector(name=name):
            return Local(f"{name}_at")
        case _:
            return rebuild(formula, _at_channel)


def _width(node: Node) -> str:
    return f"{next(iter(_vectors(node.value)), node.name)}.shape[-1]"
