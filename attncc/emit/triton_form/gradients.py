"""The function that launches the kernels of the backward pass."""

from __future__ import annotations

from dataclasses import replace

from attncc.emit.dialects import TORCH
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.triton_form.prepared import Prepared
from attncc.emit.writer import Writer
from attncc.graph.core import Kind, Operand
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.rewrite.backward import gradient_name
from attncc.spec.expr import Const


class BackwardLaunch(Prepared):
    """Prints `_launch_backward`."""

    def print_backward(self, writer: Writer) -> None:
        kept = "".join(f"{name}, " for name in (*self.statistics(), *self.residual()))
        d_lse = "d_lse, " if self.plan.has_lse else ""
        places = "q_start, k_start, q_starts, kv_lengths"
        arguments = f"{self.arguments()}out, {kept}d_out, {d_lse}{self.scale()}{places}"
        arguments += ", by_states" if self.sides is not None else ""
        with writer.block(f"def _launch_backward({arguments}):"):
            writer.line('"""What `_backward` returns, by the Triton kernels."""')
            self.print_operands(writer, "d_out")
            writer.line(f"batch, heads, n, _ = {self.core.rows}.shape")
            writer.line(f"kv_heads, m, _ = {self.core.values}.shape[1:]")
            if self.pieces:
                writer.line("in_pieces = m >= _LEAST_KEYS")
            for each in self.core.operands:
                self._print_room(writer, each)
            for node in self.offset_sums():
                kind = f"{self.core.rows}.device, {self.wide}"
                writer.line(f"{node.name} = _sums_by_offset(batch, heads, n, m, {kind})")
            if self._reads_delta():
                less = " - d_lse" if self.plan.has_lse else ""
                writer.line(f"delta = (d_out * _unrounded(out, residual)).sum(-1){less}")
            for name in self._read_statistics():
                writer.line(f"{name} = {name}.contiguous()")
            self.print_numbers(writer)
            if not self.listed:
                self.print_channels(writer, *self.kernels[1:])
            self.print_places(writer)
            self.print_piece_places(writer, *self.kernels[1:])
            if self.listed:
                with writer.block("if out.numel():"):  # without rows there are no gradients
                    self.print_passes(writer, *self.kernels[1:])
            else:
                self._print_kernels(writer)
            self.print_compact_gradients(writer)
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

    def _print_kernels(self, writer: Writer) -> None:
        if self.at_once is None:
            self._print_both(writer)
            return
        with writer.block(f"if {self.a_head_for_each_thread('batch * kv_heads')}:"):
            step = max((piece.step for piece in self.pieces), default=1)
            sources = {node.name: self._source_of(node) for node in self.at_once.added}
            for name, source in sources.items():
                writer.line(f"{name} = _room_for_tiles({source}{f', {step}' if step > 1 else ''})")
            with writer.block(f"if {gradient_name(self.core.values)}.numel():"):
                self.print_launches(writer, self.at_once)
            assert self.rows is not None
            for node in self.rows.stores:
                total = node.name if node.name in sources else node.inputs[0]
                found = f"{total}[:, :, :n, : {sources[total]}.shape[-1]]"
                if node.name not in sources:
                    found = f"({self._combined(replace(node, inputs=(found, node.inputs[1])))})"
                writer.line(f"{node.name} = {found}.to({sources[total]}.dtype)")
        with writer.block("else:"):
            self._print_both(writer)

    def _source_of(self, total: Node) -> str:
        """The operand of whose gradient this is the sum."""
        assert self.rows is not None
        store = next(each for each in self.rows.stores if total.name in (each.name, *each.inputs))
        return next(each.name for each in self.core.operands if gradient_name(each.name) == store.name)

    def _print_both(self, writer: Writer) -> None:
        """One kernel for keys and one for rows."""
        with writer.block(f"if {gradient_name(self.core.values)}.numel():"):
            self.print_launches(writer, self.columns)
        if self.rows is not None:
            own = [node.name for node in self.rows.stores if Axis.ROW in node.axes]
            with writer.block(f"if {own[0] if own else 'out'}.numel():"):
                self.print_launches(writer, self.rows)

    def _returned(self, operand: Operand) -> str:
        """A gradient, in the type of its vectors: pieces add up in float32."""
        name = gradient_name(operand.name)
        added = bool(self.pieces) or len(self.listed) > 1 or self.sides is not None
        return f"{name}.to({operand.name}.dtype)" if added and operand.kind.is_vector else name

    def _has_gradient(self, operand: Operand) -> bool:
        return gradient_name(operand.name) in self.plan.gpu.backward.outputs

    def _print_room(self, writer: Writer, operand: Operand) -> None:
        """The tensor that a gradient is written into, unless it is found otherwise."""
        name, gradient = operand.name, gradient_name(operand.name)
        if not self._has_gradient(operand):
            writer.line(f"{gradient} = {name}.new_zeros({name}.shape)")
        elif any(gradient == node.name and Axis.OFFSET not in node.axes for node in self._stores()):
            added = ["in_pieces"] * bool(self.pieces) + ["by_states"] * (self.sides is not None)
            room = f"_gradient_room({name}, {' or '.join(added)})" if added else f"{name}.new_empty({name}.shape)"
            if self.listed:  # what no kernel reaches stays 0
                several = len(self.listed) > 1
                room = f"_gradient_room({name}, True)" if several else f"{name}.new_zeros({name}.shape)"
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
        for node in self.offset_sums():
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
        own = ", None" * (1 if Axis.OFFSET in node.axes else 2)  # numbers of distances, or vectors of rows
        return f"{node.inputs[0]} * {factor.name}{f'[...{own}]' if self.tables()[factor.name] else ''}"
