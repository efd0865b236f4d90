"""Checked spec → plan: the laws are applied, the pattern is analysed, tile sizes are chosen."""

from __future__ import annotations

from attncc.diagnostics import AttnError, Diagnostic, Label
from attncc.graph.build import build
from attncc.graph.ir import Graph
from attncc.graph.tokens import split
from attncc.plan.derivation import domain_steps
from attncc.plan.domain import analyse
from attncc.plan.model import Passes, Plan, Slabs
from attncc.plan.ranges import Domain
from attncc.plan.tiles import tiles_for
from attncc.rewrite.algebra import NoDerivative
from attncc.rewrite.backward import Gradients, differentiate
from attncc.rewrite.engine import rewrite
from attncc.rewrite.finish import finish
from attncc.rewrite.laws import LAWS
from attncc.spec.expr import Expr
from attncc.spec.model import Spec

SLABS = Slabs(elements=1 << 18, least_rows=16, most_rows=1024)


def plan(spec: Spec) -> Plan:
    """The plan of a spec.

    Raises:
        AttnError: E301 when the pattern relates no pair, E302 when a weight has no usable derivative.
    """
    domain = analyse(spec.pattern)
    _refuse_empty(spec, domain)
    core = split(spec)
    dense = build(core)
    graph, steps = rewrite(dense, LAWS)
    gradients = _differentiate(spec, graph)
    gpu = _passes(gradients, use_base_two=True)
    return Plan(
        spec=spec,
        core=core,
        domain=domain,
        steps=(*steps, *domain_steps(domain, spec.pattern, graph)),
        dense=dense,
        gpu=gpu,
        torch=_passes(gradients, use_base_two=False),
        saved=gradients.saved,
        reads_delta=gradients.reads_delta,
        has_lse=gradients.has_lse,
        tiles=tiles_for(gpu.forward, gpu.backward),
        slabs=SLABS,
    )


def _passes(gradients: Gradients, *, use_base_two: bool) -> Passes:
    taken: dict[Expr, str] = {}
    forward = finish(gradients.forward, taken, use_base_two=use_base_two)
    return Passes(forward, finish(gradients.backward, taken, use_base_two=use_base_two))


def _refuse_empty(spec: Spec, domain: Domain) -> None:
    if all(each.facts.empty for each in domain.classes):
        label = Label(spec.pattern.span or spec.span, "no query sees any key")
        help_ = "check the signs: `i` is the query, `j` the key, and `causal` is `j <= i`"
        raise AttnError(Diagnostic("E301", "the pattern relates no pair", (label,), helps=(help_,)))


def _differentiate(spec: Spec, graph: Graph) -> Gradients:
    try:
        return differentiate(graph)
    except NoDerivative as error:
        label = Label(error.term.span or spec.span, "this part")
        raise AttnError(Diagnostic("E302", "a weight has no usable derivative", (label,))) from error
