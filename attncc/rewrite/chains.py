"""Chains of matrix products in a layer → the order that costs least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from attncc.rewrite.engine import Step
from attncc.spec.layers.algebra import matmul
from attncc.spec.layers.dims import RUN_TIME, Dim
from attncc.spec.layers.model import Layer, Node, Op
from attncc.spec.layers.text import text

LAW = "order-chain"
STATEMENT = "(a @ b) @ c = a @ (b @ c): products of a chain are taken in the order that costs least."
_LENGTH = 4096  # of a sequence, for costs; and what a parameter without a value counts as
_SIZE = 512
_BATCH = 8


def ordered(layer: Layer) -> tuple[Layer, tuple[Step, ...]]:
    """The layer with its chains reordered, and each reordering."""
    sizes = dict.fromkeys(RUN_TIME, _LENGTH) | {each.name: int(each.value or _SIZE) for each in layer.parameters}
    law = _Law(sizes)
    values = tuple((name, law.applied(node)) for name, node in layer.values)
    return replace(layer, values=values), tuple(law.steps)


class _Law:
    """Applies the law within one layer."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.steps: list[Step] = []

    def applied(self, node: Node) -> Node:
        """A value with every chain in its best order."""
        chain = _chain(node)
        if len(chain) < 3:
            return replace(node, args=tuple(self.applied(each) for each in node.args))
        inner = [self.applied(each) for each in chain]
        before = _rebuilt(node, iter(inner))
        best = self._best(inner)
        if self._cost(best) >= self._cost(before):
            return before
        self.steps.append(Step(LAW, STATEMENT, (text(before),), (text(best),)))
        return best

    def _best(self, chain: list[Node]) -> Node:
        @cache
        def best(first: int, last: int) -> Node:
            if first == last:
                return chain[first]
            span = chain[first].span
            assert span is not None
            found = [matmul(best(first, at), best(at + 1, last), span) for at in range(first, last)]
            return min(found, key=self._cost)

        return best(0, len(chain) - 1)

    def _cost(self, node: Node) -> float:
        """Multiplications of the chain."""
        if node.op is not Op.MATMUL:
            return 0.0
        left, right = node.args
        own = _product(node.type.axes, self.sizes) * _product((left.type.axes[-1],), self.sizes)
        return own * (_BATCH if node.type.batched else 1) + self._cost(left) + self._cost(right)


def _product(axes: tuple[Dim, ...], sizes: Mapping[str, int]) -> float:
    found = 1.0
    for each in axes:
        found *= float(each.value(sizes))
    return found


def _chain(node: Node) -> list[Node]:
    """The matrices that are multiplied one with the next; the node alone where there is no product."""
    if node.op is not Op.MATMUL or any(len(each.type.axes) < 2 for each in node.args):
        return [node]
    return [matrix for each in node.args for matrix in _chain(each)]


def _rebuilt(node: Node, matrices: object) -> Node:
    """The same products of other matrices, taken from an iterator."""
    if node.op is not Op.MATMUL or any(len(each.type.axes) < 2 for each in node.args):
        return next(matrices)  # type: ignore[call-overload,no-any-return]
    left = _rebuilt(node.args[0], matrices)
    return replace(node, args=(left, _rebuilt(node.args[1], matrices)))
