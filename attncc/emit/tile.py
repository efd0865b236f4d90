"""Graphs → the tile program: for a tile of rows (or columns), what is loaded, swept, reduced, and stored.

Printers read nothing else. A sweep runs over the other axis tile by tile; its body is the same on full tiles (every
pair related, no mask) and on partial ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attncc.graph.ir import Graph, Node
from attncc.graph.ops import Axis, Op
from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, walk

REDUCTIONS = (Op.PEAK, Op.SUM, Op.CONTRACT, Op.SPREAD)
_GIVEN = (Op.OPERAND, Op.STATISTIC)


@dataclass(frozen=True, slots=True)
class Sweep:
    """One pass over the swept axis: numbers of each pair, in order, then what they are reduced to.

    `before` are numbers of the fixed axis that follow from earlier sweeps. `loads` are the operands and saved row
    numbers of the swept axis, `numbers` what is computed from them before the numbers of pairs.
    """

    before: tuple[Node, ...]
    loads: tuple[Node, ...]
    numbers: tuple[Node, ...]
    body: tuple[Node, ...]
    reductions: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Everything that it computes."""
        return *self.before, *self.numbers, *self.body, *self.reductions

    @property
    def peak(self) -> Node | None:
        """The running maximum that rescales the other reductions, if there is one."""
        return next((node for node in self.reductions if node.op is Op.PEAK), None)

    @property
    def rescaled(self) -> frozenset[str]:
        """The sums of numbers that are lowered by the peak; others, such as a count, stay when it rises."""
        body = {node.name: node for node in self.body}

        def lowered(name: str) -> bool:
            is_peak = self.peak is not None and name == self.peak.name
            return is_peak or (name in body and any(map(lowered, body[name].inputs)))

        return frozenset(node.name for node in self.sums if any(map(lowered, node.inputs)))

    @property
    def sums(self) -> tuple[Node, ...]:
        """The reductions that add up: sums and contractions."""
        return tuple(node for node in self.reductions if node.op is not Op.PEAK)


@dataclass(frozen=True, slots=True)
class Kernel:
    """Everything that one tile of the fixed axis does."""

    name: str
    fixed: Axis
    uniform: tuple[Node, ...]  # call-wide and per-head numbers that it reads, computed by the host
    loads: tuple[Node, ...]  # operands and saved row numbers of the fixed axis
    tables: tuple[Node, ...]  # operands by distance, and tables: each pair reads its entry
    before: tuple[Node, ...]  # numbers of the fixed axis that the sweeps read
    sweeps: tuple[Sweep, ...]
    after: tuple[Node, ...]  # numbers and vectors of the fixed axis, after the last sweep
    at_last: tuple[Node, ...]  # what is left to do to other results than the fixed axis', when every tile has added
    stores: tuple[Node, ...]
    added: tuple[Node, ...] = ()  # sums for the swept axis, which every tile adds to in memory
    in_order: bool = False  # whether the tiles of a head run one after the other, as they do on CPUs alone

    @property
    def swept(self) -> Axis:
        """The axis that is swept."""
        return Axis.COLUMN if self.fixed is Axis.ROW else Axis.ROW

    @property
    def operands(self) -> tuple[Node, ...]:
        """Every tensor but saved row numbers that the kernel reads, in the order it reads them."""
        swept = tuple(node for sweep in self.sweeps for node in sweep.loads)
        found = tuple(node for node in (*self.loads, *swept, *self.tables) if node.op is Op.OPERAND)
        return tuple({node.name: node for node in found}.values())

    @property
    def statistics(self) -> tuple[Node, ...]:
        """Every saved row number that the kernel reads."""
        swept = tuple(node for sweep in self.sweeps for node in sweep.loads)
        found = tuple(node for node in (*self.loads, *swept) if node.op is Op.STATISTIC)
        return tuple({node.name: node for node in found}.values())


def schedule(name: str, graph: Graph, fixed: Axis, outputs: tuple[str, ...]) -> Kernel:
    """The kernel that computes `outputs`: by tiles of the fixed axis, or added up over them for those of the other."""
    graph = Graph(graph, outputs)
    swept = Axis.COLUMN if fixed is Axis.ROW else Axis.ROW
    ready = _ready_after(graph, swept)
    count = 1 + max((ready[node.name] for node in graph), default=-1)
    reductions = [node for node in graph if node.op in REDUCTIONS]
    reduced_names = {node.name for node in reductions}
    own = [node for node in graph if fixed in node.axes and not node.is_tile]
    loads = tuple(node for node in own if node.op in _GIVEN)
    numbers = [node for node in own if node.op not in _GIVEN and node.name not in reduced_names]
    sweeps = []
    for at in range(count):
        reduced = [node for node in reductions if _sweep_of(node, ready) == at]
        body = [node for node in graph if node.is_tile and any(_feeds(graph, node, each) for each in reduced)]
        between = tuple(node for node in numbers if ready[node.name] == at - 1 >= 0)
        sweeps.append(_sweep(graph, swept, between, body, reduced))
    last = count - 1
    return Kernel(
        name=name,
        fixed=fixed,
        uniform=tuple(node for node in graph if node.op is Op.NUMBER and not node.axes and _is_called(graph, node)),
        loads=loads,
        tables=tuple(node for node in graph if node.op in _GIVEN and not set(node.axes) & {fixed, swept}),
        before=tuple(node for node in numbers if ready[node.name] < 0),
        sweeps=tuple(sweeps),
        after=tuple(node for node in numbers if ready[node.name] == last >= 0),
        at_last=tuple(node for node in graph if fixed not in node.axes and node.op in (Op.MULTIPLY, Op.ADD)),
        stores=tuple(graph[name] for name in outputs),
    )


def at_once(columns: Kernel, rows: Kernel | None) -> Kernel | None:
    """The kernel of both gradients, which computes each pair once: tiles of keys add to the gradients of rows.

    None where rows ask for more than products with vectors of keys, each times a number of the call.
    """
    if rows is None or len(rows.sweeps) != 1 or len(columns.sweeps) != 1:
        return None
    sweep, sums = columns.sweeps[0], rows.sweeps[0].reductions
    body, loads = {node.name for node in sweep.body}, {node.name for node in columns.loads}
    called = {node.name for node in rows.uniform}
    plain = all(node.op is Op.CONTRACT and Axis.ROW in node.axes for node in sums)
    plain &= all(len(body.intersection(node.inputs)) == len(loads.intersection(node.inputs)) == 1 for node in sums)
    plain &= all(node.op is Op.MULTIPLY and node.inputs[1] in called for node in rows.after)
    if not plain or any(node not in (*sums, *rows.after) for node in rows.stores):
        return None
    room = tuple(replace(node, op=Op.OPERAND, inputs=()) for node in sums)
    sweep = replace(sweep, loads=(*sweep.loads, *room))
    return replace(columns, name="backward_at_once", sweeps=(sweep,), added=sums, in_order=True)


def _sweep(graph: Graph, swept: Axis, between: tuple[Node, ...], body: list[Node], reduced: list[Node]) -> Sweep:
    needed = {name for node in (*body, *reduced) for name in node.inputs}
    of_swept = [
        node for node in graph if node.axes and not node.is_tile and swept in node.axes and node.op not in REDUCTIONS
    ]
    of_swept = [node for node in of_swept if node.op not in (Op.MULTIPLY, Op.ADD)]
    wanted = [
        node for node in of_swept if any(graph.depends(name, node.name) for name in needed if not graph[name].is_tile)
    ]
    loads = tuple(node for node in wanted if node.op in (Op.OPERAND, Op.STATISTIC))
    numbers = tuple(node for node in wanted if node.op is Op.NUMBER)
    return Sweep(between, loads, numbers, tuple(body), tuple(reduced))


def _is_called(graph: Graph, node: Node) -> bool:
    return bool(graph.users(node.name)) or node.name in graph.outputs


def _feeds(graph: Graph, node: Node, reduction: Node) -> bool:
    """Whether a pair number is needed to compute a reduction, with no other sum in between."""
    if node.name in reduction.inputs:
        return True
    return any(
        _feeds(graph, node, graph[name])
        for name in reduction.inputs
        if graph[name].is_tile or graph[name].op is Op.PEAK
    )


def _ready_after(graph: Graph, swept: Axis) -> dict[str, int]:
    """For each node the sweep after which it is known; -1 before the first. A peak is usable while it runs."""
    ready: dict[str, int] = {}
    for node in graph:
        inputs = [ready[name] for name in node.inputs]
        latest = max(inputs, default=-1)
        if node.op in (Op.SUM, Op.CONTRACT, Op.SPREAD):
            latest += 1
        elif node.op is Op.NUMBER and not node.is_tile and any(graph[name].op is Op.PEAK for name in node.inputs):
            latest = max(latest, *(ready[name] + 1 for name in node.inputs if graph[name].op is Op.PEAK))
        ready[node.name] = latest
    return ready


def _sweep_of(node: Node, ready: dict[str, int]) -> int:
    return ready[node.name] + 1 if node.op is Op.PEAK else ready[node.name]


def may_fail(formula: Expr) -> bool:
    """Whether a formula can be infinite, or no number at all, for finite vectors."""
    for each in walk(formula):
        match each:
            case Binary(op=BinaryOp.DIVIDE | BinaryOp.POWER, right=right):
                if not isinstance(right, Const) or right.value < 0:
                    return True
            case Call(function="log" | "log2" | "sqrt" | "exp" | "exp2"):
                return True
    return False
