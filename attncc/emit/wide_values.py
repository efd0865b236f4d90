"""Values wider than kernels take: their features in parts, for weights do not depend on them."""

from __future__ import annotations

from attncc.emit.operands import Operands, read_by_pairs
from attncc.graph.ir import Node
from attncc.plan.model import Plan
from attncc.spec.expr import Name, names_in

WIDEST = 256  # features that a kernel takes at once


def wide_values(plan: Plan, operands: Operands, kept: tuple[str, ...], numbers: tuple[Node, ...]) -> dict[str, object]:
    """What the template reads: whether there are parts, and which arguments and results have a part each.

    Args:
        kept: what forward returns beside its output.
        numbers: those of the whole call that kernels read.
    """
    core, count = plan.core, len(operands.names)
    after = count + 1 + len(kept)
    residual = (count + len(kept),) if plan.reads_delta else ()
    arguments = (operands.names.index(core.values), count, *residual, after)
    return {
        "in_parts": not _weights_read_values(plan, numbers),
        "widest": WIDEST,
        "wide_outs": "0, " + f"{len(kept)}" * plan.reads_delta,
        "wide_arguments": ", ".join(map(str, arguments)),
        "d_lse_at": after + 1 if plan.has_lse else 0,
    }


def _weights_read_values(plan: Plan, numbers: tuple[Node, ...]) -> bool:
    """Whether a weight or a normaliser depends on the values, or on how wide they are."""
    if any(Name.VALUE_WIDTH in names_in(node.value) for node in numbers):
        return True
    return plan.core.values in read_by_pairs(plan.gpu.forward)
