"""Tile program → Triton: one kernel, which calls the helpers that are its tile bodies.

Tiles of pairs are held as [fixed, swept], so that every reduction runs along the second axis, whichever axis is
fixed. The body is called twice: in a loop over partial tiles with a mask, and in one over full tiles without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise

from attncc.emit.tile import Kernel, Sweep
from attncc.emit.triton_form.in_order import STATES, SumsInOrder, print_formula, print_sums_in_order
from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.triton_form.ranges import RangePrinter, Runs
from attncc.emit.triton_form.results import KernelResults
from attncc.emit.triton_form.scope import (
    BLOCK,
    COORDINATE,
    FROM,
    LANES,
    LIST,
    LOWEST,
    OF_ENTRY,
    PLACE,
    POSITION,
    SLOTS,
    START,
    constexpr_of,
    is_literal,
    is_offset_sum,
    is_vector,
    list_size,
    width_of,
)
from attncc.emit.triton_form.tile_function import TileFunctions
from attncc.emit.writer import Writer
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.spec.data import Axis as Length
from attncc.spec.expr import FALSE, TRUE, Expr, Name, names_in

AXES = (Axis.ROW, Axis.COLUMN)


class KernelPrinter(TileFunctions, KernelResults):
    """Prints one kernel of the tile program.

    Args:
        widths: the names of all widths of vectors.
        table_axes: the axes of each table.
        numbers: for each call-wide number whether it is a table [batch, heads] (True) or a plain scalar (False).
        carried: sums that tiles of rows carry from one to the next.
    """

    def __init__(
        self,
        writer: Writer,
        kernel: Kernel,
        piece: KernelPiece,
        widths: Sequence[str],
        table_axes: Mapping[str, tuple[Length, ...]],
        numbers: Mapping[str, bool],
        used: set[str],
        *,
        keeps_residual: bool = False,
        by_states: bool = False,
        carried: SumsInOrder | None = None,
    ) -> None:
        super().__init__(writer, kernel, table_axes, used, piece, keeps_residual=keeps_residual, by_states=by_states)
        self.domain = piece.domain
        self.widths = widths
        self.numbers = numbers
        self.in_order = carried

    # --- names ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The kernel's own."""
        return f"_{self.kernel.name}_kernel{self.piece.name}"

    # --- the tile body ----------------------------------------------------------------------------------------

    # --- the kernel -------------------------------------------------------------------------------------------

    def print_kernel(self) -> None:
        """Write the kernel itself."""
        writer, kernel = self.writer, self.kernel
        start = writer.place
        operands = [f"{name}_ptr" for node in kernel.operands for name in self.tensors_of(node)]
        statistics = [f"{node.name}_ptr" for node in kernel.statistics]
        stores = [f"{name}_ptr" for name in self.results] + ["residual_ptr"] * self.keeps_residual
        stores += [f"{name}_ptr" for name in self.states]
        stores += [f"{name}_ptr" for name in STATES] if self.in_order is not None else []
        strides = [f"{name}_strides" for name in self.strided]
        numbers = [f"{name}_ptr" if table else name for name, table in self._numbers()]
        numbers += [size for node in self.entries for size in self.sizes(node)]
        numbers += [list_size(node.name) for node in self.lists]
        widths = [constexpr_of(name) for name in self.widths]
        widths = ["GROUP", *widths, *(f"BLOCK_{name}" for name in widths), "PRECISION"]
        widths += ["LIST_M", "LIST_N"] if self.listing is not None else []
        widths += ["RAW"] if self.in_order is not None and self.in_order.formulas else []
        widths += ["BY_STATES"] * self.by_states + ["BLOCK_M", "BLOCK_N"]
        plain = ", ".join(f'"{name}"' for name in ("n", "m", "k_start", *self.list_arguments))
        writer.line(f"@{self.decorator}(do_not_specialize=[{plain}])")
        groups = [
            operands + statistics + stores,
            ["q_start_ptr", "kv_lengths_ptr", *(["classes_ptr"] if self.laid_out else []), *self.list_pointers],
            strides,
            ["n", "m", "k_start", *self.class_arguments, *self.list_arguments, *numbers],
        ]
        writer.listing(f"def {self.name}(", [*groups, [f"{name}: tl.constexpr" for name in widths]], "):")
        with writer.indented():
            self.print_places()
            self.print_pointers()
            if self.offset_sums:
                writer.comment("One program after another tile of rows: its sums by distance are its own.")
                rows = f"tl.program_id(0) * BLOCK_M, {self.limit(Axis.ROW)}, tl.num_programs(0) * BLOCK_M"
                with writer.block(f"for row in range({rows}):"):
                    writer.line("tl.debug_barrier()  # sums of the tile before are written")
                    self._print_tile()
            else:
                self._print_tile()
        writer.drop_unread(start)
        writer.line()
        writer.line()

    @property
    def list_pointers(self) -> list[str]:
        """Where lists begin, what they name, and which token stands where."""
        if self.listing is None:
            return []
        return ["begins_ptr", "met_ptr", *(f"{PLACE[axis]}s_ptr" for axis in AXES if self.moves(axis))]

    @property
    def list_arguments(self) -> list[str]:
        """How many tokens and holes, and how many lists an entry has."""
        if self.listing is None:
            return []
        return [*(SLOTS[axis] for axis in AXES if self.moves(axis)), "lists"]

    @property
    def class_arguments(self) -> list[str]:
        """What a kernel is told of classes beside where they lie: how many, and of keys' tiles for which heads."""
        if not self.laid_out:
            return []
        part = ["part"] if self.has_parts and not self.rows_fixed else []
        return ["classes", *part, *(["residue"] if self.offset_sums else [])]

    def _print_tile(self) -> None:
        """What is done for one tile of the fixed axis."""
        self.print_lanes()
        self._print_loads()
        runs = self._print_ranges() if self.listing is None else self._print_list()
        if self.rows_fixed:
            self._print_sweeps(runs)
        else:
            self._print_accumulators(self.kernel.sweeps[0])
            if any(each.by_column for each in self.domain.classes) or self.listing is not None:
                self._print_heads(runs)
        self.print_results()

    def _numbers(self) -> list[tuple[str, bool]]:
        return [(node.name, self.numbers[node.name]) for node in self.kernel.uniform if not is_literal(node)]

    def _print_loads(self) -> None:
        writer, fixed = self.writer, self.fixed
        visible = "visible" if self.rows_fixed else "seen"
        if self.moves(fixed):
            place = PLACE[fixed]
            writer.line(f"{place} = tl.load({place}s_ptr + {OF_ENTRY[fixed]} + {LANES[fixed]})")
        if self.rows_fixed:
            writer.line(f"visible = {self.exist(Axis.ROW)}")
        else:
            writer.comment("Keys that no row can see are not read, and their gradients are 0.")
            writer.line(f"seen = {self.exist(Axis.COLUMN)}")
        if not self._asks_by_head:
            self._print_facts(visible)
        for node in self.kernel.loads:
            if self.is_fact(node):
                continue
            if node in self.vectors:
                width, block = width_of(node)
                pointer = f"{node.name}_ptr" + (f" + {self.first_of(node)}" if self.offset_sums else "")
                arguments = f"{pointer}, {self.stride(node)}, {visible}, {BLOCK[fixed]}, {width}, {block}, True"
                writer.line(f"{node.name} = _load_tile({arguments})")
                print_formula(self, self.in_order, node)
            elif not is_vector(node):
                self.load_numbers(node.name, f"{node.name}_ptr + first_vector", visible, fixed, "True")
        self.print_lane_pointers()
        writer.line(f"{POSITION[fixed]} = {self.position(fixed)}")
        if self.laid_out:
            writer.line(f"{COORDINATE[fixed]} = {FROM[fixed]} + {LANES[fixed]}")
        if self.rows_fixed:
            self._print_numbers()
        for node in self.kernel.before:
            writer.line(f"{node.name} = {self.expression(node.value, pair=False)}")
            if node in self.counted_once and self.piece.again != FALSE:
                again = self.expression(self.piece.again, pair=False)
                always = self.piece.again == TRUE
                zero = f"tl.zeros_like({node.name})" if always else f"tl.where({again}, 0.0, {node.name})"
                writer.line(f"{node.name} = {zero}")
        writer.line()

    @property
    def _asks_by_head(self) -> bool:
        """Whether what the pattern asks of keys differs between query heads that share them."""
        return self.listing is not None and self.listing.by_head and not self.rows_fixed

    def _print_facts(self, visible: str) -> None:
        for node in self.kernel.loads:
            if self.is_list(node):
                self.point_to_lists(node.name, f"{node.name}_lists + {START[self.fixed]}")
            elif self.is_fact(node):
                pointer = f"{node.name}_ptr + {OF_ENTRY[self.fixed]} + {START[self.fixed]}"
                self.load_facts(node.name, pointer, visible, self.fixed)

    def _print_list(self) -> tuple[Runs, ...]:
        if not self._asks_by_head:
            self._print_ends()
            self.writer.line()
        return ()

    def _print_ends(self) -> None:
        """Where the list of the tile is."""
        what = "keys that the tile's rows meet" if self.rows_fixed else "rows that meet the tile's keys"
        self.writer.comment(f"Tiles of {what}: met[begin] … met[end - 1].")
        self.writer.line(f"number = entry * lists + {START[self.fixed]} // {LIST[self.fixed]}")
        self.writer.line("begin = tl.load(begins_ptr + number)")
        self.writer.line("end = tl.load(begins_ptr + number + 1)")

    @property
    def counted_once(self) -> list[Node]:
        """Parts of rows' gradients that are no sums over keys: one piece adds them, not every one."""
        parts = {node.name for node in self.kernel.stores}
        parts |= {name for node in self.kernel.after if node.op is Op.ADD for name in node.inputs}
        return [node for node in self.kernel.before if node.name in parts and self.piece.adds]

    def _print_numbers(self) -> None:
        for name, table in self._numbers():
            if table:
                self.writer.line(f"{name} = tl.load({name}_ptr + batch * heads + head)")
        for node in self.kernel.uniform:
            if is_literal(node) and any(node.name in each.inputs for each in self._every_number()):
                self.writer.line(f"{node.name} = {self.expression(node.value, pair=False)}")

    def _every_number(self) -> list[Node]:
        return [node for sweep in self.kernel.sweeps for node in sweep.body if node.op is Op.NUMBER]

    def _print_ranges(self) -> tuple[Runs, ...]:
        writer, start, block = self.writer, START[self.fixed], BLOCK[self.fixed]
        if self.rows_fixed:
            what = "Coordinates" if self.laid_out else "Positions"
            writer.comment(f"{what} of the tile's first and last row; [low, high) are the keys that it may see.")
            writer.line(f"first = {FROM[Axis.ROW] if self.laid_out else 'q_start'} + {start}")
            writer.line(f"last = first + tl.minimum({block}, {self.limit(Axis.ROW)} - row) - 1")
        else:
            what = "Coordinates" if self.laid_out else "Positions"
            keys, rows = self.limit(Axis.COLUMN), self.limit(Axis.ROW)
            writer.comment(f"{what} of the tile's first and last key; [low, high) are the rows that may see it.")
            writer.line(f"first = {FROM[Axis.COLUMN] if self.laid_out else 'k_start'} + {start}")
            writer.line(f"last = first + tl.minimum({block}, {keys} - column) - 1")
            writer.line(f"in_rows = tl.where(column < {keys}, {rows}, 0)")
        if self._ranges_read_head() and not self.rows_fixed:
            writer.line()
            return ()
        runs = self._runs()
        if self.offset_sums:
            writer.comment("Rows beyond the last one add nothing to sums by distance: they are masked.")
            for each in runs:
                if each.has_full:
                    writer.line(f"{each.f1} = tl.where(row + BLOCK_M <= {self.limit(Axis.ROW)}, {each.f1}, {each.f0})")
        writer.line()
        return runs

    def _runs(self) -> tuple[Runs, ...]:
        printer = RangePrinter(self.writer, self.domain, self.fixed, laid_out=self.laid_out)
        runs = printer.print()
        self.used |= printer.expressions.used
        return runs

    def _print_next_run(self) -> None:
        """Where the run of full tiles ends for the next rows, which tells the keys that may be summed now."""
        self.writer.comment("The next tile of rows: keys that all of it sees are summed while they are here.")
        self.writer.line("next_first = first + BLOCK_M")
        self.writer.line(f"next_last = next_first + tl.minimum(BLOCK_M, {self.limit(Axis.ROW)} - row - BLOCK_M) - 1")
        RangePrinter(self.writer, self.domain, self.fixed, laid_out=self.laid_out, of="next_").print()

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
            elif is_offset_sum(node):
                continue
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
            for node in self.vectors:
                if self.is_swept_row(node):
                    self.writer.line(f"{node.name}_head_ptr = {node.name}_ptr + {self.of_head(node.name, 'head')}")
            for node in self.channels:
                if self.is_swept_row(node):
                    pointer = f"{node.name}_channels_ptr + {self.channels_of(node)}"
                    self.writer.line(f"{node.name}_channels_head_ptr = {pointer}")
            self.writer.line(f"statistics = (tl.cast(batch, tl.int64) * heads + head) * {self.length(Axis.ROW)}")
            if self._asks_by_head:
                self.print_entry_of("head")
                self._print_facts("seen")
                self._print_ends()
            self.print_offset_pointers()
            self._print_numbers()
            if self.laid_out and self.has_parts:
                rows, mine = self.limit(Axis.ROW), f"{self.part_of_head()} == part"
                self.writer.line(f"in_rows = tl.where((column < {self.limit(Axis.COLUMN)}) & ({mine}), {rows}, 0)")
            if self.listing is None and self._ranges_read_head():
                runs = self._runs()
            self._print_sweeps(runs)

    def _print_sweeps(self, runs: tuple[Runs, ...]) -> None:
        for at, sweep in enumerate(self.kernel.sweeps):
            for node in sweep.before:
                self.writer.line(f"{node.name} = {self.expression(node.value, pair=False)}")
            if self.in_order is not None:
                print_sums_in_order(self, self.in_order)
                if self.adds_keys_of(sweep):
                    self._print_next_run()
            elif self.rows_fixed:
                with self.writer.block("if not BY_STATES:") if self.takes_sums else nullcontext():
                    if not self.carries or self.piece.resumes != TRUE:
                        self._print_accumulators(sweep)
                    self.print_resume(sweep)
                if self.takes_sums:
                    with self.writer.block("else:  # go on from the sums of keys that all rows of the tile see"):
                        self.print_sums(sweep)
            if self.listing is not None:
                with self.writer.block("for step in range(begin * PARTS, end * PARTS):"):
                    self.writer.line("tile = tl.load(met_ptr + step // PARTS) * PARTS + step % PARTS")
                    self.print_call(at, sweep, masked=True)
            if not runs:
                continue
            partial, steps = _concatenated([(each.t0, each.f0, each.f1, each.t1) for each in runs])
            with self.writer.block(f"for step in range(0, {steps}):"):
                self._print_tile_of_step(partial)
                if self.adds_keys_of(sweep):
                    self.writer.line("adds = (tile == summed) & (next_f0 <= tile) & (tile < next_f1)")
                    self.writer.line("adds &= (low <= tile * BLOCK_N) & ((tile + 1) * BLOCK_N <= high)")
                self.print_call(at, sweep, masked=True)
                if self.adds_keys_of(sweep):
                    self.writer.line("summed += adds")
            if self.in_order is not None:
                self.writer.line("tl.store(summed_ptr + spot, summed)")
            full = [each for each in runs if each.has_full and self.in_order is None]
            with self.writer.block("if not BY_STATES:") if full and self.by_states else nullcontext():
                self._print_full(at, sweep, full)
        if self.rows_fixed:
            self.writer.line()

    def _print_full(self, at: int, sweep: Sweep, full: list[Runs]) -> None:
        """The loop over tiles that need no mask."""
        if len(full) == 1:
            with self.writer.block(f"for tile in range({full[0].f0}, {full[0].f1}):"):
                self.print_call(at, sweep, masked=False)
        elif full:
            ranges = [(each.f0, each.f1) for each in full]
            steps = " + ".join(f"{stop} - {start}" for start, stop in ranges)
            with self.writer.block(f"for step in range(0, {steps}):"):
                self._print_tile_of_step(ranges)
                self.print_call(at, sweep, masked=False)

    def _print_tile_of_step(self, ranges: list[tuple[str, str]]) -> None:
        """The tile of a step through several ranges laid end to end: each range skips the gap before it."""
        self.writer.line(f"tile = {ranges[0][0]} + step")
        for (_, stop), (start, _) in pairwise(ranges):
            self.writer.line(f"tile = tl.where(tile < {stop}, tile, tile + ({start} - {stop}))")


def _concatenated(runs: list[tuple[str, str, str, str]]) -> tuple[list[tuple[str, str]], str]:
    """The partial ranges of all segments, and the number of their tiles."""
    ranges: list[tuple[str, str]] = []
    for t0, f0, f1, t1 in runs:
        ranges.append((t0, f0))
        if f1 != t1:
            ranges.append((f1, t1))
    return ranges, " + ".join(f"{stop} - {start}" for start, stop in ranges)
