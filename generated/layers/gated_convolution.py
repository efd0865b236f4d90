# gated_convolution: made by attncc 0.1.0 from gated_convolution.attn (sha256 272cda23422572e4). Do not edit.
# Rebuild: attncc build gated_convolution.attn
#
#     # Gated convolutional layer of a language model, causal, with a residual (arXiv 1612.08083, section 2).
#     layer gated_convolution(dim, k = 4) {
#       input x[n, dim]
#       param W[k, dim, dim], b[dim], V[k, dim, dim], c[dim]
#       out = (convolve(x, W, before = k - 1) + b) * sigmoid(convolve(x, V, before = k - 1) + c) + x
#     }
#

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"gated_convolution: {name} is {found}, expected {expected}")


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


def _demand_kept(name, x, kept):
    """Refuse other batch entries than those of the tokens before."""
    for each in kept:
        if each is not None:
            _demand(
                len(each) == len(x), name, list(x.shape), f"the batch of the cache, {len(each)}"
            )


def _uniform(tensor, most):
    """Numbers between -most and most."""
    nn.init.uniform_(tensor, -most, most)


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


def _margins(length, width, stride, before):
    """How many zeros a convolution needs before and after, for one entry for each stride."""
    before = max((width - stride) // 2, 0) if before is None else before
    return before, (-(-length // stride) - 1) * stride + width - before - length


def _convolved(x, kernel, stride, before, lengths):
    """Entry c is the sum of x[c * stride - before + t] @ kernel[t]; outside and in padding stand zeros."""
    if not x.shape[-2]:
        return x.new_zeros(*x.shape[:-1], kernel.shape[-1])
    x = _without_padding(x, -2, lengths)
    x = functional.pad(x, (0, 0, *_margins(x.shape[-2], kernel.shape[-3], stride, before)))
    found = functional.conv1d(x.flatten(0, -3).mT, kernel.permute(2, 1, 0), stride=stride)
    return found.mT.unflatten(0, x.shape[:-2])


def _convolved_step(x, kernel, stride, before, lengths, kept):
    """The same for tokens after others, of which the last ones are kept, and for strides that have ended."""
    x, count, kept = _with_earlier(x, kernel.shape[-3], stride, before, kept)
    if not count:
        return x.new_zeros(*x.shape[:-2], 0, kernel.shape[-1]), kept
    return _convolved(x, kernel, stride, 0, None)[..., :count, :], kept


def _with_earlier(x, width, stride, before, kept):
    """The tokens that new entries read, how many of these there are, and what to keep for those to come."""
    before = max((width - stride) // 2, 0) if before is None else before
    kept = x.new_zeros(*x.shape[:-2], before, x.shape[-1]) if kept is None else kept
    x = torch.cat((kept, x), -2)
    count = (x.shape[-2] - before) // stride
    return (
        x[..., : max((count - 1) * stride + width, 0), :],
        count,
        x[..., count * stride :, :].clone(),
    )


@dataclasses.dataclass
class Cache:
    """What later tokens may ask for: how many there were, and what operators keep."""

    position: int = 0
    convolved: Tensor | None = None
    convolved_2: Tensor | None = None

    def to(self, device):
        """The same on another device."""
        kept = (
            self.convolved,
            self.convolved_2,
        )
        kept = [None if each is None else each.to(device) for each in kept]
        return Cache(self.position, *kept)


class GatedConvolution(nn.Module):
    """Gated convolutional layer of a language model, causal, with a residual (arXiv 1612.08083,
    section 2).

    Args:
        dim: a whole number.
        k: 4 by default.
        form: "triton", "c" or "torch" for the cores; by default Triton on GPUs, C on CPUs, if they can.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(self, dim: int, k: int = 4, form: str | None = None, device=None, dtype=None):
        super().__init__()
        dim = _whole_number("dim", dim, 1)
        k = _whole_number("k", k, 1)
        _demand(
            form in (None, "triton", "c", "torch"),
            "form",
            repr(form),
            "None, 'triton', 'c' or 'torch'",
        )
        self.dim = dim
        self.k = k
        self.form = form
        self.W = nn.Parameter(torch.empty(k, dim, dim, device=device, dtype=dtype))
        self.b = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.V = nn.Parameter(torch.empty(k, dim, dim, device=device, dtype=dtype))
        self.c = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        for tensor in (self.W, self.V):
            _uniform(tensor, (tensor.numel() / tensor.shape[-1]) ** -0.5)
        for tensor in (self.b, self.c):
            nn.init.zeros_(tensor)

    def _check(self, x, lengths=None):
        """Refuse what does not fit, by the argument's name."""
        _demand_tensor("x", x, "W", self.W)
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
        return self._values(x, lengths, _convolved, _convolved)

    def _values(self, x, lengths, convolved, convolved_2):
        """The values of the spec in their order."""
        return (convolved(x, self.W, 1, self.k - 1, lengths) + self.b) * torch.sigmoid(
            convolved_2(x, self.V, 1, self.k - 1, lengths) + self.c
        ) + x

    @torch.no_grad()
    def step(self, x: Tensor, cache: Cache | None = None):
        """The next token of a sequence, or several, after those of a cache.

        Args:
            x: as in `forward`, of the new tokens alone.
            cache: that of the tokens before, which is changed; None before the first one.

        Returns:
            What `forward` gives these tokens in the whole sequence, and the cache.
        """
        self._check(x)
        _demand(
            cache is None or isinstance(cache, Cache),
            "cache",
            type(cache).__name__,
            "a Cache of this module",
        )
        cache = Cache() if cache is None else cache
        _demand_kept(
            "x",
            x,
            (
                cache.convolved,
                cache.convolved_2,
            ),
        )

        def convolved(*values):
            out, cache.convolved = _convolved_step(*values, cache.convolved)
            return out

        def convolved_2(*values):
            out, cache.convolved_2 = _convolved_step(*values, cache.convolved_2)
            return out

        out = self._values(x, None, convolved, convolved_2)
        cache.position += x.shape[1]
        return out, cache

    @torch.no_grad()
    def prefill(self, x: Tensor):
        """`forward` on the first tokens of a sequence, and the cache from which `step` goes on."""
        self._check(x)
        cache = Cache(x.shape[1])

        def convolved(*values):
            out, cache.convolved = _convolved_step(*values, None)
            return out

        def convolved_2(*values):
            out, cache.convolved_2 = _convolved_step(*values, None)
            return out

        return self._values(x, None, convolved, convolved_2), cache

    def extra_repr(self) -> str:
        return f"dim={self.dim}, k={self.k}"
