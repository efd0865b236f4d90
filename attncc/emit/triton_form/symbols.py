"""What formulas of channels, indices of tables and patterns read, as inputs of their nodes."""

from __future__ import annotations

from dataclasses import replace

from attncc.graph.build import operand_node
from attncc.graph.core import Core
from attncc.graph.ir import Graph, Node
from attncc.graph.ops import Op
from attncc.spec.expr import Entry, Expr, Local, Name, Symbol, substitute, walk

_NAMES = {
    Name.SCALE: "scale",
    Name.VALID: "valid",
    Name.WIDTH: "width",
    Name.VALUE_WIDTH: "value_width",
}


def complete(graph: Graph, core: Core) -> Graph:
    """The graph in which entries, formulas of channels and patterns have everything that they read among their inputs.

    What is the same for a whole call becomes a number that the host computes, as it is for numbers of pairs.
    """
    known = {node.expr: node for node in graph if node.op is Op.NUMBER and not node.axes and node.expr is not None}
    new: dict[str, Node] = {}
    for node in graph:
        if node.expr is None or node.op not in (Op.ENTRY, Op.CHANNELS, Op.SPREAD, Op.RELATED):
            continue
        if node.op is Op.RELATED and not core.reads_data:
            continue
        names: dict[Expr, Expr] = {}
        for each in walk(node.expr):
            if isinstance(each, Symbol) and each.name in _NAMES:
                made = known.setdefault(each, Node(name=_NAMES[each.name], op=Op.NUMBER, axes=(), expr=each))
                names[each] = Local(made.name)
                new[made.name] = made
            elif isinstance(each, Local | Entry) and each.name not in graph:
                new[each.name] = operand_node(core[each.name], core.values)
        expr = substitute(node.expr, names)
        read = (each.name for each in walk(expr) if isinstance(each, Local | Entry))
        new[node.name] = replace(node, expr=expr, inputs=tuple(dict.fromkeys((*node.inputs, *read))))
    return graph.change(*new.values())
