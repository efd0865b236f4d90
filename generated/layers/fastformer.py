# fastformer: made by attncc 0.1.0 from fastformer.attn (sha256 a546f8ac29537b4d). Do not edit.
# Rebuild: attncc build fastformer.attn
#
#     # Additive attention: a global query and a global key in place of pairs; the value is the query (arXiv 2108.09084, 3.2).
#     layer fastformer(dim, h = 8) {
#       input x[n, dim]
#       param Wq[dim, dim], bq[dim], Wk[dim, dim], bk[dim], Wt[dim, dim], bt[dim]
#       param Wa[dim, h], ba[h], Wb[dim, h], bb[h]
#       q = x @ Wq + bq
#       k = x @ Wk + bk
#       a = softmax((q @ Wa + ba) / sqrt(dim / h), over = n)
#       p = k * merge(transposed(heads(a, h)) @ heads(q, h))
#       b = softmax((p @ Wb + bb) / sqrt(dim / h), over = n)
#       u = q * merge(transposed(heads(b, h)) @ heads(p, h))
#       out = u @ Wt + bt + q
#     }
#
# No step: it calls no core.

import math

import torch
from torch import Tensor, nn

# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"fastformer: {name} is {found}, expected {expected}")


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


class Fastformer(nn.Module):
    """Additive attention: a global query and a global key in place of pairs; the value is the
    query (arXiv 2108.09084, 3.2).

    Args:
        dim: a whole number.
        h: 8 by default.
        form: "triton", "c" or "torch" for the cores; by default Triton on GPUs, C on CPUs, if they can.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(self, dim: int, h: int = 8, form: str | None = None, device=None, dtype=None):
        super().__init__()
        dim = _whole_number("dim", dim, 1)
        h = _whole_number("h", h, 1)
        _demand(
            form in (None, "triton", "c", "torch"),
            "form",
            repr(form),
            "None, 'triton', 'c' or 'torch'",
        )
        _demand(h >= 1, "h", h, "h >= 1")
        _demand(dim % h == 0, "dim", dim, f"a multiple of h, {h}")
        self.dim = dim
        self.h = h
        self.form = form
        self.Wq = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.bq = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.Wk = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.bk = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.Wt = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.bt = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.Wa = nn.Parameter(torch.empty(dim, h, device=device, dtype=dtype))
        self.ba = nn.Parameter(torch.empty(h, device=device, dtype=dtype))
        self.Wb = nn.Parameter(torch.empty(dim, h, device=device, dtype=dtype))
        self.bb = nn.Parameter(torch.empty(h, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        for tensor in (self.Wq, self.Wk, self.Wt, self.Wa, self.Wb):
            _uniform(tensor, tensor.shape[-2] ** -0.5)
        for tensor in (self.bq, self.bk, self.bt, self.ba, self.bb):
            nn.init.zeros_(tensor)

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
        q = x @ self.Wq + self.bq
        k = x @ self.Wk + self.bk
        a = _softmax((q @ self.Wa + self.ba) / math.sqrt(self.dim / self.h), -2, lengths)
        p = k * _merged(_heads(a, self.h).mT @ _without_padding(_heads(q, self.h), -2, lengths))
        b = _softmax((p @ self.Wb + self.bb) / math.sqrt(self.dim / self.h), -2, lengths)
        u = q * _merged(_heads(b, self.h).mT @ _without_padding(_heads(p, self.h), -2, lengths))
        return u @ self.Wt + self.bt + q

    def extra_repr(self) -> str:
        return f"dim={self.dim}, h={self.h}"
