"""Operators on maps of features [features, n, m], norms over a batch, and identity matrices."""

from __future__ import annotations

from dataclasses import replace

from attncc.diagnostics import Label
from attncc.spec.layers.algebra import ONE, insert
from attncc.spec.layers.calls import Call, Operator, axis_of
from attncc.spec.layers.dims import Dim, blocks, constant, sequence_of
from attncc.spec.layers.findings import fail
from attncc.spec.layers.model import Node, Op, Type


def _convolve_2d(call: Call) -> Node:
    x, kernel = call.x, call.tensor(1)
    axes = x.type.axes
    if len(axes) != 3 or not x.type.batched or any(sequence_of(each) is None for each in axes[1:]):
        fail(
            "E401", "`convolve_2d` works on maps of features", x.span, str(x.type), helps=("it takes [features, n, m]",)
        )
    if kernel.type.batched or len(kernel.type.axes) != 4 or kernel.type.axes[1] != axes[0]:
        labels = (Label(x.span, str(x.type)),) if x.span is not None else ()
        text = f"{kernel.type}, expected [features, {axes[0]}, height, width]"
        fail("E401", "`convolve_2d` of shapes that do not fit", kernel.span, text, *labels)
    stride = call.positive(2, "stride") if call.has("stride") else ONE
    made = replace(x.type, axes=(kernel.type.axes[0], *(blocks(each, stride) for each in axes[1:])))
    return Node(Op.CONVOLVE_2D, (x, kernel), made, dims=(stride,), span=call.span)


def _batch_norm(call: Call) -> Node:
    x = call.x
    axis = axis_of(x, call.named["channels"], call.taken("channels")) if call.has("channels") else -1
    if not x.type.batched or not x.type.axes:
        fail("E401", "`batch_norm` is of what differs from batch entry to batch entry", x.span, str(x.type))
    channels = x.type.axes[axis]
    if sequence_of(channels) is not None:
        fail("E401", "`batch_norm` has numbers of each feature, not of each token", x.span, str(x.type),
             helps=("name the axis of features: `channels = …`",))  # fmt: skip
    vectors = tuple(_vector(call, at, x, channels) for at in range(1, 5))
    for each in vectors[2:]:
        if each.op is not Op.NAME:
            fail("E401", "a running mean or variance is a `param` by itself", each.span)
    numbers = (call.number("epsilon", 1e-5), call.number("momentum", 0.1))
    return Node(Op.BATCH_NORM, (x, *vectors), x.type, axis=axis, numbers=numbers, span=call.span)


def _vector(call: Call, at: int, x: Node, channels: Dim) -> Node:
    node = call.tensor(at)
    if node.type != Type((channels,)):
        labels = (Label(x.span, str(x.type)),) if x.span is not None else ()
        message = "`batch_norm` takes gain, bias, mean and variance, a number for each feature"
        fail("E401", message, node.span, f"{node.type}, expected [{channels}]", *labels)
    return node


def _column(call: Call) -> Node:
    return replace(insert(call.x, -1), span=call.span)


def _stack(call: Call) -> Node:
    parts = [call.tensor(at) for at in range(len(call.values))]
    if len(parts) < 2:
        fail("E206", "`stack` takes two values or more", call.span, f"expected `{call.signature}`")
    first = parts[0]
    for each in parts[1:]:
        if each.type != first.type:
            labels = (Label(first.span, str(first.type)),) if first.span is not None else ()
            fail("E401", "`stack` of shapes that do not fit", each.span, str(each.type), *labels)
    rank = len(first.type.axes) + 1
    made = replace(first.type, axes=(constant(len(parts)), *first.type.axes))
    return Node(Op.CONCAT, tuple(insert(each, -rank) for each in parts), made, axis=-rank, span=call.span)


def _identity(call: Call) -> Node:
    size = call.dim(0, "size")
    if size.symbols & {"n", "m"}:
        fail("E401", "an identity matrix is as large as parameters say", call.span)
    return Node(Op.IDENTITY, (), Type((size, size)), dims=(size,), span=call.span)


PLANES = (
    Operator("convolve_2d", "convolve_2d(x, W, stride = 1)",
             "convolution of a map of features [features, n, m] with W [features, features, height, width]; zeros "
             "stand around it and in padding, (height - stride) // 2 rows before the first", _convolve_2d),
    Operator("batch_norm",
             "batch_norm(x, gain, bias, mean, variance, channels = features, epsilon = 1e-5, momentum = 0.1)",
             "(x - mean) / sqrt(variance + epsilon) * gain + bias for each feature: in training with those of the "
             "batch, padding left out, which the running ones follow; else with the running ones, which are buffers",
             _batch_norm),
    Operator("column", "column(x)", "x with a last axis of length 1 more: [d] → [d, 1]", _column),
    Operator("stack", "stack(x, y, …)", "values of one shape one behind the other along a new first axis", _stack),
    Operator("identity", "identity(r)", "[r, r]: ones on the diagonal, zeros elsewhere", _identity),
)  # fmt: skip
