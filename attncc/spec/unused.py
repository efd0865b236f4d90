"""Words that nothing uses are checked as if they were used once, as far as no argument decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from attncc.diagnostics import Diagnostic
from attncc.spec.fields import FieldName
from attncc.syntax import tree

Resolve = Callable[[tree.Call, FieldName], list[Diagnostic]]

_OF_VALUES = ("E209", "E210", "E212", "E216")  # what another argument could mend
_FIELDS = (FieldName.WEIGHT, FieldName.NORMALIZE, FieldName.PATTERN, FieldName.SCORE)


def faults_of(word: tree.Word | tree.SimilarityWord, resolve: Resolve) -> list[Diagnostic]:
    """What is wrong with a word wherever it is used: the findings of the field that has fewest.

    Args:
        resolve: the findings of a use of the word in a field.
    """
    given = tuple(_sample(each) for each in word.parameters if each.default is None)
    use = tree.Call(word.name, given, span=word.name.span)
    fields = _FIELDS if isinstance(word, tree.Word) else _FIELDS[:1]
    return min((_lasting(resolve(use, field)) for field in fields), key=len)


def _sample(parameter: tree.Parameter) -> tree.NamedArgument:
    """An argument that few words treat like no other."""
    name = parameter.name
    is_real = parameter.type is not None and parameter.type.text == "real"
    return tree.NamedArgument(name, tree.Number(7.5 if is_real else 7, span=name.span), span=name.span)


def _lasting(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    return [each for each in found if each.code not in _OF_VALUES]


def without_use(found: Diagnostic, word: tree.Word | tree.SimilarityWord) -> Diagnostic:
    """The finding without the label of the use that was made up."""
    place, *others = found.labels
    return replace(found, labels=(place, *(each for each in others if each.span != word.name.span)))
