"""Tile program → Triton: one kernel and the helper that is its tile body.

Tiles of pairs are held as [fixed, swept], so that every reduction runs along the second axis, whichever axis is
fixed. The body is called twice: in a loop over partial tiles with a mask, and in one over full tiles without.
"""

from __future__ import annotations

from itertools import pairwise

from attncc.emit.expressions import CONJUNCT, TRITON
from attncc.emit.expressions import Writer as ExpressionWriter
from attncc.emit.tile import Kernel, Sweep
from attncc.emit.triton_ranges import RangePrinter, Runs
from attncc.emit.writer import Writer
from attncc.graph.ir import Node, peaked
from attncc.graph.ops import Axis, Op
from attncc.plan.ranges import Domain
from attncc.spec.expr import TRUE, And, Const, Expr, Name, names_in

LOWEST = "-3.4028234663852886e38"

_POSITION = {Axis.ROW: "i", Axis.COLUMN: "j"}
_START = {Axis.ROW: "row", Axis.COLUMN: "column"}
_LANES = {Axis.ROW: "row_lanes", Axis.COLUMN: "column_lanes"}
_BLOCK = {Axis.ROW: "BLOCK_M", Axis.COLUMN: "BLOCK_N"}
_ORIGIN = {Axis.ROW: "q_start", Axis.COLUMN: "k_start"}
_SCALARS = {Name.HEAD: "head", Name.HEADS: "heads", Name.QUERIES: "n", Name.KEYS: "m"}
_WIDTHS = {Axis.FEATURE: ("D", "BLOCK_D"), Axis.VALUE: ("E", "BLOCK_E")}
_OTHER = {
    "lse": 'float("-inf")',
    "count": "1.0",
}  # what a saved row number reads as beyond the last row, where 0 would do harm


def width_of(node: Node) -> tuple[str, str]:
    """The constexprs of a vector's width and of the block that holds it."""
    return _WIDTHS[node.axes[1]]


class KernelPrinter:
    """Prints one kernel of the tile program.

    Args:
        numbers: for each call-wide number whether it is a table [batch, heads] (True) or a plain scalar (False).
        origin: the place in the spec that the pattern comes from, for a comment.
    """

    def __init__(
        self, writer: Writer, kernel: Kernel, domain: Domain, numbers: dict[str, bool], used: set[str]
    ) -> None:
        self.writer = writer
        self.kernel = kernel
        self.domain = domain
        self.numbers = numbers
        self.used = used
        self.fixed, self.swept = kernel.fixed, kernel.swept
        self.rows_fixed = self.fixed is Axis.ROW
        self.pattern = next(
            (node.value for sweep in kernel.sweeps for node in sweep.body if node.op is Op.RELATED), TRUE
        )

    # --- names ------------------------------------------------------------------------------------------------

    def tile_name(self, at: int) -> str:
        """The helper of one sweep."""
        return f"_{self.kernel.name}_tile" if at == len(self.kernel.sweeps) - 1 else f"_{self.kernel.name}_count_tile"

    def _writer_for(self, pair: bool, rename: dict[str, str]) -> ExpressionWriter:
        """An expression writer for numbers of pairs (broadcast) or of one axis."""

        def symbol(name: Name) -> str:
            if name in (Name.I, Name.J):
                axis = Axis.ROW if name is Name.I else Axis.COLUMN
                return self._broadcast(_POSITION[axis], axis, pair)
            return _SCALARS[name]

        def local(name: str) -> str:
            node = self._node(name)
            text = rename.get(name, name)
            if node is None or node.is_tile or not node.axes:
                return text
            return self._broadcast(text, node.axes[0], pair)

        return ExpressionWriter(TRITON, symbol, local)

    def _broadcast(self, text: str, axis: Axis, pair: bool) -> str:
        if not pair:
            return text
        return f"{text}[:, None]" if axis is self.fixed else f"{text}[None, :]"

    def _node(self, name: str) -> Node | None:
        if name == "related":
            return None
        kernel = self.kernel
        everything = [*kernel.uniform, *kernel.loads, *kernel.before, *kernel.after]
        for sweep in kernel.sweeps:
            everything += [*sweep.before, *sweep.loads, *sweep.numbers, *sweep.body, *sweep.reductions]
        return next((node for node in everything if node.name == name), None)

    def _expression(self, expr: Expr, pair: bool, rename: dict[str, str] | None = None, context: int = 0) -> str:
        writer = self._writer_for(pair, rename or {})
        text = writer.write(expr, context)
        self.used |= writer.used
        return text

    # --- the tile body ----------------------------------------------------------------------------------------

    def body_arguments(self, sweep: Sweep) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
        """Parameters of the tile body in groups, the arguments of a call, and the constexprs with their values."""
        carried = self._carried(sweep)
        read = {name for node in (*sweep.body, *sweep.reductions, *sweep.numbers) for name in node.inputs}
        fixed = [node.name for node in (*self.kernel.loads, *self.kernel.before) if node.name in read]
        fixed += [node.name for earlier in self._earlier(sweep) for node in earlier.reductions if node.name in read]
        fixed += [node.name for each in (*self._earlier(sweep), sweep) for node in each.before if node.name in read]
        loads = [node for node in sweep.loads if node.name in read or node.op is Op.OPERAND]
        pointers = [f"{node.name}_ptr" for node in loads]
        strides = [f"{node.name}_stride" for node in loads if node.op is Op.OPERAND]
        scalars = [node.name for node in self.kernel.uniform if node.name in read and not self._is_literal(node)]
        names = self._names_read(sweep)
        positions = [_POSITION[self.fixed]] if self._reads_position(sweep, self.fixed) else []
        needs_origin = self._reads_position(sweep, self.swept)
        places = [_START[self.swept], *([_ORIGIN[self.swept]] if needs_origin else [])]
        places += ["low", "high"] if self.rows_fixed else ["n"]
        extra = [_SCALARS[name] for name in (Name.HEAD, Name.HEADS, Name.QUERIES, Name.KEYS) if name in names]
        extra = [name for name in extra if name not in places]
        parameters = [carried + fixed, pointers + strides, positions + places + extra + scalars]
        constexprs = [name for node in loads if node.op is Op.OPERAND for name in width_of(node)]
        constexprs += [_BLOCK[Axis.ROW], _BLOCK[Axis.COLUMN], "PRECISION"]
        return parameters, [carried + fixed, positions + extra + scalars], [list(dict.fromkeys(constexprs))]

    def _earlier(self, sweep: Sweep) -> tuple[Sweep, ...]:
        return self.kernel.sweeps[: self.kernel.sweeps.index(sweep)]

    def _carried(self, sweep: Sweep) -> list[str]:
        return [node.name for node in sweep.reductions]

    def _is_literal(self, node: Node) -> bool:
        return isinstance(node.expr, Const)

    def _names_read(self, sweep: Sweep) -> set[Name]:
        exprs = [node.value for node in (*sweep.body, *sweep.numbers) if node.op in (Op.NUMBER, Op.RELATED)]
        return {name for expr in exprs for name in names_in(expr)}

    def _reads_position(self, sweep: Sweep, axis: Axis) -> bool:
        return (Name.I if axis is Axis.ROW else Name.J) in self._names_read(sweep)

    def print_body(self, at: int) -> None:
        """Write the helper of one sweep."""
        sweep = self.kernel.sweeps[at]
        start = self.writer.place
        parameters, _, constexprs = self.body_arguments(sweep)
        typed = [f"{name}: tl.constexpr" for name in (*constexprs[0], "MASKED")]
        self.writer.line("@triton.jit")
        self.writer.listing(f"def {self.tile_name(at)}(", [*parameters, typed], "):")
        with self.writer.indented():
            _BodyPrinter(self, sweep).print()
        self.writer.drop_unread(start)
        self.writer.line()
        self.writer.line()

    # --- the kernel -------------------------------------------------------------------------------------------

    def print_kernel(self) -> None:
        """Write the kernel itself."""
        writer, kernel = self.writer, self.kernel
        start = writer.place
        operands = [f"{node.name}_ptr" for node in kernel.operands]
        statistics = [f"{node.name}_ptr" for node in kernel.statistics]
        stores = [f"{node.name}_ptr" for node in kernel.stores]
        strides = [f"{node.name}_strides" for node in kernel.operands]
        numbers = [f"{name}_ptr" if table else name for name, table in self._numbers()]
        widths = ["GROUP", "D", "E", "BLOCK_D", "BLOCK_E", "PRECISION", "BLOCK_M", "BLOCK_N"]
        writer.line('@triton.jit(do_not_specialize=["n", "m", "k_start"])')
        groups = [
            operands + statistics + stores,
            ["q_start_ptr", "kv_lengths_ptr"],
            strides,
            ["n", "m", "k_start", *numbers],
        ]
        writer.listing(f"def _{kernel.name}_kernel(", [*groups, [f"{name}: tl.constexpr" for name in widths]], "):")
        with writer.indented():
            self._print_places()
            self._print_pointers()
            self._print_loads()
            runs = self._print_ranges()
            if self.rows_fixed:
                self._print_sweeps(runs)
            else:
                self._print_accumulators(kernel.sweeps[0])
                self._print_heads(runs)
            self._print_results()
        writer.drop_unread(start)
        writer.line()
        writer.line()

    def _numbers(self) -> list[tuple[str, bool]]:
        return [(node.name, self.numbers[node.name]) for node in self.kernel.uniform if not self._is_literal(node)]

    def _print_places(self) -> None:
        writer, start, block, lanes = self.writer, _START[self.fixed], _BLOCK[self.fixed], _LANES[self.fixed]
        what = "row" if self.rows_fixed else "key"
        writer.line(f"{start} = tl.program_id(0) * {block}  # first {what} of the tile")
        if self.rows_fixed:
            writer.line("head = tl.program_id(1)")
            writer.line("batch = tl.program_id(2)")
            writer.line("heads = tl.num_programs(1)")
        else:
            writer.line("kv_head = tl.program_id(1)")
            writer.line("batch = tl.program_id(2)")
            writer.line("kv_heads = tl.num_programs(1)")
            writer.line("heads = kv_heads * GROUP")
        writer.line(f"{lanes} = {start} + tl.arange(0, {block})")
        writer.line("q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)")
        writer.line("keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))")
        writer.line()

    def _print_pointers(self) -> None:
        writer = self.writer
        writer.comment("Offsets of whole tiles are 64 bits wide, those within a tile 32.")
        for node in self.kernel.operands:
            if self._is_swept_row(node):
                continue  # found once a head, below
            head = self._head_of(node)
            strides = f"{node.name}_strides"
            offset = f"tl.cast(batch, tl.int64) * {strides}[0] + tl.cast({head}, tl.int64) * {strides}[1]"
            writer.line(f"{node.name}_ptr += {offset}")
            if node.axes[0] is self.fixed:
                writer.line(f"{node.name}_ptr += tl.cast({_START[self.fixed]}, tl.int64) * {strides}[2]")
        for node in self.kernel.operands:
            if node.axes[0] is self.swept:
                step = f"tl.cast({node.name}_strides[2], tl.int64) * {_BLOCK[self.swept]}"
                writer.line(f"{node.name}_step = {step}")
        if self.rows_fixed:
            writer.line("first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row")
        else:
            writer.line("first_vector = (tl.cast(batch, tl.int64) * kv_heads + kv_head) * m + column")
        writer.line()

    def _is_swept_row(self, node: Node) -> bool:
        return not self.rows_fixed and node.axes[0] is Axis.ROW

    def _head_of(self, node: Node) -> str:
        if not self.rows_fixed:
            return "kv_head"
        return "head" if node.axes[0] is Axis.ROW else "head // GROUP"

    def _print_loads(self) -> None:
        writer, fixed = self.writer, self.fixed
        visible = "visible" if self.rows_fixed else "seen"
        if self.rows_fixed:
            writer.line("visible = row_lanes < n")
        else:
            writer.comment("Keys that no row can see are not read, and their gradients are 0.")
            writer.line("seen = column_lanes < keys")
        for node in self.kernel.loads:
            if node.op is Op.OPERAND:
                width, block = width_of(node)
                arguments = (
                    f"{node.name}_ptr, {node.name}_strides[2], {visible}, {_BLOCK[fixed]}, {width}, {block}, True"
                )
                writer.line(f"{node.name} = _load_tile({arguments})")
            else:
                self._load_statistic(node.name, f"{node.name}_ptr + first_vector", visible, _BLOCK[fixed], "True")
        origin = _ORIGIN[fixed]
        writer.line(f"{_POSITION[fixed]} = {origin} + {_LANES[fixed]}")
        if self.rows_fixed:
            self._print_numbers()
        for node in self.kernel.before:
            writer.line(f"{node.name} = {self._expression(node.value, pair=False)}")
        writer.line()

    def _print_numbers(self) -> None:
        for name, table in self._numbers():
            if table:
                self.writer.line(f"{name} = tl.load({name}_ptr + batch * heads + head)")
        for node in self.kernel.uniform:
            if self._is_literal(node) and any(node.name in each.inputs for each in self._every_number()):
                self.writer.line(f"{node.name} = {self._expression(node.value, pair=False)}")

    def _every_number(self) -> list[Node]:
        return [node for sweep in self.kernel.sweeps for node in sweep.body if node.op is Op.NUMBER]

    def _load_statistic(self, name: str, pointer: str, visible: str, lanes: str, masked: str) -> None:
        """A saved row number. A log-sum-exp of -inf (no key at all) becomes +inf, so that all weights are 0."""
        other = _OTHER.get(name, "0.0")
        self.writer.line(f"{name} = _load_numbers({pointer}, {visible}, {other}, {lanes}, {masked})")
        if name == "lse":
            self.writer.line('lse = tl.where(lse == float("-inf"), float("inf"), lse)')

    def _print_ranges(self) -> tuple[Runs, ...]:
        writer, start, block = self.writer, _START[self.fixed], _BLOCK[self.fixed]
        if self.rows_fixed:
            writer.comment("Positions of the tile's first and last row; [low, high) are the keys that it may see.")
            writer.line(f"first = q_start + {start}")
            writer.line(f"last = first + tl.minimum({block}, n - row) - 1")
        else:
            writer.comment("Positions of the tile's first and last key; [low, high) are the rows that may see it.")
            writer.line(f"first = k_start + {start}")
            writer.line(f"last = first + tl.minimum({block}, keys - column) - 1")
            writer.line("in_rows = tl.where(column < keys, n, 0)")
        if self._ranges_read_head() and not self.rows_fixed:
            writer.line()
            return ()
        runs = self._runs()
        writer.line()
        return runs

    def _runs(self) -> tuple[Runs, ...]:
        printer = RangePrinter(self.writer, self.domain, self.fixed)
        runs = printer.print()
        self.used |= printer.expressions.used
        return runs

    def _ranges_read_head(self) -> bool:
        """Whether query heads that share keys have different ranges."""
        exprs: list[Expr] = []
        for each in self.domain.classes:
            for segment in each.by_row if self.rows_fixed else each.by_column:
                for interval in (segment.touched, segment.full):
                    if interval is not None:
                        exprs += [end for end in (interval.low, interval.high, interval.when) if end is not None]
        return len(self.domain.classes) > 1 or any(Name.HEAD in names_in(expr) for expr in exprs)

    def _print_accumulators(self, sweep: Sweep) -> None:
        block = _BLOCK[self.fixed]
        for node in sweep.reductions:
            if node.op is Op.PEAK:
                self.writer.line(f"peak = {self._peak_start(node)}")
            elif node.op is Op.SUM:
                self.writer.line(f"{node.name} = tl.zeros([{block}], tl.float32)")
            else:
                self.writer.line(f"{node.name} = tl.zeros([{block}, {width_of(node)[1]}], tl.float32)")

    def _peak_start(self, node: Node) -> str:
        block = _BLOCK[self.fixed]
        if node.expr is None:
            # The least finite number: a row without keys then needs no guard against inf - inf.
            return f"tl.full([{block}], {LOWEST}, tl.float32)"
        start = self._expression(node.expr, pair=False)
        return f"tl.zeros([{block}], tl.float32) + {start}"

    def _print_heads(self, runs: tuple[Runs, ...]) -> None:
        """The sweeps of every query head that shares the tile's keys, one after the other."""
        with self.writer.block("for head in range(kv_head * GROUP, kv_head * GROUP + GROUP):"):
            for node in self.kernel.operands:
                if self._is_swept_row(node):
                    strides = f"{node.name}_strides"
                    offset = f"tl.cast(batch, tl.int64) * {strides}[0] + tl.cast(head, tl.int64) * {strides}[1]"
                    self.writer.line(f"{node.name}_head_ptr = {node.name}_ptr + {offset}")
            if self.kernel.statistics:
                self.writer.line("statistics = (tl.cast(batch, tl.int64) * heads + head) * n")
            self._print_numbers()
            if self._ranges_read_head():
                runs = self._runs()
            self._print_sweeps(runs)

    def _print_sweeps(self, runs: tuple[Runs, ...]) -> None:
        for at, sweep in enumerate(self.kernel.sweeps):
            for node in sweep.before:
                self.writer.line(f"{node.name} = {self._expression(node.value, pair=False)}")
            if self.rows_fixed:
                self._print_accumulators(sweep)
            if not runs:
                continue
            partial, steps = _concatenated([(each.t0, each.f0, each.f1, each.t1) for each in runs])
            with self.writer.block(f"for step in range(0, {steps}):"):
                self._print_tile_of_step(partial)
                self._print_call(at, sweep, masked=True)
            full = [each for each in runs if each.has_full]
            if len(full) == 1:
                with self.writer.block(f"for tile in range({full[0].f0}, {full[0].f1}):"):
                    self._print_call(at, sweep, masked=False)
            elif full:
                ranges = [(each.f0, each.f1) for each in full]
                steps = " + ".join(f"{stop} - {start}" for start, stop in ranges)
                with self.writer.block(f"for step in range(0, {steps}):"):
                    self._print_tile_of_step(ranges)
                    self._print_call(at, sweep, masked=False)
        if self.rows_fixed:
            self.writer.line()

    def _print_tile_of_step(self, ranges: list[tuple[str, str]]) -> None:
        """The tile of a step through several ranges laid end to end: each range skips the gap before it."""
        self.writer.line(f"tile = {ranges[0][0]} + step")
        for (_, stop), (start, _) in pairwise(ranges):
            self.writer.line(f"tile = tl.where(tile < {stop}, tile, tile + ({start} - {stop}))")

    def _print_call(self, at: int, sweep: Sweep, *, masked: bool) -> None:
        parameters, (first, _), (constexprs,) = self.body_arguments(sweep)
        carried = ", ".join(self._carried(sweep))
        pointers = []
        for node in sweep.loads:
            name = node.name
            if node.op is Op.OPERAND:
                base = f"{name}_head_ptr" if self._is_swept_row(node) else f"{name}_ptr"
                pointers.append(f"{base} + tile * {name}_step")
            else:
                pointers.append(f"{name}_ptr + statistics + tile * {_BLOCK[self.swept]}")
        strides = [f"{node.name}_strides[2]" for node in sweep.loads if node.op is Op.OPERAND]
        swept_start = f"tile * {_BLOCK[self.swept]}"
        values = [swept_start if name == _START[self.swept] else name for name in parameters[2]]
        self.writer.listing(
            f"{carried} = {self.tile_name(at)}(",
            [first, pointers + strides, values, [*constexprs, str(masked)]],
            ")",
        )

    def _print_results(self) -> None:
        writer, kernel = self.writer, self.kernel
        visible = "visible" if self.rows_fixed else "column_lanes < m"
        for node in kernel.after:
            writer.line(f"{node.name} = {self._result(node)}")
        for node in kernel.stores:
            value = node.name
            if not self.rows_fixed:
                value = f"tl.where(seen[:, None], {value}, 0.0)"
            if len(node.axes) == 2:
                width, block = width_of(node)
                target = f"{node.name}_ptr + first_vector * {width}"
                writer.line(f"_store_tile({target}, {visible}, {value}, {_BLOCK[self.fixed]}, {width}, {block})")
            else:
                target = f"{node.name}_ptr + first_vector + tl.arange(0, {_BLOCK[self.fixed]})"
                writer.line(f"tl.store({target}, {value}, mask={visible})")

    def _result(self, node: Node) -> str:
        match node.op:
            case Op.DIVIDE:
                self.used.add("_inverse")
                divisor = self._node(node.inputs[1])
                lanes = "[:, None]" if divisor is not None and divisor.axes else ""
                return f"{node.inputs[0]} * _inverse({node.inputs[1]}){lanes}"
            case Op.MULTIPLY:
                return f"{node.inputs[0]} * {node.inputs[1]}"
            case _:
                text = self._expression(node.value, pair=False)
                if "tl.log(" in text:
                    self.used.add("_log")
                return text.replace("tl.log(", "_log(")


def _concatenated(runs: list[tuple[str, str, str, str]]) -> tuple[list[tuple[str, str]], str]:
    """The partial ranges of all segments, and the number of their tiles."""
    ranges: list[tuple[str, str]] = []
    for t0, f0, f1, t1 in runs:
        ranges.append((t0, f0))
        if f1 != t1:
            ranges.append((f1, t1))
    return ranges, " + ".join(f"{stop} - {start}" for start, stop in ranges)


class _BodyPrinter:
    """Writes the statements of one tile body."""

    def __init__(self, kernel: KernelPrinter, sweep: Sweep) -> None:
        self.kernel = kernel
        self.sweep = sweep
        self.writer = kernel.writer
        self.swept = kernel.swept
        self.block = _BLOCK[self.swept]
        self.loaded: set[str] = set()
        self.rename: dict[str, str] = {}
        self.peak_done = sweep.peak is None

    def print(self) -> None:
        """Loads, numbers in order, running maximum when it is first needed, sums."""
        self._print_lanes()
        for node in self.sweep.numbers:
            self._load(node.inputs)
            self.writer.line(f"{node.name} = {self.kernel._expression(node.value, pair=False)}")
        for node in self.sweep.body:
            self._print_node(node)
        self._raise_peak()
        for node in self.sweep.sums:
            self._print_sum(node)
        self.writer.line(f"return {', '.join(node.name for node in self.sweep.reductions)}")

    def _print_lanes(self) -> None:
        lanes, start = _LANES[self.swept], _START[self.swept]
        self.writer.line(f"{lanes} = {start} + tl.arange(0, {self.block})")
        if self.kernel.rows_fixed:
            self.writer.line("visible = (column_lanes >= low) & (column_lanes < high)")
        else:
            self.writer.line("visible = row_lanes < n")
        if self.kernel._reads_position(self.sweep, self.swept):
            self.writer.line(f"{_POSITION[self.swept]} = {_ORIGIN[self.swept]} + {lanes}")

    def _load(self, names: tuple[str, ...]) -> None:
        """Load what is named and not loaded yet."""
        for node in self.sweep.loads:
            if node.name not in names or node.name in self.loaded:
                continue
            self.loaded.add(node.name)
            if node.op is Op.OPERAND:
                width, block = width_of(node)
                arguments = f"{node.name}_ptr, {node.name}_stride, visible, {self.block}, {width}, {block}, MASKED"
                self.writer.line(f"{node.name} = _load_tile({arguments})")
            else:
                self.kernel._load_statistic(node.name, f"{node.name}_ptr", "visible", self.block, "MASKED")

    def _print_node(self, node: Node) -> None:
        self._load(node.inputs)
        if self.sweep.peak is not None and "peak" in node.inputs:
            self._raise_peak()
        match node.op:
            case Op.RELATED:
                self._print_related(node.value)
            case Op.DOT:
                fixed, swept = self._sides(node)
                self.writer.line(f"{node.name} = _dot({fixed}, tl.trans({swept}), None, PRECISION)")
            case Op.RESTRICT:
                self._print_restrict(node)
            case Op.NUMBER if not any(self._is_tile(each) for each in node.inputs):
                shape = f"[{_BLOCK[self.kernel.fixed]}, {self.block}]"
                text = self.kernel._expression(node.value, pair=True, rename=self.rename, context=CONJUNCT)
                self.writer.line(f"{node.name} = tl.zeros({shape}, tl.float32) + {text}")
            case Op.NUMBER:
                self.writer.line(f"{node.name} = {self._value(node.value)}")
            case _:
                raise TypeError(f"{node.op} in a tile body")

    def _is_tile(self, name: str) -> bool:
        node = self.kernel._node(name)
        return node is not None and node.is_tile

    def _sides(self, node: Node) -> tuple[str, str]:
        """The fixed and the swept operand of a dot product."""
        swept = {each.name for each in self.sweep.loads}
        first, second = node.inputs
        return (second, first) if first in swept else (first, second)

    def _value(self, expr: Expr) -> str:
        return self.kernel._expression(expr, pair=True, rename=self.rename)

    def _print_related(self, predicate: Expr) -> None:
        with self.writer.block("if MASKED:"):
            needs_visible = self.kernel.rows_fixed or predicate == TRUE
            if predicate == TRUE:
                self.writer.line("related = visible[None, :]")
                return
            parts = predicate.operands if isinstance(predicate, And) else (predicate,)
            texts = [self.kernel._expression(part, pair=True, context=CONJUNCT) for part in parts]
            self.writer.line(f"related = {' & '.join([*texts, *(['visible[None, :]'] if needs_visible else [])])}")

    def _print_restrict(self, node: Node) -> None:
        """Masked in place where nothing else reads the unmasked number."""
        source, fill = node.inputs[0], self.kernel._expression(_real(node.value), pair=False)
        if self._is_constant(source):
            return  # summed without a tile, see _print_sum
        others = [each for each in (*self.sweep.body, *self.sweep.reductions) if source in each.inputs and each != node]
        target = self.rename.get(source, source)
        if others:
            target = node.name
            self.writer.line(f"{target} = {self.rename.get(source, source)}")
        else:
            self.rename[node.name] = target
        with self.writer.block("if MASKED:"):
            self.writer.line(f"{target} = tl.where(related, {target}, {fill})")

    def _is_constant(self, name: str) -> bool:
        node = self.kernel._node(name)
        return node is not None and not node.axes

    def _raise_peak(self) -> None:
        peak = self.sweep.peak
        if self.peak_done or peak is None:
            return
        self.peak_done = True
        largest = [f"tl.max({self.rename.get(name, name)}, 1)" for name in peaked(peak)]
        text = largest[0]
        for each in largest[1:]:
            text = f"tl.maximum({text}, {each})"
        self.writer.line("old_peak = peak")
        self.writer.line(f"peak = tl.maximum(peak, {text})")
        self.writer.line("shrink = tl.exp2(old_peak - peak)")

    def _print_sum(self, node: Node) -> None:
        self._load(node.inputs)
        shrinks = node.name in self.sweep.rescaled
        source = self.rename.get(node.inputs[0], node.inputs[0])
        if node.op is Op.SUM:
            before = f"{node.name} * shrink" if shrinks else node.name
            restrict = next((each for each in self.sweep.body if each.name == node.inputs[0]), None)
            if restrict is not None and restrict.op is Op.RESTRICT and self._is_constant(restrict.inputs[0]):
                self._print_constant_sum(node.name, before, restrict.inputs[0])
            else:
                self.writer.line(f"{node.name} = {before} + tl.sum({source}, 1)")
            return
        operand = next(name for name in node.inputs if name != node.inputs[0])
        before = f"{node.name} * shrink[:, None]" if shrinks else node.name
        self.writer.line(f"{node.name} = _dot({source}.to({operand}.dtype), {operand}, {before}, PRECISION)")

    def _print_constant_sum(self, name: str, before: str, constant: str) -> None:
        """The same number for every related pair: counted on partial tiles, known on full ones."""
        node = self.kernel._node(constant)
        value = repr(float(node.expr.value)) if node is not None and isinstance(node.expr, Const) else constant
        fixed, swept = _BLOCK[self.kernel.fixed], self.block
        with self.writer.block("if MASKED:"):
            tile = f"tl.full([{fixed}, {swept}], {value}, tl.float32)" if isinstance(node and node.expr, Const) else ""
            tile = tile or f"tl.zeros([{fixed}, {swept}], tl.float32) + {value}"
            self.writer.line(f"{name} = {before} + tl.sum(tl.where(related, {tile}, 0.0), 1)")
        with self.writer.block("else:"):
            self.writer.line(f"{name} = {before} + {value} * {swept}")


def _real(expr: Expr) -> Expr:
    return Const(float(expr.value)) if isinstance(expr, Const) else expr
