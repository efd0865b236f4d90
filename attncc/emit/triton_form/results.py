"""Tile program → Triton: what becomes of the sums of a tile, and where sums of a piece before are taken up."""

from __future__ import annotations

from attncc.emit.tile import Sweep
from attncc.emit.triton_form.places import KernelPlaces
from attncc.emit.triton_form.scope import BLOCK, COUNT, STEP, is_literal, is_vector, width_of
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.spec.expr import FALSE, TRUE


class KernelResults(KernelPlaces):
    """The results of one kernel, and the sums that pieces hand on."""

    @property
    def carries(self) -> bool:
        """Whether sums pass from piece to piece through memory."""
        return self.kernel.name == "forward" and (self.piece.resumes != FALSE or self.piece.finishes != TRUE)

    @property
    def states(self) -> list[str]:
        """The sums that do."""
        own = self.carries or self.takes_sums
        return [f"{name}_state" for name in self.carried(self.kernel.sweeps[0])] if own else []

    @property
    def takes_sums(self) -> bool:
        """Whether rows may begin with sums of keys that other kernels have made."""
        return self.by_states and self.kernel.name == "forward"

    def print_sums(self, sweep: Sweep) -> None:
        """Rows begin with the sums that are there."""
        for node in sweep.reductions:
            self.writer.line(f"{node.name} = {self._loaded_state(node)}")

    def print_resume(self, sweep: Sweep) -> None:
        """Sums go on from those of the piece before."""
        if not self.carries or self.piece.resumes == FALSE:
            return
        for node in sweep.reductions:
            text = self._loaded_state(node)
            if self.piece.resumes != TRUE:
                text = f"tl.where({self.expression(self.piece.resumes, pair=False)}, {text}, {node.name})"
            self.writer.line(f"{node.name} = {text}")

    def _loaded_state(self, node: Node) -> str:
        pointer = f"{node.name}_state_ptr + first_vector"
        if is_vector(node):
            width, block = width_of(node)
            arguments = f"{width}{f' * {STEP[self.fixed]}' if self.laid_out else ''}, visible"
            return f"_load_tile({pointer} * {width}, {arguments}, {BLOCK[self.fixed]}, {width}, {block}, True)"
        if self.laid_out:
            self.used.add("_load_spaced")
            return f"_load_spaced({pointer}, {STEP[self.fixed]}, visible, 0.0, {BLOCK[self.fixed]}, True)"
        return f"_load_numbers({pointer}, visible, 0.0, {BLOCK[self.fixed]}, True)"

    def print_results(self) -> None:
        """Results, or, for heads that later pieces go on with, sums."""
        if not self.carries or self.piece.finishes == TRUE:
            self._print_finished()
            return
        if self.piece.finishes == FALSE:
            self._print_states()
            return
        with self.writer.block(f"if {self.expression(self.piece.finishes, pair=False)}:"):
            self._print_finished()
        with self.writer.block("else:"):
            self._print_states()

    def _print_states(self) -> None:
        for node in self.kernel.sweeps[0].reductions:
            self._store(f"{node.name}_state", node, node.name, "visible")

    def _store(self, target: str, node: Node, value: str, visible: str) -> None:
        """Write numbers or vectors of the fixed axis."""
        block = BLOCK[self.fixed]
        step = f" * {STEP[self.fixed]}" if self.laid_out else ""
        if not is_vector(node):
            lanes = f"tl.arange(0, {block}){step}"
            self.writer.line(f"tl.store({target}_ptr + first_vector + {lanes}, {value}, mask={visible})")
            return
        width, tile = width_of(node)
        stride = f"{width}{step}, " if step else ""
        self.used |= {"_store_spaced"} if step else set()
        function = "_store_spaced" if step else "_store_tile"
        pointer = f"{target}_ptr + first_vector * {width}"
        self.writer.line(f"{function}({pointer}, {stride}{visible}, {value}, {block}, {width}, {tile})")

    def _added(self, node: Node, visible: str) -> str:
        """What is there already, to which a gradient is added."""
        block, step = BLOCK[self.fixed], f" * {STEP[self.fixed]}" if self.laid_out else ""
        if is_vector(node):
            width, tile = width_of(node)
            pointer = f"{node.name}_ptr + first_vector * {width}"
            return f"_load_tile({pointer}, {width}{step}, {visible}, {block}, {width}, {tile}, True)"
        lanes = f"tl.arange(0, {block}){step}"
        return f"tl.load({node.name}_ptr + first_vector + {lanes}, mask={visible}, other=0.0)"

    def _print_finished(self) -> None:
        writer, kernel = self.writer, self.kernel
        last = COUNT[Axis.COLUMN] if self.laid_out else "m"
        visible = "visible" if self.rows_fixed else self.exist(Axis.COLUMN, last)
        for node in kernel.after:
            writer.line(f"{node.name} = {self._result(node)}")
        for node in kernel.stores:
            value = node.name
            if self.fixed not in node.axes:
                continue
            if not self.rows_fixed:
                value = f"tl.where({'seen[:, None]' if is_vector(node) else 'seen'}, {value}, 0.0)"
            if self.piece.adds and kernel.name != "forward":
                writer.line(f"{node.name} = {value} + {self._added(node, visible)}")
                value = node.name
            self._store(node.name, node, value, visible)
        if self.keeps_residual:
            with writer.block("if residual_ptr is not None:  # what rounding takes from `out`, for backward"):
                writer.line("residual = out - out.to(out_ptr.dtype.element_ty).to(tl.float32)")
                out = next(node for node in kernel.stores if node.name == "out")
                self._store("residual", out, "residual", "visible")

    def _result(self, node: Node) -> str:
        match node.op:
            case Op.DIVIDE:
                self.used.add("_inverse")
                divisor = self.node(node.inputs[1])
                lanes = "[:, None]" if divisor is not None and divisor.axes else ""
                return f"{node.inputs[0]} * _inverse({node.inputs[1]}){lanes}"
            case Op.MULTIPLY:
                factor = next(each for each in self.kernel.uniform if each.name == node.inputs[1])
                text = self.expression(factor.value, pair=False) if is_literal(factor) else factor.name
                return f"{node.inputs[0]} * {text}"
            case Op.ADD:
                return " + ".join(node.inputs)
            case _:
                text = self.expression(node.value, pair=False)
                if "tl.log(" in text:
                    self.used.add("_log")
                return text.replace("tl.log(", "_log(")
