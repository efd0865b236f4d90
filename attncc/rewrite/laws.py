"""The laws that turn the dense meaning of a spec into one sweep over the keys of a row."""

from __future__ import annotations

from dataclasses import replace

from attncc.graph.ir import Graph, Node, describe, number, pair_number
from attncc.graph.ops import Axis, Op
from attncc.rewrite.engine import Change, law
from attncc.rewrite.exponential import Term, never_negative, scaled_normalizer, terms_of
from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, Local, Negate, rebuild, walk


@law("drop-division")
def drop_division(graph: Graph) -> Change | str:
    """x / 1 = x.

    When: the normaliser is the constant 1 (`normalize = none`).
    """
    for node in graph.find(Op.DIVIDE):
        if graph[node.inputs[1]].expr == Const(1):
            changed = graph.rename_uses(node.name, node.inputs[0])
            return Change(changed, (node.name, *_names(graph.users(node.name))), _names(graph.users(node.name)))
    return f"the normaliser is {describe(graph['norm'])}"


@law("defer-division")
def defer_division(graph: Graph) -> Change | str:
    """sum_j (w_ij / N_i) v_j = (sum_j w_ij v_j) / N_i.

    When: N_i does not vary along the keys, so division distributes over the sum. One division a row instead of one a
    pair, and the sum can run before N_i is known.
    """
    for contract in graph.find(Op.CONTRACT):
        divide = graph[contract.inputs[0]]
        if divide.op is Op.DIVIDE and Axis.COLUMN not in graph[divide.inputs[1]].axes:
            total = replace(contract, name="total", inputs=(divide.inputs[0], contract.inputs[1]))
            out = replace(contract, op=Op.DIVIDE, inputs=("total", divide.inputs[1]))
            return Change(graph.change(total, out), (divide.name, contract.name), ("total", contract.name))
    return "nothing is divided"


@law("common-peak")
def common_peak(graph: Graph) -> Change | str:
    """sum_j exp(s_ij) v_j / sum_j exp(s_ij) is unchanged when every s_ij is lowered by the same number of the row.

    When: the weight is a sum of coefficient * exp(exponent), and the normaliser is proportional to its row sums up to
    constants, which are lowered with it (a sink takes part in the maximum). The peak is the largest exponent of the
    row, so no exp overflows, and it can be raised on the way: earlier sums are rescaled by exp(old - new).
    """
    if "peak" in graph:
        return "the peak is subtracted already"
    if not any(node.name.startswith("rows") for node in graph):
        return "the normaliser reads no sum of weights, so a lower exponent would change the result"
    sums = tuple(node for node in graph.find(Op.SUM) if node.name.startswith("rows"))
    weights = {graph[node.inputs[0]].inputs[0] for node in sums} | {"weight"}
    split: dict[str, tuple[Term, ...]] = {}
    for name in sorted(weights):
        terms = terms_of(_inlined(graph, graph[name].value))
        split[name] = terms if terms is not None else (Term(_inlined(graph, graph[name].value), None),)
    if all(term.exponent is None for terms in split.values() for term in terms):
        return f"no weight grows like exp: it is {describe(graph['weight'])}"
    scaled = scaled_normalizer(graph["norm"].value, frozenset(node.name for node in sums), Local("peak"))
    if scaled is None:
        return f"the normaliser {describe(graph['norm'])} is no multiple of the sums of weights"
    return _with_peak(graph, split, *scaled)


def _with_peak(graph: Graph, split: dict[str, tuple[Term, ...]], norm: Expr, constants: tuple[Expr, ...]) -> Change:
    nodes = {node.name: node for node in graph}
    exponents: list[str] = []
    weights: dict[str, Expr] = {}
    flat = any(term.exponent is None for terms in split.values() for term in terms)
    several = sum(len(terms) for terms in split.values()) > 1
    for name, terms in sorted(split.items(), key=lambda item: item[0] != "weight"):
        parts: list[Expr] = []
        for term in terms:
            lowered: Expr = Negate(Local("peak"))
            if term.exponent is not None:
                exponent = _exponent_node(nodes, term.exponent, exponents, several)
                lowered = Binary(BinaryOp.SUBTRACT, Local(kept_name(exponent)), Local("peak"))
            power: Expr = Call("exp", (lowered,))
            parts.append(power if term.coefficient == Const(1) else Binary(BinaryOp.MULTIPLY, term.coefficient, power))
        total = parts[0]
        for part in parts[1:]:
            total = Binary(BinaryOp.ADD, total, part)
        weights[name] = total
    restricted = _restricted(nodes, exponents)
    exact = {name for name, terms in split.items() if all(_vanishes(term) for term in terms)}
    start = _start(constants, flat)
    read = {each.name for each in walk(start) if isinstance(each, Local)} if start is not None else set()
    inputs = (*restricted, *sorted(read))
    nodes["peak"] = Node(name="peak", op=Op.PEAK, axes=(Axis.ROW,), inputs=inputs, expr=start)
    for name, value in weights.items():
        nodes[name] = pair_number(name, value, nodes.values())
    nodes["norm"] = number("norm", norm, nodes.values())
    natural = Binary(BinaryOp.ADD, Local("peak"), Call("log", (Local("norm"),)))
    nodes["lse"] = number("lse", natural, nodes.values())
    changed = Graph(nodes.values(), ("out", "lse"))
    for restrict in changed.find(Op.RESTRICT):
        if restrict.inputs[0] in exact:  # exp(-inf) is 0 already
            changed = changed.rename_uses(restrict.name, restrict.inputs[0])
    return Change(changed, ("weight", "norm"), ("peak", "weight", "norm", "lse"))


def kept_name(exponent: str) -> str:
    """The node that holds an exponent where the pair is related, and -inf elsewhere."""
    return f"{exponent}_kept"


def _vanishes(term: Term) -> bool:
    """Whether a term is exactly 0 when its exponent is -inf."""
    return term.exponent is not None and term.coefficient == Const(1)


def _exponent_node(nodes: dict[str, Node], exponent: Expr, known: list[str], several: bool) -> str:
    """The name of the node that holds an exponent, made when none does."""
    for name in known:
        if nodes[name].expr == exponent:
            return name
    name = f"exponent_{len(known) + 1}" if several else "exponent"
    nodes[name] = pair_number(name, exponent, nodes.values())
    known.append(name)
    return name


def _restricted(nodes: dict[str, Node], exponents: list[str]) -> tuple[str, ...]:
    names = []
    for exponent in exponents:
        name = kept_name(exponent)
        pair = (Axis.ROW, Axis.COLUMN)
        nodes[name] = Node(
            name=name, op=Op.RESTRICT, axes=pair, inputs=(exponent, "related"), expr=Const(-float("inf"))
        )
        names.append(name)
    return tuple(names)


def _start(constants: tuple[Expr, ...], flat: bool) -> Expr | None:
    """The logarithm of the largest constant that the peak must not fall below."""
    logs: list[Expr] = []
    for constant in constants:
        match constant:
            case Const(value=value):
                logs += [Const(0)] if value == 1 else [Call("log", (constant,))] if value > 0 else []
            case Call(function="exp", arguments=(exponent,)):
                logs.append(exponent)
            case _:
                logs.append(Call("log", (Call("max", (Call("abs", (constant,)), Const(1e-30))),)))
    if flat:
        logs.append(Const(0))
    logs = list(dict.fromkeys(logs))
    return None if not logs else logs[0] if len(logs) == 1 else Call("max", tuple(logs))


def _inlined(graph: Graph, expr: Expr) -> Expr:
    """`expr` with the nodes that name parts of it written out; dots, score and sums stay nodes."""

    def inline(each: Expr) -> Expr:
        if isinstance(each, Local) and graph[each.name].op is Op.NUMBER and _holds_exponential(graph, each.name):
            return inline(graph[each.name].value)
        return rebuild(each, inline)

    return inline(expr)


def _holds_exponential(graph: Graph, name: str) -> bool:
    expr = graph[name].expr
    parts = () if expr is None else tuple(walk(expr))
    if any(isinstance(part, Call) and part.function in ("exp", "exp2") for part in parts):
        return True
    return any(isinstance(part, Local) and _holds_exponential(graph, part.name) for part in parts)


def _names(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def weights_never_negative(graph: Graph, at_least_zero: frozenset[str]) -> bool:
    """Whether every summed weight is proven >= 0, so that the normaliser is one and has a logarithm.

    Args:
        graph: a forward graph.
        at_least_zero: its operands that are known to be.
    """
    known = set(at_least_zero)
    for node in graph:
        if node.op is Op.NUMBER and never_negative(node.value, frozenset(known)):
            known.add(node.name)
        if node.op in (Op.SUM, Op.RESTRICT) and node.inputs[0] in known:
            known.add(node.name)
        if node.op is Op.DOT and all(each in known for each in node.inputs):  # of features that are never negative
            known.add(node.name)
    return "norm" in known


DIVISIONS = (drop_division, defer_division)
PEAKS = (common_peak,)
LAWS = (*DIVISIONS, *PEAKS)
