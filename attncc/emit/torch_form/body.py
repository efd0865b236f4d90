"""Tile program → torch statements: numbers of pairs as tensors, in place where nothing else needs the old value.

A tile of pairs is [batch, heads, rows, keys]; numbers of a row are [batch, heads, rows, 1], of a key [keys] or
[batch, heads, 1, keys]. Vectors are folded to [batch * kv heads, group * rows, width] and
[batch * kv heads, keys, width] for the products.
"""

from __future__ import annotations

from itertools import takewhile

from attncc.emit.operands import Operands
from attncc.emit.tile import Kernel, Sweep
from attncc.emit.torch_form.channels import print_channels, print_spreads
from attncc.emit.torch_form.products import Products
from attncc.emit.torch_form.tensors import TensorTexts
from attncc.emit.writer import Writer
from attncc.graph.ir import Node, peaked
from attncc.graph.ops import Axis, Op
from attncc.spec.expr import Binary, BinaryOp, Const, Entry, Expr, Local, Type, substitute, type_of, walk


class TorchBody(TensorTexts):
    """Prints the sweeps of one kernel.

    Args:
        together: whether batch entries may stand for slabs, each with pairs of its own.
    """

    def __init__(
        self,
        writer: Writer,
        kernel: Kernel,
        operands: Operands,
        used: set[str],
        *,
        in_place: bool,
        together: bool = False,
    ) -> None:
        super().__init__(kernel, operands, used, in_place=in_place)
        self.writer = writer
        self.workspaces = 0
        self.rescaled: frozenset[str] = frozenset()  # sums of the sweep that is being printed
        self.fused: set[str] = set()  # numbers that a product has computed already
        self.products: dict[str, Expr] = {}  # numbers as they are once a product has multiplied by a scalar
        self.scaled = Products(kernel)
        self.onto: dict[str, Node] = {}  # for products, the entries that they are added to
        self.together = together

    # --- one sweep --------------------------------------------------------------------------------------------

    def print_sweep(self, sweep: Sweep) -> None:
        """The statements for one chunk of keys; accumulators exist already."""
        self.rescaled = sweep.rescaled
        steps = self._order(sweep)
        self.onto = self.scaled.entries_under(steps) if self.in_place else {}
        spread: set[str] = set()
        for at, node in enumerate(steps):
            later = {name for each in steps[at + 1 :] for name in _read(each)}
            dead = {name for name in node.inputs if name in self.full and name not in later}
            if node.op is not Op.SPREAD:
                self._print(node, dead)
            elif node.name not in spread:  # gradients of vectors that meet go over the channels together
                together = list(takewhile(lambda each: each.op is Op.SPREAD, steps[at:]))
                together = [each for each in together if each.width == node.width]
                spread |= {each.name for each in together}
                print_spreads(self, together)

    def _order(self, sweep: Sweep) -> list[Node]:
        """Body and reductions, each reduction right after what it reduces, so that memory can be reused at once."""
        waiting = list(sweep.reductions)
        done: set[str] = set()
        steps: list[Node] = []
        tiles = {node.name for node in sweep.body}

        def flush(peak_only: bool) -> None:
            for node in [each for each in waiting if each.op is Op.PEAK or not peak_only]:
                if all(name in done for name in node.inputs if name in tiles):
                    waiting.remove(node)
                    steps.append(node)

        for node in sweep.body:
            steps.append(node)
            done.add(node.name)
            flush(peak_only=sweep.peak is not None and sweep.peak in waiting)
        flush(peak_only=False)
        return steps

    def _print(self, node: Node, dead: set[str]) -> None:
        match node.op:
            case Op.RELATED:
                return
            case Op.DOT:
                self._print_dot(node)
            case Op.NUMBER if node.name in self.fused:
                return
            case Op.ENTRY if node in self.onto.values():
                return
            case Op.ENTRY:
                self._print_entry(node)
            case Op.CHANNELS:
                print_channels(self, node)
            case Op.NUMBER if not self.is_full(node.value):
                self.writer.line(f"{node.name} = {self.tile(self.plain(node.value))}")
            case Op.NUMBER if self.in_place and self._is_summed_by_distance(node):
                self.writer.line(f"{node.name} = {self._tilted(node, dead)}")
            case Op.NUMBER:
                value = self.products.get(node.name, node.value)
                self.writer.line(f"{node.name} = {self.value(value, dead)}")
            case Op.RESTRICT:
                self._print_restrict(node, dead)
            case Op.PEAK:
                self._print_peak(node)
            case Op.SUM:
                self._print_sum(node)
            case Op.CONTRACT:
                self._print_contract(node)
            case _:
                raise TypeError(f"{node.op} in a sweep")

    def _is_summed_by_distance(self, node: Node) -> bool:
        sums = [each for sweep in self.kernel.sweeps for each in sweep.sums if each.axes == (Axis.OFFSET,)]
        return node.name not in self.products and any(each.inputs[0] == node.name for each in sums)

    def _tilted(self, node: Node, dead: set[str]) -> str:
        """A number of pairs in the room that sums along diagonals ask for."""
        room = f"_tilted(shape, chunk.count, {self.rows})"
        match node.value:
            case Binary(op=BinaryOp.MULTIPLY, left=Local(name=left), right=Local(name=right)) if (
                left in self.full and right in self.full
            ):
                left, right = (self.rename.get(name, name) for name in (left, right))
                return f"torch.mul({left}, {right}, out={room})"
            case _:
                return f"{room}.copy_({self.value(node.value, dead)})"

    def tile(self, text: str) -> str:
        """A number of pairs that lacks axes, with all of them."""
        self.used.add("_tile" if self.in_place else "_spread")
        if self.in_place:
            return f"_tile({text}, {self.rows}, shape, chunk)"
        return f"_spread({text}, {self.rows}, hidden.shape[-1])"

    def print_row(self, node: Node, rows: set[str]) -> None:
        """A number of rows; `rows` names those that have all axes, and takes up this one."""
        text = self.plain(node.value)
        if self.in_place and Axis.ROW in node.axes:
            if not any(name in rows for name in node.inputs):
                self.used.add("_row")
                text = f"_row({text}, {self.rows}, shape)"
            rows.add(node.name)
        elif Axis.ROW in node.axes and type_of(node.value) is Type.INT:
            text = f"({text}).to({self.rows}.dtype)"
        self.writer.line(f"{node.name} = {text}")

    def _print_dot(self, node: Node) -> None:
        row, column = node.inputs
        if self._axis(row) is Axis.COLUMN:
            row, column = column, row
        if node.name in self.onto:
            self._print_dot_onto(node, row, column)
        elif self.in_place:
            name, factor = self._scaled(node)
            arguments = f"{row}, {column}_tile, work[{self.workspaces}], shape{factor}"
            self.writer.line(f"{name} = _product({arguments})")
            self.workspaces += 1
        else:
            self.writer.line(f"{node.name} = _scores({row}, {column})")

    def _print_dot_onto(self, dot: Node, row: str, column: str) -> None:
        """A product that is added to numbers of distances while it is taken."""
        entry = self.onto[dot.name]
        number, factor = self.scaled.reader(dot)
        self.used |= {"_by_distance", "_product_onto"}
        start = f"_by_distance({entry.inputs[0]}, slab, chunk, work[{self.workspaces}])"
        self.writer.line(f"{number.name} = _product_onto({row}, {column}_tile, {start}{factor})")
        self.fused.add(number.name)
        self.workspaces += 1

    def _scaled(self, dot: Node) -> tuple[str, str]:
        """The number that a dot product becomes at once, and a factor, where its one reader multiplies by a scalar."""
        found = self.scaled.part(dot)
        if found is None:
            return dot.name, ""
        number, part, factor = found
        if part == number.value:
            self.fused.add(number.name)
            return number.name, factor
        self.products[number.name] = substitute(number.value, {part: Local(dot.name)})
        return dot.name, factor

    def _axis(self, name: str) -> Axis:
        return next(node.axes[0] for node in self.kernel.operands if node.name == name)

    def _print_restrict(self, node: Node, dead: set[str]) -> None:
        source, fill = node.inputs[0], self.plain(_real(node.value))
        text = self.rename.get(source, source)
        if source not in self.tiles:  # a constant: one small tile serves all heads
            entries = "shape[0]" if self.together else "1"
            shape = f"{self.rows}.new_full(({entries}, 1, shape[2], chunk.count), "
            alike = f"torch.full_like(hidden, {source}, dtype={self.rows}.dtype)"
            tile = f"{shape}{source})" if self.in_place else alike
            hide = f"_hide({tile}, chunk, {fill}, call)" if self.in_place else f"{tile}.masked_fill(hidden, {fill})"
            self.writer.line(f"{node.name} = {hide}")
        elif not self.in_place:
            whole = text if source in self.full else self.tile(text)
            self.writer.line(f"{node.name} = {whole}.masked_fill(hidden, {fill})")
        elif source not in self.full:
            self.writer.line(f"{node.name} = _hide({self.tile(text)}, chunk, {fill}, call)")
        elif source in dead:
            self.rename[node.name] = text
            self.writer.line(f"_hide({text}, chunk, {fill}, call)")
        else:
            self.writer.line(f"{node.name} = _hide({text}.clone(), chunk, {fill}, call)")

    def _print_peak(self, node: Node) -> None:
        largest = [self.rename.get(name, name) for name in peaked(node)]
        if not self.in_place:
            self._print_plain_peak(node, largest)
            return
        text = f"{largest[0]}.amax(-1, keepdim=True)"
        for each in largest[1:]:
            text = f"torch.maximum({text}, {each}.amax(-1, keepdim=True))"
        self.writer.line(f"new_peak = torch.maximum(peak, {text})")
        self.writer.line("shrink = peak.sub_(new_peak).exp_()")
        self.writer.line("peak = new_peak")

    def _print_plain_peak(self, node: Node, largest: list[str]) -> None:
        """Any number of the row will do, so no gradient flows through it."""
        text = f"{largest[0]}.detach().amax(-1, keepdim=True)"
        for each in largest[1:]:
            text = f"torch.maximum({text}, {each}.detach().amax(-1, keepdim=True))"
        start = f"torch.finfo({self.rows}.dtype).min" if node.expr is None else self.plain(node.expr)
        self.used.add("_maximum")
        self.writer.line(f"peak = _maximum({text}, {start})")

    def _print_sum(self, node: Node) -> None:
        source = self.rename.get(node.inputs[0], node.inputs[0])
        if not self.in_place:
            self.writer.line(f"{node.name} = {source}.sum(-1, keepdim=True)")
            return
        match node.axes:
            case (Axis.COLUMN,):
                self.used.add("_of_keys")
                self.writer.line(f"{node.name}[:, :, chunk.keys].add_(_of_keys({source}, {node.name}))")
            case (Axis.OFFSET,):
                self.used.add("_add_diagonals")
                self.writer.line(f"_add_diagonals({node.name}, {source}{self._inner(node)}, slab, chunk)")
            case (Axis.TABLE,):
                self.used.add("_add_entries")
                at = ", ".join(self.indices(node.value))
                self.writer.line(f"_add_entries({node.name}, {source}{self._inner(node)}, {at})")
            case _:
                shrink = ".mul_(shrink)" if node.name in self.rescaled else ""
                self.writer.line(f"{node.name}{shrink}.add_({source}.sum(-1, keepdim=True))")

    def _inner(self, node: Node) -> str:
        """A factor of batch entries, which has to come before entries are added up."""
        users = [each for each in self.kernel.at_last if each.op is Op.MULTIPLY and each.inputs[0] == node.name]
        factors = [each.inputs[1] for each in users if not self.scaled.is_scalar(each.inputs[1])]
        return f" * {factors[0]}" if factors else ""

    # --- numbers looked up ------------------------------------------------------------------------------------

    def _print_entry(self, node: Node) -> None:
        source = node.inputs[0]
        if node.expr is not None:
            self.used.add("_picked")
            at = ", ".join(self.indices(node.value))
            self.writer.line(f"{node.name} = _picked({source}, {at})")
        elif self.in_place:
            self.used.add("_by_distance")
            self.writer.line(f"{node.name} = _by_distance({source}, slab, chunk)")
        else:
            self.rename[node.name] = source  # the caller has spread it over the pairs

    def indices(self, expr: Expr) -> list[str]:
        """The texts of the indices of an entry, that of the batch entry first where the table has one."""
        assert isinstance(expr, Entry)
        written = [self.plain(each) for each in expr.indices]
        if self.operands.has_batch(self.operands.core[expr.name]):
            self.used.add("_batch_entries")
            written.insert(0, f"_batch_entries({expr.name}, {4 if self.in_place else 5})")
        return written

    def _print_contract(self, node: Node) -> None:
        source, operand = node.inputs
        if not self.in_place:
            return  # the caller contracts the weights that it is given
        pairs = f"_pairs({self.rename.get(source, source)}, {self.rows})"
        if Axis.COLUMN in node.axes:  # scattered to the keys of this chunk
            self.writer.line(f"{node.name}[:, chunk.keys].baddbmm_({pairs}.mT, {operand})")
            return
        shrink = f".mul_(_pairs(shrink, {self.rows}))" if node.name in self.rescaled else ""
        self.writer.line(f"{node.name}{shrink}.baddbmm_({pairs}, {operand}_tile)")


def _real(expr: Expr) -> Expr:
    return Const(float(expr.value)) if isinstance(expr, Const) else expr


def _read(node: Node) -> set[str]:
    """What a statement reads; the indices by which entries are added up are no inputs of their node."""
    numbers = walk(node.expr) if node.expr is not None else ()
    return {*node.inputs, *(each.name for each in numbers if isinstance(each, Local))}
