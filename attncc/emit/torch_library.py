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
    "_entry": '''
def _entry(values, at):
    """The constants of a list at one index or at a tensor of them."""
    if not isinstance(at, Tensor):
        return values[int(at)]
    dtype = torch.int64 if all(isinstance(x, int) for x in values) else torch.float64
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
}


def library(used: frozenset[str]) -> str:
    """The text of the helpers in `used`, in a fixed order."""
    return "\n".join(OPTIONAL[name] for name in OPTIONAL if name in used)
