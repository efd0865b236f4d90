"""What all commands share: help, exit codes, streams, colour, and `list`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import attncc
from attncc.cli import listing
from attncc.codes import CODES
from attncc.compiler import compile_any, make_plan
from attncc.diagnostics import AttnError, Source
from attncc.explanations import EXPLANATIONS
from tests.cli.runs import SPECS, process, run

COMMANDS = ("build", "check", "explain", "fmt", "list")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_one_line_and_examples(command: str, option: str) -> None:
    result = run(command, option)
    assert result.exit_code == 0 and result.stderr == ""
    usage, _, summary, _, examples, first, *_ = result.stdout.splitlines()
    assert usage.startswith("Usage:") and summary.endswith(".")
    assert examples.strip() == "EXAMPLES" and first.strip().startswith(f"attncc {command}")


def test_the_group_lists_every_command_and_its_version() -> None:
    text = run("--help").stdout
    assert all(re.search(rf"^  {command} ", text, re.MULTILINE) for command in COMMANDS)
    assert run("--version").stdout == f"attncc, version {attncc.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("build",),
        ("biuld", "x"),
        ("build", "--nonsense", "x"),
        ("build", "nowhere.attn"),
        ("check", "nowhere.attn"),
        ("fmt", "nowhere.attn"),
        ("fmt", "-", str(SPECS)),
        ("explain", "nowhere.attn"),
        ("explain", "E999"),
        ("explain", str(SPECS)),
        ("explain", str(SPECS / "full.attn"), "--n", "0"),
        ("list", "nowhere"),
    ],
)
def test_what_cannot_be_used_exits_2_and_prints_on_stderr_only(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == "" and result.stderr


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.attn").write_bytes(b"\xff\xfe attention")
    assert run("build", tmp_path / "bad.attn").exit_code == 2
    assert run("build", "-", stdin=b"\xff\xfe").exit_code == 2
    assert run("build", tmp_path / "empty", "-q").exit_code == 2


def test_a_fault_of_the_compiler_is_reported_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("it broke")

    monkeypatch.setattr(listing, "sources_of", fail)
    result = run("list", SPECS)
    assert result.exit_code == 3 and result.stdout == ""
    assert "internal error: RuntimeError: it broke" in result.stderr and "Traceback" not in result.stderr
    assert "Traceback" in run("list", SPECS, "-v").stderr


def test_colour_is_asked_for_and_markup_in_a_spec_is_text() -> None:
    spec = "attention x { pattern = [red]casual[/red] }"
    plain = run("build", "-", stdin=spec).stderr
    assert "\x1b[" not in plain and "[red]casual[/red]" in plain
    colored = run("build", "-", "--color", "always", stdin=spec).stderr
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == plain


def test_list_shows_names_parameters_and_summaries() -> None:
    lines = run("list", SPECS).stdout.splitlines()
    assert len(lines) == len(list(SPECS.glob("*.attn")))
    assert any(re.match("longformer +w = 256, g = 16 +A sliding window", line) for line in lines)
    found = json.loads(run("list", SPECS, "--json").stdout)
    assert set(found["specs"][0]) == {"name", "path", "parameters", "summary"}


def test_list_shows_what_it_can_read(tmp_path: Path) -> None:
    (tmp_path / "a.attn").write_text("# Good.\nattention a {}\n")
    (tmp_path / "b.attn").write_text("attention b {\n")
    result = run("list", tmp_path)
    assert result.exit_code == 1
    assert result.stdout.split() == ["a", "Good."] and "error[E102]" in result.stderr
    (tmp_path / "c.attn").write_bytes(b"\xff\xfe")
    result = run("list", tmp_path)
    assert result.exit_code == 2 and result.stdout.split() == ["a", "Good."]
    assert "error[E102]" in result.stderr and "error[E901]" in result.stderr


def test_a_process_exits_with_the_same_codes() -> None:
    assert process("list").returncode == 0
    bad = process("build", "nowhere.attn")
    assert bad.returncode == 2 and bad.stdout == "" and "E901" in bad.stderr


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained_by_a_spec_that_has_it(code: str) -> None:
    assert CODES[code] in run("explain", code).stdout
    found = EXPLANATIONS[code]
    if code.startswith("W"):
        assert [each.code for each in make_plan(Source("wrong.attn", found.wrong)).warnings] == [code]
        assert not make_plan(Source("right.attn", found.right)).warnings
    elif found.wrong:
        with pytest.raises(AttnError) as caught:
            compile_any(Source("wrong.attn", found.wrong), in_c=False)
        assert [each.code for each in caught.value.diagnostics] == [code]
        compile_any(Source("right.attn", found.right), in_c=False)


def test_the_package_offers_its_names_without_importing_them_first() -> None:
    assert attncc.load_spec(attncc.Source("x", "attention x {}")).name == "x"
    assert set(attncc.__all__) <= set(dir(attncc))
    with pytest.raises(AttributeError):
        _ = attncc.nonsense


def test_layers_are_told_from_attentions() -> None:
    path = SPECS / "layers/fastformer.attn"
    for command in ("show", "bench"):
        result = run(command, path)
        assert result.exit_code == 1 and "this file defines a layer" in result.stderr
    found = json.loads(run("explain", path, "--json").stdout)
    assert found["kind"] == "layer" and found["values"][-1]["shape"] == "[B, n, dim]"
    listed = json.loads(run("list", path.parent, "--json").stdout)["specs"]
    assert {"name": "fastformer", "dim": None} == {
        key: value
        for each in listed
        for key, value in (each | each["parameters"]).items()
        if each["name"] == "fastformer" and key in ("name", "dim")
    }
