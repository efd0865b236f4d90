"""Plan → what the torch form does with one slab of rows, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attncc.emit.dialects import HOST, TORCH, Dialect, torch_dialect
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.numbers import tables_of
from attncc.emit.operands import Operands
from attncc.emit.symbols import with_numbers
from attncc.emit.tile import Kernel, Sweep, schedule
from attncc.emit.torch_form.body import TorchBody
from attncc.emit.torch_form.channels import vectors_by_channel
from attncc.emit.torch_form.tensors import SYMBOLS
from attncc.emit.writer import WIDTH, Writer, listed
from attncc.graph.core import Kind
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.plan.model import Plan
from attncc.rewrite.backward import gradient_name, reciprocal
from attncc.spec.expr import Binary, BinaryOp, Expr, Local, Name, Symbol, children, names_in, walk


class SlabPrinter:
    """Prints `_forward_slab` and `_backward_slab`."""

    def __init__(self, plan: Plan, operands: Operands) -> None:
        self.plan = plan
        self.operands = operands
        self.forward_graph, self.backward_graph = with_numbers(plan.torch.forward), with_numbers(plan.torch.backward)
        self.forward = schedule("forward", self.forward_graph, Axis.ROW, self.forward_graph.outputs)
        self.backward = schedule("backward", self.backward_graph, Axis.ROW, self.backward_graph.outputs)
        self.rows = operands.core.rows
        self.pieces = plan.pieces
        self.used: set[str] = set()

    def uniform(self) -> tuple[Node, ...]:
        """The call-wide numbers of both passes, each once."""
        nodes = {node.name: node for kernel in (self.forward, self.backward) for node in kernel.uniform}
        nodes |= {node.name: node for node in self.plan.torch.numbers if node.op is Op.NUMBER and not node.axes}
        return tuple(nodes.values())

    @property
    def listed(self) -> bool:
        """Whether slabs are tiles of rows with lists of keys, as data say."""
        return self.plan.lists is not None

    @property
    def begun(self) -> bool:
        """Whether sums of a slab's rows may begin with those over keys that all of them see."""
        return self.plan.states is not None or (self.plan.lists is not None and self.plan.lists.states is not None)

    @property
    def chained(self) -> bool:
        """Whether some rows are in several pieces, each of which goes on with the sums of the one before."""
        return self._in_passes or (self.pieces is not None and self.pieces.chained)

    @property
    def adds(self) -> bool:
        """Whether several pieces have gradients for some rows."""
        return self._in_passes or (self.pieces is not None and self.pieces.adds)

    @property
    def _in_passes(self) -> bool:
        return self.plan.lists is not None and len(self.plan.lists.passes) > 1

    @property
    def states(self) -> tuple[tuple[str, str | None], ...]:
        """What goes from piece to piece: names, and of vectors the text of their width."""
        sums = [node for sweep in self.forward.sweeps for node in sweep.reductions]
        return tuple((node.name, self._width(node) if node.op is Op.CONTRACT else None) for node in sums)

    def _state_names(self) -> str:
        names = [name for name, _ in self.states]
        return f"{', '.join(names)}{',' * (len(names) == 1)}"

    def counted_once(self) -> list[str]:
        """Parts of rows' gradients that are no sums over keys, where several pieces add to those gradients."""
        if not self.adds:
            return []
        graph = self.backward_graph
        parts = {*graph.outputs, *(name for node in graph if node.op is Op.ADD for name in node.inputs)}
        return [node.name for node in self.backward.before if node.name in parts]

    def added(self) -> list[str]:
        """The totals over slabs: the sum that each gradient of keys, distances or tables is, or is a multiple of."""
        reductions = [node for sweep in self.backward.sweeps for node in sweep.reductions]
        return [node.name for node in reductions if Axis.ROW not in node.axes]

    def _reads_positions(self, kernel: Kernel) -> set[Name]:
        nodes = [node for sweep in kernel.sweeps for node in sweep.nodes]
        nodes += [*kernel.before, *kernel.after]
        return {name for node in nodes if node.expr is not None for name in _positions(node)}

    def _by_distance(self, kernel: Kernel) -> bool:
        """Whether a kernel reads positions by their difference alone, which may be the same in several slabs."""
        nodes = [*(node for sweep in kernel.sweeps for node in sweep.nodes), *kernel.before, *kernel.after]
        exprs = [node.expr for node in nodes if node.expr is not None and _positions(node)]
        return self.pieces is None and all(map(_of_distance, exprs))

    def _print_unpacking(self, writer: Writer, kernel: Kernel) -> None:
        """Names for the call-wide numbers that a kernel reads."""
        names = [node.name for node in self.uniform()]
        read = {name for sweep in kernel.sweeps for node in sweep.nodes for name in node.inputs}
        read |= {name for node in (*kernel.before, *kernel.after, *kernel.at_last) for name in node.inputs}
        read |= {node.name for node in (*kernel.after, *kernel.at_last)}
        if any(name in read for name in names):
            writer.line(
                f"{', '.join(name if name in read else '_' for name in names)}{',' * (len(names) == 1)} = numbers"
            )

    def _print_start(self, writer: Writer, kernel: Kernel) -> None:
        self._print_unpacking(writer, kernel)
        positions = self._reads_positions(kernel)
        if Name.I in positions and self.listed:
            writer.line("i = slab.i")
        elif Name.I in positions:
            i = f"torch.arange(slab.first, slab.last + 1, device={self.rows}.device)[:, None]"
            if self.begun and not self._by_distance(kernel):
                i = f"slab.coordinates({self.rows}.device)"
            writer.line(f"i = slab.part.rows.at({i})" if self.pieces is not None else f"i = {i}")
        for name in vectors_by_channel(kernel):
            if self.operands.core[name].kind is Kind.ROW_VECTOR:
                self.used.add("_channels_of_rows")
                writer.line(f"{name}_by = _channels_of_rows({name}, shape)")

    def _print_chunk(self, writer: Writer, body: TorchBody, kernel: Kernel, at: int) -> None:
        sweep = kernel.sweeps[at]
        multiplied = {name for node in (*sweep.body, *sweep.reductions) for name in node.inputs if _multiplies(node)}
        by_channel = vectors_by_channel(kernel)
        numbers = {each.name for each in _locals(node for node in (*sweep.body, *sweep.numbers, *sweep.reductions))}
        for operand in self.operands.core.of_kind(Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER):
            name = operand.name
            if name in multiplied:
                writer.line(f"{name}_tile = _flat({name}[:, :, chunk.keys], {self.rows}.dtype)")
            if name in by_channel:
                self.used.add("_channels_of_keys")
                writer.line(f"{name}_by = _channels_of_keys({name}, chunk, shape, {self.rows}.dtype)")
            if operand.kind is Kind.COLUMN_NUMBER and name in numbers:
                self.used.add("_by_key")
                body.rename[name] = f"{name}_tile"
                writer.line(f"{name}_tile = _by_key({name}, chunk, shape)")
        reads_j = any(Name.J in _positions(node) for node in (*sweep.body, *sweep.numbers, *sweep.reductions))
        if reads_j and self.listed:
            writer.line("j = chunk.j")
        elif reads_j:
            j = f"chunk.start + torch.arange(chunk.count, device={self.rows}.device)"
            if self.begun:
                j = f"chunk.{'beside_first' if self._by_distance(kernel) else 'of_all'}({j})"
            writer.line(f"j = chunk.part.keys.at({j})" if self.pieces is not None else f"j = {j}")

    def _print_forward(self, writer: Writer) -> int:
        kernel, outputs = self.forward, self.forward_graph.outputs
        body = TorchBody(writer, kernel, self.operands, self.used, in_place=True, together=self.begun or self.listed)
        names = ", ".join(self.operands.passed)
        state = ", state, finishes" if self.chained else ", state" if self.begun else ""
        with writer.block(f"def _forward_slab({names}, numbers, slab, chunks, work, call{state}):"):
            shape = "[batch * kv heads, group * rows, d]"
            writer.line(f'"""The vectors and row numbers of one slab; {self.rows} is {shape}."""')
            writer.line("shape = slab.shape")
            self._print_start(writer, kernel)
            rows = {node.name for sweep in kernel.sweeps for node in sweep.reductions} | body.of_rows
            for node in kernel.before:
                body.print_row(node, rows)
            for at, sweep in enumerate(kernel.sweeps):
                for node in sweep.before:
                    body.print_row(node, rows)
                if self.begun and all(Axis.ROW in node.axes and node.op is not Op.PEAK for node in sweep.reductions):
                    with writer.block("if state is not None:"):
                        writer.line(f"{self._state_names()} = state")
                    with writer.block("else:"):
                        self._print_accumulators(writer, sweep)
                else:
                    self._print_accumulators(writer, sweep)
                    if self.chained or self.begun:
                        with writer.block("if state is not None:"):
                            writer.line(f"{self._state_names()} = state")
                with writer.block("for chunk in chunks:"):
                    self._print_chunk(writer, body, kernel, at)
                    for node in sweep.numbers:
                        body.print_row(node, rows)
                    body.print_sweep(sweep)
            if self.chained:
                with writer.block("if not finishes:"):
                    writer.line(f"return {self._state_names()}")
            self._print_after(writer, body, kernel, rows)
            writer.line(f"return {', '.join(outputs)}{',' * (len(outputs) == 1)}")
        writer.line()
        writer.line()
        return body.workspaces

    def _print_accumulators(self, writer: Writer, sweep: Sweep) -> None:
        q = self.rows
        for node in sweep.reductions:
            if node.op is Op.PEAK:
                start = f"torch.finfo({q}.dtype).min" if node.expr is None else "0.0"
                writer.line(f"peak = {q}.new_full((*shape[:3], 1), {start})")
                if node.expr is not None:
                    writer.line(f"peak = peak + {self._peak_start(node.expr)}")
            elif Axis.ROW not in node.axes:
                continue  # a total over slabs
            elif node.op is Op.SUM:
                writer.line(f"{node.name} = {q}.new_zeros((*shape[:3], 1))")
            else:
                writer.line(f"{node.name} = {q}.new_zeros((*{q}.shape[:2], {self._width(node)}))")

    def _width(self, node: Node) -> str:
        """The text of the width of a row's vectors: of the vector that they are the gradient of, or of the values."""
        if Axis.VALUE in node.axes:
            return f"{self.operands.core.values}.shape[-1]"
        return f"{next(each.name for each in self.operands if each.width == node.width)}.shape[-1]"

    def _peak_start(self, expr: Expr) -> str:
        expressions = self._expressions(torch_dialect(self.rows))
        written = expressions.write(expr, 5)
        self.used |= expressions.used
        return written

    def _print_after(self, writer: Writer, body: TorchBody, kernel: Kernel, rows: set[str]) -> None:
        q = self.rows
        inverses = _saved_inverses(kernel)
        for node in kernel.after:
            match node.op:
                case _ if node in inverses.values():
                    continue  # it stands before the division
                case Op.DIVIDE if node.inputs[1] in inverses:
                    inverse = inverses[node.inputs[1]]
                    body.print_row(inverse, rows)
                    writer.line(f"{node.name} = {node.inputs[0]}.mul_(_pairs({inverse.name}, {q}))")
                case Op.DIVIDE:
                    divisor = self.forward_graph[node.inputs[1]]
                    self.used.add("_reciprocal")
                    if divisor.axes:
                        writer.line(f"{node.name} = {node.inputs[0]}.mul_(_pairs(_reciprocal({divisor.name}), {q}))")
                    elif divisor.name in tables_of(self.uniform()):
                        self.used.add("_per_row")
                        per_row = f"_per_row(_reciprocal({divisor.name}), slab, {q})"
                        writer.line(f"{node.name} = {node.inputs[0]} * {per_row}")
                    else:
                        writer.line(f"{node.name} = {node.inputs[0]} * _reciprocal({divisor.name})")
                case Op.MULTIPLY:
                    is_number = Axis.FEATURE not in node.axes and Axis.VALUE not in node.axes
                    factor = node.inputs[1] if is_number else self._folded(node.inputs[1])
                    writer.line(f"{node.name} = {node.inputs[0]} * {factor}")
                case Op.ADD:
                    writer.line(f"{node.name} = {' + '.join(node.inputs)}")
                case _:
                    body.print_row(node, rows)

    def _folded(self, name: str) -> str:
        """A per-head number as it multiplies folded vectors; plain numbers multiply as they are."""
        if name not in tables_of(self.uniform()):
            return name
        self.used.add("_per_row")
        return f"_per_row({name}, slab, {self.rows})"

    def _print_backward(self, writer: Writer) -> int:
        kernel = self.backward
        body = TorchBody(writer, kernel, self.operands, self.used, in_place=True, together=self.begun or self.listed)
        statistics = [node.name for node in kernel.statistics]
        arguments = ", ".join([*self.operands.passed, "d_out", *statistics, *self.added()])
        once = self.counted_once()
        begins = ", begins" if once else ""
        with writer.block(f"def _backward_slab({arguments}, numbers, slab, chunks, work, call{begins}):"):
            own = [each.name for each in self.operands.row_gradients(self.backward_graph)]
            others = [operand.name for operand, _ in self.operands.totals(self.backward_graph).values()]
            returned = f"returns {_that_of(own)} and adds" if own else "adds"
            said = f"Gradients of one slab: {returned} {_those_of(others)} to their totals."
            if len(said) > WIDTH - 10:
                said = "Gradients of one slab: returns those of rows and adds the others to their totals."
            writer.line(f'"""{said}"""')
            writer.line("shape = slab.shape")
            if "lse" in statistics:
                writer.line(
                    "lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # rows without weights: all shares are 0"
                )
            self._print_start(writer, kernel)
            rows = {node.name for node in kernel.sweeps[0].reductions} | body.of_rows
            self._print_accumulators(writer, kernel.sweeps[0])
            for node in kernel.before:
                body.print_row(node, rows)
            if once:
                with writer.block("if not begins:  # what follows from the normaliser counts once"):
                    for name in once:
                        writer.line(f"{name} = torch.zeros_like({name})")
            with writer.block("for chunk in chunks:"):
                self._print_chunk(writer, body, kernel, 0)
                for node in kernel.sweeps[0].numbers:
                    body.print_row(node, rows)
                body.print_sweep(kernel.sweeps[0])
            self._print_after(writer, body, kernel, rows)
            names = [gradient_name(each) for each in own]
            writer.line(f"return {', '.join(names)}{',' * (len(names) == 1)}" if names else "return ()")
        return body.workspaces

    def _expressions(self, dialect: Dialect = TORCH) -> ExpressionWriter:
        host = ExpressionWriter(HOST, lambda name: SYMBOLS[name], lambda name: name)
        return ExpressionWriter(dialect, lambda name: SYMBOLS[name], lambda name: name, host=host)


def _saved_inverses(kernel: Kernel) -> dict[str, Node]:
    """For divisors the row number that backward reads and that forward can multiply by."""
    divisors = [node.inputs[1] for node in kernel.after if node.op is Op.DIVIDE]
    return {name: node for name in divisors for node in kernel.after if node.expr == reciprocal(name)}


def _positions(node: Node) -> set[Name]:
    """The positions that a node's text reads; a restriction's and a peak's come from others."""
    if node.expr is None or node.op in (Op.RELATED, Op.RESTRICT):
        return set()
    return set(names_in(node.expr)) & {Name.I, Name.J}


def _of_distance(expr: Expr) -> bool:
    """Whether an expression reads positions as i - j alone."""
    match expr:
        case Symbol(name=Name.I | Name.J):
            return False
        case Binary(op=BinaryOp.SUBTRACT, left=Symbol(name=Name.I), right=Symbol(name=Name.J)):
            return True
        case _:
            return all(map(_of_distance, children(expr)))


def _multiplies(node: Node) -> bool:
    return node.op in (Op.DOT, Op.CONTRACT)


def _locals(nodes: Iterable[Node]) -> Iterator[Local]:
    """The numbers that nodes name in their expressions, entries' indices among them."""
    for node in nodes:
        yield from (Local(name) for name in node.inputs)
        if node.expr is not None:
            yield from (each for each in walk(node.expr) if isinstance(each, Local))


def _that_of(names: list[str]) -> str:
    return f"that of {names[0]}" if len(names) == 1 else _those_of(names)


def _those_of(names: list[str]) -> str:
    return f"those of {listed(names)}"
