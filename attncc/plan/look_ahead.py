"""How far ahead each value of a layer reads: what makes a layer causal, or not.

An entry c of a sequence whose entries are blocks of b tokens may depend on tokens up to b * c + ahead. Operators along
the sequence add to what their arguments have; a causal core gives its rows what they had, if it is proven that the keys
that a row sees depend on nothing later than the row, and that no later key decides which ones these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attncc.plan.domain import BUDGET, prover_of
from attncc.plan.later_choices import later_choices
from attncc.plan.linear import variable
from attncc.plan.literals import literal
from attncc.plan.model import Mixture, Plan, Planned
from attncc.plan.predicates import outer_tree
from attncc.spec.expr import Name, names_in
from attncc.spec.layers.dims import Dim, blocks_of, constant, sequence_of
from attncc.spec.layers.model import Layer, Node, Op

NOTHING, EVERYTHING = float("-inf"), float("inf")
ALONG_AN_AXIS = (Op.SOFTMAX, Op.SUM, Op.MEAN, Op.LARGEST, Op.PICK)
OVER_FEATURES = (Op.LAYER_NORM, Op.RMS_NORM, Op.UNIT, Op.SCALE_NORM)
WHOLE = (
    Op.AVERAGE_BACK, Op.SEGMENTS, Op.CONVOLVE_2D, Op.BATCH_NORM,
    Op.LARGEST_AT, Op.GATHER, Op.COLUMN_SUMS, Op.BLOCK_SUMS,
)  # fmt: skip
_ONE = constant(1)
_SHARE = 0.12  # of isl's budget, for one question


@dataclass(frozen=True, slots=True)
class Ahead:
    """The largest number of tokens that an entry reads beyond its own, and what makes it more than 0."""

    most: float
    because: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Early:
    """A causal core at one place that would see what depends on later tokens, by way of these values."""

    call: Node
    because: tuple[Node, ...]


class LookAhead:
    """What values of a layer read ahead."""

    def __init__(self, layer: Layer, cores: Mapping[str, Planned]) -> None:
        self.layer = layer
        self.cores = cores
        self.early: list[Early] = []
        self._sizes = {each.name: int(each.value) for each in layer.parameters if each.fixed and each.value is not None}
        self._known: dict[str, Ahead] = {each.name: Ahead(NOTHING) for each in layer.learned}
        for each in layer.inputs:
            has_tokens = any(sequence_of(axis) is not None for axis in each.type.axes)
            self._known[each.name] = Ahead(0.0 if has_tokens else NOTHING)
        for name, value in layer.values:
            self._known[name] = self.of(value)

    def value(self, name: str) -> Ahead:
        """Of a named value."""
        return self._known[name]

    def of(self, node: Node) -> Ahead:
        """Of any value."""
        if node.op is Op.NAME:
            return self._known.get(node.name, Ahead(NOTHING))
        if node.op is Op.ITERATE:
            return self._iterated(node)
        if node.op in (Op.PRESENT, Op.SINUSOIDS):
            return Ahead(NOTHING)
        parts = [self.of(each) for each in (*node.args, *(value for _, value in node.options))]
        found = _furthest(parts)
        if node.op is Op.ATTEND:
            return self._attended(node, parts)
        if found.most == NOTHING:
            return found
        more = self._more(node)
        return _further(found, more, node) if more else found

    def _more(self, node: Node) -> float:
        """How much further an operator reads than its arguments do."""
        if node.op in WHOLE or (node.op in ALONG_AN_AXIS and node.along is not None and sequence_of(node.along)):
            return EVERYTHING
        if node.op in OVER_FEATURES or node.op is Op.MATMUL:
            return EVERYTHING if sequence_of(node.args[0].type.axes[-1]) is not None else 0
        if node.op not in (Op.POOL, Op.POOL_LARGEST, Op.SHIFT, Op.CONVOLVE, Op.DEPTHWISE):
            return 0
        along = node.along
        if along is None or sequence_of(along) is None:
            return 0
        whole = blocks_of(along)
        by = None if whole is None else self.number(whole)
        match node.op:
            case Op.POOL | Op.POOL_LARGEST:
                entries = self.number(node.dims[0])
                entries = None if entries is None else entries - 1
            case Op.SHIFT:
                entries = self.number(node.dims[0])
                entries = -1 if entries is None else -entries  # by 1 or more
            case _:
                entries = self._after(node)
        return EVERYTHING if by is None or entries is None else by * entries

    def _after(self, node: Node) -> int | None:
        """How many entries after the first of its stride a convolution reads."""
        kernel, stride = node.args[1].type.axes[-3 if node.op is Op.CONVOLVE else -2], node.dims[0]
        if len(node.dims) > 1:
            left = kernel - node.dims[1]
            if all(factor < 0 for _, factor in (left - _ONE).terms):
                return 0  # whatever the parameters are
            after = self.number(left)
            return None if after is None else after - 1
        width, step = self.number(kernel), self.number(stride)
        return None if width is None or step is None else width - 1 - max((width - step) // 2, 0)

    def number(self, dim: Dim) -> int | None:
        """A length that is known when the file is built."""
        return dim.length(self._sizes) if dim.symbols <= self._sizes.keys() else None

    def _iterated(self, node: Node) -> Ahead:
        found = self.of(node.args[0])
        times = self.number(node.dims[0])
        for _ in range(2 if times is None else times):
            self._known[node.name] = found
            after = self.of(node.args[1])
            if after.most <= found.most:
                return found
            found = _furthest([found, after])
        return found if times is not None else Ahead(EVERYTHING, found.because)

    def _attended(self, node: Node, parts: list[Ahead]) -> Ahead:
        whole = _furthest(parts)
        planned = self.cores[node.name]
        if whole.most == NOTHING:
            return whole
        if not sees_no_later(planned):
            return Ahead(EVERYTHING, (node,))
        data = planned.spec.data
        rows = next(value for each, value in zip(data, node.args, strict=True) if each.is_row)
        found = [Ahead(0.0)]
        because: list[Node] = []
        for each, value, ahead in zip(data, node.args, parts, strict=False):
            if each.is_row and not each.is_column:
                found.append(ahead)
                because += ahead.because if ahead.most > 0 else ()
            elif ahead.most != NOTHING and not self._seen_late(planned, rows, value, ahead.most):
                because += ahead.because or (value,)
        if because:
            self.early.append(Early(node, tuple(dict.fromkeys(because))))
        return _furthest(found) if is_causal(planned) else Ahead(EVERYTHING, (node,))

    def sees_blocks_that_ended(self, node: Node) -> bool:
        """Whether queries of a call, which are tokens, see blocks of tokens only after the last one of each."""
        whole = blocks_of(node.dims[0])
        by = None if whole is None else self.number(whole)
        plans = plans_of(self.cores[node.name])
        return by is not None and all(_never_later(each, 1, by, by - 1) for each in plans)

    def _seen_late(self, planned: Planned, rows: Node, keys: Node, ahead: float) -> bool:
        """Whether a row sees a key only where all that the key depends on is not after the row."""
        own, its = (_blocks_of(each) for each in (rows, keys))
        if own is None or its is None or ahead == EVERYTHING:
            return False
        if own == its and ahead <= 0:
            return True  # the core is causal
        row_by, key_by = self.number(own), self.number(its)
        if row_by is None or key_by is None or planned.spec.blocks is not None:
            return False
        return all(_never_later(each, row_by, key_by, int(ahead)) for each in plans_of(planned))


def plans_of(planned: Planned) -> tuple[Plan, ...]:
    """The plan, or those of all branches."""
    return tuple(each for _, each in planned.branches) if isinstance(planned, Mixture) else (planned,)


def is_causal(planned: Planned) -> bool:
    """Whether nothing of a query depends on a later key: it sees none, and none decides what it sees."""
    return sees_no_later(planned) and not any(later_choices(each) for each in plans_of(planned))


def sees_no_later(planned: Planned) -> bool:
    """Whether no query of an attention sees a later key, of those from 0 on."""
    return all(_never_later(each, 1, 1, 0) for each in plans_of(planned))


def _never_later(plan: Plan, row_by: int, key_by: int, ahead: int) -> bool:
    """Whether key_by * j + ahead <= row_by * i for all related pairs with j >= 0."""
    later = literal(variable(Name.J).scaled(key_by) + ahead - variable(Name.I).scaled(row_by) - 1)
    for each in plan.domain.classes:
        if each.facts.empty or (each.facts.causal and row_by == key_by and ahead <= 0):
            continue
        prover = prover_of(BUDGET, names_in(each.pattern))
        if prover is None:
            return False
        prover.start(_SHARE)
        if not prover.empty(outer_tree(each.pattern)[0], later, literal(variable(Name.J))):
            return False
    return True


def _blocks_of(node: Node) -> Dim | None:
    """How many tokens an entry of a value's sequence stands for."""
    axes = [axis for axis in node.type.axes if sequence_of(axis) is not None]
    return blocks_of(axes[0]) if axes else None


def _furthest(parts: list[Ahead]) -> Ahead:
    most = max((each.most for each in parts), default=NOTHING)
    because = tuple(dict.fromkeys(one for each in parts if each.most > 0 for one in each.because))
    return Ahead(most, because)


def _further(found: Ahead, more: float, node: Node) -> Ahead:
    most = found.most + more
    return Ahead(most, (*found.because, node) if more > 0 else found.because if most > 0 else ())
