"""Tile program → Triton: one kernel and the helper that is its tile body.

Tiles of pairs are held as [fixed, swept], so that every reduction runs along the second axis, whichever axis is
fixed. The body is called twice: in a loop over partial tiles with a mask, and in one over full tiles without.
"""

from __future__ import annotations

from itertools import pairwise

from attncc.emit.tile import Kernel, Sweep
from attncc.emit.triton_body import BodyPrinter
from attncc.emit.triton_ranges import RangePrinter, Runs
from attncc.emit.triton_scope import BLOCK, LANES, LOWEST, ORIGIN, POSITION, SCALARS, START, KernelScope, width_of
from attncc.emit.writer import Writer
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.plan.ranges import Domain
from attncc.spec.expr import Const, Expr, Name, names_in


class KernelPrinter(KernelScope):
    """Prints one kernel of the tile program.

    Args:
        numbers: for each call-wide number whether it is a table [batch, heads] (True) or a plain scalar (False).
    """

    def __init__(
        self,
        writer: Writer,
        kernel: Kernel,
        domain: Domain,
        numbers: dict[str, bool],
        used: set[str],
        *,
        keeps_residual: bool = False,
    ) -> None:
        super().__init__(writer, kernel, used, keeps_residual=keeps_residual)
        self.domain = domain
        self.numbers = numbers

    # --- names ------------------------------------------------------------------------------------------------

    def tile_name(self, at: int) -> str:
        """The helper of one sweep."""
        return f"_{self.kernel.name}_tile" if at == len(self.kernel.sweeps) - 1 else f"_{self.kernel.name}_count_tile"

    # --- the tile body ----------------------------------------------------------------------------------------

    def body_arguments(self, sweep: Sweep) -> tuple[list[list[str]], list[str]]:
        """Parameters of the tile body (values; pointers and strides; places and scalars), and its constexprs."""
        carried = self._carried(sweep)
        read = {name for node in (*sweep.body, *sweep.reductions, *sweep.numbers) for name in node.inputs}
        fixed = [node.name for node in (*self.kernel.loads, *self.kernel.before) if node.name in read]
        fixed += [node.name for earlier in self._earlier(sweep) for node in earlier.reductions if node.name in read]
        fixed += [node.name for each in (*self._earlier(sweep), sweep) for node in each.before if node.name in read]
        loads = [node for node in sweep.loads if node.name in read or node.op is Op.OPERAND]
        pointers = [f"{node.name}_ptr" for node in loads]
        strides = [f"{node.name}_stride" for node in loads if node.op is Op.OPERAND]
        scalars = [node.name for node in self.kernel.uniform if node.name in read and not self._is_literal(node)]
        names = self.names_read(sweep)
        positions = [POSITION[self.fixed]] if self.reads_position(sweep, self.fixed) else []
        needs_origin = self.reads_position(sweep, self.swept)
        places = [START[self.swept], *([ORIGIN[self.swept]] if needs_origin else [])]
        places += ["low", "high"] if self.rows_fixed else ["n"]
        extra = [SCALARS[name] for name in (Name.HEAD, Name.HEADS, Name.QUERIES, Name.KEYS) if name in names]
        extra = [name for name in extra if name not in places]
        parameters = [carried + fixed, pointers + strides, positions + places + extra + scalars]
        constexprs = [name for node in loads if node.op is Op.OPERAND for name in width_of(node)]
        constexprs += [BLOCK[Axis.ROW], BLOCK[Axis.COLUMN], "PRECISION"]
        return parameters, list(dict.fromkeys(constexprs))

    def _earlier(self, sweep: Sweep) -> tuple[Sweep, ...]:
        return self.kernel.sweeps[: self.kernel.sweeps.index(sweep)]

    def _carried(self, sweep: Sweep) -> list[str]:
        return [node.name for node in sweep.reductions]

    def _is_literal(self, node: Node) -> bool:
        return isinstance(node.expr, Const)

    def print_body(self, at: int) -> None:
        """Write the helper of one sweep."""
        sweep = self.kernel.sweeps[at]
        start = self.writer.place
        parameters, constexprs = self.body_arguments(sweep)
        typed = [f"{name}: tl.constexpr" for name in (*constexprs, "MASKED")]
        self.writer.line("@triton.jit")
        self.writer.listing(f"def {self.tile_name(at)}(", [*parameters, typed], "):")
        with self.writer.indented():
            BodyPrinter(self, sweep).print()
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
        stores = [f"{node.name}_ptr" for node in kernel.stores] + ["residual_ptr"] * self.keeps_residual
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
        writer, start, block, lanes = self.writer, START[self.fixed], BLOCK[self.fixed], LANES[self.fixed]
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
                writer.line(f"{node.name}_ptr += tl.cast({START[self.fixed]}, tl.int64) * {strides}[2]")
        for node in self.kernel.operands:
            if node.axes[0] is self.swept:
                step = f"tl.cast({node.name}_strides[2], tl.int64) * {BLOCK[self.swept]}"
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
                    f"{node.name}_ptr, {node.name}_strides[2], {visible}, {BLOCK[fixed]}, {width}, {block}, True"
                )
                writer.line(f"{node.name} = _load_tile({arguments})")
            else:
                self.load_statistic(node.name, f"{node.name}_ptr + first_vector", visible, BLOCK[fixed], "True")
        origin = ORIGIN[fixed]
        writer.line(f"{POSITION[fixed]} = {origin} + {LANES[fixed]}")
        if self.rows_fixed:
            self._print_numbers()
        for node in self.kernel.before:
            writer.line(f"{node.name} = {self.expression(node.value, pair=False)}")
        writer.line()

    def _print_numbers(self) -> None:
        for name, table in self._numbers():
            if table:
                self.writer.line(f"{name} = tl.load({name}_ptr + batch * heads + head)")
        for node in self.kernel.uniform:
            if self._is_literal(node) and any(node.name in each.inputs for each in self._every_number()):
                self.writer.line(f"{node.name} = {self.expression(node.value, pair=False)}")

    def _every_number(self) -> list[Node]:
        return [node for sweep in self.kernel.sweeps for node in sweep.body if node.op is Op.NUMBER]

    def _print_ranges(self) -> tuple[Runs, ...]:
        writer, start, block = self.writer, START[self.fixed], BLOCK[self.fixed]
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
        block = BLOCK[self.fixed]
        for node in sweep.reductions:
            if node.op is Op.PEAK:
                self.writer.line(f"peak = {self._peak_start(node)}")
            elif node.op is Op.SUM:
                self.writer.line(f"{node.name} = tl.zeros([{block}], tl.float32)")
            else:
                self.writer.line(f"{node.name} = tl.zeros([{block}, {width_of(node)[1]}], tl.float32)")

    def _peak_start(self, node: Node) -> str:
        block = BLOCK[self.fixed]
        if node.expr is None:
            # The least finite number: a row without keys then needs no guard against inf - inf.
            return f"tl.full([{block}], {LOWEST}, tl.float32)"
        start = self.expression(node.expr, pair=False)
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
                self.writer.line(f"{node.name} = {self.expression(node.value, pair=False)}")
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
        parameters, constexprs = self.body_arguments(sweep)
        carried = ", ".join(self._carried(sweep))
        pointers = []
        for node in sweep.loads:
            name = node.name
            if node.op is Op.OPERAND:
                base = f"{name}_head_ptr" if self._is_swept_row(node) else f"{name}_ptr"
                pointers.append(f"{base} + tile * {name}_step")
            else:
                pointers.append(f"{name}_ptr + statistics + tile * {BLOCK[self.swept]}")
        strides = [f"{node.name}_strides[2]" for node in sweep.loads if node.op is Op.OPERAND]
        swept_start = f"tile * {BLOCK[self.swept]}"
        values = [swept_start if name == START[self.swept] else name for name in parameters[2]]
        self.writer.listing(
            f"{carried} = {self.tile_name(at)}(",
            [parameters[0], pointers + strides, values, [*constexprs, str(masked)]],
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
                writer.line(f"_store_tile({target}, {visible}, {value}, {BLOCK[self.fixed]}, {width}, {block})")
            else:
                target = f"{node.name}_ptr + first_vector + tl.arange(0, {BLOCK[self.fixed]})"
                writer.line(f"tl.store({target}, {value}, mask={visible})")
        if self.keeps_residual:
            with writer.block("if residual_ptr is not None:  # what rounding takes from `out`, for backward"):
                writer.line("residual = out - out.to(out_ptr.dtype.element_ty).to(tl.float32)")
                target, block = "residual_ptr + first_vector * E", BLOCK[self.fixed]
                writer.line(f"_store_tile({target}, visible, residual, {block}, E, BLOCK_E)")

    def _result(self, node: Node) -> str:
        match node.op:
            case Op.DIVIDE:
                self.used.add("_inverse")
                divisor = self.node(node.inputs[1])
                lanes = "[:, None]" if divisor is not None and divisor.axes else ""
                return f"{node.inputs[0]} * _inverse({node.inputs[1]}){lanes}"
            case Op.MULTIPLY:
                factor = self.node(node.inputs[1])
                if factor is not None and self._is_literal(factor):  # named only where tiles of pairs read it
                    return f"{node.inputs[0]} * {self.expression(factor.value, pair=False)}"
                return f"{node.inputs[0]} * {node.inputs[1]}"
            case _:
                text = self.expression(node.value, pair=False)
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
