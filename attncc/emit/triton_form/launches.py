"""Launches of kernels, piece after piece, and where the tokens of pieces lie."""

from __future__ import annotations

from contextlib import nullcontext

from attncc.emit.tile import Kernel
from attncc.emit.triton_form.in_order import STATES
from attncc.emit.triton_form.listed_launches import ListedLaunches
from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.triton_form.scope import by_channel, is_literal, is_vector
from attncc.emit.writer import Writer
from attncc.graph.ir import Node
from attncc.graph.ops import Axis
from attncc.plan.cpu_tiles import CARRIED
from attncc.plan.pieces import SHORT
from attncc.rewrite.backward import gradient_name


class Launches(ListedLaunches):
    """Prints launches of the kernels of one plan."""

    def print_launches(self, writer: Writer, kernel: Kernel) -> None:
        """The whole pattern, or, where there are keys enough, one piece after the other."""
        if not self.pieces:
            self.print_launch(writer, kernel, self.whole)
            return
        with writer.block("if m < _LEAST_KEYS:"):
            self.print_launch(writer, kernel, self.whole)
        with writer.block("else:"):
            for piece in self.pieces:
                parts = len(piece.domain.classes)
                if kernel.fixed is Axis.COLUMN and piece.layouts and parts > 1:
                    with writer.block(f"for part in range({len(piece.parts)}):"):
                        self.print_launch(writer, kernel, piece)
                elif piece.layouts and self.printer(kernel, piece).offset_sums:
                    with writer.block(f"for residue in range(classes{piece.name}.shape[2]):"):
                        self.print_launch(writer, kernel, piece)
                else:
                    self.print_launch(writer, kernel, piece)

    def print_piece_places(self, writer: Writer, *kernels: Kernel) -> None:
        """Where the classes of pieces lie, copies of keys side by side, and room for sums that are handed on."""
        laid_out = [piece for piece in self.pieces if piece.layouts]
        chained = kernels[0] is self.forward and any(self.printer(self.forward, each).carries for each in self.pieces)
        if not laid_out and not chained:
            return
        with writer.block("if m >= _LEAST_KEYS:"):
            for piece in laid_out:
                own = piece.name
                if piece.compacts:
                    device = f"{self.core.rows}.device"
                    writer.line(f"places{own} = _side_by_side(_CLASSES{own}[0], k_start, m, {device})")
                    for each in self.of_keys():
                        writer.line(f"{each.name}{own} = {each.name}[:, :, places{own}]")
                    for name in sorted(by_channel(kernels) & {each.name for each in self.of_keys()}):
                        writer.line(f"{name}_channels{own} = {name}{own}.mT.contiguous()")
                    for node in self.columns.stores if kernels[0] is not self.forward else ():
                        operand = next(each for each in self.of_keys() if gradient_name(each.name) == node.name)
                        writer.line(f"{node.name}{own} = _gradient_room({operand.name}{own}, True)")
                if piece.sorts:
                    self._print_taken_rows(writer, piece, *kernels)
                writer.line(
                    f"classes{own} = _classes_of(_CLASSES{own}, {len(piece.domain.classes)}, "
                    f"n, m, k_start, starts, lengths)"
                )
            if chained:
                with writer.block("if not by_states:") if self.sides is not None else nullcontext():
                    self._print_room_for_sums(writer, "empty")

    def print_sums_of_keys(self, writer: Writer) -> None:
        """Room for the sums with which rows begin, where kernels of sums make these."""
        if self.sides is None:
            return
        with writer.block("if by_states:"):
            self._print_room_for_sums(writer, "zeros")
        with writer.block("else:  # not read"):
            for node in self.forward.sweeps[0].reductions:
                writer.line(f"{node.name}_state = {self.core.rows}.new_empty(0, dtype={self.wide})")

    def _print_room_for_sums(self, writer: Writer, how: str) -> None:
        """Room for sums that kernels hand on."""
        for node in self.forward.sweeps[0].reductions:
            width = f", {self.core.values}.shape[-1]" if is_vector(node) else ""
            made = f"{self.core.rows}.new_{how}(batch, heads, n{width}, dtype={self.wide})"
            writer.line(f"{node.name}_state = {made}")

    def _print_taken_rows(self, writer: Writer, piece: KernelPiece, *kernels: Kernel) -> None:
        """What kernels read of rows, class by class."""
        own, backward = piece.name, kernels[0] is not self.forward
        writer.line(f"rows{own} = _by_class(_CLASSES{own}[0], starts, n)")
        names = [each.name for each in self.of_rows()]
        read = {node.name for kernel in kernels for node in (*kernel.operands, *kernel.statistics)}
        given = ["d_out", *dict.fromkeys(node.name for each in kernels for node in each.statistics)]
        for name in [*names, *(given if backward else [])]:
            if name in read:
                writer.line(f"{name}{own} = _taken({name}, rows{own})")
        for name in sorted(by_channel(kernels) & set(names)):
            writer.line(f"{name}_channels{own} = {name}{own}.mT.contiguous()")
        for node in self._row_gradients() if backward else ():
            writer.line(f"{node.name}{own} = _gradient_room({node.name}, True)")

    def _row_gradients(self) -> list[Node]:
        stores = self.rows.stores if self.rows is not None else ()
        return [node for node in stores if Axis.ROW in node.axes]

    def print_compact_gradients(self, writer: Writer) -> None:
        """Gradients of tokens that were copied side by side go back to where these stand."""
        copied = [piece for piece in self.pieces if piece.compacts or piece.sorts]
        if not copied:
            return
        with writer.block("if in_pieces:"):
            for piece in copied:
                own = piece.name
                for node in self.columns.stores if piece.compacts else ():
                    writer.line(f"{node.name}[:, :, places{own}] += {node.name}{own}")
                for node in self._row_gradients() if piece.sorts else ():
                    order = f"_spread_order(rows{own}, {node.name})"
                    writer.line(f"{node.name}.scatter_add_(2, {order}, {node.name}{own})")

    def a_head_for_each_thread(self, heads: str) -> str:
        """What asks whether kernels that take a head's tiles one after the other have work for all threads."""
        return f"_in_c({self.core.rows}) and {heads} >= torch.get_num_threads()"

    def print_launch(self, writer: Writer, kernel: Kernel, piece: KernelPiece) -> None:
        rows = kernel.fixed is Axis.ROW
        length, block, heads = ("n", "BLOCK_M", "heads") if rows else ("m", "BLOCK_N", "kv_heads")
        printer = self.printer(kernel, piece)
        moved = self.moved(kernel, piece)
        operands = [name for node in kernel.operands for name in printer.tensors_of(node)]
        pointers = operands + [node.name for node in kernel.statistics] + printer.results
        pointers += printer.states
        pointers = [f"{name}{piece.name}" if name in moved else name for name in pointers]
        pointers += STATES if kernel is self.in_order else ()
        made = [*printer.results] if piece.sorts and kernel is self.forward else []
        if kernel in (self.forward, self.in_order) and self.plan.reads_delta:
            residual = f"residual{piece.name if piece.sorts else ''} if keep_residual else None"
            after = STATES if kernel is self.in_order else printer.states
            pointers.insert(len(pointers) - len(after), residual)
            made += ["residual"] if piece.sorts else []
        sums = printer.states if piece.sorts and kernel is self.forward else []
        for name in made:
            writer.line(f"{name}{piece.name} = _taken({name}, rows{piece.name})")
        for name in sums:
            taken = f"_taken({name}, rows{piece.name})"
            taken += f" if by_states else {name}" if not printer.carries else ""
            writer.line(f"{name}{piece.name} = {taken}")
        if kernel is self.forward:
            self.print_sums(writer, kernel, piece)
        offsets = {node.name for node in printer.by_offset}
        strides = [
            f"{name}.expand(batch, -1, -1).stride()"
            if name in offsets
            else f"{name}{piece.name if name in moved else ''}.stride()[:3]"
            for name in printer.strided
        ]
        numbers = [node.name for node in kernel.uniform if not is_literal(node)]
        numbers += [f"{table}.shape[{axis}]" for table, axis in printer.table_sizes]
        if printer.offset_sums:
            writer.line(f"grid = ({printer.offset_sums[0].name}.shape[2] // 3, heads, batch)")
        elif piece.layouts:
            classes = f"classes{piece.name}"
            writer.line(
                f'grid = _grid({self.longest(piece, kernel.fixed)}, "{block}", {heads}, batch, {classes}.shape[2])'
            )
        else:
            writer.line(f'grid = _grid({length}, "{block}", {heads}, batch)')
        own = ["starts", "lengths", *([f"classes{piece.name}"] if piece.layouts else [])]
        m = f"places{piece.name}.shape[0]" if piece.compacts else "m"
        about = [f"classes{piece.name}.shape[2]" if each == "classes" else each for each in printer.class_arguments]
        groups = [pointers, own, strides, ["n", m, "k_start", *about, *numbers]]
        more = [f"most_rows={SHORT}"] if piece.has_list else []
        more += ["by_states=by_states"] if self.sides is not None else []
        more += [f"edge={CARRIED}"] if kernel is self.in_order else []
        more += ["raw=raw"] if kernel is self.in_order and self.carried and self.carried.formulas else []
        groups += [more] if more else []
        name = f'"{printer.name}"' if kernel.in_order else printer.name
        opening = f'_launch({name}, "{kernel.name}", grid,'
        writer.listing(opening, [[self.shapes().arguments], *groups], ")")
        for name in made:
            writer.line(f"_put_back({name}, {name}{piece.name}, rows{piece.name})")
        for name in sums:
            with writer.block("if by_states:") if not printer.carries else nullcontext():
                writer.line(f"_put_back({name}, {name}{piece.name}, rows{piece.name})")
        if kernel not in (self.forward, self.in_order):
            self.print_sums(writer, kernel, piece)
