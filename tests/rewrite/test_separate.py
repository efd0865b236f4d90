"""What the law `separate` makes of weights, and why others do not come apart."""

from __future__ import annotations

import pytest

from attncc.diagnostics import Source
from attncc.plan.choose import plan_core
from attncc.spec.resolve import load

APART = {
    "dot(q, k)": ["sum(q * k)"],
    "score": ["scale * sum(q * k)"],
    "dot(elu(q) + 1, elu(k) + 1)": ["sum(q_of_row * k_of_key)"],
    "1 + score + score^2 / 2": ["0.5 * scale^2 * sum(q * k) * sum(q * k)", "1", "scale * sum(q * k)"],
    "(1 + dot(q, k))^2": ["1", "2 * sum(q * k)", "sum(q * k) * sum(q * k)"],
    "dot(q, k) * cos((i - j) / 8)": [
        "-1 * sin(0.125 * i) * sin(-0.125 * j) * sum(q * k)",
        "cos(0.125 * i) * cos(-0.125 * j) * sum(q * k)",
    ],
    "0.5^(i - j) * dot(q, k)": ["sum(q * k) * exp(-0.6931471805599453 * (i - j))"],
    "exp(j - i) * exp((j - i) / 2)": ["exp(-1.5 * (i - j))"],
    "sum(q * k * k) / 2": ["0.5 * sum(q * k_of_key)"],
}
TOGETHER = {
    "exp(score)": "the exponent reads `dot_qk`, a number of the pair",
    "relu(score)^2": "`relu(scale * dot_qk)` is no sum of products of numbers of the query and of the key",
    "1 / (1 + score^2)": "is no sum of products",
    "exp(i * j / 100) * score": "does not come apart into the query's part and the key's",
    "exp(2 * i - j) * score": "reads positions other than by their difference",
    "score^4": "a product of 4 dot products has too many features",
    "sum(tanh(q + k))": "is no sum of products",
    "i - j < 3 ? score : 1": "is no sum of products",
    "(i - j) * score": "numbers that grow",
    "(1 - (i - j) / 64)^2 * score": "numbers that grow",
    "(1 + score + i - j)^50": "a product of 50 dot products has too many features",
    "(1 + score)^(10^9)": "a product of 1000000000 dot products has too many features",
    " * ".join(f"({at} + cos({at} * (i - j)))" for at in range(1, 12)): "it may be a sum of 256 products",
}


def laws(weight: str) -> tuple[list[str], dict[str, str]]:
    spec = f"attention x {{ pattern = causal; weight = {weight}; normalize = none }}"
    planned = plan_core(load(Source("x.attn", spec)))
    steps = [line for step in planned.steps if step.law == "separate" for line in step.after]
    return sorted(steps), {each.law: each.reason for each in planned.refusals}


@pytest.mark.parametrize("weight", APART)
def test_it_comes_apart(weight: str) -> None:
    found, refused = laws(weight)
    assert found == APART[weight]
    assert "reassociate" not in refused


@pytest.mark.parametrize("weight", TOGETHER)
def test_it_does_not(weight: str) -> None:
    found, refused = laws(weight)
    assert not found
    assert TOGETHER[weight] in refused["separate"]
    assert refused["reassociate"]


def test_exponentials_that_a_peak_lowers_stay_together() -> None:
    spec = "attention x { pattern = causal; weight = exp(dot(k, k)) * dot(relu(q), relu(k)); normalize = rows }"
    refused = {each.law: each.reason for each in plan_core(load(Source("x.attn", spec))).refusals}
    assert "only a running maximum keeps them in range" in refused["separate"]


def test_a_pattern_without_full_tiles_has_no_states() -> None:
    spec = "attention x { pattern = i == j; weight = score; normalize = none }"
    refused = {each.law: each.reason for each in plan_core(load(Source("x.attn", spec))).refusals}
    assert refused["separate"] == "no run of keys is related to all rows of a tile"
