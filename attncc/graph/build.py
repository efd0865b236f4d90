"""Checked spec → graph, naively: the dense meaning of the spec, nothing saved and nothing reordered."""

from __future__ import annotations

from dataclasses import replace

from attncc.graph.ir import Graph, Node, number, pair_number
from attncc.graph.ops import Axis, Op
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Dot,
    Expr,
    Local,
    Name,
    RowSum,
    Select,
    Symbol,
    names_in,
    rebuild,
    walk,
)
from attncc.spec.model import Spec

PAIR = (Axis.ROW, Axis.COLUMN)

# Functions worth a name of their own: their derivative reads their value, so the backward pass can share it.
_NAMED_FUNCTIONS = frozenset({"exp", "exp2", "tanh", "sigmoid", "erf", "sqrt", "cos", "sin"})


def build(spec: Spec) -> Graph:
    """The graph of a spec; its output is `out`, and `norm` is the row's normaliser."""
    builder = _Builder(spec)
    builder.operands()
    builder.numbers()
    return builder.finish()


class _Builder:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.nodes: dict[str, Node] = {}

    def _add(self, node: Node) -> str:
        self.nodes[node.name] = node
        return node.name

    def operands(self) -> None:
        """The caller's tensors and the dot products that the spec reads."""
        self._add(Node(name="q", op=Op.OPERAND, axes=(Axis.ROW, Axis.FEATURE)))
        self._add(Node(name="k", op=Op.OPERAND, axes=(Axis.COLUMN, Axis.FEATURE)))
        self._add(Node(name="v", op=Op.OPERAND, axes=(Axis.COLUMN, Axis.VALUE)))
        for dot in self.spec.dots:
            self._add(Node(name=_dot_name(dot), op=Op.DOT, axes=PAIR, inputs=(dot.row, dot.column)))

    def numbers(self) -> None:
        """Score, weight and normaliser, with the sums they read."""
        spec = self.spec
        self._add(Node(name="related", op=Op.RELATED, axes=PAIR, expr=spec.pattern))
        if Name.COUNT in spec.names:
            self._row_sum("count", Const(1))
        if Name.SCORE in names_in(spec.weight) or any(Name.SCORE in names_in(each.weight) for each in _row_sums(spec)):
            self._number("score", spec.score)
        kept = self._kept("weight", spec.weight)
        if Name.ROWS in names_in(spec.normalizer):
            self._add(Node(name="rows", op=Op.SUM, axes=(Axis.ROW,), inputs=(kept,)))
        sums: dict[Expr, Expr] = {}
        for at, row_sum in enumerate(_row_sums(spec)):
            suffix = "other" if at == 0 else f"other_{at + 1}"
            self._row_sum(f"rows_{suffix}", row_sum.weight, f"weight_{suffix}")
            sums[row_sum] = Local(f"rows_{suffix}")
        norm = self._localize(_guarded(_replace_sums(spec.normalizer, sums)))
        self._add(number("norm", norm, self.nodes.values()))
        self._add(Node(name="share", op=Op.DIVIDE, axes=PAIR, inputs=(kept, "norm")))
        self._add(Node(name="out", op=Op.CONTRACT, axes=(Axis.ROW, Axis.VALUE), inputs=("share", "v")))

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
            case Dot():
                return Local(_dot_name(expr), span=expr.span)
            case Symbol(name=Name.SCORE | Name.ROWS | Name.COUNT as name):
                return Local(name.value, span=expr.span)
            case _:
                return rebuild(expr, self._localize)

    def _name_parts(self, name: str, expr: Expr) -> Expr:
        """Calls inside `expr` whose derivative reads their value become nodes of their own."""

        def named(part: Expr) -> Expr:
            part = rebuild(part, named)
            if not (isinstance(part, Call) and part.function in _NAMED_FUNCTIONS and _reads_dot(part)):
                return part
            existing = next((node.name for node in self.nodes.values() if node.expr == part), None)
            return Local(existing or self._add(number(self._free(part.function), part, self.nodes.values())))

        return rebuild(expr, named) if isinstance(expr, Call) else named(expr)

    def _free(self, name: str) -> str:
        at = 1
        while (candidate := f"{name}_{at}") in self.nodes:
            at += 1
        return candidate


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


def _reads_dot(expr: Expr) -> bool:
    return any(isinstance(each, Local) for each in walk(expr))


def _dot_name(dot: Dot) -> str:
    return f"dot_{dot.row}{dot.column}"


def _row_sums(spec: Spec) -> tuple[RowSum, ...]:
    return tuple(dict.fromkeys(each for each in walk(spec.normalizer) if isinstance(each, RowSum)))


def _replace_sums(expr: Expr, sums: dict[Expr, Expr]) -> Expr:
    if expr in sums:
        return sums[expr]
    return rebuild(expr, lambda each: _replace_sums(each, sums))
