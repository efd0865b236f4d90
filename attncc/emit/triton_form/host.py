"""Tile program → the Triton part of a module: kernels, their tuning, and the functions that launch them."""

from __future__ import annotations

from attncc.emit.numbers import print_numbers
from attncc.emit.triton_form.gradients import BackwardLaunch
from attncc.emit.triton_form.launch import host_text
from attncc.emit.writer import Writer


class TritonForm(BackwardLaunch):
    """Prints kernels and launchers of one plan."""

    # --- launching --------------------------------------------------------------------------------------------

    def launchers(self) -> str:
        """Tuning, number tables and launch functions."""
        writer = Writer()
        self._print_tiles(writer)
        writer.lines(host_text(self.shapes()))
        numbers = print_numbers(self.uniform(), "_kernel_numbers", self.host_used)
        if numbers:
            writer.lines("\n\n" + numbers)
        writer.line()
        writer.line()
        self._print_forward(writer)
        writer.line()
        writer.line()
        self.print_backward(writer)
        return writer.text()

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
        if self.sides is not None:
            writer.comment("The one that they have where sums are made of the tiles that need no mask.")
            writer.line("_CHUNKS = {")
            with writer.indented():
                for tiles in self.plan.tiles:
                    if tiles.kernel in names:
                        chunk = tiles.chunk
                        own = f"({chunk.rows}, {chunk.columns}, {chunk.warps}, {chunk.stages})"
                        writer.line(f'("{tiles.kernel}", {tiles.bytes}, {tiles.width}): {own},')
            writer.line("}")

    def _print_forward(self, writer: Writer) -> None:
        places = "q_start, k_start, q_starts, kv_lengths"
        rows, values = self.core.rows, self.core.values
        keep = ", keep_residual" if self.plan.reads_delta else ""
        by_states = ", by_states" if self.sides is not None else ""
        with writer.block(f"def _launch_forward({self.arguments()}{self.scale()}{places}{keep}{by_states}):"):
            writer.line('"""What `_forward` returns, by the Triton kernel."""')
            self._print_made(writer)
            self.print_operands(writer)
            writer.line(f"batch, heads, n, _ = {rows}.shape")
            kv_heads = "kv_heads, m = {0}.shape[1:3]" if self.sides is not None else "m = {0}.shape[2]"
            writer.line(kv_heads.format(self.column()))
            writer.line(f"out = {rows}.new_empty(batch, heads, n, {values}.shape[-1])")
            for name in self.statistics():
                writer.line(f"{name} = {rows}.new_empty(batch, heads, n, dtype={self.wide})")
            if self.plan.reads_delta:
                width = f"{values}.shape[-1] if keep_residual else 0"
                writer.line(f"residual = {rows}.new_empty(batch, heads, n, {width})")
            self.print_numbers(writer)
            if not self.listed:
                self.print_channels(writer, self.forward)
            self.print_places(writer)
            self._print_in_order(writer)
            self.print_sums_of_keys(writer)
            self.print_piece_places(writer, self.forward)
            with writer.block("if out.numel():"):
                if self.listed:
                    self.print_passes(writer, self.forward)
                else:
                    self.print_launches(writer, self.forward)
            names = ["out", *self.statistics(), *self.residual()]
            writer.line(f"return ({', '.join(names)}{',' * (len(names) == 1)})")

    def _asked_in_order(self) -> str:
        rows = self.core.rows
        return self.a_head_for_each_thread(f"{rows}.shape[0] * {rows}.shape[1]")

    def _print_made(self, writer: Writer) -> None:
        """What is made of data, unless a kernel makes it tile by tile."""
        if self.carried is None or not self.carried.formulas:
            return
        writer.line(f"in_order = by_states and {self._asked_in_order()}")
        names = ", ".join(self.carried.formulas)
        names += "," * (len(self.carried.formulas) == 1)
        is_raw = "isinstance(x, _Deferred) and x.x.dtype == x.dtype"
        writer.line(f"raw = in_order and all({is_raw} for x in ({names}))")
        writer.line(f"{names} = (x.x if raw else _made(x) for x in ({names}))")

    def _print_in_order(self, writer: Writer) -> None:
        """On CPUs a thread may take a head's tiles one after the other."""
        if self.carried is None or self.in_order is None:
            return
        rows, count = self.core.rows, len(self.carried.terms)
        asked = "in_order" if self.carried.formulas else f"by_states and {self._asked_in_order()}"
        with writer.block(f"if {asked} and out.numel():"):
            width = next(each.name for each in self.core.operands if each.width == self.carried.width)
            sizes = [f"_cdiv({name}.shape[-1], 16) * 16" for name in (width, self.core.values)]
            kind = f"dtype={self.wide}"
            writer.line(f"state = {rows}.new_zeros(batch, heads, {count}, {', '.join(sizes)}, {kind})")
            writer.line(f"plain = {rows}.new_zeros(batch, heads, {count}, {sizes[0]}, {kind})")
            writer.line(f"summed = {rows}.new_zeros(batch, heads, dtype=torch.int32)")
            self.print_launch(writer, self.in_order, self.whole)
            names = ["out", *self.statistics(), *self.residual()]
            writer.line(f"return ({', '.join(names)}{',' * (len(names) == 1)})")

    # --- gradients --------------------------------------------------------------------------------------------

    # --- pieces -----------------------------------------------------------------------------------------------
