# glu: made by attncc 0.1.0 from glu.attn (sha256 4c903cec1c8a4426). Do not edit.
# Rebuild: attncc build glu.attn
#
#     # Gated linear unit (arXiv 1612.08083) as a feed-forward layer (arXiv 2002.05202).
#     layer glu(dim, hidden = 4 * dim) {
#       input x[n, dim]
#       param W[dim, hidden], b[hidden], V[dim, hidden], c[hidden], W2[hidden, dim], b2[dim]
#       out = (sigmoid(x @ W + b) * (x @ V + c)) @ W2 + b2
#     }
#
# No step: it calls no core.


import torch
from torch import Tensor, nn

# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"glu: {name} is {found}, expected {expected}")


def _uniform(tensor, most):
    """Numbers between -most and most."""
    nn.init.uniform_(tensor, -most, most)


class Glu(nn.Module):
    """Gated linear unit (arXiv 1612.08083) as a feed-forward layer (arXiv 2002.05202).

    Args:
        dim: a whole number.
        hidden: 4 * dim by default.
        form: "triton", "c" or "torch" for the cores; by default Triton on GPUs, C on CPUs, if they can.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(
        self, dim: int, hidden: int | None = None, form: str | None = None, device=None, dtype=None
    ):
        super().__init__()
        hidden = 4 * dim if hidden is None else hidden
        self.dim = dim
        self.hidden = hidden
        self.form = form
        self.W = nn.Parameter(torch.empty(dim, hidden, device=device, dtype=dtype))
        self.b = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype))
        self.V = nn.Parameter(torch.empty(dim, hidden, device=device, dtype=dtype))
        self.c = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype))
        self.W2 = nn.Parameter(torch.empty(hidden, dim, device=device, dtype=dtype))
        self.b2 = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        for tensor in (self.W, self.V, self.W2):
            _uniform(tensor, tensor.shape[-2] ** -0.5)
        for tensor in (self.b, self.c, self.b2):
            nn.init.zeros_(tensor)

    def forward(self, x: Tensor, lengths: Tensor | None = None):
        """The layer's output, [batch, n, dim].

        Args:
            x: [batch, n, dim].
            lengths: how many of the n tokens each batch entry has, [batch]; the others are padding.
        """
        _demand(
            x.dim() == 3 and x.shape[2] == self.dim, "x", list(x.shape), f"[batch, n, {self.dim}]"
        )
        return (torch.sigmoid(x @ self.W + self.b) * (x @ self.V + self.c)) @ self.W2 + self.b2

    def extra_repr(self) -> str:
        return f"dim={self.dim}, hidden={self.hidden}"
