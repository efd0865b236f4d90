"""Parameter values that fit test sizes: with a window of 512, a test of 63 keys would not cut anything."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, product

from attncc.diagnostics import AttnError
from attncc.plan.choose import plan
from attncc.spec.model import Parameter, Spec
from attncc.spec.resolve import load

LARGEST = 16  # a value up to this cuts the shortest long test (63 positions) several times
_VALUES = (13, 5, 7, 3, 11, 16, 8, 4, 2, 1)
_MOST_TRIED = 200


def smaller(spec: Spec, given: Mapping[str, str]) -> dict[str, str] | None:
    """Parameters for a copy of the spec whose whole numbers are at most `LARGEST`.

    None where they are already, or where no such values meet the spec's requirements.
    """
    large = [each for each in spec.parameters if _is_large(each)]
    if not large:
        return None
    # different values first, so that a mix-up of two parameters is seen
    choices = product(*(_VALUES[at:] + _VALUES[:at] for at in range(len(large))))
    small = [each for each in spec.parameters if isinstance(each.value, int) and not _is_large(each)]
    for values in islice(choices, _MOST_TRIED):
        chosen = dict(given) | {each.name: str(value) for each, value in zip(large, values, strict=True)}
        for rest in ({}, *({each.name: str(min(each.value, most)) for each in small} for most in (3, 4))):
            if _is_legal(spec, chosen | rest):
                return chosen | rest
    return None


def _is_large(parameter: Parameter) -> bool:
    return isinstance(parameter.value, int) and abs(parameter.value) > LARGEST


def _is_legal(spec: Spec, parameters: Mapping[str, str]) -> bool:
    try:
        plan(load(spec.source, parameters))
    except AttnError:
        return False
    return True
