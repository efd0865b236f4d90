"""Whatever a command is given, it answers in words: exit code 0, 1 or 2, no traceback, nothing half-written."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs import ROOT, SPECS, run

GOOD = b"attention good(w = 3, r: real = 1.5) { require w > 0; pattern = window(w); score = r * scale * dot(q, k) }"
TEXTS = {
    "empty": b"",
    "zeros": b"\0" * 100,
    "a zero": b"attention x {\0}",
    "bytes": bytes(range(256)),
    "utf-16": "attention x {}".encode("utf-16"),
    "latin-1": "# é\nattention x {}".encode("latin-1"),
    "surrogate": b"attention x { # \xed\xa0\x80\n}",
    "escape": b"attention \x1b[31mx {}",
    "right to left": "attention \u202ex {}".encode(),
    "line separator": "attention x {\u2028}".encode(),
    "long line": b"# " + b"x" * 2_000_000 + b"\nattention x {}",
    "long sum": b"attention x { score = " + b" + ".join([b"1"] * 50_000) + b" }",
    "brackets": b"attention x { score = " + b"(" * 3000,
    "signs": b"attention x { score = " + b"-" * 3000 + b"1 }",
    "choices": b"attention x { score = " + b"i > 1 ? " * 400 + b"1" + b" : 2" * 400 + b" }",
    "powers": b"attention x { score = " + b"2 ^ " * 500 + b"2 }",
    "digits": b"attention x { score = " + b"9" * 5000 + b" }",
    "exponent": b"attention x { score = 1e999999 }",
    "words": b"".join(b"pattern p%d = causal\n" % at for at in range(3000)) + b"attention x {}",
}
DEFINITIONS = (
    *("", "=", "w", "w=", "=3", "w=nan", "w=1e999", "w=-1", "w=1/0", "w=0x10", "w=\u0661", "w=1_0", "w=3\n4", "w=--3"),
    *("w=\0", "W=3", "\u00e9=3", "r=1e400", "w=" + "9" * 5000, "x" * 9000 + "=1", "w=1073741825", "w=9007199254740993"),
)
PLACES = (
    "",
    "file",
    "file/x",
    "file/x.py",
    "taken",
    "loop",
    "loop/x.py",
    "n" * 300,
    "n" * 300 + ".py",
    "a\0b",
)
TOKENS = (
    b"( ) [ ] { } ? : = ; \n i j h rows score exp ^ / // % 0 - 1e308 require align none q , # & ! \xc3 \0 count 0.5"
)


def fine(*arguments: str | Path, stdin: bytes | None = None) -> int:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code in (0, 1, 2), result.stderr
    assert isinstance(result.exception, SystemExit | None) and "Traceback" not in result.stderr
    assert result.exit_code == 0 or result.stderr or "--json" in arguments
    return result.exit_code


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_are_no_specs(name: str, tmp_path: Path) -> None:
    spec, out = tmp_path / "x.attn", tmp_path / "out"
    spec.write_bytes(TEXTS[name])
    for arguments in (("build", spec, "-o", out), ("explain", spec), ("list", tmp_path), ("build", spec, "-o", "-")):
        assert fine(*arguments) in (1, 2)
    assert fine("build", "-", "-o", out, stdin=TEXTS[name]) in (1, 2)
    assert not json.loads(run("build", spec, "-o", out, "--json").stdout)["ok"]
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.parametrize("line_end", (b"\r\n", b"\r", b"\n"))
@pytest.mark.parametrize("mark", (b"", b"\xef\xbb\xbf"))
def test_texts_of_other_systems(line_end: bytes, mark: bytes) -> None:
    text = mark + line_end.join((b"# One line.", b"attention x {", b"  pattern = causal", b"}", b""))
    assert "One line." in run("explain", "-", stdin=text).stdout


@pytest.mark.parametrize("definition", DEFINITIONS, ids=range(len(DEFINITIONS)))
def test_definitions_that_are_none(definition: str, tmp_path: Path) -> None:
    for command in (("build", "-", "-o", tmp_path / "out"), ("explain", "-"), ("check", "-")):
        assert fine(*command, "-D", definition, stdin=GOOD) in (1, 2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", PLACES, ids=range(len(PLACES)))
def test_places_that_are_none(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.attn").write_bytes(GOOD)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "taken" / "good.py").mkdir(parents=True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for options in ((), ("--fresh",), ("--json",)):
        fine("build", "good.attn", "-o", place, *options)
    for command in ("build", "explain", "list", "check", "show"):
        assert fine(command, place or "nowhere") in (1, 2)
    fine("new", "mine", "-o", place)
    fine("show", "good.attn", "-o", f"{place}.png")
    assert (tmp_path / "file").read_text() == "kept"
    assert list(tmp_path.rglob(".*")) == []  # nothing temporary is left


@pytest.mark.parametrize("seed", range(4))
def test_texts_with_faults(seed: int) -> None:
    chance = random.Random(seed)
    texts = [path.read_bytes() for path in sorted(SPECS.glob("*.attn"))]
    for _ in range(15):
        text = bytearray(chance.choice(texts))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text))
            text[at : at + chance.choice((0, 0, 1, 6))] = chance.choice(TOKENS.split(b" "))
        if fine("build", "-", "-o", "-", stdin=bytes(text)) == 0:
            fine("explain", "-", stdin=bytes(text))


def shell(line: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("attncc", f"{sys.executable} -m attncc")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("line", ("list", "list --json", "build specs/full.attn -o -", "explain E201", "--help"))
def test_output_that_cannot_be_written_is_an_error_of_files(line: str) -> None:
    done = shell(f"attncc {line} > /dev/full")
    assert done.returncode == 2 and done.stderr.startswith("error[E901]: cannot write the output: ")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="a device of Linux")
def test_a_file_without_an_end_is_too_long() -> None:
    assert "error[E104]" in run("build", "/dev/zero").stderr
    assert "error[E104]" in shell("attncc build - < /dev/zero").stderr


def test_names_that_are_no_text_are_files_too(tmp_path: Path) -> None:
    spec = f"$'{tmp_path}/\\xff.attn'"
    assert shell(f"cp specs/full.attn {spec} && attncc build {spec} -o $'{tmp_path}/o\\xff' --json").returncode == 0
    assert shell(f"attncc explain $'{tmp_path}/\\xfe.attn'").returncode == 2


def test_streams_that_are_closed_are_empty() -> None:
    done = shell("attncc build - -o - <&-")
    assert done.returncode == 1 and "error[E215]" in done.stderr
    assert shell("attncc list >&-").returncode == 0
    assert shell("attncc list specs -q 2>&-").returncode == 0


def test_a_benchmark_that_cannot_be_kept_is_not_run(tmp_path: Path) -> None:
    done = shell(f"attncc bench specs/full.attn --lines {tmp_path}/nowhere/x")
    assert done.returncode == 2 and done.stderr.startswith("error[E901]: cannot use `") and done.stdout == ""
