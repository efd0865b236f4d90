"""Checked spec → graph, naively: the dense meaning of the spec, nothing saved and nothing reordered."""

from __future__ import annotations

from dataclasses import replace

from attncc.graph.core import TAKEN_NAMES, Core, Kind, Operand
from attncc.graph.ir import Graph, Node, number, pair_number
from attncc.graph.ops import Axis, Op
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Channels,
    Compare,
    CompareOp,
    Const,
    Dot,
    Entry,
    Expr,
    Local,
    Name,
    RowSum,
    Select,
    Symbol,
    Vector,
    names_in,
    rebuild,
    walk,
)

PAIR = (Axis.ROW, Axis.COLUMN)
_AXES = {
    Kind.ROW_VECTOR: (Axis.ROW, Axis.FEATURE),
    Kind.COLUMN_VECTOR: (Axis.COLUMN, Axis.FEATURE),
    Kind.ROW_NUMBER: (Axis.ROW,),
    Kind.COLUMN_NUMBER: (Axis.COLUMN,),
    Kind.OFFSET_NUMBER: (Axis.OFFSET,),
    Kind.TABLE: (Axis.TABLE,),
    Kind.ROW_FACT: (Axis.ROW,),
    Kind.COLUMN_FACT: (Axis.COLUMN,),
}

# Functions worth a name of their own: their derivative reads their value, so the backward pass can share it.
_NAMED_FUNCTIONS = frozenset({"exp", "exp2", "tanh", "sigmoid", "erf", "sqrt", "cos", "sin"})


def build(core: Core) -> Graph:
    """The graph of a core; its output is `out`, and `norm` is the row's normaliser."""
    builder = _Builder(core)
    builder.operands()
    builder.numbers()
    return builder.finish()


class _Builder:
    def __init__(self, core: Core) -> None:
        self.core = core
        self.nodes: dict[str, Node] = {}
        self._tiles: dict[Expr, str] = {}  # dots, sums over channels and entries, by what they are
        self._reserved = frozenset(each.name for each in core.operands)

    def _add(self, node: Node) -> str:
        self.nodes[node.name] = node
        return node.name

    def operands(self) -> None:
        """What the kernels are given."""
        for operand in self.core.operands:
            self._add(operand_node(operand, self.core.values))

    def numbers(self) -> None:
        """Score, weight and normaliser, with the sums they read."""
        core = self.core
        for expr in (core.score, core.weight, core.normalizer):
            self._localize(expr)
        self._add(Node(name="related", op=Op.RELATED, axes=PAIR, expr=core.pattern))
        sums = _row_sums(core)
        read = {name for expr in (core.score, core.weight, core.normalizer) for name in names_in(expr)}
        if Name.COUNT in read:
            self._row_sum("count", Const(1))
        if Name.SCORE in names_in(core.weight) or any(Name.SCORE in names_in(each.weight) for each in sums):
            self._number("score", core.score)
            if self.nodes["score"].inputs:  # of pairs, though it may read rows or keys alone: it has gradients as such
                self._add(pair_number("score", self.nodes["score"].value, self.nodes.values()))
        kept = self._kept("weight", core.weight)
        if Name.ROWS in names_in(core.normalizer):
            self._add(Node(name="rows", op=Op.SUM, axes=(Axis.ROW,), inputs=(kept,)))
        named: dict[Expr, Expr] = {}
        for at, row_sum in enumerate(sums):
            suffix = "other" if at == 0 else f"other_{at + 1}"
            self._row_sum(f"rows_{suffix}", row_sum.weight, f"weight_{suffix}")
            named[row_sum] = Local(f"rows_{suffix}")
        norm = self._localize(_guarded(_replace_sums(core.normalizer, named)))
        self._add(number("norm", norm, self.nodes.values()))
        self._add(Node(name="share", op=Op.DIVIDE, axes=PAIR, inputs=(kept, "norm")))
        values = (Axis.ROW, Axis.VALUE)
        self._add(Node(name="out", op=Op.CONTRACT, axes=values, inputs=("share", core.values), width="e"))

    def finish(self) -> Graph:
        return Graph(self.nodes.values(), ("out", "norm"))

    def _row_sum(self, name: str, weight: Expr, weight_name: str | None = None) -> None:
        kept = self._kept(weight_name or f"{name}_term", weight)
        self._add(Node(name=name, op=Op.SUM, axes=(Axis.ROW,), inputs=(kept,)))

    def _kept(self, name: str, weight: Expr) -> str:
        self._number(name, weight)
        if not isinstance(weight, Const) or name == "weight":  # other constants are only counted
            self._add(pair_number(name, self.nodes[name].value, self.nodes.values()))
        kept = "kept" if name == "weight" else f"{name}_kept"
        return self._add(Node(name=kept, op=Op.RESTRICT, axes=PAIR, inputs=(name, "related"), expr=Const(0)))

    def _number(self, name: str, expr: Expr) -> str:
        return self._add(number(name, self._name_parts(name, self._localize(expr)), self.nodes.values()))

    def _localize(self, expr: Expr) -> Expr:
        """Dot products, score, rows and count become the nodes that hold them."""
        match expr:
            case Binary(op=BinaryOp.DIVIDE, left=left, right=right) if (safe := _at_least_one(right)) != right:
                return self._localize(replace(expr, left=left, right=safe))
            case Call(function="log" | "log2", arguments=(argument,)) if (safe := _at_least_one(argument)) != argument:
                return self._localize(replace(expr, arguments=(safe,)))
            case Dot() | Channels() | Entry():
                return Local(self._tile(expr), span=expr.span)
            case Local(name=name) if name in self.nodes and self.nodes[name].axes == (Axis.OFFSET,):
                return Local(self._tile(expr), span=expr.span)
            case Symbol(name=Name.SCORE | Name.ROWS | Name.COUNT as name):
                return Local(name.value, span=expr.span)
            case _:
                return rebuild(expr, self._localize)

    def _tile(self, expr: Expr) -> str:
        """The node that holds a dot product, a sum over channels, or an entry of a table."""
        if expr in self._tiles:
            return self._tiles[expr]
        match expr:
            case Dot(left=Vector(name=row), right=Vector(name=column)):
                node = Node(name=self._unused(f"dot_{row}{column}"), op=Op.DOT, axes=PAIR, inputs=(row, column))
            case Channels(body=body):
                inner = self._localize(body)
                read = tuple(each.name for each in walk(inner) if isinstance(each, Vector | Local))
                inputs = tuple(dict.fromkeys(read))
                node = Node(name=self._unused("channels"), op=Op.CHANNELS, axes=PAIR, inputs=inputs, expr=inner)
            case Entry(name=table):
                indices = tuple(self._localize(each) for each in expr.indices)
                name = self._unused(f"{table}_entry")
                numbers = dict.fromkeys(each.name for one in indices for each in walk(one) if isinstance(each, Local))
                found = replace(expr, indices=indices)
                node = Node(name=name, op=Op.ENTRY, axes=PAIR, inputs=(table, *numbers), expr=found)
            case Local(name=operand):
                name = self._unused(operand.removesuffix("_by_offset"))
                node = Node(name=name, op=Op.ENTRY, axes=PAIR, inputs=(operand,))
            case _:
                raise TypeError(f"{type(expr).__name__} is no number of a pair")
        self._tiles[expr] = self._add(node)
        return node.name

    def _unused(self, name: str) -> str:
        at, candidate = 1, name
        while candidate in self.nodes or candidate in self._reserved or candidate in TAKEN_NAMES:
            at += 1
            candidate = f"{name}_{at}"
        return candidate

    def _name_parts(self, name: str, expr: Expr) -> Expr:
        """Calls inside `expr` whose derivative reads their value become nodes of their own."""

        def named(part: Expr) -> Expr:
            part = rebuild(part, named)
            if not (isinstance(part, Call) and part.function in _NAMED_FUNCTIONS and self._reads_pair(part)):
                return part
            existing = next((node.name for node in self.nodes.values() if node.expr == part), None)
            return Local(existing or self._add(number(self._free(part.function), part, self.nodes.values())))

        return rebuild(expr, named) if isinstance(expr, Call) else named(expr)

    def _reads_pair(self, expr: Expr) -> bool:
        read = [self.nodes[each.name] for each in walk(expr) if isinstance(each, Local)]
        return any(node.is_tile or node.op is Op.SUM for node in read)

    def _free(self, name: str) -> str:
        at = 1
        while (candidate := f"{name}_{at}") in self.nodes:
            at += 1
        return candidate


def operand_node(operand: Operand, values: str) -> Node:
    """The node of an operand; the vectors that weights multiply have the axis of values."""
    axes = (Axis.COLUMN, Axis.VALUE) if operand.name == values else _AXES[operand.kind]
    return Node(name=operand.name, op=Op.OPERAND, axes=axes, width=operand.width)


_LENGTHS = frozenset({Name.QUERIES, Name.KEYS, Name.VALID, Name.COUNT})


def _at_least_one(divisor: Expr) -> Expr:
    """Without keys the lengths are 0, and so is every result: what is divided by them must only stay finite."""
    match divisor:
        case Symbol(name=name) if name in _LENGTHS:
            return Call("max", (divisor, Const(1)))
        case Binary(op=BinaryOp.MULTIPLY | BinaryOp.DIVIDE | BinaryOp.POWER) | Call(function="sqrt" | "log" | "log2"):
            return rebuild(divisor, _at_least_one)
        case _:
            return divisor


def _guarded(normalizer: Expr) -> Expr:
    """The normaliser, 0 where a length that it divides by is 0: there it has no value."""
    parts: set[Name] = set()
    for each in walk(normalizer):
        match each:
            case Binary(op=BinaryOp.DIVIDE, right=part) | Call(function="log" | "log2", arguments=(part,)):
                parts |= names_in(part) & _LENGTHS if _at_least_one(part) != part else set()
    for name in sorted(parts, key=lambda each: each.value):
        normalizer = Select(Compare(CompareOp.GREATER, Symbol(name), Const(0)), normalizer, Const(0))
    return normalizer


def _row_sums(core: Core) -> tuple[RowSum, ...]:
    return tuple(dict.fromkeys(each for each in walk(core.normalizer) if isinstance(each, RowSum)))


def _replace_sums(expr: Expr, sums: dict[Expr, Expr]) -> Expr:
    if expr in sums:
        return sums[expr]
    return rebuild(expr, lambda each: _replace_sums(each, sums))
