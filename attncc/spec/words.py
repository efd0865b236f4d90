"""The words that a file may use: the prelude's and its own, found by kind and name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from attncc.diagnostics import Diagnostic, Label, Source
from attncc.spec.expr import MADE_BY_PLANNING, Name
from attncc.spec.functions import FUNCTIONS, KEY_FUNCTIONS, VECTOR_FUNCTIONS
from attncc.syntax import tree
from attncc.syntax.parse import parse

TYPES = ("int", "real")
LONGEST_NAME = 64  # what makes a file name everywhere, and lines that can be read
RESERVED = frozenset(
    {name.value for name in Name if name not in MADE_BY_PLANNING}
    | {"pi", "true", "false", "none", "dot", "q", "k", "v", "B"}
)  # bare names with a meaning of their own

_D = TypeVar("_D", tree.Word, tree.SimilarityWord)


@cache
def prelude() -> tree.File:
    """The parsed prelude."""
    text = resources.files("attncc.spec").joinpath("prelude.attn").read_text(encoding="utf-8")
    return parse(Source("prelude.attn", text))


@dataclass(frozen=True, slots=True)
class Words:
    """Pattern, function and similarity words by name; those defined inside an attention see its names."""

    patterns: dict[str, tree.Word]
    functions: dict[str, tree.Word]
    similarities: dict[str, tree.SimilarityWord]
    inner: set[int] = field(default_factory=set, repr=False)  # words defined in the attention, by identity
    scope: dict[str, Any] = field(default_factory=dict, repr=False)  # the attention's names

    def scope_of(self, word: tree.Word | tree.SimilarityWord) -> dict[str, Any]:
        """The names that a word's body sees beside its parameters: q, k and v, or all where it stands among them."""
        if id(word) in self.inner:
            return self.scope
        return {name: self.scope[name] for name in ("q", "k", "v") if name in self.scope}

    def seen_from(self, scope: dict[str, Any]) -> Words:
        """The same words, to be extended by those of one attention, whose names they see."""
        return Words(dict(self.patterns), dict(self.functions), dict(self.similarities), set(self.inner), scope)

    def add(self, definition: tree.Word | tree.SimilarityWord) -> list[Diagnostic]:
        """Take a word in; what speaks against it."""
        errors = _parameters(definition.parameters)
        match definition:
            case tree.Word(kind="pattern"):
                errors += _add(self.patterns, self.functions, definition)
            case tree.Word():
                errors += _add(self.functions, self.patterns, definition)
            case tree.SimilarityWord():
                errors += _add(self.similarities, {}, definition)
        return errors

    def hold(self, word: tree.Word | tree.SimilarityWord) -> bool:
        """Whether this very word is found under its name: it is not if another one had the name first."""
        tables = (self.patterns, self.functions, self.similarities)
        return any(table.get(word.name.text) is word for table in tables)


def words_of(definitions: Iterable[tree.Definition]) -> tuple[Words, tuple[Diagnostic, ...]]:
    """The prelude's words and those among `definitions`; a word that exists already is a diagnostic."""
    words = Words({}, {}, {})
    errors: list[Diagnostic] = []
    for definition in (*prelude().definitions, *definitions):
        if isinstance(definition, tree.Word | tree.SimilarityWord):
            errors += words.add(definition)
    return words, tuple(errors)


def taken(name: tree.Identifier) -> list[Diagnostic]:
    """A diagnostic where something takes a name that the language itself gives a meaning, or one beyond all measure."""
    if len(name.text) > LONGEST_NAME:
        label = Label(name.span, f"expected at most {LONGEST_NAME} characters")
        return [Diagnostic("E217", f"`{name.text}` is too long for a name", (label,))]
    if name.text not in RESERVED:
        return []
    label = Label(name.span, "expected another name")
    return [Diagnostic("E203", f"`{name.text}` is a name of the language", (label,), helps=("choose another name",))]


def twice(name: tree.Identifier, first: tree.Identifier) -> Diagnostic:
    """The diagnostic for a parameter that is declared twice."""
    labels = (Label(name.span, "declared again here"), Label(first.span, "first declared here"))
    return Diagnostic("E203", f"the parameter `{name.text}` is declared twice", labels)


def unknown_type(type_: tree.Identifier) -> Diagnostic:
    """The diagnostic for a type that is neither `int` nor `real`."""
    label = Label(type_.span, "expected `int` or `real`")
    return Diagnostic("E209", f"there is no type `{type_.text}` for a parameter", (label,))


def _parameters(parameters: tuple[tree.Parameter, ...]) -> list[Diagnostic]:
    """What is wrong with the parameters of a word."""
    errors: list[Diagnostic] = []
    seen: dict[str, tree.Identifier] = {}
    for parameter in parameters:
        name = parameter.name
        errors += [twice(name, seen[name.text])] if name.text in seen else taken(name)
        seen.setdefault(name.text, name)
        if parameter.type is not None and parameter.type.text not in TYPES:
            errors.append(unknown_type(parameter.type))
    return errors


def _add(table: dict[str, _D], rival: Mapping[str, tree.Word], definition: _D) -> list[Diagnostic]:
    name = definition.name
    if isinstance(definition, tree.Word):  # similarity words have a place of their own
        if reserved := taken(name):
            return reserved
        if name.text in FUNCTIONS.keys() | VECTOR_FUNCTIONS.keys() | KEY_FUNCTIONS.keys():
            label = Label(name.span, "expected another name")
            help_ = "choose another name"
            return [Diagnostic("E203", f"`{name.text}` is a function of the language", (label,), helps=(help_,))]
    earlier = table.get(name.text) or rival.get(name.text)
    if earlier is not None:
        labels = (Label(name.span, "defined again here"), Label(earlier.name.span, "first defined here"))
        return [Diagnostic("E203", f"the word `{name.text}` is defined twice", labels, helps=("choose another name",))]
    table[name.text] = definition
    return []


def nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """A help line that names the closest known name, or all of them when none is close and they are few."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return (f"write `{close[0]}`",)
    return (f"known here: {', '.join(f'`{each}`' for each in known)}",) if 0 < len(known) <= 24 else ()
