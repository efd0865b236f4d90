"""Blocks of keys that decoding keeps → the text that makes those alone that are not full yet."""

from __future__ import annotations

from attncc.emit.operands import Operands
from attncc.graph.core import Kind
from attncc.plan.model import Plan
from attncc.spec.data import Size

_COLUMNS = (Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER, Kind.COLUMN_FACT)


def kept_blocks(plan: Plan, operands: Operands, name: str) -> str:
    """The call that takes the place of `_operands(*prepared)`; full blocks go under a name."""
    blocks = plan.spec.blocks
    assert blocks is not None
    axes = [str(each.axes.index(Size.KEYS)) if each.is_column else "None" for each in plan.spec.data]
    places = [str(at) for at, each in enumerate(operands) if each.kind in _COLUMNS]
    listed = (f"({', '.join(each)}{',' * (len(each) == 1)})" for each in (axes, places))
    return f'_kept_blocks(kept, "{name}", _operands, {blocks.width}, {blocks.stride}, {", ".join(listed)}, prepared)'
