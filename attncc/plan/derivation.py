"""The laws by which index analysis turned a sum over all keys into sums over intervals, as recorded steps."""

from __future__ import annotations

from attncc.graph.core import Core
from attncc.graph.ir import Graph, describe
from attncc.graph.ops import Axis, Op
from attncc.plan.describe import heads_text, interval_text, is_restricted
from attncc.plan.ranges import Domain, HeadClass
from attncc.rewrite.engine import Refusal, Step
from attncc.spec.expr import Expr
from attncc.spec.text import text

ONCE_A_TOKEN = "what one token or one distance determines alone is computed once for it, not once for each pair."
SPLIT_HEADS = "a pattern that is decided by the head alone is one constant pattern for each class of heads."
RESTRICT_RANGE = "a sum over all keys is the sum over those that some row of the tile is related to: the rest adds 0."
DROP_MASK = "where every row of the tile is related to every key, `related` is true and no mask is needed."
ONE_SWEEP = "sums over the same keys are taken in one pass; when the running peak rises, they are rescaled."
ONE_SWEEP_WITHOUT_PEAK = "sums over the same keys are taken in one pass."


def token_steps(core: Core) -> tuple[Step, ...]:
    """What was taken out of the pair, if anything was."""
    if not core.derived:
        return ()
    before = tuple(text(each.value) for each in core.derived if each.value is not None)
    after = tuple(f"{each.name}: {each.kind.value}, computed once" for each in core.derived)
    return (Step("once-a-token", ONCE_A_TOKEN, before, after),)


def token_refusals(core: Core) -> tuple[Refusal, ...]:
    """Why nothing was taken out of the pair."""
    reason = "beside the vectors themselves nothing is made of one token or distance alone"
    return () if core.derived else (Refusal("once-a-token", ONCE_A_TOKEN, reason),)


def domain_steps(domain: Domain, pattern: Expr, graph: Graph) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """The steps that hold of a pattern's domain and of the rewritten forward graph, and why others do not."""
    found = (_split_heads(domain, pattern), _restrict_range(domain), _drop_mask(domain), _one_sweep(graph))
    return (
        tuple(step for step in found if isinstance(step, Step)),
        tuple(refusal for refusal in found if isinstance(refusal, Refusal)),
    )


def _split_heads(domain: Domain, pattern: Expr) -> Step | Refusal:
    if len(domain.classes) < 2:
        return Refusal("split-heads", SPLIT_HEADS, "the pattern is one formula for every head")
    after = tuple(f"{heads_text(each)}: related = {text(each.pattern)}" for each in domain.classes)
    return Step("split-heads", SPLIT_HEADS, (f"related = {text(pattern)}",), after)


def _restrict_range(domain: Domain) -> Step | Refusal:
    if not is_restricted(domain):
        return Refusal("restrict-range", RESTRICT_RANGE, "every tile has a row that may be related to any key")
    after = [
        f"{_prefix(domain, each)}sum over {interval_text(segment.touched)}"
        for each in domain.classes
        for segment in each.by_row
    ]
    return Step("restrict-range", RESTRICT_RANGE, ("sum over all keys",), tuple(after))


def _drop_mask(domain: Domain) -> Step | Refusal:
    if all(each.facts.full for each in domain.classes):
        return Refusal("drop-mask", DROP_MASK, "every query is related to every key, so there is no mask")
    after = [
        f"{_prefix(domain, each)}related = true for {interval_text(segment.full)}"
        for each in domain.classes
        for segment in each.by_row
        if segment.full is not None
    ]
    if not after:
        return Refusal("drop-mask", DROP_MASK, "no run of keys is related to all rows of a tile")
    before = tuple(f"{_prefix(domain, each)}related = {text(each.pattern)}" for each in domain.classes)
    return Step("drop-mask", DROP_MASK, before, tuple(after))


def _one_sweep(graph: Graph) -> Step | Refusal:
    """The reductions of a row that share their pass: those that no other sum has to precede."""
    reductions = [node for node in graph if node.op in (Op.PEAK, Op.SUM, Op.CONTRACT) and Axis.ROW in node.axes]
    sums = [node for node in reductions if node.op is not Op.PEAK]
    last = [
        node for node in reductions if not any(graph.depends(each.name, node.name) for each in sums if each != node)
    ]
    peaks = [node for node in reductions if node.op is Op.PEAK]
    together = [node for node in reductions if node in last or node in peaks]
    if len(together) < 2:
        return Refusal("one-sweep", ONE_SWEEP_WITHOUT_PEAK, "there is one sum")
    before = tuple(f"{node.name} = {describe(node)}" for node in together)
    after = (f"for each j once: {', '.join(node.name for node in together)}",)
    return Step("one-sweep", ONE_SWEEP if peaks else ONE_SWEEP_WITHOUT_PEAK, before, after)


def _prefix(domain: Domain, one: HeadClass) -> str:
    return f"{heads_text(one)}: " if len(domain.classes) > 1 else ""
