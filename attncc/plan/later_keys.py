"""Values that are made of later keys, under a pattern that hides these: refused."""

from __future__ import annotations

from collections.abc import Iterator

from attncc.diagnostics import AttnError, Diagnostic, Label
from attncc.plan.ranges import Domain
from attncc.spec.core_fields import read_fields
from attncc.spec.expr import Compare, Expr, OverKeys, children
from attncc.spec.functions import KEY_FUNCTIONS
from attncc.spec.model import Spec


def refuse_later_keys(spec: Spec, domain: Domain) -> None:
    """Refuse functions of all keys where the pattern is causal for some head.

    The order of keys may say which pairs meet: what is only compared is no value that a query learns.

    Raises:
        AttnError: E304, at the function and at the pattern.
    """
    causal = any(each.facts.causal and not each.facts.empty for each in domain.classes)
    found = next((node for field in read_fields(spec) for node in _later(field)), None)
    if not causal or found is None:
        return
    function = KEY_FUNCTIONS[found.function]
    labels = (
        Label(found.span or spec.span, "every key has something of the last one"),
        Label(spec.pattern.span or spec.span, "no query sees a later key"),
    )
    note = "queries would learn of keys that the pattern hides from them, and a decoder could not go on key by key"
    helps = (function.instead,) if function.instead else ()
    raise AttnError(
        Diagnostic("E304", f"`{function.name}` looks at later keys in a causal attention", labels, (note,), helps)
    )


def _later(expr: Expr, *, compared: bool = False) -> Iterator[OverKeys]:
    """The functions of later keys in a value, but for whole numbers that are only compared."""
    compared = compared or isinstance(expr, Compare)
    if isinstance(expr, OverKeys):
        function = KEY_FUNCTIONS[expr.function]
        if function.looks_ahead and not (compared and function.of_whole):
            yield expr
    for child in children(expr):
        yield from _later(child, compared=compared)
