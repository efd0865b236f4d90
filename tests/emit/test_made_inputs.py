"""Inputs that are made where a caller leaves them out, and lists that are as long as it likes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.modules import build

BLOCKS = """attention blocks {
  input table[H, ceil(n / 8), ceil(m / 8)]: bool = random(2, seed = 3)
  pattern = abs(i // 8 - j // 8) <= 1 | table[h, i // 8, j // 8]
}
"""
PACKED = """attention packed {
  input begins[any]: int ascending
  pattern = causal & up_to(begins, i) == up_to(begins, j)
}
"""
HASHED = "attention hashed { input R[H, 8, 4] = normal(seed = 1); score = dot(q @ R[h], k @ R[h]) }"


def test_random_blocks_are_the_same_in_every_call(tmp_path: Path) -> None:
    module = build(BLOCKS, tmp_path).module
    q = torch.randn(1, 2, 100, 8)
    table = module._some_of(2, (2, 13, 13), 3, "cpu")
    assert (table.sum(-1) == 2).all()
    assert not torch.equal(table[0], table[1])
    assert not torch.equal(table, module._some_of(2, (2, 13, 13), 4, "cpu"))
    assert module._some_of(5, (1, 3), 0, "cpu").all()
    assert torch.equal(module.attention(q, q, q), module.attention(q, q, q, table))
    assert torch.equal(module.Attention()(q, q, q), module.attention(q, q, q, table=table))


def test_normal_numbers(tmp_path: Path) -> None:
    module = build(HASHED, tmp_path).module
    numbers = module._normal((2000, 10), 1, "cpu")
    assert abs(numbers.mean()) < 0.03
    assert abs(numbers.std() - 1) < 0.03
    q = torch.randn(1, 2, 20, 8, requires_grad=True)
    assert torch.equal(module.attention(q, q, q), module.attention(q, q, q, module._normal((2, 8, 4), 1, "cpu")))


@pytest.mark.parametrize("begins", [[0], [0, 5, 5, 30, 64, 65], [], [0, 1, 2, 3, 99]])
def test_packed_sequences(begins: list[int], tmp_path: Path) -> None:
    """Each sequence by itself."""
    module = build(PACKED, tmp_path).module
    q, k, v = torch.randn(3, 1, 2, 100, 8, dtype=torch.float64)
    found = module.attention(q, k, v, torch.tensor(begins, dtype=torch.int32))
    ends = [*sorted({0, *begins}), 100]
    parts = [
        torch.nn.functional.scaled_dot_product_attention(*(x[:, :, low:high] for x in (q, k, v)), is_causal=True)
        for low, high in pairwise(ends)
    ]
    torch.testing.assert_close(found, torch.cat(parts, 2))
    with pytest.raises(ValueError, match="begins is falling"):
        module.attention(q, k, v, torch.tensor([5, 3]))


def test_decoding_a_packed_sequence(tmp_path: Path) -> None:
    module = build(PACKED, tmp_path).module
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    begins = torch.tensor([0, 7])
    whole, cache, rows = module.attention(q, k, v, begins), module.Cache(), []
    for at in range(20):
        row, cache = module.step(*(x[:, :, at : at + 1] for x in (q, k, v)), begins, cache)
        rows.append(row)
    torch.testing.assert_close(torch.cat(rows, 2), whole)


DECODED = {
    "buckets": "input R[H, d, 4] = normal(seed = 3); let b = hash(k, R[h]); pattern = causal & b[i] == b[j]",
    "products": "input R[H, d, 4] = normal(seed = 3); pattern = window(5, 0); score = dot(q @ R[h], k @ R[h])",
    "choices": "input R[H, d, 4] = normal(seed = 3); pattern = top(3, by = dot(q @ R[h], k @ R[h]), among = causal)",
    "branches": "input R[H, d, 4] = normal(seed = 3), g[H] = normal(); branch near { pattern = window(3, 0) }; "
    "branch far { let b = hash(k, R[h]); pattern = causal & b[i] == b[j] }; combine = g[h] * far + near",
}


@pytest.mark.parametrize("body", DECODED.values(), ids=DECODED)
def test_decoding_without_what_is_made(body: str, tmp_path: Path) -> None:
    """A step and a module's step make it too; the cache stands before it among the arguments."""
    module = build(f"attention decoded {{ {body} }}", tmp_path).module
    q, k, v = torch.randn(3, 2, 2, 20, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, layer = module.attention(q, k, v), module.Attention()
    first, cache = layer.prefill(*(x[:, :, :9] for x in (q, k, v)))
    rows = [first]
    for at in range(9, 20):
        row, cache = (layer.step, module.step)[at % 2](*(x[:, :, at : at + 1] for x in (q, k, v)), cache)
        rows.append(row)
    torch.testing.assert_close(torch.cat(rows, 2), whole)
    R = module._normal((2, 8, 4), 3, "cpu").double()
    g = [module._normal((2,), 0, "cpu")] if "g[H]" in body else []
    again, _ = module.step(*(x[:, :, :1] for x in (q, k, v)), module.Cache(), R, *g)
    torch.testing.assert_close(again, whole[:, :, :1])


@pytest.mark.parametrize(
    "body",
    [
        "input t[H, m] = normal(); pattern = causal; score = scale * dot(q, k) + t",
        "input t[H, ceil(m / 4)]: bool = random(1); pattern = causal & (t[h, j // 4] | i - j < 3)",
        "input t[H, ceil(m / 4)]: bool; pattern = causal & (t[h, j // 4] | i - j < 3)",
        "input t[H, n] = normal(); branch one { pattern = causal }; combine = t * one",
    ],
)
def test_no_step_where_data_are_those_of_all_tokens(body: str, tmp_path: Path) -> None:
    assert not hasattr(build(f"attention whole {{ {body} }}", tmp_path).module, "step")
