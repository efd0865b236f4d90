"""Where formulas have no value for some pairs, rows or lengths: the derivative must not invent one."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from attncc.check.compare import check
from attncc.diagnostics import AttnError
from tests.modules import build

SPECS = {
    "a choice whose other branch divides by 0": (
        "attention edge { pattern = causal; score = i == j ? scale * dot(q, k) : scale * dot(q, k) / (i - j) }"
    ),
    "a choice whose other branch is a logarithm of 0": (
        "attention edge { pattern = causal; score = i == j ? dot(q, k) : log(abs(i - j)) * scale * dot(q, k) }"
    ),
    "a choice inside a product": (
        "attention edge { pattern = causal; score = dot(q, k) / 99 * (i == j ? dot(q, k) : dot(q, k) / (i - j)) }"
    ),
    "a normaliser of 0 over weights that are not": (
        "attention edge { pattern = causal; weight = exp(score); normalize = relu(rows - 3) }"
    ),
    "a normaliser that reads lengths": (
        "attention edge { pattern = causal; weight = silu(scale * dot(q, k)); normalize = sqrt(count + 1) + valid / m }"
    ),
    "a score that is a number of the row": "attention edge { score = count / 8 + scale * dot(q, k) }",
}


@pytest.mark.parametrize("name", SPECS)
def test_gradients_have_values(name: str, tmp_path: Path) -> None:
    built = build(SPECS[name], tmp_path)
    report = check(built.module, built.spec, ("torch",), True)
    assert report.ok, "\n".join(report.failures)


@pytest.mark.parametrize("name", SPECS)
def test_no_keys_give_zeros(name: str, tmp_path: Path) -> None:
    built = build(SPECS[name], tmp_path)
    q, k = torch.randn(2, 2, 5, 8, requires_grad=True), torch.randn(2, 2, 0, 8)
    out = built.module.attention(q, k, k)
    out.sum().backward()
    assert not out.any()
    assert q.grad is not None and not q.grad.any()


def test_numbers_beyond_positions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AttnError, match="too large"):
        build("attention far { pattern = i - j < 4294967296 }", tmp_path)


@pytest.mark.parametrize("hidden", [-99, 0, 99])
def test_an_index_of_hidden_keys_is_not_looked_at(hidden: int, tmp_path: Path) -> None:
    built = build("attention edge { input s[B, m]: int; param b[H, 3]; score = b[h, s - 1] + dot(q, k) }", tmp_path)
    torch.manual_seed(0)
    q, b, s = torch.randn(2, 2, 5, 8), torch.randn(2, 3, requires_grad=True), torch.randint(1, 4, (2, 5))
    given = s.clone()
    given[0, 3:], given[1, 1:] = hidden, hidden
    found = built.module.attention(q, q, q, given, b, kv_lengths=torch.tensor([3, 1]))
    expected = built.module.attention(q, q, q, s, b, kv_lengths=torch.tensor([3, 1]))
    assert torch.equal(found, expected)
    found.sum().backward()
    assert b.grad is not None and b.grad.isfinite().all()
    with pytest.raises(ValueError, match="index `s - 1` of b"):
        built.module.attention(q, q, q, given.clamp(max=0), b, kv_lengths=torch.tensor([4, 1]))


def test_nested_tensors_and_rows_that_are_no_slice_are_refused(tmp_path: Path) -> None:
    module = build("attention edge { param b[H] = 0; score = dot(q, k) + b[h] }", tmp_path).module
    q, b = torch.randn(2, 2, 5, 8), torch.zeros(2)
    nested = torch.nested.nested_tensor([q[0], q[1]], layout=torch.jagged)
    with pytest.raises(ValueError, match="q is nested, expected a dense tensor"):
        module.attention(nested, q, q, b)
    with pytest.raises(ValueError, match="b is nested, expected a dense tensor"):
        module.attention(q, q, q, torch.nested.nested_tensor([b, b], layout=torch.jagged))
    with pytest.raises(ValueError, match="rows is 3, expected a slice"):
        module.weights(q, q, b, rows=3)


ENTRANCES = {  # numbers that only a combination of branches reads, what is made of others, blocks of keys, running sums
    "combined": "param a[H]; branch near { pattern = window(3) }; branch far { pattern = causal }; "
    "combine = a[h] * near + far",
    "made": "input R[H, d, 4] = normal(seed = 1); let b = hash(k, R[h]); pattern = b[i] == b[j]",
    "made of branches": "input R[H, d, 4] = normal(seed = 1); branch near { pattern = window(3) }; "
    "branch far { let b = hash(k, R[h]); pattern = b[i] == b[j] }; combine = near + far",
    "blocks": "let k = pool(k, 4) at 4 * j + 3; let v = pool(v, 4) at 4 * j + 3; pattern = causal",
    "sums": "pattern = causal; similarity = features(exp)",
}


@pytest.mark.parametrize("name", ENTRANCES)
def test_what_is_no_tensor_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    module = build(f"attention edge {{ {ENTRANCES[name]} }}", tmp_path).module
    x = torch.zeros(1, 2, 8, 8)
    for function in ("attention", "weights", "prefill", "step"):
        call = getattr(module, function, None)
        if call is None or "branch" in (parameters := inspect.signature(call).parameters):
            continue
        given = {each: x for each in parameters if each in ("q", "k", "v")}
        given |= {"a": torch.zeros(2)} if "a" in parameters else {}
        own = {"cache": module.Cache()} if "cache" in parameters else {}
        for missing in given:
            for wrong in (None, [1.0]):
                with pytest.raises(ValueError, match=rf"edge: {missing} is \w+, expected a tensor"):
                    call(**given | own | {missing: wrong})
        if "R" in parameters:
            with pytest.raises(ValueError, match="edge: R is list, expected a tensor"):
                call(**given | own, R=[1.0])


def test_weights_without_keys(tmp_path: Path) -> None:
    module = build("attention edge { pattern = causal }", tmp_path).module
    assert module.weights(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 0, 4), rows=slice(3)).shape == (1, 2, 3, 0)
