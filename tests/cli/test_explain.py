"""`attncc explain`: whole texts as goldens, and the keys of its JSON."""

from __future__ import annotations

import json

import pytest

from attncc.compiler import make_plan, read_source
from attncc.plan.counting import tile_counts
from attncc.plan.density import density
from tests.cli.runs import SPECS, run
from tests.conftest import Golden

CASES = {
    "longformer": (),
    "sliding_window": ("-D", "w=64", "--n", "1024"),
    "laplace": (),
    "gau": ("--m", "512", "--e", "128"),
    "streaming_sinks": ("-v",),
    "additive": (),
    "t5_bias": (),
    "random_synthesizer": ("--n", "512"),
}
PER_HEAD = "attention per_head { pattern = causal & (h % 2 == 0 ? i - j < 64 : (i - j) % 64 == 0) }"


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, golden: Golden) -> None:
    result = run("explain", SPECS / f"{name}.attn", *CASES[name])
    assert result.exit_code == 0 and result.stderr == ""
    golden(f"explain_{name}.txt", result.stdout)


def test_text_of_heads_that_differ(golden: Golden) -> None:
    golden("explain_per_head.txt", run("explain", "-", "--heads", "4", stdin=PER_HEAD).stdout)


def test_where_the_rows_stand_is_said() -> None:
    spec = "attention x { pattern = causal; align = ALIGN }"
    assert "  align      end: row 0 stands at position m - n" in run("explain", "-", stdin=PER_HEAD).stdout
    for align, place in (("end", "m - n"), ("start", "0")):
        text = run("explain", "-", stdin=spec.replace("ALIGN", align)).stdout
        assert f"  align      {align}: row 0 stands at position {place}, " in text


def test_json_has_stable_keys() -> None:
    found = json.loads(run("explain", SPECS / "longformer.attn", "--json").stdout)
    assert list(found) == [
        "schema_version",
        "command",
        "ok",
        "name",
        "spec",
        "summary",
        "parameters",
        "sizes",
        "data",
        "meaning",
        "plan",
        "derivation",
        "not_applied",
        "graphs",
        "head_classes",
        "longest_call",
        "tiles",
        "cost",
        "saved",
        "autotune",
        "diagnostics",
    ]
    assert set(found["tiles"]) == {"rows", "columns", "touched", "full", "partial", "pairs", "exact", "waste"}
    assert set(found["cost"]) == {"visited_pairs", "forward", "backward", "saved_bytes", "dense_matrix_bytes"}
    assert set(found["head_classes"][0]["by_row"][0]) == {"touched", "full", "when"}


def test_a_code_is_explained_in_json_too() -> None:
    found = json.loads(run("explain", "E211", "--json").stdout)
    assert found["code"] == "E211" and found["title"] and "//" in found["explanation"]


@pytest.mark.parametrize("name", ["longformer", "sparse_fixed", "streaming_sinks"])
def test_counts_of_long_sequences_are_close_to_exact_ones(name: str) -> None:
    domain = make_plan(read_source(SPECS / f"{name}.attn")).domain
    found = density(domain, 8192, 8192, 8, starts_at_zero=True)
    exact = tile_counts(domain, 8192, 8192, 8, 128, 64)
    assert not found.exact
    assert (found.touched, found.pairs) == pytest.approx((exact.touched, exact.pairs), rel=0.05)


def test_a_list_for_two_heads_is_no_pattern_for_four() -> None:
    spec = "attention two { pattern = causal & i - j < [8, 16][h] }"
    assert "2 heads, d = 64" in run("explain", "-", stdin=spec).stdout
    refused = run("explain", "-", "--heads", "4", stdin=spec)
    assert refused.exit_code == 2 and "give a pattern to 2 heads" in refused.stderr
