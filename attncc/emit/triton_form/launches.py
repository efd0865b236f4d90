"""Launches of kernels, piece after piece, and where the tokens of pieces lie."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from attncc.emit.tile import Kernel
from attncc.emit.triton_form.kernels import Kernels
from attncc.emit.triton_form.launch import Shapes
from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.triton_form.scope import by_channel, is_literal, is_vector, tiled
from attncc.emit.triton_form.sums.pulled import PulledSums
from attncc.emit.triton_form.sums.runs import Runs
from attncc.emit.triton_form.sums.scope import SumsScope
from attncc.emit.writer import Writer
from attncc.graph.core import Kind, Operand
from attncc.graph.ir import Node
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
            copies_keys=any(piece.compacts for piece in self.pieces),
            copies_rows=any(piece.sorts for piece in self.pieces),
            terms=None if self.sides is None else tuple(each.widths for each in self.sides.features[Axis.ROW]),
        )

    def _added(self) -> list[str]:
        """What kernels of pieces write and read: tuning must not leave its own marks there."""
        if not self.pieces:
            return []
        sums = [f"{node.name}_state" for node in self.forward.sweeps[0].reductions]
        stores = [node.name for kernel in self.kernels[1:] for node in kernel.stores if Axis.OFFSET not in node.axes]
        return [*sums, *dict.fromkeys([*stores, *(node.name for node in self.offset_sums())])]

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
                elif piece.layouts and self.printer(kernel, piece).offset_sums:
                    with writer.block(f"for residue in range(classes{piece.name}.shape[2]):"):
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
                writer.line(f"{node.name}_state = {self.core.rows}.new_empty(0, dtype=torch.float32)")

    def _print_room_for_sums(self, writer: Writer, how: str) -> None:
        """Room for sums that kernels hand on."""
        for node in self.forward.sweeps[0].reductions:
            width = f", {self.core.values}.shape[-1]" if is_vector(node) else ""
            made = f"{self.core.rows}.new_{how}(batch, heads, n{width}, dtype=torch.float32)"
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

    def moved(self, kernel: Kernel, piece: KernelPiece) -> set[str]:
        """What a kernel gets copies of, in the order of the piece's classes."""
        found = {each.name for each in self.of_keys()} if piece.compacts else set()
        found |= {each.name for each in self.of_rows()} if piece.sorts else set()
        found |= {f"{name}_channels" for name in found} | {gradient_name(name) for name in found}
        if piece.sorts:
            printer = self.printer(kernel, piece)
            made = [*printer.results, *printer.states] if kernel is self.forward else []
            found |= {"d_out", *(node.name for node in kernel.statistics), *made}
        return found

    def _print_launch(self, writer: Writer, kernel: Kernel, piece: KernelPiece) -> None:
        rows = kernel.fixed is Axis.ROW
        length, block, heads = ("n", "BLOCK_M", "heads") if rows else ("m", "BLOCK_N", "kv_heads")
        printer = self.printer(kernel, piece)
        moved = self.moved(kernel, piece)
        operands = [name for node in kernel.operands for name in printer.tensors_of(node)]
        pointers = operands + [node.name for node in kernel.statistics] + printer.results
        pointers += printer.states
        pointers = [f"{name}{piece.name}" if name in moved else name for name in pointers]
        made = [*printer.results] if piece.sorts and kernel is self.forward else []
        if kernel is self.forward and self.plan.reads_delta:
            residual = f"residual{piece.name if piece.sorts else ''} if keep_residual else None"
            pointers.insert(len(pointers) - len(printer.states), residual)
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
        groups += [more] if more else []
        opening = f'_launch({printer.name}, "{kernel.name}", grid, {self.shapes().arguments},'
        writer.listing(opening, groups, ")")
        for name in made:
            writer.line(f"_put_back({name}, {name}{piece.name}, rows{piece.name})")
        for name in sums:
            with writer.block("if by_states:") if not printer.carries else nullcontext():
                writer.line(f"_put_back({name}, {name}{piece.name}, rows{piece.name})")
        if kernel is not self.forward:
            self.print_sums(writer, kernel, piece)

    def longest(self, piece: KernelPiece, axis: Axis) -> str:
        """The most tokens of an axis that a class of a piece has."""
        length = "n" if axis is Axis.ROW else "m"
        if not piece.layouts:
            return length
        if piece.has_list and axis is Axis.ROW:
            return f"_listed(_CLASSES{piece.name}, {length}, q_start, q_starts)"
        return f"_longest(_CLASSES{piece.name}, {0 if axis is Axis.ROW else 1}, {length})"

    # --- sums by states ---------------------------------------------------------------------------------------

    def print_sums(self, writer: Writer, kernel: Kernel, piece: KernelPiece) -> None:
        """What kernels of sums do beside one kernel: for rows before it, for gradients after it."""
        if self.sides is None:
            return
        sums, fixed = self.sums(piece), kernel.fixed
        if not sums.has_runs(fixed) or (kernel is not self.forward and not sums.gives(fixed)):
            return
        running, applied, pulled = sums.running[fixed], sums.applied[fixed], sums.pulled[fixed]
        rows = fixed is Axis.ROW
        heads, owners = "heads" if rows else "kv_heads", "heads" if running.by_head else "kv_heads"
        classes = f"classes{piece.name}.shape[2]" if piece.layouts else ""
        segments = len(running.segments)
        with writer.block("if by_states:"):
            width = self.shapes().arguments
            most = f", most_rows={SHORT}" if piece.has_list else ""
            writer.line(f'tile = _chunk("{kernel.name}", {width}{most})')
            self._print_runs(writer, piece, sums.runs[fixed], segments)
            lengths = f"{self.longest(piece, Axis.ROW)}, {self.longest(piece, Axis.COLUMN)}"
            count = _product("batch", owners, classes, _times(segments))
            with writer.block(f"for each in _rooms(tile, {rows}, {lengths}, {count}, {running.slides}, {width}):"):
                jobs = _product("each.programs", classes, _times(segments))
                with self._where_met(writer, running.terms):
                    self._print_launch_sums(writer, kernel, piece, running, f"({jobs}, {owners}, batch)", "-1")
                if kernel is self.forward or (not rows and applied.terms):
                    grid = _product("each.tiles", "each.value_blocks", classes)
                    with self._where_met(writer, applied.terms):
                        self._print_launch_sums(writer, kernel, piece, applied, f"({grid}, {heads}, batch)", "-1")
                if kernel is not self.forward:
                    grid = f"({_product('each.tiles', classes)}, {heads}, batch)"
                    self._print_pulled(writer, kernel, piece, pulled, grid)

    def _print_runs(self, writer: Writer, piece: KernelPiece, runs: Runs, segments: int) -> None:
        """The runs of every tile, which kernels of sums read."""
        rows = runs.rows_fixed
        block = "tile[0]" if rows else "tile[1]"
        count = f"triton.cdiv({self.longest(piece, runs.fixed)}, {block})"
        heads = "heads" if self.sums(piece).running[runs.fixed].ranges_read_head else "1"
        classes = f"classes{piece.name}.shape[2]" if piece.layouts else "1"
        m = f"places{piece.name}.shape[0]" if piece.compacts else "m"
        own = ["starts", "lengths", *([f"classes{piece.name}"] if piece.layouts else [])]
        numbers = ["n", m, "k_start", count, "heads", *([classes] if piece.layouts else []), *runs.parts()]
        about = [runs.name, "tile", count, heads, "batch", classes, str(segments)]
        writer.listing("runs = _runs_of(", [about, own, numbers], ")")

    def _print_pulled(self, writer: Writer, kernel: Kernel, piece: KernelPiece, pulled: PulledSums, grid: str) -> None:
        """Launches of the kernel of gradients, for each term one by each factor that gives something."""
        by_term = [tuple(cut.factor for cut in pulled.cuts if cut.term == at) for at in range(pulled.count)]
        for factors in filter(None, dict.fromkeys(by_term)):
            with self._where_met(writer, [at for at, each in enumerate(by_term) if each == factors]):
                for factor in factors:
                    self._print_launch_sums(writer, kernel, piece, pulled, grid, str(factor))

    def _where_met(self, writer: Writer, terms: Sequence[int]) -> AbstractContextManager[None]:
        """A condition on the term, where not all of them are met."""
        assert self.sides is not None
        if len(terms) == len(self.sides.features[Axis.ROW]):
            return nullcontext()
        if len(terms) == 1:
            return writer.block(f"if each.term == {terms[0]}:")
        return writer.block(f"if each.term in {tuple(terms)}:")

    def _print_launch_sums(
        self, writer: Writer, kernel: Kernel, piece: KernelPiece, sums: SumsScope, grid: str, factor: str
    ) -> None:
        moved = self.moved(kernel, piece)

        def placed(name: str) -> str:
            return f"{name}{piece.name}" if name in moved else name

        known = {
            "sums": "each.sums",
            "plain": "each.plain",
            "sums_kept": "each.kept",
            "plain_kept": "each.plain_kept",
            "tiles": "each.tiles",
            "others": "each.others",
            "segments": str(len(self.sums(piece).running[kernel.fixed].segments)),
            "leads": "each.leads",
            "choices": f"each.choices({factor})",
            "group": "each.group",
            "span": "each.span",
        }
        pointers = [placed(name) for name in sums.pointers()]
        pointers += [known.get(name) or placed(name) for name in sums.tensors]
        own = ["runs", "starts", "lengths", *([f"classes{piece.name}"] if piece.layouts else [])]
        strides = [f"{placed(node.name)}.stride()[:3]" for node in sums.vectors]
        m = f"places{piece.name}.shape[0]" if piece.compacts else "m"
        numbers = ["n", m, "k_start", *(known[name] for name in sums.lengths)]
        numbers += [f"classes{piece.name}.shape[2]"] if piece.layouts else []
        numbers += [*sums.parts(), *(node.name for node in sums.kernel.uniform if not is_literal(node))]
        run = ["each", factor, self.shapes().arguments]
        writer.listing("_launch_sums(", [[sums.name, grid], run, pointers, own, strides, numbers], ")")


def _times(count: int) -> str:
    """A factor, where it is one."""
    return str(count) if count > 1 else ""


def _product(*factors: str) -> str:
    return " * ".join(filter(None, factors))


_SIDES = (Kind.ROW_VECTOR, Kind.COLUMN_VECTOR)


def _count(operands: list[Operand], width: str) -> int:
    return sum(each.width == width for each in operands)
