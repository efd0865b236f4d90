"""Tile program → Triton: the statements of one tile body, alike for full tiles and, with a mask, for partial ones."""

from __future__ import annotations

from attncc.emit.expressions import CONJUNCT
from attncc.emit.tile import Sweep
from attncc.emit.triton_form.in_order import SumsInOrder, print_added, print_formula
from attncc.emit.triton_form.pairs import PairPrinter
from attncc.emit.triton_form.scope import (
    BLOCK,
    COORDINATE,
    FROM,
    LANES,
    PLACE,
    POSITION,
    START,
    KernelScope,
    is_offset_sum,
    is_vector,
    width_of,
)
from attncc.graph.ir import Node, peaked
from attncc.graph.ops import Axis, Op
from attncc.spec.expr import TRUE, And, Const, Expr


class BodyPrinter:
    """Writes the statements of one tile body."""

    def __init__(self, kernel: KernelScope, sweep: Sweep, carried: SumsInOrder | None = None) -> None:
        self.kernel = kernel
        self.carried = carried
        self.sweep = sweep
        self.writer = kernel.writer
        self.swept = kernel.swept
        self.block = BLOCK[self.swept]
        self.loaded: set[str] = set()
        self.rename: dict[str, str] = {}
        self.peak_done = sweep.peak is None
        self.pairs = PairPrinter(kernel, sweep, self.rename)

    def print(self) -> None:
        """Loads, numbers in order, running maximum when it is first needed, sums."""
        self._print_lanes()
        for node in self.sweep.numbers:
            self._load(node.inputs)
            self.writer.line(f"{node.name} = {self.kernel.expression(node.value, pair=False)}")
        for node in self.sweep.body:
            self._print_node(node)
        self._raise_peak()
        for node in self.sweep.sums:
            if node.op is not Op.SPREAD:
                self._print_sum(node)
        self._print_spreads()
        for node in self.kernel.kernel.added:
            self._print_added(node)
        if self.carried is not None and self.carried.met_by(self.sweep):
            with self.writer.block("if adds:"):
                print_added(self.kernel, self.carried)
        carried = self.kernel.carried(self.sweep)
        if carried:
            self.writer.line(f"return {', '.join(carried)}")

    def _print_lanes(self) -> None:
        lanes, start = LANES[self.swept], START[self.swept]
        if self.kernel.moves(self.swept):
            place = PLACE[self.swept]
            self.writer.line(f"{place} = tl.load({place}s_ptr + tl.arange(0, {self.block}))")
        else:
            self.writer.line(f"{lanes} = {start} + tl.arange(0, {self.block})")
        if self.kernel.listing is not None:
            self.writer.line(f"visible = {self.kernel.exist(self.swept)}")
        elif self.kernel.rows_fixed:
            self.writer.line("visible = (column_lanes >= low) & (column_lanes < high)")
        else:
            self.writer.line(f"visible = row_lanes < {self.kernel.limit(Axis.ROW)}")
        if self.kernel.reads_position(self.sweep, self.swept):
            self.writer.line(f"{POSITION[self.swept]} = {self.kernel.position(self.swept)}")
        if self.kernel.reads_coordinate(self.sweep, self.swept):
            self.writer.line(f"{COORDINATE[self.swept]} = {FROM[self.swept]} + {lanes}")

    def _load(self, names: tuple[str, ...]) -> None:
        """Load what is named and not loaded yet."""
        for node in self.sweep.loads:
            if node.name not in names or node.name in self.loaded:
                continue
            self.loaded.add(node.name)
            if is_vector(node):
                width, block = width_of(node)
                arguments = f"{node.name}_ptr, {node.name}_stride, visible, {self.block}, {width}, {block}, MASKED"
                self.writer.line(f"{node.name} = _load_tile({arguments})")
                print_formula(self.kernel, self.carried, node)
            elif self.kernel.is_list(node):
                self.kernel.point_to_lists(node.name, f"{node.name}_ptr")
            elif self.kernel.is_fact(node):
                self.kernel.load_facts(node.name, f"{node.name}_ptr", "visible", self.swept)
            else:
                self.kernel.load_numbers(node.name, f"{node.name}_ptr", "visible", self.swept, "MASKED")

    def _load_all_numbers(self, node: Node) -> None:
        """Load the numbers of rows or keys that a formula of channels reads."""
        self._load(tuple(each.name for each in self.sweep.loads if not is_vector(each) and each.name in node.inputs))

    def _print_node(self, node: Node) -> None:
        if node.op is Op.CHANNELS:
            self._load_all_numbers(node)
            self.pairs.print_channels(node)
            return
        self._load(node.inputs)
        if self.sweep.peak is not None and "peak" in node.inputs:
            self._raise_peak()
        match node.op:
            case Op.RELATED:
                self._print_related(self.kernel.pattern(node.value))
            case Op.DOT:
                fixed, swept = self._sides(node)
                self.writer.line(f"{node.name} = _dot({fixed}, tl.trans({swept}), None, PRECISION)")
            case Op.RESTRICT:
                self._print_restrict(node)
            case Op.ENTRY:
                self.pairs.print_entry(node)
            case Op.NUMBER if not any(self._is_tile(each) for each in node.inputs):
                shape = f"[{BLOCK[self.kernel.fixed]}, {self.block}]"
                text = self.kernel.expression(node.value, pair=True, rename=self.rename, context=CONJUNCT)
                self.writer.line(f"{node.name} = tl.zeros({shape}, tl.float32) + {text}")
            case Op.NUMBER:
                self.writer.line(f"{node.name} = {self._value(node.value)}")
            case _:
                raise TypeError(f"{node.op} in a tile body")

    def _is_tile(self, name: str) -> bool:
        node = self.kernel.node(name)
        return node is not None and node.is_tile

    def _sides(self, node: Node) -> tuple[str, str]:
        """The fixed and the swept operand of a dot product."""
        swept = {each.name for each in self.sweep.loads}
        first, second = node.inputs
        return (second, first) if first in swept else (first, second)

    def _value(self, expr: Expr) -> str:
        return self.kernel.expression(expr, pair=True, rename=self.rename)

    def _print_related(self, predicate: Expr) -> None:
        with self.writer.block("if MASKED:"):
            needs_visible = self.kernel.rows_fixed or predicate == TRUE or self.kernel.hides_lanes
            predicate = self.pairs.print_asked(predicate)
            parts = predicate.operands if isinstance(predicate, And) else (predicate,)
            texts = [self.kernel.related(part, CONJUNCT) for part in parts if part != TRUE]
            texts += ["visible[None, :]"] if needs_visible else []
            texts += ["alive[:, None]"] if self.kernel.offset_sums else []
            self.writer.line(f"related = {' & '.join(texts)}")

    def _print_restrict(self, node: Node) -> None:
        """Masked in place where nothing else reads the unmasked number."""
        source, fill = node.inputs[0], self.kernel.expression(_real(node.value), pair=False)
        if self._is_constant(source):
            return  # summed without a tile, see _print_sum
        others = [each for each in (*self.sweep.body, *self.sweep.reductions) if source in each.inputs and each != node]
        target = self.rename.get(source, source)
        if others:
            target = node.name
            self.writer.line(f"{target} = {self.rename.get(source, source)}")
        else:
            self.rename[node.name] = target
        with self.writer.block("if MASKED:"):
            self.writer.line(f"{target} = tl.where(related, {target}, {fill})")

    def _is_constant(self, name: str) -> bool:
        node = self.kernel.node(name)
        return node is not None and not node.axes

    def _raise_peak(self) -> None:
        peak = self.sweep.peak
        if self.peak_done or peak is None:
            return
        self.peak_done = True
        largest = [f"tl.max({self.rename.get(name, name)}, 1)" for name in peaked(peak)]
        text = largest[0]
        for each in largest[1:]:
            text = f"tl.maximum({text}, {each})"
        self.writer.line("old_peak = peak")
        self.writer.line(f"peak = tl.maximum(peak, {text})")
        self.writer.line("shrink = tl.exp2(old_peak - peak)")

    def _print_sum(self, node: Node) -> None:
        self._load(node.inputs)
        shrinks = node.name in self.sweep.rescaled
        source = self.rename.get(node.inputs[0], node.inputs[0])
        if is_offset_sum(node):
            self.pairs.print_offset_sum(node, source)
            return
        if node.op is Op.SUM:
            before = f"{node.name} * shrink" if shrinks else node.name
            restrict = next((each for each in self.sweep.body if each.name == node.inputs[0]), None)
            if restrict is not None and restrict.op is Op.RESTRICT and self._is_constant(restrict.inputs[0]):
                self._print_constant_sum(node.name, before, restrict.inputs[0])
            else:
                self.writer.line(f"{node.name} = {before} + tl.sum({source}, 1)")
            return
        operand = next(name for name in node.inputs if name != node.inputs[0])
        before = f"{node.name} * shrink[:, None]" if shrinks else node.name
        if self.kernel.keeps_residual and self.sweep.peak is None:
            self.kernel.used.add("_weigh")
            self.writer.line(f"{node.name} = _weigh({source}, {operand}, {before}, PRECISION)")
            return
        self.writer.line(f"{node.name} = _dot({source}.to({operand}.dtype), {operand}, {before}, PRECISION)")

    def _print_added(self, node: Node) -> None:
        """A sum for each row, added to in memory: kernels that do so run on CPUs alone, head after head."""
        tile, operand = sorted(node.inputs, key=lambda name: not self._is_tile(name))
        _, block = width_of(node)
        lines = f"{node.name}_ptr, {node.name}_stride"
        product = f"tl.trans({self.rename.get(tile, tile)}), {operand}"
        self.writer.line(f"_add_product({lines}, {product}, {self.block}, {block})")

    def _print_spreads(self) -> None:
        """Sums by channel, those of one width in one loop."""
        spreads = [node for node in self.sweep.sums if node.op is Op.SPREAD]
        for node in spreads:
            self._load_all_numbers(node)
        for width in dict.fromkeys(width_of(node) for node in spreads):
            self.pairs.print_spreads([node for node in spreads if width_of(node) == width])

    def _print_constant_sum(self, name: str, before: str, constant: str) -> None:
        """The same number for every related pair: counted on partial tiles, known on full ones."""
        node = self.kernel.node(constant)
        value = repr(float(node.expr.value)) if node is not None and isinstance(node.expr, Const) else constant
        fixed, swept = BLOCK[self.kernel.fixed], self.block
        with self.writer.block("if MASKED:"):
            tile = f"tl.full([{fixed}, {swept}], {value}, tl.float32)" if isinstance(node and node.expr, Const) else ""
            tile = tile or f"tl.zeros([{fixed}, {swept}], tl.float32) + {value}"
            self.writer.line(f"{name} = {before} + tl.sum(tl.where(related, {tile}, 0.0), 1)")
        with self.writer.block("else:"):
            self.writer.line(f"{name} = {before} + {value} * {swept}")


def _real(expr: Expr) -> Expr:
    return Const(float(expr.value)) if isinstance(expr, Const) else expr
