# boom: made by attncc 0.1.0 from boom.attn (sha256 c6584f8c2e94b2aa). Do not edit.
# Rebuild: attncc build boom.attn
#
#     # Boom layer: gelu to several times the width, whose parts are summed (SHA-RNN, arXiv 1911.11423, section 3).
#     layer boom(dim) {
#       input x[n, dim]
#       param W[dim, 4 * dim], b[4 * dim]
#       u = x @ W + b
#       g = u * sigmoid(1.702 * u)
#       out = part(g, 0, 4) + part(g, 1, 4) + part(g, 2, 4) + part(g, 3, 4)
#     }
#
# No step: it calls no core.


import torch
from torch import Tensor, nn

# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"boom: {name} is {found}, expected {expected}")


def _uniform(tensor, most):
    """Numbers between -most and most."""
    nn.init.uniform_(tensor, -most, most)


class Boom(nn.Module):
    """Boom layer: gelu to several times the width, whose parts are summed (SHA-RNN, arXiv
    1911.11423, section 3).

    Args:
        dim: a whole number.
        form: "triton", "c" or "torch" for the cores; by default Triton on GPUs, C on CPUs, if they can.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(self, dim: int, form: str | None = None, device=None, dtype=None):
        super().__init__()
        self.dim = dim
        self.form = form
        self.W = nn.Parameter(torch.empty(dim, 4 * dim, device=device, dtype=dtype))
        self.b = nn.Parameter(torch.empty(4 * dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        _uniform(self.W, self.W.shape[-2] ** -0.5)
        nn.init.zeros_(self.b)

    def forward(self, x: Tensor, lengths: Tensor | None = None):
        """The layer's output, [batch, n, dim].

        Args:
            x: [batch, n, dim].
            lengths: how many of the n tokens each batch entry has, [batch]; the others are padding.
        """
        _demand(
            x.dim() == 3 and x.shape[2] == self.dim, "x", list(x.shape), f"[batch, n, {self.dim}]"
        )
        u = x @ self.W + self.b
        g = u * torch.sigmoid(1.702 * u)
        return (
            g[..., : self.dim]
            + g[..., self.dim : 2 * self.dim]
            + g[..., 2 * self.dim : 3 * self.dim]
            + g[..., 3 * self.dim :]
        )

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
