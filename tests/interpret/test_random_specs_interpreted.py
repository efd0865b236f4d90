"""Random specs against the dense oracle: the Triton form in the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attncc.check.compare import compare
from tests.random_specs import draws, random_case, random_spec
from tests.test_random_specs import SETTINGS, built_from, drawn

LENGTHS = ((37, 37), (20, 41), (41, 20))


@pytest.mark.slow
@settings(SETTINGS, max_examples=draws(10))
@given(data=st.data())
def test_triton(data: st.DataObject, tmp_path: Path) -> None:
    text = random_spec(lambda options: drawn(data, options))
    built = built_from(text, tmp_path)
    case = random_case(lambda options: drawn(data, options), torch.float32, LENGTHS)
    verdict = compare(built.module, built.spec, case, "triton")
    assert verdict.ok, f"{text}\n{verdict.text}"
