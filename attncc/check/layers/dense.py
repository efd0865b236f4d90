"""What a layer means: its values one by one, straight from their definitions, and its cores by the dense oracle.

It shares nothing with emission. Padding is a mask here, made for each axis that holds the tokens of a sequence, and
sums over such an axis are products with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attncc.check.layers.sequence import MEANINGS, iterated
from attncc.check.oracle import Dense
from attncc.check.oracle import dense as dense_core
from attncc.spec.layers.dims import Atom, Ceil, Dim, sequence_of
from attncc.spec.layers.model import Layer, Node, Op
from attncc.spec.layers.numbers import value_of

_SHORT = (torch.bfloat16, torch.float16)
_UNARY: Mapping[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "exp": torch.exp,
    "exp2": lambda x: torch.exp(x * math.log(2)),
    "log": torch.log,
    "log2": lambda x: torch.log(x) / math.log(2),
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "relu": torch.relu,
    "elu": lambda x: torch.where(x > 0, x, torch.expm1(x.clamp(max=0))),
    "cos": torch.cos,
    "sin": torch.sin,
    "erf": torch.erf,
    "floor": torch.floor,
    "sign": torch.sign,
    "stop_gradient": torch.Tensor.detach,
}


def _length(x: Tensor) -> Tensor:
    """Of vectors, with a gradient of 0 where it is 0; as numbers of 32 bits or more."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    square = (wide * wide).sum(-1, keepdim=True)
    return torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0)


class Evaluation:
    """One call: sizes, tensors by name, and how many tokens of each sequence there are."""

    def __init__(
        self,
        layer: Layer,
        parameters: Mapping[str, int | float],
        tensors: Mapping[str, Tensor],
        lengths: Mapping[str, Tensor | None],
        dtype: torch.dtype,
        choices: Mapping[str, Sequence[Any]] | None = None,
        training: bool = False,
    ) -> None:
        self.layer = layer
        self.training = training
        self.running: dict[str, Tensor] = {}  # what norms over a batch are after it
        self.lengths = lengths
        self.dtype = dtype
        self.sizes: dict[str, int | float] = dict(parameters)
        for each in layer.inputs:
            for dim, size in zip(each.type.axes, tensors[each.name].shape[1:], strict=True):
                if sequence_of(dim) is not None and str(dim) in ("n", "m"):
                    self.sizes[str(dim)] = size
        self.batch = tensors[layer.inputs[0].name].shape[0]
        self.choices = {name: list(each) for name, each in (choices or {}).items()}  # of a module, to be taken over
        self.results: dict[str, Dense] = {}  # of calls of cores, by the name of what they made
        self._last: Dense | None = None
        self.values: dict[str, Tensor | float] = {
            name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()
        }

    def out(self) -> Tensor:
        """The layer's output."""
        for name, node in self.layer.values:
            self._last = None
            self.values[name] = self.value(node)
            if self._last is not None:
                self.results[name] = self._last
        found = self.values["out"]
        assert isinstance(found, Tensor)
        return found

    def length(self, dim: Dim) -> int:
        """How long an axis is."""
        return dim.length(self.sizes)  # type: ignore[arg-type]

    def there(self, dim: Dim) -> Tensor | None:
        """Which entries of an axis are tokens, bool [B, length]; None where all are."""
        found = sequence_of(dim)
        lengths = None if found is None else self._count(found)
        return None if lengths is None else torch.arange(self.length(dim))[None] < lengths[:, None]

    def _count(self, atom: Atom) -> Tensor | None:
        """How many entries of a sequence, of its blocks or of what was chosen of it, are tokens."""
        if isinstance(atom, str):
            return self.lengths.get(atom)
        inner = sequence_of(atom.of)
        lengths = None if inner is None else self._count(inner)
        if lengths is None:
            return None
        if isinstance(atom, Ceil):
            return (lengths / self.length(atom.by)).ceil()
        return torch.minimum(lengths, torch.tensor(self.length(atom.most)))

    def mask(self, dim: Dim, x: Tensor, axis: int) -> Tensor:
        """The same for an axis of x; ones where nothing is padding."""
        there = self.there(dim)
        shape = [1] * x.dim()
        shape[axis] = x.shape[axis]
        if there is None:
            return torch.ones(shape, dtype=torch.bool)
        shape[0] = self.batch
        return there.reshape(shape)

    def value(self, node: Node) -> Tensor | float:
        """A value: a tensor, or a number that Python knows."""
        if node.type.is_number:
            if node.op is Op.NAME and node.name in self.values:
                return self.values[node.name]
            number = value_of(node, self.sizes)
            assert number is not None
            return float(number)
        return self._tensor(node)

    def _tensors(self, node: Node) -> list[Tensor]:
        found = [self.value(each) for each in node.args]
        return [each if isinstance(each, Tensor) else torch.tensor(each, dtype=self.dtype) for each in found]

    def _tensor(self, node: Node) -> Tensor:
        if node.op is Op.ITERATE:
            return iterated(self, node)
        args = self._tensors(node)
        x = args[0] if args else torch.zeros(())
        match node.op:
            case Op.NAME:
                found = self.values[node.name]
                assert isinstance(found, Tensor)
                return found
            case Op.FUNCTION:
                return self._function(node.name, args)
            case Op.ADD:
                return args[0] + args[1]
            case Op.SUBTRACT:
                return args[0] - args[1]
            case Op.MULTIPLY:
                return args[0] * args[1]
            case Op.DIVIDE:
                return args[0] / args[1]
            case Op.POWER:
                return args[0] ** float(args[1])
            case Op.NEGATE:
                return -x
            case Op.MATMUL:
                return self._matmul(node, args)
            case Op.TRANSPOSE:
                return x.swapaxes(-1, -2)
            case Op.INSERT:
                return x.unsqueeze(node.axis)
            case Op.DROP:
                return x.select(node.axis, 0)
            case Op.LAYER_NORM | Op.RMS_NORM | Op.UNIT | Op.SCALE_NORM:
                return self._norm(node, args)
            case Op.SOFTMAX | Op.SUM | Op.MEAN | Op.LARGEST:
                return self._along(node, x)
            case Op.CONCAT:
                return torch.cat(args, node.axis)
            case Op.SPLIT_HEADS:
                heads, width = self.length(node.dims[0]), x.shape[-1] // self.length(node.dims[0])
                return torch.stack([x[..., h * width : (h + 1) * width] for h in range(heads)], -3)
            case Op.MERGE_HEADS:
                return torch.cat(list(x.unbind(-3 if len(node.args[0].type.axes) == 3 else -2)), -1)
            case Op.SLICE:
                start, count, _ = (self.length(each) for each in node.dims)
                return x.narrow(node.axis, start, count)
            case Op.PICK:
                return x.select(node.axis, self.length(node.dims[0]))
            case Op.POOL:
                return self._pool(node, x)
            case Op.REPEAT:
                return x.index_select(
                    node.axis, torch.arange(x.shape[node.axis] * self.length(node.dims[0])) // self.length(node.dims[0])
                )
            case Op.SHIFT:
                by = self.length(node.dims[0])
                matrix = (
                    torch.eye(x.shape[node.axis], dtype=x.dtype).roll(by, 0).tril(-by)
                    if by < x.shape[node.axis]
                    else torch.zeros(x.shape[node.axis], x.shape[node.axis], dtype=x.dtype)
                )
                return (matrix @ x.movedim(node.axis, -2)).movedim(-2, node.axis)
            case Op.ROTATE:
                return self._rotated(node, x)
            case Op.EXPAND:
                return x.expand(self.batch, *x.shape)
            case Op.CHOOSE:
                return torch.where(args[0], args[1], args[2])
            case Op.LARGEST_AT:
                return self._largest_at(node, x)
            case Op.GATHER:
                return self._gathered(node, *args)
            case Op.LOG_SUMS | Op.COLUMN_SUMS | Op.BLOCK_SUMS:
                return self._beside(node)
            case Op.ATTEND:
                return self._attend(node, args)
        return MEANINGS[node.op](self, node, args)

    def _function(self, name: str, args: list[Tensor]) -> Tensor:
        if name in ("min", "max"):
            pick = torch.minimum if name == "min" else torch.maximum
            found = args[0]
            for each in args[1:]:
                found = pick(found, each)
            return found
        if name == "clip":
            return torch.minimum(torch.maximum(args[0], args[1]), args[2])
        return _UNARY[name](args[0])

    def _matmul(self, node: Node, args: list[Tensor]) -> Tensor:
        """Products summed one by one; tokens that are padding have none."""
        left, right = args
        if right.dim() == 1:
            return (self._matmul_of(node, left, right[:, None]))[..., 0]
        if left.dim() == 1:
            return (self._matmul_of(node, left[None], right))[..., 0, :]
        if len(node.args[0].type.axes) == 1:  # a vector of each batch entry
            return self._matmul_of(node, left.unsqueeze(-2), right)[..., 0, :]
        return self._matmul_of(node, left, right)

    def _matmul_of(self, node: Node, left: Tensor, right: Tensor) -> Tensor:
        there = self.there(node.args[0].type.axes[-1])
        if there is not None:
            shape = [self.batch, *[1] * (max(left.dim(), right.dim(), 3) - 2), there.shape[-1]]
            left = torch.where(there.reshape(shape), left, 0)
            right = torch.where(there.reshape(shape).swapaxes(-1, -2), right, 0)
        return left @ right

    def _norm(self, node: Node, args: list[Tensor]) -> Tensor:
        x, epsilon = args[0], node.numbers[0]
        width = x.shape[-1]
        match node.op:
            case Op.LAYER_NORM if x.dtype in _SHORT:  # what anybody would write, and what its own backward loses
                gain, bias, *_ = [*args[1:], None, None]
                return functional.layer_norm(x, (width,), gain, bias, epsilon)
            case Op.LAYER_NORM:
                middle = x - x.sum(-1, keepdim=True) / width
                found = middle / ((middle * middle).sum(-1, keepdim=True) / width + epsilon).sqrt()
            case Op.RMS_NORM:
                found = x / ((x * x).sum(-1, keepdim=True) / width + epsilon).sqrt()
            case Op.UNIT:
                found = (x / _length(x).clamp(min=epsilon)).to(x.dtype)
            case _:
                found = (x / (_length(x) / math.sqrt(width)).clamp(min=epsilon)).to(x.dtype)
        if len(args) > 1:
            found = found * args[1]
        return found + args[2] if len(args) > 2 else found

    def _along(self, node: Node, x: Tensor) -> Tensor:
        axis = node.axis
        dim = node.along
        there = torch.ones([1] * x.dim(), dtype=torch.bool) if dim is None else self.mask(dim, x, axis)
        there = there.expand_as(x) if dim is None else there
        count = there.sum(axis)
        match node.op:
            case Op.SUM:
                return torch.where(there, x, 0).sum(axis)
            case Op.MEAN:
                return torch.where(there, x, 0).sum(axis) / count.clamp(min=1)
            case Op.LARGEST:
                found = torch.where(there, x, -torch.inf).amax(axis)
                return torch.where(count > 0, found, 0)
        shifted = torch.where(there, x, -torch.inf)
        largest = shifted.detach().amax(axis, keepdim=True)
        weights = torch.where(there, (x - torch.where(largest.isfinite(), largest, 0)).exp(), 0)
        total = weights.sum(axis, keepdim=True)
        return weights / torch.where(total > 0, total, 1)

    def _pool(self, node: Node, x: Tensor) -> Tensor:
        by, dim = self.length(node.dims[0]), node.args[0].type.axes[node.axis]
        there = self.mask(dim, x, node.axis)
        parts = []
        for first in range(0, x.shape[node.axis], by):
            size = min(by, x.shape[node.axis] - first)
            block, here = x.narrow(node.axis, first, size), there.narrow(node.axis, first, size)
            total = torch.where(here, block, 0).sum(node.axis, keepdim=True)
            parts.append(total / here.sum(node.axis, keepdim=True).clamp(min=1))
        if not parts:
            return x
        return torch.cat(parts, node.axis)

    def _rotated(self, node: Node, x: Tensor) -> Tensor:
        width = x.shape[-1]
        half = width // 2
        t = torch.arange(half, dtype=torch.float64)
        angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * node.numbers[0] ** -(
            t / max(half - 1, 1) if node.numbers[1] else 2 * t / width
        )
        turn = torch.polar(torch.ones_like(angle), angle)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if node.name == "halves":
            turned = torch.complex(wide[..., :half], wide[..., half:]) * turn
            return torch.cat((turned.real, turned.imag), -1).to(x.dtype)
        turned = torch.complex(wide[..., 0::2], wide[..., 1::2]) * turn
        return torch.stack((turned.real, turned.imag), -1).flatten(-2).to(x.dtype)

    def _attend(self, node: Node, args: list[Tensor]) -> Tensor:
        spec = self.layer.core(node.name).spec
        there = self.there(node.dims[0])
        lengths = None if there is None else there.sum(-1)
        options = {name: self.value(each) for name, each in node.options}
        made = self.choices.get(node.name)
        choices = made.pop(0) if made else None
        self._last = dense_core(spec, *args, kv_lengths=lengths, dtype=self.dtype, choices=choices, **options)  # type: ignore[arg-type]
        return self._last.out

    def _largest_at(self, node: Node, x: Tensor) -> Tensor:
        """One entry after the other: the first ones, then the largest that is left, the nearest to the beginning."""
        made = self.choices.get("top")
        if made:
            chosen: Tensor = made.pop(0)
            return chosen
        there = self.mask(node.args[0].type.axes[0], x, -1).expand(x.shape)
        count, always = map(self.length, node.dims)
        rows = []
        for numbers, present in zip(x.tolist(), there.tolist(), strict=True):
            order = sorted(
                range(len(numbers)),
                key=lambda at: (not present[at], at >= always, -numbers[at] * (at >= always) * present[at], at),
            )
            rows.append(sorted(order[:count]))
        return torch.tensor(rows)

    def _gathered(self, node: Node, x: Tensor, places: Tensor) -> Tensor:
        """A product with a matrix of ones at the places."""
        whole = x.shape[node.axis]
        ones = (places[..., None] == torch.arange(whole)).to(x.dtype)
        moved = x.movedim(node.axis, -1).expand(len(places), *x.movedim(node.axis, -1).shape[1:])
        return torch.einsum("b...n,bkn->b...k", moved, ones).movedim(-1, node.axis)

    def _beside(self, node: Node) -> Tensor:
        """What a core gives beside its output, of the whole matrix of its weights."""
        value = node.args[0]
        made = self.results[value.name]
        has_heads = len(value.type.axes) == 3
        if node.op is Op.LOG_SUMS:
            assert made.lse is not None
            found = made.lse.to(self.dtype)
            return found if has_heads else found[:, 0]
        weights = made.weights
        rows = self.there(value.type.axes[-2])
        if rows is not None:
            weights = torch.where(rows[:, None, :, None], weights, 0)
        if node.op is Op.COLUMN_SUMS:
            if not node.numbers[0]:
                weights = torch.where(torch.eye(weights.shape[-1], dtype=torch.bool), 0, weights)
            found = weights.sum(-2)
        else:
            for axis, dim in zip((-2, -1), node.dims, strict=True):
                parts = torch.split(weights, self.length(dim), axis)
                weights = torch.cat([each.sum(axis, keepdim=True) for each in parts], axis)
            found = weights
        return found if has_heads else found[:, 0]
