"""What launches are told of sizes, and under which names kernels of pieces get what they read and write."""

from __future__ import annotations

from attncc.emit.tile import Kernel
from attncc.emit.triton_form.kernels import Kernels
from attncc.emit.triton_form.launch import Shapes
from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.triton_form.scope import tiled
from attncc.graph.core import Kind, Operand
from attncc.graph.ops import Axis
from attncc.rewrite.backward import gradient_name


class LaunchShapes(Kernels):
    """Sizes and names of the launches of one plan."""

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
            edge=self.plan.edge,
            carries=self.carried is not None,
            takes_data=self.carried is not None and bool(self.carried.formulas),
            at_once=self.at_once is not None,
            added=self._added(),
            listing=bool(self.listed),
            asks_lists=any(each.listing is not None and each.listing.lists for each in self.listed),
            has_full=self.plan.lists is not None and self.plan.lists.states is not None,
            copies_by_head=any(
                each.listing is not None and each.listing.by_head and Axis.COLUMN in each.listing.moves
                for each in self.listed
            ),
            lists=any(piece.has_list for piece in self.pieces),
            step=max((piece.step for piece in self.pieces), default=1),
            copies_keys=any(piece.compacts for piece in self.pieces),
            copies_rows=any(piece.sorts for piece in self.pieces),
            terms=None if self.sides is None else tuple(each.widths for each in self.sides.features[Axis.ROW]),
        )

    def _added(self) -> list[str]:
        """What kernels of pieces write and read: tuning must not leave its own marks there."""
        if not self.pieces and len(self.listed) < 2:
            return []
        sums = [f"{node.name}_state" for node in self.forward.sweeps[0].reductions]
        stores = [node.name for kernel in self.kernels[1:] for node in kernel.stores if Axis.OFFSET not in node.axes]
        return [*sums, *dict.fromkeys([*stores, *(node.name for node in self.offset_sums())])]

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

    def longest(self, piece: KernelPiece, axis: Axis) -> str:
        """The most tokens of an axis that a class of a piece has."""
        length = "n" if axis is Axis.ROW else "m"
        if not piece.layouts:
            return length
        if piece.has_list and axis is Axis.ROW:
            return f"_listed(_CLASSES{piece.name}, {length}, q_start, q_starts)"
        return f"_longest(_CLASSES{piece.name}, {0 if axis is Axis.ROW else 1}, {length})"


_SIDES = (Kind.ROW_VECTOR, Kind.COLUMN_VECTOR)


def _count(operands: list[Operand], width: str) -> int:
    return sum(each.width == width for each in operands)
