"""Functions that modules of layers call: what padding does to operators along a sequence, and a few more."""

from __future__ import annotations

from attncc.emit.layers.library_sequence import CALLS, TEXTS

_TEXTS: dict[str, str] = {
    "_whole_number": '''
def _whole_number(name, x, least=-(2**31)):
    """A number that has to be whole, as one of Python."""
    try:
        found = None if isinstance(x, bool) else type(x).__index__(x)
    except (AttributeError, TypeError):
        found = None
    holds = found is not None and least <= found < 2**31
    _demand(holds, name, repr(x), f"a whole number of 32 bits, {least} or more")
    return found
''',
    "_finite_number": '''
def _finite_number(name, x):
    """A number, as one of Python."""
    try:
        found = None if isinstance(x, bool) else type(x).__float__(x)
    except (AttributeError, TypeError, OverflowError):
        found = None
    _demand(found is not None and math.isfinite(found), name, repr(x), "a finite number")
    return found
''',
    "_is_whole": '''
def _is_whole(x):
    """Whether a tensor is of whole numbers."""
    return not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool
''',
    "_demand_tensor": '''
def _demand_tensor(name, x, whose, like, kind="numbers"):
    """Refuse what holds no such numbers, or others than a tensor it meets; autocast casts them."""
    _demand(isinstance(x, Tensor), name, type(x).__name__, "a tensor")
    _demand(not x.is_nested and x.layout == torch.strided, name, "nested or sparse", "a dense tensor")
    _demand(x.device == like.device, name, f"on {x.device}", f"the device of {whose}, {like.device}")
    if kind == "truth values":
        _demand(x.dtype == torch.bool, name, x.dtype, "torch.bool")
    elif kind == "whole numbers":
        _demand(_is_whole(x), name, x.dtype, kind)
    else:
        _demand(x.is_floating_point(), name, x.dtype, "a type of real numbers")
        device = x.device.type
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            _demand(x.dtype == like.dtype, name, x.dtype, f"the dtype of {whose}, {like.dtype}")
''',
    "_demand_lengths": '''
def _demand_lengths(name, lengths, x):
    """Refuse what says of no batch entry of x how many tokens it has."""
    if lengths is None:
        return
    _demand(isinstance(lengths, Tensor), name, type(lengths).__name__, "a tensor or None")
    batch = x.shape[0]
    _demand(lengths.shape == (batch,), name, list(lengths.shape), f"a number for each of {batch} batch entries")
    _demand(_is_whole(lengths), name, lengths.dtype, "whole numbers")
    _demand(lengths.device == x.device, name, f"on {lengths.device}", f"the device of the tokens, {x.device}")
''',
    "_demand_kept": '''
def _demand_kept(name, x, kept):
    """Refuse other batch entries than those of the tokens before."""
    for each in kept:
        if each is not None:
            _demand(len(each) == len(x), name, list(x.shape), f"the batch of the cache, {len(each)}")
''',
    "_uniform": '''
def _uniform(tensor, most):
    """Numbers between -most and most."""
    nn.init.uniform_(tensor, -most, most)
''',
    "_heads": '''
def _heads(x, count):
    """[batch, n, count * d] to [batch, count, n, d]."""
    return x.unflatten(-1, (count, x.shape[-1] // count)).transpose(-3, -2)
''',
    "_merged": '''
def _merged(x):
    """[batch, heads, n, d] to [batch, n, heads * d]."""
    return x.transpose(-3, -2).flatten(-2)
''',
    "_padding": '''
def _padding(x, axis, lengths):
    """Which entries along an axis are padding, with axes of length 1 elsewhere."""
    places = torch.arange(x.shape[axis], device=x.device)
    shape = [1] * x.dim()
    shape[0], shape[axis] = len(lengths), x.shape[axis]
    return (places >= lengths[:, None]).view(shape)
''',
    "_without_padding": '''
def _without_padding(x, axis, lengths):
    """0 in place of padding; of the sequences' lengths None stands for no padding at all."""
    if lengths is None:
        return x
    if x.shape[0] != len(lengths):
        x = x.expand(len(lengths), *x.shape)
    return x.masked_fill(_padding(x, axis, lengths), 0)
''',
    "_softmax": '''
def _softmax(x, axis, lengths):
    """Softmax along an axis in which padding takes no part and gets 0."""
    if lengths is None:
        return x.softmax(axis)
    padding = _padding(x, axis, lengths)
    return x.masked_fill(padding, torch.finfo(x.dtype).min).softmax(axis).masked_fill(padding, 0)
''',
    "_sum_along": '''
def _sum_along(x, axis, lengths):
    """The sum along an axis, padding left out."""
    return _without_padding(x, axis, lengths).sum(axis)
''',
    "_mean": '''
def _mean(x, axis, lengths):
    """The mean along an axis over what is no padding; 0 where there is nothing."""
    total = _without_padding(x, axis, lengths).sum(axis)
    if lengths is None:
        return total / max(x.shape[axis], 1)
    return total / lengths.clamp(1, max(x.shape[axis], 1)).view(-1, *[1] * (total.dim() - 1))
''',
    "_largest": '''
def _largest(x, axis, lengths):
    """The largest along an axis, padding left out; 0 where there is nothing."""
    if not x.shape[axis]:
        return x.sum(axis)
    if lengths is None:
        return x.amax(axis)
    found = x.masked_fill(_padding(x, axis, lengths), torch.finfo(x.dtype).min).amax(axis)
    return found.masked_fill((lengths <= 0).view(-1, *[1] * (found.dim() - 1)), 0)
''',
    "_blocks": '''
def _blocks(lengths, by):
    """How many blocks of `by` tokens cover so many; None stands for no padding."""
    return None if lengths is None else -(-lengths // by)
''',
    "_at_most": '''
def _at_most(lengths, most):
    """Lengths of which so many are kept; None stands for no padding."""
    return None if lengths is None else lengths.clamp(max=most)
''',
    "_top": '''
def _top(x, count, lengths, always=0):
    """Where the largest stand, in the order of their places: of equal ones the first; padding comes last."""
    x = x.detach()
    places = torch.arange(x.shape[-1], device=x.device)
    x = x.masked_fill(places < always, float("inf"))
    if lengths is not None:
        x = x.masked_fill(places >= lengths[:, None], float("-inf"))
    chosen = x.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return chosen.sort(-1).values
''',
    "_gathered": '''
def _gathered(x, axis, places):
    """The entries along an axis at places of each batch entry, [batch, k]."""
    x = x.movedim(axis, 1)
    x = x.expand(len(places), *x.shape[1:])
    index = places.view(*places.shape, *[1] * (x.dim() - 2)).expand(*places.shape, *x.shape[2:])
    return x.gather(1, index).movedim(1, axis)
''',
    "_in_slabs": '''
def _in_slabs(reduced, weights, values, count, lengths, rows, by=1):
    """Weights of so many rows at a time, padded ones as 0, each slab reduced, and computed again in backward."""

    def slab(start, *values):
        found = weights(*values, rows=slice(start, start + rows))
        if lengths is not None:
            places = torch.arange(start, start + found.shape[2], device=found.device)
            found = found.masked_fill((places >= lengths[:, None])[:, None, :, None], 0)
        return reduced(start, found)

    rows = -(-rows // by) * by
    for start in range(0, max(count, 1), rows):
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            yield checkpoint(slab, start, *values, use_reentrant=False)
        else:
            yield slab(start, *values)
''',
    "_column_sums": '''
def _column_sums(weights, values, count, lengths, own=True, rows=256):
    """The weight that all rows give to each key, [batch, heads, m], in slabs of rows."""

    def reduced(start, found):
        if not own:
            places = torch.arange(found.shape[3], device=found.device)
            found = found.masked_fill(places[start : start + found.shape[2], None] == places, 0)
        return found.sum(2)

    return sum(_in_slabs(reduced, weights, values, count, lengths, rows)).to(values[0].dtype)
''',
    "_block_sums": '''
def _block_sums(weights, values, count, lengths, by, across, rows=256):
    """The weight that blocks of rows give to blocks of keys, in slabs of rows."""

    def reduced(start, found):
        below, beside = -found.shape[2] % by, -found.shape[3] % across
        found = functional.pad(found, (0, beside, 0, below))
        return found.unflatten(3, (-1, across)).sum(4).unflatten(2, (-1, by)).sum(3)

    parts = tuple(_in_slabs(reduced, weights, values, count, lengths, rows, by))
    return torch.cat(parts, 2).to(values[0].dtype)
''',
    "_pool": '''
def _pool(x, axis, by, lengths):
    """Means of blocks of `by` neighbours, over those that are no padding; 0 where there are none."""
    x = _without_padding(x, axis, lengths).movedim(axis, -1)
    count = -(-x.shape[-1] // by)
    total = functional.pad(x, (0, count * by - x.shape[-1])).unflatten(-1, (count, by)).sum(-1)
    firsts = torch.arange(count, device=x.device) * by
    if lengths is None:
        held = (x.shape[-1] - firsts).clamp(1, by)
    else:
        held = (lengths.clamp(max=x.shape[-1])[:, None] - firsts).clamp(1, by)
        held = held.view(len(lengths), *[1] * (x.dim() - 2), count)
    return (total / held).movedim(-1, axis)
''',
    "_unit": '''
def _unit(x, epsilon):
    """x over its length, or over epsilon where that is more; lengths are taken in 32 bits or more."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide / wide.norm(dim=-1, keepdim=True).clamp(min=epsilon)).to(x.dtype)
''',
    "_scale_norm": '''
def _scale_norm(x, epsilon):
    """x over its length relative to that of a vector of ones."""
    return _unit(x, epsilon * x.shape[-1] ** 0.5) * x.shape[-1] ** 0.5
''',
    "_angles": '''
def _angles(x, base, start, closed):
    """Cosines and sines of the tokens' positions, [n, width / 2], in 32 bits or more."""
    wide = torch.promote_types(x.dtype, torch.float32)
    half = x.shape[-1] // 2
    rates = torch.arange(half, device=x.device, dtype=wide) / (max(half - 1, 1) if closed else half)
    positions = torch.arange(start, start + x.shape[-2], device=x.device, dtype=wide)
    angles = positions[:, None] * base**-rates
    return angles.cos(), angles.sin()
''',
    "_rotated": '''
def _rotated(x, base, start, closed=False):
    """Features t and t + width / 2 turned by the token's position."""
    cos, sin = _angles(x, base, start, closed)
    a, b = x.to(cos.dtype).chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)
''',
    "_rotated_pairs": '''
def _rotated_pairs(x, base, start, closed=False):
    """Features 2t and 2t + 1 turned by the token's position."""
    cos, sin = _angles(x, base, start, closed)
    a, b = x.to(cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
''',
}
_CALLS = {
    "_demand_tensor": ("_is_whole",),
    "_demand_lengths": ("_is_whole",),
    "_without_padding": ("_padding",),
    "_sum_along": ("_without_padding",),
    "_mean": ("_without_padding",),
    "_softmax": ("_padding",),
    "_largest": ("_padding",),
    "_pool": ("_without_padding",),
    "_column_sums": ("_in_slabs",),
    "_block_sums": ("_in_slabs",),
    "_scale_norm": ("_unit",),
    "_rotated": ("_angles",),
    "_rotated_pairs": ("_angles",),
}


NAMES = frozenset(_TEXTS | TEXTS) | {"_demand"}  # of functions that a layer's module may have


def library(used: set[str]) -> str:
    """The functions of these names and those that they call."""
    every: set[str] = set()
    todo = list(used)
    while todo:
        name = todo.pop()
        if name not in every:
            every.add(name)
            todo += (_CALLS | CALLS).get(name, ())
    return "\n\n".join(text.strip("\n") + "\n" for name, text in (_TEXTS | TEXTS).items() if name in every)
