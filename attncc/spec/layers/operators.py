"""The operators of layers that are called by name: their arguments, shapes, and what they do where tokens are padding.

One table: what it says is what `attncc` documents, and each operator's shape rule stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attncc.diagnostics import Label
from attncc.spec.layers.algebra import ONE, length, reduced, transposed, with_rank
from attncc.spec.layers.calls import Call, Operator, tokens_axis
from attncc.spec.layers.dims import RUN_TIME, Dim, blocks, constant, least, sequence_of
from attncc.spec.layers.findings import fail
from attncc.spec.layers.iteration import ITERATION
from attncc.spec.layers.model import NUMBER, Divides, Kind, Node, Op, Type
from attncc.spec.layers.planes import PLANES
from attncc.spec.layers.sequence import SEQUENCE

# --- shapes -----------------------------------------------------------------------------------------------------------


def _vector_of(call: Call, at: int, x: Node) -> Node:
    """A gain or bias: one number for each feature."""
    node = call.tensor(at)
    if node.type.batched or node.type.axes not in ((x.type.axes[-1],), (ONE,), ()):
        message = f"a gain or bias of `{call.name}` has a number for each feature"
        labels = (Label(x.span, str(x.type)),) if x.span is not None else ()
        fail("E401", message, node.span, f"{node.type}, expected [{x.type.axes[-1]}]", *labels)
    return node


def _norm(op: Op, most: int, epsilon: float) -> Callable[[Call], Node]:
    def shape(call: Call) -> Node:
        x = call.x
        if not x.type.axes:
            fail("E401", f"`{call.name}` of a value without axes", x.span, str(x.type))
        more = tuple(_vector_of(call, at, x) for at in range(1, min(len(call.values), most)))
        return Node(op, (x, *more), x.type, numbers=(call.number("epsilon", epsilon),), span=call.span)

    return shape


def _softmax(call: Call) -> Node:
    return Node(Op.SOFTMAX, (call.x,), call.x.type, axis=call.axis(), span=call.span)


def _reduce(op: Op) -> Callable[[Call], Node]:
    return lambda call: reduced(op, call.x, call.axis(of_batch=True), call.span)


def _transposed(call: Call) -> Node:
    return transposed(call.x, call.span)


def _heads(call: Call) -> Node:
    x, count = call.x, call.positive(1, "heads")
    if len(x.type.axes) != 2:
        fail("E401", "`heads` splits [tokens, features]", x.span, str(x.type))
    tokens, features = x.type.axes
    width = features.over(count)
    if width is None:
        fail("E401", f"{features} features cannot be split into {count} heads", call.span, "",
             helps=("name the number of heads by one parameter",))  # fmt: skip
    if not width.is_whole:
        call.demand(Divides(features, count, call.span))
    made = replace(x.type, axes=(count, tokens, width))
    return Node(Op.SPLIT_HEADS, (x,), made, dims=(count,), span=call.span)


def _merge(call: Call) -> Node:
    x = call.x
    if len(x.type.axes) not in (2, 3):
        fail("E401", "`merge` joins [heads, tokens, features], or [heads, features]", x.span, str(x.type))
    heads, *tokens, width = x.type.axes
    return Node(Op.MERGE_HEADS, (x,), replace(x.type, axes=(*tokens, heads * width)), span=call.span)


def _concat(call: Call) -> Node:
    parts = [call.tensor(at) for at in range(len(call.values))]
    if len(parts) < 2:
        fail("E206", "`concat` joins two values or more", call.span, f"expected `{call.signature}`")
    first, axis = parts[0], call.axis(-1)
    rank = len(first.type.axes)
    for each in parts[1:]:
        mine, its = list(first.type.axes), list(each.type.axes)
        fits = len(its) == rank
        if fits:
            del mine[rank + axis], its[rank + axis]
        if not fits or mine != its:
            labels = (Label(first.span, str(first.type)),) if first.span is not None else ()
            note = "all axes but the one that they are joined along are the same"
            fail("E401", "`concat` of shapes that do not fit", each.span, str(each.type), *labels, notes=(note,))
    joined = [each.type.axes[axis] for each in parts]
    if any(sequence_of(each) for each in joined):
        fail("E401", "sequences cannot be joined: the padding of one would stand inside", call.span, "",
             helps=("join along another axis, or call one core for each",))  # fmt: skip
    total = joined[0]
    for one in joined[1:]:
        total = total + one
    axes = list(first.type.axes)
    axes[rank + axis] = total
    batched = any(each.type.batched for each in parts)
    if batched and not all(each.type.batched for each in parts):
        fail("E401", "`concat` of values with and without a batch axis", call.span, "")
    made = Type(tuple(axes), batched)
    return Node(Op.CONCAT, tuple(with_rank(each, rank) for each in parts), made, axis=axis, span=call.span)


def _part(call: Call) -> Node:
    """part(x, at, of): of so many equal parts of the features, one."""
    x, at, of = call.x, call.dim(1, "at"), call.positive(2, "of")
    axis = call.axis(-1)
    whole = x.type.axes[axis]
    width = whole.over(of)
    if width is None or not x.type.axes:
        fail("E401", f"{whole} cannot be cut into {of} parts", call.span)
    if not width.is_whole:
        call.demand(Divides(whole, of, call.span))
    return _cut(call, x, axis, at * width, width)


def _slice(call: Call) -> Node:
    x, start, count = call.x, call.dim(1, "start"), call.dim(2, "count")
    return _cut(call, x, call.axis(-1), start, count)


def _first(call: Call) -> Node:
    x, count = call.x, call.dim(1, "count")
    return _cut(call, x, call.axis(-1), constant(0), count)


def _cut(call: Call, x: Node, axis: int, start: Dim, count: Dim) -> Node:
    axes = list(x.type.axes)
    if sequence_of(axes[axis]) is not None:
        fail("E401", f"`{call.name}` cuts features, not the tokens of a sequence", call.span)
    _check_fits(call, start + count, axes[axis])
    axes[len(axes) + axis] = count
    made = replace(x.type, axes=tuple(axes))
    return Node(Op.SLICE, (x,), made, axis=axis, dims=(start, count, x.type.axes[axis]), span=call.span)


def _check_fits(call: Call, end: Dim, whole: Dim) -> None:
    """What is cut lies within the axis; where parameters decide, a module is made with such alone."""
    left = whole - end
    if left.terms and all(factor < 0 for _, factor in left.terms):
        fail("E401", f"`{call.name}` reads beyond the axis", call.span, f"up to {end} of {whole}")
    is_positive = all(factor > 0 for _, factor in left.terms)
    if not is_positive and not end.symbols & set(RUN_TIME):  # `forward` knows how many tokens there are
        sides = (length(end, call.span), length(whole, call.span))
        call.require(Node(Op.COMPARE, sides, NUMBER, name="<=", span=call.span))


def _pool(call: Call) -> Node:
    x, by = call.x, call.positive(1, "by")
    axis = tokens_axis(call, x)
    axes = list(x.type.axes)
    axes[len(axes) + axis] = blocks(axes[axis], by)
    return Node(
        Op.POOL, (x,), replace(x.type, axes=tuple(axes)), axis=axis, dims=(by, x.type.axes[axis]), span=call.span
    )


def _repeat(call: Call) -> Node:
    x, times = call.x, call.positive(1, "times")
    axis = call.axis(-1)
    axes = list(x.type.axes)
    if sequence_of(axes[axis]) is not None:
        help_ = "`unpool(x, c)` gives each of the c tokens of a block what the block has"
        fail("E401", "`repeat` of the tokens of a sequence", call.span, "expected another axis", helps=(help_,))
    axes[len(axes) + axis] = axes[axis] * times
    return Node(Op.REPEAT, (x,), replace(x.type, axes=tuple(axes)), axis=axis, dims=(times,), span=call.span)


def _shift(call: Call) -> Node:
    x = call.x
    by = call.positive(1, "by") if call.count(1) or call.has("by") else ONE
    axis = tokens_axis(call, x)
    return Node(Op.SHIFT, (x,), x.type, axis=axis, dims=(by,), span=call.span)


def _rope(style: str) -> Callable[[Call], Node]:
    def shape(call: Call) -> Node:
        x, axis = call.x, -2
        if len(x.type.axes) < 2 or sequence_of(x.type.axes[-2]) is None:
            fail("E401", f"`{call.name}` turns vectors by the position of their token", x.span, str(x.type),
                 helps=("it takes [n, features] or [heads, n, features]",))  # fmt: skip
        width = x.type.axes[-1]
        half = width.over(constant(2))
        if half is not None and not half.is_whole:
            call.demand(Divides(width, constant(2), call.span))
        numbers = (call.number("base", 10000.0), call.number("closed", 0.0))
        return Node(Op.ROTATE, (x,), x.type, name=style, axis=axis, numbers=numbers, span=call.span)

    return shape


def _top(call: Call) -> Node:
    x, count = call.x, call.positive(1, "count")
    if len(x.type.axes) != 1 or sequence_of(x.type.axes[0]) is None or not x.type.batched:
        fail("E401", "`top` compares one number for each token", x.span, f"{x.type}, expected [n]")
    always = call.dim(2, "always") if call.count(2) > 0 or call.has("always") else constant(0)
    sides = (length(always, call.span), length(count, call.span))
    call.require(Node(Op.COMPARE, sides, NUMBER, name="<=", span=call.span))
    made = Type((least(x.type.axes[0], count),), batched=True, kind=Kind.INT)
    return Node(Op.LARGEST_AT, (x,), made, axis=-1, dims=(count, always), span=call.span)


def _gather(call: Call) -> Node:
    x, places = call.x, call.places(1)
    axis = tokens_axis(call, x)
    axes = list(x.type.axes)
    axes[len(axes) + axis] = places.type.axes[0]
    return Node(Op.GATHER, (x, places), Type(tuple(axes), batched=True), axis=axis, span=call.span)


def _side(op: Op) -> Callable[[Call], Node]:
    """What a call of an attention gives beside its output: for each row, for each key, or for blocks of them."""

    def shape(call: Call) -> Node:
        value, made = call.attended()
        heads, rows, _ = made.type.axes
        keys = made.dims[0]
        axes: tuple[Dim, ...] = (rows,) if op is Op.LOG_SUMS else (keys,)
        dims: tuple[Dim, ...] = ()
        own = 1.0
        if op is Op.BLOCK_SUMS:
            dims = call.positive(1, "rows"), call.positive(2, "keys")
            axes = blocks(rows, dims[0]), blocks(keys, dims[1])
        elif op is Op.COLUMN_SUMS:
            own = call.number("own", 1.0)
            if not own and rows != keys:
                fail("E401", "rows have keys of their own where there are as many", call.span, f"{rows} and {keys}")
        if len(value.type.axes) == len(made.type.axes):
            axes = heads, *axes
        return Node(op, (value,), Type(axes, batched=True), name=made.name, dims=dims, numbers=(own,), span=call.span)

    return shape


def _sinusoids(call: Call) -> Node:
    turned = _rope("halves")(call)
    return replace(turned, op=Op.SINUSOIDS, type=Type(turned.type.axes[-2:]))


OPERATORS: dict[str, Operator] = {
    each.name: each
    for each in (
        Operator("layer_norm", "layer_norm(x, gain, bias, epsilon = 1e-5)",
                 "(x - mean) / sqrt(variance + epsilon) over the features of each token; gain and bias may be left out",
                 _norm(Op.LAYER_NORM, 3, 1e-5)),
        Operator("rms_norm", "rms_norm(x, gain, epsilon = 1e-6)",
                 "x / sqrt(mean of x^2 + epsilon) over the features of each token; the gain may be left out",
                 _norm(Op.RMS_NORM, 2, 1e-6)),
        Operator("l2_norm", "l2_norm(x, epsilon = 1e-12)",
                 "x / max(length of x, epsilon) over the features of each token", _norm(Op.UNIT, 1, 1e-12)),
        Operator("scale_norm", "scale_norm(x, gain, epsilon = 1e-5)",
                 "x / max(length of x / sqrt(features), epsilon), times one gain", _norm(Op.SCALE_NORM, 2, 1e-5)),
        Operator("softmax", "softmax(x, over = n)",
                 "e^x over the sum of e^x along an axis; padded tokens get 0 and take no part", _softmax),
        Operator("sum", "sum(x, over = n)", "the sum along an axis; padded tokens are left out", _reduce(Op.SUM)),
        Operator("mean", "mean(x, over = n)",
                 "the mean along an axis, over as many tokens as there are; 0 where there are none", _reduce(Op.MEAN)),
        Operator("max", "max(x, over = n)",
                 "the largest along an axis, padded tokens left out; 0 where there are none; "
                 "these three take `over = B`, the batch, too", _reduce(Op.LARGEST)),
        Operator("transposed", "transposed(x)", "the last two axes exchanged", _transposed),
        Operator("heads", "heads(x, h)", "[n, h * d] → [h, n, d]: features split into heads", _heads),
        Operator("merge", "merge(x)", "[h, n, d] → [n, h * d], or [h, d] → [h * d]: heads joined again", _merge),
        Operator("concat", "concat(x, y, …, over = features)", "values one behind the other along an axis", _concat),
        Operator("part", "part(x, at, of)", "of so many equal parts of the features the one of that number, from 0",
                 _part),
        Operator("slice", "slice(x, start, count, over = features)", "so many features from one on", _slice),
        Operator("first", "first(x, count, over = features)",
                 "the first entries along an axis that is no sequence, such as `first(E, n)` of a learned matrix",
                 _first),
        Operator("pool", "pool(x, c)",
                 "means of blocks of c tokens, over as many as there are in the block; 0 where there are none", _pool),
        Operator("repeat", "repeat(x, times, over = features)", "each entry several times, one behind the other",
                 _repeat),
        Operator("shift", "shift(x, by)", "each token gets what the one before it has, the first ones 0", _shift),
        Operator("rope", "rope(x, base = 10000, closed = 0)",
                 "features t and t + width / 2 turned by position / base^(2 * t / width); with closed = 1 by "
                 "position / base^(t / (width / 2 - 1)), so that the last ones turn 1 / base as fast as the first",
                 _rope("halves")),
        Operator("rope_pairs", "rope_pairs(x, base = 10000, closed = 0)",
                 "features 2t and 2t + 1 turned in the same way", _rope("pairs")),
        Operator("sinusoids", "sinusoids(x, base = 10000, closed = 0)",
                 "[n, width]: sines and cosines of the angles by which `rope` turns", _sinusoids),
        Operator("top", "top(x, count, always = 0)",
                 "the places of the `count` largest of one number for each token, of equal ones the first, in their "
                 "order; the first `always` are among them, padding comes last; no gradient", _top),
        Operator("gather", "gather(x, places)", "along a sequence the entries at places such as those of `top`",
                 _gather),
        Operator("log_sums", "log_sums(a)",
                 "of `a = attend …`: the logarithm of what each row is divided by", _side(Op.LOG_SUMS)),
        Operator("column_sums", "column_sums(a, own = 1)",
                 "of `a = attend …`: the weight that all rows give to each key, padded rows left out; with `own = 0` "
                 "without the weight of a token for itself", _side(Op.COLUMN_SUMS)),
        Operator("block_sums", "block_sums(a, rows, keys)",
                 "of `a = attend …`: the weight that so many rows give to so many keys, for every two blocks",
                 _side(Op.BLOCK_SUMS)),
        *SEQUENCE,
        *PLANES,
        *ITERATION,
    )
}  # fmt: skip
