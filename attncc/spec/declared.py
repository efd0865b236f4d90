"""`param` and `input` statements → declared data: names, axes and types checked."""

from __future__ import annotations

from collections.abc import Mapping
from keyword import iskeyword

from attncc.diagnostics import Diagnostic, Label, Span
from attncc.spec.data import OF_MODULES, RESERVED, Axis, Data, Role, Size
from attncc.spec.expressions import ExpressionResolver
from attncc.spec.scope import Bindings
from attncc.spec.words import nearest, taken
from attncc.syntax import tree

_SIZES = {each.value: each for each in Size}
_OF_CALL = (Size.BATCH, Size.QUERIES, Size.KEYS)  # what a module cannot know when it is made
_LARGEST_INITIAL = 3.4028234e38
_MOST_ENTRIES = 1 << 28  # of a parameter, in the axes whose lengths are known


class Declarations:
    """Checks the declarations of one attention."""

    def __init__(self, expressions: ExpressionResolver, errors: list[Diagnostic]) -> None:
        self.expressions = expressions
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
        return found

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
        whole = self._is_whole(role, datum)
        initial: float | None = None
        if datum.initial is not None:
            value = self.expressions.constant(datum.initial, bindings)
            if value is None:
                return None
            if role is Role.INPUT:
                label = Label(datum.initial.span, "expected nothing here")
                self._error("E218", f"the input `{name}` has an initial value", label, notes=("the caller passes it",))
            initial = float(value)
            if abs(initial) > _LARGEST_INITIAL:
                label = Label(datum.initial.span, f"this is {initial:g}")
                notes = ("learned numbers are of 32 bits, which end at 3.4e38",)
                self._error("E218", f"the initial value of `{name}` is too large", label, notes=notes)
        if axes is None or whole is None:
            return None
        data = Data(name=name, role=role, axes=axes, whole=whole, initial=initial, span=datum.span)
        return data if self._has_order(data, datum) else None

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
            axis = self._axis(node, bindings)
            if axis is None:
                return None
            if role is Role.PARAMETER and axis in _OF_CALL:
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

    def _axis(self, node: tree.Tree, bindings: Bindings) -> Axis | None:
        match node:
            case tree.Reference(name=name) if name in _SIZES and name not in bindings:
                return _SIZES[name]
            case tree.Reference(name=name, span=span) if name not in bindings:
                helps = nearest(name, [*_SIZES, *bindings])
                self._error("E201", f"there is no size `{name}`", Label(span, "unknown name"), helps=helps)
                return None
        value = self.expressions.constant(node, bindings)
        if value is None:
            return None
        if not isinstance(value, int) or value < 1:
            text = "expected a whole number of at least 1"
            self._error("E218", f"an axis cannot have length {value}", Label(node.span, text))
            return None
        return value

    def _is_whole(self, role: Role, datum: tree.Datum) -> bool | None:
        match datum.type:
            case None | tree.Identifier(text="real"):
                return False
            case tree.Identifier(text="int") if role is Role.INPUT:
                return True
            case tree.Identifier(text="int", span=span):
                note = "whole numbers have no gradient"
                self._error("E218", "a learned parameter is real", Label(span, "expected `real`"), notes=(note,))
            case tree.Identifier(text=text, span=span):
                label = Label(span, "expected `int` or `real`")
                self._error("E209", f"there is no type `{text}` for declared data", label)
        return None

    def _has_order(self, data: Data, datum: tree.Datum) -> bool:
        """Whether the axes come as kernels read them: B, H, then n or m, then a width."""
        widths = () if data.is_token else (Size.WIDTH, Size.VALUE_WIDTH)  # a matrix may be square
        sizes = [axis for axis in data.axes if isinstance(axis, Size) and axis not in widths]
        if len(set(sizes)) < len(sizes):
            twice = next(axis for axis in sizes if sizes.count(axis) > 1)
            self._error("E218", f"`{data.name}` has the axis `{twice.value}` twice", Label(datum.span, "here"))
            return False
        if not data.is_token:
            if Size.BATCH not in data.axes:
                return True
            note = "a table is the same for every batch entry; what differs has an axis n or m"
            self._error("E218", f"the table `{data.name}` has an axis B", Label(datum.span, "here"), notes=(note,))
            return False
        if data.is_row and data.is_column:
            note = "a number for every pair would be n × m numbers; give a vector or number for each row and each key"
            self._error("E218", f"`{data.name}` has an axis n and an axis m", Label(datum.span, "here"), notes=(note,))
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
