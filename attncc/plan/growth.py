"""How the work of a plan grows with the length of a sequence: leading terms of the pairs that a head visits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy  # noqa: TID251  as in `cost`

from attncc.plan.cost import HEAD, HEADS, M, N, cost
from attncc.plan.layers import LayerPlan
from attncc.plan.model import Mixture, Plan, Planned
from attncc.spec.layers.dims import RUN_TIME, Atom, Ceil, Dim, Least
from attncc.spec.layers.model import Node, Op, walk

Formula = Any  # a sympy expression
LENGTH = sympy.Symbol("n", positive=True)
BY_DATA = sympy.Symbol("data", positive=True)
AT_MOST = sympy.Symbol("most", positive=True)  # times what is a bound


def growth(planned: Planned) -> Formula:
    """Of long calls with as many keys as rows; where data tell what is visited, a symbol for that."""
    return _leading(_pairs(planned, LENGTH, LENGTH))


def layer_growth(plan: LayerPlan) -> Formula:
    """Of the pairs of its cores, or of its products where these grow faster; else the tokens alone."""
    cores = dict(plan.cores)
    fixed = {each.name: each.value for each in plan.layer.parameters if each.fixed and each.value is not None}
    found = [LENGTH]
    for _, value in plan.layer.values:
        for node in walk(value):
            if node.op is Op.ATTEND:
                rows = _dim(node.type.axes[-2], fixed)
                found += _pairs(cores[node.name], rows, _dim(node.dims[0], fixed))
            elif node.op in (Op.COLUMN_SUMS, Op.BLOCK_SUMS):
                found.append(LENGTH**2)  # of every row in turn
            elif node.op is Op.MATMUL:
                found.append(_product(node, fixed))
    return _leading(found)


def written(formula: Formula) -> str:
    """`n²/2`, `512·n`."""
    if formula.has(BY_DATA):
        return "as the data say"
    if formula.has(AT_MOST):
        return f"at most {written(formula / AT_MOST)}"
    text = str(formula).replace(f"{LENGTH}**2", "n²").replace("*", "·")
    return text.replace("··", "^")


def _pairs(planned: Planned, rows: Formula, keys: Formula) -> list[Formula]:
    plans = [each for _, each in planned.branches] if isinstance(planned, Mixture) else [planned]
    return [formula for each in plans for formula in _of_plan(each, rows, keys)]


def _of_plan(plan: Plan, rows: Formula, keys: Formula, *, by_states: bool = True) -> list[Formula]:
    found = [formula for each in plan.chosen for formula in _of_plan(each.plan, rows, keys, by_states=False)]
    if plan.lists is not None:
        return [*found, BY_DATA]
    if plan.states is not None and by_states:  # of long calls they cost less
        return [*found, rows]
    if plan.spec.blocks is not None:
        keys = keys / plan.spec.blocks.stride
    for _, pairs in cost(plan, in_pieces=True).pairs:
        of_lengths = AT_MOST * rows * keys if pairs is None else pairs
        found.append(of_lengths.subs({N: rows, M: keys, HEAD: 0, HEADS: 1}, simultaneous=True))
    return found


def _leading(formulas: Iterable[Formula]) -> Formula:
    """The term that grows fastest; of equal powers the largest."""
    terms = [term for each in formulas for term in sympy.Add.make_args(sympy.expand(each))]
    if any(each.has(BY_DATA) for each in terms) and all(_power(each) < 2 for each in terms):
        return BY_DATA
    most = max(map(_power, terms))
    return max((each for each in terms if _power(each) == most), key=_size)


def _power(term: Formula) -> Formula:
    return term.as_powers_dict().get(LENGTH, 0)


def _size(term: Formula) -> tuple[int, float, str]:
    """Of terms of one power: those with parameters that have no value count as larger."""
    unknown = term.free_symbols - {LENGTH}
    return len(unknown), float(term.subs(dict.fromkeys(term.free_symbols, 1))), str(term)


def _product(node: Node, fixed: Mapping[str, float]) -> Formula:
    """Multiplications of a product, parameters apart."""
    sizes = [*node.type.axes, node.args[0].type.axes[-1]]
    power = sum(_power(_dim(each, fixed)) for each in sizes)
    return LENGTH**power


def _dim(dim: Dim, fixed: Mapping[str, float]) -> Formula:
    total = sympy.Integer(0)
    for powers, factor in dim.terms:
        term = sympy.Rational(factor.numerator, factor.denominator)
        for atom, power in powers:
            term *= _atom(atom, fixed) ** power
        total += term
    return total


def _atom(atom: Atom, fixed: Mapping[str, float]) -> Formula:
    match atom:
        case str() if atom in RUN_TIME:
            return LENGTH
        case str():
            return sympy.Integer(int(fixed[atom])) if atom in fixed else sympy.Symbol(atom, positive=True)
        case Ceil(of=of, by=by):
            return _dim(of, fixed) / _dim(by, fixed)
        case Least(most=most):
            return _dim(most, fixed)
