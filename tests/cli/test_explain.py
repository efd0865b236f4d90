"""`attncc explain`: whole texts as goldens, and the keys of its JSON."""

from __future__ import annotations

import json

import pytest

from tests.cli.runs import SPECS, run
from tests.conftest import Golden

CASES = {
    "longformer": (),
    "sliding_window": ("-D", "w=64", "--n", "1024"),
    "laplace": (),
    "gau": ("--m", "512", "--e", "128"),
    "streaming_sinks": ("-v",),
}
PER_HEAD = "attention per_head { pattern = causal & (h % 2 == 0 ? i - j < 64 : (i - j) % 64 == 0) }"


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, golden: Golden) -> None:
    result = run("explain", SPECS / f"{name}.attn", *CASES[name])
    assert result.exit_code == 0 and result.stderr == ""
    golden(f"explain_{name}.txt", result.stdout)


def test_text_of_heads_that_differ(golden: Golden) -> None:
    golden("explain_per_head.txt", run("explain", "-", "--heads", "4", stdin=PER_HEAD).stdout)


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
        "meaning",
        "plan",
        "derivation",
        "graphs",
        "head_classes",
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


def test_long_sequences_are_sampled() -> None:
    found = json.loads(run("explain", SPECS / "sparse_fixed.attn", "--n", "131072", "--heads", "1", "--json").stdout)
    assert not found["tiles"]["exact"] and found["ok"]
