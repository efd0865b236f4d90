"""Tile program → Triton: what a tile of pairs reads beside products: entries of tables, and formulas by channel.

Channels are taken one at a time: a number of each row and of each key of the tile, from a copy of the vectors in which
the numbers of one channel lie side by side.
"""

from __future__ import annotations

from attncc.emit.expressions import CONJUNCT
from attncc.emit.tile import Sweep, may_fail
from attncc.emit.triton_form.scope import BLOCK, LANES, POSITION, STEP, KernelScope, list_size, width_of
from attncc.graph.ir import Node
from attncc.graph.ops import Axis
from attncc.plan.lists import LIST as LIST_WIDTH
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Channel,
    Const,
    Entry,
    Expr,
    Local,
    Member,
    Name,
    Symbol,
    Type,
    Vector,
    Width,
    rebuild,
    type_of,
    walk,
)


class PairPrinter:
    """Writes the statements of one tile body that belong to entries and channels.

    Args:
        rename: the names under which numbers of pairs are held, as far as they differ from their nodes'.
    """

    def __init__(self, kernel: KernelScope, sweep: Sweep, rename: dict[str, str]) -> None:
        self.kernel = kernel
        self.sweep = sweep
        self.writer = kernel.writer
        self.rename = rename
        self.swept = kernel.swept
        self.block = BLOCK[kernel.swept]
        self.shape = f"[{BLOCK[kernel.fixed]}, {self.block}]"

    # --- entries ----------------------------------------------------------------------------------------------

    def print_entry(self, node: Node) -> None:
        """A number for each pair, by its distance or by the indices of its expression."""
        name, table = node.name, node.inputs[0]
        if isinstance(node.expr, Entry):
            number = ".to(tl.float32)" if self._is_asked(table) else ""
            self.writer.line(f"{name} = tl.load({table}_ptr + {self._place(node.expr)}){number}")
            if not self._varies(node.expr):
                self.writer.line(f"{name} = tl.broadcast_to({name}, {self.shape})")
            return
        self.kernel.used.add("_load_entries")
        sign = "-" if self.kernel.rows_fixed else "+"
        lanes = LANES[self.swept]
        if self.kernel.laid_out:
            lanes = f"({self.kernel.place(self.swept, lanes)})"
        pointers = f"{table}_at[:, None] {sign} {lanes}[None, :]"
        self.writer.line(f"{name} = _load_entries({pointers}, visible, MASKED)")

    def print_asked(self, predicate: Expr) -> Expr:
        """Look up what a predicate asks of tables and lists; what stands in its place, as names."""
        found: dict[Expr, Expr] = {}

        def named(expr: Expr) -> Expr:
            inner = rebuild(expr, named)
            if not isinstance(inner, Entry | Member):
                return inner
            if inner not in found:
                number = f"_{len(found) + 1}" if found else ""
                if isinstance(inner, Entry):
                    name = f"{inner.name}_asked{number}"
                    self.writer.line(f"{name} = tl.load({inner.name}_ptr + {self._place(inner)})")
                else:
                    assert isinstance(inner.of, Local)
                    name = f"{inner.of.name}_names{number}"
                    self._member(inner.element, inner.of.name, name)
                found[inner] = Local(name)
            return found[inner]

        return named(predicate)

    def _member(self, element: Expr, of: str, name: str) -> None:
        """Whether numbers are in the lists of their rows; a tile of keys in order has two of wide blocks at most."""
        kernel, writer = self.kernel, self.writer
        assert kernel.listing is not None
        kernel.used.add("_is_named")
        lists, rest = f"{of}_at", f"{kernel.listing.lists[of]}, {list_size(of)}"
        number = kernel.expression(element, pair=True, rename=self.rename, context=CONJUNCT)
        match element:
            case Binary(op=BinaryOp.FLOOR_DIVIDE, left=Symbol(name=Name.J), right=Const(value=int(width))) if (
                width >= LIST_WIDTH and not kernel.moves(Axis.COLUMN)
            ):
                kernel.used.add("_floor_divide")
                for end, reduced in (("first", "min"), ("last", "max")):
                    writer.line(f"{name}_{end} = _floor_divide(tl.{reduced}({POSITION[Axis.COLUMN]}, 0), {width})")
                    asked = f"tl.zeros([{BLOCK[Axis.ROW]}], tl.int32) + {name}_{end}"
                    writer.line(f"in_{end} = _is_named({asked}, {lists}, {rest})")
                ends = ", ".join(kernel.broadcast(f"in_{end}", Axis.ROW) for end in ("first", "last"))
                writer.line(f"{name} = tl.where({number} == {name}_first, {ends})")
            case _:
                lists = kernel.broadcast(lists, Axis.ROW)
                writer.line(f"{name} = _is_named(tl.zeros({self.shape}, tl.int32) + {number}, {lists}, {rest})")

    def _place(self, entry: Entry) -> str:
        """Where an entry lies in its table; indices of pairs that are not related are moved into the table."""
        self.kernel.used.add("_clamp")
        first = len(self.kernel.table_axes[entry.name]) - len(entry.indices)  # an axis of batch entries has no index
        place = "batch" if first else ""
        far = self.kernel.listing is not None  # tables of pairs may be longer than 32 bits
        place = f"tl.cast({place}, tl.int64)" if far and place else place
        for axis, index in enumerate(entry.indices, first):
            at = f"_clamp({self._whole(index)}, {entry.name}_size_{axis})"
            at = f"tl.cast({at}, tl.int64)" if far else at
            place = f"({place}) * {entry.name}_size_{axis} + {at}" if place else at
        return place

    def _whole(self, index: Expr) -> str:
        text = self.kernel.expression(index, pair=True, rename=self.rename)
        if self.kernel.listing is not None:
            return text
        plain = type_of(index) is Type.INT and not any(isinstance(each, Local) for each in walk(index))
        return text if plain else f"tl.cast({text}, tl.int32)"

    def _is_asked(self, table: str) -> bool:
        return self.kernel.listing is not None and table in self.kernel.listing.tables

    # --- channels ---------------------------------------------------------------------------------------------

    def print_channels(self, node: Node) -> None:
        """The sum of a formula over the channels."""
        formula = node.value
        self.writer.line(f"{node.name} = tl.zeros({self.shape}, tl.float32)")
        with self.writer.block(f"for channel in range(0, {self._width([formula])}):"):
            self._load([formula])
            self.writer.line(f"{node.name} += {self._write(formula)}")

    def print_spreads(self, nodes: list[Node]) -> None:
        """For each channel the sum of a formula over the swept axis, added to one column of a tile of vectors."""
        self.kernel.used.add("_add_channel")
        formulas = [node.value for node in nodes]
        with self.writer.block(f"for channel in range(0, {width_of(nodes[0])[0]}):"):
            self._load(formulas)
            for node in nodes:
                source = Local(node.inputs[0])
                is_one = node.value == Const(1)
                product = source if is_one else Binary(BinaryOp.MULTIPLY, source, node.value)
                text = self._write(product)
                total = f"_add_channel({node.name}, channel, tl.sum({{}}, 1), {width_of(node)[1]})"
                if may_fail(node.value):  # 0 times what a formula makes of an unrelated pair is not always 0
                    self.writer.line(f"part = {text}")
                    with self.writer.block("if MASKED:"):
                        self.writer.line("part = tl.where(related, part, 0.0)")
                    text = "part"
                self.writer.line(f"{node.name} = {total.format(text)}")

    def _width(self, formulas: list[Expr]) -> str:
        node = next(node for node in self._vectors(formulas))
        return width_of(node)[0]

    def _vectors(self, formulas: list[Expr]) -> list[Node]:
        names = {each.name for formula in formulas for each in walk(formula) if isinstance(each, Vector)}
        return [node for node in (*self.kernel.kernel.loads, *self.sweep.loads) if node.name in names]

    def _load(self, formulas: list[Expr]) -> None:
        for node in self._vectors(formulas):
            step = f"channel * {self.kernel.length(node.axes[0])}"
            if node.axes[0] is self.swept:
                spaced = f"{STEP[self.swept]}, " if self.kernel.laid_out else ""
                function = "_load_spaced" if spaced else "_load_numbers"
                self.kernel.used |= {"_load_spaced"} if spaced else set()
                arguments = f"{node.name}_channels_ptr + {step}, {spaced}visible, 0.0, {self.block}, MASKED"
                loaded = f"{function}({arguments})"
            else:
                loaded = f"tl.load({node.name}_at + {step})"
            self.writer.line(f"{node.name}_channel = {loaded}.to(tl.float32)")

    def _write(self, formula: Expr) -> str:
        """A formula of channels, spread over pairs."""
        names = {node.name: node for node in self._vectors([formula])}
        rename = {
            f"{name}_channel": self.kernel.broadcast(f"{name}_channel", each.axes[0]) for name, each in names.items()
        }

        def numbers(expr: Expr) -> Expr:
            match expr:
                case Vector(name=name):
                    return Local(f"{name}_channel")
                case Channel():
                    return Local("channel")
                case Width(vector=vector):
                    return Local(self._width([vector]))
                case _:
                    return rebuild(expr, numbers)

        return self.kernel.expression(numbers(formula), pair=True, rename=self.rename | rename)

    # --- sums by distance -------------------------------------------------------------------------------------

    def print_offset_sum(self, node: Node, source: str) -> None:
        """The sums of a number over the pairs at one distance, added to those that the program holds in memory."""
        if self.kernel.laid_out:
            self.kernel.used.add("_add_by_spaced_offset")
            first = self.kernel.place(Axis.COLUMN, "column")
            start = f"{node.name}_at - ({first}), {node.name}_line, {STEP[Axis.COLUMN]}"
            self.writer.line(f"_add_by_spaced_offset({start}, {source}, BLOCK_M, BLOCK_N)")
            return
        self.kernel.used.add("_add_by_offset")
        self.writer.line(f"_add_by_offset({node.name}_at - column, {node.name}_line, {source}, BLOCK_M, BLOCK_N)")

    def _varies(self, expr: Expr) -> bool:
        return self.kernel.spans(expr, Axis.ROW) and self.kernel.spans(expr, Axis.COLUMN)
