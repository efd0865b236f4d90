"""How the host runs kernels of sums, as text: room for sums, what launches are told, and which tiles there are."""

from __future__ import annotations

# What is otherwise in the functions that tune and launch, where kernels may leave full tiles to sums.
WITH_SUMS = (
    (
        """\
    if triton.knobs.runtime.interpret:
        configs = [triton.Config({"BLOCK_M": 32, "BLOCK_N": 16})]
    else:
        configs = [
            triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
            for rows, columns, warps, stages in _TILES[name, element_size, width]
        ]
""",
        """\
    configs = [
        triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in _tiles(name, element_size, width, by_states)
    ]
""",
    ),
    (
        """\
    if triton.knobs.runtime.interpret:
        configs = [triton.Config({"BLOCK_M": min(32, most_rows), "BLOCK_N": 16})]
    else:
        configs = [
            triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
            for rows, columns, warps, stages in _tiles(name, element_size, width, most_rows)
        ]
""",
        """\
    configs = [
        triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in _tiles(name, element_size, width, by_states, most_rows)
    ]
""",
    ),
    (
        '''\
def _tiles(name, element_size, width, most_rows):
    """What a kernel tries, with at most so many rows in a tile."""
    tiles = _TILES[name, element_size, width]
''',
        '''\
def _tiles(name, element_size, width, by_states, most_rows=256):
    """What a kernel tries, with at most so many rows in a tile; sums are made for one choice."""
    if triton.knobs.runtime.interpret:
        return [(min(32, most_rows), 16, 4, 1)]
    tiles = [_CHUNKS[name, element_size, width]] if by_states else _TILES[name, element_size, width]
''',
    ),
    (
        "def _tuned(kernel, name, element_size, width, most_rows):",
        "def _tuned(kernel, name, element_size, width, by_states, most_rows):",
    ),
    ("def _tuned(kernel, name, element_size, width):", "def _tuned(kernel, name, element_size, width, by_states):"),
)

PLAIN_TILES = '''

def _tiles(name, element_size, width, by_states):
    """What a kernel tries; sums are made for one choice."""
    if triton.knobs.runtime.interpret:
        return [(32, 16, 4, 1)]
    return [_CHUNKS[name, element_size, width]] if by_states else _TILES[name, element_size, width]


@functools.cache
def _tuned('''

SUMS = '''

_MOST_SUMS = 1 << 26  # numbers: sums for several factors are made for some channels at a time
_LEAST_PRODUCTS = 1 << 31  # that a pass by sums has to save: what its launches cost


class _Room(NamedTuple):
    """Room for the sums of one term, and what launches are told of it."""

    term: int
    widths: tuple  # of its factors
    group: int  # the first channel of its first factor, where it has several
    span: int  # how many of these
    tiles: int  # for which there are sums
    others: int  # that are summed
    blocks: dict  # BLOCK_M and so on
    sums: Tensor  # [heads and parts, tiles, features, values]
    plain: Tensor  # [heads and parts, tiles, features]
    kept: Tensor  # the same for each of `others`
    plain_kept: Tensor

    @property
    def leads(self):
        """The choices of a channel of each factor but the last."""
        return math.prod(self.widths[1:-1]) * (self.span if len(self.widths) > 1 else 1)

    @property
    def programs(self):
        """Blocks of features and of values."""
        return math.prod(self.sums.shape[-2:]) // (self.blocks["BLOCK_W"] * self.blocks["BLOCK_E"])

    @property
    def value_blocks(self):
        return self.sums.shape[-1] // self.blocks["BLOCK_E"]

    def choices(self, factor):
        """Of a channel of each factor but one."""
        widths = (self.span, *self.widths[1:]) if len(self.widths) > 1 else self.widths
        return math.prod(width for at, width in enumerate(widths) if at != factor % len(widths))


def _chunk(name, <ARGUMENTS><MOST_ROWS>):
    """The tile of a kernel that leaves full tiles to sums."""
    <NAMES> = <SIZES>
    width = max(64, <BLOCKS_OF>)
    if _in_c(<ROWS>):
        return _c_tile(width, <EDGE>, <ROWS>.shape[2]<THE_MOST>)
    return _tiles(name, <ROWS>.element_size(), width, True<THE_MOST>)[0]


def _rooms(tile, rows_fixed, n, m, parts, slides, <ARGUMENTS>):
    """Room for the sums of every term, one after the other, of so many heads and parts."""
    <TERM_NAMES> = <TERM_SIZES>
    rows, columns = tile[:2]
    tiles, others = _cdiv(n, rows), _cdiv(m, columns)
    tiles, others = (tiles, others) if rows_fixed else (others, tiles)
    kind = {"device": <ROWS>.device, "dtype": _wide(<ROWS>.dtype)}
    for term, widths in enumerate(<TERMS>):
        last = widths[-1] if widths else 1
        blocks = {"BLOCK_W": min(64, _block(last)), "BLOCK_E": min(64, _block(e))}
        blocks |= {"BLOCK_M": rows, "BLOCK_N": columns}
        values = _cdiv(e, blocks["BLOCK_E"]) * blocks["BLOCK_E"]
        padded = _cdiv(last, blocks["BLOCK_W"]) * blocks["BLOCK_W"]
        of_channel = max(1, parts * tiles * math.prod(widths[1:-1]) * padded * values)
        first = widths[0] if len(widths) > 1 else 1
        span = min(first, max(16, _MOST_SUMS // of_channel))
        for group in range(0, first, span):
            own = min(span, first - group)
            features = math.prod(widths[1:-1]) * own * padded
            kept = others if slides else 0
            yield _Room(
                term, widths, group, own, tiles, others, blocks,
                torch.empty(parts, tiles, features, values, **kind),
                torch.empty(parts, tiles, features, **kind),
                torch.empty(parts, kept, features, values, **kind),
                torch.empty(parts, kept, features, **kind),
            )  # fmt: skip


def _runs_of(kernel, tile, count, heads, batch, classes, segments, *arguments):
    """The runs that tiles see as a whole, [batch, heads or 1, classes, segments, tiles, 2]."""
    starts = arguments[0]
    runs = starts.new_zeros(batch, heads, classes, segments, count, 2)
    blocks = {"BLOCK_M": tile[0], "BLOCK_N": tile[1]}
    _for(kernel, starts)[(count * classes, heads, batch)](runs, *arguments, **blocks, num_warps=1)
    return runs


def _launch_sums(kernel, grid, each, factor, <ARGUMENTS>, *arguments):
    """Run a kernel of sums for one term, of which it meets one factor in blocks of channels."""
    <NAMES> = <SIZES>
    exact = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    wide = "ieee" if torch.version.hip is not None else "tf32"  # as exact as 16 bits are
    constants = {
        "GROUP": <ROWS>.shape[1] // <COLUMN>.shape[1],
        <WIDTH_CONSTANTS>
        "PRECISION": exact if <ROWS>.element_size() == 4 else wide,
        "TERM": each.term,
        "FACTOR": factor % max(1, len(each.widths)),
        "LAST": each.widths[-1] if each.widths else 1,
        "WIDTH": each.widths[factor] if each.widths else 1,
        **each.blocks,
    }
    kernel = _for(kernel, <ROWS>)
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    crosses = factor % max(1, len(each.widths)) < len(each.widths) - 1  # sums that lie apart
    warps = 8 if crosses and torch.version.hip is None else 4
    kernel[grid](*arguments, **constants, num_warps=warps, num_stages=2)
'''
