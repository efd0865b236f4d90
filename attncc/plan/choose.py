"""Checked spec → plan: the laws are applied, the pattern is analysed, tile sizes are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attncc.diagnostics import AttnError, Diagnostic, Label
from attncc.graph.build import build
from attncc.graph.core import Core, Operand
from attncc.graph.ir import Graph
from attncc.graph.per_channel import divided_by_channel
from attncc.graph.tokens import Mixed, split
from attncc.plan.associate import associate, associate_runs, state_steps
from attncc.plan.cpu_tiles import SMALLEST, edge_for
from attncc.plan.decays import decays
from attncc.plan.derivation import divided_step, domain_steps, token_refusals, token_steps
from attncc.plan.domain import analyse
from attncc.plan.in_pieces import counts_first, pieces_of
from attncc.plan.later_keys import refuse_later_keys
from attncc.plan.list_steps import with_lists
from attncc.plan.listing import lists_of
from attncc.plan.lists import LIST
from attncc.plan.model import Chosen, Mixture, Passes, Plan, Planned, Slabs
from attncc.plan.outer import outer
from attncc.plan.overflow import overflows
from attncc.plan.ranges import Domain, HeadClass
from attncc.plan.tiles import tiles_for
from attncc.plan.unread import unread
from attncc.rewrite.backward import Gradients, differentiate
from attncc.rewrite.engine import rewrite
from attncc.rewrite.exponential import never_negative
from attncc.rewrite.finish import finish
from attncc.rewrite.laws import DIVISIONS, PEAKS
from attncc.spec.choices import choices_of, clashing
from attncc.spec.expr import (
    And,
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Expr,
    Let,
    Merge,
    Name,
    Output,
    Pooled,
    Shares,
    Symbol,
    Top,
    Vector,
    walk,
)
from attncc.spec.model import Spec
from attncc.spec.pooled import Blocked, on_blocks
from attncc.spec.sides import reads_data

_BY_DATA = "data decide which pairs are related, and tiles are listed when they are known"
SLABS = Slabs(elements=1 << 18, least_rows=16, most_rows=1024, block=64)


def plan(spec: Spec) -> Planned:
    """The plan of a spec, or of each of its branches.

    Raises:
        AttnError: as `plan_core`, and E303 when branches are merged whose rows have no sum that is proven positive.
    """
    _refuse_clashing_choices(spec)
    warnings = unread(spec)
    spec = divided_by_channel(spec)
    if spec.combine is None:
        planned = plan_core(spec)
        return replace(planned, warnings=(*planned.warnings, *warnings))
    read = _branches_read(spec.combine) | {each.name for _, branch in spec.branches for each in branch.data}
    branches = tuple((name, _branch(branch, spec)) for name, branch in spec.branches if name in read)
    mixture = Mixture(spec, branches, warnings)
    _check_merges(mixture)
    return mixture


def _branches_read(combine: Expr) -> set[str]:
    """The branches whose outputs are combined; of others only what they give to keys may be asked for."""
    found = {node.branch for node in walk(combine) if isinstance(node, Output)}
    return found.union(*(node.branches for node in walk(combine) if isinstance(node, Merge)))


def _refuse_choices_among_blocks(spec: Spec) -> None:
    """Choices are of single keys."""
    found = choices_of(spec)
    if spec.blocks is not None and found:
        label = Label(found[0].let.span or spec.span, "chosen here")
        note = (
            "callers get and give a choice as a number for each key of the call, or as numbers of such keys, and "
            "`pool` makes one key of several"
        )
        help_ = (
            "choose in a branch of single keys, by what a branch of these blocks gives to them: "
            "`top(…, by = shares(means), blocks = …)`"
        )
        message = f"`{found[0].name}` is a choice in an attention of blocks"
        raise AttnError(Diagnostic("E306", message, (label,), (note,), (help_,)))


def _refuse_clashing_choices(spec: Spec) -> None:
    found = clashing(spec)
    if found is not None:
        first, second = (
            Label(each.span or spec.span, text) for each, text in zip(found, ("first", "again"), strict=True)
        )
        note = "callers tell choices apart by their names"
        raise AttnError(Diagnostic("E203", f"two choices are named `{found[0].name}`", (second, first), (note,)))


def _branch(branch: Spec, spec: Spec) -> Plan:
    """The plan of a branch; one that divides by the sums of another says so."""
    planned = plan_core(branch)
    sums = {name: each for name, each in spec.branches if name in {given.name for given in branch.data}}
    steps = tuple(divided_step(branch, name, each) for name, each in sums.items())
    return replace(planned, steps=(*steps, *planned.steps))


def _check_merges(mixture: Mixture) -> None:
    plans = dict(mixture.branches)
    combine = mixture.spec.combine
    assert combine is not None
    for node in walk(combine):
        for name in node.branches if isinstance(node, Merge) else ():
            if not plans[name].has_lse:
                where = plans[name].spec
                labels = (
                    Label(node.span or combine.span or mixture.spec.span, f"merges `{name}`"),
                    Label(where.normalizer.span or where.span, "this is not proven to be a sum of weights >= 0"),
                )
                note = "merged branches count by the sums of their rows' weights, which have to be positive"
                positive = "divide by the sum of weights such as `exp(…)` or `relu(…)`"
                helps = (f"combine their outputs with `+`, or {positive}",)
                message = f"the branch `{name}` cannot be merged"
                raise AttnError(Diagnostic("E303", message, labels, (note,), helps))


def plan_core(spec: Spec) -> Plan:
    """The plan of a spec without branches.

    Raises:
        AttnError: E301 when the pattern relates no pair, E302 when a vector would have to be made for every pair, E304
            when a causal pattern hides keys of which others are made.
    """
    _refuse_choices_among_blocks(spec)
    spec = _on_blocks(spec)
    domain = _domain(spec)
    _refuse_empty(spec, domain)
    refuse_later_keys(spec, domain)
    causal = all(each.facts.causal for each in domain.classes)
    core = _core(spec)
    dense = build(core)
    graph, steps, refusals = rewrite(dense, DIVISIONS)
    data = {each.name: each for each in spec.data}
    lists = lists_of(core, data, in_one=counts_first(graph)) if core.reads_data else None
    pieces, why_whole = pieces_of(domain, core, graph) if lists is None else (None, _BY_DATA)
    if lists is None:
        states, reason = associate(graph, core, domain, pieces)
    else:
        states, reason = associate_runs(graph, core, lists)
    if states is None or not states.has_exponents:
        graph, of_peaks, not_of_peaks = rewrite(graph, PEAKS)
        steps, refusals = (*steps, *of_peaks), (*refusals, *not_of_peaks)
        if of_peaks and states is not None:
            states, reason = None, "its exponentials may be large: only a running maximum keeps them in range"
    by_states, not_by_states = state_steps(states, reason, graph)
    by_domain, not_by_domain = domain_steps(domain, pieces, why_whole, spec.pattern, graph)
    if lists is not None:
        by_domain, not_by_domain = with_lists(lists, core.pattern, by_domain, not_by_domain)
    at_least_zero = (each.name for each in core.derived if each.value is not None and never_negative(each.value))
    fixed = _fixed(spec, core)
    gradients = differentiate(graph, frozenset(at_least_zero), fixed, factors_last=states is None)
    numbers = states.numbers if states is not None else Graph((), ())
    gpu = _passes(gradients, numbers, use_base_two=True)
    return Plan(
        spec=spec,
        core=core,
        domain=domain,
        pieces=pieces,
        lists=lists and replace(lists, states=states),
        states=states if lists is None else None,
        of_sums=gradients.of_sums,
        steps=(*token_steps(core), *steps, *by_domain, *by_states),
        refusals=(*token_refusals(core), *refusals, *not_by_domain, *not_by_states),
        dense=dense,
        gpu=gpu,
        torch=_passes(gradients, numbers, use_base_two=False),
        saved=gradients.saved,
        reads_delta=gradients.reads_delta,
        has_lse=gradients.has_lse,
        tiles=tiles_for(
            gpu.forward,
            gpu.backward,
            pattern=core.pattern,
            most=None if lists is None else LIST,
            terms=0 if states is None else len(states.terms),
        ),
        edge=edge_for(domain, pieces) if lists is None else SMALLEST,
        slabs=SLABS,
        warnings=overflows(spec, graph, decays(spec, causal)),
        chosen=tuple(_chosen(spec)),
    )


def _on_blocks(spec: Spec) -> Spec:
    """The spec in which `j` counts the blocks of keys, where keys are such."""
    if spec.blocks is None or spec.blocks.at is None:
        return spec
    at = spec.blocks.at
    return replace(
        spec,
        pattern=on_blocks(spec.pattern, at),
        score=on_blocks(spec.score, at),
        weight=on_blocks(spec.weight, at),
        normalizer=on_blocks(spec.normalizer, at),
        value=on_blocks(spec.value, at),
    )


def _chosen(spec: Spec) -> Iterator[Chosen]:
    """The attentions whose weights say which keys the pattern chooses."""
    for each in choices_of(spec):
        match each.let.value:
            case Top(by=Shares() as shares, among=among, block=block):
                own = replace(
                    spec,
                    pattern=shares.pattern,
                    score=shares.score,
                    weight=shares.weight,
                    normalizer=shares.normalizer,
                    value=shares.value,
                    blocks=Blocked(shares.width, shares.stride, shares.at) if shares.width else None,
                )
                related = _among(spec, shares.value, among, block)
                yield Chosen(each.name, *(_precisely(plan_core(part)) for part in (own, related)))
            case Top(by=by, among=among):
                own = replace(spec, pattern=among, score=by, weight=Symbol(Name.SCORE), normalizer=Const(1))
                yield Chosen(each.name, _precisely(plan_core(own)))


def _among(spec: Spec, keys: Expr, among: Expr, block: int) -> Spec:
    """An attention to the blocks of keys among which queries choose; each stands where its first key does."""
    data = {each.name: each for each in spec.data}
    vectors = (each for each in walk(keys) if isinstance(each, Vector))
    value: Expr = next(each for each in vectors if data[each.name].is_column)
    blocks = None
    if block > 1:
        blocks = Blocked(block, block, Binary(BinaryOp.MULTIPLY, Const(block), Symbol(Name.J)))
        value = Pooled(value, block, block, blocks.at)
    return replace(
        spec, pattern=among, score=Const(0), weight=Const(0), normalizer=Const(1), value=value, blocks=blocks
    )


def _precisely(plan: Plan) -> Plan:
    """A plan for weights alone, whose derived vectors are not rounded to the type of q."""
    operands = tuple(
        replace(each, wide=True) if each.value is not None and each.kind.is_vector else each
        for each in plan.core.operands
    )
    lists = plan.lists and replace(plan.lists, states=None)
    return replace(plan, core=replace(plan.core, operands=operands), states=None, lists=lists)


def _domain(spec: Spec) -> Domain:
    """What is known of the pattern before data are: of one that reads data, of the affine one around it."""
    if spec.blocks is not None:
        return Domain(tuple(_of_blocks(each, spec.blocks) for each in analyse(outer(spec.pattern)).classes))
    if not reads_data(spec.pattern):
        return analyse(spec.pattern)
    return Domain(tuple(map(_around, analyse(outer(spec.pattern)).classes)))


def _of_blocks(one: HeadClass, blocks: Blocked) -> HeadClass:
    """A class of heads whose keys are blocks: these are no positions, and each is as late as its last key."""
    last = Binary(
        BinaryOp.ADD, Binary(BinaryOp.MULTIPLY, Const(blocks.stride), Symbol(Name.J)), Const(blocks.width - 1)
    )
    ahead = analyse(And((one.pattern, Compare(CompareOp.GREATER, last, Symbol(Name.I))))).classes
    causal = all(each.facts.empty for each in ahead)
    facts = replace(one.facts, causal=causal, self_related=False, shift=None, reach_back=None, reach_ahead=None)
    return replace(one, facts=facts)


def _around(one: HeadClass) -> HeadClass:
    """A class of heads of which only an outer pattern is known."""
    by_row, by_column = (tuple(replace(each, full=None) for each in side) for side in (one.by_row, one.by_column))
    facts = replace(one.facts, full=False, self_related=False, shift=None)
    return replace(one, by_row=by_row, by_column=by_column, facts=facts)


def _fixed(spec: Spec, core: Core) -> frozenset[str]:
    """The operands in which there is nothing to learn: numbers of whole numbers and positions alone, whole parts."""
    whole = {each.name: not each.is_real for each in spec.data}

    def is_fixed(each: Operand) -> bool:
        if each.value is None:
            return whole[each.source or each.name]
        names = (getattr(node, "name", None) for node in walk(each.value))
        return all(whole[name] for name in names if name in whole)

    def is_whole_part(value: Expr | None) -> bool:
        inner = value.value if isinstance(value, Let) else value
        return isinstance(inner, Call) and inner.function == "floor"

    return frozenset(
        each.name
        for each in core.operands
        if each.exact or is_whole_part(each.value) or (not each.kind.is_vector and is_fixed(each))
    )


def _passes(gradients: Gradients, numbers: Graph, *, use_base_two: bool) -> Passes:
    taken: dict[Expr, str] = {}
    forward = finish(gradients.forward, taken, use_base_two=use_base_two)
    backward = finish(gradients.backward, taken, use_base_two=use_base_two)
    return Passes(forward, backward, finish(numbers, taken, use_base_two=use_base_two))


def _core(spec: Spec) -> Core:
    try:
        return split(spec)
    except Mixed as error:
        label = Label(error.term.span or spec.span, "made of the query's and the key's vectors")
        raise AttnError(
            Diagnostic("E302", "a vector of a pair cannot be used so", (label,), (error.reason,))
        ) from error


def _refuse_empty(spec: Spec, domain: Domain) -> None:
    if all(each.facts.empty for each in domain.classes):
        label = Label(spec.pattern.span or spec.span, "no query sees any key")
        help_ = "check the signs: `i` is the query, `j` the key, and `causal` is `j <= i`"
        raise AttnError(Diagnostic("E301", "the pattern relates no pair", (label,), helps=(help_,)))
