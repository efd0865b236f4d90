"""Syntax tree → checked spec: names, kinds, parameters, fields, and every semantic diagnostic."""

from __future__ import annotations

from collections.abc import Mapping

from attncc.diagnostics import AttnError, Diagnostic, Label, Source, Span
from attncc.spec.affine import check_affine
from attncc.spec.expr import TRUE, Binary, BinaryOp, Const, Dot, Expr, Name, Symbol, Type
from attncc.spec.expressions import Bindings, ExpressionResolver
from attncc.spec.fields import FieldName
from attncc.spec.model import Align, Parameter, Spec
from attncc.spec.words import Words, nearest, words_of
from attncc.syntax import tree
from attncc.syntax.parse import parse

DEFAULT_SCORE = Binary(BinaryOp.MULTIPLY, Symbol(Name.SCALE), Dot("q", "k"))


def load(source: Source, overrides: Mapping[str, str] | None = None) -> Spec:
    """Parse and resolve a source.

    Args:
        overrides: parameter values by name, as text (`-D name=value`).

    Raises:
        AttnError: with every independent finding.
    """
    return resolve(parse(source), overrides or {})


def resolve(file: tree.File, overrides: Mapping[str, str]) -> Spec:
    """The one attention of a parsed file, checked.

    Raises:
        AttnError: with every independent finding (E2xx).
    """
    words, errors = words_of(file)
    attentions = [each for each in file.definitions if isinstance(each, tree.Attention)]
    if len(attentions) != 1:
        raise AttnError(*errors, _not_one(file, attentions))
    resolver = _AttentionResolver(file.source, attentions[0], words, list(errors))
    spec = resolver.run(overrides)
    if resolver.errors:
        raise AttnError(*sorted(dict.fromkeys(resolver.errors), key=_in_source_order))
    return spec


def _in_source_order(diagnostic: Diagnostic) -> tuple[int, int]:
    span = diagnostic.labels[0].span if diagnostic.labels else None
    return (span.line, span.column) if span else (0, 0)


def _not_one(file: tree.File, attentions: list[tree.Attention]) -> Diagnostic:
    if not attentions:
        start = Label(Span(file.source, 1, 1, 1, 2), "expected `attention name { … }` somewhere in the file")
        help_ = "the shortest spec is `attention full {}`"
        return Diagnostic("E215", "the file defines no attention", (start,), helps=(help_,))
    labels = tuple(
        Label(each.name.span, "another one" if at else "the second one") for at, each in enumerate(attentions[1:])
    )
    first = Label(attentions[0].name.span, "the first one")
    return Diagnostic(
        "E215", "the file defines more than one attention", (*labels, first), helps=("give each its own file",)
    )


class _AttentionResolver:
    """Resolves one attention and collects diagnostics on the way."""

    def __init__(self, source: Source, attention: tree.Attention, words: Words, errors: list[Diagnostic]) -> None:
        self.source = source
        self.attention = attention
        self.errors = errors
        self.expressions = ExpressionResolver(words, errors)
        self.words = words

    def run(self, overrides: Mapping[str, str]) -> Spec:
        parameters = self._parameters(overrides)
        bindings: dict[str, Expr | None] = {each.name.text: None for each in self.attention.parameters}
        bindings |= {each.name: Const(each.value, span=each.span) for each in parameters}
        fields = self._fields(self.attention.statements, FieldName)
        self._requirements(self.attention.statements, bindings)
        self._contradictions(fields)
        weight, normalizer = self._similarity(fields, bindings)
        spec = Spec(
            name=self.attention.name.text,
            summary=self._summary(),
            source=self.source,
            span=self.attention.span,
            parameters=parameters,
            pattern=self._field(fields, FieldName.PATTERN, bindings, TRUE),
            score=self._field(fields, FieldName.SCORE, bindings, DEFAULT_SCORE),
            weight=weight,
            normalizer=normalizer,
            align=self._align(fields),
        )
        self._check_affine(spec)
        return spec

    # --- parameters -------------------------------------------------------------------------------------------

    def _parameters(self, overrides: Mapping[str, str]) -> tuple[Parameter, ...]:
        known: dict[str, tree.Parameter] = {}
        bound: list[Parameter] = []
        for parameter in self.attention.parameters:
            if parameter.name.text in known:
                first = Label(known[parameter.name.text].name.span, "first declared here")
                again = Label(parameter.name.span, "declared again here")
                self._error("E203", f"the parameter `{parameter.name.text}` is declared twice", again, first)
                continue
            known[parameter.name.text] = parameter
            self.expressions.check_new_name(parameter.name)
            bound += self._bind(parameter, overrides.get(parameter.name.text))
        for name in overrides.keys() - known.keys():
            place = Label(_override_span(name, overrides[name]), "no such parameter")
            self._error(
                "E209", f"`{self.attention.name.text}` has no parameter `{name}`", place, helps=nearest(name, known)
            )
        return tuple(bound)

    def _bind(self, parameter: tree.Parameter, override: str | None) -> list[Parameter]:
        name = parameter.name.text
        value: int | float | None = None
        span = parameter.span
        if parameter.default is not None:
            value = self.expressions.constant(parameter.default, {})
            if value is None:
                return []
        declared = self._declared_type(parameter, value)
        if override is not None:
            span = _override_span(name, override)
            value = _number(override)
            if value is None:
                self._error("E209", f"the value given for `{name}` is no number", Label(span, "expected a number"))
                return []
        if value is None:
            helps = (f"give a default: `{name} = 1`", f"or pass a value: `-D {name}=1`")
            self._error("E208", f"the parameter `{name}` has no value", Label(parameter.span), helps=helps)
            return []
        if declared is Type.INT and not isinstance(value, int):
            declaration = Label(parameter.span, "declared here")
            labels = (
                (Label(span, "expected a whole number"), declaration)
                if override
                else (Label(span, "expected a whole number"),)
            )
            self._error("E209", f"the parameter `{name}` is a whole number, but {value} is not", *labels)
            return []
        return [Parameter(name, float(value) if declared is Type.REAL else value, span)]

    def _declared_type(self, parameter: tree.Parameter, default: int | float | None) -> Type:
        match parameter.type:
            case tree.Identifier(text="int"):
                return Type.INT
            case tree.Identifier(text="real"):
                return Type.REAL
            case tree.Identifier(text=text, span=span):
                self._error(
                    "E209", f"there is no type `{text}` for a parameter", Label(span, "expected `int` or `real`")
                )
        return Type.REAL if isinstance(default, float) else Type.INT

    def _requirements(self, statements: tuple[tree.Field | tree.Require, ...], bindings: Bindings) -> None:
        for statement in statements:
            for condition in statement.conditions if isinstance(statement, tree.Require) else ():
                expr = self.expressions.predicate(condition, bindings, FieldName.REQUIRE)
                if isinstance(expr, Const) and expr.value is False:
                    read = {node.name for node in _references(condition)} & bindings.keys()
                    notes = tuple(
                        f"{name} is {value.value}"
                        for name in sorted(read)
                        if isinstance(value := bindings[name], Const)
                    )
                    helps = tuple(f"pass another value: `-D {name}=…`" for name in sorted(read)[:1])
                    self._error("E210", "a requirement does not hold", Label(condition.span), notes=notes, helps=helps)

    # --- fields -----------------------------------------------------------------------------------------------

    def _fields(
        self, statements: tuple[tree.Field | tree.Require, ...], allowed: type[FieldName] | tuple[FieldName, ...]
    ) -> dict[FieldName, tree.Field]:
        known = {each.value: each for each in allowed if each is not FieldName.REQUIRE}
        fields: dict[FieldName, tree.Field] = {}
        for statement in statements:
            if not isinstance(statement, tree.Field):
                continue
            name = statement.name
            if name.text not in known:
                label = Label(name.span, "no such field")
                self._error("E202", f"there is no field `{name.text}` here", label, helps=nearest(name.text, known))
            elif known[name.text] in fields:
                first = fields[known[name.text]].name.span
                labels = (Label(name.span, "set again here"), Label(first, "first set here"))
                self._error("E203", f"the field `{name.text}` is set twice", *labels)
            else:
                fields[known[name.text]] = statement
        return fields

    def _contradictions(self, fields: dict[FieldName, tree.Field]) -> None:
        similarity = fields.get(FieldName.SIMILARITY)
        for rival in (FieldName.WEIGHT, FieldName.NORMALIZE):
            if similarity and (other := fields.get(rival)):
                labels = (
                    Label(other.name.span, f"sets {rival.value} too"),
                    Label(similarity.span, "sets weight and normalize"),
                )
                help_ = "keep `similarity`, or write both `weight` and `normalize` without it"
                self._error("E214", f"`similarity` and `{rival.value}` contradict each other", *labels, helps=(help_,))

    def _field(self, fields: dict[FieldName, tree.Field], name: FieldName, bindings: Bindings, default: Expr) -> Expr:
        if name not in fields:
            return default
        value = fields[name].value
        if name is FieldName.PATTERN:
            return self.expressions.predicate(value, bindings, name)
        if name is FieldName.NORMALIZE and isinstance(value, tree.Reference) and value.name == "none":
            return Const(1, span=value.span)
        return self.expressions.number(value, bindings, name)

    def _similarity(self, fields: dict[FieldName, tree.Field], bindings: Bindings) -> tuple[Expr, Expr]:
        """weight and normalizer, from `similarity = word(…)` or from the two fields, softmax by default."""
        fallback = tree.Call(tree.Identifier("softmax", span=self.attention.span), (), span=self.attention.span)
        if FieldName.SIMILARITY in fields:
            value = fields[FieldName.SIMILARITY].value
        elif FieldName.WEIGHT in fields:
            normalizer = self._field(fields, FieldName.NORMALIZE, bindings, Symbol(Name.ROWS))
            return self._field(fields, FieldName.WEIGHT, bindings, TRUE), normalizer
        elif FieldName.NORMALIZE in fields:
            weight, _ = self._similarity_word(fallback, bindings)
            return weight, self._field(fields, FieldName.NORMALIZE, bindings, Symbol(Name.ROWS))
        else:
            value = fallback
        return self._similarity_word(value, bindings)

    def _similarity_word(self, value: tree.Tree, bindings: Bindings) -> tuple[Expr, Expr]:
        nothing: tuple[Expr, Expr] = (Const(1), Symbol(Name.ROWS))
        match value:
            case tree.Call(name=name):
                call = value
            case tree.Reference(name=text, span=span):
                name = tree.Identifier(text, span=span)
                call = tree.Call(name, (), span=span)
            case _:
                self._error(
                    "E214",
                    "`similarity` names a similarity word",
                    Label(value.span, "expected a word such as `softmax`"),
                )
                return nothing
        word = self.words.similarities.get(name.text)
        if word is None:
            helps = nearest(name.text, self.words.similarities)
            self._error("E201", f"there is no similarity `{name.text}`", Label(name.span), helps=helps)
            return nothing
        inner = self.expressions.arguments(word.name, word.parameters, call, bindings, FieldName.WEIGHT)
        if inner is None:
            return nothing
        fields = self._fields(word.statements, (FieldName.WEIGHT, FieldName.NORMALIZE))
        weight = self._field(fields, FieldName.WEIGHT, inner, Const(1))
        return weight, self._field(fields, FieldName.NORMALIZE, inner, Symbol(Name.ROWS))

    def _align(self, fields: dict[FieldName, tree.Field]) -> Align:
        if FieldName.ALIGN not in fields:
            return Align.END
        value = fields[FieldName.ALIGN].value
        if isinstance(value, tree.Reference) and value.name in {each.value for each in Align}:
            return Align(value.name)
        self._error("E202", "`align` is neither `start` nor `end`", Label(value.span, "expected `start` or `end`"))
        return Align.END

    def _check_affine(self, spec: Spec) -> None:
        found = None if self.errors else check_affine(spec.pattern)
        if found is not None:
            term, reason = found
            label = Label(term.span or self.attention.span, "this term")
            self._error("E211", "the pattern is not affine in the positions", label, notes=(reason,))

    def _summary(self) -> str:
        """The first line of the comment right above the attention, or at the top of the file."""
        lines = self.source.text.splitlines()
        at = self.attention.span.line - 2
        while at > 0 and lines[at - 1].lstrip().startswith("#") and lines[at].lstrip().startswith("#"):
            at -= 1
        above = lines[at].strip() if at >= 0 else ""
        return above.lstrip("#").strip() if above.startswith("#") else ""

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


def _number(text: str) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value - value == 0 else None
