"""Plan → the functions of the torch form that find tiles of related pairs, where data decide which these are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attncc.emit.dialects import HOST, PATTERN
from attncc.emit.expressions import CONJUNCT, ExpressionWriter
from attncc.emit.operands import Operands
from attncc.emit.torch_form.form import TorchForm
from attncc.emit.torch_form.listed_sums import SummedTiles, summed_tiles
from attncc.emit.torch_form.pattern import PairWriter, PatternPrinter
from attncc.emit.torch_form.texts import PassTexts, Total
from attncc.emit.writer import Writer
from attncc.graph.core import Kind, Operand
from attncc.plan.lists import Blocks, Bound, Named, Order, Pass, Runs, is_marked
from attncc.plan.model import Plan
from attncc.plan.ranges import HeadClass, Interval, plus
from attncc.rewrite.backward import gradient_name
from attncc.spec.expr import TRUE, Binary, Entry, Expr, Local, Name, substitute, walk
from attncc.spec.text import text

_SYMBOLS = {
    Name.I: "i",
    Name.J: "place",
    Name.FIRST: "i",
    Name.LAST: "i",
    Name.HEAD: "head",
    Name.HEADS: "heads",
    Name.QUERIES: "n",
    Name.KEYS: "m",
}


@dataclass(frozen=True, slots=True)
class Listed:
    """What the template reads beside the texts of all torch forms."""

    text: str  # _lists
    by_head: bool
    states: SummedTiles | None
    calls: frozenset[str]  # the helpers that it needs
    tells: bool  # whether tables or lists tell runs of keys
    several: bool  # whether there are several passes
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


class ListsPrinter:
    """Prints what finds the tiles of each pass."""

    def __init__(self, plan: Plan, operands: Operands) -> None:
        assert plan.lists is not None
        self.lists = plan.lists
        self.operands = operands
        self.used: set[str] = set()
        self.calls: set[str] = set()  # of the template's own helpers

    def text(self) -> str:
        """The functions, and the list of passes where there are several."""
        passes = self.lists.passes
        if len(passes) == 1:
            return self._one(passes[0], "_lists")
        writer = Writer()
        pattern = PatternPrinter(self.used, self.operands.batched)
        facts = "".join(f"{each.name}, " for each in self.operands.facts)
        for at, each in enumerate(passes):
            writer.lines(self._one(each, f"_lists_{at}"))
            writer.line()
            writer.line()
            pattern.print_predicate(writer, f"_related_{at}", each.pattern, facts, "The pairs of a pass.")
            writer.line()
            writer.line()
        both = ", ".join(f"(_lists_{at}, _related_{at})" for at in range(len(passes)))
        writer.line(f"_PASSES = ({both})")
        return writer.text()

    def _one(self, one: Pass, name: str) -> str:
        body = Writer()
        self._print_order(body, one)
        self._print_runs(body, one)
        writer = Writer()
        facts = "".join(f"{each.name}, " for each in self.operands.facts)
        writer.line("@torch.no_grad()")
        with writer.block(f"def {name}({facts}batch, heads, n, m, q_start, k_start, q_starts, kv_lengths, device):"):
            writer.line('"""Which keys rows meet; positions of rows and what tokens say are [entries, tokens]."""')
            place = writer.place
            per_head = " * heads" if self.lists.by_head else ""
            repeat = ".repeat_interleave(heads, 0)" if self.lists.by_head else ""
            writer.line(f"entries = batch{per_head}")
            writer.line("row, place = (torch.arange(x, device=device).expand(entries, x) for x in (n, m))")
            if self.lists.by_head:
                writer.line("head = torch.arange(heads, device=device).repeat(batch)[:, None]")
            writer.line("entry = torch.arange(entries, device=device)[:, None]")
            writer.line("i = row + q_start")
            with writer.block("if q_starts is not None:"):
                writer.line(f"i = i + q_starts[:, None]{repeat}")
            writer.line("length = torch.full((entries, 1), m, device=device)")
            with writer.block("if kv_lengths is not None:"):
                writer.line(f"length = kv_lengths.clamp(0, m)[:, None]{repeat}")
            for each in self.operands.facts:
                if each.kind.is_fact:
                    writer.line(f"{each.name} = _of_entries({each.name}, batch, heads)")
            writer.lines(body.text())
            writer.drop_unread(place)
        return writer.text()

    # --- the order of rows and keys ---------------------------------------------------------------------------

    def _print_order(self, writer: Writer, one: Pass) -> None:
        alive = None if one.alive is None else self._written(one.alive, CONJUNCT)
        dead = "place >= length" if alive is None else f"(place >= length) | ~{alive}"
        if one.order is not None:
            self.calls |= {"_alike", "_sorted"}
            writer.line(f"own, of_keys = _alike({self._written(one.order.row)}, {one.order.fact})")
            writer.line(f"keys, numbers = _sorted(of_keys, {dead}, m)")
            writer.line("rows = own.argsort(stable=True)")
            return
        if one.rows_first is not None:
            self.calls.add("_first")
            writer.line(f"rows = _first({self._written(one.rows_first)}, row)")
        else:
            writer.line("rows = row")
        if one.apart is not None:
            self.calls.add("_only")
            writer.line(f"dead = {dead}")
            writer.line(f"apart = {self._written(one.apart, CONJUNCT)} & ~dead")
            writer.line("others = _only(~apart & ~dead, m)")
            writer.line("apart = _only(apart, m)")
        elif alive is not None:
            self.calls.add("_only")
            writer.line(f"keys = _only({alive} & (place < length), m)")
        else:
            writer.line("keys = place.masked_fill(place >= length, m)")

    def _print_runs(self, writer: Writer, one: Pass) -> None:
        told = any(each.blocks for each in one.runs)
        writer.line("tiled = _tiles_of(rows, n, _ROWS)")
        writer.line("runs, told = [], []" if told else "runs = []")
        for each in one.runs:
            writer.line(f"# {text(each.pattern)}"[:96])
            for heads in each.classes:
                for segment in heads.by_row:
                    self._print_run(writer, one, each, heads, segment.touched)
        more = ", told" * told
        rows = "rows is row" if one.order is None else "False"
        if one.apart is not None:
            writer.line("keys = torch.cat([_tiles_of(x, m, _KEYS) for x in (others, apart)], 1)")
            writer.line(f"return _listed(runs, tiled, keys, ({rows}, False), n, m{more})")
        else:
            keys = one.order is None and one.alive is None
            orders = f"({rows}, {'kv_lengths is None' if keys else 'False'})"
            writer.line(f"return _listed(runs, tiled, _tiles_of(keys, m, _KEYS), {orders}, n, m{more})")

    def _print_run(self, writer: Writer, one: Pass, runs: Runs, heads: HeadClass, touched: Interval) -> None:
        low = "0" if touched.low is None else f"{self._written(touched.low, CONJUNCT)} - k_start"
        high = "m" if touched.high is None else f"{self._written(plus(touched.high, 1), CONJUNCT)} - k_start"
        holds = [each for each in (heads.condition, touched.when, *runs.rows) if each != TRUE]
        met = " & ".join(self._written(each, CONJUNCT) for each in holds) or "True"
        writer.line(f"low, high = _interval({low}, {high}, {met}, i, length)")
        for bound in runs.bounds:
            if bound.of is None or bound.of in self.lists.ascending:
                self._print_bound(writer, bound)
        if runs.blocks:
            self._print_blocks(writer, runs.blocks[0])
        elif one.order is not None:
            self._print_in_order(writer, one.order, runs)
        elif one.apart is not None:
            self.calls.add("_run_in")
            if not is_marked(runs):
                writer.line("runs.append(_run_in(others, low, high))")
            writer.line("runs.append(_run_in(apart, low, high, first=-(-others.shape[1] // _KEYS) * _KEYS))")
        elif one.alive is not None:
            self.calls.add("_run_in")
            writer.line("runs.append(_run_in(keys, low, high))")
        else:
            writer.line("runs.append((low, high))")

    def _print_bound(self, writer: Writer, bound: Bound) -> None:
        """An end that numbers of the row give, in places."""
        value = self._written(bound.value)
        end, method = ("low", "maximum") if bound.lower else ("high", "minimum")
        if bound.of is None:
            self.calls.add("_whole")
            shift = " + 1" if bound.strict == bound.lower else ""
            near = f", {-1 if bound.lower else 1}, i" if isinstance(bound.value, Binary) else ""
            whole = f"_whole({value}, {bound.lower != bound.strict}{near})"
            writer.line(f"{end} = {end}.{method}({whole} - k_start{shift})")
            return
        self.calls |= {"_searched", "_in_order"}
        right = bound.strict if bound.lower else not bound.strict
        searched = f"_searched(_in_order({bound.of}, length), {value}, {right}{self._wider(bound)})"
        writer.line(f"{end} = {end}.{method}({searched})")

    def _print_blocks(self, writer: Writer, blocks: Blocks | Named) -> None:
        """Runs of keys that a table or a list tells, block by block."""
        if isinstance(blocks, Named):
            self.calls.add("_named_blocks")
            writer.line(f"told.append(_named_blocks({blocks.of}, {blocks.width}, low, high, tiled, m, k_start))")
            return
        self.calls.add("_blocks")
        entry = blocks.entry
        at = [self._written(each) for each in entry.indices[:-1]]
        if self.operands.has_batch(self.operands.core[entry.name]):
            at.insert(0, self._batch())
        listed = f"({', '.join(at)}{',' * (len(at) == 1)})"
        table = self._written(substitute(blocks.holds, {entry: Local(entry.name)}))
        writer.line(f"told.append(_blocks({table}, {listed}, {blocks.width}, low, high, tiled, k_start))")

    def _print_in_order(self, writer: Writer, order: Order, runs: Runs) -> None:
        """A run among sorted keys."""
        if order.alike:
            self.calls.add("_among")
            writer.line("runs.append(_among(numbers, keys, own, low, high))")
            return
        self.calls.add("_searched")
        ends = {True: "torch.zeros_like(low)", False: "torch.full_like(high, m)"}
        for bound in runs.bounds:
            if bound.of == order.fact:
                right = bound.strict if bound.lower else not bound.strict
                ends[bound.lower] = f"_searched(numbers, {self._written(bound.value)}, {right}{self._wider(bound)})"
        writer.line(f"first, stop = {ends[True]}, {ends[False]}")
        writer.line("runs.append((first, torch.where(low < high, stop, 0)))")

    @staticmethod
    def _wider(bound: Bound) -> str:
        """Where numbers were moved to the other side of a comparison, what rounding may make of that."""
        return f", widen={-1 if bound.lower else 1}" if isinstance(bound.value, Binary) else ""

    def _batch(self) -> str:
        """The text of the batch entry of each entry."""
        return "entry // heads" if self.lists.by_head else "entry"

    def _written(self, expr: Expr, context: int = 0) -> str:
        host = ExpressionWriter(HOST, lambda name: _SYMBOLS[name], lambda name: name)
        writer = PairWriter(PATTERN, lambda name: _SYMBOLS[name], lambda name: name, host=host)
        writer.batched = dict.fromkeys(self.operands.batched, self._batch())
        written = writer.write(expr, context)
        self.used |= writer.used
        return written


def _reads_tokens(expr: Expr) -> bool:
    return any(isinstance(each, Local | Entry) for each in walk(expr))


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
            scored=", ".join(_plainly(each, operands) for each in form.scored()),
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
            found.append(f"{total.name}_tiles = torch.zeros_like({total.operand.name}_tiles, dtype=wide)")
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
        if found[-1] and len(found[-1]) + len(argument) + 2 > 80:
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


def _plainly(operand: Operand, operands: Operands) -> str:
    name = operand.name
    match operand.kind:
        case Kind.ROW_VECTOR:
            return f"_rows_in({name}_tiles, slab, slab.shape[1]).view(*slab.shape[:2], 1, _ROWS, -1)"
        case Kind.ROW_NUMBER:
            return f"_at_rows_of({name}, slab)[:, :, None]"
        case Kind.COLUMN_VECTOR:
            return f"windows({name}_tiles, chunks)"
        case Kind.COLUMN_NUMBER:
            dtype = f", {name}.dtype" if operand.exact else ""
            return f"windows({name}_tiles, chunks{dtype})[..., None, :]"
        case _:
            return f"{name}[slab.batch]" if operands.has_batch(operand) else name
