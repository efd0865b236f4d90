# cbam: made by attncc 0.1.0 from cbam.attn (sha256 7ceab7aa6581cc72). Do not edit.
# Rebuild: attncc build cbam.attn
#
#     use "channel_attention.attn"
#     use "spatial_attention.attn"
#
#     # Convolutional block attention module: which features, then which places (CBAM, arXiv 1807.06521, section 3).
#     layer cbam(dim, hidden = dim // 16, width = 7) {
#       input x[dim, n, m]
#       out = spatial_attention(channel_attention(x, hidden = hidden), width = width)
#     }
#
# From channel_attention.attn:
#
#     # Channel attention: one perceptron for the mean and the largest value of each feature (CBAM, arXiv 1807.06521, 3.1).
#     layer channel_attention(dim, hidden = dim // 16) {
#       input x[dim, n, m]
#       param W[dim, hidden], b[hidden], V[hidden, dim], c[dim]
#       average = mean(mean(x, over = m), over = n)
#       largest = max(max(x, over = m), over = n)
#       gate = relu(average @ W + b) @ V + c + relu(largest @ W + b) @ V + c
#       out = x * column(column(sigmoid(gate)))
#     }
#
# From spatial_attention.attn:
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
        raise ValueError(f"cbam: {name} is {found}, expected {expected}")


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


def _mean(x, axis, lengths):
    """The mean along an axis over what is no padding; 0 where there is nothing."""
    total = _without_padding(x, axis, lengths).sum(axis)
    if lengths is None:
        return total / max(x.shape[axis], 1)
    return total / lengths.clamp(1, max(x.shape[axis], 1)).view(-1, *[1] * (total.dim() - 1))


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


class Cbam(nn.Module):
    """Convolutional block attention module: which features, then which places (CBAM, arXiv
    1807.06521, section 3).

    Args:
        dim: a whole number.
        hidden: dim / 16 by default.
        width: 7 by default.
        form: "triton", "c" or "torch" for the cores; by default Triton on GPUs, C on CPUs, if they can.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        width: int = 7,
        form: str | None = None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        dim = _whole_number("dim", dim, 1)
        hidden = dim / 16 if hidden is None else hidden
        hidden = _whole_number("hidden", hidden, 1)
        width = _whole_number("width", width, 1)
        _demand(
            form in (None, "triton", "c", "torch"),
            "form",
            repr(form),
            "None, 'triton', 'c' or 'torch'",
        )
        _demand(dim % 16 == 0, "dim", dim, "a multiple of 16")
        self.dim = dim
        self.hidden = hidden
        self.width = width
        self.form = form
        self.channel_attention = nn.Module()
        self.spatial_attention = nn.Module()
        self.channel_attention.W = nn.Parameter(
            torch.empty(dim, hidden, device=device, dtype=dtype)
        )
        self.channel_attention.b = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype))
        self.channel_attention.V = nn.Parameter(
            torch.empty(hidden, dim, device=device, dtype=dtype)
        )
        self.channel_attention.c = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.spatial_attention.W = nn.Parameter(
            torch.empty(1, 2, width, width, device=device, dtype=dtype)
        )
        self.spatial_attention.gain = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.spatial_attention.bias = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.spatial_attention.register_buffer(
            "average", torch.empty(1, device=device, dtype=dtype)
        )
        self.spatial_attention.register_buffer("spread", torch.empty(1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        for tensor in (self.channel_attention.W, self.channel_attention.V):
            _uniform(tensor, tensor.shape[-2] ** -0.5)
        for tensor in (
            self.channel_attention.b,
            self.channel_attention.c,
            self.spatial_attention.bias,
            self.spatial_attention.average,
        ):
            nn.init.zeros_(tensor)
        _uniform(
            self.spatial_attention.W,
            (self.spatial_attention.W.numel() / self.spatial_attention.W.shape[0]) ** -0.5,
        )
        for tensor in (self.spatial_attention.gain, self.spatial_attention.spread):
            nn.init.ones_(tensor)

    def _check(self, x, lengths=None, m_lengths=None):
        """Refuse what does not fit, by the argument's name."""
        _demand_tensor("x", x, "channel_attention.W", self.channel_attention.W)
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
        channel_attention_average = _mean(_mean(x, -1, m_lengths), -1, lengths)
        channel_attention_largest = _largest(_largest(x, -1, m_lengths), -1, lengths)
        channel_attention_gate = (
            functional.relu(
                channel_attention_average @ self.channel_attention.W + self.channel_attention.b
            )
            @ self.channel_attention.V
            + self.channel_attention.c
            + functional.relu(
                channel_attention_largest @ self.channel_attention.W + self.channel_attention.b
            )
            @ self.channel_attention.V
            + self.channel_attention.c
        )
        channel_attention_out = x * torch.sigmoid(channel_attention_gate).unsqueeze(-1).unsqueeze(
            -1
        )
        spatial_attention_maps = torch.cat(
            (
                channel_attention_out.amax(-3).unsqueeze(-3),
                channel_attention_out.mean(-3).unsqueeze(-3),
            ),
            -3,
        )
        spatial_attention_gate = _batch_norm(
            _convolved_map(spatial_attention_maps, self.spatial_attention.W, 1, lengths, m_lengths),
            self.spatial_attention.gain,
            self.spatial_attention.bias,
            self.spatial_attention.average,
            self.spatial_attention.spread,
            -3,
            self.training,
            1e-05,
            0.1,
            (
                (-2, lengths),
                (-1, m_lengths),
            ),
        )
        spatial_attention_out = channel_attention_out * torch.sigmoid(spatial_attention_gate)
        return spatial_attention_out

    def extra_repr(self) -> str:
        return f"dim={self.dim}, hidden={self.hidden}, width={self.width}"
