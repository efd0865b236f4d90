"""The parameters of an attention → values: defaults, types, `-D name=value`, and what `require` demands of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attncc.diagnostics import Diagnostic, Label, Source, Span
from attncc.spec.expr import Const, Type
from attncc.spec.expressions import ExpressionResolver
from attncc.spec.fields import FieldName
from attncc.spec.fold import NoValue, in_range
from attncc.spec.model import Parameter
from attncc.spec.scope import Bindings
from attncc.spec.words import nearest, taken, twice, unknown_type
from attncc.syntax import tree

_LITERAL = re.compile(r"[+-]?(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class ParameterResolver:
    """Binds the parameters of one attention."""

    def __init__(self, attention: tree.Attention, expressions: ExpressionResolver, errors: list[Diagnostic]) -> None:
        self.attention = attention
        self.expressions = expressions
        self.errors = errors

    def bind(self, overrides: Mapping[str, str]) -> tuple[Parameter, ...]:
        """The parameters with their values; those without a valid one are reported and left out."""
        known: dict[str, tree.Parameter] = {}
        bound: list[Parameter] = []
        for parameter in self.attention.parameters:
            name = parameter.name
            if name.text in known:
                self.errors.append(twice(name, known[name.text].name))
                continue
            known[name.text] = parameter
            self.errors += taken(name)
            bound += self._bind(parameter, overrides.get(name.text))
        for override in sorted(overrides.keys() - known.keys()):
            place = Label(_override_span(override, overrides[override]), "no such parameter")
            message = f"`{self.attention.name.text}` has no parameter `{override}`"
            notes = () if known else (f"`{self.attention.name.text}` has no parameters at all",)
            self._error("E209", message, place, notes=notes, helps=nearest(override, known))
        return tuple(bound)

    def _bind(self, parameter: tree.Parameter, override: str | None) -> list[Parameter]:
        name = parameter.name.text
        value: int | float | None = None
        span = parameter.span
        if parameter.default is not None:
            span = parameter.default.span
            value = self.expressions.constant(parameter.default, {})
            if value is None:
                return []
        declared = self._declared_type(parameter, value)
        if override is not None:
            span = _override_span(name, override)
            value = self._given(name, override, span)
            if value is None:
                return []
        if value is None:
            helps: tuple[str, ...] = (f"give a default: `{name} = 1`", f"pass a value: `-D {name}=1`")
            self._error(
                "E208", f"the parameter `{name}` has no value", Label(parameter.span, "expected `= value`"), helps=helps
            )
            return []
        if declared is Type.INT and not isinstance(value, int):
            declaration = (Label(parameter.span, "declared here"),) if override is not None else ()
            label = Label(span, "expected a whole number")
            helps = (f"declare it as real: `{name}: real = …`",)
            message = f"the parameter `{name}` is a whole number, but {value} is not"
            self._error("E209", message, label, *declaration, helps=helps)
            return []
        return [Parameter(name, float(value) if declared is Type.REAL else value, span)]

    def _given(self, name: str, override: str, span: Span) -> int | float | None:
        """The number on the command line; None after an error."""
        if not _LITERAL.fullmatch(override):
            self._error(
                "E209", f"the value given for `{name}` is no number", Label(span, "expected a number such as 8 or 0.5")
            )
            return None
        whole = override.lstrip("+-").isdigit() and len(override) < 300
        try:
            return in_range(int(override) if whole else float(override))
        except NoValue as reason:
            self._error("E209", f"the value given for `{name}` does not fit", Label(span, str(reason)))
            return None

    def _declared_type(self, parameter: tree.Parameter, default: int | float | None) -> Type:
        match parameter.type:
            case tree.Identifier(text="int"):
                return Type.INT
            case tree.Identifier(text="real"):
                return Type.REAL
            case tree.Identifier() as type_:
                self.errors.append(unknown_type(type_))
        return Type.REAL if isinstance(default, float) else Type.INT

    def requirements(self, statements: tuple[tree.Statement, ...], bindings: Bindings, *, word: bool = False) -> bool:
        """Check what must hold of the parameters; whether it does."""
        before = len(self.errors)
        for statement in statements:
            for condition in statement.conditions if isinstance(statement, tree.Require) else ():
                expr = self.expressions.predicate(condition, bindings, FieldName.REQUIRE)
                if isinstance(expr, Const) and expr.value is False:
                    self._not_held(condition, bindings, word=word)
                elif not isinstance(expr, Const):
                    note = "only parameters and constants are known when the spec is built"
                    labels = self.expressions.labels(Label(condition.span, "this changes from pair to pair"))
                    self._error("E212", "a requirement has no value", *labels, notes=(note,))
        return len(self.errors) == before

    def _not_held(self, condition: tree.Tree, bindings: Bindings, *, word: bool) -> None:
        read = sorted({node.name for node in _references(condition)} & bindings.keys())
        values = [(name, bound) for name in read if isinstance(bound := bindings[name], Const)]
        where = tuple(Label(bound.span, f"{name} is {bound.value}") for name, bound in values if bound.span)
        helps = tuple(f"pass another value: `-D {name}=…`" for name in read[:1] if not word)
        labels = self.expressions.labels(Label(condition.span, "expected this to hold"), *where)
        self._error("E210", "a requirement does not hold", *labels, helps=helps)

    def _error(
        self, code: str, message: str, *labels: Label, notes: tuple[str, ...] = (), helps: tuple[str, ...] = ()
    ) -> None:
        self.errors.append(Diagnostic(code, message, labels, notes, helps))


def _references(node: tree.Tree) -> list[tree.Reference]:
    if isinstance(node, tree.Reference):
        return [node]
    found: list[tree.Reference] = []
    for name in node.__dataclass_fields__:
        value = getattr(node, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, tree.Node) and not isinstance(item, tree.Identifier):
                found += _references(item)  # type: ignore[arg-type]
    return found


def _override_span(name: str, value: str) -> Span:
    text = f"{name}={value}"
    return Span(Source("-D", text), 1, 1, 1, len(text) + 1)
