"""Laws and the record of their use: a law takes a graph to an equal one, or says why it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attncc.graph.ir import Graph, describe

Law = Callable[[Graph], "Change | str"]


@dataclass(frozen=True, slots=True)
class Change:
    """What a law made of a graph, and which nodes tell the difference best."""

    graph: Graph
    before: tuple[str, ...]  # names of nodes of the old graph
    after: tuple[str, ...]  # names of nodes of the new graph


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded application: the law, its one-line statement, and the nodes before and after."""

    law: str
    statement: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A law that did not apply, and why."""

    law: str
    statement: str
    reason: str


@dataclass(frozen=True, slots=True)
class NamedLaw:
    """A law with the name and the statement under which it is recorded."""

    name: str
    statement: str
    apply: Law


def law(name: str) -> Callable[[Law], NamedLaw]:
    """Name a law; the first line of its docstring is its statement."""

    def named(function: Law) -> NamedLaw:
        statement = (function.__doc__ or "").strip().splitlines()[0]
        return NamedLaw(name, statement, function)

    return named


def rewrite(graph: Graph, laws: tuple[NamedLaw, ...]) -> tuple[Graph, tuple[Step, ...], tuple[Refusal, ...]]:
    """Apply each law in turn, as often as it fires; and why those that never did do not."""
    steps: list[Step] = []
    refusals: list[Refusal] = []
    for each in laws:
        applied = False
        while not isinstance(change := each.apply(graph), str):
            applied = True
            before = tuple(f"{name} = {describe(graph[name])}" for name in change.before)
            after = tuple(f"{name} = {describe(change.graph[name])}" for name in change.after)
            steps.append(Step(each.name, each.statement, before, after))
            graph = change.graph
        if not applied:
            refusals.append(Refusal(each.name, each.statement, change))
    return graph, tuple(steps), tuple(refusals)
