# nystromformer_of_batch: made by attncc 0.1.0 from nystromformer_of_batch.attn (sha256 2e150d2d2e0b995e). Do not edit.
# Rebuild: attncc build nystromformer_of_batch.attn
#
#     function closer_inverse(z, y, one) = z @ (13 * one - y @ (15 * one - y @ (7 * one - y))) / 4
#
#     # Nyströmformer whose first inverse is scaled by the largest sums of the whole batch (arXiv 2102.03902; nystrom-attention).
#     layer nystromformer_of_batch(dim, h = 8, inner = dim, r = 64, width = 33) {
#       input x[n, dim]
#       param Wqkv[dim, 3 * inner], Wo[inner, dim], bo[dim], C[h, width, 1]
#       there = present(x)
#       qkv = x @ Wqkv
#       q = heads(part(qkv, 0, 3), h) * there / sqrt(inner / h)
#       k = heads(part(qkv, 1, 3), h)
#       v = heads(part(qkv, 2, 3), h)
#       a = segments(q, r, epsilon = 1e-8)
#       b = segments(k, r, epsilon = 1e-8)
#       filled = segments(there, r)
#       near = softmax(q @ transposed(b) + 30000 * (there @ transposed(filled) - 1), over = features)
#       middle = softmax(a @ transposed(b) + 30000 * (filled @ transposed(filled) - 1), over = features)
#       rows = max(max(max(sum(middle, over = features), over = r), over = h), over = B)
#       columns = max(max(max(sum(transposed(middle), over = features), over = r), over = h), over = B)
#       first = transposed(middle) / (rows * columns)
#       one = identity(r)
#       inverse = iterate(z -> closer_inverse(z, middle @ z, one), first, times = 6)
#       seen = softmax(a @ transposed(k), over = n) @ v
#       unseen = transposed(there) @ v / (r * ceil(n / r))
#       out = merge(near @ (inverse @ (filled * seen + (1 - filled) * unseen)) + depthwise(v, C)) @ Wo + bo
#     }
#
# No step: `segments` works along the sequence.

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"nystromformer_of_batch: {name} is {found}, expected {expected}")


def _whole_number(name, x, least=-(2**31)):
    """A number that has to be whole, as one of Python."""
    try:
        found = None if isinstance(x, bool) else type(x).__index__(x)
    except (AttributeError, TypeError):
        found = None
    holds = found is not None and least <= found < 2**31
    _demand(holds, name, repr(x), f"a whole number of 32 bits, {least} or more")
    return found


def _is_whole(x):
    """Whether a tensor is of whole numbers."""
    return not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool


def _demand_tensor(name, x, whose, like, kind="numbers"):
    """Refuse what holds no such numbers, or others than a tensor it meets; autocast casts them."""
    _demand(isinstance(x, Tensor), name, type(x).__name__, "a tensor")
    _demand(
        not x.is_nested and x.layout == torch.strided, name, "nested or sparse", "a dense tensor"
    )
    _demand(
        x.device == like.device, name, f"on {x.device}", f"the device of {whose}, {like.device}"
    )
    if kind == "truth values":
        _demand(x.dtype == torch.bool, name, x.dtype, "torch.bool")
    elif kind == "whole numbers":
        _demand(_is_whole(x), name, x.dtype, kind)
    else:
        _demand(x.is_floating_point(), name, x.dtype, "a type of real numbers")
        device = x.device.type
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            _demand(x.dtype == like.dtype, name, x.dtype, f"the dtype of {whose}, {like.dtype}")


def _demand_lengths(name, lengths, x):
    """Refuse what says of no batch entry of x how many tokens it has."""
    if lengths is None:
        return
    _demand(isinstance(lengths, Tensor), name, type(lengths).__name__, "a tensor or None")
    batch = x.shape[0]
    _demand(
        lengths.shape == (batch,),
        name,
        list(lengths.shape),
        f"a number for each of {batch} batch entries",
    )
    _demand(_is_whole(lengths), name, lengths.dtype, "whole numbers")
    _demand(
        lengths.device == x.device,
        name,
        f"on {lengths.device}",
        f"the device of the tokens, {x.device}",
    )


def _uniform(tensor, most):
    """Numbers between -most and most."""
    nn.init.uniform_(tensor, -most, most)


def _heads(x, count):
    """[batch, n, count * d] to [batch, count, n, d]."""
    return x.unflatten(-1, (count, x.shape[-1] // count)).transpose(-3, -2)


def _merged(x):
    """[batch, heads, n, d] to [batch, n, heads * d]."""
    return x.transpose(-3, -2).flatten(-2)


def _padding(x, axis, lengths):
    """Which entries along an axis are padding, with axes of length 1 elsewhere."""
    places = torch.arange(x.shape[axis], device=x.device)
    shape = [1] * x.dim()
    shape[0], shape[axis] = len(lengths), x.shape[axis]
    return (places >= lengths[:, None]).view(shape)


def _without_padding(x, axis, lengths):
    """0 in place of padding; of the sequences' lengths None stands for no padding at all."""
    if lengths is None:
        return x
    if x.shape[0] != len(lengths):
        x = x.expand(len(lengths), *x.shape)
    return x.masked_fill(_padding(x, axis, lengths), 0)


def _softmax(x, axis, lengths):
    """Softmax along an axis in which padding takes no part and gets 0."""
    if lengths is None:
        return x.softmax(axis)
    padding = _padding(x, axis, lengths)
    return x.masked_fill(padding, torch.finfo(x.dtype).min).softmax(axis).masked_fill(padding, 0)


def _largest(x, axis, lengths):
    """The largest along an axis, padding left out; 0 where there is nothing."""
    if not x.shape[axis]:
        return x.sum(axis)
    if lengths is None:
        return x.amax(axis)
    found = x.masked_fill(_padding(x, axis, lengths), torch.finfo(x.dtype).min).amax(axis)
    return found.masked_fill((lengths <= 0).view(-1, *[1] * (found.dim() - 1)), 0)


def _margins(length, width, stride, before):
    """How many zeros a convolution needs before and after, for one entry for each stride."""
    before = max((width - stride) // 2, 0) if before is None else before
    return before, (-(-length // stride) - 1) * stride + width - before - length


def _convolved_apart(x, kernel, stride, before, lengths):
    """The same with a number for each feature: kernel is [width, d], or [heads, width, d] for heads of x."""
    if not x.shape[-2]:
        return x
    x = _without_padding(x, -2, lengths)
    x = functional.pad(x, (0, 0, *_margins(x.shape[-2], kernel.shape[-2], stride, before))).mT
    kernel = kernel.mT.expand(*x.shape[1:-1], -1).reshape(-1, 1, kernel.shape[-2])
    found = functional.conv1d(x.flatten(1, -2), kernel, stride=stride, groups=len(kernel))
    return found.unflatten(1, x.shape[1:-1]).mT


def _segment_means(x, count, lengths, epsilon=0.0):
    """Means of `count` segments that end with the last token, over what is no padding; 0 where there is nothing."""
    x = _without_padding(x, -2, lengths)
    length = x.shape[-2]
    size = -(-length // count)
    lead = size * count - length
    total = functional.pad(x, (0, 0, lead, 0)).unflatten(-2, (count, size)).sum(-2)
    places = torch.arange(-lead, length, device=x.device)
    there = places >= 0
    if lengths is not None:
        there = (there & (places < lengths[:, None])).view(-1, *[1] * (x.dim() - 3), size * count)
    held = there.unflatten(-1, (count, size)).sum(-1).clamp(min=1)
    return total / (held[..., None].to(x.dtype) + epsilon)


def _present(x, lengths):
    """1 for each token, 0 for padding, [batch, n, 1]."""
    return _without_padding(x.new_ones(x.shape[0], x.shape[-2], 1), -2, lengths)


class NystromformerOfBatch(nn.Module):
    """Nyströmformer whose first inverse is scaled by the largest sums of the whole batch (arXiv
    2102.03902; nystrom-attention).

    Args:
        dim: a whole number.
        h: 8 by default.
        inner: dim by default.
        r: 64 by default.
        width: 33 by default.
        form: "triton", "c" or "torch" for the cores; by default Triton on GPUs, C on CPUs, if they can.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(
        self,
        dim: int,
        h: int = 8,
        inner: int | None = None,
        r: int = 64,
        width: int = 33,
        form: str | None = None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        dim = _whole_number("dim", dim, 1)
        h = _whole_number("h", h, 1)
        inner = dim if inner is None else inner
        inner = _whole_number("inner", inner, 1)
        r = _whole_number("r", r, 1)
        width = _whole_number("width", width, 1)
        _demand(
            form in (None, "triton", "c", "torch"),
            "form",
            repr(form),
            "None, 'triton', 'c' or 'torch'",
        )
        _demand(h >= 1, "h", h, "h >= 1")
        _demand(r >= 1, "r", r, "r >= 1")
        _demand(inner % h == 0, "inner", inner, f"a multiple of h, {h}")
        self.dim = dim
        self.h = h
        self.inner = inner
        self.r = r
        self.width = width
        self.form = form
        self.Wqkv = nn.Parameter(torch.empty(dim, 3 * inner, device=device, dtype=dtype))
        self.Wo = nn.Parameter(torch.empty(inner, dim, device=device, dtype=dtype))
        self.bo = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.C = nn.Parameter(torch.empty(h, width, 1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        for tensor in (self.Wqkv, self.Wo, self.C):
            _uniform(tensor, tensor.shape[-2] ** -0.5)
        nn.init.zeros_(self.bo)

    def _check(self, x, lengths=None):
        """Refuse what does not fit, by the argument's name."""
        _demand_tensor("x", x, "Wqkv", self.Wqkv)
        _demand(
            x.dim() == 3 and x.shape[2] == self.dim, "x", list(x.shape), f"[batch, n, {self.dim}]"
        )
        _demand_lengths("lengths", lengths, x)

    def forward(self, x: Tensor, lengths: Tensor | None = None):
        """The layer's output, [batch, n, dim].

        Args:
            x: [batch, n, dim].
            lengths: how many of the n tokens each batch entry has, [batch]; the others are padding.
        """
        self._check(x, lengths)
        n = x.shape[1]
        there = _present(x, lengths)
        qkv = x @ self.Wqkv
        q = (
            _heads(qkv[..., : self.inner], self.h)
            * there.unsqueeze(-3)
            / math.sqrt(self.inner / self.h)
        )
        k = _heads(qkv[..., self.inner : 2 * self.inner], self.h)
        v = _heads(qkv[..., 2 * self.inner :], self.h)
        a = _segment_means(q, self.r, lengths, 1e-08)
        b = _segment_means(k, self.r, lengths, 1e-08)
        filled = _segment_means(there, self.r, lengths)
        near = (q @ b.mT + (30000 * (there @ filled.mT - 1)).unsqueeze(-3)).softmax(-1)
        middle = (a @ b.mT + (30000 * (filled @ filled.mT - 1)).unsqueeze(-3)).softmax(-1)
        rows = _largest(middle.sum(-1).amax(-1).amax(-1), -1, None)
        columns = _largest(middle.mT.sum(-1).amax(-1).amax(-1), -1, None)
        first = middle.mT / (rows * columns)
        one = torch.eye(self.r, device=x.device, dtype=x.dtype)
        inverse = first
        for _ in range(6):
            inverse_part = middle @ inverse
            inverse = (
                inverse
                @ (13 * one - inverse_part @ (15 * one - inverse_part @ (7 * one - inverse_part)))
                / 4
            )
        seen = _softmax(a @ k.mT, -1, lengths) @ _without_padding(v, -2, lengths)
        unseen = (
            there.mT.unsqueeze(-3) @ _without_padding(v, -2, lengths) / (self.r * (-(-n // self.r)))
        )
        return (
            _merged(
                near
                @ (inverse @ (filled.unsqueeze(-3) * seen + (1 - filled).unsqueeze(-3) * unseen))
                + _convolved_apart(v, self.C, 1, None, lengths)
            )
            @ self.Wo
            + self.bo
        )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, h={self.h}, inner={self.inner}, r={self.r}, width={self.width}"
