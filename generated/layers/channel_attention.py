# channel_attention: made by attncc 0.1.0 from channel_attention.attn (sha256 c942799efc6c7de4). Do not edit.
# Rebuild: attncc build channel_attention.attn
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
# No step: it calls no core.


import torch
from torch import Tensor, nn
from torch.nn import functional

# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"channel_attention: {name} is {found}, expected {expected}")


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
    if lengths is None:
        return x.amax(axis)
    found = x.masked_fill(_padding(x, axis, lengths), torch.finfo(x.dtype).min).amax(axis)
    return found.masked_fill((lengths <= 0).view(-1, *[1] * (found.dim() - 1)), 0)


class ChannelAttention(nn.Module):
    """Channel attention: one perceptron for the mean and the largest value of each feature (CBAM,
    arXiv 1807.06521, 3.1).

    Args:
        dim: a whole number.
        hidden: dim / 16 by default.
        form: "triton", "c" or "torch" for the cores; by default Triton on GPUs, C on CPUs, if they can.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(
        self, dim: int, hidden: int | None = None, form: str | None = None, device=None, dtype=None
    ):
        super().__init__()
        hidden = dim / 16 if hidden is None else hidden
        _demand(dim % 16 == 0, "dim", dim, "a multiple of 16")
        self.dim = dim
        self.hidden = hidden
        self.form = form
        self.W = nn.Parameter(torch.empty(dim, hidden, device=device, dtype=dtype))
        self.b = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype))
        self.V = nn.Parameter(torch.empty(hidden, dim, device=device, dtype=dtype))
        self.c = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        for tensor in (self.W, self.V):
            _uniform(tensor, tensor.shape[-2] ** -0.5)
        for tensor in (self.b, self.c):
            nn.init.zeros_(tensor)

    def forward(self, x: Tensor, lengths: Tensor | None = None, m_lengths: Tensor | None = None):
        """The layer's output, [batch, dim, n, m].

        Args:
            x: [batch, dim, n, m].
            lengths: how many of the n tokens each batch entry has, [batch]; the others are padding.
            m_lengths: how many of the m tokens each batch entry has, [batch]; the others are padding.
        """
        _demand(
            x.dim() == 4 and x.shape[1] == self.dim,
            "x",
            list(x.shape),
            f"[batch, {self.dim}, n, m]",
        )
        average = _mean(_mean(x, -1, m_lengths), -1, lengths)
        largest = _largest(_largest(x, -1, m_lengths), -1, lengths)
        gate = (
            functional.relu(average @ self.W + self.b) @ self.V
            + self.c
            + functional.relu(largest @ self.W + self.b) @ self.V
            + self.c
        )
        return x * torch.sigmoid(gate).unsqueeze(-1).unsqueeze(-1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, hidden={self.hidden}"
