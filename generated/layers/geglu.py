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
# No step: nothing of earlier tokens is read, so that `forward` of new ones alone is one.


import torch
from torch import Tensor, nn
from torch.nn import functional

# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"geglu: {name} is {found}, expected {expected}")


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
        dim = _whole_number("dim", dim, 1)
        hidden = 4 * dim if hidden is None else hidden
        hidden = _whole_number("hidden", hidden, 1)
        _demand(
            form in (None, "triton", "c", "torch"),
            "form",
            repr(form),
            "None, 'triton', 'c' or 'torch'",
        )
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
        return (functional.gelu(x @ self.W + self.b) * (x @ self.V + self.c)) @ self.W2 + self.b2

    def extra_repr(self) -> str:
        return f"dim={self.dim}, hidden={self.hidden}"
