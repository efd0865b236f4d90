"""Launches of kernels, piece after piece, and where the tokens of pieces lie."""

from __future__ import annotations

from attncc.emit.tile import Kernel
from attncc.emit.triton_form.kernels import Kernels
from attncc.emit.triton_form.launch import Shapes
from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.triton_form.scope import by_channel, is_literal, is_vector, tiled
from attncc.emit.writer import Writer
from attncc.graph.core import Kind, Operand
from attncc.graph.ops import Axis
from attncc.plan.pieces import SHORT
from attncc.rewrite.backward import gradient_name


class Launches(Kernels):
    """Prints launches of the kernels of one plan."""

    def shapes(self) -> Shapes:
        vectors = self.core.of_kind(Kind.ROW_VECTOR, Kind.COLUMN_VECTOR)
        products = tiled(self.kernels)
        preferred = (self.core.rows, self.core.values, *(each.name for each in vectors))
        pointers = [{node.name for node in kernel.operands} & tiled([kernel]) for kernel in self.kernels]
        sides = [[each for each in vectors if each.kind is kind and each.name in products] for kind in _SIDES]
        held = [each.width or "e" for each in sides[0]]
        streamed = [
            name
            for name in self.widths
            for _ in range(max(_count(sides[0], name) + (name == "e"), _count(sides[1], name)))
        ]
        return Shapes(
            rows=self.core.rows,
            column=self.column(),
            widths={width: next(name for name in preferred if self.core[name].width == width) for width in self.widths},
            pointer=next((name for name in preferred if all(name in each for each in pointers)), None),
            values=self.core.values,
            d_values=gradient_name(self.core.values),
            held=held,
            streamed=streamed,
            sums=[node.name for node in self.offset_sums()],
            added=self._added(),
            lists=any(piece.has_list for piece in self.pieces),
            step=max((piece.step for piece in self.pieces), default=1),
        )

    def _added(self) -> list[str]:
        """What kernels of pieces write and read: tuning must not leave its own marks there."""
        if not self.pieces:
            return []
        sums = [f"{node.name}_state" for node in self.forward.sweeps[0].reductions]
        stores = [node.name for kernel in self.kernels[1:] for node in kernel.stores if Axis.OFFSET not in node.axes]
        return [*sums, *dict.fromkeys(stores)]

    def print_launches(self, writer: Writer, kernel: Kernel) -> None:
        """The whole pattern, or, where there are keys enough, one piece after the other."""
        if not self.pieces:
            self._print_launch(writer, kernel, self.whole)
            return
        with writer.block("if m < _LEAST_KEYS:"):
            self._print_launch(writer, kernel, self.whole)
        with writer.block("else:"):
            for piece in self.pieces:
                parts = len(piece.domain.classes)
                if kernel.fixed is Axis.COLUMN and piece.layouts and parts > 1:
                    with writer.block(f"for part in range({len(piece.parts)}):"):
                        self._print_launch(writer, kernel, piece)
                else:
                    self._print_launch(writer, kernel, piece)

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
                    writer.line(f"keys{own} = _CLASSES{own}[0][0][1]")
                    writer.line(f"ends{own} = keys{own}.below(k_start), keys{own}.below(k_start + m)")
                    writer.line(f"places{own} = keys{own}.places(*ends{own}, k_start, {self.core.rows}.device)")
                    for each in self.of_keys():
                        writer.line(f"{each.name}{own} = {each.name}[:, :, places{own}]")
                    for name in sorted(by_channel(kernels) & {each.name for each in self.of_keys()}):
                        writer.line(f"{name}_channels{own} = {name}{own}.mT.contiguous()")
                    for node in self.columns.stores if kernels[0] is not self.forward else ():
                        operand = next(each for each in self.of_keys() if gradient_name(each.name) == node.name)
                        writer.line(f"{node.name}{own} = _gradient_room({operand.name}{own}, True)")
                writer.line(
                    f"classes{own} = _classes_of(_CLASSES{own}, {len(piece.domain.classes)}, "
                    f"n, m, k_start, starts, lengths)"
                )
            if chained:
                for node in self.forward.sweeps[0].reductions:
                    width = ", E" if is_vector(node) else ""
                    width = width and f", {self.core.values}.shape[-1]"
                    writer.line(
                        f"{node.name}_state = {self.core.rows}.new_empty(batch, heads, n{width}, dtype=torch.float32)"
                    )

    def print_compact_gradients(self, writer: Writer) -> None:
        """Gradients of keys that were copied side by side go back to where these stand."""
        compact = [piece for piece in self.pieces if piece.compacts]
        if not compact:
            return
        with writer.block("if in_pieces:"):
            for piece in compact:
                for node in self.columns.stores:
                    name, own = node.name, piece.name
                    writer.line(f"{name}[:, :, places{own}] += {name}{own}")

    def _print_launch(self, writer: Writer, kernel: Kernel, piece: KernelPiece) -> None:
        rows = kernel.fixed is Axis.ROW
        length, block, heads = ("n", "BLOCK_M", "heads") if rows else ("m", "BLOCK_N", "kv_heads")
        printer = self.printer(kernel, piece)
        moved = {each.name for each in self.of_keys()} if piece.compacts else set()
        moved |= {f"{name}_channels" for name in moved} | {gradient_name(name) for name in moved}
        operands = [name for node in kernel.operands for name in printer.tensors_of(node)]
        pointers = operands + [node.name for node in kernel.statistics] + printer.results
        pointers = [f"{name}{piece.name}" if name in moved else name for name in pointers]
        if kernel is self.forward and self.plan.reads_delta:
            pointers.append("residual if keep_residual else None")
        pointers += printer.states
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
            longest = f"_longest(_CLASSES{piece.name}, {0 if rows else 1}, {length})"
            if piece.has_list and rows:
                longest = f"_listed(_CLASSES{piece.name}, {length}, q_start, q_starts)"
            writer.line(f'grid = _grid({longest}, "{block}", {heads}, batch, {classes}.shape[2])')
        else:
            writer.line(f'grid = _grid({length}, "{block}", {heads}, batch)')
        own = ["starts", "lengths", *([f"classes{piece.name}"] if piece.layouts else [])]
        m = f"places{piece.name}.shape[0]" if piece.compacts else "m"
        about = [f"classes{piece.name}.shape[2]" if each == "classes" else each for each in printer.class_arguments]
        groups = [pointers, own, strides, ["n", m, "k_start", *about, *numbers]]
        groups += [[f"most_rows={SHORT}"]] if piece.has_list else []
        opening = f'_launch({printer.name}, "{kernel.name}", grid, {self.shapes().arguments},'
        writer.listing(opening, groups, ")")


_SIDES = (Kind.ROW_VECTOR, Kind.COLUMN_VECTOR)


def _count(operands: list[Operand], width: str) -> int:
    return sum(each.width == width for each in operands)
