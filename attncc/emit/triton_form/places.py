"""Where the tensors of one kernel lie: its pointer parameters, and the text that finds a tile's part of each."""

from __future__ import annotations

from itertools import product

from attncc.emit.triton_form.piece import Listing
from attncc.emit.triton_form.scope import (
    BLOCK,
    COUNT,
    FROM,
    LANES,
    LIST,
    OF_ENTRY,
    PLACE,
    START,
    STEP,
    KernelScope,
    is_vector,
    list_size,
    width_of,
)
from attncc.graph.ir import Node
from attncc.graph.ops import Axis
from attncc.spec.data import Size


class KernelPlaces(KernelScope):
    """The tensors of one kernel."""

    # --- parameters -------------------------------------------------------------------------------------------

    @property
    def results(self) -> list[str]:
        """The tensors that the kernel writes."""
        own = [node.name for node in self.kernel.stores if self.fixed in node.axes]
        return own + [node.name for node in self.offset_sums]

    @property
    def strided(self) -> list[str]:
        """The tensors of which the kernel is told the strides of the first three axes."""
        return [node.name for node in (*self.vectors, *self.by_offset, *self.offset_sums)]

    def tensors_of(self, node: Node) -> list[str]:
        """The names of the tensors in which an operand arrives."""
        if not is_vector(node):
            return [node.name]
        own = [node.name] if node.name in self.tiled else []
        return own + ([f"{node.name}_channels"] if node.name in self.by_channel else [])

    def is_batched(self, node: Node) -> bool:
        """Whether a table has an axis of batch entries, which no index is written for."""
        return Size.BATCH in self.table_axes[node.name]

    @property
    def table_sizes(self) -> list[tuple[str, int]]:
        """The axes of tables that the kernel is told the lengths of."""
        return [
            (node.name, axis)
            for node in self.entries
            for axis in range(self.is_batched(node), len(self.table_axes[node.name]))
        ]

    def sizes(self, node: Node) -> list[str]:
        """The parameters that tell a table's lengths."""
        return [f"{node.name}_size_{axis}" for axis in range(self.is_batched(node), len(self.table_axes[node.name]))]

    # --- the tile's part ---------------------------------------------------------------------------------------

    def print_places(self) -> None:
        """Which tile this program has, and where the call stands."""
        writer, start, block = self.writer, START[self.fixed], BLOCK[self.fixed]
        what = "row" if self.rows_fixed else "key"
        if self.laid_out and not self.offset_sums:
            writer.line("residue = tl.program_id(0) % classes  # the class that the tile is of")
            writer.line(f"{start} = tl.program_id(0) // classes * {block}  # first {what} of the tile in its class")
        elif not self.offset_sums:
            writer.line(f"{start} = tl.program_id(0) * {block}  # first {what} of the tile")
        if self.rows_fixed:
            writer.line("head = tl.program_id(1)")
            writer.line("batch = tl.program_id(2)")
            writer.line("heads = tl.num_programs(1)")
        else:
            writer.line("kv_head = tl.program_id(1)")
            writer.line("batch = tl.program_id(2)")
            writer.line("kv_heads = tl.num_programs(1)")
            writer.line("heads = kv_heads * GROUP")
        if not self.offset_sums:
            writer.line(f"{LANES[self.fixed]} = {start} + tl.arange(0, {block})")
        writer.line("q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)")
        if self.laid_out:
            self._print_class()
        else:
            writer.line("keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))")
        if self.listing is not None:
            self._print_lists(self.listing)
        writer.line()

    def _print_lists(self, listing: Listing) -> None:
        swept = self.swept
        self.writer.line(f"PARTS: tl.constexpr = {LIST[swept]} // {BLOCK[swept]}  # tiles in one that lists name")
        if self.rows_fixed:
            self.print_entry_of("head")
        elif not listing.by_head or self.moves(Axis.COLUMN):
            self.print_entry_of("kv_head")  # where keys move, every query head has its own

    def print_entry_of(self, head: str) -> None:
        """Whose lists these are, and where what the pattern asks of its tokens begins."""
        by_head = self.listing is not None and self.listing.by_head
        self.writer.line(f"entry = batch * heads + {head}" if by_head else "entry = batch")
        for axis in (Axis.ROW, Axis.COLUMN):
            self.writer.line(f"{OF_ENTRY[axis]} = tl.cast(entry, tl.int64) * {self.length(axis)}")
        for node in self.lists:
            assert self.listing is not None
            size = f"{self.listing.lists[node.name]} * {list_size(node.name)}"
            self.writer.line(f"{node.name}_lists = {node.name}_ptr + tl.cast(entry, tl.int64) * ({size})")

    def _print_class(self, spot: str = "spot", *, clips: bool = True) -> None:
        """Where the rows and keys of the tile's class lie, and which coordinates they have.

        Args:
            spot: the name of where that is told.
            clips: whether tiles of rows beyond the last of their class have no keys.
        """
        if self.rows_fixed and self.has_parts:
            self.writer.line(f"part = {self.part_of_head()}")
        part = "part * tl.num_programs(2) + batch" if self.has_parts else "batch"
        part = f"({part})" if " " in part else part
        self.writer.line(f"{spot} = classes_ptr + ({part} * classes + residue) * 8")
        for at, (axis, what) in enumerate(product((Axis.ROW, Axis.COLUMN), (PLACE, STEP, FROM, COUNT))):
            found = f"tl.load({spot}{f' + {at}' if at else ''})"
            if clips and self.rows_fixed and what is COUNT and axis is Axis.COLUMN and not self.offset_sums:
                found = f"tl.where(row < row_count, {found}, 0)"  # classes may have fewer tiles than others
            self.writer.line(f"{what[axis]} = {found}")

    @property
    def has_parts(self) -> bool:
        """Whether heads differ in their strips, or some have none."""
        return len(self.piece.domain.classes) > 1

    def part_of_head(self) -> str:
        """The number of a head's part; the one after the last is that of heads that are not in the piece."""
        classes = self.piece.domain.classes
        text = str(len(classes) - 1)
        for at in range(len(classes) - 2, -1, -1):
            text = f"tl.where({self.expression(classes[at].condition, pair=False)}, {at}, {text})"
        return text

    def print_pointers(self) -> None:
        """Pointers moved to what the program reads and writes."""
        writer = self.writer
        writer.comment("Offsets of whole tiles are 64 bits wide, those within a tile 32.")
        for node in self.vectors:
            if self.is_swept_row(node):  # found once a head, below
                if self.laid_out:
                    writer.line(f"{node.name}_ptr += tl.cast(row_place, tl.int64) * {node.name}_strides[2]")
                continue
            writer.line(f"{node.name}_ptr += {self.of_head(node.name, self._head_of(node))}")
            if node.axes[0] is self.fixed and not self.offset_sums:
                writer.line(f"{node.name}_ptr += {self.first_of(node)}")
            elif self.laid_out and node.axes[0] is self.swept:
                writer.line(f"{node.name}_ptr += tl.cast({PLACE[self.swept]}, tl.int64) * {node.name}_strides[2]")
        for node in self.channels:
            if not self.is_swept_row(node):
                writer.line(f"{node.name}_channels_ptr += {self.channels_of(node)}")
        for node in self.vectors:
            if self.laid_out:
                writer.line(f"{node.name}_stride = {node.name}_strides[2] * {STEP[node.axes[0]]}")
            if node.axes[0] is self.swept:
                step = f"tl.cast({self.stride(node)}, tl.int64) * {BLOCK[self.swept]}"
                writer.line(f"{node.name}_step = {step}")
        if self.rows_fixed:
            length = self.length(Axis.COLUMN)
            writer.line(f"key_numbers = (tl.cast(batch, tl.int64) * (heads // GROUP) + head // GROUP) * {length}")
            self._print_first_vector(late=False)
        else:
            first = self.place(Axis.COLUMN, "column")
            length = self.length(Axis.COLUMN)
            writer.line(f"first_vector = (tl.cast(batch, tl.int64) * kv_heads + kv_head) * {length} + {first}")
        for node in self.offset_sums:
            strides = f"{node.name}_strides"
            writer.line(f"{node.name}_ptr += {self.of_head(node.name, 'head')} + tl.program_id(0) * (3 * {strides}[2])")
            writer.line(f"{node.name}_line = {strides}[2]")
        writer.line()

    def _print_first_vector(self, *, late: bool) -> None:
        """The place of the tile's first number; with several tiles a program it is known `late`."""
        if late == bool(self.offset_sums):
            first = self.place(Axis.ROW, "row")
            length = self.length(Axis.ROW)
            self.writer.line(f"first_vector = (tl.cast(batch, tl.int64) * heads + head) * {length} + {first}")

    def print_lanes(self) -> None:
        """The rows of one tile, where a program has several."""
        if self.offset_sums:
            self.writer.line("row_lanes = row + tl.arange(0, BLOCK_M)")
            self._print_first_vector(late=True)

    def of_head(self, name: str, head: str) -> str:
        """Where the part of a tensor begins that belongs to a batch entry and a head."""
        strides = f"{name}_strides"
        return f"tl.cast(batch, tl.int64) * {strides}[0] + tl.cast({head}, tl.int64) * {strides}[1]"

    def first_of(self, node: Node) -> str:
        """Where the tile's first vector lies."""
        start = self.place(self.fixed, START[self.fixed])
        return f"tl.cast({start}, tl.int64) * {node.name}_strides[2]"

    def channels_of(self, node: Node) -> str:
        """Where the channels of a batch entry and a head begin: each is as long as there are rows or keys."""
        width, length = width_of(node)[0], self.length(node.axes[0])
        if node.axes[0] is Axis.ROW:
            return f"(tl.cast(batch, tl.int64) * heads + head) * {width} * {length}"
        heads = "heads // GROUP" if self.rows_fixed else "kv_heads"
        heads = f"({heads})" if " " in heads else heads
        return f"(tl.cast(batch, tl.int64) * {heads} + {self._head_of(node)}) * {width} * {length}"

    def is_swept_row(self, node: Node) -> bool:
        """Whether a tensor of rows is swept, head by head."""
        return not self.rows_fixed and node.axes[0] is Axis.ROW

    def _head_of(self, node: Node) -> str:
        if not self.rows_fixed:
            return "kv_head"
        return "head" if node.axes[0] is Axis.ROW else "head // GROUP"

    def print_lane_pointers(self) -> None:
        """Where each lane finds its channels and entries. Lanes beyond the last row or key read what that one reads."""
        writer, fixed = self.writer, self.fixed
        clamped = self._clamped_lanes()
        for node in self.channels:
            if node.axes[0] is fixed:
                writer.line(f"{node.name}_at = {node.name}_channels_ptr + {clamped}")
        if self.rows_fixed:
            self.print_offset_pointers()
        if self.offset_sums:
            writer.line("alive = visible")
        for node in self.offset_sums:
            writer.line(f"{node.name}_at = {node.name}_ptr + m - 1 + {self.place(Axis.ROW, 'row')}")

    def _clamped_lanes(self) -> str:
        """The place of each lane; lanes beyond the last token have that of the last one."""
        if not self.laid_out:
            return f"tl.minimum({LANES[self.fixed]}, {self.length(self.fixed)} - 1)"
        within = f"tl.maximum(tl.minimum({LANES[self.fixed]}, {COUNT[self.fixed]} - 1), 0)"
        return self.place(self.fixed, within)

    def print_offset_pointers(self) -> None:
        """Where each lane finds its entries of numbers of distances."""
        clamped = self._clamped_lanes()
        clamped = f"({clamped})" if self.laid_out else clamped
        sign = "+" if self.rows_fixed else "-"
        for node in self.by_offset:
            base = f"{node.name}_ptr + {self.of_head(node.name, 'head')}"
            self.writer.line(f"{node.name}_at = {base} + (m - 1 {sign} {clamped})")
