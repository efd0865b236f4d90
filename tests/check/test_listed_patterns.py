"""Patterns that read declared data: the oracle against their meaning pair by pair, and the data of checks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from attncc.check.calls import inputs_of, run_dense
from attncc.check.drawn import Use, uses_of
from attncc.check.fit import cases_of
from attncc.check.oracle import OutsideTable, dense, related
from attncc.check.sizes import Case, arguments
from attncc.diagnostics import Source
from attncc.spec.model import Spec
from attncc.spec.resolve import load
from tests.random_listed import ATOMS, Holds, Pair, listed_spec, random_listed_pattern
from tests.random_specs import draws
from tests.test_random_specs import picker

CASE = Case(batch=2, heads=4, kv_heads=2, n=9, m=25, d=4, e=4, dtype=torch.float64, name="case")


def spec_of(body: str) -> Spec:
    return load(Source("listed.attn", f"attention listed {{ {body} }}"))


def by_hand(holds: Holds, case: Case, inputs: dict[str, Tensor]) -> Tensor:
    """bool [B, H, n, m]"""
    found = torch.zeros(case.batch, case.heads, case.n, case.m, dtype=torch.bool)
    lengths = case.kv_lengths if isinstance(case.kv_lengths, tuple) else (case.kv_lengths,) * case.batch
    first = case.k_start + case.m - case.n if case.q_start is None else case.q_start
    assert isinstance(first, int)
    for b, h, row, key in product(*map(range, found.shape)):
        if lengths[b] is None or key < lengths[b]:  # type: ignore[operator]
            pair = Pair(case, inputs, b, h, first + row, case.k_start + key)
            found[b, h, row, key] = holds(pair)
    return found


def expect_equal(text: str, holds: Holds, case: Case) -> None:
    first = case.k_start + case.m - case.n if case.q_start is None else case.q_start
    assert isinstance(first, int)
    spec = load(Source("listed.attn", listed_spec(text, first, case.k_start)))
    inputs = inputs_of(spec, case)
    if "kinds" in inputs:  # which values fit is tried out at other positions
        inputs["kinds"] %= 4
    wanted = by_hand(holds, case, inputs)
    call = {name: value for name, value in arguments(case, inputs).items() if name != "scale"}
    found = related(spec, case.n, case.m, case.heads, batch=case.batch, width=case.d, data=inputs, **call)  # type: ignore[arg-type]
    assert torch.equal(found, wanted), f"{text}\n{(found != wanted).nonzero()[:3].tolist()}"
    weights = dense(spec, *(inputs[each.name] for each in spec.data), **call).weights  # type: ignore[arg-type]
    assert torch.equal(weights > 0, wanted), text


CALLS = {
    "later rows": CASE,
    "hidden keys": replace(CASE, kv_lengths=(19, 0), name="hidden"),
    "other positions": replace(CASE, k_start=5, q_start=11, name="other positions"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("text", ATOMS)
def test_what_an_atom_means(text: str, call: Case) -> None:
    expect_equal(text.replace("{a}", "3"), lambda x: ATOMS[text](x, 3), call)


@pytest.mark.parametrize("number", range(draws(10)), ids=lambda number: f"draw-{number}")
def test_what_random_patterns_mean(number: int) -> None:
    pick = picker(number)
    text, holds = random_listed_pattern(pick, pick((1, 2, 2, 3)))
    expect_equal(text, holds, pick(list(CALLS.values())))


def test_an_index_of_one_token_has_to_fit_whether_or_not_its_pairs_are_related() -> None:
    spec = spec_of("input t[ceil(m / 16)]: bool; pattern = t[i // 8] & j < -5 | causal")
    inputs = inputs_of(spec, CASE)
    with pytest.raises(OutsideTable, match="along axis 0, which has 2 entries"):
        related(spec, 25, 25, 1, data=inputs)


def test_an_index_of_both_tokens_has_to_fit_where_they_are_related() -> None:
    inputs = {"t": torch.ones(4, dtype=torch.bool)}
    inside = spec_of("input t[4]: bool; pattern = 0 <= i - j < 4 & t[i - j]")
    assert torch.equal(related(inside, 9, 9, 1, data=inputs)[0, 0], torch.ones(9, 9).tril().triu(-3).bool())
    outside = spec_of("input t[4]: bool; pattern = causal & t[i - j]")
    with pytest.raises(OutsideTable, match=r"t\[i - j\] reads 4…8 along axis 0"):
        related(outside, 9, 9, 1, data=inputs)


def test_hidden_keys_are_neither_looked_up_nor_read_at_the_query() -> None:
    spec = spec_of("input s[B, m]: int, t[3]: bool; pattern = t[s]")
    inputs = {"s": torch.tensor([[0, 2, 1, 99]]), "t": torch.tensor([True, False, True])}
    assert related(spec, 1, 4, 1, data=inputs, kv_lengths=3)[0, 0, 0].tolist() == [True, True, False, False]
    same = spec_of("input s[B, m]: int; pattern = s[i] == s[j]")
    found = related(same, 4, 4, 1, data={"s": torch.tensor([[0, 2, 0, 2]])}, kv_lengths=3)[0, 0]
    assert found[3].tolist() == [True, False, True, False]  # the query stands at a hidden key, which counts as 0


def test_labels_are_whole_numbers_of_64_bits() -> None:
    spec = spec_of("input s[B, m]: int; pattern = s[i] == s[j]")
    values = torch.tensor([[2**62, 2**62 + 1, -(2**62), 2**62]])
    assert related(spec, 4, 4, 1, data={"s": values})[0, 0, 0].tolist() == [True, False, False, True]


def test_a_query_has_to_stand_where_a_key_does() -> None:
    spec = spec_of("input s[B, m]: int; pattern = s[i] == s[j]")
    with pytest.raises(OutsideTable, match="queries that stand where no key does"):
        related(spec, 5, 4, 1, data={"s": torch.zeros(1, 4, dtype=torch.int64)})


def test_data_have_to_be_given_with_their_axes() -> None:
    spec = spec_of("input t[B, ceil(n / 4), ceil(m / 4)]: bool; pattern = t[i // 4, j // 4]")
    with pytest.raises(ValueError, match="reads `t`, which is not given"):
        related(spec, 9, 9, 1)
    with pytest.raises(ValueError, match=r"`t` has the shape \[1, 3, 2\], not \[1, 3, 3\]"):
        related(spec, 9, 9, 1, data={"t": torch.ones(1, 3, 2, dtype=torch.bool)})


@pytest.mark.parametrize(
    ("body", "uses"),
    (
        ("input doc[B, m]: int; pattern = doc[i] == doc[j]", {"doc": Use.LABEL}),
        ("input lo[B, n]: int, hi[B, n]: int; pattern = lo <= j < hi", {"lo": Use.LOWER, "hi": Use.UPPER}),
        ("input own[B, m]: int; pattern = j != own[i] + 1", {"own": Use.PLACE}),
        ("input r[B, H]: int; pattern = i - j < r[h]", {"r": Use.DISTANCE}),
        ("input s[B, m]: int, t[4, 4]: bool; pattern = t[s[i], s[j]]", {"s": Use.INDEX, "t": Use.LABEL}),
        ("input s[B, m]: int; param t[4]; pattern = s == 1; score = t[s]", {"s": Use.INDEX}),
        ("input t[B, m]; let gap = t[i] - t[j]; pattern = gap < 3", {"t": Use.SUM}),
        ("input t[B, m]; score = dot(q, k) + t", {}),
    ),
)
def test_how_a_pattern_reads_data(body: str, uses: dict[str, Use]) -> None:
    assert uses_of(spec_of(body)) == uses


def shares_of(body: str) -> list[float]:
    """Which share of the pairs is related, for each batch entry of each case of a check."""
    spec = spec_of(body)
    shares: list[float] = []
    for case in cases_of(spec):
        if case.n * case.m == 0 or case.kv_lengths is not None:
            continue
        inputs = inputs_of(spec, case)
        call = {name: value for name, value in arguments(case, inputs).items() if name != "scale"}
        found = related(spec, case.n, case.m, case.heads, batch=case.batch, width=case.d, data=inputs, **call)  # type: ignore[arg-type]
        shares += found.double().mean((1, 2, 3)).tolist() if case.n > 1 else []
    return shares


@pytest.mark.parametrize(
    "body",
    (
        "input doc[B, m]: int ascending; pattern = doc[i] == doc[j]",
        "input doc[B, m]: int; pattern = doc[i] == doc[j]",
        "input pad[B, m]: bool; pattern = !pad",
        "input lo[B, n]: int, hi[B, n]: int; pattern = lo <= j < hi; align = start",
        "input t[B, ceil(n / 16), ceil(m / 16)]: bool; pattern = t[i // 16, j // 16]; align = start",
    ),
)
def test_checks_see_few_pairs_and_many(body: str) -> None:
    shares = shares_of(body)
    assert min(shares) < 0.1 and max(shares) > 0.95
    assert sum(0.05 < each < 0.95 for each in shares) >= len(shares) // 4


def test_data_of_a_check_keep_their_promise_and_their_type() -> None:
    spec = spec_of("input a[B, m]: int ascending, b[B, H, m]: real ascending, c[m]: bool; pattern = a < 3 & b < 1 & c")
    other = spec_of("input a[B, m]: int ascending; param t[16]; score = dot(q, k) + t[a]")
    for case in cases_of(spec):
        inputs = inputs_of(spec, case)
        assert (inputs["a"].diff() >= 0).all() and (inputs["b"].diff() >= 0).all()
        assert (inputs["a"].dtype, inputs["b"].dtype, inputs["c"].dtype) == (torch.int64, case.dtype, torch.bool)
        assert all(torch.equal(inputs[name], inputs_of(spec, case)[name]) for name in "abc")
        assert (inputs_of(other, case)["a"].diff() >= 0).all()


def test_numbers_that_a_pattern_reads_have_no_gradient() -> None:
    spec = spec_of("input t[B, m]; param w[H]; pattern = t < w[h] & causal")
    found = run_dense(spec, CASE, inputs_of(spec, CASE), torch.float64)
    assert (found["dt"] == 0).all() and (found["dw"] == 0).all()
    assert (found["dq"] != 0).any()
