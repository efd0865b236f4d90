"""The laws by which index analysis turned a sum over all keys into sums over intervals, as recorded steps."""

from __future__ import annotations

from collections.abc import Iterator

from attncc.graph.core import Core
from attncc.graph.ir import Graph, describe
from attncc.graph.ops import Axis, Op
from attncc.graph.per_channel import STATEMENT
from attncc.plan.describe import by_coordinates, coordinates_text, heads_text, interval_text, is_restricted
from attncc.plan.pieces import Part, Pieces
from attncc.plan.ranges import Domain, HeadClass
from attncc.plan.written import tree_expr
from attncc.rewrite.engine import Refusal, Step
from attncc.spec.expr import Const, Expr, Let, Name, Vector, walk
from attncc.spec.model import Spec
from attncc.spec.text import text

ONCE_A_TOKEN = "what one token or one distance determines alone is computed once for it, not once for each pair."
SPLIT_HEADS = "a pattern that is decided by the head alone is one constant pattern for each class of heads."
RESTRICT_RANGE = "a sum over all keys is the sum over those that some row of the tile is related to: the rest adds 0."
SPLIT_UNION = (
    "P = A | B is A, and B without A; each has its own layout, and the sums of a row go on from one to the next."
)
RESIDUE_LAYOUT = "where rows of one class of positions see only keys of one class, each class is taken by itself."
OWN_ROWS = "rows that see much more than their neighbours have tiles of their own; other tiles pass them over."
COMPACT_KEYS = "where all related keys lie on strips, these are taken as if they lay side by side."
DROP_MASK = "where every row of the tile is related to every key, `related` is true and no mask is needed."
ONE_SWEEP = "sums over the same keys are taken in one pass; when the running peak rises, they are rescaled."
ONE_SWEEP_WITHOUT_PEAK = "sums over the same keys are taken in one pass."


def divided_step(divided: Spec, name: str, sums: Spec) -> Step:
    """How an attention came to read the sums of another."""
    before = ("normalize = channels",)
    weight = "" if sums.weight == Const(1) else f"({text(sums.weight)}) * "
    lets = (each for each in walk(divided.weight) if isinstance(each, Let) and Vector(name) in walk(each.value))
    row = next(each.name for each in lets)
    after = (
        f"{name} = sum over j of {weight}{text(sums.value)}",
        f"weight = {text(divided.weight)}, in which {row} is divided by {name}",
    )
    return Step("divide-by-channel", STATEMENT, before, after)


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


def domain_steps(
    domain: Domain, pieces: Pieces | None, reason: str, pattern: Expr, graph: Graph
) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """The steps that hold of a pattern's domain and of the rewritten forward graph, and why others do not.

    `reason` says why there are no pieces, where there are none.
    """
    found = (
        _split_heads(domain, pattern),
        *_into_pieces(domain, pieces, reason),
        _restrict_range(domain),
        _drop_mask(domain),
        _one_sweep(graph),
    )
    return (
        tuple(step for step in found if isinstance(step, Step)),
        tuple(refusal for refusal in found if isinstance(refusal, Refusal)),
    )


def _into_pieces(domain: Domain, pieces: Pieces | None, reason: str) -> Iterator[Step | Refusal]:
    """How the pattern came apart, and which layouts its pieces have."""
    if pieces is None:
        laws = (
            *(("split-union", SPLIT_UNION), ("residue-layout", RESIDUE_LAYOUT)),
            *(("compact-keys", COMPACT_KEYS), ("own-rows", OWN_ROWS)),
        )
        yield from (Refusal(name, statement, reason) for name, statement in laws)
        return
    yield _split_union(domain, pieces)
    parts = [part for one in domain.classes for part in pieces.parts_of(one)]
    turned = [part for part in parts if part.layout.rows.turn]
    reason = "no piece has a layout in which rows of one class see keys of one class"
    yield _in_layouts(domain, turned, "residue-layout", RESIDUE_LAYOUT, reason)
    compact = [part for part in parts if not part.layout.rows.turn and not part.layout.keys.is_everything]
    reason = "no piece has keys on strips that stand still"
    yield _in_layouts(domain, compact, "compact-keys", COMPACT_KEYS, reason)
    alone = [part for part in parts if part.alone]
    yield _in_layouts(domain, alone, "own-rows", OWN_ROWS, "no rows are better not among their neighbours")


def _split_union(domain: Domain, pieces: Pieces) -> Step | Refusal:
    apart = [(one, parts) for one in domain.classes if len(parts := pieces.parts_of(one)) > 1]
    if not apart:
        return Refusal("split-union", SPLIT_UNION, "all pairs of a head run in one layout")
    before = tuple(f"{_prefix(domain, one)}related = {text(one.pattern)}" for one, _ in apart)
    after = tuple(f"{_prefix(domain, one)}related = {text(part.pattern)}" for one, parts in apart for part in parts)
    return Step("split-union", SPLIT_UNION, before, after)


def _in_layouts(domain: Domain, parts: list[Part], law: str, statement: str, reason: str) -> Step | Refusal:
    if not parts:
        return Refusal(law, statement, reason)
    before = tuple(f"{_prefix(domain, part.one)}related = {text(part.pattern)}" for part in parts)
    after = tuple(
        f"{_prefix(domain, part.one)}related = {by_coordinates(part)}, where {_where(part)}" for part in parts
    )
    return Step(law, statement, before, after)


def _where(part: Part) -> str:
    return coordinates_text(part.layout) or text(tree_expr(part.layout.rows.tree(Name.I)))


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
