"""Plan → the texts of passes over tiles that data list, which the template puts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attncc.emit.operands import Operands
from attncc.emit.torch_form.form import TorchForm
from attncc.emit.torch_form.listed_sums import SummedTiles, summed_tiles
from attncc.emit.torch_form.lists import ListsPrinter
from attncc.emit.torch_form.texts import PassTexts, Total
from attncc.graph.core import Kind, Operand
from attncc.plan.model import Plan
from attncc.rewrite.backward import gradient_name


@dataclass(frozen=True, slots=True)
class Listed:
    """What the template reads beside the texts of all torch forms."""

    text: str  # _lists
    by_head: bool
    states: SummedTiles | None
    calls: frozenset[str]  # the helpers that it needs
    tells: bool  # whether tables or lists tell runs of keys
    several: bool  # whether there are several passes
    has_few: bool  # whether rows of some pass may stand alone
    alone: tuple[int, int] | None  # the tiles of the only pass then
    numbered: bool  # whether backward asks which pass it is
    facts: str  # the facts as arguments, each with a comma after it
    fact_lines: list[str]  # what a slab's pairs read of them
    related_facts: str
    tiled: list[str]
    gradients: list[str]
    tiled_gradients: list[str]
    own_sums: list[str]
    add_sums: list[str]
    untiled: list[str]
    finished: list[str]
    row_totals: str
    returned: str
    scored: str
    out_widths: str
    state_widths: str
    state_of_slab: str
    forward_slab: list[str]
    backward_slab: list[str]


_COLUMNS = (Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER)


def listed_of(plan: Plan, operands: Operands, form: TorchForm, texts: PassTexts) -> Listed:
    """The texts of a plan with lists."""
    printer = ListsPrinter(plan, operands)
    printed = printer.text()
    form.used |= printer.used
    return _Texts(printer, operands, form, texts).listed(printed)


class _Texts:
    def __init__(self, printer: ListsPrinter, operands: Operands, form: TorchForm, texts: PassTexts) -> None:
        self.printer = printer
        self.lists = printer.lists
        self.operands = operands
        self.core = operands.core
        self.form = form
        self.texts = texts
        self.totals = texts.own_totals
        self.of_keys = [each for each in self.totals if each.operand.kind in _COLUMNS]
        self.rows = operands.row_gradients(form.backward_graph)

    def listed(self, printed: str) -> Listed:
        operands, core, form, totals = self.operands, self.core, self.form, self.totals
        facts = operands.facts
        several = len(self.lists.passes) > 1
        end = ("_entries_of(numbers, slab)", "slab", "chunks", "work", "call")
        own = [_of_slab(each, operands) for each in operands if not each.kind.is_fact]
        names = [f"{gradient_name(each.name)}_tiles" for each in self.rows]
        statistics = [node.name for node in form.backward.statistics]
        given = ["delta" if name == "delta" else f"_at_rows_of({name}, slab)" for name in statistics]
        begins = ["at == 0"] if form.counted_once() else []
        finished = [line for each in totals for line in self.texts.finished(each)]
        return Listed(
            text=printed,
            by_head=self.lists.by_head,
            states=self._states(),
            calls=frozenset(self.printer.calls),
            tells=bool(self.printer.calls & {"_blocks", "_named_blocks"}),
            several=several,
            numbered=several and bool(begins),
            facts="".join(f"{each.name}, " for each in facts),
            fact_lines=[f"{each.name}_own = {_of_pairs(each, operands)}" for each in facts],
            related_facts="".join(f", {each.name}_own" for each in facts),
            tiled=[f"{each.name}_tiles = {_tiled(each)}" for each in operands if _tiled(each)],
            gradients=[self._total(each.name, each.operand) for each in totals] + self._row_totals(),
            tiled_gradients=self._tiled_gradients(),
            own_sums=[*map(self._own_sum, self.of_keys), *(self._own_batch(each) for each in self._of_batch())],
            add_sums=[f"_add_tiles({each.name}_tiles, {each.name}_own, chunks)" for each in self.of_keys]
            + [f"{each.name}.index_add_(0, slab.batch, {each.name}_own)" for each in self._of_batch()],
            untiled=[
                f"{each.name} += _untiled_keys({each.name}_tiles, lists, {each.name}.shape)" for each in self.of_keys
            ]
            + [
                f"{gradient_name(each.name)} += _untiled_rows({gradient_name(each.name)}_tiles, lists, shape)"
                for each in self.rows
            ],
            finished=finished,
            row_totals=f"({', '.join(names)}{',' * (len(names) == 1)})",
            returned=", ".join(map(self._returned, operands)) + "," * (len(operands.names) == 1),
            scored=", ".join(
                _plainly(each, operands, "slab.shape[2]" if self.lists.has_few else "_ROWS") for each in form.scored()
            ),
            has_few=self.lists.has_few,
            alone=self.lists.passes[0].alone,
            out_widths=self._widths([f"{core.values}.shape[-1]", *([None] * len(self.texts.statistics))]),
            state_widths=self._widths([width for _, width in form.states]),
            state_of_slab=" ".join(
                f"_rows_in(own[{at}][..., None], slab, slab.shape[1]).view(*slab.shape, 1),"
                if width is None
                else f"_rows_in(own[{at}], slab, kv_heads),"
                for at, (_, width) in enumerate(form.states)
            ),
            forward_slab=_lines(*own, *end, *self._state(several=several)),
            backward_slab=_lines(*own, "d_rows", *given, *map(self._by_sum, form.added()), *end, *begins),
        )

    def _states(self) -> SummedTiles | None:
        if self.lists.states is None:
            return None
        totals = {gradient_name(each.name) for each in self.rows} | {each.gradient for each in self.totals}
        return summed_tiles(self.form.plan, self.operands, self.form, frozenset(totals))

    def _state(self, *, several: bool) -> list[str]:
        if several:
            return ["state", "finishes"]
        return ["state"] if self.lists.states is not None else []

    @staticmethod
    def _widths(widths: Sequence[str | None]) -> str:
        return f"({', '.join('()' if each is None else f'({each},)' for each in widths)},)"

    def _of_batch(self) -> list[Total]:
        return [each for each in self.totals if self._has_own_batch(each)]

    def _has_own_batch(self, total: Total) -> bool:
        return total.operand.kind is Kind.TABLE and self.operands.has_batch(total.operand)

    def _total(self, name: str, operand: Operand) -> str:
        return f"{name} = {operand.name}.new_zeros({operand.name}.shape, dtype=wide)"

    def _row_totals(self) -> list[str]:
        made = [self._total(gradient_name(each.name), each) for each in self.rows]
        gradients = {each.gradient for each in self.totals} - {each.name for each in self.totals}
        return made + [
            self._total(each, next(one.operand for one in self.totals if one.gradient == each))
            for each in sorted(gradients)
        ]

    def _tiled_gradients(self) -> list[str]:
        found = []
        for each in self.rows:
            width = f", {each.name}.shape[-1]" if each.kind is Kind.ROW_VECTOR else ""
            made = f"{self.core.rows}.new_zeros(shape[0] * shape[1], *lists.rows.shape[1:]{width}, dtype=wide)"
            found.append(f"{gradient_name(each.name)}_tiles = {made}")
        for total in self.of_keys:
            tiles = f"{total.operand.name}_tiles"  # zeros_like would take its order in memory, too
            found.append(f"{total.name}_tiles = {tiles}.new_zeros({tiles}.shape, dtype=wide)")
        return found

    def _own_sum(self, total: Total) -> str:
        width = f", {total.operand.name}.shape[-1]" if total.operand.kind is Kind.COLUMN_VECTOR else ""
        shape = f"len(slab.tiles), kv_heads, chunks[0].count if chunks else 0{width}"
        return f"{total.name}_own = {total.name}.new_zeros({shape})"

    def _own_batch(self, total: Total) -> str:
        return f"{total.name}_own = {total.name}.new_zeros(len(slab.tiles), *{total.name}.shape[1:])"

    def _by_sum(self, node: str) -> str:
        total = next(each for each in self.totals if node in each.sums)
        match total.operand.kind:
            case Kind.COLUMN_VECTOR:
                return f"{total.name}_own.flatten(0, 1)"
            case Kind.COLUMN_NUMBER:
                return f"{total.name}_own"
            case _:
                return f"{total.name}_own" if self._has_own_batch(total) else total.name

    def _returned(self, operand: Operand) -> str:
        name = gradient_name(operand.name)
        if name in {gradient_name(each.name) for each in self.rows} | {each.gradient for each in self.totals}:
            return f"{name}.to({operand.name}.dtype)"
        return f"torch.zeros_like({operand.name})"


def _of_pairs(fact: Operand, operands: Operands) -> str:
    """The text of what pairs of a slab read of the pattern's data."""
    match fact.kind:
        case Kind.ROW_FACT if fact.listed:
            return f"_at_places({fact.name}, slab, slab.rows)"
        case Kind.ROW_FACT:
            return f"_at_rows_of({fact.name}, slab)"
        case Kind.COLUMN_FACT:
            return f"_at_places({fact.name}, slab, places)[:, :, None]"
        case _:
            return f"{fact.name}[batch]" if operands.has_batch(fact) else fact.name


def _tiled(operand: Operand) -> str:
    match operand.kind:
        case Kind.ROW_VECTOR:
            return f"_tiled_rows({operand.name}, lists)"
        case Kind.COLUMN_VECTOR | Kind.COLUMN_NUMBER:
            return f"_tiled_keys({operand.name}, lists, shape[1])"
        case _:
            return ""


def _lines(*arguments: str) -> list[str]:
    found = [""]
    for argument in arguments:
        if found[-1] and len(found[-1]) + len(argument) + 2 > 74:
            found.append("")
        found[-1] += f"{' ' * bool(found[-1])}{argument},"
    return found


def _of_slab(operand: Operand, operands: Operands) -> str:
    name = operand.name
    match operand.kind:
        case Kind.ROW_VECTOR:
            return f"_rows_in({name}_tiles, slab, kv_heads)"
        case Kind.ROW_NUMBER:
            return f"_at_rows_of({name}, slab)"
        case Kind.COLUMN_VECTOR | Kind.COLUMN_NUMBER:
            return f"_keys_in({name}_tiles, chunks, kv_heads)"
        case _:
            return f"{name}[slab.batch]" if operands.has_batch(operand) else name


def _plainly(operand: Operand, operands: Operands, in_tile: str) -> str:
    name = operand.name
    match operand.kind:
        case Kind.ROW_VECTOR:
            return f"_rows_in({name}_tiles, slab, slab.shape[1]).view(*slab.shape[:2], 1, {in_tile}, -1)"
        case Kind.ROW_NUMBER:
            return f"_at_rows_of({name}, slab)[:, :, None]"
        case Kind.COLUMN_VECTOR:
            return f"windows({name}_tiles, chunks)"
        case Kind.COLUMN_NUMBER:
            dtype = f", {name}.dtype" if operand.exact else ""
            return f"windows({name}_tiles, chunks{dtype})[..., None, :]"
        case _:
            return f"{name}[slab.batch]" if operands.has_batch(operand) else name
