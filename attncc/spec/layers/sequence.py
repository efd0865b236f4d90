"""Operators along a sequence: convolutions, running sums, moving averages, segments, and what undoes pooling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attncc.diagnostics import Label
from attncc.spec.layers.algebra import ONE
from attncc.spec.layers.calls import Call, Operator, tokens_axis
from attncc.spec.layers.dims import Ceil, Dim, blocks, sequence_of
from attncc.spec.layers.findings import fail
from attncc.spec.layers.model import Node, Op, Type


def _tokens(call: Call) -> Node:
    """The first argument, whose last axis but one is a sequence."""
    x = call.x
    axes = x.type.axes
    if len(axes) < 2 or sequence_of(axes[-2]) is None or not x.type.batched:
        fail("E401", f"`{call.name}` works along the tokens of a sequence", x.span, str(x.type),
             helps=("it takes [n, features] or [heads, n, features]",))  # fmt: skip
    return x


def _learned(call: Call, at: int, x: Node, expected: str, fits: Callable[[tuple[Dim, ...]], bool]) -> Node:
    """An argument that is the same for every batch entry, with these axes."""
    node = call.tensor(at)
    if node.type.batched or not fits(node.type.axes):
        labels = (Label(x.span, str(x.type)),) if x.span is not None else ()
        fail(
            "E401", f"`{call.name}` of shapes that do not fit", node.span, f"{node.type}, expected {expected}", *labels
        )
    return node


def _stride(call: Call) -> Dim:
    return call.positive(2, "stride") if call.has("stride") else ONE


def _before(call: Call) -> tuple[Dim, ...]:
    return (call.dim(2, "before"),) if call.has("before") else ()


def _convolved(op: Op, call: Call, x: Node, kernel: Node, features: Dim) -> Node:
    stride = _stride(call)
    axes = (*x.type.axes[:-2], blocks(x.type.axes[-2], stride), features)
    made = replace(x.type, axes=axes)
    return Node(op, (x, kernel), made, axis=-2, dims=(stride, *_before(call)), span=call.span)


def _convolve(call: Call) -> Node:
    x = _tokens(call)
    width = x.type.axes[-1]
    kernel = _learned(call, 1, x, f"[width, {width}, features]", lambda axes: len(axes) == 3 and axes[1] == width)
    return _convolved(Op.CONVOLVE, call, x, kernel, kernel.type.axes[-1])


def _depthwise(call: Call) -> Node:
    x = _tokens(call)
    *outer, _, width = x.type.axes

    def fits(axes: tuple[Dim, ...]) -> bool:
        return len(axes) >= 2 and axes[-1] in (width, ONE) and list(axes[:-2]) in ([], outer)

    heads = "".join(f"{each}, " for each in outer)
    expected = f"[width, {width}]" + (f" or [{heads}width, {width}]" if outer else "")
    return _convolved(Op.DEPTHWISE, call, x, _learned(call, 1, x, expected, fits), width)


def _running(op: Op) -> Callable[[Call], Node]:
    def shape(call: Call) -> Node:
        x = _tokens(call)
        return Node(op, (x,), x.type, axis=-2, span=call.span)

    return shape


def _average(op: Op) -> Callable[[Call], Node]:
    def shape(call: Call) -> Node:
        x = _tokens(call)
        width = x.type.axes[-1]
        decays = _learned(call, 1, x, f"[{width}, states]", lambda axes: len(axes) == 2 and axes[0] == width)
        expected = str(decays.type)
        gains = _learned(call, 2, x, expected, lambda axes: axes == decays.type.axes)
        return Node(op, (x, decays, gains), x.type, axis=-2, span=call.span)

    return shape


def _pool_max(call: Call) -> Node:
    x, by = call.x, call.positive(1, "by")
    axis = tokens_axis(call, x)
    axes = list(x.type.axes)
    axes[len(axes) + axis] = blocks(axes[axis], by)
    dims = (by, x.type.axes[axis])
    return Node(Op.POOL_LARGEST, (x,), replace(x.type, axes=tuple(axes)), axis=axis, dims=dims, span=call.span)


def _unpool(call: Call) -> Node:
    x, by = call.x, call.positive(1, "by")
    axis = tokens_axis(call, x)
    axes = list(x.type.axes)
    whole = _whole(axes[axis], by)
    if whole is None:
        fail("E401", f"`unpool` undoes blocks of {by} tokens", x.span, f"{axes[axis]} is no `ceil(… / {by})`",
             helps=(f"it takes what `pool(…, {by})` gives",))  # fmt: skip
    axes[len(axes) + axis] = whole
    made = replace(x.type, axes=tuple(axes))
    return Node(Op.UNPOOL, (x,), made, axis=axis, dims=(by, whole), span=call.span)


def _whole(few: Dim, by: Dim) -> Dim | None:
    """What blocks of `by` entries were made of."""
    match few.terms:
        case ((((Ceil(of=of, by=own), 1),), factor),) if factor == 1 and own == by:
            return of
    return None


def _segments(call: Call) -> Node:
    x, count = _tokens(call), call.positive(1, "count")
    axes = (*x.type.axes[:-2], count, x.type.axes[-1])
    made = replace(x.type, axes=axes)
    return Node(Op.SEGMENTS, (x,), made, axis=-2, dims=(count, x.type.axes[-2]),
                numbers=(call.number("epsilon", 0.0),), span=call.span)  # fmt: skip


def _present(call: Call) -> Node:
    x = _tokens(call)
    made = Type((x.type.axes[-2], ONE), batched=True)
    return Node(Op.PRESENT, (x,), made, axis=-2, span=call.span)


SEQUENCE = (
    Operator("convolve", "convolve(x, W, stride = 1, before = …)",
             "entry c is the sum of x[c * stride - before + t] @ W[t] over the width of W [width, features, features]; "
             "zeros stand before the first token, after the last and in padding; `before` is (width - stride) // 2 "
             "if nothing is said, and width - 1 makes it causal", _convolve),
    Operator("depthwise", "depthwise(x, W, stride = 1, before = …)",
             "the same with a number for each feature, W [width, features], or for each head too", _depthwise),
    Operator("running_sum", "running_sum(x)", "the sum of each token and those before it", _running(Op.RUNNING_SUM)),
    Operator("running_mean", "running_mean(x)", "the mean of each token and those before it",
             _running(Op.RUNNING_MEAN)),
    Operator("ema", "ema(x, q, w)",
             "moving averages: the sum over s of w[c, s] * h[c, s], where h = q[c, s] * (h of the token before) + x[c] "
             "for each feature c; q between 0 and 1", _average(Op.AVERAGE)),
    Operator("ema_back", "ema_back(x, q, w)", "the same from the last token to the first, padding left out",
             _average(Op.AVERAGE_BACK)),
    Operator("pool_max", "pool_max(x, c)",
             "the largest of blocks of c tokens, padding left out; 0 where there are none", _pool_max),
    Operator("unpool", "unpool(x, c)", "each entry for all c tokens of its block: `pool(x, c)` as long as x", _unpool),
    Operator("segments", "segments(x, r, epsilon = 0)",
             "means of r segments of ceil(n / r) tokens, over as many as there are, plus epsilon; the last one ends "
             "with the last token, and segments before the first token are 0", _segments),
    Operator("present", "present(x)", "[n, 1]: 1 for each token of x, 0 for padding", _present),
)  # fmt: skip
