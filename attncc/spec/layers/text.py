"""Values of a layer as a spec writes them."""

from __future__ import annotations

from attncc.spec.layers.dims import Dim
from attncc.spec.layers.iteration import MARK
from attncc.spec.layers.model import Node, Op

_SUM, _PRODUCT, _UNARY, _POWER, _ATOM = range(5)
_LEVELS = {
    Op.ADD: _SUM, Op.SUBTRACT: _SUM, Op.MULTIPLY: _PRODUCT, Op.DIVIDE: _PRODUCT, Op.FLOOR_DIVIDE: _PRODUCT,
    Op.MODULO: _PRODUCT, Op.MATMUL: _PRODUCT, Op.NEGATE: _UNARY, Op.POWER: _POWER,
}  # fmt: skip
_LOGIC = (Op.COMPARE, Op.AND, Op.OR, Op.NOT)


def text(node: Node) -> str:
    """The value, with no more brackets than it needs."""
    match node.op:
        case Op.CONST:
            return f"{node.numbers[0]:.12g}"
        case Op.SIZE:
            return str(node.dims[0])
        case Op.NAME:
            return node.name.removeprefix(MARK)
        case Op.ITERATE:
            first, body = node.args
            return f"iterate({node.name.removeprefix(MARK)} -> {text(body)}, {text(first)}, times = {node.dims[0]})"
        case Op.INSERT | Op.DROP | Op.EXPAND:
            return text(node.args[0])
        case Op.CHOOSE:
            return " ? ".join(_inside(each, _SUM) for each in node.args[:2]) + f" : {_inside(node.args[2], _SUM)}"
        case Op.COMPARE:
            return f" {node.name} ".join(_inside(each, _SUM) for each in node.args)
        case Op.AND | Op.OR:
            return f" {node.op.value} ".join(
                f"({text(each)})" if each.op in _LOGIC[1:3] else text(each) for each in node.args
            )
        case Op.NOT:
            return f"!({text(node.args[0])})"
        case Op.NEGATE:
            return f"-{_inside(node.args[0], _UNARY)}"
        case Op.PICK:
            return f"{_inside(node.args[0], _ATOM)}[{node.dims[0]}]"
        case Op.ATTEND:
            options = [f"{name} = {text(each)}" for name, each in node.options]
            return f"attend {node.name}({', '.join([*map(text, node.args), *options])})"
        case Op.MATMUL:
            left, right = node.args
            level = _PRODUCT if left.op is Op.MATMUL else _PRODUCT + 1  # `(u * v) @ w` is easier to read
            return f"{_inside(left, level)} @ {_inside(right, _PRODUCT + 1)}"
        case _ if node.op in _LEVELS:
            level = _LEVELS[node.op]
            left, right = node.args
            return f"{_inside(left, level)} {node.op.value} {_inside(right, level + 1)}"
    if node.op is Op.SLICE and node.dims[0].number == 0:
        over = [] if node.axis == -1 else [f"over = {_axis(node.args[0], node.axis)}"]
        return f"first({', '.join([text(node.args[0]), str(node.dims[1]), *over])})"
    name = node.name if node.op is Op.FUNCTION else _called(node)
    arguments = [*map(text, node.args), *_more(node)]
    return f"{name}({', '.join(arguments)})"


def _called(node: Node) -> str:
    if node.op is Op.ROTATE:
        return "rope" if node.name == "halves" else "rope_pairs"
    return str(node.op.value)


def _more(node: Node) -> list[str]:
    """What a call says beside its values."""
    match node.op:
        case Op.SOFTMAX | Op.SUM | Op.MEAN | Op.LARGEST:
            return [f"over = {node.along or 'B'}"]
        case Op.CONVOLVE | Op.DEPTHWISE | Op.CONVOLVE_2D:
            names = zip(("stride", "before"), node.dims, strict=False)
            return [f"{name} = {each}" for name, each in names if (name, str(each)) != ("stride", "1")]
        case Op.SEGMENTS if node.numbers[0]:
            return [str(node.dims[0]), f"epsilon = {node.numbers[0]:g}"]
        case Op.POOL_LARGEST | Op.UNPOOL | Op.SEGMENTS | Op.IDENTITY:
            return [str(node.dims[0])]
        case Op.BATCH_NORM if node.axis != -1:
            return [f"channels = {node.along}"]
        case Op.CONCAT if node.axis != -1:
            return [f"over = {_axis(node.args[0], node.axis)}"]
        case Op.LARGEST_AT:
            return [str(each) for each in node.dims if each.terms]
        case Op.GATHER if sum(each == node.args[0].type.axes[node.axis] for each in node.args[0].type.axes) == 1:
            return [f"over = {_axis(node.args[0], node.axis)}"]
        case Op.COLUMN_SUMS if not node.numbers[0]:
            return ["own = 0"]
        case Op.BLOCK_SUMS:
            return [str(each) for each in node.dims]
        case Op.SPLIT_HEADS | Op.POOL | Op.REPEAT | Op.SHIFT:
            return [str(node.dims[0])]
        case Op.SLICE:
            over = [] if node.axis == -1 else [f"over = {_axis(node.args[0], node.axis)}"]
            return [str(node.dims[0]), str(node.dims[1]), *over]
    return []


def _axis(node: Node, axis: int) -> Dim:
    return node.type.axes[axis]


def _inside(node: Node, level: int) -> str:
    inner = node
    while inner.op in (Op.INSERT, Op.DROP, Op.EXPAND):
        inner = inner.args[0]
    if inner.op is Op.CHOOSE:
        return f"({text(inner)})"
    own = _LEVELS.get(inner.op, _SUM if inner.op is Op.SIZE and len(inner.dims[0].terms) > 1 else _ATOM)
    return f"({text(inner)})" if own < level else text(inner)
