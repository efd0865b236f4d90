"""States → the functions of the backward pass."""

from __future__ import annotations

from attncc.emit.torch_form.state_sums import SumPrinter
from attncc.emit.writer import Writer
from attncc.graph.core import Operand
from attncc.rewrite.backward import gradient_name
from attncc.rewrite.reassociate import StateSum
from attncc.spec.expr import Const, Expr, Local, walk


class GradientPrinter(SumPrinter):
    """Prints what states give to gradients of rows, and sums over rows to those of keys."""

    def _of_sums(self) -> dict[str, Expr]:
        """The gradients of sums by what backward has at hand: where it lacks something, no operand asks for it."""
        known = {*self.uniform, *self.statistics()}

        def read(expr: Expr) -> set[str]:
            return {each.name for each in walk(expr) if isinstance(each, Local)}

        return {name: expr for name, expr in self.plan.of_sums if read(expr) <= known}

    def _print_sum_gradients(self, writer: Writer) -> None:
        """Of each sum of a row the gradient, [batch * heads, group * rows, width or 1]."""
        of_sums = self._of_sums()
        arguments = ", ".join(["d_rows", *self.statistics()])
        with writer.block(f"def _sum_gradients({arguments}, numbers, slab, heads):"):
            writer.line('"""The gradients of the sums of a slab\'s rows, [batch * heads, group * rows, width]."""')
            exprs = [of_sums[each.node] for each in self.states.sums if each.node in of_sums]
            self.print_unpacking(writer, exprs)
            found = []
            for each in self.states.sums:
                gradient = of_sums.get(each.node, Const(0.0))  # how many keys there are has none
                written = self.plain(self.sum_texts, gradient, 6)
                if each.of_values:
                    factor = "" if gradient == Const(1) else f" * {written}"
                    found.append(f"_by_state(d_rows{factor}, (*slab.shape, heads))")
                else:
                    self.used.add("_row")
                    rows = f"_row({written}, d_rows, slab.shape)"
                    found.append(f"_by_state({rows}, (*slab.shape, heads))")
            writer.line(
                f"return {', '.join(found)}{',' * (len(found) == 1)}" if len(found) > 1 else f"return ({found[0]},)"
            )

    def _row_feature_gradients(self, at: int) -> str:
        """The gradient of a term's features of rows, by the states."""
        parts = []
        for place, (each, term) in enumerate(self.pairs()):
            if term == at and self._has_gradient(each):
                parts.append(self.given_to_rows(each, f"g{self.states.sums.index(each)}", f"s{place}"))
        return " + ".join(parts) or "None"

    def _key_feature_gradients(self, at: int) -> str:
        parts = []
        for place, (each, term) in enumerate(self.pairs()):
            if term == at and self._has_gradient(each):
                parts.append(f"torch.bmm(values, s{place}.mT)" if each.of_values else f"s{place}.mT")
        return " + ".join(parts) or "None"

    def _has_gradient(self, each: StateSum) -> bool:
        return each.node in self._of_sums()

    def _print_row_gradients(self, writer: Writer) -> None:
        statistics = "".join(f"{name}, " for name in self.statistics())
        with writer.block(f"def _row_gradients(found, {self.row_names}d_rows, {statistics}numbers, heads, slab):"):
            writer.line('"""What the keys that all rows of a slab see give to the gradients of rows."""')
            self.slab_start(writer)
            writer.line(f"{self.names('g')} = _sum_gradients(d_rows, {statistics}numbers, slab, heads)")
            writer.line("total = None")
            with writer.block("for sums in filter(None, found):"):
                self.print_loop(writer)
                self._print_recorded(writer, self.row_gradients, self.row_call("sums.near"))
                d_features = [self._row_feature_gradients(at) for at in range(len(self.states.terms))]
                writer.listing("d_features = (", [[each] for each in d_features], ")")
                writer.line(f"own = {self._pulled(self.row_gradients)}")
                writer.line("total = _added(total, own)")
            writer.line("return total")

    def _print_recorded(self, writer: Writer, operands: tuple[Operand, ...], call: str) -> None:
        """Features whose gradients go on to operands."""
        own = ", ".join(each.name for each in operands)
        with writer.block("with torch.enable_grad():"):
            writer.line(f"{own}{',' * (len(operands) == 1)} = _leaves({own})")
            writer.line(f"features = {call}")

    def _pulled(self, operands: tuple[Operand, ...]) -> str:
        leaves = ", ".join(each.name for each in operands) + "," * (len(operands) == 1)
        return f"_pulled(features, ({leaves}), d_features)"

    def _print_of_slab(self, writer: Writer) -> None:
        statistics = "".join(f"{name}, " for name in self.statistics())
        key_names = self.key_names if self.near else ""
        with writer.block(f"def _of_slab({self.row_names}{key_names}d_rows, {statistics}numbers, heads, slab):"):
            writer.line('"""What the rows of a slab add to the gradients of keys that all of them see."""')
            self.slab_start(writer)
            if self.near:
                writer.line("blocks = slab.blocks")
                place = "each" if self.plan.pieces is None else "slab.part.keys.below(slab.part.rows.at(each))"
                writer.line("places = [")
                with writer.indented():
                    writer.line(f"min(max({place} - blocks.low, 0), blocks.length - 1)")
                    writer.line("for each in slab.edges()")
                writer.line("]")
                writer.line(f"positions = [{self.at_keys('blocks.low + each')} for each in places]")
                own = "".join(f"_keys_at({each.name}, blocks, places, d_rows.dtype), " for each in self.keys.operands)
                heads = ", heads" if self.states.by_query_head else ""
                writer.line(f"near = _near({own}_positions_of(positions, d_rows), numbers{heads})")
            writer.line(f"{self.names('f')} = {self.row_call('near')}")
            writer.line(f"{self.names('g')} = _sum_gradients(d_rows, {statistics}numbers, slab, heads)")
            found = [
                self.added_by_rows(each, f"f{term}", f"g{self.states.sums.index(each)}") for each, term in self.pairs()
            ]
            self.print_result(writer, found, "slab.blocks", "slab.count")

    def _print_key_gradients(self, writer: Writer) -> None:
        core = self.operands.core
        own = self.key_gradients
        arguments = f"{self.block_names()}, numbers, blocks, first, count"
        with writer.block(f"def _key_gradients(found, {arguments}):"):
            writer.line('"""What the rows that see all keys of some blocks give to the gradients of these."""')
            self.block_start(writer)
            writer.line(f"values = {self.values_by_head(core.values)}")
            writer.line("total = None")
            with writer.block("for sums in filter(None, found):"):
                self.print_loop(writer)
                if own:
                    self._print_recorded(writer, own, self.key_call("sums.near"))
                    writer.line(f"{self.names('f')} = (each.detach() for each in features)")
                else:
                    writer.line(f"{self.names('f')} = {self.key_call('sums.near')}")
                d_values = [
                    f"torch.bmm(f{term}, s{place})" for place, (each, term) in enumerate(self.pairs()) if each.of_values
                ]
                writer.line(f"d_values = {' + '.join(d_values)}")
                writer.line(f"d_values = _by_key_head(d_values, {core.values}.shape)")
                if own:
                    d_features = [self._key_feature_gradients(at) for at in range(len(self.states.terms))]
                    expanded = [
                        [each if each == "None" else f"({each}).expand_as(f{at})"] for at, each in enumerate(d_features)
                    ]
                    writer.listing("d_features = (", expanded, ")")
                pulled = f"*{self._pulled(own)}, d_values" if own else "d_values,"
                writer.line(f"own = ({pulled})")
                writer.line("total = _added(total, own)")
            writer.line("return total")

    def added_arguments(self, suffix: str = "") -> tuple[list[str], list[str]]:
        """What the second pass of backward is given, and the totals that it adds to; keys are those of a part."""
        values = self.operands.core[self.operands.core.values]
        read = dict.fromkeys([*self.rows.operands, *self.keys.operands, values])
        names = [f"{each.name}{suffix}" if each in (*self.keys.operands, values) else each.name for each in read]
        statistics = [name for name in self.statistics() if name != "delta"]
        delta = ["out"] * self.plan.reads_delta + ["d_lse"] * (self.plan.reads_delta and self.plan.has_lse)
        totals = dict.fromkeys(gradient_name(each.name) for each in (*self.key_gradients, values))
        return [*names, "d_out", *statistics, *delta, "numbers"], [f"{name}{suffix}" for name in totals]

    def _print_add_key_gradients(self, writer: Writer) -> None:
        """The second pass of backward, over blocks of keys."""
        given, added = self.added_arguments()
        writer.listing("def _add_key_gradients(", [["slabs", *given], added], "):")
        with writer.indented():
            writer.line('"""Add what rows give to the gradients of keys that all rows of their slabs see."""')
            writer.line()
            with writer.block("def of_slab(slab):"):
                writer.line("d_rows = _rows_in(d_out, slab)")
                if self.plan.reads_delta:
                    lost = " - _rows_of(d_lse, slab)" if self.plan.has_lse else ""
                    writer.line(f"delta = (d_rows * _rows_in(out, slab)).sum(-1, keepdim=True){lost}")
                for each in self.rows.operands:
                    if each.kind.is_vector:
                        writer.line(f"{each.name}_rows = _rows_in({each.name}, slab)")
                keys = [each.name for each in self.keys.operands] if self.near else []
                arguments = [*self.row_values, *keys, "d_rows", *self.statistics_of_slab()]
                arguments += ["_entries_of(numbers, slab)", self.heads_of("slab"), "slab"]
                writer.listing("return _of_slab(", [arguments], ")")
            writer.line()
            with writer.block("for group in _by_blocks(slabs):"):
                writer.line("blocks = group[0].blocks")
                writer.line("own = _own_numbers(numbers, blocks)")
                writer.line(f"sums = _RunsOfBlocks(of_slab, {self.joined_by('blocks.ahead, True')}, group)")
                with writer.block("for first, count, found in sums.groups():"):
                    names_of_block = f"{self.block_names()}, own"
                    writer.line(f"given = _key_gradients(found, {names_of_block}, blocks, first, count)")
                    with writer.block("if given is not None:"):
                        for at, each in enumerate(self.key_gradients):
                            own = "" if each.kind.is_vector else "[..., 0]"
                            name = gradient_name(each.name)
                            writer.line(f"_add_to_keys({name}, given[{at}]{own}, blocks, first, count)")
                        values = gradient_name(self.operands.core.values)
                        writer.line(f"_add_to_keys({values}, given[{len(self.key_gradients)}], blocks, first, count)")
