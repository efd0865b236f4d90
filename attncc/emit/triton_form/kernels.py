"""Plan → the kernels of a module, of the whole pattern and of every piece."""

from __future__ import annotations

from dataclasses import replace

from attncc.emit.numbers import tables_of
from attncc.emit.tile import Kernel, at_once, schedule
from attncc.emit.triton_form.in_order import sums_in_order
from attncc.emit.triton_form.kernel import KernelPrinter
from attncc.emit.triton_form.library import library
from attncc.emit.triton_form.piece import KernelPiece, kernel_pieces, listed_pieces, whole_of
from attncc.emit.triton_form.scope import is_literal, is_offset_sum
from attncc.emit.triton_form.sums.kernels import SumKernels, sides_of, uniform_numbers
from attncc.emit.triton_form.sums.scope import Sides
from attncc.emit.triton_form.symbols import complete
from attncc.emit.writer import WIDTH, Writer
from attncc.graph.core import Kind, Operand
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.plan.model import Plan


class Kernels:
    """The kernels of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        forward, backward = (complete(graph, plan.core) for graph in (plan.gpu.forward, plan.gpu.backward))
        columns = tuple(name for name in backward.outputs if Axis.COLUMN in backward[name].axes)
        rows = tuple(name for name in backward.outputs if self._is_summed_by_row(backward[name]))
        self.forward = schedule("forward", forward, Axis.ROW, forward.outputs)
        self.columns = schedule("backward_columns", backward, Axis.COLUMN, columns)
        self.rows = schedule("backward_rows", backward, Axis.ROW, rows) if rows else None
        self.core = plan.core
        self.widths = tuple(dict.fromkeys(("d", "e", *(each.width or "e" for each in plan.core.operands))))
        known = {each.width for each in plan.core.operands}
        self.widths = tuple(name for name in self.widths if name in known)
        self.used: set[str] = set()
        self.host_used: set[str] = set()
        self.whole, self.pieces = whole_of(plan), kernel_pieces(plan)
        self.listed = listed_pieces(plan)
        self.sides = self._sides() if plan.states is not None else None
        moves_rows = any(piece.sorts or piece.has_list for piece in self.pieces)
        in_place = self.sides is None and not self.listed and not moves_rows
        self.carried = None  # sums that tiles of rows hand on, on CPUs alone
        if self.sides is not None and not self.pieces:
            of_call = frozenset(node.name for node in self.forward.uniform)
            running = self.sums(self.whole).running[Axis.ROW]
            self.carried = sums_in_order(plan.core, self.sides, running, of_call)
        self.in_order = replace(self.forward, name="forward_in_order", in_order=True) if self.carried else None
        self.at_once = at_once(self.columns, self.rows) if in_place else None  # on CPUs alone

    def _is_summed_by_row(self, gradient: Node) -> bool:
        """Whether tiles of rows compute a gradient: what follows from saved row numbers alone needs no kernel."""
        of_row = Axis.ROW in gradient.axes and gradient.op is not Op.NUMBER
        return of_row or Axis.OFFSET in gradient.axes

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, in the order of the file."""
        return tuple(kernel for kernel in (self.forward, self.columns, self.rows) if kernel is not None)

    @property
    def wide(self) -> str:
        """The type of sums."""
        return f"_wide({self.core.rows}.dtype)"

    def uniform(self) -> tuple[Node, ...]:
        """Call-wide numbers of all kernels, each once; constants are printed where they are used."""
        nodes = {node.name: node for kernel in self.kernels for node in kernel.uniform}
        nodes |= {node.name: node for node in uniform_numbers(self.plan)}
        return tuple(node for node in nodes.values() if not is_literal(node))

    def tables(self) -> dict[str, bool]:
        tables = tables_of(self.uniform())
        return {node.name: node.name in tables for node in self.uniform()}

    def _literals(self) -> dict[str, Node]:
        """The numbers of the call that are constants."""
        nodes = [node for kernel in self.kernels for node in kernel.uniform] + list(uniform_numbers(self.plan))
        return {node.name: node for node in nodes if is_literal(node)}

    def _sides(self) -> Sides:
        uniform = {node.name: node for node in self.uniform()} | self._literals()
        tables = self.tables() | dict.fromkeys(self._literals(), False)
        return sides_of(self.plan, self.kernels, uniform, tables, self.widths)

    def sums(self, piece: KernelPiece, writer: Writer | None = None) -> SumKernels:
        """The kernels of the sums of a piece."""
        assert self.sides is not None
        return SumKernels(writer or Writer(), self.sides, piece, self.used)

    def kernel_text(self) -> str:
        """Helpers, tile bodies and kernels, to stand inside `if triton is not None:`."""
        writer = Writer(width=WIDTH - 4)
        tables = self.tables() | dict.fromkeys(self._literals(), False)
        for piece in self.listed or (self.whole, *self.pieces):
            for printer in self._printers(writer, tables, piece):
                for at in range(len(printer.kernel.sweeps)):
                    printer.print_body(at)
                printer.print_kernel()
            if self.sides is not None:
                self.sums(piece, writer).print_kernels()
        text = library(self.used) + "\n\n" + writer.text()
        return "\n".join(f"    {line}" if line else "" for line in text.strip("\n").split("\n"))

    def _printers(self, writer: Writer, tables: dict[str, bool], piece: KernelPiece) -> list[KernelPrinter]:
        data = {each.name: each for each in self.plan.spec.data}
        axes = {each.name: data[each.source or each.name].axes for each in self.core.of_kind(Kind.TABLE)}
        return [
            KernelPrinter(
                writer,
                kernel,
                piece,
                self.widths,
                axes,
                tables,
                set() if kernel.in_order else self.used,  # in C there is all of the library
                keeps_residual=self.plan.reads_delta and kernel in (self.forward, self.in_order),
                by_states=self.plan.states is not None and not kernel.in_order,
                carried=self.carried if kernel is self.in_order else None,
            )
            for kernel in (*self.kernels, self.in_order, self.at_once)
            if kernel is not None
        ]

    def printer(self, kernel: Kernel, piece: KernelPiece) -> KernelPrinter:
        return next(each for each in self._printers(Writer(), {}, piece) if each.kernel is kernel)

    def offset_sums(self) -> tuple[Node, ...]:
        """The sums by distance that tiles of rows add up."""
        sweeps = self.rows.sweeps if self.rows is not None else ()
        return tuple(node for sweep in sweeps for node in sweep.sums if is_offset_sum(node))

    def column(self) -> str:
        """The operand that tells keys and their heads."""
        return self.core.of_kind(Kind.COLUMN_VECTOR)[0].name

    def of_rows(self) -> list[Operand]:
        """The operands that are vectors or numbers of rows."""
        return list(self.core.of_kind(Kind.ROW_VECTOR, Kind.ROW_NUMBER))

    def of_keys(self) -> list[Operand]:
        return list(self.core.of_kind(Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER))
