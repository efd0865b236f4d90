"""`attend core(…)`: the attention that is called, with its parameters bound, and the values that it is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attncc.diagnostics import Diagnostic, Label, Span
from attncc.spec.data import Axis, Blocks, Data, Free, Make, Role, Size, axis_text
from attncc.spec.layers.algebra import describe, drop, expanded, insert, written
from attncc.spec.layers.dims import Dim, blocks, constant
from attncc.spec.layers.expressions import Expressions, Scope
from attncc.spec.layers.findings import Fault, fail
from attncc.spec.layers.model import NUMBER, Core, Divides, Draw, Kind, Learned, Node, Op, Type, walk
from attncc.spec.layers.numbers import value_of
from attncc.spec.model import Spec
from attncc.spec.words import nearest
from attncc.syntax import tree

Resolve = Callable[[tree.Attention, Mapping[str, str]], tuple[Spec, Sequence[Diagnostic]]]
_FIRST_DEVIATION = 0.02  # of learned data that have no initial value, as in modules of attentions


@dataclass(frozen=True, slots=True)
class _Bound:
    """A length that the call decides, and the argument that decided it."""

    dim: Dim
    node: Node


class Cores:
    """The attentions of a file, as far as its layer calls them."""

    def __init__(self, attentions: Mapping[str, tree.Attention], resolve: Resolve) -> None:
        self.attentions = attentions
        self.resolve = resolve
        self.cores: list[Core] = []
        self.learned: list[Learned] = []  # what cores learn that no argument gives
        self.fixed: dict[str, Span] = {}  # parameters of the layer that parameters of cores are made of
        self.sizes: dict[str, int | float] = {}  # the values that parameters of the layer have
        self.taken: set[str] = set()  # names of the layer
        self.prefix = ""  # of values, in a layer that another one calls
        self.part = ""  # of the module, which holds what such a layer learns
        self._made: dict[tuple[str, tuple[tuple[str, str], ...]], Core] = {}
        self.expressions: Expressions

    def attend(self, node: tree.Attend, scope: Scope) -> Node:
        """The rows that an attention gives.

        Raises:
            Fault: with what is wrong.
        """
        attention = self.attentions.get(node.name.text)
        if attention is None:
            helps = nearest(node.name.text, self.attentions)
            fail("E201", f"there is no attention `{node.name.text}`", node.name.span, "unknown name", helps=helps)
        core, named = self._core(node, attention, scope)
        values = self._arguments(node, core.spec, named, scope)
        options = tuple((name, each) for name, each in named.items() if name == "scale")
        return self._called(node, core, values, options)

    # --- the attention ----------------------------------------------------------------------------------------

    def _core(self, node: tree.Attend, attention: tree.Attention, scope: Scope) -> tuple[Core, dict[str, Node]]:
        """The core with its parameters bound, and the other named arguments."""
        parameters = {each.name.text for each in attention.parameters}
        overrides: dict[str, str] = {}
        named: dict[str, Node] = {}
        for each in node.arguments:
            if not isinstance(each, tree.NamedArgument):
                continue
            name = each.name.text
            if name in overrides or name in named:
                fail("E206", f"`{name}` is given twice", each.span)
            value = self.expressions.value(each.value, scope)
            if name in parameters:
                overrides[name] = self._fixed(name, value, each.span)
            else:
                named[name] = value
        key = (attention.name.text, tuple(sorted(overrides.items())))
        if key not in self._made:
            spec, errors = self.resolve(attention, overrides)
            if errors:
                raise Fault(*errors)
            count = sum(each.spec.name == spec.name for each in self.cores)
            core = Core(spec.name if not count else f"{spec.name}_{count + 1}", spec)
            self.cores.append(core)
            self._made[key] = core
        return self._made[key], named

    def _fixed(self, name: str, value: Node, span: Span) -> str:
        """The value of a core's parameter as text: it is known when the file is built."""
        if not value.type.is_number:
            fail("E404", f"the parameter `{name}` is a number", span, str(value.type))
        read = {
            symbol
            for each in walk(value)
            for symbol in ([each.name] if each.op is Op.NAME else [s for dim in each.dims for s in dim.symbols])
        }
        for symbol in sorted(read):
            self.fixed.setdefault(symbol, span)
        found = value_of(value, self.sizes)
        if found is None:
            missing = sorted(read - self.sizes.keys())
            if missing and missing[0] in ("n", "m"):
                fail("E404", f"the parameter `{name}` is known when the file is built", span, "this reads a length")
            first = missing[0] if missing else "…"
            helps = (f"give a default: `{first} = 1`", f"pass a value: `-D {first}=1`")
            message = f"`{name}` is known when the file is built, and `{first}` has no value"
            fail("E208", message, span, "", helps=helps)
        return repr(found)

    # --- arguments --------------------------------------------------------------------------------------------

    def _arguments(self, node: tree.Attend, spec: Spec, named: Mapping[str, Node], scope: Scope) -> list[Node | None]:
        """The values for the core's data, in their order; None for those that it learns."""
        inputs = [each for each in spec.data if each.role is Role.INPUT]
        given = [each for each in node.arguments if not isinstance(each, tree.NamedArgument)]
        values: dict[str, Node] = {}
        expected = f"expected `attend {node.name.text}({', '.join(each.name for each in inputs)})`"
        if len(given) > len(inputs):
            fail("E404", f"`{node.name.text}` takes {len(inputs)} values", given[len(inputs)].span, expected)
        for datum, argument in zip(inputs, given, strict=False):
            values[datum.name] = self.expressions.value(argument, scope)
        known = {each.name for each in spec.data}
        for name, value in named.items():
            if name in values:
                fail("E206", f"`{name}` is given twice", value.span)
            if name not in known and not (name == "scale" and spec.reads_scale):
                options = [*known, *(each.name for each in spec.parameters), *(["scale"] if spec.reads_scale else [])]
                fail("E404", f"`{node.name.text}` takes no `{name}`", value.span, helps=nearest(name, options))
            values[name] = value
        for datum in inputs:
            if datum.name not in values:
                fail("E404", f"`{node.name.text}` lacks `{datum.name}`", node.span, expected, helps=_passed(datum))
        return [values.get(each.name) for each in spec.data]

    def _called(
        self, node: tree.Attend, core: Core, values: list[Node | None], options: tuple[tuple[str, Node], ...]
    ) -> Node:
        bound: dict[Size, _Bound] = {}
        data = core.spec.data
        lacks_heads = {
            each.name: value is not None and each.is_token and self._lacks_heads(each, value)
            for each, value in zip(data, values, strict=True)
        }
        rows_lack = all(lacks_heads[each.name] for each in data if each.is_row and Size.HEADS in each.axes)
        shared: list[tuple[Dim, Node]] = []  # heads of keys
        laid: list[Node | None] = []
        for each, value in zip(data, values, strict=True):
            if value is None:
                laid.append(None)
                continue
            if Size.BATCH in each.axes and not value.type.batched and not value.type.is_number:
                value = expanded(value)
            if lacks_heads[each.name]:
                value = insert(value, -len(each.axes) + 1)
            self._match(node, each, value, bound, shared)
            laid.append(value)
        heads = bound.get(Size.HEADS, _Bound(constant(1), node_of(node))).dim
        for one, value in shared[1:]:
            if self._known(one) != self._known(shared[0][0]):
                labels = (Label(shared[0][1].span, str(written(shared[0][1]).type)),) if shared[0][1].span else ()
                message = f"what belongs to keys of `{node.name.text}` has {shared[0][0]} heads here and {one} there"
                fail("E404", message, value.span, str(written(value).type), *labels)
        for one, value in shared[:1]:
            ratio = heads.over(one)
            if ratio is None or not ratio.is_whole:
                self.expressions.divisions.append(Divides(heads, one, value.span or node.span))
        for at, each in enumerate(data):
            if laid[at] is None:
                laid[at] = self._learned(node, each, bound)
        width = bound.get(Size.VALUE_WIDTH) or bound.get(Size.WIDTH)
        rows = bound.get(Size.QUERIES)
        if width is None or rows is None:
            fail("E404", f"the width of what `{core.name}` gives is not known", node.span)
        made = Type((heads, rows.dim, width.dim), batched=True)
        arguments = tuple(each for each in laid if each is not None)
        keys = next(
            value.type.axes[-2] if each.is_vector else value.type.axes[-1]
            for each, value in zip(data, arguments, strict=True)
            if each.is_column
        )
        result = Node(Op.ATTEND, arguments, made, name=core.name, dims=(keys,), options=options, span=node.span)
        return drop(result, -3) if rows_lack else result

    def _lacks_heads(self, datum: Data, value: Node) -> bool:
        return Size.HEADS in datum.axes and len(value.type.axes) == len(datum.axes) - 2

    def _match(
        self, node: tree.Attend, datum: Data, value: Node, bound: dict[Size, _Bound], shared: list[tuple[Dim, Node]]
    ) -> None:
        """An argument's axes against those that the core declares."""
        wanted = Kind.INT if datum.whole else Kind.BOOL if datum.truth else Kind.REAL
        axes = [each for each in datum.axes if each is not Size.BATCH]
        declared = f"`{node.name.text}` declares `{datum.name}[{datum.shape}]`"
        if value.type.is_number or value.type.kind is not wanted:
            text = f"found {value.type.kind.value if not value.type.is_number else 'a number'}"
            fail("E404", f"{describe(value)} is no `{datum.name}` of `{node.name.text}`", value.span, text,
                 notes=(f"{declared}: {wanted.value}",))  # fmt: skip
        if (Size.BATCH in datum.axes) != value.type.batched or len(axes) != len(value.type.axes):
            message = f"{describe(value)} has other axes than `{datum.name}` of `{node.name.text}`"
            shared_table = value.type.batched and Size.BATCH not in datum.axes and len(axes) == len(value.type.axes)
            with_batch = f"in the attention, begin them with B: `{datum.name}[B, {datum.shape}]`"
            helps = (with_batch,) if shared_table and not datum.is_real else ()
            fail("E404", message, value.span, str(value.type), notes=(declared,), helps=helps)
        for axis, dim in zip(axes, value.type.axes, strict=True):
            if axis is Size.HEADS and datum.is_column:
                shared.append((dim, value))
                continue
            expected = self._length(axis, bound)
            if expected is None and isinstance(axis, Size):
                bound[axis] = _Bound(dim, value)
            elif expected is not None and self._known(expected) != self._known(dim):
                other = bound.get(axis) if isinstance(axis, Size) else None
                labels = (Label(other.node.span, str(written(other.node).type)),) if other and other.node.span else ()
                message = f"the axis {axis_text(axis)} of `{datum.name}` is {dim}, not {expected}"
                fail("E404", message, value.span, str(written(value).type), *labels, notes=(declared,))

    def _known(self, dim: Dim) -> Dim:
        """A length with numbers for the parameters that are known when the file is built."""
        known = {name: self.sizes[name] for name in dim.symbols & self.fixed.keys() & self.sizes.keys()}
        return dim.given(known) if known else dim  # type: ignore[arg-type]  # real parameters are lengths of nothing

    def _length(self, axis: Axis, bound: Mapping[Size, _Bound]) -> Dim | None:
        match axis:
            case Size():
                return bound[axis].dim if axis in bound else None
            case Blocks(size=size, width=width):
                return blocks(bound[size].dim, constant(width)) if size in bound else None
            case Free():
                return None
        return constant(axis)

    def _learned(self, node: tree.Attend, datum: Data, bound: Mapping[Size, _Bound]) -> Node:
        """What a core learns becomes a parameter of the layer under its own name."""
        name = self.part + datum.name
        if name in self.taken:
            help_ = f"declare a `param` of your own, and pass it: `attend {node.name.text}(…, {datum.name} = …)`"
            message = f"`{node.name.text}` learns `{datum.name}`, and the layer has that name already"
            fail("E203", message, node.span, "", helps=(help_,))
        self.taken.add(name)
        axes = []
        for axis in datum.axes:
            found = self._length(axis, bound)
            if found is None:
                fail("E404", f"the axis {axis_text(axis)} of `{datum.name}` is not known here", node.span)
            axes.append(found)
        draw, numbers = (
            (Draw.NORMAL, (_FIRST_DEVIATION,)) if datum.initial is None else (Draw.CONSTANT, (datum.initial,))
        )
        type_ = Type(tuple(axes))
        self.learned.append(Learned(name, type_, draw, numbers, span=node.span))
        return Node(Op.NAME, (), type_, name=name, span=node.span)


def _passed(datum: Data) -> tuple[str, ...]:
    """How a layer passes what an attention by itself makes where its caller leaves it out."""
    if datum.maker is None:
        return ()
    declared = f"`input {datum.name}[{datum.shape}]`, with the layer's own names for its axes"
    if datum.maker.make is Make.NORMAL:
        declared = f"`param {datum.name}[{datum.shape}] = fixed(normal(1))` in the layer, or {declared}"
    return (f"declare {declared}, and pass it",)


def node_of(node: tree.Attend) -> Node:
    """A stand-in for a call that decides nothing."""
    return Node(Op.CONST, (), NUMBER, span=node.span)
