"""`param` and `input` statements → declared data: names, axes and types checked."""

from __future__ import annotations

from collections.abc import Mapping
from keyword import iskeyword

from attncc.diagnostics import Diagnostic, Label, Span
from attncc.spec.axes import AxisResolver
from attncc.spec.data import OF_MODULES, RESERVED, Axis, Blocks, Data, Free, Maker, Role, Size, axis_text
from attncc.spec.expressions import ExpressionResolver
from attncc.spec.makers import MakerResolver
from attncc.spec.scope import Bindings
from attncc.spec.words import nearest, taken
from attncc.syntax import tree

_OF_CALL = (Size.BATCH, Size.QUERIES, Size.KEYS)  # what a module cannot know when it is made
_WIDTHS = (Size.WIDTH, Size.VALUE_WIDTH)
_TYPES = ("real", "int", "bool")
_FACTS = ("ascending",)
_LARGEST_INITIAL = 3.4028234e38
_MOST_ENTRIES = 1 << 28  # of a parameter, in the axes whose lengths are known


class Declarations:
    """Checks the declarations of one attention."""

    def __init__(self, expressions: ExpressionResolver, errors: list[Diagnostic]) -> None:
        self.expressions = expressions
        self.axes = AxisResolver(expressions, errors)
        self.errors = errors

    def of(self, statements: tuple[tree.Statement, ...], bindings: Bindings, names: Mapping[str, Span]) -> list[Data]:
        """The data that statements declare.

        Args:
            bindings: the parameters, for the lengths of axes.
            names: what is defined already, and where.
        """
        seen = dict(names)
        found: list[Data] = []
        for statement in statements:
            if not isinstance(statement, tree.Declaration):
                continue
            for datum in statement.data:
                name = datum.name
                role = Role(statement.kind)
                if not self._is_free(name, role, seen):
                    continue
                seen[name.text] = name.span
                made = self._datum(role, datum, bindings)
                if made is not None:
                    found.append(made)
        self._check_last(found)
        return found

    def _check_last(self, found: list[Data]) -> None:
        """What a caller may leave out comes last among the arguments."""
        made = next((each for each in found if each.maker is not None), None)
        if made is None or made.span is None:
            return
        behind = found[found.index(made) + 1 :]
        other = next((each for each in behind if each.maker is None), None)
        if other is not None and other.span is not None:
            labels = Label(other.span, "the caller has to pass this"), Label(made.span, "and may leave this out")
            helps = (f"declare `{made.name}` last",)
            self._error("E218", "an input that may be left out stands before one that may not", *labels, helps=helps)

    def _is_free(self, name: tree.Identifier, role: Role, seen: Mapping[str, Span]) -> bool:
        before = len(self.errors)
        self.errors += taken(name)
        if name.text in seen:
            labels = (Label(name.span, "declared again here"), Label(seen[name.text], "first declared here"))
            self._error("E203", f"`{name.text}` is declared twice", *labels)
        elif (reason := _why_not(name.text, role)) is not None:
            label = Label(name.span, "expected another name")
            self._error("E217", f"declared data cannot be named `{name.text}`", label, notes=(reason,))
        return len(self.errors) == before

    def _datum(self, role: Role, datum: tree.Datum, bindings: Bindings) -> Data | None:
        name = datum.name.text
        axes = self._axes(role, datum, bindings)
        type_ = self._type(role, datum)
        facts = self._facts(datum)
        initial: float | None = None
        maker: Maker | None = None
        if role is Role.INPUT and isinstance(datum.initial, tree.Call):
            maker = MakerResolver(self.expressions, self.errors).maker(datum, datum.initial, type_, bindings)
            if maker is None:
                return None
        elif datum.initial is not None:
            value = self.expressions.constant(datum.initial, bindings)
            if value is None:
                return None
            if role is Role.INPUT:
                label = Label(datum.initial.span, "expected nothing here")
                helps = (f"made where a caller leaves it out: `{name}[…]: bool = random(3)`, `{name}[…] = normal()`",)
                notes = ("the caller passes it",)
                self._error("E218", f"the input `{name}` has an initial value", label, notes=notes, helps=helps)
            initial = float(value)
            if abs(initial) > _LARGEST_INITIAL:
                label = Label(datum.initial.span, f"this is {initial:g}")
                notes = ("learned numbers are of 32 bits, which end at 3.4e38",)
                self._error("E218", f"the initial value of `{name}` is too large", label, notes=notes)
        if axes is None or type_ is None or facts is None:
            return None
        data = Data(
            name=name,
            role=role,
            axes=axes,
            whole=type_ == "int",
            truth=type_ == "bool",
            ascending="ascending" in facts,
            maker=maker,
            initial=initial,
            span=datum.span,
        )
        return data if self._has_order(data, datum) and self._has_sense(data, datum) else None

    def _axes(self, role: Role, datum: tree.Datum, bindings: Bindings) -> tuple[Axis, ...] | None:
        name = datum.name.text
        if datum.axes is None:
            if role is Role.PARAMETER:
                return ()
            helps = (f"a vector for each query: `{name}[B, H, n, d]`", f"for each key: `{name}[B, H, m, d]`")
            self._error("E218", f"the input `{name}` has no axes", Label(datum.name.span, "expected `[`"), helps=helps)
            return None
        axes: list[Axis] = []
        for node in datum.axes:
            axis = self.axes.axis(node, bindings)
            if axis is None:
                return None
            if role is Role.PARAMETER and (axis in _OF_CALL or isinstance(axis, Blocks | Free)):
                note = "a parameter is made before any call; its axes are H, d, e and whole numbers"
                label = Label(node.span, "known only at a call")
                help_ = f"declare an input: `input {name}[…]`"
                self._error(
                    "E218", f"the parameter `{name}` has an axis of a call", label, notes=(note,), helps=(help_,)
                )
                return None
            axes.append(axis)
        size = 1
        for axis in axes:
            size *= axis if isinstance(axis, int) else 1
        if size > _MOST_ENTRIES:
            label = Label(datum.span, f"this has {size} entries or more")
            self._error("E218", f"`{name}` is too large", label, notes=(f"at most {_MOST_ENTRIES} are allowed",))
            return None
        return tuple(axes)

    def _type(self, role: Role, datum: tree.Datum) -> str | None:
        """One of `_TYPES`."""
        match datum.type:
            case None:
                return "real"
            case tree.Identifier(text=text, span=span) if text not in _TYPES:
                label = Label(span, "expected `int`, `real` or `bool`")
                self._error("E209", f"there is no type `{text}` for declared data", label)
                return None
            case tree.Identifier(text="int" | "bool" as text, span=span) if role is Role.PARAMETER:
                note = f"{'whole numbers' if text == 'int' else 'truth values'} have no gradient"
                helps = (f"what the caller passes is an input: `input {datum.name.text}[…]: {text}`",)
                label = Label(span, "expected `real`")
                self._error("E218", "a learned parameter is real", label, notes=(note,), helps=helps)
                return None
            case tree.Identifier(text=text):
                return text

    def _facts(self, datum: tree.Datum) -> tuple[str, ...] | None:
        """What the caller promises, some of `_FACTS`."""
        found: list[str] = []
        for fact in datum.facts:
            if fact.text not in _FACTS:
                helps = nearest(fact.text, _FACTS)
                label = Label(fact.span, "expected `ascending`, or nothing")
                self._error("E209", f"there is no fact `{fact.text}` for declared data", label, helps=helps)
                return None
            if fact.text in found:
                self._error("E218", f"`{fact.text}` is said twice", Label(fact.span, "once is enough"))
                return None
            found.append(fact.text)
        return tuple(found)

    def _has_sense(self, data: Data, datum: tree.Datum) -> bool:
        """Whether data of these axes can have their type and what is promised of them."""
        if data.truth and data.is_vector:
            note = "a truth value is one of each token; a vector is made of numbers"
            shape = ", ".join(axis_text(axis) for axis in data.axes[:-1])
            helps = (f"truth values: `{data.name}[{shape}]: bool`", f"numbers: `{data.name}[{data.shape}]: int`")
            assert datum.type is not None
            label = Label(datum.type.span, "expected `real` or `int`")
            self._error("E218", f"`{data.name}` holds a vector for each token", label, notes=(note,), helps=helps)
            return False
        if not data.ascending:
            return True
        (fact,) = datum.facts
        if data.role is Role.PARAMETER:
            note = "what is learned changes with every step, so nothing can be promised of it"
        elif data.truth:
            note = "truth values have no order; whole and real numbers have"
        elif data.axes == (Free(),):
            return True
        elif not data.is_token:
            note = (
                f"`{data.name}` is a table; ascending are lists, `[any]`, and numbers of tokens, along the axis n or m"
            )
        elif data.is_vector:
            note = f"`{data.name}` holds a vector for each token; ascending are numbers"
        else:
            return True
        helps = ("leave `ascending` out", f"numbers of keys: `{data.name}[B, m]: int ascending`")
        label = Label(fact.span, "promised here")
        self._error("E218", f"`{data.name}` cannot be ascending", label, notes=(note,), helps=helps)
        return False

    def _has_order(self, data: Data, datum: tree.Datum) -> bool:
        """Whether the axes come as kernels read them: B, H, then n or m, then a width."""
        widths = () if data.is_token else _WIDTHS  # a matrix may be square
        sizes = [axis for axis in data.axes if isinstance(axis, Size) and axis not in widths]
        if len(set(sizes)) < len(sizes):
            twice = next(axis for axis in sizes if sizes.count(axis) > 1)
            self._error("E218", f"`{data.name}` has the axis `{twice.value}` twice", Label(datum.span, "here"))
            return False
        if not data.is_token:
            return self._is_table(data, datum)
        if data.is_row and data.is_column:
            note = "a number for every pair would be n × m numbers; give a vector or number for each row and each key"
            self._error("E218", f"`{data.name}` has an axis n and an axis m", Label(datum.span, "here"), notes=(note,))
            return False
        if blocks := [axis for axis in data.axes if isinstance(axis, Blocks)]:
            letter = "n" if data.is_row else "m"
            who = "row" if data.is_row else "key"
            note = f"with an axis {letter} it holds something for each {who}; blocks are axes of tables"
            message = f"`{data.name}` has an axis {letter} and an axis of blocks"
            help_ = f"write `ceil({letter} / {blocks[0].width})` for both"
            self._error("E218", message, Label(datum.span, "here"), notes=(note,), helps=(help_,))
            return False
        order = [Size.BATCH, Size.HEADS, Size.QUERIES if data.is_row else Size.KEYS]
        leading = [axis for axis in data.axes if axis in order]
        wanted = [axis for axis in order if axis in leading]
        rest = data.axes[len(leading) :]
        if list(data.axes[: len(leading)]) == wanted and len(rest) <= 1:
            return True
        letter = order[-1].value
        helps = (f"numbers: `{data.name}[B, H, {letter}]`", f"vectors: `{data.name}[B, H, {letter}, d]`")
        self._error("E218", f"the axes of `{data.name}` are out of order", Label(datum.span, "here"), helps=helps)
        return False

    def _is_table(self, data: Data, datum: tree.Datum) -> bool:
        """Whether an axis B stands first, in a table of numbers."""
        if Size.BATCH not in data.axes:
            return True
        if any(axis in _WIDTHS for axis in data.axes):
            note = "a table of vectors is the same for every batch entry; what differs has an axis n or m"
            self._error("E218", f"the table `{data.name}` has an axis B", Label(datum.span, "here"), notes=(note,))
            return False
        if data.axes[0] is not Size.BATCH:
            shape = ", ".join(axis_text(axis) for axis in data.axes if axis is not Size.BATCH)
            helps = (f"write `{data.name}[B, {shape}]`",)
            self._error("E218", f"the axes of `{data.name}` are out of order", Label(datum.span, "here"), helps=helps)
            return False
        return True

    def _error(
        self, code: str, message: str, *labels: Label, notes: tuple[str, ...] = (), helps: tuple[str, ...] = ()
    ) -> None:
        self.errors.append(Diagnostic(code, message, labels, notes, helps))


def _why_not(name: str, role: Role) -> str | None:
    """Why an emitted module cannot have data of this name."""
    if iskeyword(name):
        return f"it becomes an argument of a Python function, and `{name}` is a keyword of Python"
    if name.startswith("_"):
        return f"it becomes an argument of a Python function, and `{name}` begins with `_`"
    if name in RESERVED:
        return f"it becomes an argument of a Python function, in which `{name}` means something else"
    if role is Role.PARAMETER and name in OF_MODULES:
        return f"it becomes an attribute of a `torch.nn.Module`, and `{name}` is one already"
    return None
