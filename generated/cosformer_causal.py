# cosformer_causal: made by attncc 0.1.0 from cosformer_causal.attn (sha256 80416fe2635938d5). Do not edit.
# Rebuild: attncc build cosformer_causal.attn -D longest=4096
#
#     # cosFormer as a decoder: relu features and a cosine of the distance (arXiv 2202.08791, equation 9 and section 3.3).
#     attention cosformer_causal(longest = 4096) {
#       require longest > 0
#       pattern = causal
#       weight = dot(relu(q), relu(k)) * cos(pi / 2 * (i - j) / longest)
#       normalize = max(rows, 1e-6)
#     }
#
# Plan: a tile of rows first … last visits keys up to last; without a mask: keys up to first.
# Cost: 2·d + 2·e flops forward for each visited pair; nothing of size n·m is stored.
# Decoder: keeps sums over the keys that all later queries see, and the other keys so far.

import atexit
import bisect
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import itertools
import math
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

# How the kernels follow from the spec:
# - once-a-token: what one token or one distance determines alone is computed once for it, not
#   once for each pair.
# - defer-division: sum_j (w_ij / N_i) v_j = (sum_j w_ij v_j) / N_i.
# - restrict-range: a sum over all keys is the sum over those that some row of the tile is related
#   to: the rest adds 0.
# - drop-mask: where every row of the tile is related to every key, `related` is true and no mask
#   is needed.
# - one-sweep: sums over the same keys are taken in one pass.
# - separate: a weight that is a sum of products of a number of the query and one of the key is a
#   product of vectors.
# - reassociate: sum_j (f_i . g_j) v_j = f_i . (sum_j g_j v_j): keys that all rows of a tile see
#   are summed once for them.

# --- what the spec says ---------------------------------------------------------------------------
# Positions are absolute: row r of batch entry b stands at q_start[b] + r, key c at k_start + c.

_FAR = 1 << 62  # beyond every position


class _Call(NamedTuple):
    """Lengths and heads of one call, for patterns that read them."""

    n: int
    m: int
    heads: int
    head: int | Tensor


def _segments(first, last, call):
    """Intervals of positions that rows first … last touch, each with the part all of them see."""
    return (((-_FAR, last + 1), (-_FAR, first + 1)),)


def _related(i, j, call):
    """The pattern: j <= i"""
    return j <= i


# --- Triton kernels -------------------------------------------------------------------------------
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

    @triton.jit
    def _load_lanes(start, stride, visible, LANES: tl.constexpr, MASKED: tl.constexpr):
        """[LANES] numbers, or one channel of vectors; what is not visible reads as 0."""
        pointers = start + tl.arange(0, LANES) * stride
        if MASKED:
            numbers = tl.load(pointers, mask=visible, other=0.0)
        else:
            numbers = tl.load(pointers)
        return numbers.to(tl.float32)

    @triton.jit
    def _sums_at(start, step, values, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        """Where the sums of ROWS features, `step` apart, and of COLUMNS values lie."""
        features = tl.arange(0, ROWS) * step
        return start + features[:, None] * values + tl.arange(0, COLUMNS)[None, :]

    @triton.jit
    def _add_part(start, stride, channel, visible, part, LANES: tl.constexpr, WIDTH: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
        """Add [LANES, BLOCK] numbers to channels of vectors, from `channel` on."""
        channels = channel + tl.arange(0, BLOCK)
        pointers = start + tl.arange(0, LANES)[:, None] * stride + channels[None, :]
        there = visible[:, None] & (channels[None, :] < WIDTH)
        tl.store(pointers, tl.load(pointers, mask=there, other=0.0) + part, mask=there)

    @triton.jit
    def _add_lanes(start, step, visible, numbers, LANES: tl.constexpr):
        """Add [LANES] numbers to those that are there."""
        pointers = start + tl.arange(0, LANES) * step
        tl.store(pointers, tl.load(pointers, mask=visible, other=0.0) + numbers, mask=visible)

    @triton.jit
    def _inverse(x):
        """1 / x, and 0 where x is 0: a row without weights gives 0."""
        zero = x == 0.0
        return tl.where(zero, 0.0, 1.0 / tl.where(zero, 1.0, x))

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

    @triton.jit
    def _log(x):
        """The natural logarithm, -inf where x is 0."""
        positive = x > 0.0
        return tl.where(positive, tl.log(tl.where(positive, x, 1.0)), float("-inf"))

    @triton.jit
    def _load_sums(start, step, values, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        """The sums of ROWS features, `step` apart; those from `count` on read as 0."""
        there = tl.arange(0, ROWS) < count
        return tl.load(_sums_at(start, step, values, ROWS, COLUMNS), mask=there[:, None], other=0.0)

    @triton.jit
    def _forward_tile(
        rows, total, q_of_row,
        k_of_key_ptr, v_ptr, k_of_key_stride, v_stride,
        i, column, k_start, low, high,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = (column_lanes >= low) & (column_lanes < high)
        j = k_start + column_lanes
        k_of_key = _load_tile(k_of_key_ptr, k_of_key_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_q_of_rowk_of_key = _dot(q_of_row, tl.trans(k_of_key), None, PRECISION)
        if MASKED:
            related = (j[None, :] <= i[:, None]) & visible[None, :]
        weight = dot_q_of_rowk_of_key * tl.cos(
            1.5707963267948966 * (i[:, None] - j[None, :]) * 0.000244140625
        )
        if MASKED:
            weight = tl.where(related, weight, 0.0)
        rows = rows + tl.sum(weight, 1)
        v = _load_tile(v_ptr, v_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        total = _weigh(weight, v, total, PRECISION)
        return rows, total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _forward_kernel(
        q_of_row_ptr, k_of_key_ptr, v_ptr, out_ptr, inverse_ptr, slope_ptr, lse_ptr, residual_ptr,
        rows_state_ptr, total_state_ptr,
        q_start_ptr, kv_lengths_ptr,
        q_of_row_strides, k_of_key_strides, v_strides,
        n, m, k_start,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, BY_STATES: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK_M  # first row of the tile
        head = tl.program_id(1)
        batch = tl.program_id(2)
        heads = tl.num_programs(1)
        row_lanes = row + tl.arange(0, BLOCK_M)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        q_of_row_ptr += (
            tl.cast(batch, tl.int64) * q_of_row_strides[0]
            + tl.cast(head, tl.int64) * q_of_row_strides[1]
        )
        q_of_row_ptr += tl.cast(row, tl.int64) * q_of_row_strides[2]
        k_of_key_ptr += (
            tl.cast(batch, tl.int64) * k_of_key_strides[0]
            + tl.cast(head // GROUP, tl.int64) * k_of_key_strides[1]
        )
        v_ptr += (
            tl.cast(batch, tl.int64) * v_strides[0]
            + tl.cast(head // GROUP, tl.int64) * v_strides[1]
        )
        k_of_key_step = tl.cast(k_of_key_strides[2], tl.int64) * BLOCK_N
        v_step = tl.cast(v_strides[2], tl.int64) * BLOCK_N
        first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row

        visible = row_lanes < n
        q_of_row = _load_tile(q_of_row_ptr, q_of_row_strides[2], visible, BLOCK_M, D, BLOCK_D, True)
        i = q_start + row_lanes

        # Positions of the tile's first and last row; [low, high) are the keys that it may see.
        first = q_start + row
        last = first + tl.minimum(BLOCK_M, n - row) - 1
        low = 0
        high = tl.minimum(last + 1 - k_start, keys)
        t0 = low // BLOCK_N
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_N), t0)
        full_low = 0
        full_high = tl.minimum(first + 1 - k_start, keys)
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_N), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_N, f0), t1)

        if not BY_STATES:
            rows = tl.zeros([BLOCK_M], tl.float32)
            total = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
        else:  # go on from the sums of keys that all rows of the tile see
            rows = _load_numbers(rows_state_ptr + first_vector, visible, 0.0, BLOCK_M, True)
            total = _load_tile(
                total_state_ptr + first_vector * E, E, visible, BLOCK_M, E, BLOCK_E, True
            )
        for step in range(0, f0 - t0 + t1 - f1):
            tile = t0 + step
            tile = tl.where(tile < f0, tile, tile + (f1 - f0))
            rows, total = _forward_tile(
                rows, total, q_of_row,
                k_of_key_ptr + tile * k_of_key_step, v_ptr + tile * v_step, k_of_key_strides[2],
                v_strides[2],
                i, tile * BLOCK_N, k_start, low, high,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip
        if not BY_STATES:
            for tile in range(f0, f1):
                rows, total = _forward_tile(
                    rows, total, q_of_row,
                    k_of_key_ptr + tile * k_of_key_step, v_ptr + tile * v_step, k_of_key_strides[2],
                    v_strides[2],
                    i, tile * BLOCK_N, k_start, low, high,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
                )  # fmt: skip

        norm = tl.maximum(rows, 1e-06)
        out = total * _inverse(norm)[:, None]
        inverse = tl.where(norm == 0, 0.0, 1 / norm)
        lse = _log(norm)
        slope = tl.where(rows > 1e-06, 1.0, 0.0)
        _store_tile(out_ptr + first_vector * E, visible, out, BLOCK_M, E, BLOCK_E)
        tl.store(inverse_ptr + first_vector + tl.arange(0, BLOCK_M), inverse, mask=visible)
        tl.store(slope_ptr + first_vector + tl.arange(0, BLOCK_M), slope, mask=visible)
        tl.store(lse_ptr + first_vector + tl.arange(0, BLOCK_M), lse, mask=visible)
        if residual_ptr is not None:  # what rounding takes from `out`, for backward
            residual = out - out.to(out_ptr.dtype.element_ty).to(tl.float32)
            _store_tile(residual_ptr + first_vector * E, visible, residual, BLOCK_M, E, BLOCK_E)

    @triton.jit
    def _backward_columns_tile(
        dv, d_k_of_key, k_of_key, v,
        q_of_row_ptr, d_out_ptr, inverse_ptr, delta_ptr, slope_ptr, q_of_row_stride, d_out_stride,
        j, row, q_start, n,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        row_lanes = row + tl.arange(0, BLOCK_M)
        visible = row_lanes < n
        i = q_start + row_lanes
        q_of_row = _load_tile(q_of_row_ptr, q_of_row_stride, visible, BLOCK_M, D, BLOCK_D, MASKED)
        dot_q_of_rowk_of_key = _dot(k_of_key, tl.trans(q_of_row), None, PRECISION)
        if MASKED:
            related = j[:, None] <= i[None, :]
        weight = dot_q_of_rowk_of_key * tl.cos(
            1.5707963267948966 * (i[None, :] - j[:, None]) * 0.000244140625
        )
        if MASKED:
            weight = tl.where(related, weight, 0.0)
        inverse = _load_numbers(inverse_ptr, visible, 0.0, BLOCK_M, MASKED)
        share = weight * inverse[None, :]
        d_out = _load_tile(d_out_ptr, d_out_stride, visible, BLOCK_M, E, BLOCK_E, MASKED)
        d_share = _dot(v, tl.trans(d_out), None, PRECISION)
        delta = _load_numbers(delta_ptr, visible, 0.0, BLOCK_M, MASKED)
        slope = _load_numbers(slope_ptr, visible, 0.0, BLOCK_M, MASKED)
        d_weight = (d_share - slope[None, :] * delta[None, :]) * inverse[None, :]
        if MASKED:
            share = tl.where(related, share, 0.0)
        d_dot_q_of_rowk_of_key = d_weight * tl.cos(
            1.5707963267948966 * (i[None, :] - j[:, None]) * 0.000244140625
        )
        if MASKED:
            d_dot_q_of_rowk_of_key = tl.where(related, d_dot_q_of_rowk_of_key, 0.0)
        dv = _dot(share.to(d_out.dtype), d_out, dv, PRECISION)
        d_k_of_key = _dot(
            d_dot_q_of_rowk_of_key.to(q_of_row.dtype), q_of_row, d_k_of_key, PRECISION
        )
        return dv, d_k_of_key

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _backward_columns_kernel(
        k_of_key_ptr, v_ptr, q_of_row_ptr, d_out_ptr, inverse_ptr, delta_ptr, slope_ptr,
        d_k_of_key_ptr, dv_ptr,
        q_start_ptr, kv_lengths_ptr,
        k_of_key_strides, v_strides, q_of_row_strides, d_out_strides,
        n, m, k_start,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, BY_STATES: tl.constexpr,
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

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        k_of_key_ptr += (
            tl.cast(batch, tl.int64) * k_of_key_strides[0]
            + tl.cast(kv_head, tl.int64) * k_of_key_strides[1]
        )
        k_of_key_ptr += tl.cast(column, tl.int64) * k_of_key_strides[2]
        v_ptr += tl.cast(batch, tl.int64) * v_strides[0] + tl.cast(kv_head, tl.int64) * v_strides[1]
        v_ptr += tl.cast(column, tl.int64) * v_strides[2]
        q_of_row_step = tl.cast(q_of_row_strides[2], tl.int64) * BLOCK_M
        d_out_step = tl.cast(d_out_strides[2], tl.int64) * BLOCK_M
        first_vector = (tl.cast(batch, tl.int64) * kv_heads + kv_head) * m + column

        # Keys that no row can see are not read, and their gradients are 0.
        seen = column_lanes < keys
        k_of_key = _load_tile(k_of_key_ptr, k_of_key_strides[2], seen, BLOCK_N, D, BLOCK_D, True)
        v = _load_tile(v_ptr, v_strides[2], seen, BLOCK_N, E, BLOCK_E, True)
        j = k_start + column_lanes

        # Positions of the tile's first and last key; [low, high) are the rows that may see it.
        first = k_start + column
        last = first + tl.minimum(BLOCK_N, keys - column) - 1
        in_rows = tl.where(column < keys, n, 0)
        low = tl.maximum(first - q_start, 0)
        high = in_rows
        t0 = low // BLOCK_M
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_M), t0)
        full_low = tl.maximum(last - q_start, 0)
        full_high = in_rows
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_M), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_M, f0), t1)

        dv = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
        d_k_of_key = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
        for head in range(kv_head * GROUP, kv_head * GROUP + GROUP):
            q_of_row_head_ptr = (
                q_of_row_ptr
                + tl.cast(batch, tl.int64) * q_of_row_strides[0]
                + tl.cast(head, tl.int64) * q_of_row_strides[1]
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
                dv, d_k_of_key = _backward_columns_tile(
                    dv, d_k_of_key, k_of_key, v,
                    q_of_row_head_ptr + tile * q_of_row_step, d_out_head_ptr + tile * d_out_step,
                    inverse_ptr + statistics + tile * BLOCK_M,
                    delta_ptr + statistics + tile * BLOCK_M,
                    slope_ptr + statistics + tile * BLOCK_M, q_of_row_strides[2], d_out_strides[2],
                    j, tile * BLOCK_M, q_start, n,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
                )  # fmt: skip
            if not BY_STATES:
                for tile in range(f0, f1):
                    dv, d_k_of_key = _backward_columns_tile(
                        dv, d_k_of_key, k_of_key, v,
                        q_of_row_head_ptr + tile * q_of_row_step,
                        d_out_head_ptr + tile * d_out_step,
                        inverse_ptr + statistics + tile * BLOCK_M,
                        delta_ptr + statistics + tile * BLOCK_M,
                        slope_ptr + statistics + tile * BLOCK_M, q_of_row_strides[2],
                        d_out_strides[2],
                        j, tile * BLOCK_M, q_start, n,
                        D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
                    )  # fmt: skip
        _store_tile(
            d_k_of_key_ptr + first_vector * D,
            column_lanes < m,
            tl.where(seen[:, None], d_k_of_key, 0.0),
            BLOCK_N,
            D,
            BLOCK_D,
        )
        _store_tile(
            dv_ptr + first_vector * E,
            column_lanes < m,
            tl.where(seen[:, None], dv, 0.0),
            BLOCK_N,
            E,
            BLOCK_E,
        )

    @triton.jit
    def _backward_rows_tile(
        d_q_of_row, d_out, inverse, delta, slope,
        k_of_key_ptr, v_ptr, k_of_key_stride, v_stride,
        i, column, k_start, low, high,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = (column_lanes >= low) & (column_lanes < high)
        j = k_start + column_lanes
        if MASKED:
            related = (j[None, :] <= i[:, None]) & visible[None, :]
        v = _load_tile(v_ptr, v_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        d_share = _dot(d_out, tl.trans(v), None, PRECISION)
        d_weight = (d_share - slope[:, None] * delta[:, None]) * inverse[:, None]
        d_dot_q_of_rowk_of_key = d_weight * tl.cos(
            1.5707963267948966 * (i[:, None] - j[None, :]) * 0.000244140625
        )
        if MASKED:
            d_dot_q_of_rowk_of_key = tl.where(related, d_dot_q_of_rowk_of_key, 0.0)
        k_of_key = _load_tile(k_of_key_ptr, k_of_key_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        d_q_of_row = _dot(
            d_dot_q_of_rowk_of_key.to(k_of_key.dtype), k_of_key, d_q_of_row, PRECISION
        )
        return d_q_of_row

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _backward_rows_kernel(
        d_out_ptr, k_of_key_ptr, v_ptr, inverse_ptr, delta_ptr, slope_ptr, d_q_of_row_ptr,
        q_start_ptr, kv_lengths_ptr,
        d_out_strides, k_of_key_strides, v_strides,
        n, m, k_start,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_E: tl.constexpr, PRECISION: tl.constexpr, BY_STATES: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK_M  # first row of the tile
        head = tl.program_id(1)
        batch = tl.program_id(2)
        heads = tl.num_programs(1)
        row_lanes = row + tl.arange(0, BLOCK_M)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

        # Offsets of whole tiles are 64 bits wide, those within a tile 32.
        d_out_ptr += (
            tl.cast(batch, tl.int64) * d_out_strides[0] + tl.cast(head, tl.int64) * d_out_strides[1]
        )
        d_out_ptr += tl.cast(row, tl.int64) * d_out_strides[2]
        k_of_key_ptr += (
            tl.cast(batch, tl.int64) * k_of_key_strides[0]
            + tl.cast(head // GROUP, tl.int64) * k_of_key_strides[1]
        )
        v_ptr += (
            tl.cast(batch, tl.int64) * v_strides[0]
            + tl.cast(head // GROUP, tl.int64) * v_strides[1]
        )
        k_of_key_step = tl.cast(k_of_key_strides[2], tl.int64) * BLOCK_N
        v_step = tl.cast(v_strides[2], tl.int64) * BLOCK_N
        first_vector = (tl.cast(batch, tl.int64) * heads + head) * n + row

        visible = row_lanes < n
        d_out = _load_tile(d_out_ptr, d_out_strides[2], visible, BLOCK_M, E, BLOCK_E, True)
        inverse = _load_numbers(inverse_ptr + first_vector, visible, 0.0, BLOCK_M, True)
        delta = _load_numbers(delta_ptr + first_vector, visible, 0.0, BLOCK_M, True)
        slope = _load_numbers(slope_ptr + first_vector, visible, 0.0, BLOCK_M, True)
        i = q_start + row_lanes

        # Positions of the tile's first and last row; [low, high) are the keys that it may see.
        first = q_start + row
        last = first + tl.minimum(BLOCK_M, n - row) - 1
        low = 0
        high = tl.minimum(last + 1 - k_start, keys)
        t0 = low // BLOCK_N
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_N), t0)
        full_low = 0
        full_high = tl.minimum(first + 1 - k_start, keys)
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_N), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_N, f0), t1)

        d_q_of_row = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for step in range(0, f0 - t0 + t1 - f1):
            tile = t0 + step
            tile = tl.where(tile < f0, tile, tile + (f1 - f0))
            d_q_of_row = _backward_rows_tile(
                d_q_of_row, d_out, inverse, delta, slope,
                k_of_key_ptr + tile * k_of_key_step, v_ptr + tile * v_step, k_of_key_strides[2],
                v_strides[2],
                i, tile * BLOCK_N, k_start, low, high,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip
        if not BY_STATES:
            for tile in range(f0, f1):
                d_q_of_row = _backward_rows_tile(
                    d_q_of_row, d_out, inverse, delta, slope,
                    k_of_key_ptr + tile * k_of_key_step, v_ptr + tile * v_step, k_of_key_strides[2],
                    v_strides[2],
                    i, tile * BLOCK_N, k_start, low, high,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
                )  # fmt: skip

        _store_tile(d_q_of_row_ptr + first_vector * D, visible, d_q_of_row, BLOCK_M, D, BLOCK_D)

    @triton.jit(do_not_specialize=["n", "m", "k_start", "tiles", "heads"])
    def _runs_by_row_kernel(
        runs_ptr, q_start_ptr, kv_lengths_ptr,
        n, m, k_start, tiles, heads,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        """The runs of tiles of keys that all of its rows see, for a tile of rows."""
        tile = tl.program_id(0)
        row = tile * BLOCK_M
        head = tl.program_id(1)
        batch = tl.program_id(2)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))
        first = q_start + row
        last = first + tl.minimum(BLOCK_M, n - row) - 1
        low = 0
        high = tl.minimum(last + 1 - k_start, keys)
        t0 = low // BLOCK_N
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_N), t0)
        full_low = 0
        full_high = tl.minimum(first + 1 - k_start, keys)
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_N), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_N, f0), t1)
        spot = runs_ptr + ((batch * tl.num_programs(1) + head) * tiles + tile) * 2
        tl.store(spot, f0)
        tl.store(spot + 1, tl.where(row < n, f1, f0))

    @triton.jit(do_not_specialize=["n", "m", "k_start", "tiles", "segments", "leads"])
    def _sums_by_row_kernel(
        k_of_key_ptr, v_ptr, sums_ptr, plain_ptr,
        runs_ptr, q_start_ptr, kv_lengths_ptr,
        k_of_key_strides, v_strides,
        n, m, k_start, tiles, segments, leads,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
        TERM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        """For every tile of rows the sum over the keys that all of them see."""
        value_blocks, channel_blocks = tl.cdiv(E, BLOCK_E), tl.cdiv(WIDTH, BLOCK_W)
        values, padded = value_blocks * BLOCK_E, channel_blocks * BLOCK_W
        size = leads * padded  # features of the sums of a tile
        job = tl.program_id(0)
        value = job % value_blocks * BLOCK_E
        job = job // value_blocks
        channel = job % channel_blocks * BLOCK_W
        job = job // channel_blocks
        segment = job % segments
        job = job // segments
        lead = 0
        kv_head = tl.program_id(1)
        kv_heads = tl.num_programs(1)
        batch = tl.program_id(2)
        k_of_key_at = (
            k_of_key_ptr
            + tl.cast(batch, tl.int64) * k_of_key_strides[0]
            + tl.cast(kv_head, tl.int64) * k_of_key_strides[1]
        )
        k_of_key_stride = k_of_key_strides[2]
        v_at = (
            v_ptr
            + tl.cast(batch, tl.int64) * v_strides[0]
            + tl.cast(kv_head, tl.int64) * v_strides[1]
        )
        v_stride = v_strides[2]
        run_spot = (batch * segments + segment) * tiles
        spot = tl.cast((batch * kv_heads + kv_head) * segments + segment, tl.int64)
        tile_sums = spot * tiles
        within = lead * padded + channel

        sums = tl.zeros([BLOCK_W, BLOCK_E], tl.float32)
        numbers = tl.zeros([BLOCK_W], tl.float32)
        # These are the sums over the run low … high - 1 of tiles.
        run_low, run_high = 0, 0
        for tile in range(0, tiles):
            run = runs_ptr + (run_spot + tile) * 2
            f0 = tl.load(run)
            f1 = tl.load(run + 1)
            if f0 < f1:
                if (f0 < run_low) | (f0 > run_high) | (f1 < run_high):  # no run that follows
                    run_low, run_high = f0, f0
                    sums = tl.zeros([BLOCK_W, BLOCK_E], tl.float32)
                    numbers = tl.zeros([BLOCK_W], tl.float32)
                for step in range(0, f1 - run_high):
                    item = run_high + step
                    column = item * BLOCK_N
                    column_lanes = column + tl.arange(0, BLOCK_N)
                    j = k_start + column_lanes
                    v = _load_part(
                        v_at + tl.cast(column, tl.int64) * v_stride, v_stride, value, 0, BLOCK_N, E,
                        BLOCK_E, False,
                    )  # fmt: skip
                    if TERM == 0:
                        k_of_key = _load_part(
                            k_of_key_at + tl.cast(column, tl.int64) * k_of_key_stride,
                            k_of_key_stride, channel, 0, BLOCK_N, WIDTH, BLOCK_W, False,
                        )  # fmt: skip
                        part = k_of_key
                        scaled = tl.sin(-0.0003834951969714103 * j)
                        features = part * scaled[:, None]
                        sums = _dot(tl.trans(features), v, sums, PRECISION)
                        numbers += tl.sum(features, 0)
                    if TERM == 1:
                        k_of_key = _load_part(
                            k_of_key_at + tl.cast(column, tl.int64) * k_of_key_stride,
                            k_of_key_stride, channel, 0, BLOCK_N, WIDTH, BLOCK_W, False,
                        )  # fmt: skip
                        part = k_of_key
                        scaled = tl.cos(-0.0003834951969714103 * j)
                        features = part * scaled[:, None]
                        sums = _dot(tl.trans(features), v, sums, PRECISION)
                        numbers += tl.sum(features, 0)
                run_low, run_high = f0, f1
                place = (tile_sums + tile) * size + within
                tl.store(
                    _sums_at(sums_ptr + place * values + value, 1, values, BLOCK_W, BLOCK_E), sums
                )
                if value == 0:
                    tl.store(plain_ptr + place + tl.arange(0, BLOCK_W), numbers)

    @triton.jit(do_not_specialize=["n", "m", "k_start", "tiles", "segments", "leads"])
    def _rows_by_sums_kernel(
        q_of_row_ptr, sums_ptr, plain_ptr, rows_state_ptr, total_state_ptr,
        runs_ptr, q_start_ptr, kv_lengths_ptr,
        q_of_row_strides,
        n, m, k_start, tiles, segments, leads,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
        TERM: tl.constexpr, LAST: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
        BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        """Add what the keys that all rows of the tile see give to their sums."""
        value_blocks, padded = tl.cdiv(E, BLOCK_E), tl.cdiv(LAST, BLOCK_W) * BLOCK_W
        values, size = value_blocks * BLOCK_E, leads * padded
        value = tl.program_id(0) % value_blocks * BLOCK_E
        tile = tl.program_id(0) // value_blocks
        row = tile * BLOCK_M
        head = tl.program_id(1)
        heads = tl.num_programs(1)
        kv_head = head // GROUP
        kv_heads = heads // GROUP
        batch = tl.program_id(2)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        q_of_row_at = (
            q_of_row_ptr
            + tl.cast(batch, tl.int64) * q_of_row_strides[0]
            + tl.cast(head, tl.int64) * q_of_row_strides[1]
        )
        q_of_row_stride = q_of_row_strides[2]
        row_lanes = row + tl.arange(0, BLOCK_M)
        i = q_start + row_lanes
        visible = row_lanes < n
        first_token = (tl.cast(batch, tl.int64) * heads + head) * n + row
        rows_state = tl.zeros([BLOCK_M], tl.float32)
        total_state = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
        for segment in range(0, segments):
            run_spot = (batch * segments + segment) * tiles
            spot = tl.cast((batch * kv_heads + kv_head) * segments + segment, tl.int64)
            run = runs_ptr + (run_spot + tile) * 2
            f0 = tl.load(run)
            f1 = tl.load(run + 1)
            if f0 < f1:
                own_sums = (spot * tiles + tile) * size
                if TERM == 0:
                    for channel in range(0, WIDTH, BLOCK_W):
                        q_of_row = _load_part(
                            q_of_row_at + tl.cast(row, tl.int64) * q_of_row_stride, q_of_row_stride,
                            channel, visible, BLOCK_M, WIDTH, BLOCK_W, True,
                        )  # fmt: skip
                        part = q_of_row
                        scaled = -1 * tl.sin(0.0003834951969714103 * i)
                        features = part * scaled[:, None]
                        place = own_sums + channel
                        sums = tl.load(
                            _sums_at(sums_ptr + place * values + value, 1, values, BLOCK_W, BLOCK_E)
                        )
                        total_state = _dot(features, sums, total_state, PRECISION)
                        plain = tl.load(plain_ptr + place + tl.arange(0, BLOCK_W))
                        number = tl.sum(features * plain[None, :], 1)
                        rows_state += number
                if TERM == 1:
                    for channel in range(0, WIDTH, BLOCK_W):
                        q_of_row = _load_part(
                            q_of_row_at + tl.cast(row, tl.int64) * q_of_row_stride, q_of_row_stride,
                            channel, visible, BLOCK_M, WIDTH, BLOCK_W, True,
                        )  # fmt: skip
                        part = q_of_row
                        scaled = tl.cos(0.0003834951969714103 * i)
                        features = part * scaled[:, None]
                        place = own_sums + channel
                        sums = tl.load(
                            _sums_at(sums_ptr + place * values + value, 1, values, BLOCK_W, BLOCK_E)
                        )
                        total_state = _dot(features, sums, total_state, PRECISION)
                        plain = tl.load(plain_ptr + place + tl.arange(0, BLOCK_W))
                        number = tl.sum(features * plain[None, :], 1)
                        rows_state += number
        if value == 0:
            _add_lanes(rows_state_ptr + first_token, 1, visible, rows_state, BLOCK_M)
        _add_part(
            total_state_ptr + first_token * E, E, value, visible, total_state, BLOCK_M, E, BLOCK_E,
        )  # fmt: skip

    @triton.jit(do_not_specialize=["n", "m", "k_start", "tiles", "segments", "leads"])
    def _row_gradients_by_sums_kernel(
        q_of_row_ptr, inverse_ptr, delta_ptr, slope_ptr, d_out_ptr, sums_ptr, plain_ptr,
        d_q_of_row_ptr,
        runs_ptr, q_start_ptr, kv_lengths_ptr,
        q_of_row_strides, d_out_strides,
        n, m, k_start, tiles, segments, leads,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
        TERM: tl.constexpr, LAST: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
        BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        """Add what the sums of the tile's keys give to the gradients of its rows."""
        value_blocks, padded = tl.cdiv(E, BLOCK_E), tl.cdiv(LAST, BLOCK_W) * BLOCK_W
        values, size = value_blocks * BLOCK_E, leads * padded
        tile = tl.program_id(0)
        row = tile * BLOCK_M
        head = tl.program_id(1)
        heads = tl.num_programs(1)
        kv_head = head // GROUP
        kv_heads = heads // GROUP
        batch = tl.program_id(2)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        inverse_at = inverse_ptr + (tl.cast(batch, tl.int64) * heads + head) * n
        delta_at = delta_ptr + (tl.cast(batch, tl.int64) * heads + head) * n
        slope_at = slope_ptr + (tl.cast(batch, tl.int64) * heads + head) * n
        d_out_at = (
            d_out_ptr
            + tl.cast(batch, tl.int64) * d_out_strides[0]
            + tl.cast(head, tl.int64) * d_out_strides[1]
        )
        d_out_stride = d_out_strides[2]
        row_lanes = row + tl.arange(0, BLOCK_M)
        i = q_start + row_lanes
        visible = row_lanes < n
        inverse = _load_lanes(inverse_at + tl.cast(row, tl.int64), 1, visible, BLOCK_M, True)
        delta = _load_lanes(delta_at + tl.cast(row, tl.int64), 1, visible, BLOCK_M, True)
        slope = _load_lanes(slope_at + tl.cast(row, tl.int64), 1, visible, BLOCK_M, True)
        first_token = (tl.cast(batch, tl.int64) * heads + head) * n + row
        if TERM == 0:
            for channel in range(0, D, BLOCK_W):
                d_part = tl.zeros([BLOCK_M, BLOCK_W], tl.float32)
                for segment in range(0, segments):
                    run_spot = (batch * segments + segment) * tiles
                    spot = tl.cast((batch * kv_heads + kv_head) * segments + segment, tl.int64)
                    run = runs_ptr + (run_spot + tile) * 2
                    f0 = tl.load(run)
                    f1 = tl.load(run + 1)
                    if f0 < f1:
                        own_sums = (spot * tiles + tile) * size
                        place = own_sums + channel
                        d_features = tl.zeros([BLOCK_M, BLOCK_W], tl.float32)
                        for value in range(0, E, BLOCK_E):
                            d_out = _load_part(
                                d_out_at + tl.cast(row, tl.int64) * d_out_stride, d_out_stride,
                                value, visible, BLOCK_M, E, BLOCK_E, True,
                            )  # fmt: skip
                            d_out = d_out * inverse[:, None]
                            sums = _load_sums(
                                sums_ptr + place * values + value, 1, values, D - channel, BLOCK_W,
                                BLOCK_E,
                            )  # fmt: skip
                            d_features = _dot(d_out, tl.trans(sums), d_features, PRECISION)
                        within = tl.arange(0, BLOCK_W)
                        plain = tl.load(
                            plain_ptr + place + within, mask=within < D - channel, other=0.0
                        )
                        d_features += (
                            -(slope[:, None] * delta[:, None] * inverse[:, None]) * plain[None, :]
                        )
                        scaled = tl.zeros([BLOCK_M], tl.float32) + (
                            -1 * tl.sin(0.0003834951969714103 * i)
                        )
                        d_part += d_features * scaled[:, None]
                _add_part(
                    d_q_of_row_ptr + first_token * WIDTH, WIDTH, channel, visible, d_part, BLOCK_M,
                    WIDTH, BLOCK_W,
                )  # fmt: skip
        if TERM == 1:
            for channel in range(0, D, BLOCK_W):
                d_part = tl.zeros([BLOCK_M, BLOCK_W], tl.float32)
                for segment in range(0, segments):
                    run_spot = (batch * segments + segment) * tiles
                    spot = tl.cast((batch * kv_heads + kv_head) * segments + segment, tl.int64)
                    run = runs_ptr + (run_spot + tile) * 2
                    f0 = tl.load(run)
                    f1 = tl.load(run + 1)
                    if f0 < f1:
                        own_sums = (spot * tiles + tile) * size
                        place = own_sums + channel
                        d_features = tl.zeros([BLOCK_M, BLOCK_W], tl.float32)
                        for value in range(0, E, BLOCK_E):
                            d_out = _load_part(
                                d_out_at + tl.cast(row, tl.int64) * d_out_stride, d_out_stride,
                                value, visible, BLOCK_M, E, BLOCK_E, True,
                            )  # fmt: skip
                            d_out = d_out * inverse[:, None]
                            sums = _load_sums(
                                sums_ptr + place * values + value, 1, values, D - channel, BLOCK_W,
                                BLOCK_E,
                            )  # fmt: skip
                            d_features = _dot(d_out, tl.trans(sums), d_features, PRECISION)
                        within = tl.arange(0, BLOCK_W)
                        plain = tl.load(
                            plain_ptr + place + within, mask=within < D - channel, other=0.0
                        )
                        d_features += (
                            -(slope[:, None] * delta[:, None] * inverse[:, None]) * plain[None, :]
                        )
                        scaled = tl.zeros([BLOCK_M], tl.float32) + tl.cos(0.0003834951969714103 * i)
                        d_part += d_features * scaled[:, None]
                _add_part(
                    d_q_of_row_ptr + first_token * WIDTH, WIDTH, channel, visible, d_part, BLOCK_M,
                    WIDTH, BLOCK_W,
                )  # fmt: skip

    @triton.jit(do_not_specialize=["n", "m", "k_start", "tiles", "heads"])
    def _runs_by_key_kernel(
        runs_ptr, q_start_ptr, kv_lengths_ptr,
        n, m, k_start, tiles, heads,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        """The runs of tiles of rows that see all of its keys, for a tile of keys."""
        tile = tl.program_id(0)
        column = tile * BLOCK_N
        head = tl.program_id(1)
        batch = tl.program_id(2)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))
        first = k_start + column
        last = first + tl.minimum(BLOCK_N, keys - column) - 1
        in_rows = tl.where(column < keys, n, 0)
        low = tl.maximum(first - q_start, 0)
        high = in_rows
        t0 = low // BLOCK_M
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_M), t0)
        full_low = tl.maximum(last - q_start, 0)
        full_high = in_rows
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_M), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_M, f0), t1)
        spot = runs_ptr + ((batch * tl.num_programs(1) + head) * tiles + tile) * 2
        tl.store(spot, f0)
        tl.store(spot + 1, f1)

    @triton.jit(do_not_specialize=["n", "m", "k_start", "tiles", "segments", "leads"])
    def _sums_by_key_kernel(
        q_of_row_ptr, inverse_ptr, delta_ptr, slope_ptr, d_out_ptr, sums_ptr, plain_ptr,
        runs_ptr, q_start_ptr, kv_lengths_ptr,
        q_of_row_strides, d_out_strides,
        n, m, k_start, tiles, segments, leads,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
        TERM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        """For every tile of keys the sum over the rows that see all of them."""
        value_blocks, channel_blocks = tl.cdiv(E, BLOCK_E), tl.cdiv(WIDTH, BLOCK_W)
        values, padded = value_blocks * BLOCK_E, channel_blocks * BLOCK_W
        size = leads * padded  # features of the sums of a tile
        job = tl.program_id(0)
        value = job % value_blocks * BLOCK_E
        job = job // value_blocks
        channel = job % channel_blocks * BLOCK_W
        job = job // channel_blocks
        segment = job % segments
        job = job // segments
        lead = 0
        head = tl.program_id(1)
        heads = tl.num_programs(1)
        batch = tl.program_id(2)
        q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)
        q_of_row_at = (
            q_of_row_ptr
            + tl.cast(batch, tl.int64) * q_of_row_strides[0]
            + tl.cast(head, tl.int64) * q_of_row_strides[1]
        )
        q_of_row_stride = q_of_row_strides[2]
        inverse_at = inverse_ptr + (tl.cast(batch, tl.int64) * heads + head) * n
        delta_at = delta_ptr + (tl.cast(batch, tl.int64) * heads + head) * n
        slope_at = slope_ptr + (tl.cast(batch, tl.int64) * heads + head) * n
        d_out_at = (
            d_out_ptr
            + tl.cast(batch, tl.int64) * d_out_strides[0]
            + tl.cast(head, tl.int64) * d_out_strides[1]
        )
        d_out_stride = d_out_strides[2]
        run_spot = (batch * segments + segment) * tiles
        spot = tl.cast((batch * heads + head) * segments + segment, tl.int64)
        tile_sums = spot * tiles
        within = lead * padded + channel

        sums = tl.zeros([BLOCK_W, BLOCK_E], tl.float32)
        numbers = tl.zeros([BLOCK_W], tl.float32)
        # These are the sums over the run low … high - 1 of tiles.
        run_low, run_high = 0, 0
        for done in range(0, tiles):
            tile = tiles - 1 - done
            run = runs_ptr + (run_spot + tile) * 2
            f0 = tl.load(run)
            f1 = tl.load(run + 1)
            f0, f1 = -f1, -f0
            if f0 < f1:
                if (f0 < run_low) | (f0 > run_high) | (f1 < run_high):  # no run that follows
                    run_low, run_high = f0, f0
                    sums = tl.zeros([BLOCK_W, BLOCK_E], tl.float32)
                    numbers = tl.zeros([BLOCK_W], tl.float32)
                for step in range(0, f1 - run_high):
                    item = run_high + step
                    row = (-1 - item) * BLOCK_M
                    row_lanes = row + tl.arange(0, BLOCK_M)
                    i = q_start + row_lanes
                    inverse = _load_lanes(inverse_at + tl.cast(row, tl.int64), 1, 0, BLOCK_M, False)
                    delta = _load_lanes(delta_at + tl.cast(row, tl.int64), 1, 0, BLOCK_M, False)
                    slope = _load_lanes(slope_at + tl.cast(row, tl.int64), 1, 0, BLOCK_M, False)
                    d_out = _load_part(
                        d_out_at + tl.cast(row, tl.int64) * d_out_stride, d_out_stride, value, 0,
                        BLOCK_M, E, BLOCK_E, False,
                    )  # fmt: skip
                    if TERM == 0:
                        q_of_row = _load_part(
                            q_of_row_at + tl.cast(row, tl.int64) * q_of_row_stride, q_of_row_stride,
                            channel, 0, BLOCK_M, WIDTH, BLOCK_W, False,
                        )  # fmt: skip
                        part = q_of_row
                        scaled = -1 * tl.sin(0.0003834951969714103 * i)
                        features = part * scaled[:, None]
                        sums = _dot(tl.trans(features), d_out * inverse[:, None], sums, PRECISION)
                        numbers += tl.sum(
                            features * -(slope[:, None] * delta[:, None] * inverse[:, None]), 0
                        )
                    if TERM == 1:
                        q_of_row = _load_part(
                            q_of_row_at + tl.cast(row, tl.int64) * q_of_row_stride, q_of_row_stride,
                            channel, 0, BLOCK_M, WIDTH, BLOCK_W, False,
                        )  # fmt: skip
                        part = q_of_row
                        scaled = tl.cos(0.0003834951969714103 * i)
                        features = part * scaled[:, None]
                        sums = _dot(tl.trans(features), d_out * inverse[:, None], sums, PRECISION)
                        numbers += tl.sum(
                            features * -(slope[:, None] * delta[:, None] * inverse[:, None]), 0
                        )
                run_low, run_high = f0, f1
                place = (tile_sums + tile) * size + within
                tl.store(
                    _sums_at(sums_ptr + place * values + value, 1, values, BLOCK_W, BLOCK_E), sums
                )
                if value == 0:
                    tl.store(plain_ptr + place + tl.arange(0, BLOCK_W), numbers)

    @triton.jit(do_not_specialize=["n", "m", "k_start", "tiles", "segments", "leads"])
    def _keys_by_sums_kernel(
        k_of_key_ptr, sums_ptr, dv_ptr,
        runs_ptr, q_start_ptr, kv_lengths_ptr,
        k_of_key_strides,
        n, m, k_start, tiles, segments, leads,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
        TERM: tl.constexpr, LAST: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
        BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        """Add what the rows that see all keys of the tile give to the gradients of values."""
        value_blocks, padded = tl.cdiv(E, BLOCK_E), tl.cdiv(LAST, BLOCK_W) * BLOCK_W
        values, size = value_blocks * BLOCK_E, leads * padded
        value = tl.program_id(0) % value_blocks * BLOCK_E
        tile = tl.program_id(0) // value_blocks
        column = tile * BLOCK_N
        kv_head = tl.program_id(1)
        kv_heads = tl.num_programs(1)
        heads = kv_heads * GROUP
        batch = tl.program_id(2)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))
        k_of_key_at = (
            k_of_key_ptr
            + tl.cast(batch, tl.int64) * k_of_key_strides[0]
            + tl.cast(kv_head, tl.int64) * k_of_key_strides[1]
        )
        k_of_key_stride = k_of_key_strides[2]
        column_lanes = column + tl.arange(0, BLOCK_N)
        j = k_start + column_lanes
        visible = column_lanes < keys
        first_token = (tl.cast(batch, tl.int64) * kv_heads + kv_head) * m + column
        dv = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
        for head in range(kv_head * GROUP, kv_head * GROUP + GROUP):
            for segment in range(0, segments):
                run_spot = (batch * segments + segment) * tiles
                spot = tl.cast((batch * heads + head) * segments + segment, tl.int64)
                run = runs_ptr + (run_spot + tile) * 2
                f0 = tl.load(run)
                f1 = tl.load(run + 1)
                if f0 < f1:
                    own_sums = (spot * tiles + tile) * size
                    if TERM == 0:
                        for channel in range(0, WIDTH, BLOCK_W):
                            k_of_key = _load_part(
                                k_of_key_at + tl.cast(column, tl.int64) * k_of_key_stride,
                                k_of_key_stride, channel, visible, BLOCK_N, WIDTH, BLOCK_W, True,
                            )  # fmt: skip
                            part = k_of_key
                            scaled = tl.sin(-0.0003834951969714103 * j)
                            features = part * scaled[:, None]
                            place = own_sums + channel
                            sums = tl.load(
                                _sums_at(
                                    sums_ptr + place * values + value, 1, values, BLOCK_W, BLOCK_E
                                )
                            )
                            dv = _dot(features, sums, dv, PRECISION)
                    if TERM == 1:
                        for channel in range(0, WIDTH, BLOCK_W):
                            k_of_key = _load_part(
                                k_of_key_at + tl.cast(column, tl.int64) * k_of_key_stride,
                                k_of_key_stride, channel, visible, BLOCK_N, WIDTH, BLOCK_W, True,
                            )  # fmt: skip
                            part = k_of_key
                            scaled = tl.cos(-0.0003834951969714103 * j)
                            features = part * scaled[:, None]
                            place = own_sums + channel
                            sums = tl.load(
                                _sums_at(
                                    sums_ptr + place * values + value, 1, values, BLOCK_W, BLOCK_E
                                )
                            )
                            dv = _dot(features, sums, dv, PRECISION)
        _add_part(dv_ptr + first_token * E, E, value, visible, dv, BLOCK_N, E, BLOCK_E)

    @triton.jit(do_not_specialize=["n", "m", "k_start", "tiles", "segments", "leads"])
    def _key_gradients_by_sums_kernel(
        k_of_key_ptr, v_ptr, sums_ptr, plain_ptr, d_k_of_key_ptr,
        runs_ptr, q_start_ptr, kv_lengths_ptr,
        k_of_key_strides, v_strides,
        n, m, k_start, tiles, segments, leads,
        GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
        TERM: tl.constexpr, LAST: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
        BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ):  # fmt: skip
        """Add what the sums of the tile's rows give to the gradients of its keys."""
        value_blocks, padded = tl.cdiv(E, BLOCK_E), tl.cdiv(LAST, BLOCK_W) * BLOCK_W
        values, size = value_blocks * BLOCK_E, leads * padded
        tile = tl.program_id(0)
        column = tile * BLOCK_N
        kv_head = tl.program_id(1)
        kv_heads = tl.num_programs(1)
        heads = kv_heads * GROUP
        batch = tl.program_id(2)
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))
        v_at = (
            v_ptr
            + tl.cast(batch, tl.int64) * v_strides[0]
            + tl.cast(kv_head, tl.int64) * v_strides[1]
        )
        v_stride = v_strides[2]
        column_lanes = column + tl.arange(0, BLOCK_N)
        j = k_start + column_lanes
        visible = column_lanes < keys
        first_token = (tl.cast(batch, tl.int64) * kv_heads + kv_head) * m + column
        for head in range(kv_head * GROUP, kv_head * GROUP + GROUP):
            if TERM == 0:
                for channel in range(0, D, BLOCK_W):
                    d_part = tl.zeros([BLOCK_N, BLOCK_W], tl.float32)
                    for segment in range(0, segments):
                        run_spot = (batch * segments + segment) * tiles
                        spot = tl.cast((batch * heads + head) * segments + segment, tl.int64)
                        run = runs_ptr + (run_spot + tile) * 2
                        f0 = tl.load(run)
                        f1 = tl.load(run + 1)
                        if f0 < f1:
                            own_sums = (spot * tiles + tile) * size
                            place = own_sums + channel
                            d_features = tl.zeros([BLOCK_N, BLOCK_W], tl.float32)
                            for value in range(0, E, BLOCK_E):
                                v = _load_part(
                                    v_at + tl.cast(column, tl.int64) * v_stride, v_stride, value,
                                    visible, BLOCK_N, E, BLOCK_E, True,
                                )  # fmt: skip
                                sums = _load_sums(
                                    sums_ptr + place * values + value, 1, values, D - channel,
                                    BLOCK_W, BLOCK_E,
                                )  # fmt: skip
                                d_features = _dot(v, tl.trans(sums), d_features, PRECISION)
                            within = tl.arange(0, BLOCK_W)
                            plain = tl.load(
                                plain_ptr + place + within, mask=within < D - channel, other=0.0
                            )
                            d_features += plain[None, :]
                            scaled = tl.zeros([BLOCK_N], tl.float32) + tl.sin(
                                -0.0003834951969714103 * j
                            )
                            d_part += d_features * scaled[:, None]
                    _add_part(
                        d_k_of_key_ptr + first_token * WIDTH, WIDTH, channel, visible, d_part,
                        BLOCK_N, WIDTH, BLOCK_W,
                    )  # fmt: skip
            if TERM == 1:
                for channel in range(0, D, BLOCK_W):
                    d_part = tl.zeros([BLOCK_N, BLOCK_W], tl.float32)
                    for segment in range(0, segments):
                        run_spot = (batch * segments + segment) * tiles
                        spot = tl.cast((batch * heads + head) * segments + segment, tl.int64)
                        run = runs_ptr + (run_spot + tile) * 2
                        f0 = tl.load(run)
                        f1 = tl.load(run + 1)
                        if f0 < f1:
                            own_sums = (spot * tiles + tile) * size
                            place = own_sums + channel
                            d_features = tl.zeros([BLOCK_N, BLOCK_W], tl.float32)
                            for value in range(0, E, BLOCK_E):
                                v = _load_part(
                                    v_at + tl.cast(column, tl.int64) * v_stride, v_stride, value,
                                    visible, BLOCK_N, E, BLOCK_E, True,
                                )  # fmt: skip
                                sums = _load_sums(
                                    sums_ptr + place * values + value, 1, values, D - channel,
                                    BLOCK_W, BLOCK_E,
                                )  # fmt: skip
                                d_features = _dot(v, tl.trans(sums), d_features, PRECISION)
                            within = tl.arange(0, BLOCK_W)
                            plain = tl.load(
                                plain_ptr + place + within, mask=within < D - channel, other=0.0
                            )
                            d_features += plain[None, :]
                            scaled = tl.zeros([BLOCK_N], tl.float32) + tl.cos(
                                -0.0003834951969714103 * j
                            )
                            d_part += d_features * scaled[:, None]
                    _add_part(
                        d_k_of_key_ptr + first_token * WIDTH, WIDTH, channel, visible, d_part,
                        BLOCK_N, WIDTH, BLOCK_W,
                    )  # fmt: skip
            tl.debug_barrier()  # what is added is written


# What each kernel tries for elements of so many bytes and vectors up to a width: (BLOCK_M, BLOCK_N,
# num_warps, num_stages).
_TILES = {
    ("forward", 2, 64): [
        (128, 64, 8, 3),
        (128, 64, 4, 3),
        (64, 64, 4, 3),
        (64, 32, 4, 2),
        (16, 16, 4, 1),
    ],
    ("forward", 2, 128): [(128, 64, 8, 3), (64, 64, 4, 3), (32, 32, 4, 2), (16, 16, 4, 1)],
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
# The one that they have where sums are made of the tiles that need no mask.
_CHUNKS = {
    ("forward", 2, 64): (64, 32, 4, 2),
    ("forward", 2, 128): (32, 32, 4, 2),
    ("forward", 2, 256): (32, 32, 4, 1),
    ("forward", 4, 64): (32, 32, 4, 1),
    ("forward", 4, 128): (16, 16, 4, 1),
    ("forward", 4, 256): (16, 16, 4, 1),
    ("backward_columns", 2, 64): (32, 64, 4, 2),
    ("backward_columns", 2, 128): (32, 64, 4, 1),
    ("backward_columns", 2, 256): (16, 32, 4, 1),
    ("backward_columns", 4, 64): (16, 32, 4, 1),
    ("backward_columns", 4, 128): (16, 32, 8, 2),
    ("backward_columns", 4, 256): (16, 16, 8, 2),
    ("backward_rows", 2, 64): (64, 32, 4, 2),
    ("backward_rows", 2, 128): (64, 32, 4, 2),
    ("backward_rows", 2, 256): (32, 32, 4, 1),
    ("backward_rows", 4, 64): (16, 32, 4, 1),
    ("backward_rows", 4, 128): (16, 16, 8, 2),
    ("backward_rows", 4, 256): (16, 16, 8, 2),
}


def _dense(x):
    """`x`, copied only if its last axis is strided or offsets within a tile could pass 32 bits."""
    return x if x.stride(-1) == 1 and x.stride(-2) < 2**23 else x.contiguous()


def _cdiv(length, block):
    """How many blocks hold so many."""
    return -(-length // block)


def _block(width):
    """The tile width that holds a vector: a power of two, at least a matrix instruction's 16."""
    return max(16, 1 << (width - 1).bit_length())


def _prune(configs, arguments, *, BLOCK_D, BLOCK_E, **_):
    """The configs that fit into shared memory: resident and streamed tiles, two tiles of pairs."""
    v = arguments["v_ptr"]
    on_amd = torch.version.hip is not None  # tiles pass through registers there, resident ones stay
    device = triton.runtime.driver.active.utils.get_device_properties(v.device.index)

    def size(config):
        rows, columns = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
        held, streamed = (columns, rows) if "dv_ptr" in arguments else (rows, columns)
        resident = (
            0 if on_amd else held * (BLOCK_D if "out_ptr" in arguments else BLOCK_D + BLOCK_E)
        )
        stages = max(config.num_stages - on_amd, 1)
        return (
            resident + stages * streamed * (BLOCK_D + BLOCK_E) + 2 * rows * columns
        ) * v.element_size()

    # A warp of 64 lanes has half the registers a lane when there are eight of them.
    configs = [config for config in configs if config.num_warps <= 4 or not on_amd] or configs
    return [config for config in configs if size(config) <= device["max_shared_mem"]] or [
        min(configs, key=size)
    ]


def _tiles(name, element_size, width, by_states):
    """What a kernel tries; sums are made for one choice."""
    if triton.knobs.runtime.interpret:
        return [(32, 16, 4, 1)]
    return [_CHUNKS[name, element_size, width]] if by_states else _TILES[name, element_size, width]


@functools.cache
def _tuned(kernel, name, element_size, width, by_states):
    """The kernel with what it may try; Triton's interpreter cannot time and gets one config."""
    configs = [
        triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in _tiles(name, element_size, width, by_states)
    ]
    key = ["GROUP", "D", "E", "PRECISION"]  # and the dtypes, which triton adds
    return triton.autotune(configs, key=key, prune_configs_by={"early_config_prune": _prune})(
        kernel
    )


def _grid(length, block, heads, batch):
    """One program for every tile of an axis, every head and every batch entry."""
    return lambda meta: (_cdiv(length, meta[block]), heads, batch)


def _launch(
    kernel, name, grid, q_of_row, k_of_key, v, *arguments, by_states=False, raw=False, edge=64
):
    """Run a kernel, specialised by the widths of q_of_row and v."""
    d, e = q_of_row.shape[-1], v.shape[-1]
    block_d, block_e = _block(d), _block(e)
    widest = max(64, block_d, block_e)
    if _in_c(q_of_row):
        run = functools.partial(
            _for(kernel, q_of_row)[grid], tile=_c_tile(widest, edge, q_of_row.shape[2])
        )
    else:
        run = _tuned(kernel, name, q_of_row.element_size(), widest, by_states)[grid]
    run(
        *arguments,
        GROUP=q_of_row.shape[1] // k_of_key.shape[1],
        D=d, E=e, BLOCK_D=block_d, BLOCK_E=block_e, BY_STATES=by_states, RAW=raw,
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


def _gradient_room(x, adds):
    """Room for a gradient, or for several kernels that add to it."""
    return x.new_zeros(x.shape, dtype=_wide(x.dtype)) if adds else x.new_empty(x.shape)


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


def _chunk(name, q_of_row, k_of_key, v):
    """The tile of a kernel that leaves full tiles to sums."""
    d, e = q_of_row.shape[-1], v.shape[-1]
    width = max(64, _block(d), _block(e))
    if _in_c(q_of_row):
        return _c_tile(width, 64, q_of_row.shape[2])
    return _tiles(name, q_of_row.element_size(), width, True)[0]


def _rooms(tile, rows_fixed, n, m, parts, slides, q_of_row, k_of_key, v):
    """Room for the sums of every term, one after the other, of so many heads and parts."""
    d, e = q_of_row.shape[-1], v.shape[-1]
    rows, columns = tile[:2]
    tiles, others = _cdiv(n, rows), _cdiv(m, columns)
    tiles, others = (tiles, others) if rows_fixed else (others, tiles)
    kind = {"device": q_of_row.device, "dtype": _wide(q_of_row.dtype)}
    for term, widths in enumerate(
        (
            (d,),
            (d,),
        )
    ):
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


def _launch_sums(kernel, grid, each, factor, q_of_row, k_of_key, v, *arguments):
    """Run a kernel of sums for one term, of which it meets one factor in blocks of channels."""
    d, e = q_of_row.shape[-1], v.shape[-1]
    exact = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    wide = "ieee" if torch.version.hip is not None else "tf32"  # as exact as 16 bits are
    constants = {
        "GROUP": q_of_row.shape[1] // k_of_key.shape[1],
        "D": d,
        "E": e,
        "PRECISION": exact if q_of_row.element_size() == 4 else wide,
        "TERM": each.term,
        "FACTOR": factor % max(1, len(each.widths)),
        "LAST": each.widths[-1] if each.widths else 1,
        "WIDTH": each.widths[factor] if each.widths else 1,
        **each.blocks,
    }
    kernel = _for(kernel, q_of_row)
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    crosses = factor % max(1, len(each.widths)) < len(each.widths) - 1  # sums that lie apart
    warps = 8 if crosses and torch.version.hip is None else 4
    kernel[grid](*arguments, **constants, num_warps=warps, num_stages=2)


def _launch_forward(
    q_of_row, k_of_key, v, scale, q_start, k_start, q_starts, kv_lengths, keep_residual, by_states
):
    """What `_forward` returns, by the Triton kernel."""
    in_order = (
        by_states
        and _in_c(q_of_row)
        and q_of_row.shape[0] * q_of_row.shape[1] >= torch.get_num_threads()
    )
    raw = in_order and all(
        isinstance(x, _Deferred) and x.x.dtype == x.dtype for x in (q_of_row, k_of_key)
    )
    q_of_row, k_of_key = (x.x if raw else _made(x) for x in (q_of_row, k_of_key))
    q_of_row, k_of_key, v = _dense(q_of_row), _dense(k_of_key), _dense(v)
    batch, heads, n, _ = q_of_row.shape
    kv_heads, m = k_of_key.shape[1:3]
    out = q_of_row.new_empty(batch, heads, n, v.shape[-1])
    inverse = q_of_row.new_empty(batch, heads, n, dtype=_wide(q_of_row.dtype))
    slope = q_of_row.new_empty(batch, heads, n, dtype=_wide(q_of_row.dtype))
    lse = q_of_row.new_empty(batch, heads, n, dtype=_wide(q_of_row.dtype))
    residual = q_of_row.new_empty(batch, heads, n, v.shape[-1] if keep_residual else 0)
    starts, lengths = _places(q_of_row, k_of_key, q_start, q_starts, kv_lengths)
    if in_order and out.numel():
        state = q_of_row.new_zeros(
            batch,
            heads,
            2,
            _cdiv(q_of_row.shape[-1], 16) * 16,
            _cdiv(v.shape[-1], 16) * 16,
            dtype=_wide(q_of_row.dtype),
        )
        plain = q_of_row.new_zeros(
            batch, heads, 2, _cdiv(q_of_row.shape[-1], 16) * 16, dtype=_wide(q_of_row.dtype)
        )
        summed = q_of_row.new_zeros(batch, heads, dtype=torch.int32)
        grid = _grid(n, "BLOCK_M", heads, batch)
        _launch("_forward_in_order_kernel", "forward_in_order", grid,
            q_of_row, k_of_key, v,
            q_of_row, k_of_key, v, out, inverse, slope, lse, residual if keep_residual else None,
            state, plain, summed,
            starts, lengths,
            q_of_row.stride()[:3], k_of_key.stride()[:3], v.stride()[:3],
            n, m, k_start,
            by_states=by_states, edge=16, raw=raw,
        )  # fmt: skip
        return (out, inverse, slope, lse, residual)
    if by_states:
        rows_state = q_of_row.new_zeros(batch, heads, n, dtype=_wide(q_of_row.dtype))
        total_state = q_of_row.new_zeros(batch, heads, n, v.shape[-1], dtype=_wide(q_of_row.dtype))
    else:  # not read
        rows_state = q_of_row.new_empty(0, dtype=_wide(q_of_row.dtype))
        total_state = q_of_row.new_empty(0, dtype=_wide(q_of_row.dtype))
    if out.numel():
        if by_states:
            tile = _chunk("forward", q_of_row, k_of_key, v)
            runs = _runs_of(
                _runs_by_row_kernel, tile, _cdiv(n, tile[0]), 1, batch, 1, 1,
                starts, lengths,
                n, m, k_start, _cdiv(n, tile[0]), heads,
            )  # fmt: skip
            for each in _rooms(tile, True, n, m, batch * kv_heads, False, q_of_row, k_of_key, v):
                _launch_sums(
                    _sums_by_row_kernel, (each.programs, kv_heads, batch),
                    each, -1, q_of_row, k_of_key, v,
                    k_of_key, v, each.sums, each.plain,
                    runs, starts, lengths,
                    k_of_key.stride()[:3], v.stride()[:3],
                    n, m, k_start, each.tiles, 1, each.leads,
                )  # fmt: skip
                _launch_sums(
                    _rows_by_sums_kernel, (each.tiles * each.value_blocks, heads, batch),
                    each, -1, q_of_row, k_of_key, v,
                    q_of_row, each.sums, each.plain, rows_state, total_state,
                    runs, starts, lengths,
                    q_of_row.stride()[:3],
                    n, m, k_start, each.tiles, 1, each.leads,
                )  # fmt: skip
        grid = _grid(n, "BLOCK_M", heads, batch)
        _launch(_forward_kernel, "forward", grid,
            q_of_row, k_of_key, v,
            q_of_row, k_of_key, v, out, inverse, slope, lse, residual if keep_residual else None,
            rows_state, total_state,
            starts, lengths,
            q_of_row.stride()[:3], k_of_key.stride()[:3], v.stride()[:3],
            n, m, k_start,
            by_states=by_states,
        )  # fmt: skip
    return (out, inverse, slope, lse, residual)


def _launch_backward(
    q_of_row,
    k_of_key,
    v,
    out,
    inverse,
    slope,
    lse,
    residual,
    d_out,
    d_lse,
    scale,
    q_start,
    k_start,
    q_starts,
    kv_lengths,
    by_states,
):
    """What `_backward` returns, by the Triton kernels."""
    q_of_row, k_of_key, v, d_out = _dense(q_of_row), _dense(k_of_key), _dense(v), _dense(d_out)
    batch, heads, n, _ = q_of_row.shape
    kv_heads, m, _ = v.shape[1:]
    d_q_of_row = _gradient_room(q_of_row, by_states)
    d_k_of_key = _gradient_room(k_of_key, by_states)
    dv = _gradient_room(v, by_states)
    delta = (d_out * _unrounded(out, residual)).sum(-1) - d_lse
    inverse = inverse.contiguous()
    slope = slope.contiguous()
    starts, lengths = _places(q_of_row, k_of_key, q_start, q_starts, kv_lengths)
    if dv.numel():
        grid = _grid(m, "BLOCK_N", kv_heads, batch)
        _launch(_backward_columns_kernel, "backward_columns", grid,
            q_of_row, k_of_key, v,
            k_of_key, v, q_of_row, d_out, inverse, delta, slope, d_k_of_key, dv,
            starts, lengths,
            k_of_key.stride()[:3], v.stride()[:3], q_of_row.stride()[:3], d_out.stride()[:3],
            n, m, k_start,
            by_states=by_states,
        )  # fmt: skip
        if by_states:
            tile = _chunk("backward_columns", q_of_row, k_of_key, v)
            runs = _runs_of(
                _runs_by_key_kernel, tile, _cdiv(m, tile[1]), 1, batch, 1, 1,
                starts, lengths,
                n, m, k_start, _cdiv(m, tile[1]), heads,
            )  # fmt: skip
            for each in _rooms(tile, False, n, m, batch * heads, False, q_of_row, k_of_key, v):
                _launch_sums(
                    _sums_by_key_kernel, (each.programs, heads, batch),
                    each, -1, q_of_row, k_of_key, v,
                    q_of_row, inverse, delta, slope, d_out, each.sums, each.plain,
                    runs, starts, lengths,
                    q_of_row.stride()[:3], d_out.stride()[:3],
                    n, m, k_start, each.tiles, 1, each.leads,
                )  # fmt: skip
                _launch_sums(
                    _keys_by_sums_kernel, (each.tiles * each.value_blocks, kv_heads, batch),
                    each, -1, q_of_row, k_of_key, v,
                    k_of_key, each.sums, dv,
                    runs, starts, lengths,
                    k_of_key.stride()[:3],
                    n, m, k_start, each.tiles, 1, each.leads,
                )  # fmt: skip
                _launch_sums(
                    _key_gradients_by_sums_kernel, (each.tiles, kv_heads, batch),
                    each, 0, q_of_row, k_of_key, v,
                    k_of_key, v, each.sums, each.plain, d_k_of_key,
                    runs, starts, lengths,
                    k_of_key.stride()[:3], v.stride()[:3],
                    n, m, k_start, each.tiles, 1, each.leads,
                )  # fmt: skip
    if d_q_of_row.numel():
        grid = _grid(n, "BLOCK_M", heads, batch)
        _launch(_backward_rows_kernel, "backward_rows", grid,
            q_of_row, k_of_key, v,
            d_out, k_of_key, v, inverse, delta, slope, d_q_of_row,
            starts, lengths,
            d_out.stride()[:3], k_of_key.stride()[:3], v.stride()[:3],
            n, m, k_start,
            by_states=by_states,
        )  # fmt: skip
        if by_states:
            tile = _chunk("backward_rows", q_of_row, k_of_key, v)
            runs = _runs_of(
                _runs_by_row_kernel, tile, _cdiv(n, tile[0]), 1, batch, 1, 1,
                starts, lengths,
                n, m, k_start, _cdiv(n, tile[0]), heads,
            )  # fmt: skip
            for each in _rooms(tile, True, n, m, batch * kv_heads, False, q_of_row, k_of_key, v):
                _launch_sums(
                    _sums_by_row_kernel, (each.programs, kv_heads, batch),
                    each, -1, q_of_row, k_of_key, v,
                    k_of_key, v, each.sums, each.plain,
                    runs, starts, lengths,
                    k_of_key.stride()[:3], v.stride()[:3],
                    n, m, k_start, each.tiles, 1, each.leads,
                )  # fmt: skip
                _launch_sums(
                    _row_gradients_by_sums_kernel, (each.tiles, heads, batch),
                    each, 0, q_of_row, k_of_key, v,
                    q_of_row, inverse, delta, slope, d_out, each.sums, each.plain, d_q_of_row,
                    runs, starts, lengths,
                    q_of_row.stride()[:3], d_out.stride()[:3],
                    n, m, k_start, each.tiles, 1, each.leads,
                )  # fmt: skip
    return d_q_of_row.to(q_of_row.dtype), d_k_of_key.to(k_of_key.dtype), dv.to(v.dtype)


# --- one slab of rows -----------------------------------------------------------------------------
# Scores of pairs are [batch, heads, rows, keys], numbers of rows [batch, heads, rows, 1]; vectors
# are folded to [batch * kv heads, group * rows, width] for the products.


def _forward_slab(q_of_row, k_of_key, v, numbers, slab, chunks, work, call, state):
    """The vectors and row numbers of one slab; q_of_row is [batch * kv heads, group * rows, d]."""
    shape = slab.shape
    i = torch.arange(slab.first, slab.last + 1, device=q_of_row.device)[:, None]
    if state is not None:
        rows, total = state
    else:
        rows = q_of_row.new_zeros((*shape[:3], 1))
        total = q_of_row.new_zeros((*q_of_row.shape[:2], v.shape[-1]))
    for chunk in chunks:
        k_of_key_tile = _flat(k_of_key[:, :, chunk.keys], q_of_row.dtype)
        v_tile = _flat(v[:, :, chunk.keys], q_of_row.dtype)
        j = chunk.beside_first(chunk.start + torch.arange(chunk.count, device=q_of_row.device))
        dot_q_of_rowk_of_key = _product(q_of_row, k_of_key_tile, work[0], shape)
        weight = dot_q_of_rowk_of_key.mul_(
            torch.cos(1.5707963267948966 * (i - j).to(q_of_row.dtype) * 0.000244140625)
        )
        _hide(weight, chunk, 0.0, call)
        rows.add_(weight.sum(-1, keepdim=True))
        total.baddbmm_(_pairs(weight, q_of_row), v_tile)
    norm = _maximum(rows, 1e-06)
    inverse = _where(norm == 0, 0.0, 1 / norm, q_of_row)
    out = total.mul_(_pairs(inverse, q_of_row))
    lse = torch.log(norm)
    slope = _where(rows > 1e-06, 1.0, 0.0, q_of_row)
    return out, inverse, slope, lse


def _backward_slab(
    q_of_row,
    k_of_key,
    v,
    d_out,
    inverse,
    delta,
    slope,
    dv,
    d_k_of_key,
    numbers,
    slab,
    chunks,
    work,
    call,
):
    """Gradients of one slab: returns those of rows and adds the others to their totals."""
    shape = slab.shape
    i = torch.arange(slab.first, slab.last + 1, device=q_of_row.device)[:, None]
    d_q_of_row = q_of_row.new_zeros((*q_of_row.shape[:2], q_of_row.shape[-1]))
    for chunk in chunks:
        k_of_key_tile = _flat(k_of_key[:, :, chunk.keys], q_of_row.dtype)
        v_tile = _flat(v[:, :, chunk.keys], q_of_row.dtype)
        j = chunk.beside_first(chunk.start + torch.arange(chunk.count, device=q_of_row.device))
        dot_q_of_rowk_of_key = _product(q_of_row, k_of_key_tile, work[0], shape)
        weight = dot_q_of_rowk_of_key.mul_(
            torch.cos(1.5707963267948966 * (i - j).to(q_of_row.dtype) * 0.000244140625)
        )
        _hide(weight, chunk, 0.0, call)
        share = weight.mul_(inverse)
        d_share = _product(d_out, v_tile, work[1], shape)
        d_weight = d_share.sub_(slope * delta).mul_(inverse)
        _hide(share, chunk, 0.0, call)
        dv[:, chunk.keys].baddbmm_(_pairs(share, q_of_row).mT, d_out)
        d_dot_q_of_rowk_of_key = d_weight.mul_(
            torch.cos(1.5707963267948966 * (i - j).to(q_of_row.dtype) * 0.000244140625)
        )
        _hide(d_dot_q_of_rowk_of_key, chunk, 0.0, call)
        d_q_of_row.baddbmm_(_pairs(d_dot_q_of_rowk_of_key, q_of_row), k_of_key_tile)
        d_k_of_key[:, chunk.keys].baddbmm_(_pairs(d_dot_q_of_rowk_of_key, q_of_row).mT, q_of_row)
    return (d_q_of_row,)


# --- slabs of rows: the eager form ----------------------------------------------------------------

_SCORES = 1 << 18  # scores alive at a time, so that they stay in the cache
_MOST_KEYS = 1024  # keys of a chunk
_MOST_ROWS = 1024


class _Slab(NamedTuple):
    """Rows that are computed together, and the positions of the first and the last of them."""

    entries: slice
    rows: slice
    first: int
    last: int
    shape: tuple  # batch entries, heads, rows
    kv_heads: int = 1  # how many heads of keys a batch entry has
    blocks: object = None  # of its batch entries' keys
    runs: tuple = ()  # for each slab of `count` the runs of blocks that all its rows see
    count: int = 1  # slabs one behind the other that are computed together: see `_apart`

    @property
    def own_heads(self):
        """How many heads of keys its batch entries have where slabs are computed together, too."""
        return self.kv_heads if self.count == 1 else 1

    def coordinates(self, device):
        """Those of the rows, [rows, 1], or for each of the slabs that are computed together."""
        rows = torch.arange(self.first, self.last + 1, device=device)[:, None]
        return _shifted(rows, _ROWS, self.count, self.shape[0] // self.count)


class _Chunk(NamedTuple):
    """Keys that a slab meets at once: their places, the first position, and those all rows see."""

    keys: slice
    start: int
    full: tuple
    rows: tuple
    place: int = (
        0  # where the keys lie, if those of slabs that are computed together have a window each
    )
    step: int = 0  # how much further the next slab's lie
    slabs: tuple = (1, 1)  # how many slabs, and how many heads of keys all batch entries have

    @property
    def count(self):
        return self.keys.stop - self.keys.start

    def of_all(self, keys):
        """Coordinates of some of these keys, for each of the slabs that are computed together."""
        return _shifted(keys, self.step, *self.slabs)

    def beside_first(self, keys):
        """Coordinates as far from the first slab's rows as those of each slab are from its own."""
        return keys if self.step == _ROWS else _shifted(keys, self.step - _ROWS, *self.slabs)


def _shifted(x, step, count, entries):
    """Coordinates of a slab, and of those that follow at some step, [entries * count, 1, ...]."""
    if count == 1:
        return x
    return x + step * torch.arange(count, device=x.device).repeat(entries)[:, None, None, None]


def _wide(dtype):
    """The type of scores and sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _flat(x, dtype):
    """[batch, heads, ...] -> [batch * heads, ...], a view where strides allow."""
    return x.flatten(0, 1).to(dtype)


def _pairs(x, q):
    """[batch, heads, rows, ...] -> [batch * kv heads, group * rows, ...], as folded vectors lie."""
    return x.reshape(*q.shape[:2], x.shape[-1])


def _product(rows, keys, work, shape, factor=1):
    """Scores of folded rows and keys, times a factor, written into the workspace."""
    size = rows.shape[0] * rows.shape[1] * keys.shape[1]
    out = work[:size].view(rows.shape[0], rows.shape[1], keys.shape[1])
    if factor == 1:
        return torch.bmm(rows, keys.mT, out=out).view(*shape, -1)
    return torch.baddbmm(out, rows, keys.mT, beta=0, alpha=factor, out=out).view(*shape, -1)


@functools.lru_cache(maxsize=8)
def _unrelated(ahead, rows, keys, device):
    """The keys hidden from rows of which the first stands `ahead` positions after the first key.

    The pattern depends on distances alone, so slabs share these tiles.
    """
    i = torch.arange(ahead, ahead + rows, device=device)[:, None]
    j = torch.arange(keys, device=device)
    return _related(i, j, None).logical_not_()


@functools.lru_cache(maxsize=8)
def _band(ahead, rows, keys, device):
    """The first and last diagonal of a tile's related pairs, if all between them are related.

    The pattern depends on distances alone; `ahead` as in `_unrelated`.
    """
    distance = torch.arange(1 - rows, keys)
    i, j = (ahead - distance.clamp(max=0))[:, None], distance.clamp(min=0)[:, None]
    at = distance[_related(i, j, None)[:, 0]]
    if not len(at) or at[-1] - at[0] >= len(at):
        return None
    return int(at[0]), int(at[-1])


def _cut(x, first, last):
    """Tiles with 0 before and after some diagonals."""
    x = x.triu_(first) if first > 1 - x.shape[-2] else x
    return x.tril_(last) if last < x.shape[-1] - 1 else x


def _hide(x, chunk, fill, call):
    """Write `fill` where row and key are not related; keys that all rows see are passed over."""
    start, stop = chunk.start, chunk.start + chunk.count
    first, end = chunk.rows
    low, high = max(chunk.full[0], start), min(chunk.full[1], stop)
    if fill == 0 and high - low < chunk.count:
        band = _band(first - start, end - first, chunk.count, x.device)
        if band is not None:
            return _cut(x, *band)
    for a, b in ((start, low), (high, stop)) if low < high else ((start, stop),):
        if a < b:
            hidden = _unrelated(first - a, end - first, b - a, x.device)
            x[..., a - start : b - start].masked_fill_(hidden, fill)
    return x


def _groups(batch, m, q_start, q_starts, kv_lengths, most):
    """Up to `most` batch entries that are alike, where their first row stands, how many keys."""
    starts = [0] * batch if q_starts is None else q_starts.tolist()
    lengths = [m] * batch if kv_lengths is None else kv_lengths.clamp(0, m).tolist()
    together = most if len(set(starts)) <= 1 and len(set(lengths)) <= 1 else 1
    for entry in range(0, batch, together):
        entries = slice(entry, min(entry + together, batch))
        yield entries, q_start + starts[entry], lengths[entry]


def _chunks(first, last, k_start, length, call):
    """The keys that rows first … last touch, cut into chunks; no key comes twice."""
    chunks = []
    done = 0
    for (start, stop), full in _segments(first, last, call):
        start, stop = max(start - k_start, done), min(stop - k_start, length)
        for key in range(start, stop, _MOST_KEYS):
            keys = slice(key, min(key + _MOST_KEYS, stop))
            chunks.append(_Chunk(keys, key + k_start, full, (first, last + 1)))
        if start < stop:  # an empty interval says nothing about those that follow
            done = stop
    return chunks


def _slabs(q, v, q_start, k_start, q_starts, kv_lengths, call):
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
                chunks = _chunks(first, last, k_start, length, call)
                widest = max((chunk.count for chunk in chunks), default=0)
                scores = (entries.stop - entries.start) * heads * (end - row) * widest
                if scores <= _SCORES or rows <= _LEAST_ROWS:
                    break
                rows //= 2
            shape = (entries.stop - entries.start, heads, end - row)
            yield _Slab(entries, slice(row, end), first, last, shape, v.shape[1]), chunks
            row = end


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


def _apart(x, kv_heads, count):
    """[batch, heads, count * tokens, ...] -> [batch * kv heads * count, group, tokens, ...].

    Of slabs that are computed together each is a batch entry, for each head of keys with the heads
    of its group: in this order tokens that lie in one piece stay where they are.
    """
    if count == 1:
        return x
    x = x.unflatten(2, (count, -1)).unflatten(1, (kv_heads, -1))
    return x.movedim(2, 3).flatten(0, 2).contiguous()


def _as_tokens(x, kv_heads, count):
    """Back to [batch, kv heads, group, count, tokens, ...], a view."""
    return x.unflatten(0, (-1, kv_heads, count)).movedim(2, 3)


def _rows_in(x, slab):
    """[batch, heads, n, c] -> a slab's [batch, heads, rows, c] in the type of sums."""
    return _apart(x[slab.entries, :, slab.rows].to(_wide(x.dtype)), slab.kv_heads, slab.count)


def _folded(x, slab):
    """A slab's [batch, heads, rows, c] -> [batch * kv heads, group * rows, c]."""
    return x.reshape(x.shape[0] * slab.own_heads, -1, x.shape[-1])


def _rows_of(x, slab):
    """[batch, heads, n] -> the slab's [batch, heads, rows, 1], in the type of sums."""
    return _rows_in(x, slab)[..., None]


def _keys_of(x, slab, chunks):
    """[batch, kv heads, m, ...] -> what a slab's chunks cut, of slabs together each its own."""
    if slab.count == 1 or not chunks:
        return x[slab.entries]
    return _Windows(
        {
            chunk.keys.start: _window(
                x, slab.blocks, chunk.place, chunk.step, slab.count, chunk.count
            )
            for chunk in chunks
        }
    )


class _Windows(NamedTuple):
    """Keys of slabs that are together, which chunks cut as if they lay one after the other."""

    keys: dict  # by their first place

    @property
    def shape(self):
        return next(iter(self.keys.values())).shape

    def __getitem__(self, at):
        *rest, keys = at
        return self.keys[keys.start][(*rest, slice(None))]


def _windows(x, step, count, width):
    """So many windows of keys, [batch, kv heads, windows, keys, ...], a view."""
    if step == 0 or count == 1:
        return x[:, :, None].expand(-1, -1, count, *(-1,) * (x.dim() - 2))
    return x.unfold(2, width, step).movedim(-1, 3)


def _window(x, blocks, place, step, count, width):
    """For each of so many slabs or blocks some keys, [batch * kv heads * count, 1, keys, ...]."""

    def made():
        if isinstance(x, _Deferred) and count > 1 and step >= width:  # no key comes twice
            keys = x[blocks.entries, :, place:end].to(x.dtype)
        else:
            keys = _keys_between(x, blocks, place, end)
        if count == 1:
            return keys
        return _windows(keys, step, count, width).flatten(0, 2)[:, None].contiguous()

    end = place + (count - 1) * step + width
    return blocks.kept_or(made, x, place, step, count, width)


def _keys_between(x, blocks, place, end):
    """Keys of some batch entries; formulas are taken of those of some blocks at once."""
    if isinstance(x, Tensor):
        return x[blocks.entries, :, place:end]
    found, length = [], blocks.most * _ROWS
    for start in range(place - (place - blocks.origin) % length, end, length):
        keys = slice(max(start, 0), min(start + length, blocks.length))
        made = blocks.kept_or(
            lambda keys=keys: x[blocks.entries, :, keys].to(x.dtype), x, keys.start, keys.stop
        )
        found.append(made[:, :, max(place - keys.start, 0) : end - keys.start])
    return found[0] if len(found) == 1 else torch.cat(found, 2)


def _key_sums(total, slab, chunks):
    """Where a slab adds up sums of its keys: in the total; each of slabs together by itself."""
    if slab.count == 1:
        return total[slab.entries]
    count = sum(chunk.count for chunk in chunks)
    return total.new_zeros(slab.shape[0], 1, count, *total.shape[3:])


def _add_key_sums(total, sums, slab, chunks):
    """Add what slabs together have added up, part by part where windows overlap."""
    if slab.count == 1:
        return
    total, sums = total[slab.entries], _as_tokens(sums, slab.kv_heads, slab.count)[:, :, 0]
    for chunk in chunks:
        width = chunk.step or chunk.count
        for begin in range(0, chunk.count, width):
            keys = slice(
                chunk.keys.start + begin, chunk.keys.start + min(begin + width, chunk.count)
            )
            part, place = sums[:, :, :, keys], chunk.place + begin
            length = keys.stop - keys.start
            if chunk.step == 0:
                total[:, :, place : place + length].add_(part.sum(2))
            else:
                end = place + (slab.count - 1) * chunk.step + length
                _windows(total[:, :, place:end], chunk.step, slab.count, length).add_(part)


def _unrounded(out, residual):
    """`out` before rounding to 16 bits, which would drown differences in the backward pass."""
    out = out.to(_wide(out.dtype))
    return out + residual if residual.shape[-1] else out


def _own(x, slab):
    """What belongs to the slab's batch entries, where entries differ."""
    return x[slab.entries] if x.shape[0] > 1 else x


def _own_numbers(numbers, blocks):
    """The numbers of the batch entries whose keys are in blocks."""
    return tuple(_own(x, blocks) if isinstance(x, Tensor) else x for x in numbers)


def _entries_of(numbers, slab):
    """The numbers of the slab's batch entries."""
    return _repeated(_own_numbers(numbers, slab), slab, slab.count)


def _store(outs, slab, results):
    """Write what a slab gives."""
    for out, result in zip(outs, results, strict=False):
        target = out[slab.entries, :, slab.rows]
        result = result.reshape(*slab.shape, *out.shape[3:])
        if slab.count > 1:
            result = _as_tokens(result, slab.kv_heads, slab.count)
            target = target.unflatten(2, (slab.count, -1)).unflatten(1, (slab.kv_heads, -1))
        target.copy_(result)


def _forward(
    q_of_row, k_of_key, v, scale, q_start, k_start, q_starts, kv_lengths, keep_residual, by_states
):
    """The vectors [batch, heads, n, e] and the saved numbers of rows [batch, heads, n]."""
    wide = _wide(q_of_row.dtype)
    outs = [q_of_row.new_empty(*q_of_row.shape[:3], v.shape[-1])]
    _on_large_pages(outs[0])
    outs += [q_of_row.new_empty(q_of_row.shape[:3], dtype=wide) for _ in range(3)]
    outs.append(q_of_row.new_empty(*q_of_row.shape[:3], v.shape[-1] if keep_residual else 0))
    numbers = ()

    def run(q_of_row, k_of_key, v, numbers, call, store):
        work = None
        sums = _running_sums(k_of_key, v, numbers)
        for slab, chunks in (_slabs_with_runs if by_states else _slabs)(
            q_of_row, v, q_start, k_start, q_starts, kv_lengths, call
        ):
            found = sums.of(slab) if slab.runs else ()  # before the rows, which are read next
            q_of_row_rows = _rows_in(q_of_row, slab)
            state = None
            if slab.runs:
                state = _begun(
                    found, q_of_row_rows, _entries_of(numbers, slab), slab.own_heads, slab,
                )  # fmt: skip
            work = _workspace(slab, chunks, q_of_row, 2, work)
            results = _forward_slab(
                _folded(q_of_row_rows, slab), _keys_of(k_of_key, slab, chunks),
                _keys_of(v, slab, chunks), _entries_of(numbers, slab), slab, chunks, work, call,
                state,
            )  # fmt: skip
            if keep_residual:
                results += (results[0] - results[0].to(q_of_row.dtype),)
            store(slab, results)

    with torch.autocast(q_of_row.device.type, enabled=False):
        call = _Call(q_of_row.shape[2], v.shape[2], q_of_row.shape[1], 0)
        run(q_of_row, k_of_key, v, numbers, call, functools.partial(_store, outs))
    return tuple(outs)


def _backward(
    q_of_row,
    k_of_key,
    v,
    out,
    inverse,
    slope,
    lse,
    residual,
    d_out,
    d_lse,
    scale,
    q_start,
    k_start,
    q_starts,
    kv_lengths,
    by_states,
):
    """The gradients of q_of_row, k_of_key and v."""
    wide = _wide(q_of_row.dtype)
    d_q_of_row = q_of_row.new_empty(q_of_row.shape)
    d_k_of_key = k_of_key.new_zeros(k_of_key.shape, dtype=wide)
    dv = v.new_zeros(v.shape, dtype=wide)
    numbers = ()
    out = _unrounded(out, residual)

    def run(
        q_of_row,
        k_of_key,
        v,
        out,
        inverse,
        slope,
        d_out,
        d_lse,
        d_k_of_key,
        dv,
        numbers,
        call,
        store,
    ):
        work = None
        collapsed = []
        sums = _running_sums(k_of_key, v, numbers)
        for slab, chunks in (_slabs_with_runs if by_states else _slabs)(
            q_of_row, v, q_start, k_start, q_starts, kv_lengths, call
        ):
            work = _workspace(slab, chunks, q_of_row, 2, work)
            q_of_row_rows = _rows_in(q_of_row, slab)
            d_out_rows = _rows_in(d_out, slab)
            d_rows = _folded(d_out_rows, slab)
            delta = (d_out_rows * _rows_in(out, slab)).sum(-1, keepdim=True)
            delta -= _rows_of(d_lse, slab)
            d_k_of_key_sums = _key_sums(d_k_of_key, slab, chunks)
            dv_sums = _key_sums(dv, slab, chunks)
            results = _backward_slab(
                _folded(q_of_row_rows, slab), _keys_of(k_of_key, slab, chunks),
                _keys_of(v, slab, chunks), d_rows, _rows_of(inverse, slab), delta,
                _rows_of(slope, slab), dv_sums.flatten(0, 1), d_k_of_key_sums.flatten(0, 1),
                _entries_of(numbers, slab), slab, chunks, work, call,
            )  # fmt: skip
            _add_key_sums(d_k_of_key, d_k_of_key_sums, slab, chunks)
            _add_key_sums(dv, dv_sums, slab, chunks)
            if slab.runs:
                collapsed.append(slab)
                given = _row_gradients(
                    sums.of(slab), q_of_row_rows, d_out_rows, _rows_of(inverse, slab), delta,
                    _rows_of(slope, slab), _entries_of(numbers, slab), slab.own_heads, slab,
                )  # fmt: skip
                if given is not None:
                    results = (results[0] + given[0].reshape(results[0].shape),)
            store(slab, results)
        _add_key_gradients(
            collapsed, q_of_row, k_of_key, v, d_out, inverse, slope, out, d_lse, numbers,
            d_k_of_key, dv,
        )  # fmt: skip

    grads = (d_q_of_row,)
    with torch.autocast(q_of_row.device.type, enabled=False):
        call = _Call(q_of_row.shape[2], v.shape[2], q_of_row.shape[1], 0)
        run(
            q_of_row, k_of_key, v, out, inverse, slope, d_out, d_lse, d_k_of_key, dv,
            numbers, call, functools.partial(_store, grads),
        )  # fmt: skip
    return d_q_of_row, d_k_of_key.to(k_of_key.dtype), dv.to(v.dtype)


# --- sums over keys that all rows of a slab see ---------------------------------------------------
# There a weight is a sum of products of features of the query and features of the key, so that the
# key's part is summed before any query reads it. Features are [batch * heads, tokens, width].

_ROWS = 64  # rows of a slab, and keys of a block


_KEPT = 8  # windows


class _Blocks:
    """The keys of some batch entries in blocks, of which some begin with a slab of rows."""

    def __init__(self, entries, heads, origin, length, low, most):
        self.entries, self.origin, self.length, self.low = entries, origin, length, low
        self.kv_heads, self.group = heads  # those of keys, and for how many each of these is summed
        self.most = most  # how many are taken at once
        self.backwards = False  # whether runs grow from the last slab to the first
        self.kept = {}  # the last windows of keys: blocks and slabs read the same

    def anew(self):
        """The same for another call: nothing is kept yet."""
        own = object.__new__(_Blocks)
        own.__dict__ |= {**self.__dict__, "kept": {}}
        return own

    def kept_or(self, make, x, *places):
        """What was made of some places of a tensor, or is made now."""
        key = id(x), *places
        if key not in self.kept:
            if len(self.kept) == _KEPT:
                self.kept.pop(next(iter(self.kept)))
            self.kept[key] = make(), x
        return self.kept[key][0]

    @property
    def count(self):
        return -(-(self.length - self.origin) // _ROWS) if self.length > 0 else 0

    def keys(self, block):
        """The places of a block's keys."""
        start = self.origin + block * _ROWS
        return slice(max(0, start), min(self.length, start + _ROWS))

    def coordinates(self, first, count, device):
        """Those of the keys of a block, [keys, 1], or of some, [entries * count, 1, keys, 1]."""
        keys = self.keys(first)
        found = self.low + torch.arange(keys.start, keys.stop, device=device)[:, None]
        return _shifted(
            found, _ROWS, count, (self.entries.stop - self.entries.start) * self.kv_heads
        )

    def together(self, block):
        """The first of the blocks that are taken at once with one, and how many these are."""
        first, end = int(self.origin < 0), max(0, self.length - self.origin) // _ROWS
        if not first <= block < end:
            return block, 1  # it has fewer keys
        low = max(first, block - block % self.most)
        return low, min(end, block - block % self.most + self.most) - low

    def run(self, low, high):
        """The first block within keys low … high - 1, and the one after the last."""
        first = 0 if low <= 0 else -((self.origin - low) // _ROWS)
        end = self.count if high >= self.length else (high - self.origin) // _ROWS
        return (first, end) if first < end else (0, 0)


def _added(total, more, outs=None):
    """Sums of the same kind added up, where `outs` says; None is a sum of nothing."""
    if total is None or more is None:
        return more if total is None else total
    outs = outs or (None,) * len(total)
    return tuple(torch.add(a, b, out=out) for a, b, out in zip(total, more, outs, strict=True))


class _Slots:
    """Sums of slabs that are computed together, each made in its part of the memory for all."""

    def __init__(self, count, blocks):
        self.count, self.blocks = count, blocks
        self.at, self.memory, self.places, self.sums = 0, None, None, [None] * count

    def outs(self, states):
        """Where the sums of the slab that has its turn belong, if that is a tensor like them."""
        if self.count == 1:
            return None
        group = self.blocks.group
        if self.memory is None:
            self.memory = [
                x.new_empty(x.shape[0] // group, self.count, group, *x.shape[1:]) for x in states
            ]
            self.places = list(zip(*(x.squeeze(2).unbind(1) for x in self.memory), strict=True))
        return self.places[self.at] if group == 1 else None

    def fill(self, at, run, ends):
        """Make the sums of one slab."""
        self.at = at
        self.sums[at] = sums = run.between(*ends, self)
        if sums is not None and self.count > 1:
            self.outs(sums)
            for out, x in zip(self.places[at], sums, strict=True):
                if x is not out:
                    out.copy_(x.view(out.shape))

    def together(self):
        """The sums of all slabs, as those of one with more batch entries."""
        if self.memory is None:
            return self.sums[0]
        states = tuple(x.flatten(0, 2) for x in self.memory)
        return states


class _Runs:
    """Sums over runs of items, each told by its first item and the one after its last.

    A run that follows another costs what is new in it. Nothing is ever subtracted: when items leave
    at the front, the sums of what stays have been kept, or are taken anew.
    """

    def __init__(self, of_item, joined):
        self.of_item, self.joined = of_item, joined
        self.begin(0)

    def begin(self, low):
        self.low = self.middle = self.high = low
        self.front = []  # sums over first … middle - 1, for first items from middle - 1 down to low
        self.back = None  # the sum over middle … high - 1

    def between(self, low, high, slots):
        """The sum over items low … high - 1, in a slot if made now; None for none."""
        if low >= high:
            return None
        if low < self.low and high == self.high:
            return self._extended_down(low, slots)
        if low < self.low or low >= self.high or high < self.high:
            self.begin(low)
        for item in range(self.high, high):
            last = item == high - 1 and not self.front
            self.back = self._join(self.back, self.of_item(item), slots if last else None)
        self.high = high
        if low > self.low:
            self._leave(low)
        return self._join(self.front[-1][1] if self.front else None, self.back, slots)

    def _extended_down(self, low, slots):
        total = self._join(self.front[-1][1] if self.front else None, self.back)
        for item in range(self.low - 1, low - 1, -1):
            total = self._join(self.of_item(item), total, slots if item == low else None)
        self.low, self.middle, self.front, self.back = low, self.high, [(low, total)], None
        return total

    def _leave(self, low):
        while self.front and self.front[-1][0] < low:
            self.front.pop()
        if not self.front and low != self.middle:
            self._turn(low)
        self.low = low

    def _turn(self, low):
        """Sums from every first item on, so that the next ones to leave cost nothing."""
        self.front, total = [], None
        for item in range(self.high - 1, low - 1, -1):
            total = self._join(self.of_item(item), total)
            self.front.append((item, total))
        self.middle, self.back = self.high, None

    def _join(self, earlier, later, slots=None):
        if earlier is None or later is None:
            return later if earlier is None else earlier
        return self.joined(earlier, later, slots and slots.outs(later))


class _RunsOfSlabs:
    """For slabs one after the other the sums over the runs of blocks that all their rows see."""

    def __init__(self, of_blocks, joined):
        self.of_blocks, self.joined, self.blocks = of_blocks, joined, None

    def of(self, slab):
        slab.blocks.kept.clear()  # memory is used again where all of it is free
        if slab.blocks is not self.blocks:
            self.blocks = blocks = slab.blocks
            made = functools.lru_cache(2)(functools.partial(self.of_blocks, blocks))

            def of_block(block):
                first, count = blocks.together(block)
                return made(first, count)[block - first]

            self.runs = [_Runs(of_block, self.joined(blocks)) for _ in slab.runs[0]]
        found = [_Slots(slab.count, slab.blocks) for _ in self.runs]
        order = range(slab.count)
        for at in order[::-1] if slab.blocks.backwards else order:
            for slots, run, ends in zip(found, self.runs, slab.runs[at], strict=True):
                slots.fill(at, run, ends)
        return [slots.together() for slots in found]


def _each(states, blocks, count):
    """The sums of several blocks or slabs, each by itself."""
    if count == 1:
        return [states]
    parts = (x.unflatten(0, (-1, count, blocks.group)).movedim(1, 0).flatten(1, 2) for x in states)
    return list(zip(*(x.unbind() for x in parts), strict=True))


def _at_once(heads, q, width):
    """How many slabs of some heads are computed together: as many as stay in the cache."""
    found = max(
        1,
        _SCORES
        // (heads * max(_ROWS * width, _ROWS * _ROWS, (q.shape[-1] + q.shape[-1]) * q.shape[-1])),
    )
    return 1 << found.bit_length() - 1  # so that groups of slabs and of blocks begin together


def _groups_of_slabs(found, most, shifts):
    """Slabs one behind the other that meet as many keys, in groups that are computed together."""
    groups, last = [], None
    for slab, chunks in found:
        form = (
            slab.shape,
            [chunk.count for chunk in chunks],
            [low < high for low, high in slab.runs[0]],
        )
        widest = max(form[1], default=0)
        group, steps = groups[-1] if groups else ([], None)
        own = _steps(group[-1][1], chunks) if form == last else None
        begins = (slab.first - slab.blocks.low - slab.blocks.origin) // _ROWS % most(widest) == 0
        fits = own is not None and steps in (None, own) and len(group) < most(widest) and not begins
        if fits and (not shifts or all(map(_moves_along, own, group[-1][1], chunks))):
            group.append((slab, chunks))
            groups[-1] = group, own
        else:
            groups.append(([(slab, chunks)], None))
        last = form
    return [_joined_slabs(group, steps) for group, steps in groups]


def _steps(one, other):
    """How much further a slab's chunks lie than those of the one before; None if some do not."""
    steps = [b.keys.start - a.keys.start for a, b in zip(one, other, strict=True)]
    return steps if min(steps, default=0) >= 0 else None


def _moves_along(step, one, other):
    """Whether the same pairs of a chunk are related in both slabs, by their distances alone."""
    return step == _ROWS or all(
        x.full[0] <= x.start and x.start + x.count <= x.full[1] for x in (one, other)
    )


def _joined_slabs(group, steps):
    """One slab with more batch entries, whose chunks lie in the windows of keys that these have."""
    (slab, chunks), count = group[0], len(group)
    if count == 1:
        return group[0]
    entries = slab.shape[0] * slab.kv_heads
    joined, begin = [], 0
    for at, (chunk, step) in enumerate(zip(chunks, steps, strict=True)):
        full = [each[at].full for _, each in group]
        full = (
            max(low - number * step for number, (low, _) in enumerate(full)),
            min(high - number * step for number, (_, high) in enumerate(full)),
        )
        keys = slice(begin, begin + chunk.count)
        begin = keys.stop
        joined.append(
            chunk._replace(
                keys=keys, full=full, place=chunk.keys.start, step=step, slabs=(count, entries)
            )
        )
    slab = slab._replace(
        rows=_rows_of_all([each for each, _ in group]),
        shape=(count * entries, slab.shape[1] // slab.kv_heads, slab.shape[2]),
        runs=tuple(each.runs[0] for each, _ in group),
        count=count,
    )
    return slab, joined


def _rows_of_all(slabs):
    """The places of the rows of slabs one behind the other."""
    rows = [slab.rows for slab in slabs]
    return slice(rows[0].start, rows[-1].stop, rows[0].step)


def _collapsed(first, last, blocks, segments):
    """The chunks that rows first … last meet pair by pair, and the runs that they do not."""
    chunks, runs = [], []
    done = 0
    for (start, stop), full in segments:
        start, stop = max(start - blocks.low, done), min(stop - blocks.low, blocks.length)
        low, high = blocks.run(max(full[0] - blocks.low, start), min(full[1] - blocks.low, stop))
        runs.append((low, high))
        parts = ((start, stop),)
        if low < high:
            parts = (start, blocks.keys(low).start), (blocks.keys(high - 1).stop, stop)
        for begin, end in parts:
            for key in range(begin, end, _MOST_KEYS):
                keys = slice(key, min(key + _MOST_KEYS, end))
                chunks.append(_Chunk(keys, key + blocks.low, full, (first, last + 1)))
        if start < stop:
            done = stop
    return chunks, tuple(runs)


class _Shaped(NamedTuple):
    """What slabs depend on of a tensor."""

    shape: tuple


_MOST_KNOWN = 1 << 16  # rows of calls whose slabs are kept


def _slabs_with_runs(q, v, q_start, k_start, q_starts, kv_lengths, call):
    """Every slab with its chunks of keys, in an order in which runs grow."""
    if q_starts is None and kv_lengths is None and q.shape[2] <= _MOST_KNOWN:
        lengths = _Shaped(tuple(q.shape)), _Shaped(tuple(v.shape))
        found = _slabs_of_lengths(*lengths, q_start, k_start, call)
    else:
        found = _slabs_anew(q, v, q_start, k_start, q_starts, kv_lengths, call)
    own = {}
    for slab, chunks in found:
        if slab.blocks not in own:
            own[slab.blocks] = slab.blocks.anew()
        yield slab._replace(blocks=own[slab.blocks]), chunks


@functools.lru_cache(8)
def _slabs_of_lengths(q, v, q_start, k_start, call):
    """All of them, for calls that differ in nothing else."""
    return tuple(_slabs_anew(q, v, q_start, k_start, None, None, call))


def _slabs_anew(q, v, q_start, k_start, q_starts, kv_lengths, call):
    """Every slab, planned for one call."""
    batch, heads, n, _ = q.shape
    kv_heads, m = v.shape[1:3]
    heads_of_blocks = kv_heads, 1
    most = max(1, _SCORES // (heads * _ROWS * _ROWS))
    shifts = True
    for entries, start, length in _groups(batch, m, q_start, q_starts, kv_lengths, most):
        origin, low, count = start, k_start, n
        shift = (origin - low) % _ROWS  # so that blocks begin where slabs do
        at_once = functools.cache(
            functools.partial(_at_once, (entries.stop - entries.start) * heads, q)
        )
        origin_of_blocks = shift - _ROWS if shift else 0
        at_most = at_once(0)
        blocks = _Blocks(entries, heads_of_blocks, origin_of_blocks, length, low, at_most)
        found = []
        for row in range(0, count, _ROWS):
            end = min(row + _ROWS, count)
            first, last = origin + row, origin + end - 1
            segments = _segments(first, last, call)
            chunks, runs = _collapsed(first, last, blocks, segments)
            shape = (entries.stop - entries.start, heads, end - row)
            slab = _Slab(entries, slice(row, end), first, last, shape, kv_heads, blocks, (runs,))
            found.append((slab, chunks))
        blocks.backwards = _shrink([slab.runs[0] for slab, _ in found])
        found = _groups_of_slabs(found, at_once, shifts)
        yield from found[::-1] if blocks.backwards else found


def _shrink(runs):
    """Whether the runs of one slab after the other end at one place but begin later and later."""
    some = [run for each in runs for run in each if run[0] < run[1]]
    return len({high for _, high in some}) == 1 and len({low for low, _ in some}) > 1


def _users(ends, count):
    """For each block the runs of slabs that have it, given the run of blocks that each slab has."""
    at = [slab for slab, (low, high) in enumerate(ends) if low < high]
    lows, highs = [ends[slab][0] for slab in at], [ends[slab][1] for slab in at]
    if lows == sorted(lows) and highs == sorted(highs):
        found = [
            (bisect.bisect_right(highs, each), bisect.bisect_right(lows, each))
            for each in range(count)
        ]
        return at, [[run] if run[0] < run[1] else [] for run in found]
    found = [[] for _ in range(count)]
    for slab, (low, high) in enumerate(zip(lows, highs, strict=True)):
        for block in range(low, high):
            if found[block] and found[block][-1][1] == slab:
                found[block][-1] = (found[block][-1][0], slab + 1)
            else:
                found[block].append((slab, slab + 1))
    return at, found


class _RunsOfBlocks:
    """For blocks of keys the sums over the slabs all of whose rows see them."""

    def __init__(self, of_slab, joined, slabs):
        self.joined, self.blocks = joined(slabs[0].blocks), slabs[0].blocks
        self.members = [
            (slab, number) for slab in range(len(slabs)) for number in range(slabs[slab].count)
        ]
        self.made = functools.lru_cache(4)(lambda slab: of_slab(slabs[slab]))
        runs = zip(*(each for slab in slabs for each in slab.runs), strict=True)
        self.users = [_users(ends, self.blocks.count) for ends in runs]
        self.running = {}

    def groups(self):
        """The first of some blocks, how many, and their sums, in the order in which runs grow."""
        count = self.blocks.count
        ends = [
            [users[block][-1] if users[block] else (0, 0) for _, users in self.users]
            for block in range(count)
        ]
        backwards = _shrink(ends)
        block = 0
        groups = []
        while block < count:
            first, number = self.blocks.together(block)
            number -= block - first
            alike = [
                sum(len(users[each]) for _, users in self.users)
                for each in range(block, block + number)
            ]
            number = next((at for at, each in enumerate(alike) if each != alike[0]), number)
            groups.append((block, number))
            block += number
        for first, number in groups[::-1] if backwards else groups:
            self.blocks.kept.clear()
            yield first, number, self.of(first, number, backwards)
        self.running.clear()  # runs know of this object: what they hold is free at once

    def of(self, first, number, backwards):
        found = [_Slots(number, self.blocks) for _, users in self.users for _ in users[first]]
        order = range(number)
        for at in order[::-1] if backwards else order:
            for slots, (run, ends) in zip(found, self.runs_of(first + at), strict=True):
                slots.fill(at, run, ends)
        return [slots.together() for slots in found]

    def runs_of(self, block):
        """The runs of slabs that see a block, and their ends."""
        for segment, (at, users) in enumerate(self.users):
            for place, ends in enumerate(users[block]):
                if (segment, place) not in self.running:
                    self.running[segment, place] = _Runs(
                        functools.partial(self.of_item, at), self.joined
                    )
                yield self.running[segment, place], ends

    def of_item(self, at, item):
        slab, number = self.members[at[item]]
        return self.made(slab)[number]


def _by_blocks(slabs):
    """Slabs of the same batch entries together, in the order of their rows."""
    groups = {}
    for slab in slabs:
        groups.setdefault(slab.blocks, []).append(slab)
    return [sorted(group, key=lambda slab: slab.first) for group in groups.values()]


def _by_state(x, shape):
    """[batch, heads, rows, c] -> [batch * state heads, rows, c], their numbers in `shape`."""
    return x.reshape(shape[0] * shape[3], -1, x.shape[-1])


def _by_key_head(x, shape):
    """[batch * state heads, keys, c] -> [batch, kv heads, keys, c], sums over shared keys."""
    return x.view(shape[0], shape[1], -1, *x.shape[1:]).sum(2)


def _leaves(*tensors):
    """Tensors at which gradients end."""
    return tuple(x.detach().requires_grad_() for x in tensors)


def _pulled(outputs, leaves, d_outputs):
    """The gradients of leaves, given those of the outputs that have any."""
    pairs = zip(outputs, d_outputs, strict=True)
    pairs = [(out, d_out) for out, d_out in pairs if d_out is not None and out.requires_grad]
    if not pairs:
        return tuple(map(torch.zeros_like, leaves))
    outs, d_outs = zip(*pairs, strict=True)
    return torch.autograd.grad(outs, leaves, d_outs, materialize_grads=True)


def _keys_in(x, blocks, first, count, dtype):
    """[batch, kv heads, m, ...] -> [batch * kv heads * blocks, 1, keys, c] in the type of sums."""
    keys = blocks.keys(first)
    x = _window(x, blocks, keys.start, _ROWS, count, keys.stop - keys.start).to(dtype)
    return x if x.dim() == 4 else x[..., None]


def _add_to_keys(total, given, blocks, first, count):
    """Add what blocks give to the gradients of their keys."""
    keys = slice(blocks.keys(first).start, blocks.keys(first + count - 1).stop)
    given = _as_tokens(given, blocks.kv_heads, count)[:, :, 0] if count > 1 else given[:, :, None]
    total[blocks.entries, :, keys].unflatten(2, (count, -1)).add_(given)


def _repeated(numbers, place, count):
    """Numbers of batch entries and heads for several slabs or blocks of each."""

    def repeated(x):
        if not isinstance(x, Tensor) or count == 1 or x.shape[:2] == (1, 1):
            return x
        heads = max(place.kv_heads, x.shape[1])
        x = x.expand(place.entries.stop - place.entries.start, heads, count, x.shape[3])
        return _apart(x, place.kv_heads, count)

    return tuple(map(repeated, numbers))


# How many products take as long as what else is done for a slab of pairs, for slabs that are
# together, for one of these, for a number of a token; those of states take half as long again.
_SLAB, _GROUP, _MEMBER, _NUMBER = 3_000_000, 8_000_000, 200_000, 16


def _takes_states(form, q, v, q_start, k_start):
    """Whether keys are summed by states: as the caller says, or where that takes fewer products.

    Pair by pair there are two for every key that a row meets; states take as many for keys at the
    ends of runs, and for every key and row the products of features and values.
    """
    if form not in ("torch", "triton", "c"):
        return form.endswith("linear")
    n, m, heads = q.shape[2], v.shape[2], q.shape[1]
    if n <= _ROWS:
        return False
    call = _Call(n, m, heads, 0)
    met, at_ends, tokens, slabs, groups = 0.0, 0.0, 0.0, 0, 0
    masked = 0.0
    for origin, low, count, length in ((q_start, k_start, n, m),):
        segments = functools.partial(_segments, call=call)
        places = range(0, count, max(_ROWS, count // 8))
        for row in places:
            ends = [
                (max(start, low), min(stop, low + length), full)
                for (start, stop), full in segments(
                    origin + row, origin + min(row + _ROWS, count) - 1
                )
            ]
            seen = [max(0, min(full[1], stop) - max(full[0], start)) for start, stop, full in ends]
            touched = sum(max(0, stop - start) for start, stop, _ in ends)
            met += touched * count / len(places)
            masked += (touched - sum(seen)) * count / len(places)
            at_ends += (touched - sum(max(0, x - _ROWS // 2) for x in seen)) * count / len(places)
            tokens += any(x > _ROWS // 2 for x in seen) * (count + length) / len(places)
        slabs += -(-count // _ROWS)
        groups += 1 + count // (_ROWS * _at_once(heads, q, 0))
    width, values = q.shape[-1] + v.shape[-1], (q.shape[-1] + q.shape[-1]) * (v.shape[-1] + 1)
    by_pairs = heads * met * width + max(1, heads * met / _SCORES) * _SLAB
    if form == "triton":  # sums take exact products, and launches of their own
        by_states = 2 * heads * (at_ends * width + tokens * values) + _LEAST_PRODUCTS / q.shape[0]
        return by_states < 0.9 * heads * met * width
    if form == "c":  # a thread carries the sums of a head from tile to tile
        by_states = heads * (masked * width + tokens * values / 2)
        return by_states < 0.9 * heads * met * width
    by_states = 1.5 * heads * (at_ends * width + tokens * values) + heads * tokens * width * _NUMBER
    return by_states + groups * _GROUP + slabs * _MEMBER < 0.9 * by_pairs


def _row_features(q_of_row, i, numbers, shape):
    """What queries give to each term, [batch * heads, group * rows, features]."""
    f0 = q_of_row * (-1 * torch.sin(0.0003834951969714103 * (i).double())).to(q_of_row.dtype)
    f1 = q_of_row * (torch.cos(0.0003834951969714103 * (i).double())).to(q_of_row.dtype)
    return _by_state(f0, shape), _by_state(f1, shape)


def _key_features(k_of_key, j, numbers):
    """What keys give to each term, [batch * heads, keys, features]."""
    f0 = k_of_key * (torch.sin(-0.0003834951969714103 * (j).double())).to(k_of_key.dtype)
    f1 = k_of_key * (torch.cos(-0.0003834951969714103 * (j).double())).to(k_of_key.dtype)
    return f0.flatten(0, 1), f1.flatten(0, 1)


def _of_blocks(k_of_key, v, numbers, blocks, first, count):
    """What the keys of each of some blocks add to the sums of rows that see all of them."""
    dtype = _wide(v.dtype)
    k_of_key = _keys_in(k_of_key, blocks, first, count, dtype)
    v = _keys_in(v, blocks, first, count, dtype)
    j = blocks.coordinates(first, count, v.device)
    f0, f1 = _key_features(k_of_key, j, numbers)
    values = v.flatten(0, 1)
    states = (
        f0.sum(1)[..., None],
        f1.sum(1)[..., None],
        torch.bmm(f0.mT, values),
        torch.bmm(f1.mT, values),
    )  # fmt: skip
    return _each(states, blocks, count)


def _running_sums(k_of_key, v, numbers):
    """Sums over runs of blocks of keys, for the slabs of one pass."""

    def of_blocks(blocks, first, count):
        return _of_blocks(k_of_key, v, _own_numbers(numbers, blocks), blocks, first, count)

    return _RunsOfSlabs(of_blocks, lambda _: _added)


def _begun(found, q_of_row, numbers, heads, slab):
    """The sums of a slab's rows over the keys that all of them see; None where there are none."""
    i = slab.coordinates(q_of_row.device)
    total = None
    for sums in filter(None, found):
        s0, s1, s2, s3 = sums
        f0, f1 = _row_features(q_of_row, i, numbers, (*slab.shape, heads))
        own = (
            (f0 * s0.mT).sum(-1, keepdim=True) + (f1 * s1.mT).sum(-1, keepdim=True),
            torch.bmm(f0, s2) + torch.bmm(f1, s3),
        )
        total = _added(total, own)
    if total is None:
        return None
    rows, total = total
    return rows.view(*slab.shape, 1), total.view(
        slab.shape[0] * slab.own_heads, -1, total.shape[-1]
    )


def _sum_gradients(d_rows, inverse, delta, slope, numbers, slab, heads):
    """The gradients of the sums of a slab's rows, [batch * heads, group * rows, width]."""
    return _by_state(
        _row(-(slope * delta * inverse), d_rows, slab.shape), (*slab.shape, heads)
    ), _by_state(d_rows * inverse, (*slab.shape, heads))


def _row_gradients(found, q_of_row, d_rows, inverse, delta, slope, numbers, heads, slab):
    """What the keys that all rows of a slab see give to the gradients of rows."""
    i = slab.coordinates(q_of_row.device)
    g0, g1 = _sum_gradients(d_rows, inverse, delta, slope, numbers, slab, heads)
    total = None
    for sums in filter(None, found):
        s0, s1, s2, s3 = sums
        with torch.enable_grad():
            (q_of_row,) = _leaves(q_of_row)
            features = _row_features(q_of_row, i, numbers, (*slab.shape, heads))
        d_features = (
            g0 * s0.mT + torch.bmm(g1, s2.mT),
            g0 * s1.mT + torch.bmm(g1, s3.mT),
        )  # fmt: skip
        own = _pulled(features, (q_of_row,), d_features)
        total = _added(total, own)
    return total


def _of_slab(q_of_row, d_rows, inverse, delta, slope, numbers, heads, slab):
    """What the rows of a slab add to the gradients of keys that all of them see."""
    i = slab.coordinates(q_of_row.device)
    f0, f1 = _row_features(q_of_row, i, numbers, (*slab.shape, heads))
    g0, g1 = _sum_gradients(d_rows, inverse, delta, slope, numbers, slab, heads)
    states = (
        (f0 * g0).sum(1)[..., None],
        (f1 * g0).sum(1)[..., None],
        torch.bmm(f0.mT, g1),
        torch.bmm(f1.mT, g1),
    )  # fmt: skip
    return _each(states, slab.blocks, slab.count)


def _key_gradients(found, k_of_key, v, numbers, blocks, first, count):
    """What the rows that see all keys of some blocks give to the gradients of these."""
    dtype = _wide(v.dtype)
    k_of_key = _keys_in(k_of_key, blocks, first, count, dtype)
    v = _keys_in(v, blocks, first, count, dtype)
    j = blocks.coordinates(first, count, v.device)
    values = v.flatten(0, 1)
    total = None
    for sums in filter(None, found):
        s0, s1, s2, s3 = sums
        with torch.enable_grad():
            (k_of_key,) = _leaves(k_of_key)
            features = _key_features(k_of_key, j, numbers)
        f0, f1 = (each.detach() for each in features)
        d_values = torch.bmm(f0, s2) + torch.bmm(f1, s3)
        d_values = _by_key_head(d_values, v.shape)
        d_features = (
            (s0.mT + torch.bmm(values, s2.mT)).expand_as(f0),
            (s1.mT + torch.bmm(values, s3.mT)).expand_as(f1),
        )  # fmt: skip
        own = (*_pulled(features, (k_of_key,), d_features), d_values)
        total = _added(total, own)
    return total


def _add_key_gradients(
    slabs, q_of_row, k_of_key, v, d_out, inverse, slope, out, d_lse, numbers,
    d_k_of_key, dv,
):  # fmt: skip
    """Add what rows give to the gradients of keys that all rows of their slabs see."""

    def of_slab(slab):
        d_rows = _rows_in(d_out, slab)
        delta = (d_rows * _rows_in(out, slab)).sum(-1, keepdim=True) - _rows_of(d_lse, slab)
        q_of_row_rows = _rows_in(q_of_row, slab)
        return _of_slab(
            q_of_row_rows, d_rows, _rows_of(inverse, slab), delta, _rows_of(slope, slab),
            _entries_of(numbers, slab), slab.own_heads, slab,
        )  # fmt: skip

    for group in _by_blocks(slabs):
        blocks = group[0].blocks
        own = _own_numbers(numbers, blocks)
        sums = _RunsOfBlocks(of_slab, lambda _: _added, group)
        for first, count, found in sums.groups():
            given = _key_gradients(found, k_of_key, v, own, blocks, first, count)
            if given is not None:
                _add_to_keys(d_k_of_key, given[0], blocks, first, count)
                _add_to_keys(dv, given[1], blocks, first, count)


# --- the same in plain operations: for compilers, and for second derivatives ----------------------
# Scores of pairs are [batch, heads, blocks of rows, rows, keys].

_BLOCK = 128  # rows of a block


def _scores(rows, keys):
    """[batch, heads, blocks, rows, d] and [batch, heads, blocks, keys, d] -> scores."""
    return torch.bmm(rows.flatten(0, 2), keys.flatten(0, 2).mT).view(*rows.shape[:4], keys.shape[3])


def _sum(weight, values):
    """Weights of pairs and [batch, heads, blocks, keys, e] -> [batch, heads, blocks, rows, e]."""
    return torch.bmm(weight.flatten(0, 2), values.flatten(0, 2)).view(
        *weight.shape[:4], values.shape[4]
    )


def _lifted(numbers):
    """Numbers of heads with an axis for blocks."""
    return tuple(x[:, :, None] if isinstance(x, Tensor) else x for x in numbers)


def _call_of(q, v):
    heads = torch.arange(q.shape[1], device=q.device)[:, None, None, None]
    return _Call(q.shape[2], v.shape[2], q.shape[1], heads)


def _weights_of(q_of_row, k_of_key, i, j, hidden, numbers, call):
    """Weights of pairs, what they are divided by, and the numbers of rows, in plain operations."""
    dot_q_of_rowk_of_key = _scores(q_of_row, k_of_key)
    weight = dot_q_of_rowk_of_key * torch.cos(
        1.5707963267948966 * (i - j).to(q_of_row.dtype) * 0.000244140625
    )
    kept = weight.masked_fill(hidden, 0.0)
    rows = kept.sum(-1, keepdim=True)
    norm = _maximum(rows, 1e-06)
    inverse = _where(norm == 0, 0.0, 1 / norm, q_of_row)
    lse = _safe_log(norm)
    slope = _where(rows > 1e-06, 1.0, 0.0, q_of_row)
    return kept, norm, (inverse, slope, lse)


def _batched(q_of_row, k_of_key, v, scale, q_start, k_start, q_starts, kv_lengths):
    """What `_forward` returns, in memory that grows as rows times keys of a block."""
    batch, heads, n, _ = q_of_row.shape
    kv_heads, m = v.shape[1:3]
    dtype, wide, device = q_of_row.dtype, _wide(q_of_row.dtype), q_of_row.device
    numbers = _lifted(())
    call = _call_of(q_of_row, v)
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
    hidden = ~(_related(i, j, call) & seen[:, None, :, None, :])
    weight, norm, numbers_of_rows = _weights_of(
        blocked(q_of_row), windows(k_of_key), i, j, hidden, numbers, call
    )
    out = _sum(weight, windows(v))
    if norm is not None:
        out = out * _reciprocal(norm)

    def joined(x):  # [batch, heads, blocks, rows, c] -> [batch, heads, n, c]
        return x.flatten(2, 3).index_select(2, torch.arange(n, device=device))

    rest = (x.expand(batch, heads, blocks, _BLOCK, 1) for x in numbers_of_rows)
    return joined(out).to(dtype), *(joined(x)[..., 0] for x in rest)


# --- what the passes read -------------------------------------------------------------------------


def _operands(q, k, v, scale, q_start, k_start, q_starts, kv_lengths, defer=False):
    """What the passes read: what each token and each distance determines alone."""
    batch = q.shape[0]
    heads = q.shape[1]
    kv_heads = k.shape[1]
    n = q.shape[2]
    m = k.shape[2]
    dtype = q.dtype
    wide = _wide(dtype)
    device = q.device
    hidden = _hidden(kv_lengths, m, device)
    q_wide = q.to(wide)
    q_of_row = _features(lambda q_wide: torch.relu(q_wide), q_wide, batch, heads, n, dtype, defer)
    k_wide = _seen(k.to(wide), hidden)
    k_of_key = _features(
        lambda k_wide: torch.relu(k_wide), k_wide, batch, kv_heads, m, dtype, defer
    )
    return q_of_row, k_of_key, v


def _maximum(a, b):
    """The larger of two tensors or numbers."""
    if isinstance(a, Tensor):
        return torch.maximum(a, b) if isinstance(b, Tensor) else a.clamp(min=b)
    return b.clamp(min=a) if isinstance(b, Tensor) else max(a, b)


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
    if (
        form == "triton"
        or torch.compiler.is_compiling()
        or torch.autograd.forward_ad._current_level >= 0
    ):
        return False
    tensors = [x for x in data if isinstance(x, Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return all(x.is_cpu and not _is_shape_only(x) and not wrapped(x) for x in tensors)


def _made(x):
    """What was deferred, if it was."""
    return x.whole() if isinstance(x, _Deferred) else x


def _reciprocal(x):
    """1 / x, and 0 where x is 0: a row without weights gives 0."""
    if not isinstance(x, Tensor):
        return 1.0 / x if x else 0.0
    return torch.where(x == 0, 0.0, 1.0 / torch.where(x == 0, 1.0, x))


def _safe_log(x):
    """The natural logarithm, -inf where x is 0, with a gradient that is never NaN."""
    return torch.where(x > 0, torch.where(x > 0, x, 1.0).log(), -torch.inf)


def _row(x, q, shape):
    """Numbers that no sum is in, for every row of a slab."""
    return q.new_zeros((*shape, 1)) + x


def _hidden(kv_lengths, m, device):
    """Which keys the lengths hide, [batch, 1, m, 1], if there are lengths."""
    if kv_lengths is None:
        return None
    return (torch.arange(m, device=device) >= kv_lengths[:, None])[:, None, :, None]


def _seen(x, hidden):
    """Something of each key, 0 where it is hidden: nothing of what stands there is read."""
    return x if hidden is None else x.masked_fill(hidden, 0)


def _vectors(x, batch, heads, length, dtype):
    """Vectors of tokens with every axis."""
    return x.to(dtype).expand(batch, heads, length, x.shape[-1])


# --- autograd and dispatch ------------------------------------------------------------------------


def _forward_in_kernels(*args):
    """`_launch_forward`, of 256 features of values at a time."""
    if args[2].shape[-1] <= 256:
        return _launch_forward(*args)
    values = args[2].split(256, -1)
    found = [_launch_forward(*args[:2], part, *args[3:]) for part in values]
    return tuple(
        torch.cat(parts, -1) if at in (0, 4) else parts[0]
        for at, parts in enumerate(zip(*found, strict=True))
    )


def _backward_in_kernels(*args):
    """`_launch_backward` in the same way: gradients of values are joined, others added."""
    width, found = args[2].shape[-1], []
    if width <= 256:
        return _launch_backward(*args)
    for start in range(0, width, 256):
        own = list(args)
        for at in (2, 3, 7, 8):
            own[at] = args[at][..., start : start + 256]
        if start:
            own[9] = torch.zeros_like(args[9])
        found.append(_launch_backward(*own))
    return tuple(
        torch.cat(parts, -1) if at == 2 else functools.reduce(torch.add, parts)
        for at, parts in enumerate(zip(*found, strict=True))
    )


def _run(q_of_row, k_of_key, v, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual):
    by_states = _takes_states(form, q_of_row, v, q_start, k_start)
    if not by_states:
        q_of_row = _made(q_of_row)
        k_of_key = _made(k_of_key)
        v = _made(v)
    run = _forward if form.startswith("torch") else _forward_in_kernels
    return run(
        q_of_row,
        k_of_key,
        v,
        scale,
        q_start,
        k_start,
        q_starts,
        kv_lengths,
        keep_residual,
        by_states,
    )


def _run_backward(*args):
    *args, form = args
    run = _backward if form.startswith("torch") else _backward_in_kernels
    return run(*args, _takes_states(form, args[0], args[2], *args[-4:-2]))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        q_of_row, k_of_key, v, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual
    ):
        return _run(
            q_of_row,
            k_of_key,
            v,
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
        q_of_row, k_of_key, v, *ctx.numbers, q_starts, kv_lengths, ctx.form, _ = inputs
        ctx.save_for_backward(q_of_row, k_of_key, v, *output, q_starts, kv_lengths)
        ctx.mark_non_differentiable(output[1], output[2], output[4])

    @staticmethod
    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        grads = _Gradient.apply(
            *saved, d_out, d_statistics[2], *ctx.numbers, q_starts, kv_lengths, ctx.form
        )
        return *grads, *(None,) * (len(ctx.numbers) + 4)

    @staticmethod
    def vmap(info, in_dims, *args):
        *args, keep_residual = args  # only here is it seen whether what is mapped has gradients
        args = (*args, keep_residual or _keeps_residual(*args[:3]))
        return _fold_vmap(_Attention, info, in_dims, args)


class _Gradient(torch.autograd.Function):
    """The backward pass; its own derivative comes from the plain operations of `_batched`."""

    @staticmethod
    def forward(*args):
        return _run_backward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *saved, ctx.form = inputs
        ctx.numbers = saved[-5:-2]
        gradients = saved[-7:-5]
        ctx.save_for_backward(*saved[:3], *gradients, *saved[-2:])

    @staticmethod
    def backward(ctx, *grads):
        q_of_row, k_of_key, v, *gradients, q_starts, kv_lengths = ctx.saved_tensors

        def differentiable(q_of_row, k_of_key, v):
            outs = _batched(q_of_row, k_of_key, v, *ctx.numbers, q_starts, kv_lengths)
            return (outs[0], outs[3])

        def gradient(q_of_row, k_of_key, v, *gradients):
            return torch.func.vjp(differentiable, q_of_row, k_of_key, v)[1](gradients)

        inputs = q_of_row, k_of_key, v, *gradients
        d_q_of_row, d_k_of_key, dv, *d_gradients = torch.func.vjp(gradient, *inputs)[1](grads)
        return d_q_of_row, d_k_of_key, dv, *(None,) * 5, *d_gradients, *(None,) * 6

    @staticmethod
    def vmap(info, in_dims, *args):
        return _fold_vmap(_Gradient, info, in_dims, args)


def _fold_vmap(function, info, in_dims, args):
    """Fold the mapped axis into the batch axis."""

    def fold(x, axis):
        if not isinstance(x, Tensor):
            return x
        x = x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
        return x.flatten(0, 1)

    outs = function.apply(*map(fold, args, in_dims))
    return tuple(x.unflatten(0, (info.batch_size, -1)) for x in outs), (0,) * len(outs)


# Under torch.compile and torch.export the two passes are operators, opaque to the compiler.
_OPERATOR = "cosformer_causal_7a925c5b"
_library = torch.library.Library("attncc", "FRAGMENT")


def _register():
    places = "SymInt q_start, SymInt k_start, Tensor? q_starts, Tensor? kv_lengths"
    numbers = f"float scale, {places}, str form"
    inputs = "Tensor q_of_row, Tensor k_of_key, Tensor v"
    outputs = "(Tensor, Tensor, Tensor, Tensor, Tensor)"
    _library.define(f"{_OPERATOR}({inputs}, {numbers}, bool keep_residual) -> {outputs}")
    statistics = "Tensor inverse, Tensor slope, Tensor lse, Tensor residual, "
    saved = f"Tensor out, {statistics}Tensor d_out, Tensor d_lse"
    gradients = "(Tensor, Tensor, Tensor)"
    _library.define(f"{_OPERATOR}_backward({inputs}, {saved}, {numbers}) -> {gradients}")
    _library.impl(_OPERATOR, _run, "CompositeExplicitAutograd")
    _library.impl(f"{_OPERATOR}_backward", _run_backward, "CompositeExplicitAutograd")

    @torch.library.register_fake(f"attncc::{_OPERATOR}", lib=_library)
    def _(q_of_row, k_of_key, v, *numbers):
        out = q_of_row.new_empty(*q_of_row.shape[:3], v.shape[-1])
        return (
            out,
            q_of_row.new_empty(q_of_row.shape[:3], dtype=_wide(q_of_row.dtype)),
            q_of_row.new_empty(q_of_row.shape[:3], dtype=_wide(q_of_row.dtype)),
            q_of_row.new_empty(q_of_row.shape[:3], dtype=_wide(q_of_row.dtype)),
            q_of_row.new_empty(*q_of_row.shape[:3], v.shape[-1] if numbers[-1] else 0),
        )

    @torch.library.register_fake(f"attncc::{_OPERATOR}_backward", lib=_library)
    def _(q_of_row, k_of_key, v, *rest):
        return (
            q_of_row.new_empty(q_of_row.shape),
            k_of_key.new_empty(k_of_key.shape),
            v.new_empty(v.shape),
        )

    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        run = getattr(torch.ops.attncc, f"{_OPERATOR}_backward")
        grads = run(*saved, d_out, d_statistics[2], *ctx.numbers, q_starts, kv_lengths, ctx.form)
        return *grads, *(None,) * (len(ctx.numbers) + 4)

    def setup_context(ctx, inputs, output):
        _Attention.setup_context(ctx, inputs, output)

    torch.library.register_autograd(
        f"attncc::{_OPERATOR}", backward, setup_context=setup_context, lib=_library
    )


if not hasattr(torch.ops.attncc, _OPERATOR):  # a copy of this file may have been loaded already
    _register()


# --- the functional form --------------------------------------------------------------------------


def _expect(holds, name, found, expected):
    if not holds:
        raise ValueError(f"cosformer_causal: {name} is {found}, expected {expected}")


def _expect_tensors(**data):
    """Refuse what is no tensor, by the argument's name."""
    for name, x in data.items():
        _expect(isinstance(x, Tensor), name, type(x).__name__, "a tensor")


def _check(q, k, v, kv_lengths, q_start, k_start):
    """Refuse what the kernels would misread, with the argument's name."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        _expect(not x.is_nested, name, "nested", "a dense tensor")
        _expect(x.layout == torch.strided, name, x.layout, "a dense tensor")
        _expect(x.dim() == 4, name, list(x.shape), "four axes: [batch, heads, length, width]")
        _expect(x.dtype in _DTYPES, name, x.dtype, "float64, float32, bfloat16 or float16")
        _expect(x.dtype == q.dtype, name, x.dtype, f"the dtype of q, {q.dtype}")
        _expect(x.device == q.device, name, f"on {x.device}", f"the device of q, {q.device}")
    batch, heads, _, width = q.shape
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    _expect(
        k.shape[0] == batch and v.shape[0] == batch, "the batch", shapes, "one size in q, k and v"
    )
    _expect(heads > 0 and k.shape[1] > 0, "the number of heads", shapes, "one or more")
    _expect(heads % k.shape[1] == 0, "the number of heads", shapes, "q's to be a multiple of k's")
    _expect(
        v.shape[1:3] == k.shape[1:3],
        "v",
        list(v.shape),
        f"the heads and length of k {list(k.shape)}",
    )
    _expect(k.shape[3] == width, "k", list(k.shape), f"the width of q, {width}")
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


def _expect_number(name, x, least):
    """Refuse what is no whole number of 32 bits; sizes of a traced graph are."""
    traced = isinstance(x, torch.SymInt)
    if not traced and (not isinstance(x, int) or isinstance(x, bool) or not least <= x < 2**31):
        expected = f"a whole number of 32 bits, {least} or more"
        expected += ", or a tensor of one for each batch entry" * (
            name in ("kv_lengths", "q_start")
        )
        raise ValueError(f"cosformer_causal: {name} is {x!r}, expected {expected}")


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


def _with_plan(form, plan):
    """The form with what the caller says of its plan."""
    _expect(plan in (None, "linear", "blocked"), "plan", repr(plan), "None, 'linear' or 'blocked'")
    return form if plan is None else f"{form} {plan}"


def _prepared(q, k, v, scale, kv_lengths, q_start, k_start):
    """The arguments as the passes take them; a position is a number and an offset a batch entry."""
    _expect_tensors(q=q, k=k, v=v)
    device = q.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        q, k, v = (x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))
    _check(q, k, v, kv_lengths, q_start, k_start)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    if not isinstance(scale, (int, float)) or not abs(scale) < float("inf"):
        raise ValueError(f"cosformer_causal: scale is {scale!r}, expected a finite number")
    scale = float(scale)
    if isinstance(kv_lengths, int):
        kv_lengths = torch.full((q.shape[0],), kv_lengths, device=q.device)
    q_starts = None
    if q_start is None:
        q_start = k_start + k.shape[2] - q.shape[2]
    elif isinstance(q_start, Tensor):
        q_start, q_starts = 0, q_start
    return q, k, v, scale, q_start, k_start, q_starts, kv_lengths


def _keeps_residual(*operands):
    """Whether backward will need what rounding takes from the results: in 16 bits it does."""
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
    return wanted and operands[0].element_size() == 2


def _is_shape_only(x):
    """Whether a tensor holds no numbers: the operators know the shapes of what they return."""
    return x.is_meta or isinstance(x, torch._subclasses.FakeTensor)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    kv_lengths: int | Tensor | None = None,
    q_start: int | Tensor | None = None,
    k_start: int = 0,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    form: str | None = None,
    plan: str | None = None,
):
    """cosFormer as a decoder: relu features and a cosine of the distance (arXiv 2202.08791,
    equation 9 and section 3.3).

    Args:
        q: [batch, heads, n, d], float32, bfloat16, float16 or (not in Triton) float64; d up to 256.
        k: [batch, kv heads, m, d]; query head h reads kv head h // (heads / kv heads).
        v: [batch, kv heads, m, e].
        scale: the `scale` of the spec; 1 / sqrt(d) by default.
        kv_lengths: how many keys each batch entry has, one number or [batch]; others are hidden.
        q_start: the position of the first row, one number or [batch];
            so that rows and keys end together by default.
        k_start: the position of the first key.
        return_lse: also return the natural logarithm of each row's normaliser.
        form: "triton", "c" or "torch"; by default Triton runs on GPUs and C on CPUs, if they can.
        plan: "linear" sums keys that many rows see once for them all, "blocked" meets every pair;
            by default what costs less for the sizes of the call.

    Returns:
        [batch, heads, n, e]; rows without keys are 0.
        With return_lse also [batch, heads, n], -inf for rows without weights.

    Raises:
        ValueError: an argument whose shape, dtype or device does not fit, with its name.
    """
    _expect(dropout_p == 0.0, "dropout_p", dropout_p, "0.0: dropout is not supported")
    prepared = _prepared(q, k, v, scale, kv_lengths, q_start, k_start)
    defer = _may_defer(form, prepared[:3])
    prepared = *_operands(*prepared, defer=defer), *prepared[3:]
    form = _form(form, prepared[0])
    form = _with_plan(form, plan)
    keep_residual = not defer and _keeps_residual(*prepared[:3])
    if defer:
        outs = _run(*prepared, form, keep_residual)
    elif not torch.compiler.is_compiling() and not _is_shape_only(prepared[0]):
        outs = _Attention.apply(*prepared, form, keep_residual)
    else:
        outs = getattr(torch.ops.attncc, _OPERATOR)(*prepared, form, keep_residual)
    return (outs[0], outs[3]) if return_lse else outs[0]


def weights(q, k, *, rows=slice(None), scale=None, kv_lengths=None, q_start=None, k_start=0):
    """The weights of some rows over their normalisers, [batch, heads, rows, m]: for pictures."""
    _expect(isinstance(rows, slice), "rows", repr(rows), "a slice, such as slice(0, 4)")
    prepared = _prepared(q, k, k, scale, kv_lengths, q_start, k_start)
    prepared = *_operands(*prepared), *prepared[3:]
    q_of_row, k_of_key, _, scale, q_start, k_start, q_starts, kv_lengths = prepared
    heads, kv_heads, m = q_of_row.shape[1], k_of_key.shape[1], k_of_key.shape[2]
    wide, device = _wide(q_of_row.dtype), q_of_row.device
    row = torch.arange(q_of_row.shape[2], device=device)[rows]
    if not m:
        return q_of_row.new_empty(q_of_row.shape[0], heads, len(row), 0, dtype=wide)
    i = row + q_start
    i = i[None] if q_starts is None else i + q_starts[:, None]
    place = torch.arange(m, device=device)
    length = m if kv_lengths is None else kv_lengths.clamp(0, m)[:, None, None, None, None]
    i, j = i[:, None, None, :, None], place[None, None, None, None] + k_start
    seen = place[None, None, None, None] < length
    call = _call_of(q_of_row, k_of_key)
    hidden = ~(_related(i, j, call) & seen)
    kv_head = torch.arange(heads, device=device) // (heads // kv_heads)

    def own(x):  # [batch, heads, n, c] -> [batch, heads, 1, rows, c]
        return x.to(wide)[:, :, None, rows]

    def windows(x):  # [batch, kv heads, m, c] -> [batch, heads, 1, m, c]
        return x.to(wide)[:, kv_head, None].masked_fill(~seen.transpose(-1, -2), 0)

    numbers = _lifted(())
    weight, norm, _ = _weights_of(own(q_of_row), windows(k_of_key), i, j, hidden, numbers, call)
    weight = weight if norm is None else weight * _reciprocal(norm)
    return weight[:, :, 0]


# --- decoding: tokens one after the other ---------------------------------------------------------

_ROOM = 64  # the fewest tokens that there is room for


@dataclasses.dataclass
class Cache:
    """What later tokens may ask for.

    It keeps sums over the keys that all later queries see, and the other keys so far.
    Tensors and numbers alone: `torch.save` writes it, `to` moves it. A new one is that of no token.
    """

    position: int = 0  # of the next token
    dropped: int = 0  # how many tokens have left `keys`
    keys: tuple = ()  # k_of_key and v of tokens, [batch, kv heads, room, …]
    summed: int = 0  # how many tokens have gone into `sums`
    sums: tuple = ()  # sums over these tokens

    def to(self, device):
        """The same on another device."""

        def moved(x):
            if isinstance(x, tuple):
                return tuple(map(moved, x))
            return x.to(device) if isinstance(x, Tensor) else x

        return Cache(**{name: moved(x) for name, x in vars(self).items()})


def _make_room(cache, fresh):
    """Let go of tokens that no later row asks for, and make room for new ones."""
    held = cache.position - cache.dropped
    low = cache.summed - cache.dropped
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


def _remember(cache, new):
    """Add what new tokens have."""
    if not cache.keys:
        cache.keys = tuple(x[:, :, :0] for x in new)
    for name, known, x in zip(("k_of_key", "v"), cache.keys, new, strict=True):
        _expect_as_before(name, known, x)
    fresh = new[0].shape[2]
    if cache.position - cache.dropped + fresh > cache.keys[0].shape[2]:
        _make_room(cache, fresh)
    place = cache.position - cache.dropped
    for known, x in zip(cache.keys, new, strict=True):
        known[:, :, place : place + fresh] = x
    cache.position += fresh


def _sum_up(cache, before, numbers):
    """Sum up the tokens before a position: all later rows see them."""
    if before <= cache.summed:
        return
    low, high = cache.summed - cache.dropped, before - cache.dropped
    k_of_key, v = (x[:, :, low:high] for x in cache.keys)
    entries = slice(0, cache.keys[0].shape[0])
    kv_heads = v.shape[1]
    blocks = _Blocks(entries, (kv_heads, 1), 0, high - low, cache.summed, 8)
    block = 0
    while block < blocks.count:
        _, count = blocks.together(block)
        for own in _of_blocks(k_of_key, v, numbers, blocks, block, count):
            cache.sums = _added(cache.sums or None, own)
        block += count
    cache.summed = before


def _newest(cache, q_of_row, scale):
    """The vectors of the last rows and their lse; the cache has their own keys already."""
    batch, _, n, _ = q_of_row.shape
    first, last = cache.position - n, cache.position - 1
    held = cache.position - cache.dropped
    k_of_key, v = (x[:, :, :held] for x in cache.keys)
    numbers = ()
    outs = [q_of_row.new_empty(*q_of_row.shape[:3], v.shape[-1])]
    outs.append(q_of_row.new_empty(q_of_row.shape[:3], dtype=_wide(q_of_row.dtype)))
    if n == 0:
        return outs

    def run(q_of_row, k_of_key, v, numbers, call, store):
        kv_heads = v.shape[1]
        shape = batch, q_of_row.shape[1], n
        slab = _Slab(slice(0, batch), slice(0, n), first, last, shape, kv_heads)
        q_of_row_rows = _rows_in(q_of_row, slab)
        state = None
        _, (_, full) = _segments(first, last, call)[0]
        _sum_up(cache, min(full, cache.position), numbers)
        if cache.sums:
            found = [cache.sums]
            state = _begun(
                found, q_of_row_rows, _entries_of(numbers, slab), slab.own_heads, slab,
            )  # fmt: skip
        low = cache.summed - cache.dropped
        k_of_key = k_of_key[:, :, low:]
        v = v[:, :, low:]
        chunks = _chunks(first, last, cache.summed, held - low, call)
        work = _workspace(slab, chunks, q_of_row, 2, None)
        results = _forward_slab(
            _folded(q_of_row_rows, slab), _keys_of(k_of_key, slab, chunks),
            _keys_of(v, slab, chunks), _entries_of(numbers, slab), slab, chunks, work, call,
            state,
        )  # fmt: skip
        store(slab, (results[0], results[3]))

    with torch.autocast(q_of_row.device.type, enabled=False):
        call = _Call(q_of_row.shape[2], v.shape[2], q_of_row.shape[1], 0)
        run(q_of_row, k_of_key, v, numbers, call, functools.partial(_store, outs))
    return outs


def _checked_with(cache, q, k, v, scale):
    """New tokens, added to the cache: what the passes read of them."""
    prepared = _prepared(q, k, v, scale, None, cache.position, cache.position)
    _expect(
        k.shape[2] == q.shape[2],
        "the number of keys",
        k.shape[2],
        f"one for each of {q.shape[2]} rows",
    )
    prepared = *_operands(*prepared), *prepared[3:]
    q_of_row, k_of_key, v, *_ = prepared
    _remember(cache, (k_of_key, v))
    return prepared


@torch.no_grad()
def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Cache,
    *,
    scale: float | None = None,
    return_lse: bool = False,
):
    """The next token of a sequence, or several, after those of a cache.

    Args:
        q, k, v: as in `attention`, of the new tokens alone.
        cache: a new one, or that of the tokens before; it is changed.

    Returns:
        The rows that `attention` gives these tokens in the whole sequence, and the cache.
        With return_lse the logarithms of their normalisers stand in between.
    """
    _expect(isinstance(cache, Cache), "cache", type(cache).__name__, "a Cache of this module")
    prepared = _checked_with(cache, q, k, v, scale)
    q_of_row, k_of_key, v, scale, *_ = prepared
    out, lse = _newest(cache, q_of_row, scale)
    return (out, lse, cache) if return_lse else (out, cache)


@torch.no_grad()
def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
    form: str | None = None,
):
    """`attention` on the first tokens of a sequence, and the cache from which `step` goes on.

    Args:
        q, k, v: as in `attention`, with as many rows as keys.
        form: "triton", "c" or "torch", as in `attention`.
    """
    out, lse = attention(q, k, v, scale=scale, return_lse=True, form=form)
    cache = Cache()
    prepared = _checked_with(cache, q, k, v, scale)
    q_of_row, k_of_key, v, scale, *_ = prepared
    call = _Call(q_of_row.shape[2], v.shape[2], q_of_row.shape[1], 0)
    _, (_, full) = _segments(cache.position, cache.position, call)[0]
    _sum_up(cache, min(full, cache.position), ())
    _make_room(cache, 1)
    return (out, lse, cache) if return_lse else (out, cache)


class Attention(nn.Module):
    """`attention` as a module without parameters."""

    def __init__(self, scale: float | None = None, form: str | None = None):
        super().__init__()
        self.scale = scale
        self.form = form

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options):
        """See `attention`; `options` are its other arguments."""
        return attention(q, k, v, scale=self.scale, form=self.form, **options)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, **options):
        """See `prefill`: the first tokens of a sequence."""
        return prefill(q, k, v, scale=self.scale, form=self.form, **options)

    def step(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache):
        """See `step`: the next tokens of a sequence."""
        return step(q, k, v, cache, scale=self.scale)

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
    "_forward_kernel": _CKernel(
        "_forward_kernel",
        (
            "q_of_row_ptr k_of_key_ptr v_ptr out_ptr inverse_ptr slope_ptr lse_ptr "
            "residual_ptr rows_state_ptr total_state_ptr q_start_ptr kv_lengths_ptr "
            "q_of_row_strides k_of_key_strides v_strides n m k_start GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BY_STATES BLOCK_M BLOCK_N",
        "out_ptr inverse_ptr slope_ptr lse_ptr residual_ptr",
        r"""
INLINE void forward_tile(real *restrict rows, real (*restrict total)[BLOCK_E], const Rows q_of_row,
        const real (*restrict q_of_row_turned)[BLOCK_M], k_of_key_type *k_of_key_ptr, v_type *v_ptr,
        int64_t k_of_key_stride, int64_t v_stride, int *restrict i, int column, int k_start,
        int low, int high, int D, int E, const int MASKED)
{
    int visible[BLOCK_N];
    int j[BLOCK_N];
    Rows k_of_key;
    real k_of_key_room[BLOCK_N][BLOCK_D];
    real dot_q_of_rowk_of_key[BLOCK_N][BLOCK_M];
    real weight[BLOCK_N][BLOCK_M];
    real rows_sum[BLOCK_M];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
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
                some |= ((j[c] <= i[r]) & visible[c]);
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_D, BLOCK_M, k_of_key.at, k_of_key.step, 1,
            &q_of_row_turned[0][0], BLOCK_M, &dot_q_of_rowk_of_key[0][0], BLOCK_M, 0);
    for (int r = 0; r < BLOCK_M; r++)
        rows_sum[r] = R(0.0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            int related = 0;
            if (MASKED) related = (j[c] <= i[r]) & visible[c];
            weight[c][r] = dot_q_of_rowk_of_key[c][r] * cos_of(R(1.5707963267948966) * (i[r] - j[c])
                    * R(0.000244140625));
            if (MASKED) weight[c][r] = related ? weight[c][r] : R(0.0);
            rows_sum[r] += weight[c][r];
        }
    }
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_stride, MASKED ? visible : NULL, BLOCK_N, E,
            BLOCK_E);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        rows[r] = rows[r] + rows_sum[r];
    multiply_lanes(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_E, &weight[0][0], 1, BLOCK_M,
            v.at, v.step, &total[0][0], BLOCK_E);
}

static void forward_kernel(const Grid program, const Grid programs, q_of_row_type *q_of_row_ptr,
        k_of_key_type *k_of_key_ptr, v_type *v_ptr, out_type *out_ptr, inverse_type *inverse_ptr,
        slope_type *slope_ptr, lse_type *lse_ptr, residual_type *residual_ptr,
        rows_state_type *rows_state_ptr, total_state_type *total_state_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *q_of_row_strides,
        const int64_t *k_of_key_strides, const int64_t *v_strides, int n, int m, int k_start,
        int GROUP, int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    Rows q_of_row;
    real q_of_row_room[BLOCK_M][BLOCK_D];
    real q_of_row_turned[BLOCK_D][BLOCK_M];
    int i[BLOCK_M];
    real rows[BLOCK_M];
    real total[BLOCK_M][BLOCK_E];
    int tile;
    real norm[BLOCK_M];
    real out[BLOCK_M][BLOCK_E];
    real inverse[BLOCK_M];
    real lse[BLOCK_M];
    real slope[BLOCK_M];
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
    q_of_row_ptr = q_of_row_ptr + ((int64_t)batch * q_of_row_strides[0] + (int64_t)head
            * q_of_row_strides[1]);
    q_of_row_ptr = q_of_row_ptr + (int64_t)row * q_of_row_strides[2];
    k_of_key_ptr = k_of_key_ptr + ((int64_t)batch * k_of_key_strides[0] + (int64_t)(head / GROUP)
            * k_of_key_strides[1]);
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)(head / GROUP) * v_strides[1]);
    int64_t k_of_key_step = k_of_key_strides[2] * BLOCK_N;
    int64_t v_step = v_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        visible[r] = row_lanes[r] < n;
    q_of_row = load_rows(q_of_row_type, &q_of_row_room[0][0], q_of_row_ptr, q_of_row_strides[2],
            visible, BLOCK_M, D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, q_of_row.at, q_of_row.step, 1, &q_of_row_turned[0][0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        i[r] = q_start + row_lanes[r];
    // Positions of the tile's first and last row; [low, high) are the keys that it may see.
    int first = q_start + row;
    int last = first + smaller(BLOCK_M, n - row) - 1;
    int low = 0;
    int high = smaller(last + 1 - k_start, keys);
    int t0 = low / BLOCK_N;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_N), t0);
    int full_low = 0;
    int full_high = smaller(first + 1 - k_start, keys);
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_N), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_N, f0), t1);
    if (!BY_STATES) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            rows[r] = 0;
        for (int r = 0; r < BLOCK_M; r++) {
            #pragma omp simd
            for (int x = 0; x < BLOCK_E; x++)
                total[r][x] = 0;
        }
    }
    else {
        // go on from the sums of keys that all rows of the tile see
        copy_rows(total_state_type, &total[0][0], total_state_ptr + first_vector * E, E, visible,
                BLOCK_M, E, BLOCK_E);
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            rows[r] = visible[r] ? number_of((rows_state_ptr + first_vector)[r]) : R(0.0);
    }
    for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
        tile = t0 + step;
        tile = tile < f0 ? tile : tile + (f1 - f0);
        forward_tile(rows, total, q_of_row, q_of_row_turned, k_of_key_ptr + tile * k_of_key_step,
                v_ptr + tile * v_step, k_of_key_strides[2], v_strides[2], i, tile * BLOCK_N,
                k_start, low, high, D, E, 1);
    }
    if (!BY_STATES) {
        for (int tile = f0; tile < f1; tile++) {
            forward_tile(rows, total, q_of_row, q_of_row_turned, k_of_key_ptr + tile
                    * k_of_key_step, v_ptr + tile * v_step, k_of_key_strides[2], v_strides[2], i,
                    tile * BLOCK_N, k_start, low, high, D, E, 0);
        }
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        norm[r] = larger(rows[r], R(1e-06));
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            out[r][x] = total[r][x] * inverse_of(norm[r]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        inverse[r] = norm[r] == 0 ? R(0.0) : 1 / norm[r];
        lse[r] = log_or_none_of(norm[r]);
        slope[r] = rows[r] > R(1e-06) ? R(1.0) : R(0.0);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        out_type *to = out_ptr + first_vector * E + (int64_t)r * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(out_type, to[x], out[r][x]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        if (visible[r]) put(inverse_type, (inverse_ptr + first_vector)[r], inverse[r]);
        if (visible[r]) put(slope_type, (slope_ptr + first_vector)[r], slope[r]);
        if (visible[r]) put(lse_type, (lse_ptr + first_vector)[r], lse[r]);
    }
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

void run(const Grid programs, const int threads, const int share, q_of_row_type *q_of_row_ptr,
        k_of_key_type *k_of_key_ptr, v_type *v_ptr, out_type *out_ptr, inverse_type *inverse_ptr,
        slope_type *slope_ptr, lse_type *lse_ptr, residual_type *residual_ptr,
        rows_state_type *rows_state_ptr, total_state_type *total_state_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *q_of_row_strides,
        const int64_t *k_of_key_strides, const int64_t *v_strides, int n, int m, int k_start,
        int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            forward_kernel((Grid){x, y, z}, programs, q_of_row_ptr, k_of_key_ptr, v_ptr, out_ptr,
                    inverse_ptr, slope_ptr, lse_ptr, residual_ptr, rows_state_ptr, total_state_ptr,
                    q_start_ptr, kv_lengths_ptr, q_of_row_strides, k_of_key_strides, v_strides, n,
                    m, k_start, GROUP, D, E);
}
""",
    ),
    "_backward_columns_kernel": _CKernel(
        "_backward_columns_kernel",
        (
            "k_of_key_ptr v_ptr q_of_row_ptr d_out_ptr inverse_ptr delta_ptr slope_ptr "
            "d_k_of_key_ptr dv_ptr q_start_ptr kv_lengths_ptr k_of_key_strides v_strides "
            "q_of_row_strides d_out_strides n m k_start GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BY_STATES BLOCK_M BLOCK_N",
        "d_k_of_key_ptr dv_ptr",
        r"""
INLINE void backward_columns_tile(real (*restrict dv)[BLOCK_E],
        real (*restrict d_k_of_key)[BLOCK_D], const Rows k_of_key,
        const real (*restrict k_of_key_turned)[BLOCK_N], const Rows v,
        const real (*restrict v_turned)[BLOCK_N], q_of_row_type *q_of_row_ptr,
        d_out_type *d_out_ptr, inverse_type *inverse_ptr, delta_type *delta_ptr,
        slope_type *slope_ptr, int64_t q_of_row_stride, int64_t d_out_stride, int *restrict j,
        int row, int q_start, int n, int D, int E, const int MASKED)
{
    int visible[BLOCK_M];
    int i[BLOCK_M];
    Rows q_of_row;
    real q_of_row_room[BLOCK_M][BLOCK_D];
    real dot_q_of_rowk_of_key[BLOCK_M][BLOCK_N];
    int related[BLOCK_M][BLOCK_N];
    real weight[BLOCK_M][BLOCK_N];
    inverse_value inverse[BLOCK_M];
    real share_[BLOCK_M][BLOCK_N];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_share[BLOCK_M][BLOCK_N];
    delta_value delta[BLOCK_M];
    slope_value slope[BLOCK_M];
    real d_dot_q_of_rowk_of_key[BLOCK_M][BLOCK_N];
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        const int row_lanes = row + r;
        visible[r] = row_lanes < n;
        i[r] = q_start + row_lanes;
    }
    q_of_row = load_rows(q_of_row_type, &q_of_row_room[0][0], q_of_row_ptr, q_of_row_stride, MASKED
            ? visible : NULL, BLOCK_M, D, BLOCK_D);
    Span spans[BLOCK_N / LANES];
    for (int group = 0; MASKED && group < BLOCK_N / LANES; group++) {
        spans[group] = (Span){BLOCK_M, 0};
        for (int r = 0; r < BLOCK_M; r++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int c = group * LANES; c < (group + 1) * LANES; c++)
                some |= j[c] <= i[r];
            if (some) spans[group] = with_span(spans[group], r);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_D, BLOCK_N, q_of_row.at, q_of_row.step, 1,
            &k_of_key_turned[0][0], BLOCK_N, &dot_q_of_rowk_of_key[0][0], BLOCK_N, 0);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++) {
            if (MASKED) related[r][c] = j[c] <= i[r];
            weight[r][c] = dot_q_of_rowk_of_key[r][c] * cos_of(R(1.5707963267948966) * (i[r] - j[c])
                    * R(0.000244140625));
            if (MASKED) weight[r][c] = related[r][c] ? weight[r][c] : R(0.0);
        }
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        inverse[r] = (!MASKED || visible[r]) ? number_of(inverse_ptr[r]) : R(0.0);
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_stride, MASKED ? visible
            : NULL, BLOCK_M, E, BLOCK_E);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++)
            share_[r][c] = weight[r][c] * inverse[r];
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_M, BLOCK_E, BLOCK_N, d_out.at, d_out.step, 1,
            &v_turned[0][0], BLOCK_N, &d_share[0][0], BLOCK_N, 0);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        delta[r] = (!MASKED || visible[r]) ? number_of(delta_ptr[r]) : R(0.0);
        slope[r] = (!MASKED || visible[r]) ? number_of(slope_ptr[r]) : R(0.0);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++) {
            const real d_weight = (d_share[r][c] - slope[r] * delta[r]) * inverse[r];
            if (MASKED) share_[r][c] = related[r][c] ? share_[r][c] : R(0.0);
            d_dot_q_of_rowk_of_key[r][c] = d_weight * cos_of(R(1.5707963267948966) * (i[r] - j[c])
                    * R(0.000244140625));
            if (MASKED) d_dot_q_of_rowk_of_key[r][c] = related[r][c] ? d_dot_q_of_rowk_of_key[r][c]
                    : R(0.0);
        }
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_E, &share_[0][0], 1, BLOCK_N,
            d_out.at, d_out.step, &dv[0][0], BLOCK_E);
    multiply_lanes(MASKED ? spans : NULL, BLOCK_N, BLOCK_M, BLOCK_D, &d_dot_q_of_rowk_of_key[0][0],
            1, BLOCK_N, q_of_row.at, q_of_row.step, &d_k_of_key[0][0], BLOCK_D);
}

static void backward_columns_kernel(const Grid program, const Grid programs,
        k_of_key_type *k_of_key_ptr, v_type *v_ptr, q_of_row_type *q_of_row_ptr,
        d_out_type *d_out_ptr, inverse_type *inverse_ptr, delta_type *delta_ptr,
        slope_type *slope_ptr, d_k_of_key_type *d_k_of_key_ptr, dv_type *dv_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides,
        const int64_t *v_strides, const int64_t *q_of_row_strides, const int64_t *d_out_strides,
        int n, int m, int k_start, int GROUP, int D, int E)
{
    int column_lanes[BLOCK_N];
    int seen[BLOCK_N];
    Rows k_of_key;
    real k_of_key_room[BLOCK_N][BLOCK_D];
    real k_of_key_turned[BLOCK_D][BLOCK_N];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    real v_turned[BLOCK_E][BLOCK_N];
    int j[BLOCK_N];
    real dv[BLOCK_N][BLOCK_E];
    real d_k_of_key[BLOCK_N][BLOCK_D];
    int tile;
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
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)kv_head * v_strides[1]);
    v_ptr = v_ptr + (int64_t)column * v_strides[2];
    int64_t q_of_row_step = q_of_row_strides[2] * BLOCK_M;
    int64_t d_out_step = d_out_strides[2] * BLOCK_M;
    int64_t first_vector = ((int64_t)batch * kv_heads + kv_head) * m + column;
    // Keys that no row can see are not read, and their gradients are 0.
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        seen[c] = column_lanes[c] < keys;
    k_of_key = load_rows(k_of_key_type, &k_of_key_room[0][0], k_of_key_ptr, k_of_key_strides[2],
            seen, BLOCK_N, D, BLOCK_D);
    turn(BLOCK_N, BLOCK_D, k_of_key.at, k_of_key.step, 1, &k_of_key_turned[0][0]);
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_strides[2], seen, BLOCK_N, E, BLOCK_E);
    turn(BLOCK_N, BLOCK_E, v.at, v.step, 1, &v_turned[0][0]);
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        j[c] = k_start + column_lanes[c];
    // Positions of the tile's first and last key; [low, high) are the rows that may see it.
    int first = k_start + column;
    int last = first + smaller(BLOCK_N, keys - column) - 1;
    int in_rows = column < keys ? n : 0;
    int low = larger(first - q_start, 0);
    int high = in_rows;
    int t0 = low / BLOCK_M;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_M), t0);
    int full_low = larger(last - q_start, 0);
    int full_high = in_rows;
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_M), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_M, f0), t1);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            dv[c][x] = 0;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            d_k_of_key[c][x] = 0;
    }
    for (int head = kv_head * GROUP; head < kv_head * GROUP + GROUP; head++) {
        q_of_row_type *q_of_row_head_ptr = q_of_row_ptr + (int64_t)batch * q_of_row_strides[0]
                + (int64_t)head * q_of_row_strides[1];
        d_out_type *d_out_head_ptr = d_out_ptr + (int64_t)batch * d_out_strides[0] + (int64_t)head
                * d_out_strides[1];
        int64_t statistics = ((int64_t)batch * heads + head) * n;
        for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
            tile = t0 + step;
            tile = tile < f0 ? tile : tile + (f1 - f0);
            backward_columns_tile(dv, d_k_of_key, k_of_key, k_of_key_turned, v, v_turned,
                    q_of_row_head_ptr + tile * q_of_row_step, d_out_head_ptr + tile * d_out_step,
                    inverse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile
                    * BLOCK_M, slope_ptr + statistics + tile * BLOCK_M, q_of_row_strides[2],
                    d_out_strides[2], j, tile * BLOCK_M, q_start, n, D, E, 1);
        }
        if (!BY_STATES) {
            for (int tile = f0; tile < f1; tile++) {
                backward_columns_tile(dv, d_k_of_key, k_of_key, k_of_key_turned, v, v_turned,
                        q_of_row_head_ptr + tile * q_of_row_step, d_out_head_ptr + tile
                        * d_out_step, inverse_ptr + statistics + tile * BLOCK_M, delta_ptr
                        + statistics + tile * BLOCK_M, slope_ptr + statistics + tile * BLOCK_M,
                        q_of_row_strides[2], d_out_strides[2], j, tile * BLOCK_M, q_start, n, D, E,
                        0);
            }
        }
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
        dv_type *to = dv_ptr + first_vector * E + (int64_t)c * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(dv_type, to[x], seen[c] ? dv[c][x] : R(0.0));
    }
}

void run(const Grid programs, const int threads, const int share, k_of_key_type *k_of_key_ptr,
        v_type *v_ptr, q_of_row_type *q_of_row_ptr, d_out_type *d_out_ptr,
        inverse_type *inverse_ptr, delta_type *delta_ptr, slope_type *slope_ptr,
        d_k_of_key_type *d_k_of_key_ptr, dv_type *dv_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides, const int64_t *v_strides,
        const int64_t *q_of_row_strides, const int64_t *d_out_strides, int n, int m, int k_start,
        int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            backward_columns_kernel((Grid){x, y, z}, programs, k_of_key_ptr, v_ptr, q_of_row_ptr,
                    d_out_ptr, inverse_ptr, delta_ptr, slope_ptr, d_k_of_key_ptr, dv_ptr,
                    q_start_ptr, kv_lengths_ptr, k_of_key_strides, v_strides, q_of_row_strides,
                    d_out_strides, n, m, k_start, GROUP, D, E);
}
""",
    ),
    "_backward_rows_kernel": _CKernel(
        "_backward_rows_kernel",
        (
            "d_out_ptr k_of_key_ptr v_ptr inverse_ptr delta_ptr slope_ptr d_q_of_row_ptr "
            "q_start_ptr kv_lengths_ptr d_out_strides k_of_key_strides v_strides n m k_start "
            "GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BY_STATES BLOCK_M BLOCK_N",
        "d_q_of_row_ptr",
        r"""
INLINE void backward_rows_tile(real (*restrict d_q_of_row)[BLOCK_D], const Rows d_out,
        const real (*restrict d_out_turned)[BLOCK_M], inverse_value *restrict inverse,
        delta_value *restrict delta, slope_value *restrict slope, k_of_key_type *k_of_key_ptr,
        v_type *v_ptr, int64_t k_of_key_stride, int64_t v_stride, int *restrict i, int column,
        int k_start, int low, int high, int D, int E, const int MASKED)
{
    int visible[BLOCK_N];
    int j[BLOCK_N];
    int related[BLOCK_N][BLOCK_M];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    real d_share[BLOCK_N][BLOCK_M];
    real d_dot_q_of_rowk_of_key[BLOCK_N][BLOCK_M];
    Rows k_of_key;
    real k_of_key_room[BLOCK_N][BLOCK_D];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const int column_lanes = column + c;
        visible[c] = (column_lanes >= low) & (column_lanes < high);
        j[c] = k_start + column_lanes;
    }
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_stride, MASKED ? visible : NULL, BLOCK_N, E,
            BLOCK_E);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            if (MASKED) related[c][r] = (j[c] <= i[r]) & visible[c];
    }
    Span spans[BLOCK_M / LANES];
    for (int group = 0; MASKED && group < BLOCK_M / LANES; group++) {
        spans[group] = (Span){BLOCK_N, 0};
        for (int c = 0; c < BLOCK_N; c++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int r = group * LANES; r < (group + 1) * LANES; r++)
                some |= ((j[c] <= i[r]) & visible[c]);
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_E, BLOCK_M, v.at, v.step, 1,
            &d_out_turned[0][0], BLOCK_M, &d_share[0][0], BLOCK_M, 0);
    k_of_key = load_rows(k_of_key_type, &k_of_key_room[0][0], k_of_key_ptr, k_of_key_stride, MASKED
            ? visible : NULL, BLOCK_N, D, BLOCK_D);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            const real d_weight = (d_share[c][r] - slope[r] * delta[r]) * inverse[r];
            d_dot_q_of_rowk_of_key[c][r] = d_weight * cos_of(R(1.5707963267948966) * (i[r] - j[c])
                    * R(0.000244140625));
            if (MASKED) d_dot_q_of_rowk_of_key[c][r] = related[c][r] ? d_dot_q_of_rowk_of_key[c][r]
                    : R(0.0);
        }
    }
    multiply_lanes(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_D, &d_dot_q_of_rowk_of_key[0][0],
            1, BLOCK_M, k_of_key.at, k_of_key.step, &d_q_of_row[0][0], BLOCK_D);
}

static void backward_rows_kernel(const Grid program, const Grid programs, d_out_type *d_out_ptr,
        k_of_key_type *k_of_key_ptr, v_type *v_ptr, inverse_type *inverse_ptr,
        delta_type *delta_ptr, slope_type *slope_ptr, d_q_of_row_type *d_q_of_row_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *d_out_strides,
        const int64_t *k_of_key_strides, const int64_t *v_strides, int n, int m, int k_start,
        int GROUP, int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real d_out_turned[BLOCK_E][BLOCK_M];
    inverse_value inverse[BLOCK_M];
    delta_value delta[BLOCK_M];
    slope_value slope[BLOCK_M];
    int i[BLOCK_M];
    real d_q_of_row[BLOCK_M][BLOCK_D];
    int tile;
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
    d_out_ptr = d_out_ptr + ((int64_t)batch * d_out_strides[0] + (int64_t)head * d_out_strides[1]);
    d_out_ptr = d_out_ptr + (int64_t)row * d_out_strides[2];
    k_of_key_ptr = k_of_key_ptr + ((int64_t)batch * k_of_key_strides[0] + (int64_t)(head / GROUP)
            * k_of_key_strides[1]);
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)(head / GROUP) * v_strides[1]);
    int64_t k_of_key_step = k_of_key_strides[2] * BLOCK_N;
    int64_t v_step = v_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        visible[r] = row_lanes[r] < n;
    d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_ptr, d_out_strides[2], visible, BLOCK_M,
            E, BLOCK_E);
    turn(BLOCK_M, BLOCK_E, d_out.at, d_out.step, 1, &d_out_turned[0][0]);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        inverse[r] = visible[r] ? number_of((inverse_ptr + first_vector)[r]) : R(0.0);
        delta[r] = visible[r] ? number_of((delta_ptr + first_vector)[r]) : R(0.0);
        slope[r] = visible[r] ? number_of((slope_ptr + first_vector)[r]) : R(0.0);
        i[r] = q_start + row_lanes[r];
    }
    // Positions of the tile's first and last row; [low, high) are the keys that it may see.
    int first = q_start + row;
    int last = first + smaller(BLOCK_M, n - row) - 1;
    int low = 0;
    int high = smaller(last + 1 - k_start, keys);
    int t0 = low / BLOCK_N;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_N), t0);
    int full_low = 0;
    int full_high = smaller(first + 1 - k_start, keys);
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_N), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_N, f0), t1);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            d_q_of_row[r][x] = 0;
    }
    for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
        tile = t0 + step;
        tile = tile < f0 ? tile : tile + (f1 - f0);
        backward_rows_tile(d_q_of_row, d_out, d_out_turned, inverse, delta, slope, k_of_key_ptr
                + tile * k_of_key_step, v_ptr + tile * v_step, k_of_key_strides[2], v_strides[2], i,
                tile * BLOCK_N, k_start, low, high, D, E, 1);
    }
    if (!BY_STATES) {
        for (int tile = f0; tile < f1; tile++) {
            backward_rows_tile(d_q_of_row, d_out, d_out_turned, inverse, delta, slope, k_of_key_ptr
                    + tile * k_of_key_step, v_ptr + tile * v_step, k_of_key_strides[2],
                    v_strides[2], i, tile * BLOCK_N, k_start, low, high, D, E, 0);
        }
    }
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        d_q_of_row_type *to = d_q_of_row_ptr + first_vector * D + (int64_t)r * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(d_q_of_row_type, to[x], d_q_of_row[r][x]);
    }
}

void run(const Grid programs, const int threads, const int share, d_out_type *d_out_ptr,
        k_of_key_type *k_of_key_ptr, v_type *v_ptr, inverse_type *inverse_ptr,
        delta_type *delta_ptr, slope_type *slope_ptr, d_q_of_row_type *d_q_of_row_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *d_out_strides,
        const int64_t *k_of_key_strides, const int64_t *v_strides, int n, int m, int k_start,
        int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            backward_rows_kernel((Grid){x, y, z}, programs, d_out_ptr, k_of_key_ptr, v_ptr,
                    inverse_ptr, delta_ptr, slope_ptr, d_q_of_row_ptr, q_start_ptr, kv_lengths_ptr,
                    d_out_strides, k_of_key_strides, v_strides, n, m, k_start, GROUP, D, E);
}
""",
    ),
    "_forward_in_order_kernel": _CKernel(
        "_forward_in_order_kernel",
        (
            "q_of_row_ptr k_of_key_ptr v_ptr out_ptr inverse_ptr slope_ptr lse_ptr "
            "residual_ptr state_ptr plain_ptr summed_ptr q_start_ptr kv_lengths_ptr "
            "q_of_row_strides k_of_key_strides v_strides n m k_start GROUP D E RAW"
        ),
        "n m k_start GROUP D E RAW",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        ("state_ptr plain_ptr summed_ptr out_ptr inverse_ptr slope_ptr lse_ptr residual_ptr"),
        r"""
INLINE void forward_in_order_tile(real *restrict rows, real (*restrict total)[BLOCK_E],
        real (*restrict q_of_row)[BLOCK_D], const real (*restrict q_of_row_turned)[BLOCK_M],
        k_of_key_type *k_of_key_ptr, v_type *v_ptr, int64_t k_of_key_stride, int64_t v_stride,
        int *restrict i, int column, int k_start, int low, int high, int D, int E, int RAW,
        const int MASKED)
{
    int visible[BLOCK_N];
    int j[BLOCK_N];
    real k_of_key[BLOCK_N][BLOCK_D];
    real dot_q_of_rowk_of_key[BLOCK_N][BLOCK_M];
    real weight[BLOCK_N][BLOCK_M];
    real rows_sum[BLOCK_M];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const int column_lanes = column + c;
        visible[c] = (column_lanes >= low) & (column_lanes < high);
        j[c] = k_start + column_lanes;
    }
    copy_rows(k_of_key_type, &k_of_key[0][0], k_of_key_ptr, k_of_key_stride, MASKED ? visible
            : NULL, BLOCK_N, D, BLOCK_D);
    if (RAW) {
        for (int c = 0; c < BLOCK_N; c++) {
            #pragma omp simd
            for (int x = 0; x < BLOCK_D; x++)
                k_of_key[c][x] = x < D ? larger(k_of_key[c][x], R(0.0)) : R(0.0);
        }
    }
    Span spans[BLOCK_M / LANES];
    for (int group = 0; MASKED && group < BLOCK_M / LANES; group++) {
        spans[group] = (Span){BLOCK_N, 0};
        for (int c = 0; c < BLOCK_N; c++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int r = group * LANES; r < (group + 1) * LANES; r++)
                some |= ((j[c] <= i[r]) & visible[c]);
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply_pairs(MASKED ? spans : NULL, BLOCK_N, BLOCK_D, BLOCK_M, &k_of_key[0][0], BLOCK_D, 1,
            &q_of_row_turned[0][0], BLOCK_M, &dot_q_of_rowk_of_key[0][0], BLOCK_M, 0);
    for (int r = 0; r < BLOCK_M; r++)
        rows_sum[r] = R(0.0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            int related = 0;
            if (MASKED) related = (j[c] <= i[r]) & visible[c];
            weight[c][r] = dot_q_of_rowk_of_key[c][r] * cos_of(R(1.5707963267948966) * (i[r] - j[c])
                    * R(0.000244140625));
            if (MASKED) weight[c][r] = related ? weight[c][r] : R(0.0);
            rows_sum[r] += weight[c][r];
        }
    }
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_stride, MASKED ? visible : NULL, BLOCK_N, E,
            BLOCK_E);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        rows[r] = rows[r] + rows_sum[r];
    multiply_lanes(MASKED ? spans : NULL, BLOCK_M, BLOCK_N, BLOCK_E, &weight[0][0], 1, BLOCK_M,
            v.at, v.step, &total[0][0], BLOCK_E);
}

static void forward_in_order_kernel(const Grid program, const Grid programs,
        q_of_row_type *q_of_row_ptr, k_of_key_type *k_of_key_ptr, v_type *v_ptr, out_type *out_ptr,
        inverse_type *inverse_ptr, slope_type *slope_ptr, lse_type *lse_ptr,
        residual_type *residual_ptr, state_type *state_ptr, plain_type *plain_ptr,
        summed_type *summed_ptr, q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr,
        const int64_t *q_of_row_strides, const int64_t *k_of_key_strides, const int64_t *v_strides,
        int n, int m, int k_start, int GROUP, int D, int E, int RAW)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    real q_of_row[BLOCK_M][BLOCK_D];
    real q_of_row_turned[BLOCK_D][BLOCK_M];
    int i[BLOCK_M];
    real k_of_key[BLOCK_N][BLOCK_D];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    int j[BLOCK_N];
    real k_of_key_features[BLOCK_N][BLOCK_D];
    real numbers[BLOCK_D];
    real rows[BLOCK_M];
    real total[BLOCK_M][BLOCK_E];
    real q_of_row_features[BLOCK_M][BLOCK_D];
    plain_value plain[BLOCK_D];
    real rows_sum[BLOCK_M];
    real state[BLOCK_D][BLOCK_E];
    real rows_sum_2[BLOCK_M];
    int tile_;
    real norm[BLOCK_M];
    real out[BLOCK_M][BLOCK_E];
    real inverse[BLOCK_M];
    real lse[BLOCK_M];
    real slope[BLOCK_M];
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
    q_of_row_ptr = q_of_row_ptr + ((int64_t)batch * q_of_row_strides[0] + (int64_t)head
            * q_of_row_strides[1]);
    q_of_row_ptr = q_of_row_ptr + (int64_t)row * q_of_row_strides[2];
    k_of_key_ptr = k_of_key_ptr + ((int64_t)batch * k_of_key_strides[0] + (int64_t)(head / GROUP)
            * k_of_key_strides[1]);
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)(head / GROUP) * v_strides[1]);
    int64_t k_of_key_step = k_of_key_strides[2] * BLOCK_N;
    int64_t v_step = v_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        visible[r] = row_lanes[r] < n;
    copy_rows(q_of_row_type, &q_of_row[0][0], q_of_row_ptr, q_of_row_strides[2], visible, BLOCK_M,
            D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, &q_of_row[0][0], BLOCK_D, 1, &q_of_row_turned[0][0]);
    if (RAW) {
        for (int r = 0; r < BLOCK_M; r++) {
            #pragma omp simd
            for (int x = 0; x < BLOCK_D; x++)
                q_of_row[r][x] = x < D ? larger(q_of_row[r][x], R(0.0)) : R(0.0);
        }
        turn(BLOCK_M, BLOCK_D, &q_of_row[0][0], BLOCK_D, 1, &q_of_row_turned[0][0]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        i[r] = q_start + row_lanes[r];
    // Positions of the tile's first and last row; [low, high) are the keys that it may see.
    int first = q_start + row;
    int last = first + smaller(BLOCK_M, n - row) - 1;
    int low = 0;
    int high = smaller(last + 1 - k_start, keys);
    int t0 = low / BLOCK_N;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_N), t0);
    int full_low = 0;
    int full_high = smaller(first + 1 - k_start, keys);
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_N), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_N, f0), t1);
    int64_t spot = (int64_t)batch * heads + head;
    summed_value summed = number_of((summed_ptr + spot)[0]);
    state_ptr = state_ptr + spot * (2 * BLOCK_D * BLOCK_E);
    plain_ptr = plain_ptr + spot * (2 * BLOCK_D);
    // the run has lost keys, and nothing is ever subtracted
    if (f1 < summed) {
        for (int x = 0; x < BLOCK_D; x++) {
            #pragma omp simd
            for (int y = 0; y < BLOCK_E; y++)
                put(state_type, state_ptr[x * BLOCK_E + y], 0);
        }
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            put(plain_type, plain_ptr[x], 0);
        for (int x = 0; x < BLOCK_D; x++) {
            #pragma omp simd
            for (int y = 0; y < BLOCK_E; y++)
                put(state_type, (state_ptr + 1 * (BLOCK_D * BLOCK_E))[x * BLOCK_E + y], 0);
        }
        summed = 0;
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            put(plain_type, (plain_ptr + 1 * BLOCK_D)[x], 0);
    }
    for (int tile = larger(summed, f0); tile < f1; tile++) {
        copy_rows(k_of_key_type, &k_of_key[0][0], k_of_key_ptr + tile * k_of_key_step,
                k_of_key_strides[2], NULL, BLOCK_N, D, BLOCK_D);
        if (RAW) {
            for (int c = 0; c < BLOCK_N; c++) {
                #pragma omp simd
                for (int x = 0; x < BLOCK_D; x++)
                    k_of_key[c][x] = x < D ? larger(k_of_key[c][x], R(0.0)) : R(0.0);
            }
        }
        v = load_rows(v_type, &v_room[0][0], v_ptr + tile * v_step, v_strides[2], NULL, BLOCK_N, E,
                BLOCK_E);
        #pragma omp simd
        for (int c = 0; c < BLOCK_N; c++) {
            const int column_lanes = tile * BLOCK_N + c;
            j[c] = k_start + column_lanes;
        }
        for (int c = 0; c < BLOCK_N; c++) {
            #pragma omp simd
            for (int x = 0; x < BLOCK_D; x++)
                k_of_key_features[c][x] = k_of_key[c][x] * sin_of(-R(0.0003834951969714103) * j[c]);
        }
        multiply(BLOCK_D, BLOCK_N, BLOCK_E, &k_of_key_features[0][0], 1, BLOCK_D, v.at, v.step,
                state_ptr, BLOCK_E, 1);
        for (int x = 0; x < BLOCK_D; x++)
            numbers[x] = R(0.0);
        for (int c = 0; c < BLOCK_N; c++) {
            #pragma omp simd
            for (int x = 0; x < BLOCK_D; x++)
                numbers[x] += k_of_key_features[c][x];
        }
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            put(plain_type, plain_ptr[x], number_of(plain_ptr[x]) + numbers[x]);
        for (int c = 0; c < BLOCK_N; c++) {
            #pragma omp simd
            for (int x = 0; x < BLOCK_D; x++)
                k_of_key_features[c][x] = k_of_key[c][x] * cos_of(-R(0.0003834951969714103) * j[c]);
        }
        multiply(BLOCK_D, BLOCK_N, BLOCK_E, &k_of_key_features[0][0], 1, BLOCK_D, v.at, v.step,
                state_ptr + 1 * (BLOCK_D * BLOCK_E), BLOCK_E, 1);
        for (int x = 0; x < BLOCK_D; x++)
            numbers[x] = R(0.0);
        for (int c = 0; c < BLOCK_N; c++) {
            #pragma omp simd
            for (int x = 0; x < BLOCK_D; x++)
                numbers[x] += k_of_key_features[c][x];
        }
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            put(plain_type, (plain_ptr + 1 * BLOCK_D)[x], number_of((plain_ptr + 1 * BLOCK_D)[x])
                    + numbers[x]);
    }
    summed = f1;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        rows[r] = 0;
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            total[r][x] = 0;
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            q_of_row_features[r][x] = q_of_row[r][x] * (-1 * sin_of(R(0.0003834951969714103)
                    * i[r]));
    }
    #pragma omp simd
    for (int x = 0; x < BLOCK_D; x++)
        plain[x] = number_of(plain_ptr[x]);
    for (int r = 0; r < BLOCK_M; r++) {
        real rows_sum_here = R(0.0);
        #pragma omp simd reduction(+:rows_sum_here)
        for (int x = 0; x < BLOCK_D; x++)
            rows_sum_here += q_of_row_features[r][x] * plain[x];
        rows_sum[r] = rows_sum_here;
    }
    copy_rows(state_type, &state[0][0], state_ptr, BLOCK_E, NULL, BLOCK_D, BLOCK_E, BLOCK_E);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        rows[r] = rows[r] + rows_sum[r];
    multiply(BLOCK_M, BLOCK_D, BLOCK_E, &q_of_row_features[0][0], BLOCK_D, 1, &state[0][0], BLOCK_E,
            &total[0][0], BLOCK_E, 1);
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            q_of_row_features[r][x] = q_of_row[r][x] * cos_of(R(0.0003834951969714103) * i[r]);
    }
    #pragma omp simd
    for (int x = 0; x < BLOCK_D; x++)
        plain[x] = number_of((plain_ptr + 1 * BLOCK_D)[x]);
    for (int r = 0; r < BLOCK_M; r++) {
        real rows_sum_2_here = R(0.0);
        #pragma omp simd reduction(+:rows_sum_2_here)
        for (int x = 0; x < BLOCK_D; x++)
            rows_sum_2_here += q_of_row_features[r][x] * plain[x];
        rows_sum_2[r] = rows_sum_2_here;
    }
    copy_rows(state_type, &state[0][0], state_ptr + 1 * (BLOCK_D * BLOCK_E), BLOCK_E, NULL, BLOCK_D,
            BLOCK_E, BLOCK_E);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        rows[r] = rows[r] + rows_sum_2[r];
    multiply(BLOCK_M, BLOCK_D, BLOCK_E, &q_of_row_features[0][0], BLOCK_D, 1, &state[0][0], BLOCK_E,
            &total[0][0], BLOCK_E, 1);
    for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
        tile_ = t0 + step;
        tile_ = tile_ < f0 ? tile_ : tile_ + (f1 - f0);
        forward_in_order_tile(rows, total, q_of_row, q_of_row_turned, k_of_key_ptr + tile_
                * k_of_key_step, v_ptr + tile_ * v_step, k_of_key_strides[2], v_strides[2], i, tile_
                * BLOCK_N, k_start, low, high, D, E, RAW, 1);
    }
    put(summed_type, (summed_ptr + spot)[0], summed);
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        norm[r] = larger(rows[r], R(1e-06));
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            out[r][x] = total[r][x] * inverse_of(norm[r]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        inverse[r] = norm[r] == 0 ? R(0.0) : 1 / norm[r];
        lse[r] = log_or_none_of(norm[r]);
        slope[r] = rows[r] > R(1e-06) ? R(1.0) : R(0.0);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        out_type *to = out_ptr + first_vector * E + (int64_t)r * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(out_type, to[x], out[r][x]);
    }
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        if (visible[r]) put(inverse_type, (inverse_ptr + first_vector)[r], inverse[r]);
        if (visible[r]) put(slope_type, (slope_ptr + first_vector)[r], slope[r]);
        if (visible[r]) put(lse_type, (lse_ptr + first_vector)[r], lse[r]);
    }
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

void run(const Grid programs, const int threads, const int share, q_of_row_type *q_of_row_ptr,
        k_of_key_type *k_of_key_ptr, v_type *v_ptr, out_type *out_ptr, inverse_type *inverse_ptr,
        slope_type *slope_ptr, lse_type *lse_ptr, residual_type *residual_ptr,
        state_type *state_ptr, plain_type *plain_ptr, summed_type *summed_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *q_of_row_strides,
        const int64_t *k_of_key_strides, const int64_t *v_strides, int n, int m, int k_start,
        int GROUP, int D, int E, int RAW)
{
    #pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE((int64_t)z * programs.y + y))
            forward_in_order_kernel((Grid){x, y, z}, programs, q_of_row_ptr, k_of_key_ptr, v_ptr,
                    out_ptr, inverse_ptr, slope_ptr, lse_ptr, residual_ptr, state_ptr, plain_ptr,
                    summed_ptr, q_start_ptr, kv_lengths_ptr, q_of_row_strides, k_of_key_strides,
                    v_strides, n, m, k_start, GROUP, D, E, RAW);
}
""",
    ),
    "_runs_by_row_kernel": _CKernel(
        "_runs_by_row_kernel",
        "runs_ptr q_start_ptr kv_lengths_ptr n m k_start tiles heads",
        "n m k_start tiles heads",
        "BLOCK_M BLOCK_N",
        "runs_ptr",
        r"""
// The runs of tiles of keys that all of its rows see, for a tile of rows.
static void runs_by_row_kernel(const Grid program, const Grid programs, runs_type *runs_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, int n, int m, int k_start,
        int tiles, int heads)
{
    int tile = program.x;
    int row = tile * BLOCK_M;
    int head = program.y;
    int batch = program.z;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    int first = q_start + row;
    int last = first + smaller(BLOCK_M, n - row) - 1;
    int low = 0;
    int high = smaller(last + 1 - k_start, keys);
    int t0 = low / BLOCK_N;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_N), t0);
    int full_low = 0;
    int full_high = smaller(first + 1 - k_start, keys);
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_N), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_N, f0), t1);
    runs_type *spot = runs_ptr + ((batch * programs.y + head) * tiles + tile) * 2;
    put(runs_type, spot[0], f0);
    put(runs_type, (spot + 1)[0], row < n ? f1 : f0);
}

void run(const Grid programs, const int threads, const int share, runs_type *runs_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, int n, int m, int k_start,
        int tiles, int heads)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            runs_by_row_kernel((Grid){x, y, z}, programs, runs_ptr, q_start_ptr, kv_lengths_ptr, n,
                    m, k_start, tiles, heads);
}
""",
    ),
    "_sums_by_row_kernel": _CKernel(
        "_sums_by_row_kernel",
        (
            "k_of_key_ptr v_ptr sums_ptr plain_ptr runs_ptr q_start_ptr kv_lengths_ptr "
            "k_of_key_strides v_strides n m k_start tiles segments leads GROUP D E WIDTH"
        ),
        "n m k_start tiles segments leads GROUP D E WIDTH",
        "TERM BLOCK_W BLOCK_E BLOCK_M BLOCK_N",
        "sums_ptr plain_ptr",
        r"""
// For every tile of rows the sum over the keys that all of them see.
static void sums_by_row_kernel(const Grid program, const Grid programs, k_of_key_type *k_of_key_ptr,
        v_type *v_ptr, sums_type *sums_ptr, plain_type *plain_ptr, runs_type *runs_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides,
        const int64_t *v_strides, int n, int m, int k_start, int tiles, int segments, int leads,
        int GROUP, int D, int E, int WIDTH)
{
    real sums[BLOCK_W][BLOCK_E];
    real numbers[BLOCK_W];
    int j[BLOCK_N];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    real k_of_key[BLOCK_N][BLOCK_W];
    real part[BLOCK_N][BLOCK_W];
    real scaled[BLOCK_N];
    real features[BLOCK_N][BLOCK_W];
    real numbers_sum[BLOCK_W];
    real numbers_sum_2[BLOCK_W];
    int value_blocks = ceil_div(E, BLOCK_E);
    int channel_blocks = ceil_div(WIDTH, BLOCK_W);
    int values = value_blocks * BLOCK_E;
    int padded = channel_blocks * BLOCK_W;
    // features of the sums of a tile
    int size = leads * padded;
    int job = program.x;
    int value = job % value_blocks * BLOCK_E;
    job = job / value_blocks;
    int channel = job % channel_blocks * BLOCK_W;
    job = job / channel_blocks;
    int segment = job % segments;
    job = job / segments;
    int lead = 0;
    int kv_head = program.y;
    int kv_heads = programs.y;
    int batch = program.z;
    k_of_key_type *k_of_key_at = k_of_key_ptr + (int64_t)batch * k_of_key_strides[0]
            + (int64_t)kv_head * k_of_key_strides[1];
    int64_t k_of_key_stride = k_of_key_strides[2];
    v_type *v_at = v_ptr + (int64_t)batch * v_strides[0] + (int64_t)kv_head * v_strides[1];
    int64_t v_stride = v_strides[2];
    int run_spot = (batch * segments + segment) * tiles;
    int64_t spot = (int64_t)((batch * kv_heads + kv_head) * segments + segment);
    int64_t tile_sums = spot * tiles;
    int within = lead * padded + channel;
    for (int x = 0; x < BLOCK_W; x++) {
        #pragma omp simd
        for (int y = 0; y < BLOCK_E; y++)
            sums[x][y] = 0;
    }
    #pragma omp simd
    for (int x = 0; x < BLOCK_W; x++)
        numbers[x] = 0;
    // These are the sums over the run low … high - 1 of tiles.
    int run_low = 0;
    int run_high = 0;
    for (int tile = 0; tile < tiles; tile++) {
        runs_type *run = runs_ptr + (run_spot + tile) * 2;
        runs_value f0 = number_of(run[0]);
        runs_value f1 = number_of((run + 1)[0]);
        if (f0 < f1) {
            // no run that follows
            if ((f0 < run_low) | (f0 > run_high) | (f1 < run_high)) {
                run_low = f0;
                run_high = f0;
                for (int x = 0; x < BLOCK_W; x++) {
                    #pragma omp simd
                    for (int y = 0; y < BLOCK_E; y++)
                        sums[x][y] = 0;
                }
                #pragma omp simd
                for (int x = 0; x < BLOCK_W; x++)
                    numbers[x] = 0;
            }
            for (int step = 0; step < f1 - run_high; step++) {
                int item = run_high + step;
                int column = item * BLOCK_N;
                v = load_rows(v_type, &v_room[0][0], v_at + (int64_t)column * v_stride + value,
                        v_stride, NULL, BLOCK_N, E - value, BLOCK_E);
                #pragma omp simd
                for (int c = 0; c < BLOCK_N; c++) {
                    const int column_lanes = column + c;
                    j[c] = k_start + column_lanes;
                }
                if (TERM == 0) {
                    copy_rows(k_of_key_type, &k_of_key[0][0], k_of_key_at + (int64_t)column
                            * k_of_key_stride + channel, k_of_key_stride, NULL, BLOCK_N, WIDTH
                            - channel, BLOCK_W);
                    for (int c = 0; c < BLOCK_N; c++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            part[c][x] = k_of_key[c][x];
                    }
                    #pragma omp simd
                    for (int c = 0; c < BLOCK_N; c++)
                        scaled[c] = sin_of(-R(0.0003834951969714103) * j[c]);
                    for (int c = 0; c < BLOCK_N; c++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            features[c][x] = part[c][x] * scaled[c];
                    }
                    multiply(BLOCK_W, BLOCK_N, BLOCK_E, &features[0][0], 1, BLOCK_W, v.at, v.step,
                            &sums[0][0], BLOCK_E, 1);
                    for (int x = 0; x < BLOCK_W; x++)
                        numbers_sum[x] = R(0.0);
                    for (int c = 0; c < BLOCK_N; c++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            numbers_sum[x] += features[c][x];
                    }
                    #pragma omp simd
                    for (int x = 0; x < BLOCK_W; x++)
                        numbers[x] = numbers[x] + numbers_sum[x];
                }
                if (TERM == 1) {
                    copy_rows(k_of_key_type, &k_of_key[0][0], k_of_key_at + (int64_t)column
                            * k_of_key_stride + channel, k_of_key_stride, NULL, BLOCK_N, WIDTH
                            - channel, BLOCK_W);
                    for (int c = 0; c < BLOCK_N; c++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            part[c][x] = k_of_key[c][x];
                    }
                    #pragma omp simd
                    for (int c = 0; c < BLOCK_N; c++)
                        scaled[c] = cos_of(-R(0.0003834951969714103) * j[c]);
                    for (int c = 0; c < BLOCK_N; c++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            features[c][x] = part[c][x] * scaled[c];
                    }
                    multiply(BLOCK_W, BLOCK_N, BLOCK_E, &features[0][0], 1, BLOCK_W, v.at, v.step,
                            &sums[0][0], BLOCK_E, 1);
                    for (int x = 0; x < BLOCK_W; x++)
                        numbers_sum_2[x] = R(0.0);
                    for (int c = 0; c < BLOCK_N; c++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            numbers_sum_2[x] += features[c][x];
                    }
                    #pragma omp simd
                    for (int x = 0; x < BLOCK_W; x++)
                        numbers[x] = numbers[x] + numbers_sum_2[x];
                }
            }
            run_low = f0;
            run_high = f1;
            int64_t place = (tile_sums + tile) * size + within;
            for (int x = 0; x < BLOCK_W; x++) {
                #pragma omp simd
                for (int y = 0; y < BLOCK_E; y++)
                    put(sums_type, (sums_ptr + place * values + value)[x * values + y], sums[x][y]);
            }
            if (value == 0) {
                #pragma omp simd
                for (int x = 0; x < BLOCK_W; x++)
                    put(plain_type, (plain_ptr + place)[x], numbers[x]);
            }
        }
    }
}

void run(const Grid programs, const int threads, const int share, k_of_key_type *k_of_key_ptr,
        v_type *v_ptr, sums_type *sums_ptr, plain_type *plain_ptr, runs_type *runs_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides,
        const int64_t *v_strides, int n, int m, int k_start, int tiles, int segments, int leads,
        int GROUP, int D, int E, int WIDTH)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            sums_by_row_kernel((Grid){x, y, z}, programs, k_of_key_ptr, v_ptr, sums_ptr, plain_ptr,
                    runs_ptr, q_start_ptr, kv_lengths_ptr, k_of_key_strides, v_strides, n, m,
                    k_start, tiles, segments, leads, GROUP, D, E, WIDTH);
}
""",
    ),
    "_rows_by_sums_kernel": _CKernel(
        "_rows_by_sums_kernel",
        (
            "q_of_row_ptr sums_ptr plain_ptr rows_state_ptr total_state_ptr runs_ptr "
            "q_start_ptr kv_lengths_ptr q_of_row_strides n m k_start tiles segments leads "
            "GROUP D E LAST WIDTH"
        ),
        "n m k_start tiles segments leads GROUP D E LAST WIDTH",
        "TERM BLOCK_W BLOCK_E BLOCK_M BLOCK_N",
        "rows_state_ptr total_state_ptr",
        r"""
// Add what the keys that all rows of the tile see give to their sums.
static void rows_by_sums_kernel(const Grid program, const Grid programs,
        q_of_row_type *q_of_row_ptr, sums_type *sums_ptr, plain_type *plain_ptr,
        rows_state_type *rows_state_ptr, total_state_type *total_state_ptr, runs_type *runs_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *q_of_row_strides,
        int n, int m, int k_start, int tiles, int segments, int leads, int GROUP, int D, int E,
        int LAST, int WIDTH)
{
    int i[BLOCK_M];
    int visible[BLOCK_M];
    real rows_state[BLOCK_M];
    real total_state[BLOCK_M][BLOCK_E];
    real q_of_row[BLOCK_M][BLOCK_W];
    real part[BLOCK_M][BLOCK_W];
    real scaled[BLOCK_M];
    real features[BLOCK_M][BLOCK_W];
    int64_t place;
    sums_value sums[BLOCK_W][BLOCK_E];
    plain_value plain[BLOCK_W];
    real number[BLOCK_M];
    int value_blocks = ceil_div(E, BLOCK_E);
    int padded = ceil_div(LAST, BLOCK_W) * BLOCK_W;
    int values = value_blocks * BLOCK_E;
    int size = leads * padded;
    int value = program.x % value_blocks * BLOCK_E;
    int tile = program.x / value_blocks;
    int row = tile * BLOCK_M;
    int head = program.y;
    int heads = programs.y;
    int kv_head = head / GROUP;
    int kv_heads = heads / GROUP;
    int batch = program.z;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    q_of_row_type *q_of_row_at = q_of_row_ptr + (int64_t)batch * q_of_row_strides[0] + (int64_t)head
            * q_of_row_strides[1];
    int64_t q_of_row_stride = q_of_row_strides[2];
    int64_t first_token = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        const int row_lanes = row + r;
        i[r] = q_start + row_lanes;
        visible[r] = row_lanes < n;
        rows_state[r] = 0;
    }
    for (int r = 0; r < BLOCK_M; r++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            total_state[r][x] = 0;
    }
    for (int segment = 0; segment < segments; segment++) {
        int run_spot = (batch * segments + segment) * tiles;
        int64_t spot = (int64_t)((batch * kv_heads + kv_head) * segments + segment);
        runs_type *run = runs_ptr + (run_spot + tile) * 2;
        runs_value f0 = number_of(run[0]);
        runs_value f1 = number_of((run + 1)[0]);
        if (f0 < f1) {
            int64_t own_sums = (spot * tiles + tile) * size;
            if (TERM == 0) {
                for (int channel = 0; channel < WIDTH; channel += BLOCK_W) {
                    copy_rows(q_of_row_type, &q_of_row[0][0], q_of_row_at + (int64_t)row
                            * q_of_row_stride + channel, q_of_row_stride, visible, BLOCK_M, WIDTH
                            - channel, BLOCK_W);
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            part[r][x] = q_of_row[r][x];
                    }
                    #pragma omp simd
                    for (int r = 0; r < BLOCK_M; r++)
                        scaled[r] = -1 * sin_of(R(0.0003834951969714103) * i[r]);
                    place = own_sums + channel;
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            features[r][x] = part[r][x] * scaled[r];
                    }
                    for (int x = 0; x < BLOCK_W; x++) {
                        #pragma omp simd
                        for (int y = 0; y < BLOCK_E; y++)
                            sums[x][y] = number_of((sums_ptr + place * values + value)[x * values
                                    + y]);
                    }
                    multiply(BLOCK_M, BLOCK_W, BLOCK_E, &features[0][0], BLOCK_W, 1, &sums[0][0],
                            BLOCK_E, &total_state[0][0], BLOCK_E, 1);
                    #pragma omp simd
                    for (int x = 0; x < BLOCK_W; x++)
                        plain[x] = number_of((plain_ptr + place)[x]);
                    for (int r = 0; r < BLOCK_M; r++) {
                        real number_here = R(0.0);
                        #pragma omp simd reduction(+:number_here)
                        for (int x = 0; x < BLOCK_W; x++)
                            number_here += features[r][x] * plain[x];
                        number[r] = number_here;
                    }
                    #pragma omp simd
                    for (int r = 0; r < BLOCK_M; r++)
                        rows_state[r] = rows_state[r] + number[r];
                }
            }
            if (TERM == 1) {
                for (int channel = 0; channel < WIDTH; channel += BLOCK_W) {
                    copy_rows(q_of_row_type, &q_of_row[0][0], q_of_row_at + (int64_t)row
                            * q_of_row_stride + channel, q_of_row_stride, visible, BLOCK_M, WIDTH
                            - channel, BLOCK_W);
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            part[r][x] = q_of_row[r][x];
                    }
                    #pragma omp simd
                    for (int r = 0; r < BLOCK_M; r++)
                        scaled[r] = cos_of(R(0.0003834951969714103) * i[r]);
                    place = own_sums + channel;
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            features[r][x] = part[r][x] * scaled[r];
                    }
                    for (int x = 0; x < BLOCK_W; x++) {
                        #pragma omp simd
                        for (int y = 0; y < BLOCK_E; y++)
                            sums[x][y] = number_of((sums_ptr + place * values + value)[x * values
                                    + y]);
                    }
                    multiply(BLOCK_M, BLOCK_W, BLOCK_E, &features[0][0], BLOCK_W, 1, &sums[0][0],
                            BLOCK_E, &total_state[0][0], BLOCK_E, 1);
                    #pragma omp simd
                    for (int x = 0; x < BLOCK_W; x++)
                        plain[x] = number_of((plain_ptr + place)[x]);
                    for (int r = 0; r < BLOCK_M; r++) {
                        real number_here = R(0.0);
                        #pragma omp simd reduction(+:number_here)
                        for (int x = 0; x < BLOCK_W; x++)
                            number_here += features[r][x] * plain[x];
                        number[r] = number_here;
                    }
                    #pragma omp simd
                    for (int r = 0; r < BLOCK_M; r++)
                        rows_state[r] = rows_state[r] + number[r];
                }
            }
        }
    }
    if (value == 0) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++)
            if (visible[r]) add_to(rows_state_type, (rows_state_ptr + first_token)[r],
                    rows_state[r]);
    }
    for (int r = 0; r < BLOCK_M; r++) {
        if (!(visible[r])) continue;
        total_state_type *to = total_state_ptr + first_token * E + value + (int64_t)r * (E);
        #pragma omp simd
        for (int x = 0; x < smaller(BLOCK_E, E - value); x++)
            add_to(total_state_type, to[x], total_state[r][x]);
    }
}

void run(const Grid programs, const int threads, const int share, q_of_row_type *q_of_row_ptr,
        sums_type *sums_ptr, plain_type *plain_ptr, rows_state_type *rows_state_ptr,
        total_state_type *total_state_ptr, runs_type *runs_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_of_row_strides, int n, int m, int k_start,
        int tiles, int segments, int leads, int GROUP, int D, int E, int LAST, int WIDTH)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            rows_by_sums_kernel((Grid){x, y, z}, programs, q_of_row_ptr, sums_ptr, plain_ptr,
                    rows_state_ptr, total_state_ptr, runs_ptr, q_start_ptr, kv_lengths_ptr,
                    q_of_row_strides, n, m, k_start, tiles, segments, leads, GROUP, D, E, LAST,
                    WIDTH);
}
""",
    ),
    "_row_gradients_by_sums_kernel": _CKernel(
        "_row_gradients_by_sums_kernel",
        (
            "q_of_row_ptr inverse_ptr delta_ptr slope_ptr d_out_ptr sums_ptr plain_ptr "
            "d_q_of_row_ptr runs_ptr q_start_ptr kv_lengths_ptr q_of_row_strides "
            "d_out_strides n m k_start tiles segments leads GROUP D E LAST WIDTH"
        ),
        "n m k_start tiles segments leads GROUP D E LAST WIDTH",
        "TERM BLOCK_W BLOCK_E BLOCK_M BLOCK_N",
        "d_q_of_row_ptr",
        r"""
// Add what the sums of the tile's keys give to the gradients of its rows.
static void row_gradients_by_sums_kernel(const Grid program, const Grid programs,
        q_of_row_type *q_of_row_ptr, inverse_type *inverse_ptr, delta_type *delta_ptr,
        slope_type *slope_ptr, d_out_type *d_out_ptr, sums_type *sums_ptr, plain_type *plain_ptr,
        d_q_of_row_type *d_q_of_row_ptr, runs_type *runs_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_of_row_strides,
        const int64_t *d_out_strides, int n, int m, int k_start, int tiles, int segments, int leads,
        int GROUP, int D, int E, int LAST, int WIDTH)
{
    int i[BLOCK_M];
    int visible[BLOCK_M];
    inverse_value inverse[BLOCK_M];
    delta_value delta[BLOCK_M];
    slope_value slope[BLOCK_M];
    real d_part[BLOCK_M][BLOCK_W];
    int run_spot;
    int64_t spot;
    runs_type *run;
    runs_value f0;
    runs_value f1;
    int64_t own_sums;
    int64_t place;
    real d_features[BLOCK_M][BLOCK_W];
    real d_out[BLOCK_M][BLOCK_E];
    sums_value sums[BLOCK_W][BLOCK_E];
    real sums_turned[BLOCK_E][BLOCK_W];
    int within[BLOCK_W];
    plain_value plain[BLOCK_W];
    real scaled[BLOCK_M];
    int value_blocks = ceil_div(E, BLOCK_E);
    int padded = ceil_div(LAST, BLOCK_W) * BLOCK_W;
    int values = value_blocks * BLOCK_E;
    int size = leads * padded;
    int tile = program.x;
    int row = tile * BLOCK_M;
    int head = program.y;
    int heads = programs.y;
    int kv_head = head / GROUP;
    int kv_heads = heads / GROUP;
    int batch = program.z;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    inverse_type *inverse_at = inverse_ptr + ((int64_t)batch * heads + head) * n;
    delta_type *delta_at = delta_ptr + ((int64_t)batch * heads + head) * n;
    slope_type *slope_at = slope_ptr + ((int64_t)batch * heads + head) * n;
    d_out_type *d_out_at = d_out_ptr + (int64_t)batch * d_out_strides[0] + (int64_t)head
            * d_out_strides[1];
    int64_t d_out_stride = d_out_strides[2];
    int64_t first_token = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++) {
        const int row_lanes = row + r;
        i[r] = q_start + row_lanes;
        visible[r] = row_lanes < n;
        inverse[r] = visible[r] ? number_of((inverse_at + (int64_t)row)[r]) : R(0.0);
        delta[r] = visible[r] ? number_of((delta_at + (int64_t)row)[r]) : R(0.0);
        slope[r] = visible[r] ? number_of((slope_at + (int64_t)row)[r]) : R(0.0);
    }
    if (TERM == 0) {
        for (int channel = 0; channel < D; channel += BLOCK_W) {
            for (int r = 0; r < BLOCK_M; r++) {
                #pragma omp simd
                for (int x = 0; x < BLOCK_W; x++)
                    d_part[r][x] = 0;
            }
            for (int segment = 0; segment < segments; segment++) {
                run_spot = (batch * segments + segment) * tiles;
                spot = (int64_t)((batch * kv_heads + kv_head) * segments + segment);
                run = runs_ptr + (run_spot + tile) * 2;
                f0 = number_of(run[0]);
                f1 = number_of((run + 1)[0]);
                if (f0 < f1) {
                    own_sums = (spot * tiles + tile) * size;
                    place = own_sums + channel;
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            d_features[r][x] = 0;
                    }
                    for (int value = 0; value < E; value += BLOCK_E) {
                        copy_rows(d_out_type, &d_out[0][0], d_out_at + (int64_t)row * d_out_stride
                                + value, d_out_stride, visible, BLOCK_M, E - value, BLOCK_E);
                        for (int r = 0; r < BLOCK_M; r++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_E; x++)
                                d_out[r][x] = d_out[r][x] * inverse[r];
                        }
                        for (int x = 0; x < BLOCK_W; x++) {
                            #pragma omp simd
                            for (int y = 0; y < BLOCK_E; y++)
                                sums[x][y] = x < D - channel ? number_of((sums_ptr + place * values
                                        + value)[x * values + y]) : R(0.0);
                        }
                        turn(BLOCK_W, BLOCK_E, &sums[0][0], BLOCK_E, 1, &sums_turned[0][0]);
                        multiply(BLOCK_M, BLOCK_E, BLOCK_W, &d_out[0][0], BLOCK_E, 1,
                                &sums_turned[0][0], BLOCK_W, &d_features[0][0], BLOCK_W, 1);
                    }
                    #pragma omp simd
                    for (int x = 0; x < BLOCK_W; x++) {
                        within[x] = x;
                        plain[x] = within[x] < D - channel ? number_of((plain_ptr
                                + place)[within[x]]) : R(0.0);
                    }
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            d_features[r][x] = d_features[r][x] + -(slope[r] * delta[r]
                                    * inverse[r]) * plain[x];
                    }
                    #pragma omp simd
                    for (int r = 0; r < BLOCK_M; r++)
                        scaled[r] = 0 + -1 * sin_of(R(0.0003834951969714103) * i[r]);
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            d_part[r][x] = d_part[r][x] + d_features[r][x] * scaled[r];
                    }
                }
            }
            for (int r = 0; r < BLOCK_M; r++) {
                if (!(visible[r])) continue;
                d_q_of_row_type *to = d_q_of_row_ptr + first_token * WIDTH + channel + (int64_t)r
                        * (WIDTH);
                #pragma omp simd
                for (int x = 0; x < smaller(BLOCK_W, WIDTH - channel); x++)
                    add_to(d_q_of_row_type, to[x], d_part[r][x]);
            }
        }
    }
    if (TERM == 1) {
        for (int channel = 0; channel < D; channel += BLOCK_W) {
            for (int r = 0; r < BLOCK_M; r++) {
                #pragma omp simd
                for (int x = 0; x < BLOCK_W; x++)
                    d_part[r][x] = 0;
            }
            for (int segment = 0; segment < segments; segment++) {
                run_spot = (batch * segments + segment) * tiles;
                spot = (int64_t)((batch * kv_heads + kv_head) * segments + segment);
                run = runs_ptr + (run_spot + tile) * 2;
                f0 = number_of(run[0]);
                f1 = number_of((run + 1)[0]);
                if (f0 < f1) {
                    own_sums = (spot * tiles + tile) * size;
                    place = own_sums + channel;
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            d_features[r][x] = 0;
                    }
                    for (int value = 0; value < E; value += BLOCK_E) {
                        copy_rows(d_out_type, &d_out[0][0], d_out_at + (int64_t)row * d_out_stride
                                + value, d_out_stride, visible, BLOCK_M, E - value, BLOCK_E);
                        for (int r = 0; r < BLOCK_M; r++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_E; x++)
                                d_out[r][x] = d_out[r][x] * inverse[r];
                        }
                        for (int x = 0; x < BLOCK_W; x++) {
                            #pragma omp simd
                            for (int y = 0; y < BLOCK_E; y++)
                                sums[x][y] = x < D - channel ? number_of((sums_ptr + place * values
                                        + value)[x * values + y]) : R(0.0);
                        }
                        turn(BLOCK_W, BLOCK_E, &sums[0][0], BLOCK_E, 1, &sums_turned[0][0]);
                        turn(BLOCK_W, BLOCK_E, &sums[0][0], BLOCK_E, 1, &sums_turned[0][0]);
                        multiply(BLOCK_M, BLOCK_E, BLOCK_W, &d_out[0][0], BLOCK_E, 1,
                                &sums_turned[0][0], BLOCK_W, &d_features[0][0], BLOCK_W, 1);
                    }
                    #pragma omp simd
                    for (int x = 0; x < BLOCK_W; x++) {
                        within[x] = x;
                        plain[x] = within[x] < D - channel ? number_of((plain_ptr
                                + place)[within[x]]) : R(0.0);
                    }
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            d_features[r][x] = d_features[r][x] + -(slope[r] * delta[r]
                                    * inverse[r]) * plain[x];
                    }
                    #pragma omp simd
                    for (int r = 0; r < BLOCK_M; r++)
                        scaled[r] = 0 + cos_of(R(0.0003834951969714103) * i[r]);
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            d_part[r][x] = d_part[r][x] + d_features[r][x] * scaled[r];
                    }
                }
            }
            for (int r = 0; r < BLOCK_M; r++) {
                if (!(visible[r])) continue;
                d_q_of_row_type *to = d_q_of_row_ptr + first_token * WIDTH + channel + (int64_t)r
                        * (WIDTH);
                #pragma omp simd
                for (int x = 0; x < smaller(BLOCK_W, WIDTH - channel); x++)
                    add_to(d_q_of_row_type, to[x], d_part[r][x]);
            }
        }
    }
}

void run(const Grid programs, const int threads, const int share, q_of_row_type *q_of_row_ptr,
        inverse_type *inverse_ptr, delta_type *delta_ptr, slope_type *slope_ptr,
        d_out_type *d_out_ptr, sums_type *sums_ptr, plain_type *plain_ptr,
        d_q_of_row_type *d_q_of_row_ptr, runs_type *runs_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_of_row_strides,
        const int64_t *d_out_strides, int n, int m, int k_start, int tiles, int segments, int leads,
        int GROUP, int D, int E, int LAST, int WIDTH)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            row_gradients_by_sums_kernel((Grid){x, y, z}, programs, q_of_row_ptr, inverse_ptr,
                    delta_ptr, slope_ptr, d_out_ptr, sums_ptr, plain_ptr, d_q_of_row_ptr, runs_ptr,
                    q_start_ptr, kv_lengths_ptr, q_of_row_strides, d_out_strides, n, m, k_start,
                    tiles, segments, leads, GROUP, D, E, LAST, WIDTH);
}
""",
    ),
    "_runs_by_key_kernel": _CKernel(
        "_runs_by_key_kernel",
        "runs_ptr q_start_ptr kv_lengths_ptr n m k_start tiles heads",
        "n m k_start tiles heads",
        "BLOCK_M BLOCK_N",
        "runs_ptr",
        r"""
// The runs of tiles of rows that see all of its keys, for a tile of keys.
static void runs_by_key_kernel(const Grid program, const Grid programs, runs_type *runs_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, int n, int m, int k_start,
        int tiles, int heads)
{
    int tile = program.x;
    int column = tile * BLOCK_N;
    int head = program.y;
    int batch = program.z;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    int first = k_start + column;
    int last = first + smaller(BLOCK_N, keys - column) - 1;
    int in_rows = column < keys ? n : 0;
    int low = larger(first - q_start, 0);
    int high = in_rows;
    int t0 = low / BLOCK_M;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_M), t0);
    int full_low = larger(last - q_start, 0);
    int full_high = in_rows;
    int f0 = smaller(larger(ceil_div(full_low, BLOCK_M), t0), t1);
    int f1 = smaller(larger(larger(full_high, 0) / BLOCK_M, f0), t1);
    runs_type *spot = runs_ptr + ((batch * programs.y + head) * tiles + tile) * 2;
    put(runs_type, spot[0], f0);
    put(runs_type, (spot + 1)[0], f1);
}

void run(const Grid programs, const int threads, const int share, runs_type *runs_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, int n, int m, int k_start,
        int tiles, int heads)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            runs_by_key_kernel((Grid){x, y, z}, programs, runs_ptr, q_start_ptr, kv_lengths_ptr, n,
                    m, k_start, tiles, heads);
}
""",
    ),
    "_sums_by_key_kernel": _CKernel(
        "_sums_by_key_kernel",
        (
            "q_of_row_ptr inverse_ptr delta_ptr slope_ptr d_out_ptr sums_ptr plain_ptr "
            "runs_ptr q_start_ptr kv_lengths_ptr q_of_row_strides d_out_strides n m k_start "
            "tiles segments leads GROUP D E WIDTH"
        ),
        "n m k_start tiles segments leads GROUP D E WIDTH",
        "TERM BLOCK_W BLOCK_E BLOCK_M BLOCK_N",
        "sums_ptr plain_ptr",
        r"""
// For every tile of keys the sum over the rows that see all of them.
static void sums_by_key_kernel(const Grid program, const Grid programs, q_of_row_type *q_of_row_ptr,
        inverse_type *inverse_ptr, delta_type *delta_ptr, slope_type *slope_ptr,
        d_out_type *d_out_ptr, sums_type *sums_ptr, plain_type *plain_ptr, runs_type *runs_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *q_of_row_strides,
        const int64_t *d_out_strides, int n, int m, int k_start, int tiles, int segments, int leads,
        int GROUP, int D, int E, int WIDTH)
{
    real sums[BLOCK_W][BLOCK_E];
    real numbers[BLOCK_W];
    int i[BLOCK_M];
    inverse_value inverse[BLOCK_M];
    delta_value delta[BLOCK_M];
    slope_value slope[BLOCK_M];
    Rows d_out;
    real d_out_room[BLOCK_M][BLOCK_E];
    real q_of_row[BLOCK_M][BLOCK_W];
    real part[BLOCK_M][BLOCK_W];
    real scaled[BLOCK_M];
    real features[BLOCK_M][BLOCK_W];
    real sums_right[BLOCK_M][BLOCK_E];
    real numbers_sum[BLOCK_W];
    real sums_right_2[BLOCK_M][BLOCK_E];
    real numbers_sum_2[BLOCK_W];
    int value_blocks = ceil_div(E, BLOCK_E);
    int channel_blocks = ceil_div(WIDTH, BLOCK_W);
    int values = value_blocks * BLOCK_E;
    int padded = channel_blocks * BLOCK_W;
    // features of the sums of a tile
    int size = leads * padded;
    int job = program.x;
    int value = job % value_blocks * BLOCK_E;
    job = job / value_blocks;
    int channel = job % channel_blocks * BLOCK_W;
    job = job / channel_blocks;
    int segment = job % segments;
    job = job / segments;
    int lead = 0;
    int head = program.y;
    int heads = programs.y;
    int batch = program.z;
    int q_start = (int)number_of((q_start_ptr + batch)[0]);
    q_of_row_type *q_of_row_at = q_of_row_ptr + (int64_t)batch * q_of_row_strides[0] + (int64_t)head
            * q_of_row_strides[1];
    int64_t q_of_row_stride = q_of_row_strides[2];
    inverse_type *inverse_at = inverse_ptr + ((int64_t)batch * heads + head) * n;
    delta_type *delta_at = delta_ptr + ((int64_t)batch * heads + head) * n;
    slope_type *slope_at = slope_ptr + ((int64_t)batch * heads + head) * n;
    d_out_type *d_out_at = d_out_ptr + (int64_t)batch * d_out_strides[0] + (int64_t)head
            * d_out_strides[1];
    int64_t d_out_stride = d_out_strides[2];
    int run_spot = (batch * segments + segment) * tiles;
    int64_t spot = (int64_t)((batch * heads + head) * segments + segment);
    int64_t tile_sums = spot * tiles;
    int within = lead * padded + channel;
    for (int x = 0; x < BLOCK_W; x++) {
        #pragma omp simd
        for (int y = 0; y < BLOCK_E; y++)
            sums[x][y] = 0;
    }
    #pragma omp simd
    for (int x = 0; x < BLOCK_W; x++)
        numbers[x] = 0;
    // These are the sums over the run low … high - 1 of tiles.
    int run_low = 0;
    int run_high = 0;
    for (int done = 0; done < tiles; done++) {
        int tile = tiles - 1 - done;
        runs_type *run = runs_ptr + (run_spot + tile) * 2;
        runs_value f0 = number_of(run[0]);
        runs_value f1 = number_of((run + 1)[0]);
        runs_value f0_then = -f1;
        runs_value f1_then = -f0;
        f0 = f0_then;
        f1 = f1_then;
        if (f0 < f1) {
            // no run that follows
            if ((f0 < run_low) | (f0 > run_high) | (f1 < run_high)) {
                run_low = f0;
                run_high = f0;
                for (int x = 0; x < BLOCK_W; x++) {
                    #pragma omp simd
                    for (int y = 0; y < BLOCK_E; y++)
                        sums[x][y] = 0;
                }
                #pragma omp simd
                for (int x = 0; x < BLOCK_W; x++)
                    numbers[x] = 0;
            }
            for (int step = 0; step < f1 - run_high; step++) {
                int item = run_high + step;
                int row = (-1 - item) * BLOCK_M;
                d_out = load_rows(d_out_type, &d_out_room[0][0], d_out_at + (int64_t)row
                        * d_out_stride + value, d_out_stride, NULL, BLOCK_M, E - value, BLOCK_E);
                #pragma omp simd
                for (int r = 0; r < BLOCK_M; r++) {
                    const int row_lanes = row + r;
                    i[r] = q_start + row_lanes;
                    inverse[r] = number_of((inverse_at + (int64_t)row)[r]);
                    delta[r] = number_of((delta_at + (int64_t)row)[r]);
                    slope[r] = number_of((slope_at + (int64_t)row)[r]);
                }
                if (TERM == 0) {
                    copy_rows(q_of_row_type, &q_of_row[0][0], q_of_row_at + (int64_t)row
                            * q_of_row_stride + channel, q_of_row_stride, NULL, BLOCK_M, WIDTH
                            - channel, BLOCK_W);
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            part[r][x] = q_of_row[r][x];
                    }
                    #pragma omp simd
                    for (int r = 0; r < BLOCK_M; r++)
                        scaled[r] = -1 * sin_of(R(0.0003834951969714103) * i[r]);
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            features[r][x] = part[r][x] * scaled[r];
                    }
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_E; x++)
                            sums_right[r][x] = d_out.at[r * d_out.step + x] * inverse[r];
                    }
                    multiply(BLOCK_W, BLOCK_M, BLOCK_E, &features[0][0], 1, BLOCK_W,
                            &sums_right[0][0], BLOCK_E, &sums[0][0], BLOCK_E, 1);
                    for (int x = 0; x < BLOCK_W; x++)
                        numbers_sum[x] = R(0.0);
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            numbers_sum[x] += features[r][x] * -(slope[r] * delta[r] * inverse[r]);
                    }
                    #pragma omp simd
                    for (int x = 0; x < BLOCK_W; x++)
                        numbers[x] = numbers[x] + numbers_sum[x];
                }
                if (TERM == 1) {
                    copy_rows(q_of_row_type, &q_of_row[0][0], q_of_row_at + (int64_t)row
                            * q_of_row_stride + channel, q_of_row_stride, NULL, BLOCK_M, WIDTH
                            - channel, BLOCK_W);
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            part[r][x] = q_of_row[r][x];
                    }
                    #pragma omp simd
                    for (int r = 0; r < BLOCK_M; r++)
                        scaled[r] = cos_of(R(0.0003834951969714103) * i[r]);
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            features[r][x] = part[r][x] * scaled[r];
                    }
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_E; x++)
                            sums_right_2[r][x] = d_out.at[r * d_out.step + x] * inverse[r];
                    }
                    multiply(BLOCK_W, BLOCK_M, BLOCK_E, &features[0][0], 1, BLOCK_W,
                            &sums_right_2[0][0], BLOCK_E, &sums[0][0], BLOCK_E, 1);
                    for (int x = 0; x < BLOCK_W; x++)
                        numbers_sum_2[x] = R(0.0);
                    for (int r = 0; r < BLOCK_M; r++) {
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++)
                            numbers_sum_2[x] += features[r][x] * -(slope[r] * delta[r]
                                    * inverse[r]);
                    }
                    #pragma omp simd
                    for (int x = 0; x < BLOCK_W; x++)
                        numbers[x] = numbers[x] + numbers_sum_2[x];
                }
            }
            run_low = f0;
            run_high = f1;
            int64_t place = (tile_sums + tile) * size + within;
            for (int x = 0; x < BLOCK_W; x++) {
                #pragma omp simd
                for (int y = 0; y < BLOCK_E; y++)
                    put(sums_type, (sums_ptr + place * values + value)[x * values + y], sums[x][y]);
            }
            if (value == 0) {
                #pragma omp simd
                for (int x = 0; x < BLOCK_W; x++)
                    put(plain_type, (plain_ptr + place)[x], numbers[x]);
            }
        }
    }
}

void run(const Grid programs, const int threads, const int share, q_of_row_type *q_of_row_ptr,
        inverse_type *inverse_ptr, delta_type *delta_ptr, slope_type *slope_ptr,
        d_out_type *d_out_ptr, sums_type *sums_ptr, plain_type *plain_ptr, runs_type *runs_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *q_of_row_strides,
        const int64_t *d_out_strides, int n, int m, int k_start, int tiles, int segments, int leads,
        int GROUP, int D, int E, int WIDTH)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            sums_by_key_kernel((Grid){x, y, z}, programs, q_of_row_ptr, inverse_ptr, delta_ptr,
                    slope_ptr, d_out_ptr, sums_ptr, plain_ptr, runs_ptr, q_start_ptr,
                    kv_lengths_ptr, q_of_row_strides, d_out_strides, n, m, k_start, tiles, segments,
                    leads, GROUP, D, E, WIDTH);
}
""",
    ),
    "_keys_by_sums_kernel": _CKernel(
        "_keys_by_sums_kernel",
        (
            "k_of_key_ptr sums_ptr dv_ptr runs_ptr q_start_ptr kv_lengths_ptr "
            "k_of_key_strides n m k_start tiles segments leads GROUP D E LAST WIDTH"
        ),
        "n m k_start tiles segments leads GROUP D E LAST WIDTH",
        "TERM BLOCK_W BLOCK_E BLOCK_M BLOCK_N",
        "dv_ptr",
        r"""
// Add what the rows that see all keys of the tile give to the gradients of values.
static void keys_by_sums_kernel(const Grid program, const Grid programs,
        k_of_key_type *k_of_key_ptr, sums_type *sums_ptr, dv_type *dv_ptr, runs_type *runs_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides,
        int n, int m, int k_start, int tiles, int segments, int leads, int GROUP, int D, int E,
        int LAST, int WIDTH)
{
    int j[BLOCK_N];
    int visible[BLOCK_N];
    real dv[BLOCK_N][BLOCK_E];
    real k_of_key[BLOCK_N][BLOCK_W];
    real part[BLOCK_N][BLOCK_W];
    real scaled[BLOCK_N];
    real features[BLOCK_N][BLOCK_W];
    int64_t place;
    sums_value sums[BLOCK_W][BLOCK_E];
    int value_blocks = ceil_div(E, BLOCK_E);
    int padded = ceil_div(LAST, BLOCK_W) * BLOCK_W;
    int values = value_blocks * BLOCK_E;
    int size = leads * padded;
    int value = program.x % value_blocks * BLOCK_E;
    int tile = program.x / value_blocks;
    int column = tile * BLOCK_N;
    int kv_head = program.y;
    int kv_heads = programs.y;
    int heads = kv_heads * GROUP;
    int batch = program.z;
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    k_of_key_type *k_of_key_at = k_of_key_ptr + (int64_t)batch * k_of_key_strides[0]
            + (int64_t)kv_head * k_of_key_strides[1];
    int64_t k_of_key_stride = k_of_key_strides[2];
    int64_t first_token = ((int64_t)batch * kv_heads + kv_head) * m + column;
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const int column_lanes = column + c;
        j[c] = k_start + column_lanes;
        visible[c] = column_lanes < keys;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_E; x++)
            dv[c][x] = 0;
    }
    for (int head = kv_head * GROUP; head < kv_head * GROUP + GROUP; head++) {
        for (int segment = 0; segment < segments; segment++) {
            int run_spot = (batch * segments + segment) * tiles;
            int64_t spot = (int64_t)((batch * heads + head) * segments + segment);
            runs_type *run = runs_ptr + (run_spot + tile) * 2;
            runs_value f0 = number_of(run[0]);
            runs_value f1 = number_of((run + 1)[0]);
            if (f0 < f1) {
                int64_t own_sums = (spot * tiles + tile) * size;
                if (TERM == 0) {
                    for (int channel = 0; channel < WIDTH; channel += BLOCK_W) {
                        copy_rows(k_of_key_type, &k_of_key[0][0], k_of_key_at + (int64_t)column
                                * k_of_key_stride + channel, k_of_key_stride, visible, BLOCK_N,
                                WIDTH - channel, BLOCK_W);
                        for (int c = 0; c < BLOCK_N; c++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_W; x++)
                                part[c][x] = k_of_key[c][x];
                        }
                        #pragma omp simd
                        for (int c = 0; c < BLOCK_N; c++)
                            scaled[c] = sin_of(-R(0.0003834951969714103) * j[c]);
                        place = own_sums + channel;
                        for (int c = 0; c < BLOCK_N; c++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_W; x++)
                                features[c][x] = part[c][x] * scaled[c];
                        }
                        for (int x = 0; x < BLOCK_W; x++) {
                            #pragma omp simd
                            for (int y = 0; y < BLOCK_E; y++)
                                sums[x][y] = number_of((sums_ptr + place * values + value)[x
                                        * values + y]);
                        }
                        multiply(BLOCK_N, BLOCK_W, BLOCK_E, &features[0][0], BLOCK_W, 1,
                                &sums[0][0], BLOCK_E, &dv[0][0], BLOCK_E, 1);
                    }
                }
                if (TERM == 1) {
                    for (int channel = 0; channel < WIDTH; channel += BLOCK_W) {
                        copy_rows(k_of_key_type, &k_of_key[0][0], k_of_key_at + (int64_t)column
                                * k_of_key_stride + channel, k_of_key_stride, visible, BLOCK_N,
                                WIDTH - channel, BLOCK_W);
                        for (int c = 0; c < BLOCK_N; c++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_W; x++)
                                part[c][x] = k_of_key[c][x];
                        }
                        #pragma omp simd
                        for (int c = 0; c < BLOCK_N; c++)
                            scaled[c] = cos_of(-R(0.0003834951969714103) * j[c]);
                        place = own_sums + channel;
                        for (int c = 0; c < BLOCK_N; c++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_W; x++)
                                features[c][x] = part[c][x] * scaled[c];
                        }
                        for (int x = 0; x < BLOCK_W; x++) {
                            #pragma omp simd
                            for (int y = 0; y < BLOCK_E; y++)
                                sums[x][y] = number_of((sums_ptr + place * values + value)[x
                                        * values + y]);
                        }
                        multiply(BLOCK_N, BLOCK_W, BLOCK_E, &features[0][0], BLOCK_W, 1,
                                &sums[0][0], BLOCK_E, &dv[0][0], BLOCK_E, 1);
                    }
                }
            }
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(visible[c])) continue;
        dv_type *to = dv_ptr + first_token * E + value + (int64_t)c * (E);
        #pragma omp simd
        for (int x = 0; x < smaller(BLOCK_E, E - value); x++)
            add_to(dv_type, to[x], dv[c][x]);
    }
}

void run(const Grid programs, const int threads, const int share, k_of_key_type *k_of_key_ptr,
        sums_type *sums_ptr, dv_type *dv_ptr, runs_type *runs_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides, int n, int m, int k_start,
        int tiles, int segments, int leads, int GROUP, int D, int E, int LAST, int WIDTH)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            keys_by_sums_kernel((Grid){x, y, z}, programs, k_of_key_ptr, sums_ptr, dv_ptr, runs_ptr,
                    q_start_ptr, kv_lengths_ptr, k_of_key_strides, n, m, k_start, tiles, segments,
                    leads, GROUP, D, E, LAST, WIDTH);
}
""",
    ),
    "_key_gradients_by_sums_kernel": _CKernel(
        "_key_gradients_by_sums_kernel",
        (
            "k_of_key_ptr v_ptr sums_ptr plain_ptr d_k_of_key_ptr runs_ptr q_start_ptr "
            "kv_lengths_ptr k_of_key_strides v_strides n m k_start tiles segments leads GROUP "
            "D E LAST WIDTH"
        ),
        "n m k_start tiles segments leads GROUP D E LAST WIDTH",
        "TERM BLOCK_W BLOCK_E BLOCK_M BLOCK_N",
        "d_k_of_key_ptr",
        r"""
// Add what the sums of the tile's rows give to the gradients of its keys.
static void key_gradients_by_sums_kernel(const Grid program, const Grid programs,
        k_of_key_type *k_of_key_ptr, v_type *v_ptr, sums_type *sums_ptr, plain_type *plain_ptr,
        d_k_of_key_type *d_k_of_key_ptr, runs_type *runs_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *k_of_key_strides, const int64_t *v_strides,
        int n, int m, int k_start, int tiles, int segments, int leads, int GROUP, int D, int E,
        int LAST, int WIDTH)
{
    int j[BLOCK_N];
    int visible[BLOCK_N];
    real d_part[BLOCK_N][BLOCK_W];
    int run_spot;
    int64_t spot;
    runs_type *run;
    runs_value f0;
    runs_value f1;
    int64_t own_sums;
    int64_t place;
    real d_features[BLOCK_N][BLOCK_W];
    real v[BLOCK_N][BLOCK_E];
    sums_value sums[BLOCK_W][BLOCK_E];
    real sums_turned[BLOCK_E][BLOCK_W];
    int within[BLOCK_W];
    plain_value plain[BLOCK_W];
    real scaled[BLOCK_N];
    int value_blocks = ceil_div(E, BLOCK_E);
    int padded = ceil_div(LAST, BLOCK_W) * BLOCK_W;
    int values = value_blocks * BLOCK_E;
    int size = leads * padded;
    int tile = program.x;
    int column = tile * BLOCK_N;
    int kv_head = program.y;
    int kv_heads = programs.y;
    int heads = kv_heads * GROUP;
    int batch = program.z;
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    v_type *v_at = v_ptr + (int64_t)batch * v_strides[0] + (int64_t)kv_head * v_strides[1];
    int64_t v_stride = v_strides[2];
    int64_t first_token = ((int64_t)batch * kv_heads + kv_head) * m + column;
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const int column_lanes = column + c;
        j[c] = k_start + column_lanes;
        visible[c] = column_lanes < keys;
    }
    for (int head = kv_head * GROUP; head < kv_head * GROUP + GROUP; head++) {
        if (TERM == 0) {
            for (int channel = 0; channel < D; channel += BLOCK_W) {
                for (int c = 0; c < BLOCK_N; c++) {
                    #pragma omp simd
                    for (int x = 0; x < BLOCK_W; x++)
                        d_part[c][x] = 0;
                }
                for (int segment = 0; segment < segments; segment++) {
                    run_spot = (batch * segments + segment) * tiles;
                    spot = (int64_t)((batch * heads + head) * segments + segment);
                    run = runs_ptr + (run_spot + tile) * 2;
                    f0 = number_of(run[0]);
                    f1 = number_of((run + 1)[0]);
                    if (f0 < f1) {
                        own_sums = (spot * tiles + tile) * size;
                        place = own_sums + channel;
                        for (int c = 0; c < BLOCK_N; c++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_W; x++)
                                d_features[c][x] = 0;
                        }
                        for (int value = 0; value < E; value += BLOCK_E) {
                            copy_rows(v_type, &v[0][0], v_at + (int64_t)column * v_stride + value,
                                    v_stride, visible, BLOCK_N, E - value, BLOCK_E);
                            for (int x = 0; x < BLOCK_W; x++) {
                                #pragma omp simd
                                for (int y = 0; y < BLOCK_E; y++)
                                    sums[x][y] = x < D - channel ? number_of((sums_ptr + place
                                            * values + value)[x * values + y]) : R(0.0);
                            }
                            turn(BLOCK_W, BLOCK_E, &sums[0][0], BLOCK_E, 1, &sums_turned[0][0]);
                            multiply(BLOCK_N, BLOCK_E, BLOCK_W, &v[0][0], BLOCK_E, 1,
                                    &sums_turned[0][0], BLOCK_W, &d_features[0][0], BLOCK_W, 1);
                        }
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++) {
                            within[x] = x;
                            plain[x] = within[x] < D - channel ? number_of((plain_ptr
                                    + place)[within[x]]) : R(0.0);
                        }
                        for (int c = 0; c < BLOCK_N; c++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_W; x++)
                                d_features[c][x] = d_features[c][x] + plain[x];
                        }
                        #pragma omp simd
                        for (int c = 0; c < BLOCK_N; c++)
                            scaled[c] = 0 + sin_of(-R(0.0003834951969714103) * j[c]);
                        for (int c = 0; c < BLOCK_N; c++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_W; x++)
                                d_part[c][x] = d_part[c][x] + d_features[c][x] * scaled[c];
                        }
                    }
                }
                for (int c = 0; c < BLOCK_N; c++) {
                    if (!(visible[c])) continue;
                    d_k_of_key_type *to = d_k_of_key_ptr + first_token * WIDTH + channel
                            + (int64_t)c * (WIDTH);
                    #pragma omp simd
                    for (int x = 0; x < smaller(BLOCK_W, WIDTH - channel); x++)
                        add_to(d_k_of_key_type, to[x], d_part[c][x]);
                }
            }
        }
        if (TERM == 1) {
            for (int channel = 0; channel < D; channel += BLOCK_W) {
                for (int c = 0; c < BLOCK_N; c++) {
                    #pragma omp simd
                    for (int x = 0; x < BLOCK_W; x++)
                        d_part[c][x] = 0;
                }
                for (int segment = 0; segment < segments; segment++) {
                    run_spot = (batch * segments + segment) * tiles;
                    spot = (int64_t)((batch * heads + head) * segments + segment);
                    run = runs_ptr + (run_spot + tile) * 2;
                    f0 = number_of(run[0]);
                    f1 = number_of((run + 1)[0]);
                    if (f0 < f1) {
                        own_sums = (spot * tiles + tile) * size;
                        place = own_sums + channel;
                        for (int c = 0; c < BLOCK_N; c++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_W; x++)
                                d_features[c][x] = 0;
                        }
                        for (int value = 0; value < E; value += BLOCK_E) {
                            copy_rows(v_type, &v[0][0], v_at + (int64_t)column * v_stride + value,
                                    v_stride, visible, BLOCK_N, E - value, BLOCK_E);
                            for (int x = 0; x < BLOCK_W; x++) {
                                #pragma omp simd
                                for (int y = 0; y < BLOCK_E; y++)
                                    sums[x][y] = x < D - channel ? number_of((sums_ptr + place
                                            * values + value)[x * values + y]) : R(0.0);
                            }
                            turn(BLOCK_W, BLOCK_E, &sums[0][0], BLOCK_E, 1, &sums_turned[0][0]);
                            turn(BLOCK_W, BLOCK_E, &sums[0][0], BLOCK_E, 1, &sums_turned[0][0]);
                            multiply(BLOCK_N, BLOCK_E, BLOCK_W, &v[0][0], BLOCK_E, 1,
                                    &sums_turned[0][0], BLOCK_W, &d_features[0][0], BLOCK_W, 1);
                        }
                        #pragma omp simd
                        for (int x = 0; x < BLOCK_W; x++) {
                            within[x] = x;
                            plain[x] = within[x] < D - channel ? number_of((plain_ptr
                                    + place)[within[x]]) : R(0.0);
                        }
                        for (int c = 0; c < BLOCK_N; c++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_W; x++)
                                d_features[c][x] = d_features[c][x] + plain[x];
                        }
                        #pragma omp simd
                        for (int c = 0; c < BLOCK_N; c++)
                            scaled[c] = 0 + cos_of(-R(0.0003834951969714103) * j[c]);
                        for (int c = 0; c < BLOCK_N; c++) {
                            #pragma omp simd
                            for (int x = 0; x < BLOCK_W; x++)
                                d_part[c][x] = d_part[c][x] + d_features[c][x] * scaled[c];
                        }
                    }
                }
                for (int c = 0; c < BLOCK_N; c++) {
                    if (!(visible[c])) continue;
                    d_k_of_key_type *to = d_k_of_key_ptr + first_token * WIDTH + channel
                            + (int64_t)c * (WIDTH);
                    #pragma omp simd
                    for (int x = 0; x < smaller(BLOCK_W, WIDTH - channel); x++)
                        add_to(d_k_of_key_type, to[x], d_part[c][x]);
                }
            }
        }
        // what is added is written
    }
}

void run(const Grid programs, const int threads, const int share, k_of_key_type *k_of_key_ptr,
        v_type *v_ptr, sums_type *sums_ptr, plain_type *plain_ptr, d_k_of_key_type *d_k_of_key_ptr,
        runs_type *runs_ptr, q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr,
        const int64_t *k_of_key_strides, const int64_t *v_strides, int n, int m, int k_start,
        int tiles, int segments, int leads, int GROUP, int D, int E, int LAST, int WIDTH)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            key_gradients_by_sums_kernel((Grid){x, y, z}, programs, k_of_key_ptr, v_ptr, sums_ptr,
                    plain_ptr, d_k_of_key_ptr, runs_ptr, q_start_ptr, kv_lengths_ptr,
                    k_of_key_strides, v_strides, n, m, k_start, tiles, segments, leads, GROUP, D, E,
                    LAST, WIDTH);
}
""",
    ),
}
if triton is None:  # launches call kernels by these names
    globals().update(_C_KERNELS)
