"""Functions of all keys: lengths, offsets, garbage in hidden keys, long sums, extreme gates, calls that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from attncc.check.oracle import dense
from tests.modules import Built, build

GATES = "input g[B, H, m]; let G = cumsum(min(g, 0)); pattern = causal; normalize = none; "
BODIES = {
    "gates": GATES + "weight = exp(G[i] - G[j]) * scale * dot(q, k)",
    "gates for each feature": (
        "input g[B, H, m, d]; let G = cumsum(min(g, 0)); pattern = causal; "
        "weight = sum(q * k * exp(G[i] - G[j])); normalize = none"
    ),
    "gates in a score": (
        "input g[B, H, m]; let G = cumsum(log(sigmoid(g))); pattern = causal; score = scale * dot(q, k) + G[i] - G[j]"
    ),
    "sums before the query": (
        "input g[B, H, m]; let a = min(g, 0); let G = cumsum(a); pattern = j < i; "
        "weight = exp(G[i] - a[i] - G[j]) * dot(q, k); normalize = none"
    ),
    "softmax": "let k = softmax_over_keys(k); weight = dot(softmax_of(q), k); normalize = none",
    "softmax in values": (
        "let p = softmax_over_keys(k); branch all { value = p * v; weight = 1; normalize = none }; "
        "combine = sigmoid(q) * all"
    ),
    "the largest": "let u = k - largest_over_keys(k); weight = dot(exp(q), exp(u)); normalize = rows + 1e-3",
    "the mean": "let u = mean_over_keys(k); score = dot(q, k - u)",
    "sums in a gate": "input g[B, H, m]; let G = cumsum(g); branch all { }; combine = sigmoid(G[i]) * all",
    "each channel by its own sum": (
        "input g[B, H, m]; let G = cumsum(min(g, 0)); pattern = causal; "
        "weight = exp(G[i] - G[j]) * dot(softmax_of(q), exp(k)); normalize = channels"
    ),
    "one's own key": "score = dot(q, k) + dot(k[i], k) + v[i, 2]; normalize = rows + exp(k[i, 1])",
}
CALLS: dict[str, dict[str, object]] = {
    "plain": {},
    "lengths": {"kv_lengths": torch.tensor([12, 7])},
    "no key": {"kv_lengths": torch.tensor([12, 0])},
    "offsets": {"q_start": 4, "k_start": 2},
    "an offset for each entry": {"q_start": torch.tensor([5, 3]), "k_start": 3},
}


@pytest.fixture(scope="module", params=BODIES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(f"attention keys {{ {BODIES[request.param]} }}", tmp_path_factory.mktemp("modules"))


def data_of(built: Built, generator: torch.Generator) -> list[Tensor]:
    sizes = {"B": 2, "n": 9, "m": 12, "d": 6, "e": 6}
    return [
        torch.randn(
            [(2 if each.is_column else 4) if axis.value == "H" else sizes[axis.value] for axis in each.axes],  # type: ignore[union-attr]
            generator=generator,
            dtype=torch.float64,
        )
        for each in built.spec.data
    ]


@pytest.mark.parametrize("call", CALLS)
def test_results_and_gradients(built: Built, call: str) -> None:
    own = [each.requires_grad_() for each in data_of(built, torch.Generator().manual_seed(3))]
    other = [each.detach().clone().requires_grad_() for each in own]
    out = built.module.attention(*own, **CALLS[call])
    expected = dense(built.spec, *other, **CALLS[call]).out  # type: ignore[arg-type]
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-11)
    for found, wanted in zip(slopes(out, own), slopes(expected, other), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def slopes(out: Tensor, data: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(out.sin().sum(), data, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(data, found, strict=True)]


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30], ids=str)
def test_what_stands_in_hidden_keys_reaches_nothing(built: Built, garbage: float) -> None:
    plain = data_of(built, torch.Generator().manual_seed(3))
    spoiled = [each.clone() for each in plain]
    for declared, each in zip(built.spec.data, spoiled, strict=True):
        if declared.is_column:
            each[1, :, 7:] = garbage
    results = []
    for data in (plain, spoiled):
        own = [each.requires_grad_() for each in data]
        out = built.module.attention(*own, kv_lengths=torch.tensor([12, 7]))
        results.append([out, *slopes(out, own)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_later_keys_do_not_reach_sums(tmp_path: Path) -> None:
    built = build(f"attention keys {{ {BODIES['gates']} }}", tmp_path)
    q, k, v, g = data_of(built, torch.Generator().manual_seed(3))
    out = built.module.attention(q, k, v, g)
    for each in (k, v, g):
        each[:, :, -4:] = 3
    assert torch.equal(out[:, :, :-4], built.module.attention(q, k, v, g)[:, :, :-4])


@pytest.mark.parametrize("start", [-4, 4, torch.tensor([0, 4])], ids=["before", "after", "each"])
def test_a_query_that_stands_at_no_key_is_refused(start: int | Tensor, tmp_path: Path) -> None:
    built = build(f"attention keys {{ {BODIES['gates']} }}", tmp_path)
    data = data_of(built, torch.Generator().manual_seed(3))
    with pytest.raises(ValueError, match=r"index `i - k_start` of the keys is .*, expected 0 … 11"):
        built.module.attention(*data, q_start=start)


@pytest.mark.parametrize("name", ["gates", "gates for each feature"])
@pytest.mark.parametrize("gate", [-1e-4, -0.5, -100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_extreme_gates(name: str, gate: float, dtype: torch.dtype, tmp_path: Path) -> None:
    """Exponents of unrelated pairs of a tile are as large as those of related ones are small."""
    built = build(f"attention keys {{ {BODIES[name]} }}", tmp_path)
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 150, 8, generator=generator) for _ in range(3))
    g = gate * (1 + torch.rand(1, 2, 150, *(8,) * (name != "gates"), generator=generator))
    own = [each.to(dtype).requires_grad_() for each in (q, k, v, g)]
    other = [each.detach().double().requires_grad_() for each in own]
    out, expected = built.module.attention(*own), dense(built.spec, *other).out
    weight = torch.randn(out.shape, generator=generator)
    limit = 4e-5 if dtype == torch.float32 else 2e-2
    assert_near(out, expected, limit)
    for found, wanted in zip(
        torch.autograd.grad(out, own, weight.to(dtype)),
        torch.autograd.grad(expected, other, weight.to(dtype).double()),
        strict=True,
    ):
        assert_near(found, wanted, limit)


def assert_near(found: Tensor, wanted: Tensor, limit: float) -> None:
    """What a gate's gradient is made of cancels where the gate shuts: what is left may be 0, beside numbers near 1."""
    assert found.isfinite().all()
    found, wanted = found.detach().double(), wanted.detach()
    assert float((found - wanted).norm()) <= limit * max(float(wanted.norm()), 1)


def test_differences_of_long_sums_keep_their_digits(tmp_path: Path) -> None:
    """At 131,072 keys a sum of gates is near -13,000: in float32 e to a difference of two would be off by 1e-3."""
    built = build(f"attention keys {{ {BODIES['gates']} }}", tmp_path)
    generator = torch.Generator().manual_seed(2)
    m, rows = 1 << 17, 4
    q, k = torch.ones(1, 1, rows, 1), torch.ones(1, 1, m, 1)
    g = -0.2 * torch.rand(1, 1, m, generator=generator)
    found = built.module.weights(q, k, g)[..., -64:]
    sums = g.double().cumsum(-1)[0, 0]
    place = torch.arange(m)
    exact = (sums[-rows:, None] - sums[None, -64:]).exp() * (place[-rows:, None] >= place[None, -64:])
    torch.testing.assert_close(found[0, 0].double(), exact, rtol=1e-6, atol=0)
