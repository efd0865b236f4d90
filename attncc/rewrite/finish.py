"""The last touches before planning: aliases removed, divisions by call-wide numbers made products, base two on GPUs."""

from __future__ import annotations

import math
from dataclasses import replace

from attncc.graph.ir import Graph, Node, number, pair_number
from attncc.graph.ops import Op
from attncc.rewrite.slopes import times
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Expr,
    Local,
    Name,
    Negate,
    Select,
    Symbol,
    Type,
    names_in,
    rebuild,
    substitute,
    type_of,
    walk,
)

LOG2_E = 1 / math.log(2)
LN_2 = math.log(2)


def finish(graph: Graph, taken: dict[Expr, str], *, use_base_two: bool) -> Graph:
    """The graph as it is planned; `taken` is passed on to `hoist`."""
    graph = _cheap_division(graph)
    if use_base_two:
        graph = base_two(graph)
    return hoist(_without_aliases(graph), taken, _LIFTED if use_base_two else _LIFTED | {Name.HEAD})


def _without_aliases(graph: Graph) -> Graph:
    for node in graph:
        if node.op is Op.NUMBER and isinstance(node.expr, Local):
            if node.name in graph.outputs or graph[node.expr.name].axes != node.axes:
                continue
            return _without_aliases(graph.rename_uses(node.name, node.expr.name))
    return graph


def _cheap_division(graph: Graph) -> Graph:
    """x / u becomes x * (1 / u) where u is the same for every pair: one division a call instead of one a pair."""

    def change(expr: Expr) -> Expr:
        expr = rebuild(expr, change)
        match expr:
            case Binary(op=BinaryOp.DIVIDE, left=left, right=right) if not _is_uniform(left) and _is_uniform(right):
                inverse = (
                    Const(1 / right.value) if isinstance(right, Const) else Binary(BinaryOp.DIVIDE, Const(1), right)
                )
                return Binary(BinaryOp.MULTIPLY, left, inverse)
            case _:
                return expr

    changed = [replace(node, expr=change(node.value)) for node in graph if node.op is Op.NUMBER and node.axes]
    return graph.change(*changed)


def _is_uniform(expr: Expr) -> bool:
    """Whether an expression is the same for every pair of one head: it reads lengths, widths, the head, or nothing."""
    pair = {Name.I, Name.J, Name.COUNT, Name.SCORE, Name.ROWS}
    return not names_in(expr) & pair and not any(isinstance(node, Local) for node in walk(expr))


# --- base two ---------------------------------------------------------------------------------------------------------


def base_two(graph: Graph) -> Graph:
    """exp(x - peak) = exp2(x log2(e) - peak log2(e)): GPUs have an instruction for exp2, and the factor folds into x.

    Exponents, the peak and the log-sum-exp are kept in base two inside the graph; what it stores stays natural.
    """
    exponents = [node.name for node in graph if node.name.startswith("exponent") and node.op is Op.NUMBER]
    if not exponents:
        return graph
    lowered = {f"{name}_kept" for name in exponents} | set(exponents) | {"peak", "lse"}
    changed: list[Node] = []
    known = {node.name: node for node in graph}
    for name in exponents:
        changed.append(pair_number(name, scale(_written_out(graph, name), LOG2_E), known.values()))
    if "peak" in graph:
        changed += _natural_outside(graph)
    elif "lse" in graph:
        known["lse_2"] = number("lse_2", times(Const(LOG2_E), Local("lse")), known.values())
        changed.append(known["lse_2"])
    done = {node.name for node in changed}
    rename: dict[Expr, Expr] = {Local("lse"): Local("lse_2")} if "peak" not in graph else {}
    for node in graph:
        if node.op is Op.NUMBER and node.name not in done and _raises(node.value, lowered):
            lower = number(node.name, _to_base_two(node.value, lowered, rename), known.values())
            changed.append(replace(lower, axes=node.axes))
    return graph.change(*changed)


def _written_out(graph: Graph, name: str) -> Expr:
    """An exponent's expression, with a node that only it reads (the score) written out."""
    expr = graph[name].value
    if isinstance(expr, Local) and graph[expr.name].op is Op.NUMBER and len(graph.users(expr.name)) == 1:
        return graph[expr.name].value
    return expr


def _natural_outside(graph: Graph) -> list[Node]:
    peak = graph["peak"]
    changed: list[Node] = []
    if peak.expr is not None:
        changed.append(replace(peak, expr=_log_two(peak.expr)))
    if "lse" in graph:
        lse = graph["lse"].value
        assert isinstance(lse, Binary), "the log-sum-exp is peak + log(norm)"
        changed.append(replace(graph["lse"], expr=Binary(BinaryOp.ADD, times(Const(LN_2), Local("peak")), lse.right)))
    return changed


def _log_two(expr: Expr) -> Expr:
    """log2(e) * expr, for what the peak starts from."""
    match expr:
        case Call(function="log", arguments=(argument,)):
            return Call("log2", (argument,))
        case Call(function="max", arguments=arguments):
            return Call("max", tuple(_log_two(each) for each in arguments))
        case _:
            return scale(expr, LOG2_E)


def _raises(expr: Expr, lowered: set[str]) -> bool:
    return any(_is_lowered_exp(node, lowered) for node in walk(expr))


def _is_lowered_exp(expr: Expr, lowered: set[str]) -> bool:
    match expr:
        case Call(function="exp", arguments=(argument,)):
            if isinstance(argument, Binary) and argument.op is BinaryOp.SUBTRACT and argument.right == Local("peak"):
                return True
            leaves = [node for node in walk(argument) if not isinstance(node, Binary | Negate)]
            return all(isinstance(leaf, Local) and leaf.name in lowered for leaf in leaves)
        case _:
            return False


def _lowered(expr: Expr, lowered: set[str]) -> bool:
    """Whether an exponent is one that is kept in base two."""
    return any(isinstance(node, Local) and node.name in lowered for node in walk(expr))


def _to_base_two(expr: Expr, lowered: set[str], rename: dict[Expr, Expr]) -> Expr:
    if isinstance(expr, Call) and _is_lowered_exp(expr, lowered):
        match expr.arguments[0]:
            case Binary(op=BinaryOp.SUBTRACT, left=left, right=Local(name="peak") as peak) if not _lowered(
                left, lowered
            ):
                return Call("exp2", (Binary(BinaryOp.SUBTRACT, scale(left, LOG2_E), peak),))
        return Call("exp2", tuple(substitute(argument, rename) for argument in expr.arguments))
    return rebuild(expr, lambda each: _to_base_two(each, lowered, rename))


def scale(expr: Expr, factor: float) -> Expr:
    """factor * expr, with the factor folded into constants or call-wide numbers where that is free."""
    match expr:
        case Const(value=value):
            return Const(value * factor)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT as op, left=left, right=right):
            return Binary(op, scale(left, factor), scale(right, factor))
        case Negate(operand=operand):
            return Negate(scale(operand, factor))
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right) if _is_uniform(left):
            return Binary(BinaryOp.MULTIPLY, scale(left, factor), right)
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right) if _is_uniform(right):
            return Binary(BinaryOp.MULTIPLY, left, scale(right, factor))
        case Binary(op=BinaryOp.DIVIDE, left=left, right=right) if _is_uniform(right):
            return Binary(BinaryOp.MULTIPLY, left, Binary(BinaryOp.DIVIDE, Const(factor), right))
        case _:
            return (
                Binary(BinaryOp.MULTIPLY, expr, Const(factor))
                if _is_uniform(expr)
                else Binary(BinaryOp.MULTIPLY, Const(factor), expr)
            )


# --- call-wide numbers ------------------------------------------------------------------------------------------------


def hoist(graph: Graph, taken: dict[Expr, str], lifted: frozenset[Name]) -> Graph:
    """Numbers that are the same for every pair become nodes of their own: they are computed once a call or head.

    Args:
        taken: names given to such numbers so far, extended here, so that forward and backward share them.
        lifted: symbols that the target does not have at hand as whole numbers.
    """
    changed: list[Node] = []
    uniform: dict[str, Node] = {}

    def lift(expr: Expr, owner: str) -> Expr:
        if type_of(expr) is Type.BOOL and _is_uniform(expr):
            if not names_in(expr) & {Name.HEAD, *lifted}:
                return expr  # lengths are at hand
            return Compare(CompareOp.NOT_EQUAL, lift(Select(expr, Const(1), Const(0)), owner), Const(0))
        if (
            _is_uniform(expr)
            and not isinstance(expr, Const)
            and not (isinstance(expr, Symbol) and expr.name not in lifted)
        ):
            name = taken.setdefault(expr, _name_for(expr, owner, set(taken.values())))
            uniform[name] = Node(name=name, op=Op.NUMBER, axes=(), expr=expr)
            return Local(name)
        return rebuild(expr, lambda each: lift(each, owner))

    for node in graph:
        if node.op in (Op.NUMBER, Op.PEAK) and node.expr is not None and not (node.op is Op.NUMBER and not node.axes):
            expr = lift(node.expr, node.name)
            if expr != node.expr:
                inputs = tuple(each for each in node.inputs)
                inputs += tuple(each.name for each in walk(expr) if isinstance(each, Local) and each.name not in inputs)
                changed.append(replace(node, expr=expr, inputs=tuple(dict.fromkeys(inputs))))
    return graph.change(*uniform.values(), *changed)


# Symbols that a kernel does not have at hand as whole numbers; the torch form computes many heads at once.
_LIFTED = frozenset({Name.SCALE, Name.VALID, Name.WIDTH, Name.VALUE_WIDTH})
_SYMBOL_NAMES = {
    Name.SCALE: "scale",
    Name.VALID: "valid",
    Name.WIDTH: "width",
    Name.VALUE_WIDTH: "value_width",
    Name.HEAD: "head",
}


def _name_for(expr: Expr, owner: str, taken: set[str]) -> str:
    match expr:
        case Symbol(name=name):
            wanted = _SYMBOL_NAMES[name]
        case Binary(op=BinaryOp.MULTIPLY, left=Symbol(name=name), right=Const(value=value)) if value == LOG2_E:
            wanted = f"{name.value}_log2"
        case Binary(op=BinaryOp.DIVIDE, left=Const(value=1), right=Symbol(name=name)):
            wanted = f"inverse_{name.value}"
        case Binary(
            op=BinaryOp.DIVIDE, left=Const(value=1), right=Call(function="max", arguments=(Symbol(name=name), _))
        ):
            wanted = f"inverse_{name.value}"
        case Call(function=function, arguments=(Symbol(name=name) | Call(arguments=(Symbol(name=name), _)),)):
            wanted = f"{function}_{name.value}"
        case _:
            wanted = f"{owner}_constant"
    at, candidate = 1, wanted
    while candidate in taken:
        at += 1
        candidate = f"{wanted}_{at}"
    return candidate
