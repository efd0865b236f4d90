"""A core whose pattern reads data → the passes of its lists, and how rows and keys stand in each."""

from __future__ import annotations

from dataclasses import replace

from attncc.graph.core import Core
from attncc.plan.conjunctions import any_of, conjunctions, union
from attncc.plan.fact_reader import FactReader
from attncc.plan.lists import Lists, Order, Pass, Runs, is_marked, named_by
from attncc.spec.data import Data
from attncc.spec.expr import And, Entry, Expr, Local, Name, Not, names_in, walk


def lists_of(core: Core, data: dict[str, Data], *, in_one: bool) -> Lists:
    """The lists of a core whose pattern reads data; `in_one` pass where a sum over the row has to be known first."""
    reader = FactReader(core, data)
    groups: dict[Order | None, list[Runs]] = {}
    for each in map(reader.runs, conjunctions(core.pattern)):
        groups.setdefault(reader.order(each), []).append(each)
    in_order = [
        (order, some)
        for order, runs in sorted(groups.items(), key=lambda each: each[0] is not None)  # stable: as they are written
        for some in _by_layout(order, runs)
    ]
    comes_apart = len(in_order) > 1
    if in_one and comes_apart:
        in_order = [(None, [each for _, runs in in_order for each in runs])]
    before: list[Expr] = []
    passes = []
    for order, runs in in_order:
        own = union([each.pattern for each in runs])
        pattern = core.pattern if len(in_order) == 1 else own
        if before:
            pattern = And((own, *(Not(each) for each in before)))
        made = _pass(pattern, tuple(runs), order)
        passes.append(replace(made, few=None) if in_one and comes_apart else made)
        before.append(own)
    return Lists(
        by_head=Name.HEAD in names_in(core.pattern) or any(map(reader.has_heads, _read(core.pattern))),
        passes=tuple(passes),
        ascending=frozenset(filter(reader.ascends, _read(core.pattern))),
        in_one=in_one and comes_apart,
    )


def _pass(pattern: Expr, runs: tuple[Runs, ...], order: Order | None) -> Pass:
    named = [named_by(each) for each in runs]
    if named[0] is not None:
        return Pass(pattern=pattern, runs=runs, few=min(each for each in named if each is not None))
    told = any(each.blocks for each in runs)  # blocks are told by places
    alive = any_of([each.keys for each in runs]) if all(each.keys for each in runs) and not told else None
    if order is not None:
        return Pass(pattern=pattern, runs=runs, order=order, alive=alive)
    rows = [each.rows for each in runs if each.rows]
    marked = [] if told or len(runs) == 1 else list(filter(is_marked, runs))
    return Pass(
        pattern=pattern,
        runs=runs,
        rows_first=None if not rows else any_of(rows if len(rows) == len(runs) else rows[:1]),
        alive=alive,
        apart=any_of([each.keys for each in marked]) if 0 < len(marked) < len(runs) else None,
    )


def _by_layout(order: Order | None, runs: list[Runs]) -> list[list[Runs]]:
    """Conjunctions of one order, those apart whose keys may stand side by side where others are told by places.

    Those are apart, too, in which each row has a list of its own.
    """
    if order is None and (named := [each for each in runs if named_by(each) is not None]):
        others = [each for each in runs if each not in named]
        return [*(_by_layout(order, others) if others else []), named]
    marked = [each for each in runs if is_marked(each)]
    if order is not None or not marked or not any(each.blocks for each in runs):
        return [runs]
    return [[each for each in runs if each not in marked], marked]


def _read(pattern: Expr) -> tuple[str, ...]:
    names = (node.name for node in walk(pattern) if isinstance(node, Local | Entry))
    return tuple(dict.fromkeys(names))
