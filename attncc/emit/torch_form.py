"""Plan → the functions of the torch form that depend on the spec; everything else is in the module template."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.emit.expressions import HOST, PATTERN, TORCH, Dialect
from attncc.emit.expressions import Writer as ExpressionWriter
from attncc.emit.tile import Kernel, Sweep, schedule
from attncc.emit.torch_body import SYMBOLS, TorchBody
from attncc.emit.writer import Writer
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.plan.model import Plan
from attncc.plan.ranges import HeadClass, Interval, Segment, plus
from attncc.spec.expr import TRUE, Expr, Name, names_in
from attncc.spec.text import text

_FAR = "_FAR"


@dataclass(frozen=True, slots=True)
class Parts:
    """Texts for the template, and what it must know to fit around them."""

    pattern: str  # _segments and _related
    numbers: str  # _numbers, or empty
    slabs: str  # _forward_slab and _backward_slab
    plain: str  # _weights_of
    workspaces: int
    by_head: bool
    used: frozenset[str]


def plan_kernels(plan: Plan) -> tuple[Kernel, Kernel]:
    """The torch form's forward and backward, both by slabs of rows; gradients of keys are added up over slabs."""
    forward, backward = plan.torch.forward, plan.torch.backward
    return (
        schedule("forward", forward, Axis.ROW, forward.outputs),
        schedule("backward", backward, Axis.ROW, backward.outputs),
    )


class TorchForm:
    """Prints the functions of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.forward, self.backward = plan_kernels(plan)
        self.used: set[str] = set()

    def parts(self) -> Parts:
        """All texts."""
        slabs = Writer()
        forward_spaces = self._print_forward(slabs)
        backward_spaces = self._print_backward(slabs)
        return Parts(
            pattern=self._pattern(),
            numbers=self._numbers(),
            slabs=slabs.text(),
            plain=self._plain(),
            workspaces=max(forward_spaces, backward_spaces),
            by_head=self.by_head,
            used=frozenset(self.used),
        )

    @property
    def by_head(self) -> bool:
        """Whether heads have different ranges."""
        return len(self.plan.domain.classes) > 1 or self._heads_apart()

    def _heads_apart(self) -> bool:
        """Whether even the heads of one class have ranges of their own."""
        return any(Name.HEAD in names_in(each.pattern) for each in self.plan.domain.classes)

    # --- pattern ----------------------------------------------------------------------------------------------

    def _expressions(self, dialect: Dialect = TORCH) -> ExpressionWriter:
        host = ExpressionWriter(HOST, lambda name: SYMBOLS[name], lambda name: name)
        return ExpressionWriter(dialect, lambda name: SYMBOLS[name], lambda name: name, host=host)

    def _host(self) -> ExpressionWriter:
        return ExpressionWriter(HOST, lambda name: SYMBOLS[name], lambda name: name)

    def _pattern(self) -> str:
        writer = Writer()
        self._print_segments(writer)
        writer.line()
        writer.line()
        expressions = self._expressions(PATTERN)
        pattern = self.plan.spec.pattern
        with writer.block("def _related(i, j, call):"):
            writer.line(f'"""{_sentence(text(pattern))}"""')
            if pattern == TRUE:
                writer.line("return torch.ones_like(i + j, dtype=torch.bool)")
            else:
                writer.line(f"return {expressions.write(pattern)}")
        self.used |= expressions.used
        if self.by_head:
            writer.line()
            writer.line()
            self._print_head_kinds(writer)
        return writer.text()

    def _print_segments(self, writer: Writer) -> None:
        with writer.block("def _segments(first, last, call):"):
            writer.line(
                '"""Intervals of positions that rows first … last touch, each with the part all of them see."""'
            )
            classes = self.plan.domain.classes
            for each in classes[:-1]:
                host = self._host()
                with writer.block(f"if {host.write(each.condition)}:"):
                    self._print_class(writer, each)
            self._print_class(writer, classes[-1])

    def _print_class(self, writer: Writer, each: HeadClass) -> None:
        items = [self._segment(segment) for segment in each.by_row]
        if not items:
            writer.line("return ()")
        elif len(items) == 1:
            writer.line(f"return ({items[0]},)")
        else:
            writer.line("return (")
            with writer.indented():
                for item in items:
                    writer.line(f"{item},")
            writer.line(")")

    def _segment(self, segment: Segment) -> str:
        touched = self._interval(segment.touched)
        full = self._interval(segment.full) if segment.full is not None else "(0, 0)"
        return f"({touched}, {full})"

    def _interval(self, interval: Interval) -> str:
        host = self._host()
        low = f"-{_FAR}" if interval.low is None else host.write(interval.low)
        high = _FAR if interval.high is None else host.write(plus(interval.high, 1))
        both = f"({low}, {high})"
        return both if interval.when == TRUE else f"({both} if {host.write(interval.when)} else (0, 0))"

    def _print_head_kinds(self, writer: Writer) -> None:
        """Heads that share ranges run together."""
        with writer.block("def _head_groups(heads, n, m):"):
            writer.line('"""Lists of heads whose ranges are the same."""')
            if self._heads_apart():
                writer.line("return [[head] for head in range(heads)]")
                return
            writer.line("groups = {}")
            with writer.block("for head in range(heads):"):
                writer.line("call = _Call(n, m, heads, head)")
                conditions = ", ".join(self._host().write(each.condition) for each in self.plan.domain.classes)
                comma = "," if len(self.plan.domain.classes) == 1 else ""
                writer.line(f"groups.setdefault(({conditions}{comma}), []).append(head)")
            writer.line("return list(groups.values())")

    # --- call-wide numbers ------------------------------------------------------------------------------------

    def uniform(self) -> tuple[Node, ...]:
        """The call-wide numbers of both passes, each once."""
        nodes = {node.name: node for kernel in (self.forward, self.backward) for node in kernel.uniform}
        return tuple(nodes.values())

    def _numbers(self) -> str:
        return print_numbers(self.uniform(), "_numbers", self.used)

    # --- slabs ------------------------------------------------------------------------------------------------

    def _reads_positions(self, kernel: Kernel) -> set[Name]:
        numbers = [node for sweep in kernel.sweeps for node in (*sweep.body, *sweep.numbers) if node.op is Op.NUMBER]
        numbers += [node for node in (*kernel.before, *kernel.after) if node.op is Op.NUMBER]
        peaks = [node.expr for sweep in kernel.sweeps for node in sweep.reductions if node.op is Op.PEAK and node.expr]
        return {name for expr in (*(node.value for node in numbers), *peaks) for name in names_in(expr)}

    def _print_unpacking(self, writer: Writer, kernel: Kernel) -> None:
        """Names for the call-wide numbers that a kernel reads."""
        names = [node.name for node in self.uniform()]
        read = {
            name
            for sweep in kernel.sweeps
            for node in (*sweep.body, *sweep.numbers, *sweep.reductions)
            for name in node.inputs
        }
        read |= {name for node in (*kernel.before, *kernel.after, *kernel.at_last) for name in node.inputs}
        read |= {node.name for node in (*kernel.after, *kernel.at_last)}
        if any(name in read for name in names):
            writer.line(
                f"{', '.join(name if name in read else '_' for name in names)}{',' * (len(names) == 1)} = numbers"
            )

    def _print_start(self, writer: Writer, kernel: Kernel) -> None:
        self._print_unpacking(writer, kernel)
        positions = self._reads_positions(kernel)
        if Name.I in positions:
            writer.line("i = torch.arange(slab.first, slab.last + 1, device=q.device)[:, None]")

    def _print_chunk(self, writer: Writer, kernel: Kernel, at: int) -> None:
        sweep = kernel.sweeps[at]
        for node in sweep.loads:
            if node.op is Op.OPERAND:
                writer.line(f"{node.name}_tile = _flat({node.name}[:, :, chunk.keys], q.dtype)")
        read = {name for node in (*sweep.body, *sweep.numbers) if node.op is Op.NUMBER for name in names_in(node.value)}
        if Name.J in read:
            writer.line("j = chunk.start + torch.arange(chunk.count, device=q.device)")

    def _print_forward(self, writer: Writer) -> int:
        kernel, outputs = self.forward, self.plan.torch.forward.outputs
        body = TorchBody(writer, kernel, self.used, in_place=True)
        with writer.block("def _forward_slab(q, k, v, numbers, slab, chunks, work, call):"):
            writer.line('"""The vectors and row numbers of one slab; q is [batch * kv heads, group * rows, d]."""')
            writer.line("shape = slab.shape")
            self._print_start(writer, kernel)
            rows = {node.name for sweep in kernel.sweeps for node in sweep.reductions}
            for node in kernel.before:
                body.print_row(node, rows)
            for at, sweep in enumerate(kernel.sweeps):
                for node in sweep.before:
                    body.print_row(node, rows)
                self._print_accumulators(writer, sweep)
                with writer.block("for chunk in chunks:"):
                    self._print_chunk(writer, kernel, at)
                    for node in sweep.numbers:
                        body.print_row(node, rows)
                    body.print_sweep(sweep)
            self._print_after(writer, body, kernel, rows)
            writer.line(f"return {', '.join(outputs)}{',' * (len(outputs) == 1)}")
        writer.line()
        writer.line()
        return body.workspaces

    def _print_accumulators(self, writer: Writer, sweep: Sweep) -> None:
        for node in sweep.reductions:
            if node.op is Op.PEAK:
                start = "torch.finfo(q.dtype).min" if node.expr is None else "0.0"
                writer.line(f"peak = q.new_full((*shape[:3], 1), {start})")
                if node.expr is not None:
                    writer.line(f"peak = peak + {self._peak_start(node.expr)}")
            elif node.op is Op.SUM:
                writer.line(f"{node.name} = q.new_zeros((*shape[:3], 1))")
            elif Axis.COLUMN not in node.axes:
                width = "v.shape[-1]" if Axis.VALUE in node.axes else "q.shape[-1]"
                writer.line(f"{node.name} = q.new_zeros((*q.shape[:2], {width}))")

    def _peak_start(self, expr: Expr) -> str:
        expressions = self._expressions()
        written = expressions.write(expr, 5)
        self.used |= expressions.used
        return written

    def _print_after(self, writer: Writer, body: TorchBody, kernel: Kernel, rows: set[str]) -> None:
        for node in kernel.after:
            match node.op:
                case Op.DIVIDE:
                    divisor = self.plan.torch.forward[node.inputs[1]]
                    self.used.add("_reciprocal")
                    if divisor.axes:
                        writer.line(f"{node.name} = {node.inputs[0]}.mul_(_pairs(_reciprocal({divisor.name}), q))")
                    elif divisor.name in tables_of(self.uniform()):
                        self.used.add("_per_row")
                        writer.line(f"{node.name} = {node.inputs[0]} * _per_row(_reciprocal({divisor.name}), slab, q)")
                    else:
                        writer.line(f"{node.name} = {node.inputs[0]} * _reciprocal({divisor.name})")
                case Op.MULTIPLY:
                    writer.line(f"{node.name} = {node.inputs[0]} * {self._folded(node.inputs[1])}")
                case _:
                    body.print_row(node, rows)

    def _folded(self, name: str) -> str:
        """A per-head number as it multiplies folded vectors; plain numbers multiply as they are."""
        if name not in tables_of(self.uniform()):
            return name
        self.used.add("_per_row")
        return f"_per_row({name}, slab, q)"

    def _print_backward(self, writer: Writer) -> int:
        kernel = self.backward
        body = TorchBody(writer, kernel, self.used, in_place=True)
        statistics = [node.name for node in kernel.statistics]
        arguments = ", ".join(["q", "k", "v", "d_out", *statistics, *self._added()])
        with writer.block(f"def _backward_slab({arguments}, numbers, slab, chunks, work, call):"):
            writer.line('"""Gradients of one slab: returns that of q and adds those of k and v to their totals."""')
            writer.line("shape = slab.shape")
            if "lse" in statistics:
                writer.line(
                    "lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # rows without weights: all shares are 0"
                )
            self._print_start(writer, kernel)
            rows = {node.name for node in (*kernel.sweeps[0].reductions, *kernel.statistics)}
            self._print_accumulators(writer, kernel.sweeps[0])
            for node in kernel.before:
                body.print_row(node, rows)
            with writer.block("for chunk in chunks:"):
                self._print_chunk(writer, kernel, 0)
                for node in kernel.sweeps[0].numbers:
                    body.print_row(node, rows)
                body.print_sweep(kernel.sweeps[0])
            self._print_after(writer, body, kernel, rows)
            writer.line("return dq" if "dq" in self.plan.torch.backward.outputs else "return torch.zeros_like(q)")
        return body.workspaces

    def _added(self) -> list[str]:
        """The totals over slabs: the contraction that each key gradient is, or is a multiple of."""
        reductions = [node for sweep in self.backward.sweeps for node in sweep.reductions]
        return [node.name for node in reductions if Axis.COLUMN in node.axes]

    def key_totals(self) -> dict[str, tuple[str, str | None]]:
        """For dk and dv the total that slabs add to and the number it is multiplied with at last."""
        found: dict[str, tuple[str, str | None]] = {}
        for node in self.backward.stores:
            if Axis.COLUMN in node.axes:
                found[node.name] = (node.name, None) if node.op is Op.CONTRACT else (node.inputs[0], node.inputs[1])
        return found

    # --- plain operations -------------------------------------------------------------------------------------

    def _plain(self) -> str:
        writer = Writer()
        kernel = self.forward
        body = TorchBody(writer, kernel, self.used, in_place=False)
        outputs = [name for name in self.plan.torch.forward.outputs if name != "out"]
        with writer.block("def _weights_of(q, k, i, j, hidden, numbers, call):"):
            writer.line(
                '"""Weights of pairs, what they are divided by, and the numbers of rows, in plain operations."""'
            )
            self._print_unpacking(writer, kernel)
            for node in kernel.before:
                body.print_row(node, set())
            for sweep in kernel.sweeps:
                for node in (*sweep.before, *sweep.numbers):
                    body.print_row(node, set())
                body.print_sweep(sweep)
            total = next(node for sweep in kernel.sweeps for node in sweep.reductions if node.op is Op.CONTRACT)
            norm = "None"
            for node in kernel.after:
                if node.op is Op.DIVIDE:
                    norm = node.inputs[1]
                elif node.op is Op.NUMBER:
                    writer.line(f"{node.name} = {self._safe_log(body.plain(node.value))}")
            weight = body.rename.get(total.inputs[0], total.inputs[0])
            writer.line(f"return {weight}, {norm}, ({', '.join(outputs)}{',' * (len(outputs) == 1)})")
        return writer.text()

    def _safe_log(self, written: str) -> str:
        """A logarithm of 0 must not make the gradient of the other branch NaN."""
        if "torch.log(" in written:
            self.used.add("_safe_log")
        return written.replace("torch.log(", "_safe_log(")


def print_numbers(nodes: tuple[Node, ...], name: str, used: set[str]) -> str:
    """The function that computes call-wide numbers: floats, or tensors [batch or 1, heads or 1, 1, 1]."""
    if not nodes:
        return ""
    writer = Writer()
    symbols = {
        Name.HEADS: "heads",
        Name.QUERIES: "n",
        Name.KEYS: "m",
        Name.WIDTH: "width",
        Name.VALUE_WIDTH: "value_width",
    }
    symbols |= {Name.SCALE: "scale", Name.HEAD: "h", Name.VALID: "valid"}
    host = ExpressionWriter(HOST, lambda each: symbols[each], lambda each: each)
    expressions = ExpressionWriter(TORCH, lambda each: symbols[each], lambda each: each, host=host)
    read = {each for node in nodes for each in names_in(node.value)}
    tables = tables_of(nodes)
    with writer.block(f"def {name}(q, k, v, scale, kv_lengths):"):
        writer.line('"""Numbers that are the same for every pair of a head."""')
        if read & {Name.HEADS, Name.HEAD}:
            writer.line("heads = q.shape[1]")
        if Name.QUERIES in read:
            writer.line("n = q.shape[2]")
        if read & {Name.KEYS, Name.VALID}:
            writer.line("m = k.shape[2]")
        if Name.WIDTH in read:
            writer.line("width = q.shape[-1]")
        if Name.VALUE_WIDTH in read:
            writer.line("value_width = v.shape[-1]")
        if Name.HEAD in read:
            writer.line("h = torch.arange(heads, dtype=torch.float64, device=q.device)[:, None, None]")
        if Name.VALID in read:
            writer.line("valid = torch.full((1, 1, 1, 1), m, dtype=torch.float64, device=q.device)")
            with writer.block("if kv_lengths is not None:"):
                writer.line("valid = kv_lengths.clamp(0, m).double()[:, None, None, None]")
        for node in nodes:
            written = (expressions if node.name in tables else host).write(node.value)
            if written != node.name:
                writer.line(f"{node.name} = {written}")
        values = [f"_table({node.name}, q)" if node.name in tables else node.name for node in nodes]
        if tables:
            used.add("_table")
        writer.line(f"return {', '.join(values)}{',' * (len(values) == 1)}")
    used |= expressions.used
    return writer.text()


def tables_of(nodes: tuple[Node, ...]) -> set[str]:
    """The call-wide numbers that differ between heads or batch entries, or read one that does."""
    tables: set[str] = set()
    for node in nodes:
        if names_in(node.value) & {Name.HEAD, Name.VALID} or tables & set(node.inputs):
            tables.add(node.name)
    return tables


def _sentence(pattern: str) -> str:
    return f"The pattern: {pattern}" if len(pattern) < 80 else "The pattern."
