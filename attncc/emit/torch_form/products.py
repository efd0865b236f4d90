"""What a matrix product can take over from the number that reads it: a factor, and a sum."""

from __future__ import annotations

from attncc.emit.tile import Kernel
from attncc.graph.ir import Node
from attncc.graph.ops import Op
from attncc.spec.expr import Binary, BinaryOp, Const, Expr, Local, Name, names_in, walk


class Products:
    """Finds how the products of one kernel are read."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def part(self, dot: Node) -> tuple[Node, Expr, str] | None:
        """The one number that reads a product, the part of it that scales the product, and the argument for that."""
        number = self._only_reader(dot)
        for part in walk(number.value) if number is not None else ():
            factor = self._factor(dot, part)
            if factor and number is not None:
                return number, part, factor
        return None

    def entries_under(self, steps: list[Node]) -> dict[str, Node]:
        """Numbers of distances that are read once, by a sum with a product: for each such product its entry."""
        found: dict[str, Node] = {}
        for entry in (node for node in steps if node.op is Op.ENTRY and node.expr is None):
            readers = [node for node in steps if entry.name in node.inputs]
            if len(readers) != 1 or readers[0].op is not Op.NUMBER:
                continue
            for dot in (node for node in steps if node.op is Op.DOT and node.name in readers[0].inputs):
                if self._only_reader(dot) is not None and Local(entry.name) in self._addends(dot, readers[0]):
                    found[dot.name] = entry
        return found

    def reader(self, dot: Node) -> tuple[Node, str]:
        """The number that adds something to a product, and the argument that scales the product."""
        number = self._only_reader(dot)
        assert number is not None and isinstance(number.value, Binary)
        factors = (self._factor(dot, each) for each in (number.value.left, number.value.right))
        return number, next(filter(None, factors), "")

    def is_scalar(self, name: str) -> bool:
        """Whether a name is a plain number of the call, the same for all heads."""
        node = next((each for each in self._kernel.uniform if each.name == name), None)
        return node is not None and not names_in(node.value) & {Name.HEAD, Name.VALID}

    def _only_reader(self, dot: Node) -> Node | None:
        """The number that reads a product, where no other node does, and that only once."""
        users = [node for sweep in self._kernel.sweeps for node in sweep.body if dot.name in node.inputs]
        if len(users) != 1 or users[0].op is not Op.NUMBER:
            return None
        return users[0] if sum(each == Local(dot.name) for each in walk(users[0].value)) == 1 else None

    def _addends(self, dot: Node, number: Node) -> list[Expr]:
        """What a number adds to a product, scaled or not."""
        match number.value:
            case Binary(op=BinaryOp.ADD, left=left, right=right):
                pairs = ((left, right), (right, left))
                return [other for product, other in pairs if self._factor(dot, product) is not None]
        return []

    def _factor(self, dot: Node, expr: Expr) -> str | None:
        """The argument for an expression that is a product times a scalar; empty where it is the product itself."""
        match expr:
            case Local(name=dot.name):
                return ""
            case Binary(
                op=BinaryOp.MULTIPLY, left=Local(name=scalar) | Const(value=scalar), right=Local(name=dot.name)
            ) if isinstance(scalar, float | int) or self.is_scalar(scalar):
                return f", {scalar}"
        return None
