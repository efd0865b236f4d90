"""`attncc explain`: whole texts as goldens, and the keys of its JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attncc.compiler import make_plan, read_source
from attncc.diagnostics import Source
from attncc.plan.density import Call, density, density_of_piece, together
from tests.cli.runs import SPECS, run
from tests.conftest import Golden
from tests.plan.counts import tile_counts

CASES = {
    "longformer": (),
    "sliding_window": ("-D", "w=64", "--n", "1024"),
    "laplace": (),
    "gau": ("--m", "512", "--e", "128"),
    "streaming_sinks": ("-v",),
    "additive": (),
    "t5_bias": (),
    "random_synthesizer": ("--n", "512"),
    "sparse_strided": ("--n", "8192"),
    "sparse_fixed": ("--n", "256"),
    "cosformer_causal": (),
    "based": (),
    "reformer_library": (),
    "explicit_topk": (),
    "windowed_linear": (),
    "documents": (),
    "longformer_marked": ("-D", "w=64"),
    "bigbird": (),
}
PER_HEAD = "attention per_head { pattern = causal & (h % 2 == 0 ? i - j < 64 : (i - j) % 64 == 0) }"

SEVERAL_PASSES = (
    "attention several { input kind[B, H, m]: int, mark[B, m]: bool, far[B, H]: int\n"
    "pattern = kind[i] == kind[j] | mark[i] | mark[j] | 0 <= i - j < far[h] }"
)


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, golden: Golden) -> None:
    result = run("explain", SPECS / f"{name}.attn", *CASES[name])
    assert result.exit_code == 0 and result.stderr == ""
    golden(f"explain_{name}.txt", result.stdout)


def test_text_of_heads_that_differ(golden: Golden) -> None:
    golden("explain_per_head.txt", run("explain", "-", "--heads", "4", stdin=PER_HEAD).stdout)


def test_text_of_lists_in_several_orders(golden: Golden) -> None:
    golden("explain_several_passes.txt", run("explain", "-", stdin=SEVERAL_PASSES).stdout)


def test_what_data_decide_is_no_number() -> None:
    """Counts that positions allow are told as bounds."""
    found = run("explain", SPECS / "documents.attn").stdout
    told = found[found.index("At n = ") :]
    counts = [line for line in told.splitlines() if "pairs" in line or "FLOPs  " in line]
    assert counts and all(
        any(word in line for word in ("at most", "≤", "as data say", "for each related pair", "every pair"))
        for line in counts
    )
    assert "as data say" in told and "tiles are listed when data are known" in told


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
        "choices",
        "meaning",
        "plan",
        "derivation",
        "not_applied",
        "graphs",
        "head_classes",
        "later_choices",
        "decoder",
        "longest_call",
        "pieces",
        "lists",
        "tiles",
        "cost",
        "linear",
        "saved",
        "autotune",
        "diagnostics",
    ]
    counts = {"touched", "full", "partial", "pairs", "row_tiles", "scores"}
    assert set(found["tiles"]) == {"rows", "columns", "exact", "waste"} | counts
    figures = {"visited_pairs", "forward", "backward", "saved_bytes", "dense_matrix_bytes"}
    assert set(found["cost"]) == {"choice", "candidates"} | figures
    assert found["pieces"] is None
    assert set(found["head_classes"][0]["by_row"][0]) == {"touched", "full", "when"}


def test_a_code_is_explained_in_json_too() -> None:
    found = json.loads(run("explain", "E211", "--json").stdout)
    assert found["code"] == "E211" and found["title"] and "//" in found["explanation"]


def counted(pattern: str, n: int, *more: str) -> dict[str, Any]:
    """What explain says as JSON of a pattern at n rows and keys."""
    spec = f"attention x {{ pattern = {pattern} }}"
    found: dict[str, Any] = json.loads(run("explain", "-", "--n", str(n), "--json", *more, stdin=spec).stdout)
    return found


STRIDED = "causal & (i - j < 128 | (i - j) % 128 == 0)"
WASTE = {  # scores computed for each related pair at 8192 positions: at most so many
    "causal & i - j < 256": 1.6,
    "causal & i - j < 256*4 & (i - j) % 4 == 0": 1.6,
    "causal & i - j < 256*16 & (i - j) % 16 == 0": 1.6,
    "causal & i - j < 256*64 & (i - j) % 64 == 0": 2.1,
    STRIDED: 2.5,
    "causal & (i // 128 == j // 128 | j % 128 >= 120)": 1.4,
    "abs(i - j) <= 128 | i < 16 | j < 16": 2.0,
}


@pytest.mark.parametrize("pattern", WASTE)
def test_few_scores_are_computed_for_nothing(pattern: str) -> None:
    tiles = counted(pattern, 8192)["tiles"]
    assert (tiles["rows"], tiles["columns"], tiles["exact"]) == (128, 64, True)
    assert tiles["waste"] == pytest.approx(tiles["touched"] * 128 * 64 / tiles["pairs"], rel=1e-4)
    assert 1 <= tiles["waste"] <= WASTE[pattern]


@pytest.mark.parametrize("pattern", [each for each in WASTE if "%" in each])
def test_pieces_have_the_pairs_of_the_whole(pattern: str) -> None:
    plan = make_plan(Source("x.attn", f"attention x {{ pattern = {pattern} }}"))
    assert plan.pieces is not None
    for call in (Call(700, 700, 2, 0, (16, 32)), Call(300, 500, 1, 200, (32, 16)), Call(90, 40, 1, -50, (16, 16))):
        pieces = together((density_of_piece(each, call), 1) for each in plan.pieces.pieces)
        assert pieces.exact and pieces.pairs == density(plan.domain, call).pairs


def test_short_calls_take_the_whole_and_explain_says_so() -> None:
    short, long = counted(STRIDED, 512), counted(STRIDED, 8192)
    assert not short["pieces"]["run"] and long["pieces"]["run"]
    assert short["cost"]["choice"].startswith(
        "at n = 512, m = 512 the pattern runs as a whole: pieces pay from 2,048 keys"
    )
    for found, name in ((short, "whole"), (long, "pieces")):
        by_name = {each["name"]: each for each in found["cost"]["candidates"]}
        assert [each for each in by_name if by_name[each]["runs"]] == [name]
        assert by_name[name]["scores"] == found["tiles"]["touched"] * 128 * 64
        assert by_name[name]["forward_flops"] == found["cost"]["forward"]["flops"]["value"]
        assert min(by_name.values(), key=lambda each: each["forward_flops"])["name"] == name
        assert by_name["dense"]["scores"] == 8 * found["sizes"]["n"] ** 2
    assert sum(each["tiles"]["touched"] for each in long["pieces"]["pieces"]) == long["tiles"]["touched"]


def test_the_layouts_of_pieces_are_steps_of_the_derivation() -> None:
    laws = {
        STRIDED: {"split-union": True, "residue-layout": True, "compact-keys": False},
        "causal & (i // 128 == j // 128 | j % 128 >= 120)": {
            "split-union": True,
            "residue-layout": False,
            "compact-keys": True,
        },
        "(i + j) % 16 == 3": {"split-union": False, "residue-layout": True, "compact-keys": False},
        "causal": {"split-union": False, "residue-layout": False, "compact-keys": False},
    }
    for pattern, expected in laws.items():
        found = counted(pattern, 64)
        fired = {each["law"] for each in found["derivation"]}
        refused = {each["law"]: each["reason"] for each in found["not_applied"]}
        assert {law: law in fired for law in expected} == expected
        assert all(refused.get(law) for law, fires in expected.items() if not fires)


@pytest.mark.parametrize("name", ["longformer", "sparse_fixed", "streaming_sinks"])
def test_counts_of_samples_are_close_to_exact_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = make_plan(read_source(SPECS / f"{name}.attn")).domain
    exact = tile_counts(domain, 8192, 8192, 8, 128, 64)
    monkeypatch.setattr("attncc.plan.density._MOST_TILES", 0)
    found = density(domain, Call(8192, 8192, 8, 0, (128, 64)))
    assert not found.exact
    assert (found.touched, found.pairs) == pytest.approx((exact.touched, exact.pairs), rel=0.05)


def test_a_sample_of_classes_is_close_to_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(Source("x.attn", f"attention x {{ pattern = {STRIDED} }}"))
    assert plan.pieces is not None
    call = Call(20_000, 20_000, 8, 0, (128, 64))
    exact = [density_of_piece(each, call) for each in plan.pieces.pieces]
    monkeypatch.setattr("attncc.plan.density._MOST_TILES", 0)
    found = [density_of_piece(each, call) for each in plan.pieces.pieces]
    for one, other in zip(found, exact, strict=True):
        assert not one.exact and other.exact
        counts = ((each.touched, each.pairs, each.row_tiles) for each in (one, other))
        assert next(counts) == pytest.approx(next(counts), rel=0.05)


def test_a_list_for_two_heads_is_no_pattern_for_four() -> None:
    spec = "attention two { pattern = causal & i - j < [8, 16][h] }"
    assert "2 heads, d = 64" in run("explain", "-", stdin=spec).stdout
    refused = run("explain", "-", "--heads", "4", stdin=spec)
    assert refused.exit_code == 2 and "give a pattern to 2 heads" in refused.stderr
