# mega_both_ways: made by attncc 0.1.0 from mega_both_ways.attn (sha256 11da3ba0f26e6a90). Do not edit.
# Rebuild: attncc build mega_both_ways.attn
#
#     # The Laplace function of dot products over the number of keys.
#     attention laplace_of_keys {
#       score = dot(q, k) / valid
#       similarity = laplace
#     }
#
#     # MEGA that is not causal: moving averages from both ends, attention to all tokens (arXiv 2209.10655, section 3).
#     layer mega_both_ways(dim, s = 128, width = 2 * dim, states = 16) {
#       input x[n, dim]
#       param norm_gain[dim], norm_bias[dim]
#       param delta[2, dim, states] = normal(0.2), alpha[2, dim, states] = normal(0.2)
#       param beta[2, dim, states] = normal(0.02), eta[2, dim, states] = normal(1), omega[dim] = normal(1)
#       param Wv[dim, width], bv[width], Wu[dim, dim], bu[dim], Wz[dim, s], bz[s], Wr[dim, width], br[width]
#       param gq[s] = normal(0.02), bq[s], gk[s] = normal(0.02), bk[s], Wh[dim, dim], bh[dim], Uh[width, dim]
#       y = layer_norm(x, norm_gain, norm_bias)
#       damp = sigmoid(delta)
#       decay = 1 - damp * sigmoid(alpha)
#       gain = damp * beta * eta / sqrt(states)
#       moved = ema(y, decay[0], gain[0]) + ema_back(y, decay[1], gain[1])
#       seen = silu(moved + omega * y)
#       u = sigmoid(seen @ Wu + bu)
#       z = silu(seen @ Wz + bz)
#       attended = attend laplace_of_keys(z * gq + bq, z * gk + bk, silu(y @ Wv + bv))
#       candidate = silu(seen @ Wh + bh + (silu(seen @ Wr + br) * attended) @ Uh)
#       out = x + u * (candidate - x)
#     }
#
# Plan of `laplace_of_keys`: a tile of rows first … last visits all keys, without a mask.
# Cost of `laplace_of_keys`: 2·d + 2·e flops forward for each visited pair; nothing of size n·m is
# stored.
# Decoder of `laplace_of_keys`: none: the pattern is not proven causal, and a query may see keys
# that come after it.
# No step: of the core `laplace_of_keys`, the pattern is not proven causal, and a query may see
# keys that come after it.

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

try:
    import triton
    import triton.language as tl
except ImportError:  # the kernels need triton; everything else works without
    triton = None

# --- the core `laplace_of_keys` -------------------------------------------------------------------
# How the kernels follow from the spec:
# - drop-division: x / 1 = x.

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
    m = v.shape[2]
    valid = torch.full((1, 1, 1, 1), m, dtype=torch.float64, device=q.device)
    if kv_lengths is not None:
        valid = kv_lengths.clamp(0, m).double()[:, None, None, None]
    inverse_valid = 1 / _maximum(valid, 1)
    d_dot_factor = 1 / _maximum(valid, 1)
    d_erf_1_constant = 1 / 2
    d_score_constant = 1 / 0.3989422804014327
    return _table(inverse_valid, q), _table(d_dot_factor, q), d_erf_1_constant, d_score_constant


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
    def _square(x):
        return x * x

    @triton.jit
    def _forward_tile(
        out, q,
        k_ptr, v_ptr, k_stride, v_stride,
        column, low, high, inverse_valid,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        column_lanes = column + tl.arange(0, BLOCK_N)
        visible = (column_lanes >= low) & (column_lanes < high)
        k = _load_tile(k_ptr, k_stride, visible, BLOCK_N, D, BLOCK_D, MASKED)
        dot_qk = _dot(q, tl.trans(k), None, PRECISION)
        if MASKED:
            related = visible[None, :]
        score = dot_qk * inverse_valid
        erf_1 = tl.erf((score - 0.7071067811865476) * 2.5066282746310002)
        weight = (1 + erf_1) * 0.5
        if MASKED:
            weight = tl.where(related, weight, 0.0)
        v = _load_tile(v_ptr, v_stride, visible, BLOCK_N, E, BLOCK_E, MASKED)
        out = _dot(weight.to(v.dtype), v, out, PRECISION)
        return out

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _forward_kernel(
        q_ptr, k_ptr, v_ptr, out_ptr,
        q_start_ptr, kv_lengths_ptr,
        q_strides, k_strides, v_strides,
        n, m, k_start, inverse_valid_ptr,
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
        inverse_valid = tl.load(inverse_valid_ptr + batch * heads + head)

        # Positions of the tile's first and last row; [low, high) are the keys that it may see.
        low = 0
        high = keys
        t0 = low // BLOCK_N
        t1 = tl.maximum(tl.cdiv(tl.maximum(high, 0), BLOCK_N), t0)
        full_low = 0
        full_high = keys
        f0 = tl.minimum(tl.maximum(tl.cdiv(full_low, BLOCK_N), t0), t1)
        f1 = tl.minimum(tl.maximum(tl.maximum(full_high, 0) // BLOCK_N, f0), t1)

        out = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
        for step in range(0, f0 - t0 + t1 - f1):
            tile = t0 + step
            tile = tl.where(tile < f0, tile, tile + (f1 - f0))
            out = _forward_tile(
                out, q,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                tile * BLOCK_N, low, high, inverse_valid,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip
        for tile in range(f0, f1):
            out = _forward_tile(
                out, q,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                tile * BLOCK_N, low, high, inverse_valid,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, False,
            )  # fmt: skip

        _store_tile(out_ptr + first_vector * E, visible, out, BLOCK_M, E, BLOCK_E)

    @triton.jit
    def _backward_columns_tile(
        dv, dk_total, k, v,
        q_ptr, d_out_ptr, q_stride, d_out_stride,
        row, n, inverse_valid, d_erf_1_constant, d_score_constant,
        D: tl.constexpr, BLOCK_D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        row_lanes = row + tl.arange(0, BLOCK_M)
        visible = row_lanes < n
        q = _load_tile(q_ptr, q_stride, visible, BLOCK_M, D, BLOCK_D, MASKED)
        dot_qk = _dot(k, tl.trans(q), None, PRECISION)
        if MASKED:
            related = visible[None, :]
        d_out = _load_tile(d_out_ptr, d_out_stride, visible, BLOCK_M, E, BLOCK_E, MASKED)
        d_share = _dot(v, tl.trans(d_out), None, PRECISION)
        score = dot_qk * inverse_valid
        erf_1 = tl.erf((score - 0.7071067811865476) * 2.5066282746310002)
        weight = (1 + erf_1) * 0.5
        if MASKED:
            weight = tl.where(related, weight, 0.0)
        d_erf_1 = d_share * d_erf_1_constant
        d_score = d_erf_1 * (
            1.1283791670955126
            * tl.exp(-_square((score - 0.7071067811865476) * 2.5066282746310002))
            * d_score_constant
        )
        if MASKED:
            d_score = tl.where(related, d_score, 0.0)
        dv = _dot(weight.to(d_out.dtype), d_out, dv, PRECISION)
        dk_total = _dot(d_score.to(q.dtype), q, dk_total, PRECISION)
        return dv, dk_total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _backward_columns_kernel(
        k_ptr, v_ptr, q_ptr, d_out_ptr, dk_ptr, dv_ptr,
        q_start_ptr, kv_lengths_ptr,
        k_strides, v_strides, q_strides, d_out_strides,
        n, m, k_start, d_dot_factor_ptr, inverse_valid_ptr, d_erf_1_constant, d_score_constant,
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
            d_dot_factor = tl.load(d_dot_factor_ptr + batch * heads + head)
            inverse_valid = tl.load(inverse_valid_ptr + batch * heads + head)
            for step in range(0, f0 - t0 + t1 - f1):
                tile = t0 + step
                tile = tl.where(tile < f0, tile, tile + (f1 - f0))
                dv, dk_total = _backward_columns_tile(
                    dv, dk_total, k, v,
                    q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step, q_strides[2],
                    d_out_strides[2],
                    tile * BLOCK_M, n, inverse_valid, d_erf_1_constant, d_score_constant,
                    D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
                )  # fmt: skip
            for tile in range(f0, f1):
                dv, dk_total = _backward_columns_tile(
                    dv, dk_total, k, v,
                    q_head_ptr + tile * q_step, d_out_head_ptr + tile * d_out_step, q_strides[2],
                    d_out_strides[2],
                    tile * BLOCK_M, n, inverse_valid, d_erf_1_constant, d_score_constant,
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
        dq_total, q, d_out,
        k_ptr, v_ptr, k_stride, v_stride,
        column, low, high, inverse_valid, d_erf_1_constant, d_score_constant,
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
        score = dot_qk * inverse_valid
        d_erf_1 = d_share * d_erf_1_constant
        d_score = d_erf_1 * (
            1.1283791670955126
            * tl.exp(-_square((score - 0.7071067811865476) * 2.5066282746310002))
            * d_score_constant
        )
        if MASKED:
            d_score = tl.where(related, d_score, 0.0)
        dq_total = _dot(d_score.to(k.dtype), k, dq_total, PRECISION)
        return dq_total

    @triton.jit(do_not_specialize=["n", "m", "k_start"])
    def _backward_rows_kernel(
        q_ptr, d_out_ptr, k_ptr, v_ptr, dq_ptr,
        q_start_ptr, kv_lengths_ptr,
        q_strides, d_out_strides, k_strides, v_strides,
        n, m, k_start, d_dot_factor_ptr, inverse_valid_ptr, d_erf_1_constant, d_score_constant,
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
        d_dot_factor = tl.load(d_dot_factor_ptr + batch * heads + head)
        inverse_valid = tl.load(inverse_valid_ptr + batch * heads + head)

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
                dq_total, q, d_out,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                tile * BLOCK_N, low, high, inverse_valid, d_erf_1_constant, d_score_constant,
                D, BLOCK_D, E, BLOCK_E, BLOCK_M, BLOCK_N, PRECISION, True,
            )  # fmt: skip
        for tile in range(f0, f1):
            dq_total = _backward_rows_tile(
                dq_total, q, d_out,
                k_ptr + tile * k_step, v_ptr + tile * v_step, k_strides[2], v_strides[2],
                tile * BLOCK_N, low, high, inverse_valid, d_erf_1_constant, d_score_constant,
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
    return lambda meta: (triton.cdiv(length, meta[block]), heads, batch)


def _launch(kernel, name, grid, q, k, v, *arguments):
    """Run a kernel, specialised by the widths of q and v."""
    d, e = q.shape[-1], v.shape[-1]
    block_d, block_e = _block(d), _block(e)
    _tuned(kernel, name, q.element_size(), max(64, block_d, block_e))[grid](
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
    m = v.shape[2]
    valid = torch.full((1, 1, 1, 1), m, dtype=torch.float64, device=q.device)
    if kv_lengths is not None:
        valid = kv_lengths.clamp(0, m).double()[:, None, None, None]
    inverse_valid = 1 / _maximum(valid, 1)
    d_dot_factor = 1 / _maximum(valid, 1)
    d_erf_1_constant = 1 / 2
    d_score_constant = 1 / 0.3989422804014327
    return _table(inverse_valid, q), _table(d_dot_factor, q), d_erf_1_constant, d_score_constant


def _launch_forward(q, k, v, q_start, k_start, q_starts, kv_lengths):
    """What `_forward` returns, by the Triton kernel."""
    q, k, v = _dense(q), _dense(k), _dense(v)
    batch, heads, n, _ = q.shape
    m = k.shape[2]
    out = q.new_empty(batch, heads, n, v.shape[-1])
    inverse_valid, d_dot_factor, d_erf_1_constant, d_score_constant = _kernel_numbers(
        q, k, v, None, kv_lengths
    )
    inverse_valid = inverse_valid[..., 0, 0].expand(batch, heads).float().contiguous()
    d_dot_factor = d_dot_factor[..., 0, 0].expand(batch, heads).float().contiguous()
    starts, lengths = _places(q, k, q_start, q_starts, kv_lengths)
    if out.numel():
        grid = _grid(n, "BLOCK_M", heads, batch)
        _launch(_forward_kernel, "forward", grid, q, k, v,
            q, k, v, out,
            starts, lengths,
            q.stride()[:3], k.stride()[:3], v.stride()[:3],
            n, m, k_start, inverse_valid,
        )  # fmt: skip
    return (out,)


def _launch_backward(q, k, v, out, d_out, q_start, k_start, q_starts, kv_lengths):
    """What `_backward` returns, by the Triton kernels."""
    q, k, v, d_out = _dense(q), _dense(k), _dense(v), _dense(d_out)
    batch, heads, n, _ = q.shape
    kv_heads, m, _ = v.shape[1:]
    dq = q.new_empty(q.shape)
    dk = k.new_empty(k.shape)
    dv = v.new_empty(v.shape)
    inverse_valid, d_dot_factor, d_erf_1_constant, d_score_constant = _kernel_numbers(
        q, k, v, None, kv_lengths
    )
    inverse_valid = inverse_valid[..., 0, 0].expand(batch, heads).float().contiguous()
    d_dot_factor = d_dot_factor[..., 0, 0].expand(batch, heads).float().contiguous()
    starts, lengths = _places(q, k, q_start, q_starts, kv_lengths)
    if dv.numel():
        grid = _grid(m, "BLOCK_N", kv_heads, batch)
        _launch(_backward_columns_kernel, "backward_columns", grid, q, k, v,
            k, v, q, d_out, dk, dv,
            starts, lengths,
            k.stride()[:3], v.stride()[:3], q.stride()[:3], d_out.stride()[:3],
            n, m, k_start, d_dot_factor, inverse_valid, d_erf_1_constant, d_score_constant,
        )  # fmt: skip
    if dq.numel():
        grid = _grid(n, "BLOCK_M", heads, batch)
        _launch(_backward_rows_kernel, "backward_rows", grid, q, k, v,
            q, d_out, k, v, dq,
            starts, lengths,
            q.stride()[:3], d_out.stride()[:3], k.stride()[:3], v.stride()[:3],
            n, m, k_start, d_dot_factor, inverse_valid, d_erf_1_constant, d_score_constant,
        )  # fmt: skip
    return dq, dk, dv


def _forward_slab(q, k, v, numbers, slab, chunks, work, call):
    """The vectors and row numbers of one slab; q is [batch * kv heads, group * rows, d]."""
    shape = slab.shape
    inverse_valid, _, _, _ = numbers
    out = q.new_zeros((*q.shape[:2], v.shape[-1]))
    for chunk in chunks:
        k_tile = _flat(k[:, :, chunk.keys], q.dtype)
        v_tile = _flat(v[:, :, chunk.keys], q.dtype)
        dot_qk = _product(q, k_tile, work[0], shape)
        score = dot_qk.mul_(inverse_valid)
        erf_1 = score.sub_(0.7071067811865476).mul_(2.5066282746310002).erf_()
        weight = erf_1.add_(1).mul_(0.5)
        _hide(weight, chunk, 0.0, call)
        out.baddbmm_(_pairs(weight, q), v_tile)
    return (out,)


def _backward_slab(q, k, v, d_out, dv, dk_total, numbers, slab, chunks, work, call):
    """Gradients of one slab: returns that of q and adds those of k and v to their totals."""
    shape = slab.shape
    inverse_valid, d_dot_factor, d_erf_1_constant, d_score_constant = numbers
    dq_total = q.new_zeros((*q.shape[:2], q.shape[-1]))
    for chunk in chunks:
        k_tile = _flat(k[:, :, chunk.keys], q.dtype)
        v_tile = _flat(v[:, :, chunk.keys], q.dtype)
        dot_qk = _product(q, k_tile, work[0], shape)
        d_share = _product(d_out, v_tile, work[1], shape)
        score = dot_qk.mul_(inverse_valid)
        erf_1 = (score - 0.7071067811865476).mul_(2.5066282746310002).erf_()
        weight = erf_1.add_(1).mul_(0.5)
        _hide(weight, chunk, 0.0, call)
        dv[:, chunk.keys].baddbmm_(_pairs(weight, q).mT, d_out)
        d_erf_1 = d_share.mul_(d_erf_1_constant)
        d_score = d_erf_1.mul_(
            score.sub_(0.7071067811865476)
            .mul_(2.5066282746310002)
            .square_()
            .neg_()
            .exp_()
            .mul_(1.1283791670955126)
            .mul_(d_score_constant)
        )
        _hide(d_score, chunk, 0.0, call)
        dq_total.baddbmm_(_pairs(d_score, q), k_tile)
        dk_total[:, chunk.keys].baddbmm_(_pairs(d_score, q).mT, q)
    dq = dq_total * _per_row(d_dot_factor, slab, q)
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


def _own(x, slab):
    """What belongs to the slab's batch entries, where entries differ."""
    return x[slab.entries] if x.shape[0] > 1 else x


def _entries_of(numbers, slab):
    """The numbers of the slab's batch entries."""
    return tuple(_own(x, slab) if isinstance(x, Tensor) else x for x in numbers)


def _store(outs, slab, results):
    """Write what a slab gives."""
    for out, result in zip(outs, results, strict=True):
        target = out[slab.entries, :, slab.rows]
        target.copy_(result.reshape(target.shape))


def _forward(q, k, v, q_start, k_start, q_starts, kv_lengths):
    """The vectors [batch, heads, n, e] and the saved numbers of rows [batch, heads, n]."""
    wide = _wide(q.dtype)
    outs = [q.new_empty(*q.shape[:3], v.shape[-1])]
    outs += [q.new_empty(q.shape[:3], dtype=wide) for _ in range(0)]
    numbers = _numbers(q, k, v, None, kv_lengths)

    def run(q, k, v, numbers, call, store):
        work, kv_heads = None, v.shape[1]
        for slab, chunks in _slabs(q, v, q_start, k_start, q_starts, kv_lengths, call):
            work = _workspace(slab, chunks, q, 2, work)
            results = _forward_slab(
                _fold(q, slab, kv_heads), k[slab.entries], v[slab.entries],
                _entries_of(numbers, slab), slab, chunks, work, call,
            )  # fmt: skip
            store(slab, results)

    with torch.autocast(q.device.type, enabled=False):
        call = _Call(q.shape[2], v.shape[2], q.shape[1], 0)
        run(q, k, v, numbers, call, functools.partial(_store, outs))
    return tuple(outs)


def _backward(q, k, v, out, d_out, q_start, k_start, q_starts, kv_lengths):
    """The gradients of q, k and v."""
    wide = _wide(q.dtype)
    dq = q.new_empty(q.shape)
    dk = k.new_zeros(k.shape, dtype=wide)
    dv = v.new_zeros(v.shape, dtype=wide)
    numbers = _numbers(q, k, v, None, kv_lengths)

    def run(q, k, v, d_out, dk, dv, numbers, call, store):
        work, kv_heads = None, v.shape[1]
        for slab, chunks in _slabs(q, v, q_start, k_start, q_starts, kv_lengths, call):
            work = _workspace(slab, chunks, q, 2, work)
            d_rows = _fold(d_out, slab, kv_heads)
            results = _backward_slab(
                _fold(q, slab, kv_heads), k[slab.entries], v[slab.entries], d_rows,
                dv[slab.entries].flatten(0, 1), dk[slab.entries].flatten(0, 1),
                _entries_of(numbers, slab), slab, chunks, work, call,
            )  # fmt: skip
            store(slab, results)

    grads = (dq,)
    with torch.autocast(q.device.type, enabled=False):
        call = _Call(q.shape[2], v.shape[2], q.shape[1], 0)
        run(
            q, k, v, d_out, dk, dv, numbers, call, functools.partial(_store, grads),
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
    inverse_valid, _, _, _ = numbers
    dot_qk = _scores(q, k)
    score = dot_qk * inverse_valid
    erf_1 = torch.erf((score - 0.7071067811865476) * 2.5066282746310002)
    weight = (1 + erf_1) * 0.5
    kept = weight.masked_fill(hidden, 0.0)
    return kept, None, ()


def _batched(q, k, v, q_start, k_start, q_starts, kv_lengths):
    """What `_forward` returns, in memory that grows as rows times keys of a block."""
    batch, heads, n, _ = q.shape
    kv_heads, m = v.shape[1:3]
    dtype, wide, device = q.dtype, _wide(q.dtype), q.device
    numbers = _lifted(_numbers(q, k, v, None, kv_lengths))
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


def _per_row(x, slab, q):
    """Numbers of heads, repeated for every folded row."""
    return x.expand(*slab.shape[:3], 1).reshape(*q.shape[:2], 1)


def _table(x, q):
    """Numbers of heads as [batch or 1, heads or 1, 1, 1], in the type of sums."""
    x = torch.as_tensor(x, device=q.device).to(_wide(q.dtype))
    return x.reshape((1,) * (4 - x.dim()) + x.shape)


def _run(q, k, v, q_start, k_start, q_starts, kv_lengths, form):
    run = _launch_forward if form == "triton" else _forward
    return run(q, k, v, q_start, k_start, q_starts, kv_lengths)


def _run_backward(*args):
    *args, form = args
    run = _launch_backward if form == "triton" else _backward
    return run(*args)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(q, k, v, q_start, k_start, q_starts, kv_lengths, form):
        return _run(q, k, v, q_start, k_start, q_starts, kv_lengths, form)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, *ctx.numbers, q_starts, kv_lengths, ctx.form = inputs
        # Backward reads no out; what arrives for it stands in its place.
        ctx.save_for_backward(q, k, v, *output[1:], q_starts, kv_lengths)

    @staticmethod
    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        grads = _Gradient.apply(*saved, d_out, d_out, *ctx.numbers, q_starts, kv_lengths, ctx.form)
        return *grads, *(None,) * (len(ctx.numbers) + 3)

    @staticmethod
    def vmap(info, in_dims, *args):
        return _fold_vmap(_Attention, info, in_dims, args)


class _Gradient(torch.autograd.Function):
    """The backward pass; its own derivative comes from the plain operations of `_batched`."""

    @staticmethod
    def forward(*args):
        return _run_backward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *saved, ctx.form = inputs
        ctx.numbers = saved[-4:-2]
        gradients = saved[-5:-4]
        ctx.save_for_backward(*saved[:3], *gradients, *saved[-2:])

    @staticmethod
    def backward(ctx, *grads):
        q, k, v, *gradients, q_starts, kv_lengths = ctx.saved_tensors

        def differentiable(q, k, v):
            outs = _batched(q, k, v, *ctx.numbers, q_starts, kv_lengths)
            return (outs[0],)

        def gradient(q, k, v, *gradients):
            return torch.func.vjp(differentiable, q, k, v)[1](gradients)

        inputs = q, k, v, *gradients
        dq, dk, dv, *d_gradients = torch.func.vjp(gradient, *inputs)[1](grads)
        return dq, dk, dv, *(None,) * 1, *d_gradients, *(None,) * 5

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
_OPERATOR = "laplace_of_keys_15f75925"


_library = torch.library.Library("attncc", "FRAGMENT")


def _register():
    places = "SymInt q_start, SymInt k_start, Tensor? q_starts, Tensor? kv_lengths"
    numbers = f"{places}, str form"
    inputs = "Tensor q, Tensor k, Tensor v"
    _library.define(f"{_OPERATOR}({inputs}, {numbers}) -> Tensor")
    statistics = ""
    saved = f"Tensor out, {statistics}Tensor d_out"
    gradients = "(Tensor, Tensor, Tensor)"
    _library.define(f"{_OPERATOR}_backward({inputs}, {saved}, {numbers}) -> {gradients}")
    _library.impl(_OPERATOR, lambda *args: _run(*args)[0], "CompositeExplicitAutograd")
    _library.impl(f"{_OPERATOR}_backward", _run_backward, "CompositeExplicitAutograd")

    @torch.library.register_fake(f"attncc::{_OPERATOR}", lib=_library)
    def _(q, k, v, *numbers):
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        return out

    @torch.library.register_fake(f"attncc::{_OPERATOR}_backward", lib=_library)
    def _(q, k, v, *rest):
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)

    def backward(ctx, d_out, *d_statistics):
        *saved, q_starts, kv_lengths = ctx.saved_tensors
        run = getattr(torch.ops.attncc, f"{_OPERATOR}_backward")
        grads = run(*saved, d_out, d_out, *ctx.numbers, q_starts, kv_lengths, ctx.form)
        return *grads, *(None,) * (len(ctx.numbers) + 3)

    def setup_context(ctx, inputs, output):
        _Attention.setup_context(ctx, inputs, (output,))

    torch.library.register_autograd(
        f"attncc::{_OPERATOR}", backward, setup_context=setup_context, lib=_library
    )


if not hasattr(torch.ops.attncc, _OPERATOR):  # a copy of this file may have been loaded already
    _register()


def _expect(holds, name, found, expected):
    if not holds:
        raise ValueError(f"laplace_of_keys: {name} is {found}, expected {expected}")


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
    _expect(1 <= width <= 256 and 1 <= v.shape[3] <= 256, "the width", shapes, "1 … 256")
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
        raise ValueError(f"laplace_of_keys: {name} is {x!r}, expected {expected}")


_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _form(form, q):
    """Which code runs: Triton on GPUs, torch elsewhere, or what the caller asks for."""
    _expect(form in (None, "triton", "torch"), "form", repr(form), "None, 'triton' or 'torch'")
    if form is None:
        return (
            "triton" if triton is not None and q.is_cuda and q.dtype != torch.float64 else "torch"
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


def _prepared(q, k, v, kv_lengths, q_start, k_start):
    """The arguments as the passes take them; a position is a number and an offset a batch entry."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        _expect(isinstance(x, Tensor), name, type(x).__name__, "a tensor")
    device = q.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        q, k, v = (x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))
    _check(q, k, v, kv_lengths, q_start, k_start)
    if isinstance(kv_lengths, int):
        kv_lengths = torch.full((q.shape[0],), kv_lengths, device=q.device)
    q_starts = None
    if q_start is None:
        q_start = k_start + k.shape[2] - q.shape[2]
    elif isinstance(q_start, Tensor):
        q_start, q_starts = 0, q_start
    return q, k, v, q_start, k_start, q_starts, kv_lengths


def _is_shape_only(x):
    """Whether a tensor holds no numbers: the operators know the shapes of what they return."""
    return x.is_meta or isinstance(x, torch._subclasses.FakeTensor)


def _laplace_of_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kv_lengths: int | Tensor | None = None,
    q_start: int | Tensor | None = None,
    k_start: int = 0,
    dropout_p: float = 0.0,
    form: str | None = None,
):
    """The Laplace function of dot products over the number of keys.

    Args:
        q: [batch, heads, n, d], float32, bfloat16, float16 or (torch form) float64; d up to 256.
        k: [batch, kv heads, m, d]; query head h reads kv head h // (heads / kv heads).
        v: [batch, kv heads, m, e]; e up to 256.
        kv_lengths: how many keys each batch entry has, one number or [batch]; others are hidden.
        q_start: the position of the first row, one number or [batch];
            so that rows and keys end together by default.
        k_start: the position of the first key.
        form: "triton" or "torch"; by default Triton runs on GPUs and torch elsewhere.

    Returns:
        [batch, heads, n, e]; rows without keys are 0.

    Raises:
        ValueError: an argument whose shape, dtype or device does not fit, with its name.
    """
    _expect(dropout_p == 0.0, "dropout_p", dropout_p, "0.0: dropout is not supported")
    prepared = _prepared(q, k, v, kv_lengths, q_start, k_start)
    form = _form(form, prepared[0])
    if not torch.compiler.is_compiling() and not _is_shape_only(prepared[0]):
        outs = _Attention.apply(*prepared, form)
    else:
        outs = getattr(torch.ops.attncc, _OPERATOR)(*prepared, form)
        outs = (outs,)
    return outs[0]


# --- the layer ------------------------------------------------------------------------------------


def _demand(holds, name, found, expected):
    """Refuse an argument, by its name."""
    if not holds:
        raise ValueError(f"mega_both_ways: {name} is {found}, expected {expected}")


def _uniform(tensor, most):
    """Numbers between -most and most."""
    nn.init.uniform_(tensor, -most, most)


def _padding(x, axis, lengths):
    """Which entries along an axis are padding, with axes of length 1 elsewhere."""
    places = torch.arange(x.shape[axis], device=x.device)
    shape = [1] * x.dim()
    shape[0], shape[axis] = len(lengths), x.shape[axis]
    return (places >= lengths[:, None]).view(shape)


def _without_padding(x, axis, lengths):
    """0 in place of padding; of the sequences' lengths None stands for no padding at all."""
    if lengths is None:
        return x
    if x.shape[0] != len(lengths):
        x = x.expand(len(lengths), *x.shape)
    return x.masked_fill(_padding(x, axis, lengths), 0)


def _averaged(x, decays, gains, lengths):
    """The sum over s of gains[c, s] * h[c, s], where h = decays[c, s] * (h of the token before) + x[c]."""
    return _averaged_step(x, decays, gains, lengths, None)[0]


def _averaged_back(x, decays, gains, lengths):
    """The same from the last token to the first."""
    x = _without_padding(x, -2, lengths)
    return _averaged(x.flip(-2), decays, gains, None).flip(-2)


def _averaged_step(x, decays, gains, lengths, kept):
    """The same after other tokens, whose h is kept: [batch, d, s].

    Within a block of tokens it is a product with powers of the decays, and h goes from block to block; nothing is
    divided by a power. Numbers have 32 bits or more.
    """
    series = _without_padding(x, -2, lengths).to(torch.promote_types(x.dtype, torch.float32)).mT
    decays, gains = decays.to(series.dtype), gains.to(series.dtype)
    length, size = series.shape[-1], min(64, series.shape[-1])
    blocks = functional.pad(series, (0, -length % size)).unflatten(-1, (-1, size))
    times = torch.arange(size, device=x.device)
    lags = times - times[:, None]
    powers = decays[..., None] ** times
    kernel = (gains[..., None] * powers).sum(-2)
    out = blocks @ kernel[:, lags.clamp(min=0)].masked_fill(lags < 0, 0)
    ends = _scanned((blocks @ powers.flip(-1).mT).mT, decays**size)
    before = functional.pad(ends[..., :-1], (1, 0))
    if kept is not None:
        firsts = torch.arange(ends.shape[-1], device=x.device) * size
        before = before + decays[..., None] ** firsts * kept[..., None]
    out = out + before.mT @ ((gains * decays)[..., None] * powers)
    left = length - (ends.shape[-1] - 1) * size
    kept = (blocks[..., -1:, :left] @ powers[..., :left].flip(-1).mT)[..., 0, :]
    kept = kept + decays**left * before[..., -1]
    return out.flatten(-2)[..., :length].mT.to(x.dtype), kept


def _scanned(x, decays):
    """h[t] = decays * h[t - 1] + x[t] along the last axis, in steps that double."""
    step = 1
    while step < x.shape[-1]:
        x = x + decays[..., None] ** step * functional.pad(x[..., :-step], (step, 0))
        step *= 2
    return x


class MegaBothWays(nn.Module):
    """MEGA that is not causal: moving averages from both ends, attention to all tokens (arXiv
    2209.10655, section 3).

    Args:
        dim: a whole number.
        s: 128 by default.
        width: 2 * dim by default.
        states: 16 by default.
        form: "triton" or "torch" for the cores; by default Triton runs on GPUs and torch elsewhere.
        device: where its parameters are, as for other modules.
        dtype: their type.
    """

    def __init__(
        self,
        dim: int,
        s: int = 128,
        width: int | None = None,
        states: int = 16,
        form: str | None = None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        width = 2 * dim if width is None else width
        self.dim = dim
        self.s = s
        self.width = width
        self.states = states
        self.form = form
        self.norm_gain = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.norm_bias = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.delta = nn.Parameter(torch.empty(2, dim, states, device=device, dtype=dtype))
        self.alpha = nn.Parameter(torch.empty(2, dim, states, device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.empty(2, dim, states, device=device, dtype=dtype))
        self.eta = nn.Parameter(torch.empty(2, dim, states, device=device, dtype=dtype))
        self.omega = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.Wv = nn.Parameter(torch.empty(dim, width, device=device, dtype=dtype))
        self.bv = nn.Parameter(torch.empty(width, device=device, dtype=dtype))
        self.Wu = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.bu = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.Wz = nn.Parameter(torch.empty(dim, s, device=device, dtype=dtype))
        self.bz = nn.Parameter(torch.empty(s, device=device, dtype=dtype))
        self.Wr = nn.Parameter(torch.empty(dim, width, device=device, dtype=dtype))
        self.br = nn.Parameter(torch.empty(width, device=device, dtype=dtype))
        self.gq = nn.Parameter(torch.empty(s, device=device, dtype=dtype))
        self.bq = nn.Parameter(torch.empty(s, device=device, dtype=dtype))
        self.gk = nn.Parameter(torch.empty(s, device=device, dtype=dtype))
        self.bk = nn.Parameter(torch.empty(s, device=device, dtype=dtype))
        self.Wh = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.bh = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.Uh = nn.Parameter(torch.empty(width, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every parameter as it is before training."""
        nn.init.ones_(self.norm_gain)
        for tensor in (
            self.norm_bias,
            self.bv,
            self.bu,
            self.bz,
            self.br,
            self.bq,
            self.bk,
            self.bh,
        ):
            nn.init.zeros_(tensor)
        for tensor in (self.delta, self.alpha):
            nn.init.normal_(tensor, std=0.2)
        for tensor in (self.beta, self.gq, self.gk):
            nn.init.normal_(tensor, std=0.02)
        for tensor in (self.eta, self.omega):
            nn.init.normal_(tensor, std=1.0)
        for tensor in (self.Wv, self.Wu, self.Wz, self.Wr, self.Wh, self.Uh):
            _uniform(tensor, tensor.shape[-2] ** -0.5)

    def forward(self, x: Tensor, lengths: Tensor | None = None):
        """The layer's output, [batch, n, dim].

        Args:
            x: [batch, n, dim].
            lengths: how many of the n tokens each batch entry has, [batch]; the others are padding.
        """
        _demand(
            x.dim() == 3 and x.shape[2] == self.dim, "x", list(x.shape), f"[batch, n, {self.dim}]"
        )
        laplace_of_keys = functools.partial(_laplace_of_keys, kv_lengths=lengths, form=self.form)
        y = functional.layer_norm(x, (self.dim,), self.norm_gain, self.norm_bias, eps=1e-05)
        damp = torch.sigmoid(self.delta)
        decay = 1 - damp * torch.sigmoid(self.alpha)
        gain = damp * self.beta * self.eta / math.sqrt(self.states)
        moved = _averaged(y, decay[0], gain[0], lengths) + _averaged_back(
            y, decay[1], gain[1], lengths
        )
        seen = functional.silu(moved + self.omega * y)
        u = torch.sigmoid(seen @ self.Wu + self.bu)
        z = functional.silu(seen @ self.Wz + self.bz)
        attended = laplace_of_keys(
            (z * self.gq + self.bq).unsqueeze(-3),
            (z * self.gk + self.bk).unsqueeze(-3),
            functional.silu(y @ self.Wv + self.bv).unsqueeze(-3),
        ).squeeze(-3)
        candidate = functional.silu(
            seen @ self.Wh
            + self.bh
            + (functional.silu(seen @ self.Wr + self.br) * attended) @ self.Uh
        )
        return x + u * (candidate - x)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, s={self.s}, width={self.width}, states={self.states}"
