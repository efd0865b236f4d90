"""The functions that tune and launch Triton kernels, as text: shaped by how many widths of vectors a core has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attncc.emit.triton_form.launch_pieces import (
    BY_CLASS,
    CLASSES,
    LAUNCH_IN_PIECES,
    ROOM,
    SIDE_BY_SIDE,
    TUNED_IN_PIECES,
    WITH_LISTS,
)
from attncc.emit.triton_form.listed_host import ASKED_LISTS, LISTED, OVER_GROUP, WITH_FULL
from attncc.emit.triton_form.scope import constexpr_of
from attncc.emit.triton_form.sums.host import PLAIN_TILES, SUMS, WITH_SUMS


@dataclass(frozen=True, slots=True)
class Shapes:
    """The operands that tell a launch its sizes.

    Attributes:
        rows: gives batch, heads and rows.
        column: gives the number of key heads.
        widths: for each name of a width an operand that has it, in order.
        pointer: an operand that all kernels are given tile by tile, if there is one.
        values: the vectors that weights multiply.
        d_values: their gradient, which tells the kernel that holds keys from those that hold rows.
        held: widths of what a tile of the forward kernel holds all the time.
        streamed: widths of what passes through.
        sums: the sums by distance that a kernel adds up in memory.
        added: what kernels of pieces read and write again.
        listing: whether kernels walk lists of tiles that meet.
        asks_lists: whether they ask for lists of rows.
        has_full: whether the torch form tells tiles apart that need no mask.
        copies_by_head: whether query heads that share keys get copies of their own of these.
        lists: whether some kernel has a list of rows, with smaller tiles than are usual.
        copies_keys: whether some piece has copies of its keys.
        copies_rows: whether some piece has copies of its rows.
        terms: of sums by states, the widths of each term's factors; None where there are none.
        step: how far apart neighbours of a tile may stand, in tokens.
        at_once: whether there are kernels that add to the gradients of rows.
        carries: whether there is a kernel whose tiles of rows carry sums from one to the next.
        takes_data: whether a kernel may be given data in place of what is made of them.
        edge: how many rows and keys a tile has on CPUs.
    """

    rows: str
    column: str
    widths: dict[str, str]
    pointer: str | None
    values: str
    d_values: str
    held: Sequence[str]
    streamed: Sequence[str]
    sums: Sequence[str]
    edge: int
    at_once: bool = False
    carries: bool = False
    takes_data: bool = False
    added: Sequence[str] = ()
    lists: bool = False
    listing: bool = False
    asks_lists: bool = False
    has_full: bool = False
    copies_by_head: bool = False
    step: int = 1
    copies_keys: bool = False
    copies_rows: bool = False
    terms: tuple[tuple[str, ...], ...] | None = None

    @property
    def arguments(self) -> str:
        """The operands, each once, as `_launch` takes them."""
        return ", ".join(dict.fromkeys((self.rows, self.column, self.values, *self.widths.values())))


def host_text(shapes: Shapes) -> str:
    """All functions of the host that do not depend on one kernel."""
    names = list(shapes.widths)
    blocks = [f"BLOCK_{constexpr_of(name)}" for name in names]
    held, streamed = (_sum([f"BLOCK_{constexpr_of(name)}" for name in some]) for some in (shapes.held, shapes.streamed))
    shape = ", ".join(names)
    sizes = ", ".join(f"{shapes.widths[name]}.shape[-1]" for name in names)
    each_block = ", ".join(f"block_{name}" for name in names)
    blocks_of = ", ".join(f"_block({name})" for name in names)
    of_terms = [name for name in names if name == "e" or any(name in each for each in shapes.terms or ())]
    constants = [f"{constexpr_of(name)}={name}" for name in names]
    constants += [f"BLOCK_{constexpr_of(name)}=block_{name}" for name in names]
    constants += ["LIST_M=_ROWS", "LIST_N=_KEYS"] if shapes.listing else []
    constants += ["BY_STATES=by_states"] if shapes.terms is not None else []
    key = ", ".join(f'"{each}"' for each in ["GROUP", *map(constexpr_of, names), "PRECISION"])
    tuned = TUNED_IN_PIECES if shapes.added else _TUNED_WITH_SUMS if shapes.sums else _TUNED
    in_pieces = shapes.added and not shapes.listing
    text = _PRUNE + tuned + (LAUNCH_IN_PIECES if in_pieces else _LAUNCH)
    text += WITH_FULL if shapes.has_full else ""
    text += (LISTED if shapes.listing else "") + (ASKED_LISTS if shapes.asks_lists else "")
    text += OVER_GROUP if shapes.copies_by_head else ""
    text += _LAUNCH_REST + (ROOM if shapes.added or shapes.terms is not None else "")
    text += (CLASSES if in_pieces else "") + (_SUMS if shapes.sums else "")
    text += (SIDE_BY_SIDE if shapes.copies_keys else "") + (BY_CLASS if shapes.copies_rows else "")
    for plain, listed in WITH_LISTS if shapes.lists else ():
        assert plain in text
        text = text.replace(plain, listed)
    if shapes.terms is not None:
        for plain, summed in WITH_SUMS:
            text = text.replace(plain, summed)
        if not shapes.lists:
            text = text.replace("\n\n@functools.cache\ndef _tuned(", PLAIN_TILES)
        text += SUMS
    found = f'arguments["{shapes.pointer}_ptr"]' if shapes.pointer else _ANY_VECTORS
    values = {
        "POINTER": shapes.pointer or "vectors",
        "FOUND": found,
        "BLOCKS": ", ".join(blocks),
        "HELD": held,
        "STREAMED": streamed,
        "D_VALUES": shapes.d_values,
        "KEY": key,
        "STRIDE": f"x.stride(-2) * {shapes.step}" if shapes.step > 1 else "x.stride(-2)",
        "MARGIN": f"256 * {shapes.step}" if shapes.step > 1 else "256",
        "ADDED": ", ".join(f'"{name}_ptr"' for name in shapes.added),
        "SUMS": ", ".join(f'"{name}_ptr"' for name in shapes.sums),
        "ARGUMENTS": shapes.arguments,
        "ROWS": shapes.rows,
        "COLUMN": shapes.column,
        "WIDTHS": " and ".join(dict.fromkeys(shapes.widths.values())),
        "NAMES": shape,
        "SIZES": sizes,
        "BLOCK_NAMES": each_block,
        "BLOCKS_OF": blocks_of,
        "CONSTANTS": ", ".join([*constants, *(["RAW=raw"] if shapes.takes_data else [])]),
        "ROOM_FOR_TILES": _ROOM_FOR_TILES * shapes.at_once,
        "EDGE": str(shapes.edge),
        "THE_EDGE": "edge" if shapes.carries else str(shapes.edge),
        "OF_EDGE": f", edge={shapes.edge}" * shapes.carries,
        "MOST_ROWS": ", most_rows=256" * shapes.lists,
        "THE_MOST": ", most_rows" * shapes.lists,
        "BY_STATES": ", by_states=False" * (shapes.terms is not None),
        "RAW": ", raw=False" * shapes.takes_data,
        "THE_STATES": ", by_states" * (shapes.terms is not None),
        "WIDTH_CONSTANTS": "".join(f'"{constexpr_of(name)}": {name}, ' for name in names).strip(),
        "TERM_NAMES": ", ".join(of_terms),
        "TERM_SIZES": ", ".join(f"{shapes.widths[name]}.shape[-1]" for name in of_terms),
        "TERMS": f"({''.join(f'({_tuple(each)}), ' for each in shapes.terms or ())})",
    }
    for name, value in values.items():
        text = text.replace(f"<{name}>", value)
    return text


def _tuple(names: Sequence[str]) -> str:
    return ", ".join(names) + "," * (len(names) == 1)


def _sum(parts: Sequence[str]) -> str:
    return " + ".join(parts) or "0"


_ANY_VECTORS = 'arguments["out_ptr" if "out_ptr" in arguments else "d_out_ptr"]'

_PRUNE = '''


def _dense(x):
    """`x`, copied only if its last axis is strided or offsets within a tile could pass 32 bits."""
    return x if x.stride(-1) == 1 and <STRIDE> < 2**23 else x.contiguous()


def _cdiv(length, block):
    """How many blocks hold so many."""
    return -(-length // block)


def _block(width):
    """The tile width that holds a vector: a power of two, at least a matrix instruction's 16."""
    return max(16, 1 << (width - 1).bit_length())


def _prune(configs, arguments, *, <BLOCKS>, **_):
    """The configs that fit into shared memory: resident and streamed tiles, two tiles of pairs."""
    <POINTER> = <FOUND>
    on_amd = torch.version.hip is not None  # tiles pass through registers there, resident ones stay
    device = triton.runtime.driver.active.utils.get_device_properties(<POINTER>.device.index)

    def size(config):
        rows, columns = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
        held, streamed = (columns, rows) if "<D_VALUES>_ptr" in arguments else (rows, columns)
        resident = 0 if on_amd else held * (<HELD> if "out_ptr" in arguments else <STREAMED>)
        stages = max(config.num_stages - on_amd, 1)
        return (resident + stages * streamed * (<STREAMED>) + 2 * rows * columns) * <POINTER>.element_size()

    # A warp of 64 lanes has half the registers a lane when there are eight of them.
    configs = [config for config in configs if config.num_warps <= 4 or not on_amd] or configs
    return [config for config in configs if size(config) <= device["max_shared_mem"]] or [min(configs, key=size)]


@functools.cache
def _tuned(kernel, name, element_size, width):
    """The kernel with what it may try; Triton's interpreter cannot time and gets one config."""
    if triton.knobs.runtime.interpret:
        configs = [triton.Config({"BLOCK_M": 32, "BLOCK_N": 16})]
    else:
        configs = [
            triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
            for rows, columns, warps, stages in _TILES[name, element_size, width]
        ]
    key = [<KEY>]  # and the dtypes, which triton adds
'''

_TUNED = """\
    return triton.autotune(configs, key=key, prune_configs_by={"early_config_prune": _prune})(kernel)
"""

_TUNED_WITH_SUMS = """\
    sums = [name for name in (<SUMS>,) if name in kernel.arg_names]  # each run adds to them
    prune = {"early_config_prune": _prune}
    return triton.autotune(configs, key=key, prune_configs_by=prune, reset_to_zero=sums)(kernel)
"""


_LAUNCH = '''

def _grid(length, block, heads, batch):
    """One program for every tile of an axis, every head and every batch entry."""
    return lambda meta: (_cdiv(length, meta[block]), heads, batch)
'''


_ROOM_FOR_TILES = '''\
def _room_for_tiles(x, step=1):
    """Zeros for sums of rows, whose last tile and last block of channels may end beyond them."""
    batch, heads, n, width = x.shape
    return x.new_zeros(batch, heads, n + 64 * step, _cdiv(width, 16) * 16, dtype=_wide(x.dtype))


'''

_LAUNCH_REST = '''

<ROOM_FOR_TILES>def _launch(kernel, name, grid, <ARGUMENTS>, *arguments<BY_STATES><RAW><OF_EDGE><MOST_ROWS>):
    """Run a kernel, specialised by the widths of <WIDTHS>."""
    <NAMES> = <SIZES>
    <BLOCK_NAMES> = <BLOCKS_OF>
    widest = max(64, <BLOCK_NAMES>)
    if _in_c(<ROWS>):
        run = functools.partial(_for(kernel, <ROWS>)[grid], tile=_c_tile(widest, <THE_EDGE>, <ROWS>.shape[2]<THE_MOST>))
    else:
        run = _tuned(kernel, name, <ROWS>.element_size(), widest<THE_STATES><THE_MOST>)[grid]
    run(
        *arguments,
        GROUP=<ROWS>.shape[1] // <COLUMN>.shape[1],
        <CONSTANTS>,
        PRECISION="tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
        enable_fp_fusion=True,
    )  # fmt: skip


def _places(q, k, q_start, q_starts, kv_lengths):
    """The position of the first row and the number of keys of every batch entry, [batch] each."""
    starts = torch.full((q.shape[0],), q_start, dtype=torch.int32, device=q.device)
    if q_starts is not None:
        starts = (starts + q_starts).to(torch.int32)
    if kv_lengths is None:
        return starts, torch.full_like(starts, k.shape[2])
    return starts, kv_lengths.clamp(0, k.shape[2]).to(torch.int32)
'''


_SUMS = '''

_MARGIN = <MARGIN>  # a tile may end so far beyond the last row or key


def _sums_by_offset(batch, heads, n, m, device, dtype):
    """Room for sums by r - c + m - 1, three lines for each program that shares a head's rows.

    Each program adds in its own lines, so that the order of all additions is fixed.
    """
    length = n + m + 2 * _MARGIN
    pairs = max(1, batch * heads)
    programs = min(_cdiv(n, 64), _cdiv(1024, pairs), (1 << 26) // (3 * pairs * length))
    lines = torch.zeros(batch, heads, 3 * max(1, programs), length, device=device, dtype=dtype)
    return lines[..., _MARGIN:]
'''
