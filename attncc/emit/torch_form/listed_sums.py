"""States where data list tiles → the functions and texts by which rows sum tiles of keys that all of them see."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.emit.operands import Operands
from attncc.emit.torch_form.form import TorchForm
from attncc.emit.torch_form.state_features import FeaturePrinter
from attncc.emit.torch_form.state_gradients import GradientPrinter
from attncc.emit.writer import Writer
from attncc.graph.core import Kind, Operand
from attncc.plan.model import Plan
from attncc.rewrite.backward import gradient_name


@dataclass(frozen=True, slots=True)
class SummedTiles:
    """What the template reads; `leaves` are what sums are made of, `leaf_totals` their gradients or None."""

    functions: str
    names: str
    rows: list[str]
    row_features: str
    keys: list[str]
    key_features: str
    states: list[str]
    state_names: str
    sums: list[str]
    of_values: str
    gradients: str
    state_heads: str
    leaf_totals: str


class ListedSums(FeaturePrinter, GradientPrinter):
    """Prints the features of one plan's tiles, and what is summed of them."""

    def summed(self, totals: frozenset[str]) -> SummedTiles:
        """The texts; `totals` are the gradients that there are."""
        writer = Writer()
        for printer in (self._print_row_features, self._print_key_features, self._print_sum_gradients):
            printer(writer)
            writer.line()
            writer.line()
        assert self.plan.lists is not None
        core = self.operands.core
        heads = "slab.shape[1]" if self.states.by_query_head or self.plan.lists.by_head else f"{core.values}.shape[1]"
        own = list(dict.fromkeys([*self.rows.operands, *self.keys.operands, core[core.values]]))
        values = f"_of_heads({core.values}_keys, {heads})" if self.states.by_query_head else f"{core.values}_keys"
        keys = [*self.keys.operands, *([] if core[core.values] in self.keys.operands else [core[core.values]])]
        lines = [f"{each.name}_keys = {self._keys(each)}" for each in keys]
        if self.keys.reads_position:
            lines.append("j = (lists.keys.flatten(0, 1) + places)[:, None, :, None]")
        lines.append(f"values = {values}.flatten(0, 1)")
        given = ["delta" if name == "delta" else f"_at_rows_of({name}, slab)" for name in self.statistics()]
        gradients = (gradient_name(each.name) for each in own)
        return SummedTiles(
            functions=writer.text().rstrip("\n") + "\n",
            names=", ".join(each.name for each in own),
            rows=[f"{each.name}_rows = {_rows(each)}" for each in self.rows.operands],
            row_features=f"{self._features('r')} = _row_features({self._arguments('rows', 'slab.i')}own, "
            f"(*slab.shape, {heads}))",
            keys=lines,
            key_features=f"{self._features('g')} = _key_features({self._arguments('keys', 'j')}own"
            f"{f', {heads}' if self.states.by_query_head else ''})",
            states=[self.added_by_keys(each, f"g{term}") for each, term in self.pairs()],
            state_names=self.names("s"),
            sums=self.sums_of_rows("r"),
            of_values=f"({', '.join(str(each.of_values) for each in self.states.sums)},)",
            gradients=", ".join(["d_rows", *given]),
            state_heads=heads,
            leaf_totals=", ".join(name if name in totals else "None" for name in gradients) + ",",
        )

    def _features(self, letter: str) -> str:
        count = len(self.states.terms)
        return ", ".join(f"{letter}{at}" for at in range(count)) + "," * (count == 1)

    def _arguments(self, suffix: str, position: str) -> str:
        side = self.rows if suffix == "rows" else self.keys
        names = [f"{each.name}_{suffix}" for each in side.operands]
        return "".join(f"{each}, " for each in [*names, *[position] * side.reads_position])

    def _keys(self, operand: Operand) -> str:
        tiles = f"_tiles_as_entries(_tiled_keys({operand.name}, lists, heads), entries)"
        return tiles if operand.kind is Kind.COLUMN_VECTOR else f"{tiles}[..., None]"


def _rows(operand: Operand) -> str:
    if operand.kind is Kind.ROW_VECTOR:
        return f"_rows_in(_tiled_rows({operand.name}, lists), slab, slab.shape[1]).view(*slab.shape, -1)"
    return f"_at_rows_of({operand.name}, slab)"


def summed_tiles(plan: Plan, operands: Operands, form: TorchForm, totals: frozenset[str]) -> SummedTiles:
    """The texts of a plan whose lists have states."""
    printer = ListedSums(plan, operands, form.uniform(), form.backward, form.used)
    return printer.summed(totals)
