"""Laws and the record of their use: each law is one function from a graph to an equal graph, or None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attncc.graph.ir import Graph, describe

Law = Callable[[Graph], "Change | None"]


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


def rewrite(graph: Graph, laws: tuple[NamedLaw, ...]) -> tuple[Graph, tuple[Step, ...]]:
    """Apply each law in turn, as often as it fires."""
    steps: list[Step] = []
    for each in laws:
        while (change := each.apply(graph)) is not None:
            before = tuple(f"{name} = {describe(graph[name])}" for name in change.before)
            after = tuple(f"{name} = {describe(change.graph[name])}" for name in change.after)
            steps.append(Step(each.name, each.statement, before, after))
            graph = change.graph
    return graph, tuple(steps)
