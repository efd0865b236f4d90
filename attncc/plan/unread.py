"""Declared data that nothing reads → warnings."""

from __future__ import annotations

from attncc.diagnostics import Diagnostic, Label
from attncc.spec.core_fields import data_read
from attncc.spec.expr import Entry, Expr, Token, UpTo, Vector, walk
from attncc.spec.model import Spec


def unread(spec: Spec) -> tuple[Diagnostic, ...]:
    """A warning for each declaration that no weight, value or combination reads.

    Vectors of queries are left out: what is not read may tell how many queries there are.
    """
    read = set().union(*(data_read(each) for each in spec.cores))
    if spec.combine is not None:
        read |= _names(spec.combine)
    return tuple(
        Diagnostic(
            "W302",
            f"nothing reads `{each.name}`",
            (Label(each.span, "declared here"),),
            ("it stays an argument of the function that is emitted",),
            (f"read it in a field, such as `score = scale * dot(q, k) + {each.name}[…]`, or leave it out",),
        )
        for each in spec.data
        if each.span is not None and each.name not in read and not (each.is_row and each.is_full)
    )


def _names(expr: Expr) -> set[str]:
    return {node.name for node in walk(expr) if isinstance(node, Vector | Token | Entry | UpTo)}
