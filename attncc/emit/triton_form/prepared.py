"""What launch functions are given, and what both do before a kernel runs."""

from __future__ import annotations

from attncc.emit.tile import Kernel
from attncc.emit.triton_form.launches import Launches
from attncc.emit.triton_form.scope import by_channel
from attncc.emit.writer import Writer
from attncc.graph.core import Kind
from attncc.graph.widths import as_wide_as
from attncc.spec.data import Size


class Prepared(Launches):
    """Prints how operands, numbers and places are made ready."""

    def arguments(self) -> str:
        return "".join(f"{each.name}, " for each in self.core.operands)

    @property
    def names(self) -> list[str]:
        """The operands' names, in order."""
        return [each.name for each in self.core.operands]

    def scale(self) -> str:
        return "scale, " if self.plan.spec.reads_scale else ""

    def _sizes(self) -> str:
        """The operands that tell all sizes: rows, something as wide as keys, values."""
        data = {each.name: each for each in self.plan.spec.data}
        wide = as_wide_as(Size.WIDTH, self.core.operands, data)
        return f"{self.core.rows}, {wide or self.core.values}, {self.core.values}"

    def statistics(self) -> list[str]:
        return [name for name in self.plan.gpu.forward.outputs if name != "out"]

    def residual(self) -> list[str]:
        """What rounding takes from `out`, which backward reads with it."""
        return ["residual"] if self.plan.reads_delta else []

    def print_operands(self, writer: Writer, *others: str) -> None:
        """Operands as kernels take them."""
        vectors = [each.name for each in self.core.of_kind(Kind.ROW_VECTOR, Kind.COLUMN_VECTOR)]
        names = [*vectors, *others]
        writer.line(f"{', '.join(names)} = {', '.join(f'_dense({name})' for name in names)}")
        asked = {name for piece in self.listed if piece.listing is not None for name in piece.listing.tables}
        for each in self.core.operands:
            if not each.kind.is_vector and not each.kind.is_fact:
                number = "" if each.name in asked or each.exact else f".to({self.wide})"
                writer.line(f"{each.name} = {each.name}{number}.contiguous()")

    def print_channels(self, writer: Writer, *kernels: Kernel) -> None:
        for name in sorted(by_channel(kernels), key=self.names.index):
            writer.line(f"{name}_channels = {name}.mT.contiguous()")

    def print_numbers(self, writer: Writer) -> None:
        uniform = self.uniform()
        if not uniform:
            return
        scale = "scale" if self.plan.spec.reads_scale else "None"
        names = ", ".join(node.name for node in uniform)
        writer.line(f"{names}{',' * (len(uniform) == 1)} = _kernel_numbers({self._sizes()}, {scale}, kv_lengths)")
        for node in uniform:
            if self.tables()[node.name]:
                wide = f".to({self.wide}).contiguous()"
                writer.line(f"{node.name} = {node.name}[..., 0, 0].expand(batch, heads){wide}")

    def print_places(self, writer: Writer) -> None:
        places = f"{self.core.rows}, {self.column()}, q_start, q_starts, kv_lengths"
        writer.line(f"starts, lengths = _places({places})")
