# nystromformer: made by attncc 0.1.0 from nystromformer.attn (sha256 9adc50acbd004bdf). Do not edit.
# Rebuild: attncc build nystromformer.attn
#
#     function closer_inverse(z, y, one) = z @ (13 * one - y @ (15 * one - y @ (7 * one - y))) / 4
#
#     # Attention by r landmarks and an iterated inverse, each matrix by itself (Nyströmformer, arXiv 2102.03902, section 3).
#     layer nystromformer(dim, h = 8, r = 64, width = 33) {
#       input x[n, dim]
#       param Wq[dim, dim], Wk[dim, dim], Wv[dim, dim], Wo[dim, dim], bo[dim], C[h, width, 1]
#       q = heads(x @ Wq, h) / sqrt(dim / h)
#       k = heads(x @ Wk, h)
#       v = heads(x @ Wv, h)
#       a = segments(q, r)
#       b = segments(k, r)
#       filled = segments(present(x), r)
#       hidden = 30000 * (transposed(filled) - 1)
#       near = softmax(q @ transposed(b) + hidden, over = features)
#       inner = softmax(a @ transposed(b) + hidden, over = features) * filled
#       most = max(sum(transposed(inner), over = features), over = r)
#       first = transposed(inner) / max(column(column(most)), 1)
#       one = identity(r)
#       inverse = iterate(z -> closer_inverse(z, inner @ z, one), first, times = 6)
#       far = softmax(a @ transposed(k), over = n) @ v
#       out = merge(near @ (inverse @ far) + depthwise(v, C)) @ Wo + bo
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
        raise ValueError(f"nystromformer: {name} is {found}, expected {expected}")


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


class Nystromformer(nn.Module):
    """Attention by r landmarks and an iterated inverse, each matrix by itself (Nyströmformer,
    arXiv 2102.03902, section 3).

    Args:
        dim: a whole number.
        h: 8 by default.
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
        r: int = 64,
        width: int = 33,
        form: str | None = None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        dim = _whole_number("dim", dim, 1)
        h = _whole_number("h", h, 1)
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
        _demand(dim % h == 0, "dim", dim, f"a multiple of h, {h}")
        self.dim = dim
        self.h = h
        self.r = r
        self.width = width
        self.form = form
        self.Wq = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.Wk = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.Wv = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.Wo = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.bo = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.C = nn.Parameter(torch.empty(h, width, 1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        for tensor in (self.Wq, self.Wk, self.Wv, self.Wo, self.C):
            _uniform(tensor, tensor.shape[-2] ** -0.5)
        nn.init.zeros_(self.bo)

    def _check(self, x, lengths=None):
        """Refuse what does not fit, by the argument's name."""
        _demand_tensor("x", x, "Wq", self.Wq)
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
        q = _heads(x @ self.Wq, self.h) / math.sqrt(self.dim / self.h)
        k = _heads(x @ self.Wk, self.h)
        v = _heads(x @ self.Wv, self.h)
        a = _segment_means(q, self.r, lengths)
        b = _segment_means(k, self.r, lengths)
        filled = _segment_means(_present(x, lengths), self.r, lengths)
        hidden = 30000 * (filled.mT - 1)
        near = (q @ b.mT + hidden.unsqueeze(-3)).softmax(-1)
        inner = (a @ b.mT + hidden.unsqueeze(-3)).softmax(-1) * filled.unsqueeze(-3)
        most = inner.mT.sum(-1).amax(-1)
        first = inner.mT / torch.clamp(most.unsqueeze(-1).unsqueeze(-1), min=1)
        one = torch.eye(self.r, device=x.device, dtype=x.dtype)
        inverse = first
        for _ in range(6):
            inverse_part = inner @ inverse
            inverse = (
                inverse
                @ (13 * one - inverse_part @ (15 * one - inverse_part @ (7 * one - inverse_part)))
                / 4
            )
        far = _softmax(a @ k.mT, -1, lengths) @ _without_padding(v, -2, lengths)
        return (
            _merged(near @ (inverse @ far) + _convolved_apart(v, self.C, 1, None, lengths))
            @ self.Wo
            + self.bo
        )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, h={self.h}, r={self.r}, width={self.width}"
