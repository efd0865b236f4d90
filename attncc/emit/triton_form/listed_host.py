"""What the host does for kernels that walk lists of tiles, as text: lists by rows and by keys, tokens in order."""

from __future__ import annotations

LISTED = '''

def _begins(counts):
    """Where lists begin that stand one after the other, and where the last one ends."""
    return nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)


def _lists_by_row(lists):
    """The tiles of keys that each tile of rows meets, as kernels take them."""
    return _begins(lists.counts), lists.met.to(torch.int32)


def _lists_by_key(lists):
    """The tiles of rows that meet each tile of keys."""
    tiles, most_keys = lists.rows.shape[1], lists.keys.shape[1]
    number = torch.arange(len(lists.counts), device=lists.met.device)
    row = number.repeat_interleave(lists.counts, output_size=len(lists.met))
    key = row // tiles * most_keys + lists.met
    counts = torch.bincount(key, minlength=len(lists.keys) * most_keys)
    return _begins(counts), (row % tiles)[key.argsort(stable=True)].to(torch.int32)


def _asked(x, places, batch, heads):
    """What the pattern asks of tokens, [entries, tokens], in the order of lists if there is one."""
    x = _of_entries(x, batch, heads)
    if places is not None and x.shape[1]:
        x = x.gather(1, places.clamp(max=x.shape[1] - 1))
    return x.contiguous()


def _listed_tokens(x, places):
    """What tokens have, [batch, heads, tokens, ...], in the order of lists; 0 where there is none.

    `places` is [entries, slots]; where each query head has its own, so has what is returned.
    """
    places = places.unflatten(0, (len(x), -1))  # [batch, heads or 1, slots]
    heads = max(x.shape[1], places.shape[1])
    if not x.shape[2]:
        return x.new_zeros(len(x), heads, places.shape[2], *x.shape[3:])
    batch = torch.arange(len(x), device=x.device)[:, None, None]
    head = torch.arange(heads, device=x.device)[:, None] // (heads // x.shape[1])
    found = x[batch, head, places.clamp(max=x.shape[2] - 1)]
    hidden = (places >= x.shape[2]).view(*places.shape, *(1,) * (x.dim() - 3))
    return found.masked_fill_(hidden, 0)


def _slots(places, tokens):
    """Where tokens stand in the order of lists: beyond its end where they do not."""
    slots = places.new_full((len(places), tokens + 1), places.shape[1])
    order = torch.arange(places.shape[1], device=places.device).expand_as(places)
    return slots.scatter_(1, places, order)[:, :tokens]
'''

WITH_FULL = '''

def _with_full(lists):
    """Lists that name also the tiles of keys that all rows of a tile see: kernels mask these too."""
    low, high = lists.full
    tiles, number = lists.keys.shape[1], torch.arange(len(lists.counts), device=lists.met.device)
    row = number.repeat_interleave(lists.counts, output_size=len(lists.met))
    full = _codes(number, low * _KEYS, high * _KEYS, tiles)
    codes = torch.cat([row * tiles + lists.met, full]).sort().values
    counts = torch.bincount(codes // tiles, minlength=len(number))
    return lists._replace(counts=counts, met=codes % tiles)
'''

ASKED_LISTS = '''

def _asked_lists(x, places, batch, heads):
    """The lists of rows in the order of tiles, [entries, entries of a list, slots]."""
    x = _of_entries(x, batch, heads)
    if not x.shape[1]:
        return x.new_full((len(x), x.shape[2], places.shape[1]), -1, dtype=torch.int32)
    x = x.gather(1, places.clamp(max=x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2]))
    return x.clamp(-1, 2**31 - 1).mT.to(torch.int32).contiguous()
'''

OVER_GROUP = '''

def _over_group(x, like):
    """Gradients of each query head's own keys, added up for those that share keys."""
    return x.unflatten(1, (like.shape[1], -1)).sum(2).to(like.dtype)
'''
