"""The kernel that sums features times values over the runs of tiles that tiles of the other axis see as a whole."""

from __future__ import annotations

from attncc.emit.triton_form.scope import BLOCK, START
from attncc.emit.triton_form.sums.near import NearTexts
from attncc.emit.triton_form.sums.scope import Payload
from attncc.emit.triton_form.sums.tokens import Cut
from attncc.spec.expr import Const, Expr


class RunningSums(NearTexts):
    """Prints it: sums over keys for tiles of rows, or over rows for tiles of keys.

    A program goes from tile to tile, so that a run which follows another costs what is new in it. Nothing is ever
    subtracted: when tiles leave at the front, the sums of what stays have been kept, or are taken anew. Programs of
    keys go backwards, and count tiles of rows from the back as -1 - tile: runs of rows mostly end at the last one.
    """

    @property
    def by_head(self) -> bool:
        """Whether a program has a query head of its own."""
        return self.sums_by_head

    @property
    def terms(self) -> list[int]:
        """The terms that something is summed for."""
        payload = self.sides.payloads[self.swept]
        pairs = zip(payload.factors, payload.numbers, strict=True)
        return [at for at, pair in enumerate(pairs) if any(each is not None for each in pair)]

    @property
    def slides(self) -> bool:
        """Whether tiles may leave a run at the end from which programs come."""
        fulls = [segment.full for _, segment in self.segments_by_class() if segment.full is not None]
        ends = [full.low if self.rows_fixed else full.high for full in fulls]
        return bool(self.piece.layouts) or any(end is not None for end in ends)

    @property
    def tensors(self) -> list[str]:
        """The tensors that it writes."""
        found = ["sums", *(["plain"] if self.has_numbers else [])]
        return found + [f"{name}_kept" for name in found if self.slides]

    @property
    def lengths(self) -> list[str]:
        """What it is told beside lengths: tiles of each axis, choices of channels."""
        groups = ["group", "span"] if self.sides.most_factors > 1 else []
        return ["tiles", *(["others"] if self.slides else []), "segments", "leads", *groups]

    def print_kernel(self) -> None:
        """Write the kernel."""
        writer, start = self.writer, self.writer.place
        self.print_signature(self.tensors, self.lengths, [])
        with writer.indented():
            doc = "For every tile of keys the sum over the rows that see all of them."
            if self.rows_fixed:
                doc = "For every tile of rows the sum over the keys that all of them see."
            writer.line(f'"""{doc}"""')
            self._print_program()
            self.print_heads()
            self.print_numbers()
            self.print_bases(self.swept)
            self.print_spots()
            writer.line("tile_sums = spot * tiles")
            if self.slides:
                writer.line("kept_sums = spot * others")
            writer.line("within = lead * padded + channel")
            writer.line()
            self._print_tiles()
        writer.drop_unread(start)
        writer.line()
        writer.line()

    def _print_program(self) -> None:
        """Which block of features and of values the program has, of which class and segment."""
        writer = self.writer
        writer.line("value_blocks, channel_blocks = tl.cdiv(E, BLOCK_E), tl.cdiv(WIDTH, BLOCK_W)")
        writer.line("values, padded = value_blocks * BLOCK_E, channel_blocks * BLOCK_W")
        writer.line("size = leads * padded  # features of the sums of a tile")
        writer.line("job = tl.program_id(0)")
        parts = [("value", "value_blocks", " * BLOCK_E"), ("channel", "channel_blocks", " * BLOCK_W")]
        parts += [("lead", "leads", "")] if self.sides.most_factors > 1 else []
        parts += [("segment", "segments", "")]
        for name, count, block in parts:
            writer.line(f"{name} = job % {count}{block}")
            writer.line(f"job = job // {count}")
        if self.sides.most_factors < 2:
            writer.line("lead = 0")
        if self.laid_out:
            writer.line("residue = job")

    # --- tiles ------------------------------------------------------------------------------------------------

    def _print_tiles(self) -> None:
        writer, fixed = self.writer, self.fixed
        self._print_zeros()
        if self.slides:
            writer.comment("Of the run low … high - 1, these are the sums from `turn` on; what is before is kept.")
            writer.line("run_low, turn, run_high = 0, 0, 0")
        else:
            writer.comment("These are the sums over the run low … high - 1 of tiles.")
            writer.line("run_low, run_high = 0, 0")
        with writer.block(f"for {'tile' if self.rows_fixed else 'done'} in range(0, tiles):"):
            if not self.rows_fixed:
                writer.line("tile = tiles - 1 - done")
            self.print_run()
            if not self.rows_fixed:
                writer.line("f0, f1 = -f1, -f0")
            if self.near:
                writer.line(f"{START[fixed]} = tile * {BLOCK[fixed]}")
            with writer.block("if f0 < f1:"):
                self._print_run()

    def _print_run(self) -> None:
        writer = self.writer
        if self.near:
            self.print_ahead(self._low("f0"))
        with writer.block("if (f0 < run_low) | (f0 > run_high) | (f1 < run_high):  # no run that follows"):
            writer.line(f"run_low, {'turn, ' if self.slides else ''}run_high = f0, {'f0, ' * self.slides}f0")
            self._print_zeros()
        steps = "f1 - run_high"
        if self.slides:
            writer.line("turns = f0 > turn")
            with writer.block("if turns:  # sums from every tile on: those that leave next cost nothing"):
                self._print_zeros()
            writer.line("from_kept = (f0 < turn) & (turns == 0)")
            steps = "tl.where(turns, f1 - f0, f1 - run_high)"
        if self.near and not self.slides:
            self._print_move_to(f"tl.where(ahead, {self._low('f0')}, {self._high('f1')})")
            self._print_near_of_items()
        with writer.block(f"for step in range(0, {steps}):"):
            follows = "run_high + step"
            writer.line(f"item = {f'tl.where(turns, f1 - 1 - step, {follows})' if self.slides else follows}")
            if self.near and self.slides:
                self._print_move_to(self._near_of_item())
                self._print_near_of_items()
            self._print_item()
            if self.slides:
                with writer.block("if turns:"):
                    self._print_store("kept_sums + item" if self.rows_fixed else "kept_sums - 1 - item", "_kept")
        writer.line("run_low, run_high = f0, f1")
        self._print_result()

    def _near_of_item(self) -> str:
        low = f"tl.where(turns, {self._low('item')}, {self._low('turn')})"
        return f"tl.where(ahead, {low}, {self._high('f1')})"

    def _print_near_of_items(self) -> None:
        """What is read of the token that features are relative to."""
        for at in self.terms:
            if any(not each.is_zero for each in self.feature(self.swept, at).every_power):
                with self.term(at):
                    self.print_leads(self.cut(at))
                    self.print_near("near_", "near", self.cut(at))

    def _print_result(self) -> None:
        writer = self.writer
        own, plain = "sums", "numbers"
        if self.near and self.slides:
            self._print_move_to(f"tl.where(ahead, {self._low('f0')}, {self._high('f1')})")
        if self.slides:
            own, plain = "found", "found_numbers"
            writer.line("found = sums")
            if self.has_numbers:
                writer.line("found_numbers = numbers")
            with writer.block("if from_kept:"):
                kept = "(kept_sums + f0)" if self.rows_fixed else "(kept_sums - 1 - f0)"
                writer.line(f"place = {kept} * size + within")
                writer.line(f"kept = tl.load({self.sums_at('sums_kept')})")
                numbers = "tl.load(plain_kept_ptr + place + tl.arange(0, BLOCK_W))"
                if self.has_numbers:
                    writer.line(f"kept_numbers = {numbers}")
                if self.near:
                    writer.line(f"old = tl.where(ahead, {self._low('f0')}, {self._high('turn')})")
                    self.print_moved("old", "held", "kept", "kept_numbers")
                writer.line("found += kept")
                if self.has_numbers:
                    writer.line("found_numbers += kept_numbers")
        self._print_store("tile_sums + tile", "", own, plain)
        if self.slides:
            with writer.block("if turns:"):
                writer.line("turn = f1")
                self._print_zeros()
                writer.line("tl.debug_barrier()  # what is kept is written")

    def _print_zeros(self) -> None:
        self.writer.line("sums = tl.zeros([BLOCK_W, BLOCK_E], tl.float32)")
        if self.has_numbers:
            self.writer.line("numbers = tl.zeros([BLOCK_W], tl.float32)")
        if self.near:
            self.writer.line("held = -1  # the token that they are relative to")

    def _print_move_to(self, token: str) -> None:
        """The sums so far relative to another token."""
        self.writer.line(f"near = {token}")
        self.writer.line("held = tl.where(held < 0, near, held)")
        self.print_moved("held", "near", "sums", "numbers")
        self.writer.line("held = near")

    def _low(self, tile: str) -> str:
        """The token at the end of a tile from which programs come."""
        block = BLOCK[self.swept]
        return f"{tile} * {block}" if self.rows_fixed else f"-{tile} * {block} - 1"

    def _high(self, tile: str) -> str:
        """The token at the other end of the tile before one."""
        block = BLOCK[self.swept]
        return f"{tile} * {block} - 1" if self.rows_fixed else f"-{tile} * {block}"

    def _print_item(self) -> None:
        """One more tile of the swept axis."""
        writer, swept = self.writer, self.swept
        start = START[swept]
        writer.line(f"{start} = {'item' if self.rows_fixed else '(-1 - item)'} * {BLOCK[swept]}")
        self.print_lanes_of(swept, start)
        self.print_numbers_of(swept, start, "")
        payload = self.sides.payloads[swept]
        self.print_part(payload.vector.name, swept, start, "", "value", "E", "BLOCK_E")
        for at in self.terms:
            with self.term(at):
                cut = self.cut(at)
                self.print_leads(cut)
                values = self._weighted(payload.vector.name, payload.factors[at])
                if cut.factor < 0:  # the only feature is a number
                    self._print_number(cut, payload, values)
                    continue
                self.print_features(swept, cut, start, "")
                if payload.factors[at] is not None:
                    writer.line(f"sums = _dot(tl.trans(features), {values}, sums, PRECISION)")
                if payload.numbers[at] is not None:
                    writer.line(f"numbers += tl.sum({self._weighted('features', payload.numbers[at])}, 0)")

    def _print_number(self, cut: Cut, payload: Payload, values: str) -> None:
        """What tokens add to sums of numbers: these lie where the first feature would."""
        swept, writer = self.swept, self.writer
        scale, number = self.scale(swept, cut), payload.numbers[cut.term]
        writer.line("here = tl.where(channel + tl.arange(0, BLOCK_W) == 0, 1.0, 0.0)")
        if scale:
            writer.line(f"scaled = tl.zeros([{BLOCK[swept]}], tl.float32) + {' * '.join(scale)}")
        if payload.factors[cut.term] is not None:
            own = f"{values} * scaled[:, None]" if scale else values
            writer.line(f"sums += here[:, None] * tl.sum({own}, 0)[None, :]")
        if number is not None:
            parts = ["scaled"] if scale else []
            parts += [] if number == Const(1) else [self.text(number, swept, tile=False, context=6)]
            lanes = f"tl.zeros([{BLOCK[swept]}], tl.float32)"
            own = " * ".join(parts) if parts else f"{lanes} + 1.0"
            writer.line(f"numbers += here * tl.sum({own}, 0)")

    def _weighted(self, name: str, factor: Expr | None) -> str:
        """Vectors or features times a number of each lane."""
        if factor is None or factor == Const(1):
            return name
        text = self.text(factor, self.swept, tile=True, context=6)
        return f"{name} * {text}"

    def _print_store(self, tile: str, suffix: str, own: str = "sums", plain: str = "numbers") -> None:
        """Write the sums of a tile."""
        self.writer.line(f"place = ({tile}) * size + within")
        self.writer.line(f"tl.store({self.sums_at(f'sums{suffix}')}, {own})")
        if self.has_numbers:
            with self.writer.block("if value == 0:"):
                self.writer.line(f"tl.store(plain{suffix}_ptr + place + tl.arange(0, BLOCK_W), {plain})")
