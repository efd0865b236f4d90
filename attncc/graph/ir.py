"""The graph: named nodes and what they are made of. The only importer of networkx."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import networkx as nx

from attncc.graph.ops import Axis, Op
from attncc.spec.expr import Expr, Local, Name, Symbol, substitute, walk
from attncc.spec.text import text

_AXIS_OF = {Name.I: Axis.ROW, Name.J: Axis.COLUMN, Name.COUNT: Axis.ROW}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One quantity. `inputs` are names of other nodes; a NUMBER reads them as Locals of its `expr`.

    `expr` is a NUMBER's value, RELATED's predicate, what RESTRICT fills with, where PEAK starts, the Entry that ENTRY
    or a SUM into a table goes by, and the formula of CHANNELS and SPREAD, in Vectors.
    """

    name: str
    op: Op
    axes: tuple[Axis, ...]
    inputs: tuple[str, ...] = ()
    expr: Expr | None = None
    width: str | None = None  # of vectors: the name of their width

    @property
    def value(self) -> Expr:
        """The expression of a node that has one."""
        assert self.expr is not None, f"{self.name} has no expression"
        return self.expr

    @property
    def is_tile(self) -> bool:
        """Whether the node is a number for every pair of a row and a column."""
        return set(self.axes) == {Axis.ROW, Axis.COLUMN}


class Graph:
    """An immutable set of nodes; every change returns a new graph. Order is by dependence, then by name."""

    def __init__(self, nodes: Iterable[Node], outputs: Iterable[str]) -> None:
        self.outputs = tuple(outputs)
        self._graph: nx.DiGraph[str] = nx.DiGraph()
        self._nodes: dict[str, Node] = {}
        self._in_order = True  # each node stands after its inputs
        for node in nodes:
            assert node.name not in self._nodes, f"two nodes are called {node.name}"
            self._in_order &= all(name in self._nodes for name in node.inputs)
            self._nodes[node.name] = node
        self._graph.add_nodes_from(self._nodes)
        for node in self._nodes.values():
            for name in node.inputs:
                assert name in self._nodes, f"{node.name} reads {name}, which does not exist"
                self._graph.add_edge(name, node.name)
        assert self._in_order or nx.is_directed_acyclic_graph(self._graph), "the graph has a cycle"

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def __iter__(self) -> Iterator[Node]:
        """The nodes that the outputs need, each after its inputs, otherwise in the order they were given."""
        return iter(self._live)

    @cached_property
    def _live(self) -> tuple[Node, ...]:
        needed = set(self.outputs)
        for output in self.outputs:
            needed |= nx.ancestors(self._graph, output)
        if self._in_order:
            return tuple(node for name, node in self._nodes.items() if name in needed)
        positions = {name: at for at, name in enumerate(self._nodes)}
        order = nx.lexicographical_topological_sort(self._graph, key=lambda each: positions[each])
        return tuple(self._nodes[name] for name in order if name in needed)

    def users(self, name: str) -> tuple[Node, ...]:
        """The nodes that read `name`, in order."""
        reading = set(self._graph.successors(name))
        return tuple(node for node in self if node.name in reading)

    def depends(self, name: str, on: str) -> bool:
        """Whether `name` is computed, directly or not, from `on`."""
        return name == on or nx.has_path(self._graph, on, name)

    def find(self, op: Op) -> tuple[Node, ...]:
        """The live nodes of one operation."""
        return tuple(node for node in self if node.op is op)

    def change(self, *changed: Node, outputs: Iterable[str] | None = None) -> Graph:
        """The graph with nodes of the same name replaced and new ones placed before their first reader."""
        new = {node.name: node for node in changed}
        nodes = [new.pop(node.name, node) for node in self._nodes.values()]
        return Graph([*nodes, *new.values()], self.outputs if outputs is None else outputs)

    def rename_uses(self, old: str, new: str, *, but: frozenset[str] = frozenset()) -> Graph:
        """The graph in which the readers of `old` (except `but`) read `new`."""
        changed = []
        for node in self._nodes.values():
            if old in node.inputs and node.name not in but:
                inputs = tuple(new if each == old else each for each in node.inputs)
                expr = substitute(node.expr, {Local(old): Local(new)}) if node.expr is not None else None
                changed.append(replace(node, inputs=inputs, expr=expr))
        outputs = tuple(new if each == old else each for each in self.outputs)
        return self.change(*changed, outputs=outputs)


def number(name: str, expr: Expr, known: Iterable[Node] = ()) -> Node:
    """A NUMBER node; its inputs and axes follow from what `expr` reads among the `known` nodes."""
    nodes = {node.name: node for node in known}
    inputs = tuple(dict.fromkeys(each.name for each in walk(expr) if isinstance(each, Local)))
    axes = {_AXIS_OF[each.name] for each in walk(expr) if isinstance(each, Symbol) and each.name in _AXIS_OF}
    axes |= {axis for each in inputs for axis in nodes[each].axes}
    return Node(name=name, op=Op.NUMBER, axes=tuple(axis for axis in Axis if axis in axes), inputs=inputs, expr=expr)


def pair_number(name: str, expr: Expr, known: Iterable[Node] = ()) -> Node:
    """A NUMBER of pairs, also where its expression reads rows alone, keys alone, or neither."""
    return replace(number(name, expr, known), axes=(Axis.ROW, Axis.COLUMN))


def describe(node: Node) -> str:
    """One line of mathematics: what the node is."""
    read = node.inputs
    match node.op:
        case Op.OPERAND | Op.STATISTIC:
            return str(node.op.value)
        case Op.NUMBER | Op.RELATED:
            return text(node.value)
        case Op.DOT:
            return f"dot({', '.join(read)})"
        case Op.ENTRY:
            return f"{read[0]}[i - j]" if node.expr is None else text(node.value)
        case Op.CHANNELS:
            return f"sum over channels of {text(node.value)}"
        case Op.SPREAD:
            over = "i" if Axis.COLUMN in node.axes else "j"
            return f"per channel, sum over {over} of {read[0]} * {text(node.value)}"
        case Op.ADD:
            return " + ".join(read)
        case Op.RESTRICT:
            return f"{read[0]} where {read[1]}, else {text(node.value)}"
        case Op.PEAK:
            start = "" if node.expr is None else f", at least {text(node.value)}"
            return f"max over j of {', '.join(peaked(node))}{start}"
        case Op.SUM:
            return f"sum over {_OVER[node.axes[0]]} of {read[0]}"
        case Op.CONTRACT:
            over = "i" if Axis.COLUMN in node.axes else "j"
            return f"sum over {over} of {read[0]} {read[1]}"
        case Op.DIVIDE:
            return f"{read[0]} / {read[1]}"
        case Op.MULTIPLY:
            return f"{read[0]} * {read[1]}"


_OVER = {
    Axis.ROW: "j",
    Axis.COLUMN: "i",
    Axis.OFFSET: "pairs at one distance",
    Axis.TABLE: "pairs with one entry",
}


def show(graph: Graph) -> str:
    """The graph as text, a node a line: name, axes, meaning."""
    rows = [(node.name, "".join(f"{axis.value}" for axis in node.axes), describe(node)) for node in graph]
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {axes:<{widths[1]}}  {meaning}" for name, axes, meaning in rows)


def peaked(node: Node) -> tuple[str, ...]:
    """The inputs of a PEAK that are maximised; what it starts from is in its expression."""
    start = {each.name for each in walk(node.expr) if isinstance(each, Local)} if node.expr is not None else set()
    return tuple(name for name in node.inputs if name not in start)
