"""Syntax tree → checked spec: names, kinds, parameters, fields, and every semantic diagnostic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword

from attncc.diagnostics import AttnError, Diagnostic, Label, Source, Span
from attncc.spec.body import BodyResolver
from attncc.spec.branches import BranchResolver
from attncc.spec.core_fields import FieldResolver, read_data
from attncc.spec.expr import TRUE, Const
from attncc.spec.expressions import ExpressionResolver
from attncc.spec.fields import FieldName
from attncc.spec.model import Spec
from attncc.spec.parameters import ParameterResolver
from attncc.spec.scope import Bound
from attncc.spec.unused import faults_of, without_use
from attncc.spec.used import with_used
from attncc.spec.words import LONGEST_NAME, Words, words_of
from attncc.syntax import tree
from attncc.syntax.parse import MOST_ERRORS, parse

_IMPORTED = (
    "functools",
    "math",
    "torch",
    "triton",
    "typing",
)  # by emitted modules, which a file of that name would hide


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
    if missing:  # most of what else could be found would follow from it
        raise all_findings(file.source, missing)
    words, errors = words_of(definitions)
    attentions = [each for each in file.definitions if isinstance(each, tree.Attention)]
    if len(attentions) != 1:
        raise all_findings(file.source, (*errors, _not_one(file, attentions)))
    resolver = _AttentionResolver(file.source, attentions[0], words, list(errors))
    spec = resolver.run(overrides)
    resolver.check_unused(file.definitions)
    if resolver.errors:
        raise all_findings(file.source, resolver.errors)
    return spec


def resolve_attention(
    attention: tree.Attention, words: Words, overrides: Mapping[str, str]
) -> tuple[Spec, Sequence[Diagnostic]]:
    """An attention that a layer calls, and what is wrong with it."""
    resolver = _AttentionResolver(attention.span.source, attention, words, [])
    spec = resolver.run(overrides)
    return spec, resolver.errors


def all_findings(source: Source, errors: Sequence[Diagnostic]) -> AttnError:
    """Each finding once: those in the file by their place, then those of the command line."""

    def place(diagnostic: Diagnostic) -> tuple[bool, int, int]:
        span = diagnostic.labels[0].span
        return span.source != source, span.line, span.column

    return AttnError(*sorted(dict.fromkeys(errors), key=place)[:MOST_ERRORS])


def _not_one(file: tree.File, attentions: list[tree.Attention]) -> Diagnostic:
    layer = next((each for each in file.definitions if isinstance(each, tree.Layer)), None)
    if layer is not None:
        label = Label(layer.name.span, "a layer stands around attentions")
        help_ = "give the file of one attention; `build`, `check`, `explain`, `list` and `fmt` take layers"
        return Diagnostic("E215", "an attention is wanted here, and this file defines a layer", (label,), (), (help_,))
    if not attentions:
        start = Label(Span(file.source, 1, 1, 1, 2), "expected `attention name { … }` somewhere in the file")
        help_ = "the shortest spec is `attention full {}`"
        if any(isinstance(each, tree.Word | tree.SimilarityWord) for each in file.definitions):
            name = file.source.name.replace("\\", "/").rsplit("/", 1)[-1]
            help_ = f'words are taken into a file with an attention by `use "{name}"`'
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
        self.bindings: dict[str, Bound | None] = {}
        self.words = words.seen_from(self.bindings)
        self.expressions = ExpressionResolver(source, self.words, errors)
        self.parameters = ParameterResolver(attention, self.expressions, errors)
        self.fields = FieldResolver(attention, self.words, self.expressions, self.parameters, errors)

    def run(self, overrides: Mapping[str, str]) -> Spec:
        self.errors += check_module_name(self.attention.name, "an attention")
        statements = self.attention.statements
        parameters = self.parameters.bind(overrides)
        self.bindings |= {each.name.text: None for each in self.attention.parameters}
        self.bindings |= {each.name: Const(each.value, span=each.span) for each in parameters}
        body = BodyResolver(self.words, self.expressions, self.errors, self.bindings)
        declared = body.declare(statements, {each.name.text: each.name.span for each in self.attention.parameters})
        body.define(statements)
        fields = self.fields.fields(statements, FieldName)
        held = self.parameters.requirements(statements, self.bindings)
        checked = len(self.errors)
        base = Spec(
            name=self.attention.name.text,
            summary=summary_of(self.source, self.attention.span),
            source=self.source,
            span=self.attention.span,
            parameters=parameters,
            pattern=TRUE,
            score=TRUE,
            weight=TRUE,
            normalizer=TRUE,
            align=self.fields.align(fields),
        )
        branches = BranchResolver(self.attention, self.fields, self.words, self.bindings, self.errors)
        if branches.exist or FieldName.COMBINE in fields:
            spec = branches.combined(fields, base, declared)
        else:
            spec = self.fields.core(fields, self.bindings, base)
            spec = replace(spec, data=read_data(spec, declared))
        if not held:  # what a requirement guards against need not be told twice
            later = [error for error in self.errors[checked:] if error.code not in ("E209", "E212", "E216")]
            self.errors[checked:] = later
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
            self.fields.similarity_word(use, self.bindings)
        elif use.name.text in self.words.patterns:
            self.expressions.predicate(use, self.bindings, where)
        else:
            self.expressions.value(use, self.bindings, where)
        found = self.errors[mark:]
        del self.errors[mark:]
        return found


def check_module_name(name: tree.Identifier, what: str) -> list[Diagnostic]:
    """What speaks against a name that becomes a Python module and part of an operator's name."""
    reason = None
    if iskeyword(name.text):
        reason = f"`{name.text}` is a keyword of Python"
    elif name.text in _IMPORTED:
        reason = f"emitted modules import `{name.text}`, and a module of that name would hide it"
    elif name.text.startswith("_"):
        reason = "names of emitted modules begin with a letter"
    elif len(name.text) > LONGEST_NAME:
        reason = f"it has {len(name.text)} characters; at most {LONGEST_NAME} make a file name everywhere"
    if reason is None:
        return []
    label = Label(name.span, "expected a name for a Python module")
    message = f"{what} cannot be named `{name.text}`"
    return [Diagnostic("E217", message, (label,), (reason,), ("choose another name",))]


def summary_of(source: Source, span: Span) -> str:
    """The first line of the comment right above a definition, or at the top of the file."""
    lines = source.lines
    at = span.line - 2
    while at > 0 and lines[at - 1].lstrip().startswith("#") and lines[at].lstrip().startswith("#"):
        at -= 1
    above = lines[at].strip() if at >= 0 else ""
    return above.lstrip("#").strip() if above.startswith("#") else ""
