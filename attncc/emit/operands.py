"""What the passes of a module take: the operands of the core, and texts of how each kind is cut and broadcast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from attncc.graph.core import Core, Kind, Operand
from attncc.graph.ir import Graph, Node
from attncc.graph.ops import Op
from attncc.graph.widths import as_wide_as
from attncc.rewrite.backward import gradient_name
from attncc.spec.data import Size
from attncc.spec.expr import Entry, Local, walk
from attncc.spec.model import Spec

_ROWS = (Kind.ROW_VECTOR, Kind.ROW_NUMBER)
_COLUMNS = (Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER)


@dataclass(frozen=True, slots=True)
class Part:
    """A summand of a gradient that is added up over slabs: the node that is summed, and what it is multiplied with."""

    total: str
    factor: str | None


class Operands:
    """The operands of one core, in order."""

    def __init__(self, spec: Spec, core: Core) -> None:
        self.spec = spec
        self.core = core
        self.data = {each.name: each for each in spec.data}

    def __iter__(self) -> Iterator[Operand]:
        return iter(self.core.operands)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them."""
        return tuple(each.name for each in self.core.operands)

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of those that slabs read: all but facts, which say which pairs are related."""
        return tuple(each.name for each in self.core.operands if not each.kind.is_fact)

    @property
    def facts(self) -> tuple[Operand, ...]:
        """What the pattern reads: facts of rows and keys, and tables."""
        read = {node.name for node in walk(self.core.pattern) if isinstance(node, Local | Entry)}
        return tuple(each for each in self.core.operands if each.name in read)

    @cached_property
    def given(self) -> bool:
        """Whether the passes take the caller's tensors as they are."""
        return self.names == tuple(self.data) and all(
            each.kind.is_vector and self.is_whole_vector(each) for each in self.core.operands
        )

    def is_whole_vector(self, operand: Operand) -> bool:
        """Whether an operand is declared data of a token with every axis."""
        if operand.source is None or not operand.kind.is_vector:
            return False
        return self.data[operand.source].is_full and not self.spreads(operand)

    def spreads(self, operand: Operand) -> bool:
        """Whether a column operand is repeated for every query head."""
        return self.core.spread_heads and operand.kind in _COLUMNS

    # --- how operands are cut ---------------------------------------------------------------------------------

    def by_slab(self, operand: Operand) -> str:
        """The text of a slab's part of an operand."""
        name = operand.name
        match operand.kind:
            case Kind.ROW_VECTOR:
                return f"_fold({name}, slab, kv_heads)"
            case Kind.ROW_NUMBER:
                return f"_rows_of({name}, slab)"
            case Kind.COLUMN_VECTOR | Kind.COLUMN_NUMBER:
                return f"{name}[slab.entries]"
            case Kind.OFFSET_NUMBER:
                return f"_own({name}, slab)"
            case Kind.TABLE:
                return f"{name}[slab.entries]" if self.has_batch(operand) else name
            case _:
                return name

    def by_head(self, operand: Operand) -> str:
        """The text of an operand's part for some heads."""
        if operand.kind is Kind.TABLE or operand.kind.is_fact:
            return operand.name
        return f"{operand.name}[:, {'kv_at' if operand.kind in _COLUMNS else 'at'}]"

    def has_batch(self, operand: Operand) -> bool:
        """Whether a table has an axis of batch entries."""
        return operand.source is not None and Size.BATCH in self.data[operand.source].axes

    @property
    def batched(self) -> frozenset[str]:
        """The tables that have an axis of batch entries."""
        return frozenset(each.name for each in self.core.of_kind(Kind.TABLE) if self.has_batch(each))

    def is_whole(self, operand: Operand) -> bool:
        """Whether an operand has no gradient: a fact, exact numbers, or a table of whole numbers or truth values."""
        if operand.kind.is_fact or operand.exact:
            return True
        return operand.kind is Kind.TABLE and not self.data[operand.source or operand.name].is_real

    # --- gradients --------------------------------------------------------------------------------------------

    def row_gradients(self, backward: Graph) -> tuple[Operand, ...]:
        """The operands of rows whose gradients a slab returns."""
        return tuple(
            each for each in self.core.operands if each.kind in _ROWS and gradient_name(each.name) in backward.outputs
        )

    def totals(self, backward: Graph) -> dict[str, tuple[Operand, tuple[Part, ...]]]:
        """By gradient, the operands whose gradients are added up over slabs, and what they are sums of."""
        return {
            gradient_name(each.name): (each, tuple(_parts(backward, backward[gradient_name(each.name)])))
            for each in self.core.operands
            if each.kind not in _ROWS and gradient_name(each.name) in backward.outputs
        }

    # --- widths -----------------------------------------------------------------------------------------------

    def as_wide_as(self, size: Size) -> str | None:
        """A vector operand that has so many features, of keys where there is one."""
        return as_wide_as(size, self.core.operands, self.data)


def _parts(backward: Graph, node: Node) -> list[Part]:
    match node.op:
        case Op.ADD:
            return [part for name in node.inputs for part in _parts(backward, backward[name])]
        case Op.MULTIPLY:
            return [Part(node.inputs[0], node.inputs[1])]
        case _:
            return [Part(node.name, None)]


def read_by_pairs(graph: Graph) -> frozenset[str]:
    """What numbers of pairs and rows are made of, other than by the sums that weights multiply."""
    read: set[str] = set()
    for node in graph:
        if node.op is Op.CONTRACT:
            continue
        read |= set(node.inputs)
        if node.expr is not None:
            read |= {each.name for each in walk(node.expr) if isinstance(each, Local)}
    return frozenset(read)
