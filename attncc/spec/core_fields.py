"""The fields of an attention or branch → pattern, score, weight, normaliser and value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from attncc.diagnostics import Diagnostic, Label, Source, Span
from attncc.spec.channels import CHANNELS, by_channel
from attncc.spec.data import Data, K, Q, Size, V
from attncc.spec.expr import (
    TRUE,
    AtRow,
    Binary,
    BinaryOp,
    Compare,
    Const,
    Dot,
    Entry,
    Expr,
    Name,
    RowSum,
    Shares,
    Symbol,
    Token,
    Top,
    UpTo,
    Vector,
    children,
    names_in,
    rebuild,
    substitute,
    walk,
)
from attncc.spec.expressions import ExpressionResolver
from attncc.spec.fields import FieldName
from attncc.spec.fold import LARGEST_POSITION
from attncc.spec.functions import FUNCTIONS
from attncc.spec.listed import check_pattern, reads_listed
from attncc.spec.model import Align, Spec
from attncc.spec.parameters import ParameterResolver
from attncc.spec.pooled import Blocked, UnlikeKeys, blocks_of
from attncc.spec.scope import Bindings, data_of
from attncc.spec.sides import Side, of_patterns_alone, reads_data, side_of
from attncc.spec.text import text as expr_text
from attncc.spec.widths import NoFit, demands_of, features_of, is_joined
from attncc.spec.words import Words, nearest
from attncc.syntax import tree

_AFFINE = "affine are sums of i, j, h, n, m and H, times, // or % whole constants"


class FieldResolver:
    """Resolves the fields of one attention."""

    def __init__(
        self,
        attention: tree.Attention,
        words: Words,
        expressions: ExpressionResolver,
        parameters: ParameterResolver,
        errors: list[Diagnostic],
    ) -> None:
        self.attention = attention
        self.words = words
        self.expressions = expressions
        self.parameters = parameters
        self.errors = errors
        self.source: Source = expressions.source

    def within(self, words: Words, expressions: ExpressionResolver) -> FieldResolver:
        """The same for a branch, with its own words and names."""
        return FieldResolver(self.attention, words, expressions, self.parameters, self.errors)

    def core(self, fields: dict[FieldName, tree.Field], bindings: Bindings, base: Spec) -> Spec:
        """`base` with the pattern, score, weight, normaliser and value that the fields set, checked."""
        self._contradictions(fields)
        weight, normalizer = self._similarity(fields, bindings)
        spec = replace(
            base,
            pattern=self._field(fields, FieldName.PATTERN, bindings, TRUE),
            score=self._field(fields, FieldName.SCORE, bindings, self._usual_score(bindings)),
            weight=weight,
            normalizer=normalizer,
            value=self._value(fields, bindings),
        )
        spec = replace(spec, pattern=_with_score(spec.pattern, spec.score))
        self._check_affine(spec, fields)
        self._check_tables(spec, bindings)
        self._check_row(spec, bindings)
        self._check_widths(spec, bindings)
        self._check_channels(spec, bindings)
        return replace(spec, blocks=self._blocks(spec, bindings))

    def _blocks(self, spec: Spec, bindings: Bindings) -> Blocked | None:
        """What the keys are."""
        if self.errors:
            return None
        try:
            return blocks_of((spec.pattern, *read_fields(spec)), data_of(bindings))
        except UnlikeKeys as error:
            labels = [Label(error.pooled.span or spec.span, "blocks of keys")]
            if error.term.span is not None and error.term.span != error.pooled.span:
                labels.append(Label(error.term.span, "does not fit these"))
            self._error("E306", "keys are of different lengths", *labels, notes=(error.reason,))
            return None

    def fields(
        self, statements: tuple[tree.Statement, ...], allowed: type[FieldName] | tuple[FieldName, ...]
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
        if name is FieldName.NORMALIZE and isinstance(value, tree.Reference) and value.name == "channels":
            return replace(CHANNELS, span=value.span)
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
            weight, _ = self.similarity_word(fallback, bindings)
            return weight, self._field(fields, FieldName.NORMALIZE, bindings, Symbol(Name.ROWS))
        else:
            value = fallback
        return self.similarity_word(value, bindings)

    def similarity_word(self, value: tree.Tree, bindings: Bindings) -> tuple[Expr, Expr]:
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
        fields = self.fields(word.statements, (FieldName.WEIGHT, FieldName.NORMALIZE))
        if FieldName.WEIGHT not in fields:
            label = Label(word.name.span, "expected `weight = …` in its braces")
            self._error("E202", f"the similarity `{name.text}` sets no weight", label)
            return nothing
        inner = {**self.words.scope_of(word), **inner}
        with self.expressions.within(name.text, call.span):
            if not self.parameters.requirements(word.statements, inner, word=True):
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

    def align(self, fields: dict[FieldName, tree.Field]) -> Align:
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
        for node in _without_listed(pattern):
            if isinstance(node, Const) and abs(node.value) > LARGEST_POSITION:
                note = f"numbers in a pattern are compared with positions and must stay within {LARGEST_POSITION}"
                label = Label(node.span or pattern.span or self.attention.span, f"this is {node.value}")
                self._error("E212", "a number in the pattern is too large", label, notes=(note,))

    def _check_affine(self, spec: Spec, fields: dict[FieldName, tree.Field]) -> None:
        self._check_positions(spec.pattern)
        found = None if self.errors else check_pattern(spec.pattern)
        if found is not None:
            term, reason = found
            labels = self._place(term.span, fields)
            if reads_data(term):
                self._error("E207", f"`{expr_text(term)}` cannot be read in `pattern`", *labels, notes=(reason,))
                return
            notes = (reason, _AFFINE)
            self._error("E211", "the pattern is not affine in the positions", *labels, notes=notes)

    def _check_tables(self, spec: Spec, bindings: Bindings) -> None:
        """Tables of batch entries and of blocks are for patterns, unless they have no gradient."""
        for name, field in (
            ("score", spec.score),
            ("weight", spec.weight),
            ("normalize", spec.normalizer),
            ("value", spec.value),
        ):
            found = of_patterns_alone(field, data_of(bindings))
            if found is not None:
                label = Label(found.span or field.span or spec.span, "expected in `pattern`")
                notes = (
                    "a table of real numbers with an axis B or of blocks says which pairs are related",
                    "those that weights read have axes H, d, e and whole numbers, or hold `int` or `bool`",
                )
                self._error("E207", f"`{found.name}` cannot be read in `{name}`", label, notes=notes)
                return

    def _place(self, term: Span | None, fields: dict[FieldName, tree.Field]) -> tuple[Label, ...]:
        """A term of the pattern; one that lies in the prelude comes after the field that used it."""
        field = fields[FieldName.PATTERN]
        if term is None or term.source != self.source:
            inner = (Label(term, "this term"),) if term is not None else ()
            return (Label(field.value.span, "in this pattern"), *inner)
        return (Label(term, "this term"),)

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
        if value is not None and side_of(value, data_of(bindings)) is not Side.COLUMN:
            label = Label(node.span, "expected a vector of the key")
            self._error("E205", "values belong to keys, but this does not", label)
            value = None
        if value is not None and is_joined(value):
            label = Label(node.span, "expected as many features as some data have")
            self._error("E205", "values are no joined vectors", label)
            value = None
        return Vector("v") if value is None else value

    def _check_row(self, spec: Spec, bindings: Bindings) -> None:
        """A normaliser is a number of the row: what is one key's cannot stand in it outside a sum."""
        data = data_of(bindings)
        if spec.normalizer == Const(0):
            label = Label(spec.normalizer.span or spec.span, "every row is divided by 0")
            self._error("E212", "this has no value", label, helps=("write `normalize = none` to divide by nothing",))
        pending = [spec.normalizer]
        while pending:
            node = pending.pop()
            if isinstance(node, Vector | Token) and data[node.name].is_column:
                label = Label(node.span or spec.normalizer.span or spec.span, "belongs to one key")
                note = f"`{node.name}` belongs to one key; a normaliser is a number of the whole row"
                self._error("E207", f"`{node.name}` cannot be read in `normalize`", label, notes=(note,))
                return
            if not isinstance(node, RowSum | AtRow):
                pending += children(node)

    def _check_channels(self, spec: Spec, bindings: Bindings) -> None:
        """`channels` are features of a product, so there has to be one."""
        data = data_of(bindings)
        if self.errors or spec.normalizer != CHANNELS:
            return
        parts = by_channel(spec.weight, spec.score, data)
        if parts is None or features_of(parts.column, data) is None:
            labels = (
                Label(spec.weight.span or spec.span, "no number times a product of vectors"),
                Label(spec.normalizer.span or spec.span, "divides each channel by its own sum"),
            )
            note = "channels are the features c of b in weight = g * dot(a, b), a of the query and b of the key"
            helps = ("write the weight as such a product, for instance `dot(softmax_of(q), exp(k))`",)
            self._error("E305", "the weight has no channels to divide by", *labels, notes=(note,), helps=helps)

    def _check_widths(self, spec: Spec, bindings: Bindings) -> None:
        """Vectors that meet have as many features, as far as the spec alone says how many."""
        if self.errors:
            return
        data = data_of(bindings)
        for field in (spec.score, spec.weight, spec.normalizer, spec.value):
            try:
                demands_of((field,), data)
            except NoFit as reason:
                place = reason.place.span or field.span or spec.span
                labels = [Label(place, reason.label)]
                if place.source != self.source and field.span is not None and field.span.source == self.source:
                    labels.insert(0, Label(field.span, "in this use"))
                self._error("E205", reason.message, *labels)
                return

    def _error(
        self, code: str, message: str, *labels: Label, notes: tuple[str, ...] = (), helps: tuple[str, ...] = ()
    ) -> None:
        self.errors.append(Diagnostic(code, message, labels, notes, helps))


def _without_listed(pattern: Expr) -> Iterator[Expr]:
    """What a pattern is made of, comparisons that read data aside."""
    pending = [pattern]
    while pending:
        node = pending.pop()
        if not (isinstance(node, Compare) and reads_listed(node)):
            yield node
            pending += children(node)


def read_fields(spec: Spec) -> tuple[Expr, ...]:
    """The formulas that weights and values are made of: a score that none of them reads is not among them."""
    fields = (spec.weight, spec.normalizer, spec.value)
    reads_score = any(Name.SCORE in names_in(expr) for expr in fields)
    return (spec.score, *fields) if reads_score else fields


def data_read(spec: Spec) -> frozenset[str]:
    """The names of the data that decide which pairs are related, and that weights and values are made of."""
    fields = (spec.pattern, *read_fields(spec))
    return frozenset(
        node.name for expr in fields for node in walk(expr) if isinstance(node, Vector | Token | Entry | UpTo)
    )


def read_data(spec: Spec, declared: Sequence[Data]) -> tuple[Data, ...]:
    """What the emitted function takes: the declared data, and q, k and v as far as they are needed.

    q is taken where no declared data give a vector for each query of each head, since something has to tell how many
    there are; and q and v where the spec reads their widths and nothing else has them.
    """
    read = data_read(spec)
    rows = any(each.is_row and each.is_full for each in declared)
    axes = {axis for each in declared for axis in each.axes}
    d = Size.WIDTH not in axes and "k" not in read and spec.names & {Name.WIDTH, Name.SCALE}
    e = Size.VALUE_WIDTH not in axes and Name.VALUE_WIDTH in spec.names
    wanted = {Q: "q" in read or not rows or d, K: "k" in read or not declared, V: "v" in read or e}
    return (*(each for each, is_wanted in wanted.items() if is_wanted), *declared)


def needed(spec: Spec, declared: Sequence[Data]) -> tuple[Data, ...]:
    """What one branch reads, and a vector of queries in any case."""
    given, read = read_data(spec, declared), data_read(spec)
    rows = [each.name for each in given if each.is_row and each.is_full]
    carrier = next((name for name in rows if name in read), rows[0])
    return tuple(each for each in given if each.name in read or each.name == carrier)


def _with_score(pattern: Expr, score: Expr) -> Expr:
    """A pattern whose choices say themselves what `score` is: they are values of their own."""
    if isinstance(pattern, Top):
        own = isinstance(pattern.by, Shares)  # of another attention, with its own score
        return pattern if own else replace(pattern, by=substitute(pattern.by, {Symbol(Name.SCORE): score}))
    return rebuild(pattern, lambda each: _with_score(each, score))
