"""Values made of values: every operator's shape rule, and what is wrong where shapes do not fit."""

from __future__ import annotations

from dataclasses import replace

from attncc.diagnostics import Label, Span
from attncc.spec.layers.dims import Dim, constant
from attncc.spec.layers.findings import fail
from attncc.spec.layers.model import NUMBER, Kind, Node, Op, Type

ONE = constant(1)


def number(value: int | float, span: Span | None = None) -> Node:
    """A constant."""
    return Node(Op.CONST, (), NUMBER, numbers=(value,), span=span)


def length(dim: Dim, span: Span | None = None) -> Node:
    """A length as a number."""
    return Node(Op.SIZE, (), NUMBER, dims=(dim,), span=span)


def describe(node: Node) -> str:
    """A value as the subject of a sentence."""
    return {Op.NAME: f"`{node.name}`", Op.SIZE: f"`{node.dims[0]}`" if node.dims else ""}.get(node.op, "this")


def written(node: Node) -> Node:
    """The value as it was written, without axes that were added to it."""
    while node.op in (Op.INSERT, Op.EXPAND):
        node = node.args[0]
    return node


def with_rank(node: Node, rank: int) -> Node:
    """A batched value with so many axes: new ones of length 1 stand before its own."""
    if not node.type.batched:  # the batch axis is no obstacle: torch adds axes in front by itself
        return node
    for count in range(len(node.type.axes), rank):
        node = insert(node, -(count + 1))
    return node


def insert(node: Node, axis: int) -> Node:
    """A new axis of length 1."""
    axes = list(node.type.axes)
    axes.insert(len(axes) + 1 + axis, ONE)
    return Node(Op.INSERT, (node,), replace(node.type, axes=tuple(axes)), axis=axis, span=node.span)


def expanded(node: Node) -> Node:
    """The same for each batch entry."""
    return Node(Op.EXPAND, (node,), replace(node.type, batched=True), span=node.span)


def choose(condition: Node, then: Node, otherwise: Node, span: Span) -> Node:
    """Rows of one value or of another, by a truth value for each token."""
    if condition.type.kind is not Kind.BOOL or len(condition.type.axes) != 1:
        fail("E401", f"{describe(condition)} is no truth value of each token", condition.span, str(condition.type))
    (tokens,) = condition.type.axes
    made = elementwise(Op.CHOOSE, (then, otherwise), span)
    at = next((at for at in (-2, -1) if len(made.type.axes) >= -at and made.type.axes[at] == tokens), None)
    if at is None:
        fail("E401", f"the values have no axis `{tokens}` to choose by", span, str(made.type))
    type_ = Type(made.type.axes, batched=True)
    for _ in range(-at - 1):
        condition = insert(condition, -1)
    return Node(Op.CHOOSE, (with_rank(condition, len(type_.axes)), *made.args), type_, span=span)


def drop(node: Node, axis: int) -> Node:
    """Without an axis of length 1."""
    axes = list(node.type.axes)
    del axes[len(axes) + axis]
    return Node(Op.DROP, (node,), replace(node.type, axes=tuple(axes)), axis=axis, span=node.span)


def elementwise(op: Op, operands: tuple[Node, ...], span: Span, name: str = "") -> Node:
    """Entry by entry: axes are matched from the last one on, and one of length 1 goes with any."""
    if all(each.type.is_number for each in operands):
        return Node(op, operands, NUMBER, name=name, span=span)
    for each in operands:
        if each.type.kind is not Kind.REAL:
            text = f"expected real numbers, found {each.type.kind.value}"
            fail("E204", f"{describe(each)} holds no real numbers", each.span, text)
    rank = max(len(each.type.axes) for each in operands)
    axes = operands[0].type.axes
    for each in operands[1:]:
        axes = _broadcast(axes, each.type.axes, operands[0], each, op)
    made = Type(axes, any(each.type.batched for each in operands))
    return Node(op, tuple(with_rank(each, rank) for each in operands), made, name=name, span=span)


def _broadcast(a: tuple[Dim, ...], b: tuple[Dim, ...], left: Node, right: Node, op: Op) -> tuple[Dim, ...]:
    found: list[Dim] = []
    for at in range(1, max(len(a), len(b)) + 1):
        mine = a[-at] if at <= len(a) else ONE
        its = b[-at] if at <= len(b) else ONE
        if ONE not in (mine, its) and mine != its:
            labels = (Label(right.span, str(right.type)),) if right.span is not None else ()
            which = "last axes" if at == 1 else f"axes {at} from the end"
            note = f"the {which} are {mine} and {its}; axes are matched from the last one on"
            helps: tuple[str, ...] = ()
            if len(a) > 1 and len(a) == len(b) and a[-2:] == b[-2:][::-1]:
                helps = ("write `transposed(…)` around one of them",)
            what = f"`{op.value}`" if op is not Op.FUNCTION else "the arguments"
            message = f"{what} of shapes that do not fit" if op is not Op.FUNCTION else "arguments that do not fit"
            fail("E401", message, left.span, str(left.type), *labels, notes=(note,), helps=helps)
        found.insert(0, its if mine == ONE else mine)
    return tuple(found)


def matmul(left: Node, right: Node, span: Span) -> Node:
    """The last axis of one with the last but one of the other, or with the only one of a vector.

    Padded tokens of a sequence that is summed over count as 0.
    """
    for each in (left, right):
        if each.type.is_number or not each.type.axes:
            fail("E401", f"`@` of {describe(each)}, which has no axes", each.span, str(each.type),
                 helps=("write `*` to multiply by a number",))  # fmt: skip
        if each.type.kind is not Kind.REAL:
            fail("E204", f"{describe(each)} holds no real numbers", each.span, f"it holds {each.type.kind.value}")
    a, b = left.type.axes, right.type.axes
    if len(b) == 1 and right.type.batched:
        fail("E401", "`@` with a vector of each batch entry", right.span, str(right.type),
             helps=("write `sum(… * …, over = …)`",))  # fmt: skip
    if len(a) == 1 and len(b) > 2:
        fail("E401", "`@` of shapes that do not fit", left.span, str(left.type), Label(right.span or span, str(b)))
    if len(a) == 1 and left.type.batched and right.type.batched:
        fail("E401", "`@` of a vector and a matrix of each batch entry", left.span, str(left.type),
             helps=("write `sum(… * …, over = …)`",))  # fmt: skip
    inner = b[0] if len(b) == 1 else b[-2]
    if a[-1] != inner:
        _misfit(left, right, inner)
    if len(a) == 1 or len(b) == 1:
        axes = (*a[:-1], *b[1:])
        return Node(Op.MATMUL, (left, right), Type(axes, left.type.batched or right.type.batched), span=span)
    outer = _broadcast(a[:-2], b[:-2], left, right, Op.MATMUL)
    rank = max(len(a), len(b))
    made = Type((*outer, a[-2], b[-1]), left.type.batched or right.type.batched)
    return Node(Op.MATMUL, (with_rank(left, rank), with_rank(right, rank)), made, span=span)


def _misfit(left: Node, right: Node, inner: Dim) -> None:
    a, b = left.type.axes, right.type.axes
    labels = (Label(right.span, str(right.type)),) if right.span is not None else ()
    which = "the first axis" if len(b) == 2 and not right.type.batched else "the last axis but one"
    note = f"`@` sums over the last axis of the left one, {a[-1]}, and {which} of the right one, {inner}"
    helps: tuple[str, ...] = ()
    if len(b) > 1 and a[-1] == b[-1]:
        helps = (f"write `@ transposed({right.name or '…'})`",)
    elif len(a) > 1 and a[-2] == inner:
        helps = (f"write `transposed({left.name or '…'}) @`",)
    elif len(a) == 2 and len(b) > 1 and a[0] == b[-1]:
        helps = ("the two may stand the other way round",)
    fail("E401", "`@` of shapes that do not fit", left.span, str(left.type), *labels, notes=(note,), helps=helps)


def transposed(node: Node, span: Span) -> Node:
    """The last two axes exchanged."""
    axes = node.type.axes
    if len(axes) < 2:
        fail("E401", f"{describe(node)} has no two axes to exchange", node.span, str(node.type))
    return Node(Op.TRANSPOSE, (node,), replace(node.type, axes=(*axes[:-2], axes[-1], axes[-2])), span=span)


def reduced(op: Op, node: Node, axis: int, span: Span) -> Node:
    """Without an axis, whose entries become one number; padded tokens are left out."""
    axes = list(node.type.axes)
    if len(axes) + axis < 0:  # the batch axis: what is left is the same for all entries
        return Node(op, (node,), replace(node.type, batched=False), axis=axis, span=span)
    del axes[len(axes) + axis]
    return Node(op, (node,), replace(node.type, axes=tuple(axes)), axis=axis, span=span)
