"""How many features a vector has: which tensor's last axis says so."""

from __future__ import annotations

from attncc.spec.expr import Entry, Expr, Let, MatMul, Merge, Output, Rotate, Type, Vector, children, type_of


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
