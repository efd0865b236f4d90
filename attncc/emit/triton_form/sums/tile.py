"""What the kernels that read sums share: one tile of the fixed axis, and the runs whose sums it meets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from attncc.emit.triton_form.scope import BLOCK, LANES, START, STEP
from attncc.emit.triton_form.sums.near import NearTexts
from attncc.graph.ops import Axis


class SumReader(NearTexts):
    """A kernel that meets the sums of its tile."""

    @property
    def by_head(self) -> bool:
        """Whether a program has a query head of its own; programs of keys go through all that share them."""
        return self.rows_fixed

    @property
    def lengths(self) -> list[str]:
        """What it is told beside lengths: tiles of its axis, choices of channels of sums and of its own."""
        return ["tiles", "segments", "leads", *(["choices", "group", "span"] if self.sides.most_factors > 1 else [])]

    @contextmanager
    def kernel_of(self, results: list[str], constexprs: list[str], doc: str) -> Iterator[None]:
        """The kernel around what it does for every head."""
        writer, start = self.writer, self.writer.place
        self.print_signature(results, self.lengths, constexprs)
        with writer.indented():
            writer.line(f'"""{doc}"""')
            yield
        writer.drop_unread(start)
        writer.line()
        writer.line()

    def print_tile(self, *, values: bool) -> None:
        """Which tile the program has, its tokens and their numbers."""
        writer, fixed = self.writer, self.fixed
        writer.line("value_blocks, padded = tl.cdiv(E, BLOCK_E), tl.cdiv(LAST, BLOCK_W) * BLOCK_W")
        writer.line("values, size = value_blocks * BLOCK_E, leads * padded")
        job = "tl.program_id(0)"
        if self.laid_out:
            writer.line(f"residue = {job} % classes")
            job = "tl.program_id(0) // classes"
        if values:
            writer.line(f"value = {job} % value_blocks * BLOCK_E")
            job = f"{job} // value_blocks"
        writer.line(f"tile = {job}")
        writer.line(f"{START[fixed]} = tile * {BLOCK[fixed]}")
        self.print_heads()
        if self.rows_fixed:
            self.print_numbers()
        self.print_bases(fixed)
        self.print_lanes_of(fixed, START[fixed])
        writer.line(f"visible = {LANES[fixed]} < {self.limit(fixed)}")
        self.print_numbers_of(fixed, START[fixed], "visible")
        place = START[fixed] if not self.laid_out else f"{START[fixed]} * {STEP[fixed]}"
        writer.line(f"first_token = {self.first_place(fixed)} + {place}")

    @contextmanager
    def every_head(self) -> Iterator[None]:
        """What is done for the program's head, or for each that shares its keys."""
        head = "for head in range(kv_head * GROUP, kv_head * GROUP + GROUP):"
        with nullcontext() if self.rows_fixed else self.writer.block(head):
            if not self.rows_fixed:
                self.print_numbers()
            self.print_bases(self.swept)
            yield

    @contextmanager
    def every_run(self) -> Iterator[None]:
        """What is done for each run of the tile."""
        with self.writer.block("for segment in range(0, segments):"):
            self.print_spots()
            self.print_run()
            with self.writer.block("if f0 < f1:"):
                self.writer.line("own_sums = (spot * tiles + tile) * size")
                if self.near:
                    self.print_near_token("f0", "f1")
                yield

    def step_in_memory(self, axis: Axis, width: str) -> str:
        """From one token to the next in a tensor without gaps."""
        return f"{width} * {STEP[axis]}" if self.laid_out else width
