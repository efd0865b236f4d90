"""Operators along a sequence and on maps → Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from attncc.spec.layers.dims import sequence_of
from attncc.spec.layers.model import Node, Op

if TYPE_CHECKING:
    from attncc.emit.layers.expressions import Printer

# What keeps something of the tokens before: its function, which has a form `…_step` that takes and gives what is kept.
KEEPERS = {
    Op.SHIFT: "_moved",
    Op.CONVOLVE: "_convolved",
    Op.DEPTHWISE: "_convolved_apart",
    Op.RUNNING_SUM: "_running_sum",
    Op.RUNNING_MEAN: "_running_mean",
    Op.AVERAGE: "_averaged",
    Op.POOL: "_pool",
    Op.POOL_LARGEST: "_block_largest",
}


def _lengths(printer: Printer, node: Node, axis: int = -2) -> str:
    return printer.lengths_of(node.args[0].type.axes[axis])


def _shift(printer: Printer, node: Node) -> str:
    return f"{printer.keeper(node)}({printer.text(node.args[0])}, {node.axis}, {printer.dim(node.dims[0])})"


def _convolve(printer: Printer, node: Node) -> str:
    x, kernel = map(printer.text, node.args)
    stride = printer.dim(node.dims[0])
    before = printer.dim(node.dims[1]) if len(node.dims) > 1 else "None"
    return f"{printer.keeper(node)}({x}, {kernel}, {stride}, {before}, {_lengths(printer, node)})"


def _running_sum(printer: Printer, node: Node) -> str:
    return f"{printer.keeper(node)}({printer.text(node.args[0])})"


def _running_mean(printer: Printer, node: Node) -> str:
    return f"{printer.keeper(node)}({printer.text(node.args[0])}, start)"


def _average(printer: Printer, node: Node) -> str:
    x, decays, gains = map(printer.text, node.args)
    return f"{printer.keeper(node)}({x}, {decays}, {gains}, {_lengths(printer, node)})"


def _average_back(printer: Printer, node: Node) -> str:
    printer.helpers.add("_averaged_back")
    x, decays, gains = map(printer.text, node.args)
    return f"_averaged_back({x}, {decays}, {gains}, {_lengths(printer, node)})"


def _pool_max(printer: Printer, node: Node) -> str:
    by = printer.dim(node.dims[0])
    return (
        f"{printer.keeper(node)}({printer.text(node.args[0])}, {node.axis}, {by}, {_lengths(printer, node, node.axis)})"
    )


def _unpool(printer: Printer, node: Node) -> str:
    printer.helpers.add("_unpool")
    by, whole = map(printer.dim, node.dims)
    return f"_unpool({printer.text(node.args[0])}, {node.axis}, {by}, {whole})"


def _segments(printer: Printer, node: Node) -> str:
    printer.helpers.add("_segment_means")
    epsilon = f", {node.numbers[0]!r}" if node.numbers[0] else ""
    x, count = printer.text(node.args[0]), printer.dim(node.dims[0])
    return f"_segment_means({x}, {count}, {_lengths(printer, node)}{epsilon})"


def _present(printer: Printer, node: Node) -> str:
    printer.helpers.add("_present")
    return f"_present({printer.text(node.args[0])}, {_lengths(printer, node)})"


def _convolve_2d(printer: Printer, node: Node) -> str:
    printer.helpers.add("_convolved_map")
    x, kernel = map(printer.text, node.args)
    lengths = ", ".join(_lengths(printer, node, axis) for axis in (-2, -1))
    return f"_convolved_map({x}, {kernel}, {printer.dim(node.dims[0])}, {lengths})"


def _batch_norm(printer: Printer, node: Node) -> str:
    printer.helpers.add("_batch_norm")
    axes = node.args[0].type.axes
    at = [axis for axis in range(-len(axes), 0) if sequence_of(axes[axis]) is not None]
    padding = "".join(f"({axis}, {_lengths(printer, node, axis)}), " for axis in at)
    values = ", ".join(map(printer.text, node.args))
    epsilon, momentum = map(repr, node.numbers)
    return f"_batch_norm({values}, {node.axis}, self.training, {epsilon}, {momentum}, ({padding}))"


def _sinusoids(printer: Printer, node: Node) -> str:
    printer.helpers.add("_sinusoids")
    base, closed = node.numbers
    return f"_sinusoids({printer.text(node.args[0])}, {base!r}, {printer.start(node)}, {bool(closed)})"


def _identity(printer: Printer, node: Node) -> str:
    return f"torch.eye({printer.dim(node.dims[0])}, device={printer.like}.device, dtype={printer.like}.dtype)"


TEXTS: Mapping[Op, Callable[[Printer, Node], str]] = {
    Op.SHIFT: _shift,
    Op.CONVOLVE: _convolve,
    Op.DEPTHWISE: _convolve,
    Op.RUNNING_SUM: _running_sum,
    Op.RUNNING_MEAN: _running_mean,
    Op.AVERAGE: _average,
    Op.AVERAGE_BACK: _average_back,
    Op.POOL_LARGEST: _pool_max,
    Op.UNPOOL: _unpool,
    Op.SEGMENTS: _segments,
    Op.PRESENT: _present,
    Op.CONVOLVE_2D: _convolve_2d,
    Op.BATCH_NORM: _batch_norm,
    Op.IDENTITY: _identity,
    Op.SINUSOIDS: _sinusoids,
}
