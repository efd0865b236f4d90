"""The small functions that the torch form calls, as text; a module gets those that it uses."""

from __future__ import annotations

OPTIONAL: dict[str, str] = {
    "_minimum": '''
def _minimum(a, b):
    """The smaller of two tensors or numbers."""
    if isinstance(a, Tensor):
        return torch.minimum(a, b) if isinstance(b, Tensor) else a.clamp(max=b)
    return b.clamp(max=a) if isinstance(b, Tensor) else min(a, b)
''',
    "_maximum": '''
def _maximum(a, b):
    """The larger of two tensors or numbers."""
    if isinstance(a, Tensor):
        return torch.maximum(a, b) if isinstance(b, Tensor) else a.clamp(min=b)
    return b.clamp(min=a) if isinstance(b, Tensor) else max(a, b)
''',
    "_where": '''
def _where(condition, a, b, q=None):
    """torch.where, also for conditions that are the same for all and for two plain numbers."""
    if not isinstance(condition, Tensor):
        chosen, other = (a, b) if condition else (b, a)
        spread = isinstance(other, Tensor) and not isinstance(chosen, Tensor)
        return torch.full_like(other, chosen) if spread else chosen
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        dtype = torch.float64 if q is None else _wide(q.dtype)
        a = torch.tensor(a, dtype=dtype, device=condition.device)
    return torch.where(condition, a, b)
''',
    "_elu_plus_one": '''
def _elu_plus_one(x):
    """elu(x) + 1, by sides: next to 1, what is left of a small number is rounded away."""
    return torch.threshold(x, 0, 0).add_(x.clamp(max=0).exp_())
''',
    "_features": '''
class _Deferred:
    """A formula of each token's vector, taken when tokens are read: no tensor has all."""

    def __init__(self, formula, x, dtype):
        self.formula, self.x, self.dtype = formula, x, dtype
        self.shape, self.device, self.is_cuda = x.shape, x.device, x.is_cuda
        self.new_empty = functools.partial(x.new_empty, dtype=dtype)

    def of(self, x):
        """The same formula of some of the tokens, or of these in another order."""
        return _Deferred(self.formula, x, self.dtype)

    def __getitem__(self, at):
        return self.of(self.x[at])

    def to(self, dtype):
        """The tensor itself, as it is in its own type."""
        return self.formula(self.x).to(self.dtype).to(dtype)

    def flatten(self, first, last):
        return self.to(self.dtype).flatten(first, last)

    def whole(self):
        """The tensor, made of some tokens after others, which stay in the cache."""
        out = self.new_empty(self.shape)
        tokens = max(1, _STRIP * self.shape[2] // max(1, math.prod(self.shape)))
        for token in range(0, self.shape[2], tokens):
            out[:, :, token : token + tokens] = self.formula(self.x[:, :, token : token + tokens])
        return out


_STRIP = 1 << 17  # numbers


def _features(formula, x, batch, heads, length, dtype, defer):
    """A formula of each token's vector, as wide as that, with every axis."""
    if not defer or length <= _ROWS:
        return _vectors(formula(x), batch, heads, length, dtype)
    return _Deferred(formula, x.expand(batch, heads, length, x.shape[-1]), dtype)


def _may_defer(form, data):
    """Whether what tokens determine may be computed where it is read, as nobody takes gradients."""
    if form == "triton" or torch.compiler.is_compiling() or torch.autograd.forward_ad._current_level >= 0:
        return False
    tensors = [x for x in data if isinstance(x, Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return all(x.is_cpu and not _is_shape_only(x) and not wrapped(x) for x in tensors)


def _made(x):
    """What was deferred, if it was."""
    return x.whole() if isinstance(x, _Deferred) else x
''',
    "_entry": '''
def _entry(values, at):
    """The constants of a list at one index or at a tensor of them; whole where the index and all constants are."""
    if not isinstance(at, Tensor):
        return values[int(at)]
    whole = not at.is_floating_point() and all(isinstance(x, int) for x in values)
    dtype = torch.int64 if whole else torch.float64
    return torch.tensor(values, dtype=dtype, device=at.device)[at.long()]
''',
    "_reciprocal": '''
def _reciprocal(x):
    """1 / x, and 0 where x is 0: a row without weights gives 0."""
    if not isinstance(x, Tensor):
        return 1.0 / x if x else 0.0
    return torch.where(x == 0, 0.0, 1.0 / torch.where(x == 0, 1.0, x))
''',
    "_safe_log": '''
def _safe_log(x):
    """The natural logarithm, -inf where x is 0, with a gradient that is never NaN."""
    return torch.where(x > 0, torch.where(x > 0, x, 1.0).log(), -torch.inf)
''',
    "_tile": '''
def _tile(x, q, shape, chunk):
    """Numbers that no dot product is in, for every pair of a slab and a chunk."""
    return q.new_zeros((*shape, chunk.count)).add_(x)
''',
    "_spread": '''
def _spread(x, q, keys):
    """Numbers that no dot product is in, for every pair of blocks of rows and keys."""
    return q.new_zeros((*q.shape[:-1], keys)) + x
''',
    "_row": '''
def _row(x, q, shape):
    """Numbers that no sum is in, for every row of a slab."""
    return q.new_zeros((*shape, 1)) + x
''',
    "_ones": '''
def _ones(x):
    """1 for every token."""
    return torch.ones_like(x[..., :1])
''',
    "_outer": '''
def _outer(x, y):
    """Products of all pairs of features, [..., width of x * width of y]."""
    return (x[..., :, None] * y[..., None, :]).flatten(-2)
''',
    "_as_factor": '''
def _as_factor(x, state):
    """Factors [batch or 1, heads or 1, 1, features or 1] as states have their axes."""
    x = x.to(state.dtype)
    if x.dim() < 4:
        return x
    batch, heads = x.shape[:2]
    entries = state.shape[0] // heads if heads > 1 else batch
    return x.expand(entries, state.shape[0] // entries, 1, x.shape[3]).flatten(0, 1).mT
''',
    "_per_row": '''
def _per_row(x, slab, q):
    """Numbers of heads, repeated for every folded row."""
    return x.expand(*slab.shape[:3], 1).reshape(*q.shape[:2], 1)
''',
    "_table": '''
def _table(x, q):
    """Numbers of heads as [batch or 1, heads or 1, 1, 1], in the type of sums."""
    x = torch.as_tensor(x, device=q.device).to(_wide(q.dtype))
    return x.reshape((1,) * (4 - x.dim()) + x.shape)
''',
    "_expect_data": '''
def _expect_data(name, x, sizes, axes, kind, q):
    """Refuse data that fit neither the spec's axes nor the tensors of the call."""
    _expect(isinstance(x, Tensor), name, type(x).__name__, "a tensor")
    _expect(not x.is_nested, name, "nested", "a dense tensor")
    _expect(x.layout == torch.strided, name, x.layout, "a dense tensor")
    _expect(tuple(x.shape) == sizes, name, list(x.shape), f"{axes}, which is {list(sizes)}")
    _expect(x.device == q.device, name, f"on {x.device}", f"the device of q, {q.device}")
    if kind == "whole numbers":
        _expect(not x.is_floating_point() and x.dtype != torch.bool, name, x.dtype, kind)
    elif kind == "truth values":
        _expect(x.dtype == torch.bool, name, x.dtype, "torch.bool")
    elif kind == "vectors":
        _expect(x.dtype == q.dtype, name, x.dtype, f"the dtype of q, {q.dtype}")
    else:
        either = torch.float32 if q.dtype == torch.float32 else f"torch.float32 or {q.dtype}, as q"
        _expect(x.dtype in (q.dtype, torch.float32), name, x.dtype, either)
''',
    "_random": '''
def _random(shape, seed, device):
    """Numbers between 0 and 1 by a formula: the same for the same seed, on any device."""
    x = torch.arange(math.prod(shape), device=device) + 1_000_003 * seed + 1
    for _ in range(2):
        x = ((x >> 16) ^ x) * 0x45D9F3B & 0xFFFFFFFF
    return (((x >> 16) ^ x) + 0.5).view(shape) / 2.0**32
''',
    "_some_of": '''
def _some_of(count, shape, seed, device):
    """Truth values of which so many along the last axis hold, or all."""
    places = _random(shape, seed, device).argsort(-1)[..., :count]
    return torch.zeros(shape, dtype=torch.bool, device=device).scatter_(-1, places, True)
''',
    "_normal": '''
def _normal(shape, seed, device):
    """Normal numbers of deviation 1."""
    radius, angle = (_random(shape, 2 * seed + part, device) for part in range(2))
    return ((-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()).float()
''',
    "_expect_ascending": '''
def _expect_ascending(name, x, kv_lengths=None):
    """Refuse numbers that fall from one token to the next, and NaN; hidden keys may have any."""
    if x.numel() == 0 or _is_shape_only(x) or not _at_hand(x):
        return
    falls = ~(x[..., 1:] >= x[..., :-1])
    if kv_lengths is not None:
        at = torch.arange(1, x.shape[-1], device=x.device)
        lengths = torch.as_tensor(kv_lengths, device=x.device)
        falls = falls & (at < lengths.view(-1, *(1,) * (x.dim() - 1)))
    if not x.device.type == "cpu":
        torch._assert_async(~falls.any())
    elif falls.any():
        at = falls.nonzero()[0].tolist()
        how = "NaN or falling" if x.is_floating_point() else "falling"
        _expect(False, name, f"{how} after {at}", "numbers that never fall, as the spec declares")
''',
    "_positions": '''
def _positions(count, start, starts, device):
    """Positions of tokens, [batch or 1, 1, tokens, 1]."""
    at = torch.arange(count, device=device)[:, None] + start
    return at[None, None] if starts is None else at + starts[:, None, None, None]
''',
    "_hidden": '''
def _hidden(kv_lengths, m, device):
    """Which keys the lengths hide, [batch, 1, m, 1], if there are lengths."""
    if kv_lengths is None:
        return None
    return (torch.arange(m, device=device) >= kv_lengths[:, None])[:, None, :, None]
''',
    "_visible": '''
def _visible(kv_lengths, m, device):
    """How many keys the lengths leave, [batch or 1, 1, 1, 1]."""
    if kv_lengths is None:
        return torch.full((1, 1, 1, 1), m, device=device)
    return kv_lengths.clamp(0, m)[:, None, None, None]
''',
    "_seen": '''
def _seen(x, hidden):
    """Something of each key, 0 where it is hidden: nothing of what stands there is read."""
    return x if hidden is None else x.masked_fill(hidden, 0)
''',
    "_cumsum": '''
def _cumsum(x, hidden):
    """Sums over the keys up to each, in float64: they may be far larger than their differences.

    Hidden keys add nothing.
    """
    x = x if hidden is None else torch.where(hidden, 0, x)
    return x.double().cumsum(2)
''',
    "_cumsum_on": '''
def _cumsum_on(x, hidden, carried, at):
    """Sums over the keys up to each, after those that a decoder carried from earlier keys."""
    sums = _cumsum(x, hidden)
    if carried is not None:
        if isinstance(carried[at], Tensor):
            _expect_as_before("a running sum", carried[at], sums)
        sums = sums + carried[at]
        carried[at] = sums[:, :, -1:] if x.shape[2] else carried[at]
    return sums
''',
    "_softmax_over_keys": '''
def _softmax_over_keys(x, hidden):
    """Exponentials that add up to 1 over all keys; hidden keys have 0."""
    if hidden is None:
        return x.softmax(2)
    least = torch.finfo(x.dtype).min  # not -inf: of a batch entry without keys it would make NaN
    return torch.where(hidden, 0, torch.where(hidden, least, x).softmax(2))
''',
    "_largest_over_keys": '''
def _largest_over_keys(x, hidden):
    """The largest of all keys, for each; hidden keys have 0."""
    if x.shape[2] == 0:
        return x
    if hidden is None:
        return x.amax(2, keepdim=True).expand(x.shape)
    return torch.where(hidden, 0, torch.where(hidden, -torch.inf, x).amax(2, keepdim=True))
''',
    "_mean_over_keys": '''
def _mean_over_keys(x, hidden):
    """The mean of all keys, for each; hidden keys have 0."""
    if hidden is None:
        return x.mean(2, keepdim=True).expand(x.shape)
    count = (~hidden).sum(2, keepdim=True).clamp(min=1)
    return torch.where(hidden, 0, torch.where(hidden, 0, x).sum(2, keepdim=True) / count)
''',
    "_up_to": '''
def _up_to(numbers, x):
    """How many of some numbers in order are at most x."""
    dtype = torch.promote_types(numbers.dtype, x.dtype)
    return torch.searchsorted(numbers.to(dtype).contiguous(), x.to(dtype).contiguous(), right=True)
''',
    "_pooled": '''
def _pooled(x, width, stride, m, hidden):
    """Means of blocks of keys, [batch, heads, blocks, ...], hidden keys left out."""
    x = x.expand(*x.shape[:2], m, x.shape[3])
    seen = x.new_ones(1, 1, m, 1) if hidden is None else (~hidden).to(x.dtype)
    blocks = -(-m // stride)

    def total(x):  # blocks whose end has no keys are as wide
        x = nn.functional.pad(x, (0, 0, 0, max(blocks - 1, 0) * stride + width))
        return x.unfold(2, width, stride)[:, :, :blocks].sum(-1)

    return total(x * seen) / total(seen).clamp(min=1)
''',
    "_kept_blocks": '''
def _kept_blocks(kept, name, made, width, stride, axes, columns, prepared):
    """What the passes read of blocks of keys; full ones are made once, and kept under a name.

    Args:
        made: makes it of data and places.
        axes: which axis of each of the data is that of keys; None where there is none.
        columns: where in what is made blocks stand, [batch, kv heads, blocks, ...].
    """
    data, places = prepared[: len(axes)], list(prepared[len(axes) :])
    length = next(x.shape[axis] for x, axis in zip(data, axes, strict=True) if axis is not None)
    full, before = kept.get(name, (0, ()))
    first = full * stride
    places[-3] += first  # the position of the first key
    cut = [x if axis is None else x.narrow(axis, first, length - first) for x, axis in zip(data, axes, strict=True)]
    found, held = list(made(*cut, *places)), []
    for at, column in enumerate(columns):
        new = found[column]
        end = full + new.shape[2]
        room = before[at] if before else new[:, :, :0]
        if end > room.shape[2]:
            wider = new.new_empty(*new.shape[:2], 2 * end, *new.shape[3:])
            wider[:, :, :full] = room[:, :, :full]
            room = wider
        room[:, :, full:end] = new
        found[column] = room[:, :, :end]
        held.append(room)
    kept[name] = max(0, min((length - width) // stride + 1, length // stride)), tuple(held)
    return found
''',
    "_on_blocks": '''
def _on_blocks(stride, *rest):
    """Places and lengths of blocks of keys in place of those of keys."""
    *scale, q_start, k_start, q_starts, kv_lengths = rest
    traced = isinstance(k_start, torch.SymInt)
    _expect(traced or k_start % stride == 0, "k_start", k_start, f"a multiple of {stride}, where a block begins")
    kv_lengths = None if kv_lengths is None else -(-kv_lengths // stride)
    return *scale, q_start, k_start // stride, q_starts, kv_lengths
''',
    "_rank": '''
def _rank(x, hidden):
    """The place of each key in order of a number, and then of position; hidden keys last."""
    order = x.argsort(dim=2, stable=True)
    if hidden is not None:
        order = order.gather(2, hidden.expand(x.shape).gather(2, order).to(torch.uint8).argsort(dim=2, stable=True))
    place = torch.arange(x.shape[2], device=x.device)[:, None].expand(x.shape)
    return torch.empty_like(order).scatter_(2, order, place)
''',
    "_chosen": '''
def _chosen(choices, name, made, batch, heads, length):
    """A choice of tokens, [batch, heads, tokens, 1]: the caller's, or made and noted down."""
    if choices is not None and name in choices:
        return choices[name][..., None]
    found = made()
    found = found[:, :: max(found.shape[1] // heads, 1)].expand(batch, heads, length, 1)
    if choices is not None:
        choices[name] = found[..., 0]
    return found
''',
    "_chosen_keys": '''
def _chosen_keys(choices, name, made):
    """Keys that rows choose, [batch, heads, n, entries]: the caller's, or made and noted down."""
    if choices is not None and name in choices:
        return choices[name]
    found = made()
    if choices is not None:
        choices[name] = found
    return found
''',
    "_best": '''
_BEST = 1 << 22  # numbers of pairs that are compared at a time


@torch.no_grad()
def _best(numbers, count, batch, heads, n, m, k_start, device, each=1):
    """The keys, or blocks of keys, with each row's largest numbers; -1 where there are fewer.

    Of equal numbers the first ones count.

    Args:
        numbers: for a slice of rows [batch, heads, rows, m], -inf where keys are not related.
        each: of so many numbers each one is made.
    """
    if not (batch and n and m):
        return torch.full((batch, heads, n, count), -1, device=device)
    most = max(1, _BEST // (batch * heads * m * each))
    position = torch.arange(m, device=device) + k_start
    parts = []
    with torch.autocast(device.type, enabled=False):
        for row in range(0, n, most):
            x = numbers(slice(row, min(row + most, n))).expand(batch, heads, -1, -1)
            x = torch.where(x.isnan(), -torch.inf, x)  # what is no number is never chosen
            least = x.topk(min(count, m), -1).values[..., -1:]
            equal = x == least
            left = count - (x > least).sum(-1, keepdim=True)
            is_chosen = ((x > least) | (equal & (equal.cumsum(-1) <= left))) & (x > -torch.inf)
            place = (is_chosen.cumsum(-1) - 1).masked_fill(~is_chosen, count)
            found = torch.full_like(place[..., :1], -1).repeat(1, 1, 1, count + 1)
            parts.append(found.scatter(-1, place, position.expand(place.shape))[..., :count])
    return torch.cat(parts, 2)
''',
    "_over_groups": '''
def _over_groups(x, heads, kv_heads):
    """Numbers of heads added up where they share a key head, [batch, kv heads, rows, keys]."""
    return x.expand(-1, heads, -1, -1).unflatten(1, (kv_heads, -1)).sum(2)
''',
    "_summed_blocks": '''
def _summed_blocks(x, count, step, overlaps=()):
    """Numbers of keys added up for so many blocks of keys, one for each `step` of them.

    Args:
        overlaps: how much of the numbers counts for a block, first those that reach into it from
            before it; by default all of its own.
    """
    before = max(len(overlaps) - step, 0)
    x = nn.functional.pad(x, (before, count * step - x.shape[-1]))
    if not overlaps:
        return x.unflatten(-1, (count, step)).sum(-1)
    parts = (x[..., at : at + (count - 1) * step + 1 : step] * part for at, part in enumerate(overlaps))
    return sum(parts)
''',
    "_choices_of": '''
def _choices_of(choices, expected, q):
    """A copy of the caller's choices; refused with another name, shape, type or range."""
    choices = {} if choices is None else dict(choices)
    for name, x in choices.items():
        _expect(name in expected, "choices", repr(name), " or ".join(expected))
        shape, low, end = expected[name]
        about = f'choices["{name}"]'
        _expect(isinstance(x, Tensor), about, type(x).__name__, "a tensor")
        _expect(tuple(x.shape) == shape, about, list(x.shape), list(shape))
        _expect(not x.is_floating_point() and x.dtype != torch.bool, about, x.dtype, "whole numbers")
        _expect(x.device == q.device, about, f"on {x.device}", f"the device of the data, {q.device}")
        if end is not None and x.numel() and not _is_shape_only(x) and _at_hand(x):
            fits = ((x >= low) & (x < end)).all()
            if x.device.type != "cpu":
                torch._assert_async(fits)
            elif not fits:
                _expect(False, about, f"{int(x.min())} … {int(x.max())}", f"{low} … {end - 1}")
        choices[name] = x.long()
    return choices
''',
    "_is_among": '''
def _is_among(x, listed):
    """Whether numbers [..., rows or 1, keys] are in lists [..., rows, entries]; below 0 is none."""
    found = x == listed[..., :1]
    for at in range(1, listed.shape[-1]):
        found |= x == listed[..., at : at + 1]
    return found & (x >= 0)
''',
    "_joined": '''
def _joined(x, y):
    """The features of one vector after those of another."""
    shape = torch.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    return torch.cat((x.expand(*shape, -1), y.expand(*shape, -1)), -1)
''',
    "_at_rows": '''
def _at_rows(x, first, starts, n, heads):
    """Something of keys, [batch, kv heads, m, width], for n queries that stand where they do."""
    x = x if x.shape[1] in (1, heads) else x.repeat_interleave(heads // x.shape[1], 1)
    if starts is None:
        return x[:, :, first : first + n]
    at = torch.arange(n, device=x.device)[:, None] + (starts + first)[:, None, None, None]
    at = at.clamp(0, max(x.shape[2] - 1, 0))  # compilers do not see that it lies within
    batch = max(x.shape[0], at.shape[0])
    return x.expand(batch, *x.shape[1:]).gather(2, at.expand(batch, x.shape[1], n, x.shape[3]))
''',
    "_vectors": '''
def _vectors(x, batch, heads, length, dtype):
    """Vectors of tokens with every axis."""
    return x.to(dtype).expand(batch, heads, length, x.shape[-1])
''',
    "_numbers_of": '''
def _numbers_of(x, batch, heads, length, wide, device):
    """Numbers of tokens or distances with every axis, [batch, heads, tokens]."""
    return torch.as_tensor(x, device=device).to(wide).expand(batch, heads, length, 1)[..., 0]
''',
    "_exact_of": '''
def _exact_of(x, batch, heads, length):
    """Whole numbers or truth values with every axis, [batch, heads, tokens], as they are."""
    return x.expand(batch, heads, length, 1)[..., 0]
''',
    "_looked_up": '''
def _looked_up(table, *at):
    """Entries of a table at indices [batch, heads, tokens, 1]: of numbers, vectors or matrices."""
    flat = torch.zeros((1, 1, 1, 1), dtype=torch.int64, device=table.device)
    for index, size in zip(at, table.shape, strict=False):
        index = torch.as_tensor(index, device=table.device).long().clamp(0, size - 1)
        flat = flat * size + index
    entries = table.flatten(0, len(at) - 1)
    shape = entries.shape[1:] or (1,)
    entries, flat = entries.flatten(1) if entries.dim() > 1 else entries[:, None], flat[..., 0]
    if not table.is_floating_point():
        return entries[flat].unflatten(-1, shape)
    return nn.functional.embedding(flat, entries).unflatten(-1, shape)
''',
    "_rotated_half": '''
def _rotated_half(x):
    """(x, y) -> (-y, x) for features t and t + width / 2."""
    first, second = x.unflatten(-1, (2, -1)).unbind(-2)
    return torch.cat((-second, first), -1)
''',
    "_rotated_pairs": '''
def _rotated_pairs(x):
    """(x, y) -> (-y, x) for features 2t and 2t + 1."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-second, first), -1).flatten(-2)
''',
    "_merged": '''
def _merged(*branches):
    """One attention over the pairs of all: outputs, each with the logarithm of the sum of its rows'
    weights, count by these sums."""
    lses = torch.stack([lse for _, lse in branches])
    peak = lses.detach().amax(0)
    peak = peak.masked_fill(peak == -torch.inf, 0)
    shares = (lses - peak).exp()
    total = shares.sum(0)
    shares = shares / torch.where(total == 0, 1, total)
    out = sum(out.to(shares.dtype) * share[..., None] for (out, _), share in zip(branches, shares, strict=True))
    return out, peak + torch.where(total > 0, torch.where(total > 0, total, 1).log(), -torch.inf)
''',
    "_at_hand": '''
def _at_hand(x):
    """Whether numbers can be looked at: not while compilers trace, nor those of vmap."""
    if torch.compiler.is_compiling():
        return False
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            return False
        x = torch._C._functorch.get_unwrapped(x)
    return True
''',
    "_within": '''
def _within(index, size, name, text, axis, distance=None, low=0, high=0):
    """Refuse an index outside its axis; of distances, those low … high are met."""
    if not isinstance(index, Tensor) or index.numel() == 0 or not _at_hand(index):
        return
    if distance is not None:  # the last one is never met
        met = (distance >= low) & (distance <= high)
        index = torch.where(met, index, 0)[..., :-1, :]
    _expect_within(index, size, name, text, axis)
''',
    "_pairs_within": '''
def _pairs_within(index_of, related, rows, keys, hidden, call, size, name, text, axis):
    """Refuse an index outside its axis at a related pair.

    `rows` and `keys` are what it and the pattern are made of, [batch or 1, heads or 1, tokens, 1], positions first.
    """
    if not all(map(_at_hand, (*rows, *keys))):
        return
    keys = [x.transpose(2, 3) for x in keys]
    for row in range(0, rows[0].shape[2], 256):
        block = [x[:, :, row : row + 256] for x in rows]
        met = related(block, keys, call)
        if hidden is not None:
            met = met & ~hidden.transpose(2, 3)
        _expect_within(torch.where(met, index_of(*block, *keys), 0), size, name, text, axis)
''',
    "_expect_within": """
def _expect_within(index, size, name, text, axis):
    if index.numel() == 0:
        return
    if not index.device.type == "cpu":
        torch._assert_async(((index >= 0) & (index < size)).all())
        return
    low, high = int(index.min()), int(index.max())
    expected = f"0 … {size - 1}, the entries along axis {axis}"
    _expect(0 <= low and high < size, f"index `{text}` of {name}", f"{low} … {high}", expected)
""",
    "_by_key": '''
def _by_key(x, chunk, shape):
    """[batch, kv heads, m] -> the chunk's [batch, heads, 1, keys], each by its key head."""
    return x[:, :, None, chunk.keys].repeat_interleave(shape[1] // x.shape[1], 1)
''',
    "_of_heads": '''
def _of_heads(x, heads):
    """Something of each key head for every query head; no copy where these are as many."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)
''',
    "_facts_of_heads": '''
def _facts_of_heads(x, heads):
    """What a pattern asks of a key of each key head, for every query head."""
    return x if x.shape[1] in (1, heads) else x.repeat_interleave(heads // x.shape[1], 1)
''',
    "_of_keys": '''
def _of_keys(x, keys):
    """Pairs [batch, heads, rows, keys] -> sums for each key, [batch, kv heads, keys]."""
    return x.sum(-2).unflatten(1, (keys.shape[1], -1)).sum(2)
''',
    "_by_distance": '''
def _by_distance(x, slab, chunk, work=None):
    """Numbers of distances [batch, heads, n + m] for every pair of a slab and a chunk.

    In a workspace they have all axes; else those that they are the same for may be 1.
    """
    rows = slab.last - slab.first + 1
    first = slab.row - chunk.keys.stop + slab.keys  # of the first row and the last key
    met = x[..., first : first + rows + chunk.count - 1].flip(-1).unfold(-1, chunk.count, 1)
    last_row_first = torch.arange(rows - 1, -1, -1, device=x.device)
    if work is None:
        return met.index_select(-2, last_row_first)
    shape = (*slab.shape, chunk.count)
    out = work[: math.prod(shape)].view(shape)
    return torch.index_select(met.expand(shape), -2, last_row_first, out=out)
''',
    "_product_onto": '''
def _product_onto(rows, keys, out, factor=1):
    """Scores of folded rows and keys, times a factor, added to a tile."""
    flat = out.view(*rows.shape[:2], keys.shape[1])
    torch.baddbmm(flat, rows, keys.mT, alpha=factor, out=flat)
    return out
''',
    "_add_diagonals": '''
def _add_diagonals(total, x, slab, chunk):
    """Add up pairs [batch, heads, rows, keys] of a slab and a chunk along their distances."""
    batch, heads, rows, keys = x.shape
    count = rows + keys - 1
    if rows > 1 and x.stride(2) != count:
        x = _tilted(x.shape[:3], keys, x).copy_(x)
    strides = (*x.stride()[:2], count + 1, 1)
    sums = x.as_strided((batch, heads, rows, count), strides, x.storage_offset() - rows + 1).sum(2)
    if total.shape[0] < batch:
        sums = sums.sum(0, keepdim=True)
    first = slab.row - chunk.keys.stop + slab.keys
    total[..., first : first + count].add_(sums.flip(-1))
''',
    "_tilted": '''
def _tilted(shape, keys, like):
    """Room for a tile of pairs of which sums along diagonals are wanted.

    Between rows there are zeros, as many as there are rows less one: in rows of one more number
    than there are diagonals, a diagonal is a column.
    """
    batch, heads, rows = shape
    count = rows + keys - 1
    room = like.new_empty(batch, heads, (rows + 1) * count)
    strides = (*room.stride()[:2], count, 1)
    room.as_strided((batch, heads, rows + 1, rows - 1), strides).zero_()
    return room.as_strided((batch, heads, rows, keys), strides, rows - 1)
''',
    "_at_distances": '''
def _at_distances(x, row, place, m):
    """Numbers of distances [batch, heads, n + m] for rows and keys [batch, blocks, …]."""
    at = (row[..., None] - place[..., None, :] + m - 1).clamp(0, x.shape[2] - 1)[:, None]
    entry = torch.arange(x.shape[0], device=x.device)[:, None, None, None, None]
    head = torch.arange(x.shape[1], device=x.device)[:, None, None, None]
    return x[entry, head, at]
''',
    "_at": '''
def _at(table, *at):
    """Indices of a table, kept within its axes: pairs that are not related may lie outside."""
    at = (torch.as_tensor(x, device=table.device).long() for x in at)
    return tuple(x.clamp(0, size - 1) for x, size in zip(at, table.shape, strict=True))
''',
    "_picked": '''
def _picked(table, *at):
    """The entries of a table at indices that are the same for all pairs, or differ between them."""
    return table[_at(table, *at)]
''',
    "_add_entries": '''
def _add_entries(total, x, *at):
    """Add up pairs [batch, heads, rows, keys] that read the same entry of a table."""
    places = torch.zeros((1, 1, 1, 1), dtype=torch.int64, device=x.device)
    for index, size in zip(_at(total, *at), total.shape, strict=True):
        places = places * size + index
    alike = [axis for axis in range(4) if places.shape[axis] == 1]
    x = x.sum(alike, keepdim=True) if alike else x
    places, x = places.expand(x.shape).reshape(-1), x.reshape(-1)
    flat = total.view(-1)
    if x.is_cuda:  # in an order of its own, but the same each time
        flat.index_put_((places,), x, accumulate=True)
    else:
        flat.index_add_(0, places, x)
''',
    "_batch_entries": '''
def _batch_entries(table, axes):
    """The batch entries of a table, along the first of so many axes."""
    return torch.arange(table.shape[0], device=table.device).view(-1, *(1,) * (axes - 1))
''',
    "_channels_of_rows": '''
def _channels_of_rows(x, shape):
    """Folded vectors of rows -> [width, batch, heads, rows, 1]."""
    return x.view(*shape, -1).movedim(-1, 0).contiguous()[..., None]
''',
    "_channels_of_keys": '''
def _channels_of_keys(x, chunk, shape, dtype):
    """Vectors of keys -> the chunk's [width, batch, heads, 1, keys]."""
    x = x[:, :, chunk.keys].to(dtype).movedim(-1, 0).contiguous()
    return x.repeat_interleave(shape[1] // x.shape[2], 2)[..., None, :]
''',
}


def library(used: frozenset[str]) -> str:
    """The text of the helpers in `used`, in a fixed order."""
    if used & {"_picked", "_add_entries"}:
        used |= {"_at"}
    if used & {"_within", "_pairs_within"}:
        used |= {"_at_hand", "_expect_within"}
    if used & {"_expect_ascending", "_choices_of"}:
        used |= {"_at_hand"}
    if "_add_diagonals" in used:
        used |= {"_tilted"}
    return "\n".join(OPTIONAL[name] for name in OPTIONAL if name in used)
