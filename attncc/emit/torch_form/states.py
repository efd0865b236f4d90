"""States → the functions of the torch form that turn tokens into features, and features into sums over tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attncc.emit.operands import Operands
from attncc.emit.tile import Kernel
from attncc.emit.torch_form.tensors import TensorTexts
from attncc.emit.writer import Writer
from attncc.graph.core import Kind, Operand
from attncc.graph.ir import Graph, Node
from attncc.graph.ops import Op
from attncc.plan.model import Plan
from attncc.rewrite.backward import gradient_name
from attncc.rewrite.reassociate import States, StateSum
from attncc.rewrite.separable import Exponent, Term
from attncc.spec.expr import Const, Expr, Local, Name, Vector, names_in, rebuild, walk

_OF_ROWS = (Kind.ROW_VECTOR, Kind.ROW_NUMBER)


@dataclass(frozen=True, slots=True)
class _Side:
    """What features of one side read, and how their functions are called."""

    operands: tuple[Operand, ...]
    reads_position: bool
    position: str  # i or j


class StatesPrinter:
    """Prints the functions of one plan's states.

    Args:
        uniform: the numbers of the call, in the order of the tuple that functions get.
        kernel: the backward pass, whose row numbers gradients of sums are made of.
    """

    def __init__(
        self, plan: Plan, operands: Operands, uniform: tuple[Node, ...], kernel: Kernel, used: set[str]
    ) -> None:
        assert plan.states is not None
        self.states: States = plan.states
        self.plan = plan
        self.operands = operands
        self.numbers: Graph = plan.torch.numbers
        self.uniform = [node.name for node in uniform]
        self.kernel = kernel
        self.used = used
        self.rows = self._side("i", [self._row_parts(term) for term in self.states.terms])
        self.keys = self._side("j", [self._key_parts(term) for term in self.states.terms])
        # Numbers take the type of a tensor that their function is given.
        self.row_texts, self.key_texts, self.sum_texts = (
            TensorTexts(kernel, operands, used, in_place=False) for _ in range(3)
        )
        self.row_texts.rows = self.rows.operands[0].name
        self.key_texts.rows = self.keys.operands[0].name
        self.sum_texts.rows = "d_rows"
        self.near = self.states.has_exponents
        self.moving = self._moving()

    # --- what is read -----------------------------------------------------------------------------------------

    def _row_parts(self, term: Term) -> list[Expr]:
        parts = [term.row, *(each.row for each in term.factors)]
        parts += [one.slope for one in term.exponents if one.slope is not None]
        return parts + [row for one in term.exponents for row, _ in one.differences]

    def _key_parts(self, term: Term) -> list[Expr]:
        parts = [term.key, *(each.key for each in term.factors)]
        parts += [one.slope for one in term.exponents if one.slope is not None]
        return parts + [key for one in term.exponents for _, key in one.differences]

    def _written_out(self, expr: Expr) -> Expr:
        """The expression with numbers of tokens in place of their names; those of the call keep theirs."""
        if isinstance(expr, Local) and expr.name in self.numbers and expr.name not in self.uniform:
            node = self.numbers[expr.name]
            if node.op is Op.NUMBER:
                return self._written_out(node.value)
        return rebuild(expr, self._written_out)

    def _side(self, position: str, parts: list[list[Expr]]) -> _Side:
        exprs = [self._written_out(each) for some in parts for each in some]
        read = {each.name for expr in exprs for each in walk(expr) if isinstance(each, Local | Vector)}
        has_slope = any(one.slope is not None for term in self.states.terms for one in term.exponents)
        at = Name.I if position == "i" else Name.J
        if any(not term.factors for term in self.states.terms):  # their features are 1 for every token
            read.add(self.operands.core.rows if position == "i" else self.operands.core.values)
        return _Side(
            tuple(each for each in self.operands if each.name in read),
            has_slope or any(at in names_in(expr) for expr in exprs),
            position,
        )

    def _moving(self) -> list[Expr]:
        """The parts of exponents that a key has, each once: what features are relative to."""
        found = [key for term in self.states.terms for one in term.exponents for _, key in one.differences]
        return list(dict.fromkeys(found))

    @property
    def row_gradients(self) -> tuple[Operand, ...]:
        """The operands of rows that features give gradients."""
        own = self.operands.row_gradients(self.plan.torch.backward)
        return tuple(each for each in own if each in self.rows.operands)

    @property
    def key_gradients(self) -> tuple[Operand, ...]:
        """The operands of keys that features give gradients."""
        given = {operand.name for operand, _ in self.operands.totals(self.plan.torch.backward).values()}
        return tuple(each for each in self.keys.operands if each.name in given)

    # --- texts of calls ---------------------------------------------------------------------------------------

    @property
    def row_names(self) -> str:
        """The operands that features of rows read, as arguments."""
        return "".join(f"{each.name}, " for each in self.rows.operands)

    @property
    def row_values(self) -> list[str]:
        """Their parts of a slab."""
        return [
            f"_rows_in({each.name}, slab)" if each.kind.is_vector else f"_rows_of({each.name}, slab)"
            for each in self.rows.operands
        ]

    @property
    def key_names(self) -> str:
        """The operands that features of keys read."""
        return "".join(f"{each.name}, " for each in self.keys.operands)

    # --- functions --------------------------------------------------------------------------------------------

    def text(self) -> str:
        """All functions."""
        writer = Writer()
        printers = [self._print_row_features, self._print_key_features]
        if self.near:
            printers += [self._print_near, self._print_moved]
        printers += [self._print_joined, self._print_of_block, self._print_running, self._print_begun]
        printers += [self._print_sum_gradients]
        printers += [self._print_row_gradients] if self.row_gradients else []
        printers += [self._print_of_slab, self._print_key_gradients, self._print_add_key_gradients]
        for at, each in enumerate(printers):
            if at:
                writer.line()
                writer.line()
            each(writer)
        return writer.text()

    def _print_unpacking(self, writer: Writer, exprs: Iterable[Expr]) -> None:
        read = {each.name for expr in exprs for each in walk(self._written_out(expr)) if isinstance(each, Local)}
        names = [name if name in read else "_" for name in self.uniform]
        if any(name != "_" for name in names):
            writer.line(f"{', '.join(names)}{',' * (len(names) == 1)} = numbers")

    def _print_row_features(self, writer: Writer) -> None:
        i = "i, " if self.rows.reads_position else ""
        near = "near, " if self.near else ""
        with writer.block(f"def _row_features({self.row_names}{i}{near}numbers, shape):"):
            writer.line('"""What queries give to each term, [batch * heads, group * rows, features]."""')
            self._print_unpacking(writer, (each for term in self.states.terms for each in self._row_parts(term)))
            for at, term in enumerate(self.states.terms):
                writer.line(f"f{at} = {self._row_feature(term)}")
            writer.line(f"return {self._tuple('_by_state({}, shape)')}")

    def _print_key_features(self, writer: Writer) -> None:
        j = "j, " if self.keys.reads_position else ""
        near = "near, " if self.near else ""
        heads = ", heads" if self.states.by_query_head else ""
        with writer.block(f"def _key_features({self.key_names}{j}{near}numbers{heads}):"):
            writer.line('"""What keys give to each term, [batch * heads, keys, features]."""')
            self._print_unpacking(writer, (each for term in self.states.terms for each in self._key_parts(term)))
            if self.states.by_query_head:
                self.used.add("_of_heads")
                for each in self.keys.operands:
                    writer.line(f"{each.name} = _of_heads({each.name}, heads)")
            for at, term in enumerate(self.states.terms):
                writer.line(f"f{at} = {self._key_feature(term)}")
            writer.line(f"return {self._tuple('{}.flatten(0, 1)')}")

    def _tuple(self, template: str) -> str:
        names = [template.format(f"f{at}") for at in range(len(self.states.terms))]
        return f"{', '.join(names)}{',' * (len(names) == 1)}" if len(names) > 1 else f"({names[0]},)"

    def _row_feature(self, term: Term) -> str:
        return self._feature(
            [each.row for each in term.factors],
            [each.exponent for each in term.factors],
            [each.key == Const(1) for each in term.factors],
            term.row,
            term.exponent,
            of_row=True,
        )

    def _key_feature(self, term: Term) -> str:
        return self._feature(
            [each.key for each in term.factors],
            [each.exponent for each in term.factors],
            [each.row == Const(1) for each in term.factors],
            term.key,
            term.exponent,
            of_row=False,
        )

    def _feature(
        self,
        factors: list[Expr],
        exponents: list[Exponent],
        alone: list[bool],
        coefficient: Expr,
        exponent: Exponent,
        *,
        of_row: bool,
    ) -> str:
        """A product of vectors' formulas, times numbers."""
        texts = self.row_texts if of_row else self.key_texts
        vectors = []
        for formula, own, one_sided in zip(factors, exponents, alone, strict=True):
            if formula == Const(1) and own.is_zero:
                continue  # the other side's formula is summed by itself
            written = self._plain(texts, formula, 5 if own.is_zero else 6)
            if not own.is_zero:
                written = f"{written} * {self._power(own, of_row=of_row)}"
            vectors.append(f"({written}).sum(-1, keepdim=True)" if one_sided else written)
        numbers = [] if coefficient == Const(1) else [self._plain(texts, coefficient, 6)]
        if not exponent.is_zero:
            numbers.append(self._power(exponent, of_row=of_row))
        if not vectors:
            carrier = self.operands.core.rows if of_row else self.operands.core.values
            self.used.add("_ones")
            return " * ".join([f"_ones({carrier})", *numbers])
        while len(vectors) > 1:
            self.used.add("_outer")
            vectors[:2] = [f"_outer({vectors[0]}, {vectors[1]})"]
        return " * ".join([vectors[0], *numbers])

    def _power(self, exponent: Exponent, *, of_row: bool) -> str:
        """e to the part of an exponent that one side has, relative to a key near by."""
        texts = self.row_texts if of_row else self.key_texts
        parts = []
        if exponent.slope is not None:
            distance = "i - near.at" if of_row else "near.at - j"
            parts.append(f"{self._plain(texts, exponent.slope, 6)} * ({distance}).to({texts.rows}.dtype)")
        for row, key in exponent.differences:  # each by itself: whole numbers that are subtracted are exact
            at = self.moving.index(key)
            if of_row:
                self.used.add("_of_heads")
                parts.append(f"({self._plain(texts, row, 5)} + _of_heads(near.keys[{at}], shape[1]))")
            else:
                parts.append(f"({self._plain(texts, key, 5)} - near.keys[{at}])")
        return f"torch.exp({' + '.join(parts)})"

    def _plain(self, texts: TensorTexts, expr: Expr, context: int = 0) -> str:
        return texts.plain(_vectors_named(self._written_out(expr)), context)

    # --- exponents --------------------------------------------------------------------------------------------

    def _print_near(self, writer: Writer) -> None:
        heads = ", heads" if self.states.by_query_head else ""
        with writer.block(f"def _near({self.key_names}at, numbers{heads}):"):
            writer.line('"""The key that features are relative to: its position and its exponents."""')
            if not self.moving:
                writer.line("return _Near(at, ())")
                return
            self._print_unpacking(writer, self.moving)
            if self.states.by_query_head:
                for each in self.keys.operands:
                    writer.line(f"{each.name} = _of_heads({each.name}, heads)")
            written = [self._plain(self.key_texts, each) for each in self.moving]
            writer.line(f"return _Near(at, ({', '.join(written)}{',' * (len(written) == 1)}))")

    def _print_moved(self, writer: Writer) -> None:
        with writer.block("def _moved(states, start, end, numbers):"):
            writer.line('"""Sums over keys relative to one key, as sums relative to another."""')
            with writer.block("if start is end:"):
                writer.line("return states")
            self._print_unpacking(
                writer, (each.slope for term in self.states.terms for each in term.exponents if each.slope is not None)
            )
            names = [f"s{at}" for at in range(self._count())]
            writer.line(f"{', '.join(names)}{',' * (len(names) == 1)} = states")
            moves = [self._move(term) for term in self.states.terms]
            for at, move in enumerate(moves):
                if move is not None:
                    writer.line(f"move{at} = {move}")
            found = []
            for at, (_, term) in enumerate(self._pairs()):
                found.append(f"s{at} * move{term}" if moves[term] is not None else f"s{at}")
            writer.line(f"return {', '.join(found)}{',' * (len(found) == 1)}")

    def _move(self, term: Term) -> str | None:
        """The factor of a term's states, for [batch * heads, features, width]."""

        def of(exponent: Exponent) -> str:
            parts = []
            if exponent.slope is not None:
                parts.append(f"{self._plain(self.key_texts, exponent.slope, 6)} * (end.at - start.at)")
            for _, key in exponent.differences:
                at = self.moving.index(key)
                parts.append(f"(start.keys[{at}] - end.keys[{at}])")
            return " + ".join(parts)

        if all(each.is_zero for each in term.exponents):
            return None
        vectors = []
        for factor in term.factors:
            ones = f"torch.ones_like({_some_vector(factor.key)})" if factor.exponent.is_zero else ""
            vectors.append(ones or f"torch.exp({of(factor.exponent)})")
        has_vectors = any(not each.exponent.is_zero for each in term.factors)
        parts = []
        if has_vectors:
            while len(vectors) > 1:
                self.used.add("_outer")
                vectors[:2] = [f"_outer({vectors[0]}, {vectors[1]})"]
            parts.append(vectors[0])
        if not term.exponent.is_zero:
            parts.append(f"torch.exp(torch.as_tensor({of(term.exponent)}, dtype=torch.float64))")
        self.used.add("_as_factor")
        return f"_as_factor({' * '.join(parts)}, s0)"

    # --- sums -------------------------------------------------------------------------------------------------

    def _pairs(self) -> list[tuple[StateSum, int]]:
        """For every state the sum that it belongs to, and its term."""
        return [(each, term) for each in self.states.sums for term in each.terms]

    def _count(self) -> int:
        return len(self._pairs())

    def _print_joined(self, writer: Writer) -> None:
        if not self.near:
            with writer.block("def _joined(earlier, later):"):
                writer.line('"""Sums over keys of two runs, one behind the other."""')
                writer.line("return tuple(a + b for a, b in zip(earlier, later, strict=True))")
            return
        with writer.block("def _joined(to_later, turned, numbers, earlier, later):"):
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
            writer.line("states = zip(moved(earlier), moved(later), strict=True)")
            writer.line("return _Sums(tuple(a + b for a, b in states), near)")

    def _heads(self) -> str:
        return ", heads" if self.states.by_query_head else ""

    def _values(self, name: str) -> str:
        """The values, one for each state head."""
        if self.states.by_query_head:
            self.used.add("_of_heads")
            return f"_of_heads({name}, heads).flatten(0, 1)"
        return f"{name}.flatten(0, 1)"

    def _block_start(self, writer: Writer, values: bool) -> None:
        """Names for what a block's functions read."""
        core = self.operands.core
        writer.line("keys = blocks.keys(block)")
        writer.line(f"dtype = _wide({core.values}.dtype)")
        names = [each.name for each in self.keys.operands]
        for name in dict.fromkeys([*names, *([core.values] if values else [])]):
            writer.line(f"{name} = _keys_in({name}, blocks, keys, dtype)")
        if self.keys.reads_position:
            place = f"torch.arange(keys.start, keys.stop, device={core.values}.device)"
            writer.line(f"j = {self._at_keys(f'blocks.low + {place}[:, None]')}")

    def _block_names(self) -> str:
        core = self.operands.core
        return ", ".join(dict.fromkeys([*(each.name for each in self.keys.operands), core.values]))

    def _print_of_block(self, writer: Writer) -> None:
        core = self.operands.core
        with writer.block(f"def _of_block({self._block_names()}, numbers{self._heads()}, blocks, block):"):
            writer.line('"""What the keys of a block add to the sums of rows that see all of them."""')
            self._block_start(writer, values=True)
            if self.near:
                writer.line("at = 0 if blocks.ahead else keys.stop - keys.start - 1")
                own = "".join(f"{each.name}[:, :, at : at + 1], " for each in self.keys.operands)
                position = self._at_keys("blocks.low + keys.start + at")
                writer.line(f"near = _near({own}{position}, numbers{self._heads()})")
            j = "j, " if self.keys.reads_position else ""
            near = "near, " if self.near else ""
            writer.line(f"{self._names('f')} = _key_features({self.key_names}{j}{near}numbers{self._heads()})")
            writer.line(f"values = {self._values(core.values)}")
            found = [
                f"torch.bmm(f{term}.mT, values)" if each.of_values else f"f{term}.sum(1)[..., None]"
                for each, term in self._pairs()
            ]
            self._print_result(writer, found)

    def _print_running(self, writer: Writer) -> None:
        with writer.block(f"def _running_sums({self._block_names()}, numbers, heads):"):
            writer.line('"""Sums over runs of blocks of keys, for the slabs of one pass."""')
            writer.line()
            with writer.block("def of_block(blocks, block):"):
                own = f"_entries_of(numbers, blocks){self._heads()}"
                writer.line(f"return _of_block({self._block_names()}, {own}, blocks, block)")
            writer.line()
            writer.line(f"return _RunsOfSlabs(of_block, {self._joined_by('not blocks.ahead, False')})")

    def _joined_by(self, flags: str) -> str:
        if not self.near:
            return "lambda _: _joined"
        return f"lambda blocks: functools.partial(_joined, {flags}, _entries_of(numbers, blocks))"

    def _print_add_key_gradients(self, writer: Writer) -> None:
        """The second pass of backward, over blocks of keys."""
        core = self.operands.core
        gradients = [gradient_name(each.name) for each in self.key_gradients]
        values = gradient_name(core.values)
        statistics = [node.name for node in self.kernel.statistics if node.name != "delta"]
        delta = ["out"] * self.plan.reads_delta + ["d_lse"] * (self.plan.reads_delta and self.plan.has_lse)
        names = dict.fromkeys([*(each.name for each in (*self.rows.operands, *self.keys.operands)), core.values])
        given = ", ".join([*names, "d_out", *statistics, *delta, "numbers", "heads"])
        added = ", ".join(dict.fromkeys([*gradients, values]))
        writer.listing("def _add_key_gradients(", [["slabs", *given.split(", ")], added.split(", ")], "):")
        with writer.indented():
            writer.line('"""Add what rows give to the gradients of keys that all rows of their slabs see."""')
            writer.line()
            with writer.block("def of_slab(slab):"):
                writer.line("d_rows = _rows_in(d_out, slab)")
                if self.plan.reads_delta:
                    lost = " - _rows_of(d_lse, slab)" if self.plan.has_lse else ""
                    writer.line(f"delta = (d_rows * _rows_in(out, slab)).sum(-1, keepdim=True){lost}")
                keys = [each.name for each in self.keys.operands] if self.near else []
                of_rows = ["delta" if name == "delta" else f"_rows_of({name}, slab)" for name in self._statistics()]
                arguments = [*self.row_values, *keys, "d_rows", *of_rows]
                writer.listing("return _of_slab(", [[*arguments, "_entries_of(numbers, slab)", "heads", "slab"]], ")")
            writer.line()
            with writer.block("for group in _by_blocks(slabs):"):
                writer.line("blocks = group[0].blocks")
                writer.line("own = _entries_of(numbers, blocks)")
                writer.line(f"sums = _RunsOfBlocks(of_slab, {self._joined_by('blocks.ahead, True')}, group)")
                with writer.block("for block in sums.order():"):
                    names_of_block = f"{self._block_names()}, own{self._heads()}"
                    writer.line(f"given = _key_gradients(sums.of(block), {names_of_block}, blocks, block)")
                    with writer.block("if given is not None:"):
                        writer.line("keys = blocks.keys(block)")
                        for at, each in enumerate(self.key_gradients):
                            own = "" if each.kind.is_vector else "[..., 0]"
                            writer.line(f"{gradient_name(each.name)}[blocks.entries, :, keys] += given[{at}]{own}")
                        writer.line(f"{values}[blocks.entries, :, keys] += given[{len(gradients)}]")

    def _at_keys(self, coordinate: str) -> str:
        """The text of a key's position."""
        return coordinate if self.plan.pieces is None else f"blocks.part.keys.at({coordinate})"

    def _at_rows(self, coordinate: str) -> str:
        return coordinate if self.plan.pieces is None else f"slab.part.rows.at({coordinate})"

    def _print_result(self, writer: Writer, found: list[str]) -> None:
        if self.near:
            writer.listing("states = (", [[each] for each in found], ")")
            writer.line("return _Sums(states, near)")
        elif len(found) == 1:
            writer.line(f"return ({found[0]},)")
        else:
            writer.listing("return (", [[each] for each in found], ")")

    def _names(self, letter: str) -> str:
        count = len(self.states.terms) if letter == "f" else self._count()
        return ", ".join(f"{letter}{at}" for at in range(count)) + "," * (count == 1)

    def _slab_start(self, writer: Writer) -> None:
        if self.rows.reads_position:
            rows = self.operands.core.rows
            i = f"torch.arange(slab.first, slab.last + 1, device={rows}.device)[:, None]"
            writer.line(f"i = {self._at_rows(i)}")

    def _row_call(self, near: str) -> str:
        i = "i, " if self.rows.reads_position else ""
        near = f"{near}, " if self.near else ""
        return f"_row_features({self.row_names}{i}{near}numbers, (*slab.shape, heads))"

    def _print_loop(self, writer: Writer) -> None:
        """Names for the states of each run, and for the features of rows."""
        writer.line(f"{self._names('s')} = sums.states" if self.near else f"{self._names('s')} = sums")

    def _print_begun(self, writer: Writer) -> None:
        with writer.block(f"def _begun(found, {self.row_names}numbers, heads, kv_heads, slab):"):
            writer.line(
                '"""The sums of a slab\'s rows over the keys that all of them see; None where there are none."""'
            )
            self._slab_start(writer)
            writer.line("total = None")
            with writer.block("for sums in filter(None, found):"):
                self._print_loop(writer)
                writer.line(f"{self._names('f')} = {self._row_call('sums.near')}")
                writer.line("own = (")
                with writer.indented():
                    at = 0
                    for each in self.states.sums:
                        products = [f"torch.bmm(f{term}, s{at + place})" for place, term in enumerate(each.terms)]
                        at += len(each.terms)
                        writer.line(f"{' + '.join(products)},")
                writer.line(")")
                writer.line("total = own if total is None else tuple(a + b for a, b in zip(total, own, strict=True))")
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
        return f"slab.shape[0] * kv_heads, -1, {name}.shape[-1]"

    def _of_sums(self) -> dict[str, Expr]:
        """The gradients of sums by what backward has at hand: where it lacks something, no operand asks for it."""
        known = {*self.uniform, *self._statistics()}

        def read(expr: Expr) -> set[str]:
            return {each.name for each in walk(expr) if isinstance(each, Local)}

        return {name: expr for name, expr in self.plan.of_sums if read(expr) <= known}

    # --- gradients --------------------------------------------------------------------------------------------

    def _statistics(self) -> list[str]:
        return [node.name for node in self.kernel.statistics]

    def _print_sum_gradients(self, writer: Writer) -> None:
        """Of each sum of a row the gradient, [batch * heads, group * rows, width or 1]."""
        of_sums = self._of_sums()
        arguments = ", ".join(["d_rows", *self._statistics()])
        with writer.block(f"def _sum_gradients({arguments}, numbers, slab, heads):"):
            writer.line('"""The gradients of the sums of a slab\'s rows, [batch * heads, group * rows, width]."""')
            exprs = [of_sums[each.node] for each in self.states.sums if each.node in of_sums]
            self._print_unpacking(writer, exprs)
            found = []
            for each in self.states.sums:
                gradient = of_sums.get(each.node, Const(0.0))  # how many keys there are has none
                written = self._plain(self.sum_texts, gradient, 6)
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
        for place, (each, term) in enumerate(self._pairs()):
            if term == at and self._has_gradient(each):
                parts.append(f"torch.bmm(g{self.states.sums.index(each)}, s{place}.mT)")
        return " + ".join(parts) or "None"

    def _key_feature_gradients(self, at: int) -> str:
        parts = []
        for place, (each, term) in enumerate(self._pairs()):
            if term == at and self._has_gradient(each):
                parts.append(f"torch.bmm(values, s{place}.mT)" if each.of_values else f"s{place}.mT")
        return " + ".join(parts) or "None"

    def _has_gradient(self, each: StateSum) -> bool:
        return each.node in self._of_sums()

    def _print_row_gradients(self, writer: Writer) -> None:
        statistics = "".join(f"{name}, " for name in self._statistics())
        with writer.block(f"def _row_gradients(found, {self.row_names}d_rows, {statistics}numbers, heads, slab):"):
            writer.line('"""What the keys that all rows of a slab see give to the gradients of rows."""')
            self._slab_start(writer)
            writer.line(f"gradients = _sum_gradients(d_rows, {statistics}numbers, slab, heads)")
            names = ", ".join(f"g{at}" for at in range(len(self.states.sums)))
            writer.line(f"{names}{',' * (len(self.states.sums) == 1)} = gradients")
            writer.line("total = None")
            with writer.block("for sums in filter(None, found):"):
                self._print_loop(writer)
                own = [each.name for each in self.row_gradients]
                i = "i, " if self.rows.reads_position else ""
                near, given = ("near, ", ", near=sums.near") if self.near else ("", "")
                with writer.block(f"def features({', '.join(own)}{given}):"):
                    writer.line(f"return _row_features({self.row_names}{i}{near}numbers, (*slab.shape, heads))")
                d_features = [self._row_feature_gradients(at) for at in range(len(self.states.terms))]
                writer.listing("d_features = (", [[each] for each in d_features], ")")
                writer.line(f"own = _pulled(features, ({', '.join(own)},), d_features)")
                writer.line("total = own if total is None else tuple(a + b for a, b in zip(total, own, strict=True))")
            writer.line("return total")

    def _print_of_slab(self, writer: Writer) -> None:
        statistics = "".join(f"{name}, " for name in self._statistics())
        key_names = self.key_names if self.near else ""
        with writer.block(f"def _of_slab({self.row_names}{key_names}d_rows, {statistics}numbers, heads, slab):"):
            writer.line('"""What the rows of a slab add to the gradients of keys that all of them see."""')
            self._slab_start(writer)
            if self.near:
                writer.line("blocks = slab.blocks")
                if self.plan.pieces is None:
                    writer.line("at = (slab.last if blocks.ahead else slab.first) - blocks.low")
                else:
                    writer.line("position = slab.part.rows.at(slab.last if blocks.ahead else slab.first)")
                    writer.line("at = slab.part.keys.below(position) - blocks.low")
                writer.line("at = min(max(at, 0), blocks.length - 1)")
                dtype = "d_rows.dtype"
                own = "".join(
                    f"_keys_in({each.name}, blocks, slice(at, at + 1), {dtype}), " for each in self.keys.operands
                )
                heads = ", heads" if self.states.by_query_head else ""
                writer.line(f"near = _near({own}{self._at_keys('blocks.low + at')}, numbers{heads})")
            writer.line(f"{self._names('f')} = {self._row_call('near')}")
            writer.line(f"gradients = _sum_gradients(d_rows, {statistics}numbers, slab, heads)")
            names = ", ".join(f"g{at}" for at in range(len(self.states.sums)))
            writer.line(f"{names}{',' * (len(self.states.sums) == 1)} = gradients")
            found = []
            for each, term in self._pairs():
                at = self.states.sums.index(each)
                found.append(f"torch.bmm(f{term}.mT, g{at})")
            self._print_result(writer, found)

    def _print_key_gradients(self, writer: Writer) -> None:
        core = self.operands.core
        own = [each.name for each in self.key_gradients]
        with writer.block(f"def _key_gradients(found, {self._block_names()}, numbers{self._heads()}, blocks, block):"):
            writer.line('"""What the rows that see all keys of a block give to the gradients of keys and of values."""')
            self._block_start(writer, values=True)
            writer.line(f"values = {self._values(core.values)}")
            writer.line("total = None")
            with writer.block("for sums in filter(None, found):"):
                self._print_loop(writer)
                j = "j, " if self.keys.reads_position else ""
                near, given = ("near, " if own else "sums.near, ", ", near=sums.near") if self.near else ("", "")
                call = f"_key_features({self.key_names}{j}{near}numbers{self._heads()})"
                if own:
                    with writer.block(f"def features({', '.join(own)}{given}):"):
                        writer.line(f"return {call}")
                    call = f"features({', '.join(own)})"
                writer.line(f"{self._names('f')} = {call}")
                d_values = [
                    f"torch.bmm(f{term}, s{place})"
                    for place, (each, term) in enumerate(self._pairs())
                    if each.of_values
                ]
                writer.line(f"d_values = {' + '.join(d_values)}")
                writer.line(f"d_values = _by_key_head(d_values, {core.values}.shape)")
                if own:
                    d_features = [self._key_feature_gradients(at) for at in range(len(self.states.terms))]
                    expanded = [
                        [each if each == "None" else f"({each}).expand_as(f{at})"] for at, each in enumerate(d_features)
                    ]
                    writer.listing("d_features = (", expanded, ")")
                    writer.line(f"own = (*_pulled(features, ({', '.join(own)},), d_features), d_values)")
                else:
                    writer.line("own = (d_values,)")
                writer.line("total = own if total is None else tuple(a + b for a, b in zip(total, own, strict=True))")
            writer.line("return total")


def _some_vector(expr: Expr) -> str:
    return next(each.name for each in walk(expr) if isinstance(each, Vector))


def _vectors_named(expr: Expr) -> Expr:
    if isinstance(expr, Vector):
        return Local(expr.name)
    return rebuild(expr, _vectors_named)
