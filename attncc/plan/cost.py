"""Plan → what it costs: FLOPs, bytes and saved memory as sympy formulas in n, m, d, e and H.

FLOPs count the matrix products, which are nearly all of them; where formulas of vectors are summed channel by channel,
their operations are counted apart, since no matrix unit does them. Bytes count every operand once a kernel, as if each
were read from memory a single time, with as many key heads as query heads. Pairs are those that kernels visit, tile
edges aside; formulas keep the leading terms, for lengths well beyond the pattern's own constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import sympy  # noqa: TID251  formulas of costs, which people read

from attncc.graph.core import Core, Kind, Operand
from attncc.graph.ir import Graph
from attncc.graph.ops import Axis, Op
from attncc.graph.widths import sizes_of
from attncc.plan.describe import product_widths, width_in
from attncc.plan.extent import visited_pairs
from attncc.plan.model import Plan
from attncc.plan.ranges import HeadClass
from attncc.rewrite.backward import gradient_name
from attncc.spec.data import Blocks, Data, Free, Size
from attncc.spec.expr import Entry, Expr, Name, Token, Top, Type, Vector, children, names_in, type_of, walk
from attncc.spec.model import Align
from attncc.spec.sides import Side, side_of

Formula = Any  # a sympy expression

N, M, D, E, HEADS, SIZE = sympy.symbols("n m d e H b", positive=True, integer=True)
HEAD = sympy.Symbol("h", integer=True)
_SIZES = {Size.BATCH: 1, Size.HEADS: HEADS, Size.QUERIES: N, Size.KEYS: M, Size.WIDTH: D, Size.VALUE_WIDTH: E}
_WHOLE = 8  # bytes of a whole number that is kept as it is
_REAL = 4  # bytes of a number that is no feature, and of a number of out: 16 bits are kept with 16 that rounding takes


@dataclass(frozen=True, slots=True)
class Pass:
    """One direction: FLOPs for each visited pair, in products and channel by channel, and bytes for a batch entry."""

    flops_per_pair: Formula
    channels_per_pair: Formula
    bytes: Formula


@dataclass(frozen=True, slots=True)
class Cost:
    """What a batch entry costs; `pairs` has for each head class the pairs that one head visits, None if not known."""

    pairs: tuple[tuple[HeadClass, Formula | None], ...]
    forward: Pass
    backward: Pass
    saved: Formula  # bytes kept for backward beyond what the caller gives

    def total(self, per_pair: Formula) -> Formula | None:
        """What all heads take at so much a pair; None where they differ or their pairs are not known."""
        if len(self.pairs) != 1 or self.pairs[0][1] is None or self.pairs[0][1].has(HEAD):
            return None
        return sympy.factor_terms(HEADS * per_pair * self.pairs[0][1])


def cost(plan: Plan, in_pieces: bool = False) -> Cost:
    """The cost of a plan's kernels, for the whole pattern or its pieces; b is the bytes of an element."""
    pairs = tuple((each, _visited(plan, each, in_pieces)) for each in plan.domain.classes)
    count = _Counter(plan)
    backward = _backward_kernels(plan.gpu.backward)
    width = count.widths["e"]
    delta = (
        _Traffic(rows=width, row_numbers=1 + width) if plan.reads_delta else _Traffic()
    )  # D_i = do_i . out_i is first
    kept = HEADS * N * _REAL * (len(plan.saved) + (width if plan.reads_delta else 0))
    return Cost(
        pairs,
        count.one_pass([plan.gpu.forward], _Traffic()),
        count.one_pass(backward, delta),
        kept + sum(map(count.derived, plan.core.derived)),
    )


def _visited(plan: Plan, one: HeadClass, in_pieces: bool) -> Formula | None:
    """The pairs that a head of a class visits."""
    lengths = {"n": N, "m": M, "h": HEAD, "H": HEADS}
    starts_at_zero = plan.spec.align is Align.START
    if not in_pieces or plan.pieces is None:
        return visited_pairs(one, starts_at_zero, lengths)
    parts = [visited_pairs(each.one, starts_at_zero, lengths, each.layout) for each in plan.pieces.parts_of(one)]
    known = [each for each in parts if each is not None]
    return sum(known, sympy.Integer(0)) if len(known) == len(parts) else None


def _backward_kernels(backward: Graph) -> list[Graph]:
    """One sweeps rows for tiles of keys, one keys for tiles of rows, and one sums into tables; each computes scores."""

    def of(belongs: Callable[[tuple[Axis, ...]], bool]) -> tuple[str, ...]:
        return tuple(name for name in backward.outputs if belongs(backward[name].axes))

    by_columns = of(lambda axes: Axis.COLUMN in axes)
    by_rows = of(lambda axes: Axis.ROW in axes or Axis.OFFSET in axes)
    into_tables = of(lambda axes: Axis.TABLE in axes)
    return [Graph(backward, outputs) for outputs in (by_columns, by_rows, into_tables) if outputs]


class _Counter:
    def __init__(self, plan: Plan) -> None:
        self.core: Core = plan.core
        blocks = plan.spec.blocks
        self.keys: Formula = M if blocks is None else M / blocks.stride  # of kernels: a block is one
        self.data: dict[str, Data] = {each.name: each for each in plan.spec.data}
        self.widths: dict[str, Formula] = {name: _length(axis) for name, axis in sizes_of(plan.core, self.data).items()}

    def one_pass(self, kernels: list[Graph], start: _Traffic) -> Pass:
        """What some kernels take together, and what moves before them."""
        flops = sum((self._products(graph) for graph in kernels), sympy.Integer(0))
        channels = sum((self._channels(graph) for graph in kernels), sympy.Integer(0))
        return Pass(
            sympy.factor_terms(flops),
            sympy.factor_terms(channels),
            self._traffic(kernels, start).bytes(self.keys),
        )

    def derived(self, operand: Operand) -> Formula:
        """The bytes that an operand takes which is computed from others; what is the same for all tokens is a view."""
        assert operand.value is not None
        same_for_all = side_of(operand.value, self.data) is Side.NONE
        tokens = sympy.Integer(1) if same_for_all else self._tokens(operand.kind)
        heads = HEADS if self._differs_by_head(operand.value) else sympy.Integer(1)
        own = SIZE * self.widths[operand.width or "e"] if operand.kind.is_vector else sympy.Integer(_number(operand))
        return heads * tokens * own

    def _tokens(self, kind: Kind) -> Formula:
        """How many tokens or distances an operand has."""
        if kind is Kind.OFFSET_NUMBER:
            return N + self.keys
        return N if kind in (Kind.ROW_VECTOR, Kind.ROW_NUMBER, Kind.ROW_FACT) else self.keys

    def _differs_by_head(self, expr: Expr) -> bool:
        read = [self.data[each.name] for each in walk(expr) if isinstance(each, Vector | Token | Entry)]
        return Name.HEAD in names_in(expr) or any(Size.HEADS in each.axes for each in read)

    def _products(self, graph: Graph) -> Formula:
        """FLOPs of the products of one pair."""
        return sum(2 * count * self.widths[width] for width, count in product_widths(graph).items())

    def _channels(self, graph: Graph) -> Formula:
        """Operations of the formulas that are summed channel by channel."""
        total = sympy.Integer(0)
        for node in graph:
            if node.op in (Op.CHANNELS, Op.SPREAD):
                around = 1 if node.op is Op.CHANNELS else 2  # the sum; a product with the number of the pair before it
                total += self.widths[width_in(graph, node)] * (_operations(node.value) + around)
        return total

    def _traffic(self, kernels: Iterable[Graph], start: _Traffic) -> _Traffic:
        """What kernels read and write, each tensor once a kernel."""
        rows, columns, row_numbers, column_numbers, tables = astuple(start)
        for graph in kernels:
            read = [node for node in graph if node.op in (Op.OPERAND, Op.STATISTIC)]
            for node in (*read, *(graph[name] for name in graph.outputs)):
                match node.axes:
                    case (Axis.TABLE,):
                        tables += self._table(node.name)
                    case (Axis.ROW,):
                        row_numbers += 1
                    case (Axis.COLUMN,):
                        column_numbers += 1
                    case (Axis.OFFSET,):
                        row_numbers, column_numbers = row_numbers + 1, column_numbers + 1
                    case (Axis.ROW, _):
                        rows += self.widths[node.width or "e"]
                    case _:
                        columns += self.widths[node.width or "e"]
        return _Traffic(rows, columns, row_numbers, column_numbers, tables)

    def _table(self, name: str) -> Formula:
        """The numbers of a table, given by its name or by that of its gradient."""
        table = next(each for each in self.core.of_kind(Kind.TABLE) if name in (each.name, gradient_name(each.name)))
        return math.prod(map(_length, self.data[table.source or table.name].axes), start=sympy.Integer(1))


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Elements that move for each row and for each key of a head, numbers that do, and numbers of tables in all."""

    rows: Formula = 0
    columns: Formula = 0
    row_numbers: Formula = 0
    column_numbers: Formula = 0
    tables: Formula = 0

    def bytes(self, keys: Formula) -> Formula:
        """The bytes that move, of so many keys."""
        vectors = N * sympy.factor_terms(self.rows) + keys * sympy.factor_terms(self.columns)
        numbers = N * sympy.factor_terms(self.row_numbers) + keys * self.column_numbers
        return HEADS * (SIZE * vectors + _REAL * numbers) + _REAL * self.tables


def _number(operand: Operand) -> int:
    """The bytes that a token takes of an operand of numbers: a choice of keys is a list of whole numbers."""
    assert operand.value is not None
    if operand.listed:
        return _WHOLE * next(each.count for each in walk(operand.value) if isinstance(each, Top))
    if not (operand.exact or operand.kind.is_fact):
        return _REAL
    return {Type.INT: _WHOLE, Type.BOOL: 1}.get(type_of(operand.value), _REAL)


def _length(axis: Size | Blocks | Free | int) -> Formula:
    match axis:
        case Size():
            return sympy.sympify(_SIZES[axis])
        case Blocks(size=size, width=width):
            return sympy.sympify(_SIZES[size]) / width
        case Free():
            return sympy.Symbol("any")
        case _:
            return sympy.Integer(axis)


def _operations(expr: Expr) -> int:
    """The operations of a formula: everything that is made of something else, lookups aside."""
    return sum(1 for node in walk(expr) if children(node) and not isinstance(node, Entry))


def formula(expr: Formula) -> str:
    """A formula as people write it: `2·H·n·512·(d + e)`."""
    return str(sympy.sstr(expr, order="none" if expr.is_Mul else None)).replace("**", "^").replace("*", "·")


def value(expr: Formula, sizes: Mapping[str, int]) -> int:
    """The formula at given sizes, rounded to a whole number."""
    by_name = {symbol: sizes[symbol.name] for symbol in expr.free_symbols}
    return round(float(expr.subs(by_name)))
