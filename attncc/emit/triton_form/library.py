"""The small functions that Triton kernels call, as text; a module gets those that its kernels use."""

from __future__ import annotations

ALWAYS = '''
# Triton's interpreter multiplies the bit patterns of bfloat16 tiles as if they were integers.
_WIDEN = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _dot(a, b, acc, PRECISION: tl.constexpr):
    """a @ b + acc in float32; `acc` may be None."""
    if _WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def _load_tile(start, stride, visible, LANES: tl.constexpr, WIDTH: tl.constexpr,
               BLOCK: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """[LANES, BLOCK] values of consecutive vectors; what is not visible reads as 0."""
    lanes = tl.arange(0, LANES)
    dims = tl.arange(0, BLOCK)
    pointers = start + lanes[:, None] * stride + dims[None, :]
    if MASKED and WIDTH < BLOCK:
        tile = tl.load(pointers, mask=visible[:, None] & (dims[None, :] < WIDTH), other=0.0)
    elif MASKED:
        tile = tl.load(pointers, mask=visible[:, None], other=0.0)
    elif WIDTH < BLOCK:
        tile = tl.load(pointers, mask=dims[None, :] < WIDTH, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def _load_numbers(start, visible, other, LANES: tl.constexpr, MASKED: tl.constexpr):
    """[LANES] consecutive numbers; what is not visible reads as `other`."""
    pointers = start + tl.arange(0, LANES)
    if MASKED:
        numbers = tl.load(pointers, mask=visible, other=other)
    else:
        numbers = tl.load(pointers)
    return numbers


@triton.jit
def _store_tile(start, visible, tile, LANES: tl.constexpr, WIDTH: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """Write the visible vectors of a [LANES, BLOCK] tile one after the other."""
    lanes = tl.arange(0, LANES)
    dims = tl.arange(0, BLOCK)
    pointers = start + lanes[:, None] * WIDTH + dims[None, :]
    tl.store(pointers, tile.to(start.dtype.element_ty), mask=visible[:, None] & (dims[None, :] < WIDTH))
'''

OPTIONAL: dict[str, str] = {
    "_load_facts": '''
@triton.jit
def _load_facts(start, visible, LANES: tl.constexpr):
    """What the pattern asks of [LANES] consecutive tokens; 0 where there is none."""
    return tl.load(start + tl.arange(0, LANES), mask=visible, other=0)
''',
    "_lists_at": '''
@triton.jit
def _lists_at(start, LANES: tl.constexpr):
    """Where the lists of [LANES] consecutive rows begin."""
    return start + tl.arange(0, LANES)
''',
    "_is_named": '''
@triton.jit
def _is_named(x, lists, COUNT: tl.constexpr, step):
    """Whether numbers are in the lists of their rows, of COUNT entries; below 0 is none."""
    found = x != x
    if COUNT <= 32:  # a loop in a loop would keep Triton from loading ahead
        for at in tl.static_range(COUNT):
            found = found | (x == tl.load(lists + at * step))
    else:
        for at in range(0, COUNT):
            found = found | (x == tl.load(lists + at * step))
    return found & (x >= 0)
''',
    "_load_spaced": '''
@triton.jit
def _load_spaced(start, step, visible, other, LANES: tl.constexpr, MASKED: tl.constexpr):
    """[LANES] numbers, one every `step`; what is not visible reads as `other`."""
    pointers = start + tl.arange(0, LANES) * step
    if MASKED:
        numbers = tl.load(pointers, mask=visible, other=other)
    else:
        numbers = tl.load(pointers)
    return numbers
''',
    "_store_spaced": '''
@triton.jit
def _store_spaced(start, stride, visible, tile, LANES: tl.constexpr, WIDTH: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    """Write the visible vectors of a [LANES, BLOCK] tile, one every `stride` numbers."""
    lanes = tl.arange(0, LANES)
    dims = tl.arange(0, BLOCK)
    pointers = start + lanes[:, None] * stride + dims[None, :]
    tl.store(pointers, tile.to(start.dtype.element_ty), mask=visible[:, None] & (dims[None, :] < WIDTH))
''',
    "_load_part": '''
@triton.jit
def _load_part(start, stride, channel, visible, LANES: tl.constexpr, WIDTH: tl.constexpr,
               BLOCK: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """[LANES, BLOCK] channels of vectors, from `channel` on; what there is not reads as 0."""
    channels = channel + tl.arange(0, BLOCK)
    pointers = start + tl.arange(0, LANES)[:, None] * stride + channels[None, :]
    if MASKED:
        part = tl.load(pointers, mask=visible[:, None] & (channels[None, :] < WIDTH), other=0.0)
    else:
        part = tl.load(pointers, mask=channels[None, :] < WIDTH, other=0.0)
    return part.to(tl.float32)
''',
    "_load_lanes": '''
@triton.jit
def _load_lanes(start, stride, visible, LANES: tl.constexpr, MASKED: tl.constexpr):
    """[LANES] numbers, or one channel of vectors; what is not visible reads as 0."""
    pointers = start + tl.arange(0, LANES) * stride
    if MASKED:
        numbers = tl.load(pointers, mask=visible, other=0.0)
    else:
        numbers = tl.load(pointers)
    return numbers.to(tl.float32)
''',
    "_load_vector": '''
@triton.jit
def _load_vector(start, channel, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """[BLOCK] channels of one vector, from `channel` on; what there is not reads as 0."""
    channels = channel + tl.arange(0, BLOCK)
    return tl.load(start + channels, mask=channels < WIDTH, other=0.0).to(tl.float32)
''',
    "_sums_at": '''
@triton.jit
def _sums_at(start, step, values, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the sums of ROWS features, `step` apart, and of COLUMNS values lie."""
    features = tl.arange(0, ROWS) * step
    return start + features[:, None] * values + tl.arange(0, COLUMNS)[None, :]
''',
    "_load_sums": '''
@triton.jit
def _load_sums(start, step, values, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sums of ROWS features, `step` apart; those from `count` on read as 0."""
    there = tl.arange(0, ROWS) < count
    return tl.load(_sums_at(start, step, values, ROWS, COLUMNS), mask=there[:, None], other=0.0)
''',
    "_add_part": '''
@triton.jit
def _add_part(start, stride, channel, visible, part, LANES: tl.constexpr, WIDTH: tl.constexpr,
              BLOCK: tl.constexpr):  # fmt: skip
    """Add [LANES, BLOCK] numbers to channels of vectors, from `channel` on."""
    channels = channel + tl.arange(0, BLOCK)
    pointers = start + tl.arange(0, LANES)[:, None] * stride + channels[None, :]
    there = visible[:, None] & (channels[None, :] < WIDTH)
    tl.store(pointers, tl.load(pointers, mask=there, other=0.0) + part, mask=there)
''',
    "_add_lanes": '''
@triton.jit
def _add_lanes(start, step, visible, numbers, LANES: tl.constexpr):
    """Add [LANES] numbers to those that are there."""
    pointers = start + tl.arange(0, LANES) * step
    tl.store(pointers, tl.load(pointers, mask=visible, other=0.0) + numbers, mask=visible)
''',
    "_floor_divide": '''
@triton.jit
def _floor_divide(a, b):
    """a // b rounded down, for b > 0; Triton's own rounds towards 0."""
    return (a - _modulo(a, b)) // b
''',
    "_modulo": '''
@triton.jit
def _modulo(a, b):
    """The remainder of a // b rounded down, for b > 0: never negative."""
    return ((a % b) + b) % b
''',
    "_square": """
@triton.jit
def _square(x):
    return x * x
""",
    "_tanh": '''
@triton.jit
def _tanh(x):
    """Through exp of a number that is never positive, so that nothing overflows."""
    shrink = tl.exp(-2.0 * tl.abs(x))
    large = tl.where(x < 0.0, -1.0, 1.0) * (1.0 - shrink) / (1.0 + shrink)
    squared = x * x  # below 1/8 the first terms of the series are exact to float32
    small = x * (1.0 - squared * (1.0 / 3.0 - squared * (2.0 / 15.0 - squared * (17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.125, small, large)
''',
    "_silu": """
@triton.jit
def _silu(x):
    return x * tl.sigmoid(x)
""",
    "_gelu": """
@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
""",
    "_softplus": '''
@triton.jit
def _softplus(x):
    """log(1 + exp(x)) without overflow; what 1 + small loses of small is put back."""
    small = tl.exp(-tl.abs(x))
    added = (1.0 + small) - 1.0
    zero = added == 0.0
    log = tl.where(zero, small, tl.log(1.0 + small) * (small / tl.where(zero, 1.0, added)))
    return tl.maximum(x, 0.0) + log
''',
    "_elu": '''
@triton.jit
def _elu(x):
    """x, or exp(x) - 1 where it is negative: through tanh, so that small numbers stay exact."""
    half = _tanh(0.5 * tl.minimum(x, 0.0))
    return tl.where(x > 0.0, x, 2.0 * half / (1.0 - half))
''',
    "_elu_plus_one": '''
@triton.jit
def _elu_plus_one(x):
    """elu(x) + 1, by sides: next to 1, what is left of a small number is rounded away."""
    return tl.where(x > 0.0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))
''',
    "_sign": """
@triton.jit
def _sign(x):
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0))
""",
    "_power": '''
@triton.jit
def _power(base, exponent):
    """base ^ exponent for base > 0."""
    return tl.exp2(exponent * tl.log2(base * 1.0))
''',
    "_signed_power": '''
@triton.jit
def _signed_power(base, exponent):
    """base ^ exponent; below 0 it has a value where the exponent is whole, and to the power of 0 all is 1."""
    size = tl.exp2(exponent * tl.log2(tl.abs(base * 1.0)))
    exponent = exponent + tl.zeros_like(size)
    half = 0.5 * exponent
    below = tl.where(tl.floor(half) == half, size, -size)
    below = tl.where(tl.floor(exponent) == exponent, below, float("nan"))
    return tl.where(exponent == 0.0, 1.0, tl.where(base < 0, below, size))
''',
    "_inverse": '''
@triton.jit
def _inverse(x):
    """1 / x, and 0 where x is 0: a row without weights gives 0."""
    zero = x == 0.0
    return tl.where(zero, 0.0, 1.0 / tl.where(zero, 1.0, x))
''',
    "_weigh": '''
@triton.jit
def _weigh(weight, v, acc, PRECISION: tl.constexpr):
    """weight @ v + acc: 16 bits hold the largest weight of a row exactly; none overflows."""
    if v.dtype == tl.float32:
        result = _dot(weight, v, acc, PRECISION)
    else:
        largest = tl.maximum(tl.max(tl.abs(weight), 1), 1e-30)[:, None]
        scaled = weight * (1.0 / largest)
        result = acc + largest * _dot(scaled.to(v.dtype), v, None, PRECISION)
    return result
''',
    "_log": '''
@triton.jit
def _log(x):
    """The natural logarithm, -inf where x is 0."""
    positive = x > 0.0
    return tl.where(positive, tl.log(tl.where(positive, x, 1.0)), float("-inf"))
''',
    "_clamp": '''
@triton.jit
def _clamp(index, size):
    """The index, or the nearest one of the axis."""
    return tl.minimum(tl.maximum(index, 0), size - 1)
''',
    "_load_entries": '''
@triton.jit
def _load_entries(pointers, visible, MASKED: tl.constexpr):
    """A number for each pair; what is not visible is not read."""
    if MASKED:
        entries = tl.load(pointers, mask=visible[None, :], other=0.0)
    else:
        entries = tl.load(pointers)
    return entries
''',
    "_add_channel": '''
@triton.jit
def _add_channel(total, channel, numbers, BLOCK: tl.constexpr):
    """[lanes, BLOCK] vectors with a number of each lane added to one channel."""
    here = tl.arange(0, BLOCK)[None, :] == channel
    return total + tl.where(here, numbers[:, None], 0.0)
''',
    "_add_by_spaced_offset": '''
@triton.jit
def _add_by_spaced_offset(start, line, step, tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Add sums of a tile over r - c around `start`, where tokens stand `step` apart.

    As `_add_by_offset`: each row is turned by its own number, and distances that lie COLUMNS
    steps apart go to different lines.
    """
    tl.static_assert(ROWS <= 2 * COLUMNS, "a program has three lines")
    lanes = tl.arange(0, COLUMNS)
    offsets = tl.arange(0, ROWS)[:, None] - lanes[None, :]
    turned = tl.gather(tile, offsets & (COLUMNS - 1), 1)
    for at in tl.static_range(0, (ROWS + COLUMNS - 1) // COLUMNS + 1):
        low = (at - 1) * COLUMNS
        sums = tl.sum(tl.where((offsets >= low) & (offsets < low + COLUMNS), turned, 0.0), 0)
        numbers = start + at * line + (low + lanes) * step
        tl.store(numbers, tl.load(numbers) + sums)
''',
    "_add_by_offset": '''
@triton.jit
def _add_by_offset(start, line, tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Add sums of a tile over r - c around `start`, where no other program adds any.

    Each row is turned by its own number, so that pairs at one distance stand below each
    other: lane t holds the distances t, t + COLUMNS, and so on, of which every row has one.
    Each of these goes to a line of its own: the tiles of one sweep then never meet a number
    twice and need not wait.
    """
    tl.static_assert(ROWS <= 2 * COLUMNS, "a program has three lines")
    lanes = tl.arange(0, COLUMNS)
    offsets = tl.arange(0, ROWS)[:, None] - lanes[None, :]
    turned = tl.gather(tile, offsets & (COLUMNS - 1), 1)
    for at in tl.static_range(0, (ROWS + COLUMNS - 1) // COLUMNS + 1):
        low = (at - 1) * COLUMNS
        sums = tl.sum(tl.where((offsets >= low) & (offsets < low + COLUMNS), turned, 0.0), 0)
        numbers = start + at * line + low + lanes
        tl.store(numbers, tl.load(numbers) + sums)
''',
}

_NEEDS = {"_floor_divide": ("_modulo",), "_elu": ("_tanh",), "_load_sums": ("_sums_at",)}


def library(used: set[str]) -> str:
    """The text of the helpers in `used`, each after those it calls."""
    wanted = used | {needed for name in used for needed in _NEEDS.get(name, ())}
    order = sorted(wanted & OPTIONAL.keys(), key=lambda name: (name in _NEEDS, list(OPTIONAL).index(name)))
    return ALWAYS + "".join("\n" + OPTIONAL[name] for name in order)
