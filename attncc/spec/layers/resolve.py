"""Syntax tree → checked layer: parameters, inputs, learned tensors, values with shapes, the cores that are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from keyword import iskeyword
from typing import TypeVar

from attncc.diagnostics import Diagnostic, Label, Source, Span
from attncc.spec.data import OF_MODULES
from attncc.spec.layers.algebra import length
from attncc.spec.layers.cores import Cores
from attncc.spec.layers.dims import RUN_TIME, Dim, symbol
from attncc.spec.layers.expressions import Expressions, Reported
from attncc.spec.layers.findings import Fault, fail
from attncc.spec.layers.initial import beginning
from attncc.spec.layers.model import (
    NUMBER,
    Divides,
    Input,
    Kind,
    Layer,
    LayerParameter,
    Learned,
    Node,
    Op,
    Type,
    walk,
)
from attncc.spec.layers.numbers import value_of
from attncc.spec.resolve import all_findings, check_module_name, resolve_attention, summary_of
from attncc.spec.used import with_used
from attncc.spec.words import LONGEST_NAME, nearest, twice, unknown_type, words_of
from attncc.syntax import tree
from attncc.syntax.parse import parse

# What emitted modules call other things.
_TAKEN = frozenset(
    "self lengths m_lengths form cache start torch functional math nn Tensor super int float None True False range "
    "n m pi features dataclasses functools bisect triton tl".split()
)
_OUT = "out"
_T = TypeVar("_T")


def has_layer(file: tree.File) -> bool:
    """Whether a file defines a layer, so that it is what the file is built to."""
    return any(isinstance(each, tree.Layer) for each in file.definitions)


def load_layer(source: Source, overrides: Mapping[str, str] | None = None) -> Layer:
    """Parse and resolve a source with a layer.

    Raises:
        AttnError: with every independent finding.
    """
    return resolve_layer(parse(source), overrides or {})


def resolve_layer(file: tree.File, overrides: Mapping[str, str]) -> Layer:
    """The one layer of a parsed file, checked.

    Raises:
        AttnError: with every independent finding (E2xx, E4xx).
    """
    definitions, missing = with_used(file, attentions=True)
    if missing:
        raise all_findings(file.source, missing)
    words, errors = words_of(definitions)
    layers = [each for each in definitions if isinstance(each, tree.Layer)]
    if len(layers) != 1:
        labels = tuple(
            Label(each.name.span, "another one" if at else "the second one") for at, each in enumerate(layers[1:])
        )
        first = Label(layers[0].name.span, "the first one")
        found = Diagnostic(
            "E215", "the file defines more than one layer", (*labels, first), (), ("give each its own file",)
        )
        raise all_findings(file.source, (*errors, found))
    attentions: dict[str, tree.Attention] = {}
    for each in definitions:
        if isinstance(each, tree.Attention):
            if each.name.text in attentions:
                places = (
                    Label(each.name.span, "defined again here"),
                    Label(attentions[each.name.text].name.span, "first defined here"),
                )
                errors = (*errors, Diagnostic("E203", f"the attention `{each.name.text}` is defined twice", places))
            attentions.setdefault(each.name.text, each)
    cores = Cores(attentions, lambda attention, given: resolve_attention(attention, words, given))
    resolver = _LayerResolver(file.source, layers[0], cores, list(errors))
    resolver.expressions = cores.expressions = Expressions(words, cores.attend, resolver.sequences)
    layer = resolver.run(overrides)
    if resolver.errors or layer is None:
        raise all_findings(file.source, resolver.errors)
    return layer


class _LayerResolver:
    """Resolves one layer and collects findings on the way."""

    def __init__(self, source: Source, layer: tree.Layer, cores: Cores, errors: list[Diagnostic]) -> None:
        self.source = source
        self.layer = layer
        self.cores = cores
        self.errors = errors
        self.scope: dict[str, Node | None] = {}
        self.first: dict[str, Span] = {}
        self.sequences = frozenset(self._sequences())
        self.expressions: Expressions

    def _sequences(self) -> list[str]:
        """Run-time lengths that axes of inputs are."""
        return [
            axis.name
            for statement in self.layer.statements
            if isinstance(statement, tree.Declaration) and statement.kind == "input"
            for datum in statement.data
            for axis in datum.axes or ()
            if isinstance(axis, tree.Reference) and axis.name in RUN_TIME
        ]

    def run(self, overrides: Mapping[str, str]) -> Layer | None:
        self.errors += check_module_name(self.layer.name, "a layer")
        parameters = self._parameters(overrides)
        inputs: list[Input] = []
        learned: list[Learned] = []
        values: list[tuple[str, Node]] = []
        conditions: list[Node] = []
        initials: dict[str, tree.Tree] = {}
        for statement in self.layer.statements:
            match statement:
                case tree.Declaration(kind="input", data=data):
                    for datum in data:
                        inputs += self._try(partial(self._input, datum))
                case tree.Declaration(data=data):
                    for datum in data:
                        learned += self._try(partial(self._learned, datum))
                        if datum.initial is not None:
                            initials[datum.name.text] = datum.initial
                case tree.Require(conditions=demands):
                    for demand in demands:
                        conditions += self._try(partial(self.expressions.condition, demand, self.scope))
                case tree.Field(name=name) if name.text not in ("pattern", "similarity"):
                    values += self._value(statement, values)
                case _:
                    label = Label(statement.span, "expected `input`, `param`, `require` or `name = …`")
                    help_ = "fields, `let` and branches belong into an attention; a layer calls it by `attend`"
                    self.errors.append(Diagnostic("E403", "a layer has no such statement", (label,), (), (help_,)))
        self._check_end(values)
        if self.errors:
            return None
        learned = beginning([*learned, *self.cores.learned], values, initials, self.errors)
        fixed = self._fixed(parameters)
        layer = Layer(
            name=self.layer.name.text,
            summary=summary_of(self.source, self.layer.span),
            source=self.source,
            span=self.layer.span,
            parameters=tuple(replace(each, fixed=each.name in fixed) for each in parameters),
            conditions=tuple(conditions),
            divisions=_each_once(self.expressions.divisions),
            inputs=tuple(inputs),
            learned=tuple(learned),
            values=tuple(values),
            cores=tuple(self.cores.cores),
            given=tuple(name for name in overrides),
        )
        self._check_conditions(layer)
        return layer

    def _try(self, what: Callable[[], _T]) -> list[_T]:
        """What was resolved, if it could be."""
        try:
            return [what()]
        except Fault as fault:
            self.errors += fault.diagnostics
        except Reported:
            pass
        return []

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
            self._take(name)
            made = self._try(partial(self._parameter, each, overrides.get(each.name.text)))
            found += made
            self.scope[name.text] = self._of_parameter(made[0], name.span) if made else None
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
            default = self.expressions.value(parameter.default, self.scope)
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
                dim := self.expressions.dim(parameter.default, self.scope)
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

    # --- statements -------------------------------------------------------------------------------------------

    def _take(self, name: tree.Identifier, *, of_module: bool = True) -> None:
        """Refuse a name that is taken."""
        reason = None
        if iskeyword(name.text) or name.text in _TAKEN:
            reason = "it has a meaning of its own in a layer or in the emitted module"
        elif of_module and name.text in OF_MODULES - {"heads", "scale"}:
            reason = "modules of torch call something else so"
        elif name.text.startswith("_") or len(name.text) > LONGEST_NAME:
            reason = f"names begin with a letter and have at most {LONGEST_NAME} characters"
        if reason is not None:
            label = Label(name.span, "expected another name")
            fault = Diagnostic(
                "E217", f"nothing in a layer can be named `{name.text}`", (label,), (reason,), ("choose another name",)
            )
            self.errors.append(fault)
        if name.text in self.first:
            labels = (Label(name.span, "defined again here"), Label(self.first[name.text], "first defined here"))
            help_ = "each value has one name: choose another"
            self.errors.append(Diagnostic("E203", f"`{name.text}` is defined twice", labels, (), (help_,)))
        self.first.setdefault(name.text, name.span)
        self.cores.taken.add(name.text)

    def _axes(self, datum: tree.Datum, sequences: bool) -> tuple[Dim, ...]:
        found = []
        for axis in datum.axes or ():
            dim = self.expressions.dim(axis, self.scope)
            if dim is None:
                known = (*(name for name in self.scope), *(RUN_TIME if sequences else ()))
                name = axis.name if isinstance(axis, tree.Reference) else ""
                if name in self.scope and self.scope[name] is None:
                    raise Reported
                message = "an axis is a whole number made of parameters"
                helps = nearest(name, known) if name else ()
                fail("E402", message, axis.span, "this is no length", helps=helps)
            if not sequences and dim.symbols & set(RUN_TIME):
                help_ = f"declare as many as there can be, and take `first({datum.name.text}, n)` of them"
                fail(
                    "E402",
                    f"`{datum.name.text}` is learned, and `{dim}` changes from call to call",
                    axis.span,
                    helps=(help_,),
                )
            if not dim.is_whole:
                self._divides(dim, axis)
            found.append(dim)
        return tuple(found)

    def _divides(self, dim: Dim, axis: tree.Tree) -> None:
        if isinstance(axis, tree.Binary) and axis.operator == "/":
            fail("E402", "an axis is a whole number", axis.span, "`/` may leave a rest", helps=("write `//`",))

    def _input(self, datum: tree.Datum) -> Input:
        self.scope[datum.name.text] = None
        self._take(datum.name)
        if datum.axes is None:
            fail(
                "E402",
                f"`{datum.name.text}` has no axes",
                datum.span,
                helps=(f"write `input {datum.name.text}[n, dim]`",),
            )
        if datum.initial is not None:
            fail("E403", "what the caller passes has no first value", datum.initial.span)
        kinds = {None: Kind.REAL, "real": Kind.REAL, "int": Kind.INT, "bool": Kind.BOOL}
        written = datum.type.text if datum.type is not None else None
        if written not in kinds:
            assert datum.type is not None
            fail(
                "E209",
                f"there is no type `{written}` for an input",
                datum.type.span,
                "expected `real`, `int` or `bool`",
            )
        type_ = Type(self._axes(datum, sequences=True), batched=True, kind=kinds[written])
        self.scope[datum.name.text] = Node(Op.NAME, (), type_, name=datum.name.text, span=datum.name.span)
        return Input(datum.name.text, type_, datum.span)

    def _learned(self, datum: tree.Datum) -> Learned:
        self.scope[datum.name.text] = None
        self._take(datum.name)
        if datum.type is not None:
            fail("E403", "what is learned are real numbers", datum.type.span)
        type_ = Type(self._axes(datum, sequences=False))
        self.scope[datum.name.text] = Node(Op.NAME, (), type_, name=datum.name.text, span=datum.name.span)
        return Learned(datum.name.text, type_, None, span=datum.span)

    def _value(self, statement: tree.Field, before: list[tuple[str, Node]]) -> list[tuple[str, Node]]:
        name = statement.name
        if any(each == _OUT for each, _ in before):
            label = Label(name.span, "nothing comes after `out`")
            self.errors.append(Diagnostic("E403", "`out` is the last value of a layer", (label,)))
        self._take(name, of_module=False)
        self.scope[name.text] = None
        made = self._try(partial(self.expressions.value, statement.value, self.scope))
        if not made:
            return []
        node = made[0]
        named = Node(Op.NAME, (), node.type, name=name.text, span=name.span)
        if node.type.is_number and (dim := self.expressions.dim(statement.value, self.scope)) is not None:
            named = length(dim, name.span)
        self.scope[name.text] = named
        return [(name.text, node)]

    def _check_end(self, values: list[tuple[str, Node]]) -> None:
        if self.errors:
            return
        end = Label(self.layer.name.span, "expected `out = …` at its end")
        if not values or values[-1][0] != _OUT:
            self.errors.append(Diagnostic("E403", f"the layer `{self.layer.name.text}` has no `out`", (end,)))
        elif values[-1][1].type.is_number or not values[-1][1].type.batched:
            span = values[-1][1].span or self.layer.span
            text = str(values[-1][1].type)
            self.errors.append(Diagnostic("E403", "`out` depends on no input", (Label(span, text),)))


def _each_once(divisions: list[Divides]) -> tuple[Divides, ...]:
    """Those with different quotients: `dim % h == 0` says that `dim // h * kv` is a multiple of kv, too."""
    found: dict[Dim | None, Divides] = {}
    for each in divisions:
        found.setdefault(each.whole.over(each.by), each)
    return tuple(found.values())


def _override_span(name: str, value: str) -> Span:
    text = f"{name}={value}"
    return Span(Source("-D", text), 1, 1, 1, len(text) + 1)
