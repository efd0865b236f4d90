"""What the functions of states read, and texts that several of them share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attncc.emit.operands import Operands
from attncc.emit.tile import Kernel
from attncc.emit.torch_form.tensors import TensorTexts
from attncc.emit.writer import Writer
from attncc.graph.core import Operand
from attncc.graph.ir import Graph, Node
from attncc.plan.model import Plan
from attncc.rewrite.reassociate import States, StateSum, written_out
from attncc.rewrite.separable import Term
from attncc.spec.expr import Expr, Local, Name, Vector, names_in, rebuild, walk


@dataclass(frozen=True, slots=True)
class Side:
    """What features of one side read, and how their functions are called."""

    operands: tuple[Operand, ...]
    reads_position: bool
    position: str  # i or j


class StateTexts:
    """Texts of one plan's states.

    Args:
        uniform: the numbers of the call, in the order of the tuple that functions get.
        kernel: the backward pass, whose row numbers gradients of sums are made of.
    """

    def __init__(
        self, plan: Plan, operands: Operands, uniform: tuple[Node, ...], kernel: Kernel, used: set[str]
    ) -> None:
        states = plan.states if plan.lists is None else plan.lists.states
        assert states is not None
        self.states: States = states
        self.plan = plan
        self.operands = operands
        self.numbers: Graph = plan.torch.numbers
        self.uniform = [node.name for node in uniform]
        self.kernel = kernel
        self.used = used
        self.rows = self._side("i", [self._row_parts(term) for term in self.states.terms])
        self.keys = self._side("j", [self._key_parts(term) for term in self.states.terms])
        # Numbers take the type of a tensor that their function is given.
        self.row_texts, self.key_texts, self.sum_texts = (
            TensorTexts(kernel, operands, used, in_place=False) for _ in range(3)
        )
        self.row_texts.rows = self.rows.operands[0].name
        self.key_texts.rows = self.keys.operands[0].name
        self.sum_texts.rows = "d_rows"
        self.near = self.states.has_exponents
        self.moving = self._moving()

    def _row_parts(self, term: Term) -> list[Expr]:
        parts = [term.row, *(each.row for each in term.factors)]
        parts += [one.slope for one in term.exponents if one.slope is not None]
        return parts + [row for one in term.exponents for row, _ in one.differences]

    def _key_parts(self, term: Term) -> list[Expr]:
        parts = [term.key, *(each.key for each in term.factors)]
        parts += [one.slope for one in term.exponents if one.slope is not None]
        return parts + [key for one in term.exponents for _, key in one.differences]

    def _written_out(self, expr: Expr) -> Expr:
        """The expression with numbers of tokens in place of their names; those of the call keep theirs."""
        return written_out(expr, self.numbers, self.uniform)

    def _side(self, position: str, parts: list[list[Expr]]) -> Side:
        exprs = [self._written_out(each) for some in parts for each in some]
        read = {each.name for expr in exprs for each in walk(expr) if isinstance(each, Local | Vector)}
        has_slope = any(one.slope is not None for term in self.states.terms for one in term.exponents)
        at = Name.I if position == "i" else Name.J
        if any(not term.factors for term in self.states.terms):  # their features are 1 for every token
            read.add(self.operands.core.rows if position == "i" else self.operands.core.values)
        return Side(
            tuple(each for each in self.operands if each.name in read),
            has_slope or any(at in names_in(expr) for expr in exprs),
            position,
        )

    def _moving(self) -> list[Expr]:
        """The parts of exponents that a key has, each once: what features are relative to."""
        found = [key for term in self.states.terms for one in term.exponents for _, key in one.differences]
        return list(dict.fromkeys(found))

    @property
    def row_gradients(self) -> tuple[Operand, ...]:
        """The operands of rows that features give gradients."""
        own = self.operands.row_gradients(self.plan.torch.backward)
        return tuple(each for each in own if each in self.rows.operands)

    @property
    def key_gradients(self) -> tuple[Operand, ...]:
        """The operands of keys that features give gradients."""
        given = {operand.name for operand, _ in self.operands.totals(self.plan.torch.backward).values()}
        return tuple(each for each in self.keys.operands if each.name in given)

    @property
    def row_names(self) -> str:
        """The operands that features of rows read, as arguments."""
        return "".join(f"{each.name}, " for each in self.rows.operands)

    @property
    def row_values(self) -> list[str]:
        """Their parts of a slab."""
        return [
            f"{each.name}_rows" if each.kind.is_vector else f"_rows_of({each.name}, slab)"
            for each in self.rows.operands
        ]

    @property
    def key_names(self) -> str:
        """The operands that features of keys read."""
        return "".join(f"{each.name}, " for each in self.keys.operands)

    def print_unpacking(self, writer: Writer, exprs: Iterable[Expr]) -> None:
        read = {each.name for expr in exprs for each in walk(self._written_out(expr)) if isinstance(each, Local)}
        names = [name if name in read else "_" for name in self.uniform]
        if any(name != "_" for name in names):
            writer.line(f"{', '.join(names)}{',' * (len(names) == 1)} = numbers")

    def plain(self, texts: TensorTexts, expr: Expr, context: int = 0) -> str:
        written = _vectors_named(self._written_out(expr))
        if names_in(written) & {Name.I, Name.J}:
            return texts.at_position(written)
        return texts.plain(written, context)

    def pairs(self) -> list[tuple[StateSum, int]]:
        """For every state the sum that it belongs to, and its term."""
        return [(each, term) for each in self.states.sums for term in each.terms]

    # Sums without values are one column wide. Matrix products with those take several times as long as what is here.

    def added_by_keys(self, each: StateSum, features: str) -> str:
        """What some keys add to a state."""
        return f"torch.bmm({features}.mT, values)" if each.of_values else f"{features}.sum(1)[..., None]"

    def met_by_rows(self, each: StateSum, features: str, state: str) -> str:
        """What rows make of a state."""
        product = f"({features} * {state}.mT).sum(-1, keepdim=True)"
        return f"torch.bmm({features}, {state})" if each.of_values else product

    def added_by_rows(self, each: StateSum, features: str, gradient: str) -> str:
        """What some rows add to the gradient of a state."""
        product = f"({features} * {gradient}).sum(1)[..., None]"
        return f"torch.bmm({features}.mT, {gradient})" if each.of_values else product

    def given_to_rows(self, each: StateSum, gradient: str, state: str) -> str:
        """The gradient of rows' features, of that of their sum."""
        return f"torch.bmm({gradient}, {state}.mT)" if each.of_values else f"{gradient} * {state}.mT"

    def names(self, letter: str) -> str:
        """Names for features, states, or gradients of sums."""
        count = {"f": len(self.states.terms), "s": len(self.pairs()), "g": len(self.states.sums)}[letter]
        return ", ".join(f"{letter}{at}" for at in range(count)) + "," * (count == 1)

    def heads(self) -> str:
        return ", heads" if self.states.by_query_head else ""

    def heads_of(self, slab: str) -> str:
        """How many heads of a slab's batch entries have states of their own."""
        return f"{slab}.shape[1]" if self.states.by_query_head else f"{slab}.own_heads"

    def block_names(self, suffix: str = "") -> str:
        """What functions of blocks read of keys, under the names that it has in a part of the pattern or the whole."""
        names = dict.fromkeys([*(each.name for each in self.keys.operands), self.operands.core.values])
        return ", ".join(f"{name}{suffix}" for name in names)

    def at_keys(self, coordinate: str) -> str:
        """The text of a key's position."""
        return coordinate if self.plan.pieces is None else f"blocks.part.keys.at({coordinate})"

    def statistics(self) -> list[str]:
        return [node.name for node in self.kernel.statistics]

    def statistics_of_slab(self) -> list[str]:
        """The saved numbers of a slab's rows, of which delta is made where it is read."""
        return ["delta" if name == "delta" else f"_rows_of({name}, slab)" for name in self.statistics()]


def _vectors_named(expr: Expr) -> Expr:
    if isinstance(expr, Vector):
        return Local(expr.name)
    return rebuild(expr, _vectors_named)
