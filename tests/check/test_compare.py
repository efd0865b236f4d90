"""The comparison accepts a right module and finds planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from test_oracle import CAUSAL, COUNT, EXAMPLES, ONE, H, I, J, call, make, op, test
from torch import Tensor

from attncc.check.compare import check, compare
from attncc.check.fit import head_counts
from attncc.check.oracle import dense
from attncc.check.properties import causality, empty_rows, extreme_scores
from attncc.check.report import Report
from attncc.check.sizes import Case, arguments, cases, make_inputs
from attncc.spec import expr as e
from attncc.spec.model import Spec

SOFTMAX = make(CAUSAL)
Change = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Fake:
    """A module computed by the oracle, in float32 at least, with a fault if one is planted."""

    spec: Spec
    scale: float = 1.0
    change: Change = lambda out, lse: (out, lse)
    least: torch.dtype = torch.float32
    shift: int = 0

    def attention(
        self,
        *data: Tensor,
        scale: float | None = None,
        kv_lengths: int | Tensor | None = None,
        q_start: int | Tensor | None = None,
        k_start: int = 0,
        return_lse: bool = False,
        form: str | None = None,
    ) -> Any:
        q, k, *_ = data
        dtype = torch.promote_types(q.dtype, self.least)
        scale = self.scale * (scale or 1 / math.sqrt(q.shape[3]))
        position = k_start + k.shape[2] - q.shape[2] if q_start is None else q_start
        result = dense(
            self.spec,
            *data,
            scale=scale,
            kv_lengths=kv_lengths,
            q_start=position + self.shift,
            k_start=k_start,
            dtype=dtype,
        )
        out, lse = self.change(result.out.to(q.dtype), result.lse)
        return (out, lse) if return_lse else out


CASE = Case(
    batch=2, heads=4, kv_heads=2, n=21, m=30, d=16, e=24, dtype=torch.float32, kv_lengths=(30, 17), name="one case"
)
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize(
    ("name", "forms"),
    [("causal softmax", ("torch",)), ("window relu2 over n", ("torch", "triton")), ("a slope for each head", (None,))],
)
def test_right_modules_pass(name: str, forms: tuple[str | None, ...]) -> None:
    spec = EXAMPLES[name].spec
    heard: list[object] = []
    report = check(Fake(spec), spec, forms, quick=True, progress=heard.append)
    assert report.ok, report.failures
    assert len(heard) == len(report.verdicts) + len(report.properties)
    assert {verdict.case.heads for verdict in report.verdicts} == (
        {2} if name == "a slope for each head" else {2, 4, 6}
    )
    assert not any(verdict.case.dtype == torch.float64 for verdict in report.verdicts if verdict.form == "triton")


def nan_at_a_hidden_key(out: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
    out = out.clone()
    out[1, 2, 3, 4] = math.nan
    return out, lse


FAULTS = {
    "scale": (Fake(SOFTMAX, scale=1.03), "out off by"),
    "off by one": (Fake(SOFTMAX, shift=1), "out off by"),
    "one key too many": (Fake(make(test("<=", J, op("+", I, e.Indicator(test("==", I, e.Const(20))))))), "out off by"),
    "no gradient from lse": (
        Fake(SOFTMAX, change=lambda out, lse: (out, lse if lse is None else lse.detach())),
        "dq off by",
    ),
    "no gradient at all": (Fake(SOFTMAX, change=lambda out, lse: (out.detach(), lse)), "dv off by"),
    "lse in base 2": (
        Fake(SOFTMAX, change=lambda out, lse: (out, lse if lse is None else lse / math.log(2))),
        "lse off by",
    ),
    "NaN": (Fake(SOFTMAX, change=nan_at_a_hidden_key), "out has 1 NaN, the first at [1, 2, 3, 4]"),
    "shape": (Fake(SOFTMAX, change=lambda out, lse: (out[:, :, 1:], lse)), "raised"),
    "another normalizer": (Fake(make(CAUSAL, normalizer=op("+", make().normalizer, e.Const(0.01)))), "out off by"),
}


# 0.01 beside a row sum of 20 is below what sixteen bits can tell.
BELOW_ROUNDING = {("another normalizer", torch.bfloat16), ("another normalizer", torch.float16)}


@pytest.mark.parametrize(
    ("fault", "dtype"), [(fault, dtype) for fault in FAULTS for dtype in DTYPES if (fault, dtype) not in BELOW_ROUNDING]
)
def test_planted_faults_are_found(fault: str, dtype: torch.dtype) -> None:
    module, text = FAULTS[fault]
    case = replace(CASE, dtype=dtype)
    verdict = compare(module, SOFTMAX, case)
    assert not verdict.ok
    if fault != "NaN" and dtype not in (torch.float16, torch.bfloat16):
        assert text in verdict.text
    assert compare(Fake(SOFTMAX), SOFTMAX, case).ok


def test_wrong_dtypes_and_infinities() -> None:
    def compared(change: Change, case: Case = CASE) -> str:
        return compare(Fake(SOFTMAX, change=change), SOFTMAX, case).text

    assert "out is torch.float64, not torch.float32" in compared(lambda out, lse: (out.double(), lse))
    assert "lse is torch.float64, not torch.float32" in compared(
        lambda out, lse: (out, lse if lse is None else lse.double())
    )
    empty = replace(CASE, kv_lengths=(30, 0))
    assert "lse is 0.0 at [1, 0, 0], not -inf" in compared(
        lambda out, lse: (out, lse if lse is None else lse.where(lse.isfinite(), 0)), empty
    )
    assert "raised RuntimeError: no kernel" in compare(Raises(), SOFTMAX, CASE).text


class Raises:
    """A module that cannot run."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor, **_: object) -> Tensor:
        raise RuntimeError("no kernel")


def test_sixteen_bit_is_measured_against_the_dense_formula() -> None:
    """Accumulating in bfloat16 is as bad as the dense formula and passes; a result of half its precision does not."""

    def coarse(out: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return out + (torch.frexp(out).mantissa * 16 % 1) * out * 0.05, lse

    case = replace(CASE, dtype=torch.bfloat16)
    assert compare(
        Fake(SOFTMAX, least=torch.bfloat16, change=lambda o, lse: (o, lse if lse is None else lse.float())),
        SOFTMAX,
        case,
    ).ok
    assert not compare(Fake(SOFTMAX, change=coarse), SOFTMAX, case).ok


def test_ill_conditioned_specs_are_measured_against_the_dense_formula() -> None:
    """Row sums of signed weights may nearly vanish: float32 is then as wrong as the dense formula, and no worse."""
    spec = make(weight=op("^", e.Dot(e.Vector("q"), e.Vector("k")), e.Const(3)))
    case = replace(CASE, name="signed rows", n=200, m=60)
    verdict = compare(Fake(spec), spec, case)
    assert verdict.ok, verdict.text
    assert not compare(Fake(spec, change=lambda out, lse: (out * 1.01, lse)), spec, case).ok


def test_properties_find_what_they_are_for() -> None:
    leaky = Fake(SOFTMAX, change=lambda out, lse: (out + 1e-7 * out.mean(2, keepdim=True), lse))
    found = causality(leaky, SOFTMAX, None)
    assert found is not None
    assert "outputs change with later keys" in found.text
    assert causality(Fake(SOFTMAX, change=lambda out, lse: (out, lse)), make(), None) is None
    assert "rows without keys: not exactly 0" in empty_rows(leaky, SOFTMAX, None).text
    overflow = Fake(
        SOFTMAX, change=lambda out, lse: (out if lse is None else out * (lse.exp() / lse.exp())[..., None], lse)
    )
    found = extreme_scores(overflow, SOFTMAX, None)
    assert found is not None
    assert "scores near 1e4: not finite" in found.text
    for holds in (causality, empty_rows, extreme_scores):
        assert (found := holds(Fake(SOFTMAX), SOFTMAX, None)) is not None
        assert found.ok


def test_the_report() -> None:
    report = check(Fake(SOFTMAX, scale=1.01), SOFTMAX, ("torch",), quick=True)
    lines = report.table.splitlines()
    assert lines[0].split()[:4] == ["form", "dtype", "tensor", "cases"]
    assert len(lines) == 1 + 4 * 5
    assert not report.ok
    assert len(report.failures) > 10
    assert not Report((), ()).ok


def test_limits_from_lists_of_constants() -> None:
    scaled = make(score=op("*", make().score, e.Table(tuple(range(1, 9)), op("+", H, ONE))))
    assert head_counts(scaled) == ((2, 2), (4, 2), (6, 1))
    assert head_counts(make(score=op("*", make().score, e.Table((1.0, 2.0, 3.0), H)))) == ((2, 2),)
    assert head_counts(make(score=op("*", make().score, e.Table((1.0,), H)))) == ((1, 1), (1, 1))


def test_cases_cover_all_pairs() -> None:
    found = cases(3)
    assert found == cases(3)
    assert found != cases(4)
    assert len({case.name for case in found}) == len(found) < 80
    for n in (1, 7, 63, 521):
        for d in (1, 8, 40, 64, 72, 128):
            assert any((case.n, case.d) == (n, d) for case in found)
    assert any(case.m == 0 for case in found)
    assert any(case.kv_lengths == 0 for case in found)
    assert any(case.m > case.n for case in found)
    assert any(case.m < case.n for case in found)
    assert {case.dtype for case in cases(0, quick=True)} == set(DTYPES)
    assert all(case.scale is None for case in cases(0, scale=False))


def test_inputs_are_deterministic_and_laid_out_as_the_case_says() -> None:
    case = replace(CASE, strided=True, garbage=True)
    inputs = make_inputs(case)
    assert all(
        torch.equal(one.nan_to_num(), two.nan_to_num())
        for one, two in zip(inputs.values(), make_inputs(case).values(), strict=True)
    )
    assert inputs["q"].stride() == (21 * 4 * 16, 16, 4 * 16, 1)
    assert inputs["v"].stride(2) == 1
    assert inputs["k"][1, :, 17:].isnan().all()
    assert not inputs["k"][0].isnan().any()
    assert inputs["q"].storage_offset() == 64
    assert arguments(case, inputs) == {"q_start": None, "k_start": 0, "kv_lengths": inputs["kv_lengths"]}
    plain = make_inputs(CASE)
    assert all(plain[name].is_contiguous() for name in "qkv")


def test_counted_keys_need_no_lse() -> None:
    spec = make(CAUSAL, weight=call("relu", make().score), normalizer=call("max", COUNT, ONE))
    verdict = compare(Fake(spec), spec, CASE)
    assert verdict.ok
    assert [each.tensor for each in verdict.comparisons] == ["out", "dq", "dk", "dv"]
