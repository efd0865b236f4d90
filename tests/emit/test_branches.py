"""Specs of several branches: sums, differences, gates and merges of attentions over the same data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from attncc.check.compare import check
from attncc.check.oracle import dense
from tests.modules import build

SPECS = {
    "a sum of two similarities over data of their own": """
attention two_scores(c = 16) {
  input q1[B, H, n, d], k1[B, H, m, d], q2[B, H, n, d], k2[B, H, m, d]
  branch near { pattern = causal & chunk(c); similarity = relu2(dot(q1, k1) / c) }
  branch far { pattern = earlier_chunks(c); weight = dot(q2, k2) / c; normalize = none }
  combine = near + far
}""",
    "a learned gate, and values that differ": """
attention gated(w = 8) {
  param bias[H, w] = 0, gate[H] = 0
  pattern = causal
  branch near { pattern = window(w - 1); score = scale * dot(q, k) + bias[h, i - j] }
  branch far { let q = unit(q); let k = unit(k); value = relu(v); pattern = causal & stride(4); score = 10 * dot(q, k) }
  combine = sigmoid(gate[h]) * near + (1 - sigmoid(gate[h])) * far
}""",
    "a merge, in which a pair of both counts twice": """
attention merged(w = 8) {
  branch near { pattern = causal & window(w) }
  branch far { pattern = causal & stride(4) }
  combine = merge(near, far)
}""",
    "a merge among others, sinks and keys of their own": """
attention mixed {
  input k2[B, H, m, d], g[B, H, n]
  param sink[H]
  branch a { normalize = rows + exp(sink[h]) }
  branch b { score = scale * dot(q, k2); pattern = j <= i + 3 }
  branch c { weight = softplus(dot(q, k)); pattern = chunk(5) }
  combine = g[i] * merge(a, b, c) - c / 2
}""",
    "branches called as functions of a module are": """
attention named {
  branch run { pattern = causal }
  branch check { pattern = causal & stride(3) }
  combine = 2 * run - check
}""",
    "a single branch": """
attention single {
  branch only { pattern = causal }
  combine = -only
}""",
}


@pytest.mark.parametrize("name", SPECS)
def test_it_equals_the_branches_evaluated_alone(name: str, tmp_path: Path) -> None:
    built = build(SPECS[name], tmp_path)
    report = check(built.module, built.spec, quick=True)
    assert report.ok, report.failures


def test_a_merge_of_disjoint_patterns_is_their_union(tmp_path: Path) -> None:
    text = """
attention halves {
  branch a { pattern = j % 2 == 0 }
  branch b { pattern = j % 2 == 1 }
  combine = merge(a, b)
}"""
    halves = build(text, tmp_path).module.attention
    full = build("attention full {}", tmp_path).module.attention
    q, k, v = (torch.randn(2, 4, 33, 16, dtype=torch.float64, requires_grad=True) for _ in range(3))
    (out, lse), (other, other_lse) = (each(q, k, v, return_lse=True) for each in (halves, full))
    torch.testing.assert_close(out, other)
    torch.testing.assert_close(lse, other_lse)
    seed = torch.randn_like(out)
    for one, two in zip(*(torch.autograd.grad(each, (q, k, v), seed) for each in (out, other)), strict=True):
        torch.testing.assert_close(one, two)


def test_a_pair_of_two_merged_branches_counts_twice(tmp_path: Path) -> None:
    text = "attention twice { branch a {}; branch b { pattern = j == 0 }; combine = merge(a, b) }"
    built = build(text, tmp_path)
    q, k = torch.zeros(1, 1, 1, 4, dtype=torch.float64), torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    v = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)[None, None, :, None]
    for out in (built.module.attention(q, k, v), dense(built.spec, q, k, v).out):
        assert float(out) == pytest.approx((2 * 1 + 10 + 100) / 4)


def test_what_branches_share_stands_once(tmp_path: Path) -> None:
    module = build(SPECS["a merge, in which a pair of both counts twice"], tmp_path).module
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    names = re.findall(r"^ *def (\w+)\(|^class (\w+)\(", text, re.M)
    top = [one or two for one, two in names if (one or two).startswith("_") and one not in ("_", "__init__")]
    assert len(top) == len(set(top))
    assert text.count("def _flat(") == text.count("def _near_segments(") == text.count("def _far_segments(") == 1


def test_it_runs_under_compilers(tmp_path: Path) -> None:
    attention = build(SPECS["a learned gate, and values that differ"], tmp_path).module.attention
    q, k, v = (torch.randn(1, 2, 20, 8) for _ in range(3))
    bias, gate = torch.randn(2, 8), torch.randn(2)
    compiled = torch.compile(attention, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(q, k, v, bias, gate), attention(q, k, v, bias, gate))


def test_weights_are_those_of_a_branch(tmp_path: Path) -> None:
    module = build(SPECS["branches called as functions of a module are"], tmp_path).module
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    near, far = (module.weights(name, q, k) @ v for name in ("run", "check"))
    torch.testing.assert_close(module.attention(q, k, v), 2 * near - far)
    with pytest.raises(ValueError, match="branch is 'walk', expected run or check"):
        module.weights("walk", q, k)


def test_outputs_that_do_not_fit_are_named(tmp_path: Path) -> None:
    text = "attention two { input u[B, H, n, d]; branch a {}; branch b { score = dot(u, k) }; combine = a + b }"
    attention = build(text, tmp_path).module.attention
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    with pytest.raises(ValueError, match=r"the branch b is \[1, 2, 5, 8\], expected the shape of a, \[1, 2, 9, 8\]"):
        attention(q, k, v, torch.randn(1, 2, 5, 8))
