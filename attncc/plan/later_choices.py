"""Later keys that no query sees, but that decide which pairs are related: what is made of these is not causal."""

from __future__ import annotations

from attncc.plan.model import Plan
from attncc.spec.expr import Expr, OverKeys, walk
from attncc.spec.functions import KEY_FUNCTIONS


def later_choices(plan: Plan) -> str:
    """How keys that come later decide which pairs a pattern relates; empty where they do not."""
    derived = [each.value for each in plan.core.derived if each.value is not None]
    if any(_ranks(node) for each in (plan.core.pattern, *derived) for node in walk(each)):
        return "keys are ranked, and a later key changes the places of those before it"
    looking = [node for each in derived for node in walk(each) if isinstance(node, OverKeys)]
    ahead = next((node.function for node in looking if KEY_FUNCTIONS[node.function].looks_ahead), None)
    if ahead is not None:
        return f"`{ahead}` looks at later keys"
    related = [part for each in plan.chosen for part in (each.plan, each.among) if part is not None]
    if not all(one.facts.causal for each in related for one in each.domain.classes if not one.facts.empty):
        return "queries choose by keys that are not proven to stand before them"
    return ""


def _ranks(node: Expr) -> bool:
    if not isinstance(node, OverKeys):
        return False
    function = KEY_FUNCTIONS[node.function]
    return function.looks_ahead and function.of_whole
