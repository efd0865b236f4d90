"""The kernel that finds, for every tile, the runs of tiles of the other axis that it sees as a whole."""

from __future__ import annotations

from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.triton_form.ranges import RangePrinter
from attncc.emit.triton_form.scope import BLOCK, FROM, ORIGIN, START
from attncc.emit.triton_form.sums.scope import SIDE, Sides, SumsScope
from attncc.emit.writer import Writer
from attncc.graph.ops import Axis


class Runs(SumsScope):
    """Prints it. What the pattern says is here alone: kernels of sums read first tiles, and those after the last."""

    def __init__(self, writer: Writer, sides: Sides, piece: KernelPiece, used: set[str], fixed: Axis) -> None:
        super().__init__(writer, sides, piece, used, f"runs_by_{SIDE[fixed]}", fixed, {})

    @property
    def by_head(self) -> bool:
        """A program has a query head of its own, or serves all."""
        return True

    @property
    def tensors(self) -> list[str]:
        """What it writes."""
        return ["runs"]

    @property
    def lengths(self) -> list[str]:
        """What it is told beside lengths: tiles of its axis, and how many heads there are."""
        return ["tiles", "heads"]

    def print_kernel(self) -> None:
        """Write the kernel."""
        writer, fixed, start = self.writer, self.fixed, self.writer.place
        whole = ["n", "m", "k_start", *self.lengths]
        writer.line(f"@triton.jit(do_not_specialize=[{', '.join(f'{chr(34)}{each}{chr(34)}' for each in whole)}])")
        classes = ["classes_ptr"] if self.laid_out else []
        about = [*whole, *(["classes"] if self.laid_out else []), *self.parts()]
        constexprs = ["BLOCK_M: tl.constexpr", "BLOCK_N: tl.constexpr"]
        groups = [["runs_ptr", "q_start_ptr", "kv_lengths_ptr", *classes], about, constexprs]
        writer.listing(f"def {self.name}(", groups, "):")
        own, others = ("rows", "keys") if self.rows_fixed else ("keys", "rows")
        relation = "that all of its rows see" if self.rows_fixed else "that see all of its keys"
        with writer.indented():
            writer.line(f'"""The runs of tiles of {others} {relation}, for a tile of {own}."""')
            job = "tl.program_id(0)"
            if self.laid_out:
                writer.line(f"residue = {job} % classes")
                job = f"{job} // classes"
            writer.line(f"tile = {job}")
            writer.line(f"{START[fixed]} = tile * {BLOCK[fixed]}")
            writer.line("head = tl.program_id(1)")
            writer.line("batch = tl.program_id(2)")
            self.print_call()
            self._print_found()
        writer.drop_unread(start)
        writer.line()
        writer.line()

    def _print_found(self) -> None:
        writer, fixed, block, start = self.writer, self.fixed, BLOCK[self.fixed], START[self.fixed]
        limit = self.limit(fixed)
        writer.line(f"first = {FROM[fixed] if self.laid_out else ORIGIN[fixed]} + {start}")
        writer.line(f"last = first + tl.minimum({block}, {limit} - {start}) - 1")
        if not self.rows_fixed:
            mine = f" & ({self.part_of_head()} == part)" if self.parts() else ""
            seen = f"({start} < {limit}){mine}" if mine else f"{start} < {limit}"
            writer.line(f"in_rows = tl.where({seen}, {self.limit(Axis.ROW)}, 0)")
        printer = RangePrinter(writer, self.piece.domain, fixed, laid_out=self.laid_out)
        runs = [each for each in printer.print() if each.has_full]
        self.used |= printer.expressions.used
        spot = "batch * tl.num_programs(1) + head"
        if self.laid_out:
            spot = f"({spot}) * classes + residue"
        if len(runs) > 1:
            spot = f"({spot}) * {len(runs)}"
        for at, each in enumerate(runs):
            own = f"({spot} + {at})" if at else f"({spot})"
            writer.line(f"spot = runs_ptr + ({own} * tiles + tile) * 2")
            low, high = each.f0, each.f1
            if self.rows_fixed:  # tiles beyond the last row have none
                high = f"tl.where({start} < {limit}, {high}, {low})"
            writer.line(f"tl.store(spot, {low})")
            writer.line(f"tl.store(spot + 1, {high})")
