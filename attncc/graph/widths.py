"""How many features a vector has: which tensor's last axis says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attncc.graph.core import Core, Operand
from attncc.spec.data import Axis, Data, Size
from attncc.spec.expr import Entry, Expr, Join, Let, MatMul, Merge, Output, Rotate, Type, Vector, children, type_of


def width_of(expr: Expr) -> str | None:
    """The tensor whose last axis is as long as a vector; None where its formula names none."""
    match expr:
        case Vector(name=name) | Entry(name=name, is_vector=True):
            return name
        case Output(branch=name) | Merge(branches=(name, *_)):
            return name
        case MatMul(matrix=matrix):
            return matrix.name
        case Let(value=value) | Rotate(vector=value):
            return width_of(value)
        case _:
            found = (width_of(each) for each in children(expr) if type_of(each) is Type.VECTOR)
            return next((each for each in found if each is not None), None)


def width_text(expr: Expr) -> str:
    """How many features a vector has, as a text of tensors."""
    match expr:
        case Join(left=left, right=right) if left == right or width_of(left) == width_of(right):
            return f"2 * {width_text(left)}"
        case Join(left=left, right=right):
            return f"({width_text(left)} + {width_text(right)})"
        case Let(value=value):
            return width_text(value)
        case _ if (name := width_of(expr)) is not None:
            return f"{name}.shape[-1]"
        case _:
            return next(width_text(each) for each in children(expr) if type_of(each) is Type.VECTOR)


def sizes_of(core: Core, data: Mapping[str, Data]) -> dict[str, Axis]:
    """How long each width of a core is, by its name."""
    found: dict[str, Axis] = {}
    for each in core.operands:
        name = each.source if each.value is None else width_of(each.value)
        if each.width is not None and name is not None:
            found.setdefault(each.width, data[name].axes[-1])
    return {each.width: Size.WIDTH for each in core.operands if each.width is not None} | found


def as_wide_as(size: Size, operands: Sequence[Operand], data: Mapping[str, Data]) -> str | None:
    """The last vector operand that has so many features; None where there is none."""
    for each in reversed(operands):
        if each.kind.is_vector:
            source = each.source or (width_of(each.value) if each.value is not None else None)
            if source is not None and data[source].axes[-1] is size:
                return each.name
    return None
