# multi_head: made by attncc 0.1.0 from multi_head.attn (sha256 ce896004bfaec665). Do not edit.
# Rebuild: attncc build multi_head.attn
#
#     use "../full.attn"
#
#     # Multi-head attention; fewer key heads make it grouped-query (arXiv 2305.13245) or, with one, multi-query attention.
#     layer multi_head(dim, h = 8, kv = h) {
#       input x[n, dim]
#       param Wq[dim, dim], bq[dim]
#       param Wk[dim, dim // h * kv], bk[dim // h * kv]
#       param Wv[dim, dim // h * kv], bv[dim // h * kv]
#       param Wo[dim, dim], bo[dim]
#       q = heads(x @ Wq + bq, h)
#       k = heads(x @ Wk + bk, kv)
#       v = heads(x @ Wv + bv, kv)
#       out = merge(attend full(q, k, v)) @ Wo + bo
#     }
#
# From full.attn:
#
#     # Scaled dot-product attention over all keys (Vaswani et al. 2017, arXiv 1706.03762, section 3.2).
#     attention full {}
#
# Plan of `full`: a tile of rows first … last visits all keys, without a mask.
# Cost of `full`: 2·d + 2·e flops forward for each visited pair; nothing of size n·m is stored.
# Decoder of `full`: none: the pattern is not proven causal, and a query may see keys that come
# after it.
# No step: of the core `full`, the pattern is not proven causal, and a query may see keys that
# come after it.

import atexit
import concurrent.futures
import contextlib
import ctypes
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

# --- the core `full` ------------------------------------------------------------------------------
# How the kernels follow from the spec:
# - defer-division: sum_j (w_ij / N_i) v_j = (sum_j w_ij v_j) / N_i.
# - common-peak: sum_j exp(s_ij) v_j / sum_j exp(s_ij) is unchanged when every s_ij is lowered by
#   the same number of the row.
# - one-sweep: sums over the same keys are taken in one pass; when the running peak rises, they
#   are rescaled.

_FAR = 1 << 62  # beyond every position


class _Call(NamedTuple):
    """Lengths and heads of one call, for patterns that read them."""

    n: int
    m: int
    heads: int
    head: int | Tensor


def _segments(first, last, call):
    """Intervals of positions that rows first … last touch, each with the part all of them see."""
    return (((-_FAR, _FAR), (-_FAR, _FAR)),)


def _related(i, j, call):
    """The pattern: true"""
    return torch.ones_like(i + j, dtype=torch.bool)


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
    def _forward_tile(
        peak, rows, total, q,
        k_ptr, v_ptr, k_stride, v_stride,
        column, low, high, scale_log2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = (column_lanes >= low) & (column_lanes < high)
        k = _load_tile(k_ptr, k_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk = _dot(q, tl.trans(k), None, PRECISION)
        if MASKED:
            related = visible[None, :]
        exponent = scale_log2 * dot_qk
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

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _forward_kernel(
        q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, residual_ptr,
        q_start_ptr, kv_lengths_ptr,
        q_strides, k_strides, v_strides,
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
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

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
        q = _load_tile(q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D, True)

        # Positions of the tile's first and last row; [low, high) are the keys that it may see.
        low = 0
        high = keys
        t0 = low // BLOCK_N
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_N), t0)
        full_low = 0
        full_high = keys
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_N), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_N, f0), t1)

        peak = tl.full([BLOCK_M], -3.4028234663852886e38, tl.float32)
        rows = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
        for step in range(0, f0 - t0 + t1 - f1):
            tile = t0 + step
            tile = tl.where(tile < f0, tile, tile + (f1 - f0))
            peak, rows, total = _forward_tile(
                peak, rows, total, q,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                tile * BLOCK_N, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip
        for tile in range(f0, f1):
            peak, rows, total = _forward_tile(
                peak, rows, total, q,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                tile * BLOCK_N, low, high, scale_log2,
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
    def _backward_columns_tile(
        dv, dk_total, k, v,
        q_ptr, d_out_ptr, lse_ptr, delta_ptr, q_stride, d_out_stride,
        row, n, scale_log2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        row_lanes = row + tl.arange(0, BLOCK_M)
        visible = row_lanes < n
        lse = _load_numbers(lse_ptr, visible, float("-inf"), BLOCK_M, MASKED)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        lse_2 = 1.4426950408889634 * lse
        q = _load_tile(q_ptr, q_stride, visible, BLOCK_M, D, BLOCK_D, MASKED)
        dot_qk = _dot(k, tl.trans(q), None, PRECISION)
        if MASKED:
            related = visible[None, :]
        d_out = _load_tile(d_out_ptr, d_out_stride, visible, BLOCK_M, E, BLOCK_E, MASKED)
        d_share = _dot(v, tl.trans(d_out), None, PRECISION)
        delta = _load_numbers(delta_ptr, visible, 0.0, BLOCK_M, MASKED)
        d_weight = d_share - delta[None, :]
        exponent = scale_log2 * dot_qk
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        weight = tl.exp2(exponent - lse_2[None, :])
        d_exponent = d_weight * weight
        dv = _dot(weight.to(d_out.dtype), d_out, dv, PRECISION)
        dk_total = _dot(d_exponent.to(q.dtype), q, dk_total, PRECISION)
        return dv, dk_total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _backward_columns_kernel(
        k_ptr, v_ptr, q_ptr, d_out_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
        q_start_ptr, kv_lengths_ptr,
        k_strides, v_strides, q_strides, d_out_strides,
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
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

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

        # Positions of the tile's first and last key; [low, high) are the rows that may see it.
        in_rows = tl.where(column < keys, n, 0)
        low = 0
        high = in_rows
        t0 = low // BLOCK_M
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_M), t0)
        full_low = 0
        full_high = in_rows
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_M), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_M, f0), t1)

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
            for step in range(0, f0 - t0 + t1 - f1):
                tile = t0 + step
                tile = tl.where(tile < f0, tile, tile + (f1 - f0))
                dv, dk_total = _backward_columns_tile(
                    dv, dk_total, k, v,
                    q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    q_strides[2], d_out_strides[2],
                    tile * BLOCK_M, n, scale_log2,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
                )  # fmt: skip
            for tile in range(f0, f1):
                dv, dk_total = _backward_columns_tile(
                    dv, dk_total, k, v,
                    q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step,
                    lse_ptr + statistics + tile * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M,
                    q_strides[2], d_out_strides[2],
                    tile * BLOCK_M, n, scale_log2,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
                )  # fmt: skip
        dk = dk_total * d_dot_factor
        _store_tile(
            dk_ptr + first_vector * D,
            column_lanes < m,
            tl.where(seen[:, None], dk, 0.0),
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
        dq_total, q, d_out, delta, lse_2,
        k_ptr, v_ptr, k_stride, v_stride,
        column, low, high, scale_log2,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = (column_lanes >= low) & (column_lanes < high)
        k = _load_tile(k_ptr, k_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk = _dot(q, tl.trans(k), None, PRECISION)
        if MASKED:
            related = visible[None, :]
        v = _load_tile(v_ptr, v_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        d_share = _dot(d_out, tl.trans(v), None, PRECISION)
        d_weight = d_share - delta[:, None]
        exponent = scale_log2 * dot_qk
        if MASKED:
            exponent = tl.where(related, exponent, float("-inf"))
        weight = tl.exp2(exponent - lse_2[:, None])
        d_exponent = d_weight * weight
        dq_total = _dot(d_exponent.to(k.dtype), k, dq_total, PRECISION)
        return dq_total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _backward_rows_kernel(
        q_ptr, d_out_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, dq_ptr,
        q_start_ptr, kv_lengths_ptr,
        q_strides, d_out_strides, k_strides, v_strides,
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
        keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))

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
        q = _load_tile(q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D, True)
        d_out = _load_tile(d_out_ptr, d_out_strides[2], visible, BLOCK_M, E, BLOCK_E, True)
        lse = _load_numbers(lse_ptr + first_vector, visible, float("-inf"), BLOCK_M, True)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        delta = _load_numbers(delta_ptr + first_vector, visible, 0.0, BLOCK_M, True)
        lse_2 = 1.4426950408889634 * lse

        # Positions of the tile's first and last row; [low, high) are the keys that it may see.
        low = 0
        high = keys
        t0 = low // BLOCK_N
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_N), t0)
        full_low = 0
        full_high = keys
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_N), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_N, f0), t1)

        dq_total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for step in range(0, f0 - t0 + t1 - f1):
            tile = t0 + step
            tile = tl.where(tile < f0, tile, tile + (f1 - f0))
            dq_total = _backward_rows_tile(
                dq_total, q, d_out, delta, lse_2,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                tile * BLOCK_N, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip
        for tile in range(f0, f1):
            dq_total = _backward_rows_tile(
                dq_total, q, d_out, delta, lse_2,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                tile * BLOCK_N, low, high, scale_log2,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
            )  # fmt: skip

        dq = dq_total * d_dot_factor
        _store_tile(dq_ptr + first_vector * D, visible, dq, BLOCK_M, D, BLOCK_D)


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
def _tuned(kernel, name, element_size, width):
    """The kernel with what it may try; Triton's interpreter cannot time and gets one config."""
    if triton.knobs.runtime.interpret:
        configs = [triton.Config({"BLOCK_M": 32, "BLOCK_N": 16})]
    else:
        configs = [
            triton.Config({"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps, num_stages=stages)
            for rows, columns, warps, stages in _TILES[name, element_size, width]
        ]
    key = ["GROUP", "D", "E", "PRECISION"]  # and the dtypes, which triton adds
    return triton.autotune(configs, key=key, prune_configs_by={"early_config_prune": _prune})(
        kernel
    )


def _grid(length, block, heads, batch):
    """One program for every tile of an axis, every head and every batch entry."""
    return lambda meta: (_cdiv(length, meta[block]), heads, batch)


def _room_for_tiles(x, step=1):
    """Zeros for sums of rows, whose last tile and last block of channels may end beyond them."""
    batch, heads, n, width = x.shape
    return x.new_zeros(batch, heads, n + 64 * step, _cdiv(width, 16) * 16, dtype=_wide(x.dtype))


def _launch(kernel, name, grid, q, k, v, *arguments):
    """Run a kernel, specialised by the widths of q and v."""
    d, e = q.shape[-1], v.shape[-1]
    block_d, block_e = _block(d), _block(e)
    widest = max(64, block_d, block_e)
    if _in_c(q):
        run = functools.partial(_for(kernel, q)[grid], tile=_c_tile(widest, 64, q.shape[2]))
    else:
        run = _tuned(kernel, name, q.element_size(), widest)[grid]
    run(
        *arguments,
        GROUP=q.shape[1] // k.shape[1],
        D=d, E=e, BLOCK_D=block_d, BLOCK_E=block_e,
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


def _kernel_numbers(q, k, v, scale, kv_lengths):
    """Numbers that are the same for every pair of a head."""
    scale_log2 = scale * 1.4426950408889634
    d_dot_factor = scale
    return scale_log2, d_dot_factor


def _launch_forward(q, k, v, scale, q_start, k_start, q_starts, kv_lengths, keep_residual):
    """What `_forward` returns, by the Triton kernel."""
    q, k, v = _dense(q), _dense(k), _dense(v)
    batch, heads, n, _ = q.shape
    m = k.shape[2]
    out = q.new_empty(batch, heads, n, v.shape[-1])
    lse = q.new_empty(batch, heads, n, dtype=_wide(q.dtype))
    residual = q.new_empty(batch, heads, n, v.shape[-1] if keep_residual else 0)
    scale_log2, d_dot_factor = _kernel_numbers(q, k, v, scale, kv_lengths)
    starts, lengths = _places(q, k, q_start, q_starts, kv_lengths)
    if out.numel():
        grid = _grid(n, "BLOCK_M", heads, batch)
        _launch(_forward_kernel, "forward", grid,
            q, k, v,
            q, k, v, out, lse, residual if keep_residual else None,
            starts, lengths,
            q.stride()[:3], k.stride()[:3], v.stride()[:3],
            n, m, k_start, scale_log2,
        )  # fmt: skip
    return (out, lse, residual)


def _launch_backward(
    q, k, v, out, lse, residual, d_out, d_lse, scale, q_start, k_start, q_starts, kv_lengths
):
    """What `_backward` returns, by the Triton kernels."""
    q, k, v, d_out = _dense(q), _dense(k), _dense(v), _dense(d_out)
    batch, heads, n, _ = q.shape
    kv_heads, m, _ = v.shape[1:]
    dq = q.new_empty(q.shape)
    dk = k.new_empty(k.shape)
    dv = v.new_empty(v.shape)
    delta = (d_out * _unrounded(out, residual)).sum(-1) - d_lse
    lse = lse.contiguous()
    scale_log2, d_dot_factor = _kernel_numbers(q, k, v, scale, kv_lengths)
    starts, lengths = _places(q, k, q_start, q_starts, kv_lengths)
    if _in_c(q) and batch * kv_heads >= torch.get_num_threads():
        dq_total = _room_for_tiles(q)
        if dv.numel():
            grid = _grid(m, "BLOCK_N", kv_heads, batch)
            _launch("_backward_at_once_kernel", "backward_at_once", grid,
                q, k, v,
                k, v, q, d_out, dq_total, lse, delta, dk, dv,
                starts, lengths,
                k.stride()[:3], v.stride()[:3], q.stride()[:3], d_out.stride()[:3],
                dq_total.stride()[:3],
                n, m, k_start, d_dot_factor, scale_log2,
            )  # fmt: skip
        dq = (dq_total[:, :, :n, : q.shape[-1]] * d_dot_factor).to(q.dtype)
    else:
        if dv.numel():
            grid = _grid(m, "BLOCK_N", kv_heads, batch)
            _launch(_backward_columns_kernel, "backward_columns", grid,
                q, k, v,
                k, v, q, d_out, lse, delta, dk, dv,
                starts, lengths,
                k.stride()[:3], v.stride()[:3], q.stride()[:3], d_out.stride()[:3],
                n, m, k_start, d_dot_factor, scale_log2,
            )  # fmt: skip
        if dq.numel():
            grid = _grid(n, "BLOCK_M", heads, batch)
            _launch(_backward_rows_kernel, "backward_rows", grid,
                q, k, v,
                q, d_out, k, v, lse, delta, dq,
                starts, lengths,
                q.stride()[:3], d_out.stride()[:3], k.stride()[:3], v.stride()[:3],
                n, m, k_start, d_dot_factor, scale_log2,
            )  # fmt: skip
    return dq, dk, dv


def _forward_slab(q, k, v, numbers, slab, chunks, work, call):
    """The vectors and row numbers of one slab; q is [batch * kv heads, group * rows, d]."""
    shape = slab.shape
    scale, _ = numbers
    peak = q.new_full((*shape[:3], 1), torch.finfo(q.dtype).min)
    rows = q.new_zeros((*shape[:3], 1))
    total = q.new_zeros((*q.shape[:2], v.shape[-1]))
    for chunk in chunks:
        k_tile = _flat(k[:, :, chunk.keys], q.dtype)
        v_tile = _flat(v[:, :, chunk.keys], q.dtype)
        score = _product(q, k_tile, work[0], shape, scale)
        _hide(score, chunk, -torch.inf, call)
        new_peak = torch.maximum(peak, score.amax(-1, keepdim=True))
        shrink = peak.sub_(new_peak).exp_()
        peak = new_peak
        weight = score.sub_(peak).exp_()
        rows.mul_(shrink).add_(weight.sum(-1, keepdim=True))
        total.mul_(_pairs(shrink, q)).baddbmm_(_pairs(weight, q), v_tile)
    out = total.mul_(_pairs(_reciprocal(rows), q))
    lse = peak + torch.log(rows)
    return out, lse


def _backward_slab(q, k, v, d_out, lse, delta, dv, dk_total, numbers, slab, chunks, work, call):
    """Gradients of one slab: returns that of q and adds those of k and v to their totals."""
    shape = slab.shape
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # rows without weights: all shares are 0
    scale, d_dot_factor = numbers
    dq_total = q.new_zeros((*q.shape[:2], q.shape[-1]))
    for chunk in chunks:
        k_tile = _flat(k[:, :, chunk.keys], q.dtype)
        v_tile = _flat(v[:, :, chunk.keys], q.dtype)
        score = _product(q, k_tile, work[0], shape, scale)
        d_share = _product(d_out, v_tile, work[1], shape)
        d_weight = d_share.sub_(delta)
        _hide(score, chunk, -torch.inf, call)
        weight = score.sub_(lse).exp_()
        dv[:, chunk.keys].baddbmm_(_pairs(weight, q).mT, d_out)
        d_exponent = d_weight.mul_(weight)
        dq_total.baddbmm_(_pairs(d_exponent, q), k_tile)
        dk_total[:, chunk.keys].baddbmm_(_pairs(d_exponent, q).mT, q)
    dq = dq_total * d_dot_factor
    return (dq,)


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


class _Chunk(NamedTuple):
    """Keys that a slab meets at once: their places, the first position, and those all rows see."""

    keys: slice
    start: int
    full: tuple
    rows: tuple

    @property
    def count(self):
        return self.keys.stop - self.keys.start


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
    return torch.baddbmm(out, rows, keys.mT, beta=0, alpha=factor, out=out).view(*shape, -1)


@functools.lru_cache(maxsize=8)
def _unrelated(ahead, rows, keys, device):
    """The keys hidden from rows of which the first stands `ahead` positions after the first key.

    The pattern depends on distances alone, so slabs share these tiles.
    """
    i = torch.arange(ahead, ahead + rows, device=device)[:, None]
    j = torch.arange(keys, device=device)
    return _related(i, j, None).logical_not_()


def _hide(x, chunk, fill, call):
    """Write `fill` where row and key are not related; keys that all rows see are passed over."""
    start, stop = chunk.start, chunk.start + chunk.count
    first, end = chunk.rows
    low, high = max(chunk.full[0], start), min(chunk.full[1], stop)
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
            yield _Slab(entries, slice(row, end), first, last, shape), chunks
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


def _own(x, slab):
    """What belongs to the slab's batch entries, where entries differ."""
    return x[slab.entries] if x.shape[0] > 1 else x


def _entries_of(numbers, slab):
    """The numbers of the slab's batch entries."""
    return tuple(_own(x, slab) if isinstance(x, Tensor) else x for x in numbers)


def _store(outs, slab, results):
    """Write what a slab gives."""
    for out, result in zip(outs, results, strict=False):
        target = out[slab.entries, :, slab.rows]
        target.copy_(result.reshape(target.shape))


def _forward(q, k, v, scale, q_start, k_start, q_starts, kv_lengths, keep_residual):
    """The vectors [batch, heads, n, e] and the saved numbers of rows [batch, heads, n]."""
    wide = _wide(q.dtype)
    outs = [q.new_empty(*q.shape[:3], v.shape[-1])]
    _on_large_pages(outs[0])
    outs += [q.new_empty(q.shape[:3], dtype=wide) for _ in range(1)]
    outs.append(q.new_empty(*q.shape[:3], v.shape[-1] if keep_residual else 0))
    numbers = _numbers(q, k, v, scale, kv_lengths)

    def run(q, k, v, numbers, call, store):
        work, kv_heads = None, v.shape[1]
        for slab, chunks in _slabs(q, v, q_start, k_start, q_starts, kv_lengths, call):
            work = _workspace(slab, chunks, q, 2, work)
            results = _forward_slab(
                _fold(q, slab, kv_heads), k[slab.entries], v[slab.entries],
                _entries_of(numbers, slab), slab, chunks, work, call,
            )  # fmt: skip
            if keep_residual:
                results += (results[0] - results[0].to(q.dtype),)
            store(slab, results)

    with torch.autocast(q.device.type, enabled=False):
        call = _Call(q.shape[2], v.shape[2], q.shape[1], 0)
        run(q, k, v, numbers, call, functools.partial(_store, outs))
    return tuple(outs)


def _backward(
    q, k, v, out, lse, residual, d_out, d_lse, scale, q_start, k_start, q_starts, kv_lengths
):
    """The gradients of q, k and v."""
    wide = _wide(q.dtype)
    dq = q.new_empty(q.shape)
    dk = k.new_zeros(k.shape, dtype=wide)
    dv = v.new_zeros(v.shape, dtype=wide)
    numbers = _numbers(q, k, v, scale, kv_lengths)
    out = _unrounded(out, residual)

    def run(q, k, v, out, lse, d_out, d_lse, dk, dv, numbers, call, store):
        work, kv_heads = None, v.shape[1]
        for slab, chunks in _slabs(q, v, q_start, k_start, q_starts, kv_lengths, call):
            work = _workspace(slab, chunks, q, 2, work)
            d_rows = _fold(d_out, slab, kv_heads)
            delta = (d_rows * _fold(out, slab, kv_heads)).sum(-1).view(*slab.shape, 1)
            delta -= _rows_of(d_lse, slab)
            results = _backward_slab(
                _fold(q, slab, kv_heads), k[slab.entries], v[slab.entries], d_rows,
                _rows_of(lse, slab), delta, dv[slab.entries].flatten(0, 1),
                dk[slab.entries].flatten(0, 1), _entries_of(numbers, slab), slab, chunks, work,
                call,
            )  # fmt: skip
            store(slab, results)

    grads = (dq,)
    with torch.autocast(q.device.type, enabled=False):
        call = _Call(q.shape[2], v.shape[2], q.shape[1], 0)
        run(
            q, k, v, out, lse, d_out, d_lse, dk, dv, numbers, call,
            functools.partial(_store, grads),
        )  # fmt: skip
        dk.mul_(numbers[1])
    return dq, dk.to(k.dtype), dv.to(v.dtype)


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


def _weights_of(q, k, i, j, hidden, numbers, call):
    """Weights of pairs, what they are divided by, and the numbers of rows, in plain operations."""
    scale, _ = numbers
    dot_qk = _scores(q, k)
    score = scale * dot_qk
    exponent_kept = score.masked_fill(hidden, -torch.inf)
    peak = _maximum(exponent_kept.detach().amax(-1, keepdim=True), torch.finfo(q.dtype).min)
    weight = torch.exp(exponent_kept - peak)
    rows = weight.sum(-1, keepdim=True)
    lse = peak + _safe_log(rows)
    return weight, rows, (lse,)


def _batched(q, k, v, scale, q_start, k_start, q_starts, kv_lengths):
    """What `_forward` returns, in memory that grows as rows times keys of a block."""
    batch, heads, n, _ = q.shape
    kv_heads, m = v.shape[1:3]
    dtype, wide, device = q.dtype, _wide(q.dtype), q.device
    numbers = _lifted(_numbers(q, k, v, scale, kv_lengths))
    call = _call_of(q, v)
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
    weight, norm, numbers_of_rows = _weights_of(blocked(q), windows(k), i, j, hidden, numbers, call)
    out = _sum(weight, windows(v))
    if norm is not None:
        out = out * _reciprocal(norm)

    def joined(x):  # [batch, heads, blocks, rows, c] -> [batch, heads, n, c]
        return x.flatten(2, 3).index_select(2, torch.arange(n, device=device))

    rest = (x.expand(batch, heads, blocks, _BLOCK, 1) for x in numbers_of_rows)
    return joined(out).to(dtype), *(joined(x)[..., 0] for x in rest)


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


def _forward_in_kernels(*args):
    """`_launch_forward`, of 256 features of values at a time."""
    if args[2].shape[-1] <= 256:
        return _launch_forward(*args)
    values = args[2].split(256, -1)
    found = [_launch_forward(*args[:2], part, *args[3:]) for part in values]
    return tuple(
        torch.cat(parts, -1) if at in (0, 2) else parts[0]
        for at, parts in enumerate(zip(*found, strict=True))
    )


def _backward_in_kernels(*args):
    """`_launch_backward` in the same way: gradients of values are joined, others added."""
    width, found = args[2].shape[-1], []
    if width <= 256:
        return _launch_backward(*args)
    for start in range(0, width, 256):
        own = list(args)
        for at in (2, 3, 5, 6):
            own[at] = args[at][..., start : start + 256]
        if start:
            own[7] = torch.zeros_like(args[7])
        found.append(_launch_backward(*own))
    return tuple(
        torch.cat(parts, -1) if at == 2 else functools.reduce(torch.add, parts)
        for at, parts in enumerate(zip(*found, strict=True))
    )


def _run(q, k, v, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual):
    run = _forward if form == "torch" else _forward_in_kernels
    return run(q, k, v, scale, q_start, k_start, q_starts, kv_lengths, keep_residual)


def _run_backward(*args):
    *args, form = args
    run = _backward if form == "torch" else _backward_in_kernels
    return run(*args)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(q, k, v, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual):
        return _run(q, k, v, scale, q_start, k_start, q_starts, kv_lengths, form, keep_residual)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, *ctx.numbers, q_starts, kv_lengths, ctx.form, _ = inputs
        ctx.save_for_backward(q, k, v, *output, q_starts, kv_lengths)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        grads = _Gradient.apply(
            *saved, d_out, d_statistics[0], *ctx.numbers, q_starts, kv_lengths, ctx.form
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
        q, k, v, *gradients, q_starts, kv_lengths = ctx.saved_tensors

        def differentiable(q, k, v):
            outs = _batched(q, k, v, *ctx.numbers, q_starts, kv_lengths)
            return (outs[0], outs[1])

        def gradient(q, k, v, *gradients):
            return torch.func.vjp(differentiable, q, k, v)[1](gradients)

        inputs = q, k, v, *gradients
        dq, dk, dv, *d_gradients = torch.func.vjp(gradient, *inputs)[1](grads)
        return dq, dk, dv, *(None,) * 3, *d_gradients, *(None,) * 6

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
_OPERATOR = "full_dff5e827"


_library = torch.library.Library("attncc", "FRAGMENT")


def _register():
    places = "SymInt q_start, SymInt k_start, Tensor? q_starts, Tensor? kv_lengths"
    numbers = f"float scale, {places}, str form"
    inputs = "Tensor q, Tensor k, Tensor v"
    _library.define(
        f"{_OPERATOR}({inputs}, {numbers}, bool keep_residual) -> (Tensor, Tensor, Tensor)"
    )
    statistics = "Tensor lse, Tensor residual, "
    saved = f"Tensor out, {statistics}Tensor d_out, Tensor d_lse"
    gradients = "(Tensor, Tensor, Tensor)"
    _library.define(f"{_OPERATOR}_backward({inputs}, {saved}, {numbers}) -> {gradients}")
    _library.impl(_OPERATOR, _run, "CompositeExplicitAutograd")
    _library.impl(f"{_OPERATOR}_backward", _run_backward, "CompositeExplicitAutograd")

    @torch.library.register_fake(f"attncc::{_OPERATOR}", lib=_library)
    def _(q, k, v, *numbers):
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        return (
            out,
            q.new_empty(q.shape[:3], dtype=_wide(q.dtype)),
            q.new_empty(*q.shape[:3], v.shape[-1] if numbers[-1] else 0),
        )

    @torch.library.register_fake(f"attncc::{_OPERATOR}_backward", lib=_library)
    def _(q, k, v, *rest):
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)

    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        run = getattr(torch.ops.attncc, f"{_OPERATOR}_backward")
        grads = run(*saved, d_out, d_statistics[0], *ctx.numbers, q_starts, kv_lengths, ctx.form)
        return *grads, *(None,) * (len(ctx.numbers) + 4)

    def setup_context(ctx, inputs, output):
        _Attention.setup_context(ctx, inputs, output)

    torch.library.register_autograd(
        f"attncc::{_OPERATOR}", backward, setup_context=setup_context, lib=_library
    )


if not hasattr(torch.ops.attncc, _OPERATOR):  # a copy of this file may have been loaded already
    _register()


def _expect(holds, name, found, expected):
    if not holds:
        raise ValueError(f"full: {name} is {found}, expected {expected}")


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
        raise ValueError(f"full: {name} is {x!r}, expected {expected}")


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
        raise ValueError(f"full: scale is {scale!r}, expected a finite number")
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


def _full(
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
):
    """Scaled dot-product attention over all keys (Vaswani et al. 2017, arXiv 1706.03762, section
    3.2).

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

    Returns:
        [batch, heads, n, e]; rows without keys are 0.
        With return_lse also [batch, heads, n], -inf for rows without weights.

    Raises:
        ValueError: an argument whose shape, dtype or device does not fit, with its name.
    """
    _expect(dropout_p == 0.0, "dropout_p", dropout_p, "0.0: dropout is not supported")
    prepared = _prepared(q, k, v, scale, kv_lengths, q_start, k_start)
    form = _form(form, prepared[0])
    keep_residual = _keeps_residual(*prepared[:3])
    if not torch.compiler.is_compiling() and not _is_shape_only(prepared[0]):
        outs = _Attention.apply(*prepared, form, keep_residual)
    else:
        outs = getattr(torch.ops.attncc, _OPERATOR)(*prepared, form, keep_residual)
    return (outs[0], outs[1]) if return_lse else outs[0]


# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"multi_head: {name} is {found}, expected {expected}")


def _whole_number(name, x, least=-(2**31)):
    """A number that has to be whole, as one of Python."""
    try:
        found = None if isinstance(x, bool) else type(x).__index__(x)
    except (AttributeError, TypeError):
        found = None
    holds = found is not None and least <= found < 2**31
    _demand(holds, name, repr(x), f"a whole number of 32 bits, {least} or more")
    return found


def _is_whole(x):
    """Whether a tensor is of whole numbers."""
    return not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool


def _demand_tensor(name, x, whose, like, kind="numbers"):
    """Refuse what holds no such numbers, or others than a tensor it meets; autocast casts them."""
    _demand(isinstance(x, Tensor), name, type(x).__name__, "a tensor")
    _demand(
        not x.is_nested and x.layout == torch.strided, name, "nested or sparse", "a dense tensor"
    )
    _demand(
        x.device == like.device, name, f"on {x.device}", f"the device of {whose}, {like.device}"
    )
    if kind == "truth values":
        _demand(x.dtype == torch.bool, name, x.dtype, "torch.bool")
    elif kind == "whole numbers":
        _demand(_is_whole(x), name, x.dtype, kind)
    else:
        _demand(x.is_floating_point(), name, x.dtype, "a type of real numbers")
        device = x.device.type
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            _demand(x.dtype == like.dtype, name, x.dtype, f"the dtype of {whose}, {like.dtype}")


def _demand_lengths(name, lengths, x):
    """Refuse what says of no batch entry of x how many tokens it has."""
    if lengths is None:
        return
    _demand(isinstance(lengths, Tensor), name, type(lengths).__name__, "a tensor or None")
    batch = x.shape[0]
    _demand(
        lengths.shape == (batch,),
        name,
        list(lengths.shape),
        f"a number for each of {batch} batch entries",
    )
    _demand(_is_whole(lengths), name, lengths.dtype, "whole numbers")
    _demand(
        lengths.device == x.device,
        name,
        f"on {lengths.device}",
        f"the device of the tokens, {x.device}",
    )


def _uniform(tensor, most):
    """Numbers between -most and most."""
    nn.init.uniform_(tensor, -most, most)


def _heads(x, count):
    """[batch, n, count * d] to [batch, count, n, d]."""
    return x.unflatten(-1, (count, x.shape[-1] // count)).transpose(-3, -2)


def _merged(x):
    """[batch, heads, n, d] to [batch, n, heads * d]."""
    return x.transpose(-3, -2).flatten(-2)


class MultiHead(nn.Module):
    """Multi-head attention; fewer key heads make it grouped-query (arXiv 2305.13245) or, with one,
    multi-query attention.

    Args:
        dim: a whole number.
        h: 8 by default.
        kv: h by default.
        form: "triton", "c" or "torch" for the cores; by default Triton on GPUs, C on CPUs, if they can.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(
        self,
        dim: int,
        h: int = 8,
        kv: int | None = None,
        form: str | None = None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        dim = _whole_number("dim", dim, 1)
        h = _whole_number("h", h, 1)
        kv = h if kv is None else kv
        kv = _whole_number("kv", kv, 1)
        _demand(
            form in (None, "triton", "c", "torch"),
            "form",
            repr(form),
            "None, 'triton', 'c' or 'torch'",
        )
        _demand(h >= 1, "h", h, "h >= 1")
        _demand(kv >= 1, "kv", kv, "kv >= 1")
        _demand(dim % h == 0, "dim", dim, f"a multiple of h, {h}")
        _demand(h % kv == 0, "h", h, f"a multiple of kv, {kv}")
        self.dim = dim
        self.h = h
        self.kv = kv
        self.form = form
        self.Wq = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.bq = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.Wk = nn.Parameter(torch.empty(dim, dim * kv // h, device=device, dtype=dtype))
        self.bk = nn.Parameter(torch.empty(dim * kv // h, device=device, dtype=dtype))
        self.Wv = nn.Parameter(torch.empty(dim, dim * kv // h, device=device, dtype=dtype))
        self.bv = nn.Parameter(torch.empty(dim * kv // h, device=device, dtype=dtype))
        self.Wo = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.bo = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        for tensor in (self.Wq, self.Wk, self.Wv, self.Wo):
            _uniform(tensor, tensor.shape[-2] ** -0.5)
        for tensor in (self.bq, self.bk, self.bv, self.bo):
            nn.init.zeros_(tensor)

    def _check(self, x, lengths=None):
        """Refuse what does not fit, by the argument's name."""
        _demand_tensor("x", x, "Wq", self.Wq)
        _demand(
            x.dim() == 3 and x.shape[2] == self.dim, "x", list(x.shape), f"[batch, n, {self.dim}]"
        )
        _demand_lengths("lengths", lengths, x)

    def forward(self, x: Tensor, lengths: Tensor | None = None):
        """The layer's output, [batch, n, dim].

        Args:
            x: [batch, n, dim].
            lengths: how many of the n tokens each batch entry has, [batch]; the others are padding.
        """
        self._check(x, lengths)
        full = functools.partial(_full, kv_lengths=lengths, form=self.form)
        q = _heads(x @ self.Wq + self.bq, self.h)
        k = _heads(x @ self.Wk + self.bk, self.kv)
        v = _heads(x @ self.Wv + self.bv, self.kv)
        return _merged(full(q, k, v)) @ self.Wo + self.bo

    def extra_repr(self) -> str:
        return f"dim={self.dim}, h={self.h}, kv={self.kv}"


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
            "q_ptr k_ptr v_ptr out_ptr lse_ptr residual_ptr q_start_ptr kv_lengths_ptr "
            "q_strides k_strides v_strides n m k_start scale_log2 GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "out_ptr lse_ptr residual_ptr",
        r"""
INLINE void forward_tile(real *restrict peak, real *restrict rows, real (*restrict total)[BLOCK_E],
        const Rows q, const real (*restrict q_turned)[BLOCK_M], k_type *k_ptr, v_type *v_ptr,
        int64_t k_stride, int64_t v_stride, int column, int low, int high, real scale_log2, int D,
        int E, const int MASKED)
{
    int visible[BLOCK_N];
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
        const int column_lanes = column + c;
        visible[c] = (column_lanes >= low) & (column_lanes < high);
    }
    k = load_rows(k_type, &k_room[0][0], k_ptr, k_stride, MASKED ? visible : NULL, BLOCK_N, D,
            BLOCK_D);
    Span spans[1 / LANES];
    for (int group = 0; MASKED && group < 1 / LANES; group++) {
        spans[group] = (Span){BLOCK_N, 0};
        for (int c = 0; c < BLOCK_N; c++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int x = group * LANES; x < (group + 1) * LANES; x++)
                some |= visible[c];
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply(BLOCK_N, BLOCK_D, BLOCK_M, k.at, k.step, 1, &q_turned[0][0], BLOCK_M, &dot_qk[0][0],
            BLOCK_M, 0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            exponent[c][r] = scale_log2 * dot_qk[c][r];
            if (MASKED) exponent[c][r] = visible[c] ? exponent[c][r] : -INFINITY;
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
    multiply(BLOCK_M, BLOCK_N, BLOCK_E, &weight[0][0], 1, BLOCK_M, v.at, v.step, &total[0][0],
            BLOCK_E, 1);
}

static void forward_kernel(const Grid program, const Grid programs, q_type *q_ptr, k_type *k_ptr,
        v_type *v_ptr, out_type *out_ptr, lse_type *lse_ptr, residual_type *residual_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *q_strides,
        const int64_t *k_strides, const int64_t *v_strides, int n, int m, int k_start,
        real scale_log2, int GROUP, int D, int E)
{
    int row_lanes[BLOCK_M];
    int visible[BLOCK_M];
    Rows q;
    real q_room[BLOCK_M][BLOCK_D];
    real q_turned[BLOCK_D][BLOCK_M];
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
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        row_lanes[r] = row + r;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    q_ptr = q_ptr + ((int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1]);
    q_ptr = q_ptr + (int64_t)row * q_strides[2];
    k_ptr = k_ptr + ((int64_t)batch * k_strides[0] + (int64_t)(head / GROUP) * k_strides[1]);
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)(head / GROUP) * v_strides[1]);
    int64_t k_step = k_strides[2] * BLOCK_N;
    int64_t v_step = v_strides[2] * BLOCK_N;
    int64_t first_vector = ((int64_t)batch * heads + head) * n + row;
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        visible[r] = row_lanes[r] < n;
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_strides[2], visible, BLOCK_M, D, BLOCK_D);
    turn(BLOCK_M, BLOCK_D, q.at, q.step, 1, &q_turned[0][0]);
    // Positions of the tile's first and last row; [low, high) are the keys that it may see.
    int low = 0;
    int high = keys;
    int t0 = low / BLOCK_N;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_N), t0);
    int full_low = 0;
    int full_high = keys;
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
        forward_tile(peak, rows, total, q, q_turned, k_ptr + tile * k_step, v_ptr + tile * v_step,
                k_strides[2], v_strides[2], tile * BLOCK_N, low, high, scale_log2, D, E, 1);
    }
    for (int tile = f0; tile < f1; tile++) {
        forward_tile(peak, rows, total, q, q_turned, k_ptr + tile * k_step, v_ptr + tile * v_step,
                k_strides[2], v_strides[2], tile * BLOCK_N, low, high, scale_log2, D, E, 0);
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

void run(const Grid programs, const int threads, const int share, q_type *q_ptr, k_type *k_ptr,
        v_type *v_ptr, out_type *out_ptr, lse_type *lse_ptr, residual_type *residual_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *q_strides,
        const int64_t *k_strides, const int64_t *v_strides, int n, int m, int k_start,
        double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            forward_kernel((Grid){x, y, z}, programs, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
                    residual_ptr, q_start_ptr, kv_lengths_ptr, q_strides, k_strides, v_strides, n,
                    m, k_start, scale_log2, GROUP, D, E);
}
""",
    ),
    "_backward_columns_kernel": _CKernel(
        "_backward_columns_kernel",
        (
            "k_ptr v_ptr q_ptr d_out_ptr lse_ptr delta_ptr dk_ptr dv_ptr q_start_ptr "
            "kv_lengths_ptr k_strides v_strides q_strides d_out_strides n m k_start "
            "d_dot_factor scale_log2 GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "dk_ptr dv_ptr",
        r"""
INLINE void backward_columns_tile(real (*restrict dv)[BLOCK_E], real (*restrict dk_total)[BLOCK_D],
        const Rows k, const real (*restrict k_turned)[BLOCK_N], const Rows v,
        const real (*restrict v_turned)[BLOCK_N], q_type *q_ptr, d_out_type *d_out_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, int64_t q_stride, int64_t d_out_stride, int row,
        int n, real scale_log2, int D, int E, const int MASKED)
{
    int visible[BLOCK_M];
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
        const int row_lanes = row + r;
        visible[r] = row_lanes < n;
        lse_value lse = (!MASKED || visible[r]) ? number_of(lse_ptr[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_stride, MASKED ? visible : NULL, BLOCK_M, D,
            BLOCK_D);
    Span spans[1 / LANES];
    for (int group = 0; MASKED && group < 1 / LANES; group++) {
        spans[group] = (Span){BLOCK_M, 0};
        for (int r = 0; r < BLOCK_M; r++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int x = group * LANES; x < (group + 1) * LANES; x++)
                some |= visible[r];
            if (some) spans[group] = with_span(spans[group], r);
        }
    }
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
            const real d_weight = d_share[r][c] - delta[r];
            real exponent = scale_log2 * dot_qk[r][c];
            if (MASKED) exponent = visible[r] ? exponent : -INFINITY;
            weight[r][c] = exp2_of(exponent - lse_2[r]);
            d_exponent[r][c] = d_weight * weight[r][c];
        }
    }
    multiply(BLOCK_N, BLOCK_M, BLOCK_E, &weight[0][0], 1, BLOCK_N, d_out.at, d_out.step, &dv[0][0],
            BLOCK_E, 1);
    multiply(BLOCK_N, BLOCK_M, BLOCK_D, &d_exponent[0][0], 1, BLOCK_N, q.at, q.step,
            &dk_total[0][0], BLOCK_D, 1);
}

static void backward_columns_kernel(const Grid program, const Grid programs, k_type *k_ptr,
        v_type *v_ptr, q_type *q_ptr, d_out_type *d_out_ptr, lse_type *lse_ptr,
        delta_type *delta_ptr, dk_type *dk_ptr, dv_type *dv_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *k_strides, const int64_t *v_strides,
        const int64_t *q_strides, const int64_t *d_out_strides, int n, int m, int k_start,
        real d_dot_factor, real scale_log2, int GROUP, int D, int E)
{
    int column_lanes[BLOCK_N];
    int seen[BLOCK_N];
    Rows k;
    real k_room[BLOCK_N][BLOCK_D];
    real k_turned[BLOCK_D][BLOCK_N];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    real v_turned[BLOCK_E][BLOCK_N];
    real dv[BLOCK_N][BLOCK_E];
    real dk_total[BLOCK_N][BLOCK_D];
    int tile;
    real dk[BLOCK_N][BLOCK_D];
    // first key of the tile
    int column = program.x * BLOCK_N;
    int kv_head = program.y;
    int batch = program.z;
    int kv_heads = programs.y;
    int heads = kv_heads * GROUP;
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        column_lanes[c] = column + c;
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
    // Positions of the tile's first and last key; [low, high) are the rows that may see it.
    int in_rows = column < keys ? n : 0;
    int low = 0;
    int high = in_rows;
    int t0 = low / BLOCK_M;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_M), t0);
    int full_low = 0;
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
            dk_total[c][x] = 0;
    }
    for (int head = kv_head * GROUP; head < kv_head * GROUP + GROUP; head++) {
        q_type *q_head_ptr = q_ptr + (int64_t)batch * q_strides[0] + (int64_t)head * q_strides[1];
        d_out_type *d_out_head_ptr = d_out_ptr + (int64_t)batch * d_out_strides[0] + (int64_t)head
                * d_out_strides[1];
        int64_t statistics = ((int64_t)batch * heads + head) * n;
        for (int step = 0; step < f0 - t0 + t1 - f1; step++) {
            tile = t0 + step;
            tile = tile < f0 ? tile : tile + (f1 - f0);
            backward_columns_tile(dv, dk_total, k, k_turned, v, v_turned, q_head_ptr + tile
                    * q_step, d_out_head_ptr + tile * d_out_step, lse_ptr + statistics + tile
                    * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M, q_strides[2],
                    d_out_strides[2], tile * BLOCK_M, n, scale_log2, D, E, 1);
        }
        for (int tile = f0; tile < f1; tile++) {
            backward_columns_tile(dv, dk_total, k, k_turned, v, v_turned, q_head_ptr + tile
                    * q_step, d_out_head_ptr + tile * d_out_step, lse_ptr + statistics + tile
                    * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M, q_strides[2],
                    d_out_strides[2], tile * BLOCK_M, n, scale_log2, D, E, 0);
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            dk[c][x] = dk_total[c][x] * d_dot_factor;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        dk_type *to = dk_ptr + first_vector * D + (int64_t)c * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(dk_type, to[x], seen[c] ? dk[c][x] : R(0.0));
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        dv_type *to = dv_ptr + first_vector * E + (int64_t)c * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(dv_type, to[x], seen[c] ? dv[c][x] : R(0.0));
    }
}

void run(const Grid programs, const int threads, const int share, k_type *k_ptr, v_type *v_ptr,
        q_type *q_ptr, d_out_type *d_out_ptr, lse_type *lse_ptr, delta_type *delta_ptr,
        dk_type *dk_ptr, dv_type *dv_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *k_strides, const int64_t *v_strides,
        const int64_t *q_strides, const int64_t *d_out_strides, int n, int m, int k_start,
        double d_dot_factor, double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            backward_columns_kernel((Grid){x, y, z}, programs, k_ptr, v_ptr, q_ptr, d_out_ptr,
                    lse_ptr, delta_ptr, dk_ptr, dv_ptr, q_start_ptr, kv_lengths_ptr, k_strides,
                    v_strides, q_strides, d_out_strides, n, m, k_start, d_dot_factor, scale_log2,
                    GROUP, D, E);
}
""",
    ),
    "_backward_rows_kernel": _CKernel(
        "_backward_rows_kernel",
        (
            "q_ptr d_out_ptr k_ptr v_ptr lse_ptr delta_ptr dq_ptr q_start_ptr kv_lengths_ptr "
            "q_strides d_out_strides k_strides v_strides n m k_start d_dot_factor scale_log2 "
            "GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "dq_ptr",
        r"""
INLINE void backward_rows_tile(real (*restrict dq_total)[BLOCK_D], const Rows q,
        const real (*restrict q_turned)[BLOCK_M], const Rows d_out,
        const real (*restrict d_out_turned)[BLOCK_M], delta_value *restrict delta,
        real *restrict lse_2, k_type *k_ptr, v_type *v_ptr, int64_t k_stride, int64_t v_stride,
        int column, int low, int high, real scale_log2, int D, int E, const int MASKED)
{
    int visible[BLOCK_N];
    Rows k;
    real k_room[BLOCK_N][BLOCK_D];
    real dot_qk[BLOCK_N][BLOCK_M];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    real d_share[BLOCK_N][BLOCK_M];
    real d_exponent[BLOCK_N][BLOCK_M];
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++) {
        const int column_lanes = column + c;
        visible[c] = (column_lanes >= low) & (column_lanes < high);
    }
    k = load_rows(k_type, &k_room[0][0], k_ptr, k_stride, MASKED ? visible : NULL, BLOCK_N, D,
            BLOCK_D);
    Span spans[1 / LANES];
    for (int group = 0; MASKED && group < 1 / LANES; group++) {
        spans[group] = (Span){BLOCK_N, 0};
        for (int c = 0; c < BLOCK_N; c++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int x = group * LANES; x < (group + 1) * LANES; x++)
                some |= visible[c];
            if (some) spans[group] = with_span(spans[group], c);
        }
    }
    multiply(BLOCK_N, BLOCK_D, BLOCK_M, k.at, k.step, 1, &q_turned[0][0], BLOCK_M, &dot_qk[0][0],
            BLOCK_M, 0);
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_stride, MASKED ? visible : NULL, BLOCK_N, E,
            BLOCK_E);
    multiply(BLOCK_N, BLOCK_E, BLOCK_M, v.at, v.step, 1, &d_out_turned[0][0], BLOCK_M,
            &d_share[0][0], BLOCK_M, 0);
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int r = 0; r < BLOCK_M; r++) {
            const real d_weight = d_share[c][r] - delta[r];
            real exponent = scale_log2 * dot_qk[c][r];
            if (MASKED) exponent = visible[c] ? exponent : -INFINITY;
            const real weight = exp2_of(exponent - lse_2[r]);
            d_exponent[c][r] = d_weight * weight;
        }
    }
    multiply(BLOCK_M, BLOCK_N, BLOCK_D, &d_exponent[0][0], 1, BLOCK_M, k.at, k.step,
            &dq_total[0][0], BLOCK_D, 1);
}

static void backward_rows_kernel(const Grid program, const Grid programs, q_type *q_ptr,
        d_out_type *d_out_ptr, k_type *k_ptr, v_type *v_ptr, lse_type *lse_ptr,
        delta_type *delta_ptr, dq_type *dq_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_strides, const int64_t *d_out_strides,
        const int64_t *k_strides, const int64_t *v_strides, int n, int m, int k_start,
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
    real lse_2[BLOCK_M];
    real dq_total[BLOCK_M][BLOCK_D];
    int tile;
    real dq[BLOCK_M][BLOCK_D];
    // first row of the tile
    int row = program.x * BLOCK_M;
    int head = program.y;
    int batch = program.z;
    int heads = programs.y;
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int r = 0; r < BLOCK_M; r++)
        row_lanes[r] = row + r;
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
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    // Positions of the tile's first and last row; [low, high) are the keys that it may see.
    int low = 0;
    int high = keys;
    int t0 = low / BLOCK_N;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_N), t0);
    int full_low = 0;
    int full_high = keys;
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
        backward_rows_tile(dq_total, q, q_turned, d_out, d_out_turned, delta, lse_2, k_ptr + tile
                * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2], tile * BLOCK_N, low,
                high, scale_log2, D, E, 1);
    }
    for (int tile = f0; tile < f1; tile++) {
        backward_rows_tile(dq_total, q, q_turned, d_out, d_out_turned, delta, lse_2, k_ptr + tile
                * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2], tile * BLOCK_N, low,
                high, scale_log2, D, E, 0);
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
        d_out_type *d_out_ptr, k_type *k_ptr, v_type *v_ptr, lse_type *lse_ptr,
        delta_type *delta_ptr, dq_type *dq_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *q_strides, const int64_t *d_out_strides,
        const int64_t *k_strides, const int64_t *v_strides, int n, int m, int k_start,
        double d_dot_factor, double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE(((int64_t)z * programs.y + y) * programs.x + x))
            backward_rows_kernel((Grid){x, y, z}, programs, q_ptr, d_out_ptr, k_ptr, v_ptr, lse_ptr,
                    delta_ptr, dq_ptr, q_start_ptr, kv_lengths_ptr, q_strides, d_out_strides,
                    k_strides, v_strides, n, m, k_start, d_dot_factor, scale_log2, GROUP, D, E);
}
""",
    ),
    "_backward_at_once_kernel": _CKernel(
        "_backward_at_once_kernel",
        (
            "k_ptr v_ptr q_ptr d_out_ptr dq_total_ptr lse_ptr delta_ptr dk_ptr dv_ptr "
            "q_start_ptr kv_lengths_ptr k_strides v_strides q_strides d_out_strides "
            "dq_total_strides n m k_start d_dot_factor scale_log2 GROUP D E"
        ),
        "n m k_start GROUP D E",
        "BLOCK_D BLOCK_E BLOCK_M BLOCK_N",
        "dk_ptr dv_ptr",
        r"""
INLINE void backward_at_once_tile(real (*restrict dv)[BLOCK_E], real (*restrict dk_total)[BLOCK_D],
        const Rows k, const real (*restrict k_turned)[BLOCK_N], const Rows v,
        const real (*restrict v_turned)[BLOCK_N], q_type *q_ptr, d_out_type *d_out_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dq_total_type *dq_total_ptr, int64_t q_stride,
        int64_t d_out_stride, int64_t dq_total_stride, int row, int n, real scale_log2, int D,
        int E, const int MASKED)
{
    int visible[BLOCK_M];
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
        const int row_lanes = row + r;
        visible[r] = row_lanes < n;
        lse_value lse = (!MASKED || visible[r]) ? number_of(lse_ptr[r]) : -INFINITY;
        lse = lse == -INFINITY ? INFINITY : lse;
        lse_2[r] = R(1.4426950408889634) * lse;
    }
    q = load_rows(q_type, &q_room[0][0], q_ptr, q_stride, MASKED ? visible : NULL, BLOCK_M, D,
            BLOCK_D);
    Span spans[1 / LANES];
    for (int group = 0; MASKED && group < 1 / LANES; group++) {
        spans[group] = (Span){BLOCK_M, 0};
        for (int r = 0; r < BLOCK_M; r++) {
            int some = 0;
            #pragma omp simd reduction(|:some)
            for (int x = group * LANES; x < (group + 1) * LANES; x++)
                some |= visible[r];
            if (some) spans[group] = with_span(spans[group], r);
        }
    }
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
            const real d_weight = d_share[r][c] - delta[r];
            real exponent = scale_log2 * dot_qk[r][c];
            if (MASKED) exponent = visible[r] ? exponent : -INFINITY;
            weight[r][c] = exp2_of(exponent - lse_2[r]);
            d_exponent[r][c] = d_weight * weight[r][c];
        }
    }
    multiply(BLOCK_N, BLOCK_M, BLOCK_E, &weight[0][0], 1, BLOCK_N, d_out.at, d_out.step, &dv[0][0],
            BLOCK_E, 1);
    multiply(BLOCK_N, BLOCK_M, BLOCK_D, &d_exponent[0][0], 1, BLOCK_N, q.at, q.step,
            &dk_total[0][0], BLOCK_D, 1);
    multiply(BLOCK_M, BLOCK_N, BLOCK_D, &d_exponent[0][0], BLOCK_N, 1, k.at, k.step, dq_total_ptr,
            dq_total_stride, 1);
}

static void backward_at_once_kernel(const Grid program, const Grid programs, k_type *k_ptr,
        v_type *v_ptr, q_type *q_ptr, d_out_type *d_out_ptr, dq_total_type *dq_total_ptr,
        lse_type *lse_ptr, delta_type *delta_ptr, dk_type *dk_ptr, dv_type *dv_ptr,
        q_start_type *q_start_ptr, kv_lengths_type *kv_lengths_ptr, const int64_t *k_strides,
        const int64_t *v_strides, const int64_t *q_strides, const int64_t *d_out_strides,
        const int64_t *dq_total_strides, int n, int m, int k_start, real d_dot_factor,
        real scale_log2, int GROUP, int D, int E)
{
    int column_lanes[BLOCK_N];
    int seen[BLOCK_N];
    Rows k;
    real k_room[BLOCK_N][BLOCK_D];
    real k_turned[BLOCK_D][BLOCK_N];
    Rows v;
    real v_room[BLOCK_N][BLOCK_E];
    real v_turned[BLOCK_E][BLOCK_N];
    real dv[BLOCK_N][BLOCK_E];
    real dk_total[BLOCK_N][BLOCK_D];
    int tile;
    real dk[BLOCK_N][BLOCK_D];
    // first key of the tile
    int column = program.x * BLOCK_N;
    int kv_head = program.y;
    int batch = program.z;
    int kv_heads = programs.y;
    int heads = kv_heads * GROUP;
    int keys = smaller(m, (int)number_of((kv_lengths_ptr + batch)[0]));
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        column_lanes[c] = column + c;
    // Offsets of whole tiles are 64 bits wide, those within a tile 32.
    k_ptr = k_ptr + ((int64_t)batch * k_strides[0] + (int64_t)kv_head * k_strides[1]);
    k_ptr = k_ptr + (int64_t)column * k_strides[2];
    v_ptr = v_ptr + ((int64_t)batch * v_strides[0] + (int64_t)kv_head * v_strides[1]);
    v_ptr = v_ptr + (int64_t)column * v_strides[2];
    int64_t q_step = q_strides[2] * BLOCK_M;
    int64_t d_out_step = d_out_strides[2] * BLOCK_M;
    int64_t dq_total_step = dq_total_strides[2] * BLOCK_M;
    int64_t first_vector = ((int64_t)batch * kv_heads + kv_head) * m + column;
    // Keys that no row can see are not read, and their gradients are 0.
    #pragma omp simd
    for (int c = 0; c < BLOCK_N; c++)
        seen[c] = column_lanes[c] < keys;
    k = load_rows(k_type, &k_room[0][0], k_ptr, k_strides[2], seen, BLOCK_N, D, BLOCK_D);
    turn(BLOCK_N, BLOCK_D, k.at, k.step, 1, &k_turned[0][0]);
    v = load_rows(v_type, &v_room[0][0], v_ptr, v_strides[2], seen, BLOCK_N, E, BLOCK_E);
    turn(BLOCK_N, BLOCK_E, v.at, v.step, 1, &v_turned[0][0]);
    // Positions of the tile's first and last key; [low, high) are the rows that may see it.
    int in_rows = column < keys ? n : 0;
    int low = 0;
    int high = in_rows;
    int t0 = low / BLOCK_M;
    int t1 = larger(ceil_div(larger(high, 0), BLOCK_M), t0);
    int full_low = 0;
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
            dk_total[c][x] = 0;
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
            backward_at_once_tile(dv, dk_total, k, k_turned, v, v_turned, q_head_ptr + tile
                    * q_step, d_out_head_ptr + tile * d_out_step, lse_ptr + statistics + tile
                    * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M, dq_total_head_ptr + tile
                    * dq_total_step, q_strides[2], d_out_strides[2], dq_total_strides[2], tile
                    * BLOCK_M, n, scale_log2, D, E, 1);
        }
        for (int tile = f0; tile < f1; tile++) {
            backward_at_once_tile(dv, dk_total, k, k_turned, v, v_turned, q_head_ptr + tile
                    * q_step, d_out_head_ptr + tile * d_out_step, lse_ptr + statistics + tile
                    * BLOCK_M, delta_ptr + statistics + tile * BLOCK_M, dq_total_head_ptr + tile
                    * dq_total_step, q_strides[2], d_out_strides[2], dq_total_strides[2], tile
                    * BLOCK_M, n, scale_log2, D, E, 0);
        }
    }
    for (int c = 0; c < BLOCK_N; c++) {
        #pragma omp simd
        for (int x = 0; x < BLOCK_D; x++)
            dk[c][x] = dk_total[c][x] * d_dot_factor;
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        dk_type *to = dk_ptr + first_vector * D + (int64_t)c * (D);
        #pragma omp simd
        for (int x = 0; x < D; x++)
            put(dk_type, to[x], seen[c] ? dk[c][x] : R(0.0));
    }
    for (int c = 0; c < BLOCK_N; c++) {
        if (!(column_lanes[c] < m)) continue;
        dv_type *to = dv_ptr + first_vector * E + (int64_t)c * (E);
        #pragma omp simd
        for (int x = 0; x < E; x++)
            put(dv_type, to[x], seen[c] ? dv[c][x] : R(0.0));
    }
}

void run(const Grid programs, const int threads, const int share, k_type *k_ptr, v_type *v_ptr,
        q_type *q_ptr, d_out_type *d_out_ptr, dq_total_type *dq_total_ptr, lse_type *lse_ptr,
        delta_type *delta_ptr, dk_type *dk_ptr, dv_type *dv_ptr, q_start_type *q_start_ptr,
        kv_lengths_type *kv_lengths_ptr, const int64_t *k_strides, const int64_t *v_strides,
        const int64_t *q_strides, const int64_t *d_out_strides, const int64_t *dq_total_strides,
        int n, int m, int k_start, double d_dot_factor, double scale_log2, int GROUP, int D, int E)
{
    #pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
    for (int z = 0; z < programs.z; z++)
    for (int y = 0; y < programs.y; y++)
    for (int x = 0; x < programs.x; x++)
        if (IS_MINE((int64_t)z * programs.y + y))
            backward_at_once_kernel((Grid){x, y, z}, programs, k_ptr, v_ptr, q_ptr, d_out_ptr,
                    dq_total_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, q_start_ptr, kv_lengths_ptr,
                    k_strides, v_strides, q_strides, d_out_strides, dq_total_strides, n, m, k_start,
                    d_dot_factor, scale_log2, GROUP, D, E);
}
""",
    ),
}
if triton is None:  # launches call kernels by these names
    globals().update(_C_KERNELS)
