"""Tile program → the Triton part of a module: kernels, their tuning, and the functions that launch them."""

from __future__ import annotations

from attncc.emit.dialects import TORCH
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.numbers import print_numbers, tables_of
from attncc.emit.tile import Kernel, schedule
from attncc.emit.triton_form.kernel import KernelPrinter
from attncc.emit.triton_form.launch import Shapes, host_text
from attncc.emit.triton_form.library import library
from attncc.emit.triton_form.piece import KernelPiece, kernel_pieces, whole_of
from attncc.emit.triton_form.scope import by_channel, is_offset_sum, is_vector, tiled
from attncc.emit.triton_form.symbols import complete
from attncc.emit.writer import WIDTH, Writer
from attncc.graph.core import Kind, Operand
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.graph.widths import as_wide_as
from attncc.plan.model import Plan
from attncc.rewrite.backward import gradient_name
from attncc.spec.data import Size
from attncc.spec.expr import Const


class TritonForm:
    """Prints kernels and launchers of one plan."""

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

    def _is_summed_by_row(self, gradient: Node) -> bool:
        """Whether tiles of rows compute a gradient: what follows from saved row numbers alone needs no kernel."""
        of_row = Axis.ROW in gradient.axes and gradient.op is not Op.NUMBER
        return of_row or Axis.OFFSET in gradient.axes

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, in the order of the file."""
        return tuple(kernel for kernel in (self.forward, self.columns, self.rows) if kernel is not None)

    def uniform(self) -> tuple[Node, ...]:
        """Call-wide numbers of all kernels, each once; constants are printed where they are used."""
        nodes = {node.name: node for kernel in self.kernels for node in kernel.uniform}
        return tuple(node for node in nodes.values() if not isinstance(node.expr, Const))

    def _tables(self) -> dict[str, bool]:
        tables = tables_of(self.uniform())
        return {node.name: node.name in tables for node in self.uniform()}

    def kernel_text(self) -> str:
        """Helpers, tile bodies and kernels, to stand inside `if triton is not None:`."""
        writer = Writer(width=WIDTH - 4)
        tables = self._tables() | {
            node.name: False for kernel in self.kernels for node in kernel.uniform if isinstance(node.expr, Const)
        }
        for piece in (self.whole, *self.pieces):
            for printer in self._printers(writer, tables, piece):
                for at in range(len(printer.kernel.sweeps)):
                    printer.print_body(at)
                printer.print_kernel()
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
                self.used,
                keeps_residual=self.plan.reads_delta and kernel is self.forward,
            )
            for kernel in self.kernels
        ]

    # --- launching --------------------------------------------------------------------------------------------

    def launchers(self) -> str:
        """Tuning, number tables and launch functions."""
        writer = Writer()
        self._print_tiles(writer)
        writer.lines(host_text(self._shapes()))
        numbers = print_numbers(self.uniform(), "_kernel_numbers", self.host_used)
        if numbers:
            writer.lines("\n\n" + numbers)
        writer.line()
        writer.line()
        self._print_forward(writer)
        writer.line()
        writer.line()
        self._print_backward(writer)
        return writer.text()

    def _shapes(self) -> Shapes:
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
            column=self._column(),
            widths={width: next(name for name in preferred if self.core[name].width == width) for width in self.widths},
            pointer=next((name for name in preferred if all(name in each for each in pointers)), None),
            values=self.core.values,
            d_values=gradient_name(self.core.values),
            held=held,
            streamed=streamed,
            sums=[node.name for node in self._offset_sums()],
            added=self._added(),
        )

    def _added(self) -> list[str]:
        """What kernels of pieces write and read: tuning must not leave its own marks there."""
        if not self.pieces:
            return []
        sums = [f"{node.name}_state" for node in self.forward.sweeps[0].reductions]
        stores = [node.name for kernel in self.kernels[1:] for node in kernel.stores if Axis.OFFSET not in node.axes]
        return [*sums, *dict.fromkeys(stores)]

    def _offset_sums(self) -> tuple[Node, ...]:
        """The sums by distance that tiles of rows add up."""
        sweeps = self.rows.sweeps if self.rows is not None else ()
        return tuple(node for sweep in sweeps for node in sweep.sums if is_offset_sum(node))

    def _print_tiles(self, writer: Writer) -> None:
        writer.comment(
            "What each kernel tries for elements of so many bytes and vectors up to a width: "
            "(BLOCK_M, BLOCK_N, num_warps, num_stages)."
        )
        names = {kernel.name for kernel in self.kernels}
        writer.line("_TILES = {")
        with writer.indented():
            for tiles in self.plan.tiles:
                if tiles.kernel in names:
                    tries = ", ".join(
                        f"({each.rows}, {each.columns}, {each.warps}, {each.stages})" for each in tiles.tries
                    )
                    writer.line(f'("{tiles.kernel}", {tiles.bytes}, {tiles.width}): [{tries}],')
        writer.line("}")

    def _scale(self) -> str:
        return "scale, " if self.plan.spec.reads_scale else ""

    def _sizes(self) -> str:
        """The operands that tell all sizes: rows, something as wide as keys, values."""
        data = {each.name: each for each in self.plan.spec.data}
        wide = as_wide_as(Size.WIDTH, self.core.operands, data)
        return f"{self.core.rows}, {wide or self.core.values}, {self.core.values}"

    def _column(self) -> str:
        """The operand that tells keys and their heads."""
        return self.core.of_kind(Kind.COLUMN_VECTOR)[0].name

    def _print_numbers(self, writer: Writer) -> None:
        uniform = self.uniform()
        if not uniform:
            return
        scale = "scale" if self.plan.spec.reads_scale else "None"
        names = ", ".join(node.name for node in uniform)
        writer.line(f"{names}{',' * (len(uniform) == 1)} = _kernel_numbers({self._sizes()}, {scale}, kv_lengths)")
        for node in uniform:
            if self._tables()[node.name]:
                writer.line(f"{node.name} = {node.name}[..., 0, 0].expand(batch, heads).float().contiguous()")

    def _statistics(self) -> list[str]:
        return [name for name in self.plan.gpu.forward.outputs if name != "out"]

    def _residual(self) -> list[str]:
        """What rounding takes from `out`, which backward reads with it."""
        return ["residual"] if self.plan.reads_delta else []

    def _arguments(self) -> str:
        return "".join(f"{each.name}, " for each in self.core.operands)

    def _print_operands(self, writer: Writer, *others: str) -> None:
        """Operands as kernels take them."""
        vectors = [each.name for each in self.core.of_kind(Kind.ROW_VECTOR, Kind.COLUMN_VECTOR)]
        names = [*vectors, *others]
        writer.line(f"{', '.join(names)} = {', '.join(f'_dense({name})' for name in names)}")
        for each in self.core.operands:
            if not each.kind.is_vector:
                writer.line(f"{each.name} = {each.name}.float().contiguous()")

    def _print_channels(self, writer: Writer, *kernels: Kernel) -> None:
        for name in sorted(by_channel(kernels), key=self.names.index):
            writer.line(f"{name}_channels = {name}.mT.contiguous()")

    @property
    def names(self) -> list[str]:
        """The operands' names, in order."""
        return [each.name for each in self.core.operands]

    def _print_places(self, writer: Writer) -> None:
        places = f"{self.core.rows}, {self._column()}, q_start, q_starts, kv_lengths"
        writer.line(f"starts, lengths = _places({places})")

    def _print_forward(self, writer: Writer) -> None:
        places = "q_start, k_start, q_starts, kv_lengths"
        rows, values = self.core.rows, self.core.values
        keep = ", keep_residual" if self.plan.reads_delta else ""
        with writer.block(f"def _launch_forward({self._arguments()}{self._scale()}{places}{keep}):"):
            writer.line('"""What `_forward` returns, by the Triton kernel."""')
            self._print_operands(writer)
            writer.line(f"batch, heads, n, _ = {rows}.shape")
            writer.line(f"m = {self._column()}.shape[2]")
            writer.line(f"out = {rows}.new_empty(batch, heads, n, {values}.shape[-1])")
            for name in self._statistics():
                writer.line(f"{name} = {rows}.new_empty(batch, heads, n, dtype=torch.float32)")
            if self.plan.reads_delta:
                width = f"{values}.shape[-1] if keep_residual else 0"
                writer.line(f"residual = {rows}.new_empty(batch, heads, n, {width})")
            self._print_numbers(writer)
            self._print_channels(writer, self.forward)
            self._print_places(writer)
            self._print_piece_places(writer, self.forward)
            with writer.block("if out.numel():"):
                self._print_launches(writer, self.forward)
            names = ["out", *self._statistics(), *self._residual()]
            writer.line(f"return ({', '.join(names)}{',' * (len(names) == 1)})")

    # --- gradients --------------------------------------------------------------------------------------------

    def _print_backward(self, writer: Writer) -> None:
        kept = "".join(f"{name}, " for name in (*self._statistics(), *self._residual()))
        d_lse = "d_lse, " if self.plan.has_lse else ""
        places = "q_start, k_start, q_starts, kv_lengths"
        arguments = f"{self._arguments()}out, {kept}d_out, {d_lse}{self._scale()}{places}"
        with writer.block(f"def _launch_backward({arguments}):"):
            writer.line('"""What `_backward` returns, by the Triton kernels."""')
            self._print_operands(writer, "d_out")
            writer.line(f"batch, heads, n, _ = {self.core.rows}.shape")
            writer.line(f"kv_heads, m, _ = {self.core.values}.shape[1:]")
            if self.pieces:
                writer.line("in_pieces = m >= _LEAST_KEYS")
            for each in self.core.operands:
                self._print_room(writer, each)
            for node in self._offset_sums():
                device = f"{self.core.rows}.device"
                writer.line(f"{node.name} = _sums_by_offset(batch, heads, n, m, {device})")
            if self._reads_delta():
                less = " - d_lse.float()" if self.plan.has_lse else ""
                writer.line(f"delta = (d_out.float() * _unrounded(out, residual)).sum(-1){less}")
            for name in self._read_statistics():
                writer.line(f"{name} = {name}.contiguous()")
            self._print_numbers(writer)
            self._print_channels(writer, *self.kernels[1:])
            self._print_places(writer)
            self._print_piece_places(writer, *self.kernels[1:])
            with writer.block(f"if {gradient_name(self.core.values)}.numel():"):
                self._print_launches(writer, self.columns)
            if self.rows is not None:
                own = [node.name for node in self.rows.stores if Axis.ROW in node.axes]
                with writer.block(f"if {own[0] if own else 'out'}.numel():"):
                    self._print_launches(writer, self.rows)
            self._print_compact_gradients(writer)
            self._print_left(writer)
            tables = self.core.of_kind(Kind.TABLE)
            if any(self._has_gradient(each) for each in tables):
                writer.comment("Sums into tables are taken slab by slab.")
                writer.line(f"by_slab = _backward({arguments})")
            results = [
                f"by_slab[{at}]" if each in tables and self._has_gradient(each) else self._returned(each)
                for at, each in enumerate(self.core.operands)
            ]
            writer.line(f"return {', '.join(results)}{',' * (len(results) == 1)}")

    def _returned(self, operand: Operand) -> str:
        """A gradient, in the type of its vectors: pieces add up in float32."""
        name = gradient_name(operand.name)
        return f"{name}.to({operand.name}.dtype)" if self.pieces and operand.kind.is_vector else name

    def _has_gradient(self, operand: Operand) -> bool:
        return gradient_name(operand.name) in self.plan.gpu.backward.outputs

    def _print_room(self, writer: Writer, operand: Operand) -> None:
        """The tensor that a gradient is written into, unless it is found otherwise."""
        name, gradient = operand.name, gradient_name(operand.name)
        if not self._has_gradient(operand):
            writer.line(f"{gradient} = {name}.new_zeros({name}.shape)")
        elif any(gradient == node.name and Axis.OFFSET not in node.axes for node in self._stores()):
            room = f"_gradient_room({name}, in_pieces)" if self.pieces else f"{name}.new_empty({name}.shape)"
            writer.line(f"{gradient} = {room}")

    def _stores(self) -> tuple[Node, ...]:
        return (*self.columns.stores, *(self.rows.stores if self.rows is not None else ()))

    def _own_statistics(self) -> list[str]:
        rows = self.rows.statistics if self.rows is not None else ()
        return list(dict.fromkeys(node.name for node in (*self.columns.statistics, *rows)))

    def _read_statistics(self) -> list[str]:
        return [name for name in self._own_statistics() if name != "delta"]

    def _reads_delta(self) -> bool:
        """Whether a kernel does, or what is left to do after them; a sum into tables finds its own."""
        backward = self.plan.gpu.backward
        return "delta" in self._own_statistics() or any("delta" in backward[name].inputs for name in backward.outputs)

    def _print_left(self, writer: Writer) -> None:
        """Gradients that follow from saved row numbers, and what is left to do to sums by distance."""
        backward = self.plan.gpu.backward
        for node in self._offset_sums():
            writer.line(f"{node.name} = {node.name}[..., : n + m].sum(2)")
        expressions = ExpressionWriter(TORCH, lambda name: name.value, lambda name: name)
        for node in backward:
            if node.op in (Op.MULTIPLY, Op.ADD) and Axis.OFFSET in node.axes:
                writer.line(f"{node.name} = {self._combined(node)}")
            elif node.op is Op.NUMBER and node.name in backward.outputs:
                writer.line(f"{node.name} = {expressions.write(node.value)}")
        self.host_used |= expressions.used
        for each in self.core.of_kind(Kind.OFFSET_NUMBER):
            if self._has_gradient(each):
                gradient = gradient_name(each.name)
                writer.line(f"{gradient} = {gradient}.sum_to_size({each.name}.shape)")

    def _combined(self, node: Node) -> str:
        if node.op is Op.ADD:
            return " + ".join(node.inputs)
        factor = self.plan.gpu.backward[node.inputs[1]]
        if isinstance(factor.expr, Const):
            return f"{node.inputs[0]} * {factor.expr.value!r}"
        return f"{node.inputs[0]} * {factor.name}{'[..., None]' if self._tables()[factor.name] else ''}"

    # --- pieces -----------------------------------------------------------------------------------------------

    def _print_launches(self, writer: Writer, kernel: Kernel) -> None:
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

    def _print_piece_places(self, writer: Writer, *kernels: Kernel) -> None:
        """Where the classes of pieces lie, copies of keys side by side, and room for sums that are handed on."""
        laid_out = [piece for piece in self.pieces if piece.layouts]
        chained = kernels[0] is self.forward and any(self._printer(self.forward, each).carries for each in self.pieces)
        if not laid_out and not chained:
            return
        with writer.block("if m >= _LEAST_KEYS:"):
            for piece in laid_out:
                own = piece.name
                if piece.compacts:
                    writer.line(f"keys{own} = _CLASSES{own}[0][0][1]")
                    writer.line(f"ends{own} = keys{own}.below(k_start), keys{own}.below(k_start + m)")
                    writer.line(f"places{own} = keys{own}.places(*ends{own}, k_start, {self.core.rows}.device)")
                    for each in self._of_keys():
                        writer.line(f"{each.name}{own} = {each.name}[:, :, places{own}]")
                    for name in sorted(by_channel(kernels) & {each.name for each in self._of_keys()}):
                        writer.line(f"{name}_channels{own} = {name}{own}.mT.contiguous()")
                    for node in self.columns.stores if kernels[0] is not self.forward else ():
                        operand = next(each for each in self._of_keys() if gradient_name(each.name) == node.name)
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

    def _of_keys(self) -> list[Operand]:
        return list(self.core.of_kind(Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER))

    def _print_compact_gradients(self, writer: Writer) -> None:
        """Gradients of keys that were copied side by side go back to where these stand."""
        compact = [piece for piece in self.pieces if piece.compacts]
        if not compact:
            return
        with writer.block("if in_pieces:"):
            for piece in compact:
                for node in self.columns.stores:
                    name, own = node.name, piece.name
                    writer.line(f"{name}[:, :, places{own}] += {name}{own}")

    def _printer(self, kernel: Kernel, piece: KernelPiece) -> KernelPrinter:
        return next(each for each in self._printers(Writer(), {}, piece) if each.kernel is kernel)

    def _print_launch(self, writer: Writer, kernel: Kernel, piece: KernelPiece) -> None:
        rows = kernel.fixed is Axis.ROW
        length, block, heads = ("n", "BLOCK_M", "heads") if rows else ("m", "BLOCK_N", "kv_heads")
        printer = self._printer(kernel, piece)
        moved = {each.name for each in self._of_keys()} if piece.compacts else set()
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
        numbers = [node.name for node in kernel.uniform if not isinstance(node.expr, Const)]
        numbers += [f"{table}.shape[{axis}]" for table, axis in printer.table_sizes]
        if printer.offset_sums:
            writer.line(f"grid = ({printer.offset_sums[0].name}.shape[2] // 3, heads, batch)")
        elif piece.layouts:
            longest, classes = f"_longest(_CLASSES{piece.name}, {0 if rows else 1}, {length})", f"classes{piece.name}"
            writer.line(f'grid = _grid({longest}, "{block}", {heads}, batch, {classes}.shape[2])')
        else:
            writer.line(f'grid = _grid({length}, "{block}", {heads}, batch)')
        own = ["starts", "lengths", *([f"classes{piece.name}"] if piece.layouts else [])]
        m = f"places{piece.name}.shape[0]" if piece.compacts else "m"
        about = [f"classes{piece.name}.shape[2]" if each == "classes" else each for each in printer.class_arguments]
        groups = [pointers, own, strides, ["n", m, "k_start", *about, *numbers]]
        opening = f'_launch({printer.name}, "{kernel.name}", grid, {self._shapes().arguments},'
        writer.listing(opening, groups, ")")


_SIDES = (Kind.ROW_VECTOR, Kind.COLUMN_VECTOR)


def _count(operands: list[Operand], width: str) -> int:
    return sum(each.width == width for each in operands)
