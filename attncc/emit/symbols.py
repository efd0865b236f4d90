"""Names that formulas of channels and indices of tables read of the call, as numbers of the graph."""

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
    Name.HEAD: "head",
}
_WITH_FORMULAS = (Op.ENTRY, Op.CHANNELS, Op.SPREAD, Op.SUM)


def with_numbers(graph: Graph) -> Graph:
    """The graph in which entries, sums over channels and their gradients read numbers of the call as nodes."""
    numbers: dict[Expr, Node] = {
        node.expr: node for node in graph if node.op is Op.NUMBER and not node.axes and node.expr is not None
    }
    changed: list[Node] = []
    for node in graph:
        if node.op not in _WITH_FORMULAS or node.expr is None:
            continue
        read = [each for each in walk(node.expr) if isinstance(each, Symbol) and each.name in _NAMES]
        for symbol in read:
            if symbol not in numbers:
                numbers[symbol] = Node(name=_NAMES[symbol.name], op=Op.NUMBER, axes=(), expr=symbol)
        names: dict[Expr, Expr] = {symbol: Local(numbers[symbol].name) for symbol in read}
        inputs = (*node.inputs, *(each.name for each in names.values() if isinstance(each, Local)))
        changed.append(replace(node, expr=substitute(node.expr, names), inputs=tuple(dict.fromkeys(inputs))))
    return graph.change(*numbers.values(), *changed)
