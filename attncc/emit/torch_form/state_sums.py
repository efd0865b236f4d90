"""States → the functions that sum features over keys, and what rows make of the sums."""

from __future__ import annotations

from attncc.emit.torch_form.state_texts import StateTexts
from attncc.emit.writer import Writer


class SumPrinter(StateTexts):
    """Prints sums over blocks of keys and over runs of blocks, and the sums with which a slab's rows begin."""

    def _print_joined(self, writer: Writer) -> None:
        with writer.block("def _joined(to_later, turned, numbers, earlier, later, outs=None):"):
            writer.line(
                '"""Sums over two runs, one behind the other, relative to what is near the later or the earlier.'
            )
            writer.line("")
            writer.line("`turned` is for sums over rows, whose features grow where those of keys shrink.")
            writer.line('"""')
            writer.line("near = later.near if to_later else earlier.near")
            with writer.block("def moved(sums):"):
                writer.line("ends = (near, sums.near) if turned else (sums.near, near)")
                writer.line("return sums.states if sums.near is near else _moved(sums.states, *ends, numbers)")
            writer.line("return _Sums(_added(moved(earlier), moved(later), outs), near)")

    def values_by_head(self, name: str) -> str:
        """The values, one for each state head."""
        if self.states.by_query_head:
            self.used.add("_of_heads")
            return f"_of_heads({name}, heads).flatten(0, 1)"
        return f"{name}.flatten(0, 1)"

    def block_start(self, writer: Writer) -> None:
        """Names for what a block's functions read."""
        core = self.operands.core
        writer.line(f"dtype = _wide({core.values}.dtype)")
        for name in dict.fromkeys([*(each.name for each in self.keys.operands), core.values]):
            writer.line(f"{name} = _keys_in({name}, blocks, first, count, dtype)")
        if self.keys.reads_position:
            writer.line(f"j = {self.at_keys(f'blocks.coordinates(first, count, {core.values}.device)')}")
        if any(name != "_" for name in self.uniform):
            writer.line("numbers = _repeated(numbers, blocks, count)")
        if self.states.by_query_head:
            writer.line(f"heads = {core.values}.shape[1] * blocks.group")

    def _print_of_block(self, writer: Writer) -> None:
        core = self.operands.core
        with writer.block(f"def _of_blocks({self.block_names()}, numbers, blocks, first, count):"):
            writer.line('"""What the keys of each of some blocks add to the sums of rows that see all of them."""')
            self.block_start(writer)
            if self.near:
                writer.line("at = slice(0, 1) if blocks.ahead else slice(-1, None)")
                own = "".join(f"{each.name}[:, :, at], " for each in self.keys.operands)
                written = self.at_keys("blocks.edge(each)")
                writer.line(f"positions = [{written} for each in range(first, first + count)]")
                position = f"_positions_of(positions, {core.values})"
                writer.line(f"near = _near({own}{position}, numbers{self.heads()})")
            writer.line(f"{self.names('f')} = {self.key_call('near')}")
            writer.line(f"values = {self.values_by_head(core.values)}")
            found = [self.added_by_keys(each, f"f{term}") for each, term in self.pairs()]
            self.print_result(writer, found, "blocks", "count")

    def _print_running(self, writer: Writer) -> None:
        with writer.block(f"def _running_sums({self.block_names()}, numbers):"):
            writer.line('"""Sums over runs of blocks of keys, for the slabs of one pass."""')
            writer.line()
            with writer.block("def of_blocks(blocks, first, count):"):
                own = "_own_numbers(numbers, blocks)"
                writer.line(f"return _of_blocks({self.block_names()}, {own}, blocks, first, count)")
            writer.line()
            writer.line(f"return _RunsOfSlabs(of_blocks, {self.joined_by('not blocks.ahead, False')})")

    def joined_by(self, flags: str) -> str:
        if not self.near:
            return "lambda _: _added"
        return f"lambda blocks: functools.partial(_joined, {flags}, _own_numbers(numbers, blocks))"

    def _at_rows(self, coordinate: str) -> str:
        return coordinate if self.plan.pieces is None else f"slab.part.rows.at({coordinate})"

    def key_call(self, near: str) -> str:
        """The call that makes features of keys."""
        j = "j, " if self.keys.reads_position else ""
        near = f"{near}, " if self.near else ""
        return f"_key_features({self.key_names}{j}{near}numbers{self.heads()})"

    def print_result(self, writer: Writer, found: list[str], blocks: str, count: str) -> None:
        if len(found) == 1:
            writer.line(f"states = ({found[0]},)")
        else:
            writer.listing("states = (", [[each] for each in found], ")")
        if self.near:
            writer.line(f"return _parted(states, near, positions, {blocks})")
        else:
            writer.line(f"return _each(states, {blocks}, {count})")

    def slab_start(self, writer: Writer) -> None:
        if self.rows.reads_position:
            rows = self.operands.core.rows
            writer.line(f"i = {self._at_rows(f'slab.coordinates({rows}.device)')}")

    def row_call(self, near: str) -> str:
        i = "i, " if self.rows.reads_position else ""
        near = f"{near}, " if self.near else ""
        return f"_row_features({self.row_names}{i}{near}numbers, (*slab.shape, heads))"

    def print_loop(self, writer: Writer) -> None:
        """Names for the states of each run, and for the features of rows."""
        writer.line(f"{self.names('s')} = sums.states" if self.near else f"{self.names('s')} = sums")

    def sums_of_rows(self, features: str) -> list[str]:
        """For each sum what rows make of its states."""
        found, at = [], 0
        for each in self.states.sums:
            states = enumerate(each.terms, at)
            found.append(" + ".join(self.met_by_rows(each, f"{features}{term}", f"s{place}") for place, term in states))
            at += len(each.terms)
        return found

    def _print_begun(self, writer: Writer) -> None:
        with writer.block(f"def _begun(found, {self.row_names}numbers, heads, slab):"):
            writer.line(
                '"""The sums of a slab\'s rows over the keys that all of them see; None where there are none."""'
            )
            self.slab_start(writer)
            writer.line("total = None")
            with writer.block("for sums in filter(None, found):"):
                self.print_loop(writer)
                writer.line(f"{self.names('f')} = {self.row_call('sums.near')}")
                writer.line("own = (")
                with writer.indented():
                    for sums in self.sums_of_rows("f"):
                        writer.line(f"{sums},")
                writer.line(")")
                writer.line("total = _added(total, own)")
            with writer.block("if total is None:"):
                writer.line("return None")
            names = [each.node for each in self.states.sums]
            writer.line(f"{', '.join(names)}{',' * (len(names) == 1)} = total")
            found = [
                f"{each.node}.view({self._folded_shape(each.node)})"
                if each.of_values
                else f"{each.node}.view(*slab.shape, 1)"
                for each in self.states.sums
            ]
            writer.line(f"return {', '.join(found)}{',' * (len(found) == 1)}")

    def _folded_shape(self, name: str) -> str:
        return f"slab.shape[0] * slab.own_heads, -1, {name}.shape[-1]"
