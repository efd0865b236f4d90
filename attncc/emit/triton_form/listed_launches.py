"""Launches of kernels that walk lists of tiles: tokens in the order of lists, and results back in their places."""

from __future__ import annotations

from attncc.emit.tile import Kernel
from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.triton_form.scope import by_channel, is_literal
from attncc.emit.triton_form.sums.launches import SumLaunches
from attncc.emit.writer import Writer
from attncc.graph.core import Kind, Operand
from attncc.graph.ops import Axis
from attncc.rewrite.backward import gradient_name
from attncc.spec.expr import FALSE, TRUE, Entry, Local, walk

_PLACES = {Axis.ROW: "row_places", Axis.COLUMN: "key_places"}
_SLOTS = {Axis.ROW: "row_slots", Axis.COLUMN: "key_slots"}
_TILES = {Axis.ROW: "lists.rows", Axis.COLUMN: "lists.keys"}
_LENGTH = {Axis.ROW: "n", Axis.COLUMN: "m"}


class ListedLaunches(SumLaunches):
    """Prints launches of the kernels of a plan with lists."""

    def print_passes(self, writer: Writer, *kernels: Kernel) -> None:
        """The kernels of one direction, pass by pass."""
        several = len(self.listed) > 1
        if several and self.forward in kernels:
            self._print_room_for_states(writer)
        for at, piece in enumerate(self.listed):
            _PassLaunches(self, piece, kernels).print(writer, f"_lists_{at}" if several else "_lists")

    def _print_room_for_states(self, writer: Writer) -> None:
        for node in self.forward.sweeps[0].reductions:
            width = f", {self.core.values}.shape[-1]" if Axis.VALUE in node.axes else ""
            made = f"{self.core.rows}.new_empty(batch, heads, n{width}, dtype={self.wide})"
            writer.line(f"{node.name}_state = {made}")


class _PassLaunches:
    """The launches of one pass."""

    def __init__(self, launches: ListedLaunches, piece: KernelPiece, kernels: tuple[Kernel, ...]) -> None:
        assert piece.listing is not None
        self.launches = launches
        self.piece = piece
        self.listing = piece.listing
        self.kernels = kernels
        self.core = launches.core
        self.is_forward = launches.forward in kernels
        self.given = self._given()
        self.made = self._made()
        self.states = self._states()

    def print(self, writer: Writer, lists: str) -> None:
        """Lists, tokens in their order, kernels, and results in the places of their tokens."""
        self._print_operands(writer, lists)
        for kernel in self.kernels:
            self._print_launch(writer, kernel)
        self._print_results(writer)

    # --- what there is ------------------------------------------------------------------------------------------

    def _given(self) -> dict[str, Axis]:
        """What kernels read of rows and keys, beside what the pattern asks."""
        nodes = [node for kernel in self.kernels for node in (*kernel.operands, *kernel.statistics)]
        read = {node.name for node in nodes} | {self.core.rows, self.launches.column(), self.core.values}
        found = {each.name: Axis.ROW for each in self.launches.of_rows() if each.name in read}
        found |= {} if self.is_forward or "d_out" not in read else {"d_out": Axis.ROW}
        found |= {node.name: Axis.ROW for kernel in self.kernels for node in kernel.statistics}
        return found | {each.name: Axis.COLUMN for each in self.launches.of_keys() if each.name in read}

    def _made(self) -> dict[str, Axis]:
        """What the kernels of this pass write for good."""
        if self.is_forward and self.piece.finishes != TRUE:
            return {}
        found = {each.name: one.fixed for one in self.kernels for each in one.stores if one.fixed in each.axes}
        return found | ({"residual": Axis.ROW} if self.is_forward and self.launches.plan.reads_delta else {})

    def _states(self) -> list[str]:
        """The sums that are handed on."""
        return self.launches.printer(self.launches.forward, self.piece).states if self.is_forward else []

    def _moved(self, named: dict[str, Axis]) -> dict[str, Axis]:
        return {name: axis for name, axis in named.items() if axis in self.listing.moves}

    def _adds_heads(self, axis: Axis) -> bool:
        """Whether query heads that share keys have copies of their own of these, whose gradients are added up."""
        return self.listing.by_head and axis is Axis.COLUMN

    # --- before kernels run --------------------------------------------------------------------------------------

    def _print_operands(self, writer: Writer, lists: str) -> None:
        read = {node.name for node in walk(self.core.pattern) if isinstance(node, Local | Entry)}
        names = [each.name for each in self.core.operands if each.name in read]
        sizes = ["batch", "heads", "n", "m", "q_start", "k_start", "q_starts", "kv_lengths", f"{self.core.rows}.device"]
        made = f"{lists}({', '.join([*names, *sizes])})"
        writer.line(f"lists = {f'_with_full({made})' if self.launches.shapes().has_full else made}")
        for axis in self._axes():
            writer.line(f"{_PLACES[axis]} = {_TILES[axis]}.flatten(1)")
        for each in self.core.operands:
            if each.listed:
                writer.line(f"{each.name}_listed = _asked_lists({each.name}, lists.rows.flatten(1), batch, heads)")
            elif each.kind.is_fact:
                axis = Axis.ROW if each.kind is Kind.ROW_FACT else Axis.COLUMN
                places = _PLACES[axis] if axis in self.listing.moves else "None"
                writer.line(f"{each.name}_listed = _asked({each.name}, {places}, batch, heads)")
        for name, axis in self._moved(self.given).items():
            writer.line(f"{name}_listed = _listed_tokens({name}, {_PLACES[axis]})")
        order = [each.name for each in self.core.operands]
        for name in sorted(by_channel(self.kernels), key=order.index):
            writer.line(f"{name}_channels = {self._named(name, self.given)}.mT.contiguous()")
        for name, axis in self._moved(self.made).items():
            writer.line(f"{name}_listed = {self._room(name, axis)}")
        for name, axis in self._moved(dict.fromkeys(self.states, Axis.ROW)).items():
            taken = f"_listed_tokens({name}, {_PLACES[axis]})"
            writer.line(f"{name}_listed = {taken if self.piece.resumes == TRUE else self._room(name, axis)}")

    def _axes(self) -> list[Axis]:
        return [axis for axis in _PLACES if axis in self.listing.moves]

    def _room(self, name: str, axis: Axis) -> str:
        slots = f"{_PLACES[axis]}.shape[1]"
        how = "new_zeros" if self.piece.adds and not self.is_forward else "new_empty"
        if self._adds_heads(axis):
            width = f", {name}.shape[-1]" if self._operand_of(name).kind.is_vector else ""
            return f"{name}.{how}(batch, heads, {slots}{width}, dtype=_wide({name}.dtype))"
        return f"{name}.{how}(*{name}.shape[:2], {slots}, *{name}.shape[3:])"

    def _operand_of(self, gradient: str) -> Operand:
        return next(each for each in self.core.operands if gradient_name(each.name) == gradient)

    # --- kernels -------------------------------------------------------------------------------------------------

    def _named(self, name: str, among: dict[str, Axis]) -> str:
        return f"{name}_listed" if name in self._moved(among) else name

    def _print_launch(self, writer: Writer, kernel: Kernel) -> None:
        rows_fixed = kernel.fixed is Axis.ROW
        printer = self.launches.printer(kernel, self.piece)
        among = self.given | self.made | dict.fromkeys(self.states, Axis.ROW)

        def named(name: str) -> str:
            return f"{name}_listed" if name in self.listing.facts else self._named(name, among)

        pointers = [named(name) for node in kernel.operands for name in printer.tensors_of(node)]
        pointers += [named(node.name) for node in kernel.statistics]
        pointers += [named(name) for name in printer.results]
        if printer.keeps_residual:
            pointers.append(f"{named('residual')} if keep_residual else None")
        pointers += [named(name) for name in printer.states]
        strides = [f"{named(name)}.stride()[:3]" for name in printer.strided]
        numbers = [node.name for node in kernel.uniform if not is_literal(node)]
        numbers += [f"{table}.shape[{axis}]" for table, axis in printer.table_sizes]
        numbers += [f"{node.name}_listed.shape[2]" for node in printer.lists]
        slots = {axis: f"{_PLACES[axis]}.shape[1]" for axis in self._axes()}
        writer.line(f"begins, met = _lists_by_{'row' if rows_fixed else 'key'}(lists)")
        fixed, block = slots.get(kernel.fixed, _LENGTH[kernel.fixed]), "BLOCK_M" if rows_fixed else "BLOCK_N"
        heads = "heads" if rows_fixed else f"{named(self.core.values)}.shape[1]"
        writer.line(f'grid = _grid({fixed}, "{block}", {heads}, batch)')
        own = ["starts", "lengths", "begins", "met", *(f"{_PLACES[axis]}.int()" for axis in self._axes())]
        counts = [*slots.values(), f"lists.{'rows' if rows_fixed else 'keys'}.shape[1]"]
        arguments = list(map(named, self.launches.shapes().arguments.split(", ")))
        opening = f'_launch({printer.name}, "{kernel.name}", grid,'
        groups = [arguments, pointers, own, strides, ["n", "m", "k_start", *counts, *numbers]]
        writer.listing(opening, groups, ")")

    # --- after them ----------------------------------------------------------------------------------------------

    def _print_results(self, writer: Writer) -> None:
        """Results in the places of their tokens, added up over passes."""
        made = dict(self.made)
        if self.piece.finishes == FALSE:
            made |= dict.fromkeys(self.states, Axis.ROW)
        made = self._moved(made)
        adds = self.piece.adds and not self.is_forward
        for axis in dict.fromkeys(made.values()):
            writer.line(f"{_SLOTS[axis]} = _slots({_PLACES[axis]}, {_LENGTH[axis]})")
            for name in (name for name, own in made.items() if own is axis):
                found = f"_listed_tokens({name}_listed, {_SLOTS[axis]})"
                if self._adds_heads(axis):
                    found = f"_over_group({found}, {name})"
                writer.line(f"{name} {'+=' if adds else '='} {found}")
