"""The operators of layers that are called by name: their arguments, shapes, and what they do where tokens are padding.

One table: what it says is what `attncc` documents, and each operator's shape rule stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from attncc.diagnostics import Label, Span
from attncc.spec.layers.algebra import ONE, describe, length, reduced, transposed, with_rank
from attncc.spec.layers.dims import RUN_TIME, Dim, blocks, constant, least, sequence_of
from attncc.spec.layers.findings import fail
from attncc.spec.layers.model import NUMBER, Divides, Kind, Node, Op, Type
from attncc.spec.words import nearest


@dataclass(frozen=True, slots=True)
class Operator:
    """What is called by name; `along` says whether it may mix the tokens of a sequence."""

    name: str
    signature: str
    meaning: str
    shape: Callable[[Call], Node]


class Call:
    """One call: its arguments by place and by name, as values, lengths and axes."""

    def __init__(
        self, name: str, span: Span, values: tuple[Node, ...], named: Mapping[str, Node],
        dims: Mapping[str, Dim | None], demand: Callable[[Divides], None], require: Callable[[Node], None],
        definitions: Mapping[str, Node],
    ) -> None:  # fmt: skip
        self.name = name
        self.span = span
        self.values = values
        self.named = named
        self.dims = dims  # by place ("0", "1", …) and by name: arguments that are lengths
        self.demand = demand
        self.require = require
        self.definitions = definitions  # what names of values stand for
        self._read: set[str] = set()

    @property
    def x(self) -> Node:
        """The first argument, a tensor."""
        return self.tensor(0)

    def tensor(self, at: int) -> Node:
        """An argument that has axes."""
        node = self._at(at)
        if node.type.is_number:
            fail("E401", f"`{self.name}` of a number", node.span, "expected a value with axes")
        if node.type.kind is not Kind.REAL:
            fail("E204", f"{describe(node)} holds no real numbers", node.span, f"it holds {node.type.kind.value}")
        return node

    def places(self, at: int) -> Node:
        """An argument of whole numbers, one for each entry of an axis."""
        node = self._at(at)
        if node.type.kind is not Kind.INT or len(node.type.axes) != 1 or not node.type.batched:
            text = f"expected whole numbers [k], such as those of `top`, found {node.type}"
            fail("E401", f"{describe(node)} says no places", node.span, text)
        return node

    def attended(self) -> tuple[Node, Node]:
        """The first argument, a named value that `attend` has made, and the call that made it."""
        node = self._at(0)
        made = self.definitions.get(node.name) if node.op is Op.NAME else None
        while made is not None and made.op is Op.DROP:
            made = made.args[0]
        if made is None or made.op is not Op.ATTEND:
            help_ = f"name what an attention gives, `a = attend …`, and write `{self.name}(a)`"
            fail("E401", f"`{self.name}` is about a call of an attention", node.span, helps=(help_,))
        return node, made

    def _at(self, at: int) -> Node:
        if at >= len(self.values):
            fail("E206", f"`{self.name}` lacks an argument", self.span, f"expected `{signature(self.name)}`")
        self._read.add(str(at))
        return self.values[at]

    def has(self, name: str) -> bool:
        """Whether a named argument was given."""
        return name in self.named

    def count(self, at: int) -> int:
        """How many arguments by place there are beyond one."""
        return len(self.values) - at

    def dim(self, at: int, name: str) -> Dim:
        """An argument that is a length: made of whole numbers and parameters."""
        key = name if name in self.named else str(at)
        if key not in self.named and at >= len(self.values):
            fail("E206", f"`{self.name}` lacks an argument", self.span, f"expected `{signature(self.name)}`")
        self._read.add(key)
        node = self.named[key] if key in self.named else self.values[at]
        found = self.dims.get(key)
        if found is None:
            fail("E401", "a length is made of whole numbers and parameters", node.span, "this is no length")
        return found

    def number(self, name: str, default: float) -> float:
        """A named argument that is a constant."""
        if name not in self.named:
            return default
        self._read.add(name)
        node = self.named[name]
        if node.op is Op.SIZE and node.dims[0].number is not None:
            return float(node.dims[0].number)
        if node.op is not Op.CONST:
            fail("E212", f"`{name}` is a constant", node.span, "this is none")
        return float(node.numbers[0])

    def axis(self, default: int | None = None) -> int:
        """The axis that `over = …` names, counted from the end."""
        if "over" not in self.named:
            if default is not None:
                return default
            help_ = f"write `{self.name}(…, over = n)`, or the length of another axis"
            fail(
                "E206", f"`{self.name}` does not say over which axis", self.span, "expected `over = …`", helps=(help_,)
            )
        self._read.add("over")
        return axis_of(self.x, self.named["over"], self.dims.get("over"))

    def done(self) -> None:
        """Refuse arguments that nothing has read."""
        for at, node in enumerate(self.values):
            if str(at) not in self._read:
                fail("E206", f"`{self.name}` has too many arguments", node.span, f"expected `{signature(self.name)}`")
        for name, node in self.named.items():
            if name not in self._read:
                helps = nearest(name, ("over", "epsilon", "along", "base"))
                fail("E206", f"`{self.name}` has no argument `{name}`", node.span,
                     f"expected `{signature(self.name)}`", helps=helps)  # fmt: skip


def axis_of(x: Node, node: Node, dim: Dim | None) -> int:
    """The one axis of a length, counted from the end; `features` is the last one."""
    if node.op is Op.NAME and node.name == "features":
        return -1
    found = [at for at, each in enumerate(x.type.axes) if each == dim]
    if dim is None or not found:
        note = f"{describe(x)} has the axes {', '.join(map(str, x.type.axes)) or 'none'}; `features` is the last one"
        labels = (Label(x.span, str(x.type)),) if x.span is not None else ()
        fail("E402", f"there is no axis `{dim if dim is not None else '?'}`", node.span, "", *labels, notes=(note,))
    if len(found) > 1:
        labels = (Label(x.span, str(x.type)),) if x.span is not None else ()
        fail("E402", f"two axes have the length `{dim}`", node.span, "which of them?", *labels,
             helps=("write `features` for the last one",))  # fmt: skip
    return found[0] - len(x.type.axes)


def signature(name: str) -> str:
    """How an operator is called."""
    return OPERATORS[name].signature


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
    return lambda call: reduced(op, call.x, call.axis(), call.span)


def _transposed(call: Call) -> Node:
    return transposed(call.x, call.span)


def _heads(call: Call) -> Node:
    x, count = call.x, call.dim(1, "heads")
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
        fail("E206", "`concat` joins two values or more", call.span, f"expected `{signature('concat')}`")
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
    x, at, of = call.x, call.dim(1, "at"), call.dim(2, "of")
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
    x, by = call.x, call.dim(1, "by")
    axis = _tokens_axis(call, x)
    axes = list(x.type.axes)
    axes[len(axes) + axis] = blocks(axes[axis], by)
    return Node(
        Op.POOL, (x,), replace(x.type, axes=tuple(axes)), axis=axis, dims=(by, x.type.axes[axis]), span=call.span
    )


def _repeat(call: Call) -> Node:
    x, times = call.x, call.dim(1, "times")
    axis = call.axis(-1)
    axes = list(x.type.axes)
    if sequence_of(axes[axis]) is not None:
        fail("E401", "`repeat` of the tokens of a sequence", call.span, "expected another axis")
    axes[len(axes) + axis] = axes[axis] * times
    return Node(Op.REPEAT, (x,), replace(x.type, axes=tuple(axes)), axis=axis, dims=(times,), span=call.span)


def _shift(call: Call) -> Node:
    x = call.x
    by = call.dim(1, "by") if call.count(1) or call.has("by") else ONE
    axis = _tokens_axis(call, x)
    if by.number is None or by.number < 1:
        fail("E401", "`shift` moves tokens back by 1 or more", call.span, helps=("write `shift(x, 1)`",))
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
        base = call.number("base", 10000.0)
        return Node(Op.ROTATE, (x,), x.type, name=style, axis=axis, numbers=(base,), span=call.span)

    return shape


def _top(call: Call) -> Node:
    x, count = call.x, call.dim(1, "count")
    if len(x.type.axes) != 1 or sequence_of(x.type.axes[0]) is None or not x.type.batched:
        fail("E401", "`top` compares one number for each token", x.span, f"{x.type}, expected [n]")
    always = call.dim(2, "always") if call.count(2) > 0 or call.has("always") else constant(0)
    sides = (length(always, call.span), length(count, call.span))
    call.require(Node(Op.COMPARE, sides, NUMBER, name="<=", span=call.span))
    made = Type((least(x.type.axes[0], count),), batched=True, kind=Kind.INT)
    return Node(Op.LARGEST_AT, (x,), made, axis=-1, dims=(count, always), span=call.span)


def _gather(call: Call) -> Node:
    x, places = call.x, call.places(1)
    axis = _tokens_axis(call, x)
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
            dims = call.dim(1, "rows"), call.dim(2, "keys")
            axes = blocks(rows, dims[0]), blocks(keys, dims[1])
        elif op is Op.COLUMN_SUMS:
            own = call.number("own", 1.0)
            if not own and rows != keys:
                fail("E401", "rows have keys of their own where there are as many", call.span, f"{rows} and {keys}")
        if len(value.type.axes) == len(made.type.axes):
            axes = heads, *axes
        return Node(op, (value,), Type(axes, batched=True), name=made.name, dims=dims, numbers=(own,), span=call.span)

    return shape


def _tokens_axis(call: Call, x: Node) -> int:
    """The one axis that is a sequence, or the one that `over` names."""
    if call.has("over"):
        return call.axis()
    found = [at for at, each in enumerate(x.type.axes) if sequence_of(each) is not None]
    if len(found) != 1:
        fail("E402", f"`{call.name}` works along a sequence", x.span, str(x.type), helps=("write `over = n`",))
    return found[0] - len(x.type.axes)


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
                 "the largest along an axis, padded tokens left out; 0 where there are none", _reduce(Op.LARGEST)),
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
        Operator("rope", "rope(x, base = 10000)", "features t and t + width / 2 turned by the token's position",
                 _rope("halves")),
        Operator("rope_pairs", "rope_pairs(x, base = 10000)", "features 2t and 2t + 1 turned by the token's position",
                 _rope("pairs")),
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
    )
}  # fmt: skip
