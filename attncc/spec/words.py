"""The words that a file may use: the prelude's and its own, found by kind and name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TypeVar

from attncc.diagnostics import Diagnostic, Label, Source
from attncc.spec.functions import FUNCTIONS
from attncc.syntax import tree
from attncc.syntax.parse import parse

_D = TypeVar("_D", tree.Word, tree.SimilarityWord)


@cache
def prelude() -> tree.File:
    """The parsed prelude."""
    text = resources.files("attncc.spec").joinpath("prelude.attn").read_text(encoding="utf-8")
    return parse(Source("prelude.attn", text))


@dataclass(frozen=True, slots=True)
class Words:
    """Pattern, function and similarity words by name."""

    patterns: dict[str, tree.Word]
    functions: dict[str, tree.Word]
    similarities: dict[str, tree.SimilarityWord]


def words_of(file: tree.File) -> tuple[Words, tuple[Diagnostic, ...]]:
    """The prelude's words and the file's own; a word that exists already is a diagnostic."""
    words = Words({}, {}, {})
    errors: list[Diagnostic] = []
    for definition in (*prelude().definitions, *file.definitions):
        match definition:
            case tree.Word(kind="pattern", name=name):
                errors += _add(words.patterns, name, definition)
            case tree.Word(name=name):
                errors += _add(words.functions, name, definition)
            case tree.SimilarityWord(name=name):
                errors += _add(words.similarities, name, definition)
    return words, tuple(errors)


def _add(table: dict[str, _D], name: tree.Identifier, definition: _D) -> list[Diagnostic]:
    taken = name.text in FUNCTIONS or name.text == "dot"
    if taken and isinstance(definition, tree.Word):  # similarity words have a place of their own
        help_ = "choose another name"
        return [Diagnostic("E203", f"`{name.text}` is a function of the language", (Label(name.span),), helps=(help_,))]
    if name.text in table:
        first = table[name.text].name.span
        labels = (Label(name.span, "defined again here"), Label(first, "first defined here"))
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
