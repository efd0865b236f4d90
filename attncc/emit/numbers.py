"""The numbers that are the same for every pair of a head, printed as a function that both forms call."""

from __future__ import annotations

from attncc.emit.dialects import HOST, TORCH
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.writer import Writer
from attncc.graph.ir import Node
from attncc.spec.expr import Name, names_in


def print_numbers(nodes: tuple[Node, ...], name: str, used: set[str]) -> str:
    """The function that computes call-wide numbers: floats, or tensors [batch or 1, heads or 1, 1, 1]."""
    if not nodes:
        return ""
    writer = Writer()
    symbols = {
        Name.HEADS: "heads",
        Name.QUERIES: "n",
        Name.KEYS: "m",
        Name.WIDTH: "width",
        Name.VALUE_WIDTH: "value_width",
    }
    symbols |= {Name.SCALE: "scale", Name.HEAD: "h", Name.VALID: "valid"}
    host = ExpressionWriter(HOST, lambda each: symbols[each], lambda each: each)
    expressions = ExpressionWriter(TORCH, lambda each: symbols[each], lambda each: each, host=host)
    read = {each for node in nodes for each in names_in(node.value)}
    tables = tables_of(nodes)
    with writer.block(f"def {name}(q, k, v, scale, kv_lengths):"):
        writer.line('"""Numbers that are the same for every pair of a head."""')
        if read & {Name.HEADS, Name.HEAD}:
            writer.line("heads = q.shape[1]")
        if Name.QUERIES in read:
            writer.line("n = q.shape[2]")
        if read & {Name.KEYS, Name.VALID}:
            writer.line("m = v.shape[2]")
        if Name.WIDTH in read:
            writer.line("width = k.shape[-1]")
        if Name.VALUE_WIDTH in read:
            writer.line("value_width = v.shape[-1]")
        if Name.HEAD in read:
            writer.line("h = torch.arange(heads, dtype=torch.float64, device=q.device)[:, None, None]")
        if Name.VALID in read:
            writer.line("valid = torch.full((1, 1, 1, 1), m, dtype=torch.float64, device=q.device)")
            with writer.block("if kv_lengths is not None:"):
                writer.line("valid = kv_lengths.clamp(0, m).double()[:, None, None, None]")
        for node in nodes:
            written = (expressions if node.name in tables else host).write(node.value)
            if written != node.name:
                writer.line(f"{node.name} = {written}")
        values = [f"_table({node.name}, q)" if node.name in tables else node.name for node in nodes]
        if tables:
            used.add("_table")
        writer.line(f"return {', '.join(values)}{',' * (len(values) == 1)}")
    used |= expressions.used
    return writer.text()


def tables_of(nodes: tuple[Node, ...]) -> set[str]:
    """The call-wide numbers that differ between heads or batch entries, or read one that does."""
    tables: set[str] = set()
    for node in nodes:
        if names_in(node.value) & {Name.HEAD, Name.VALID} or tables & set(node.inputs):
            tables.add(node.name)
    return tables
