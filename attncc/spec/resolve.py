"""Syntax tree → checked spec: names, kinds, parameters, fields, and every semantic diagnostic."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword

from attncc.diagnostics import AttnError, Diagnostic, Label, Source, Span
from attncc.spec.affine import check_affine
from attncc.spec.data import Data, K, Q, V
from attncc.spec.declared import Declarations
from attncc.spec.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Const,
    Dot,
    Expr,
    Let,
    Name,
    RowSum,
    Symbol,
    Token,
    Type,
    Vector,
    children,
    names_in,
    type_of,
    walk,
)
from attncc.spec.expressions import ExpressionResolver
from attncc.spec.fields import FieldName
from attncc.spec.fold import LARGEST_POSITION, NoValue, in_range
from attncc.spec.functions import FUNCTIONS
from attncc.spec.model import Align, Parameter, Spec
from attncc.spec.scope import Bindings, Bound
from attncc.spec.sides import Side, reads_data, side_of
from attncc.spec.unused import faults_of, without_use
from attncc.spec.used import with_used
from attncc.spec.words import Words, nearest, taken, twice, unknown_type, words_of
from attncc.syntax import tree
from attncc.syntax.parse import MOST_ERRORS, parse

_LONGEST_NAME = 64
_IMPORTED = (
    "functools",
    "math",
    "torch",
    "triton",
    "typing",
)  # by emitted modules, which a file of that name would hide
_LITERAL = re.compile(r"[+-]?(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


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
    definitions, missing = with_used(file)
    words, errors = words_of(definitions)
    errors = (*missing, *errors)
    attentions = [each for each in file.definitions if isinstance(each, tree.Attention)]
    if len(attentions) != 1:
        raise _all(file.source, (*errors, _not_one(file, attentions)))
    resolver = _AttentionResolver(file.source, attentions[0], words, list(errors))
    spec = resolver.run(overrides)
    resolver.check_unused(file.definitions)
    if resolver.errors:
        raise _all(file.source, resolver.errors)
    return spec


def _all(source: Source, errors: Sequence[Diagnostic]) -> AttnError:
    """Each finding once: those in the file by their place, then those of the command line."""

    def place(diagnostic: Diagnostic) -> tuple[bool, int, int]:
        span = diagnostic.labels[0].span
        return span.source != source, span.line, span.column

    return AttnError(*sorted(dict.fromkeys(errors), key=place)[:MOST_ERRORS])


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


_Statements = tuple[tree.Statement, ...]
_AFFINE = "affine are sums of i, j, h, n, m and H, times, // or % whole constants"


class _AttentionResolver:
    """Resolves one attention and collects diagnostics on the way."""

    def __init__(self, source: Source, attention: tree.Attention, words: Words, errors: list[Diagnostic]) -> None:
        self.source = source
        self.attention = attention
        self.errors = errors
        self.bindings: dict[str, Bound | None] = {}
        self.words = words.seen_from(self.bindings)
        self.expressions = ExpressionResolver(source, self.words, errors)

    def run(self, overrides: Mapping[str, str]) -> Spec:
        self._check_name()
        parameters = self._parameters(overrides)
        bindings = self.bindings
        bindings |= {each.name.text: None for each in self.attention.parameters}
        bindings |= {each.name: Const(each.value, span=each.span) for each in parameters}
        declared = self._declared(bindings)
        self._inner_words(bindings)
        self._lets(bindings)
        fields = self._fields(self.attention.statements, FieldName)
        held = self._requirements(self.attention.statements, bindings)
        self._contradictions(fields)
        checked = len(self.errors)
        weight, normalizer = self._similarity(fields, bindings)
        spec = Spec(
            name=self.attention.name.text,
            summary=self._summary(),
            source=self.source,
            span=self.attention.span,
            parameters=parameters,
            pattern=self._field(fields, FieldName.PATTERN, bindings, TRUE),
            score=self._field(fields, FieldName.SCORE, bindings, self._usual_score(bindings)),
            weight=weight,
            normalizer=normalizer,
            value=self._value(fields, bindings),
            align=self._align(fields),
        )
        spec = replace(spec, data=_read_data(spec, declared))
        if not held:  # what a requirement guards against need not be told twice
            later = [error for error in self.errors[checked:] if error.code not in ("E209", "E212", "E216")]
            self.errors[checked:] = later
        self._check_affine(spec)
        self._check_row(spec)
        return spec

    def check_unused(self, definitions: Sequence[tree.Definition]) -> None:
        """Check the words of the file that the attention does not reach."""
        for word in definitions:
            if (
                not isinstance(word, tree.Word | tree.SimilarityWord)
                or word.name.text in self.expressions.used
                or not self.words.hold(word)
            ):
                continue
            known = {error.labels[0].span for error in self.errors}
            too_large = any(error.code == "E213" for error in self.errors)  # and so is every word that uses one
            for found in faults_of(word, self._faults_of_use):
                if found.labels[0].span not in known and not (too_large and found.code == "E213"):
                    self.errors.append(without_use(found, word))

    def _faults_of_use(self, use: tree.Call, where: FieldName) -> list[Diagnostic]:
        mark = len(self.errors)
        if use.name.text in self.words.similarities:
            self._similarity_word(use, self.bindings)
        elif use.name.text in self.words.patterns:
            self.expressions.predicate(use, self.bindings, where)
        else:
            self.expressions.value(use, self.bindings, where)
        found = self.errors[mark:]
        del self.errors[mark:]
        return found

    def _check_name(self) -> None:
        """The name becomes a Python module and part of an operator's name."""
        name = self.attention.name
        reason = None
        if iskeyword(name.text):
            reason = f"`{name.text}` is a keyword of Python"
        elif name.text in _IMPORTED:
            reason = f"emitted modules import `{name.text}`, and a module of that name would hide it"
        elif name.text.startswith("_"):
            reason = "names of emitted modules begin with a letter"
        elif len(name.text) > _LONGEST_NAME:
            reason = f"it has {len(name.text)} characters; at most {_LONGEST_NAME} make a file name everywhere"
        if reason is not None:
            shown = name.text if len(name.text) <= _LONGEST_NAME else name.text[:8] + "…"
            label = Label(name.span, "expected a name for a Python module")
            helps = ("choose another name",)
            self._error("E217", f"an attention cannot be named `{shown}`", label, notes=(reason,), helps=helps)

    # --- parameters -------------------------------------------------------------------------------------------

    def _parameters(self, overrides: Mapping[str, str]) -> tuple[Parameter, ...]:
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

    def _requirements(self, statements: _Statements, bindings: Bindings, *, word: bool = False) -> bool:
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

    # --- declared data, words and lets --------------------------------------------------------------------------

    def _declared(self, bindings: dict[str, Bound | None]) -> list[Data]:
        """q, k, v and what `param` and `input` declare, made known to expressions."""
        names = {each.name.text: each.name.span for each in self.attention.parameters}
        declared = Declarations(self.expressions, self.errors).of(self.attention.statements, bindings, names)
        for statement in self.attention.statements:
            for datum in statement.data if isinstance(statement, tree.Declaration) else ():
                bindings.setdefault(datum.name.text, None)
        bindings |= {each.name: each for each in (Q, K, V, *declared)}
        return declared

    def _inner_words(self, bindings: dict[str, Bound | None]) -> None:
        """Words defined inside the attention; they see its parameters, data and lets."""
        for statement in self.attention.statements:
            if isinstance(statement, tree.Word | tree.SimilarityWord):
                self.errors += self.words.add(statement)
                self.words.inner.add(id(statement))

    def _lets(self, bindings: dict[str, Bound | None]) -> None:
        """Named values, each made of what stands above it."""
        seen: dict[str, Span] = {each.name.text: each.name.span for each in self.attention.parameters}
        for statement in self.attention.statements:
            if not isinstance(statement, tree.LetStatement):
                continue
            name = statement.name
            operand = name.text in ("q", "k", "v")
            if not operand:
                self.errors += taken(name)
                bound = bindings.get(name.text)
                first = bound.span if isinstance(bound, Data | Expr) else seen.get(name.text)
                if name.text in bindings and first is not None:
                    labels = (Label(name.span, "defined again here"), Label(first, "first defined here"))
                    self._error("E203", f"`{name.text}` is defined twice", *labels)
                    continue
            value = self.expressions.value(statement.value, bindings, FieldName.LET)
            bindings[name.text] = None if value is None else self._named(name, value, bindings)

    def _named(self, name: tree.Identifier, value: Expr, bindings: Mapping[str, Bound | None]) -> Expr | None:
        """The value under its name; q, k and v stay vectors of their own token."""
        if not reads_data(value):
            return value
        data = {each.name: each for each in bindings.values() if isinstance(each, Data)} | {"q": Q, "k": K, "v": V}
        if name.text in ("q", "k", "v"):
            wanted = Side.ROW if name.text == "q" else Side.COLUMN
            whose = "query" if name.text == "q" else "key"
            if type_of(value) is not Type.VECTOR:
                label = Label(value.span or name.span, "expected a vector")
                self._error("E205", f"`{name.text}` is a vector, but this is a number", label)
                return None
            if side_of(value, data) not in (wanted, Side.NONE):
                label = Label(value.span or name.span, f"expected a vector of the {whose}")
                note = f"`{name.text}` belongs to one {whose}, and this reads another token"
                self._error("E205", f"`{name.text}` is a vector of the {whose}", label, notes=(note,))
                return None
        return Let(name.text, value, span=name.span)

    def _usual_score(self, bindings: Bindings) -> Expr:
        """scale * dot(q, k), with q and k as the attention has them."""
        vectors = [bound if isinstance(bound := bindings[name], Expr) else Vector(name) for name in ("q", "k")]
        return Binary(BinaryOp.MULTIPLY, Symbol(Name.SCALE), Dot(*vectors))

    def _value(self, fields: dict[FieldName, tree.Field], bindings: Bindings) -> Expr:
        """The vectors that weights multiply."""
        if FieldName.VALUE not in fields:
            bound = bindings["v"]
            return bound if isinstance(bound, Expr) else Vector("v")
        node = fields[FieldName.VALUE].value
        value = self.expressions.vector(node, bindings, FieldName.VALUE)
        data = {each.name: each for each in bindings.values() if isinstance(each, Data)} | {"q": Q, "k": K, "v": V}
        if value is not None and side_of(value, data) is not Side.COLUMN:
            label = Label(node.span, "expected a vector of the key")
            self._error("E205", "values belong to keys, but this does not", label)
            value = None
        return Vector("v") if value is None else value

    def _check_row(self, spec: Spec) -> None:
        """A normaliser is a number of the row: what is one key's cannot stand in it outside a sum."""
        data = {each.name: each for each in spec.data}
        pending = [spec.normalizer]
        while pending:
            node = pending.pop()
            if isinstance(node, Vector | Token) and data[node.name].is_column:
                label = Label(node.span or spec.normalizer.span or spec.span, "belongs to one key")
                note = f"`{node.name}` belongs to one key; a normaliser is a number of the whole row"
                self._error("E207", f"`{node.name}` cannot be read in `normalize`", label, notes=(note,))
                return
            if not isinstance(node, RowSum):
                pending += children(node)

    # --- fields -----------------------------------------------------------------------------------------------

    def _fields(
        self, statements: _Statements, allowed: type[FieldName] | tuple[FieldName, ...]
    ) -> dict[FieldName, tree.Field]:
        known = {each.value: each for each in allowed if each not in (FieldName.REQUIRE, FieldName.LET)}
        fields: dict[FieldName, tree.Field] = {}
        for statement in statements:
            if not isinstance(statement, tree.Field):
                continue
            name = statement.name
            if name.text not in known:
                self._unknown_field(name, known)
            elif known[name.text] in fields:
                first = fields[known[name.text]].name.span
                labels = (Label(name.span, "set again here"), Label(first, "first set here"))
                self._error("E203", f"the field `{name.text}` is set twice", *labels)
            else:
                fields[known[name.text]] = statement
        return fields

    def _unknown_field(self, name: tree.Identifier, known: Mapping[str, FieldName]) -> None:
        helps = nearest(name.text, known)
        if name.text in {each.value for each in FieldName}:
            helps = (f"set `{name.text}` in the attention; a similarity sets `weight` and `normalize`",)
        label = Label(name.span, "no such field")
        self._error("E202", f"there is no field `{name.text}` here", label, helps=helps)

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
            return replace(self.expressions.predicate(value, bindings, name), span=value.span)
        if name is FieldName.NORMALIZE and isinstance(value, tree.Reference) and value.name == "none":
            return Const(1, span=value.span)
        return replace(self.expressions.number(value, bindings, name), span=value.span)

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
                text = "expected a word such as `softmax`"
                self._error("E204", "`similarity` names a word, but this is an expression", Label(value.span, text))
                return nothing
        word = self.words.similarities.get(name.text)
        if word is None:
            self._no_similarity(name)
            return nothing
        inner = self.expressions.arguments(word.name, word.parameters, call, bindings, FieldName.WEIGHT)
        if inner is None:
            return nothing
        fields = self._fields(word.statements, (FieldName.WEIGHT, FieldName.NORMALIZE))
        if FieldName.WEIGHT not in fields:
            label = Label(word.name.span, "expected `weight = …` in its braces")
            self._error("E202", f"the similarity `{name.text}` sets no weight", label)
            return nothing
        inner = {**self.words.scope_of(word), **inner}
        with self.expressions.within(name.text, call.span):
            if not self._requirements(word.statements, inner, word=True):
                return nothing
            weight = self._field(fields, FieldName.WEIGHT, inner, Const(1))
            return weight, self._field(fields, FieldName.NORMALIZE, inner, Symbol(Name.ROWS))

    def _no_similarity(self, name: tree.Identifier) -> None:
        helps = nearest(name.text, self.words.similarities)
        message = f"there is no similarity `{name.text}`"
        if name.text in FUNCTIONS or name.text in self.words.functions:
            message = f"`{name.text}` is a function, not a similarity"
            helps = (f"write `weight = {name.text}(…)`",)
        elif name.text in self.words.patterns:
            message = f"`{name.text}` is a pattern, not a similarity"
            parameters = "(…)" if self.words.patterns[name.text].parameters else ""
            helps = (f"write `pattern = {name.text}{parameters}`",)
        self._error("E201", message, Label(name.span, "expected a similarity"), helps=helps)

    def _align(self, fields: dict[FieldName, tree.Field]) -> Align:
        if FieldName.ALIGN not in fields:
            return Align.END
        value = fields[FieldName.ALIGN].value
        if isinstance(value, tree.Reference) and value.name in {each.value for each in Align}:
            return Align(value.name)
        helps = nearest(value.name, [each.value for each in Align]) if isinstance(value, tree.Reference) else ()
        label = Label(value.span, "expected `start` or `end`")
        self._error("E202", "`align` is neither `start` nor `end`", label, helps=helps)
        return Align.END

    def _check_positions(self, pattern: Expr) -> None:
        """Positions are whole numbers of 32 bits in kernels, and so must what is compared with them be."""
        for node in walk(pattern):
            if isinstance(node, Const) and abs(node.value) > LARGEST_POSITION:
                note = f"numbers in a pattern are compared with positions and must stay within {LARGEST_POSITION}"
                label = Label(node.span or pattern.span or self.attention.span, f"this is {node.value}")
                self._error("E212", "a number in the pattern is too large", label, notes=(note,))

    def _check_affine(self, spec: Spec) -> None:
        self._check_positions(spec.pattern)
        found = None if self.errors else check_affine(spec.pattern)
        if found is not None:
            term, reason = found
            labels = self._place(term.span)
            notes = (reason, _AFFINE)
            self._error("E211", "the pattern is not affine in the positions", *labels, notes=notes)

    def _place(self, term: Span | None) -> tuple[Label, ...]:
        """A term of the pattern; one that lies in the prelude comes after the field that used it."""
        field = next(
            each for each in self.attention.statements if isinstance(each, tree.Field) and each.name.text == "pattern"
        )
        if term is None or term.source != self.source:
            inner = (Label(term, "this term"),) if term is not None else ()
            return (Label(field.value.span, "in this pattern"), *inner)
        return (Label(term, "this term"),)

    def _summary(self) -> str:
        """The first line of the comment right above the attention, or at the top of the file."""
        lines = self.source.lines
        at = self.attention.span.line - 2
        while at > 0 and lines[at - 1].lstrip().startswith("#") and lines[at].lstrip().startswith("#"):
            at -= 1
        above = lines[at].strip() if at >= 0 else ""
        return above.lstrip("#").strip() if above.startswith("#") else ""

    def _error(
        self, code: str, message: str, *labels: Label, notes: tuple[str, ...] = (), helps: tuple[str, ...] = ()
    ) -> None:
        self.errors.append(Diagnostic(code, message, labels, notes, helps))


def _read_data(spec: Spec, declared: Sequence[Data]) -> tuple[Data, ...]:
    """What the emitted function takes: the declared data, and q, k and v as far as they are needed.

    q is taken where no declared data give a vector for each query, since something has to tell how many there are.
    """
    fields = [spec.weight, spec.normalizer, spec.value]
    if any(Name.SCORE in names_in(expr) for expr in fields):
        fields.append(spec.score)
    read = {node.name for expr in fields for node in walk(expr) if isinstance(node, Vector)}
    rows = any(each.is_row and each.is_vector for each in declared)
    wanted = {Q: "q" in read or not rows, K: "k" in read or not declared, V: "v" in read}
    return (*(each for each, is_wanted in wanted.items() if is_wanted), *declared)


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
