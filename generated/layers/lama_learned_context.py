# lama_learned_context: made by attncc 0.1.0 from lama_learned_context.attn (sha256 5e0aa6d93c2153f1). Do not edit.
# Rebuild: attncc build lama_learned_context.attn
#
#     # Low-rank attention pooling against a learned context (LAMA, arXiv 1912.00835, section 3).
#     layer lama_learned_context(dim, h = 8) {
#       input x[n, dim]
#       param context[dim] = normal(0.02), P[dim, h], Q[dim, h]
#       scores = l2_norm(tanh(context @ P * (x @ Q)))
#       out = transposed(softmax(scores, over = n)) @ x
#     }
#
# No step: it calls no core.


import torch
from torch import Tensor, nn

# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"lama_learned_context: {name} is {found}, expected {expected}")


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


def _softmax(x, axis, lengths):
    """Softmax along an axis in which padding takes no part and gets 0."""
    if lengths is None:
        return x.softmax(axis)
    padding = _padding(x, axis, lengths)
    return x.masked_fill(padding, torch.finfo(x.dtype).min).softmax(axis).masked_fill(padding, 0)


def _unit(x, epsilon):
    """x over its length, or over epsilon where that is more; lengths are taken in 32 bits or more."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide / wide.norm(dim=-1, keepdim=True).clamp(min=epsilon)).to(x.dtype)


class LamaLearnedContext(nn.Module):
    """Low-rank attention pooling against a learned context (LAMA, arXiv 1912.00835, section 3).

    Args:
        dim: a whole number.
        h: 8 by default.
        form: "triton", "c" or "torch" for the cores; by default Triton on GPUs, C on CPUs, if they can.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(self, dim: int, h: int = 8, form: str | None = None, device=None, dtype=None):
        super().__init__()
        self.dim = dim
        self.h = h
        self.form = form
        self.context = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.P = nn.Parameter(torch.empty(dim, h, device=device, dtype=dtype))
        self.Q = nn.Parameter(torch.empty(dim, h, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        nn.init.normal_(self.context, std=0.02)
        for tensor in (self.P, self.Q):
            _uniform(tensor, tensor.shape[-2] ** -0.5)

    def forward(self, x: Tensor, lengths: Tensor | None = None):
        """The layer's output, [batch, h, dim].

        Args:
            x: [batch, n, dim].
            lengths: how many of the n tokens each batch entry has, [batch]; the others are padding.
        """
        _demand(
            x.dim() == 3 and x.shape[2] == self.dim, "x", list(x.shape), f"[batch, n, {self.dim}]"
        )
        scores = _unit(torch.tanh(self.context @ self.P * (x @ self.Q)), 1e-12)
        return _softmax(scores, -2, lengths).mT @ _without_padding(x, -2, lengths)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, h={self.h}"
