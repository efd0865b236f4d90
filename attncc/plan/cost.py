"""Plan → what it costs: FLOPs, bytes and saved memory as sympy formulas in n, m, d, e and H.

FLOPs count the matrix products, which are nearly all of them. Bytes count every operand once, as if each were read
from memory a single time, with as many key heads as query heads. Pairs are those that kernels visit, tile edges aside;
formulas keep the leading terms, for lengths well beyond the pattern's own constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy  # noqa: TID251  formulas of costs, which people read

from attncc.graph.ir import Graph, Node
from attncc.graph.ops import Axis, Op
from attncc.plan.describe import product_widths
from attncc.plan.extent import visited_pairs
from attncc.plan.model import Plan
from attncc.plan.ranges import HeadClass
from attncc.spec.model import Align

Formula = Any  # a sympy expression

N, M, D, E, HEADS, SIZE = sympy.symbols("n m d e H b", positive=True, integer=True)
HEAD = sympy.Symbol("h", integer=True)
_WIDTHS = {Axis.FEATURE: D, Axis.VALUE: E}
_REAL = 4  # bytes of a saved row number, and of a number of out: 16 bits are kept with 16 that rounding takes


@dataclass(frozen=True, slots=True)
class Pass:
    """One direction: FLOPs for each visited pair, and bytes for a batch entry."""

    flops_per_pair: Formula
    bytes: Formula


@dataclass(frozen=True, slots=True)
class Cost:
    """What a batch entry costs; `pairs` has for each head class the pairs that one head visits, None if not known."""

    pairs: tuple[tuple[HeadClass, Formula | None], ...]
    forward: Pass
    backward: Pass
    saved: Formula  # bytes kept for backward beyond q, k and v

    def flops(self, one: Pass) -> Formula | None:
        """The FLOPs of all heads; None where they differ or their pairs are not known."""
        if len(self.pairs) != 1 or self.pairs[0][1] is None or self.pairs[0][1].has(HEAD):
            return None
        return sympy.factor_terms(HEADS * one.flops_per_pair * self.pairs[0][1])


def cost(plan: Plan) -> Cost:
    """The cost of a plan's kernels; b is the bytes of an element."""
    lengths = {"n": N, "m": M, "h": HEAD, "H": HEADS}
    starts_at_zero = plan.spec.align is Align.START
    pairs = tuple((each, visited_pairs(each, starts_at_zero, lengths)) for each in plan.domain.classes)
    forward = plan.gpu.forward
    backward = _backward_kernels(plan.gpu.backward)
    delta = _Traffic(rows=E, row_numbers=1 + E) if plan.reads_delta else _Traffic()  # D_i = do_i . out_i comes first
    return Cost(
        pairs,
        Pass(_flops([forward]), _traffic([forward], _Traffic()).bytes),
        Pass(_flops(backward), _traffic(backward, delta).bytes),
        HEADS * N * _REAL * (len(plan.saved) + (E if plan.reads_delta else 0)),
    )


def _backward_kernels(backward: Graph) -> list[Graph]:
    """One kernel sweeps rows for tiles of keys, the other keys for tiles of rows; both compute the scores."""
    by_rows = tuple(name for name in backward.outputs if Axis.ROW in backward[name].axes)
    by_columns = tuple(name for name in backward.outputs if Axis.ROW not in backward[name].axes)
    return [Graph(backward, outputs) for outputs in (by_columns, by_rows) if outputs]


def _flops(kernels: Iterable[Graph]) -> Formula:
    """FLOPs of the products of one pair."""
    total = sympy.Integer(0)
    for graph in kernels:
        for axis, count in product_widths(graph).items():
            total += 2 * count * _WIDTHS[axis]
    return sympy.factor_terms(total)


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Elements that move for each row and for each key, and numbers that move for each row."""

    rows: Formula = 0
    columns: Formula = 0
    row_numbers: Formula = 0

    @property
    def bytes(self) -> Formula:
        vectors = N * sympy.factor_terms(self.rows) + M * sympy.factor_terms(self.columns)
        return HEADS * (SIZE * vectors + _REAL * N * self.row_numbers)


def _traffic(kernels: Iterable[Graph], start: _Traffic) -> _Traffic:
    """What kernels read and write, each tensor once a kernel."""
    rows, columns, row_numbers = start.rows, start.columns, start.row_numbers
    for graph in kernels:
        read = [node for node in graph if node.op in (Op.OPERAND, Op.STATISTIC)]
        for node in (*read, *(graph[name] for name in graph.outputs)):
            width = _width(node)
            if width is None:
                row_numbers += 1
            elif Axis.ROW in node.axes:
                rows += width
            else:
                columns += width
    return _Traffic(rows, columns, row_numbers)


def _width(node: Node) -> Formula | None:
    return next((_WIDTHS[axis] for axis in node.axes if axis in _WIDTHS), None)


def formula(expr: Formula) -> str:
    """A formula as people write it: `2·H·n·512·(d + e)`."""
    return str(sympy.sstr(expr, order="none" if expr.is_Mul else None)).replace("**", "^").replace("*", "·")


def value(expr: Formula, sizes: Mapping[str, int]) -> int:
    """The formula at given sizes, rounded to a whole number."""
    by_name = {symbol: sizes[symbol.name] for symbol in expr.free_symbols}
    return round(float(expr.subs(by_name)))
