"""What launches of pieces need beside those of a whole pattern, as text: where classes lie, copies, small tiles."""

from __future__ import annotations

# What is otherwise where tiles of rows may have to be small, in the order of the text.
WITH_LISTS = (
    ("def _tuned(kernel, name, element_size, width):", "def _tuned(kernel, name, element_size, width, most_rows):"),
    ('{"BLOCK_M": 32, "BLOCK_N": 16}', '{"BLOCK_M": min(32, most_rows), "BLOCK_N": 16}'),
    (
        """\
            triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
            for rows, columns, warps, stages in _TILES[name, element_size, width]
        ]
""",
        """\
            triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
            for rows, columns, warps, stages in _tiles(name, element_size, width, most_rows)
        ]
""",
    ),
    (
        """\
@functools.cache
def _tuned(""",
        '''\
def _tiles(name, element_size, width, most_rows):
    """What a kernel tries, with at most so many rows in a tile."""
    tiles = _TILES[name, element_size, width]
    if most_rows < 256:
        tiles = [(min(rows, most_rows), columns, min(warps, 4), stages) for rows, columns, warps, stages in tiles]
    return list(dict.fromkeys(tiles))


@functools.cache
def _tuned(''',
    ),
    (
        "    period, width, start = strips\n",
        "    period, width, start, first, stop = strips\n    position = position.clamp(first, stop)\n",
    ),
    ("            period, width, offset = strips\n", "            period, width, offset, *_ = strips\n"),
    (
        """\
def _classes_of(""",
        '''\
def _listed(classes, n, q_start, q_starts):
    """The most rows of a list that a call of so many rows can have."""
    if q_starts is not None:  # where its rows stand, the device knows
        return n
    lists = [rows for part in classes for rows, _ in part]
    return max(rows.below(q_start + n) - rows.below(q_start) for rows in lists)


def _classes_of(''',
    ),
)

TUNED_IN_PIECES = """\
    added = [name for name in (<ADDED>,) if name in kernel.arg_names]  # read and written by each run
    prune = {"early_config_prune": _prune}
    return triton.autotune(configs, key=key, prune_configs_by=prune, restore_value=added)(kernel)
"""

LAUNCH_IN_PIECES = '''

def _grid(length, block, heads, batch, classes=1):
    """One program for every tile of each class of an axis, every head and every batch entry."""
    return lambda meta: (_cdiv(length, meta[block]) * classes, heads, batch)
'''

ROOM = '''

def _gradient_room(x, adds):
    """Room for a gradient, or for several kernels that add to it."""
    return x.new_zeros(x.shape, dtype=_wide(x.dtype)) if adds else x.new_empty(x.shape)
'''

CLASSES = '''

def _longest(classes, axis, length):
    """The most rows (axis 0) or keys (axis 1) that a class can have, of so many."""
    strips = {each[axis] for part in classes for each in part}  # wherever the first token stands
    return max(length // x.period * x.width + min(length % x.period, x.width) for x in strips)


def _classes_of(classes, parts, n, m, k_start, starts, lengths):
    """Where the tokens of each class lie, [parts, batch, classes, 8].

    The place, step, first coordinate and count of its rows, then of its keys. Tokens on wider
    strips lie side by side in copies, class after class.
    """
    found = starts.new_zeros(parts, len(starts), max(map(len, classes)), 8)
    for part, own in zip(found, classes, strict=False):
        rows, keys = (torch.tensor(each, device=starts.device).mT for each in zip(*own, strict=True))
        start, key = starts[:, None], torch.full_like(starts[:, None], k_start)
        for at, (strips, first, total, seen) in enumerate(
            ((rows, start, n, n), (keys, key, m, lengths[:, None]))
        ):
            period, width, offset = strips
            origin = _below(first, strips)
            place = period * (origin // width) + offset + origin % width - first
            copied = (width > 1) & (width < period)
            counts = _below(first + total, strips) - origin
            part[:, : len(own), 4 * at] = torch.where(copied, counts.cumsum(1) - counts, place)
            part[:, : len(own), 4 * at + 1] = torch.where(copied, 1, period // width)
            part[:, : len(own), 4 * at + 2] = origin
            part[:, : len(own), 4 * at + 3] = _below(first + seen, strips) - origin
    return found


def _below(position, strips):
    """How many of the positions of each class, from 0 on, lie before one."""
    period, width, start = strips
    return width * (position // period) + (position % period - start).clamp(min=0).minimum(width)
'''

SIDE_BY_SIDE = '''

def _side_by_side(classes, k_start, m, device):
    """The places of keys on strips, class after class."""
    found = []
    for _, keys in classes:
        first, stop = keys.below(k_start), keys.below(k_start + m)
        found.append(keys.places(first, stop, k_start, device))
    return torch.cat(found)
'''

BY_CLASS = '''

def _by_class(classes, starts, n):
    """The rows of every batch entry class by class, and then those that are in none, [batch, n]."""
    strips = classes[0][0]
    position = starts[:, None] + torch.arange(n, device=starts.device)
    return ((position - strips.start) % strips.period // strips.width).argsort(stable=True)


def _taken(x, rows):
    """Numbers or vectors of rows, [batch, heads, n, ...], in another order."""
    return x.gather(2, _spread_order(rows, x))


def _put_back(x, taken, rows):
    """Write what was taken in another order where it came from."""
    x.scatter_(2, _spread_order(rows, x), taken)


def _spread_order(rows, x):
    return rows.view(rows.shape[0], 1, -1, *(1,) * (x.dim() - 3)).expand(x.shape)
'''
