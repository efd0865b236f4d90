# spatial_attention: made by attncc 0.1.0 from spatial_attention.attn (sha256 f16e18c7d46705eb). Do not edit.
# Rebuild: attncc build spatial_attention.attn
#
#     # Spatial attention: a convolution of the largest and the mean feature at each place (CBAM, arXiv 1807.06521, 3.2).
#     layer spatial_attention(dim, width = 7) {
#       input x[dim, n, m]
#       param W[1, 2, width, width], gain[1], bias[1], average[1] = zeros, spread[1] = ones
#       maps = stack(max(x, over = dim), mean(x, over = dim))
#       gate = batch_norm(convolve_2d(maps, W), gain, bias, average, spread, channels = 1)
#       out = x * sigmoid(gate)
#     }
#
# No step: it calls no core.


import torch
from torch import Tensor, nn
from torch.nn import functional

# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"spatial_attention: {name} is {found}, expected {expected}")


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


def _convolved_map(x, kernel, stride, rows, columns):
    """Convolution of maps [batch, features, rows, columns]; around and in padding stand zeros."""
    if not x.shape[-2] * x.shape[-1]:
        return x.new_zeros(
            x.shape[0], len(kernel), *(-(-length // stride) for length in x.shape[-2:])
        )
    x = _without_padding(_without_padding(x, -2, rows), -1, columns)
    above, below = _margins(x.shape[-2], kernel.shape[-2], stride, None)
    left, right = _margins(x.shape[-1], kernel.shape[-1], stride, None)
    return functional.conv2d(functional.pad(x, (left, right, above, below)), kernel, stride=stride)


def _batch_norm(x, gain, bias, mean, variance, axis, training, epsilon, momentum, sequences):
    """Each feature by its mean and variance: in training the batch's, which the others follow."""
    shape = [1] * x.dim()
    shape[axis] = -1
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if training:
        axes = [at for at in range(x.dim()) if at != axis % x.dim()]
        there = torch.ones_like(wide, dtype=torch.bool)
        for place, lengths in sequences:
            if lengths is not None:
                there = there & ~_padding(x, place, lengths)
        count = there.sum(axes)
        average = wide.masked_fill(~there, 0).sum(axes) / count.clamp(min=1)
        distance = (wide - average.view(shape)).masked_fill(~there, 0)
        spread = distance.square().sum(axes) / count.clamp(min=1)
        with torch.no_grad():
            mean.lerp_(average.to(mean.dtype), momentum)
            variance.lerp_((spread * count / (count - 1).clamp(min=1)).to(mean.dtype), momentum)
    else:
        average, spread = mean.to(wide.dtype), variance.to(wide.dtype)
    found = (wide - average.view(shape)) * (spread + epsilon).rsqrt().view(shape)
    return found.to(x.dtype) * gain.view(shape) + bias.view(shape)


class SpatialAttention(nn.Module):
    """Spatial attention: a convolution of the largest and the mean feature at each place (CBAM,
    arXiv 1807.06521, 3.2).

    Args:
        dim: a whole number.
        width: 7 by default.
        form: "triton", "c" or "torch" for the cores; by default Triton on GPUs, C on CPUs, if they can.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(self, dim: int, width: int = 7, form: str | None = None, device=None, dtype=None):
        super().__init__()
        dim = _whole_number("dim", dim, 1)
        width = _whole_number("width", width, 1)
        _demand(
            form in (None, "triton", "c", "torch"),
            "form",
            repr(form),
            "None, 'triton', 'c' or 'torch'",
        )
        self.dim = dim
        self.width = width
        self.form = form
        self.W = nn.Parameter(torch.empty(1, 2, width, width, device=device, dtype=dtype))
        self.gain = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.register_buffer("average", torch.empty(1, device=device, dtype=dtype))
        self.register_buffer("spread", torch.empty(1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        _uniform(self.W, (self.W.numel() / self.W.shape[0]) ** -0.5)
        for tensor in (self.gain, self.spread):
            nn.init.ones_(tensor)
        for tensor in (self.bias, self.average):
            nn.init.zeros_(tensor)

    def _check(self, x, lengths=None, m_lengths=None):
        """Refuse what does not fit, by the argument's name."""
        _demand_tensor("x", x, "W", self.W)
        _demand(
            x.dim() == 4 and x.shape[1] == self.dim,
            "x",
            list(x.shape),
            f"[batch, {self.dim}, n, m]",
        )
        _demand_lengths("lengths", lengths, x)
        _demand_lengths("m_lengths", m_lengths, x)

    def forward(self, x: Tensor, lengths: Tensor | None = None, m_lengths: Tensor | None = None):
        """The layer's output, [batch, dim, n, m].

        Args:
            x: [batch, dim, n, m].
            lengths: how many of the n tokens each batch entry has, [batch]; the others are padding.
            m_lengths: how many of the m tokens each batch entry has, [batch]; the others are padding.
        """
        self._check(x, lengths, m_lengths)
        maps = torch.cat((x.amax(-3).unsqueeze(-3), x.mean(-3).unsqueeze(-3)), -3)
        gate = _batch_norm(
            _convolved_map(maps, self.W, 1, lengths, m_lengths),
            self.gain,
            self.bias,
            self.average,
            self.spread,
            -3,
            self.training,
            1e-05,
            0.1,
            (
                (-2, lengths),
                (-1, m_lengths),
            ),
        )
        return x * torch.sigmoid(gate)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, width={self.width}"
