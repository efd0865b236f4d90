"""The C form of specs against the dense oracle: every kind of kernel, all types, odd shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attncc.check.calls import ways_of
from attncc.check.compare import compare
from attncc.check.oracle import dense
from attncc.check.sizes import Case
from tests.modules import SMALL, build, build_file
from tests.random_specs import random_case
from tests.test_random_specs import drawn, draws, picker

PLAIN = Case(batch=1, heads=2, kv_heads=1, n=75, m=75, d=16, e=24, dtype=torch.float32, name="square")  # tiles: 64 x 64
HIDDEN = replace(
    PLAIN, batch=2, n=40, m=61, d=24, e=5, kv_lengths=(50, 0), strided=True, garbage=True, name="hidden keys, strided"
)
APART = replace(PLAIN, batch=2, n=67, m=49, heads=4, q_start=(5, -9), kv_heads=2, name="positions of their own")
SHORT = replace(PLAIN, n=1, m=33, d=40, e=8, dtype=torch.bfloat16, name="bfloat16, one row")
HALF = replace(PLAIN, n=33, m=20, d=7, dtype=torch.float16, kv_heads=2, name="float16")
WIDE = replace(PLAIN, n=33, m=35, e=263, kv_heads=2, name="values wider than a kernel takes")
DOUBLE = replace(PLAIN, n=37, m=35, kv_heads=2, dtype=torch.float64, name="float64")

# Each brings something that those before it have not.
SPECS = {
    "sliding_window": (HIDDEN, SHORT, HALF, DOUBLE),
    "sparse_strided": (APART,),  # pieces in layouts, one row's sums handed on
    "t5_bias": (APART, WIDE),  # sums by distance
    "additive": (HIDDEN,),  # channel by channel
    "gated_linear_vector": (HIDDEN,),  # sums with gates
    "windowed_linear": (PLAIN, WIDE),  # sums that slide
    "linear_transformer_causal": (HIDDEN, APART),  # sums that tiles carry, in tiles that keys begin anywhere in
    "documents": (HIDDEN, WIDE),  # lists of tiles
    "nsa": (replace(PLAIN, kv_heads=1, heads=2),),  # branches, and lists of rows
}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers take half the time to make slower code."""
    monkeypatch.setenv("ATTNCC_CFLAGS", "-O1")


@pytest.mark.parametrize("name", SPECS)
def test_specs(name: str, tmp_path: Path) -> None:
    built = build_file(name, tmp_path, in_c=True, **SMALL[name])
    for case in SPECS[name]:
        for way in ways_of(built.module, "c"):
            verdict = compare(built.module, built.spec, case, way)
            assert verdict.ok, verdict.text


def test_threads_change_who_sums_alone(tmp_path: Path) -> None:
    """One sweep for both gradients where there are heads enough for all threads, else one for each."""
    built = build_file("sliding_window", tmp_path, in_c=True, **SMALL["sliding_window"])
    threads = torch.get_num_threads()
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            verdict = compare(built.module, built.spec, HIDDEN, "c")
            assert verdict.ok, verdict.text
            kernels = {name for name, each in built.module._C_KERNELS.items() if each.compiled}
            assert ("_backward_rows_kernel" in kernels) == (count == 4)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["linear_transformer_causal", "cosformer_causal"])
def test_features_are_made_in_tiles_where_nobody_takes_gradients(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_file(name, tmp_path, in_c=True)
    monkeypatch.setattr(built.module._Deferred, "whole", None)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 1500, 24, generator=generator) for _ in range(3))
    lengths = torch.tensor([1500, 1333])
    expected = dense(built.spec, q, k, v, kv_lengths=lengths, dtype=torch.float64).out
    with torch.no_grad():
        made = built.module.attention(q, k, v, kv_lengths=lengths, form="c", plan="linear")
    torch.testing.assert_close(made, expected.float(), rtol=2e-5, atol=2e-5)


LOSING = (
    "i + j < 150",
    "h % 2 == 0 ? causal : j < 64 * (i // 64 % 2) + 70",
    "h % 2 == 0 ? causal : causal & i - j < 50 & (i - j) % 3 == 0",  # no tile of keys is seen by all rows of a tile
)


@pytest.mark.parametrize("pattern", LOSING)
def test_sums_begin_anew_where_runs_lose_keys(pattern: str, tmp_path: Path) -> None:
    weight = "dot(elu(q) + 1, elu(k) + 1); normalize = rows + 0.001"
    built = build(f"attention a {{ pattern = {pattern}; weight = {weight} }}", tmp_path, in_c=True)
    assert "_forward_in_order_kernel" in built.module._C_KERNELS
    verdict = compare(built.module, built.spec, replace(PLAIN, n=260, m=260), "c linear")
    assert verdict.ok, verdict.text


@pytest.mark.parametrize("number", draws(2), ids=lambda number: f"draw-{number}")
def test_random_specs(number: int, tmp_path: Path) -> None:
    pick = picker(1000 + number)
    text, built = drawn(pick, tmp_path, in_c=True)
    verdict = compare(built.module, built.spec, random_case(pick, torch.float32, ((37, 37), (70, 41))), "c")
    assert verdict.ok, f"{text}\n{verdict.text}"


COMBINED = {
    "window of residues beside marked keys, capped": """
        attention a {
          input marked[B, m]: bool
          score = 4 * tanh(dot(q, k) / 4)
          pattern = causal & (i - j < 9 | marked[j] | (i - j) % 7 == 0)
        }""",
    "decay by head over look-around": """
        attention b {
          pattern = i // 16 - j // 16 in [0, 1] & j <= i
          weight = (1 - 2^(-3 - h))^(i - j) * dot(elu(q) + 1, elu(k) + 1)
          normalize = max(rows, 1e-6)
        }""",
    "squares of far keys, counted": """
        attention c {
          pattern = i - j > 5 | j < 3
          weight = relu(dot(q, k) / sqrt(d))^2 * exp(-abs(i - j) / 40)
          normalize = count
        }""",
    "powers of 0, and of what is below it": """
        attention d {
          pattern = causal
          weight = exp(score) * ((-0.5)^(i - j) + 2 * (h / 8)^(i - j))
          normalize = count
        }""",
    "powers of 0, by states": """
        attention p {
          pattern = causal
          weight = (h / 8)^(i - j) * dot(elu(q) + 1, elu(k) + 1)
          normalize = count
        }""",
    "scores by how many keys are visible": """
        attention h {
          pattern = causal
          score = scale * dot(q, k) * log(valid)
        }""",
    "features of three factors": """
        attention g {
          pattern = causal
          weight = dot(q, k)^3
          normalize = count
        }""",
    "blocks as large as tiles, that rows name": """
        attention e {
          input blocks[B, H, n, 2]: int
          pattern = causal & j // 64 in blocks
        }""",
    "distances alone, of which rows have no gradient": """
        attention f {
          param t[H, 40]
          pattern = window(20)
          score = t[h, i - j]
        }""",
}


@pytest.mark.parametrize("name", COMBINED)
def test_combinations(name: str, tmp_path: Path) -> None:
    built = build(COMBINED[name], tmp_path, in_c=True)
    for way in ways_of(built.module, "c"):
        verdict = compare(built.module, built.spec, replace(APART, d=12, q_start=None, kv_lengths=(49, 30)), way)
        assert verdict.ok, verdict.text


def test_runs_that_end_before_they_begin_visit_no_tile(tmp_path: Path) -> None:
    """For keys from 64 on, of the rows before the one that sees nothing; what follows it lies in the same tile."""
    built = build("attention a { pattern = j + 40 <= i & i != 100 }", tmp_path, in_c=True)
    verdict = compare(built.module, built.spec, replace(PLAIN, n=130, m=130), "c")
    assert verdict.ok, verdict.text


def test_what_counts_classes_of_positions_is_whole(tmp_path: Path) -> None:
    built = build_file("dilated_linear", tmp_path, in_c=True)
    counting = [each for each in built.module._C_KERNELS.values() if "classes" in each.arguments]
    assert counting
    assert all("classes" in each.whole for each in counting)


def test_what_is_no_number_stays_none(tmp_path: Path) -> None:
    weight = "dot(elu(q) + 1, relu(k)) + max(0.1, score) + elu(score)"
    built = build(f"attention a {{ pattern = causal; weight = {weight}; normalize = count }}", tmp_path, in_c=True)
    q, k, v = torch.randn(3, 1, 1, 20, 8)
    k[0, 0, 9, 3] = torch.nan
    found, expected = (built.module.attention(q, k, v, form=form).isnan() for form in ("c", "torch"))
    assert expected.any()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("names", [("c", "r", "y", "unsigned"), ("linux", "NULL", "VECTOR", "Rows")], ids=str)
def test_data_may_have_names_that_mean_something_in_c(names: tuple[str, ...], tmp_path: Path) -> None:
    label, of_keys, of_rows, vector = names
    declared = f"input {label}[B, m]: int, {of_keys}[B, H, m], {of_rows}[B, H, n], {vector}[B, H, m, d]"
    score = f"scale * dot(q, k) + {of_keys} + {of_rows} + dot(q, {vector})"
    text = f"attention named {{ {declared}; pattern = causal & {label}[i] == {label}[j]; score = {score} }}"
    built = build(text, tmp_path, in_c=True)
    verdict = compare(built.module, built.spec, PLAIN, "c")
    assert verdict.ok, verdict.text
