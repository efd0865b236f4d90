"""Syntax tree → checked layer: parameters, inputs, learned tensors, values with shapes, the cores that are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TypeVar

from attncc.diagnostics import Diagnostic, Label, Source, Span
from attncc.spec.layers.algebra import length
from attncc.spec.layers.body import Body, Frame, defined
from attncc.spec.layers.cores import Cores
from attncc.spec.layers.dims import RUN_TIME, Dim, symbol
from attncc.spec.layers.expressions import Expressions
from attncc.spec.layers.findings import Fault, fail
from attncc.spec.layers.initial import beginning
from attncc.spec.layers.model import NUMBER, Divides, Layer, LayerParameter, Node, Op, walk
from attncc.spec.layers.numbers import value_of
from attncc.spec.resolve import all_findings, check_module_name, resolve_attention, summary_of
from attncc.spec.used import with_used
from attncc.spec.words import nearest, twice, unknown_type, words_of
from attncc.syntax import tree
from attncc.syntax.parse import parse

_D = TypeVar("_D", tree.Attention, tree.Layer)


def load_layer(source: Source, overrides: Mapping[str, str] | None = None) -> Layer:
    """Parse and resolve a source with a layer.

    Raises:
        AttnError: with every independent finding.
    """
    return resolve_layer(parse(source), overrides or {})


def resolve_layer(file: tree.File, overrides: Mapping[str, str]) -> Layer:
    """The layer of a parsed file that no other one calls, checked.

    Raises:
        AttnError: with every independent finding (E2xx, E4xx).
    """
    definitions, missing = with_used(file, attentions=True)
    if missing:
        raise all_findings(file.source, missing)
    words, found = words_of(definitions)
    errors = list(found)
    attentions = _by_name([each for each in definitions if isinstance(each, tree.Attention)], "attention", errors)
    layers = _by_name([each for each in definitions if isinstance(each, tree.Layer)], "layer", errors)
    built = _built(file, layers, errors)
    if built is None:
        raise all_findings(file.source, errors)
    cores = Cores(attentions, lambda attention, given: resolve_attention(attention, words, given))
    body = Body(cores, layers, errors)
    calls = dict.fromkeys(layers, body.call)
    sequences = frozenset(_sequences(built))
    body.expressions = cores.expressions = Expressions(words, cores.attend, calls, sequences)
    body.expressions.bind = body.argument
    layer = _LayerResolver(file.source, built, body).run(overrides)
    if errors or layer is None:
        raise all_findings(file.source, errors)
    return layer


def _by_name(definitions: Sequence[_D], what: str, errors: list[Diagnostic]) -> dict[str, _D]:
    """Definitions of one kind; a name that stands twice is an error."""
    found: dict[str, _D] = {}
    for each in definitions:
        first = found.setdefault(each.name.text, each)
        if first is not each:
            labels = (Label(each.name.span, "defined again here"), Label(first.name.span, "first defined here"))
            errors.append(Diagnostic("E203", f"the {what} `{each.name.text}` is defined twice", labels))
    return found


def _built(file: tree.File, layers: Mapping[str, tree.Layer], errors: list[Diagnostic]) -> tree.Layer | None:
    """The layer that the file is built to."""
    own = [each for each in file.definitions if isinstance(each, tree.Layer)]
    called = {name for each in layers.values() for name in _called(each, layers.keys() - {each.name.text})}
    roots = [each for each in own if each.name.text not in called] or own[-1:]
    if len(roots) == 1:
        return roots[0]
    labels = [Label(each.name.span, "another one" if at else "the second one") for at, each in enumerate(roots[1:])]
    message = "the file defines more than one layer that no other one calls"
    helps = ("give each its own file",)
    errors.append(Diagnostic("E215", message, (*labels, Label(roots[0].name.span, "the first one")), (), helps))
    return None


def _called(node: tree.Node, names: Set[str]) -> Iterator[str]:
    """The layers that stand in calls anywhere in a node."""
    if isinstance(node, tree.Call) and node.name.text in names:
        yield node.name.text
    for name in node.__dataclass_fields__:
        value = getattr(node, name) if name != "span" else None
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, tree.Node):
                yield from _called(each, names)


def _sequences(layer: tree.Layer) -> list[str]:
    """Run-time lengths that axes of inputs are."""
    return [
        axis.name
        for statement in layer.statements
        if isinstance(statement, tree.Declaration) and statement.kind == "input"
        for datum in statement.data
        for axis in datum.axes or ()
        if isinstance(axis, tree.Reference) and axis.name in RUN_TIME
    ]


class _LayerResolver:
    """Resolves the layer that is built, and collects findings on the way."""

    def __init__(self, source: Source, layer: tree.Layer, body: Body) -> None:
        self.source = source
        self.layer = layer
        self.body = body
        self.cores = body.cores
        self.errors = body.errors
        self.expressions = body.expressions
        self.frame = Frame()

    def run(self, overrides: Mapping[str, str]) -> Layer | None:
        self.errors += check_module_name(self.layer.name, "a layer")
        body = self.body
        body.own = frozenset(defined(self.layer))
        parameters = self._parameters(overrides)
        body.read(self.layer.statements, self.frame)
        if not self.errors:
            body.check_end(self.layer, self.frame)
        if self.errors:
            return None
        learned = beginning([*body.learned, *self.cores.learned], body.values, body.initials, self.errors)
        fixed = self._fixed(parameters)
        sources = (*body.sources, *(each.spec.source for each in self.cores.cores))
        layer = Layer(
            name=self.layer.name.text,
            summary=summary_of(self.source, self.layer.span),
            source=self.source,
            span=self.layer.span,
            parameters=tuple(replace(each, fixed=each.name in fixed) for each in parameters),
            conditions=tuple(dict.fromkeys((*body.conditions, *self.expressions.conditions))),
            divisions=_each_once(self.expressions.divisions),
            inputs=tuple(body.inputs),
            learned=tuple(learned),
            values=tuple(body.values),
            cores=tuple(self.cores.cores),
            given=tuple(name for name in overrides),
            sources=tuple(dict.fromkeys(each for each in sources if each != self.source)),
        )
        self._check_conditions(layer)
        self._check_sizes(layer)
        return layer

    def _check_sizes(self, layer: Layer) -> None:
        """A length has one entry or more, where its value is known."""
        types = [*(each.type for each in layer.inputs), *(each.type for each in layer.learned)]
        axes = {name for type_ in types for dim in type_.axes for name in dim.symbols}
        for each in layer.parameters:
            if each.name in axes and each.value is not None and each.value < 1:
                label = (Label(each.span, f"this is {each.value}"),) if each.span is not None else ()
                message = f"`{each.name}` is the length of an axis, which has one entry or more"
                self.errors.append(Diagnostic("E402", message, label))

    # --- parameters -------------------------------------------------------------------------------------------

    def _parameters(self, overrides: Mapping[str, str]) -> list[LayerParameter]:
        found: list[LayerParameter] = []
        known: dict[str, tree.Parameter] = {}
        for each in self.layer.parameters:
            name = each.name
            if name.text in known:
                self.errors.append(twice(name, known[name.text].name))
                continue
            known[name.text] = each
            self.body.take(name, self.frame)
            self.body.parameters.add(name.text)
            made = self.body.attempt(partial(self._parameter, each, overrides.get(each.name.text)))
            found += made
            self.frame.scope[name.text] = self._of_parameter(made[0], name.span) if made else None
            if made and made[0].value is not None:
                self.cores.sizes[name.text] = made[0].value
        for override in sorted(overrides.keys() - known.keys()):
            span = _override_span(override, overrides[override])
            message = f"`{self.layer.name.text}` has no parameter `{override}`"
            self.errors.append(
                Diagnostic("E209", message, (Label(span, "no such parameter"),), (), nearest(override, known))
            )
        return found

    def _parameter(self, parameter: tree.Parameter, override: str | None) -> LayerParameter:
        name = parameter.name.text
        if parameter.type is not None and parameter.type.text not in ("int", "real"):
            raise Fault(unknown_type(parameter.type))
        default: Node | None = None
        span = parameter.span
        if override is not None:
            span = _override_span(name, override)
            try:
                given = int(override) if override.lstrip("+-").isdigit() else float(override)
            except ValueError:
                fail("E209", f"the value given for `{name}` is no number", span, "expected a number such as 8 or 0.5")
            default = Node(Op.CONST, (), NUMBER, numbers=(given,), span=span)
        elif parameter.default is not None:
            default = self.expressions.value(parameter.default, self.frame.scope)
            if not default.type.is_number:
                fail("E209", f"the parameter `{name}` is a number", parameter.default.span, str(default.type))
        value = None if default is None else value_of(default, self.cores.sizes)
        declared_real = parameter.type is not None and parameter.type.text == "real"
        written_real = (
            parameter.type is None
            and isinstance(parameter.default, tree.Number)
            and isinstance(parameter.default.value, float)
        )
        is_whole = not (declared_real or written_real)
        if is_whole and value is not None and (isinstance(value, bool) or value != int(value)):
            fail(
                "E209", f"the parameter `{name}` is a whole number, but {value} is not", span, "expected a whole number"
            )
        if isinstance(value, bool):
            fail("E209", f"the parameter `{name}` is a number", span)
        if (
            default is not None
            and default.op is not Op.CONST
            and (
                dim := self.expressions.dim(parameter.default, self.frame.scope)
                if parameter.default and override is None
                else None
            )
        ):
            default = length(dim, default.span)
        return LayerParameter(
            name, is_whole, default, int(value) if is_whole and value is not None else value, span=span
        )

    def _of_parameter(self, parameter: LayerParameter, span: Span) -> Node:
        if parameter.is_whole:
            return length(symbol(parameter.name), span)
        return Node(Op.NAME, (), NUMBER, name=parameter.name, span=span)

    def _fixed(self, parameters: Sequence[LayerParameter]) -> set[str]:
        """The parameters that cores are built with, and those that their defaults are made of."""
        fixed = set(self.cores.fixed)
        for each in reversed(parameters):
            if each.name in fixed and each.default is not None:
                for node in walk(each.default):
                    fixed |= {s for dim in node.dims for s in dim.symbols} | (
                        {node.name} if node.op is Op.NAME else set()
                    )
        return fixed

    def _check_conditions(self, layer: Layer) -> None:
        """What is known not to hold already."""
        sizes = {each.name: each.value for each in layer.parameters if each.value is not None}
        for each in layer.conditions:
            if value_of(each, sizes) is False:
                read = sorted({s for node in walk(each) for dim in node.dims for s in dim.symbols} & sizes.keys())
                spans = {one.name: one.span for one in layer.parameters}
                labels = tuple(Label(spans[name], f"{name} is {sizes[name]}") for name in read if spans[name])  # type: ignore[arg-type]
                helps = tuple(f"pass another value: `-D {name}=…`" for name in read[:1])
                place = Label(each.span or layer.span, "expected this to hold")
                self.errors.append(Diagnostic("E210", "a requirement does not hold", (place, *labels), (), helps))


def _each_once(divisions: list[Divides]) -> tuple[Divides, ...]:
    """Those with different quotients: `dim % h == 0` says that `dim // h * kv` is a multiple of kv, too."""
    found: dict[Dim | None, Divides] = {}
    for each in divisions:
        found.setdefault(each.whole.over(each.by), each)
    return tuple(found.values())


def _override_span(name: str, value: str) -> Span:
    text = f"{name}={value}"
    return Span(Source("-D", text), 1, 1, 1, len(text) + 1)
