"""Cases are made to fit a spec's tables and widths, and faults in gradients of learned parameters are found."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_compare import CASE, Fake
from test_data import HEADS, D, given_as, param, rope, unit, with_data
from test_oracle import CAUSAL, ROWS, SCALED, H, I, J, call, op
from torch import Tensor

from attncc.check.calls import gradient_name, inputs_of
from attncc.check.compare import check, compare
from attncc.check.fit import cases_of, fits, fitted, head_counts
from attncc.check.oracle import OutsideTable, dense
from attncc.check.properties import causality, outside_tables, same_bits
from attncc.check.sizes import cases
from attncc.spec import expr as e
from attncc.spec.data import Role, Size
from attncc.spec.model import Spec

q, k, v = e.Vector("q"), e.Vector("k"), e.Vector("v")
CLIPPED = op("+", call("clip", op("-", J, I), e.Const(-8), e.Const(8)), e.Const(8))
SPECS: dict[str, Spec] = {
    "a table of positions": with_data(param("R", HEADS, 40, 40), score=op("+", SCALED, e.Entry("R", (H, I, J)))),
    "a short table of distances": with_data(
        param("bias", 8, 20), score=op("+", SCALED, e.Entry("bias", (H, op("-", I, J)))), pattern=CAUSAL
    ),
    "buckets": with_data(param("bias", HEADS, 17), score=op("+", SCALED, e.Entry("bias", (H, CLIPPED)))),
    "a sink": with_data(param("sink", HEADS), normalizer=op("+", ROWS, call("exp", e.Entry("sink", (H,))))),
    "additive": with_data(
        param("a", HEADS, D), score=e.Dot(e.Entry("a", (H,), is_vector=True), call("tanh", op("+", q, k)))
    ),
    "rotary": with_data(score=op("*", e.Const(0.2), e.Dot(rope(q, I, "half"), rope(k, J, "half")))),
    "a gain of 64 features": with_data(param("g", 64), score=e.Dot(op("*", unit(q), e.Entry("g", (), True)), unit(k))),
    "a matrix for each head": with_data(
        param("W", HEADS, D, 8),
        param("P", Size.VALUE_WIDTH, 5),
        score=e.Dot(e.MatMul(q, e.Entry("W", (H,), True)), e.MatMul(k, e.Entry("W", (H,), True))),
        value=e.MatMul(v, e.Entry("P", (), True)),
    ),
    "a number and an offset of each token": with_data(
        given_as("gate", Size.BATCH, Size.HEADS, Size.QUERIES),
        given_as("prior", Size.BATCH, Size.KEYS),
        param("tau"),
        score=op("*", op("+", SCALED, e.Token("prior")), op("*", e.Token("gate"), call("exp", e.Entry("tau", ())))),
        pattern=CAUSAL,
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_data_is_checked(name: str) -> None:
    report = check(Fake(SPECS[name]), SPECS[name], quick=True)
    assert report.ok, "\n".join(report.failures[:8])
    names = {each.tensor for verdict in report.verdicts for each in verdict.comparisons}
    assert names == {"out", "lse"} | {gradient_name(each.name) for each in SPECS[name].data}


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
@pytest.mark.parametrize("name", SPECS)
def test_enough_cases_remain(name: str, quick: bool) -> None:
    spec = SPECS[name]
    found = cases_of(spec, 0, quick)
    assert not quick or found == cases_of(spec, 0, quick)
    assert len(found) >= 20
    assert all(fits(spec, case) for case in found)
    long = [case for case in found if case.n >= 7 and case.m >= 5]
    assert len(long) >= 12
    assert any(case.heads > case.kv_heads for case in long)
    assert any(case.n % 2 for case in long)
    assert {case.dtype for case in long} == {torch.float64, torch.float32, torch.bfloat16, torch.float16}
    assert any(case.q_start is not None for case in long)
    assert any(case.k_start for case in long)
    assert any(case.kv_lengths is not None for case in long)


def test_a_score_that_nothing_reads_needs_no_data() -> None:
    spec = with_data(weight=e.Entry("R", (H, I, J)), normalizer=e.Const(1))
    spec = replace(spec, data=(spec.data[0], spec.data[2], param("R", HEADS, 40, 40)))
    report = check(Fake(spec), spec, quick=True)
    assert report.ok, "\n".join(report.failures[:8])
    assert {each.tensor for verdict in report.verdicts for each in verdict.comparisons} == {"out", "dq", "dv", "dR"}


def test_a_spec_without_tables_has_the_usual_cases() -> None:
    assert cases_of(with_data(), 3) == cases(3)
    assert cases_of(with_data(), 3, True) == cases(3, True)


def test_tables_are_read_to_their_ends() -> None:
    lengths = {case.n for case in cases_of(SPECS["a table of positions"])}
    assert 40 in lengths and max(lengths - {63}) == 40  # 63 rows only where no key is there
    assert {case.n for case in cases_of(SPECS["a short table of distances"]) if case.m} & {20}


def test_heads_of_tables() -> None:
    table = e.Entry("bias", (H, e.Const(0)))
    assert head_counts(with_data(param("bias", 4, 1), score=op("+", SCALED, table))) == ((2, 2), (4, 2))
    assert head_counts(with_data(param("bias", 1, 1), score=op("+", SCALED, table))) == ((1, 1), (1, 1))
    never = e.Entry("bias", (H, op("-", I, e.Const(1))))
    assert head_counts(with_data(param("bias", 4, 9), score=op("+", SCALED, never))) == ((2, 2), (4, 2), (6, 1))


def test_one_case_made_to_fit() -> None:
    case = replace(CASE, n=70, m=100, kv_lengths=(100, 57))
    found = fitted(SPECS["a short table of distances"], case)
    assert found is not None
    assert (found.n, found.m, found.kv_lengths) == (10, 14, (14, 8))
    assert fitted(SPECS["a sink"], case) == case
    nowhere = with_data(param("b", 4), score=op("+", SCALED, e.Entry("b", (op("-", e.Const(-1), J),))))
    assert fitted(nowhere, case) is None
    with pytest.raises(OutsideTable):
        compare(Fake(nowhere), nowhere, CASE)


def test_inputs_of_data() -> None:
    spec = SPECS["a number and an offset of each token"]
    inputs = inputs_of(spec, replace(CASE, strided=True, garbage=True))
    assert [inputs[each.name].shape for each in spec.data[3:]] == [(2, 4, 21), (2, 30), ()]
    assert inputs["prior"][1, 17:].isnan().all() and not inputs["prior"][0].isnan().any()
    assert inputs["gate"].stride() == (1, 2, 8)
    plain, other = inputs_of(with_data(), CASE), inputs_of(spec, CASE)
    assert all(torch.equal(plain[name], other[name]) for name in plain)  # more data leave the usual ones as they are
    wide = inputs_of(SPECS["a matrix for each head"], CASE)
    assert wide["gradient of out"].shape == (2, 4, 21, 5)


class Changed(torch.autograd.Function):
    """The identity, whose gradient is changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Any) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.change(gradients[0]), None


class Wrong(Fake):
    """A module with a planted fault in the gradient of its last datum."""

    change_gradient: Any = None

    def attention(self, *data: Tensor, **keywords: Any) -> Any:  # type: ignore[override]
        *others, last = data
        return Fake(self.spec).attention(*others, Changed.apply(last, type(self).change_gradient), **keywords)


def wrong(spec: Spec, change: Any) -> Wrong:
    return type("Planted", (Wrong,), {"change_gradient": staticmethod(change)})(spec)


def one_entry_doubled(gradient: Tensor) -> Tensor:
    at = gradient.abs().argmax()
    return gradient + torch.nn.functional.one_hot(at, gradient.numel()).reshape(gradient.shape) * gradient


FAULTS = {
    "none": torch.zeros_like,
    "one entry counted twice": one_entry_doubled,
    "one head for another": lambda gradient: gradient.roll(1, 0),
    "a part of the pairs lost": lambda gradient: gradient * 0.99,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["a short table of distances", "buckets", "a sink", "additive"])
def test_planted_faults_in_gradients_of_parameters_are_found(name: str, fault: str, dtype: torch.dtype) -> None:
    case = replace(CASE, n=14, m=19, kv_lengths=(19, 11), dtype=dtype)
    verdict = compare(wrong(SPECS[name], FAULTS[fault]), SPECS[name], case)
    if dtype == torch.bfloat16 and fault == "a part of the pairs lost":
        return  # one part in a hundred is near what sixteen bits can tell
    assert not verdict.ok
    assert [each.tensor for each in verdict.comparisons if not each.ok] == [gradient_name(SPECS[name].data[-1].name)]
    assert compare(Fake(SPECS[name]), SPECS[name], case).ok


class Careless(Fake):
    """A module that reads whatever lies nearest."""

    def attention(self, *data: Tensor, **keywords: Any) -> Any:  # type: ignore[override]
        try:
            return super().attention(*data, **keywords)
        except OutsideTable:
            return data[0]


class Confused(Fake):
    """A module that trips over an index."""

    def attention(self, *data: Tensor, **keywords: Any) -> Any:  # type: ignore[override]
        try:
            return super().attention(*data, **keywords)
        except OutsideTable:
            raise IndexError("index 40 is out of bounds") from None


def test_calls_beside_a_table() -> None:
    spec = SPECS["a table of positions"]
    found = outside_tables(Fake(spec), spec, None)
    assert found is not None and found.ok
    careless, confused = outside_tables(Careless(spec), spec, None), outside_tables(Confused(spec), spec, None)
    assert careless is not None and "no error" in careless.text and not careless.ok
    assert confused is not None and "IndexError, not ValueError" in confused.text and not confused.ok
    for name in ("buckets", "a sink"):  # no call leaves them
        assert outside_tables(Fake(SPECS[name]), SPECS[name], None) is None


def test_gradients_that_change_from_run_to_run() -> None:
    spec = SPECS["buckets"]
    run = itertools.count()
    noisy = wrong(spec, lambda gradient: gradient * (1 + 1e-6 * next(run)))
    found = same_bits(noisy, spec, None)
    assert found is not None and not found.ok and "differ: d_bias" in found.text
    assert same_bits(Fake(with_data()), with_data(), None) is None
    assert all(each.role is not Role.PARAMETER for each in with_data().data)


def test_causality_sees_every_datum_of_keys() -> None:
    """`prior` of a later key may not be read either."""
    spec = SPECS["a number and an offset of each token"]

    class Leaky(Fake):
        def attention(self, *data: Tensor, **keywords: Any) -> Any:  # type: ignore[override]
            out = super().attention(*data, **keywords)
            return out + 1e-3 * data[4].mean()

    found = causality(Leaky(spec), spec, None)
    assert found is not None and not found.ok
    found = causality(Fake(spec), spec, None)
    assert found is not None and found.ok


def test_the_oracle_is_called_with_data_in_order() -> None:
    spec = SPECS["a sink"]
    with pytest.raises(ValueError, match="argument 2 is"):
        dense(spec, torch.ones(1, 2, 3, 4))


def test_cubes_of_products_are_checked_with_narrow_vectors() -> None:
    """By states they have as many features as the third power of the width."""
    product_of = e.Dot(q, k)
    cube = op("^", op("+", e.Const(1), e.Symbol(e.Name.SCORE)), e.Const(3))
    narrow = cases_of(with_data(score=product_of, weight=cube))
    assert max(each.d for each in narrow) <= 40
    square = cases_of(with_data(score=product_of, weight=op("^", product_of, e.Const(2))))
    assert max(each.d for each in square) > 100
