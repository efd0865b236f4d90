"""What the text of a kernel and of its tile body agree on: names, broadcasting, and the expressions of one kernel."""

from __future__ import annotations

from attncc.emit.expressions import TRITON
from attncc.emit.expressions import Writer as ExpressionWriter
from attncc.emit.tile import Kernel, Sweep
from attncc.emit.writer import Writer
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.spec.expr import Expr, Name, names_in

LOWEST = "-3.4028234663852886e38"

POSITION = {Axis.ROW: "i", Axis.COLUMN: "j"}
START = {Axis.ROW: "row", Axis.COLUMN: "column"}
LANES = {Axis.ROW: "row_lanes", Axis.COLUMN: "column_lanes"}
BLOCK = {Axis.ROW: "BLOCK_M", Axis.COLUMN: "BLOCK_N"}
ORIGIN = {Axis.ROW: "q_start", Axis.COLUMN: "k_start"}
SCALARS = {Name.HEAD: "head", Name.HEADS: "heads", Name.QUERIES: "n", Name.KEYS: "m"}
WIDTHS = {Axis.FEATURE: ("D", "BLOCK_D"), Axis.VALUE: ("E", "BLOCK_E")}
OTHER = {
    "lse": 'float("-inf")',
    "count": "1.0",
}  # what a saved row number reads as beyond the last row, where 0 would do harm


def width_of(node: Node) -> tuple[str, str]:
    """The constexprs of a vector's width and of the block that holds it."""
    return WIDTHS[node.axes[1]]


class KernelScope:
    """One kernel of the tile program, and how its numbers are written.

    Args:
        used: names of library helpers, extended by whatever is written.
        keeps_residual: whether this is a forward kernel whose backward subtracts a number of `out`, so that it is to be
            exact beyond 16 bits, and can also store what rounding takes from it.
    """

    def __init__(self, writer: Writer, kernel: Kernel, used: set[str], *, keeps_residual: bool = False) -> None:
        self.writer = writer
        self.kernel = kernel
        self.used = used
        self.fixed, self.swept = kernel.fixed, kernel.swept
        self.rows_fixed = self.fixed is Axis.ROW
        self.keeps_residual = keeps_residual

    def _writer_for(self, pair: bool, rename: dict[str, str]) -> ExpressionWriter:
        """An expression writer for numbers of pairs (broadcast) or of one axis."""

        def symbol(name: Name) -> str:
            if name in (Name.I, Name.J):
                axis = Axis.ROW if name is Name.I else Axis.COLUMN
                return self._broadcast(POSITION[axis], axis, pair)
            return SCALARS[name]

        def local(name: str) -> str:
            node = self.node(name)
            text = rename.get(name, name)
            if node is None or node.is_tile or not node.axes:
                return text
            return self._broadcast(text, node.axes[0], pair)

        return ExpressionWriter(TRITON, symbol, local)

    def _broadcast(self, text: str, axis: Axis, pair: bool) -> str:
        if not pair:
            return text
        return f"{text}[:, None]" if axis is self.fixed else f"{text}[None, :]"

    def node(self, name: str) -> Node | None:
        if name == "related":
            return None
        kernel = self.kernel
        everything = [*kernel.uniform, *kernel.loads, *kernel.before, *kernel.after]
        for sweep in kernel.sweeps:
            everything += [*sweep.before, *sweep.loads, *sweep.numbers, *sweep.body, *sweep.reductions]
        return next((node for node in everything if node.name == name), None)

    def expression(self, expr: Expr, pair: bool, rename: dict[str, str] | None = None, context: int = 0) -> str:
        writer = self._writer_for(pair, rename or {})
        text = writer.write(expr, context)
        self.used |= writer.used
        return text

    def names_read(self, sweep: Sweep) -> set[Name]:
        exprs = [node.value for node in (*sweep.body, *sweep.numbers) if node.op in (Op.NUMBER, Op.RELATED)]
        return {name for expr in exprs for name in names_in(expr)}

    def reads_position(self, sweep: Sweep, axis: Axis) -> bool:
        return (Name.I if axis is Axis.ROW else Name.J) in self.names_read(sweep)

    def load_statistic(self, name: str, pointer: str, visible: str, lanes: str, masked: str) -> None:
        """A saved row number. A log-sum-exp of -inf (no key at all) becomes +inf, so that all weights are 0."""
        other = OTHER.get(name, "0.0")
        self.writer.line(f"{name} = _load_numbers({pointer}, {visible}, {other}, {lanes}, {masked})")
        if name == "lse":
            self.writer.line('lse = tl.where(lse == float("-inf"), float("inf"), lse)')
