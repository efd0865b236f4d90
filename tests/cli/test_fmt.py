"""`attncc fmt`: what it writes, what it only says, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs import ROOT, SPECS, run

ROUGH = "attention  a{pattern=causal}"
SMOOTH = "attention a { pattern = causal }\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A rough spec, a smooth one, and one with a mistake."""
    (tmp_path / "rough.attn").write_text(ROUGH)
    (tmp_path / "smooth.attn").write_text(SMOOTH)
    (tmp_path / "wrong.attn").write_text("attention  a {")
    return tmp_path


def test_the_catalogue_stays_as_it_is() -> None:
    result = run("fmt", SPECS, ROOT / "attncc/spec/prelude.attn", "--check")
    assert result.exit_code == 0 and result.output == ""


def test_files_are_rewritten_and_those_with_mistakes_are_not(folder: Path) -> None:
    result = run("fmt", folder)
    assert result.exit_code == 1 and result.stdout == ""
    assert f"formatted: {folder / 'rough.attn'}\nunchanged: {folder / 'smooth.attn'}\n" in result.stderr
    assert "error[E102]" in result.stderr
    assert {each.name: each.read_text() for each in folder.iterdir()} == {
        "rough.attn": SMOOTH,
        "smooth.attn": SMOOTH,
        "wrong.attn": "attention  a {",
    }
    assert run("fmt", folder / "rough.attn", "-q").output == ""


def test_check_names_the_files_and_writes_none(folder: Path) -> None:
    result = run("fmt", folder / "rough.attn", folder / "smooth.attn", "--check")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"not formatted: {folder / 'rough.attn'}\n"
    assert (folder / "rough.attn").read_text() == ROUGH
    assert run("fmt", folder / "smooth.attn", "--check").exit_code == 0


def test_diff_goes_to_stdout_and_writes_nothing(folder: Path) -> None:
    result = run("fmt", folder / "rough.attn", folder / "smooth.attn", "--diff")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[2:] == [
        "@@ -1 +1 @@",
        f"-{ROUGH}",
        "\\ No newline at end of file",
        f"+{SMOOTH.rstrip()}",
    ]
    assert (folder / "rough.attn").read_text() == ROUGH
    assert run("fmt", folder / "rough.attn", "--diff", "--check").exit_code == 1


def test_stdin_goes_to_stdout() -> None:
    result = run("fmt", "-", stdin=ROUGH)
    assert (result.exit_code, result.stdout, result.stderr) == (0, SMOOTH, "")
    wrong = run("fmt", "-", "--stdin-filename", "my.attn", stdin="attention {")
    assert wrong.exit_code == 1 and wrong.stdout == "" and "my.attn:1:11" in wrong.stderr
    assert run("fmt", "-", "--check", stdin=ROUGH).exit_code == 1
    assert run("fmt", "-", stdin=b"\xff").exit_code == 2


@pytest.mark.parametrize("text", [SMOOTH.replace("\n", "\r\n"), SMOOTH.rstrip(), f"\ufeff{SMOOTH}"])
def test_line_ends_and_marks_are_made_plain(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.attn"
    path.write_bytes(text.encode())
    assert run("fmt", path, "--check").exit_code == 1
    assert run("fmt", "-", "--check", stdin=text.encode()).exit_code == 1
    assert run("fmt", path).exit_code == 0
    assert path.read_bytes() == SMOOTH.encode()


def test_a_link_stays_a_link_and_permissions_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "a.attn", tmp_path / "link.attn"
    path.write_text(ROUGH)
    path.chmod(0o640)
    link.symlink_to(path)
    assert run("fmt", link).exit_code == 0
    assert link.is_symlink() and path.read_text() == SMOOTH and path.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_json_says_what_changed(folder: Path) -> None:
    found = json.loads(run("fmt", folder, "--check", "--diff", "--json").stdout)
    assert not found["ok"] and [each["code"] for each in found["diagnostics"]] == ["E102"]
    assert [(Path(each["path"]).name, each["changed"]) for each in found["files"]] == [
        ("rough.attn", True),
        ("smooth.attn", False),
    ]
    assert SMOOTH in found["files"][0]["diff"]
    assert json.loads(run("fmt", "-", "--json", stdin=ROUGH).stdout)["files"][0]["text"] == SMOOTH


def test_nothing_that_is_slow_to_import_is_imported() -> None:
    script = (
        "import sys; from attncc.cli.main import cli; cli(['fmt', 'specs', '--check'], standalone_mode=False); "
        "print({'torch', 'triton', 'numpy', 'sympy', 'networkx', 'islpy', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
