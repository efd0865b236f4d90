"""16-bit types: gradients where scores are large, and what is kept for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attncc.check.compare import compare
from attncc.check.sizes import Case
from tests.modules import Built, build, build_file

SPECS = {
    "large scores": "attention large { score = dot(q, k) }",
    "large scores with a sink": "attention large { score = 8 * scale * dot(q, k); normalize = rows + exp(3) }",
    "large scores of heads that differ": (
        "attention large { pattern = h % 2 == 0 ? window(30) : stride(4) & causal; score = 8 * scale * dot(q, k) }"
    ),
    "cubes": "attention large { weight = relu(dot(q, k))^3; normalize = rows + 1e-6 }",
    "squares": "attention large { weight = dot(q, k)^2; normalize = rows + 1e-3 }",
    "softplus": "attention large { pattern = causal; weight = softplus(8 * scale * dot(q, k)); normalize = rows }",
}
PLAIN = Case(batch=2, heads=4, kv_heads=2, n=63, m=63, d=64, e=64, dtype=torch.float16, name="square")
CASES = (
    PLAIN,
    replace(PLAIN, n=7, m=5, d=40, e=20, name="short"),
    replace(PLAIN, n=1, m=1, d=1, e=17, name="one"),
    replace(PLAIN, n=1, m=9, name="row"),
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_gradients_are_as_good_as_dense_ones(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """An output rounded to 16 bits would be subtracted from numbers close to it: half of the limit tells."""
    built = build(SPECS[name], tmp_path)
    verdicts = [compare(built.module, built.spec, replace(case, dtype=dtype), "torch") for case in CASES]
    used = {verdict.case.name: max(each.used for each in verdict.comparisons) for verdict in verdicts}
    assert max(used.values()) < 0.5, used


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_file("causal", tmp_path_factory.mktemp("modules"))


def operands(dtype: torch.dtype, *batch: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(*batch, 2, 2, 20, 8, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize(
    ("dtype", "vectors"), [(torch.float64, 1), (torch.float32, 1), (torch.bfloat16, 2), (torch.float16, 2)], ids=str
)
def test_only_16_bits_keep_more_than_out_and_a_number_a_row(dtype: torch.dtype, vectors: int, causal: Built) -> None:
    q, k, v = (each.requires_grad_() for each in operands(dtype))
    kept: list[int] = []

    def note(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        causal.module.attention(q, k, v)
    assert sum(kept) == q.numel() + k.numel() + v.numel() + 2 * 2 * 20 + vectors * 2 * 2 * 20 * 8


def test_without_gradients_nothing_more_is_computed(causal: Built) -> None:
    module, (q, k, v) = causal.module, operands(torch.bfloat16)
    assert not module._keeps_residual(q, k, v)
    leaf = q.clone().requires_grad_()
    assert module._keeps_residual(leaf, k, v)
    with torch.no_grad():
        assert not module._keeps_residual(leaf, k, v)


def test_transforms_give_the_same_bits(causal: Built) -> None:
    """Inside vmap a tensor does not tell that gradients will be asked for."""
    attention, inputs = causal.module.attention, operands(torch.bfloat16, 3)
    inputs[0] *= 8

    def total(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attention(q, k, v).float().sin().sum()
        return out

    one_by_one = [torch.func.grad(total, (0, 1, 2))(*each) for each in zip(*inputs, strict=True)]
    expected = [torch.stack(each) for each in zip(*one_by_one, strict=True)]

    def mapped_total(*stacked: Tensor) -> Tensor:
        out: Tensor = torch.func.vmap(total)(*stacked).sum()
        return out

    inside = torch.func.vmap(torch.func.grad(total, (0, 1, 2)))(*inputs)
    outside = torch.func.grad(mapped_total, (0, 1, 2))(*inputs)
    leaves = [each.clone().requires_grad_() for each in inputs]
    eager = torch.autograd.grad(mapped_total(*leaves), leaves)
    for found in (inside, outside, eager):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_features_far_below_0_keep_their_digits(dtype: torch.dtype, tmp_path: Path) -> None:
    """elu(-30) + 1 is e^-30: computed as a sum it is 0, and so would the row's sum be."""
    built = build("attention tails { similarity = features(x -> elu(x) + 1) }", tmp_path)
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, 9, 8, generator=generator) for _ in range(3))
    own = [each.to(dtype).requires_grad_() for each in (q, k - 30, v)]
    wide = [each.detach().double().requires_grad_() for each in own]
    phi = [torch.where(each > 0, each + 1, each.exp()) for each in wide[:2]]
    weights = phi[0] @ phi[1].mT
    expected = weights / weights.sum(-1, keepdim=True) @ wide[2]
    out = built.module.attention(*own)
    limits = {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 0.03, "atol": 0.03}
    torch.testing.assert_close(out.double(), expected, **limits)
    for found, wanted in zip(
        torch.autograd.grad(out.double().sin().sum(), own),
        torch.autograd.grad(expected.sin().sum(), wide),
        strict=True,
    ):
        torch.testing.assert_close(found.double(), wanted, **limits)
