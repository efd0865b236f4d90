"""Random specs against the dense oracle: forward, log-sum-exp and gradients of the torch form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from attncc.check.compare import Verdict, causality, compare, empty_rows
from attncc.diagnostics import AttnError
from tests.modules import Built, build, cut_small
from tests.random_specs import random_case, random_spec

LENGTHS = ((37, 37), (20, 61), (61, 20), (1, 9), (70, 70))
SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)


def drawn(data: st.DataObject, options: Any) -> Any:
    return data.draw(st.sampled_from(list(options)))


def built_from(text: str, folder: Path) -> Built:
    """The module; a spec that relates no pair is refused, and drawn again."""
    try:
        return build(text, folder)
    except AttnError as error:
        assert {each.code for each in error.diagnostics} == {"E301"}, text
        assume(False)
        raise


def right(verdict: Verdict) -> bool:
    """Within the limits, doubled in bfloat16: rounding depends on where a weight lies between two powers of two."""
    slack = 2.5 if verdict.case.dtype == torch.bfloat16 else 1.0
    return not verdict.fault and all(not each.fault and each.used <= slack for each in verdict.comparisons)


@pytest.mark.slow
@settings(SETTINGS, max_examples=120)
@given(data=st.data())
def test_torch(data: st.DataObject, tmp_path: Path) -> None:
    text = random_spec(lambda options: drawn(data, options))
    built = built_from(text, tmp_path)
    if data.draw(st.booleans()):
        cut_small(built.module)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        case = random_case(lambda options: drawn(data, options), dtype, LENGTHS)
        verdict = compare(built.module, built.spec, case, "torch")
        assert right(verdict), f"{text}\n{verdict.text}"
    for probe in (causality, empty_rows):
        found = probe(built.module, built.spec, "torch")
        assert found is None or found.ok, f"{text}\n{found.text}"
