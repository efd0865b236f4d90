# nsa: made by attncc 0.1.0 from nsa.attn (sha256 2079f162fc937a4d). Do not edit.
# Rebuild: attncc build nsa.attn -D width=32 -D stride=16 -D block=64 -D selected=16 -D w=512
#
#     # Native sparse attention: means of blocks, the blocks of keys that get most of these, and a window, each times a gate
#     # (arXiv 2502.11089, section 3). The first block, a query's own and the one before it need not be chosen.
#     attention nsa(width = 32, stride = 16, block = 64, selected = 16, w = 512) {
#       require width >= stride, stride > 0, block % stride == 0, selected > 3, w > 0
#       input k_far[B, H, m, d], v_far[B, H, m, e], k_win[B, H, m, d], v_win[B, H, m, e]
#       input a[B, H, n], b[B, H, n], c[B, H, n]
#       pattern always = j // block == 0 | i // block - j // block <= 1
#       pattern = causal
#       branch far {
#         let k = pool(k_far, width, stride) at stride * j + width - 1
#         let v = pool(v_far, width, stride) at stride * j + width - 1
#       }
#       branch fine {
#         let blocks =
#           top(selected - 3, by = shares(far), among = causal & !always, blocks = block, heads = grouped)
#         pattern = causal & (blocks | always)
#       }
#       branch near {
#         let k = k_win
#         let v = v_win
#         pattern = window(w - 1)
#       }
#       combine = a * far + b * fine + c * near
#     }
#
# Plan of `far`: a tile of rows first … last visits keys up to (last + 1) // 16 - 2; without a
# mask: keys up to (first + 1) // 16 - 2.
# Cost of `far`: 2·d + 2·e flops forward for each visited pair; nothing of size n·m is stored.
# Decoder of `far`: keeps every key so far as it was given, and blocks that are full; choices are
# made anew.
# Plan of `fine`: data tell the tiles of keys that a tile of rows visits, in 2 passes, within what
# positions allow: a tile of rows first … last visits keys up to last.
# Cost of `fine`: 2·d + 2·e flops forward for each visited pair; nothing of size n·m is stored.
# Decoder of `fine`: keeps every key so far as it was given, and blocks that are full; choices are
# made anew.
# Plan of `near`: a tile of rows first … last visits keys first - 511 … last; without a mask: keys
# last - 511 … first.
# Cost of `near`: 2·d + 2·e flops forward for each visited pair; nothing of size n·m is stored.
# Decoder of `near`: keeps the last 512 keys.

import atexit
import bisect
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import itertools
import mmap
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # the kernels need triton; everything else works without
    triton = None


# --- what the branches share ----------------------------------------------------------------------


_FAR = 1 << 62  # beyond every position


class _Call(NamedTuple):
    """Lengths and heads of one call, for patterns that read them."""

    n: int
    m: int
    heads: int
    head: int | Tensor


def _numbers(q, k, v, scale, kv_lengths):
    """Numbers that are the same for every pair of a head."""
    d_dot_factor = scale
    return scale, d_dot_factor


if triton is not None:
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
        tl.store(
            pointers,
            tile.to(start.dtype.element_ty),
            mask=visible[:, None] & (dims[None, :] < WIDTH),
        )

    @triton.jit
    def _modulo(a, b):
        """The remainder of a // b rounded down, for b > 0: never negative."""
        return ((a % b) + b) % b

    @triton.jit
    def _inverse(x):
        """1 / x, and 0 where x is 0: a row without weights gives 0."""
        zero = x == 0.0
        return tl.where(zero, 0.0, 1.0 / tl.where(zero, 1.0, x))

    @triton.jit
    def _log(x):
        """The natural logarithm, -inf where x is 0."""
        positive = x > 0.0
        return tl.where(positive, tl.log(tl.where(positive, x, 1.0)), float("-inf"))

    @triton.jit
    def _floor_divide(a, b):
        """a // b rounded down, for b > 0; Triton's own rounds towards 0."""
        return (a - _modulo(a, b)) // b


def _dense(x):
    """`x`, copied only if its last axis is strided or offsets within a tile could pass 32 bits."""
    return x if x.stride(-1) == 1 and x.stride(-2) < 2**23 else x.contiguous()


def _cdiv(length, block):
    """How many blocks hold so many."""
    return -(-length // block)


def _block(width):
    """The tile width that holds a vector: a power of two, at least a matrix instruction's 16."""
    return max(16, 1 << (width - 1).bit_length())


def _grid(length, block, heads, batch):
    """One program for every tile of an axis, every head and every batch entry."""
    return lambda meta: (_cdiv(length, meta[block]), heads, batch)


def _room_for_tiles(x, step=1):
    """Zeros for sums of rows, whose last tile and last block of channels may end beyond them."""
    batch, heads, n, width = x.shape
    return x.new_zeros(batch, heads, n + 64 * step, _cdiv(width, 16) * 16, dtype=_wide(x.dtype))


def _places(q, k, q_start, q_starts, kv_lengths):
    """The position of the first row and the number of keys of every batch entry, [batch] each."""
    starts = torch.full((q.shape[0],), q_start, dtype=torch.int32, device=q.device)
    if q_starts is not None:
        starts = (starts + q_starts).to(torch.int32)
    if kv_lengths is None:
        return starts, torch.full_like(starts, k.shape[2])
    return starts, kv_lengths.clamp(0, k.shape[2]).to(torch.int32)


def _kernel_numbers(q, k, v, scale, kv_lengths):
    """Numbers that are the same for every pair of a head."""
    scale_log2 = scale * 1.4426950408889634
    d_dot_factor = scale
    return scale_log2, d_dot_factor


_SCORES = 1 << 18  # scores alive at a time, so that they stay in the cache


_MOST_KEYS = 1024  # keys of a chunk


_MOST_ROWS = 1024


def _wide(dtype):
    """The type of scores and sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _product(rows, keys, work, shape, factor=1):
    """Scores of folded rows and keys, times a factor, written into the workspace."""
    size = rows.shape[0] * rows.shape[1] * keys.shape[1]
    out = work[:size].view(rows.shape[0], rows.shape[1], keys.shape[1])
    return torch.baddbmm(out, rows, keys.mT, beta=0, alpha=factor, out=out).view(*shape, -1)


def _groups(batch, m, q_start, q_starts, kv_lengths, most):
    """Up to `most` batch entries that are alike, where their first row stands, how many keys."""
    starts = [0] * batch if q_starts is None else q_starts.tolist()
    lengths = [m] * batch if kv_lengths is None else kv_lengths.clamp(0, m).tolist()
    together = most if len(set(starts)) <= 1 and len(set(lengths)) <= 1 else 1
    for entry in range(0, batch, together):
        entries = slice(entry, min(entry + together, batch))
        yield entries, q_start + starts[entry], lengths[entry]


_LEAST_ROWS = 16


_SMALLEST = 64 * 128  # scores of a head in the smallest slab worth its overhead


def _workspace(slab, chunks, q, count, work):
    """Memory for the scores of a slab, taken again while it is large enough."""
    size = max((chunk.count for chunk in chunks), default=0)
    for length in slab.shape:
        size *= length
    if work is None or work.shape[1] < size:
        work = q.new_empty(count, size, dtype=_wide(q.dtype))
    return work


def _fold(x, slab, kv_heads):
    """[batch, heads, n, c] -> a slab's [batch * kv heads, group * rows, c] in the type of sums."""
    x = x[slab.entries, :, slab.rows].to(_wide(x.dtype))
    return x.reshape(x.shape[0] * kv_heads, -1, x.shape[-1])


def _rows_of(x, slab):
    """[batch, heads, n] -> the slab's [batch, heads, rows, 1], in the type of sums."""
    return x[slab.entries, :, slab.rows, None].to(_wide(x.dtype))


def _unrounded(out, residual):
    """`out` before rounding to 16 bits, which would drown differences in the backward pass."""
    out = out.to(_wide(out.dtype))
    return out + residual if residual.shape[-1] else out


def _store(outs, slab, results):
    """Write what a slab gives."""
    for out, result in zip(outs, results, strict=False):
        target = out[slab.entries, :, slab.rows]
        target.copy_(result.reshape(target.shape))


_BLOCK = 128  # rows of a block


def _sum(weight, values):
    """Weights of pairs and [batch, heads, blocks, keys, e] -> [batch, heads, blocks, rows, e]."""
    return torch.bmm(weight.flatten(0, 2), values.flatten(0, 2)).view(
        *weight.shape[:4], values.shape[4]
    )


def _call_of(q, v):
    heads = torch.arange(q.shape[1], device=q.device)[:, None, None, None]
    return _Call(q.shape[2], v.shape[2], q.shape[1], heads)


def _maximum(a, b):
    """The larger of two tensors or numbers."""
    if isinstance(a, Tensor):
        return torch.maximum(a, b) if isinstance(b, Tensor) else a.clamp(min=b)
    return b.clamp(min=a) if isinstance(b, Tensor) else max(a, b)


def _reciprocal(x):
    """1 / x, and 0 where x is 0: a row without weights gives 0."""
    if not isinstance(x, Tensor):
        return 1.0 / x if x else 0.0
    return torch.where(x == 0, 0.0, 1.0 / torch.where(x == 0, 1.0, x))


def _safe_log(x):
    """The natural logarithm, -inf where x is 0, with a gradient that is never NaN."""
    return torch.where(x > 0, torch.where(x > 0, x, 1.0).log(), -torch.inf)


def _hidden(kv_lengths, m, device):
    """Which keys the lengths hide, [batch, 1, m, 1], if there are lengths."""
    if kv_lengths is None:
        return None
    return (torch.arange(m, device=device) >= kv_lengths[:, None])[:, None, :, None]


def _seen(x, hidden):
    """Something of each key, 0 where it is hidden: nothing of what stands there is read."""
    return x if hidden is None else x.masked_fill(hidden, 0)


def _pooled(x, width, stride, m, hidden):
    """Means of blocks of keys, [batch, heads, blocks, ...], hidden keys left out."""
    x = x.expand(*x.shape[:2], m, x.shape[3])
    seen = x.new_ones(1, 1, m, 1) if hidden is None else (~hidden).to(x.dtype)
    blocks = -(-m // stride)

    def total(x):  # blocks whose end has no keys are as wide
        x = nn.functional.pad(x, (0, 0, 0, max(blocks - 1, 0) * stride + width))
        return x.unfold(2, width, stride)[:, :, :blocks].sum(-1)

    return total(x * seen) / total(seen).clamp(min=1)


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
    cut = [
        x if axis is None else x.narrow(axis, first, length - first)
        for x, axis in zip(data, axes, strict=True)
    ]
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


def _on_blocks(stride, *rest):
    """Places and lengths of blocks of keys in place of those of keys."""
    *scale, q_start, k_start, q_starts, kv_lengths = rest
    traced = isinstance(k_start, torch.SymInt)
    _expect(
        traced or k_start % stride == 0,
        "k_start",
        k_start,
        f"a multiple of {stride}, where a block begins",
    )
    kv_lengths = None if kv_lengths is None else -(-kv_lengths // stride)
    return *scale, q_start, k_start // stride, q_starts, kv_lengths


def _vectors(x, batch, heads, length, dtype):
    """Vectors of tokens with every axis."""
    return x.to(dtype).expand(batch, heads, length, x.shape[-1])


def _fold_vmap(function, info, in_dims, args):
    """Fold the mapped axis into the batch axis."""

    def fold(x, axis):
        if not isinstance(x, Tensor):
            return x
        x = x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
        return x.flatten(0, 1)

    outs = function.apply(*map(fold, args, in_dims))
    return tuple(x.unflatten(0, (info.batch_size, -1)) for x in outs), (0,) * len(outs)


_library = torch.library.Library("attncc", "FRAGMENT")


def _expect(holds, name, found, expected):
    if not holds:
        raise ValueError(f"nsa: {name} is {found}, expected {expected}")


def _expect_tensors(**data):
    """Refuse what is no tensor, by the argument's name."""
    for name, x in data.items():
        _expect(isinstance(x, Tensor), name, type(x).__name__, "a tensor")


def _expect_number(name, x, least):
    """Refuse what is no whole number of 32 bits; sizes of a traced graph are."""
    traced = isinstance(x, torch.SymInt)
    if not traced and (not isinstance(x, int) or isinstance(x, bool) or not least <= x < 2**31):
        expected = f"a whole number of 32 bits, {least} or more"
        expected += ", or a tensor of one for each batch entry" * (
            name in ("kv_lengths", "q_start")
        )
        raise ValueError(f"nsa: {name} is {x!r}, expected {expected}")


_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _form(form, q):
    """Which code runs: Triton on GPUs, C on CPUs, else torch, or what the caller asks for."""
    _expect(
        form in (None, "triton", "c", "torch"), "form", repr(form), "None, 'triton', 'c' or 'torch'"
    )
    if form is None:
        if triton is not None and q.is_cuda and q.dtype != torch.float64:
            return "triton"
        return "c" if _c_serves(q) else "torch"
    if form == "c":
        if torch.compiler.is_compiling():  # what a compiler is given are plain operations
            return "torch"
        _expect(
            _in_c(q), "q", f"on {q.device}", "on the CPU for the C form, without TRITON_INTERPRET"
        )
    if form == "triton":
        _expect(triton is not None, "form", "'triton'", "triton to be installed")
        _expect(
            q.dtype != torch.float64,
            "q",
            q.dtype,
            "float32, bfloat16 or float16 for the Triton form",
        )
        running = q.is_cuda or triton.knobs.runtime.interpret
        _expect(running, "q", f"on {q.device}", "a GPU for the Triton form, or TRITON_INTERPRET=1")
    return form


def _keeps_residual(*operands):
    """Whether backward will need what rounding takes from the results: in 16 bits it does."""
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
    return wanted and operands[0].element_size() == 2


def _is_shape_only(x):
    """Whether a tensor holds no numbers: the operators know the shapes of what they return."""
    return x.is_meta or isinstance(x, torch._subclasses.FakeTensor)


_ROOM = 64  # the fewest tokens that there is room for


# --- the branch `far`: 16 * j + 32 - 1 <= i -------------------------------------------------------
# How the kernels follow from the spec:
# - once-a-token: what one token or one distance determines alone is computed once for it, not
#   once for each pair.
# - defer-division: sum_j (w_ij / N_i) v_j = (sum_j w_ij v_j) / N_i.
# - common-peak: sum_j exp(s_ij) v_j / sum_j exp(s_ij) is unchanged when every s_ij is lowered by
#   the same number of the row.
# - restrict-range: a sum over all keys is the sum over those that some row of the tile is related
#   to: the rest adds 0.
# - drop-mask: where every row of the tile is related to every key, `related` is true and no mask
#   is needed.
# - one-sweep: sums over the same keys are taken in one pass; when the running peak rises, they
#   are rescaled.


def _far_segments(first, last, call):
    """Intervals of positions that rows first … last touch, each with the part all of them see."""
    return (((-_FAR, (last + 1) // 16 - 1), (-_FAR, (first + 1) // 16 - 1)),)


def _far_related(i, j, call):
    """The pattern: 16 * j + 32 - 1 <= i"""
    return 16 * j + 32 - 1 <= i


if triton is not None:

    @triton.jit
    def _far_forward_tile(
        peak, rows, total, q,
        k_of_key_ptr, v_of_key_ptr, k_of_key_stride, v_of_key_stride,
        i, column, k_start, low, high, scale_log2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = (column_lanes >= low) & (column_lanes < high)
        j = k_start + column_lanes
        k_of_key = _load_tile(k_of_key_ptr, k_of_key_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk_of_key = _dot(q, tl.trans(k_of_key), None, PRECISION)
        if MASKED:
            related = (16 * j[None, :] + 32 - 1 <= i[:, None]) & visible[None, :]
        exponent = scale_log2 * dot_qk_of_key
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        old_peak = peak
        peak = tl.maximum(peak, tl.max(exponent, 1))
        shrink = tl.exp2(old_peak - peak)
        weight = tl.exp2(exponent - peak[:, None])
        rows = rows * shrink + tl.sum(weight, 1)
        v_of_key = _load_tile(v_of_key_ptr, v_of_key_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        total = _dot(weight.to(v_of_key.dtype), v_of_key, total * shrink[:, None], PRECISION)
        return peak, rows, total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _far_forward_kernel(
        q_ptr, k_of_key_ptr, v_of_key_ptr, out_ptr, lse_ptr, residual_ptr,
        q_start_ptr, kv_lengths_ptr,
        q_strides, k_of_key_strides, v_of_key_strides,
        n, m, k_start, scale_log2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
        BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK_M  # first row of the tile
        head = tl.program_id(1)
        batch = tl.program_id(2)
        heads = tl.num_programs(1)
        row_lanes = row + tl.arange(0, BLOCK_M)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        q_ptr += tl.cast(batch, tl.int64) * q_strides[0] + tl.cast(head, tl.int64) * q_strides[1]
        q_ptr += tl.cast(row, tl.int64) * q_strides[2]
        k_of_key_ptr += (
            tl.cast(batch, tl.int64) * k_of_key_strides[0]
            + tl.cast(head // GROUP, tl.int64) * k_of_key_strides[1]
        )
        v_of_key_ptr += (
            tl.cast(batch, tl.int64) * v_of_key_strides[0]
            + tl.cast(head // GROUP, tl.int64) * v_of_key_strides[1]
        )
        k_of_key_step = tl.cast(k_of_key_strides[2], tl.int64) * BLOCK_N
        v_of_key_step = tl.cast(v_of_key_strides[2], tl.int64) * BLOCK_N
        first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row

        visible = row_lanes < n
        q = _load_tile(q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D, True)
        i = q_start + row_lanes

        # Positions of the tile's first and last row; [low, high) are the keys that it may see.
        first = q_start + row
        last = first + tl.minimum(BLOCK_M, n - row) - 1
        low = 0
        high = tl.minimum(_floor_divide(last + 1, 16) - 1 - k_start, keys)
        t0 = low // BLOCK_N
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_N), t0)
        full_low = 0
        full_high = tl.minimum(_floor_divide(first + 1, 16) - 1 - k_start, keys)
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_N), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_N, f0), t1)

        peak = tl.full([BLOCK_M], -3.4028234663852886e38, tl.float32)
        rows = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
        for step in range(0, f0 - t0 + t1 - f1):
            tile = t0 + step
            tile = tl.where(tile < f0, tile, tile + (f1 - f0))
            peak, rows, total = _far_forward_tile(
                peak, rows, total, q,
                k_of_key_ptr + tile * k_of_key_step, v_of_key_ptr + tile * v_of_key_step,
                k_of_key_strides[2], v_of_key_strides[2],
                i, tile * BLOCK_N, k_start, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip
        for tile in range(f0, f1):
            peak, rows, total = _far_forward_tile(
                peak, rows, total, q,
                k_of_key_ptr + tile * k_of_key_step, v_of_key_ptr + tile * v_of_key_step,
                k_of_key_strides[2], v_of_key_strides[2],
                i, tile * BLOCK_N, k_start, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
            )  # fmt: skip

        out = total * _inverse(rows)[:, None]
        lse = 0.6931471805599453 * peak + _log(rows)
        _store_tile(out_ptr + first_vector * E, visible, out, BLOCK_M, E, BLOCK_E)
        tl.store(lse_ptr + first_vector + tl.arange(0, BLOCK_M), lse, mask=visible)
        if residual_ptr is not None:  # what rounding takes from `out`, for backward
            residual = out - out.to(out_ptr.dtype.element_ty).to(tl.float32)
            _store_tile(residual_ptr + first_vector * E, visible, residual, BLOCK_M, E, BLOCK_E)

    @triton.jit
    def _far_backward_columns_tile(
        d_v_of_key, d_k_of_key_total, k_of_key, v_of_key,
        q_ptr, d_out_ptr, lse_ptr, delta_ptr, q_stride, d_out_stride,
        j, row, q_start, n, scale_log2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        row_lanes = row + tl.arange(0, BLOCK_M)
        visible = row_lanes < n
        i = q_start + row_lanes
        lse = _load_numbers(lse_ptr, visible, float("-inf"), BLOCK_M, MASKED)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        lse_2 = 1.4426950408889634 * lse
        q = _load_tile(q_ptr, q_stride, visible, BLOCK_M, D, BLOCK_D, MASKED)
        dot_qk_of_key = _dot(k_of_key, tl.trans(q), None, PRECISION)
        if MASKED:
            related = 16 * j[:, None] + 32 - 1 <= i[None, :]
        d_out = _load_tile(d_out_ptr, d_out_stride, visible, BLOCK_M, E, BLOCK_E, MASKED)
        d_share = _dot(v_of_key, tl.trans(d_out), None, PRECISION)
        delta = _load_numbers(delta_ptr, visible, 0.0, BLOCK_M, MASKED)
        d_weight = d_share - delta[None, :]
        exponent = scale_log2 * dot_qk_of_key
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        weight = tl.exp2(exponent - lse_2[None, :])
        d_exponent = d_weight * weight
        d_v_of_key = _dot(weight.to(d_out.dtype), d_out, d_v_of_key, PRECISION)
        d_k_of_key_total = _dot(d_exponent.to(q.dtype), q, d_k_of_key_total, PRECISION)
        return d_v_of_key, d_k_of_key_total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _far_backward_columns_kernel(
        k_of_key_ptr, v_of_key_ptr, q_ptr, d_out_ptr, lse_ptr, delta_ptr, d_k_of_key_ptr,
        d_v_of_key_ptr,
        q_start_ptr, kv_lengths_ptr,
        k_of_key_strides, v_of_key_strides, q_strides, d_out_strides,
        n, m, k_start, d_dot_factor, scale_log2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
        BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        column = tl.program_id(0) * BLOCK_N  # first key of the tile
        kv_head = tl.program_id(1)
        batch = tl.program_id(2)
        kv_heads = tl.num_programs(1)
        heads = kv_heads * GROUP
        column_lanes = column + tl.arange(0, BLOCK_N)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        k_of_key_ptr += (
            tl.cast(batch, tl.int64) * k_of_key_strides[0]
            + tl.cast(kv_head, tl.int64) * k_of_key_strides[1]
        )
        k_of_key_ptr += tl.cast(column, tl.int64) * k_of_key_strides[2]
        v_of_key_ptr += (
            tl.cast(batch, tl.int64) * v_of_key_strides[0]
            + tl.cast(kv_head, tl.int64) * v_of_key_strides[1]
        )
        v_of_key_ptr += tl.cast(column, tl.int64) * v_of_key_strides[2]
        q_step = tl.cast(q_strides[2], tl.int64) * BLOCK_M
        d_out_step = tl.cast(d_out_strides[2], tl.int64) * BLOCK_M
        first_vector = (tl.cast(batch, tl.int64) * kv_heads + kv_head) * m + column

        # Keys that no row can see are not read, and their gradients are 0.
        seen = column_lanes < keys
        k_of_key = _load_tile(k_of_key_ptr, k_of_key_strides[2], seen, BLOCK_N, D, BLOCK_D, True)
        v_of_key = _load_tile(v_of_key_ptr, v_of_key_strides[2], seen, BLOCK_N, E, BLOCK_E, True)
        j = k_start + column_lanes

        # Positions of the tile's first and last key; [low, high) are the rows that may see it.
        first = k_start + column
        last = first + tl.minimum(BLOCK_N, keys - column) - 1
        in_rows = tl.where(column < keys, n, 0)
        low = tl.maximum(16 * first + 31 - q_start, 0)
        high = in_rows
        t0 = low // BLOCK_M
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_M), t0)
        full_low = tl.maximum(16 * last + 31 - q_start, 0)
        full_high = in_rows
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_M), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_M, f0), t1)

        d_v_of_key = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
        d_k_of_key_total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
        for head in range(kv_head * GROUP, kv_head * GROUP + GROUP):
            q_head_ptr = (
                q_ptr
                + tl.cast(batch, tl.int64) * q_strides[0]
                + tl.cast(head, tl.int64) * q_strides[1]
            )
            d_out_head_ptr = (
                d_out_ptr
                + tl.cast(batch, tl.int64) * d_out_strides[0]
                + tl.cast(head, tl.int64) * d_out_strides[1]
            )
            statistics = (tl.cast(batch, tl.int64) * heads + head) * n
            for step in range(0, f0 - t0 + t1 - f1):
                tile = t0 + step
                tile = tl.where(tile < f0, tile, tile + (f1 - f0))
                d_v_of_key, d_k_of_key_total = _far_backward_columns_tile(
                    d_v_of_key, d_k_of_key_total, k_of_key, v_of_key,
                    q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    q_strides[2], d_out_strides[2],
                    j, tile * BLOCK_M, q_start, n, scale_log2,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
                )  # fmt: skip
            for tile in range(f0, f1):
                d_v_of_key, d_k_of_key_total = _far_backward_columns_tile(
                    d_v_of_key, d_k_of_key_total, k_of_key, v_of_key,
                    q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    q_strides[2], d_out_strides[2],
                    j, tile * BLOCK_M, q_start, n, scale_log2,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
                )  # fmt: skip
        d_k_of_key = d_k_of_key_total * d_dot_factor
        _store_tile(
            d_k_of_key_ptr + first_vector * D,
            column_lanes < m,
            tl.where(seen[:, None], d_k_of_key, 0.0),
            BLOCK_N,
            D,
            BLOCK_D,
        )
        _store_tile(
            d_v_of_key_ptr + first_vector * E,
            column_lanes < m,
            tl.where(seen[:, None], d_v_of_key, 0.0),
            BLOCK_N,
            E,
            BLOCK_E,
        )

    @triton.jit
    def _far_backward_rows_tile(
        dq_total, q, d_out, delta, lse_2,
        k_of_key_ptr, v_of_key_ptr, k_of_key_stride, v_of_key_stride,
        i, column, k_start, low, high, scale_log2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = (column_lanes >= low) & (column_lanes < high)
        j = k_start + column_lanes
        k_of_key = _load_tile(k_of_key_ptr, k_of_key_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk_of_key = _dot(q, tl.trans(k_of_key), None, PRECISION)
        if MASKED:
            related = (16 * j[None, :] + 32 - 1 <= i[:, None]) & visible[None, :]
        v_of_key = _load_tile(v_of_key_ptr, v_of_key_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        d_share = _dot(d_out, tl.trans(v_of_key), None, PRECISION)
        d_weight = d_share - delta[:, None]
        exponent = scale_log2 * dot_qk_of_key
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        weight = tl.exp2(exponent - lse_2[:, None])
        d_exponent = d_weight * weight
        dq_total = _dot(d_exponent.to(k_of_key.dtype), k_of_key, dq_total, PRECISION)
        return dq_total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _far_backward_rows_kernel(
        q_ptr, d_out_ptr, k_of_key_ptr, v_of_key_ptr, lse_ptr, delta_ptr, dq_ptr,
        q_start_ptr, kv_lengths_ptr,
        q_strides, d_out_strides, k_of_key_strides, v_of_key_strides,
        n, m, k_start, d_dot_factor, scale_log2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
        BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK_M  # first row of the tile
        head = tl.program_id(1)
        batch = tl.program_id(2)
        heads = tl.num_programs(1)
        row_lanes = row + tl.arange(0, BLOCK_M)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        q_ptr += tl.cast(batch, tl.int64) * q_strides[0] + tl.cast(head, tl.int64) * q_strides[1]
        q_ptr += tl.cast(row, tl.int64) * q_strides[2]
        d_out_ptr += (
            tl.cast(batch, tl.int64) * d_out_strides[0] + tl.cast(head, tl.int64) * d_out_strides[1]
        )
        d_out_ptr += tl.cast(row, tl.int64) * d_out_strides[2]
        k_of_key_ptr += (
            tl.cast(batch, tl.int64) * k_of_key_strides[0]
            + tl.cast(head // GROUP, tl.int64) * k_of_key_strides[1]
        )
        v_of_key_ptr += (
            tl.cast(batch, tl.int64) * v_of_key_strides[0]
            + tl.cast(head // GROUP, tl.int64) * v_of_key_strides[1]
        )
        k_of_key_step = tl.cast(k_of_key_strides[2], tl.int64) * BLOCK_N
        v_of_key_step = tl.cast(v_of_key_strides[2], tl.int64) * BLOCK_N
        first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row

        visible = row_lanes < n
        q = _load_tile(q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D, True)
        d_out = _load_tile(d_out_ptr, d_out_strides[2], visible, BLOCK_M, E, BLOCK_E, True)
        lse = _load_numbers(lse_ptr + first_vector, visible, float("-inf"), BLOCK_M, True)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        delta = _load_numbers(delta_ptr + first_vector, visible, 0.0, BLOCK_M, True)
        i = q_start + row_lanes
        lse_2 = 1.4426950408889634 * lse

        # Positions of the tile's first and last row; [low, high) are the keys that it may see.
        first = q_start + row
        last = first + tl.minimum(BLOCK_M, n - row) - 1
        low = 0
        high = tl.minimum(_floor_divide(last + 1, 16) - 1 - k_start, keys)
        t0 = low // BLOCK_N
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_N), t0)
        full_low = 0
        full_high = tl.minimum(_floor_divide(first + 1, 16) - 1 - k_start, keys)
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_N), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_N, f0), t1)

        dq_total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for step in range(0, f0 - t0 + t1 - f1):
            tile = t0 + step
            tile = tl.where(tile < f0, tile, tile + (f1 - f0))
            dq_total = _far_backward_rows_tile(
                dq_total, q, d_out, delta, lse_2,
                k_of_key_ptr + tile * k_of_key_step, v_of_key_ptr + tile * v_of_key_step,
                k_of_key_strides[2], v_of_key_strides[2],
                i, tile * BLOCK_N, k_start, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip
        for tile in range(f0, f1):
            dq_total = _far_backward_rows_tile(
                dq_total, q, d_out, delta, lse_2,
                k_of_key_ptr + tile * k_of_key_step, v_of_key_ptr + tile * v_of_key_step,
                k_of_key_strides[2], v_of_key_strides[2],
                i, tile * BLOCK_N, k_start, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
            )  # fmt: skip

        dq = dq_total * d_dot_factor
        _store_tile(dq_ptr + first_vector * D, visible, dq, BLOCK_M, D, BLOCK_D)


# What each kernel tries for elements of so many bytes and vectors up to a width: (BLOCK_M, BLOCK_N,
# num_warps, num_stages).
_far_TILES = {
    ("forward", 2, 64): [
        (128, 64, 8, 3),
        (128, 64, 4, 3),
        (64, 64, 4, 3),
        (64, 32, 4, 2),
        (16, 16, 4, 1),
    ],
    ("forward", 2, 128): [(128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 2), (16, 16, 4, 1)],
    ("forward", 2, 256): [(64, 32, 8, 2), (64, 32, 4, 2), (32, 32, 4, 1)],
    ("forward", 4, 64): [(64, 32, 8, 2), (32, 32, 4, 1)],
    ("forward", 4, 128): [(32, 32, 8, 1), (16, 16, 4, 1)],
    ("forward", 4, 256): [(16, 16, 4, 1)],
    ("backward_columns", 2, 64): [
        (64, 64, 8, 2),
        (32, 128, 8, 2),
        (32, 64, 8, 2),
        (32, 64, 4, 2),
        (16, 16, 4, 1),
    ],
    ("backward_columns", 2, 128): [(32, 64, 8, 2), (32, 64, 8, 1), (32, 64, 4, 1), (16, 16, 4, 1)],
    ("backward_columns", 2, 256): [(32, 32, 8, 1), (16, 32, 4, 1)],
    ("backward_columns", 4, 64): [(32, 32, 8, 1), (16, 32, 4, 1)],
    ("backward_columns", 4, 128): [(16, 32, 8, 2)],
    ("backward_columns", 4, 256): [(16, 16, 8, 2)],
    ("backward_rows", 2, 64): [
        (128, 64, 8, 2),
        (128, 32, 8, 3),
        (64, 64, 4, 2),
        (64, 32, 4, 2),
        (16, 16, 4, 1),
    ],
    ("backward_rows", 2, 128): [
        (128, 64, 8, 2),
        (128, 32, 8, 3),
        (64, 64, 4, 2),
        (64, 32, 4, 2),
        (16, 16, 4, 1),
    ],
    ("backward_rows", 2, 256): [(64, 32, 8, 2), (32, 32, 4, 1)],
    ("backward_rows", 4, 64): [(64, 32, 8, 2), (16, 32, 4, 1)],
    ("backward_rows", 4, 128): [(32, 16, 8, 2), (16, 16, 8, 2)],
    ("backward_rows", 4, 256): [(16, 16, 8, 2)],
}


def _far_prune(configs, arguments, *, BLOCK_D, BLOCK_E, **_):
    """The configs that fit into shared memory: resident and streamed tiles, two tiles of pairs."""
    q = arguments["q_ptr"]
    on_amd = torch.version.hip is not None  # tiles pass through registers there, resident ones stay
    device = triton.runtime.driver.active.utils.get_device_properties(q.device.index)

    def size(config):
        rows, columns = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
        held, streamed = (columns, rows) if "d_v_of_key_ptr" in arguments else (rows, columns)
        resident = (
            0 if on_amd else held * (BLOCK_D if "out_ptr" in arguments else BLOCK_D + BLOCK_E)
        )
        stages = max(config.num_stages - on_amd, 1)
        return (
            resident + stages * streamed * (BLOCK_D + BLOCK_E) + 2 * rows * columns
        ) * q.element_size()

    # A warp of 64 lanes has half the registers a lane when there are eight of them.
    configs = [config for config in configs if config.num_warps <= 4 or not on_amd] or configs
    return [config for config in configs if size(config) <= device["max_shared_mem"]] or [
        min(configs, key=size)
    ]


@functools.cache
def _far_tuned(kernel, name, element_size, width):
    """The kernel with what it may try; Triton's interpreter cannot time and gets one config."""
    if triton.knobs.runtime.interpret:
        configs = [triton.Config({"BLOCK_M": 32, "BLOCK_N": 16})]
    else:
        configs = [
            triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
            for rows, columns, warps, stages in _far_TILES[name, element_size, width]
        ]
    key = ["GROUP", "D", "E", "PRECISION"]  # and the dtypes, which triton adds
    return triton.autotune(configs, key=key, prune_configs_by={"early_config_prune": _far_prune})(
        kernel
    )


def _far_launch(kernel, name, grid, q, k_of_key, v_of_key, *arguments):
    """Run a kernel, specialised by the widths of q and v_of_key."""
    d, e = q.shape[-1], v_of_key.shape[-1]
    block_d, block_e = _block(d), _block(e)
    widest = max(64, block_d, block_e)
    if _in_c(q):
        run = functools.partial(_for(kernel, q)[grid], tile=_c_tile(widest, 32, q.shape[2]))
    else:
        run = _far_tuned(kernel, name, q.element_size(), widest)[grid]
    run(
        *arguments,
        GROUP=q.shape[1] // k_of_key.shape[1],
        D=d, E=e, BLOCK_D=block_d, BLOCK_E=block_e,
        PRECISION="tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
        enable_fp_fusion=True,
    )  # fmt: skip


def _far_launch_forward(
    q, k_of_key, v_of_key, scale, q_start, k_start, q_starts, kv_lengths, keep_residual
):
    """What `_far_forward` returns, by the Triton kernel."""
    q, k_of_key, v_of_key = _dense(q), _dense(k_of_key), _dense(v_of_key)
    batch, heads, n, _ = q.shape
    m = k_of_key.shape[2]
    out = q.new_empty(batch, heads, n, v_of_key.shape[-1])
    lse = q.new_empty(batch, heads, n, dtype=_wide(q.dtype))
    residual = q.new_empty(batch, heads, n, v_of_key.shape[-1] if keep_residual else 0)
    scale_log2, d_dot_factor = _kernel_numbers(q, k_of_key, v_of_key, scale, kv_lengths)
    starts, lengths = _places(q, k_of_key, q_start, q_starts, kv_lengths)
    if out.numel():
        grid = _grid(n, "BLOCK_M", heads, batch)
        _far_launch(_far_forward_kernel, "forward", grid,
            q, k_of_key, v_of_key,
            q, k_of_key, v_of_key, out, lse, residual if keep_residual else None,
            starts, lengths,
            q.stride()[:3], k_of_key.stride()[:3], v_of_key.stride()[:3],
            n, m, k_start, scale_log2,
        )  # fmt: skip
    return (out, lse, residual)


def _far_launch_backward(
    q,
    k_of_key,
    v_of_key,
    out,
    lse,
    residual,
    d_out,
    d_lse,
    scale,
    q_start,
    k_start,
    q_starts,
    kv_lengths,
):
    """What `_far_backward` returns, by the Triton kernels."""
    q, k_of_key, v_of_key, d_out = _dense(q), _dense(k_of_key), _dense(v_of_key), _dense(d_out)
    batch, heads, n, _ = q.shape
    kv_heads, m, _ = v_of_key.shape[1:]
    dq = q.new_empty(q.shape)
    d_k_of_key = k_of_key.new_empty(k_of_key.shape)
    d_v_of_key = v_of_key.new_empty(v_of_key.shape)
    delta = (d_out * _unrounded(out, residual)).sum(-1) - d_lse
    lse = lse.contiguous()
    scale_log2, d_dot_factor = _kernel_numbers(q, k_of_key, v_of_key, scale, kv_lengths)
    starts, lengths = _places(q, k_of_key, q_start, q_starts, kv_lengths)
    if _in_c(q) and batch * kv_heads >= torch.get_num_threads():
        dq_total = _room_for_tiles(q)
        if d_v_of_key.numel():
            grid = _grid(m, "BLOCK_N", kv_heads, batch)
            _far_launch("_far_backward_at_once_kernel", "backward_at_once", grid,
                q, k_of_key, v_of_key,
                k_of_key, v_of_key, q, d_out, dq_total, lse, delta, d_k_of_key, d_v_of_key,
                starts, lengths,
                k_of_key.stride()[:3], v_of_key.stride()[:3], q.stride()[:3], d_out.stride()[:3],
                dq_total.stride()[:3],
                n, m, k_start, d_dot_factor, scale_log2,
            )  # fmt: skip
        dq = (dq_total[:, :, :n, : q.shape[-1]] * d_dot_factor).to(q.dtype)
    else:
        if d_v_of_key.numel():
            grid = _grid(m, "BLOCK_N", kv_heads, batch)
            _far_launch(_far_backward_columns_kernel, "backward_columns", grid,
                q, k_of_key, v_of_key,
                k_of_key, v_of_key, q, d_out, lse, delta, d_k_of_key, d_v_of_key,
                starts, lengths,
                k_of_key.stride()[:3], v_of_key.stride()[:3], q.stride()[:3], d_out.stride()[:3],
                n, m, k_start, d_dot_factor, scale_log2,
            )  # fmt: skip
        if dq.numel():
            grid = _grid(n, "BLOCK_M", heads, batch)
            _far_launch(_far_backward_rows_kernel, "backward_rows", grid,
                q, k_of_key, v_of_key,
                q, d_out, k_of_key, v_of_key, lse, delta, dq,
                starts, lengths,
                q.stride()[:3], d_out.stride()[:3], k_of_key.stride()[:3], v_of_key.stride()[:3],
                n, m, k_start, d_dot_factor, scale_log2,
            )  # fmt: skip
    return dq, d_k_of_key, d_v_of_key


def _far_forward_slab(q, k_of_key, v_of_key, numbers, slab, chunks, work, call):
    """The vectors and row numbers of one slab; q is [batch * kv heads, group * rows, d]."""
    shape = slab.shape
    scale, _ = numbers
    peak = q.new_full((*shape[:3], 1), torch.finfo(q.dtype).min)
    rows = q.new_zeros((*shape[:3], 1))
    total = q.new_zeros((*q.shape[:2], v_of_key.shape[-1]))
    for chunk in chunks:
        k_of_key_tile = _far_flat(k_of_key[:, :, chunk.keys], q.dtype)
        v_of_key_tile = _far_flat(v_of_key[:, :, chunk.keys], q.dtype)
        score = _product(q, k_of_key_tile, work[0], shape, scale)
        _far_hide(score, chunk, -torch.inf, call)
        new_peak = torch.maximum(peak, score.amax(-1, keepdim=True))
        shrink = peak.sub_(new_peak).exp_()
        peak = new_peak
        weight = score.sub_(peak).exp_()
        rows.mul_(shrink).add_(weight.sum(-1, keepdim=True))
        total.mul_(_far_pairs(shrink, q)).baddbmm_(_far_pairs(weight, q), v_of_key_tile)
    out = total.mul_(_far_pairs(_reciprocal(rows), q))
    lse = peak + torch.log(rows)
    return out, lse


def _far_backward_slab(
    q,
    k_of_key,
    v_of_key,
    d_out,
    lse,
    delta,
    d_v_of_key,
    d_k_of_key_total,
    numbers,
    slab,
    chunks,
    work,
    call,
):
    """Gradients of one slab: returns those of rows and adds the others to their totals."""
    shape = slab.shape
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # rows without weights: all shares are 0
    scale, d_dot_factor = numbers
    dq_total = q.new_zeros((*q.shape[:2], q.shape[-1]))
    for chunk in chunks:
        k_of_key_tile = _far_flat(k_of_key[:, :, chunk.keys], q.dtype)
        v_of_key_tile = _far_flat(v_of_key[:, :, chunk.keys], q.dtype)
        score = _product(q, k_of_key_tile, work[0], shape, scale)
        d_share = _product(d_out, v_of_key_tile, work[1], shape)
        d_weight = d_share.sub_(delta)
        _far_hide(score, chunk, -torch.inf, call)
        weight = score.sub_(lse).exp_()
        d_v_of_key[:, chunk.keys].baddbmm_(_far_pairs(weight, q).mT, d_out)
        d_exponent = d_weight.mul_(weight)
        dq_total.baddbmm_(_far_pairs(d_exponent, q), k_of_key_tile)
        d_k_of_key_total[:, chunk.keys].baddbmm_(_far_pairs(d_exponent, q).mT, q)
    dq = dq_total * d_dot_factor
    return (dq,)


class _far_Slab(NamedTuple):
    """Rows that are computed together, and the positions of the first and the last of them."""

    entries: slice
    rows: slice
    first: int
    last: int
    shape: tuple  # batch entries, heads, rows


class _far_Chunk(NamedTuple):
    """Keys that a slab meets at once: their places, the first position, and those all rows see."""

    keys: slice
    start: int
    full: tuple
    rows: tuple

    @property
    def count(self):
        return self.keys.stop - self.keys.start


def _far_flat(x, dtype):
    """[batch, heads, ...] -> [batch * heads, ...], a view where strides allow."""
    return x.flatten(0, 1).to(dtype)


def _far_pairs(x, q):
    """[batch, heads, rows, ...] -> [batch * kv heads, group * rows, ...], as folded vectors lie."""
    return x.reshape(*q.shape[:2], x.shape[-1])


def _far_unrelated(first, stop, low, high, device, call):
    """The keys at positions low … high - 1 that are hidden from rows first … stop - 1."""
    i = torch.arange(first, stop, device=device)[:, None]
    j = torch.arange(low, high, device=device)
    return _far_related(i, j, call).logical_not_()


def _far_hide(x, chunk, fill, call):
    """Write `fill` where row and key are not related; keys that all rows see are passed over."""
    start, stop = chunk.start, chunk.start + chunk.count
    first, end = chunk.rows
    low, high = max(chunk.full[0], start), min(chunk.full[1], stop)
    for a, b in ((start, low), (high, stop)) if low < high else ((start, stop),):
        if a < b:
            hidden = _far_unrelated(first, end, a, b, x.device, call)
            x[..., a - start : b - start].masked_fill_(hidden, fill)
    return x


def _far_chunks(first, last, k_start, length, call):
    """The keys that rows first … last touch, cut into chunks; no key comes twice."""
    chunks = []
    done = 0
    for (start, stop), full in _far_segments(first, last, call):
        start, stop = max(start - k_start, done), min(stop - k_start, length)
        for key in range(start, stop, _MOST_KEYS):
            keys = slice(key, min(key + _MOST_KEYS, stop))
            chunks.append(_far_Chunk(keys, key + k_start, full, (first, last + 1)))
        if start < stop:  # an empty interval says nothing about those that follow
            done = stop
    return chunks


def _far_slabs(q, v, q_start, k_start, q_starts, kv_lengths, call):
    """Every slab with its chunks of keys; batch entries that stand alike share slabs."""
    batch, heads, n, _ = q.shape
    most = max(1, _SCORES // (heads * _SMALLEST))
    for entries, start, length in _groups(batch, v.shape[2], q_start, q_starts, kv_lengths, most):
        row = 0
        while row < n:
            rows = _MOST_ROWS
            while True:
                end = min(row + rows, n)
                first, last = start + row, start + end - 1
                chunks = _far_chunks(first, last, k_start, length, call)
                widest = max((chunk.count for chunk in chunks), default=0)
                scores = (entries.stop - entries.start) * heads * (end - row) * widest
                if scores <= _SCORES or rows <= _LEAST_ROWS:
                    break
                rows //= 2
            shape = (entries.stop - entries.start, heads, end - row)
            yield _far_Slab(entries, slice(row, end), first, last, shape), chunks
            row = end


def _far_own(x, slab):
    """What belongs to the slab's batch entries, where entries differ."""
    return x[slab.entries] if x.shape[0] > 1 else x


def _far_entries_of(numbers, slab):
    """The numbers of the slab's batch entries."""
    return tuple(_far_own(x, slab) if isinstance(x, Tensor) else x for x in numbers)


def _far_forward(
    q, k_of_key, v_of_key, scale, q_start, k_start, q_starts, kv_lengths, keep_residual
):
    """The vectors [batch, heads, n, e] and the saved numbers of rows [batch, heads, n]."""
    wide = _wide(q.dtype)
    outs = [q.new_empty(*q.shape[:3], v_of_key.shape[-1])]
    _on_large_pages(outs[0])
    outs += [q.new_empty(q.shape[:3], dtype=wide) for _ in range(1)]
    outs.append(q.new_empty(*q.shape[:3], v_of_key.shape[-1] if keep_residual else 0))
    numbers = _numbers(q, k_of_key, v_of_key, scale, kv_lengths)

    def run(q, k_of_key, v_of_key, numbers, call, store):
        work, kv_heads = None, v_of_key.shape[1]
        for slab, chunks in _far_slabs(q, v_of_key, q_start, k_start, q_starts, kv_lengths, call):
            work = _workspace(slab, chunks, q, 2, work)
            results = _far_forward_slab(
                _fold(q, slab, kv_heads), k_of_key[slab.entries], v_of_key[slab.entries],
                _far_entries_of(numbers, slab), slab, chunks, work, call,
            )  # fmt: skip
            if keep_residual:
                results += (results[0] - results[0].to(q.dtype),)
            store(slab, results)

    with torch.autocast(q.device.type, enabled=False):
        call = _Call(q.shape[2], v_of_key.shape[2], q.shape[1], 0)
        run(q, k_of_key, v_of_key, numbers, call, functools.partial(_store, outs))
    return tuple(outs)


def _far_backward(
    q,
    k_of_key,
    v_of_key,
    out,
    lse,
    residual,
    d_out,
    d_lse,
    scale,
    q_start,
    k_start,
    q_starts,
    kv_lengths,
):
    """The gradients of q, k_of_key and v_of_key."""
    wide = _wide(q.dtype)
    dq = q.new_empty(q.shape)
    d_k_of_key = k_of_key.new_zeros(k_of_key.shape, dtype=wide)
    d_v_of_key = v_of_key.new_zeros(v_of_key.shape, dtype=wide)
    numbers = _numbers(q, k_of_key, v_of_key, scale, kv_lengths)
    out = _unrounded(out, residual)

    def run(
        q, k_of_key, v_of_key, out, lse, d_out, d_lse, d_k_of_key, d_v_of_key, numbers, call, store
    ):
        work, kv_heads = None, v_of_key.shape[1]
        for slab, chunks in _far_slabs(q, v_of_key, q_start, k_start, q_starts, kv_lengths, call):
            work = _workspace(slab, chunks, q, 2, work)
            d_rows = _fold(d_out, slab, kv_heads)
            delta = (d_rows * _fold(out, slab, kv_heads)).sum(-1).view(*slab.shape, 1)
            delta -= _rows_of(d_lse, slab)
            results = _far_backward_slab(
                _fold(q, slab, kv_heads), k_of_key[slab.entries], v_of_key[slab.entries],
                d_rows, _rows_of(lse, slab), delta, d_v_of_key[slab.entries].flatten(0, 1),
                d_k_of_key[slab.entries].flatten(0, 1), _far_entries_of(numbers, slab), slab,
                chunks, work, call,
            )  # fmt: skip
            store(slab, results)

    grads = (dq,)
    with torch.autocast(q.device.type, enabled=False):
        call = _Call(q.shape[2], v_of_key.shape[2], q.shape[1], 0)
        run(
            q, k_of_key, v_of_key, out, lse, d_out, d_lse, d_k_of_key, d_v_of_key, numbers,
            call, functools.partial(_store, grads),
        )  # fmt: skip
        d_k_of_key.mul_(numbers[1])
    return dq, d_k_of_key.to(k_of_key.dtype), d_v_of_key.to(v_of_key.dtype)


def _far_scores(rows, keys):
    """[batch, heads, blocks, rows, d] and [batch, heads, blocks, keys, d] -> scores."""
    return torch.bmm(rows.flatten(0, 2), keys.flatten(0, 2).mT).view(*rows.shape[:4], keys.shape[3])


def _far_lifted(numbers):
    """Numbers of heads with an axis for blocks."""
    return tuple(x[:, :, None] if isinstance(x, Tensor) else x for x in numbers)


def _far_weights_of(q, k_of_key, i, j, hidden, numbers, call):
    """Weights of pairs, what they are divided by, and the numbers of rows, in plain operations."""
    scale, _ = numbers
    dot_qk_of_key = _far_scores(q, k_of_key)
    score = scale * dot_qk_of_key
    exponent_kept = score.masked_fill(hidden, -torch.inf)
    peak = _maximum(exponent_kept.detach().amax(-1, keepdim=True), torch.finfo(q.dtype).min)
    weight = torch.exp(exponent_kept - peak)
    rows = weight.sum(-1, keepdim=True)
    lse = peak + _safe_log(rows)
    return weight, rows, (lse,)


def _far_batched(q, k_of_key, v_of_key, scale, q_start, k_start, q_starts, kv_lengths):
    """What `_far_forward` returns, in memory that grows as rows times keys of a block."""
    batch, heads, n, _ = q.shape
    kv_heads, m = v_of_key.shape[1:3]
    dtype, wide, device = q.dtype, _wide(q.dtype), q.device
    numbers = _far_lifted(_numbers(q, k_of_key, v_of_key, scale, kv_lengths))
    call = _call_of(q, v_of_key)
    # Blocks enough for any n, so that n stays a free size when exported; lanes past n are dropped.
    blocks = n // _BLOCK + 2
    lane = torch.arange(_BLOCK, device=device)
    row = _BLOCK * torch.arange(blocks, device=device)[:, None] + lane  # [blocks, rows]

    first = q_start + row[None, :, 0]  # [batch or 1, blocks]
    if q_starts is not None:
        first = first + q_starts[:, None]
    i = first[..., None] + lane
    j = k_start + torch.arange(m, device=device)[None, None]
    place = j - k_start
    length = m if kv_lengths is None else kv_lengths.clamp(0, m)[:, None, None]
    seen = (place >= 0) & (place < length)  # [batch or 1, blocks, keys]
    kv_head = torch.arange(heads, device=device) // (heads // kv_heads)

    def blocked(x):  # [batch, heads, n, c] -> [batch, heads, blocks, rows, c]
        return x.to(wide)[:, :, row.clamp(max=n - 1)]

    def windows(x):  # [batch, kv heads, m, c] -> [batch, heads, blocks, keys, c]
        x = x.to(wide)[:, kv_head, None].masked_fill(~seen[:, None, :, :, None], 0)
        return x.expand(-1, -1, blocks, -1, -1)

    i, j = i[:, None, :, :, None], j[:, None, :, None, :]
    hidden = ~(_far_related(i, j, call) & seen[:, None, :, None, :])
    weight, norm, numbers_of_rows = _far_weights_of(
        blocked(q), windows(k_of_key), i, j, hidden, numbers, call
    )
    out = _sum(weight, windows(v_of_key))
    if norm is not None:
        out = out * _reciprocal(norm)

    def joined(x):  # [batch, heads, blocks, rows, c] -> [batch, heads, n, c]
        return x.flatten(2, 3).index_select(2, torch.arange(n, device=device))

    rest = (x.expand(batch, heads, blocks, _BLOCK, 1) for x in numbers_of_rows)
    return joined(out).to(dtype), *(joined(x)[..., 0] for x in rest)


def _far_operands(q, k_far, v_far, scale, q_start, k_start, q_starts, kv_lengths):
    """What the passes read: what each token and each distance determines alone."""
    batch = q.shape[0]
    kv_heads = k_far.shape[1]
    m = k_far.shape[2]
    dtype = q.dtype
    wide = _wide(dtype)
    device = q.device
    blocks = -(-m // 16)
    hidden = _hidden(kv_lengths, m, device)
    k_far_wide = _seen(k_far.to(wide), hidden)
    k_of_key = _vectors(_pooled(k_far_wide, 32, 16, m, hidden), batch, kv_heads, blocks, dtype)
    v_far_wide = _seen(v_far.to(wide), hidden)
    v_of_key = _vectors(_pooled(v_far_wide, 32, 16, m, hidden), batch, kv_heads, blocks, dtype)
    return q, k_of_key, v_of_key


def _far_forward_in_kernels(*args):
    """`_far_launch_forward`, of 256 features of values at a time."""
    if args[2].shape[-1] <= 256:
        return _far_launch_forward(*args)
    values = args[2].split(256, -1)
    found = [_far_launch_forward(*args[:2], part, *args[3:]) for part in values]
    return tuple(
        torch.cat(parts, -1) if at in (0, 2) else parts[0]
        for at, parts in enumerate(zip(*found, strict=True))
    )


def _far_backward_in_kernels(*args):
    """`_far_launch_backward` in the same way: gradients of values are joined, others added."""
    width, found = args[2].shape[-1], []
    if width <= 256:
        return _far_launch_backward(*args)
    for start in range(0, width, 256):
        own = list(args)
        for at in (2, 3, 5, 6):
            own[at] = args[at][..., start : start + 256]
        if start:
            own[7] = torch.zeros_like(args[7])
        found.append(_far_launch_backward(*own))
    return tuple(
        torch.cat(parts, -1) if at == 2 else functools.reduce(torch.add, parts)
        for at, parts in enumerate(zip(*found, strict=True))
    )


def _far_run(
    q, k_of_key, v_of_key, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual
):
    run = _far_forward if form == "torch" else _far_forward_in_kernels
    return run(q, k_of_key, v_of_key, scale, q_start, k_start, q_starts, kv_lengths, keep_residual)


def _far_run_backward(*args):
    *args, form = args
    run = _far_backward if form == "torch" else _far_backward_in_kernels
    return run(*args)


class _far_Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        q, k_of_key, v_of_key, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual
    ):
        return _far_run(
            q,
            k_of_key,
            v_of_key,
            scale,
            q_start,
            k_start,
            q_starts,
            kv_lengths,
            form,
            keep_residual,
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k_of_key, v_of_key, *ctx.numbers, q_starts, kv_lengths, ctx.form, _ = inputs
        ctx.save_for_backward(q, k_of_key, v_of_key, *output, q_starts, kv_lengths)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        grads = _far_Gradient.apply(
            *saved, d_out, d_statistics[0], *ctx.numbers, q_starts, kv_lengths, ctx.form
        )
        return *grads, *(None,) * (len(ctx.numbers) + 4)

    @staticmethod
    def vmap(info, in_dims, *args):
        *args, keep_residual = args  # only here is it seen whether what is mapped has gradients
        args = (*args, keep_residual or _keeps_residual(*args[:3]))
        return _fold_vmap(_far_Attention, info, in_dims, args)


class _far_Gradient(torch.autograd.Function):
    """The backward pass; its own derivative comes from the plain operations of `_far_batched`."""

    @staticmethod
    def forward(*args):
        return _far_run_backward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *saved, ctx.form = inputs
        ctx.numbers = saved[-5:-2]
        gradients = saved[-7:-5]
        ctx.save_for_backward(*saved[:3], *gradients, *saved[-2:])

    @staticmethod
    def backward(ctx, *grads):
        q, k_of_key, v_of_key, *gradients, q_starts, kv_lengths = ctx.saved_tensors

        def differentiable(q, k_of_key, v_of_key):
            outs = _far_batched(q, k_of_key, v_of_key, *ctx.numbers, q_starts, kv_lengths)
            return (outs[0], outs[1])

        def gradient(q, k_of_key, v_of_key, *gradients):
            return torch.func.vjp(differentiable, q, k_of_key, v_of_key)[1](gradients)

        inputs = q, k_of_key, v_of_key, *gradients
        dq, d_k_of_key, d_v_of_key, *d_gradients = torch.func.vjp(gradient, *inputs)[1](grads)
        return dq, d_k_of_key, d_v_of_key, *(None,) * 3, *d_gradients, *(None,) * 6

    @staticmethod
    def vmap(info, in_dims, *args):
        return _fold_vmap(_far_Gradient, info, in_dims, args)


# Under torch.compile and torch.export the two passes are operators, opaque to the compiler.
_far_OPERATOR = "nsa_far_ec9d7ebe"


def _far_register():
    places = "SymInt q_start, SymInt k_start, Tensor? q_starts, Tensor? kv_lengths"
    numbers = f"float scale, {places}, str form"
    inputs = "Tensor q, Tensor k_of_key, Tensor v_of_key"
    _library.define(
        f"{_far_OPERATOR}({inputs}, {numbers}, bool keep_residual) -> (Tensor, Tensor, Tensor)"
    )
    statistics = "Tensor lse, Tensor residual, "
    saved = f"Tensor out, {statistics}Tensor d_out, Tensor d_lse"
    gradients = "(Tensor, Tensor, Tensor)"
    _library.define(f"{_far_OPERATOR}_far_backward({inputs}, {saved}, {numbers}) -> {gradients}")
    _library.impl(_far_OPERATOR, _far_run, "CompositeExplicitAutograd")
    _library.impl(f"{_far_OPERATOR}_far_backward", _far_run_backward, "CompositeExplicitAutograd")

    @torch.library.register_fake(f"attncc::{_far_OPERATOR}", lib=_library)
    def _(q, k_of_key, v_of_key, *numbers):
        out = q.new_empty(*q.shape[:3], v_of_key.shape[-1])
        return (
            out,
            q.new_empty(q.shape[:3], dtype=_wide(q.dtype)),
            q.new_empty(*q.shape[:3], v_of_key.shape[-1] if numbers[-1] else 0),
        )

    @torch.library.register_fake(f"attncc::{_far_OPERATOR}_far_backward", lib=_library)
    def _(q, k_of_key, v_of_key, *rest):
        return (
            q.new_empty(q.shape),
            k_of_key.new_empty(k_of_key.shape),
            v_of_key.new_empty(v_of_key.shape),
        )

    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        run = getattr(torch.ops.attncc, f"{_far_OPERATOR}_far_backward")
        grads = run(*saved, d_out, d_statistics[0], *ctx.numbers, q_starts, kv_lengths, ctx.form)
        return *grads, *(None,) * (len(ctx.numbers) + 4)

    def setup_context(ctx, inputs, output):
        _far_Attention.setup_context(ctx, inputs, output)

    torch.library.register_autograd(
        f"attncc::{_far_OPERATOR}", backward, setup_context=setup_context, lib=_library
    )


if not hasattr(torch.ops.attncc, _far_OPERATOR):  # a copy of this file may have been loaded already
    _far_register()


def _far_check(q, k_far, v_far, kv_lengths, q_start, k_start):
    """Refuse what the kernels would misread, with the argument's name."""
    for name, x in (("q", q), ("k_far", k_far), ("v_far", v_far)):
        _expect(not x.is_nested, name, "nested", "a dense tensor")
        _expect(x.layout == torch.strided, name, x.layout, "a dense tensor")
        _expect(x.dim() == 4, name, list(x.shape), "four axes: [batch, heads, length, width]")
        _expect(x.dtype in _DTYPES, name, x.dtype, "float64, float32, bfloat16 or float16")
        _expect(x.dtype == q.dtype, name, x.dtype, f"the dtype of q, {q.dtype}")
        _expect(x.device == q.device, name, f"on {x.device}", f"the device of q, {q.device}")
    batch, heads, _, width = q.shape
    shapes = f"q {list(q.shape)}, k_far {list(k_far.shape)}, v_far {list(v_far.shape)}"
    _expect(
        k_far.shape[0] == batch and v_far.shape[0] == batch,
        "the batch",
        shapes,
        "one size in q, k_far and v_far",
    )
    _expect(heads > 0 and k_far.shape[1] > 0, "the number of heads", shapes, "one or more")
    _expect(
        heads % k_far.shape[1] == 0,
        "the number of heads",
        shapes,
        "q's to be a multiple of k_far's",
    )
    _expect(
        v_far.shape[1:3] == k_far.shape[1:3],
        "v_far",
        list(v_far.shape),
        f"the heads and length of k_far {list(k_far.shape)}",
    )
    _expect(k_far.shape[3] == width, "k_far", list(k_far.shape), f"the width of q, {width}")
    _expect(1 <= width <= 256, "the width", shapes, "1 … 256")
    _expect(v_far.shape[3] > 0, "the width", shapes, "1 or more")
    for name, x in (("kv_lengths", kv_lengths), ("q_start", q_start)):
        if isinstance(x, Tensor):
            _expect(
                x.shape == (batch,),
                name,
                list(x.shape),
                f"one number for each of {batch} batch entries",
            )
            _expect(
                not x.is_floating_point() and x.dtype != torch.bool, name, x.dtype, "whole numbers"
            )
            _expect(x.device == q.device, name, f"on {x.device}", f"the device of q, {q.device}")
        elif x is not None:
            _expect_number(name, x, 0 if name == "kv_lengths" else -(2**31))
    _expect_number("k_start", k_start, 0)


def _far_prepared(q, k_far, v_far, scale, kv_lengths, q_start, k_start):
    """The arguments as the passes take them; a position is a number and an offset a batch entry."""
    _expect_tensors(q=q, k_far=k_far, v_far=v_far)
    device = q.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        q, k_far, v_far = (x.to(torch.get_autocast_dtype(device)) for x in (q, k_far, v_far))
    _far_check(q, k_far, v_far, kv_lengths, q_start, k_start)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    if not isinstance(scale, (int, float)) or not abs(scale) < float("inf"):
        raise ValueError(f"nsa: scale is {scale!r}, expected a finite number")
    scale = float(scale)
    if isinstance(kv_lengths, int):
        kv_lengths = torch.full((q.shape[0],), kv_lengths, device=q.device)
    q_starts = None
    if q_start is None:
        q_start = k_start + k_far.shape[2] - q.shape[2]
    elif isinstance(q_start, Tensor):
        q_start, q_starts = 0, q_start
    return q, k_far, v_far, scale, q_start, k_start, q_starts, kv_lengths


def _far(
    q: Tensor,
    k_far: Tensor,
    v_far: Tensor,
    *,
    scale: float | None = None,
    kv_lengths: int | Tensor | None = None,
    q_start: int | Tensor | None = None,
    k_start: int = 0,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    form: str | None = None,
):
    """Native sparse attention: means of blocks, the blocks of keys that get most of these, and a
    window, each times a gate

    Args:
        q: [batch, heads, n, d], float32, bfloat16, float16 or (not in Triton) float64; d up to 256.
        k_far: [batch, kv heads, m, d], given; float32 or as q.
        v_far: [batch, kv heads, m, e], given; float32 or as q.
        scale: the `scale` of the spec; 1 / sqrt(d) by default.
        kv_lengths: how many keys each batch entry has, one number or [batch]; others are hidden.
        q_start: the position of the first row, one number or [batch];
            so that rows and keys end together by default.
        k_start: the position of the first key.
        return_lse: also return the natural logarithm of each row's normaliser.
        form: "triton", "c" or "torch"; by default Triton runs on GPUs and C on CPUs, if they can.

    Returns:
        [batch, heads, n, e]; rows without keys are 0.
        With return_lse also [batch, heads, n], -inf for rows without weights.

    Raises:
        ValueError: an argument whose shape, dtype or device does not fit, with its name.
    """
    _expect(dropout_p == 0.0, "dropout_p", dropout_p, "0.0: dropout is not supported")
    prepared = _far_prepared(q, k_far, v_far, scale, kv_lengths, q_start, k_start)
    prepared = *_far_operands(*prepared), *_on_blocks(16, *prepared[3:])
    form = _form(form, prepared[0])
    keep_residual = _keeps_residual(*prepared[:3])
    if not torch.compiler.is_compiling() and not _is_shape_only(prepared[0]):
        outs = _far_Attention.apply(*prepared, form, keep_residual)
    else:
        outs = getattr(torch.ops.attncc, _far_OPERATOR)(*prepared, form, keep_residual)
    return (outs[0], outs[1]) if return_lse else outs[0]


def _far_weights(
    q, k_far, v_far, *, rows=slice(None), scale=None, kv_lengths=None, q_start=None, k_start=0
):
    """The weights of some rows over their normalisers, [batch, heads, rows, m]: for pictures."""
    _expect(isinstance(rows, slice), "rows", repr(rows), "a slice, such as slice(0, 4)")
    prepared = _far_prepared(q, k_far, v_far, scale, kv_lengths, q_start, k_start)
    prepared = *_far_operands(*prepared), *_on_blocks(16, *prepared[3:])
    q, k_of_key, v_of_key, scale, q_start, k_start, q_starts, kv_lengths = prepared
    heads, kv_heads, m = q.shape[1], k_of_key.shape[1], k_of_key.shape[2]
    wide, device = _wide(q.dtype), q.device
    row = torch.arange(q.shape[2], device=device)[rows]
    if not m:
        return q.new_empty(q.shape[0], heads, len(row), 0, dtype=wide)
    i = row + q_start
    i = i[None] if q_starts is None else i + q_starts[:, None]
    place = torch.arange(m, device=device)
    length = m if kv_lengths is None else kv_lengths.clamp(0, m)[:, None, None, None, None]
    i, j = i[:, None, None, :, None], place[None, None, None, None] + k_start
    seen = place[None, None, None, None] < length
    call = _call_of(q, k_of_key)
    hidden = ~(_far_related(i, j, call) & seen)
    kv_head = torch.arange(heads, device=device) // (heads // kv_heads)

    def own(x):  # [batch, heads, n, c] -> [batch, heads, 1, rows, c]
        return x.to(wide)[:, :, None, rows]

    def windows(x):  # [batch, kv heads, m, c] -> [batch, heads, 1, m, c]
        return x.to(wide)[:, kv_head, None].masked_fill(~seen.transpose(-1, -2), 0)

    numbers = _far_lifted(_numbers(q, k_of_key, v_of_key, scale, kv_lengths))
    weight, norm, _ = _far_weights_of(own(q), windows(k_of_key), i, j, hidden, numbers, call)
    weight = weight if norm is None else weight * _reciprocal(norm)
    return weight[:, :, 0]


_far_TOKENS = {"k_far": 2, "v_far": 2}  # which axis of what keys have is that of the tokens


@dataclasses.dataclass
class _FarCache:
    """What later tokens may ask for.

    It keeps every key so far as it was given, and blocks that are full; choices are made anew.
    Tensors and numbers alone: `torch.save` writes it, `to` moves it. A new one is that of no token.
    """

    position: int = 0  # of the next token
    keys: tuple = ()  # k_far and v_far of tokens, with room for more
    blocks: dict = dataclasses.field(default_factory=dict)  # how many are full, and what they have

    def to(self, device):
        """The same on another device."""
        keys = tuple(x.to(device) for x in self.keys)
        blocks = {
            name: (full, tuple(x.to(device) for x in held))
            for name, (full, held) in self.blocks.items()
        }
        return _FarCache(self.position, keys, blocks)


def _far_remember(cache, new):
    """Add what new tokens have."""
    position, known = cache.position, cache.keys or new
    kept = []
    for name, before, x in zip(("k_far", "v_far"), known, new, strict=True):
        axis = _far_TOKENS[name]
        found, expected = (
            (*each.shape[:axis], *each.shape[axis + 1 :], each.dtype, each.device)
            for each in (x, before)
        )
        _expect(
            found == expected,
            f"what is new in {name}",
            found,
            f"batch, heads, width and so on of the cache, {expected}",
        )
        fresh = x.shape[axis]
        if not cache.keys or position + fresh > before.shape[axis]:
            room = max(2 * (position + fresh), _ROOM)
            held = before.narrow(axis, 0, position)
            before = x.new_empty(*x.shape[:axis], room, *x.shape[axis + 1 :])
            before.narrow(axis, 0, position).copy_(held)
        before.narrow(axis, position, fresh).copy_(x)
        kept.append(before)
    cache.keys, cache.position = tuple(kept), position + fresh


@torch.no_grad()
def _far_step(
    q: Tensor,
    k_far: Tensor,
    v_far: Tensor,
    cache: _FarCache,
    *,
    scale: float | None = None,
    return_lse: bool = False,
):
    """The next token of a sequence, or several, after those of a cache.

    Args:
        q, k_far, v_far: as in `attention`, of the new tokens alone.
        cache: a new one, or that of the tokens before; it is changed.

    Returns:
        The rows that `attention` gives these tokens in the whole sequence, and the cache.
        With return_lse the logarithms of their normalisers stand in between.
    """
    _expect(
        isinstance(cache, _FarCache), "cache", type(cache).__name__, "a _FarCache of this module"
    )
    _far_prepared(
        q, k_far, v_far, scale, None, cache.position, cache.position
    )  # refuses what does not fit
    _expect(
        k_far.shape[2] == q.shape[2],
        "the number of keys",
        k_far.shape[2],
        f"one for each of {q.shape[2]} rows",
    )
    start = cache.position
    _far_remember(cache, (k_far, v_far))
    k_far, v_far = (
        x.narrow(_far_TOKENS[name], 0, cache.position)
        for name, x in zip(("k_far", "v_far"), cache.keys, strict=True)
    )
    # Another dict, so that a step that is refused leaves the cache as it was.
    kept = dict(cache.blocks)
    prepared = _far_prepared(q, k_far, v_far, scale, None, start, 0)
    prepared = (
        *_kept_blocks(kept, "keys", _far_operands, 32, 16, (None, 2, 2), (1, 2), prepared),
        *_on_blocks(16, *prepared[3:]),
    )
    outs = _far_run(*prepared, _form(None, prepared[0]), False)
    cache.blocks = kept
    out, lse = outs[0], outs[1]
    return (out, lse, cache) if return_lse else (out, cache)


@torch.no_grad()
def _far_prefill(
    q: Tensor,
    k_far: Tensor,
    v_far: Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
    form: str | None = None,
):
    """`attention` on the first tokens of a sequence, and the cache from which `step` goes on.

    Args:
        q, k_far, v_far: as in `attention`, with as many rows as keys.
        form: "triton" or "torch", as in `attention`.
    """
    _expect_tensors(q=q, k_far=k_far, v_far=v_far)
    _expect(
        k_far.shape[2] == q.shape[2],
        "the number of keys",
        k_far.shape[2],
        f"one for each of {q.shape[2]} rows",
    )
    out, lse = _far(q, k_far, v_far, scale=scale, return_lse=True, form=form)
    cache = _FarCache()
    _far_remember(cache, (k_far, v_far))
    return (out, lse, cache) if return_lse else (out, cache)


# --- the branch `fine`: j <= i & (blocks | j // 64 == 0 | i // 64 - j // 64 <= 1) -----------------
# How the kernels follow from the spec:
# - once-a-token: what one token or one distance determines alone is computed once for it, not
#   once for each pair.
# - defer-division: sum_j (w_ij / N_i) v_j = (sum_j w_ij v_j) / N_i.
# - common-peak: sum_j exp(s_ij) v_j / sum_j exp(s_ij) is unchanged when every s_ij is lowered by
#   the same number of the row.
# - restrict-range: a sum over all keys is the sum over those that some row of the tile is related
#   to: the rest adds 0.
# - split-union: P = A | B is A, and B without A; each has its own layout, and the sums of a row
#   go on from one to the next.
# - list-tiles: when data are known, the tiles of keys that a tile of rows meets are listed; no
#   others are visited.
# - one-sweep: sums over the same keys are taken in one pass; when the running peak rises, they
#   are rescaled.


def _fine_segments(first, last, call):
    """Intervals of positions that rows first … last touch, each with the part all of them see."""
    return (((-_FAR, last + 1), (0, 0)),)


def _fine_related(i, j, blocks_of_row, call):
    """The pattern: j <= i & (blocks | j // 64 == 0 | i // 64 - j // 64 <= 1)"""
    return (j <= i) & (
        _is_among(j // 64, blocks_of_row) | (j // 64 == 0) | (i // 64 - j // 64 <= 1)
    )


if triton is not None:

    @triton.jit
    def _lists_at(start, LANES: tl.constexpr):
        """Where the lists of [LANES] consecutive rows begin."""
        return start + tl.arange(0, LANES)

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

    @triton.jit
    def _forward_tile_1(
        peak, rows, total, q, blocks_of_row_at,
        k_ptr, v_ptr, k_stride, v_stride,
        i, column, k_start, keys, scale_log2, blocks_of_row_size_2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = column_lanes < keys
        j = k_start + column_lanes
        k = _load_tile(k_ptr, k_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk = _dot(q, tl.trans(k), None, PRECISION)
        exponent = scale_log2 * dot_qk
        if MASKED:
            related = (
                ((j[None, :] <= i[:, None]) & (_floor_divide(j[None, :], 64) == 0))
                | (
                    (j[None, :] <= i[:, None])
                    & (_floor_divide(i[:, None], 64) - _floor_divide(j[None, :], 64) <= 1)
                )
            ) & visible[None, :]
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        old_peak = peak
        peak = tl.maximum(peak, tl.max(exponent, 1))
        shrink = tl.exp2(old_peak - peak)
        weight = tl.exp2(exponent - peak[:, None])
        rows = rows * shrink + tl.sum(weight, 1)
        v = _load_tile(v_ptr, v_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        total = _dot(weight.to(v.dtype), v, total * shrink[:, None], PRECISION)
        return peak, rows, total

    @triton.jit(do_not_specialize=["n", "m", "k_start", "lists"])
    def _forward_kernel_1(
        q_ptr, blocks_of_row_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, residual_ptr, peak_state_ptr,
        rows_state_ptr, total_state_ptr,
        q_start_ptr, kv_lengths_ptr, begins_ptr, met_ptr,
        q_strides, k_strides, v_strides,
        n, m, k_start, lists, scale_log2, blocks_of_row_size_2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, LIST_M: tl.constexpr, LIST_N: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK_M  # first row of the tile
        head = tl.program_id(1)
        batch = tl.program_id(2)
        heads = tl.num_programs(1)
        row_lanes = row + tl.arange(0, BLOCK_M)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))
        PARTS: tl.constexpr = LIST_N // BLOCK_N  # tiles in one that lists name
        entry = batch * heads + head
        blocks_of_row_lists = blocks_of_row_ptr + tl.cast(entry, tl.int64) * (
            13 * blocks_of_row_size_2
        )

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        q_ptr += tl.cast(batch, tl.int64) * q_strides[0] + tl.cast(head, tl.int64) * q_strides[1]
        q_ptr += tl.cast(row, tl.int64) * q_strides[2]
        k_ptr += (
            tl.cast(batch, tl.int64) * k_strides[0]
            + tl.cast(head // GROUP, tl.int64) * k_strides[1]
        )
        v_ptr += (
            tl.cast(batch, tl.int64) * v_strides[0]
            + tl.cast(head // GROUP, tl.int64) * v_strides[1]
        )
        k_step = tl.cast(k_strides[2], tl.int64) * BLOCK_N
        v_step = tl.cast(v_strides[2], tl.int64) * BLOCK_N
        first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row

        visible = row_lanes < n
        blocks_of_row_at = _lists_at(blocks_of_row_lists + row, BLOCK_M)
        q = _load_tile(q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D, True)
        i = q_start + row_lanes

        # Tiles of keys that the tile's rows meet: met[begin] … met[end - 1].
        number = entry * lists + row // LIST_M
        begin = tl.load(begins_ptr + number)
        end = tl.load(begins_ptr + number + 1)

        peak = tl.full([BLOCK_M], -3.4028234663852886e38, tl.float32)
        rows = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
        for step in range(begin * PARTS, end * PARTS):
            tile = tl.load(met_ptr + step // PARTS) * PARTS + step % PARTS
            peak, rows, total = _forward_tile_1(
                peak, rows, total, q, blocks_of_row_at,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                i, tile * BLOCK_N, k_start, keys, scale_log2, blocks_of_row_size_2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip

        tl.store(peak_state_ptr + first_vector + tl.arange(0, BLOCK_M), peak, mask=visible)
        tl.store(rows_state_ptr + first_vector + tl.arange(0, BLOCK_M), rows, mask=visible)
        _store_tile(total_state_ptr + first_vector * E, visible, total, BLOCK_M, E, BLOCK_E)

    @triton.jit
    def _backward_columns_tile_1(
        dv, dk_total, k, v,
        q_ptr, d_out_ptr, lse_ptr, delta_ptr, blocks_of_row_ptr, q_stride, d_out_stride,
        j, row, q_start, n, scale_log2, blocks_of_row_size_2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        row_lanes = row + tl.arange(0, BLOCK_M)
        visible = row_lanes < n
        i = q_start + row_lanes
        lse = _load_numbers(lse_ptr, visible, float("-inf"), BLOCK_M, MASKED)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        lse_2 = 1.4426950408889634 * lse
        q = _load_tile(q_ptr, q_stride, visible, BLOCK_M, D, BLOCK_D, MASKED)
        dot_qk = _dot(k, tl.trans(q), None, PRECISION)
        d_out = _load_tile(d_out_ptr, d_out_stride, visible, BLOCK_M, E, BLOCK_E, MASKED)
        d_share = _dot(v, tl.trans(d_out), None, PRECISION)
        delta = _load_numbers(delta_ptr, visible, 0.0, BLOCK_M, MASKED)
        d_weight = d_share - delta[None, :]
        exponent = scale_log2 * dot_qk
        if MASKED:
            related = (
                ((j[:, None] <= i[None, :]) & (_floor_divide(j[:, None], 64) == 0))
                | (
                    (j[:, None] <= i[None, :])
                    & (_floor_divide(i[None, :], 64) - _floor_divide(j[:, None], 64) <= 1)
                )
            ) & visible[None, :]
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        weight = tl.exp2(exponent - lse_2[None, :])
        d_exponent = d_weight * weight
        dv = _dot(weight.to(d_out.dtype), d_out, dv, PRECISION)
        dk_total = _dot(d_exponent.to(q.dtype), q, dk_total, PRECISION)
        return dv, dk_total

    @triton.jit(do_not_specialize=["n", "m", "k_start", "lists"])
    def _backward_columns_kernel_1(
        k_ptr, v_ptr, q_ptr, d_out_ptr, blocks_of_row_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
        q_start_ptr, kv_lengths_ptr, begins_ptr, met_ptr,
        k_strides, v_strides, q_strides, d_out_strides,
        n, m, k_start, lists, d_dot_factor, scale_log2, blocks_of_row_size_2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, LIST_M: tl.constexpr, LIST_N: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        column = tl.program_id(0) * BLOCK_N  # first key of the tile
        kv_head = tl.program_id(1)
        batch = tl.program_id(2)
        kv_heads = tl.num_programs(1)
        heads = kv_heads * GROUP
        column_lanes = column + tl.arange(0, BLOCK_N)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))
        PARTS: tl.constexpr = LIST_M // BLOCK_M  # tiles in one that lists name

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        k_ptr += tl.cast(batch, tl.int64) * k_strides[0] + tl.cast(kv_head, tl.int64) * k_strides[1]
        k_ptr += tl.cast(column, tl.int64) * k_strides[2]
        v_ptr += tl.cast(batch, tl.int64) * v_strides[0] + tl.cast(kv_head, tl.int64) * v_strides[1]
        v_ptr += tl.cast(column, tl.int64) * v_strides[2]
        q_step = tl.cast(q_strides[2], tl.int64) * BLOCK_M
        d_out_step = tl.cast(d_out_strides[2], tl.int64) * BLOCK_M
        first_vector = (tl.cast(batch, tl.int64) * kv_heads + kv_head) * m + column

        # Keys that no row can see are not read, and their gradients are 0.
        seen = column_lanes < keys
        k = _load_tile(k_ptr, k_strides[2], seen, BLOCK_N, D, BLOCK_D, True)
        v = _load_tile(v_ptr, v_strides[2], seen, BLOCK_N, E, BLOCK_E, True)
        j = k_start + column_lanes

        dv = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
        dk_total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
        for head in range(kv_head * GROUP, kv_head * GROUP + GROUP):
            q_head_ptr = (
                q_ptr
                + tl.cast(batch, tl.int64) * q_strides[0]
                + tl.cast(head, tl.int64) * q_strides[1]
            )
            d_out_head_ptr = (
                d_out_ptr
                + tl.cast(batch, tl.int64) * d_out_strides[0]
                + tl.cast(head, tl.int64) * d_out_strides[1]
            )
            statistics = (tl.cast(batch, tl.int64) * heads + head) * n
            entry = batch * heads + head
            blocks_of_row_lists = blocks_of_row_ptr + tl.cast(entry, tl.int64) * (
                13 * blocks_of_row_size_2
            )
            # Tiles of rows that meet the tile's keys: met[begin] … met[end - 1].
            number = entry * lists + column // LIST_N
            begin = tl.load(begins_ptr + number)
            end = tl.load(begins_ptr + number + 1)
            for step in range(begin * PARTS, end * PARTS):
                tile = tl.load(met_ptr + step // PARTS) * PARTS + step % PARTS
                dv, dk_total = _backward_columns_tile_1(
                    dv, dk_total, k, v,
                    q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    blocks_of_row_lists + tile * BLOCK_M, q_strides[2], d_out_strides[2],
                    j, tile * BLOCK_M, q_start, n, scale_log2, blocks_of_row_size_2,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
                )  # fmt: skip
        dk = dk_total * d_dot_factor
        dk = tl.where(seen[:, None], dk, 0.0) + _load_tile(
            dk_ptr + first_vector * D, D, column_lanes < m, BLOCK_N, D, BLOCK_D, True
        )
        _store_tile(dk_ptr + first_vector * D, column_lanes < m, dk, BLOCK_N, D, BLOCK_D)
        dv = tl.where(seen[:, None], dv, 0.0) + _load_tile(
            dv_ptr + first_vector * E, E, column_lanes < m, BLOCK_N, E, BLOCK_E, True
        )
        _store_tile(dv_ptr + first_vector * E, column_lanes < m, dv, BLOCK_N, E, BLOCK_E)

    @triton.jit
    def _backward_rows_tile_1(
        dq_total, q, d_out, delta, blocks_of_row_at, lse_2,
        k_ptr, v_ptr, k_stride, v_stride,
        i, column, k_start, keys, scale_log2, blocks_of_row_size_2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = column_lanes < keys
        j = k_start + column_lanes
        k = _load_tile(k_ptr, k_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk = _dot(q, tl.trans(k), None, PRECISION)
        v = _load_tile(v_ptr, v_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        d_share = _dot(d_out, tl.trans(v), None, PRECISION)
        d_weight = d_share - delta[:, None]
        exponent = scale_log2 * dot_qk
        if MASKED:
            related = (
                ((j[None, :] <= i[:, None]) & (_floor_divide(j[None, :], 64) == 0))
                | (
                    (j[None, :] <= i[:, None])
                    & (_floor_divide(i[:, None], 64) - _floor_divide(j[None, :], 64) <= 1)
                )
            ) & visible[None, :]
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        weight = tl.exp2(exponent - lse_2[:, None])
        d_exponent = d_weight * weight
        dq_total = _dot(d_exponent.to(k.dtype), k, dq_total, PRECISION)
        return dq_total

    @triton.jit(do_not_specialize=["n", "m", "k_start", "lists"])
    def _backward_rows_kernel_1(
        q_ptr, d_out_ptr, blocks_of_row_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, dq_ptr,
        q_start_ptr, kv_lengths_ptr, begins_ptr, met_ptr,
        q_strides, d_out_strides, k_strides, v_strides,
        n, m, k_start, lists, d_dot_factor, scale_log2, blocks_of_row_size_2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, LIST_M: tl.constexpr, LIST_N: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK_M  # first row of the tile
        head = tl.program_id(1)
        batch = tl.program_id(2)
        heads = tl.num_programs(1)
        row_lanes = row + tl.arange(0, BLOCK_M)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))
        PARTS: tl.constexpr = LIST_N // BLOCK_N  # tiles in one that lists name
        entry = batch * heads + head
        blocks_of_row_lists = blocks_of_row_ptr + tl.cast(entry, tl.int64) * (
            13 * blocks_of_row_size_2
        )

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        q_ptr += tl.cast(batch, tl.int64) * q_strides[0] + tl.cast(head, tl.int64) * q_strides[1]
        q_ptr += tl.cast(row, tl.int64) * q_strides[2]
        d_out_ptr += (
            tl.cast(batch, tl.int64) * d_out_strides[0] + tl.cast(head, tl.int64) * d_out_strides[1]
        )
        d_out_ptr += tl.cast(row, tl.int64) * d_out_strides[2]
        k_ptr += (
            tl.cast(batch, tl.int64) * k_strides[0]
            + tl.cast(head // GROUP, tl.int64) * k_strides[1]
        )
        v_ptr += (
            tl.cast(batch, tl.int64) * v_strides[0]
            + tl.cast(head // GROUP, tl.int64) * v_strides[1]
        )
        k_step = tl.cast(k_strides[2], tl.int64) * BLOCK_N
        v_step = tl.cast(v_strides[2], tl.int64) * BLOCK_N
        first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row

        visible = row_lanes < n
        blocks_of_row_at = _lists_at(blocks_of_row_lists + row, BLOCK_M)
        q = _load_tile(q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D, True)
        d_out = _load_tile(d_out_ptr, d_out_strides[2], visible, BLOCK_M, E, BLOCK_E, True)
        lse = _load_numbers(lse_ptr + first_vector, visible, float("-inf"), BLOCK_M, True)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        delta = _load_numbers(delta_ptr + first_vector, visible, 0.0, BLOCK_M, True)
        i = q_start + row_lanes
        lse_2 = 1.4426950408889634 * lse

        # Tiles of keys that the tile's rows meet: met[begin] … met[end - 1].
        number = entry * lists + row // LIST_M
        begin = tl.load(begins_ptr + number)
        end = tl.load(begins_ptr + number + 1)

        dq_total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for step in range(begin * PARTS, end * PARTS):
            tile = tl.load(met_ptr + step // PARTS) * PARTS + step % PARTS
            dq_total = _backward_rows_tile_1(
                dq_total, q, d_out, delta, blocks_of_row_at, lse_2,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                i, tile * BLOCK_N, k_start, keys, scale_log2, blocks_of_row_size_2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip

        dq = dq_total * d_dot_factor
        dq = dq + _load_tile(dq_ptr + first_vector * D, D, visible, BLOCK_M, D, BLOCK_D, True)
        _store_tile(dq_ptr + first_vector * D, visible, dq, BLOCK_M, D, BLOCK_D)

    @triton.jit
    def _forward_tile_2(
        peak, rows, total, q, blocks_of_row_at,
        k_ptr, v_ptr, k_stride, v_stride,
        i, column, k_start, keys, scale_log2, blocks_of_row_size_2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = column_lanes < keys
        j = k_start + column_lanes
        k = _load_tile(k_ptr, k_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk = _dot(q, tl.trans(k), None, PRECISION)
        exponent = scale_log2 * dot_qk
        if MASKED:
            blocks_of_row_names_first = _floor_divide(tl.min(j, 0), 64)
            in_first = _is_named(
                tl.zeros([BLOCK_M], tl.int32) + blocks_of_row_names_first,
                blocks_of_row_at,
                13,
                blocks_of_row_size_2,
            )
            blocks_of_row_names_last = _floor_divide(tl.max(j, 0), 64)
            in_last = _is_named(
                tl.zeros([BLOCK_M], tl.int32) + blocks_of_row_names_last,
                blocks_of_row_at,
                13,
                blocks_of_row_size_2,
            )
            blocks_of_row_names = tl.where(
                _floor_divide(j[None, :], 64) == blocks_of_row_names_first,
                in_first[:, None],
                in_last[:, None],
            )
            related = (
                ((j[None, :] <= i[:, None]) & blocks_of_row_names)
                & (
                    ((j[None, :] > i[:, None]) | (_floor_divide(j[None, :], 64) != 0))
                    & (
                        (j[None, :] > i[:, None])
                        | (_floor_divide(i[:, None], 64) - _floor_divide(j[None, :], 64) > 1)
                    )
                )
                & visible[None, :]
            )
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        old_peak = peak
        peak = tl.maximum(peak, tl.max(exponent, 1))
        shrink = tl.exp2(old_peak - peak)
        weight = tl.exp2(exponent - peak[:, None])
        rows = rows * shrink + tl.sum(weight, 1)
        v = _load_tile(v_ptr, v_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        total = _dot(weight.to(v.dtype), v, total * shrink[:, None], PRECISION)
        return peak, rows, total

    @triton.jit(do_not_specialize=["n", "m", "k_start", "lists"])
    def _forward_kernel_2(
        q_ptr, blocks_of_row_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, residual_ptr, peak_state_ptr,
        rows_state_ptr, total_state_ptr,
        q_start_ptr, kv_lengths_ptr, begins_ptr, met_ptr,
        q_strides, k_strides, v_strides,
        n, m, k_start, lists, scale_log2, blocks_of_row_size_2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, LIST_M: tl.constexpr, LIST_N: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK_M  # first row of the tile
        head = tl.program_id(1)
        batch = tl.program_id(2)
        heads = tl.num_programs(1)
        row_lanes = row + tl.arange(0, BLOCK_M)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))
        PARTS: tl.constexpr = LIST_N // BLOCK_N  # tiles in one that lists name
        entry = batch * heads + head
        blocks_of_row_lists = blocks_of_row_ptr + tl.cast(entry, tl.int64) * (
            13 * blocks_of_row_size_2
        )

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        q_ptr += tl.cast(batch, tl.int64) * q_strides[0] + tl.cast(head, tl.int64) * q_strides[1]
        q_ptr += tl.cast(row, tl.int64) * q_strides[2]
        k_ptr += (
            tl.cast(batch, tl.int64) * k_strides[0]
            + tl.cast(head // GROUP, tl.int64) * k_strides[1]
        )
        v_ptr += (
            tl.cast(batch, tl.int64) * v_strides[0]
            + tl.cast(head // GROUP, tl.int64) * v_strides[1]
        )
        k_step = tl.cast(k_strides[2], tl.int64) * BLOCK_N
        v_step = tl.cast(v_strides[2], tl.int64) * BLOCK_N
        first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row

        visible = row_lanes < n
        blocks_of_row_at = _lists_at(blocks_of_row_lists + row, BLOCK_M)
        q = _load_tile(q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D, True)
        i = q_start + row_lanes

        # Tiles of keys that the tile's rows meet: met[begin] … met[end - 1].
        number = entry * lists + row // LIST_M
        begin = tl.load(begins_ptr + number)
        end = tl.load(begins_ptr + number + 1)

        peak = _load_numbers(peak_state_ptr + first_vector, visible, 0.0, BLOCK_M, True)
        rows = _load_numbers(rows_state_ptr + first_vector, visible, 0.0, BLOCK_M, True)
        total = _load_tile(
            total_state_ptr + first_vector * E, E, visible, BLOCK_M, E, BLOCK_E, True
        )
        for step in range(begin * PARTS, end * PARTS):
            tile = tl.load(met_ptr + step // PARTS) * PARTS + step % PARTS
            peak, rows, total = _forward_tile_2(
                peak, rows, total, q, blocks_of_row_at,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                i, tile * BLOCK_N, k_start, keys, scale_log2, blocks_of_row_size_2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip

        out = total * _inverse(rows)[:, None]
        lse = 0.6931471805599453 * peak + _log(rows)
        _store_tile(out_ptr + first_vector * E, visible, out, BLOCK_M, E, BLOCK_E)
        tl.store(lse_ptr + first_vector + tl.arange(0, BLOCK_M), lse, mask=visible)
        if residual_ptr is not None:  # what rounding takes from `out`, for backward
            residual = out - out.to(out_ptr.dtype.element_ty).to(tl.float32)
            _store_tile(residual_ptr + first_vector * E, visible, residual, BLOCK_M, E, BLOCK_E)

    @triton.jit
    def _backward_columns_tile_2(
        dv, dk_total, k, v,
        q_ptr, d_out_ptr, lse_ptr, delta_ptr, blocks_of_row_ptr, q_stride, d_out_stride,
        j, row, q_start, n, scale_log2, blocks_of_row_size_2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        row_lanes = row + tl.arange(0, BLOCK_M)
        visible = row_lanes < n
        i = q_start + row_lanes
        lse = _load_numbers(lse_ptr, visible, float("-inf"), BLOCK_M, MASKED)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        lse_2 = 1.4426950408889634 * lse
        q = _load_tile(q_ptr, q_stride, visible, BLOCK_M, D, BLOCK_D, MASKED)
        dot_qk = _dot(k, tl.trans(q), None, PRECISION)
        d_out = _load_tile(d_out_ptr, d_out_stride, visible, BLOCK_M, E, BLOCK_E, MASKED)
        d_share = _dot(v, tl.trans(d_out), None, PRECISION)
        delta = _load_numbers(delta_ptr, visible, 0.0, BLOCK_M, MASKED)
        d_weight = d_share - delta[None, :]
        exponent = scale_log2 * dot_qk
        blocks_of_row_at = _lists_at(blocks_of_row_ptr, BLOCK_M)
        if MASKED:
            blocks_of_row_names_first = _floor_divide(tl.min(j, 0), 64)
            in_first = _is_named(
                tl.zeros([BLOCK_M], tl.int32) + blocks_of_row_names_first,
                blocks_of_row_at,
                13,
                blocks_of_row_size_2,
            )
            blocks_of_row_names_last = _floor_divide(tl.max(j, 0), 64)
            in_last = _is_named(
                tl.zeros([BLOCK_M], tl.int32) + blocks_of_row_names_last,
                blocks_of_row_at,
                13,
                blocks_of_row_size_2,
            )
            blocks_of_row_names = tl.where(
                _floor_divide(j[:, None], 64) == blocks_of_row_names_first,
                in_first[None, :],
                in_last[None, :],
            )
            related = (
                ((j[:, None] <= i[None, :]) & blocks_of_row_names)
                & (
                    ((j[:, None] > i[None, :]) | (_floor_divide(j[:, None], 64) != 0))
                    & (
                        (j[:, None] > i[None, :])
                        | (_floor_divide(i[None, :], 64) - _floor_divide(j[:, None], 64) > 1)
                    )
                )
                & visible[None, :]
            )
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        weight = tl.exp2(exponent - lse_2[None, :])
        d_exponent = d_weight * weight
        dv = _dot(weight.to(d_out.dtype), d_out, dv, PRECISION)
        dk_total = _dot(d_exponent.to(q.dtype), q, dk_total, PRECISION)
        return dv, dk_total

    @triton.jit(do_not_specialize=["n", "m", "k_start", "lists"])
    def _backward_columns_kernel_2(
        k_ptr, v_ptr, q_ptr, d_out_ptr, blocks_of_row_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
        q_start_ptr, kv_lengths_ptr, begins_ptr, met_ptr,
        k_strides, v_strides, q_strides, d_out_strides,
        n, m, k_start, lists, d_dot_factor, scale_log2, blocks_of_row_size_2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, LIST_M: tl.constexpr, LIST_N: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        column = tl.program_id(0) * BLOCK_N  # first key of the tile
        kv_head = tl.program_id(1)
        batch = tl.program_id(2)
        kv_heads = tl.num_programs(1)
        heads = kv_heads * GROUP
        column_lanes = column + tl.arange(0, BLOCK_N)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))
        PARTS: tl.constexpr = LIST_M // BLOCK_M  # tiles in one that lists name

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        k_ptr += tl.cast(batch, tl.int64) * k_strides[0] + tl.cast(kv_head, tl.int64) * k_strides[1]
        k_ptr += tl.cast(column, tl.int64) * k_strides[2]
        v_ptr += tl.cast(batch, tl.int64) * v_strides[0] + tl.cast(kv_head, tl.int64) * v_strides[1]
        v_ptr += tl.cast(column, tl.int64) * v_strides[2]
        q_step = tl.cast(q_strides[2], tl.int64) * BLOCK_M
        d_out_step = tl.cast(d_out_strides[2], tl.int64) * BLOCK_M
        first_vector = (tl.cast(batch, tl.int64) * kv_heads + kv_head) * m + column

        # Keys that no row can see are not read, and their gradients are 0.
        seen = column_lanes < keys
        k = _load_tile(k_ptr, k_strides[2], seen, BLOCK_N, D, BLOCK_D, True)
        v = _load_tile(v_ptr, v_strides[2], seen, BLOCK_N, E, BLOCK_E, True)
        j = k_start + column_lanes

        dv = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
        dk_total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
        for head in range(kv_head * GROUP, kv_head * GROUP + GROUP):
            q_head_ptr = (
                q_ptr
                + tl.cast(batch, tl.int64) * q_strides[0]
                + tl.cast(head, tl.int64) * q_strides[1]
            )
            d_out_head_ptr = (
                d_out_ptr
                + tl.cast(batch, tl.int64) * d_out_strides[0]
                + tl.cast(head, tl.int64) * d_out_strides[1]
            )
            statistics = (tl.cast(batch, tl.int64) * heads + head) * n
            entry = batch * heads + head
            blocks_of_row_lists = blocks_of_row_ptr + tl.cast(entry, tl.int64) * (
                13 * blocks_of_row_size_2
            )
            # Tiles of rows that meet the tile's keys: met[begin] … met[end - 1].
            number = entry * lists + column // LIST_N
            begin = tl.load(begins_ptr + number)
            end = tl.load(begins_ptr + number + 1)
            for step in range(begin * PARTS, end * PARTS):
                tile = tl.load(met_ptr + step // PARTS) * PARTS + step % PARTS
                dv, dk_total = _backward_columns_tile_2(
                    dv, dk_total, k, v,
                    q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    blocks_of_row_lists + tile * BLOCK_M, q_strides[2], d_out_strides[2],
                    j, tile * BLOCK_M, q_start, n, scale_log2, blocks_of_row_size_2,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
                )  # fmt: skip
        dk = dk_total * d_dot_factor
        dk = tl.where(seen[:, None], dk, 0.0) + _load_tile(
            dk_ptr + first_vector * D, D, column_lanes < m, BLOCK_N, D, BLOCK_D, True
        )
        _store_tile(dk_ptr + first_vector * D, column_lanes < m, dk, BLOCK_N, D, BLOCK_D)
        dv = tl.where(seen[:, None], dv, 0.0) + _load_tile(
            dv_ptr + first_vector * E, E, column_lanes < m, BLOCK_N, E, BLOCK_E, True
        )
        _store_tile(dv_ptr + first_vector * E, column_lanes < m, dv, BLOCK_N, E, BLOCK_E)

    @triton.jit
    def _backward_rows_tile_2(
        dq_total, q, d_out, delta, blocks_of_row_at, lse_2,
        k_ptr, v_ptr, k_stride, v_stride,
        i, column, k_start, keys, scale_log2, blocks_of_row_size_2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = column_lanes < keys
        j = k_start + column_lanes
        k = _load_tile(k_ptr, k_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk = _dot(q, tl.trans(k), None, PRECISION)
        v = _load_tile(v_ptr, v_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        d_share = _dot(d_out, tl.trans(v), None, PRECISION)
        d_weight = d_share - delta[:, None]
        exponent = scale_log2 * dot_qk
        if MASKED:
            blocks_of_row_names_first = _floor_divide(tl.min(j, 0), 64)
            in_first = _is_named(
                tl.zeros([BLOCK_M], tl.int32) + blocks_of_row_names_first,
                blocks_of_row_at,
                13,
                blocks_of_row_size_2,
            )
            blocks_of_row_names_last = _floor_divide(tl.max(j, 0), 64)
            in_last = _is_named(
                tl.zeros([BLOCK_M], tl.int32) + blocks_of_row_names_last,
                blocks_of_row_at,
                13,
                blocks_of_row_size_2,
            )
            blocks_of_row_names = tl.where(
                _floor_divide(j[None, :], 64) == blocks_of_row_names_first,
                in_first[:, None],
                in_last[:, None],
            )
            related = (
                ((j[None, :] <= i[:, None]) & blocks_of_row_names)
                & (
                    ((j[None, :] > i[:, None]) | (_floor_divide(j[None, :], 64) != 0))
                    & (
                        (j[None, :] > i[:, None])
                        | (_floor_divide(i[:, None], 64) - _floor_divide(j[None, :], 64) > 1)
                    )
                )
                & visible[None, :]
            )
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        weight = tl.exp2(exponent - lse_2[:, None])
        d_exponent = d_weight * weight
        dq_total = _dot(d_exponent.to(k.dtype), k, dq_total, PRECISION)
        return dq_total

    @triton.jit(do_not_specialize=["n", "m", "k_start", "lists"])
    def _backward_rows_kernel_2(
        q_ptr, d_out_ptr, blocks_of_row_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, dq_ptr,
        q_start_ptr, kv_lengths_ptr, begins_ptr, met_ptr,
        q_strides, d_out_strides, k_strides, v_strides,
        n, m, k_start, lists, d_dot_factor, scale_log2, blocks_of_row_size_2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, LIST_M: tl.constexpr, LIST_N: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK_M  # first row of the tile
        head = tl.program_id(1)
        batch = tl.program_id(2)
        heads = tl.num_programs(1)
        row_lanes = row + tl.arange(0, BLOCK_M)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))
        PARTS: tl.constexpr = LIST_N // BLOCK_N  # tiles in one that lists name
        entry = batch * heads + head
        blocks_of_row_lists = blocks_of_row_ptr + tl.cast(entry, tl.int64) * (
            13 * blocks_of_row_size_2
        )

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        q_ptr += tl.cast(batch, tl.int64) * q_strides[0] + tl.cast(head, tl.int64) * q_strides[1]
        q_ptr += tl.cast(row, tl.int64) * q_strides[2]
        d_out_ptr += (
            tl.cast(batch, tl.int64) * d_out_strides[0] + tl.cast(head, tl.int64) * d_out_strides[1]
        )
        d_out_ptr += tl.cast(row, tl.int64) * d_out_strides[2]
        k_ptr += (
            tl.cast(batch, tl.int64) * k_strides[0]
            + tl.cast(head // GROUP, tl.int64) * k_strides[1]
        )
        v_ptr += (
            tl.cast(batch, tl.int64) * v_strides[0]
            + tl.cast(head // GROUP, tl.int64) * v_strides[1]
        )
        k_step = tl.cast(k_strides[2], tl.int64) * BLOCK_N
        v_step = tl.cast(v_strides[2], tl.int64) * BLOCK_N
        first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row

        visible = row_lanes < n
        blocks_of_row_at = _lists_at(blocks_of_row_lists + row, BLOCK_M)
        q = _load_tile(q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D, True)
        d_out = _load_tile(d_out_ptr, d_out_strides[2], visible, BLOCK_M, E, BLOCK_E, True)
        lse = _load_numbers(lse_ptr + first_vector, visible, float("-inf"), BLOCK_M, True)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        delta = _load_numbers(delta_ptr + first_vector, visible, 0.0, BLOCK_M, True)
        i = q_start + row_lanes
        lse_2 = 1.4426950408889634 * lse

        # Tiles of keys that the tile's rows meet: met[begin] … met[end - 1].
        number = entry * lists + row // LIST_M
        begin = tl.load(begins_ptr + number)
        end = tl.load(begins_ptr + number + 1)

        dq_total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for step in range(begin * PARTS, end * PARTS):
            tile = tl.load(met_ptr + step // PARTS) * PARTS + step % PARTS
            dq_total = _backward_rows_tile_2(
                dq_total, q, d_out, delta, blocks_of_row_at, lse_2,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                i, tile * BLOCK_N, k_start, keys, scale_log2, blocks_of_row_size_2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip

        dq = dq_total * d_dot_factor
        dq = dq + _load_tile(dq_ptr + first_vector * D, D, visible, BLOCK_M, D, BLOCK_D, True)
        _store_tile(dq_ptr + first_vector * D, visible, dq, BLOCK_M, D, BLOCK_D)


# What each kernel tries for elements of so many bytes and vectors up to a width: (BLOCK_M, BLOCK_N,
# num_warps, num_stages).
_fine_TILES = {
    ("forward", 2, 64): [(64, 64, 8, 2), (64, 32, 4, 2), (16, 16, 4, 1)],
    ("forward", 2, 128): [(64, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2), (16, 16, 4, 1)],
    ("forward", 2, 256): [(64, 32, 8, 2), (64, 32, 4, 2), (32, 32, 4, 1)],
    ("forward", 4, 64): [(64, 32, 8, 2), (32, 32, 4, 1)],
    ("forward", 4, 128): [(32, 32, 8, 1), (16, 16, 4, 1)],
    ("forward", 4, 256): [(16, 16, 4, 1)],
    ("backward_columns", 2, 64): [(64, 64, 8, 2), (32, 64, 8, 2), (32, 64, 4, 1), (16, 16, 4, 1)],
    ("backward_columns", 2, 128): [(32, 64, 8, 2), (32, 64, 8, 1), (32, 32, 4, 1), (16, 16, 4, 1)],
    ("backward_columns", 2, 256): [(32, 32, 8, 1), (16, 32, 4, 1)],
    ("backward_columns", 4, 64): [(32, 32, 8, 1), (16, 32, 4, 1)],
    ("backward_columns", 4, 128): [(16, 32, 8, 2)],
    ("backward_columns", 4, 256): [(16, 16, 8, 2)],
    ("backward_rows", 2, 64): [(64, 32, 8, 2), (64, 32, 4, 2), (16, 16, 4, 1)],
    ("backward_rows", 2, 128): [(64, 64, 8, 2), (64, 32, 8, 2), (32, 32, 4, 1), (16, 16, 4, 1)],
    ("backward_rows", 2, 256): [(64, 32, 8, 2), (32, 32, 4, 1)],
    ("backward_rows", 4, 64): [(64, 32, 8, 2), (16, 32, 4, 1)],
    ("backward_rows", 4, 128): [(32, 16, 8, 2), (16, 16, 8, 2)],
    ("backward_rows", 4, 256): [(16, 16, 8, 2)],
}


def _fine_prune(configs, arguments, *, BLOCK_D, BLOCK_E, **_):
    """The configs that fit into shared memory: resident and streamed tiles, two tiles of pairs."""
    q = arguments["q_ptr"]
    on_amd = torch.version.hip is not None  # tiles pass through registers there, resident ones stay
    device = triton.runtime.driver.active.utils.get_device_properties(q.device.index)

    def size(config):
        rows, columns = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
        held, streamed = (columns, rows) if "dv_ptr" in arguments else (rows, columns)
        resident = (
            0 if on_amd else held * (BLOCK_D if "out_ptr" in arguments else BLOCK_D + BLOCK_E)
        )
        stages = max(config.num_stages - on_amd, 1)
        return (
            resident + stages * streamed * (BLOCK_D + BLOCK_E) + 2 * rows * columns
        ) * q.element_size()

    # A warp of 64 lanes has half the registers a lane when there are eight of them.
    configs = [config for config in configs if config.num_warps <= 4 or not on_amd] or configs
    return [config for config in configs if size(config) <= device["max_shared_mem"]] or [
        min(configs, key=size)
    ]


@functools.cache
def _fine_tuned(kernel, name, element_size, width):
    """The kernel with what it may try; Triton's interpreter cannot time and gets one config."""
    if triton.knobs.runtime.interpret:
        configs = [triton.Config({"BLOCK_M": 32, "BLOCK_N": 16})]
    else:
        configs = [
            triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
            for rows, columns, warps, stages in _fine_TILES[name, element_size, width]
        ]
    key = ["GROUP", "D", "E", "PRECISION"]  # and the dtypes, which triton adds
    added = [
        name
        for name in (
            "peak_state_ptr",
            "rows_state_ptr",
            "total_state_ptr",
            "dk_ptr",
            "dv_ptr",
            "dq_ptr",
        )
        if name in kernel.arg_names
    ]  # read and written by each run
    prune = {"early_config_prune": _fine_prune}
    return triton.autotune(configs, key=key, prune_configs_by=prune, restore_value=added)(kernel)


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


def _asked_lists(x, places, batch, heads):
    """The lists of rows in the order of tiles, [entries, entries of a list, slots]."""
    x = _of_entries(x, batch, heads)
    if not x.shape[1]:
        return x.new_full((len(x), x.shape[2], places.shape[1]), -1, dtype=torch.int32)
    x = x.gather(1, places.clamp(max=x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2]))
    return x.clamp(-1, 2**31 - 1).mT.to(torch.int32).contiguous()


def _fine_launch(kernel, name, grid, q, k, v, *arguments):
    """Run a kernel, specialised by the widths of q and v."""
    d, e = q.shape[-1], v.shape[-1]
    block_d, block_e = _block(d), _block(e)
    widest = max(64, block_d, block_e)
    if _in_c(q):
        run = functools.partial(_for(kernel, q)[grid], tile=_c_tile(widest, 32, q.shape[2]))
    else:
        run = _fine_tuned(kernel, name, q.element_size(), widest)[grid]
    run(
        *arguments,
        GROUP=q.shape[1] // k.shape[1],
        D=d, E=e, BLOCK_D=block_d, BLOCK_E=block_e, LIST_M=_ROWS, LIST_N=_KEYS,
        PRECISION="tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
        enable_fp_fusion=True,
    )  # fmt: skip


def _gradient_room(x, adds):
    """Room for a gradient, or for several kernels that add to it."""
    return x.new_zeros(x.shape, dtype=_wide(x.dtype)) if adds else x.new_empty(x.shape)


def _fine_launch_forward(
    q, k, v, blocks_of_row, scale, q_start, k_start, q_starts, kv_lengths, keep_residual
):
    """What `_fine_forward` returns, by the Triton kernel."""
    q, k, v = _dense(q), _dense(k), _dense(v)
    batch, heads, n, _ = q.shape
    m = k.shape[2]
    out = q.new_empty(batch, heads, n, v.shape[-1])
    lse = q.new_empty(batch, heads, n, dtype=_wide(q.dtype))
    residual = q.new_empty(batch, heads, n, v.shape[-1] if keep_residual else 0)
    scale_log2, d_dot_factor = _kernel_numbers(q, k, v, scale, kv_lengths)
    starts, lengths = _places(q, k, q_start, q_starts, kv_lengths)
    if out.numel():
        peak_state = q.new_empty(batch, heads, n, dtype=_wide(q.dtype))
        rows_state = q.new_empty(batch, heads, n, dtype=_wide(q.dtype))
        total_state = q.new_empty(batch, heads, n, v.shape[-1], dtype=_wide(q.dtype))
        lists = _lists_0(
            blocks_of_row, batch, heads, n, m, q_start, k_start, q_starts, kv_lengths, q.device
        )
        blocks_of_row_listed = _asked_lists(blocks_of_row, lists.rows.flatten(1), batch, heads)
        begins, met = _lists_by_row(lists)
        grid = _grid(n, "BLOCK_M", heads, batch)
        _fine_launch(_forward_kernel_1, "forward", grid,
            q, k, v,
            q, blocks_of_row_listed, k, v, out, lse, residual if keep_residual else None,
            peak_state, rows_state, total_state,
            starts, lengths, begins, met,
            q.stride()[:3], k.stride()[:3], v.stride()[:3],
            n, m, k_start, lists.rows.shape[1], scale_log2, blocks_of_row_listed.shape[2],
        )  # fmt: skip
        lists = _lists_1(
            blocks_of_row, batch, heads, n, m, q_start, k_start, q_starts, kv_lengths, q.device
        )
        blocks_of_row_listed = _asked_lists(blocks_of_row, lists.rows.flatten(1), batch, heads)
        begins, met = _lists_by_row(lists)
        grid = _grid(n, "BLOCK_M", heads, batch)
        _fine_launch(_forward_kernel_2, "forward", grid,
            q, k, v,
            q, blocks_of_row_listed, k, v, out, lse, residual if keep_residual else None,
            peak_state, rows_state, total_state,
            starts, lengths, begins, met,
            q.stride()[:3], k.stride()[:3], v.stride()[:3],
            n, m, k_start, lists.rows.shape[1], scale_log2, blocks_of_row_listed.shape[2],
        )  # fmt: skip
    return (out, lse, residual)


def _fine_launch_backward(
    q,
    k,
    v,
    blocks_of_row,
    out,
    lse,
    residual,
    d_out,
    d_lse,
    scale,
    q_start,
    k_start,
    q_starts,
    kv_lengths,
):
    """What `_fine_backward` returns, by the Triton kernels."""
    q, k, v, d_out = _dense(q), _dense(k), _dense(v), _dense(d_out)
    batch, heads, n, _ = q.shape
    kv_heads, m, _ = v.shape[1:]
    dq = _gradient_room(q, True)
    dk = _gradient_room(k, True)
    dv = _gradient_room(v, True)
    d_blocks_of_row = blocks_of_row.new_zeros(blocks_of_row.shape)
    delta = (d_out * _unrounded(out, residual)).sum(-1) - d_lse
    lse = lse.contiguous()
    scale_log2, d_dot_factor = _kernel_numbers(q, k, v, scale, kv_lengths)
    starts, lengths = _places(q, k, q_start, q_starts, kv_lengths)
    if out.numel():
        lists = _lists_0(
            blocks_of_row, batch, heads, n, m, q_start, k_start, q_starts, kv_lengths, q.device
        )
        blocks_of_row_listed = _asked_lists(blocks_of_row, lists.rows.flatten(1), batch, heads)
        begins, met = _lists_by_key(lists)
        grid = _grid(m, "BLOCK_N", v.shape[1], batch)
        _fine_launch(_backward_columns_kernel_1, "backward_columns", grid,
            q, k, v,
            k, v, q, d_out, blocks_of_row_listed, lse, delta, dk, dv,
            starts, lengths, begins, met,
            k.stride()[:3], v.stride()[:3], q.stride()[:3], d_out.stride()[:3],
            n, m, k_start, lists.keys.shape[1], d_dot_factor, scale_log2,
            blocks_of_row_listed.shape[2],
        )  # fmt: skip
        begins, met = _lists_by_row(lists)
        grid = _grid(n, "BLOCK_M", heads, batch)
        _fine_launch(_backward_rows_kernel_1, "backward_rows", grid,
            q, k, v,
            q, d_out, blocks_of_row_listed, k, v, lse, delta, dq,
            starts, lengths, begins, met,
            q.stride()[:3], d_out.stride()[:3], k.stride()[:3], v.stride()[:3],
            n, m, k_start, lists.rows.shape[1], d_dot_factor, scale_log2,
            blocks_of_row_listed.shape[2],
        )  # fmt: skip
        lists = _lists_1(
            blocks_of_row, batch, heads, n, m, q_start, k_start, q_starts, kv_lengths, q.device
        )
        blocks_of_row_listed = _asked_lists(blocks_of_row, lists.rows.flatten(1), batch, heads)
        begins, met = _lists_by_key(lists)
        grid = _grid(m, "BLOCK_N", v.shape[1], batch)
        _fine_launch(_backward_columns_kernel_2, "backward_columns", grid,
            q, k, v,
            k, v, q, d_out, blocks_of_row_listed, lse, delta, dk, dv,
            starts, lengths, begins, met,
            k.stride()[:3], v.stride()[:3], q.stride()[:3], d_out.stride()[:3],
            n, m, k_start, lists.keys.shape[1], d_dot_factor, scale_log2,
            blocks_of_row_listed.shape[2],
        )  # fmt: skip
        begins, met = _lists_by_row(lists)
        grid = _grid(n, "BLOCK_M", heads, batch)
        _fine_launch(_backward_rows_kernel_2, "backward_rows", grid,
            q, k, v,
            q, d_out, blocks_of_row_listed, k, v, lse, delta, dq,
            starts, lengths, begins, met,
            q.stride()[:3], d_out.stride()[:3], k.stride()[:3], v.stride()[:3],
            n, m, k_start, lists.rows.shape[1], d_dot_factor, scale_log2,
            blocks_of_row_listed.shape[2],
        )  # fmt: skip
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), d_blocks_of_row


def _fine_forward_slab(q, k, v, numbers, slab, chunks, work, call, state, finishes):
    """The vectors and row numbers of one slab; q is [batch * kv heads, group * rows, d]."""
    shape = slab.shape
    scale, _ = numbers
    peak = q.new_full((*shape[:3], 1), torch.finfo(q.dtype).min)
    rows = q.new_zeros((*shape[:3], 1))
    total = q.new_zeros((*q.shape[:2], v.shape[-1]))
    if state is not None:
        peak, rows, total = state
    for chunk in chunks:
        k_tile = _fine_flat(k[:, :, chunk.keys], q.dtype)
        v_tile = _fine_flat(v[:, :, chunk.keys], q.dtype)
        score = _product(q, k_tile, work[0], shape, scale)
        _fine_hide(score, chunk, -torch.inf, call)
        new_peak = torch.maximum(peak, score.amax(-1, keepdim=True))
        shrink = peak.sub_(new_peak).exp_()
        peak = new_peak
        weight = score.sub_(peak).exp_()
        rows.mul_(shrink).add_(weight.sum(-1, keepdim=True))
        total.mul_(_fine_pairs(shrink, q)).baddbmm_(_fine_pairs(weight, q), v_tile)
    if not finishes:
        return peak, rows, total
    out = total.mul_(_fine_pairs(_reciprocal(rows), q))
    lse = peak + torch.log(rows)
    return out, lse


def _fine_backward_slab(
    q, k, v, d_out, lse, delta, dv, dk_total, numbers, slab, chunks, work, call
):
    """Gradients of one slab: returns that of q and adds those of k and v to their totals."""
    shape = slab.shape
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # rows without weights: all shares are 0
    scale, d_dot_factor = numbers
    dq_total = q.new_zeros((*q.shape[:2], q.shape[-1]))
    for chunk in chunks:
        k_tile = _fine_flat(k[:, :, chunk.keys], q.dtype)
        v_tile = _fine_flat(v[:, :, chunk.keys], q.dtype)
        score = _product(q, k_tile, work[0], shape, scale)
        d_share = _product(d_out, v_tile, work[1], shape)
        d_weight = d_share.sub_(delta)
        _fine_hide(score, chunk, -torch.inf, call)
        weight = score.sub_(lse).exp_()
        dv[:, chunk.keys].baddbmm_(_fine_pairs(weight, q).mT, d_out)
        d_exponent = d_weight.mul_(weight)
        dq_total.baddbmm_(_fine_pairs(d_exponent, q), k_tile)
        dk_total[:, chunk.keys].baddbmm_(_fine_pairs(d_exponent, q).mT, q)
    dq = dq_total * d_dot_factor
    return (dq,)


_ROWS, _KEYS = 64, 64  # of a tile, unless rows stand alone


class _Lists(NamedTuple):
    """Which tiles of keys each tile of rows meets."""

    rows: Tensor  # [entries, tiles, _ROWS]: the places of rows; n where there is none
    keys: Tensor  # [entries, tiles, _KEYS]: the places of keys; m where there is none
    in_order: tuple  # whether rows, and keys, stand in the order of their places, all of them
    counts: Tensor  # [entries * tiles of rows]: how many tiles of keys each one meets
    met: Tensor  # which, among those of the entry, one tile of rows after the other
    few: bool | Tensor = False  # whether lists of rows name far fewer pairs than their tiles meet


def _of_entries(x, batch, heads):
    """What the pattern asks of tokens, [batch or 1, heads or 1, tokens] -> [entries, tokens]."""
    return x.expand(batch, heads, *x.shape[2:]).flatten(0, 1)


def _interval(low, high, holds, i, length):
    """The keys that each row may be related to: places low ... high - 1, where something holds."""
    low = torch.as_tensor(low, device=i.device).expand(i.shape).clamp(min=0)
    high = torch.as_tensor(high, device=i.device).expand(i.shape).minimum(length)
    return low, torch.where(holds, high, 0) if isinstance(holds, Tensor) else high


def _most(dtype):
    """The largest number of a type."""
    return torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


def _tiles_of(order, none, width):
    """Places in order, [entries, tokens] -> [entries, tiles, width]."""
    order = nn.functional.pad(order, (0, -order.shape[1] % width), value=none)
    return order.unflatten(1, (-1, width))


def _named_blocks(listed, width, low, high, rows, m, k_start):
    """Runs of keys that the lists of rows name, as `_blocks` gives them."""
    n, tiles = low.shape[1], rows.shape[0] * rows.shape[1]
    exist, places = rows.flatten(1) < n, rows.flatten(1).clamp(max=max(n - 1, 0))
    low, high = (
        x.expand(len(rows), n).gather(1, places).view(tiles, rows.shape[-1]) for x in (low, high)
    )
    met = exist.view(tiles, rows.shape[-1]) & (low < high)
    low, high = torch.where(met, low, _FAR).amin(1), torch.where(met, high, 0).amax(1)
    blocks = -(-(k_start + m) // width)
    entries = (
        listed.long()
        .gather(1, places[..., None].expand(-1, -1, listed.shape[-1]))
        .view(tiles, rows.shape[-1], listed.shape[-1])
    )
    is_block = met[..., None] & (entries >= 0) & (entries < blocks)
    tile = torch.arange(tiles, device=rows.device)[:, None, None].expand(entries.shape)
    codes = (tile * blocks + entries)[is_block].unique()
    tile, first = codes // blocks, codes % blocks * width - k_start
    return tile, first.maximum(low[tile]), (first + width).minimum(high[tile])


def _listed(runs, rows, keys, in_order, n, m, told=()):
    """The lists of some runs: the first key in order and the one after the last, row by row."""
    entries, tiles = rows.shape[:2]
    at = rows.clamp(max=max(n - 1, 0)).flatten(1)
    codes = []
    for low, high in runs:
        low, high = (x.expand(entries, n).gather(1, at).view(rows.shape) for x in (low, high))
        met = (low < high) & (rows < n)
        first = torch.where(met, low, keys.shape[1] * keys.shape[-1]).amin(-1).flatten()
        stop = torch.where(met, high, 0).amax(-1).flatten()
        tile = torch.arange(entries * tiles, device=rows.device)
        codes.append(_codes(tile, first, stop, *keys.shape[1:]))
    for tile, low, high in told:
        codes.append(_codes(tile, low, high, *keys.shape[1:]))
    codes = torch.cat(codes).unique()
    counts = torch.bincount(codes // keys.shape[1], minlength=entries * tiles)
    in_order = in_order[0] and n % rows.shape[-1] == 0, in_order[1] and m % keys.shape[-1] == 0
    return _Lists(rows, keys, in_order, counts, codes % keys.shape[1])


def _codes(tile, low, high, tiles, width):
    """Numbers of tiles of rows and of the tiles of keys that their runs meet, of so many."""
    first = low // width
    count = ((high + width - 1) // width - first).clamp(min=0).masked_fill(low >= high, 0)
    which = torch.arange(len(tile), device=tile.device).repeat_interleave(count)
    within = torch.arange(len(which), device=tile.device) - (count.cumsum(0) - count)[which]
    return tile[which] * tiles + first[which] + within


@torch.no_grad()
def _lists_0(
    blocks_of_row,
    batch,
    heads,
    n,
    m,
    q_start,
    k_start,
    q_starts,
    kv_lengths,
    device,
    tile=(_ROWS, _KEYS),
):
    """Which keys rows meet; positions of rows and what tokens say are [entries, tokens]."""
    entries = batch * heads
    row, place = (torch.arange(x, device=device).expand(entries, x) for x in (n, m))
    i = row + q_start
    if q_starts is not None:
        i = i + q_starts[:, None].repeat_interleave(heads, 0)
    length = torch.full((entries, 1), m, device=device)
    if kv_lengths is not None:
        length = kv_lengths.clamp(0, m)[:, None].repeat_interleave(heads, 0)
    rows = row
    keys = place.masked_fill(place >= length, m)
    tiled = _tiles_of(rows, n, tile[0])
    runs = []
    # j <= i & j // 64 == 0
    low, high = _interval(0 - k_start, _minimum(i, 63) + 1 - k_start, True, i, length)
    runs.append((low, high))
    # j <= i & i // 64 - j // 64 <= 1
    low, high = _interval(64 * (i // 64) - 64 - k_start, i + 1 - k_start, True, i, length)
    runs.append((low, high))
    return _listed(
        runs, tiled, _tiles_of(keys, m, tile[1]), (rows is row, kv_lengths is None), n, m
    )


def _related_0(i, j, blocks_of_row, call):
    """The pairs of a pass."""
    return ((j <= i) & (j // 64 == 0)) | ((j <= i) & (i // 64 - j // 64 <= 1))


@torch.no_grad()
def _lists_1(
    blocks_of_row,
    batch,
    heads,
    n,
    m,
    q_start,
    k_start,
    q_starts,
    kv_lengths,
    device,
    tile=(_ROWS, _KEYS),
):
    """Which keys rows meet; positions of rows and what tokens say are [entries, tokens]."""
    entries = batch * heads
    row, place = (torch.arange(x, device=device).expand(entries, x) for x in (n, m))
    i = row + q_start
    if q_starts is not None:
        i = i + q_starts[:, None].repeat_interleave(heads, 0)
    length = torch.full((entries, 1), m, device=device)
    if kv_lengths is not None:
        length = kv_lengths.clamp(0, m)[:, None].repeat_interleave(heads, 0)
    blocks_of_row = _of_entries(blocks_of_row, batch, heads)
    rows = row
    keys = place.masked_fill(place >= length, m)
    tiled = _tiles_of(rows, n, tile[0])
    runs, told = [], []
    # j <= i & j // 64 in blocks_of_row
    low, high = _interval(0, i + 1 - k_start, True, i, length)
    told.append(_named_blocks(blocks_of_row, 64, low, high, tiled, m, k_start))
    lists = _listed(
        runs, tiled, _tiles_of(keys, m, tile[1]), (rows is row, kv_lengths is None), n, m, told
    )
    named = 64 * (blocks_of_row >= 0).sum()
    return lists._replace(few=len(lists.met) * _ROWS * _KEYS > 8 * named)


def _related_1(i, j, blocks_of_row, call):
    """The pairs of a pass."""
    return ((j <= i) & _is_among(j // 64, blocks_of_row)) & (
        ((j > i) | (j // 64 != 0)) & ((j > i) | (i // 64 - j // 64 > 1))
    )


_PASSES = ((_lists_0, _related_0, None), (_lists_1, _related_1, (1, 64)))


class _fine_Slab(NamedTuple):
    """Tiles of rows that are computed together, as batch entries."""

    tiles: Tensor  # which, among those of all entries
    batch: Tensor  # the batch entry of each
    head: Tensor | slice  # the head of each
    rows: Tensor  # [tiles, rows]: places; n where there is none
    i: Tensor  # their positions, [tiles, 1, rows, 1]
    shape: tuple  # tiles, heads, rows


class _fine_Chunk(NamedTuple):
    """The keys that they meet."""

    tiles: Tensor  # [tiles of rows, tiles of keys]
    places: Tensor  # [tiles of rows, keys]; m where there is none
    j: Tensor  # their positions, [tiles of rows, 1, 1, keys]
    hidden: Tensor  # the pairs that are not related, [tiles of rows, heads or 1, rows, keys]
    keys: slice = slice(None)

    @property
    def count(self):
        return self.places.shape[1]


def _fine_slabs(blocks_of_row, heads, lists, related, n, m, q_start, k_start, q_starts, kv_lengths):
    """Tiles of rows that meet about as many tiles of keys, with these."""
    device = lists.rows.device
    tiles, most_keys = lists.rows.shape[1], lists.keys.shape[1]
    counts, order = lists.counts.sort(stable=True)
    begins = (lists.counts.cumsum(0) - lists.counts)[order]
    counts, at = counts.tolist(), 0
    while at < len(counts):
        end = bisect.bisect_right(counts, counts[at] + counts[at] // 4, at)
        while True:
            # Keys are copied for each tile of rows, which few rows are not worth.
            scores = (
                heads * max(lists.rows.shape[2], 16) * lists.keys.shape[2] * max(counts[end - 1], 1)
            )
            most = max(1, _SCORES // scores)
            if end - at <= most:
                break
            end = at + most
        own, widest = order[at:end], counts[end - 1]
        entry = own // tiles
        batch, head = entry // heads, entry % heads
        shape = (len(own), 1, lists.rows.shape[2])
        rows = lists.rows.flatten(0, 1)[own]
        start = q_start if q_starts is None else q_start + q_starts[batch, None]
        slab = _fine_Slab(own, batch, head, rows, (rows + start)[:, None, :, None], shape)
        if widest == 0:
            yield slab, ()
        else:
            number = torch.arange(widest, device=device)
            listed = lists.met[(begins[at:end, None] + number).clamp(max=len(lists.met) - 1)]
            is_met = number < lists.counts[own, None]
            listed = torch.where(is_met, listed, listed[:, :1])
            places = (
                lists.keys[entry[:, None], listed].masked_fill(~is_met[..., None], m).flatten(1)
            )
            j = (places + k_start)[:, None, None]
            length = m if kv_lengths is None else kv_lengths.clamp(0, m)[batch, None, None, None]
            seen = (places[:, None, None] < length) & (rows < n)[:, None, :, None]
            blocks_of_row_own = _at_places(blocks_of_row, slab, slab.rows)
            call = _Call(n, m, heads, head[:, None, None, None])
            hidden = ~(related(slab.i, j, blocks_of_row_own, call) & seen)
            yield slab, (_fine_Chunk(entry[:, None] * most_keys + listed, places, j, hidden),)
        at = end


def _at_rows_of(x, slab):
    """Something of each row, [batch or 1, heads or 1, n] -> [tiles, heads or 1, rows, 1]."""
    return _at_places(x, slab, slab.rows)[..., None]


def _at_places(x, slab, places):
    """Something of each token, [batch or 1, heads or 1, tokens], at places of a slab's tiles."""
    if x.shape[2] == 0:
        return x.new_zeros(len(places), 1, places.shape[1], *x.shape[3:])
    places = places.clamp(max=x.shape[2] - 1)
    batch = slab.batch if x.shape[0] > 1 else torch.zeros_like(slab.batch)
    head = slab.head if x.shape[1] > 1 else torch.zeros_like(slab.head)
    return x[batch[:, None], head[:, None], places][:, None]


def _fine_hide(x, chunk, fill, call):
    """Write `fill` where row and key are not related: by bits, in a tenth of what masks take."""
    bits = x.view(torch.int64 if x.dtype == torch.float64 else torch.int32)
    kept = -(~chunk.hidden).to(bits.dtype)
    bits.bitwise_and_(kept)
    if fill != 0:
        bits.bitwise_or_(
            ~kept & torch.tensor(fill, dtype=x.dtype, device=x.device).view(bits.dtype)
        )
    return x


def _fine_flat(x, dtype):
    """[tiles, heads, ...] -> [tiles * heads, ...], a view where strides allow."""
    return x.flatten(0, 1).to(dtype)


def _fine_pairs(x, q):
    """[tiles, heads, rows, ...] -> [tiles * kv heads, group * rows, ...], as folded vectors lie."""
    return x.reshape(*q.shape[:2], x.shape[-1])


def _tiled_rows(x, lists):
    """[batch, heads, n, ...] -> [entries * heads of each, tiles, rows, ...]; 0 for none."""
    return _tiled(x.to(_wide(x.dtype)), lists.rows, lists.in_order[0])


def _tiled_keys(x, lists, heads):
    """[batch, kv heads, m, ...] -> [entries * heads of each, tiles, keys, ...]; 0 for none."""
    if lists.in_order[1] and x.shape[1] != heads:
        x = x.repeat_interleave(heads // x.shape[1], 1)
    return _tiled(x, lists.keys, lists.in_order[1])


def _tiled(x, places, in_order):
    """Tokens at their places in tiles, one behind the other; a view where they lie so already."""
    batch, heads, tokens = x.shape[:3]
    if in_order:
        return x.flatten(0, 1).unflatten(1, places.shape[1:]).contiguous()
    places = places.flatten(0, -3)  # of each head of an entry
    shape = (*places.shape, *x.shape[3:])
    if tokens == 0:
        return x.new_zeros(shape)
    places, at = places.flatten(1), places.flatten(1).clamp(max=tokens - 1)
    own = torch.arange(len(places), device=x.device)[:, None] // max(
        len(places) // max(batch * heads, 1), 1
    )
    if x.is_contiguous():
        tiles = x.flatten(0, 2).index_select(0, (at + tokens * own).flatten())
    else:
        tiles = x[own // heads, own % heads, at].flatten(0, 1)
    tiles[places.flatten() == tokens] = 0
    return tiles.view(shape)


def _of_each_head(tiles, count, heads):
    """Where tiles of entries, each of so many, lie for each head of these, [..., heads, tiles]."""
    head = torch.arange(heads, device=tiles.device)[:, None]
    tiles = tiles[:, None]
    return (tiles // count * heads + head) * count + tiles % count


def _rows_at(slab, tiles):
    """Where the rows of a slab lie among the tiles of all heads."""
    return _of_each_head(slab.tiles[:, None], tiles.shape[1], slab.shape[1]).flatten()


def _rows_in(tiles, slab, kv_heads):
    """A slab's rows, folded: [tiles * kv heads, group * rows, c]."""
    own = tiles.flatten(0, 1).index_select(0, _rows_at(slab, tiles))
    return own.view(len(slab.tiles) * kv_heads, -1, tiles.shape[-1])


def _keys_in(tiles, chunks, heads):
    """The keys that a slab meets, [tiles of rows, kv heads, keys, ...]."""
    if not chunks:
        return tiles.new_empty(0, heads, 0, *tiles.shape[3:])
    at = _of_each_head(chunks[0].tiles, tiles.shape[1], heads)
    met = tiles.flatten(0, 1).index_select(0, at.flatten())
    return met.view(*at.shape[:2], -1, *tiles.shape[3:])


def _put(tiles, slab, result):
    """Write what a slab gives for its rows."""
    dense = tiles.view(tiles.shape[0] * tiles.shape[1], *tiles.shape[2:])
    dense.index_copy_(0, _rows_at(slab, tiles), result.reshape(-1, *tiles.shape[2:]))


def _fine_own(x, slab):
    """What belongs to a slab's batch entries and heads, [batch or 1, heads or 1, 1, 1]."""
    x = x[:, slab.head] if x.shape[1] > 1 else x.expand(-1, len(slab.tiles), -1, -1)
    x = x[slab.batch, torch.arange(len(slab.tiles), device=x.device)] if x.shape[0] > 1 else x[0]
    return x[:, None]


def _fine_entries_of(numbers, slab):
    """The numbers of the slab's batch entries and heads."""
    return tuple(_fine_own(x, slab) if isinstance(x, Tensor) else x for x in numbers)


def _add_tiles(total, sums, chunks):
    """Add what a slab has added up for its keys, [tiles of rows, kv heads, keys, ...]."""
    dense = total.view(total.shape[0] * total.shape[1], *total.shape[2:])
    for chunk in chunks:
        at = _of_each_head(chunk.tiles, total.shape[1], sums.shape[1]).flatten()
        dense.index_add_(0, at, sums.view(-1, *total.shape[2:]))


def _untiled_rows(tiles, lists, shape):
    """[entries * heads of an entry, tiles, rows, ...] -> [batch, heads, n, ...]."""
    batch, heads, n = shape
    tiles = tiles.flatten(1, 2)
    if lists.in_order[0]:
        return tiles.unflatten(0, (batch, heads))
    places = lists.rows.flatten(1).argsort(stable=True)[:, :n]
    at = places + tiles.shape[1] * torch.arange(batch * heads, device=tiles.device)[:, None]
    return tiles.flatten(0, 1).index_select(0, at.flatten()).view(batch, heads, n, *tiles.shape[2:])


def _untiled_keys(tiles, lists, shape):
    """[entries * heads of an entry, tiles, keys, ...] -> [batch, kv heads, m, ...]."""
    batch, kv_heads, m = shape[:3]
    places, tiles = lists.keys.flatten(1), tiles.flatten(1, 2)
    if lists.in_order[1]:
        total = tiles
    else:
        total = tiles.new_zeros(len(tiles), m + 1, *tiles.shape[2:])
        at = places + (m + 1) * torch.arange(len(tiles), device=tiles.device)[:, None]
        total.flatten(0, 1).index_copy_(0, at.flatten(), tiles.flatten(0, 1))
        total = total[:, :m]
    return total.reshape(batch, kv_heads, len(total) // (batch * kv_heads), *total.shape[1:]).sum(2)


def _shortened(lists, none):
    """Lists without the tiles of keys that no row meets, if these are most: few rows, many keys."""
    entries, count, width = lists.keys.shape
    if 4 * len(lists.met) >= entries * count:
        return lists
    of_rows = torch.arange(len(lists.counts), device=lists.met.device) // lists.rows.shape[1]
    met, which = (of_rows.repeat_interleave(lists.counts) * count + lists.met).unique(
        return_inverse=True
    )
    entry = met // count
    counts = torch.bincount(entry, minlength=entries)
    within = torch.arange(len(met), device=met.device) - (counts.cumsum(0) - counts)[entry]
    keys = lists.keys.new_full((entries, max(int(counts.amax()), 1), width), none)
    keys[entry, within] = lists.keys[entry, met % count]
    return lists._replace(keys=keys, in_order=(lists.in_order[0], False), met=within[which])


def _passes(q, k, v, blocks_of_row, q_start, k_start, q_starts, kv_lengths):
    """The lists of a call, pass by pass, and which pairs are related."""
    batch, heads, n, _ = q.shape
    m = v.shape[2]
    places = q_start, k_start, q_starts, kv_lengths, q.device
    for lists_of, related, alone in _PASSES:
        lists = lists_of(blocks_of_row, batch, heads, n, m, *places)
        if lists.few:
            lists = lists_of(blocks_of_row, batch, heads, n, m, *places, alone)
        yield _shortened(lists, m), related


def _fine_forward(
    q, k, v, blocks_of_row, scale, q_start, k_start, q_starts, kv_lengths, keep_residual
):
    """The vectors [batch, heads, n, e] and the saved numbers of rows [batch, heads, n]."""
    wide = _wide(q.dtype)
    shape, m = q.shape[:3], v.shape[2]
    numbers, call = _numbers(q, k, v, scale, kv_lengths), _Call(shape[2], m, shape[1], 0)
    work, kv_heads = None, 1
    states = None
    with torch.autocast(q.device.type, enabled=False):
        for at, (lists, related) in enumerate(
            _passes(q, k, v, blocks_of_row, q_start, k_start, q_starts, kv_lengths)
        ):
            q_tiles = _tiled_rows(q, lists)
            k_tiles = _tiled_keys(k, lists, shape[1])
            v_tiles = _tiled_keys(v, lists, shape[1])
            tiles = shape[0] * shape[1], *lists.rows.shape[1:]
            finishes = at == len(_PASSES) - 1
            own = None if states is None else [_tiled_rows(x, lists) for x in states]
            widths = (
                (
                    (v.shape[-1],),
                    (),
                )
                if finishes
                else (
                    (),
                    (),
                    (v.shape[-1],),
                )
            )
            outs = [q.new_empty(*tiles, *width, dtype=wide) for width in widths]
            for slab, chunks in _fine_slabs(
                blocks_of_row,
                shape[1],
                lists,
                related,
                shape[2],
                m,
                q_start,
                k_start,
                q_starts,
                kv_lengths,
            ):
                work = _workspace(slab, chunks, q, 2, work)
                state = (
                    None
                    if own is None
                    else (
                        _rows_in(own[0][..., None], slab, slab.shape[1]).view(*slab.shape, 1),
                        _rows_in(own[1][..., None], slab, slab.shape[1]).view(*slab.shape, 1),
                        _rows_in(own[2], slab, kv_heads),
                    )
                )
                results = _fine_forward_slab(
                    _rows_in(q_tiles, slab, kv_heads), _keys_in(k_tiles, chunks, kv_heads),
                    _keys_in(v_tiles, chunks, kv_heads), _fine_entries_of(numbers, slab), slab,
                    chunks, work, call, state, finishes,
                )  # fmt: skip
                for out, result in zip(outs, results, strict=True):
                    _put(out, slab, result)
            states = [_untiled_rows(out, lists, shape) for out in outs]
    outs = states
    result = outs[0].to(q.dtype)
    residual = outs[0] - result if keep_residual else outs[0].new_empty(*shape, 0)
    return result, *outs[1:], residual.to(q.dtype)


def _fine_backward(
    q,
    k,
    v,
    blocks_of_row,
    out,
    lse,
    residual,
    d_out,
    d_lse,
    scale,
    q_start,
    k_start,
    q_starts,
    kv_lengths,
):
    """The gradients of q, k and v."""
    wide = _wide(q.dtype)
    shape, m = q.shape[:3], v.shape[2]
    numbers, call = _numbers(q, k, v, scale, kv_lengths), _Call(shape[2], m, shape[1], 0)
    work, kv_heads = None, 1
    dk = k.new_zeros(k.shape, dtype=wide)
    dv = v.new_zeros(v.shape, dtype=wide)
    dq = q.new_zeros(q.shape, dtype=wide)
    out = _unrounded(out, residual)
    with torch.autocast(q.device.type, enabled=False):
        for lists, related in _passes(
            q, k, v, blocks_of_row, q_start, k_start, q_starts, kv_lengths
        ):
            q_tiles = _tiled_rows(q, lists)
            k_tiles = _tiled_keys(k, lists, shape[1])
            v_tiles = _tiled_keys(v, lists, shape[1])
            dq_tiles = q.new_zeros(
                shape[0] * shape[1], *lists.rows.shape[1:], q.shape[-1], dtype=wide
            )
            dk_tiles = k_tiles.new_zeros(k_tiles.shape, dtype=wide)
            dv_tiles = v_tiles.new_zeros(v_tiles.shape, dtype=wide)
            d_out_tiles = _tiled_rows(d_out, lists)
            out_tiles = _tiled_rows(out, lists)
            for slab, chunks in _fine_slabs(
                blocks_of_row,
                shape[1],
                lists,
                related,
                shape[2],
                m,
                q_start,
                k_start,
                q_starts,
                kv_lengths,
            ):
                work = _workspace(slab, chunks, q, 2, work)
                d_rows = _rows_in(d_out_tiles, slab, kv_heads)
                delta = (d_rows * _rows_in(out_tiles, slab, kv_heads)).sum(-1).view(*slab.shape, 1)
                delta -= _at_rows_of(d_lse, slab)
                dk_own = dk.new_zeros(
                    len(slab.tiles), kv_heads, chunks[0].count if chunks else 0, k.shape[-1]
                )
                dv_own = dv.new_zeros(
                    len(slab.tiles), kv_heads, chunks[0].count if chunks else 0, v.shape[-1]
                )
                results = _fine_backward_slab(
                    _rows_in(q_tiles, slab, kv_heads), _keys_in(k_tiles, chunks, kv_heads),
                    _keys_in(v_tiles, chunks, kv_heads), d_rows, _at_rows_of(lse, slab),
                    delta, dv_own.flatten(0, 1), dk_own.flatten(0, 1),
                    _fine_entries_of(numbers, slab), slab, chunks, work, call,
                )  # fmt: skip
                for total, result in zip((dq_tiles,), results, strict=True):
                    _put(total, slab, result)
                _add_tiles(dk_tiles, dk_own, chunks)
                _add_tiles(dv_tiles, dv_own, chunks)
            dk += _untiled_keys(dk_tiles, lists, dk.shape)
            dv += _untiled_keys(dv_tiles, lists, dv.shape)
            dq += _untiled_rows(dq_tiles, lists, shape)
    dk.mul_(numbers[1])
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), torch.zeros_like(blocks_of_row)


def _fine_scores(rows, keys):
    """[tiles, heads, 1, rows, d] and [tiles, heads, 1, keys, d] -> scores."""
    return rows @ keys.mT


def _fine_lifted(numbers):
    """Numbers of heads with an axis between heads and rows."""
    return tuple(x[:, :, None] if isinstance(x, Tensor) else x for x in numbers)


def _fine_weights_of(q, k, blocks_of_row, i, j, hidden, numbers, call):
    """Weights of pairs, what they are divided by, and the numbers of rows, in plain operations."""
    scale, _ = numbers
    dot_qk = _fine_scores(q, k)
    score = scale * dot_qk
    exponent_kept = score.masked_fill(hidden, -torch.inf)
    peak = _maximum(exponent_kept.detach().amax(-1, keepdim=True), torch.finfo(q.dtype).min)
    weight = torch.exp(exponent_kept - peak)
    rows = weight.sum(-1, keepdim=True)
    lse = peak + _safe_log(rows)
    return weight, rows, (lse,)


def _fine_batched(q, k, v, blocks_of_row, scale, q_start, k_start, q_starts, kv_lengths):
    """What `_fine_forward` returns, slab by slab in operations that autograd knows."""
    wide = _wide(q.dtype)
    shape, m = q.shape[:3], v.shape[2]
    group = 1
    numbers, call = _numbers(q, k, v, scale, kv_lengths), _Call(shape[2], m, shape[1], 0)
    # All passes at once: each row meets every key, which takes more work than lists do.
    lists, related = _everything(q, v), _fine_related
    q_tiles = _tiled_rows(q, lists)
    k_tiles = _tiled_keys(k, lists, shape[1])
    v_tiles = _tiled_keys(v, lists, shape[1])

    def windows(tiles, chunks):  # keys of each query head
        own = _keys_in(tiles, chunks, len(tiles) // len(lists.keys)).to(wide)
        return own.repeat_interleave(group, 1)[:, :, None]

    order, parts = [], []
    for slab, chunks in _fine_slabs(
        blocks_of_row, shape[1], lists, related, shape[2], m, q_start, k_start, q_starts, kv_lengths
    ):
        chunks = chunks or (_no_keys(slab, lists, m),)
        hidden = chunks[0].hidden[:, :, None]
        i, j = slab.i[:, :, None], chunks[0].j[:, :, None]
        own = _fine_lifted(_fine_entries_of(numbers, slab))
        weight, norm, numbers_of_rows = _fine_weights_of(
            _rows_in(q_tiles, slab, slab.shape[1]).view(*slab.shape[:2], 1, slab.shape[2], -1),
            windows(k_tiles, chunks),
            blocks_of_row,
            i,
            j,
            hidden,
            own,
            call,
        )
        seen = (chunks[0].places < m)[:, None, None, :, None]
        out = weight @ windows(v_tiles, chunks).masked_fill(~seen, 0)
        if norm is not None:
            out = out * _reciprocal(norm)
        rest = (x.expand(*slab.shape[:2], 1, slab.shape[2], 1) for x in numbers_of_rows)
        parts.append((out, *rest))
        order.append(_rows_at(slab, lists.rows))
    back = torch.cat(order).argsort()
    tiles = shape[0] * shape[1], lists.rows.shape[1]
    outs = [
        torch.cat(each).flatten(0, 2)[back].unflatten(0, tiles) for each in zip(*parts, strict=True)
    ]
    outs = [_untiled_rows(each, lists, shape) for each in outs]
    return outs[0].to(q.dtype), *(each[..., 0] for each in outs[1:])


def _everything(q, v):
    """Lists in which rows meet all keys."""
    entries = q.shape[0] * q.shape[1]
    rows, keys = (torch.arange(x.shape[2], device=q.device).expand(entries, -1) for x in (q, v))
    rows, keys = _tiles_of(rows, q.shape[2], _ROWS), _tiles_of(keys, v.shape[2], _KEYS)
    tiles, count = rows.shape[0] * rows.shape[1], keys.shape[1]
    counts, met = (
        torch.full((tiles,), count, device=q.device),
        torch.arange(count, device=q.device).repeat(tiles),
    )
    return _Lists(rows, keys, (False, False), counts, met)


def _no_keys(slab, lists, m):
    """A tile of keys of which none is related."""
    places = torch.full((len(slab.tiles), lists.keys.shape[2]), m, device=slab.tiles.device)
    hidden = torch.ones(
        len(slab.tiles),
        1,
        lists.rows.shape[2],
        lists.keys.shape[2],
        dtype=torch.bool,
        device=slab.tiles.device,
    )
    first = slab.tiles // lists.rows.shape[1] * lists.keys.shape[1]
    return _fine_Chunk(first[:, None], places, places[:, None, None], hidden)


def _fine_operands(
    q, k, v, k_far, scale, q_start, k_start, q_starts, kv_lengths, choices=None, kept=None
):
    """What the passes read: what each token and each distance determines alone."""
    batch = q.shape[0]
    heads = q.shape[1]
    n = q.shape[2]
    m = k.shape[2]
    device = q.device

    def made_blocks():
        numbers = _numbers_for_blocks(
            q,
            k,
            v,
            k_far,
            scale=scale,
            kv_lengths=kv_lengths,
            q_start=q_start if q_starts is None else q_starts,
            k_start=k_start,
            kept=kept,
        )
        among = _among_for_blocks(
            q,
            k,
            v,
            k_far,
            kv_lengths=kv_lengths,
            q_start=q_start if q_starts is None else q_starts,
            k_start=k_start,
            kept=kept,
        )
        return _best(
            lambda rows: (
                _summed_blocks(
                    _over_groups(numbers(rows), heads, k.shape[1]),
                    -(-m // 64),
                    4,
                    (0.5, 1.0, 1.0, 1.0, 0.5),
                )
                + _over_groups(among(rows), heads, k.shape[1])
            ),
            13,
            batch,
            k.shape[1],
            n,
            -(-m // 64),
            k_start // 64,
            device,
            each=4 * heads // k.shape[1],
        )

    blocks_of_row = _chosen_keys(choices, "blocks", made_blocks)
    return q, k, v, _facts_of_heads(blocks_of_row, heads)


def _minimum(a, b):
    """The smaller of two tensors or numbers."""
    if isinstance(a, Tensor):
        return torch.minimum(a, b) if isinstance(b, Tensor) else a.clamp(max=b)
    return b.clamp(max=a) if isinstance(b, Tensor) else min(a, b)


def _chosen_keys(choices, name, made):
    """Keys that rows choose, [batch, heads, n, entries]: the caller's, or made and noted down."""
    if choices is not None and name in choices:
        return choices[name]
    found = made()
    if choices is not None:
        choices[name] = found
    return found


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


def _over_groups(x, heads, kv_heads):
    """Numbers of heads added up where they share a key head, [batch, kv heads, rows, keys]."""
    return x.expand(-1, heads, -1, -1).unflatten(1, (kv_heads, -1)).sum(2)


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
    parts = (
        x[..., at : at + (count - 1) * step + 1 : step] * part for at, part in enumerate(overlaps)
    )
    return sum(parts)


def _choices_of(choices, expected, q):
    """A copy of the caller's choices; refused with another name, shape, type or range."""
    choices = {} if choices is None else dict(choices)
    for name, x in choices.items():
        _expect(name in expected, "choices", repr(name), " or ".join(expected))
        shape, low, end = expected[name]
        about = f'choices["{name}"]'
        _expect(isinstance(x, Tensor), about, type(x).__name__, "a tensor")
        _expect(tuple(x.shape) == shape, about, list(x.shape), list(shape))
        _expect(
            not x.is_floating_point() and x.dtype != torch.bool, about, x.dtype, "whole numbers"
        )
        _expect(
            x.device == q.device, about, f"on {x.device}", f"the device of the data, {q.device}"
        )
        if end is not None and x.numel() and not _is_shape_only(x) and _at_hand(x):
            fits = ((x >= low) & (x < end)).all()
            if x.device.type != "cpu":
                torch._assert_async(fits)
            elif not fits:
                _expect(False, about, f"{int(x.min())} … {int(x.max())}", f"{low} … {end - 1}")
        choices[name] = x.long()
    return choices


def _is_among(x, listed):
    """Whether numbers [..., rows or 1, keys] are in lists [..., rows, entries]; below 0 is none."""
    found = x == listed[..., :1]
    for at in range(1, listed.shape[-1]):
        found |= x == listed[..., at : at + 1]
    return found & (x >= 0)


def _at_hand(x):
    """Whether numbers can be looked at: not while compilers trace, nor those of vmap."""
    if torch.compiler.is_compiling():
        return False
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            return False
        x = torch._C._functorch.get_unwrapped(x)
    return True


def _facts_of_heads(x, heads):
    """What a pattern asks of a key of each key head, for every query head."""
    return x if x.shape[1] in (1, heads) else x.repeat_interleave(heads // x.shape[1], 1)


def _fine_forward_in_kernels(*args):
    """`_fine_launch_forward`, of 256 features of values at a time."""
    if args[2].shape[-1] <= 256:
        return _fine_launch_forward(*args)
    values = args[2].split(256, -1)
    found = [_fine_launch_forward(*args[:2], part, *args[3:]) for part in values]
    return tuple(
        torch.cat(parts, -1) if at in (0, 2) else parts[0]
        for at, parts in enumerate(zip(*found, strict=True))
    )


def _fine_backward_in_kernels(*args):
    """`_fine_launch_backward` in the same way: gradients of values are joined, others added."""
    width, found = args[2].shape[-1], []
    if width <= 256:
        return _fine_launch_backward(*args)
    for start in range(0, width, 256):
        own = list(args)
        for at in (2, 4, 6, 7):
            own[at] = args[at][..., start : start + 256]
        if start:
            own[8] = torch.zeros_like(args[8])
        found.append(_fine_launch_backward(*own))
    return tuple(
        torch.cat(parts, -1) if at == 2 else functools.reduce(torch.add, parts)
        for at, parts in enumerate(zip(*found, strict=True))
    )


def _fine_run(
    q, k, v, blocks_of_row, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual
):
    run = _fine_forward if form == "torch" else _fine_forward_in_kernels
    return run(q, k, v, blocks_of_row, scale, q_start, k_start, q_starts, kv_lengths, keep_residual)


def _fine_run_backward(*args):
    *args, form = args
    run = _fine_backward if form == "torch" else _fine_backward_in_kernels
    return run(*args)


class _fine_Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        q, k, v, blocks_of_row, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual
    ):
        return _fine_run(
            q,
            k,
            v,
            blocks_of_row,
            scale,
            q_start,
            k_start,
            q_starts,
            kv_lengths,
            form,
            keep_residual,
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, blocks_of_row, *ctx.numbers, q_starts, kv_lengths, ctx.form, _ = inputs
        ctx.save_for_backward(q, k, v, blocks_of_row, *output, q_starts, kv_lengths)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        grads = _fine_Gradient.apply(
            *saved, d_out, d_statistics[0], *ctx.numbers, q_starts, kv_lengths, ctx.form
        )
        return *grads, *(None,) * (len(ctx.numbers) + 4)

    @staticmethod
    def vmap(info, in_dims, *args):
        *args, keep_residual = args  # only here is it seen whether what is mapped has gradients
        args = (*args, keep_residual or _keeps_residual(*args[:4]))
        return _each_vmap(_fine_Attention, info, in_dims, args)


class _fine_Gradient(torch.autograd.Function):
    """The backward pass; its own derivative comes from the plain operations of `_fine_batched`."""

    @staticmethod
    def forward(*args):
        return _fine_run_backward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *saved, ctx.form = inputs
        ctx.numbers = saved[-5:-2]
        gradients = saved[-7:-5]
        ctx.save_for_backward(*saved[:4], *gradients, *saved[-2:])

    @staticmethod
    def backward(ctx, *grads):
        q, k, v, blocks_of_row, *gradients, q_starts, kv_lengths = ctx.saved_tensors
        dq, dk, dv, d_blocks_of_row = grads

        def differentiable(q, k, v):
            outs = _fine_batched(q, k, v, blocks_of_row, *ctx.numbers, q_starts, kv_lengths)
            return (outs[0], outs[1])

        def gradient(q, k, v, *gradients):
            return torch.func.vjp(differentiable, q, k, v)[1](gradients)

        inputs = q, k, v, *gradients
        dq, dk, dv, *d_gradients = torch.func.vjp(gradient, *inputs)[1](
            (
                dq,
                dk,
                dv,
            )
        )
        return dq, dk, dv, None, *(None,) * 3, *d_gradients, *(None,) * 6

    @staticmethod
    def vmap(info, in_dims, *args):
        return _each_vmap(_fine_Gradient, info, in_dims, args)


def _each_vmap(function, info, in_dims, args):
    """One call for each entry of the mapped axis: what has no batch axis cannot take it up."""

    def own(x, axis, at):
        return x if axis is None else x.select(axis, at)

    calls = [
        function.apply(*(own(x, axis, at) for x, axis in zip(args, in_dims, strict=True)))
        for at in range(info.batch_size)
    ]
    outs = tuple(torch.stack(each) for each in zip(*calls, strict=True))
    return outs, (0,) * len(outs)


# Under torch.compile and torch.export the two passes are operators, opaque to the compiler.
_fine_OPERATOR = "nsa_fine_ec9d7ebe"


def _choose(choices, prepared):
    """Make the choices that are missing by an operator: a compiler would write their loops out."""
    choose = getattr(torch.ops.attncc, f"{_fine_OPERATOR}_choices")
    data, places = [x.detach() for x in prepared[:4]], prepared[4:]
    names = [name for name in ("blocks",) if name not in choices]
    choices.update(
        zip(names, choose(data, list(choices), list(choices.values()), *places), strict=True)
    )


def _choices_apart(data, names, given, *places):
    choices = dict(zip(names, given, strict=True))
    _fine_operands(*data, *places, choices=choices)
    return [choices[name].clone() for name in ("blocks",) if name not in names]


def _fine_register():
    places = "SymInt q_start, SymInt k_start, Tensor? q_starts, Tensor? kv_lengths"
    numbers = f"float scale, {places}, str form"
    inputs = "Tensor q, Tensor k, Tensor v, Tensor blocks_of_row"
    _library.define(
        f"{_fine_OPERATOR}({inputs}, {numbers}, bool keep_residual) -> (Tensor, Tensor, Tensor)"
    )
    statistics = "Tensor lse, Tensor residual, "
    saved = f"Tensor out, {statistics}Tensor d_out, Tensor d_lse"
    gradients = "(Tensor, Tensor, Tensor, Tensor)"
    _library.define(f"{_fine_OPERATOR}_fine_backward({inputs}, {saved}, {numbers}) -> {gradients}")
    _library.impl(_fine_OPERATOR, _fine_run, "CompositeExplicitAutograd")
    _library.impl(
        f"{_fine_OPERATOR}_fine_backward", _fine_run_backward, "CompositeExplicitAutograd"
    )
    given = "Tensor[] data, str[] names, Tensor[] given"
    _library.define(f"{_fine_OPERATOR}_choices({given}, float scale, {places}) -> Tensor[]")
    _library.impl(f"{_fine_OPERATOR}_choices", _choices_apart, "CompositeExplicitAutograd")

    @torch.library.register_fake(f"attncc::{_fine_OPERATOR}_choices", lib=_library)
    def _(data, names, given, *places):
        shapes = _expected_choices(*data, places[-3])
        return [
            data[0].new_empty(shapes[name][0], dtype=torch.int64)
            for name in ("blocks",)
            if name not in names
        ]

    @torch.library.register_fake(f"attncc::{_fine_OPERATOR}", lib=_library)
    def _(q, k, v, blocks_of_row, *numbers):
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        return (
            out,
            q.new_empty(q.shape[:3], dtype=_wide(q.dtype)),
            q.new_empty(*q.shape[:3], v.shape[-1] if numbers[-1] else 0),
        )

    @torch.library.register_fake(f"attncc::{_fine_OPERATOR}_fine_backward", lib=_library)
    def _(q, k, v, blocks_of_row, *rest):
        return (
            q.new_empty(q.shape),
            k.new_empty(k.shape),
            v.new_empty(v.shape),
            blocks_of_row.new_empty(blocks_of_row.shape),
        )

    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        run = getattr(torch.ops.attncc, f"{_fine_OPERATOR}_fine_backward")
        grads = run(*saved, d_out, d_statistics[0], *ctx.numbers, q_starts, kv_lengths, ctx.form)
        return *grads, *(None,) * (len(ctx.numbers) + 4)

    def setup_context(ctx, inputs, output):
        _fine_Attention.setup_context(ctx, inputs, output)

    torch.library.register_autograd(
        f"attncc::{_fine_OPERATOR}", backward, setup_context=setup_context, lib=_library
    )


if not hasattr(
    torch.ops.attncc, _fine_OPERATOR
):  # a copy of this file may have been loaded already
    _fine_register()


def _fine_check(q, k, v, k_far, kv_lengths, q_start, k_start):
    """Refuse what the kernels would misread, with the argument's name."""
    for name, x in (("q", q), ("k", k), ("v", v), ("k_far", k_far)):
        _expect(not x.is_nested, name, "nested", "a dense tensor")
        _expect(x.layout == torch.strided, name, x.layout, "a dense tensor")
        _expect(x.dim() == 4, name, list(x.shape), "four axes: [batch, heads, length, width]")
        _expect(x.dtype in _DTYPES, name, x.dtype, "float64, float32, bfloat16 or float16")
        _expect(x.dtype == q.dtype, name, x.dtype, f"the dtype of q, {q.dtype}")
        _expect(x.device == q.device, name, f"on {x.device}", f"the device of q, {q.device}")
    batch, heads, _, width = q.shape
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}, k_far {list(k_far.shape)}"
    _expect(
        k.shape[0] == batch and v.shape[0] == batch and k_far.shape[0] == batch,
        "the batch",
        shapes,
        "one size in q, k, v and k_far",
    )
    _expect(heads > 0 and k.shape[1] > 0, "the number of heads", shapes, "one or more")
    _expect(heads % k.shape[1] == 0, "the number of heads", shapes, "q's to be a multiple of k's")
    _expect(
        v.shape[1:3] == k.shape[1:3],
        "v",
        list(v.shape),
        f"the heads and length of k {list(k.shape)}",
    )
    _expect(
        k_far.shape[1:3] == k.shape[1:3],
        "k_far",
        list(k_far.shape),
        f"the heads and length of k {list(k.shape)}",
    )
    _expect(k.shape[3] == width, "k", list(k.shape), f"the width of q, {width}")
    _expect(k_far.shape[3] == width, "k_far", list(k_far.shape), f"the width of q, {width}")
    _expect(1 <= width <= 256, "the width", shapes, "1 … 256")
    _expect(v.shape[3] > 0, "the width", shapes, "1 or more")
    for name, x in (("kv_lengths", kv_lengths), ("q_start", q_start)):
        if isinstance(x, Tensor):
            _expect(
                x.shape == (batch,),
                name,
                list(x.shape),
                f"one number for each of {batch} batch entries",
            )
            _expect(
                not x.is_floating_point() and x.dtype != torch.bool, name, x.dtype, "whole numbers"
            )
            _expect(x.device == q.device, name, f"on {x.device}", f"the device of q, {q.device}")
        elif x is not None:
            _expect_number(name, x, 0 if name == "kv_lengths" else -(2**31))
    _expect_number("k_start", k_start, 0)


def _fine_prepared(q, k, v, k_far, scale, kv_lengths, q_start, k_start):
    """The arguments as the passes take them; a position is a number and an offset a batch entry."""
    _expect_tensors(q=q, k=k, v=v, k_far=k_far)
    device = q.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        q, k, v, k_far = (x.to(torch.get_autocast_dtype(device)) for x in (q, k, v, k_far))
    _fine_check(q, k, v, k_far, kv_lengths, q_start, k_start)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    if not isinstance(scale, (int, float)) or not abs(scale) < float("inf"):
        raise ValueError(f"nsa: scale is {scale!r}, expected a finite number")
    scale = float(scale)
    if isinstance(kv_lengths, int):
        kv_lengths = torch.full((q.shape[0],), kv_lengths, device=q.device)
    q_starts = None
    if q_start is None:
        q_start = k_start + k.shape[2] - q.shape[2]
    elif isinstance(q_start, Tensor):
        q_start, q_starts = 0, q_start
    return q, k, v, k_far, scale, q_start, k_start, q_starts, kv_lengths


def _expected_choices(q, k, v, k_far, k_start):
    """Of each choice the shape, the least number, and the one above its range if it has one."""
    return {
        "blocks": ((q.shape[0], k.shape[1], q.shape[2], 13), -1, -(-(k_start + k.shape[2]) // 64)),
    }


def _fine(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_far: Tensor,
    *,
    scale: float | None = None,
    kv_lengths: int | Tensor | None = None,
    q_start: int | Tensor | None = None,
    k_start: int = 0,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    form: str | None = None,
    choices: dict[str, Tensor] | None = None,
    return_choices: bool = False,
):
    """Native sparse attention: means of blocks, the blocks of keys that get most of these, and a
    window, each times a gate

    Args:
        q: [batch, heads, n, d], float32, bfloat16, float16 or (not in Triton) float64; d up to 256.
        k: [batch, kv heads, m, d]; query head h reads kv head h // (heads / kv heads).
        v: [batch, kv heads, m, e].
        k_far: [batch, kv heads, m, d], given; float32 or as q.
        scale: the `scale` of the spec; 1 / sqrt(d) by default.
        kv_lengths: how many keys each batch entry has, one number or [batch]; others are hidden.
        q_start: the position of the first row, one number or [batch];
            so that rows and keys end together by default.
        k_start: the position of the first key.
        return_lse: also return the natural logarithm of each row's normaliser.
        form: "triton", "c" or "torch"; by default Triton runs on GPUs and C on CPUs, if they can.
        choices: some of what the spec chooses by comparing, in place of what it would choose.
        return_choices: also return what was chosen, by name.

    Returns:
        [batch, heads, n, e]; rows without keys are 0.
        With return_lse also [batch, heads, n], -inf for rows without weights.
        With return_choices last of all a dict of whole numbers:
            blocks: [batch, kv heads, n, 13], numbers of blocks of 64 keys, -1 for none.

    Raises:
        ValueError: an argument whose shape, dtype or device does not fit, with its name.
    """
    _expect(dropout_p == 0.0, "dropout_p", dropout_p, "0.0: dropout is not supported")
    prepared = _fine_prepared(q, k, v, k_far, scale, kv_lengths, q_start, k_start)
    choices = _choices_of(choices, _expected_choices(q, k, v, k_far, k_start), q)
    if torch.compiler.is_compiling():
        _choose(choices, prepared)
    prepared = *_fine_operands(*prepared, choices=choices), *prepared[4:]
    form = _form(form, prepared[0])
    keep_residual = _keeps_residual(*prepared[:4])
    if not torch.compiler.is_compiling() and not _is_shape_only(prepared[0]):
        outs = _fine_Attention.apply(*prepared, form, keep_residual)
    else:
        outs = getattr(torch.ops.attncc, _fine_OPERATOR)(*prepared, form, keep_residual)
    results = (outs[0], *(outs[1],) * return_lse, *(choices,) * return_choices)
    return results if len(results) > 1 else outs[0]


def _fine_weights(
    q,
    k,
    k_far,
    *,
    rows=slice(None),
    scale=None,
    kv_lengths=None,
    q_start=None,
    k_start=0,
    choices=None,
):
    """The weights of some rows over their normalisers, [batch, heads, rows, m]: for pictures."""
    _expect(isinstance(rows, slice), "rows", repr(rows), "a slice, such as slice(0, 4)")
    prepared = _fine_prepared(q, k, k, k_far, scale, kv_lengths, q_start, k_start)
    choices = _choices_of(choices, _expected_choices(q, k, k, k_far, k_start), q)
    prepared = *_fine_operands(*prepared, choices=choices), *prepared[4:]
    q, k, _, blocks_of_row, scale, q_start, k_start, q_starts, kv_lengths = prepared
    heads, kv_heads, m = q.shape[1], k.shape[1], k.shape[2]
    wide, device = _wide(q.dtype), q.device
    row = torch.arange(q.shape[2], device=device)[rows]
    if not m:
        return q.new_empty(q.shape[0], heads, len(row), 0, dtype=wide)
    i = row + q_start
    i = i[None] if q_starts is None else i + q_starts[:, None]
    place = torch.arange(m, device=device)
    length = m if kv_lengths is None else kv_lengths.clamp(0, m)[:, None, None, None, None]
    i, j = i[:, None, None, :, None], place[None, None, None, None] + k_start
    seen = place[None, None, None, None] < length
    call = _call_of(q, k)
    hidden = ~(_fine_related(i, j, blocks_of_row[:, :, None, rows], call) & seen)
    kv_head = torch.arange(heads, device=device) // (heads // kv_heads)

    def own(x):  # [batch, heads, n, c] -> [batch, heads, 1, rows, c]
        return x.to(wide)[:, :, None, rows]

    def windows(x):  # [batch, kv heads, m, c] -> [batch, heads, 1, m, c]
        return x.to(wide)[:, kv_head, None].masked_fill(~seen.transpose(-1, -2), 0)

    numbers = _fine_lifted(_numbers(q, k, k, scale, kv_lengths))
    weight, norm, _ = _fine_weights_of(
        own(q), windows(k), blocks_of_row, i, j, hidden, numbers, call
    )
    weight = weight if norm is None else weight * _reciprocal(norm)
    return weight[:, :, 0]


_fine_TOKENS = {"k": 2, "v": 2, "k_far": 2}  # which axis of what keys have is that of the tokens


@dataclasses.dataclass
class _FineCache:
    """What later tokens may ask for.

    It keeps every key so far as it was given, and blocks that are full; choices are made anew.
    Tensors and numbers alone: `torch.save` writes it, `to` moves it. A new one is that of no token.
    """

    position: int = 0  # of the next token
    keys: tuple = ()  # k, v and k_far of tokens, with room for more
    blocks: dict = dataclasses.field(default_factory=dict)  # how many are full, and what they have

    def to(self, device):
        """The same on another device."""
        keys = tuple(x.to(device) for x in self.keys)
        blocks = {
            name: (full, tuple(x.to(device) for x in held))
            for name, (full, held) in self.blocks.items()
        }
        return _FineCache(self.position, keys, blocks)


def _fine_remember(cache, new):
    """Add what new tokens have."""
    position, known = cache.position, cache.keys or new
    kept = []
    for name, before, x in zip(("k", "v", "k_far"), known, new, strict=True):
        axis = _fine_TOKENS[name]
        found, expected = (
            (*each.shape[:axis], *each.shape[axis + 1 :], each.dtype, each.device)
            for each in (x, before)
        )
        _expect(
            found == expected,
            f"what is new in {name}",
            found,
            f"batch, heads, width and so on of the cache, {expected}",
        )
        fresh = x.shape[axis]
        if not cache.keys or position + fresh > before.shape[axis]:
            room = max(2 * (position + fresh), _ROOM)
            held = before.narrow(axis, 0, position)
            before = x.new_empty(*x.shape[:axis], room, *x.shape[axis + 1 :])
            before.narrow(axis, 0, position).copy_(held)
        before.narrow(axis, position, fresh).copy_(x)
        kept.append(before)
    cache.keys, cache.position = tuple(kept), position + fresh


@torch.no_grad()
def _fine_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_far: Tensor,
    cache: _FineCache,
    *,
    scale: float | None = None,
    return_lse: bool = False,
):
    """The next token of a sequence, or several, after those of a cache.

    Args:
        q, k, v, k_far: as in `attention`, of the new tokens alone.
        cache: a new one, or that of the tokens before; it is changed.

    Returns:
        The rows that `attention` gives these tokens in the whole sequence, and the cache.
        With return_lse the logarithms of their normalisers stand in between.
    """
    _expect(
        isinstance(cache, _FineCache), "cache", type(cache).__name__, "a _FineCache of this module"
    )
    _fine_prepared(
        q, k, v, k_far, scale, None, cache.position, cache.position
    )  # refuses what does not fit
    _expect(
        k.shape[2] == q.shape[2],
        "the number of keys",
        k.shape[2],
        f"one for each of {q.shape[2]} rows",
    )
    start = cache.position
    _fine_remember(cache, (k, v, k_far))
    k, v, k_far = (
        x.narrow(_fine_TOKENS[name], 0, cache.position)
        for name, x in zip(("k", "v", "k_far"), cache.keys, strict=True)
    )
    # Another dict, so that a step that is refused leaves the cache as it was.
    kept = dict(cache.blocks)
    prepared = _fine_prepared(q, k, v, k_far, scale, None, start, 0)
    prepared = *_fine_operands(*prepared, kept=kept), *prepared[4:]
    outs = _fine_run(*prepared, _form(None, prepared[0]), False)
    cache.blocks = kept
    out, lse = outs[0], outs[1]
    return (out, lse, cache) if return_lse else (out, cache)


@torch.no_grad()
def _fine_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_far: Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
    form: str | None = None,
):
    """`attention` on the first tokens of a sequence, and the cache from which `step` goes on.

    Args:
        q, k, v, k_far: as in `attention`, with as many rows as keys.
        form: "triton" or "torch", as in `attention`.
    """
    _expect_tensors(q=q, k=k, v=v, k_far=k_far)
    _expect(
        k.shape[2] == q.shape[2],
        "the number of keys",
        k.shape[2],
        f"one for each of {q.shape[2]} rows",
    )
    out, lse = _fine(q, k, v, k_far, scale=scale, return_lse=True, form=form)
    cache = _FineCache()
    _fine_remember(cache, (k, v, k_far))
    return (out, lse, cache) if return_lse else (out, cache)


def _blocks_related(i, j, call):
    """The pattern: 16 * j + 32 - 1 <= i"""
    return 16 * j + 32 - 1 <= i


def _blocks_scores(rows, keys):
    """[batch, heads, blocks, rows, d] and [batch, heads, blocks, keys, d] -> scores."""
    return torch.bmm(rows.flatten(0, 2), keys.flatten(0, 2).mT).view(*rows.shape[:4], keys.shape[3])


def _blocks_lifted(numbers):
    """Numbers of heads with an axis for blocks."""
    return tuple(x[:, :, None] if isinstance(x, Tensor) else x for x in numbers)


def _blocks_weights_of(q, k_of_key, i, j, hidden, numbers, call):
    """Weights of pairs, what they are divided by, and the numbers of rows, in plain operations."""
    scale, _ = numbers
    dot_qk_of_key = _blocks_scores(q, k_of_key)
    score = scale * dot_qk_of_key
    exponent_kept = score.masked_fill(hidden, -torch.inf)
    peak = _maximum(exponent_kept.detach().amax(-1, keepdim=True), torch.finfo(q.dtype).min)
    weight = torch.exp(exponent_kept - peak)
    rows = weight.sum(-1, keepdim=True)
    lse = peak + _safe_log(rows)
    return weight, rows, (lse,)


def _blocks_operands(q, k, v, k_far, scale, q_start, k_start, q_starts, kv_lengths):
    """What the passes read: what each token and each distance determines alone."""
    batch = q.shape[0]
    kv_heads = k.shape[1]
    m = k.shape[2]
    dtype = q.dtype
    wide = _wide(dtype)
    device = q.device
    blocks = -(-m // 16)
    hidden = _hidden(kv_lengths, m, device)
    k_far_wide = _seen(k_far.to(wide), hidden)
    k_of_key = _vectors(_pooled(k_far_wide, 32, 16, m, hidden), batch, kv_heads, blocks, wide)
    return q, k_of_key


@torch.no_grad()
def _numbers_for_blocks(
    q, k, v, k_far, *, scale=None, kv_lengths=None, q_start=None, k_start=0, kept=None
):
    """What keys get: a function that gives it for some rows, [batch, heads, rows, m]."""
    prepared = _fine_prepared(q, k, v, k_far, scale, kv_lengths, q_start, k_start)
    made = (
        _blocks_operands(*prepared)
        if kept is None
        else _kept_blocks(
            kept, "numbers of blocks", _blocks_operands, 32, 16, (None, 2, 2, 2), (1,), prepared
        )
    )
    prepared = *made, *_on_blocks(16, *prepared[4:])
    q, k_of_key, scale, q_start, k_start, q_starts, kv_lengths = prepared
    heads, kv_heads, m = q.shape[1], k_of_key.shape[1], k_of_key.shape[2]
    wide, device = _wide(q.dtype), q.device
    place = torch.arange(m, device=device)
    length = m if kv_lengths is None else kv_lengths.clamp(0, m)[:, None, None, None, None]
    j = place[None, None, None, None] + k_start
    seen = place[None, None, None, None] < length
    call = _call_of(q, k_of_key)
    kv_head = torch.arange(heads, device=device) // (heads // kv_heads)
    numbers = _blocks_lifted(_numbers(q, k_of_key, k_of_key, scale, kv_lengths))

    def windows(x):  # [batch, kv heads, m, c] -> [batch, heads, 1, m, c]
        return x.to(wide)[:, kv_head, None].masked_fill(~seen.transpose(-1, -2), 0)

    def of_rows(rows):
        row = torch.arange(q.shape[2], device=device)[rows]
        i = row + q_start
        i = (i[None] if q_starts is None else i + q_starts[:, None])[:, None, None, :, None]
        hidden = ~(_blocks_related(i, j, call) & seen)

        def own(x):  # [batch, heads, n, c] -> [batch, heads, 1, rows, c]
            return x.to(wide)[:, :, None, rows]

        weight, norm, _ = _blocks_weights_of(own(q), windows(k_of_key), i, j, hidden, numbers, call)
        weight = weight if norm is None else weight * _reciprocal(norm)
        return weight[:, :, 0]

    return of_rows


def _blocks_among_related(i, j, call):
    """The pattern: 64 * j <= i & !(64 * j // 64 == 0 | i // 64 - 64 * j // 64 <= 1)"""
    return (64 * j <= i) & ((64 * j // 64 != 0) & (i // 64 - 64 * j // 64 > 1))


def _blocks_among_lifted(numbers):
    """Numbers of heads with an axis for blocks."""
    return tuple(x[:, :, None] if isinstance(x, Tensor) else x for x in numbers)


def _blocks_among_weights_of(q, i, j, hidden, numbers, call):
    """Weights of pairs, what they are divided by, and the numbers of rows, in plain operations."""
    weight = _spread(0, q, hidden.shape[-1])
    kept = weight.masked_fill(hidden, 0.0)
    return kept, None, ()


def _blocks_among_operands(q, k, v, k_far, q_start, k_start, q_starts, kv_lengths):
    """What the passes read: what each token and each distance determines alone."""
    batch = q.shape[0]
    kv_heads = k.shape[1]
    m = k.shape[2]
    dtype = q.dtype
    wide = _wide(dtype)
    device = q.device
    blocks = -(-m // 64)
    hidden = _hidden(kv_lengths, m, device)
    k_far_wide = _seen(k_far.to(wide), hidden)
    k_far_of_key = _vectors(_pooled(k_far_wide, 64, 64, m, hidden), batch, kv_heads, blocks, wide)
    return q, k_far_of_key


def _spread(x, q, keys):
    """Numbers that no dot product is in, for every pair of blocks of rows and keys."""
    return q.new_zeros((*q.shape[:-1], keys)) + x


def _blocks_among_prepared(q, k, v, k_far, kv_lengths, q_start, k_start):
    """The arguments as the passes take them; a position is a number and an offset a batch entry."""
    _expect_tensors(q=q, k=k, v=v, k_far=k_far)
    device = q.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        q, k, v, k_far = (x.to(torch.get_autocast_dtype(device)) for x in (q, k, v, k_far))
    _fine_check(q, k, v, k_far, kv_lengths, q_start, k_start)
    if isinstance(kv_lengths, int):
        kv_lengths = torch.full((q.shape[0],), kv_lengths, device=q.device)
    q_starts = None
    if q_start is None:
        q_start = k_start + k.shape[2] - q.shape[2]
    elif isinstance(q_start, Tensor):
        q_start, q_starts = 0, q_start
    return q, k, v, k_far, q_start, k_start, q_starts, kv_lengths


@torch.no_grad()
def _among_for_blocks(q, k, v, k_far, *, kv_lengths=None, q_start=None, k_start=0, kept=None):
    """Numbers of pairs: a function that gives those of a slice of rows, -inf where not related."""
    prepared = _blocks_among_prepared(q, k, v, k_far, kv_lengths, q_start, k_start)
    made = (
        _blocks_among_operands(*prepared)
        if kept is None
        else _kept_blocks(
            kept, "among of blocks", _blocks_among_operands, 64, 64, (None, 2, 2, 2), (1,), prepared
        )
    )
    prepared = *made, *_on_blocks(64, *prepared[4:])
    q, k_far_of_key, q_start, k_start, q_starts, kv_lengths = prepared
    heads, kv_heads, m = q.shape[1], k_far_of_key.shape[1], k_far_of_key.shape[2]
    wide, device = _wide(q.dtype), q.device
    place = torch.arange(m, device=device)
    length = m if kv_lengths is None else kv_lengths.clamp(0, m)[:, None, None, None, None]
    j = place[None, None, None, None] + k_start
    seen = place[None, None, None, None] < length
    call = _call_of(q, k_far_of_key)
    kv_head = torch.arange(heads, device=device) // (heads // kv_heads)
    numbers = _blocks_among_lifted(())

    def windows(x):  # [batch, kv heads, m, c] -> [batch, heads, 1, m, c]
        return x.to(wide)[:, kv_head, None].masked_fill(~seen.transpose(-1, -2), 0)

    def of_rows(rows):
        row = torch.arange(q.shape[2], device=device)[rows]
        i = row + q_start
        i = (i[None] if q_starts is None else i + q_starts[:, None])[:, None, None, :, None]
        hidden = ~(_blocks_among_related(i, j, call) & seen)

        def own(x):  # [batch, heads, n, c] -> [batch, heads, 1, rows, c]
            return x.to(wide)[:, :, None, rows]

        weight, norm, _ = _blocks_among_weights_of(own(q), i, j, hidden, numbers, call)
        return weight[:, :, 0].masked_fill(hidden[:, :, 0], -torch.inf)

    return of_rows


# --- the branch `near`: i - j <= 511 & j - i <= 0 -------------------------------------------------
# How the kernels follow from the spec:
# - defer-division: sum_j (w_ij / N_i) v_j = (sum_j w_ij v_j) / N_i.
# - common-peak: sum_j exp(s_ij) v_j / sum_j exp(s_ij) is unchanged when every s_ij is lowered by
#   the same number of the row.
# - restrict-range: a sum over all keys is the sum over those that some row of the tile is related
#   to: the rest adds 0.
# - drop-mask: where every row of the tile is related to every key, `related` is true and no mask
#   is needed.
# - one-sweep: sums over the same keys are taken in one pass; when the running peak rises, they
#   are rescaled.


def _near_segments(first, last, call):
    """Intervals of positions that rows first … last touch, each with the part all of them see."""
    return (((first - 511, last + 1), (last - 511, first + 1)),)


def _near_related(i, j, call):
    """The pattern: i - j <= 511 & j - i <= 0"""
    return (i - j <= 511) & (j <= i)


if triton is not None:

    @triton.jit
    def _near_forward_tile(
        peak, rows, total, q,
        k_win_ptr, v_win_ptr, k_win_stride, v_win_stride,
        i, column, k_start, low, high, scale_log2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = (column_lanes >= low) & (column_lanes < high)
        j = k_start + column_lanes
        k_win = _load_tile(k_win_ptr, k_win_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk_win = _dot(q, tl.trans(k_win), None, PRECISION)
        if MASKED:
            related = (
                (i[:, None] - j[None, :] <= 511) & (j[None, :] <= i[:, None]) & visible[None, :]
            )
        exponent = scale_log2 * dot_qk_win
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        old_peak = peak
        peak = tl.maximum(peak, tl.max(exponent, 1))
        shrink = tl.exp2(old_peak - peak)
        weight = tl.exp2(exponent - peak[:, None])
        rows = rows * shrink + tl.sum(weight, 1)
        v_win = _load_tile(v_win_ptr, v_win_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        total = _dot(weight.to(v_win.dtype), v_win, total * shrink[:, None], PRECISION)
        return peak, rows, total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _near_forward_kernel(
        q_ptr, k_win_ptr, v_win_ptr, out_ptr, lse_ptr, residual_ptr,
        q_start_ptr, kv_lengths_ptr,
        q_strides, k_win_strides, v_win_strides,
        n, m, k_start, scale_log2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
        BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK_M  # first row of the tile
        head = tl.program_id(1)
        batch = tl.program_id(2)
        heads = tl.num_programs(1)
        row_lanes = row + tl.arange(0, BLOCK_M)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        q_ptr += tl.cast(batch, tl.int64) * q_strides[0] + tl.cast(head, tl.int64) * q_strides[1]
        q_ptr += tl.cast(row, tl.int64) * q_strides[2]
        k_win_ptr += (
            tl.cast(batch, tl.int64) * k_win_strides[0]
            + tl.cast(head // GROUP, tl.int64) * k_win_strides[1]
        )
        v_win_ptr += (
            tl.cast(batch, tl.int64) * v_win_strides[0]
            + tl.cast(head // GROUP, tl.int64) * v_win_strides[1]
        )
        k_win_step = tl.cast(k_win_strides[2], tl.int64) * BLOCK_N
        v_win_step = tl.cast(v_win_strides[2], tl.int64) * BLOCK_N
        first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row

        visible = row_lanes < n
        q = _load_tile(q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D, True)
        i = q_start + row_lanes

        # Positions of the tile's first and last row; [low, high) are the keys that it may see.
        first = q_start + row
        last = first + tl.minimum(BLOCK_M, n - row) - 1
        low = tl.maximum(first - 511 - k_start, 0)
        high = tl.minimum(last + 1 - k_start, keys)
        t0 = low // BLOCK_N
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_N), t0)
        full_low = tl.maximum(last - 511 - k_start, 0)
        full_high = tl.minimum(first + 1 - k_start, keys)
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_N), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_N, f0), t1)

        peak = tl.full([BLOCK_M], -3.4028234663852886e38, tl.float32)
        rows = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
        for step in range(0, f0 - t0 + t1 - f1):
            tile = t0 + step
            tile = tl.where(tile < f0, tile, tile + (f1 - f0))
            peak, rows, total = _near_forward_tile(
                peak, rows, total, q,
                k_win_ptr + tile * k_win_step, v_win_ptr + tile * v_win_step, k_win_strides[2],
                v_win_strides[2],
                i, tile * BLOCK_N, k_start, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip
        for tile in range(f0, f1):
            peak, rows, total = _near_forward_tile(
                peak, rows, total, q,
                k_win_ptr + tile * k_win_step, v_win_ptr + tile * v_win_step, k_win_strides[2],
                v_win_strides[2],
                i, tile * BLOCK_N, k_start, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
            )  # fmt: skip

        out = total * _inverse(rows)[:, None]
        lse = 0.6931471805599453 * peak + _log(rows)
        _store_tile(out_ptr + first_vector * E, visible, out, BLOCK_M, E, BLOCK_E)
        tl.store(lse_ptr + first_vector + tl.arange(0, BLOCK_M), lse, mask=visible)
        if residual_ptr is not None:  # what rounding takes from `out`, for backward
            residual = out - out.to(out_ptr.dtype.element_ty).to(tl.float32)
            _store_tile(residual_ptr + first_vector * E, visible, residual, BLOCK_M, E, BLOCK_E)

    @triton.jit
    def _near_backward_columns_tile(
        d_v_win, d_k_win_total, k_win, v_win,
        q_ptr, d_out_ptr, lse_ptr, delta_ptr, q_stride, d_out_stride,
        j, row, q_start, n, scale_log2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        row_lanes = row + tl.arange(0, BLOCK_M)
        visible = row_lanes < n
        i = q_start + row_lanes
        lse = _load_numbers(lse_ptr, visible, float("-inf"), BLOCK_M, MASKED)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        lse_2 = 1.4426950408889634 * lse
        q = _load_tile(q_ptr, q_stride, visible, BLOCK_M, D, BLOCK_D, MASKED)
        dot_qk_win = _dot(k_win, tl.trans(q), None, PRECISION)
        if MASKED:
            related = (i[None, :] - j[:, None] <= 511) & (j[:, None] <= i[None, :])
        d_out = _load_tile(d_out_ptr, d_out_stride, visible, BLOCK_M, E, BLOCK_E, MASKED)
        d_share = _dot(v_win, tl.trans(d_out), None, PRECISION)
        delta = _load_numbers(delta_ptr, visible, 0.0, BLOCK_M, MASKED)
        d_weight = d_share - delta[None, :]
        exponent = scale_log2 * dot_qk_win
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        weight = tl.exp2(exponent - lse_2[None, :])
        d_exponent = d_weight * weight
        d_v_win = _dot(weight.to(d_out.dtype), d_out, d_v_win, PRECISION)
        d_k_win_total = _dot(d_exponent.to(q.dtype), q, d_k_win_total, PRECISION)
        return d_v_win, d_k_win_total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _near_backward_columns_kernel(
        k_win_ptr, v_win_ptr, q_ptr, d_out_ptr, lse_ptr, delta_ptr, d_k_win_ptr, d_v_win_ptr,
        q_start_ptr, kv_lengths_ptr,
        k_win_strides, v_win_strides, q_strides, d_out_strides,
        n, m, k_start, d_dot_factor, scale_log2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
        BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        column = tl.program_id(0) * BLOCK_N  # first key of the tile
        kv_head = tl.program_id(1)
        batch = tl.program_id(2)
        kv_heads = tl.num_programs(1)
        heads = kv_heads * GROUP
        column_lanes = column + tl.arange(0, BLOCK_N)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        k_win_ptr += (
            tl.cast(batch, tl.int64) * k_win_strides[0]
            + tl.cast(kv_head, tl.int64) * k_win_strides[1]
        )
        k_win_ptr += tl.cast(column, tl.int64) * k_win_strides[2]
        v_win_ptr += (
            tl.cast(batch, tl.int64) * v_win_strides[0]
            + tl.cast(kv_head, tl.int64) * v_win_strides[1]
        )
        v_win_ptr += tl.cast(column, tl.int64) * v_win_strides[2]
        q_step = tl.cast(q_strides[2], tl.int64) * BLOCK_M
        d_out_step = tl.cast(d_out_strides[2], tl.int64) * BLOCK_M
        first_vector = (tl.cast(batch, tl.int64) * kv_heads + kv_head) * m + column

        # Keys that no row can see are not read, and their gradients are 0.
        seen = column_lanes < keys
        k_win = _load_tile(k_win_ptr, k_win_strides[2], seen, BLOCK_N, D, BLOCK_D, True)
        v_win = _load_tile(v_win_ptr, v_win_strides[2], seen, BLOCK_N, E, BLOCK_E, True)
        j = k_start + column_lanes

        # Positions of the tile's first and last key; [low, high) are the rows that may see it.
        first = k_start + column
        last = first + tl.minimum(BLOCK_N, keys - column) - 1
        in_rows = tl.where(column < keys, n, 0)
        low = tl.maximum(first - q_start, 0)
        high = tl.minimum(last + 512 - q_start, in_rows)
        t0 = low // BLOCK_M
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_M), t0)
        full_low = tl.maximum(last - q_start, 0)
        full_high = tl.minimum(first + 512 - q_start, in_rows)
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_M), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_M, f0), t1)

        d_v_win = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
        d_k_win_total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
        for head in range(kv_head * GROUP, kv_head * GROUP + GROUP):
            q_head_ptr = (
                q_ptr
                + tl.cast(batch, tl.int64) * q_strides[0]
                + tl.cast(head, tl.int64) * q_strides[1]
            )
            d_out_head_ptr = (
                d_out_ptr
                + tl.cast(batch, tl.int64) * d_out_strides[0]
                + tl.cast(head, tl.int64) * d_out_strides[1]
            )
            statistics = (tl.cast(batch, tl.int64) * heads + head) * n
            for step in range(0, f0 - t0 + t1 - f1):
                tile = t0 + step
                tile = tl.where(tile < f0, tile, tile + (f1 - f0))
                d_v_win, d_k_win_total = _near_backward_columns_tile(
                    d_v_win, d_k_win_total, k_win, v_win,
                    q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    q_strides[2], d_out_strides[2],
                    j, tile * BLOCK_M, q_start, n, scale_log2,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
                )  # fmt: skip
            for tile in range(f0, f1):
                d_v_win, d_k_win_total = _near_backward_columns_tile(
                    d_v_win, d_k_win_total, k_win, v_win,
                    q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    q_strides[2], d_out_strides[2],
                    j, tile * BLOCK_M, q_start, n, scale_log2,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
                )  # fmt: skip
        d_k_win = d_k_win_total * d_dot_factor
        _store_tile(
            d_k_win_ptr + first_vector * D,
            column_lanes < m,
            tl.where(seen[:, None], d_k_win, 0.0),
            BLOCK_N,
            D,
            BLOCK_D,
        )
        _store_tile(
            d_v_win_ptr + first_vector * E,
            column_lanes < m,
            tl.where(seen[:, None], d_v_win, 0.0),
            BLOCK_N,
            E,
            BLOCK_E,
        )

    @triton.jit
    def _near_backward_rows_tile(
        dq_total, q, d_out, delta, lse_2,
        k_win_ptr, v_win_ptr, k_win_stride, v_win_stride,
        i, column, k_start, low, high, scale_log2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = (column_lanes >= low) & (column_lanes < high)
        j = k_start + column_lanes
        k_win = _load_tile(k_win_ptr, k_win_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk_win = _dot(q, tl.trans(k_win), None, PRECISION)
        if MASKED:
            related = (
                (i[:, None] - j[None, :] <= 511) & (j[None, :] <= i[:, None]) & visible[None, :]
            )
        v_win = _load_tile(v_win_ptr, v_win_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        d_share = _dot(d_out, tl.trans(v_win), None, PRECISION)
        d_weight = d_share - delta[:, None]
        exponent = scale_log2 * dot_qk_win
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        weight = tl.exp2(exponent - lse_2[:, None])
        d_exponent = d_weight * weight
        dq_total = _dot(d_exponent.to(k_win.dtype), k_win, dq_total, PRECISION)
        return dq_total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _near_backward_rows_kernel(
        q_ptr, d_out_ptr, k_win_ptr, v_win_ptr, lse_ptr, delta_ptr, dq_ptr,
        q_start_ptr, kv_lengths_ptr,
        q_strides, d_out_strides, k_win_strides, v_win_strides,
        n, m, k_start, d_dot_factor, scale_log2,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
        BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK_M  # first row of the tile
        head = tl.program_id(1)
        batch = tl.program_id(2)
        heads = tl.num_programs(1)
        row_lanes = row + tl.arange(0, BLOCK_M)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        q_ptr += tl.cast(batch, tl.int64) * q_strides[0] + tl.cast(head, tl.int64) * q_strides[1]
        q_ptr += tl.cast(row, tl.int64) * q_strides[2]
        d_out_ptr += (
            tl.cast(batch, tl.int64) * d_out_strides[0] + tl.cast(head, tl.int64) * d_out_strides[1]
        )
        d_out_ptr += tl.cast(row, tl.int64) * d_out_strides[2]
        k_win_ptr += (
            tl.cast(batch, tl.int64) * k_win_strides[0]
            + tl.cast(head // GROUP, tl.int64) * k_win_strides[1]
        )
        v_win_ptr += (
            tl.cast(batch, tl.int64) * v_win_strides[0]
            + tl.cast(head // GROUP, tl.int64) * v_win_strides[1]
        )
        k_win_step = tl.cast(k_win_strides[2], tl.int64) * BLOCK_N
        v_win_step = tl.cast(v_win_strides[2], tl.int64) * BLOCK_N
        first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row

        visible = row_lanes < n
        q = _load_tile(q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D, True)
        d_out = _load_tile(d_out_ptr, d_out_strides[2], visible, BLOCK_M, E, BLOCK_E, True)
        lse = _load_numbers(lse_ptr + first_vector, visible, float("-inf"), BLOCK_M, True)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        delta = _load_numbers(delta_ptr + first_vector, visible, 0.0, BLOCK_M, True)
        i = q_start + row_lanes
        lse_2 = 1.4426950408889634 * lse

        # Positions of the tile's first and last row; [low, high) are the keys that it may see.
        first = q_start + row
        last = first + tl.minimum(BLOCK_M, n - row) - 1
        low = tl.maximum(first - 511 - k_start, 0)
        high = tl.minimum(last + 1 - k_start, keys)
        t0 = low // BLOCK_N
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_N), t0)
        full_low = tl.maximum(last - 511 - k_start, 0)
        full_high = tl.minimum(first + 1 - k_start, keys)
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_N), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_N, f0), t1)

        dq_total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for step in range(0, f0 - t0 + t1 - f1):
            tile = t0 + step
            tile = tl.where(tile < f0, tile, tile + (f1 - f0))
            dq_total = _near_backward_rows_tile(
                dq_total, q, d_out, delta, lse_2,
                k_win_ptr + tile * k_win_step, v_win_ptr + tile * v_win_step, k_win_strides[2],
                v_win_strides[2],
                i, tile * BLOCK_N, k_start, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip
        for tile in range(f0, f1):
            dq_total = _near_backward_rows_tile(
                dq_total, q, d_out, delta, lse_2,
                k_win_ptr + tile * k_win_step, v_win_ptr + tile * v_win_step, k_win_strides[2],
                v_win_strides[2],
                i, tile * BLOCK_N, k_start, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
            )  # fmt: skip

        dq = dq_total * d_dot_factor
        _store_tile(dq_ptr + first_vector * D, visible, dq, BLOCK_M, D, BLOCK_D)


# What each kernel tries for elements of so many bytes and vectors up to a width: (BLOCK_M, BLOCK_N,
# num_warps, num_stages).
_near_TILES = {
    ("forward", 2, 64): [
        (128, 64, 8, 3),
        (128, 64, 4, 3),
        (64, 64, 4, 3),
        (64, 32, 4, 2),
        (16, 16, 4, 1),
    ],
    ("forward", 2, 128): [(128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 2), (16, 16, 4, 1)],
    ("forward", 2, 256): [(64, 32, 8, 2), (64, 32, 4, 2), (32, 32, 4, 1)],
    ("forward", 4, 64): [(64, 32, 8, 2), (32, 32, 4, 1)],
    ("forward", 4, 128): [(32, 32, 8, 1), (16, 16, 4, 1)],
    ("forward", 4, 256): [(16, 16, 4, 1)],
    ("backward_columns", 2, 64): [
        (64, 64, 8, 2),
        (32, 128, 8, 2),
        (32, 64, 8, 2),
        (32, 64, 4, 2),
        (16, 16, 4, 1),
    ],
    ("backward_columns", 2, 128): [(32, 64, 8, 2), (32, 64, 8, 1), (32, 64, 4, 1), (16, 16, 4, 1)],
    ("backward_columns", 2, 256): [(32, 32, 8, 1), (16, 32, 4, 1)],
    ("backward_columns", 4, 64): [(32, 32, 8, 1), (16, 32, 4, 1)],
    ("backward_columns", 4, 128): [(16, 32, 8, 2)],
    ("backward_columns", 4, 256): [(16, 16, 8, 2)],
    ("backward_rows", 2, 64): [
        (128, 64, 8, 2),
        (128, 32, 8, 3),
        (64, 64, 4, 2),
        (64, 32, 4, 2),
        (16, 16, 4, 1),
    ],
    ("backward_rows", 2, 128): [
        (128, 64, 8, 2),
        (128, 32, 8, 3),
        (64, 64, 4, 2),
        (64, 32, 4, 2),
        (16, 16, 4, 1),
    ],
    ("backward_rows", 2, 256): [(64, 32, 8, 2), (32, 32, 4, 1)],
    ("backward_rows", 4, 64): [(64, 32, 8, 2), (16, 32, 4, 1)],
    ("backward_rows", 4, 128): [(32, 16, 8, 2), (16, 16, 8, 2)],
    ("backward_rows", 4, 256): [(16, 16, 8, 2)],
}


def _near_prune(configs, arguments, *, BLOCK_D, BLOCK_E, **_):
    """The configs that fit into shared memory: resident and streamed tiles, two tiles of pairs."""
    q = arguments["q_ptr"]
    on_amd = torch.version.hip is not None  # tiles pass through registers there, resident ones stay
    device = triton.runtime.driver.active.utils.get_device_properties(q.device.index)

    def size(config):
        rows, columns = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
        held, streamed = (columns, rows) if "d_v_win_ptr" in arguments else (rows, columns)
        resident = (
            0 if on_amd else held * (BLOCK_D if "out_ptr" in arguments else BLOCK_D + BLOCK_E)
        )
        stages = max(config.num_stages - on_amd, 1)
        return (
            resident + stages * streamed * (BLOCK_D + BLOCK_E) + 2 * rows * columns
        ) * q.element_size()

    # A warp of 64 lanes has half the registers a lane when there are eight of them.
    configs = [config for config in configs if config.num_warps <= 4 or not on_amd] or configs
    return [config for config in configs if size(config) <= device["max_shared_mem"]] or [
        min(configs, key=size)
    ]


@functools.cache
def _near_tuned(kernel, name, element_size, width):
    """The kernel with what it may try; Triton's interpreter cannot time and gets one config."""
    if triton.knobs.runtime.interpret:
        configs = [triton.Config({"BLOCK_M": 32, "BLOCK_N": 16})]
    else:
        configs = [
            triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
            for rows, columns, warps, stages in _near_TILES[name, element_size, width]
        ]
    key = ["GROUP", "D", "E", "PRECISION"]  # and the dtypes, which triton adds
    return triton.autotune(configs, key=key, prune_configs_by={"early_config_prune": _near_prune})(
        kernel
    )


def _near_launch(kernel, name, grid, q, k_win, v_win, *arguments):
    """Run a kernel, specialised by the widths of q and v_win."""
    d, e = q.shape[-1], v_win.shape[-1]
    block_d, block_e = _block(d), _block(e)
    widest = max(64, block_d, block_e)
    if _in_c(q):
        run = functools.partial(_for(kernel, q)[grid], tile=_c_tile(widest, 64, q.shape[2]))
    else:
        run = _near_tuned(kernel, name, q.element_size(), widest)[grid]
    run(
        *arguments,
        GROUP=q.shape[1] // k_win.shape[1],
        D=d, E=e, BLOCK_D=block_d, BLOCK_E=block_e,
        PRECISION="tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
        enable_fp_fusion=True,
    )  # fmt: skip


def _near_launch_forward(
    q, k_win, v_win, scale, q_start, k_start, q_starts, kv_lengths, keep_residual
):
    """What `_near_forward` returns, by the Triton kernel."""
    q, k_win, v_win = _dense(q), _dense(k_win), _dense(v_win)
    batch, heads, n, _ = q.shape
    m = k_win.shape[2]
    out = q.new_empty(batch, heads, n, v_win.shape[-1])
    lse = q.new_empty(batch, heads, n, dtype=_wide(q.dtype))
    residual = q.new_empty(batch, heads, n, v_win.shape[-1] if keep_residual else 0)
    scale_log2, d_dot_factor = _kernel_numbers(q, k_win, v_win, scale, kv_lengths)
    starts, lengths = _places(q, k_win, q_start, q_starts, kv_lengths)
    if out.numel():
        grid = _grid(n, "BLOCK_M", heads, batch)
        _near_launch(_near_forward_kernel, "forward", grid,
            q, k_win, v_win,
            q, k_win, v_win, out, lse, residual if keep_residual else None,
            starts, lengths,
            q.stride()[:3], k_win.stride()[:3], v_win.stride()[:3],
            n, m, k_start, scale_log2,
        )  # fmt: skip
    return (out, lse, residual)


def _near_launch_backward(
    q, k_win, v_win, out, lse, residual, d_out, d_lse, scale, q_start, k_start, q_starts, kv_lengths
):
    """What `_near_backward` returns, by the Triton kernels."""
    q, k_win, v_win, d_out = _dense(q), _dense(k_win), _dense(v_win), _dense(d_out)
    batch, heads, n, _ = q.shape
    kv_heads, m, _ = v_win.shape[1:]
    dq = q.new_empty(q.shape)
    d_k_win = k_win.new_empty(k_win.shape)
    d_v_win = v_win.new_empty(v_win.shape)
    delta = (d_out * _unrounded(out, residual)).sum(-1) - d_lse
    lse = lse.contiguous()
    scale_log2, d_dot_factor = _kernel_numbers(q, k_win, v_win, scale, kv_lengths)
    starts, lengths = _places(q, k_win, q_start, q_starts, kv_lengths)
    if _in_c(q) and batch * kv_heads >= torch.get_num_threads():
        dq_total = _room_for_tiles(q)
        if d_v_win.numel():
            grid = _grid(m, "BLOCK_N", kv_heads, batch)
            _near_launch("_near_backward_at_once_kernel", "backward_at_once", grid,
                q, k_win, v_win,
                k_win, v_win, q, d_out, dq_total, lse, delta, d_k_win, d_v_win,
                starts, lengths,
                k_win.stride()[:3], v_win.stride()[:3], q.stride()[:3], d_out.stride()[:3],
                dq_total.stride()[:3],
                n, m, k_start, d_dot_factor, scale_log2,
            )  # fmt: skip
        dq = (dq_total[:, :, :n, : q.shape[-1]] * d_dot_factor).to(q.dtype)
    else:
        if d_v_win.numel():
            grid = _grid(m, "BLOCK_N", kv_heads, batch)
            _near_launch(_near_backward_columns_kernel, "backward_columns", grid,
                q, k_win, v_win,
                k_win, v_win, q, d_out, lse, delta, d_k_win, d_v_win,
                starts, lengths,
                k_win.stride()[:3], v_win.stride()[:3], q.stride()[:3], d_out.stride()[:3],
                n, m, k_start, d_dot_factor, scale_log2,
            )  # fmt: skip
        if dq.numel():
            grid = _grid(n, "BLOCK_M", heads, batch)
            _near_launch(_near_backward_rows_kernel, "backward_rows", grid,
                q, k_win, v_win,
                q, d_out, k_win, v_win, lse, delta, dq,
                starts, lengths,
                q.stride()[:3], d_out.stride()[:3], k_win.stride()[:3], v_win.stride()[:3],
                n, m, k_start, d_dot_factor, scale_log2,
            )  # fmt: skip
    return dq, d_k_win, d_v_win


def _near_forward_slab(q, k_win, v_win, numbers, slab, chunks, work, call):
    """The vectors and row numbers of one slab; q is [batch * kv heads, group * rows, d]."""
    shape = slab.shape
    scale, _ = numbers
    peak = q.new_full((*shape[:3], 1), torch.finfo(q.dtype).min)
    rows = q.new_zeros((*shape[:3], 1))
    total = q.new_zeros((*q.shape[:2], v_win.shape[-1]))
    for chunk in chunks:
        k_win_tile = _near_flat(k_win[:, :, chunk.keys], q.dtype)
        v_win_tile = _near_flat(v_win[:, :, chunk.keys], q.dtype)
        score = _product(q, k_win_tile, work[0], shape, scale)
        _near_hide(score, chunk, -torch.inf, call)
        new_peak = torch.maximum(peak, score.amax(-1, keepdim=True))
        shrink = peak.sub_(new_peak).exp_()
        peak = new_peak
        weight = score.sub_(peak).exp_()
        rows.mul_(shrink).add_(weight.sum(-1, keepdim=True))
        total.mul_(_near_pairs(shrink, q)).baddbmm_(_near_pairs(weight, q), v_win_tile)
    out = total.mul_(_near_pairs(_reciprocal(rows), q))
    lse = peak + torch.log(rows)
    return out, lse


def _near_backward_slab(
    q, k_win, v_win, d_out, lse, delta, d_v_win, d_k_win_total, numbers, slab, chunks, work, call
):
    """Gradients of one slab: returns those of rows and adds the others to their totals."""
    shape = slab.shape
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # rows without weights: all shares are 0
    scale, d_dot_factor = numbers
    dq_total = q.new_zeros((*q.shape[:2], q.shape[-1]))
    for chunk in chunks:
        k_win_tile = _near_flat(k_win[:, :, chunk.keys], q.dtype)
        v_win_tile = _near_flat(v_win[:, :, chunk.keys], q.dtype)
        score = _product(q, k_win_tile, work[0], shape, scale)
        d_share = _product(d_out, v_win_tile, work[1], shape)
        d_weight = d_share.sub_(delta)
        _near_hide(score, chunk, -torch.inf, call)
        weight = score.sub_(lse).exp_()
        d_v_win[:, chunk.keys].baddbmm_(_near_pairs(weight, q).mT, d_out)
        d_exponent = d_weight.mul_(weight)
        dq_total.baddbmm_(_near_pairs(d_exponent, q), k_win_tile)
        d_k_win_total[:, chunk.keys].baddbmm_(_near_pairs(d_exponent, q).mT, q)
    dq = dq_total * d_dot_factor
    return (dq,)


class _near_Slab(NamedTuple):
    """Rows that are computed together, and the positions of the first and the last of them."""

    entries: slice
    rows: slice
    first: int
    last: int
    shape: tuple  # batch entries, heads, rows


class _near_Chunk(NamedTuple):
    """Keys that a slab meets at once: their places, the first position, and those all rows see."""

    keys: slice
    start: int
    full: tuple
    rows: tuple

    @property
    def count(self):
        return self.keys.stop - self.keys.start


def _near_flat(x, dtype):
    """[batch, heads, ...] -> [batch * heads, ...], a view where strides allow."""
    return x.flatten(0, 1).to(dtype)


def _near_pairs(x, q):
    """[batch, heads, rows, ...] -> [batch * kv heads, group * rows, ...], as folded vectors lie."""
    return x.reshape(*q.shape[:2], x.shape[-1])


@functools.lru_cache(maxsize=8)
def _near_unrelated(ahead, rows, keys, device):
    """The keys hidden from rows of which the first stands `ahead` positions after the first key.

    The pattern depends on distances alone, so slabs share these tiles.
    """
    i = torch.arange(ahead, ahead + rows, device=device)[:, None]
    j = torch.arange(keys, device=device)
    return _near_related(i, j, None).logical_not_()


def _near_hide(x, chunk, fill, call):
    """Write `fill` where row and key are not related; keys that all rows see are passed over."""
    start, stop = chunk.start, chunk.start + chunk.count
    first, end = chunk.rows
    low, high = max(chunk.full[0], start), min(chunk.full[1], stop)
    for a, b in ((start, low), (high, stop)) if low < high else ((start, stop),):
        if a < b:
            hidden = _near_unrelated(first - a, end - first, b - a, x.device)
            x[..., a - start : b - start].masked_fill_(hidden, fill)
    return x


def _near_chunks(first, last, k_start, length, call):
    """The keys that rows first … last touch, cut into chunks; no key comes twice."""
    chunks = []
    done = 0
    for (start, stop), full in _near_segments(first, last, call):
        start, stop = max(start - k_start, done), min(stop - k_start, length)
        for key in range(start, stop, _MOST_KEYS):
            keys = slice(key, min(key + _MOST_KEYS, stop))
            chunks.append(_near_Chunk(keys, key + k_start, full, (first, last + 1)))
        if start < stop:  # an empty interval says nothing about those that follow
            done = stop
    return chunks


def _near_slabs(q, v, q_start, k_start, q_starts, kv_lengths, call):
    """Every slab with its chunks of keys; batch entries that stand alike share slabs."""
    batch, heads, n, _ = q.shape
    most = max(1, _SCORES // (heads * _SMALLEST))
    for entries, start, length in _groups(batch, v.shape[2], q_start, q_starts, kv_lengths, most):
        row = 0
        while row < n:
            rows = _MOST_ROWS
            while True:
                end = min(row + rows, n)
                first, last = start + row, start + end - 1
                chunks = _near_chunks(first, last, k_start, length, call)
                widest = max((chunk.count for chunk in chunks), default=0)
                scores = (entries.stop - entries.start) * heads * (end - row) * widest
                if scores <= _SCORES or rows <= _LEAST_ROWS:
                    break
                rows //= 2
            shape = (entries.stop - entries.start, heads, end - row)
            yield _near_Slab(entries, slice(row, end), first, last, shape), chunks
            row = end


def _near_own(x, slab):
    """What belongs to the slab's batch entries, where entries differ."""
    return x[slab.entries] if x.shape[0] > 1 else x


def _near_entries_of(numbers, slab):
    """The numbers of the slab's batch entries."""
    return tuple(_near_own(x, slab) if isinstance(x, Tensor) else x for x in numbers)


def _near_forward(q, k_win, v_win, scale, q_start, k_start, q_starts, kv_lengths, keep_residual):
    """The vectors [batch, heads, n, e] and the saved numbers of rows [batch, heads, n]."""
    wide = _wide(q.dtype)
    outs = [q.new_empty(*q.shape[:3], v_win.shape[-1])]
    _on_large_pages(outs[0])
    outs += [q.new_empty(q.shape[:3], dtype=wide) for _ in range(1)]
    outs.append(q.new_empty(*q.shape[:3], v_win.shape[-1] if keep_residual else 0))
    numbers = _numbers(q, k_win, v_win, scale, kv_lengths)

    def run(q, k_win, v_win, numbers, call, store):
        work, kv_heads = None, v_win.shape[1]
        for slab, chunks in _near_slabs(q, v_win, q_start, k_start, q_starts, kv_lengths, call):
            work = _workspace(slab, chunks, q, 2, work)
            results = _near_forward_slab(
                _fold(q, slab, kv_heads), k_win[slab.entries], v_win[slab.entries],
                _near_entries_of(numbers, slab), slab, chunks, work, call,
            )  # fmt: skip
            if keep_residual:
                results += (results[0] - results[0].to(q.dtype),)
            store(slab, results)

    with torch.autocast(q.device.type, enabled=False):
        call = _Call(q.shape[2], v_win.shape[2], q.shape[1], 0)
        run(q, k_win, v_win, numbers, call, functools.partial(_store, outs))
    return tuple(outs)


def _near_backward(
    q, k_win, v_win, out, lse, residual, d_out, d_lse, scale, q_start, k_start, q_starts, kv_lengths
):
    """The gradients of q, k_win and v_win."""
    wide = _wide(q.dtype)
    dq = q.new_empty(q.shape)
    d_k_win = k_win.new_zeros(k_win.shape, dtype=wide)
    d_v_win = v_win.new_zeros(v_win.shape, dtype=wide)
    numbers = _numbers(q, k_win, v_win, scale, kv_lengths)
    out = _unrounded(out, residual)

    def run(q, k_win, v_win, out, lse, d_out, d_lse, d_k_win, d_v_win, numbers, call, store):
        work, kv_heads = None, v_win.shape[1]
        for slab, chunks in _near_slabs(q, v_win, q_start, k_start, q_starts, kv_lengths, call):
            work = _workspace(slab, chunks, q, 2, work)
            d_rows = _fold(d_out, slab, kv_heads)
            delta = (d_rows * _fold(out, slab, kv_heads)).sum(-1).view(*slab.shape, 1)
            delta -= _rows_of(d_lse, slab)
            results = _near_backward_slab(
                _fold(q, slab, kv_heads), k_win[slab.entries], v_win[slab.entries], d_rows,
                _rows_of(lse, slab), delta, d_v_win[slab.entries].flatten(0, 1),
                d_k_win[slab.entries].flatten(0, 1), _near_entries_of(numbers, slab), slab, chunks,
                work, call,
            )  # fmt: skip
            store(slab, results)

    grads = (dq,)
    with torch.autocast(q.device.type, enabled=False):
        call = _Call(q.shape[2], v_win.shape[2], q.shape[1], 0)
        run(
            q, k_win, v_win, out, lse, d_out, d_lse, d_k_win, d_v_win, numbers, call,
            functools.partial(_store, grads),
        )  # fmt: skip
        d_k_win.mul_(numbers[1])
    return dq, d_k_win.to(k_win.dtype), d_v_win.to(v_win.dtype)


def _near_scores(rows, keys):
    """[batch, heads, blocks, rows, d] and [batch, heads, blocks, keys, d] -> scores."""
    return torch.bmm(rows.flatten(0, 2), keys.flatten(0, 2).mT).view(*rows.shape[:4], keys.shape[3])


def _near_lifted(numbers):
    """Numbers of heads with an axis for blocks."""
    return tuple(x[:, :, None] if isinstance(x, Tensor) else x for x in numbers)


def _near_weights_of(q, k_win, i, j, hidden, numbers, call):
    """Weights of pairs, what they are divided by, and the numbers of rows, in plain operations."""
    scale, _ = numbers
    dot_qk_win = _near_scores(q, k_win)
    score = scale * dot_qk_win
    exponent_kept = score.masked_fill(hidden, -torch.inf)
    peak = _maximum(exponent_kept.detach().amax(-1, keepdim=True), torch.finfo(q.dtype).min)
    weight = torch.exp(exponent_kept - peak)
    rows = weight.sum(-1, keepdim=True)
    lse = peak + _safe_log(rows)
    return weight, rows, (lse,)


def _near_batched(q, k_win, v_win, scale, q_start, k_start, q_starts, kv_lengths):
    """What `_near_forward` returns, in memory that grows as rows times keys of a block."""
    batch, heads, n, _ = q.shape
    kv_heads, m = v_win.shape[1:3]
    dtype, wide, device = q.dtype, _wide(q.dtype), q.device
    numbers = _near_lifted(_numbers(q, k_win, v_win, scale, kv_lengths))
    call = _call_of(q, v_win)
    # Blocks enough for any n, so that n stays a free size when exported; lanes past n are dropped.
    blocks = n // _BLOCK + 2
    lane = torch.arange(_BLOCK, device=device)
    row = _BLOCK * torch.arange(blocks, device=device)[:, None] + lane  # [blocks, rows]

    first = q_start + row[None, :, 0]  # [batch or 1, blocks]
    if q_starts is not None:
        first = first + q_starts[:, None]
    i = first[..., None] + lane
    j = first[..., None] + torch.arange(-511, _BLOCK + 0, device=device)
    place = j - k_start
    length = m if kv_lengths is None else kv_lengths.clamp(0, m)[:, None, None]
    seen = (place >= 0) & (place < length)  # [batch or 1, blocks, keys]
    kv_head = torch.arange(heads, device=device) // (heads // kv_heads)
    entry = torch.arange(batch, device=device)[:, None, None, None]

    def blocked(x):  # [batch, heads, n, c] -> [batch, heads, blocks, rows, c]
        return x.to(wide)[:, :, row.clamp(max=n - 1)]

    def windows(x):  # [batch, kv heads, m, c] -> [batch, heads, blocks, keys, c]
        x = x.to(wide)[entry, kv_head[:, None, None], place.clamp(0, m - 1)[:, None]]
        return x.masked_fill(~seen[:, None, :, :, None], 0)

    i, j = i[:, None, :, :, None], j[:, None, :, None, :]
    hidden = ~(_near_related(i, j, call) & seen[:, None, :, None, :])
    weight, norm, numbers_of_rows = _near_weights_of(
        blocked(q), windows(k_win), i, j, hidden, numbers, call
    )
    out = _sum(weight, windows(v_win))
    if norm is not None:
        out = out * _reciprocal(norm)

    def joined(x):  # [batch, heads, blocks, rows, c] -> [batch, heads, n, c]
        return x.flatten(2, 3).index_select(2, torch.arange(n, device=device))

    rest = (x.expand(batch, heads, blocks, _BLOCK, 1) for x in numbers_of_rows)
    return joined(out).to(dtype), *(joined(x)[..., 0] for x in rest)


def _near_forward_in_kernels(*args):
    """`_near_launch_forward`, of 256 features of values at a time."""
    if args[2].shape[-1] <= 256:
        return _near_launch_forward(*args)
    values = args[2].split(256, -1)
    found = [_near_launch_forward(*args[:2], part, *args[3:]) for part in values]
    return tuple(
        torch.cat(parts, -1) if at in (0, 2) else parts[0]
        for at, parts in enumerate(zip(*found, strict=True))
    )


def _near_backward_in_kernels(*args):
    """`_near_launch_backward` in the same way: gradients of values are joined, others added."""
    width, found = args[2].shape[-1], []
    if width <= 256:
        return _near_launch_backward(*args)
    for start in range(0, width, 256):
        own = list(args)
        for at in (2, 3, 5, 6):
            own[at] = args[at][..., start : start + 256]
        if start:
            own[7] = torch.zeros_like(args[7])
        found.append(_near_launch_backward(*own))
    return tuple(
        torch.cat(parts, -1) if at == 2 else functools.reduce(torch.add, parts)
        for at, parts in enumerate(zip(*found, strict=True))
    )


def _near_run(q, k_win, v_win, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual):
    run = _near_forward if form == "torch" else _near_forward_in_kernels
    return run(q, k_win, v_win, scale, q_start, k_start, q_starts, kv_lengths, keep_residual)


def _near_run_backward(*args):
    *args, form = args
    run = _near_backward if form == "torch" else _near_backward_in_kernels
    return run(*args)


class _near_Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        q, k_win, v_win, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual
    ):
        return _near_run(
            q, k_win, v_win, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k_win, v_win, *ctx.numbers, q_starts, kv_lengths, ctx.form, _ = inputs
        ctx.save_for_backward(q, k_win, v_win, *output, q_starts, kv_lengths)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        grads = _near_Gradient.apply(
            *saved, d_out, d_statistics[0], *ctx.numbers, q_starts, kv_lengths, ctx.form
        )
        return *grads, *(None,) * (len(ctx.numbers) + 4)

    @staticmethod
    def vmap(info, in_dims, *args):
        *args, keep_residual = args  # only here is it seen whether what is mapped has gradients
        args = (*args, keep_residual or _keeps_residual(*args[:3]))
        return _fold_vmap(_near_Attention, info, in_dims, args)


class _near_Gradient(torch.autograd.Function):
    """The backward pass; its own derivative comes from the plain operations of `_near_batched`."""

    @staticmethod
    def forward(*args):
        return _near_run_backward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *saved, ctx.form = inputs
        ctx.numbers = saved[-5:-2]
        gradients = saved[-7:-5]
        ctx.save_for_backward(*saved[:3], *gradients, *saved[-2:])

    @staticmethod
    def backward(ctx, *grads):
        q, k_win, v_win, *gradients, q_starts, kv_lengths = ctx.saved_tensors

        def differentiable(q, k_win, v_win):
            outs = _near_batched(q, k_win, v_win, *ctx.numbers, q_starts, kv_lengths)
            return (outs[0], outs[1])

        def gradient(q, k_win, v_win, *gradients):
            return torch.func.vjp(differentiable, q, k_win, v_win)[1](gradients)

        inputs = q, k_win, v_win, *gradients
        dq, d_k_win, d_v_win, *d_gradients = torch.func.vjp(gradient, *inputs)[1](grads)
        return dq, d_k_win, d_v_win, *(None,) * 3, *d_gradients, *(None,) * 6

    @staticmethod
    def vmap(info, in_dims, *args):
        return _fold_vmap(_near_Gradient, info, in_dims, args)


# Under torch.compile and torch.export the two passes are operators, opaque to the compiler.
_near_OPERATOR = "nsa_near_ec9d7ebe"


def _near_register():
    places = "SymInt q_start, SymInt k_start, Tensor? q_starts, Tensor? kv_lengths"
    numbers = f"float scale, {places}, str form"
    inputs = "Tensor q, Tensor k_win, Tensor v_win"
    _library.define(
        f"{_near_OPERATOR}({inputs}, {numbers}, bool keep_residual) -> (Tensor, Tensor, Tensor)"
    )
    statistics = "Tensor lse, Tensor residual, "
    saved = f"Tensor out, {statistics}Tensor d_out, Tensor d_lse"
    gradients = "(Tensor, Tensor, Tensor)"
    _library.define(f"{_near_OPERATOR}_near_backward({inputs}, {saved}, {numbers}) -> {gradients}")
    _library.impl(_near_OPERATOR, _near_run, "CompositeExplicitAutograd")
    _library.impl(
        f"{_near_OPERATOR}_near_backward", _near_run_backward, "CompositeExplicitAutograd"
    )

    @torch.library.register_fake(f"attncc::{_near_OPERATOR}", lib=_library)
    def _(q, k_win, v_win, *numbers):
        out = q.new_empty(*q.shape[:3], v_win.shape[-1])
        return (
            out,
            q.new_empty(q.shape[:3], dtype=_wide(q.dtype)),
            q.new_empty(*q.shape[:3], v_win.shape[-1] if numbers[-1] else 0),
        )

    @torch.library.register_fake(f"attncc::{_near_OPERATOR}_near_backward", lib=_library)
    def _(q, k_win, v_win, *rest):
        return q.new_empty(q.shape), k_win.new_empty(k_win.shape), v_win.new_empty(v_win.shape)

    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        run = getattr(torch.ops.attncc, f"{_near_OPERATOR}_near_backward")
        grads = run(*saved, d_out, d_statistics[0], *ctx.numbers, q_starts, kv_lengths, ctx.form)
        return *grads, *(None,) * (len(ctx.numbers) + 4)

    def setup_context(ctx, inputs, output):
        _near_Attention.setup_context(ctx, inputs, output)

    torch.library.register_autograd(
        f"attncc::{_near_OPERATOR}", backward, setup_context=setup_context, lib=_library
    )


if not hasattr(
    torch.ops.attncc, _near_OPERATOR
):  # a copy of this file may have been loaded already
    _near_register()


def _near_check(q, k_win, v_win, kv_lengths, q_start, k_start):
    """Refuse what the kernels would misread, with the argument's name."""
    for name, x in (("q", q), ("k_win", k_win), ("v_win", v_win)):
        _expect(not x.is_nested, name, "nested", "a dense tensor")
        _expect(x.layout == torch.strided, name, x.layout, "a dense tensor")
        _expect(x.dim() == 4, name, list(x.shape), "four axes: [batch, heads, length, width]")
        _expect(x.dtype in _DTYPES, name, x.dtype, "float64, float32, bfloat16 or float16")
        _expect(x.dtype == q.dtype, name, x.dtype, f"the dtype of q, {q.dtype}")
        _expect(x.device == q.device, name, f"on {x.device}", f"the device of q, {q.device}")
    batch, heads, _, width = q.shape
    shapes = f"q {list(q.shape)}, k_win {list(k_win.shape)}, v_win {list(v_win.shape)}"
    _expect(
        k_win.shape[0] == batch and v_win.shape[0] == batch,
        "the batch",
        shapes,
        "one size in q, k_win and v_win",
    )
    _expect(heads > 0 and k_win.shape[1] > 0, "the number of heads", shapes, "one or more")
    _expect(
        heads % k_win.shape[1] == 0,
        "the number of heads",
        shapes,
        "q's to be a multiple of k_win's",
    )
    _expect(
        v_win.shape[1:3] == k_win.shape[1:3],
        "v_win",
        list(v_win.shape),
        f"the heads and length of k_win {list(k_win.shape)}",
    )
    _expect(k_win.shape[3] == width, "k_win", list(k_win.shape), f"the width of q, {width}")
    _expect(1 <= width <= 256, "the width", shapes, "1 … 256")
    _expect(v_win.shape[3] > 0, "the width", shapes, "1 or more")
    for name, x in (("kv_lengths", kv_lengths), ("q_start", q_start)):
        if isinstance(x, Tensor):
            _expect(
                x.shape == (batch,),
                name,
                list(x.shape),
                f"one number for each of {batch} batch entries",
            )
            _expect(
                not x.is_floating_point() and x.dtype != torch.bool, name, x.dtype, "whole numbers"
            )
            _expect(x.device == q.device, name, f"on {x.device}", f"the device of q, {q.device}")
        elif x is not None:
            _expect_number(name, x, 0 if name == "kv_lengths" else -(2**31))
    _expect_number("k_start", k_start, 0)


def _near_prepared(q, k_win, v_win, scale, kv_lengths, q_start, k_start):
    """The arguments as the passes take them; a position is a number and an offset a batch entry."""
    _expect_tensors(q=q, k_win=k_win, v_win=v_win)
    device = q.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        q, k_win, v_win = (x.to(torch.get_autocast_dtype(device)) for x in (q, k_win, v_win))
    _near_check(q, k_win, v_win, kv_lengths, q_start, k_start)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    if not isinstance(scale, (int, float)) or not abs(scale) < float("inf"):
        raise ValueError(f"nsa: scale is {scale!r}, expected a finite number")
    scale = float(scale)
    if isinstance(kv_lengths, int):
        kv_lengths = torch.full((q.shape[0],), kv_lengths, device=q.device)
    q_starts = None
    if q_start is None:
        q_start = k_start + k_win.shape[2] - q.shape[2]
    elif isinstance(q_start, Tensor):
        q_start, q_starts = 0, q_start
    return q, k_win, v_win, scale, q_start, k_start, q_starts, kv_lengths


def _near(
    q: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    *,
    scale: float | None = None,
    kv_lengths: int | Tensor | None = None,
    q_start: int | Tensor | None = None,
    k_start: int = 0,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    form: str | None = None,
):
    """Native sparse attention: means of blocks, the blocks of keys that get most of these, and a
    window, each times a gate

    Args:
        q: [batch, heads, n, d], float32, bfloat16, float16 or (not in Triton) float64; d up to 256.
        k_win: [batch, kv heads, m, d], given; float32 or as q.
        v_win: [batch, kv heads, m, e], given; float32 or as q.
        scale: the `scale` of the spec; 1 / sqrt(d) by default.
        kv_lengths: how many keys each batch entry has, one number or [batch]; others are hidden.
        q_start: the position of the first row, one number or [batch];
            so that rows and keys end together by default.
        k_start: the position of the first key.
        return_lse: also return the natural logarithm of each row's normaliser.
        form: "triton", "c" or "torch"; by default Triton runs on GPUs and C on CPUs, if they can.

    Returns:
        [batch, heads, n, e]; rows without keys are 0.
        With return_lse also [batch, heads, n], -inf for rows without weights.

    Raises:
        ValueError: an argument whose shape, dtype or device does not fit, with its name.
    """
    _expect(dropout_p == 0.0, "dropout_p", dropout_p, "0.0: dropout is not supported")
    prepared = _near_prepared(q, k_win, v_win, scale, kv_lengths, q_start, k_start)
    form = _form(form, prepared[0])
    keep_residual = _keeps_residual(*prepared[:3])
    if not torch.compiler.is_compiling() and not _is_shape_only(prepared[0]):
        outs = _near_Attention.apply(*prepared, form, keep_residual)
    elif form == "torch" and torch.compiler.is_compiling():
        outs = _near_batched(*prepared)
    else:
        outs = getattr(torch.ops.attncc, _near_OPERATOR)(*prepared, form, keep_residual)
    return (outs[0], outs[1]) if return_lse else outs[0]


def _near_weights(
    q, k_win, *, rows=slice(None), scale=None, kv_lengths=None, q_start=None, k_start=0
):
    """The weights of some rows over their normalisers, [batch, heads, rows, m]: for pictures."""
    _expect(isinstance(rows, slice), "rows", repr(rows), "a slice, such as slice(0, 4)")
    prepared = _near_prepared(q, k_win, k_win, scale, kv_lengths, q_start, k_start)
    q, k_win, _, scale, q_start, k_start, q_starts, kv_lengths = prepared
    heads, kv_heads, m = q.shape[1], k_win.shape[1], k_win.shape[2]
    wide, device = _wide(q.dtype), q.device
    row = torch.arange(q.shape[2], device=device)[rows]
    if not m:
        return q.new_empty(q.shape[0], heads, len(row), 0, dtype=wide)
    i = row + q_start
    i = i[None] if q_starts is None else i + q_starts[:, None]
    place = torch.arange(m, device=device)
    length = m if kv_lengths is None else kv_lengths.clamp(0, m)[:, None, None, None, None]
    i, j = i[:, None, None, :, None], place[None, None, None, None] + k_start
    seen = place[None, None, None, None] < length
    call = _call_of(q, k_win)
    hidden = ~(_near_related(i, j, call) & seen)
    kv_head = torch.arange(heads, device=device) // (heads // kv_heads)

    def own(x):  # [batch, heads, n, c] -> [batch, heads, 1, rows, c]
        return x.to(wide)[:, :, None, rows]

    def windows(x):  # [batch, kv heads, m, c] -> [batch, heads, 1, m, c]
        return x.to(wide)[:, kv_head, None].masked_fill(~seen.transpose(-1, -2), 0)

    numbers = _near_lifted(_numbers(q, k_win, k_win, scale, kv_lengths))
    weight, norm, _ = _near_weights_of(own(q), windows(k_win), i, j, hidden, numbers, call)
    weight = weight if norm is None else weight * _reciprocal(norm)
    return weight[:, :, 0]


@dataclasses.dataclass
class _NearCache:
    """What later tokens may ask for.

    It keeps the last 512 keys.
    Tensors and numbers alone: `torch.save` writes it, `to` moves it. A new one is that of no token.
    """

    position: int = 0  # of the next token
    dropped: int = 0  # how many tokens have left `keys`
    keys: tuple = ()  # k_win and v_win of tokens, [batch, kv heads, room, …]

    def to(self, device):
        """The same on another device."""

        def moved(x):
            if isinstance(x, tuple):
                return tuple(map(moved, x))
            return x.to(device) if isinstance(x, Tensor) else x

        return _NearCache(**{name: moved(x) for name, x in vars(self).items()})


def _make_room(cache, fresh):
    """Let go of tokens that no later row asks for, and make room for new ones."""
    held = cache.position - cache.dropped
    low = min(max(cache.position - 511 - cache.dropped, 0), held)
    room = max(2 * (held - low) + fresh, _ROOM)

    def moved(x):
        new = x.new_empty(*x.shape[:2], room, *x.shape[3:])
        new[:, :, : held - low] = x[:, :, low:held]
        return new

    cache.dropped += low
    cache.keys = tuple(map(moved, cache.keys))


def _expect_as_before(name, known, x):
    """Refuse new tokens that have another batch, width and so on than those before them."""
    found, expected = (
        (*each.shape[:2], *each.shape[3:], each.dtype, each.device) for each in (x, known)
    )
    _expect(
        found == expected,
        f"what is new in {name}",
        found,
        f"batch, heads, width and so on of the cache, {expected}",
    )


def _near_remember(cache, new):
    """Add what new tokens have."""
    if not cache.keys:
        cache.keys = tuple(x[:, :, :0] for x in new)
    for name, known, x in zip(("k_win", "v_win"), cache.keys, new, strict=True):
        _expect_as_before(name, known, x)
    fresh = new[0].shape[2]
    if cache.position - cache.dropped + fresh > cache.keys[0].shape[2]:
        _make_room(cache, fresh)
    place = cache.position - cache.dropped
    for known, x in zip(cache.keys, new, strict=True):
        known[:, :, place : place + fresh] = x
    cache.position += fresh


def _newest(cache, q, scale):
    """The vectors of the last rows and their lse; the cache has their own keys already."""
    batch, _, n, _ = q.shape
    first, last = cache.position - n, cache.position - 1
    held = cache.position - cache.dropped
    k_win, v_win = (x[:, :, :held] for x in cache.keys)
    numbers = _numbers(q, k_win, v_win, scale, None)
    outs = [q.new_empty(*q.shape[:3], v_win.shape[-1])]
    outs.append(q.new_empty(q.shape[:3], dtype=_wide(q.dtype)))
    if n == 0:
        return outs

    def run(q, k_win, v_win, numbers, call, store):
        kv_heads = v_win.shape[1]
        shape = batch, q.shape[1], n
        slab = _near_Slab(slice(0, batch), slice(0, n), first, last, shape)
        chunks = _near_chunks(first, last, cache.dropped, held, call)
        work = _workspace(slab, chunks, q, 2, None)
        results = _near_forward_slab(
            _fold(q, slab, kv_heads), k_win[slab.entries], v_win[slab.entries],
            _near_entries_of(numbers, slab), slab, chunks, work, call,
        )  # fmt: skip
        store(slab, results[:2])

    with torch.autocast(q.device.type, enabled=False):
        call = _Call(q.shape[2], v_win.shape[2], q.shape[1], 0)
        run(q, k_win, v_win, numbers, call, functools.partial(_store, outs))
    return outs


def _checked_with(cache, q, k_win, v_win, scale):
    """New tokens, added to the cache: what the passes read of them."""
    prepared = _near_prepared(q, k_win, v_win, scale, None, cache.position, cache.position)
    _expect(
        k_win.shape[2] == q.shape[2],
        "the number of keys",
        k_win.shape[2],
        f"one for each of {q.shape[2]} rows",
    )
    q, k_win, v_win, *_ = prepared
    _near_remember(cache, (k_win, v_win))
    return prepared


@torch.no_grad()
def _near_step(
    q: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    cache: _NearCache,
    *,
    scale: float | None = None,
    return_lse: bool = False,
):
    """The next token of a sequence, or several, after those of a cache.

    Args:
        q, k_win, v_win: as in `attention`, of the new tokens alone.
        cache: a new one, or that of the tokens before; it is changed.

    Returns:
        The rows that `attention` gives these tokens in the whole sequence, and the cache.
        With return_lse the logarithms of their normalisers stand in between.
    """
    _expect(
        isinstance(cache, _NearCache), "cache", type(cache).__name__, "a _NearCache of this module"
    )
    prepared = _checked_with(cache, q, k_win, v_win, scale)
    q, k_win, v_win, scale, *_ = prepared
    out, lse = _newest(cache, q, scale)
    return (out, lse, cache) if return_lse else (out, cache)


@torch.no_grad()
def _near_prefill(
    q: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
    form: str | None = None,
):
    """`attention` on the first tokens of a sequence, and the cache from which `step` goes on.

    Args:
        q, k_win, v_win: as in `attention`, with as many rows as keys.
        form: "triton", "c" or "torch", as in `attention`.
    """
    out, lse = _near(q, k_win, v_win, scale=scale, return_lse=True, form=form)
    cache = _NearCache()
    _checked_with(cache, q, k_win, v_win, scale)
    _make_room(cache, 1)
    return (out, lse, cache) if return_lse else (out, cache)


# --- the branches together ------------------------------------------------------------------------


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


def _combined(
    far,
    fine,
    near,
    q,
    k,
    v,
    k_far,
    v_far,
    k_win,
    v_win,
    a,
    b,
    c,
    scale,
    q_start,
    k_start,
    q_starts,
    kv_lengths,
):
    """a * far + b * fine + c * near"""
    dtype = far.dtype
    wide = _wide(dtype)
    a_wide = a.to(wide)[:, :, :, None]
    far_wide = far.to(wide)
    b_wide = b.to(wide)[:, :, :, None]
    fine_wide = fine.to(wide)
    c_wide = c.to(wide)[:, :, :, None]
    near_wide = near.to(wide)
    return (a_wide * far_wide + b_wide * fine_wide + c_wide * near_wide).to(dtype)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_far: Tensor,
    v_far: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    scale: float | None = None,
    kv_lengths: int | Tensor | None = None,
    q_start: int | Tensor | None = None,
    k_start: int = 0,
    dropout_p: float = 0.0,
    form: str | None = None,
    choices: dict[str, Tensor] | None = None,
    return_choices: bool = False,
):
    """Native sparse attention: means of blocks, the blocks of keys that get most of these, and a
    window, each times a gate

    The branches far, fine, near are combined to a * far + b * fine + c * near.

    Args:
        q: [batch, heads, n, d], float32, bfloat16, float16 or (not in Triton) float64; d up to 256.
        k: [batch, kv heads, m, d]; query head h reads kv head h // (heads / kv heads).
        v: [batch, kv heads, m, e].
        k_far: [batch, kv heads, m, d], given; float32 or as q.
        v_far: [batch, kv heads, m, e], given; float32 or as q.
        k_win: [batch, kv heads, m, d], given; float32 or as q.
        v_win: [batch, kv heads, m, e], given; float32 or as q.
        a: [batch, heads, n], given; float32 or as q.
        b: [batch, heads, n], given; float32 or as q.
        c: [batch, heads, n], given; float32 or as q.
        scale: the `scale` of the spec; 1 / sqrt(d) by default.
        kv_lengths: how many keys each batch entry has, one number or [batch]; others are hidden.
        q_start: the position of the first row, one number or [batch];
            so that rows and keys end together by default.
        k_start: the position of the first key.
        form: "triton", "c" or "torch"; by default Triton runs on GPUs and C on CPUs, if they can.
        choices: some of what the spec chooses by comparing, in place of what it would choose.
        return_choices: also return what was chosen, by name.

    Returns:
        [batch, heads, n, e]; rows of a branch without keys are 0.
        With return_choices last of all a dict of whole numbers:
            blocks: [batch, kv heads, n, 13], numbers of blocks of 64 keys, -1 for none.

    Raises:
        ValueError: an argument whose shape, dtype or device does not fit, with its name.
    """
    options = {
        "kv_lengths": kv_lengths,
        "q_start": q_start,
        "k_start": k_start,
        "dropout_p": dropout_p,
        "form": form,
    }
    made_choices = {} if choices is None else dict(choices)
    _expect(
        made_choices.keys() <= set(("blocks",)),
        "choices",
        sorted(made_choices),
        " or ".join(("blocks",)),
    )
    far = _far(q, k_far, v_far, scale=scale, **options)
    own_choices = {name: made_choices[name] for name in ("blocks",) if name in made_choices}
    fine, own_choices = _fine(
        q, k, v, k_far, scale=scale, choices=own_choices, return_choices=True, **options
    )
    made_choices |= own_choices
    near = _near(q, k_win, v_win, scale=scale, **options)
    _expect(
        fine.shape == far.shape,
        "the branch fine",
        list(fine.shape),
        f"the shape of far, {list(far.shape)}",
    )
    _expect(
        near.shape == far.shape,
        "the branch near",
        list(near.shape),
        f"the shape of far, {list(far.shape)}",
    )
    batch, heads = q.shape[:2]
    _expect_data("a", a, (batch, heads, q.shape[2]), "[batch, heads, n]", "numbers", q)
    _expect_data("b", b, (batch, heads, q.shape[2]), "[batch, heads, n]", "numbers", q)
    _expect_data("c", c, (batch, heads, q.shape[2]), "[batch, heads, n]", "numbers", q)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q_starts = None
    if q_start is None:
        q_start = k_start + k.shape[2] - q.shape[2]
    elif isinstance(q_start, Tensor):
        q_start, q_starts = 0, q_start
    if isinstance(kv_lengths, int):
        kv_lengths = torch.full((q.shape[0],), kv_lengths, device=q.device)
    out = _combined(
        far,
        fine,
        near,
        q,
        k,
        v,
        k_far,
        v_far,
        k_win,
        v_win,
        a,
        b,
        c,
        scale,
        q_start,
        k_start,
        q_starts,
        kv_lengths,
    )
    return (out, made_choices) if return_choices else out


def weights(branch: str, *data: Tensor, **options):
    """Weights of some rows of a branch: its data in order, `rows=…`, options of `attention`."""
    branches = {
        "far": _far_weights,
        "fine": _fine_weights,
        "near": _near_weights,
    }
    _expect(branch in branches, "branch", repr(branch), " or ".join(branches))
    return branches[branch](*data, **options)


@dataclasses.dataclass
class Cache:
    """What later tokens may ask for: a cache of each branch. `to` moves it."""

    far: _FarCache | None = None
    fine: _FineCache | None = None
    near: _NearCache | None = None

    def __post_init__(self):
        self.far = self.far or _FarCache()
        self.fine = self.fine or _FineCache()
        self.near = self.near or _NearCache()

    def to(self, device):
        """The same on another device."""
        return Cache(
            self.far.to(device),
            self.fine.to(device),
            self.near.to(device),
        )


def _copied(cache):
    """The same cache, so that steps of this one leave the other as it is; tensors are shared."""
    return Cache(
        dataclasses.replace(cache.far),
        dataclasses.replace(cache.fine),
        dataclasses.replace(cache.near),
    )


def _together(cache, far, fine, near, q, k, v, k_far, v_far, k_win, v_win, a, b, c, scale):
    """The rows of new tokens, of those that branches give."""
    batch, heads = q.shape[:2]
    _expect_data("a", a, (batch, heads, q.shape[2]), "[batch, heads, n]", "numbers", q)
    _expect_data("b", b, (batch, heads, q.shape[2]), "[batch, heads, n]", "numbers", q)
    _expect_data("c", c, (batch, heads, q.shape[2]), "[batch, heads, n]", "numbers", q)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    at = cache.far.position - q.shape[2]
    out = _combined(
        far, fine, near, q, k, v, k_far, v_far, k_win, v_win, a, b, c, scale, at, at, None, None
    )
    return out


@torch.no_grad()
def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_far: Tensor,
    v_far: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    cache: Cache,
    *,
    scale: float | None = None,
):
    """The next token of a sequence, or several, after those of a cache.

    Args:
        q, k, v, k_far, v_far, k_win, v_win, a, b, c: as in `attention`, of the new tokens alone.
        cache: a new one, or that of the tokens before; it is changed.

    Returns:
        The rows that `attention` gives these tokens in the whole sequence, and the cache.
    """
    _expect(isinstance(cache, Cache), "cache", type(cache).__name__, "a Cache of this module")
    # A step that any branch refuses leaves the cache as it was.
    carried = _copied(cache)
    far, _ = _far_step(q, k_far, v_far, carried.far, scale=scale)
    fine, _ = _fine_step(q, k, v, k_far, carried.fine, scale=scale)
    near, _ = _near_step(q, k_win, v_win, carried.near, scale=scale)
    out = _together(carried, far, fine, near, q, k, v, k_far, v_far, k_win, v_win, a, b, c, scale)
    cache.__dict__.update(carried.__dict__)
    return out, cache


@torch.no_grad()
def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_far: Tensor,
    v_far: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    scale: float | None = None,
    form: str | None = None,
):
    """`attention` on the first tokens of a sequence, and the cache from which `step` goes on.

    Args:
        q, k, v, k_far, v_far, k_win, v_win, a, b, c: as in `attention`, with as many rows as keys.
        form: "triton", "c" or "torch", as in `attention`.
    """
    cache = Cache()
    far, cache.far = _far_prefill(q, k_far, v_far, scale=scale, form=form)
    fine, cache.fine = _fine_prefill(q, k, v, k_far, scale=scale, form=form)
    near, cache.near = _near_prefill(q, k_win, v_win, scale=scale, form=form)
    return _together(
        cache, far, fine, near, q, k, v, k_far, v_far, k_win, v_win, a, b, c, scale
    ), cache


class Attention(nn.Module):
    """`attention` as a module without parameters."""

    def __init__(self, scale: float | None = None, form: str | None = None):
        super().__init__()
        self.scale = scale
        self.form = form

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_far: Tensor,
        v_far: Tensor,
        k_win: Tensor,
        v_win: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        **options,
    ):
        """See `attention`; `options` are its other arguments."""
        return attention(
            q,
            k,
            v,
            k_far,
            v_far,
            k_win,
            v_win,
            a,
            b,
            c,
            scale=self.scale,
            form=self.form,
            **options,
        )

    def prefill(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_far: Tensor,
        v_far: Tensor,
        k_win: Tensor,
        v_win: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        **options,
    ):
        """See `prefill`: the first tokens of a sequence."""
        return prefill(
            q,
            k,
            v,
            k_far,
            v_far,
            k_win,
            v_win,
            a,
            b,
            c,
            scale=self.scale,
            form=self.form,
            **options,
        )

    def step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_far: Tensor,
        v_far: Tensor,
        k_win: Tensor,
        v_win: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        cache: Cache,
    ):
        """See `step`: the next tokens of a sequence."""
        return step(q, k, v, k_far, v_far, k_win, v_win, a, b, c, cache, scale=self.scale)

    def extra_repr(self) -> str:
        return f"scale={self.scale}, form={self.form}"


# --- kernels in C ---------------------------------------------------------------------------------
# The statements of the Triton kernels, for CPUs. A kernel is compiled when it first runs with such
# types and widths, into the user's cache, where its source, the compiler and the processor name it.

_C_TYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
}
_C_READS = {"bf16": "float", "fp16": "float", "int16_t": "int", "int8_t": "int", "uint8_t": "int"}
_C_WIDEST = 512  # channels of a vector: tiles of wider ones would not fit on the stack of a thread


def _in_c(x):
    """Whether kernels run in C where a tensor is: on the CPU, unless Triton interprets its own."""
    return x.device.type == "cpu" and not (triton is not None and triton.knobs.runtime.interpret)


def _for(kernel, x):
    """The kernel that runs where a tensor is; those that Triton has not are given by name."""
    return _C_KERNELS[getattr(kernel, "__name__", kernel)] if _in_c(x) else kernel


@functools.cache
def _c_cache():
    """How many bytes a core has in its second cache."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return max(os.sysconf("SC_LEVEL2_CACHE_SIZE"), 1 << 18)
    return 1 << 19


def _c_tile(widest, edge, n, most_rows=256):
    """Rows and keys of a tile, `edge` at most: few enough for half of a core's cache.

    Few rows have small tiles. Other lengths change nothing, as kernels are compiled for tiles.
    """
    while edge > 16 and 4 * edge * (4 * widest + 3 * edge) > _c_cache() // 2:
        edge //= 2
    return min(edge, most_rows, 16 if n <= 16 else 256), edge


@functools.cache
def _advise():
    """What asks the system for large pages, where it has them."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        advice, advise = mmap.MADV_HUGEPAGE, ctypes.CDLL(None).madvise
        return lambda start, size: advise(ctypes.c_void_p(start), ctypes.c_size_t(size), advice)
    return lambda start, size: None


def _on_large_pages(x):
    """Have new memory of results come in a few large pages, as many small ones take time."""
    if x.device.type == "cpu" and x.nbytes >= 1 << 22 and x.is_contiguous():
        start = -(-x.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        _advise()(start, x.data_ptr() + x.nbytes - start)


class _Programs(ctypes.Structure):
    """A program's place in the grid, or how many there are along each axis."""

    _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_int), ("z", ctypes.c_int)]


class _CKernel:
    """A kernel in C, which runs as one of Triton does: `kernel[grid](*arguments, **constants)`."""

    def __init__(self, name, arguments, whole, constants, written, text):
        self.__name__ = name
        self.arguments, self.whole = arguments.split(), frozenset(whole.split())
        self.constants, self.text = constants.split(), text
        self.written = frozenset(written.split())
        self.arg_names = (*self.arguments, *self.constants)
        self.pass_of_pieces = name.rstrip("_0123456789"), self.arg_names
        self.compiled = {}  # by types and constants

    def __getitem__(self, grid):
        return functools.partial(self.run, grid)

    def run(self, grid, *arguments, tile=(), **constants):
        """Run every program, by tiles of so many rows and keys where these are given apart."""
        arguments += tuple(constants[name] for name in self.arguments[len(arguments) :])
        if tile:
            constants |= {"BLOCK_M": tile[0], "BLOCK_N": tile[1]}
            for name in self.constants:  # whole vectors, by what the processor adds up at once
                if name.startswith("BLOCK_") and name[6:] in constants:
                    constants[name] = -(-constants[name[6:]] // 16) * 16
        programs = (*(grid(constants) if callable(grid) else grid), 1, 1)[:3]
        types = tuple(x.dtype if isinstance(x, Tensor) else None for x in arguments)
        known = types, tuple(constants[name] for name in self.constants)
        if known not in self.compiled:
            self._compile(types, constants, known)
        for name, x in zip(self.arguments, arguments, strict=True):
            if name in self.written and x is not None:
                _on_large_pages(x)
        self.compiled[known](
            _Programs(*programs),
            torch.get_num_threads(),
            *map(self._given, self.arguments, arguments),
        )

    def _compile(self, types, constants, known):
        """Compile it, and at the same time its like in other pieces, which run next."""
        alike = [
            x
            for x in _C_KERNELS.values()
            if x.pass_of_pieces == self.pass_of_pieces and known not in x.compiled
        ]
        with concurrent.futures.ThreadPoolExecutor(len(alike)) as pool:
            libraries = list(pool.map(_c_library, [x._source(types, constants) for x in alike]))
        for x, library in zip(alike, libraries, strict=True):
            x.compiled[known] = functools.partial(_c_run, library)

    def _given(self, name, x):
        if x is None:
            return None
        if isinstance(x, Tensor):
            return ctypes.c_void_p(x.data_ptr())
        if isinstance(x, tuple):
            return (ctypes.c_int64 * len(x))(*x)
        return int(x) if name in self.whole else ctypes.c_double(x)

    def _source(self, types, constants):
        """The kernel for such types and constants, with all that it is made of."""
        lines = ["#define DOUBLE"] * (torch.float64 in types)
        lines += [_C_LIBRARY]
        for name, dtype in zip(self.arguments, types, strict=True):
            if name.endswith("_ptr"):
                of, ctype = name.removesuffix("_ptr"), _C_TYPES.get(dtype, "float")
                lines += [f"typedef {ctype} {of}_type;"]
                lines += [f"typedef {_C_READS.get(ctype, ctype)} {of}_value;"]
        lines += [f"#define {name} {constants[name]:d}" for name in self.constants]
        return "\n".join([*lines, "", self.text])


# What a compiler is asked for: the first of each that it knows is taken.
_C_FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_C_PROCESSORS = (
    ("-march=native", "-mprefer-vector-width=512"),
    ("-march=native",),
    ("-mcpu=native",),
    (),
)
_C_THREADS = (("-fopenmp",), ("-fopenmp-simd",), ())
_C_PROBE = """\
typedef float four __attribute__((vector_size(16)));
_Static_assert(sizeof(four) == 16, "kernels are made of vectors");
int run(int n)
{
    int total = 0;
    #pragma omp parallel for reduction(+ : total)
    for (int i = 0; i < n; i++) total += i;
    return _Generic(total, int: total);
}
"""


def _c_words(name):
    """What a variable of the environment says, word by word; quotes hold words together."""
    said = os.environ.get(name, "")
    try:
        return shlex.split(said)
    except ValueError as error:
        raise ValueError(f"{name} is {said!r}: {error}") from None


@functools.cache
def _c_found():
    """The command that compiles, as far as files, or None; and what is wrong then."""
    asked = [_c_words("CC"), ["cc"], ["gcc"], ["clang"]]
    compiler = next((each for each in asked if each and shutil.which(each[0])), None)
    if compiler is None:
        return None, "no C compiler is found"
    more = _c_words("ATTNCC_CFLAGS")
    for processor, threads in itertools.product(_C_PROCESSORS, _C_THREADS):
        command = (*compiler, *_C_FLAGS, *processor, *threads, *more)
        # It may say no, make nothing, or what cannot be loaded here.
        with contextlib.suppress(OSError, RuntimeError):
            _c_loaded(_C_PROBE, command)
            return command, ""
    return None, f"{' '.join((*compiler, *more))} makes nothing that runs"


@functools.cache
def _c_command():
    """The command that compiles, as far as files; None, with a warning, where there is none."""
    command, fault = _c_found()
    if fault:
        warnings.warn(f"{fault}: attention runs in torch on the CPU, which is slower", stacklevel=2)
    return command


@functools.cache
def _c_identity(compiler):
    """What compiled code depends on beside its source: the compiler and the processor."""
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, text=True, check=False
    ).stdout
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor += "".join(next((x for x in lines if x.startswith(("flags", "Features"))), ""))
    return f"{version}\n{processor}"


@functools.cache
def _c_folder():
    """The user's cache, or a folder of this process where there is none to write into."""
    asked = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")
    cache = next(filter(os.path.isabs, asked), None)
    if cache is not None:
        folder = pathlib.Path(cache, "attncc", "c")
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    made = tempfile.mkdtemp(prefix="attncc-c-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return pathlib.Path(made)


def _c_compiled(source, command):
    """The file of a library, made unless the cache has it; processes may make it at the same time.

    Raises:
        RuntimeError: with what the compiler says.
    """
    known = "\n".join([source, *command, _c_identity(command[: command.index(_C_FLAGS[0])])])
    path = _c_folder() / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)  # caches may be emptied at any time
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        file, made = pathlib.Path(folder, "kernel.c"), pathlib.Path(folder, "kernel.so")
        file.write_text(source, encoding="utf-8")
        done = subprocess.run(
            [*command, file, "-o", made, "-lm"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} fails:\n{done.stderr}")
        made.replace(path)
    return path


def _c_loaded(source, command):
    """A library, loaded; one that the cache holds in part is made anew."""
    path = _c_compiled(source, command)
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        path.unlink(missing_ok=True)
        return ctypes.CDLL(str(_c_compiled(source, command)))


def _c_library(source):
    """A kernel's library, loaded."""
    command, fault = _c_found()
    if fault:
        raise RuntimeError(f"{fault}: kernels in C need a compiler, gcc or clang, or what CC names")
    return _c_loaded(source, command)


def _c_run(library, programs, threads, *given):
    """Run programs by so many threads: OpenMP's, or Python's where a compiler has none."""
    if threads == 1 or ctypes.c_int.in_dll(library, "has_threads").value:
        library.run(programs, threads, 0, *given)
        return
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda share: library.run(programs, threads, share, *given), range(threads)))


def _c_serves(q):
    """Whether kernels in C run unasked: if they can, unless ATTNCC_TARGET is `torch`."""
    if torch.compiler.is_compiling():  # what a compiler is given are plain operations
        return False
    target = os.environ.get("ATTNCC_TARGET") or "c"
    if target not in ("c", "torch"):
        raise ValueError(f"ATTNCC_TARGET is {target!r}, expected 'c' or 'torch'")
    return target == "c" and _in_c(q) and q.shape[-1] <= _C_WIDEST and _c_command() is not None


_C_LIBRARY = r"""
// What kernels in C are made of: numbers of all types, vectors of tokens, products of tiles.
// Sums and scores are `real`: double where inputs are double, else float.

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef DOUBLE
typedef double real;
#else
typedef float real;
#endif

#define INLINE static inline __attribute__((always_inline))
#define R(x) ((real)(x))

typedef struct { int x, y, z; } Grid;

// Without OpenMP the caller has the threads, and each of them runs its share of the programs.
#ifdef _OPENMP
const int has_threads = 1;
#define IS_MINE(at) 1
#else
const int has_threads = 0;
#define IS_MINE(at) ((at) % threads == share)
#endif

// --- numbers ----------------------------------------------------------------------------------

typedef struct { uint16_t bits; } bf16;
typedef struct { uint16_t bits; } fp16;

INLINE float float_of_bits(uint32_t bits)
{
    union { uint32_t bits; float number; } each = {.bits = bits};
    return each.number;
}

INLINE uint32_t bits_of_float(float x)
{
    union { float number; uint32_t bits; } each = {.number = x};
    return each.bits;
}

INLINE float from_bf16(bf16 x) { return float_of_bits((uint32_t)x.bits << 16); }

// Rounded to the nearest, to even where two are as near; NaN stays NaN.
INLINE bf16 to_bf16(real x)
{
    const uint32_t bits = bits_of_float((float)x);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return (bf16){(uint16_t)(x != x ? (bits >> 16) | 64 : rounded)};
}

#if defined(__FLT16_MANT_DIG__)
INLINE float from_fp16(fp16 x)
{
    union { uint16_t bits; _Float16 number; } each = {.bits = x.bits};
    return (float)each.number;
}

INLINE fp16 to_fp16(real x)
{
    union { _Float16 number; uint16_t bits; } each = {.number = (_Float16)(float)x};
    return (fp16){each.bits};
}
#else
INLINE float from_fp16(fp16 x)
{
    const uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, rest = x.bits & 0x7FFF;
    if (rest >= 0x7C00) return float_of_bits(sign | 0x7F800000 | (rest & 0x3FF) << 13);
    return float_of_bits(sign | bits_of_float(float_of_bits(rest << 13) * 0x1p112f));
}

INLINE fp16 to_fp16(real x)
{
    const uint32_t bits = bits_of_float((float)x);
    const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000) return (fp16){(uint16_t)(sign | 0x7E00)};
    if (rest >= 0x477FF000) return (fp16){(uint16_t)(sign | 0x7C00)};
    if (rest < 0x38800000)  // too small for an exponent of its own
        return (fp16){(uint16_t)(sign | (uint32_t)nearbyintf(float_of_bits(rest) * 0x1p24f))};
    return (fp16){(uint16_t)(sign | (rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13)};
}
#endif

INLINE float from_float(float x) { return x; }
INLINE double from_double(double x) { return x; }
INLINE int from_byte(uint8_t x) { return x; }
INLINE int from_signed_byte(int8_t x) { return x; }
INLINE int from_short(int16_t x) { return x; }
INLINE int from_int(int32_t x) { return x; }
INLINE int64_t from_long(int64_t x) { return x; }
INLINE float to_float(real x) { return (float)x; }
INLINE double to_double(real x) { return (double)x; }
INLINE int32_t to_int(int64_t x) { return (int32_t)x; }
INLINE int64_t to_long(int64_t x) { return x; }

#define number_of(x) \
    _Generic((x), bf16: from_bf16, fp16: from_fp16, float: from_float, double: from_double, \
             uint8_t: from_byte, int8_t: from_signed_byte, int16_t: from_short, \
             int32_t: from_int, int64_t: from_long)(x)
#define element_of(type, x) \
    _Generic((type){0}, bf16: to_bf16, fp16: to_fp16, float: to_float, double: to_double, \
             int32_t: to_int, int64_t: to_long)(x)
#define put(type, place, x) ((place) = element_of(type, x))
#define add_to(type, place, x) ((place) = element_of(type, number_of(place) + (x)))
#define rounded(type, x) ((real)number_of(element_of(type, x)))

// What no number of a type is beyond.
#define largest_of(type) \
    _Generic((type){0}, float: INFINITY, double: INFINITY, int64_t: INT64_MAX, default: INT32_MAX)
#define least_of(type) \
    _Generic((type){0}, float: -INFINITY, double: -INFINITY, int64_t: INT64_MIN, default: INT32_MIN)

// NaN stays NaN where it stands first, as what a spec computes does beside a constant.
#define larger(a, b) ((b) > (a) ? (b) : (a))
#define smaller(a, b) ((b) < (a) ? (b) : (a))
#define clamped(index, size) smaller(larger(index, 0), (size) - 1)
#define ceil_div(a, b) (((a) + (b) - 1) / (b))
#define floor_mod(a, b) ((((a) % (b)) + (b)) % (b))
#define floor_div(a, b) (((a) - floor_mod(a, b)) / (b))

// Whether a number is in a list, of which entries stand every so many numbers; below 0 is none.
INLINE int is_named(int64_t x, const int32_t *list, int count, int64_t step)
{
    int found = 0;
    for (int at = 0; at < count; at++) found |= x == list[at * step];
    return found & (x >= 0);
}

// --- functions --------------------------------------------------------------------------------

#ifdef DOUBLE
INLINE real exp2_of(real x) { return exp2(x); }
INLINE real exp_of(real x) { return exp(x); }
INLINE real log_of(real x) { return log(x); }
INLINE real log2_of(real x) { return log2(x); }
INLINE real sqrt_of(real x) { return sqrt(x); }
INLINE real cos_of(real x) { return cos(x); }
INLINE real sin_of(real x) { return sin(x); }
INLINE real erf_of(real x) { return erf(x); }
INLINE real floor_of(real x) { return floor(x); }
INLINE real tanh_of(real x) { return tanh(x); }
#else
// 2^x to 1.2 units in the last place, in operations that compilers make vectors of: a power of two
// by its exponent, times a polynomial within half a step (that of Cephes). Below 2^-126.5 it is 0,
// from 2^127.5 on infinite.
INLINE float exp2_of(float x)
{
    const float within = x < -127.0f ? -127.0f : (x > 128.0f ? 128.0f : x);
    const float whole = rintf(within);
    const float rest = within - whole;
    float p = 1.5353362e-4f;
    p = p * rest + 1.3398874e-3f;
    p = p * rest + 9.6184374e-3f;
    p = p * rest + 5.5503325e-2f;
    p = p * rest + 2.4022648e-1f;
    p = p * rest + 6.9314720e-1f;
    p = p * rest + 1.0f;
    return p * float_of_bits((uint32_t)((int32_t)whole + 127) << 23);  // at -127 the power is 0
}

// e^x in the same way: ln 2 is taken off in two parts.
INLINE float exp_of(float x)
{
    const float within = x < -88.1f ? -88.1f : (x > 88.8f ? 88.8f : x);
    const float whole = rintf(within * 1.44269504f);
    const float rest = (within - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float p = 1.9875691e-4f;
    p = p * rest + 1.3981999e-3f;
    p = p * rest + 8.3334519e-3f;
    p = p * rest + 4.1665796e-2f;
    p = p * rest + 1.6666665e-1f;
    p = p * rest + 5.0000001e-1f;
    p = p * rest * rest + rest + 1.0f;
    return p * float_of_bits((uint32_t)((int32_t)whole + 127) << 23);
}

INLINE real log_of(real x) { return logf(x); }
INLINE real log2_of(real x) { return log2f(x); }
INLINE real sqrt_of(real x) { return sqrtf(x); }
INLINE real cos_of(real x) { return cosf(x); }
INLINE real sin_of(real x) { return sinf(x); }
INLINE real erf_of(real x) { return erff(x); }
INLINE real floor_of(real x) { return floorf(x); }

INLINE real tanh_of(real x)
{
    const real size = x < 0 ? -x : x;
    const real shrink = exp_of(R(-2) * size);
    const real large = (x < 0 ? R(-1) : R(1)) * (1 - shrink) / (1 + shrink);
    const real square = x * x;  // below 1/8 the first terms of the series are exact to float
    const real rest = R(1.0 / 3) - square * (R(2.0 / 15) - square * R(17.0 / 315));
    const real small = x * (1 - square * rest);
    return size < R(0.125) ? small : large;
}
#endif

INLINE real abs_of(real x) { return x < 0 ? -x : x; }
INLINE real square_of(real x) { return x * x; }
INLINE real sigmoid_of(real x)
{
    const real shrink = exp_of(-abs_of(x));
    return (x < 0 ? shrink : R(1)) / (1 + shrink);
}
INLINE real silu_of(real x) { return x * sigmoid_of(x); }
INLINE real gelu_of(real x) { return R(0.5) * x * (1 + erf_of(x * R(0.7071067811865476))); }
INLINE real softplus_of(real x)
{
#ifdef DOUBLE
    return (x > 0 ? x : 0) + log1p(exp(-abs_of(x)));
#else
    return (x > 0 ? x : 0) + log1pf(exp_of(-abs_of(x)));
#endif
}
INLINE real elu_of(real x)
{
#ifdef DOUBLE
    return x > 0 ? x : expm1(x);
#else
    const real half = tanh_of(R(0.5) * (x > 0 ? 0 : x));
    return x > 0 ? x : 2 * half / (1 - half);
#endif
}
INLINE real elu_plus_one_of(real x) { return x > 0 ? x + 1 : exp_of(x > 0 ? 0 : x); }
INLINE real sign_of(real x) { return x > 0 ? R(1) : (x < 0 ? R(-1) : R(0)); }
INLINE real power_of(real base, real exponent) { return exp2_of(exponent * log2_of(base)); }
// base^exponent; below 0 it has a value where the exponent is whole. To the power of 0 all is 1.
INLINE real signed_power_of(real base, real exponent)
{
    const real size = power_of(abs_of(base), exponent), half = R(0.5) * exponent;
    const int is_whole = floor_of(exponent) == exponent, is_even = floor_of(half) == half;
    const real below = is_even ? size : (is_whole ? -size : (real)NAN);
    return exponent == 0 ? R(1) : (base < 0 ? below : size);
}
INLINE real inverse_of(real x) { return x == 0 ? R(0) : 1 / x; }
INLINE real log_or_none_of(real x) { return x > 0 ? log_of(x) : -(real)INFINITY; }

// --- vectors of tokens --------------------------------------------------------------------------

typedef struct { const real *at; int64_t step; } Rows;

// Copies `lanes` vectors into a tile, as wide as `block`: 0 beyond their width and where not seen.
#define COPY(type) \
    INLINE Rows copy_##type(real *room, const type *start, int64_t stride, const int *seen, \
                            const int lanes, const int width, const int block) \
    { \
        for (int r = 0; r < lanes; r++) { \
            real *to = room + (int64_t)r * block; \
            const type *from = start + r * stride; \
            const int own = seen && !seen[r] ? 0 : (width < block ? width : block); \
            for (int x = 0; x < own; x++) to[x] = (real)number_of(from[x]); \
            for (int x = own; x < block; x++) to[x] = 0; \
        } \
        return (Rows){room, block}; \
    }
COPY(bf16)
COPY(fp16)
COPY(float)
COPY(double)

// Vectors of `real` stay where they are when all of them are seen and as wide as the tile.
INLINE Rows rows_of_real(real *room, const real *start, int64_t stride, const int *seen,
                         const int lanes, const int width, const int block)
{
    int all = 1;
    for (int r = 0; seen && r < lanes; r++) all &= seen[r];
    if (all && width >= block) return (Rows){start, stride};
#ifdef DOUBLE
    return copy_double(room, start, stride, seen, lanes, width, block);
#else
    return copy_float(room, start, stride, seen, lanes, width, block);
#endif
}

#ifdef DOUBLE
#define load_rows(type, ...) \
    _Generic((type){0}, bf16: copy_bf16, fp16: copy_fp16, float: copy_float, \
             double: rows_of_real)(__VA_ARGS__)
#else
#define load_rows(type, ...) \
    _Generic((type){0}, bf16: copy_bf16, fp16: copy_fp16, float: rows_of_real, \
             double: copy_double)(__VA_ARGS__)
#endif

#define copy_rows(type, ...) \
    (void)_Generic((type){0}, bf16: copy_bf16, fp16: copy_fp16, float: copy_float, \
                   double: copy_double)(__VA_ARGS__)

// The transpose of a tile of vectors: four by four in registers where numbers lie side by side.
typedef real four __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define pick(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#ifdef DOUBLE
typedef int64_t picks __attribute__((vector_size(4 * sizeof(real))));
#else
typedef int32_t picks __attribute__((vector_size(4 * sizeof(real))));
#endif
#define pick(a, b, ...) __builtin_shuffle(a, b, (picks){__VA_ARGS__})
#endif

INLINE void turn_four(const real *from, int64_t row, real *to, int64_t to_row)
{
    const four a = *(const four *)from, b = *(const four *)(from + row);
    const four c = *(const four *)(from + 2 * row), d = *(const four *)(from + 3 * row);
    const four ac = pick(a, c, 0, 4, 1, 5), bd = pick(b, d, 0, 4, 1, 5);
    const four ac_high = pick(a, c, 2, 6, 3, 7), bd_high = pick(b, d, 2, 6, 3, 7);
    *(four *)to = pick(ac, bd, 0, 4, 1, 5);
    *(four *)(to + to_row) = pick(ac, bd, 2, 6, 3, 7);
    *(four *)(to + 2 * to_row) = pick(ac_high, bd_high, 0, 4, 1, 5);
    *(four *)(to + 3 * to_row) = pick(ac_high, bd_high, 2, 6, 3, 7);
}

INLINE void turn(const int rows, const int columns, const real *from, int64_t row, int64_t column,
                 real *to)
{
    if (column == 1 && rows % 4 == 0 && columns % 4 == 0) {
        for (int r = 0; r < rows; r += 4)
            for (int x = 0; x < columns; x += 4)
                turn_four(from + r * row + x, row, to + x * rows + r, rows);
        return;
    }
    for (int r = 0; r < rows; r++)
        for (int x = 0; x < columns; x++) to[x * rows + r] = from[r * row + x * column];
}

// --- products -----------------------------------------------------------------------------------

#if defined(__AVX512F__)
#define VECTOR 64
#define VECTORS 4  // side by side in one block of sums, which stays in registers
#elif defined(__AVX2__)
#define VECTOR 32
#define VECTORS 2
#else
#define VECTOR 16
#define VECTORS 4
#endif
#define ROWS 6  // of a block of sums that is as wide as can be
#define LANES (VECTOR / (int)sizeof(real))
typedef real vector __attribute__((vector_size(VECTOR), aligned(sizeof(real)), may_alias));

// The block of rows and vectors whose sums stay in registers, a function for each of its sizes.
INLINE void sum_block(const int rows, const int vectors, int inner, const real *a, int64_t a_row,
                      int64_t a_inner, const real *b, int64_t b_step, real *out, int64_t out_step,
                      int adds)
{
    vector sums[8][4];
    _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)
        _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++) {
            const vector *before = (const vector *)(out + i * out_step + j * LANES);
            sums[i][j] = adds ? *before : (vector){0};
        }
    for (int k = 0; k < inner; k++) {
        vector own[4];
        _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)
            own[j] = *(const vector *)(b + k * b_step + j * LANES);
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {
            const real x = a[i * a_row + k * a_inner];
            _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++) sums[i][j] += x * own[j];
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)
        _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)
            *(vector *)(out + i * out_step + j * LANES) = sums[i][j];
}

#define BLOCK_OF(rows, vectors) \
    static __attribute__((noinline)) void blocks_##rows##_##vectors( \
        int count, int inner, const real *a, int64_t a_row, int64_t a_inner, const real *b, \
        int64_t b_step, real *out, int64_t out_step, int adds) \
    { \
        for (int at = 0; at < count; at++, a += rows * a_row, out += rows * out_step) \
            sum_block(rows, vectors, inner, a, a_row, a_inner, b, b_step, out, out_step, adds); \
    }
#define BLOCKS_OF(rows) BLOCK_OF(rows, 1) BLOCK_OF(rows, 2) BLOCK_OF(rows, 4)
BLOCKS_OF(1) BLOCKS_OF(2) BLOCKS_OF(3) BLOCKS_OF(4)
BLOCKS_OF(5) BLOCKS_OF(6) BLOCKS_OF(7) BLOCKS_OF(8)

typedef void Blocks(int, int, const real *, int64_t, int64_t, const real *, int64_t, real *,
                    int64_t, int);

INLINE Blocks *blocks_of(const int rows, const int vectors)
{
#define CHOOSE(rows) \
    vectors == 4 ? blocks_##rows##_4 : vectors == 2 ? blocks_##rows##_2 : blocks_##rows##_1
    switch (rows) {
        case 1: return CHOOSE(1);
        case 2: return CHOOSE(2);
        case 3: return CHOOSE(3);
        case 4: return CHOOSE(4);
        case 5: return CHOOSE(5);
        case 6: return CHOOSE(6);
        case 7: return CHOOSE(7);
        default: return CHOOSE(8);
    }
}

INLINE void multiply_columns(const int vectors, const int rows, const int inner, const real *a,
                             int64_t a_row, int64_t a_inner, const real *b, int64_t b_step,
                             real *out, int64_t out_step, const int adds)
{
    const int most = smaller(ROWS * VECTORS / vectors, 8);
    const int blocks = ceil_div(rows, most), each = rows / blocks, wide = rows % blocks;
    const int rest = wide * (each + 1);
    if (wide)
        blocks_of(each + 1, vectors)(wide, inner, a, a_row, a_inner, b, b_step, out, out_step,
                                     adds);
    blocks_of(each, vectors)(blocks - wide, inner, a + rest * a_row, a_row, a_inner, b, b_step,
                             out + rest * out_step, out_step, adds);
}

// out[i][j] = sum over k of a[i][k] b[k][j], or added to it: [rows, inner] by [inner, columns], of
// which `columns` is a multiple of LANES and lies side by side in b and out.
INLINE void multiply(const int rows, const int inner, const int columns, const real *a,
                     int64_t a_row, int64_t a_inner, const real *b, int64_t b_step, real *out,
                     int64_t out_step, const int adds)
{
    int j = 0;
    for (; j + VECTORS * LANES <= columns; j += VECTORS * LANES)
        multiply_columns(VECTORS, rows, inner, a, a_row, a_inner, b + j, b_step, out + j,
                         out_step, adds);
    for (; VECTORS > 2 && j + 2 * LANES <= columns; j += 2 * LANES)
        multiply_columns(2, rows, inner, a, a_row, a_inner, b + j, b_step, out + j, out_step, adds);
    for (; j + LANES <= columns; j += LANES)
        multiply_columns(1, rows, inner, a, a_row, a_inner, b + j, b_step, out + j, out_step, adds);
}

// --- products of masked tiles -------------------------------------------------------------------

// What LANES rows, or keys, relate to at all: [first, end) of the others of the tile.
typedef struct { int first, end; } Span;

INLINE Span with_span(Span before, int at) { return (Span){smaller(before.first, at), at + 1}; }

// Numbers of pairs, [others, lanes]: beyond the spans there is nothing to know. Without spans all.
INLINE void multiply_pairs(const Span *spans, const int others, const int inner, const int lanes,
                           const real *a, int64_t a_row, int64_t a_inner, const real *b,
                           int64_t b_step, real *out, int64_t out_step, const int adds)
{
    if (!spans) {
        multiply(others, inner, lanes, a, a_row, a_inner, b, b_step, out, out_step, adds);
        return;
    }
    for (int at = 0; at < lanes / LANES; at++, b += LANES, out += LANES) {
        const int first = spans[at].first, end = spans[at].end;
        for (int c = 0; c < others && !adds; c++)
            if (c < first || c >= end) *(vector *)(out + c * out_step) = (vector){0};
        if (first < end)
            multiply_columns(1, end - first, inner, a + first * a_row, a_row, a_inner, b, b_step,
                             out + first * out_step, out_step, adds);
    }
}

// Sums for lanes over the others, of numbers of pairs that are 0 beyond the spans.
INLINE void multiply_lanes(const Span *spans, const int lanes, const int others, const int columns,
                           const real *a, int64_t a_row, int64_t a_inner, const real *b,
                           int64_t b_step, real *out, int64_t out_step)
{
    if (!spans) {
        multiply(lanes, others, columns, a, a_row, a_inner, b, b_step, out, out_step, 1);
        return;
    }
    for (int at = 0; at < lanes / LANES; at++, a += LANES * a_row, out += LANES * out_step) {
        const int first = spans[at].first, end = spans[at].end;
        if (first < end)
            multiply(LANES, end - first, columns, a + first * a_inner, a_row, a_inner,
                     b + first * b_step, b_step, out, out_step, 1);
    }
}

// Sums for the others over lanes.
INLINE void multiply_others(const Span *spans, const int others, const int lanes, const int columns,
                            const real *a, int64_t a_row, int64_t a_inner, const real *b,
                            int64_t b_step, real *out, int64_t out_step)
{
    if (!spans) {
        multiply(others, lanes, columns, a, a_row, a_inner, b, b_step, out, out_step, 1);
        return;
    }
    for (int at = 0; at < lanes / LANES; at++, a += LANES * a_inner, b += LANES * b_step) {
        const int first = spans[at].first, end = spans[at].end;
        if (first < end)
            multiply(end - first, LANES, columns, a + first * a_row, a_row, a_inner, b, b_step,
                     out + first * out_step, out_step, 1);
    }
}
"""

_C_KERNELS = {
    "_far_forward_kernel": _CKernel(
        "_far_forward_kernel",
        (
            "q_ptr k_of_key_ptr v_of_key_ptr out_ptr lse_ptr residual_ptr q_start_ptr "
            "kv_lengths_ptr q_strides k_of_key_strides v_of_key_strides n m k_start "
            "scale_log2 GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "out_ptr lse_ptr residual_ptr",
        r"""
INLINE void far_forward_tile(real *restrict peak, real *restrict rows,
        real (*restrict total)[BLOCK_E], const Rows q, const real (*restrict q_turned)[BLOCK_M],
        k_of_key_type *k_of_key_ptr, v_of_key_type *v_of_key_ptr, int64_t k_of_key_stride,
        int64_t v_of_key_stride, int *restrict i, int column, int k_start, int low, int high,
        real scale_log2, int D, int E, const int MASKED)
{
    int visible[BLOCK_N];
    int j[BLOCK_N];
    Rows k_of_key;
    real k_of_key_room[BLOCK_N][BLOCK_D];
    real dot_qk_of_key[BLOCK_N][BLOCK_M];
    real exponent[BLOCK_N][BLOCK_M];
    real old_peak[BLOCK_M];
    real largest[BLOCK_M];
    real shrink[BLOCK_M];
    real weight[BLOCK_N][BLOCK_M];
    real rows_sum[BLOCK_M];
    Rows v_of_key;
    real v_of_key_room[BLOCK_N][BLOCK_E];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const int column_lanes = column + c;
        visible[c] = (column_lanes >= low) & (column_lanes < high);
        j[c] = k_start + column_lanes;
    }
    k_of_key = load_rows(k_of_key_type, &k_of_key_room[0][0], k_of_key_ptr, k_of_key_stride, MASKED
            ? visible : NULL, BLOCK_N, D, BLOCK_D);
    Span spans[BLOCK_M / LANES];
    for (int group = 0; MASKED && group < BLOCK_M / LANES; group++) {
        spans[group] = (Span){BLOCK_N, 0};
        for (int c = 0; c < BLOCK_N; c++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int r = group * LANES; r < (group + 1) * LANES; r++)
                some |= ((16 * j[c] + 32 - 1 <= i[r]) & visible[c]);
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_D, BLOCK_M, k_of_key.at, k_of_key.step, 1,
            &q_turned[0][0], BLOCK_M, &dot_qk_of_key[0][0], BLOCK_M, 0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            int related = 0;
            if (MASKED) related = (16 * j[c] + 32 - 1 <= i[r]) & visible[c];
            exponent[c][r] = scale_log2 * dot_qk_of_key[c][r];
            if (MASKED) exponent[c][r] = related ? exponent[c][r] : -INFINITY;
        }
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        old_peak[r] = peak[r];
    for (int r = 0; r < BLOCK_M; r++)
        largest[r] = -INFINITY;
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            largest[r] = larger(largest[r], exponent[c][r]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        peak[r] = larger(peak[r], largest[r]);
        shrink[r] = exp2_of(old_peak[r] - peak[r]);
    }
    for (int r = 0; r < BLOCK_M; r++)
        rows_sum[r] = R(0.0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            weight[c][r] = exp2_of(exponent[c][r] - peak[r]);
            rows_sum[r] += weight[c][r];
        }
    }
    v_of_key = load_rows(v_of_key_type, &v_of_key_room[0][0], v_of_key_ptr, v_of_key_stride, MASKED
            ? visible : NULL, BLOCK_N, E, BLOCK_E);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        rows[r] = rows[r] * shrink[r] + rows_sum[r];
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            total[r][x] = total[r][x] * shrink[r];
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_E, &weight[0][0], 1, BLOCK_M,
            v_of_key.at, v_of_key.step, &total[0][0], BLOCK_E);
}

static void far_forward_kernel(const Grid program, const Grid programs, q_type *q_ptr,
        k_of_key_type *k_of_key_ptr, v_of_key_type *v_of_key_ptr, out_type *out_ptr,
        lse_type *lse_ptr, residual_type *residual_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_strides, const int64_t *k_of_key_strides,
        const int64_t *v_of_key_strides, int n, int m, int k_start, real scale_log2, int GROUP,
        int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real q_turned[BLOCK_D][BLOCK_M];
    int i[BLOCK_M];
    real peak[BLOCK_M];
    real rows[BLOCK_M];
    real total[BLOCK_M][BLOCK_E];
    int tile;
    real out[BLOCK_M][BLOCK_E];
    real lse[BLOCK_M];
    real residual[BLOCK_M][BLOCK_E];
    // first row of the tile
    int row = program.x * BLOCK_M;
    int head = program.y;
    int batch = program.z;
    int heads = programs.y;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        row_lanes[r] = row + r;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    q_ptr = q_ptr + ((int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1]);
    q_ptr = q_ptr + (int64_t)row * q_strides[2];
    k_of_key_ptr = k_of_key_ptr + ((int64_t)batch * k_of_key_strides[0] + (int64_t)(head / GROUP)
            * k_of_key_strides[1]);
    v_of_key_ptr = v_of_key_ptr + ((int64_t)batch * v_of_key_strides[0] + (int64_t)(head / GROUP)
            * v_of_key_strides[1]);
    int64_t k_of_key_step = k_of_key_strides[2] * BLOCK_N;
    int64_t v_of_key_step = v_of_key_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        visible[r] = row_lanes[r] < n;
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, q.at, q.step, 1, &q_turned[0][0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        i[r] = q_start + row_lanes[r];
    // Positions of the tile's first and last row; [low, high) are the keys that it may see.
    int first = q_start + row;
    int last = first + smaller(BLOCK_M, n - row) - 1;
    int low = 0;
    int high = smaller(floor_div(last + 1, 16) - 1 - k_start, keys);
    int t0 = low / BLOCK_N;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_N), t0);
    int full_low = 0;
    int full_high = smaller(floor_div(first + 1, 16) - 1 - k_start, keys);
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_N), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_N, f0), t1);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        peak[r] = -R(3.4028234663852886e+38);
        rows[r] = 0;
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            total[r][x] = 0;
    }
    for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
        tile = t0 + step;
        tile = tile < f0 ? tile : tile + (f1 - f0);
        far_forward_tile(peak, rows, total, q, q_turned, k_of_key_ptr + tile * k_of_key_step,
                v_of_key_ptr + tile * v_of_key_step, k_of_key_strides[2], v_of_key_strides[2], i,
                tile * BLOCK_N, k_start, low, high, scale_log2, D, E, 1);
    }
    for (int tile = f0; tile < f1; tile++) {
        far_forward_tile(peak, rows, total, q, q_turned, k_of_key_ptr + tile * k_of_key_step,
                v_of_key_ptr + tile * v_of_key_step, k_of_key_strides[2], v_of_key_strides[2], i,
                tile * BLOCK_N, k_start, low, high, scale_log2, D, E, 0);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            out[r][x] = total[r][x] * inverse_of(rows[r]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        lse[r] = R(0.6931471805599453) * peak[r] + log_or_none_of(rows[r]);
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        out_type *to = out_ptr + first_vector * E + (int64_t)r * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(out_type, to[x], out[r][x]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        if (visible[r]) put(lse_type, (lse_ptr + first_vector)[r], lse[r]);
    // what rounding takes from `out`, for backward
    if (residual_ptr != NULL) {
        for (int r = 0; r < BLOCK_M; r++) {
            #pragma omp simd
            for (int x = 0; x < BLOCK_E; x++)
                residual[r][x] = out[r][x] - rounded(out_type, out[r][x]);
        }
        for (int r = 0; r < BLOCK_M; r++) {
            if (!(visible[r])) continue;
            residual_type *to = residual_ptr + first_vector * E + (int64_t)r * (E);
            #pragma omp simd
            for (int x = 0; x < E; x++)
                put(residual_type, to[x], residual[r][x]);
        }
    }
}

void run(const Grid programs, const int threads, const int share, q_type *q_ptr,
        k_of_key_type *k_of_key_ptr, v_of_key_type *v_of_key_ptr, out_type *out_ptr,
        lse_type *lse_ptr, residual_type *residual_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_strides, const int64_t *k_of_key_strides,
        const int64_t *v_of_key_strides, int n, int m, int k_start, double scale_log2, int GROUP,
        int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            far_forward_kernel((Grid){x, y, z}, programs, q_ptr, k_of_key_ptr, v_of_key_ptr,
                    out_ptr, lse_ptr, residual_ptr, q_start_ptr, kv_lengths_ptr, q_strides,
                    k_of_key_strides, v_of_key_strides, n, m, k_start, scale_log2, GROUP, D, E);
}
""",
    ),
    "_far_backward_columns_kernel": _CKernel(
        "_far_backward_columns_kernel",
        (
            "k_of_key_ptr v_of_key_ptr q_ptr d_out_ptr lse_ptr delta_ptr d_k_of_key_ptr "
            "d_v_of_key_ptr q_start_ptr kv_lengths_ptr k_of_key_strides v_of_key_strides "
            "q_strides d_out_strides n m k_start d_dot_factor scale_log2 GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "d_k_of_key_ptr d_v_of_key_ptr",
        r"""
INLINE void far_backward_columns_tile(real (*restrict d_v_of_key)[BLOCK_E],
        real (*restrict d_k_of_key_total)[BLOCK_D], const Rows k_of_key,
        const real (*restrict k_of_key_turned)[BLOCK_N], const Rows v_of_key,
        const real (*restrict v_of_key_turned)[BLOCK_N], q_type *q_ptr, d_out_type *d_out_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, int64_t q_stride, int64_t d_out_stride,
        int *restrict j, int row, int q_start, int n, real scale_log2, int D, int E,
        const int MASKED)
{
    int visible[BLOCK_M];
    int i[BLOCK_M];
    real lse_2[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real dot_qk_of_key[BLOCK_M][BLOCK_N];
    int related[BLOCK_M][BLOCK_N];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_share[BLOCK_M][BLOCK_N];
    delta_value delta[BLOCK_M];
    real weight[BLOCK_M][BLOCK_N];
    real d_exponent[BLOCK_M][BLOCK_N];
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        const int row_lanes = row + r;
        visible[r] = row_lanes < n;
        i[r] = q_start + row_lanes;
        lse_value lse = (!MASKED || visible[r]) ? number_of(lse_ptr[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_stride, MASKED ? visible : NULL, BLOCK_M, D,
            BLOCK_D);
    Span spans[BLOCK_N / LANES];
    for (int group = 0; MASKED && group < BLOCK_N / LANES; group++) {
        spans[group] = (Span){BLOCK_M, 0};
        for (int r = 0; r < BLOCK_M; r++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int c = group * LANES; c < (group + 1) * LANES; c++)
                some |= 16 * j[c] + 32 - 1 <= i[r];
            if (some) spans[group] = with_span(spans[group], r);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_D, BLOCK_N, q.at, q.step, 1,
            &k_of_key_turned[0][0], BLOCK_N, &dot_qk_of_key[0][0], BLOCK_N, 0);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_stride, MASKED ? visible
            : NULL, BLOCK_M, E, BLOCK_E);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++)
            if (MASKED) related[r][c] = 16 * j[c] + 32 - 1 <= i[r];
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_E, BLOCK_N, d_out.at, d_out.step, 1,
            &v_of_key_turned[0][0], BLOCK_N, &d_share[0][0], BLOCK_N, 0);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        delta[r] = (!MASKED || visible[r]) ? number_of(delta_ptr[r]) : R(0.0);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++) {
            const real d_weight = d_share[r][c] - delta[r];
            real exponent = scale_log2 * dot_qk_of_key[r][c];
            if (MASKED) exponent = related[r][c] ? exponent : -INFINITY;
            weight[r][c] = exp2_of(exponent - lse_2[r]);
            d_exponent[r][c] = d_weight * weight[r][c];
        }
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_E, &weight[0][0], 1, BLOCK_N,
            d_out.at, d_out.step, &d_v_of_key[0][0], BLOCK_E);
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_D, &d_exponent[0][0], 1, BLOCK_N,
            q.at, q.step, &d_k_of_key_total[0][0], BLOCK_D);
}

static void far_backward_columns_kernel(const Grid program, const Grid programs,
        k_of_key_type *k_of_key_ptr, v_of_key_type *v_of_key_ptr, q_type *q_ptr,
        d_out_type *d_out_ptr, lse_type *lse_ptr, delta_type *delta_ptr,
        d_k_of_key_type *d_k_of_key_ptr, d_v_of_key_type *d_v_of_key_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides,
        const int64_t *v_of_key_strides, const int64_t *q_strides, const int64_t *d_out_strides,
        int n, int m, int k_start, real d_dot_factor, real scale_log2, int GROUP, int D, int E)
{
    int column_lanes[BLOCK_N];
    int seen[BLOCK_N];
    Rows k_of_key;
    real k_of_key_room[BLOCK_N][BLOCK_D];
    real k_of_key_turned[BLOCK_D][BLOCK_N];
    Rows v_of_key;
    real v_of_key_room[BLOCK_N][BLOCK_E];
    real v_of_key_turned[BLOCK_E][BLOCK_N];
    int j[BLOCK_N];
    real d_v_of_key[BLOCK_N][BLOCK_E];
    real d_k_of_key_total[BLOCK_N][BLOCK_D];
    int tile;
    real d_k_of_key[BLOCK_N][BLOCK_D];
    // first key of the tile
    int column = program.x * BLOCK_N;
    int kv_head = program.y;
    int batch = program.z;
    int kv_heads = programs.y;
    int heads = kv_heads * GROUP;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        column_lanes[c] = column + c;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    k_of_key_ptr = k_of_key_ptr + ((int64_t)batch * k_of_key_strides[0] + (int64_t)kv_head
            * k_of_key_strides[1]);
    k_of_key_ptr = k_of_key_ptr + (int64_t)column * k_of_key_strides[2];
    v_of_key_ptr = v_of_key_ptr + ((int64_t)batch * v_of_key_strides[0] + (int64_t)kv_head
            * v_of_key_strides[1]);
    v_of_key_ptr = v_of_key_ptr + (int64_t)column * v_of_key_strides[2];
    int64_t q_step = q_strides[2] * BLOCK_M;
    int64_t d_out_step = d_out_strides[2] * BLOCK_M;
    int64_t first_vector = ((int64_t)batch * kv_heads + kv_head) * m + column;
    // Keys that no row can see are not read, and their gradients are 0.
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        seen[c] = column_lanes[c] < keys;
    k_of_key = load_rows(k_of_key_type, &k_of_key_room[0][0], k_of_key_ptr, k_of_key_strides[2],
            seen, BLOCK_N, D, BLOCK_D);
    turn(BLOCK_N, BLOCK_D, k_of_key.at, k_of_key.step, 1, &k_of_key_turned[0][0]);
    v_of_key = load_rows(v_of_key_type, &v_of_key_room[0][0], v_of_key_ptr, v_of_key_strides[2],
            seen, BLOCK_N, E, BLOCK_E);
    turn(BLOCK_N, BLOCK_E, v_of_key.at, v_of_key.step, 1, &v_of_key_turned[0][0]);
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        j[c] = k_start + column_lanes[c];
    // Positions of the tile's first and last key; [low, high) are the rows that may see it.
    int first = k_start + column;
    int last = first + smaller(BLOCK_N, keys - column) - 1;
    int in_rows = column < keys ? n : 0;
    int low = larger(16 * first + 31 - q_start, 0);
    int high = in_rows;
    int t0 = low / BLOCK_M;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_M), t0);
    int full_low = larger(16 * last + 31 - q_start, 0);
    int full_high = in_rows;
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_M), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_M, f0), t1);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            d_v_of_key[c][x] = 0;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            d_k_of_key_total[c][x] = 0;
    }
    for (int head = kv_head * GROUP; head < kv_head * GROUP + GROUP; head++) {
        q_type *q_head_ptr = q_ptr + (int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1];
        d_out_type *d_out_head_ptr = d_out_ptr + (int64_t)batch * d_out_strides[0] + (int64_t)head
                * d_out_strides[1];
        int64_t statistics = ((int64_t)batch * heads + head) * n;
        for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
            tile = t0 + step;
            tile = tile < f0 ? tile : tile + (f1 - f0);
            far_backward_columns_tile(d_v_of_key, d_k_of_key_total, k_of_key, k_of_key_turned,
                    v_of_key, v_of_key_turned, q_head_ptr + tile * q_step, d_out_head_ptr + tile
                    * d_out_step, lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics
                    + tile * BLOCK_M, q_strides[2], d_out_strides[2], j, tile * BLOCK_M, q_start, n,
                    scale_log2, D, E, 1);
        }
        for (int tile = f0; tile < f1; tile++) {
            far_backward_columns_tile(d_v_of_key, d_k_of_key_total, k_of_key, k_of_key_turned,
                    v_of_key, v_of_key_turned, q_head_ptr + tile * q_step, d_out_head_ptr + tile
                    * d_out_step, lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics
                    + tile * BLOCK_M, q_strides[2], d_out_strides[2], j, tile * BLOCK_M, q_start, n,
                    scale_log2, D, E, 0);
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            d_k_of_key[c][x] = d_k_of_key_total[c][x] * d_dot_factor;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        d_k_of_key_type *to = d_k_of_key_ptr + first_vector * D + (int64_t)c * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(d_k_of_key_type, to[x], seen[c] ? d_k_of_key[c][x] : R(0.0));
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        d_v_of_key_type *to = d_v_of_key_ptr + first_vector * E + (int64_t)c * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(d_v_of_key_type, to[x], seen[c] ? d_v_of_key[c][x] : R(0.0));
    }
}

void run(const Grid programs, const int threads, const int share, k_of_key_type *k_of_key_ptr,
        v_of_key_type *v_of_key_ptr, q_type *q_ptr, d_out_type *d_out_ptr, lse_type *lse_ptr,
        delta_type *delta_ptr, d_k_of_key_type *d_k_of_key_ptr, d_v_of_key_type *d_v_of_key_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides,
        const int64_t *v_of_key_strides, const int64_t *q_strides, const int64_t *d_out_strides,
        int n, int m, int k_start, double d_dot_factor, double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            far_backward_columns_kernel((Grid){x, y, z}, programs, k_of_key_ptr, v_of_key_ptr,
                    q_ptr, d_out_ptr, lse_ptr, delta_ptr, d_k_of_key_ptr, d_v_of_key_ptr,
                    q_start_ptr, kv_lengths_ptr, k_of_key_strides, v_of_key_strides, q_strides,
                    d_out_strides, n, m, k_start, d_dot_factor, scale_log2, GROUP, D, E);
}
""",
    ),
    "_far_backward_rows_kernel": _CKernel(
        "_far_backward_rows_kernel",
        (
            "q_ptr d_out_ptr k_of_key_ptr v_of_key_ptr lse_ptr delta_ptr dq_ptr q_start_ptr "
            "kv_lengths_ptr q_strides d_out_strides k_of_key_strides v_of_key_strides n m "
            "k_start d_dot_factor scale_log2 GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "dq_ptr",
        r"""
INLINE void far_backward_rows_tile(real (*restrict dq_total)[BLOCK_D], const Rows q,
        const real (*restrict q_turned)[BLOCK_M], const Rows d_out,
        const real (*restrict d_out_turned)[BLOCK_M], delta_value *restrict delta,
        real *restrict lse_2, k_of_key_type *k_of_key_ptr, v_of_key_type *v_of_key_ptr,
        int64_t k_of_key_stride, int64_t v_of_key_stride, int *restrict i, int column, int k_start,
        int low, int high, real scale_log2, int D, int E, const int MASKED)
{
    int visible[BLOCK_N];
    int j[BLOCK_N];
    Rows k_of_key;
    real k_of_key_room[BLOCK_N][BLOCK_D];
    real dot_qk_of_key[BLOCK_N][BLOCK_M];
    int related[BLOCK_N][BLOCK_M];
    Rows v_of_key;
    real v_of_key_room[BLOCK_N][BLOCK_E];
    real d_share[BLOCK_N][BLOCK_M];
    real d_exponent[BLOCK_N][BLOCK_M];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const int column_lanes = column + c;
        visible[c] = (column_lanes >= low) & (column_lanes < high);
        j[c] = k_start + column_lanes;
    }
    k_of_key = load_rows(k_of_key_type, &k_of_key_room[0][0], k_of_key_ptr, k_of_key_stride, MASKED
            ? visible : NULL, BLOCK_N, D, BLOCK_D);
    Span spans[BLOCK_M / LANES];
    for (int group = 0; MASKED && group < BLOCK_M / LANES; group++) {
        spans[group] = (Span){BLOCK_N, 0};
        for (int c = 0; c < BLOCK_N; c++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int r = group * LANES; r < (group + 1) * LANES; r++)
                some |= ((16 * j[c] + 32 - 1 <= i[r]) & visible[c]);
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_D, BLOCK_M, k_of_key.at, k_of_key.step, 1,
            &q_turned[0][0], BLOCK_M, &dot_qk_of_key[0][0], BLOCK_M, 0);
    v_of_key = load_rows(v_of_key_type, &v_of_key_room[0][0], v_of_key_ptr, v_of_key_stride, MASKED
            ? visible : NULL, BLOCK_N, E, BLOCK_E);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            if (MASKED) related[c][r] = (16 * j[c] + 32 - 1 <= i[r]) & visible[c];
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_E, BLOCK_M, v_of_key.at, v_of_key.step, 1,
            &d_out_turned[0][0], BLOCK_M, &d_share[0][0], BLOCK_M, 0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            const real d_weight = d_share[c][r] - delta[r];
            real exponent = scale_log2 * dot_qk_of_key[c][r];
            if (MASKED) exponent = related[c][r] ? exponent : -INFINITY;
            const real weight = exp2_of(exponent - lse_2[r]);
            d_exponent[c][r] = d_weight * weight;
        }
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_D, &d_exponent[0][0], 1, BLOCK_M,
            k_of_key.at, k_of_key.step, &dq_total[0][0], BLOCK_D);
}

static void far_backward_rows_kernel(const Grid program, const Grid programs, q_type *q_ptr,
        d_out_type *d_out_ptr, k_of_key_type *k_of_key_ptr, v_of_key_type *v_of_key_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dq_type *dq_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_strides, const int64_t *d_out_strides,
        const int64_t *k_of_key_strides, const int64_t *v_of_key_strides, int n, int m, int k_start,
        real d_dot_factor, real scale_log2, int GROUP, int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real q_turned[BLOCK_D][BLOCK_M];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_out_turned[BLOCK_E][BLOCK_M];
    delta_value delta[BLOCK_M];
    int i[BLOCK_M];
    real lse_2[BLOCK_M];
    real dq_total[BLOCK_M][BLOCK_D];
    int tile;
    real dq[BLOCK_M][BLOCK_D];
    // first row of the tile
    int row = program.x * BLOCK_M;
    int head = program.y;
    int batch = program.z;
    int heads = programs.y;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        row_lanes[r] = row + r;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    q_ptr = q_ptr + ((int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1]);
    q_ptr = q_ptr + (int64_t)row * q_strides[2];
    d_out_ptr = d_out_ptr + ((int64_t)batch * d_out_strides[0] + (int64_t)head * d_out_strides[1]);
    d_out_ptr = d_out_ptr + (int64_t)row * d_out_strides[2];
    k_of_key_ptr = k_of_key_ptr + ((int64_t)batch * k_of_key_strides[0] + (int64_t)(head / GROUP)
            * k_of_key_strides[1]);
    v_of_key_ptr = v_of_key_ptr + ((int64_t)batch * v_of_key_strides[0] + (int64_t)(head / GROUP)
            * v_of_key_strides[1]);
    int64_t k_of_key_step = k_of_key_strides[2] * BLOCK_N;
    int64_t v_of_key_step = v_of_key_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        visible[r] = row_lanes[r] < n;
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, q.at, q.step, 1, &q_turned[0][0]);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_strides[2], visible, BLOCK_M,
            E, BLOCK_E);
    turn(BLOCK_M, BLOCK_E, d_out.at, d_out.step, 1, &d_out_turned[0][0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        lse_value lse = visible[r] ? number_of((lse_ptr + first_vector)[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        delta[r] = visible[r] ? number_of((delta_ptr + first_vector)[r]) : R(0.0);
        i[r] = q_start + row_lanes[r];
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    // Positions of the tile's first and last row; [low, high) are the keys that it may see.
    int first = q_start + row;
    int last = first + smaller(BLOCK_M, n - row) - 1;
    int low = 0;
    int high = smaller(floor_div(last + 1, 16) - 1 - k_start, keys);
    int t0 = low / BLOCK_N;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_N), t0);
    int full_low = 0;
    int full_high = smaller(floor_div(first + 1, 16) - 1 - k_start, keys);
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_N), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_N, f0), t1);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            dq_total[r][x] = 0;
    }
    for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
        tile = t0 + step;
        tile = tile < f0 ? tile : tile + (f1 - f0);
        far_backward_rows_tile(dq_total, q, q_turned, d_out, d_out_turned, delta, lse_2,
                k_of_key_ptr + tile * k_of_key_step, v_of_key_ptr + tile * v_of_key_step,
                k_of_key_strides[2], v_of_key_strides[2], i, tile * BLOCK_N, k_start, low, high,
                scale_log2, D, E, 1);
    }
    for (int tile = f0; tile < f1; tile++) {
        far_backward_rows_tile(dq_total, q, q_turned, d_out, d_out_turned, delta, lse_2,
                k_of_key_ptr + tile * k_of_key_step, v_of_key_ptr + tile * v_of_key_step,
                k_of_key_strides[2], v_of_key_strides[2], i, tile * BLOCK_N, k_start, low, high,
                scale_log2, D, E, 0);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            dq[r][x] = dq_total[r][x] * d_dot_factor;
    }
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        dq_type *to = dq_ptr + first_vector * D + (int64_t)r * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(dq_type, to[x], dq[r][x]);
    }
}

void run(const Grid programs, const int threads, const int share, q_type *q_ptr,
        d_out_type *d_out_ptr, k_of_key_type *k_of_key_ptr, v_of_key_type *v_of_key_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dq_type *dq_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_strides, const int64_t *d_out_strides,
        const int64_t *k_of_key_strides, const int64_t *v_of_key_strides, int n, int m, int k_start,
        double d_dot_factor, double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            far_backward_rows_kernel((Grid){x, y, z}, programs, q_ptr, d_out_ptr, k_of_key_ptr,
                    v_of_key_ptr, lse_ptr, delta_ptr, dq_ptr, q_start_ptr, kv_lengths_ptr,
                    q_strides, d_out_strides, k_of_key_strides, v_of_key_strides, n, m, k_start,
                    d_dot_factor, scale_log2, GROUP, D, E);
}
""",
    ),
    "_far_backward_at_once_kernel": _CKernel(
        "_far_backward_at_once_kernel",
        (
            "k_of_key_ptr v_of_key_ptr q_ptr d_out_ptr dq_total_ptr lse_ptr delta_ptr "
            "d_k_of_key_ptr d_v_of_key_ptr q_start_ptr kv_lengths_ptr k_of_key_strides "
            "v_of_key_strides q_strides d_out_strides dq_total_strides n m k_start "
            "d_dot_factor scale_log2 GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "d_k_of_key_ptr d_v_of_key_ptr",
        r"""
INLINE void far_backward_at_once_tile(real (*restrict d_v_of_key)[BLOCK_E],
        real (*restrict d_k_of_key_total)[BLOCK_D], const Rows k_of_key,
        const real (*restrict k_of_key_turned)[BLOCK_N], const Rows v_of_key,
        const real (*restrict v_of_key_turned)[BLOCK_N], q_type *q_ptr, d_out_type *d_out_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dq_total_type *dq_total_ptr, int64_t q_stride,
        int64_t d_out_stride, int64_t dq_total_stride, int *restrict j, int row, int q_start, int n,
        real scale_log2, int D, int E, const int MASKED)
{
    int visible[BLOCK_M];
    int i[BLOCK_M];
    real lse_2[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real dot_qk_of_key[BLOCK_M][BLOCK_N];
    int related[BLOCK_M][BLOCK_N];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_share[BLOCK_M][BLOCK_N];
    delta_value delta[BLOCK_M];
    real weight[BLOCK_M][BLOCK_N];
    real d_exponent[BLOCK_M][BLOCK_N];
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        const int row_lanes = row + r;
        visible[r] = row_lanes < n;
        i[r] = q_start + row_lanes;
        lse_value lse = (!MASKED || visible[r]) ? number_of(lse_ptr[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_stride, MASKED ? visible : NULL, BLOCK_M, D,
            BLOCK_D);
    Span spans[BLOCK_N / LANES];
    for (int group = 0; MASKED && group < BLOCK_N / LANES; group++) {
        spans[group] = (Span){BLOCK_M, 0};
        for (int r = 0; r < BLOCK_M; r++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int c = group * LANES; c < (group + 1) * LANES; c++)
                some |= 16 * j[c] + 32 - 1 <= i[r];
            if (some) spans[group] = with_span(spans[group], r);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_D, BLOCK_N, q.at, q.step, 1,
            &k_of_key_turned[0][0], BLOCK_N, &dot_qk_of_key[0][0], BLOCK_N, 0);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_stride, MASKED ? visible
            : NULL, BLOCK_M, E, BLOCK_E);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++)
            if (MASKED) related[r][c] = 16 * j[c] + 32 - 1 <= i[r];
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_E, BLOCK_N, d_out.at, d_out.step, 1,
            &v_of_key_turned[0][0], BLOCK_N, &d_share[0][0], BLOCK_N, 0);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        delta[r] = (!MASKED || visible[r]) ? number_of(delta_ptr[r]) : R(0.0);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++) {
            const real d_weight = d_share[r][c] - delta[r];
            real exponent = scale_log2 * dot_qk_of_key[r][c];
            if (MASKED) exponent = related[r][c] ? exponent : -INFINITY;
            weight[r][c] = exp2_of(exponent - lse_2[r]);
            d_exponent[r][c] = d_weight * weight[r][c];
        }
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_E, &weight[0][0], 1, BLOCK_N,
            d_out.at, d_out.step, &d_v_of_key[0][0], BLOCK_E);
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_D, &d_exponent[0][0], 1, BLOCK_N,
            q.at, q.step, &d_k_of_key_total[0][0], BLOCK_D);
    multiply_others(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_D, &d_exponent[0][0], BLOCK_N, 1,
            k_of_key.at, k_of_key.step, dq_total_ptr, dq_total_stride);
}

static void far_backward_at_once_kernel(const Grid program, const Grid programs,
        k_of_key_type *k_of_key_ptr, v_of_key_type *v_of_key_ptr, q_type *q_ptr,
        d_out_type *d_out_ptr, dq_total_type *dq_total_ptr, lse_type *lse_ptr,
        delta_type *delta_ptr, d_k_of_key_type *d_k_of_key_ptr, d_v_of_key_type *d_v_of_key_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides,
        const int64_t *v_of_key_strides, const int64_t *q_strides, const int64_t *d_out_strides,
        const int64_t *dq_total_strides, int n, int m, int k_start, real d_dot_factor,
        real scale_log2, int GROUP, int D, int E)
{
    int column_lanes[BLOCK_N];
    int seen[BLOCK_N];
    Rows k_of_key;
    real k_of_key_room[BLOCK_N][BLOCK_D];
    real k_of_key_turned[BLOCK_D][BLOCK_N];
    Rows v_of_key;
    real v_of_key_room[BLOCK_N][BLOCK_E];
    real v_of_key_turned[BLOCK_E][BLOCK_N];
    int j[BLOCK_N];
    real d_v_of_key[BLOCK_N][BLOCK_E];
    real d_k_of_key_total[BLOCK_N][BLOCK_D];
    int tile;
    real d_k_of_key[BLOCK_N][BLOCK_D];
    // first key of the tile
    int column = program.x * BLOCK_N;
    int kv_head = program.y;
    int batch = program.z;
    int kv_heads = programs.y;
    int heads = kv_heads * GROUP;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        column_lanes[c] = column + c;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    k_of_key_ptr = k_of_key_ptr + ((int64_t)batch * k_of_key_strides[0] + (int64_t)kv_head
            * k_of_key_strides[1]);
    k_of_key_ptr = k_of_key_ptr + (int64_t)column * k_of_key_strides[2];
    v_of_key_ptr = v_of_key_ptr + ((int64_t)batch * v_of_key_strides[0] + (int64_t)kv_head
            * v_of_key_strides[1]);
    v_of_key_ptr = v_of_key_ptr + (int64_t)column * v_of_key_strides[2];
    int64_t q_step = q_strides[2] * BLOCK_M;
    int64_t d_out_step = d_out_strides[2] * BLOCK_M;
    int64_t dq_total_step = dq_total_strides[2] * BLOCK_M;
    int64_t first_vector = ((int64_t)batch * kv_heads + kv_head) * m + column;
    // Keys that no row can see are not read, and their gradients are 0.
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        seen[c] = column_lanes[c] < keys;
    k_of_key = load_rows(k_of_key_type, &k_of_key_room[0][0], k_of_key_ptr, k_of_key_strides[2],
            seen, BLOCK_N, D, BLOCK_D);
    turn(BLOCK_N, BLOCK_D, k_of_key.at, k_of_key.step, 1, &k_of_key_turned[0][0]);
    v_of_key = load_rows(v_of_key_type, &v_of_key_room[0][0], v_of_key_ptr, v_of_key_strides[2],
            seen, BLOCK_N, E, BLOCK_E);
    turn(BLOCK_N, BLOCK_E, v_of_key.at, v_of_key.step, 1, &v_of_key_turned[0][0]);
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        j[c] = k_start + column_lanes[c];
    // Positions of the tile's first and last key; [low, high) are the rows that may see it.
    int first = k_start + column;
    int last = first + smaller(BLOCK_N, keys - column) - 1;
    int in_rows = column < keys ? n : 0;
    int low = larger(16 * first + 31 - q_start, 0);
    int high = in_rows;
    int t0 = low / BLOCK_M;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_M), t0);
    int full_low = larger(16 * last + 31 - q_start, 0);
    int full_high = in_rows;
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_M), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_M, f0), t1);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            d_v_of_key[c][x] = 0;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            d_k_of_key_total[c][x] = 0;
    }
    for (int head = kv_head * GROUP; head < kv_head * GROUP + GROUP; head++) {
        q_type *q_head_ptr = q_ptr + (int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1];
        d_out_type *d_out_head_ptr = d_out_ptr + (int64_t)batch * d_out_strides[0] + (int64_t)head
                * d_out_strides[1];
        dq_total_type *dq_total_head_ptr = dq_total_ptr + (int64_t)batch * dq_total_strides[0]
                + (int64_t)head * dq_total_strides[1];
        int64_t statistics = ((int64_t)batch * heads + head) * n;
        for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
            tile = t0 + step;
            tile = tile < f0 ? tile : tile + (f1 - f0);
            far_backward_at_once_tile(d_v_of_key, d_k_of_key_total, k_of_key, k_of_key_turned,
                    v_of_key, v_of_key_turned, q_head_ptr + tile * q_step, d_out_head_ptr + tile
                    * d_out_step, lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics
                    + tile * BLOCK_M, dq_total_head_ptr + tile * dq_total_step, q_strides[2],
                    d_out_strides[2], dq_total_strides[2], j, tile * BLOCK_M, q_start, n,
                    scale_log2, D, E, 1);
        }
        for (int tile = f0; tile < f1; tile++) {
            far_backward_at_once_tile(d_v_of_key, d_k_of_key_total, k_of_key, k_of_key_turned,
                    v_of_key, v_of_key_turned, q_head_ptr + tile * q_step, d_out_head_ptr + tile
                    * d_out_step, lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics
                    + tile * BLOCK_M, dq_total_head_ptr + tile * dq_total_step, q_strides[2],
                    d_out_strides[2], dq_total_strides[2], j, tile * BLOCK_M, q_start, n,
                    scale_log2, D, E, 0);
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            d_k_of_key[c][x] = d_k_of_key_total[c][x] * d_dot_factor;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        d_k_of_key_type *to = d_k_of_key_ptr + first_vector * D + (int64_t)c * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(d_k_of_key_type, to[x], seen[c] ? d_k_of_key[c][x] : R(0.0));
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        d_v_of_key_type *to = d_v_of_key_ptr + first_vector * E + (int64_t)c * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(d_v_of_key_type, to[x], seen[c] ? d_v_of_key[c][x] : R(0.0));
    }
}

void run(const Grid programs, const int threads, const int share, k_of_key_type *k_of_key_ptr,
        v_of_key_type *v_of_key_ptr, q_type *q_ptr, d_out_type *d_out_ptr,
        dq_total_type *dq_total_ptr, lse_type *lse_ptr, delta_type *delta_ptr,
        d_k_of_key_type *d_k_of_key_ptr, d_v_of_key_type *d_v_of_key_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides,
        const int64_t *v_of_key_strides, const int64_t *q_strides, const int64_t *d_out_strides,
        const int64_t *dq_total_strides, int n, int m, int k_start, double d_dot_factor,
        double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE((int64_t)z * programs.y + y))
            far_backward_at_once_kernel((Grid){x, y, z}, programs, k_of_key_ptr, v_of_key_ptr,
                    q_ptr, d_out_ptr, dq_total_ptr, lse_ptr, delta_ptr, d_k_of_key_ptr,
                    d_v_of_key_ptr, q_start_ptr, kv_lengths_ptr, k_of_key_strides, v_of_key_strides,
                    q_strides, d_out_strides, dq_total_strides, n, m, k_start, d_dot_factor,
                    scale_log2, GROUP, D, E);
}
""",
    ),
    "_forward_kernel_1": _CKernel(
        "_forward_kernel_1",
        (
            "q_ptr blocks_of_row_ptr k_ptr v_ptr out_ptr lse_ptr residual_ptr peak_state_ptr "
            "rows_state_ptr total_state_ptr q_start_ptr kv_lengths_ptr begins_ptr met_ptr "
            "q_strides k_strides v_strides n m k_start lists scale_log2 blocks_of_row_size_2 "
            "GROUP D E"
        ),
        "n m k_start lists blocks_of_row_size_2 GROUP D E",
        "BLOCK_D BLOCK_E LIST_M LIST_N BLOCK_M BLOCK_N",
        "peak_state_ptr rows_state_ptr total_state_ptr",
        r"""
INLINE void forward_tile_1(real *restrict peak, real *restrict rows,
        real (*restrict total)[BLOCK_E], const Rows q, const real (*restrict q_turned)[BLOCK_M],
        blocks_of_row_type **restrict blocks_of_row_at, k_type *k_ptr, v_type *v_ptr,
        int64_t k_stride, int64_t v_stride, int *restrict i, met_value column, int k_start,
        int keys, real scale_log2, int blocks_of_row_size_2, int D, int E, const int MASKED)
{
    int visible[BLOCK_N];
    met_value j[BLOCK_N];
    Rows k;
    real k_room[BLOCK_N][BLOCK_D];
    real dot_qk[BLOCK_N][BLOCK_M];
    real exponent[BLOCK_N][BLOCK_M];
    real old_peak[BLOCK_M];
    real largest[BLOCK_M];
    real shrink[BLOCK_M];
    real weight[BLOCK_N][BLOCK_M];
    real rows_sum[BLOCK_M];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const met_value column_lanes = column + c;
        visible[c] = column_lanes < keys;
        j[c] = k_start + column_lanes;
    }
    k = load_rows(k_type, &k_room[0][0], k_ptr, k_stride, MASKED ? visible : NULL, BLOCK_N, D,
            BLOCK_D);
    Span spans[BLOCK_M / LANES];
    for (int group = 0; MASKED && group < BLOCK_M / LANES; group++) {
        spans[group] = (Span){BLOCK_N, 0};
        for (int c = 0; c < BLOCK_N; c++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int r = group * LANES; r < (group + 1) * LANES; r++)
                some |= ((((j[c] <= i[r]) & (floor_div(j[c], 64) == 0)) | ((j[c] <= i[r])
                        & (floor_div(i[r], 64) - floor_div(j[c], 64) <= 1))) & visible[c]);
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_D, BLOCK_M, k.at, k.step, 1,
            &q_turned[0][0], BLOCK_M, &dot_qk[0][0], BLOCK_M, 0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            exponent[c][r] = scale_log2 * dot_qk[c][r];
            int related = 0;
            if (MASKED) related = (((j[c] <= i[r]) & (floor_div(j[c], 64) == 0)) | ((j[c] <= i[r])
                    & (floor_div(i[r], 64) - floor_div(j[c], 64) <= 1))) & visible[c];
            if (MASKED) exponent[c][r] = related ? exponent[c][r] : -INFINITY;
        }
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        old_peak[r] = peak[r];
    for (int r = 0; r < BLOCK_M; r++)
        largest[r] = -INFINITY;
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            largest[r] = larger(largest[r], exponent[c][r]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        peak[r] = larger(peak[r], largest[r]);
        shrink[r] = exp2_of(old_peak[r] - peak[r]);
    }
    for (int r = 0; r < BLOCK_M; r++)
        rows_sum[r] = R(0.0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            weight[c][r] = exp2_of(exponent[c][r] - peak[r]);
            rows_sum[r] += weight[c][r];
        }
    }
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_stride, MASKED ? visible : NULL, BLOCK_N, E,
            BLOCK_E);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        rows[r] = rows[r] * shrink[r] + rows_sum[r];
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            total[r][x] = total[r][x] * shrink[r];
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_E, &weight[0][0], 1, BLOCK_M,
            v.at, v.step, &total[0][0], BLOCK_E);
}

static void forward_kernel_1(const Grid program, const Grid programs, q_type *q_ptr,
        blocks_of_row_type *blocks_of_row_ptr, k_type *k_ptr, v_type *v_ptr, out_type *out_ptr,
        lse_type *lse_ptr, residual_type *residual_ptr, peak_state_type *peak_state_ptr,
        rows_state_type *rows_state_ptr, total_state_type *total_state_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr,
        met_type *met_ptr, const int64_t *q_strides, const int64_t *k_strides,
        const int64_t *v_strides, int n, int m, int k_start, int lists, real scale_log2,
        int blocks_of_row_size_2, int GROUP, int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    blocks_of_row_type *blocks_of_row_at[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real q_turned[BLOCK_D][BLOCK_M];
    int i[BLOCK_M];
    real peak[BLOCK_M];
    real rows[BLOCK_M];
    real total[BLOCK_M][BLOCK_E];
    // first row of the tile
    int row = program.x * BLOCK_M;
    int head = program.y;
    int batch = program.z;
    int heads = programs.y;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        row_lanes[r] = row + r;
    // tiles in one that lists name
    const int PARTS = LIST_N / BLOCK_N;
    int entry = batch * heads + head;
    blocks_of_row_type *blocks_of_row_lists = blocks_of_row_ptr + (int64_t)entry * (13
            * blocks_of_row_size_2);
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    q_ptr = q_ptr + ((int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1]);
    q_ptr = q_ptr + (int64_t)row * q_strides[2];
    k_ptr = k_ptr + ((int64_t)batch * k_strides[0] + (int64_t)(head / GROUP) * k_strides[1]);
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)(head / GROUP) * v_strides[1]);
    int64_t k_step = k_strides[2] * BLOCK_N;
    int64_t v_step = v_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        visible[r] = row_lanes[r] < n;
        blocks_of_row_at[r] = blocks_of_row_lists + row + r;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, q.at, q.step, 1, &q_turned[0][0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        i[r] = q_start + row_lanes[r];
    // Tiles of keys that the tile's rows meet: met[begin] … met[end - 1].
    int number = entry * lists + row / LIST_M;
    begins_value begin = number_of((begins_ptr + number)[0]);
    begins_value end = number_of((begins_ptr + number + 1)[0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        peak[r] = -R(3.4028234663852886e+38);
        rows[r] = 0;
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            total[r][x] = 0;
    }
    for (int step = begin * PARTS; step < end * PARTS; step++) {
        met_value tile = number_of((met_ptr + step / PARTS)[0]) * PARTS + step % PARTS;
        forward_tile_1(peak, rows, total, q, q_turned, blocks_of_row_at, k_ptr + tile * k_step,
                v_ptr + tile * v_step, k_strides[2], v_strides[2], i, tile * BLOCK_N, k_start, keys,
                scale_log2, blocks_of_row_size_2, D, E, 1);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        if (visible[r]) put(peak_state_type, (peak_state_ptr + first_vector)[r], peak[r]);
        if (visible[r]) put(rows_state_type, (rows_state_ptr + first_vector)[r], rows[r]);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        total_state_type *to = total_state_ptr + first_vector * E + (int64_t)r * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(total_state_type, to[x], total[r][x]);
    }
}

void run(const Grid programs, const int threads, const int share, q_type *q_ptr,
        blocks_of_row_type *blocks_of_row_ptr, k_type *k_ptr, v_type *v_ptr, out_type *out_ptr,
        lse_type *lse_ptr, residual_type *residual_ptr, peak_state_type *peak_state_ptr,
        rows_state_type *rows_state_ptr, total_state_type *total_state_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr,
        met_type *met_ptr, const int64_t *q_strides, const int64_t *k_strides,
        const int64_t *v_strides, int n, int m, int k_start, int lists, double scale_log2,
        int blocks_of_row_size_2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            forward_kernel_1((Grid){x, y, z}, programs, q_ptr, blocks_of_row_ptr, k_ptr, v_ptr,
                    out_ptr, lse_ptr, residual_ptr, peak_state_ptr, rows_state_ptr, total_state_ptr,
                    q_start_ptr, kv_lengths_ptr, begins_ptr, met_ptr, q_strides, k_strides,
                    v_strides, n, m, k_start, lists, scale_log2, blocks_of_row_size_2, GROUP, D, E);
}
""",
    ),
    "_backward_columns_kernel_1": _CKernel(
        "_backward_columns_kernel_1",
        (
            "k_ptr v_ptr q_ptr d_out_ptr blocks_of_row_ptr lse_ptr delta_ptr dk_ptr dv_ptr "
            "q_start_ptr kv_lengths_ptr begins_ptr met_ptr k_strides v_strides q_strides "
            "d_out_strides n m k_start lists d_dot_factor scale_log2 blocks_of_row_size_2 "
            "GROUP D E"
        ),
        "n m k_start lists blocks_of_row_size_2 GROUP D E",
        "BLOCK_D BLOCK_E LIST_M LIST_N BLOCK_M BLOCK_N",
        "dk_ptr dv_ptr",
        r"""
INLINE void backward_columns_tile_1(real (*restrict dv)[BLOCK_E],
        real (*restrict dk_total)[BLOCK_D], const Rows k, const real (*restrict k_turned)[BLOCK_N],
        const Rows v, const real (*restrict v_turned)[BLOCK_N], q_type *q_ptr,
        d_out_type *d_out_ptr, lse_type *lse_ptr, delta_type *delta_ptr,
        blocks_of_row_type *blocks_of_row_ptr, int64_t q_stride, int64_t d_out_stride,
        int *restrict j, met_value row, int q_start, int n, real scale_log2,
        int blocks_of_row_size_2, int D, int E, const int MASKED)
{
    int visible[BLOCK_M];
    met_value i[BLOCK_M];
    real lse_2[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real dot_qk[BLOCK_M][BLOCK_N];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_share[BLOCK_M][BLOCK_N];
    delta_value delta[BLOCK_M];
    real weight[BLOCK_M][BLOCK_N];
    real d_exponent[BLOCK_M][BLOCK_N];
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        const met_value row_lanes = row + r;
        visible[r] = row_lanes < n;
        i[r] = q_start + row_lanes;
        lse_value lse = (!MASKED || visible[r]) ? number_of(lse_ptr[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_stride, MASKED ? visible : NULL, BLOCK_M, D,
            BLOCK_D);
    Span spans[BLOCK_N / LANES];
    for (int group = 0; MASKED && group < BLOCK_N / LANES; group++) {
        spans[group] = (Span){BLOCK_M, 0};
        for (int r = 0; r < BLOCK_M; r++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int c = group * LANES; c < (group + 1) * LANES; c++)
                some |= ((((j[c] <= i[r]) & (floor_div(j[c], 64) == 0)) | ((j[c] <= i[r])
                        & (floor_div(i[r], 64) - floor_div(j[c], 64) <= 1))) & visible[r]);
            if (some) spans[group] = with_span(spans[group], r);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_D, BLOCK_N, q.at, q.step, 1,
            &k_turned[0][0], BLOCK_N, &dot_qk[0][0], BLOCK_N, 0);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_stride, MASKED ? visible
            : NULL, BLOCK_M, E, BLOCK_E);
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_E, BLOCK_N, d_out.at, d_out.step, 1,
            &v_turned[0][0], BLOCK_N, &d_share[0][0], BLOCK_N, 0);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        delta[r] = (!MASKED || visible[r]) ? number_of(delta_ptr[r]) : R(0.0);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++) {
            const real d_weight = d_share[r][c] - delta[r];
            real exponent = scale_log2 * dot_qk[r][c];
            int related = 0;
            if (MASKED) related = (((j[c] <= i[r]) & (floor_div(j[c], 64) == 0)) | ((j[c] <= i[r])
                    & (floor_div(i[r], 64) - floor_div(j[c], 64) <= 1))) & visible[r];
            if (MASKED) exponent = related ? exponent : -INFINITY;
            weight[r][c] = exp2_of(exponent - lse_2[r]);
            d_exponent[r][c] = d_weight * weight[r][c];
        }
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_E, &weight[0][0], 1, BLOCK_N,
            d_out.at, d_out.step, &dv[0][0], BLOCK_E);
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_D, &d_exponent[0][0], 1, BLOCK_N,
            q.at, q.step, &dk_total[0][0], BLOCK_D);
}

static void backward_columns_kernel_1(const Grid program, const Grid programs, k_type *k_ptr,
        v_type *v_ptr, q_type *q_ptr, d_out_type *d_out_ptr, blocks_of_row_type *blocks_of_row_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dk_type *dk_ptr, dv_type *dv_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr,
        met_type *met_ptr, const int64_t *k_strides, const int64_t *v_strides,
        const int64_t *q_strides, const int64_t *d_out_strides, int n, int m, int k_start,
        int lists, real d_dot_factor, real scale_log2, int blocks_of_row_size_2, int GROUP, int D,
        int E)
{
    int column_lanes[BLOCK_N];
    int seen[BLOCK_N];
    Rows k;
    real k_room[BLOCK_N][BLOCK_D];
    real k_turned[BLOCK_D][BLOCK_N];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    real v_turned[BLOCK_E][BLOCK_N];
    int j[BLOCK_N];
    real dv[BLOCK_N][BLOCK_E];
    real dk_total[BLOCK_N][BLOCK_D];
    real dk[BLOCK_N][BLOCK_D];
    // first key of the tile
    int column = program.x * BLOCK_N;
    int kv_head = program.y;
    int batch = program.z;
    int kv_heads = programs.y;
    int heads = kv_heads * GROUP;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        column_lanes[c] = column + c;
    // tiles in one that lists name
    const int PARTS = LIST_M / BLOCK_M;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    k_ptr = k_ptr + ((int64_t)batch * k_strides[0] + (int64_t)kv_head * k_strides[1]);
    k_ptr = k_ptr + (int64_t)column * k_strides[2];
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)kv_head * v_strides[1]);
    v_ptr = v_ptr + (int64_t)column * v_strides[2];
    int64_t q_step = q_strides[2] * BLOCK_M;
    int64_t d_out_step = d_out_strides[2] * BLOCK_M;
    int64_t first_vector = ((int64_t)batch * kv_heads + kv_head) * m + column;
    // Keys that no row can see are not read, and their gradients are 0.
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        seen[c] = column_lanes[c] < keys;
    k = load_rows(k_type, &k_room[0][0], k_ptr, k_strides[2], seen, BLOCK_N, D, BLOCK_D);
    turn(BLOCK_N, BLOCK_D, k.at, k.step, 1, &k_turned[0][0]);
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_strides[2], seen, BLOCK_N, E, BLOCK_E);
    turn(BLOCK_N, BLOCK_E, v.at, v.step, 1, &v_turned[0][0]);
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        j[c] = k_start + column_lanes[c];
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            dv[c][x] = 0;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            dk_total[c][x] = 0;
    }
    for (int head = kv_head * GROUP; head < kv_head * GROUP + GROUP; head++) {
        q_type *q_head_ptr = q_ptr + (int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1];
        d_out_type *d_out_head_ptr = d_out_ptr + (int64_t)batch * d_out_strides[0] + (int64_t)head
                * d_out_strides[1];
        int64_t statistics = ((int64_t)batch * heads + head) * n;
        int entry = batch * heads + head;
        blocks_of_row_type *blocks_of_row_lists = blocks_of_row_ptr + (int64_t)entry * (13
                * blocks_of_row_size_2);
        // Tiles of rows that meet the tile's keys: met[begin] … met[end - 1].
        int number = entry * lists + column / LIST_N;
        begins_value begin = number_of((begins_ptr + number)[0]);
        begins_value end = number_of((begins_ptr + number + 1)[0]);
        for (int step = begin * PARTS; step < end * PARTS; step++) {
            met_value tile = number_of((met_ptr + step / PARTS)[0]) * PARTS + step % PARTS;
            backward_columns_tile_1(dv, dk_total, k, k_turned, v, v_turned, q_head_ptr + tile
                    * q_step, d_out_head_ptr + tile * d_out_step, lse_ptr + statistics + tile
                    * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M, blocks_of_row_lists + tile
                    * BLOCK_M, q_strides[2], d_out_strides[2], j, tile * BLOCK_M, q_start, n,
                    scale_log2, blocks_of_row_size_2, D, E, 1);
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++) {
            dk[c][x] = dk_total[c][x] * d_dot_factor;
            dk[c][x] = (seen[c] ? dk[c][x] : R(0.0)) + (((column_lanes[c] < m) & (x < D))
                    ? number_of((dk_ptr + first_vector * D)[c * D + x]) : R(0.0));
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        dk_type *to = dk_ptr + first_vector * D + (int64_t)c * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(dk_type, to[x], dk[c][x]);
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            dv[c][x] = (seen[c] ? dv[c][x] : R(0.0)) + (((column_lanes[c] < m) & (x < E))
                    ? number_of((dv_ptr + first_vector * E)[c * E + x]) : R(0.0));
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        dv_type *to = dv_ptr + first_vector * E + (int64_t)c * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(dv_type, to[x], dv[c][x]);
    }
}

void run(const Grid programs, const int threads, const int share, k_type *k_ptr, v_type *v_ptr,
        q_type *q_ptr, d_out_type *d_out_ptr, blocks_of_row_type *blocks_of_row_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dk_type *dk_ptr, dv_type *dv_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr,
        met_type *met_ptr, const int64_t *k_strides, const int64_t *v_strides,
        const int64_t *q_strides, const int64_t *d_out_strides, int n, int m, int k_start,
        int lists, double d_dot_factor, double scale_log2, int blocks_of_row_size_2, int GROUP,
        int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            backward_columns_kernel_1((Grid){x, y, z}, programs, k_ptr, v_ptr, q_ptr, d_out_ptr,
                    blocks_of_row_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, q_start_ptr,
                    kv_lengths_ptr, begins_ptr, met_ptr, k_strides, v_strides, q_strides,
                    d_out_strides, n, m, k_start, lists, d_dot_factor, scale_log2,
                    blocks_of_row_size_2, GROUP, D, E);
}
""",
    ),
    "_backward_rows_kernel_1": _CKernel(
        "_backward_rows_kernel_1",
        (
            "q_ptr d_out_ptr blocks_of_row_ptr k_ptr v_ptr lse_ptr delta_ptr dq_ptr "
            "q_start_ptr kv_lengths_ptr begins_ptr met_ptr q_strides d_out_strides k_strides "
            "v_strides n m k_start lists d_dot_factor scale_log2 blocks_of_row_size_2 GROUP D "
            "E"
        ),
        "n m k_start lists blocks_of_row_size_2 GROUP D E",
        "BLOCK_D BLOCK_E LIST_M LIST_N BLOCK_M BLOCK_N",
        "dq_ptr",
        r"""
INLINE void backward_rows_tile_1(real (*restrict dq_total)[BLOCK_D], const Rows q,
        const real (*restrict q_turned)[BLOCK_M], const Rows d_out,
        const real (*restrict d_out_turned)[BLOCK_M], delta_value *restrict delta,
        blocks_of_row_type **restrict blocks_of_row_at, real *restrict lse_2, k_type *k_ptr,
        v_type *v_ptr, int64_t k_stride, int64_t v_stride, int *restrict i, met_value column,
        int k_start, int keys, real scale_log2, int blocks_of_row_size_2, int D, int E,
        const int MASKED)
{
    int visible[BLOCK_N];
    met_value j[BLOCK_N];
    Rows k;
    real k_room[BLOCK_N][BLOCK_D];
    real dot_qk[BLOCK_N][BLOCK_M];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    real d_share[BLOCK_N][BLOCK_M];
    real d_exponent[BLOCK_N][BLOCK_M];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const met_value column_lanes = column + c;
        visible[c] = column_lanes < keys;
        j[c] = k_start + column_lanes;
    }
    k = load_rows(k_type, &k_room[0][0], k_ptr, k_stride, MASKED ? visible : NULL, BLOCK_N, D,
            BLOCK_D);
    Span spans[BLOCK_M / LANES];
    for (int group = 0; MASKED && group < BLOCK_M / LANES; group++) {
        spans[group] = (Span){BLOCK_N, 0};
        for (int c = 0; c < BLOCK_N; c++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int r = group * LANES; r < (group + 1) * LANES; r++)
                some |= ((((j[c] <= i[r]) & (floor_div(j[c], 64) == 0)) | ((j[c] <= i[r])
                        & (floor_div(i[r], 64) - floor_div(j[c], 64) <= 1))) & visible[c]);
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_D, BLOCK_M, k.at, k.step, 1,
            &q_turned[0][0], BLOCK_M, &dot_qk[0][0], BLOCK_M, 0);
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_stride, MASKED ? visible : NULL, BLOCK_N, E,
            BLOCK_E);
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_E, BLOCK_M, v.at, v.step, 1,
            &d_out_turned[0][0], BLOCK_M, &d_share[0][0], BLOCK_M, 0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            const real d_weight = d_share[c][r] - delta[r];
            real exponent = scale_log2 * dot_qk[c][r];
            int related = 0;
            if (MASKED) related = (((j[c] <= i[r]) & (floor_div(j[c], 64) == 0)) | ((j[c] <= i[r])
                    & (floor_div(i[r], 64) - floor_div(j[c], 64) <= 1))) & visible[c];
            if (MASKED) exponent = related ? exponent : -INFINITY;
            const real weight = exp2_of(exponent - lse_2[r]);
            d_exponent[c][r] = d_weight * weight;
        }
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_D, &d_exponent[0][0], 1, BLOCK_M,
            k.at, k.step, &dq_total[0][0], BLOCK_D);
}

static void backward_rows_kernel_1(const Grid program, const Grid programs, q_type *q_ptr,
        d_out_type *d_out_ptr, blocks_of_row_type *blocks_of_row_ptr, k_type *k_ptr, v_type *v_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dq_type *dq_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr, met_type *met_ptr,
        const int64_t *q_strides, const int64_t *d_out_strides, const int64_t *k_strides,
        const int64_t *v_strides, int n, int m, int k_start, int lists, real d_dot_factor,
        real scale_log2, int blocks_of_row_size_2, int GROUP, int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    blocks_of_row_type *blocks_of_row_at[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real q_turned[BLOCK_D][BLOCK_M];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_out_turned[BLOCK_E][BLOCK_M];
    delta_value delta[BLOCK_M];
    int i[BLOCK_M];
    real lse_2[BLOCK_M];
    real dq_total[BLOCK_M][BLOCK_D];
    real dq[BLOCK_M][BLOCK_D];
    // first row of the tile
    int row = program.x * BLOCK_M;
    int head = program.y;
    int batch = program.z;
    int heads = programs.y;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        row_lanes[r] = row + r;
    // tiles in one that lists name
    const int PARTS = LIST_N / BLOCK_N;
    int entry = batch * heads + head;
    blocks_of_row_type *blocks_of_row_lists = blocks_of_row_ptr + (int64_t)entry * (13
            * blocks_of_row_size_2);
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    q_ptr = q_ptr + ((int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1]);
    q_ptr = q_ptr + (int64_t)row * q_strides[2];
    d_out_ptr = d_out_ptr + ((int64_t)batch * d_out_strides[0] + (int64_t)head * d_out_strides[1]);
    d_out_ptr = d_out_ptr + (int64_t)row * d_out_strides[2];
    k_ptr = k_ptr + ((int64_t)batch * k_strides[0] + (int64_t)(head / GROUP) * k_strides[1]);
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)(head / GROUP) * v_strides[1]);
    int64_t k_step = k_strides[2] * BLOCK_N;
    int64_t v_step = v_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        visible[r] = row_lanes[r] < n;
        blocks_of_row_at[r] = blocks_of_row_lists + row + r;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, q.at, q.step, 1, &q_turned[0][0]);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_strides[2], visible, BLOCK_M,
            E, BLOCK_E);
    turn(BLOCK_M, BLOCK_E, d_out.at, d_out.step, 1, &d_out_turned[0][0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        lse_value lse = visible[r] ? number_of((lse_ptr + first_vector)[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        delta[r] = visible[r] ? number_of((delta_ptr + first_vector)[r]) : R(0.0);
        i[r] = q_start + row_lanes[r];
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    // Tiles of keys that the tile's rows meet: met[begin] … met[end - 1].
    int number = entry * lists + row / LIST_M;
    begins_value begin = number_of((begins_ptr + number)[0]);
    begins_value end = number_of((begins_ptr + number + 1)[0]);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            dq_total[r][x] = 0;
    }
    for (int step = begin * PARTS; step < end * PARTS; step++) {
        met_value tile = number_of((met_ptr + step / PARTS)[0]) * PARTS + step % PARTS;
        backward_rows_tile_1(dq_total, q, q_turned, d_out, d_out_turned, delta, blocks_of_row_at,
                lse_2, k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2], i,
                tile * BLOCK_N, k_start, keys, scale_log2, blocks_of_row_size_2, D, E, 1);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++) {
            dq[r][x] = dq_total[r][x] * d_dot_factor;
            dq[r][x] = dq[r][x] + ((visible[r] & (x < D)) ? number_of((dq_ptr + first_vector * D)[r
                    * D + x]) : R(0.0));
        }
    }
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        dq_type *to = dq_ptr + first_vector * D + (int64_t)r * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(dq_type, to[x], dq[r][x]);
    }
}

void run(const Grid programs, const int threads, const int share, q_type *q_ptr,
        d_out_type *d_out_ptr, blocks_of_row_type *blocks_of_row_ptr, k_type *k_ptr, v_type *v_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dq_type *dq_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr, met_type *met_ptr,
        const int64_t *q_strides, const int64_t *d_out_strides, const int64_t *k_strides,
        const int64_t *v_strides, int n, int m, int k_start, int lists, double d_dot_factor,
        double scale_log2, int blocks_of_row_size_2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            backward_rows_kernel_1((Grid){x, y, z}, programs, q_ptr, d_out_ptr, blocks_of_row_ptr,
                    k_ptr, v_ptr, lse_ptr, delta_ptr, dq_ptr, q_start_ptr, kv_lengths_ptr,
                    begins_ptr, met_ptr, q_strides, d_out_strides, k_strides, v_strides, n, m,
                    k_start, lists, d_dot_factor, scale_log2, blocks_of_row_size_2, GROUP, D, E);
}
""",
    ),
    "_forward_kernel_2": _CKernel(
        "_forward_kernel_2",
        (
            "q_ptr blocks_of_row_ptr k_ptr v_ptr out_ptr lse_ptr residual_ptr peak_state_ptr "
            "rows_state_ptr total_state_ptr q_start_ptr kv_lengths_ptr begins_ptr met_ptr "
            "q_strides k_strides v_strides n m k_start lists scale_log2 blocks_of_row_size_2 "
            "GROUP D E"
        ),
        "n m k_start lists blocks_of_row_size_2 GROUP D E",
        "BLOCK_D BLOCK_E LIST_M LIST_N BLOCK_M BLOCK_N",
        "out_ptr lse_ptr residual_ptr",
        r"""
INLINE void forward_tile_2(peak_state_value *restrict peak, rows_state_value *restrict rows,
        real (*restrict total)[BLOCK_E], const Rows q, const real (*restrict q_turned)[BLOCK_M],
        blocks_of_row_type **restrict blocks_of_row_at, k_type *k_ptr, v_type *v_ptr,
        int64_t k_stride, int64_t v_stride, int *restrict i, met_value column, int k_start,
        int keys, real scale_log2, int blocks_of_row_size_2, int D, int E, const int MASKED)
{
    int visible[BLOCK_N];
    met_value j[BLOCK_N];
    Rows k;
    real k_room[BLOCK_N][BLOCK_D];
    real dot_qk[BLOCK_N][BLOCK_M];
    real exponent[BLOCK_N][BLOCK_M];
    met_value blocks_of_row_names_first_least;
    int in_first[BLOCK_M];
    met_value largest;
    int in_last[BLOCK_M];
    int related[BLOCK_N][BLOCK_M];
    peak_state_value old_peak[BLOCK_M];
    real largest_2[BLOCK_M];
    real shrink[BLOCK_M];
    real weight[BLOCK_N][BLOCK_M];
    real rows_sum[BLOCK_M];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const met_value column_lanes = column + c;
        visible[c] = column_lanes < keys;
        j[c] = k_start + column_lanes;
    }
    k = load_rows(k_type, &k_room[0][0], k_ptr, k_stride, MASKED ? visible : NULL, BLOCK_N, D,
            BLOCK_D);
    multiply(BLOCK_N, BLOCK_D, BLOCK_M, k.at, k.step, 1, &q_turned[0][0], BLOCK_M, &dot_qk[0][0],
            BLOCK_M, 0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            exponent[c][r] = scale_log2 * dot_qk[c][r];
    }
    if (MASKED) {
        met_value blocks_of_row_names_first_least_here = largest_of(met_value);
        #pragma omp simd reduction(min:blocks_of_row_names_first_least_here)
        for (int c = 0; c < BLOCK_N; c++)
            blocks_of_row_names_first_least_here = smaller(blocks_of_row_names_first_least_here,
                    j[c]);
        blocks_of_row_names_first_least = blocks_of_row_names_first_least_here;
        met_value blocks_of_row_names_first = floor_div(blocks_of_row_names_first_least, 64);
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            in_first[r] = is_named(0 + blocks_of_row_names_first, blocks_of_row_at[r], 13,
                    blocks_of_row_size_2);
        met_value largest_here = least_of(met_value);
        #pragma omp simd reduction(max:largest_here)
        for (int c = 0; c < BLOCK_N; c++)
            largest_here = larger(largest_here, j[c]);
        largest = largest_here;
        met_value blocks_of_row_names_last = floor_div(largest, 64);
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            in_last[r] = is_named(0 + blocks_of_row_names_last, blocks_of_row_at[r], 13,
                    blocks_of_row_size_2);
        for (int c = 0; c < BLOCK_N; c++) {
            #pragma omp simd
            for (int r = 0; r < BLOCK_M; r++) {
                const int blocks_of_row_names = floor_div(j[c], 64) == blocks_of_row_names_first
                        ? in_first[r] : in_last[r];
                related[c][r] = (j[c] <= i[r]) & blocks_of_row_names & (((j[c] > i[r])
                        | (floor_div(j[c], 64) != 0)) & ((j[c] > i[r]) | (floor_div(i[r], 64)
                        - floor_div(j[c], 64) > 1))) & visible[c];
            }
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            if (MASKED) exponent[c][r] = related[c][r] ? exponent[c][r] : -INFINITY;
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        old_peak[r] = peak[r];
    for (int r = 0; r < BLOCK_M; r++)
        largest_2[r] = -INFINITY;
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            largest_2[r] = larger(largest_2[r], exponent[c][r]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        peak[r] = larger(peak[r], largest_2[r]);
        shrink[r] = exp2_of(old_peak[r] - peak[r]);
    }
    for (int r = 0; r < BLOCK_M; r++)
        rows_sum[r] = R(0.0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            weight[c][r] = exp2_of(exponent[c][r] - peak[r]);
            rows_sum[r] += weight[c][r];
        }
    }
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_stride, MASKED ? visible : NULL, BLOCK_N, E,
            BLOCK_E);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        rows[r] = rows[r] * shrink[r] + rows_sum[r];
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            total[r][x] = total[r][x] * shrink[r];
    }
    multiply(BLOCK_M, BLOCK_N, BLOCK_E, &weight[0][0], 1, BLOCK_M, v.at, v.step, &total[0][0],
            BLOCK_E, 1);
}

static void forward_kernel_2(const Grid program, const Grid programs, q_type *q_ptr,
        blocks_of_row_type *blocks_of_row_ptr, k_type *k_ptr, v_type *v_ptr, out_type *out_ptr,
        lse_type *lse_ptr, residual_type *residual_ptr, peak_state_type *peak_state_ptr,
        rows_state_type *rows_state_ptr, total_state_type *total_state_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr,
        met_type *met_ptr, const int64_t *q_strides, const int64_t *k_strides,
        const int64_t *v_strides, int n, int m, int k_start, int lists, real scale_log2,
        int blocks_of_row_size_2, int GROUP, int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    blocks_of_row_type *blocks_of_row_at[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real q_turned[BLOCK_D][BLOCK_M];
    int i[BLOCK_M];
    peak_state_value peak[BLOCK_M];
    rows_state_value rows[BLOCK_M];
    real total[BLOCK_M][BLOCK_E];
    real out[BLOCK_M][BLOCK_E];
    real lse[BLOCK_M];
    real residual[BLOCK_M][BLOCK_E];
    // first row of the tile
    int row = program.x * BLOCK_M;
    int head = program.y;
    int batch = program.z;
    int heads = programs.y;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        row_lanes[r] = row + r;
    // tiles in one that lists name
    const int PARTS = LIST_N / BLOCK_N;
    int entry = batch * heads + head;
    blocks_of_row_type *blocks_of_row_lists = blocks_of_row_ptr + (int64_t)entry * (13
            * blocks_of_row_size_2);
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    q_ptr = q_ptr + ((int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1]);
    q_ptr = q_ptr + (int64_t)row * q_strides[2];
    k_ptr = k_ptr + ((int64_t)batch * k_strides[0] + (int64_t)(head / GROUP) * k_strides[1]);
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)(head / GROUP) * v_strides[1]);
    int64_t k_step = k_strides[2] * BLOCK_N;
    int64_t v_step = v_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        visible[r] = row_lanes[r] < n;
        blocks_of_row_at[r] = blocks_of_row_lists + row + r;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, q.at, q.step, 1, &q_turned[0][0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        i[r] = q_start + row_lanes[r];
    // Tiles of keys that the tile's rows meet: met[begin] … met[end - 1].
    int number = entry * lists + row / LIST_M;
    begins_value begin = number_of((begins_ptr + number)[0]);
    begins_value end = number_of((begins_ptr + number + 1)[0]);
    copy_rows(total_state_type, &total[0][0], total_state_ptr + first_vector * E, E, visible,
            BLOCK_M, E, BLOCK_E);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        peak[r] = visible[r] ? number_of((peak_state_ptr + first_vector)[r]) : R(0.0);
        rows[r] = visible[r] ? number_of((rows_state_ptr + first_vector)[r]) : R(0.0);
    }
    for (int step = begin * PARTS; step < end * PARTS; step++) {
        met_value tile = number_of((met_ptr + step / PARTS)[0]) * PARTS + step % PARTS;
        forward_tile_2(peak, rows, total, q, q_turned, blocks_of_row_at, k_ptr + tile * k_step,
                v_ptr + tile * v_step, k_strides[2], v_strides[2], i, tile * BLOCK_N, k_start, keys,
                scale_log2, blocks_of_row_size_2, D, E, 1);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            out[r][x] = total[r][x] * inverse_of(rows[r]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        lse[r] = R(0.6931471805599453) * peak[r] + log_or_none_of(rows[r]);
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        out_type *to = out_ptr + first_vector * E + (int64_t)r * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(out_type, to[x], out[r][x]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        if (visible[r]) put(lse_type, (lse_ptr + first_vector)[r], lse[r]);
    // what rounding takes from `out`, for backward
    if (residual_ptr != NULL) {
        for (int r = 0; r < BLOCK_M; r++) {
            #pragma omp simd
            for (int x = 0; x < BLOCK_E; x++)
                residual[r][x] = out[r][x] - rounded(out_type, out[r][x]);
        }
        for (int r = 0; r < BLOCK_M; r++) {
            if (!(visible[r])) continue;
            residual_type *to = residual_ptr + first_vector * E + (int64_t)r * (E);
            #pragma omp simd
            for (int x = 0; x < E; x++)
                put(residual_type, to[x], residual[r][x]);
        }
    }
}

void run(const Grid programs, const int threads, const int share, q_type *q_ptr,
        blocks_of_row_type *blocks_of_row_ptr, k_type *k_ptr, v_type *v_ptr, out_type *out_ptr,
        lse_type *lse_ptr, residual_type *residual_ptr, peak_state_type *peak_state_ptr,
        rows_state_type *rows_state_ptr, total_state_type *total_state_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr,
        met_type *met_ptr, const int64_t *q_strides, const int64_t *k_strides,
        const int64_t *v_strides, int n, int m, int k_start, int lists, double scale_log2,
        int blocks_of_row_size_2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            forward_kernel_2((Grid){x, y, z}, programs, q_ptr, blocks_of_row_ptr, k_ptr, v_ptr,
                    out_ptr, lse_ptr, residual_ptr, peak_state_ptr, rows_state_ptr, total_state_ptr,
                    q_start_ptr, kv_lengths_ptr, begins_ptr, met_ptr, q_strides, k_strides,
                    v_strides, n, m, k_start, lists, scale_log2, blocks_of_row_size_2, GROUP, D, E);
}
""",
    ),
    "_backward_columns_kernel_2": _CKernel(
        "_backward_columns_kernel_2",
        (
            "k_ptr v_ptr q_ptr d_out_ptr blocks_of_row_ptr lse_ptr delta_ptr dk_ptr dv_ptr "
            "q_start_ptr kv_lengths_ptr begins_ptr met_ptr k_strides v_strides q_strides "
            "d_out_strides n m k_start lists d_dot_factor scale_log2 blocks_of_row_size_2 "
            "GROUP D E"
        ),
        "n m k_start lists blocks_of_row_size_2 GROUP D E",
        "BLOCK_D BLOCK_E LIST_M LIST_N BLOCK_M BLOCK_N",
        "dk_ptr dv_ptr",
        r"""
INLINE void backward_columns_tile_2(real (*restrict dv)[BLOCK_E],
        real (*restrict dk_total)[BLOCK_D], const Rows k, const real (*restrict k_turned)[BLOCK_N],
        const Rows v, const real (*restrict v_turned)[BLOCK_N], q_type *q_ptr,
        d_out_type *d_out_ptr, lse_type *lse_ptr, delta_type *delta_ptr,
        blocks_of_row_type *blocks_of_row_ptr, int64_t q_stride, int64_t d_out_stride,
        int *restrict j, met_value row, int q_start, int n, real scale_log2,
        int blocks_of_row_size_2, int D, int E, const int MASKED)
{
    int visible[BLOCK_M];
    met_value i[BLOCK_M];
    real lse_2[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real dot_qk[BLOCK_M][BLOCK_N];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_share[BLOCK_M][BLOCK_N];
    delta_value delta[BLOCK_M];
    real d_weight[BLOCK_M][BLOCK_N];
    real exponent[BLOCK_M][BLOCK_N];
    blocks_of_row_type *blocks_of_row_at[BLOCK_M];
    int blocks_of_row_names_first_least;
    int in_first[BLOCK_M];
    int largest;
    int in_last[BLOCK_M];
    int related[BLOCK_M][BLOCK_N];
    real weight[BLOCK_M][BLOCK_N];
    real d_exponent[BLOCK_M][BLOCK_N];
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        const met_value row_lanes = row + r;
        visible[r] = row_lanes < n;
        i[r] = q_start + row_lanes;
        lse_value lse = (!MASKED || visible[r]) ? number_of(lse_ptr[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_stride, MASKED ? visible : NULL, BLOCK_M, D,
            BLOCK_D);
    multiply(BLOCK_M, BLOCK_D, BLOCK_N, q.at, q.step, 1, &k_turned[0][0], BLOCK_N, &dot_qk[0][0],
            BLOCK_N, 0);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_stride, MASKED ? visible
            : NULL, BLOCK_M, E, BLOCK_E);
    multiply(BLOCK_M, BLOCK_E, BLOCK_N, d_out.at, d_out.step, 1, &v_turned[0][0], BLOCK_N,
            &d_share[0][0], BLOCK_N, 0);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        delta[r] = (!MASKED || visible[r]) ? number_of(delta_ptr[r]) : R(0.0);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++) {
            d_weight[r][c] = d_share[r][c] - delta[r];
            exponent[r][c] = scale_log2 * dot_qk[r][c];
        }
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        blocks_of_row_at[r] = blocks_of_row_ptr + r;
    if (MASKED) {
        int blocks_of_row_names_first_least_here = INT_MAX;
        #pragma omp simd reduction(min:blocks_of_row_names_first_least_here)
        for (int c = 0; c < BLOCK_N; c++)
            blocks_of_row_names_first_least_here = smaller(blocks_of_row_names_first_least_here,
                    j[c]);
        blocks_of_row_names_first_least = blocks_of_row_names_first_least_here;
        int blocks_of_row_names_first = floor_div(blocks_of_row_names_first_least, 64);
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            in_first[r] = is_named(0 + blocks_of_row_names_first, blocks_of_row_at[r], 13,
                    blocks_of_row_size_2);
        int largest_here = INT_MIN;
        #pragma omp simd reduction(max:largest_here)
        for (int c = 0; c < BLOCK_N; c++)
            largest_here = larger(largest_here, j[c]);
        largest = largest_here;
        int blocks_of_row_names_last = floor_div(largest, 64);
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            in_last[r] = is_named(0 + blocks_of_row_names_last, blocks_of_row_at[r], 13,
                    blocks_of_row_size_2);
        for (int r = 0; r < BLOCK_M; r++) {
            #pragma omp simd
            for (int c = 0; c < BLOCK_N; c++) {
                const int blocks_of_row_names = floor_div(j[c], 64) == blocks_of_row_names_first
                        ? in_first[r] : in_last[r];
                related[r][c] = (j[c] <= i[r]) & blocks_of_row_names & (((j[c] > i[r])
                        | (floor_div(j[c], 64) != 0)) & ((j[c] > i[r]) | (floor_div(i[r], 64)
                        - floor_div(j[c], 64) > 1))) & visible[r];
            }
        }
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++) {
            if (MASKED) exponent[r][c] = related[r][c] ? exponent[r][c] : -INFINITY;
            weight[r][c] = exp2_of(exponent[r][c] - lse_2[r]);
            d_exponent[r][c] = d_weight[r][c] * weight[r][c];
        }
    }
    multiply(BLOCK_N, BLOCK_M, BLOCK_E, &weight[0][0], 1, BLOCK_N, d_out.at, d_out.step, &dv[0][0],
            BLOCK_E, 1);
    multiply(BLOCK_N, BLOCK_M, BLOCK_D, &d_exponent[0][0], 1, BLOCK_N, q.at, q.step,
            &dk_total[0][0], BLOCK_D, 1);
}

static void backward_columns_kernel_2(const Grid program, const Grid programs, k_type *k_ptr,
        v_type *v_ptr, q_type *q_ptr, d_out_type *d_out_ptr, blocks_of_row_type *blocks_of_row_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dk_type *dk_ptr, dv_type *dv_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr,
        met_type *met_ptr, const int64_t *k_strides, const int64_t *v_strides,
        const int64_t *q_strides, const int64_t *d_out_strides, int n, int m, int k_start,
        int lists, real d_dot_factor, real scale_log2, int blocks_of_row_size_2, int GROUP, int D,
        int E)
{
    int column_lanes[BLOCK_N];
    int seen[BLOCK_N];
    Rows k;
    real k_room[BLOCK_N][BLOCK_D];
    real k_turned[BLOCK_D][BLOCK_N];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    real v_turned[BLOCK_E][BLOCK_N];
    int j[BLOCK_N];
    real dv[BLOCK_N][BLOCK_E];
    real dk_total[BLOCK_N][BLOCK_D];
    real dk[BLOCK_N][BLOCK_D];
    // first key of the tile
    int column = program.x * BLOCK_N;
    int kv_head = program.y;
    int batch = program.z;
    int kv_heads = programs.y;
    int heads = kv_heads * GROUP;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        column_lanes[c] = column + c;
    // tiles in one that lists name
    const int PARTS = LIST_M / BLOCK_M;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    k_ptr = k_ptr + ((int64_t)batch * k_strides[0] + (int64_t)kv_head * k_strides[1]);
    k_ptr = k_ptr + (int64_t)column * k_strides[2];
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)kv_head * v_strides[1]);
    v_ptr = v_ptr + (int64_t)column * v_strides[2];
    int64_t q_step = q_strides[2] * BLOCK_M;
    int64_t d_out_step = d_out_strides[2] * BLOCK_M;
    int64_t first_vector = ((int64_t)batch * kv_heads + kv_head) * m + column;
    // Keys that no row can see are not read, and their gradients are 0.
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        seen[c] = column_lanes[c] < keys;
    k = load_rows(k_type, &k_room[0][0], k_ptr, k_strides[2], seen, BLOCK_N, D, BLOCK_D);
    turn(BLOCK_N, BLOCK_D, k.at, k.step, 1, &k_turned[0][0]);
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_strides[2], seen, BLOCK_N, E, BLOCK_E);
    turn(BLOCK_N, BLOCK_E, v.at, v.step, 1, &v_turned[0][0]);
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        j[c] = k_start + column_lanes[c];
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            dv[c][x] = 0;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            dk_total[c][x] = 0;
    }
    for (int head = kv_head * GROUP; head < kv_head * GROUP + GROUP; head++) {
        q_type *q_head_ptr = q_ptr + (int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1];
        d_out_type *d_out_head_ptr = d_out_ptr + (int64_t)batch * d_out_strides[0] + (int64_t)head
                * d_out_strides[1];
        int64_t statistics = ((int64_t)batch * heads + head) * n;
        int entry = batch * heads + head;
        blocks_of_row_type *blocks_of_row_lists = blocks_of_row_ptr + (int64_t)entry * (13
                * blocks_of_row_size_2);
        // Tiles of rows that meet the tile's keys: met[begin] … met[end - 1].
        int number = entry * lists + column / LIST_N;
        begins_value begin = number_of((begins_ptr + number)[0]);
        begins_value end = number_of((begins_ptr + number + 1)[0]);
        for (int step = begin * PARTS; step < end * PARTS; step++) {
            met_value tile = number_of((met_ptr + step / PARTS)[0]) * PARTS + step % PARTS;
            backward_columns_tile_2(dv, dk_total, k, k_turned, v, v_turned, q_head_ptr + tile
                    * q_step, d_out_head_ptr + tile * d_out_step, lse_ptr + statistics + tile
                    * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M, blocks_of_row_lists + tile
                    * BLOCK_M, q_strides[2], d_out_strides[2], j, tile * BLOCK_M, q_start, n,
                    scale_log2, blocks_of_row_size_2, D, E, 1);
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++) {
            dk[c][x] = dk_total[c][x] * d_dot_factor;
            dk[c][x] = (seen[c] ? dk[c][x] : R(0.0)) + (((column_lanes[c] < m) & (x < D))
                    ? number_of((dk_ptr + first_vector * D)[c * D + x]) : R(0.0));
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        dk_type *to = dk_ptr + first_vector * D + (int64_t)c * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(dk_type, to[x], dk[c][x]);
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            dv[c][x] = (seen[c] ? dv[c][x] : R(0.0)) + (((column_lanes[c] < m) & (x < E))
                    ? number_of((dv_ptr + first_vector * E)[c * E + x]) : R(0.0));
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        dv_type *to = dv_ptr + first_vector * E + (int64_t)c * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(dv_type, to[x], dv[c][x]);
    }
}

void run(const Grid programs, const int threads, const int share, k_type *k_ptr, v_type *v_ptr,
        q_type *q_ptr, d_out_type *d_out_ptr, blocks_of_row_type *blocks_of_row_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dk_type *dk_ptr, dv_type *dv_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr,
        met_type *met_ptr, const int64_t *k_strides, const int64_t *v_strides,
        const int64_t *q_strides, const int64_t *d_out_strides, int n, int m, int k_start,
        int lists, double d_dot_factor, double scale_log2, int blocks_of_row_size_2, int GROUP,
        int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            backward_columns_kernel_2((Grid){x, y, z}, programs, k_ptr, v_ptr, q_ptr, d_out_ptr,
                    blocks_of_row_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, q_start_ptr,
                    kv_lengths_ptr, begins_ptr, met_ptr, k_strides, v_strides, q_strides,
                    d_out_strides, n, m, k_start, lists, d_dot_factor, scale_log2,
                    blocks_of_row_size_2, GROUP, D, E);
}
""",
    ),
    "_backward_rows_kernel_2": _CKernel(
        "_backward_rows_kernel_2",
        (
            "q_ptr d_out_ptr blocks_of_row_ptr k_ptr v_ptr lse_ptr delta_ptr dq_ptr "
            "q_start_ptr kv_lengths_ptr begins_ptr met_ptr q_strides d_out_strides k_strides "
            "v_strides n m k_start lists d_dot_factor scale_log2 blocks_of_row_size_2 GROUP D "
            "E"
        ),
        "n m k_start lists blocks_of_row_size_2 GROUP D E",
        "BLOCK_D BLOCK_E LIST_M LIST_N BLOCK_M BLOCK_N",
        "dq_ptr",
        r"""
INLINE void backward_rows_tile_2(real (*restrict dq_total)[BLOCK_D], const Rows q,
        const real (*restrict q_turned)[BLOCK_M], const Rows d_out,
        const real (*restrict d_out_turned)[BLOCK_M], delta_value *restrict delta,
        blocks_of_row_type **restrict blocks_of_row_at, real *restrict lse_2, k_type *k_ptr,
        v_type *v_ptr, int64_t k_stride, int64_t v_stride, int *restrict i, met_value column,
        int k_start, int keys, real scale_log2, int blocks_of_row_size_2, int D, int E,
        const int MASKED)
{
    int visible[BLOCK_N];
    met_value j[BLOCK_N];
    Rows k;
    real k_room[BLOCK_N][BLOCK_D];
    real dot_qk[BLOCK_N][BLOCK_M];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    real d_share[BLOCK_N][BLOCK_M];
    real d_weight[BLOCK_N][BLOCK_M];
    real exponent[BLOCK_N][BLOCK_M];
    met_value blocks_of_row_names_first_least;
    int in_first[BLOCK_M];
    met_value largest;
    int in_last[BLOCK_M];
    int related[BLOCK_N][BLOCK_M];
    real d_exponent[BLOCK_N][BLOCK_M];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const met_value column_lanes = column + c;
        visible[c] = column_lanes < keys;
        j[c] = k_start + column_lanes;
    }
    k = load_rows(k_type, &k_room[0][0], k_ptr, k_stride, MASKED ? visible : NULL, BLOCK_N, D,
            BLOCK_D);
    multiply(BLOCK_N, BLOCK_D, BLOCK_M, k.at, k.step, 1, &q_turned[0][0], BLOCK_M, &dot_qk[0][0],
            BLOCK_M, 0);
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_stride, MASKED ? visible : NULL, BLOCK_N, E,
            BLOCK_E);
    multiply(BLOCK_N, BLOCK_E, BLOCK_M, v.at, v.step, 1, &d_out_turned[0][0], BLOCK_M,
            &d_share[0][0], BLOCK_M, 0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            d_weight[c][r] = d_share[c][r] - delta[r];
            exponent[c][r] = scale_log2 * dot_qk[c][r];
        }
    }
    if (MASKED) {
        met_value blocks_of_row_names_first_least_here = largest_of(met_value);
        #pragma omp simd reduction(min:blocks_of_row_names_first_least_here)
        for (int c = 0; c < BLOCK_N; c++)
            blocks_of_row_names_first_least_here = smaller(blocks_of_row_names_first_least_here,
                    j[c]);
        blocks_of_row_names_first_least = blocks_of_row_names_first_least_here;
        met_value blocks_of_row_names_first = floor_div(blocks_of_row_names_first_least, 64);
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            in_first[r] = is_named(0 + blocks_of_row_names_first, blocks_of_row_at[r], 13,
                    blocks_of_row_size_2);
        met_value largest_here = least_of(met_value);
        #pragma omp simd reduction(max:largest_here)
        for (int c = 0; c < BLOCK_N; c++)
            largest_here = larger(largest_here, j[c]);
        largest = largest_here;
        met_value blocks_of_row_names_last = floor_div(largest, 64);
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            in_last[r] = is_named(0 + blocks_of_row_names_last, blocks_of_row_at[r], 13,
                    blocks_of_row_size_2);
        for (int c = 0; c < BLOCK_N; c++) {
            #pragma omp simd
            for (int r = 0; r < BLOCK_M; r++) {
                const int blocks_of_row_names = floor_div(j[c], 64) == blocks_of_row_names_first
                        ? in_first[r] : in_last[r];
                related[c][r] = (j[c] <= i[r]) & blocks_of_row_names & (((j[c] > i[r])
                        | (floor_div(j[c], 64) != 0)) & ((j[c] > i[r]) | (floor_div(i[r], 64)
                        - floor_div(j[c], 64) > 1))) & visible[c];
            }
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            if (MASKED) exponent[c][r] = related[c][r] ? exponent[c][r] : -INFINITY;
            const real weight = exp2_of(exponent[c][r] - lse_2[r]);
            d_exponent[c][r] = d_weight[c][r] * weight;
        }
    }
    multiply(BLOCK_M, BLOCK_N, BLOCK_D, &d_exponent[0][0], 1, BLOCK_M, k.at, k.step,
            &dq_total[0][0], BLOCK_D, 1);
}

static void backward_rows_kernel_2(const Grid program, const Grid programs, q_type *q_ptr,
        d_out_type *d_out_ptr, blocks_of_row_type *blocks_of_row_ptr, k_type *k_ptr, v_type *v_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dq_type *dq_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr, met_type *met_ptr,
        const int64_t *q_strides, const int64_t *d_out_strides, const int64_t *k_strides,
        const int64_t *v_strides, int n, int m, int k_start, int lists, real d_dot_factor,
        real scale_log2, int blocks_of_row_size_2, int GROUP, int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    blocks_of_row_type *blocks_of_row_at[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real q_turned[BLOCK_D][BLOCK_M];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_out_turned[BLOCK_E][BLOCK_M];
    delta_value delta[BLOCK_M];
    int i[BLOCK_M];
    real lse_2[BLOCK_M];
    real dq_total[BLOCK_M][BLOCK_D];
    real dq[BLOCK_M][BLOCK_D];
    // first row of the tile
    int row = program.x * BLOCK_M;
    int head = program.y;
    int batch = program.z;
    int heads = programs.y;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        row_lanes[r] = row + r;
    // tiles in one that lists name
    const int PARTS = LIST_N / BLOCK_N;
    int entry = batch * heads + head;
    blocks_of_row_type *blocks_of_row_lists = blocks_of_row_ptr + (int64_t)entry * (13
            * blocks_of_row_size_2);
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    q_ptr = q_ptr + ((int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1]);
    q_ptr = q_ptr + (int64_t)row * q_strides[2];
    d_out_ptr = d_out_ptr + ((int64_t)batch * d_out_strides[0] + (int64_t)head * d_out_strides[1]);
    d_out_ptr = d_out_ptr + (int64_t)row * d_out_strides[2];
    k_ptr = k_ptr + ((int64_t)batch * k_strides[0] + (int64_t)(head / GROUP) * k_strides[1]);
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)(head / GROUP) * v_strides[1]);
    int64_t k_step = k_strides[2] * BLOCK_N;
    int64_t v_step = v_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        visible[r] = row_lanes[r] < n;
        blocks_of_row_at[r] = blocks_of_row_lists + row + r;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, q.at, q.step, 1, &q_turned[0][0]);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_strides[2], visible, BLOCK_M,
            E, BLOCK_E);
    turn(BLOCK_M, BLOCK_E, d_out.at, d_out.step, 1, &d_out_turned[0][0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        lse_value lse = visible[r] ? number_of((lse_ptr + first_vector)[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        delta[r] = visible[r] ? number_of((delta_ptr + first_vector)[r]) : R(0.0);
        i[r] = q_start + row_lanes[r];
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    // Tiles of keys that the tile's rows meet: met[begin] … met[end - 1].
    int number = entry * lists + row / LIST_M;
    begins_value begin = number_of((begins_ptr + number)[0]);
    begins_value end = number_of((begins_ptr + number + 1)[0]);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            dq_total[r][x] = 0;
    }
    for (int step = begin * PARTS; step < end * PARTS; step++) {
        met_value tile = number_of((met_ptr + step / PARTS)[0]) * PARTS + step % PARTS;
        backward_rows_tile_2(dq_total, q, q_turned, d_out, d_out_turned, delta, blocks_of_row_at,
                lse_2, k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2], i,
                tile * BLOCK_N, k_start, keys, scale_log2, blocks_of_row_size_2, D, E, 1);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++) {
            dq[r][x] = dq_total[r][x] * d_dot_factor;
            dq[r][x] = dq[r][x] + ((visible[r] & (x < D)) ? number_of((dq_ptr + first_vector * D)[r
                    * D + x]) : R(0.0));
        }
    }
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        dq_type *to = dq_ptr + first_vector * D + (int64_t)r * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(dq_type, to[x], dq[r][x]);
    }
}

void run(const Grid programs, const int threads, const int share, q_type *q_ptr,
        d_out_type *d_out_ptr, blocks_of_row_type *blocks_of_row_ptr, k_type *k_ptr, v_type *v_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dq_type *dq_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, begins_type *begins_ptr, met_type *met_ptr,
        const int64_t *q_strides, const int64_t *d_out_strides, const int64_t *k_strides,
        const int64_t *v_strides, int n, int m, int k_start, int lists, double d_dot_factor,
        double scale_log2, int blocks_of_row_size_2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            backward_rows_kernel_2((Grid){x, y, z}, programs, q_ptr, d_out_ptr, blocks_of_row_ptr,
                    k_ptr, v_ptr, lse_ptr, delta_ptr, dq_ptr, q_start_ptr, kv_lengths_ptr,
                    begins_ptr, met_ptr, q_strides, d_out_strides, k_strides, v_strides, n, m,
                    k_start, lists, d_dot_factor, scale_log2, blocks_of_row_size_2, GROUP, D, E);
}
""",
    ),
    "_near_forward_kernel": _CKernel(
        "_near_forward_kernel",
        (
            "q_ptr k_win_ptr v_win_ptr out_ptr lse_ptr residual_ptr q_start_ptr "
            "kv_lengths_ptr q_strides k_win_strides v_win_strides n m k_start scale_log2 "
            "GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "out_ptr lse_ptr residual_ptr",
        r"""
INLINE void near_forward_tile(real *restrict peak, real *restrict rows,
        real (*restrict total)[BLOCK_E], const Rows q, const real (*restrict q_turned)[BLOCK_M],
        k_win_type *k_win_ptr, v_win_type *v_win_ptr, int64_t k_win_stride, int64_t v_win_stride,
        int *restrict i, int column, int k_start, int low, int high, real scale_log2, int D, int E,
        const int MASKED)
{
    int visible[BLOCK_N];
    int j[BLOCK_N];
    Rows k_win;
    real k_win_room[BLOCK_N][BLOCK_D];
    real dot_qk_win[BLOCK_N][BLOCK_M];
    real exponent[BLOCK_N][BLOCK_M];
    real old_peak[BLOCK_M];
    real largest[BLOCK_M];
    real shrink[BLOCK_M];
    real weight[BLOCK_N][BLOCK_M];
    real rows_sum[BLOCK_M];
    Rows v_win;
    real v_win_room[BLOCK_N][BLOCK_E];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const int column_lanes = column + c;
        visible[c] = (column_lanes >= low) & (column_lanes < high);
        j[c] = k_start + column_lanes;
    }
    k_win = load_rows(k_win_type, &k_win_room[0][0], k_win_ptr, k_win_stride, MASKED ? visible
            : NULL, BLOCK_N, D, BLOCK_D);
    Span spans[BLOCK_M / LANES];
    for (int group = 0; MASKED && group < BLOCK_M / LANES; group++) {
        spans[group] = (Span){BLOCK_N, 0};
        for (int c = 0; c < BLOCK_N; c++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int r = group * LANES; r < (group + 1) * LANES; r++)
                some |= ((i[r] - j[c] <= 511) & (j[c] <= i[r]) & visible[c]);
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_D, BLOCK_M, k_win.at, k_win.step, 1,
            &q_turned[0][0], BLOCK_M, &dot_qk_win[0][0], BLOCK_M, 0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            int related = 0;
            if (MASKED) related = (i[r] - j[c] <= 511) & (j[c] <= i[r]) & visible[c];
            exponent[c][r] = scale_log2 * dot_qk_win[c][r];
            if (MASKED) exponent[c][r] = related ? exponent[c][r] : -INFINITY;
        }
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        old_peak[r] = peak[r];
    for (int r = 0; r < BLOCK_M; r++)
        largest[r] = -INFINITY;
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            largest[r] = larger(largest[r], exponent[c][r]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        peak[r] = larger(peak[r], largest[r]);
        shrink[r] = exp2_of(old_peak[r] - peak[r]);
    }
    for (int r = 0; r < BLOCK_M; r++)
        rows_sum[r] = R(0.0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            weight[c][r] = exp2_of(exponent[c][r] - peak[r]);
            rows_sum[r] += weight[c][r];
        }
    }
    v_win = load_rows(v_win_type, &v_win_room[0][0], v_win_ptr, v_win_stride, MASKED ? visible
            : NULL, BLOCK_N, E, BLOCK_E);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        rows[r] = rows[r] * shrink[r] + rows_sum[r];
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            total[r][x] = total[r][x] * shrink[r];
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_E, &weight[0][0], 1, BLOCK_M,
            v_win.at, v_win.step, &total[0][0], BLOCK_E);
}

static void near_forward_kernel(const Grid program, const Grid programs, q_type *q_ptr,
        k_win_type *k_win_ptr, v_win_type *v_win_ptr, out_type *out_ptr, lse_type *lse_ptr,
        residual_type *residual_ptr, q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr,
        const int64_t *q_strides, const int64_t *k_win_strides, const int64_t *v_win_strides, int n,
        int m, int k_start, real scale_log2, int GROUP, int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real q_turned[BLOCK_D][BLOCK_M];
    int i[BLOCK_M];
    real peak[BLOCK_M];
    real rows[BLOCK_M];
    real total[BLOCK_M][BLOCK_E];
    int tile;
    real out[BLOCK_M][BLOCK_E];
    real lse[BLOCK_M];
    real residual[BLOCK_M][BLOCK_E];
    // first row of the tile
    int row = program.x * BLOCK_M;
    int head = program.y;
    int batch = program.z;
    int heads = programs.y;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        row_lanes[r] = row + r;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    q_ptr = q_ptr + ((int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1]);
    q_ptr = q_ptr + (int64_t)row * q_strides[2];
    k_win_ptr = k_win_ptr + ((int64_t)batch * k_win_strides[0] + (int64_t)(head / GROUP)
            * k_win_strides[1]);
    v_win_ptr = v_win_ptr + ((int64_t)batch * v_win_strides[0] + (int64_t)(head / GROUP)
            * v_win_strides[1]);
    int64_t k_win_step = k_win_strides[2] * BLOCK_N;
    int64_t v_win_step = v_win_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        visible[r] = row_lanes[r] < n;
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, q.at, q.step, 1, &q_turned[0][0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        i[r] = q_start + row_lanes[r];
    // Positions of the tile's first and last row; [low, high) are the keys that it may see.
    int first = q_start + row;
    int last = first + smaller(BLOCK_M, n - row) - 1;
    int low = larger(first - 511 - k_start, 0);
    int high = smaller(last + 1 - k_start, keys);
    int t0 = low / BLOCK_N;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_N), t0);
    int full_low = larger(last - 511 - k_start, 0);
    int full_high = smaller(first + 1 - k_start, keys);
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_N), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_N, f0), t1);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        peak[r] = -R(3.4028234663852886e+38);
        rows[r] = 0;
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            total[r][x] = 0;
    }
    for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
        tile = t0 + step;
        tile = tile < f0 ? tile : tile + (f1 - f0);
        near_forward_tile(peak, rows, total, q, q_turned, k_win_ptr + tile * k_win_step, v_win_ptr
                + tile * v_win_step, k_win_strides[2], v_win_strides[2], i, tile * BLOCK_N, k_start,
                low, high, scale_log2, D, E, 1);
    }
    for (int tile = f0; tile < f1; tile++) {
        near_forward_tile(peak, rows, total, q, q_turned, k_win_ptr + tile * k_win_step, v_win_ptr
                + tile * v_win_step, k_win_strides[2], v_win_strides[2], i, tile * BLOCK_N, k_start,
                low, high, scale_log2, D, E, 0);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            out[r][x] = total[r][x] * inverse_of(rows[r]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        lse[r] = R(0.6931471805599453) * peak[r] + log_or_none_of(rows[r]);
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        out_type *to = out_ptr + first_vector * E + (int64_t)r * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(out_type, to[x], out[r][x]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        if (visible[r]) put(lse_type, (lse_ptr + first_vector)[r], lse[r]);
    // what rounding takes from `out`, for backward
    if (residual_ptr != NULL) {
        for (int r = 0; r < BLOCK_M; r++) {
            #pragma omp simd
            for (int x = 0; x < BLOCK_E; x++)
                residual[r][x] = out[r][x] - rounded(out_type, out[r][x]);
        }
        for (int r = 0; r < BLOCK_M; r++) {
            if (!(visible[r])) continue;
            residual_type *to = residual_ptr + first_vector * E + (int64_t)r * (E);
            #pragma omp simd
            for (int x = 0; x < E; x++)
                put(residual_type, to[x], residual[r][x]);
        }
    }
}

void run(const Grid programs, const int threads, const int share, q_type *q_ptr,
        k_win_type *k_win_ptr, v_win_type *v_win_ptr, out_type *out_ptr, lse_type *lse_ptr,
        residual_type *residual_ptr, q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr,
        const int64_t *q_strides, const int64_t *k_win_strides, const int64_t *v_win_strides, int n,
        int m, int k_start, double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            near_forward_kernel((Grid){x, y, z}, programs, q_ptr, k_win_ptr, v_win_ptr, out_ptr,
                    lse_ptr, residual_ptr, q_start_ptr, kv_lengths_ptr, q_strides, k_win_strides,
                    v_win_strides, n, m, k_start, scale_log2, GROUP, D, E);
}
""",
    ),
    "_near_backward_columns_kernel": _CKernel(
        "_near_backward_columns_kernel",
        (
            "k_win_ptr v_win_ptr q_ptr d_out_ptr lse_ptr delta_ptr d_k_win_ptr d_v_win_ptr "
            "q_start_ptr kv_lengths_ptr k_win_strides v_win_strides q_strides d_out_strides n "
            "m k_start d_dot_factor scale_log2 GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "d_k_win_ptr d_v_win_ptr",
        r"""
INLINE void near_backward_columns_tile(real (*restrict d_v_win)[BLOCK_E],
        real (*restrict d_k_win_total)[BLOCK_D], const Rows k_win,
        const real (*restrict k_win_turned)[BLOCK_N], const Rows v_win,
        const real (*restrict v_win_turned)[BLOCK_N], q_type *q_ptr, d_out_type *d_out_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, int64_t q_stride, int64_t d_out_stride,
        int *restrict j, int row, int q_start, int n, real scale_log2, int D, int E,
        const int MASKED)
{
    int visible[BLOCK_M];
    int i[BLOCK_M];
    real lse_2[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real dot_qk_win[BLOCK_M][BLOCK_N];
    int related[BLOCK_M][BLOCK_N];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_share[BLOCK_M][BLOCK_N];
    delta_value delta[BLOCK_M];
    real weight[BLOCK_M][BLOCK_N];
    real d_exponent[BLOCK_M][BLOCK_N];
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        const int row_lanes = row + r;
        visible[r] = row_lanes < n;
        i[r] = q_start + row_lanes;
        lse_value lse = (!MASKED || visible[r]) ? number_of(lse_ptr[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_stride, MASKED ? visible : NULL, BLOCK_M, D,
            BLOCK_D);
    Span spans[BLOCK_N / LANES];
    for (int group = 0; MASKED && group < BLOCK_N / LANES; group++) {
        spans[group] = (Span){BLOCK_M, 0};
        for (int r = 0; r < BLOCK_M; r++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int c = group * LANES; c < (group + 1) * LANES; c++)
                some |= ((i[r] - j[c] <= 511) & (j[c] <= i[r]));
            if (some) spans[group] = with_span(spans[group], r);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_D, BLOCK_N, q.at, q.step, 1,
            &k_win_turned[0][0], BLOCK_N, &dot_qk_win[0][0], BLOCK_N, 0);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_stride, MASKED ? visible
            : NULL, BLOCK_M, E, BLOCK_E);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++)
            if (MASKED) related[r][c] = (i[r] - j[c] <= 511) & (j[c] <= i[r]);
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_E, BLOCK_N, d_out.at, d_out.step, 1,
            &v_win_turned[0][0], BLOCK_N, &d_share[0][0], BLOCK_N, 0);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        delta[r] = (!MASKED || visible[r]) ? number_of(delta_ptr[r]) : R(0.0);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++) {
            const real d_weight = d_share[r][c] - delta[r];
            real exponent = scale_log2 * dot_qk_win[r][c];
            if (MASKED) exponent = related[r][c] ? exponent : -INFINITY;
            weight[r][c] = exp2_of(exponent - lse_2[r]);
            d_exponent[r][c] = d_weight * weight[r][c];
        }
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_E, &weight[0][0], 1, BLOCK_N,
            d_out.at, d_out.step, &d_v_win[0][0], BLOCK_E);
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_D, &d_exponent[0][0], 1, BLOCK_N,
            q.at, q.step, &d_k_win_total[0][0], BLOCK_D);
}

static void near_backward_columns_kernel(const Grid program, const Grid programs,
        k_win_type *k_win_ptr, v_win_type *v_win_ptr, q_type *q_ptr, d_out_type *d_out_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, d_k_win_type *d_k_win_ptr,
        d_v_win_type *d_v_win_ptr, q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr,
        const int64_t *k_win_strides, const int64_t *v_win_strides, const int64_t *q_strides,
        const int64_t *d_out_strides, int n, int m, int k_start, real d_dot_factor, real scale_log2,
        int GROUP, int D, int E)
{
    int column_lanes[BLOCK_N];
    int seen[BLOCK_N];
    Rows k_win;
    real k_win_room[BLOCK_N][BLOCK_D];
    real k_win_turned[BLOCK_D][BLOCK_N];
    Rows v_win;
    real v_win_room[BLOCK_N][BLOCK_E];
    real v_win_turned[BLOCK_E][BLOCK_N];
    int j[BLOCK_N];
    real d_v_win[BLOCK_N][BLOCK_E];
    real d_k_win_total[BLOCK_N][BLOCK_D];
    int tile;
    real d_k_win[BLOCK_N][BLOCK_D];
    // first key of the tile
    int column = program.x * BLOCK_N;
    int kv_head = program.y;
    int batch = program.z;
    int kv_heads = programs.y;
    int heads = kv_heads * GROUP;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        column_lanes[c] = column + c;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    k_win_ptr = k_win_ptr + ((int64_t)batch * k_win_strides[0] + (int64_t)kv_head
            * k_win_strides[1]);
    k_win_ptr = k_win_ptr + (int64_t)column * k_win_strides[2];
    v_win_ptr = v_win_ptr + ((int64_t)batch * v_win_strides[0] + (int64_t)kv_head
            * v_win_strides[1]);
    v_win_ptr = v_win_ptr + (int64_t)column * v_win_strides[2];
    int64_t q_step = q_strides[2] * BLOCK_M;
    int64_t d_out_step = d_out_strides[2] * BLOCK_M;
    int64_t first_vector = ((int64_t)batch * kv_heads + kv_head) * m + column;
    // Keys that no row can see are not read, and their gradients are 0.
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        seen[c] = column_lanes[c] < keys;
    k_win = load_rows(k_win_type, &k_win_room[0][0], k_win_ptr, k_win_strides[2], seen, BLOCK_N, D,
            BLOCK_D);
    turn(BLOCK_N, BLOCK_D, k_win.at, k_win.step, 1, &k_win_turned[0][0]);
    v_win = load_rows(v_win_type, &v_win_room[0][0], v_win_ptr, v_win_strides[2], seen, BLOCK_N, E,
            BLOCK_E);
    turn(BLOCK_N, BLOCK_E, v_win.at, v_win.step, 1, &v_win_turned[0][0]);
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        j[c] = k_start + column_lanes[c];
    // Positions of the tile's first and last key; [low, high) are the rows that may see it.
    int first = k_start + column;
    int last = first + smaller(BLOCK_N, keys - column) - 1;
    int in_rows = column < keys ? n : 0;
    int low = larger(first - q_start, 0);
    int high = smaller(last + 512 - q_start, in_rows);
    int t0 = low / BLOCK_M;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_M), t0);
    int full_low = larger(last - q_start, 0);
    int full_high = smaller(first + 512 - q_start, in_rows);
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_M), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_M, f0), t1);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            d_v_win[c][x] = 0;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            d_k_win_total[c][x] = 0;
    }
    for (int head = kv_head * GROUP; head < kv_head * GROUP + GROUP; head++) {
        q_type *q_head_ptr = q_ptr + (int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1];
        d_out_type *d_out_head_ptr = d_out_ptr + (int64_t)batch * d_out_strides[0] + (int64_t)head
                * d_out_strides[1];
        int64_t statistics = ((int64_t)batch * heads + head) * n;
        for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
            tile = t0 + step;
            tile = tile < f0 ? tile : tile + (f1 - f0);
            near_backward_columns_tile(d_v_win, d_k_win_total, k_win, k_win_turned, v_win,
                    v_win_turned, q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    q_strides[2], d_out_strides[2], j, tile * BLOCK_M, q_start, n, scale_log2, D, E,
                    1);
        }
        for (int tile = f0; tile < f1; tile++) {
            near_backward_columns_tile(d_v_win, d_k_win_total, k_win, k_win_turned, v_win,
                    v_win_turned, q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    q_strides[2], d_out_strides[2], j, tile * BLOCK_M, q_start, n, scale_log2, D, E,
                    0);
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            d_k_win[c][x] = d_k_win_total[c][x] * d_dot_factor;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        d_k_win_type *to = d_k_win_ptr + first_vector * D + (int64_t)c * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(d_k_win_type, to[x], seen[c] ? d_k_win[c][x] : R(0.0));
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        d_v_win_type *to = d_v_win_ptr + first_vector * E + (int64_t)c * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(d_v_win_type, to[x], seen[c] ? d_v_win[c][x] : R(0.0));
    }
}

void run(const Grid programs, const int threads, const int share, k_win_type *k_win_ptr,
        v_win_type *v_win_ptr, q_type *q_ptr, d_out_type *d_out_ptr, lse_type *lse_ptr,
        delta_type *delta_ptr, d_k_win_type *d_k_win_ptr, d_v_win_type *d_v_win_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *k_win_strides,
        const int64_t *v_win_strides, const int64_t *q_strides, const int64_t *d_out_strides, int n,
        int m, int k_start, double d_dot_factor, double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            near_backward_columns_kernel((Grid){x, y, z}, programs, k_win_ptr, v_win_ptr, q_ptr,
                    d_out_ptr, lse_ptr, delta_ptr, d_k_win_ptr, d_v_win_ptr, q_start_ptr,
                    kv_lengths_ptr, k_win_strides, v_win_strides, q_strides, d_out_strides, n, m,
                    k_start, d_dot_factor, scale_log2, GROUP, D, E);
}
""",
    ),
    "_near_backward_rows_kernel": _CKernel(
        "_near_backward_rows_kernel",
        (
            "q_ptr d_out_ptr k_win_ptr v_win_ptr lse_ptr delta_ptr dq_ptr q_start_ptr "
            "kv_lengths_ptr q_strides d_out_strides k_win_strides v_win_strides n m k_start "
            "d_dot_factor scale_log2 GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "dq_ptr",
        r"""
INLINE void near_backward_rows_tile(real (*restrict dq_total)[BLOCK_D], const Rows q,
        const real (*restrict q_turned)[BLOCK_M], const Rows d_out,
        const real (*restrict d_out_turned)[BLOCK_M], delta_value *restrict delta,
        real *restrict lse_2, k_win_type *k_win_ptr, v_win_type *v_win_ptr, int64_t k_win_stride,
        int64_t v_win_stride, int *restrict i, int column, int k_start, int low, int high,
        real scale_log2, int D, int E, const int MASKED)
{
    int visible[BLOCK_N];
    int j[BLOCK_N];
    Rows k_win;
    real k_win_room[BLOCK_N][BLOCK_D];
    real dot_qk_win[BLOCK_N][BLOCK_M];
    int related[BLOCK_N][BLOCK_M];
    Rows v_win;
    real v_win_room[BLOCK_N][BLOCK_E];
    real d_share[BLOCK_N][BLOCK_M];
    real d_exponent[BLOCK_N][BLOCK_M];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const int column_lanes = column + c;
        visible[c] = (column_lanes >= low) & (column_lanes < high);
        j[c] = k_start + column_lanes;
    }
    k_win = load_rows(k_win_type, &k_win_room[0][0], k_win_ptr, k_win_stride, MASKED ? visible
            : NULL, BLOCK_N, D, BLOCK_D);
    Span spans[BLOCK_M / LANES];
    for (int group = 0; MASKED && group < BLOCK_M / LANES; group++) {
        spans[group] = (Span){BLOCK_N, 0};
        for (int c = 0; c < BLOCK_N; c++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int r = group * LANES; r < (group + 1) * LANES; r++)
                some |= ((i[r] - j[c] <= 511) & (j[c] <= i[r]) & visible[c]);
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_D, BLOCK_M, k_win.at, k_win.step, 1,
            &q_turned[0][0], BLOCK_M, &dot_qk_win[0][0], BLOCK_M, 0);
    v_win = load_rows(v_win_type, &v_win_room[0][0], v_win_ptr, v_win_stride, MASKED ? visible
            : NULL, BLOCK_N, E, BLOCK_E);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            if (MASKED) related[c][r] = (i[r] - j[c] <= 511) & (j[c] <= i[r]) & visible[c];
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_E, BLOCK_M, v_win.at, v_win.step, 1,
            &d_out_turned[0][0], BLOCK_M, &d_share[0][0], BLOCK_M, 0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            const real d_weight = d_share[c][r] - delta[r];
            real exponent = scale_log2 * dot_qk_win[c][r];
            if (MASKED) exponent = related[c][r] ? exponent : -INFINITY;
            const real weight = exp2_of(exponent - lse_2[r]);
            d_exponent[c][r] = d_weight * weight;
        }
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_D, &d_exponent[0][0], 1, BLOCK_M,
            k_win.at, k_win.step, &dq_total[0][0], BLOCK_D);
}

static void near_backward_rows_kernel(const Grid program, const Grid programs, q_type *q_ptr,
        d_out_type *d_out_ptr, k_win_type *k_win_ptr, v_win_type *v_win_ptr, lse_type *lse_ptr,
        delta_type *delta_ptr, dq_type *dq_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_strides, const int64_t *d_out_strides,
        const int64_t *k_win_strides, const int64_t *v_win_strides, int n, int m, int k_start,
        real d_dot_factor, real scale_log2, int GROUP, int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real q_turned[BLOCK_D][BLOCK_M];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_out_turned[BLOCK_E][BLOCK_M];
    delta_value delta[BLOCK_M];
    int i[BLOCK_M];
    real lse_2[BLOCK_M];
    real dq_total[BLOCK_M][BLOCK_D];
    int tile;
    real dq[BLOCK_M][BLOCK_D];
    // first row of the tile
    int row = program.x * BLOCK_M;
    int head = program.y;
    int batch = program.z;
    int heads = programs.y;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        row_lanes[r] = row + r;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    q_ptr = q_ptr + ((int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1]);
    q_ptr = q_ptr + (int64_t)row * q_strides[2];
    d_out_ptr = d_out_ptr + ((int64_t)batch * d_out_strides[0] + (int64_t)head * d_out_strides[1]);
    d_out_ptr = d_out_ptr + (int64_t)row * d_out_strides[2];
    k_win_ptr = k_win_ptr + ((int64_t)batch * k_win_strides[0] + (int64_t)(head / GROUP)
            * k_win_strides[1]);
    v_win_ptr = v_win_ptr + ((int64_t)batch * v_win_strides[0] + (int64_t)(head / GROUP)
            * v_win_strides[1]);
    int64_t k_win_step = k_win_strides[2] * BLOCK_N;
    int64_t v_win_step = v_win_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        visible[r] = row_lanes[r] < n;
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, q.at, q.step, 1, &q_turned[0][0]);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_strides[2], visible, BLOCK_M,
            E, BLOCK_E);
    turn(BLOCK_M, BLOCK_E, d_out.at, d_out.step, 1, &d_out_turned[0][0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        lse_value lse = visible[r] ? number_of((lse_ptr + first_vector)[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        delta[r] = visible[r] ? number_of((delta_ptr + first_vector)[r]) : R(0.0);
        i[r] = q_start + row_lanes[r];
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    // Positions of the tile's first and last row; [low, high) are the keys that it may see.
    int first = q_start + row;
    int last = first + smaller(BLOCK_M, n - row) - 1;
    int low = larger(first - 511 - k_start, 0);
    int high = smaller(last + 1 - k_start, keys);
    int t0 = low / BLOCK_N;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_N), t0);
    int full_low = larger(last - 511 - k_start, 0);
    int full_high = smaller(first + 1 - k_start, keys);
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_N), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_N, f0), t1);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            dq_total[r][x] = 0;
    }
    for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
        tile = t0 + step;
        tile = tile < f0 ? tile : tile + (f1 - f0);
        near_backward_rows_tile(dq_total, q, q_turned, d_out, d_out_turned, delta, lse_2, k_win_ptr
                + tile * k_win_step, v_win_ptr + tile * v_win_step, k_win_strides[2],
                v_win_strides[2], i, tile * BLOCK_N, k_start, low, high, scale_log2, D, E, 1);
    }
    for (int tile = f0; tile < f1; tile++) {
        near_backward_rows_tile(dq_total, q, q_turned, d_out, d_out_turned, delta, lse_2, k_win_ptr
                + tile * k_win_step, v_win_ptr + tile * v_win_step, k_win_strides[2],
                v_win_strides[2], i, tile * BLOCK_N, k_start, low, high, scale_log2, D, E, 0);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            dq[r][x] = dq_total[r][x] * d_dot_factor;
    }
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        dq_type *to = dq_ptr + first_vector * D + (int64_t)r * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(dq_type, to[x], dq[r][x]);
    }
}

void run(const Grid programs, const int threads, const int share, q_type *q_ptr,
        d_out_type *d_out_ptr, k_win_type *k_win_ptr, v_win_type *v_win_ptr, lse_type *lse_ptr,
        delta_type *delta_ptr, dq_type *dq_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_strides, const int64_t *d_out_strides,
        const int64_t *k_win_strides, const int64_t *v_win_strides, int n, int m, int k_start,
        double d_dot_factor, double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            near_backward_rows_kernel((Grid){x, y, z}, programs, q_ptr, d_out_ptr, k_win_ptr,
                    v_win_ptr, lse_ptr, delta_ptr, dq_ptr, q_start_ptr, kv_lengths_ptr, q_strides,
                    d_out_strides, k_win_strides, v_win_strides, n, m, k_start, d_dot_factor,
                    scale_log2, GROUP, D, E);
}
""",
    ),
    "_near_backward_at_once_kernel": _CKernel(
        "_near_backward_at_once_kernel",
        (
            "k_win_ptr v_win_ptr q_ptr d_out_ptr dq_total_ptr lse_ptr delta_ptr d_k_win_ptr "
            "d_v_win_ptr q_start_ptr kv_lengths_ptr k_win_strides v_win_strides q_strides "
            "d_out_strides dq_total_strides n m k_start d_dot_factor scale_log2 GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "d_k_win_ptr d_v_win_ptr",
        r"""
INLINE void near_backward_at_once_tile(real (*restrict d_v_win)[BLOCK_E],
        real (*restrict d_k_win_total)[BLOCK_D], const Rows k_win,
        const real (*restrict k_win_turned)[BLOCK_N], const Rows v_win,
        const real (*restrict v_win_turned)[BLOCK_N], q_type *q_ptr, d_out_type *d_out_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dq_total_type *dq_total_ptr, int64_t q_stride,
        int64_t d_out_stride, int64_t dq_total_stride, int *restrict j, int row, int q_start, int n,
        real scale_log2, int D, int E, const int MASKED)
{
    int visible[BLOCK_M];
    int i[BLOCK_M];
    real lse_2[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real dot_qk_win[BLOCK_M][BLOCK_N];
    int related[BLOCK_M][BLOCK_N];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_share[BLOCK_M][BLOCK_N];
    delta_value delta[BLOCK_M];
    real weight[BLOCK_M][BLOCK_N];
    real d_exponent[BLOCK_M][BLOCK_N];
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        const int row_lanes = row + r;
        visible[r] = row_lanes < n;
        i[r] = q_start + row_lanes;
        lse_value lse = (!MASKED || visible[r]) ? number_of(lse_ptr[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_stride, MASKED ? visible : NULL, BLOCK_M, D,
            BLOCK_D);
    Span spans[BLOCK_N / LANES];
    for (int group = 0; MASKED && group < BLOCK_N / LANES; group++) {
        spans[group] = (Span){BLOCK_M, 0};
        for (int r = 0; r < BLOCK_M; r++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int c = group * LANES; c < (group + 1) * LANES; c++)
                some |= ((i[r] - j[c] <= 511) & (j[c] <= i[r]));
            if (some) spans[group] = with_span(spans[group], r);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_D, BLOCK_N, q.at, q.step, 1,
            &k_win_turned[0][0], BLOCK_N, &dot_qk_win[0][0], BLOCK_N, 0);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_stride, MASKED ? visible
            : NULL, BLOCK_M, E, BLOCK_E);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++)
            if (MASKED) related[r][c] = (i[r] - j[c] <= 511) & (j[c] <= i[r]);
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_E, BLOCK_N, d_out.at, d_out.step, 1,
            &v_win_turned[0][0], BLOCK_N, &d_share[0][0], BLOCK_N, 0);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        delta[r] = (!MASKED || visible[r]) ? number_of(delta_ptr[r]) : R(0.0);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++) {
            const real d_weight = d_share[r][c] - delta[r];
            real exponent = scale_log2 * dot_qk_win[r][c];
            if (MASKED) exponent = related[r][c] ? exponent : -INFINITY;
            weight[r][c] = exp2_of(exponent - lse_2[r]);
            d_exponent[r][c] = d_weight * weight[r][c];
        }
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_E, &weight[0][0], 1, BLOCK_N,
            d_out.at, d_out.step, &d_v_win[0][0], BLOCK_E);
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_D, &d_exponent[0][0], 1, BLOCK_N,
            q.at, q.step, &d_k_win_total[0][0], BLOCK_D);
    multiply_others(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_D, &d_exponent[0][0], BLOCK_N, 1,
            k_win.at, k_win.step, dq_total_ptr, dq_total_stride);
}

static void near_backward_at_once_kernel(const Grid program, const Grid programs,
        k_win_type *k_win_ptr, v_win_type *v_win_ptr, q_type *q_ptr, d_out_type *d_out_ptr,
        dq_total_type *dq_total_ptr, lse_type *lse_ptr, delta_type *delta_ptr,
        d_k_win_type *d_k_win_ptr, d_v_win_type *d_v_win_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *k_win_strides, const int64_t *v_win_strides,
        const int64_t *q_strides, const int64_t *d_out_strides, const int64_t *dq_total_strides,
        int n, int m, int k_start, real d_dot_factor, real scale_log2, int GROUP, int D, int E)
{
    int column_lanes[BLOCK_N];
    int seen[BLOCK_N];
    Rows k_win;
    real k_win_room[BLOCK_N][BLOCK_D];
    real k_win_turned[BLOCK_D][BLOCK_N];
    Rows v_win;
    real v_win_room[BLOCK_N][BLOCK_E];
    real v_win_turned[BLOCK_E][BLOCK_N];
    int j[BLOCK_N];
    real d_v_win[BLOCK_N][BLOCK_E];
    real d_k_win_total[BLOCK_N][BLOCK_D];
    int tile;
    real d_k_win[BLOCK_N][BLOCK_D];
    // first key of the tile
    int column = program.x * BLOCK_N;
    int kv_head = program.y;
    int batch = program.z;
    int kv_heads = programs.y;
    int heads = kv_heads * GROUP;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        column_lanes[c] = column + c;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    k_win_ptr = k_win_ptr + ((int64_t)batch * k_win_strides[0] + (int64_t)kv_head
            * k_win_strides[1]);
    k_win_ptr = k_win_ptr + (int64_t)column * k_win_strides[2];
    v_win_ptr = v_win_ptr + ((int64_t)batch * v_win_strides[0] + (int64_t)kv_head
            * v_win_strides[1]);
    v_win_ptr = v_win_ptr + (int64_t)column * v_win_strides[2];
    int64_t q_step = q_strides[2] * BLOCK_M;
    int64_t d_out_step = d_out_strides[2] * BLOCK_M;
    int64_t dq_total_step = dq_total_strides[2] * BLOCK_M;
    int64_t first_vector = ((int64_t)batch * kv_heads + kv_head) * m + column;
    // Keys that no row can see are not read, and their gradients are 0.
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        seen[c] = column_lanes[c] < keys;
    k_win = load_rows(k_win_type, &k_win_room[0][0], k_win_ptr, k_win_strides[2], seen, BLOCK_N, D,
            BLOCK_D);
    turn(BLOCK_N, BLOCK_D, k_win.at, k_win.step, 1, &k_win_turned[0][0]);
    v_win = load_rows(v_win_type, &v_win_room[0][0], v_win_ptr, v_win_strides[2], seen, BLOCK_N, E,
            BLOCK_E);
    turn(BLOCK_N, BLOCK_E, v_win.at, v_win.step, 1, &v_win_turned[0][0]);
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        j[c] = k_start + column_lanes[c];
    // Positions of the tile's first and last key; [low, high) are the rows that may see it.
    int first = k_start + column;
    int last = first + smaller(BLOCK_N, keys - column) - 1;
    int in_rows = column < keys ? n : 0;
    int low = larger(first - q_start, 0);
    int high = smaller(last + 512 - q_start, in_rows);
    int t0 = low / BLOCK_M;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_M), t0);
    int full_low = larger(last - q_start, 0);
    int full_high = smaller(first + 512 - q_start, in_rows);
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_M), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_M, f0), t1);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            d_v_win[c][x] = 0;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            d_k_win_total[c][x] = 0;
    }
    for (int head = kv_head * GROUP; head < kv_head * GROUP + GROUP; head++) {
        q_type *q_head_ptr = q_ptr + (int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1];
        d_out_type *d_out_head_ptr = d_out_ptr + (int64_t)batch * d_out_strides[0] + (int64_t)head
                * d_out_strides[1];
        dq_total_type *dq_total_head_ptr = dq_total_ptr + (int64_t)batch * dq_total_strides[0]
                + (int64_t)head * dq_total_strides[1];
        int64_t statistics = ((int64_t)batch * heads + head) * n;
        for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
            tile = t0 + step;
            tile = tile < f0 ? tile : tile + (f1 - f0);
            near_backward_at_once_tile(d_v_win, d_k_win_total, k_win, k_win_turned, v_win,
                    v_win_turned, q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    dq_total_head_ptr + tile * dq_total_step, q_strides[2], d_out_strides[2],
                    dq_total_strides[2], j, tile * BLOCK_M, q_start, n, scale_log2, D, E, 1);
        }
        for (int tile = f0; tile < f1; tile++) {
            near_backward_at_once_tile(d_v_win, d_k_win_total, k_win, k_win_turned, v_win,
                    v_win_turned, q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    dq_total_head_ptr + tile * dq_total_step, q_strides[2], d_out_strides[2],
                    dq_total_strides[2], j, tile * BLOCK_M, q_start, n, scale_log2, D, E, 0);
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            d_k_win[c][x] = d_k_win_total[c][x] * d_dot_factor;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        d_k_win_type *to = d_k_win_ptr + first_vector * D + (int64_t)c * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(d_k_win_type, to[x], seen[c] ? d_k_win[c][x] : R(0.0));
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        d_v_win_type *to = d_v_win_ptr + first_vector * E + (int64_t)c * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(d_v_win_type, to[x], seen[c] ? d_v_win[c][x] : R(0.0));
    }
}

void run(const Grid programs, const int threads, const int share, k_win_type *k_win_ptr,
        v_win_type *v_win_ptr, q_type *q_ptr, d_out_type *d_out_ptr, dq_total_type *dq_total_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, d_k_win_type *d_k_win_ptr,
        d_v_win_type *d_v_win_ptr, q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr,
        const int64_t *k_win_strides, const int64_t *v_win_strides, const int64_t *q_strides,
        const int64_t *d_out_strides, const int64_t *dq_total_strides, int n, int m, int k_start,
        double d_dot_factor, double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE((int64_t)z * programs.y + y))
            near_backward_at_once_kernel((Grid){x, y, z}, programs, k_win_ptr, v_win_ptr, q_ptr,
                    d_out_ptr, dq_total_ptr, lse_ptr, delta_ptr, d_k_win_ptr, d_v_win_ptr,
                    q_start_ptr, kv_lengths_ptr, k_win_strides, v_win_strides, q_strides,
                    d_out_strides, dq_total_strides, n, m, k_start, d_dot_factor, scale_log2, GROUP,
                    D, E);
}
""",
    ),
}
if triton is None:  # launches call kernels by these names
    globals().update(_C_KERNELS)
