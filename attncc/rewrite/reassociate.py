"""The law `reassociate`: sum_j (f_i . g_j) v_j = f_i . (sum_j g_j v_j), over the keys that all rows of a tile see.

A sum over such keys needs no pair: it is a product of the query's features with a state, the sum of products of keys'
features and values. Every sum of a row that reads weights of pairs has its own states, and all of them must have some.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from attncc.graph.ir import Graph, Node, number
from attncc.graph.ops import Axis, Op
from attncc.rewrite.separable import Exponent, Factor, Term
from attncc.rewrite.separate import NotSeparable, separate
from attncc.spec.expr import Const, Expr, Local, Name, Vector, names_in, rebuild, walk

STATEMENT = "sum_j (f_i . g_j) v_j = f_i . (sum_j g_j v_j): keys that all rows of a tile see are summed once for them."


@dataclass(frozen=True, slots=True)
class StateSum:
    """A sum of a row: which terms its weight has, and whether they are summed times values or by themselves."""

    node: str
    terms: tuple[int, ...]
    of_values: bool


@dataclass(frozen=True, slots=True)
class States:
    """What is summed over keys: the terms of all weights, each once, and the sums of a row that are made of them.

    Numbers that terms read of one side, and uniform ones, are nodes of `numbers`, by name.
    """

    terms: tuple[Term, ...]
    sums: tuple[StateSum, ...]
    numbers: Graph

    @property
    def has_exponents(self) -> bool:
        """Whether features are relative to a key near by."""
        return any(not each.is_zero for term in self.terms for each in term.exponents)

    @property
    def by_query_head(self) -> bool:
        """Whether features of a key differ between the query heads that share it."""
        return any(Name.HEAD in names_in(each) for term in self.terms for each in self._of_key(term))

    def _of_key(self, term: Term) -> list[Expr]:
        read = [term.key, *(each.key for each in term.factors)]
        read += [one.slope for one in term.exponents if one.slope is not None]
        read += [key for one in term.exponents for _, key in one.differences]
        return [written_out(each, self.numbers) for each in read]


def written_out(expr: Expr, numbers: Graph, kept: Collection[str] = ()) -> Expr:
    """An expression with the numbers that it names in their place; those that are kept stay names."""
    if isinstance(expr, Local) and expr.name in numbers and expr.name not in kept:
        node = numbers[expr.name]
        if node.op is Op.NUMBER:
            return written_out(node.value, numbers, kept)
    return rebuild(expr, lambda each: written_out(each, numbers, kept))


def states_of(graph: Graph, sources: Mapping[str, Expr]) -> States:
    """The states of a forward graph in which no number is lowered by a peak.

    Raises:
        NotSeparable: for the first sum whose weight is no sum of products.
    """
    reductions = [node for node in graph if node.op in (Op.SUM, Op.CONTRACT) and Axis.ROW in node.axes]
    names = {node.name for node in reductions}
    terms: dict[Term, int] = {}
    sums = []
    for node in reductions:
        weight = graph[node.inputs[0]]
        weight = graph[weight.inputs[0]] if weight.op is Op.RESTRICT else weight
        if any(graph.depends(weight.name, other) for other in names):
            raise NotSeparable(f"`{weight.name}` reads a sum over the row, which is known only after all keys")
        found = separate(graph, weight.name, sources)
        own = tuple(terms.setdefault(term, len(terms)) for term in found)
        sums.append(StateSum(node.name, own, node.op is Op.CONTRACT))
    return _named(tuple(terms), tuple(sums), graph)


def _named(terms: tuple[Term, ...], sums: tuple[StateSum, ...], graph: Graph) -> States:
    """The states, with their numbers as nodes."""
    operands = [node for node in graph if node.op is Op.OPERAND]
    nodes: dict[str, Node] = {}

    def name(kind: str, at: int, expr: Expr) -> Expr:
        if isinstance(expr, Const | Local):
            return expr
        known = next((each.name for each in nodes.values() if each.expr == expr), None)
        if known is None:
            known = f"{kind}_{at + 1}"
            while known in nodes:
                known += "_rest"
            nodes[known] = number(known, expr, operands)
        return Local(known)

    def exponent(at: int, given: Exponent) -> Exponent:
        slope = None if given.slope is None else name("decay", at, given.slope)
        if any(isinstance(each, Vector) for pair in given.differences for part in pair for each in walk(part)):
            return replace(given, slope=slope)  # of channels: no number
        pairs = ((name("exponent", at, row), name("key_exponent", at, key)) for row, key in given.differences)
        return Exponent(slope, tuple(pairs))

    def named(at: int, term: Term) -> Term:
        factors = tuple(Factor(each.row, each.key, exponent(at, each.exponent)) for each in term.factors)
        return Term(
            name("factor", at, term.row), name("key_factor", at, term.key), factors, exponent(at, term.exponent)
        )

    found = tuple(named(at, term) for at, term in enumerate(terms))
    return States(found, sums, Graph([*operands, *nodes.values()], tuple(nodes)))
