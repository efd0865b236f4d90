"""Lists → the functions of the torch form that find which tiles of keys each tile of rows meets."""

from __future__ import annotations

from attncc.emit.dialects import HOST, PATTERN
from attncc.emit.expressions import CONJUNCT, ExpressionWriter
from attncc.emit.operands import Operands
from attncc.emit.torch_form.pattern import PairWriter, PatternPrinter
from attncc.emit.writer import Writer
from attncc.plan.lists import Blocks, Bound, Named, Order, Pass, Runs, is_marked
from attncc.plan.model import Plan
from attncc.plan.ranges import HeadClass, Interval, plus
from attncc.spec.expr import TRUE, Binary, Expr, Local, Name, substitute
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


class ListsPrinter:
    """Prints what finds the tiles of each pass."""

    def __init__(self, plan: Plan, operands: Operands) -> None:
        assert plan.lists is not None
        self.lists = plan.lists
        self.operands = operands
        self.rows, self.keys = ("tile[0]", "tile[1]") if self.lists.has_few else ("_ROWS", "_KEYS")
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
        tiles = [f", {each.alone}" if self.lists.has_few else "" for each in passes]
        both = ", ".join(f"(_lists_{at}, _related_{at}{tile})" for at, tile in enumerate(tiles))
        writer.line(f"_PASSES = ({both})")
        return writer.text()

    def _one(self, one: Pass, name: str) -> str:
        body = Writer()
        self._print_order(body, one)
        self._print_runs(body, one)
        writer = Writer()
        facts = "".join(f"{each.name}, " for each in self.operands.facts)
        writer.line("@torch.no_grad()")
        tile = ", tile=(_ROWS, _KEYS)" * self.lists.has_few
        places = f"q_start, k_start, q_starts, kv_lengths, device{tile}"
        with writer.block(f"def {name}({facts}batch, heads, n, m, {places}):"):
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
        writer.line(f"tiled = _tiles_of(rows, n, {self.rows})")
        writer.line("runs, told = [], []" if told else "runs = []")
        for each in one.runs:
            writer.line(f"# {text(each.pattern)}"[:96])
            for heads in each.classes:
                for segment in heads.by_row:
                    self._print_run(writer, one, each, heads, segment.touched)
        more = ", told" * told
        rows = "rows is row" if one.order is None else "False"
        if one.apart is not None:
            writer.line(f"keys = torch.cat([_tiles_of(x, m, {self.keys}) for x in (others, apart)], 1)")
            writer.line(f"return _listed(runs, tiled, keys, ({rows}, False), n, m{more})")
        else:
            keys = one.order is None and one.alive is None
            orders = f"({rows}, {'kv_lengths is None' if keys else 'False'})"
            made = f"_listed(runs, tiled, _tiles_of(keys, m, {self.keys}), {orders}, n, m{more})"
            if one.few is None:
                writer.line(f"return {made}")
                return
            writer.line(f"lists = {made}")
            named = {(each.of, each.width) for run in one.runs for each in run.blocks if isinstance(each, Named)}
            pairs = " + ".join(f"{width} * ({of} >= 0).sum()" for of, width in sorted(named))
            writer.line(f"named = {pairs}")
            writer.line("return lists._replace(few=len(lists.met) * _ROWS * _KEYS > 8 * named)")

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
            writer.line(
                f"runs.append(_run_in(apart, low, high, first=-(-others.shape[1] // {self.keys}) * {self.keys}))"
            )
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
            writer.line("runs.append(_among(numbers, keys, rows, own, low, high))")
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
