"""Random patterns that read data, against the dense oracle: outputs, log-sum-exp and gradients of the torch form.

Patterns are unions and intersections of what data and positions say (tests/random_listed.py); weights may be those of a
softmax, plain products, or others, and may read what the pattern reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attncc.check.calls import attention_of, inputs_of, offers_lse, run, run_dense, ways_of
from attncc.check.sizes import Case
from attncc.diagnostics import AttnError
from tests.modules import Built, build, cut_small
from tests.random_listed import listed_spec, random_listed_pattern
from tests.random_specs import Pick
from tests.test_random_specs import draws, picker

LINES: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("similarity = relu2",),
    ("weight = dot(q, k)", "normalize = none"),
    ("similarity = features(x -> elu(x) + 1)",),
    ("param bias[H, 9] = 0", "score = scale * dot(q, k) + bias[h, clip(i - j, 0, 8)]"),
    ("weight = (blocks[h, (i - first) // 16, (j - low) // 16] ? 2 : 1) * exp(score)",),
    ("weight = (reach + 3) * exp(score)",),
    ("weight = sigmoid(score) / count", "normalize = none"),
    ("normalize = count", "weight = 0.9^abs(i - j) * dot(q, k)"),
)
LENGTHS = ((37, 37), (20, 61), (61, 20), (1, 9), (70, 70), (9, 1), (130, 150))


def random_listed_case(pick: Pick) -> Case:
    """A call whose rows stand where keys do."""
    n, m = pick(LENGTHS)
    if n > m:
        n = m
    heads, kv_heads = pick(((4, 2), (2, 2), (2, 1)))
    k_start, batch = pick((0, 0, 5)), 2
    q_start = pick((None, k_start, k_start + m - n))
    hidden = pick((None, None, (m, 0), (m // 2, m), m // 3))
    name = f"{n} {m} {heads} {kv_heads} {k_start} {q_start} {hidden} {pick(range(99))}"
    return Case(
        batch=batch, heads=heads, kv_heads=kv_heads, n=n, m=m, d=8, e=5, dtype=torch.float64, q_start=q_start,
        k_start=k_start, kv_lengths=hidden, strided=pick((False, True)), garbage=hidden is not None, name=name,
    )  # fmt: skip


def listed_module(pick: Pick, case: Case, folder: Path) -> tuple[str, Built]:
    """The first random spec that relates any pair, and its module."""
    first = case.k_start + case.m - case.n if case.q_start is None else case.q_start
    assert isinstance(first, int)
    while True:
        pattern, _ = random_listed_pattern(pick, pick((0, 1, 1, 2, 2, 3)))
        text = listed_spec(pattern, first, case.k_start, pick(LINES))
        try:
            return text, build(text, folder)
        except AttnError as error:
            assert {each.code for each in error.diagnostics} <= {"E301", "E213"}, f"{text}\n{error}"


@pytest.mark.slow
@pytest.mark.parametrize("number", draws(10), ids=lambda number: f"draw-{number}")
def test_torch(number: int, tmp_path: Path) -> None:
    pick = picker(number)
    case = random_listed_case(pick)
    text, built = listed_module(pick, case, tmp_path)
    inputs = inputs_of(built.spec, case)
    if "kinds" in inputs:  # an index of another table
        inputs["kinds"] %= 4
    if pick((True, False)):
        cut_small(built.module)
    lse = offers_lse(built.module)
    expected = run_dense(built.spec, case, inputs, torch.float64, lse)
    for way in ways_of(built.module, "torch"):
        found = run(attention_of(built.module, way, lse), built.spec, case, inputs)
        for name, its in expected.items():
            size = its.nan_to_num(0, 0, 0).abs().max().clamp(min=1) if its.numel() else 1
            assert torch.allclose(found[name] / size, its / size, rtol=1e-9, atol=1e-9), f"{name} {way}\n{text}\n{case}"
