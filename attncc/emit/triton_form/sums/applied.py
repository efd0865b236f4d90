"""The kernel that multiplies features of a tile's tokens with the sums that belong to it."""

from __future__ import annotations

from contextlib import nullcontext

from attncc.emit.triton_form.scope import BLOCK, START
from attncc.emit.triton_form.sums.tile import SumReader
from attncc.emit.triton_form.sums.tokens import Cut


class AppliedSums(SumReader):
    """Prints it: for rows what is added to the sums over keys, for keys to the gradient of the values."""

    @property
    def adds(self) -> dict[str, tuple[tuple[int, ...], bool]]:
        """The tensors that it adds to: of which terms, and whether they are vectors."""
        if self.rows_fixed:
            return {f"{each.node}_state": (each.terms, each.of_values) for each in self.sides.sums}
        factors = self.sides.payloads[self.swept].factors
        return {self.sides.d_values: (tuple(at for at, each in enumerate(factors) if each is not None), True)}

    @property
    def terms(self) -> list[int]:
        """The terms whose sums it meets."""
        return sorted({at for terms, _ in self.adds.values() for at in terms})

    @property
    def has_plain(self) -> bool:
        return any(not of_values for _, of_values in self.adds.values())

    @property
    def tensors(self) -> list[str]:
        """The tensors of sums that it reads, and those that it adds to."""
        return ["sums", *(["plain"] if self.has_plain else []), *self.adds]

    def print_kernel(self) -> None:
        """Write the kernel."""
        writer, block = self.writer, BLOCK[self.fixed]
        what = "rows that see all keys of the tile give to the gradients of values"
        if self.rows_fixed:
            what = "keys that all rows of the tile see give to their sums"
        with self.kernel_of(self.tensors, ["LAST"], f"Add what the {what}."):
            self.print_tile(values=True)
            for name, (_, of_values) in self.adds.items():
                shape = f"[{block}, BLOCK_E]" if of_values else f"[{block}]"
                writer.line(f"{name} = tl.zeros({shape}, tl.float32)")
            with self.every_head():
                with self.every_run():
                    for term in self.terms:
                        with self.term(term):
                            self._print_term(self.cut(term))
            for name, (_, of_values) in self.adds.items():
                self._print_added(name, of_values=of_values)

    def _print_term(self, cut: Cut) -> None:
        writer, fixed = self.writer, self.fixed
        if self.near:
            self.print_near("near_", "near", cut, only="numbers")
        with writer.block("for channel in range(0, WIDTH, BLOCK_W):"):
            self.print_factor(fixed, cut, START[fixed], "visible")
            if self.near:
                self.print_near("near_", "near", cut, only="block")
            with writer.block("for lead in range(0, choices):") if cut.others else nullcontext():
                self.print_leads(cut)
                if self.near:
                    self.print_near("near_", "near", cut, only="leads")
                self.print_scaled(fixed, cut, START[fixed], "visible")
                writer.line(f"place = own_sums + {'lead * padded + ' if cut.others else ''}channel")
                own = [(name, of_values) for name, (terms, of_values) in self.adds.items() if cut.term in terms]
                vectors = [name for name, of_values in own if of_values]
                if vectors:
                    writer.line(f"sums = tl.load({self.sums_at('sums')})")
                    if len(vectors) == 1:
                        writer.line(f"{vectors[0]} = _dot(features, sums, {vectors[0]}, PRECISION)")
                    else:
                        writer.line("product = _dot(features, sums, None, PRECISION)")
                        for name in vectors:
                            writer.line(f"{name} += product")
                numbers = [name for name, of_values in own if not of_values]
                if numbers:
                    writer.line("plain = tl.load(plain_ptr + place + tl.arange(0, BLOCK_W))")
                    writer.line("number = tl.sum(features * plain[None, :], 1)")
                    for name in numbers:
                        writer.line(f"{name} += number")

    def _print_added(self, name: str, *, of_values: bool) -> None:
        writer, fixed, block = self.writer, self.fixed, BLOCK[self.fixed]
        if of_values:
            self.used.add("_add_part")
            step = self.step_in_memory(fixed, "E")
            place = [f"{name}_ptr + first_token * E", step, "value", "visible", name]
            writer.call("_add_part(", [*place, block, "E", "BLOCK_E"], ")")
        else:
            self.used.add("_add_lanes")
            with writer.block("if value == 0:"):
                step = self.step(fixed) or "1"
                writer.line(f"_add_lanes({name}_ptr + first_token, {step}, visible, {name}, {block})")
