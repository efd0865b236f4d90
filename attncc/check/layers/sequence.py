"""What operators along a sequence and on maps mean: sums over offsets and tokens, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attncc.spec.layers.dims import sequence_of
from attncc.spec.layers.model import Node, Op

if TYPE_CHECKING:
    from attncc.check.layers.dense import Evaluation

_Meaning = Callable[["Evaluation", Node, list[Tensor]], Tensor]


def _kept(evaluation: Evaluation, node: Node, x: Tensor, *axes: int) -> Tensor:
    """0 in place of padding."""
    for axis in axes:
        dim = node.args[0].type.axes[axis]
        x = torch.where(evaluation.mask(dim, x, axis), x, 0)
    return x


def _entry(x: Tensor, at: int) -> Tensor:
    """A token, or zeros where there is none."""
    return x[..., at, :] if 0 <= at < x.shape[-2] else torch.zeros_like(x[..., 0, :])


def _convolve(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    x, kernel = _kept(evaluation, node, args[0], -2), args[1]
    stride = evaluation.length(node.dims[0])
    apart = node.op is Op.DEPTHWISE
    width = kernel.shape[-2 if apart else 0]
    before = evaluation.length(node.dims[1]) if len(node.dims) > 1 else max(width - stride, 0) // 2
    rows = []
    for first in range(-before, x.shape[-2] - before, stride):
        tokens = [_entry(x, first + t) for t in range(width)]
        parts = [each * kernel[..., t, :] if apart else each @ kernel[t] for t, each in enumerate(tokens)]
        rows.append(torch.stack(parts).sum(0))
    return torch.stack(rows, -2)


def _running(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    x = args[0]
    triangle = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.float64).tril()
    if node.op is Op.RUNNING_MEAN:
        triangle = triangle / triangle.sum(-1, keepdim=True)
    return (triangle @ x.double()).to(x.dtype)


def _average(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    x, decays, gains = args
    x = _kept(evaluation, node, x, -2)
    backwards = node.op is Op.AVERAGE_BACK
    wide = torch.promote_types(x.dtype, torch.float32)
    h = torch.zeros(*x.shape[:-2], *decays.shape, dtype=wide)
    found = []
    tokens = list(x.unbind(-2))
    for token in reversed(tokens) if backwards else tokens:
        h = h * decays + token[..., None]
        found.append((h * gains).sum(-1).to(x.dtype))
    return torch.stack(found[::-1] if backwards else found, -2)


def _pool_max(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    x, by = args[0].movedim(node.axis, -1), evaluation.length(node.dims[0])
    there = evaluation.mask(node.args[0].type.axes[node.axis], args[0], node.axis).movedim(node.axis, -1).expand_as(x)
    found = []
    for first in range(0, x.shape[-1], by):
        block, here = x[..., first : first + by], there[..., first : first + by]
        largest = torch.where(here, block, -torch.inf).amax(-1)
        found.append(torch.where(here.any(-1), largest, 0))
    return torch.stack(found, -1).movedim(-1, node.axis)


def _unpool(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    by, whole = (evaluation.length(each) for each in node.dims)
    return args[0].index_select(node.axis, torch.arange(whole) // by)


def _segments(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    x, count = args[0], evaluation.length(node.dims[0])
    there = evaluation.mask(node.args[0].type.axes[-2], x, -2)
    length = x.shape[-2]
    size = -(-length // count)
    found = []
    for segment in range(count):
        places = [at for at in range(length) if (at + size * count - length) // size == segment]
        block, here = x[..., places, :], there[..., places, :]
        total = torch.where(here, block, 0).sum(-2)
        found.append(total / (here.sum(-2).clamp(min=1).to(x.dtype) + node.numbers[0]))
    return torch.stack(found, -2)


def _present(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    ones = torch.ones(evaluation.batch, args[0].shape[-2], 1, dtype=evaluation.dtype)
    return _kept(evaluation, node, ones, -2)


def _convolve_2d(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    x, kernel = _kept(evaluation, node, args[0], -2, -1), args[1]
    stride = evaluation.length(node.dims[0])
    rows, columns = (-(-size // stride) for size in x.shape[-2:])
    above, left = (max(size - stride, 0) // 2 for size in kernel.shape[-2:])
    wide = torch.zeros(*x.shape[:2], rows * stride + kernel.shape[-2], columns * stride + kernel.shape[-1]).to(x)
    wide[..., above : above + x.shape[-2], left : left + x.shape[-1]] = x
    total = torch.zeros(len(x), len(kernel), rows, columns).to(x)
    for r in range(kernel.shape[-2]):
        for c in range(kernel.shape[-1]):
            moved = wide[..., r : r + rows * stride : stride, c : c + columns * stride : stride]
            total = total + torch.einsum("bfrc,of->borc", moved, kernel[..., r, c])
    return total


def _batch_norm(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    x, gain, bias, mean, variance = args
    epsilon, momentum = node.numbers
    last = x.movedim(node.axis, -1)
    if evaluation.training:
        there = torch.ones(x.shape, dtype=torch.bool)
        for axis, dim in enumerate(node.args[0].type.axes):
            if sequence_of(dim) is not None:
                there = there & evaluation.mask(dim, x, axis + 1)
        chosen = last[there.movedim(node.axis, -1)].reshape(-1, last.shape[-1])
        count = max(len(chosen), 1)
        average = chosen.sum(0) / count
        spread = ((chosen - average) ** 2).sum(0) / count
        own = (average, spread * count / max(count - 1, 1))
        for name, old, new in zip((each.name for each in node.args[3:]), (mean, variance), own, strict=True):
            evaluation.running[name] = ((1 - momentum) * old + momentum * new).detach()
    else:
        average, spread = mean, variance
    found = (last - average) / (spread + epsilon).sqrt() * gain + bias
    return found.movedim(-1, node.axis)


def _sinusoids(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    base, closed = node.numbers
    half = args[0].shape[-1] // 2
    rates = [base ** -(t / max(half - 1, 1) if closed else t / half) for t in range(half)]
    rows = torch.arange(args[0].shape[-2], dtype=torch.float64)[:, None]
    angles = rows * torch.tensor(rates, dtype=torch.float64)
    return torch.cat((angles.sin(), angles.cos()), -1).to(evaluation.dtype)


def _identity(evaluation: Evaluation, node: Node, args: list[Tensor]) -> Tensor:
    return torch.eye(evaluation.length(node.dims[0]), dtype=evaluation.dtype)


def iterated(evaluation: Evaluation, node: Node) -> Tensor:
    """The value of a loop after its last turn."""
    found = evaluation.value(node.args[0])
    for _ in range(evaluation.length(node.dims[0])):
        evaluation.values[node.name] = found
        found = evaluation.value(node.args[1])
    assert isinstance(found, Tensor)
    return found


MEANINGS: Mapping[Op, _Meaning] = {
    Op.CONVOLVE: _convolve,
    Op.DEPTHWISE: _convolve,
    Op.RUNNING_SUM: _running,
    Op.RUNNING_MEAN: _running,
    Op.AVERAGE: _average,
    Op.AVERAGE_BACK: _average,
    Op.POOL_LARGEST: _pool_max,
    Op.UNPOOL: _unpool,
    Op.SEGMENTS: _segments,
    Op.PRESENT: _present,
    Op.CONVOLVE_2D: _convolve_2d,
    Op.BATCH_NORM: _batch_norm,
    Op.IDENTITY: _identity,
    Op.SINUSOIDS: _sinusoids,
}
