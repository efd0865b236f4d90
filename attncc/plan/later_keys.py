"""Values that are made of later keys, under a pattern that hides these: refused."""

from __future__ import annotations

from attncc.diagnostics import AttnError, Diagnostic, Label
from attncc.plan.ranges import Domain
from attncc.spec.core_fields import read_fields
from attncc.spec.expr import Expr, OverKeys, walk
from attncc.spec.functions import KEY_FUNCTIONS
from attncc.spec.model import Spec


def refuse_later_keys(spec: Spec, domain: Domain) -> None:
    """Refuse functions of all keys where the pattern is causal for some head.

    Raises:
        AttnError: E304, at the function and at the pattern.
    """
    causal = any(each.facts.causal and not each.facts.empty for each in domain.classes)
    found = next((node for field in read_fields(spec) for node in walk(field) if _looks_ahead(node)), None)
    if not causal or not isinstance(found, OverKeys):
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


def _looks_ahead(node: Expr) -> bool:
    return isinstance(node, OverKeys) and KEY_FUNCTIONS[node.function].looks_ahead
