"""`attncc new`: the spec that it writes compiles as it is, and so does every line that it offers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attncc.compiler import compile_source
from attncc.diagnostics import Source
from attncc.explanations import EXPLANATIONS
from attncc.spec.fields import FieldName
from attncc.spec.resolve import load
from tests.cli.runs import ROOT, run

TEXT = run("new", "mine", "-o", "-").stdout
CHOICES = [line.strip() for line in TEXT.splitlines() if re.match(r"  # (?!combine)\w+ = ", line)]


def test_it_compiles_as_it_is_and_passes_the_checks(tmp_path: Path) -> None:
    result = run("new", "mine", "-o", tmp_path / "specs")
    path = tmp_path / "specs/mine.attn"
    assert result.exit_code == 0 and result.stdout == "" and result.stderr == f"wrote: {path}\n"
    assert path.read_text(encoding="utf-8") == TEXT
    assert run("build", path, "-o", tmp_path / "built").exit_code == 0
    assert (tmp_path / "built/mine.py").exists()
    assert run("check", path, "--quick", "--form", "torch").exit_code == 0


def test_it_shows_every_field_and_choices() -> None:
    for field in set(FieldName) - {FieldName.LET}:
        assert re.search(rf"^  (# )?{field.value}\b", TEXT, re.M), field
    for field in ("pattern", "score", "weight", "normalize", "similarity"):
        assert 2 <= len([each for each in CHOICES if each.startswith(f"# {field} =")]) <= 3, field


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_compiles_in_the_place_of_the_line_it_replaces(choice: str) -> None:
    field = choice.split()[1]
    replaced = ("weight", "normalize") if field == "similarity" else (field,)
    lines = [line for line in TEXT.splitlines() if not re.match(rf"  ({'|'.join(replaced)}) = ", line)]
    text = "\n".join(line.replace("# ", "", 1) if line.strip() == choice else line for line in lines)
    assert compile_source(Source("mine.attn", text)).text


def test_what_it_calls_a_default_is_one() -> None:
    plain, shown = load(Source("x", "attention x {}")), load(Source("mine.attn", TEXT))
    assert (plain.score, plain.weight, plain.normalizer, plain.align) == (
        shown.score,
        shown.weight,
        shown.normalizer,
        shown.align,
    )


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "mine.attn").write_text("attention mine {}\n", encoding="utf-8")
    result = run("new", "mine", "-o", tmp_path)
    assert result.exit_code == 1 and result.stdout == ""
    assert "is there already" in result.stderr and "help: choose another name" in result.stderr
    assert (tmp_path / "mine.attn").read_text(encoding="utf-8") == "attention mine {}\n"
    found = json.loads(run("new", "mine", "-o", tmp_path, "--json").stdout)
    assert not found["ok"] and found["diagnostics"][0]["code"] == "E901"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("class", "keyword of Python"),
        ("torch", "would hide it"),
        ("_mine", "begin with a letter"),
        ("a" * 65, "65 characters"),
        ("my-spec", "letters a-z, digits"),
        ("mine.attn", "letters a-z, digits"),
        ("../mine", "letters a-z, digits"),
        ("9", "begins with a letter"),
        ("é", "letters a-z"),
        ("", "letters a-z"),
        ("pattern", "a word of the language"),
    ],
)
def test_a_name_that_no_attention_can_have_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    result = run("new", name, "-o", tmp_path)
    assert result.exit_code == 1 and result.stdout == "" and not list(tmp_path.iterdir())
    assert "error[E217]" in result.stderr and reason in result.stderr


def test_the_reasons_are_those_of_the_diagnostic() -> None:
    assert all(word in EXPLANATIONS["E217"].text for word in ("keyword of Python", "begins with a", "64 characters"))


def test_json_names_the_file(tmp_path: Path) -> None:
    found = json.loads(run("new", "mine", "-o", tmp_path, "--json").stdout)
    assert found["ok"] and found["path"] == str(tmp_path / "mine.attn") and found["name"] == "mine"


@pytest.mark.parametrize(
    "arguments", [(), ("mine", "-o", "mine.attn"), ("mine", "-o", "-", "--json"), ("mine", "-o", "/proc/nowhere")]
)
def test_what_cannot_be_used_exits_2(arguments: tuple[str, ...]) -> None:
    result = run("new", *arguments)
    assert result.exit_code == 2 and result.stdout == "" and result.stderr


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from attncc.cli.main import cli\n"
        "cli(['new', 'mine', '-o', '-'], standalone_mode=False)\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'triton', 'sympy', 'numpy', 'islpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_is_one_line_and_examples() -> None:
    usage, _, summary, _, examples, first, *_ = run("new", "--help").stdout.splitlines()
    assert usage.startswith("Usage:") and summary.endswith(".")
    assert examples.strip() == "EXAMPLES" and first.strip().startswith("attncc new")


def test_a_layer_compiles_as_it_is_and_passes_the_checks(tmp_path: Path) -> None:
    result = run("new", "mine", "--layer", "-o", tmp_path)
    path = tmp_path / "mine.attn"
    assert result.exit_code == 0 and result.stderr == f"wrote: {path}\n"
    assert run("fmt", "--check", path).exit_code == 0
    assert run("build", path, "-o", tmp_path / "built").exit_code == 0
    assert "class Mine(nn.Module):" in (tmp_path / "built/mine.py").read_text(encoding="utf-8")
    assert run("check", path, "--quick", "--form", "torch").exit_code == 0
    assert "mine_core" in run("explain", path).stdout
    assert "dim, h = 8, w = 64" in run("list", tmp_path).stdout.replace("  ", " ")
