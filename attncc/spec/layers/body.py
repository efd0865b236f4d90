"""The statements of a layer → values, learned tensors and conditions; layers that it calls are written out in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from keyword import iskeyword
from typing import TypeVar

from attncc.diagnostics import Diagnostic, Label, Source, Span
from attncc.spec.data import OF_MODULES
from attncc.spec.layers.algebra import length, written
from attncc.spec.layers.cores import Cores
from attncc.spec.layers.dims import RUN_TIME, Dim
from attncc.spec.layers.expressions import Expressions, Reported, Scope
from attncc.spec.layers.findings import Fault, fail
from attncc.spec.layers.model import Input, Kind, Learned, Node, Op, Type
from attncc.spec.words import LONGEST_NAME, nearest
from attncc.syntax import tree

# What emitted modules call other things.
_TAKEN = frozenset(
    "self lengths m_lengths form cache start torch functional math nn Tensor super int float None True False range "
    "n m pi features dataclasses functools bisect triton tl".split()
)
OUT = "out"
_DEEPEST = 8  # layers in layers
_T = TypeVar("_T")


@dataclass(slots=True)
class Frame:
    """One layer being read: its names, and for a layer that another one calls what it is called with."""

    scope: dict[str, Node | None] = field(default_factory=dict)
    first: dict[str, Span] = field(default_factory=dict)
    prefix: str = ""  # of the names of its values
    part: str = ""  # of the module's parts the one that holds what it learns, and a point: `block.feed_forward.`
    arguments: list[Node] | None = None
    unbound: set[str] = field(default_factory=set)  # parameters that axes of its inputs tell
    later: dict[str, tree.Tree] = field(default_factory=dict)  # defaults that are made of such
    call: Span | None = None


class Body:
    """Collects what the statements of a layer define."""

    def __init__(self, cores: Cores, layers: Mapping[str, tree.Layer], errors: list[Diagnostic]) -> None:
        self.cores = cores
        self.layers = layers
        self.errors = errors
        self.inputs: list[Input] = []
        self.learned: list[Learned] = []
        self.values: list[tuple[str, Node]] = []
        self.conditions: list[Node] = []
        self.initials: dict[str, tree.Tree] = {}
        self.parameters: set[str] = set()  # of the layer that is built
        self.expressions: Expressions
        self.sources: list[Source] = []  # of layers that are called
        self.own: frozenset[str] = frozenset()  # what the statements of the layer that is built define
        self._open: list[tree.Layer] = []
        self._parts: dict[str, int] = {}  # how often a part's name was asked for

    def define(self, name: str, frame: Frame, what: Callable[[], Node]) -> None:
        """Make a name known; after a mistake in what it stands for, what reads it is not reported again.

        What it stands for is made of names above: its own means nothing there yet.
        """
        found = self.attempt(what)
        if found:
            frame.scope[name] = found[0]
        else:
            frame.scope.setdefault(name, None)

    def attempt(self, what: Callable[[], _T]) -> list[_T]:
        """What was resolved, if it could be; else what is wrong is kept."""
        try:
            return [what()]
        except Fault as fault:
            self.errors += fault.diagnostics
        except Reported:
            pass
        return []

    def read(self, statements: tuple[tree.Statement, ...], frame: Frame) -> None:
        """Every statement of a layer."""
        for statement in statements:
            match statement:
                case tree.Declaration(kind="input", data=data):
                    for datum in data:
                        if frame.arguments is not None:  # what does not fit is a mistake of the call, and ends it
                            frame.scope[datum.name.text] = self._input(datum, frame)
                        else:
                            self.define(datum.name.text, frame, partial(self._input, datum, frame))
                    continue
            if frame.unbound or frame.later:
                self._settle(frame)
            match statement:
                case tree.Declaration(data=data):
                    for datum in data:
                        self.define(datum.name.text, frame, partial(self._learned, datum, frame))
                case tree.Require(conditions=demands):
                    for demand in demands:
                        found = self.attempt(partial(self.expressions.condition, demand, frame.scope))
                        self.conditions += found
                case tree.Field(name=name) if name.text not in ("pattern", "similarity"):
                    self.define(name.text, frame, partial(self._value, statement, frame))
                case _:
                    label = Label(statement.span, "expected `input`, `param`, `require` or `name = …`")
                    help_ = "fields, `let` and branches belong into an attention; a layer calls it by `attend`"
                    self.errors.append(Diagnostic("E403", "a layer has no such statement", (label,), (), (help_,)))

    def check_end(self, layer: tree.Layer, frame: Frame) -> None:
        """The last value is `out`, and depends on what the layer is called with."""
        names = [each.name for each in layer.statements if isinstance(each, tree.Field)]
        if not names or names[-1].text != OUT:
            end = Label(layer.name.span, "expected `out = …` at its end")
            self.errors.append(Diagnostic("E403", f"the layer `{layer.name.text}` has no `out`", (end,)))
            return
        out = frame.scope.get(OUT)
        if out is not None and (out.type.is_number or not out.type.batched):
            label = Label(names[-1].span, str(out.type))
            self.errors.append(Diagnostic("E403", "`out` depends on no input", (label,)))

    # --- names ------------------------------------------------------------------------------------------------

    def take(self, name: tree.Identifier, frame: Frame, *, of_module: bool = True) -> None:
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
            message = f"nothing in a layer can be named `{name.text}`"
            self.errors.append(Diagnostic("E217", message, (label,), (reason,), ("choose another name",)))
        if name.text in frame.first:
            labels = (Label(name.span, "defined again here"), Label(frame.first[name.text], "first defined here"))
            help_ = "each value has one name: choose another"
            self.errors.append(Diagnostic("E203", f"`{name.text}` is defined twice", labels, (), (help_,)))
        frame.first.setdefault(name.text, name.span)
        self.cores.taken.add(frame.part + name.text)

    # --- statements -------------------------------------------------------------------------------------------

    def _axes(self, datum: tree.Datum, frame: Frame, sequences: bool) -> tuple[Dim, ...]:
        found = []
        for axis in datum.axes or ():
            dim = self.expressions.dim(axis, frame.scope)
            if dim is None:
                known = (*frame.scope, *(RUN_TIME if sequences else ()))
                name = axis.name if isinstance(axis, tree.Reference) else ""
                if name in frame.scope and frame.scope[name] is None:
                    raise Reported
                message = "an axis is a whole number made of parameters"
                helps = nearest(name, known) if name else ()
                fail("E402", message, axis.span, "this is no length", helps=helps)
            if not sequences and dim.symbols & set(RUN_TIME):
                help_ = f"declare as many as there can be, and take `first({datum.name.text}, n)` of them"
                message = f"`{datum.name.text}` is learned, and `{dim}` changes from call to call"
                fail("E402", message, axis.span, helps=(help_,))
            if dim.number is not None and dim.number < 1:
                fail("E402", "an axis has one entry or more", axis.span, f"this is {dim.number}")
            if not dim.is_whole and isinstance(axis, tree.Binary) and axis.operator == "/":
                message = "an axis is a whole number"
                fail("E402", message, axis.span, "`/` may leave a rest", helps=("write `//`",))
            found.append(dim)
        return tuple(found)

    def _input(self, datum: tree.Datum, frame: Frame) -> Node:
        name = datum.name.text
        self.take(datum.name, frame)
        if datum.axes is None:
            fail("E402", f"`{name}` has no axes", datum.span, helps=(f"write `input {name}[n, dim]`",))
        if datum.initial is not None:
            fail("E403", "what the caller passes has no first value", datum.initial.span)
        kinds = {None: Kind.REAL, "real": Kind.REAL, "int": Kind.INT, "bool": Kind.BOOL}
        kind = datum.type.text if datum.type is not None else None
        if kind not in kinds:
            assert datum.type is not None
            fail("E209", f"there is no type `{kind}` for an input", datum.type.span, "expected `real`, `int` or `bool`")
        if frame.arguments is not None:
            return self._argument(datum, kinds[kind], frame)
        type_ = Type(self._axes(datum, frame, sequences=True), batched=True, kind=kinds[kind])
        self.inputs.append(Input(name, type_, datum.span))
        return Node(Op.NAME, (), type_, name=name, span=datum.name.span)

    def _argument(self, datum: tree.Datum, kind: Kind, frame: Frame) -> Node:
        """What a called layer gets for an input; axes that are a name alone tell what it stands for."""
        assert frame.arguments is not None
        name = datum.name.text
        if not frame.arguments:
            fail("E404", f"the layer lacks `{name}`", frame.call, "expected another argument")
        value = frame.arguments.pop(0)
        declared = f"it declares `{name}[{', '.join(map(_axis_text, datum.axes or ()))}]`"
        if value.type.is_number or value.type.kind is not kind or len(value.type.axes) != len(datum.axes or ()):
            fail("E404", f"this is no `{name}` of the layer", value.span, str(value.type), notes=(declared,))
        for axis, dim in zip(datum.axes or (), value.type.axes, strict=True):
            is_free = isinstance(axis, tree.Reference) and (axis.name in frame.unbound or axis.name in RUN_TIME)
            if isinstance(axis, tree.Reference) and is_free and axis.name not in frame.scope:
                frame.scope[axis.name] = length(dim, axis.span)
                frame.unbound.discard(axis.name)
        expected = self._axes(datum, frame, sequences=True)
        if expected != value.type.axes or not value.type.batched:
            text = f"{written(value).type}, expected {Type(expected, batched=True)}"
            fail("E404", f"this is no `{name}` of the layer", value.span, text, notes=(declared,))
        if value.op is Op.NAME:
            return value
        return self.bind(frame.prefix + name, value)

    def _settle(self, frame: Frame) -> None:
        """All inputs are known: what they have not told has no value."""
        for name in sorted(frame.unbound):
            help_ = f"pass it: `{name} = …`"
            message = f"the parameter `{name}` of the layer has no value"
            labels = (Label(frame.call),) if frame.call is not None else ()
            self.errors.append(Diagnostic("E208", message, labels, (), (help_,)))
            frame.scope[name] = None
        frame.unbound.clear()
        for name, default in frame.later.items():
            found = self.attempt(partial(self.expressions.value_or_length, default, frame.scope))
            frame.scope[name] = found[0] if found else None
        frame.later.clear()

    def _learned(self, datum: tree.Datum, frame: Frame) -> Node:
        self.take(datum.name, frame)
        if datum.type is not None:
            fail("E403", "what is learned are real numbers", datum.type.span)
        type_ = Type(self._axes(datum, frame, sequences=False))
        name = frame.part + datum.name.text
        self.learned.append(Learned(name, type_, None, span=datum.span))
        if datum.initial is not None:
            self.initials[name] = datum.initial
        return Node(Op.NAME, (), type_, name=name, span=datum.name.span)

    def _value(self, statement: tree.Field, frame: Frame) -> Node:
        name = statement.name
        if OUT in frame.first:
            label = Label(name.span, "nothing comes after `out`")
            self.errors.append(Diagnostic("E403", "`out` is the last value of a layer", (label,)))
        self.take(name, frame, of_module=False)
        made = self.expressions.value(statement.value, frame.scope)
        flat = frame.prefix + name.text
        named = self.bind(flat, made, is_own=not frame.part)
        if made.type.is_number and (dim := self.expressions.dim(statement.value, frame.scope)) is not None:
            return length(dim, name.span)
        return replace(named, span=name.span)

    # --- layers that are called -------------------------------------------------------------------------------

    def bind(self, name: str, value: Node, *, is_own: bool = False) -> Node:
        """Give a value a name that nothing else has: it is computed once, however often it is read.

        A statement of the layer that is built has its `own` name.
        """
        known = {each for each, _ in self.values} | {each.name for each in self.inputs} | self.parameters | _TAKEN
        known |= {each.name for each in (*self.learned, *self.cores.learned)}
        known |= self.own if not is_own else frozenset()
        found, count = name, 1
        while found in known:
            count += 1
            found = f"{name}_{count}"
        self.values.append((found, value))
        self.expressions.definitions[found] = value
        return Node(Op.NAME, (), value.type, name=found, span=value.span)

    def argument(self, name: str, value: Node) -> Node:
        """What a function word reads more than once."""
        return self.bind(self.cores.prefix + name, value)

    def call(self, node: tree.Call, scope: Scope) -> Node:
        """A layer called by another: its values and what it learns, under names that begin with its own.

        Raises:
            Fault: where it calls itself, or is called with what does not fit.
            Reported: where something inside it is wrong.
        """
        layer = self.layers[node.name.text]
        name = layer.name.text
        if layer in self._open or len(self._open) >= _DEEPEST:
            fail("E213", f"the layer `{name}` calls itself", node.span, helps=("layers stand one behind the other",))
        arguments: list[Node] = []
        named: dict[str, Node] = {}
        for each in node.arguments:
            value = each.value if isinstance(each, tree.NamedArgument) else each
            made = self.expressions.value_or_length(value, scope)
            if isinstance(each, tree.NamedArgument):
                named[each.name.text] = made
            else:
                arguments.append(made)
        part = self._part(name, self._open[-1] if self._open else None)  # calls among the arguments come first
        frame = Frame(prefix=f"{part.replace('.', '_')}_", part=f"{part}.", arguments=arguments, call=node.span)
        self._open.append(layer)
        self.sources.append(layer.span.source)
        outer = self.cores.prefix, self.cores.part
        self.cores.prefix, self.cores.part = frame.prefix, frame.part
        mistakes = len(self.errors)
        try:
            self._bind(layer, named, frame)
            self.read(layer.statements, frame)
            self.check_end(layer, frame)
        finally:
            self._open.pop()
            self.cores.prefix, self.cores.part = outer
        if frame.arguments:
            fail("E404", f"`{name}` takes fewer values", frame.arguments[0].span, "one too many")
        out = frame.scope.get(OUT)
        if len(self.errors) > mistakes or out is None:
            raise Reported
        return out

    def _part(self, name: str, caller: tree.Layer | None) -> str:
        """The part of the module that holds what a call learns: the layer's name, with a number for further calls."""
        outer = self.cores.part
        taken = OF_MODULES | (self.own | self.parameters if caller is None else frozenset(defined(caller)))
        while True:
            self._parts[outer + name] = count = self._parts.get(outer + name, 0) + 1
            found = name if count == 1 else f"{name}_{count}"
            if found not in taken and outer + found not in self.cores.taken:
                self.cores.taken.add(outer + found)
                return outer + found

    def _bind(self, layer: tree.Layer, named: dict[str, Node], frame: Frame) -> None:
        """The parameters of a called layer: as given, by default, or told by its inputs."""
        for parameter in layer.parameters:
            name = parameter.name
            self.take(name, frame)
            if name.text in named:
                frame.scope[name.text] = named.pop(name.text)
                if not frame.scope[name.text].type.is_number:  # type: ignore[union-attr]
                    fail("E209", f"the parameter `{name.text}` is a number", frame.call)
            elif parameter.default is None:
                frame.unbound.add(name.text)
            elif _reads(parameter.default, frame.unbound | frame.later.keys()):
                frame.later[name.text] = parameter.default
            else:
                frame.scope[name.text] = self.expressions.value_or_length(parameter.default, frame.scope)
        for name_, value in named.items():
            known = [each.name.text for each in layer.parameters]
            message = f"the layer `{layer.name.text}` has no parameter `{name_}`"
            fail("E404", message, value.span, helps=nearest(name_, known))


def defined(layer: tree.Layer) -> Iterator[str]:
    """The names that a layer's statements define."""
    for statement in layer.statements:
        match statement:
            case tree.Declaration(data=data):
                yield from (each.name.text for each in data)
            case tree.Field(name=name):
                yield name.text


def _reads(node: tree.Tree, names: set[str]) -> bool:
    """Whether an expression reads one of these names."""
    if isinstance(node, tree.Reference):
        return node.name in names
    parts = (getattr(node, name) for name in node.__dataclass_fields__ if name != "span")
    every = (each for part in parts for each in (part if isinstance(part, tuple) else (part,)))
    return any(isinstance(each, tree.Node) and _reads(each, names) for each in every)  # type: ignore[arg-type]


def _axis_text(node: tree.Tree) -> str:
    match node:
        case tree.Reference(name=name):
            return name
        case tree.Number(value=value):
            return str(value)
        case tree.Binary(operator=sign, left=left, right=right):
            return f"{_axis_text(left)} {sign} {_axis_text(right)}"
    return "…"
