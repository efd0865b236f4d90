"""Numbers of pairs as texts of tensors, in place where nothing else needs the old value."""

from __future__ import annotations

from dataclasses import replace

from attncc.emit.dialects import HOST, Dialect, torch_dialect
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.operands import Operands
from attncc.emit.tile import Kernel
from attncc.graph.core import Kind
from attncc.graph.ops import Op
from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, Local, Name, Negate, walk

SYMBOLS = {
    Name.I: "i",
    Name.J: "j",
    Name.HEAD: "call.head",
    Name.HEADS: "call.heads",
    Name.QUERIES: "call.n",
    Name.KEYS: "call.m",
    Name.FIRST: "first",
    Name.LAST: "last",
    Name.RESIDUE: "call.residue",
}

_IN_PLACE = {
    each: f"{each}_"
    for each in (
        "exp",
        "exp2",
        "log",
        "log2",
        "tanh",
        "sigmoid",
        "relu",
        "sqrt",
        "abs",
        "cos",
        "sin",
        "erf",
        "floor",
        "sign",
    )
}
_METHOD = {BinaryOp.ADD: "add_", BinaryOp.SUBTRACT: "sub_", BinaryOp.MULTIPLY: "mul_", BinaryOp.DIVIDE: "div_"}


class TensorTexts:
    """Texts of the numbers of one kernel.

    Args:
        in_place: whether dead tensors are overwritten; off where autograd must see every step.
    """

    def __init__(self, kernel: Kernel, operands: Operands, used: set[str], *, in_place: bool) -> None:
        self.kernel = kernel
        self.operands = operands
        self.rows = operands.core.rows  # its type and device are those of everything
        self.used = used
        self.in_place = in_place
        self.rename: dict[str, str] = {}
        self.tiles = {node.name for sweep in kernel.sweeps for node in sweep.body}
        # Entries may lack axes of batch entries, heads, rows or keys; what stands in their memory may be others' too.
        entries = {node.name for sweep in kernel.sweeps for node in sweep.body if node.op is Op.ENTRY}
        self.full = self.tiles - entries
        core = operands.core
        statistics = {node.name for node in kernel.statistics}
        self.of_rows = {each.name for each in core.of_kind(Kind.ROW_NUMBER)} | statistics
        self.of_keys = {each.name for each in core.of_kind(Kind.COLUMN_NUMBER)}

    def plain(self, expr: Expr, context: int = 0) -> str:
        """The expression out of place."""
        return self._written(expr, context, torch_dialect(self.rows))

    def at_position(self, expr: Expr) -> str:
        """A number that reads a position, rounded once: angles far from the start need more digits than float32 has."""
        text = self._written(expr, 0, replace(torch_dialect(self.rows), real="({0}).double()"))
        return f"({text}).to({self.rows}.dtype)"

    def _written(self, expr: Expr, context: int, dialect: Dialect) -> str:
        host = ExpressionWriter(HOST, lambda name: SYMBOLS[name], lambda name: name)
        writer = ExpressionWriter(
            dialect, lambda name: SYMBOLS[name], lambda name: self.rename.get(name, name), host=host
        )
        text = writer.write(expr, context)
        self.used |= writer.used
        return text

    def value(self, expr: Expr, dead: set[str]) -> str:
        """The expression, overwriting the tiles named in `dead`."""
        if not self.in_place or not self._holds_tile(expr):
            return self.plain(expr)
        once = {name for name in dead if sum(isinstance(x, Local) and x.name == name for x in walk(expr)) == 1}
        text, owned = self._compile(expr, once)
        return text if owned else f"{text}.clone()" if isinstance(expr, Local) else text

    def tile_value(self, expr: Expr) -> tuple[str, bool]:
        """The expression with every named tile left as it is, and whether its own memory is new and has all axes."""
        return self._compile(expr, set())

    def _holds_tile(self, expr: Expr) -> bool:
        return any(isinstance(node, Local) and node.name in self.tiles for node in walk(expr)) or self.is_full(expr)

    def is_full(self, expr: Expr) -> bool:
        """Whether a number of pairs has all axes, because it reads one that has, or one of rows and one of keys."""
        read = {node.name for node in walk(expr) if isinstance(node, Local)}
        return bool(read & self.full) or bool(read & self.of_rows and read & self.of_keys)

    def _compile(self, expr: Expr, dead: set[str]) -> tuple[str, bool]:
        """Text of a tile, and whether its memory may be overwritten."""
        match expr:
            case Local(name=name):
                return self.rename.get(name, name), name in dead
            case Negate(operand=operand):
                text, owned = self._compile(operand, dead)
                return (f"{text}.neg_()", True) if owned else (f"(-{text})", self.is_full(expr))
            case Binary(op=op, left=left, right=right) if op in _METHOD:
                return self._arithmetic(expr, op, left, right, dead)
            case Binary(op=BinaryOp.POWER, left=left, right=Const(value=power)) if self._holds_tile(left):
                text, owned = self._compile(left, dead)
                suffix = "_" if owned else ""
                written = f"{text}.square{suffix}()" if power == 2 else f"{text}.pow{suffix}({power})"
                return written, self.is_full(expr)
            case Call(function=function, arguments=(argument,)) if function in _IN_PLACE and self._holds_tile(argument):
                text, owned = self._compile(argument, dead)
                written = f"{text}.{_IN_PLACE[function]}()" if owned else f"torch.{function}({text})"
                return written, self.is_full(expr)
            case _:
                written = f"({self.plain(expr)})" if isinstance(expr, Binary) else self.plain(expr)
                return written, self.is_full(expr)

    def _arithmetic(self, expr: Expr, op: BinaryOp, left: Expr, right: Expr, dead: set[str]) -> tuple[str, bool]:
        full = self.is_full(expr)
        if not self._holds_tile(right):
            text, owned = self._compile(left, dead)
            other = self.plain(right)
            if owned:
                return f"{text}.{_METHOD[op]}({other})", True
            return f"({text} {op.value} {self.plain(right, 6)})", full
        text, owned = self._compile(right, dead)
        if not self._holds_tile(left):
            return self._from_right(op, self.plain(left), self.plain(left, 5), text, owned, full)
        first, first_owned = self._compile(left, dead)
        if first_owned:
            return f"{first}.{_METHOD[op]}({text})", True
        if owned and op in (BinaryOp.ADD, BinaryOp.MULTIPLY, BinaryOp.SUBTRACT):
            return self._from_right(op, first, first, text, owned, full)
        return f"({first} {op.value} {text})", full

    def _from_right(
        self, op: BinaryOp, left: str, bracketed: str, text: str, owned: bool, full: bool
    ) -> tuple[str, bool]:
        """left op right where only the right one may be overwritten."""
        if not owned:
            return f"({bracketed} {op.value} {text})", full
        match op:
            case BinaryOp.ADD | BinaryOp.MULTIPLY:
                return f"{text}.{_METHOD[op]}({left})", True
            case BinaryOp.SUBTRACT:
                return f"{text}.neg_().add_({left})", True
            case _:
                return f"{text}.reciprocal_().mul_({left})", True
