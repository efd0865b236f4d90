"""Words that nothing uses are checked as if they were used once, as far as no argument decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product

from attncc.diagnostics import Diagnostic
from attncc.spec.fields import FieldName
from attncc.syntax import tree

Resolve = Callable[[tree.Call, FieldName], list[Diagnostic]]

_OF_VALUES = ("E209", "E210", "E212", "E216")  # what another argument could mend
_MOST_OPEN = 3  # parameters of which every kind of argument is tried
_FIELDS = (FieldName.WEIGHT, FieldName.NORMALIZE, FieldName.PATTERN, FieldName.SCORE)


def faults_of(word: tree.Word | tree.SimilarityWord, resolve: Resolve) -> list[Diagnostic]:
    """What is wrong with a word wherever it is used: the findings of the field that has fewest.

    Args:
        resolve: the findings of a use of the word in a field.
    """
    open_ = [each for each in word.parameters if each.default is None]
    kinds = product(*(_samples(each) for each in open_)) if len(open_) <= _MOST_OPEN else [map(_number, open_)]
    uses = [tree.Call(word.name, tuple(given), span=word.name.span) for given in kinds]
    fields = _FIELDS if isinstance(word, tree.Word) else _FIELDS[:1]
    fewest: list[Diagnostic] | None = None
    for use, field in product(uses, fields):
        found = _lasting(resolve(use, field))
        if not found or found[0].code == "E213":  # of one that grows too large one use has taken long enough
            return found
        if fewest is None or len(found) < len(fewest):
            fewest = found
    return fewest or []


def _samples(parameter: tree.Parameter) -> tuple[tree.NamedArgument, ...]:
    """A number, a vector, a function and a truth value, where the parameter's type leaves it open."""
    if parameter.type is not None:
        return (_number(parameter),)
    name = parameter.name
    itself = tree.Lambda(name, tree.Reference(name.text, span=name.span), span=name.span)
    vector, truth = tree.Reference("q", span=name.span), tree.Reference("true", span=name.span)
    return (_number(parameter), *(tree.NamedArgument(name, each, span=name.span) for each in (vector, itself, truth)))


def _number(parameter: tree.Parameter) -> tree.NamedArgument:
    """A number that few words treat like no other."""
    name = parameter.name
    is_real = parameter.type is not None and parameter.type.text == "real"
    return tree.NamedArgument(name, tree.Number(7.5 if is_real else 7, span=name.span), span=name.span)


def _lasting(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    return [each for each in found if each.code not in _OF_VALUES]


def without_use(found: Diagnostic, word: tree.Word | tree.SimilarityWord) -> Diagnostic:
    """The finding without the label of the use that was made up."""
    place, *others = found.labels
    return replace(found, labels=(place, *(each for each in others if each.span != word.name.span)))
