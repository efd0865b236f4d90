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
        dim = _whole_number("dim", dim, 1)
        h = _whole_number("h", h, 1)
        _demand(
            form in (None, "triton", "c", "torch"),
            "form",
            repr(form),
            "None, 'triton', 'c' or 'torch'",
        )
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

    def _check(self, x, lengths=None):
        """Refuse what does not fit, by the argument's name."""
        _demand_tensor("x", x, "context", self.context)
        _demand(
            x.dim() == 3 and x.shape[2] == self.dim, "x", list(x.shape), f"[batch, n, {self.dim}]"
        )
        _demand_lengths("lengths", lengths, x)

    def forward(self, x: Tensor, lengths: Tensor | None = None):
        """The layer's output, [batch, h, dim].

        Args:
            x: [batch, n, dim].
            lengths: how many of the n tokens each batch entry has, [batch]; the others are padding.
        """
        self._check(x, lengths)
        scores = _unit(torch.tanh(self.context @ self.P * (x @ self.Q)), 1e-12)
        return _softmax(scores, -2, lengths).mT @ _without_padding(x, -2, lengths)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, h={self.h}"
