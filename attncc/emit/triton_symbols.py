"""Names that formulas of channels and indices of tables read of the call, made numbers that the host computes."""

from __future__ import annotations

from dataclasses import replace

from attncc.graph.ir import Graph, Node
from attncc.graph.ops import Op
from attncc.spec.expr import Expr, Local, Name, Symbol, substitute, walk

_NAMES = {
    Name.SCALE: "scale",
    Name.VALID: "valid",
    Name.WIDTH: "width",
    Name.VALUE_WIDTH: "value_width",
}


def with_numbers(graph: Graph) -> Graph:
    """The graph in which everything but numbers reads what is the same for a whole call from nodes."""
    known = {node.expr: node for node in graph if node.op is Op.NUMBER and not node.axes and node.expr is not None}
    changed: list[Node] = []
    for node in graph:
        if node.expr is None or node.op not in (Op.ENTRY, Op.CHANNELS, Op.SPREAD):
            continue
        read = [each for each in walk(node.expr) if isinstance(each, Symbol) and each.name in _NAMES]
        names: dict[Expr, Expr] = {}
        for symbol in dict.fromkeys(read):
            made = known.setdefault(symbol, Node(name=_NAMES[symbol.name], op=Op.NUMBER, axes=(), expr=symbol))
            names[symbol] = Local(made.name)
            changed.append(made)
        inputs = (*node.inputs, *(known[symbol].name for symbol in names))
        changed.append(replace(node, expr=substitute(node.expr, names), inputs=tuple(dict.fromkeys(inputs))))
    return graph.change(*changed)
