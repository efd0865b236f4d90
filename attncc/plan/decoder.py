"""Plan → what a decoder keeps of the keys so far, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.graph.core import Kind
from attncc.plan.later_choices import later_choices
from attncc.plan.model import Mixture, Plan
from attncc.plan.ranges import HeadClass, Interval, Segment
from attncc.spec.data import Blocks, Size
from attncc.spec.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Call,
    Const,
    Entry,
    Expr,
    Local,
    Name,
    OverKeys,
    Symbol,
    names_in,
    substitute,
    walk,
)
from attncc.spec.model import Spec
from attncc.spec.sides import Side, side_of

_TOKENS = frozenset({Size.QUERIES, Size.KEYS})
_LENGTHS = frozenset({Name.QUERIES, Name.KEYS, Name.VALID})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What rows to come may still ask for.

    Attributes:
        leading: so many first keys stay.
        back: of the others so many before the next query stay; None keeps every key.
        sums: whether keys that all later queries see are summed up and not kept.
        reads_length: whether weights read how long the whole sequence is.
        carries: whether derived values are sums over keys, which go on from token to token.
        anew: whether what the caller gives of keys stays, and what is derived from it is derived anew.
        blocks: whether blocks of keys that are full are made once all the same.
    """

    leading: int = 0
    back: int | None = None
    sums: bool = False
    reads_length: bool = False
    carries: bool = False
    anew: bool = False
    blocks: bool = False


@dataclass(frozen=True, slots=True)
class _Kept:
    """Of the keys of one class of heads: so many first ones, and so many before the next query."""

    leading: int
    back: int | None


def decoder_of(plan: Plan) -> Decoder | str:
    """What a decoder keeps, or why the plan has none."""
    classes = [each for each in plan.domain.classes if not each.facts.empty]
    core = plan.core
    if not all(each.facts.causal for each in classes):
        return "the pattern is not proven causal, and a query may see keys that come after it"
    if (reason := _why_not(plan.spec)) is not None:
        return reason
    derived = [each.value for each in core.derived if each.value is not None]
    if reason := later_choices(plan):
        return reason
    if any(names_in(each) & _LENGTHS for each in derived):
        return "what is derived from a token reads how many tokens there are"
    if plan.spec.blocks is not None or plan.chosen:
        return _anew(plan)
    if _looks_up_pairs(plan):
        return "a table is looked up by a query and a key together, and only new tokens' indices are checked"
    fields = (core.pattern, core.score, core.weight, core.normalizer)
    reads_length = any(names_in(each) & _LENGTHS for each in fields)
    if plan.lists is not None and reads_length:
        return "pairs are listed anew for each token, but something reads how long the whole sequence is"
    kept = [_kept(each, in_one=plan.lists is not None) for each in classes]
    by_distance = bool(core.of_kind(Kind.OFFSET_NUMBER))  # such numbers are told by places, which have to be dense
    bounded = all(each.back is not None for each in kept) and not (by_distance and any(each.leading for each in kept))
    return Decoder(
        leading=max((each.leading for each in kept), default=0) if bounded else 0,
        back=max((each.back for each in kept if each.back is not None), default=0) if bounded else None,
        sums=not (bounded or by_distance or plan.states is None) and len(classes) == 1 and _grows(classes[0]),
        reads_length=reads_length,
        carries=any(isinstance(node, OverKeys) for each in derived for node in walk(each)),
    )


def _why_not(spec: Spec) -> str | None:
    """Why new tokens' part of some data is no part of the data of all tokens, if it is not."""
    if any(isinstance(axis, Blocks) for each in spec.data for axis in each.axes):
        return "a table has entries for all blocks, and a step knows those of the new tokens alone"
    if any(each.maker is not None and set(each.axes) & _TOKENS for each in spec.data):
        return "what is made from a seed has numbers for each token, and a step knows the new ones alone"
    return None


def _anew(plan: Plan) -> Decoder | str:
    """A decoder of a plan in which a key to come may change what is derived of those before it: blocks and choices."""
    spec = plan.spec
    fields = (spec.pattern, spec.score, spec.weight, spec.normalizer)
    if any(names_in(each) & _LENGTHS for each in fields):
        return "blocks of keys and choices are made anew for each token, but something reads how many tokens there are"
    parts = [plan, *(part for each in plan.chosen for part in (each.plan, each.among) if part is not None)]
    return Decoder(anew=True, blocks=any(map(keeps_blocks, parts)))


def keeps_blocks(plan: Plan) -> bool:
    """Whether all that is made of a block of keys once it is full depends on its keys alone."""
    core = plan.core
    if plan.spec.blocks is None or core.of_kind(Kind.OFFSET_NUMBER, Kind.TABLE):
        return False
    values = [each.value for each in core.derived if each.value is not None]
    return not any(isinstance(node, OverKeys) for each in values for node in walk(each))


def _looks_up_pairs(plan: Plan) -> bool:
    """Whether an index into a table is of a query and a key together."""
    core, data = plan.core, {each.name: each for each in plan.spec.data}
    values: dict[Expr, Expr] = {Local(each.name): each.formula for each in core.operands if each.kind.is_of_token}
    indices = [
        substitute(index, values)
        for field in (core.score, core.weight, core.normalizer, core.pattern)
        for each in walk(field)
        if isinstance(each, Entry)
        for index in each.indices
    ]
    return any(side_of(each, data) in (Side.PAIR, Side.OFFSET) for each in indices)


def decoders_of(mixture: Mixture) -> dict[str, Decoder] | str:
    """The decoders of all branches, or why their outputs cannot be combined token by token."""
    found = {name: decoder_of(plan) for name, plan in mixture.branches}
    for name, each in found.items():
        if isinstance(each, str):
            return f"of the branch `{name}`, {each}"
    if (reason := _why_not(mixture.spec)) is not None:
        return reason
    combine = mixture.spec.combine
    assert combine is not None
    if names_in(combine) & _LENGTHS:
        return "what combines the branches reads how many tokens there are"
    if any(isinstance(node, OverKeys) for node in walk(combine)):
        return "what combines the branches reads sums over keys"
    return {name: each for name, each in found.items() if isinstance(each, Decoder)}


def _kept(one: HeadClass, *, in_one: bool) -> _Kept:
    """Of one class of heads, `in_one` run of keys; every key where nothing better is known."""
    if in_one and one.facts.reach_back is None:
        return _Kept(0, None)
    if one.facts.reach_back is not None:
        return _Kept(0, max(one.facts.reach_back, 0))
    leading, back = 0, 0
    for segment in one.by_row:
        match segment.touched:
            case Interval(
                low=Binary(op=BinaryOp.SUBTRACT, left=Symbol(name=Name.FIRST), right=Const(value=int(distance)))
            ):
                back = max(back, distance)
            case Interval(low=Symbol(name=Name.FIRST)):
                pass
            case Interval(
                low=None | Const(),
                high=Const(value=int(high)) | Call(function="min", arguments=(_, Const(value=int(high)))),
            ):
                leading = max(leading, high + 1)
            case _:
                return _Kept(0, None)
    return _Kept(leading, back)


def _grows(one: HeadClass) -> bool:
    """Whether every key comes into the run that all rows see, at its end, and never leaves it."""
    if one.condition != TRUE or not one.by_row or any(Name.HEAD in _names(each) for each in one.by_row):
        return False
    touched, full = one.by_row[0].touched, one.by_row[0].full
    if full is None or touched.low is not None or full.low is not None or full.high is None:
        return False
    return touched.when == TRUE and full.when == TRUE and _is_monotone(full.high)


def _names(segment: Segment) -> frozenset[Name]:
    ends = [segment.touched, *([] if segment.full is None else [segment.full])]
    read = [part for end in ends for part in (end.low, end.high, end.when) if part is not None]
    return frozenset(name for each in read for name in names_in(each))


def _is_monotone(expr: Expr) -> bool:
    """Whether an end of an interval never falls while rows go on."""
    match expr:
        case Const() | Symbol():
            return True
        case Binary(op=BinaryOp.ADD, left=left, right=right):
            return _is_monotone(left) and _is_monotone(right)
        case Binary(op=BinaryOp.SUBTRACT, left=left, right=Const()):
            return _is_monotone(left)
        case Binary(op=BinaryOp.FLOOR_DIVIDE, left=left, right=Const(value=value)) if value > 0:
            return _is_monotone(left)
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=Const(value=value)) if value >= 0:
            return _is_monotone(left)
        case Binary(op=BinaryOp.MULTIPLY, left=Const(value=value), right=right) if value >= 0:
            return _is_monotone(right)
        case Call(function="min" | "max", arguments=arguments):
            return all(map(_is_monotone, arguments))
        case _:
            return False
