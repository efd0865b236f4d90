"""Which rivals can compute a spec with data of its own, and that a benchmark passes them what they need."""

from __future__ import annotations

import pytest
import torch
from test_data import HEADS, E, N, given_as, param, with_data
from test_fit import SPECS
from test_oracle import CAUSAL, DOT, EXAMPLES, ROWS, SCALED, H, I, J, call, make, op

from attncc.check.bench import Setting, bench, table
from attncc.check.calls import inputs_of
from attncc.check.oracle import dense, related
from attncc.check.rivals import Rival, pair_of, rivals
from attncc.check.sizes import Case
from attncc.spec import expr as e
from attncc.spec.data import K, Q, Size, V
from attncc.spec.model import Spec
from tests.modules import SMALL
from tests.peers.common import from_file, from_text

CPU = torch.device("cpu")
USUAL = op("*", e.Symbol(e.Name.SCALE), DOT)


def found(spec: Spec) -> dict[str, Rival]:
    return {each.name: each for each in rivals(spec, 64, CPU)}


def test_softmax_of_products_has_both() -> None:
    unread = with_data(given_as("unread", Size.BATCH, N), score=USUAL, pattern=CAUSAL)
    for spec in (make(CAUSAL, USUAL), make(score=USUAL), unread):
        assert {name: each.refusal for name, each in found(spec).items()} == {"SDPA": "", "FlexAttention": ""}
    assert set(found(EXAMPLES["a slope for each head"].spec)) == {"dense", "FlexAttention"}


@pytest.mark.parametrize("name", ["buckets", "additive", "rotary", "a gain of 64 features", "a matrix for each head"])
def test_what_a_score_mod_is_not_given(name: str) -> None:
    rival = found(SPECS[name])
    assert set(rival) == {"dense", "FlexAttention"}
    assert "is not given" in rival["FlexAttention"].refusal


def test_derived_values_and_sinks_are_no_plain_softmax() -> None:
    assert set(found(with_data(value=call("silu", e.Vector("v"))))) == {"dense", "FlexAttention"}
    assert set(found(SPECS["a sink"])) == {"dense"}


def test_operands_are_found_by_name() -> None:
    spec = make(CAUSAL, USUAL, data=(given_as("unread", Size.BATCH, N), V, K, Q))
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 5), (2, 2, 5, 3), (2, 2, 5, 8), (2, 4, 5, 8))
    data = [torch.randn(shape, generator=generator) for shape in shapes]
    out = found(spec)["SDPA"].prepare(5, 4, CPU)(*data)
    torch.testing.assert_close(out.double(), dense(spec, *data).out, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backward", [False, True])
def test_a_benchmark_draws_all_data(backward: bool) -> None:
    spec = with_data(
        param("bias", HEADS, 127),
        param("P", E, 5),
        score=op("+", SCALED, e.Entry("bias", (H, op("+", op("-", J, I), e.Const(63))))),
        normalizer=ROWS,
        value=e.MatMul(e.Vector("v"), e.Entry("P", (), is_vector=True)),
    )
    setting = Setting(n=33, heads=4, kv_heads=2, d=8, e=6, repeat=1, backward=backward)
    timings = bench(spec, lambda: lambda *data, **_: dense(spec, *data, dtype=torch.float32).out, setting)
    assert [each.contender for each in timings] == ["attncc", "attncc, torch form", "dense", "FlexAttention"]
    assert [bool(each.failure) for each in timings] == [False, False, False, True]
    assert timings[0].best > 0 and timings[1].ratio > 0 and timings[2].ratio > 0
    assert "is not given" in table(timings)


BY_LIST = "input begins[any]: int ascending; pattern = causal & up_to(begins, i) == up_to(begins, j)"


DATA = ("documents", "bigbird", "routing", "padded_causal", "ranges", "time_window", "by_list")


@pytest.mark.parametrize("name", DATA)
def test_rivals_get_the_mask_that_data_make(name: str) -> None:
    """SDPA's mask, and the one that FlexAttention is given as a function of a pair."""
    spec, n = from_text(BY_LIST) if name == "by_list" else from_file(name, **SMALL[name]), 70
    case = Case(batch=2, heads=4, kv_heads=2, n=n, m=n, d=16, e=16, dtype=torch.float32, name="rivals")
    inputs = inputs_of(spec, case)
    data = [inputs[each.name] for each in spec.data]
    assert {each: rival.refusal for each, rival in found(spec).items()} == {"SDPA": "", "FlexAttention": ""}
    out = found(spec)["SDPA"].prepare(n, 4, CPU)(*data)
    torch.testing.assert_close(out.double(), dense(spec, *data).out, rtol=1e-5, atol=1e-5)
    b, h, i, j = (
        torch.arange(size).view([-1 if axis == at else 1 for axis in range(4)]) for at, size in enumerate((2, 4, n, n))
    )
    pairs = pair_of(spec, 4, n, data)(b, h, i, j).expand(2, 4, n, n)
    assert torch.equal(pairs, related(spec, n, n, 4, batch=2, width=16, data=inputs))


@pytest.mark.parametrize("backward", [False, True])
def test_sequences_told_by_where_they_begin(backward: bool) -> None:
    """A list that ascends is drawn in order, among positions, and the rivals compute the same pattern."""
    spec = from_text(BY_LIST)
    setting = Setting(n=96, heads=2, kv_heads=2, d=8, e=8, repeat=1, backward=backward)
    begins = []

    def ours(*data: torch.Tensor, form: str | None = None) -> torch.Tensor:
        begins.append(data[3])
        return dense(spec, *data, dtype=torch.float32).out

    timings = bench(spec, lambda: ours, setting)
    assert not any(each.failure for each in timings if each.contender != "FlexAttention" or not backward)
    assert (begins[0].diff() >= 0).all()
    assert begins[0].max() > 8
