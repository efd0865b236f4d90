"""A plan with states → the kernels of its sums: what they read, in which directions, and their text."""

from __future__ import annotations

from attncc.emit.features import features_of
from attncc.emit.tile import Kernel
from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.triton_form.sums.applied import AppliedSums
from attncc.emit.triton_form.sums.pulled import PulledSums
from attncc.emit.triton_form.sums.running import RunningSums
from attncc.emit.triton_form.sums.runs import Runs
from attncc.emit.triton_form.sums.scope import SIDE, Payload, Sides, leaves
from attncc.emit.writer import Writer
from attncc.graph.build import operand_node
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.plan.model import Plan
from attncc.rewrite.backward import gradient_name
from attncc.rewrite.reassociate import StateSum
from attncc.spec.expr import Binary, BinaryOp, Const, Expr

AXES = (Axis.ROW, Axis.COLUMN)


def uniform_numbers(plan: Plan) -> tuple[Node, ...]:
    """The numbers of the call that terms read."""
    return tuple(node for node in plan.gpu.numbers if node.op is Op.NUMBER and not node.axes)


def sides_of(
    plan: Plan, kernels: tuple[Kernel, ...], uniform: dict[str, Node], tables: dict[str, bool], widths: tuple[str, ...]
) -> Sides:
    """What all kernels of sums know of a plan."""
    states, core = plan.states, plan.core
    assert states is not None
    backward = plan.gpu.backward
    statistics = {node.name: node for kernel in kernels[1:] for node in kernel.statistics}
    known = {*statistics, *uniform}
    of_sums = {name: expr for name, expr in plan.of_sums if {each.name for each in leaves(expr)} <= known}
    stored = {node.name for kernel in kernels[1:] for node in kernel.stores}
    count = len(states.terms)
    nodes = {each.name: operand_node(each, core.values) for each in core.operands if each.kind.is_of_token}
    d_out = next((node for node in backward if node.name == "d_out"), None)
    assert d_out is not None
    keys = Payload(
        nodes[core.values],
        tuple(Const(1) if _of(states.sums, at, of_values=True) else None for at in range(count)),
        tuple(Const(1) if _of(states.sums, at, of_values=False) else None for at in range(count)),
    )
    rows = Payload(
        d_out,
        tuple(_added(of_sums, _of(states.sums, at, of_values=True)) for at in range(count)),
        tuple(_added(of_sums, _of(states.sums, at, of_values=False)) for at in range(count)),
    )
    return Sides(
        features={axis: features_of(states, plan.gpu.numbers, core, axis) for axis in AXES},
        payloads={Axis.ROW: rows, Axis.COLUMN: keys},
        nodes=nodes | statistics | uniform | {"d_out": d_out},
        tables=tables,
        sums=states.sums,
        gradients=tuple(name for name in nodes if gradient_name(name) in stored),
        d_values=gradient_name(core.values),
        by_query_head=states.by_query_head,
        widths=widths,
    )


def _of(sums: tuple[StateSum, ...], term: int, *, of_values: bool) -> list[str]:
    return [each.node for each in sums if term in each.terms and each.of_values is of_values]


def _added(of_sums: dict[str, Expr], names: list[str]) -> Expr | None:
    """The gradients of sums that share a term, added up; None where there are none."""
    found = [of_sums[name] for name in names if name in of_sums]
    total = found[0] if found else None
    for each in found[1:]:
        assert total is not None
        total = Binary(BinaryOp.ADD, total, each)
    return total


class SumKernels:
    """The kernels of the sums of one piece."""

    def __init__(self, writer: Writer, sides: Sides, piece: KernelPiece, used: set[str]) -> None:
        self.sides = sides
        near = {
            axis: tuple(part for each in sides.features[axis] for power in each.every_power for part in power.parts)
            for axis in AXES
        }
        whole = {axis: tuple(expr for each in sides.features[axis] for expr in each.expressions) for axis in AXES}
        payloads = sides.payloads
        self.runs = {axis: Runs(writer, sides, piece, used, axis) for axis in AXES}
        self.running = {
            axis: RunningSums(
                writer,
                sides,
                piece,
                used,
                f"sums_by_{SIDE[axis]}",
                axis,
                {axis: (), other: (*whole[other], *payloads[other].expressions)},
                (payloads[other].vector,),
            )
            for axis, other in (AXES, AXES[::-1])
        }
        self.applied = {
            axis: AppliedSums(
                writer, sides, piece, used, f"{SIDE[axis]}s_by_sums", axis, {axis: whole[axis], other: near[other]}
            )
            for axis, other in (AXES, AXES[::-1])
        }
        self.pulled = {
            axis: PulledSums(
                writer,
                sides,
                piece,
                used,
                f"{SIDE[axis]}_gradients_by_sums",
                axis,
                {axis: (*whole[axis], *payloads[axis].expressions), other: near[other]},
                (payloads[axis].vector,),
            )
            for axis, other in (AXES, AXES[::-1])
        }

    def has_runs(self, axis: Axis) -> bool:
        """Whether some tile of an axis sees a run of the other as a whole."""
        return bool(self.running[axis].segments)

    def gives(self, axis: Axis) -> bool:
        """Whether something of the tokens of an axis gets gradients by sums."""
        of_rows = self.sides.of_rows
        if all(each is None for each in (*of_rows.factors, *of_rows.numbers)):
            return False
        return bool(self.pulled[axis].cuts) or (axis is Axis.COLUMN and bool(self.applied[axis].terms))

    def print_kernels(self) -> None:
        """Write all kernels of the piece that have something to do."""
        for axis in AXES:
            if not self.has_runs(axis):
                continue
            if axis is Axis.ROW or self.gives(axis):
                self.runs[axis].print_kernel()
                self.running[axis].print_kernel()
            if axis is Axis.ROW or (self.gives(axis) and self.applied[axis].terms):
                self.applied[axis].print_kernel()
            if self.gives(axis) and self.pulled[axis].cuts:
                self.pulled[axis].print_kernel()
