# geglu: made by attncc 0.1.0 from geglu.attn (sha256 745cba15d6c4f231). Do not edit.
# Rebuild: attncc build geglu.attn
#
#     # Gated linear unit with gelu as a feed-forward layer (arXiv 2002.05202).
#     layer geglu(dim, hidden = 4 * dim) {
#       input x[n, dim]
#       param W[dim, hidden], b[hidden], V[dim, hidden], c[hidden], W2[hidden, dim], b2[dim]
#       out = (gelu(x @ W + b) * (x @ V + c)) @ W2 + b2
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
        raise ValueError(f"geglu: {name} is {found}, expected {expected}")


def _uniform(tensor, most):
    """Numbers between -most and most."""
    nn.init.uniform_(tensor, -most, most)


class Geglu(nn.Module):
    """Gated linear unit with gelu as a feed-forward layer (arXiv 2002.05202).

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
        return (functional.gelu(x @ self.W + self.b) * (x @ self.V + self.c)) @ self.W2 + self.b2

    def extra_repr(self) -> str:
        return f"dim={self.dim}, hidden={self.hidden}"
