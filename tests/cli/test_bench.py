"""`attncc bench`: a table, and one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from attncc.cli.main import cli

SMALL = ("--n", "33", "--heads", "2", "--d", "8", "--repeat", "1", "-q")


def test_a_spec_is_timed_against_dense_attention(tmp_path: Path) -> None:
    lines = tmp_path / "results.jsonl"
    result = CliRunner().invoke(cli, ["bench", "specs/gau.attn", *SMALL, "--lines", str(lines)])
    assert result.exit_code == 0, result.output
    assert "attncc" in result.stdout and "dense" in result.stdout and "first answer" in result.stdout
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {record["contender"] for record in records} == {"attncc", "attncc, torch form", "dense"}
    for record in records:
        assert record["schema_version"] == 1 and record["spec"] == "gau" and record["n"] == 33
        assert record["best"] > 0 and record["first_answer"] > 0 and record["versions"]["torch"]


def test_lengths_that_are_no_numbers_are_refused() -> None:
    result = CliRunner().invoke(cli, ["bench", "specs/gau.attn", "--n", "many"])
    assert result.exit_code == 2
    assert "expected whole numbers" in result.stderr
