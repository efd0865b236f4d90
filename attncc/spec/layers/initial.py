"""How learned tensors begin: what the spec says, or what people who use PyTorch expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attncc.diagnostics import Diagnostic, Label
from attncc.spec.layers.findings import Fault, fail
from attncc.spec.layers.model import Draw, Learned, Node, Op, walk
from attncc.spec.words import nearest
from attncc.syntax import tree

_PLAIN = {
    "zeros": (Draw.CONSTANT, (0.0,)),
    "ones": (Draw.CONSTANT, (1.0,)),
    "linear": (Draw.FAN_IN, ()),
    "xavier": (Draw.XAVIER, ()),
    "kaiming": (Draw.KAIMING, ()),
}
_WITH_NUMBER = {"normal": Draw.NORMAL, "uniform": Draw.UNIFORM}
_OF_MATRICES = (Draw.FAN_IN, Draw.XAVIER, Draw.KAIMING)
_NORMS = (Op.LAYER_NORM, Op.RMS_NORM, Op.SCALE_NORM, Op.BATCH_NORM)
_KERNELS = {Op.CONVOLVE: -1, Op.CONVOLVE_2D: 0}  # with the axis of what they make: the others are summed over


def beginning(
    learned: Sequence[Learned],
    values: Sequence[tuple[str, Node]],
    initials: Mapping[str, tree.Tree],
    errors: list[Diagnostic],
) -> list[Learned]:
    """Each with how it begins.

    Without a word on it a matrix begins as that of `torch.nn.Linear`, uniform within 1 / sqrt(rows), and a kernel as
    that of a convolution; gains of norms begin at 1, and other vectors, such as biases, at 0.
    """
    nodes = [node for _, value in values for node in walk(value)]
    gains = {node.args[1].name for node in nodes if node.op in _NORMS and len(node.args) > 1}
    kernels = {node.args[1].name: _KERNELS[node.op] for node in nodes if node.op in _KERNELS}
    running = {each.name for node in nodes if node.op is Op.BATCH_NORM for each in node.args[3:]}
    gains |= {node.args[4].name for node in nodes if node.op is Op.BATCH_NORM}
    found: list[Learned] = []
    for each in learned:
        if each.draw is not None:
            found.append(each)
            continue
        written = initials.get(each.name)
        is_fixed = False
        match written:
            case tree.Call(name=tree.Identifier(text="fixed"), arguments=(inner,)) if not isinstance(
                inner, tree.NamedArgument
            ):
                written, is_fixed = inner, True
        try:
            draw, numbers = _draw(each, written, each.name in gains)
            if draw in _OF_MATRICES and each.name in kernels:
                numbers = (kernels[each.name],)
        except Fault as fault:
            errors += fault.diagnostics
            continue
        is_running = each.name in running
        found.append(replace(each, draw=draw, numbers=numbers, is_fixed=is_fixed, is_running=is_running))
    return found


def _draw(each: Learned, written: tree.Tree | None, is_gain: bool) -> tuple[Draw, tuple[float, ...]]:
    match written:
        case None if len(each.type.axes) > 1:
            return Draw.FAN_IN, ()
        case None:
            return Draw.CONSTANT, (1.0 if is_gain else 0.0,)
        case tree.Number(value=value):
            return Draw.CONSTANT, (float(value),)
        case tree.Unary(operator="-", operand=tree.Number(value=value)):
            return Draw.CONSTANT, (-float(value),)
        case tree.Reference(name=name) if name in _PLAIN:
            draw, numbers = _PLAIN[name]
            if draw in _OF_MATRICES and len(each.type.axes) < 2:
                fail("E403", f"`{name}` is for matrices", written.span, f"`{each.name}` is {each.type}",
                     helps=("write `zeros`, `ones` or `normal(0.02)`",))  # fmt: skip
            return draw, numbers
        case tree.Call(name=name, arguments=(tree.Number(value=value),)) if name.text in _WITH_NUMBER:
            return _WITH_NUMBER[name.text], (float(value),)
    words = (*_PLAIN, *(f"{name}(0.02)" for name in _WITH_NUMBER))
    name = written.name if isinstance(written, tree.Reference) else ""
    helps = nearest(name, words) if name else ()
    label = Label(written.span, f"expected a number, {', '.join(f'`{one}`' for one in words)}")
    raise Fault(Diagnostic("E403", f"`{each.name}` cannot begin so", (label,), (), helps))
