"""Functions that modules of layers call along a sequence, on maps, and for norms over a batch.

What works token by token has a second form, `…_step`, which takes what is kept of the tokens before, or None before the
first one, and gives what to keep.
"""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "_moved": '''
def _moved(x, axis, by):
    """What stood `by` places before, 0 at the first places."""
    length = x.shape[axis]
    kept = x.narrow(axis, 0, max(length - by, 0))
    return torch.cat((torch.zeros_like(x.narrow(axis, 0, min(by, length))), kept), axis)
''',
    "_moved_step": '''
def _moved_step(x, axis, by, kept):
    """The same after other tokens, of which the last ones are kept."""
    if kept is None:
        kept = _moved(torch.zeros_like(x.narrow(axis, 0, 1)).repeat_interleave(by, axis), axis, by)
    x = torch.cat((kept, x), axis)
    return x.narrow(axis, 0, x.shape[axis] - by), x.narrow(axis, x.shape[axis] - by, by).clone()
''',
    "_margins": '''
def _margins(length, width, stride, before):
    """How many zeros a convolution needs before and after, for one entry for each stride."""
    before = max((width - stride) // 2, 0) if before is None else before
    return before, (-(-length // stride) - 1) * stride + width - before - length
''',
    "_convolved": '''
def _convolved(x, kernel, stride, before, lengths):
    """Entry c is the sum of x[c * stride - before + t] @ kernel[t]; outside and in padding stand zeros."""
    if not x.shape[-2]:
        return x.new_zeros(*x.shape[:-1], kernel.shape[-1])
    x = _without_padding(x, -2, lengths)
    x = functional.pad(x, (0, 0, *_margins(x.shape[-2], kernel.shape[-3], stride, before)))
    found = functional.conv1d(x.flatten(0, -3).mT, kernel.permute(2, 1, 0), stride=stride)
    return found.mT.unflatten(0, x.shape[:-2])
''',
    "_convolved_step": '''
def _convolved_step(x, kernel, stride, before, lengths, kept):
    """The same for tokens after others, of which the last ones are kept, and for strides that have ended."""
    x, count, kept = _with_earlier(x, kernel.shape[-3], stride, before, kept)
    if not count:
        return x.new_zeros(*x.shape[:-2], 0, kernel.shape[-1]), kept
    return _convolved(x, kernel, stride, 0, None)[..., :count, :], kept
''',
    "_convolved_apart": '''
def _convolved_apart(x, kernel, stride, before, lengths):
    """The same with a number for each feature: kernel is [width, d], or [heads, width, d] for heads of x."""
    if not x.shape[-2]:
        return x
    x = _without_padding(x, -2, lengths)
    x = functional.pad(x, (0, 0, *_margins(x.shape[-2], kernel.shape[-2], stride, before))).mT
    kernel = kernel.mT.expand(*x.shape[1:-1], -1).reshape(-1, 1, kernel.shape[-2])
    found = functional.conv1d(x.flatten(1, -2), kernel, stride=stride, groups=len(kernel))
    return found.unflatten(1, x.shape[1:-1]).mT
''',
    "_convolved_apart_step": '''
def _convolved_apart_step(x, kernel, stride, before, lengths, kept):
    """The same for tokens after others, of which the last ones are kept, and for strides that have ended."""
    x, count, kept = _with_earlier(x, kernel.shape[-2], stride, before, kept)
    if not count:
        return x[..., :0, :], kept
    return _convolved_apart(x, kernel, stride, 0, None)[..., :count, :], kept
''',
    "_with_earlier": '''
def _with_earlier(x, width, stride, before, kept):
    """The tokens that new entries read, how many of these there are, and what to keep for those to come."""
    before = max((width - stride) // 2, 0) if before is None else before
    kept = x.new_zeros(*x.shape[:-2], before, x.shape[-1]) if kept is None else kept
    x = torch.cat((kept, x), -2)
    count = (x.shape[-2] - before) // stride
    return x[..., : max((count - 1) * stride + width, 0), :], count, x[..., count * stride :, :].clone()
''',
    "_pool_step": '''
def _pool_step(x, axis, by, lengths, kept):
    """The same for tokens after others, and for blocks that have ended."""
    x, kept = _ended(x, axis, by, kept)
    return _pool(x, axis, by, None), kept
''',
    "_block_largest_step": '''
def _block_largest_step(x, axis, by, lengths, kept):
    """The same for tokens after others, and for blocks that have ended."""
    x, kept = _ended(x, axis, by, kept)
    return _block_largest(x, axis, by, None), kept
''',
    "_ended": '''
def _ended(x, axis, by, kept):
    """The tokens of blocks that have ended, and those of one that has not, which are kept."""
    x = x if kept is None else torch.cat((kept, x), axis)
    whole = x.shape[axis] // by * by
    return x.narrow(axis, 0, whole), x.narrow(axis, whole, x.shape[axis] - whole).clone()
''',
    "_with_blocks": '''
def _with_blocks(values, places, kept):
    """What a core is called with, where new keys follow those of earlier blocks, and all of them, to be kept."""
    values = list(values)
    for at, (place, axis) in enumerate(places):
        values[place] = torch.cat((kept[at], values[place]), axis) if kept else values[place]
    return values, tuple(values[place] for place, _ in places)
''',
    "_running_sum": '''
def _running_sum(x):
    """The sum of each token and those before it, in 32 bits or more."""
    return _running_sum_step(x, None)[0]
''',
    "_running_mean": '''
def _running_mean(x, start):
    """The mean of each token and those before it."""
    return _running_mean_step(x, start, None)[0]
''',
    "_running_sum_step": '''
def _running_sum_step(x, kept):
    """The same after other tokens, whose sum is kept."""
    total = _totals(x, kept)
    return total.to(x.dtype), total[..., -1:, :].clone()
''',
    "_running_mean_step": '''
def _running_mean_step(x, start, kept):
    """The same after other tokens, whose sum is kept."""
    total = _totals(x, kept)
    counts = torch.arange(start + 1, start + x.shape[-2] + 1, device=x.device, dtype=total.dtype)
    return (total / counts[:, None]).to(x.dtype), total[..., -1:, :].clone()
''',
    "_totals": """
def _totals(x, kept):
    total = x.to(torch.promote_types(x.dtype, torch.float32)).cumsum(-2)
    return total if kept is None else total + kept
""",
    "_averaged": '''
def _averaged(x, decays, gains, lengths):
    """The sum over s of gains[c, s] * h[c, s], where h = decays[c, s] * (h of the token before) + x[c]."""
    return _averages(x, decays, gains, lengths, None, torch.compiler.is_compiling())[0]
''',
    "_averaged_back": '''
def _averaged_back(x, decays, gains, lengths):
    """The same from the last token to the first."""
    x = _without_padding(x, -2, lengths)
    return _averaged(x.flip(-2), decays, gains, None).flip(-2)
''',
    "_averaged_step": '''
def _averaged_step(x, decays, gains, lengths, kept):
    """The same after other tokens, whose h is kept: [batch, d, s]."""
    out, last, before = _averages(x, decays, gains, lengths, kept, False)
    if not x.shape[-2]:
        return out, kept
    decays, left = decays.to(last.dtype), (x.shape[-2] - 1) % last.shape[-1] + 1
    powers = decays[..., None] ** torch.arange(left - 1, -1, -1, device=x.device)
    return out, (last[..., :left] @ powers.mT)[..., 0, :] + decays**left * before
''',
    "_averages": '''
def _averages(x, decays, gains, lengths, kept, any_length):
    """The averages, the tokens of the last block, and h before them.

    Within a block of tokens it is a product with powers of the decays, and h goes from block to block; nothing is
    divided by a power. Numbers have 32 bits or more. With `any_length` the steps are the same for all lengths, and two
    blocks more stand behind, for a compiler takes an axis of length 1 for another program.
    """
    series = _without_padding(x, -2, lengths).to(torch.promote_types(x.dtype, torch.float32)).mT
    decays, gains = decays.to(series.dtype), gains.to(series.dtype)
    length = series.shape[-1]
    size = 64 if any_length else max(min(64, length), 1)
    count = -(-length // size) + 2 * any_length
    blocks = functional.pad(series, (0, count * size - length)).unflatten(-1, (count, size))
    times = torch.arange(size, device=x.device)
    lags = times - times[:, None]
    powers = decays[..., None] ** times
    kernel = (gains[..., None] * powers).sum(-2)
    out = blocks @ kernel[:, lags.clamp(min=0)].masked_fill(lags < 0, 0)
    scanned = functools.partial(_scanned_anyhow, levels=2) if any_length else _scanned
    ends = scanned((blocks @ powers.flip(-1).mT).mT, decays**size)
    before = functional.pad(ends[..., :-1], (1, 0))
    if kept is not None:
        firsts = torch.arange(before.shape[-1], device=x.device) * size
        before = before + decays[..., None] ** firsts * kept[..., None]
    out = out + before.mT @ ((gains * decays)[..., None] * powers)
    return out.flatten(-2)[..., :length].mT.to(x.dtype), blocks[..., -1:, :], before[..., -1]
''',
    "_scanned": '''
def _scanned(x, decays):
    """h[t] = decays * h[t - 1] + x[t] along the last axis, in steps that double."""
    step = 1
    while step < x.shape[-1]:
        x = x + decays[..., None] ** step * functional.pad(x[..., :-step], (step, 0))
        step *= 2
    return x
''',
    "_scanned_anyhow": '''
def _scanned_anyhow(x, decays, levels):
    """The same for any length by the same steps: within blocks, then over their ends, and pair by pair in the end."""
    if not levels:
        times = torch.arange(x.shape[-1], device=x.device)
        lags = times[:, None] - times
        powers = (decays[..., None, None] ** lags.clamp(min=0)).masked_fill(lags < 0, 0)
        return (powers @ x[..., None])[..., 0]
    length, size = x.shape[-1], 16
    count = -(-length // size) + 2
    blocks = functional.pad(x, (0, count * size - length)).unflatten(-1, (count, size))
    for step in (1, 2, 4, 8):
        earlier = functional.pad(blocks[..., :-step], (step, 0))
        blocks = blocks + decays[..., None, None] ** step * earlier
    ends = _scanned_anyhow(blocks[..., -1], decays**size, levels - 1)
    before = functional.pad(ends[..., :-1], (1, 0))
    times = torch.arange(1, size + 1, device=x.device)
    found = blocks + before[..., None] * decays[..., None, None] ** times
    return found.flatten(-2)[..., :length]
''',
    "_sinusoids": '''
def _sinusoids(x, base, start, closed):
    """Sines and cosines of the tokens' positions, [n, width]."""
    cos, sin = _angles(x, base, start, closed)
    return torch.cat((sin, cos), -1).to(x.dtype)
''',
    "_block_largest": '''
def _block_largest(x, axis, by, lengths):
    """The largest of blocks of `by` neighbours, padding left out; 0 where there is nothing."""
    least = torch.finfo(x.dtype).min
    there = torch.ones_like(x, dtype=torch.bool)
    if lengths is not None:
        there = there & ~_padding(x, axis, lengths)
    x, there = x.masked_fill(~there, least).movedim(axis, -1), there.movedim(axis, -1)
    more, blocks = (0, -x.shape[-1] % by), (-(-x.shape[-1] // by), by)
    largest = functional.pad(x, more, value=least).unflatten(-1, blocks).amax(-1)
    held = functional.pad(there, more).unflatten(-1, blocks).any(-1)
    return largest.masked_fill(~held, 0).movedim(-1, axis)
''',
    "_unpool": '''
def _unpool(x, axis, by, length):
    """Each entry `by` times along an axis, `length` in all."""
    return x.repeat_interleave(by, axis).narrow(axis, 0, length)
''',
    "_segment_means": '''
def _segment_means(x, count, lengths, epsilon=0.0):
    """Means of `count` segments that end with the last token, over what is no padding; 0 where there is nothing."""
    x = _without_padding(x, -2, lengths)
    length = x.shape[-2]
    size = -(-length // count)
    lead = size * count - length
    total = functional.pad(x, (0, 0, lead, 0)).unflatten(-2, (count, size)).sum(-2)
    places = torch.arange(-lead, length, device=x.device)
    there = places >= 0
    if lengths is not None:
        there = (there & (places < lengths[:, None])).view(-1, *[1] * (x.dim() - 3), size * count)
    held = there.unflatten(-1, (count, size)).sum(-1).clamp(min=1)
    return total / (held[..., None].to(x.dtype) + epsilon)
''',
    "_present": '''
def _present(x, lengths):
    """1 for each token, 0 for padding, [batch, n, 1]."""
    return _without_padding(x.new_ones(x.shape[0], x.shape[-2], 1), -2, lengths)
''',
    "_convolved_map": '''
def _convolved_map(x, kernel, stride, rows, columns):
    """Convolution of maps [batch, features, rows, columns]; around and in padding stand zeros."""
    if not x.shape[-2] * x.shape[-1]:
        return x.new_zeros(x.shape[0], len(kernel), *(-(-length // stride) for length in x.shape[-2:]))
    x = _without_padding(_without_padding(x, -2, rows), -1, columns)
    above, below = _margins(x.shape[-2], kernel.shape[-2], stride, None)
    left, right = _margins(x.shape[-1], kernel.shape[-1], stride, None)
    return functional.conv2d(functional.pad(x, (left, right, above, below)), kernel, stride=stride)
''',
    "_batch_norm": '''
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
''',
}
CALLS: dict[str, tuple[str, ...]] = {
    "_moved_step": ("_moved",),
    "_convolved": ("_without_padding", "_margins"),
    "_convolved_step": ("_convolved", "_with_earlier"),
    "_pool_step": ("_pool", "_ended"),
    "_block_largest_step": ("_block_largest", "_ended"),
    "_convolved_apart": ("_without_padding", "_margins"),
    "_convolved_apart_step": ("_convolved_apart", "_with_earlier"),
    "_running_sum": ("_running_sum_step",),
    "_running_mean": ("_running_mean_step",),
    "_running_sum_step": ("_totals",),
    "_running_mean_step": ("_totals",),
    "_averaged": ("_averages",),
    "_averaged_back": ("_averaged", "_without_padding"),
    "_averaged_step": ("_averages",),
    "_averages": ("_scanned", "_scanned_anyhow", "_without_padding"),
    "_sinusoids": ("_angles",),
    "_block_largest": ("_padding",),
    "_segment_means": ("_without_padding",),
    "_present": ("_without_padding",),
    "_convolved_map": ("_without_padding", "_margins"),
    "_batch_norm": ("_padding",),
}
