"""Whether a pattern's sums are taken by states, and the steps that tell it or why not."""

from __future__ import annotations

from attncc.graph.core import Core
from attncc.graph.ir import Graph, describe
from attncc.plan.lists import Lists
from attncc.plan.pieces import Pieces
from attncc.plan.ranges import Domain
from attncc.rewrite.engine import Refusal, Step
from attncc.rewrite.reassociate import STATEMENT as REASSOCIATE
from attncc.rewrite.reassociate import States, states_of
from attncc.rewrite.separable import Exponent, Term
from attncc.rewrite.separate import STATEMENT as SEPARATE
from attncc.rewrite.separate import NotSeparable
from attncc.spec.expr import AtRow, Binary, BinaryOp, Const, Expr, Let, Local, rebuild
from attncc.spec.text import text


def associate(graph: Graph, core: Core, domain: Domain, pieces: Pieces | None) -> tuple[States | None, str]:
    """The states of a graph without peaks, or None and why there are none."""
    try:
        states = states_of(
            graph, {each.name: _without_side(each.formula) for each in core.operands if each.kind.is_of_token}
        )
    except NotSeparable as error:
        return None, str(error)
    classes = [*domain.classes]
    if pieces is not None:
        classes += [part.one for piece in pieces.pieces for part in piece.parts]
    if not any(segment.full is not None for each in classes for segment in each.by_row):
        return None, "no run of keys is related to all rows of a tile"
    return states, ""


def associate_runs(graph: Graph, core: Core, lists: Lists) -> tuple[States | None, str]:
    """The same for tiles that data list."""
    if not lists.has_runs:
        return None, "the keys of a row are not one run, in which it is related to all"
    try:
        states = states_of(
            graph, {each.name: _without_side(each.formula) for each in core.operands if each.kind.is_of_token}
        )
    except NotSeparable as error:
        return None, str(error)
    if states.has_exponents:
        return None, "its decays are relative to a key near by, which differs from run to run"
    if any(len(term.factors) > 1 for term in states.terms):
        return None, "features of several factors are many: where data list tiles, pairs are met one by one"
    return states, ""


def _without_side(expr: Expr) -> Expr:
    """What an operand holds, with the side of the token forgotten."""
    match expr:
        case Let(value=value) | AtRow(value=value):
            return _without_side(value)
        case _:
            return rebuild(expr, _without_side)


def state_steps(states: States | None, reason: str, graph: Graph) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """The two laws as they were applied, or why they were not."""
    if states is None:
        return (), (
            Refusal("separate", SEPARATE, reason),
            Refusal("reassociate", REASSOCIATE, "the weight does not come apart"),
        )
    sums = [graph[each.node] for each in states.sums]
    products = tuple(f"{_term(term, states)}" for term in states.terms)
    separate = Step("separate", SEPARATE, (f"weight = {describe(graph['weight'])}",), products)
    before = tuple(f"{node.name} = {describe(node)}" for node in sums)
    after = tuple(
        f"{each.node} = sum over states of keys that all rows of a tile see, and over the pairs of the other keys"
        for each in states.sums
    )
    return (separate, Step("reassociate", REASSOCIATE, before, after)), ()


def _term(term: Term, states: States) -> str:
    """A term as people write it: what is the query's, and what is the key's."""
    parts = [_written(each, states) for each in (term.row, term.key) if each != Const(1)]
    for factor in term.factors:
        decay = _exponent(factor.exponent, states)
        inner = " * ".join([text(factor.row), text(factor.key), *([decay] if decay else [])])
        parts.append(f"sum({inner})")
    decay = _exponent(term.exponent, states)
    return " * ".join([*parts, *([decay] if decay else [])]) or "1"


def _exponent(exponent: Exponent, states: States) -> str:
    parts = []
    if exponent.slope is not None:
        parts.append(f"{_written(exponent.slope, states)} * (i - j)")
    parts += [_written(each, states) for pair in exponent.differences for each in pair]
    return f"exp({' + '.join(parts)})" if parts else ""


def _written(expr: Expr, states: States) -> str:
    def named(each: Expr) -> Expr:
        if isinstance(each, Local) and each.name in states.numbers and states.numbers[each.name].expr is not None:
            return named(states.numbers[each.name].value)
        return rebuild(each, named)

    found = named(expr)
    written = text(found)
    is_sum = isinstance(found, Binary) and found.op in (BinaryOp.ADD, BinaryOp.SUBTRACT)
    return f"({written})" if is_sum else written
