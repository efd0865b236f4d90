"""Tile program → torch statements: numbers of pairs as tensors, in place where nothing else needs the old value.

A tile of pairs is [batch, heads, rows, keys]; numbers of a row are [batch, heads, rows, 1], of a key [keys]. Vectors
are folded to [batch * kv heads, group * rows, width] and [batch * kv heads, keys, width] for the products.
"""

from __future__ import annotations

from attncc.emit.expressions import HOST, TORCH
from attncc.emit.expressions import Writer as ExpressionWriter
from attncc.emit.tile import Kernel, Sweep
from attncc.emit.writer import Writer
from attncc.graph.ir import Node, peaked
from attncc.graph.ops import Axis, Op
from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, Local, Name, Negate, Type, names_in, type_of, walk

SYMBOLS = {
    Name.I: "i",
    Name.J: "j",
    Name.HEAD: "call.head",
    Name.HEADS: "call.heads",
    Name.QUERIES: "call.n",
    Name.KEYS: "call.m",
    Name.FIRST: "first",
    Name.LAST: "last",
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


class TorchBody:
    """Prints the sweeps of one kernel.

    Args:
        in_place: whether dead tensors are overwritten; off where autograd must see every step.
    """

    def __init__(self, writer: Writer, kernel: Kernel, used: set[str], *, in_place: bool) -> None:
        self.writer = writer
        self.kernel = kernel
        self.used = used
        self.in_place = in_place
        self.rename: dict[str, str] = {}
        self.workspaces = 0
        self.rescaled: frozenset[str] = frozenset()  # sums of the sweep that is being printed
        self.fused: set[str] = set()  # numbers that a product has computed already
        self.tiles = {node.name for sweep in kernel.sweeps for node in sweep.body}

    # --- expressions ------------------------------------------------------------------------------------------

    def plain(self, expr: Expr, context: int = 0) -> str:
        """The expression out of place."""
        host = ExpressionWriter(HOST, lambda name: SYMBOLS[name], lambda name: name)
        writer = ExpressionWriter(
            TORCH, lambda name: SYMBOLS[name], lambda name: self.rename.get(name, name), host=host
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

    def _holds_tile(self, expr: Expr) -> bool:
        return any(isinstance(node, Local) and node.name in self.tiles for node in walk(expr))

    def _compile(self, expr: Expr, dead: set[str]) -> tuple[str, bool]:
        """Text of a tile, and whether its memory may be overwritten."""
        match expr:
            case Local(name=name):
                return self.rename.get(name, name), name in dead
            case Negate(operand=operand):
                text, owned = self._compile(operand, dead)
                return (f"{text}.neg_()", True) if owned else (f"(-{text})", True)
            case Binary(op=op, left=left, right=right) if op in _METHOD:
                return self._arithmetic(op, left, right, dead)
            case Binary(op=BinaryOp.POWER, left=left, right=Const(value=power)) if self._holds_tile(left):
                text, owned = self._compile(left, dead)
                suffix = "_" if owned else ""
                return (f"{text}.square{suffix}()" if power == 2 else f"{text}.pow{suffix}({power})"), True
            case Call(function=function, arguments=(argument,)) if function in _IN_PLACE:
                text, owned = self._compile(argument, dead)
                return (f"{text}.{_IN_PLACE[function]}()", True) if owned else (f"torch.{function}({text})", True)
            case _:
                return f"({self.plain(expr)})" if isinstance(expr, Binary) else self.plain(expr), True

    def _arithmetic(self, op: BinaryOp, left: Expr, right: Expr, dead: set[str]) -> tuple[str, bool]:
        if not self._holds_tile(right):
            text, owned = self._compile(left, dead)
            other = self.plain(right)
            if owned:
                return f"{text}.{_METHOD[op]}({other})", True
            return f"({text} {op.value} {self.plain(right, 6)})", True
        text, owned = self._compile(right, dead)
        if not self._holds_tile(left):
            return self._from_right(op, self.plain(left), self.plain(left, 5), text, owned)
        first, first_owned = self._compile(left, dead)
        if first_owned:
            return f"{first}.{_METHOD[op]}({text})", True
        if owned and op in (BinaryOp.ADD, BinaryOp.MULTIPLY, BinaryOp.SUBTRACT):
            return self._from_right(op, first, first, text, owned)
        return f"({first} {op.value} {text})", True

    def _from_right(self, op: BinaryOp, left: str, bracketed: str, text: str, owned: bool) -> tuple[str, bool]:
        """left op right where only the right one may be overwritten."""
        if not owned:
            return f"({bracketed} {op.value} {text})", True
        match op:
            case BinaryOp.ADD | BinaryOp.MULTIPLY:
                return f"{text}.{_METHOD[op]}({left})", True
            case BinaryOp.SUBTRACT:
                return f"{text}.neg_().add_({left})", True
            case _:
                return f"{text}.reciprocal_().mul_({left})", True

    # --- one sweep --------------------------------------------------------------------------------------------

    def print_sweep(self, sweep: Sweep) -> None:
        """The statements for one chunk of keys; accumulators exist already."""
        self.rescaled = sweep.rescaled
        steps = self._order(sweep)
        for at, node in enumerate(steps):
            later = {name for each in steps[at + 1 :] for name in each.inputs}
            dead = {name for name in node.inputs if name in self.tiles and name not in later}
            self._print(node, dead)

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
            case Op.NUMBER if not self._is_full(node):
                self.used.add("_tile" if self.in_place else "_spread")
                text = self.plain(node.value)
                tile = f"_tile({text}, q, shape, chunk)" if self.in_place else f"_spread({text}, q, hidden.shape[-1])"
                self.writer.line(f"{node.name} = {tile}")
            case Op.NUMBER:
                self.writer.line(f"{node.name} = {self.value(node.value, dead)}")
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

    def _is_full(self, node: Node) -> bool:
        """Whether a number of pairs reads one that has all axes, so that it has them itself."""
        return any(isinstance(each, Local) and each.name in self.tiles for each in walk(node.value))

    def print_row(self, node: Node, rows: set[str]) -> None:
        """A number of rows; `rows` names those that have all axes, and takes up this one."""
        text = self.plain(node.value)
        if self.in_place and Axis.ROW in node.axes:
            if not any(name in rows for name in node.inputs):
                self.used.add("_row")
                text = f"_row({text}, q, shape)"
            rows.add(node.name)
        elif Axis.ROW in node.axes and type_of(node.value) is Type.INT:
            text = f"({text}).to(q.dtype)"
        self.writer.line(f"{node.name} = {text}")

    def _print_dot(self, node: Node) -> None:
        row, column = node.inputs
        if self._axis(row) is Axis.COLUMN:
            row, column = column, row
        if self.in_place:
            name, factor = self._scaled_by_product(node)
            arguments = f"{row}, {column}_tile, work[{self.workspaces}], shape{factor}"
            self.writer.line(f"{name} = _product({arguments})")
            self.workspaces += 1
        else:
            self.writer.line(f"{node.name} = _scores({row}, {column})")

    def _scaled_by_product(self, dot: Node) -> tuple[str, str]:
        """The number that a dot product becomes at once when it is only multiplied by a scalar."""
        users = [node for sweep in self.kernel.sweeps for node in sweep.body if dot.name in node.inputs]
        if len(users) == 1 and users[0].op is Op.NUMBER:
            match users[0].expr:
                case Binary(
                    op=BinaryOp.MULTIPLY, left=Local(name=scalar) | Const(value=scalar), right=Local(name=dot.name)
                ):
                    if isinstance(scalar, float | int) or self._is_scalar(scalar):
                        self.fused.add(users[0].name)
                        return users[0].name, f", {scalar}"
        return dot.name, ""

    def _is_scalar(self, name: str) -> bool:
        """Whether a name is a plain number of the call, the same for all heads."""
        node = next((each for each in self.kernel.uniform if each.name == name), None)
        return node is not None and not names_in(node.value) & {Name.HEAD, Name.VALID}

    def _axis(self, name: str) -> Axis:
        return next(node.axes[0] for node in self.kernel.operands if node.name == name)

    def _print_restrict(self, node: Node, dead: set[str]) -> None:
        source, fill = node.inputs[0], self.plain(_real(node.value))
        text = self.rename.get(source, source)
        if source not in self.tiles:  # a constant: one small tile serves all heads
            shape = "q.new_full((1, 1, shape[2], chunk.count), "
            tile = f"{shape}{source})" if self.in_place else f"torch.full_like(hidden, {source}, dtype=q.dtype)"
            hide = f"_hide({tile}, chunk, {fill}, call)" if self.in_place else f"{tile}.masked_fill(hidden, {fill})"
            self.writer.line(f"{node.name} = {hide}")
        elif not self.in_place:
            self.writer.line(f"{node.name} = {text}.masked_fill(hidden, {fill})")
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
        start = "torch.finfo(q.dtype).min" if node.expr is None else self.plain(node.expr)
        self.used.add("_maximum")
        self.writer.line(f"peak = _maximum({text}, {start})")

    def _print_sum(self, node: Node) -> None:
        source = self.rename.get(node.inputs[0], node.inputs[0])
        if not self.in_place:
            self.writer.line(f"{node.name} = {source}.sum(-1, keepdim=True)")
            return
        shrink = ".mul_(shrink)" if node.name in self.rescaled else ""
        self.writer.line(f"{node.name}{shrink}.add_({source}.sum(-1, keepdim=True))")

    def _print_contract(self, node: Node) -> None:
        source, operand = node.inputs
        if not self.in_place:
            return  # the caller contracts the weights that it is given
        pairs = f"_pairs({self.rename.get(source, source)}, q)"
        if Axis.COLUMN in node.axes:  # scattered to the keys of this chunk
            self.writer.line(f"{node.name}[:, chunk.keys].baddbmm_({pairs}.mT, {operand})")
            return
        shrink = ".mul_(_pairs(shrink, q))" if node.name in self.rescaled else ""
        self.writer.line(f"{node.name}{shrink}.baddbmm_({pairs}, {operand}_tile)")


def _real(expr: Expr) -> Expr:
    return Const(float(expr.value)) if isinstance(expr, Const) else expr
