"""`iterate` → a loop of Python before the line that reads its value; what is made twice in a turn is made once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from attncc.spec.layers.iteration import MARK
from attncc.spec.layers.model import Node, Op

if TYPE_CHECKING:
    from attncc.emit.layers.expressions import Printer

_PLAIN = (Op.NAME, Op.CONST, Op.SIZE, Op.INSERT, Op.DROP, Op.TRANSPOSE, Op.IDENTITY)


def loop(printer: Printer, node: Node) -> str:
    """Put the loop's lines before the current one; the name of its value."""
    first, body = node.args
    name, printer.target = printer.target or printer.free_name(node.name.removeprefix(MARK)), ""
    printer.lines.append(f"{name} = {printer.text(first)}")
    printer.bound[node.name] = name
    outer, printer.lines = printer.lines, []
    while (part := _repeated(body)) is not None:
        own = printer.free_name(f"{name}_part")
        text = printer.text(part)
        printer.lines.append(f"{own} = {text}")
        stand_in = Node(Op.NAME, (), part.type, name=f"{MARK}{own}", span=part.span)
        printer.bound[stand_in.name] = own
        body = _replaced(body, part, stand_in)
    printer.lines.append(f"{name} = {printer.text(body)}")
    inner, printer.lines = printer.lines, outer
    printer.lines += [f"for _ in range({printer.dim(node.dims[0])}):", *(f"    {line}" for line in inner)]
    return name


def _repeated(body: Node) -> Node | None:
    """The smallest value that stands more than once in a turn."""
    counts = Counter(_parts(body))
    found = [each for each, count in counts.items() if count > 1 and each.op not in _PLAIN]
    return min(found, key=lambda each: sum(1 for _ in _parts(each)), default=None)


def _parts(node: Node) -> Iterator[Node]:
    if node.type.is_number or node.op in (Op.ATTEND, Op.ITERATE):
        return
    yield node
    for each in node.args:
        yield from _parts(each)


def _replaced(node: Node, part: Node, by: Node) -> Node:
    if node == part:
        return by
    return replace(node, args=tuple(_replaced(each, part, by) for each in node.args))
