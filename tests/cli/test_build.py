"""`attncc build`: where modules go, and that nothing is touched when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs import ROOT, SPECS, run

GOOD = "attention good(w = 8) { pattern = window(w) }\n"
BAD = "attention bad { pattern = casual }\n"


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.attn").write_text(text, encoding="utf-8")
    return folder


def test_a_spec_becomes_a_file_of_its_name_and_stdout_stays_empty(tmp_path: Path) -> None:
    result = run("build", write(tmp_path, good=GOOD) / "good.attn", "-o", tmp_path / "out")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == f"wrote: {tmp_path / 'out' / 'good.py'}\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good.py"]
    compile((tmp_path / "out" / "good.py").read_text(encoding="utf-8"), "good.py", "exec")


def test_the_default_folder_is_generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path, good=GOOD))
    assert run("build", "good.attn", "-q").stderr == ""
    assert (tmp_path / "generated" / "good.py").exists()


def test_a_dash_prints_the_module_and_nothing_else(tmp_path: Path) -> None:
    spec = write(tmp_path, good=GOOD) / "good.attn"
    printed = run("build", spec, "-o", "-")
    assert printed.exit_code == 0 and printed.stderr == ""
    run("build", spec, "-o", tmp_path / "named.py")
    assert (tmp_path / "named.py").read_text(encoding="utf-8") == printed.stdout


def test_text_from_stdin_is_called_what_the_user_says() -> None:
    result = run("build", "-", "--stdin-filename", "mine.attn", "-o", "-", stdin=GOOD)
    assert result.exit_code == 0
    assert "from mine.attn" in result.stdout
    broken = run("build", "-", "--stdin-filename", "mine.attn", "-o", "-", stdin=BAD)
    assert broken.exit_code == 1
    assert "mine.attn:1:27" in broken.stderr


def test_a_folder_means_every_spec_in_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "specs", good=GOOD, other=GOOD.replace("good", "other"))
    (folder / "notes.txt").write_text("no spec")
    result = run("build", folder, "-o", tmp_path / "out")
    assert result.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["good.py", "other.py"]


def test_an_error_in_one_spec_leaves_its_file_as_it_was_and_builds_the_others(tmp_path: Path) -> None:
    folder, out = write(tmp_path / "specs", good=GOOD, bad=GOOD.replace("good", "bad")), tmp_path / "out"
    run("build", folder, "-o", out)
    before = (out / "bad.py").read_bytes()
    write(folder, good=GOOD.replace("8", "9"), bad=BAD)
    result = run("build", folder, "-o", out)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith(f"wrote: {out / 'good.py'}\nerror[E201]")
    assert (out / "bad.py").read_bytes() == before
    assert sorted(path.name for path in out.iterdir()) == ["bad.py", "good.py"]
    found = json.loads(run("build", folder, "-o", out, "--json").stdout)
    assert not found["ok"] and [each["name"] for each in found["outputs"]] == ["good"]
    assert [each["code"] for each in found["diagnostics"]] == ["E201"]
    fresh = run("build", folder, "-o", out, "--fresh")
    assert fresh.exit_code == 1 and "error[E201]" in fresh.stderr and "\nup to date" in f"\n{fresh.stderr}"


def test_a_file_that_cannot_be_read_keeps_no_other_from_being_built(tmp_path: Path) -> None:
    folder = write(tmp_path / "specs", good=GOOD)
    (folder / "bytes.attn").write_bytes(b"\xff\xfe")
    (folder / "lost.attn").symlink_to(tmp_path / "nowhere")
    result = run("build", folder, tmp_path / "gone.attn", "-o", tmp_path / "out")
    assert result.exit_code == 2 and result.stderr.count("error[E901]") == 3
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good.py"]


def test_one_module_is_never_chosen_from_several_specs(tmp_path: Path) -> None:
    folder = write(tmp_path / "specs", good=GOOD, bad=BAD)
    for output in ("-", tmp_path / "one.py"):
        result = run("build", folder, "-o", output)
        assert result.exit_code == 2 and result.stdout == "" and not (tmp_path / "one.py").exists()


def test_errors_of_all_specs_are_shown_at_once(tmp_path: Path) -> None:
    folder = write(tmp_path, bad=BAD, worse=BAD.replace("bad", "worse"))
    assert run("build", folder).stderr.count("error[E201]") == 2


def test_an_unwritable_place_is_an_error_of_files(tmp_path: Path) -> None:
    spec = write(tmp_path, good=GOOD) / "good.attn"
    (tmp_path / "taken").write_text("a file")
    result = run("build", spec, "-o", tmp_path / "taken" / "deeper")
    assert result.exit_code == 2
    assert "error[E901]: cannot write" in result.stderr
    (tmp_path / "out" / "good.py").mkdir(parents=True)
    assert run("build", spec, "-o", tmp_path / "out").exit_code == 2
    assert os.listdir(tmp_path / "out") == ["good.py"]


def test_a_second_build_changes_nothing(tmp_path: Path) -> None:
    spec, out = write(tmp_path, good=GOOD) / "good.attn", tmp_path / "out"
    run("build", spec, "-o", out)
    os.utime(out / "good.py", (1, 1))
    assert run("build", spec, "-o", out).stderr.startswith("unchanged:")
    assert (out / "good.py").stat().st_mtime == 1


def test_fresh_compares_and_writes_nothing(tmp_path: Path) -> None:
    spec, out = write(tmp_path, good=GOOD) / "good.attn", tmp_path / "out"
    missing = run("build", spec, "-o", out, "--fresh")
    assert missing.exit_code == 1 and not out.exists()
    run("build", spec, "-o", out)
    assert run("build", spec, "-o", out, "--fresh").exit_code == 0
    (out / "good.py").write_text("# edited\n")
    stale = run("build", spec, "-o", out, "--fresh", "-q")
    assert stale.exit_code == 1
    assert stale.stderr == f"not up to date: {out / 'good.py'}\n"
    assert (out / "good.py").read_text() == "# edited\n"


def test_parameters_reach_the_module_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    spec = write(tmp_path, good=GOOD) / "good.attn"
    assert "-D w=3" in run("build", spec, "-D", "w=3", "-o", "-").stdout
    unknown = run("build", spec, "-D", "v=3", "-o", "-")
    assert unknown.exit_code == 1 and "error[E209]" in unknown.stderr
    assert run("build", spec, "-D", "w=many", "-o", "-").exit_code == 1
    assert run("build", spec, "-D", "w", "-o", "-").exit_code == 2


def test_two_modules_do_not_fit_one_place(tmp_path: Path) -> None:
    folder = write(tmp_path, good=GOOD, same=GOOD, other=GOOD.replace("good", "other"))
    two = (folder / "good.attn", folder / "other.attn")
    assert run("build", *two, "-o", "-").exit_code == 2
    assert run("build", *two, "-o", tmp_path / "one.py").exit_code == 2
    clash = run("build", folder / "good.attn", folder / "same.attn")
    assert clash.exit_code == 2 and "both define `good`" in clash.stderr


def test_json_lists_outputs_on_stdout(tmp_path: Path) -> None:
    spec = write(tmp_path, good=GOOD) / "good.attn"
    found = json.loads(run("build", spec, "-o", tmp_path / "out", "--json").stdout)
    assert found["schema_version"] == 1 and found["ok"] and found["diagnostics"] == []
    (output,) = found["outputs"]
    assert set(output) == {"spec", "name", "parameters", "path", "sha256", "changed"}
    assert output["parameters"] == {"w": 8} and output["changed"]


def test_json_and_concise_errors_say_where(tmp_path: Path) -> None:
    spec = write(tmp_path, bad=BAD) / "bad.attn"
    failed = run("build", spec, "--json")
    assert failed.exit_code == 1 and failed.stderr == ""
    (diagnostic,) = json.loads(failed.stdout)["diagnostics"]
    assert diagnostic["code"] == "E201" and diagnostic["severity"] == "error"
    place = {"file": str(spec), "line": 1, "column": 27, "end_line": 1, "end_column": 33}
    assert place.items() <= diagnostic["labels"][0].items()
    concise = run("build", spec, "--format", "concise")
    assert concise.stdout == ""
    assert concise.stderr.startswith(f"{spec}:1:27: error[E201]: ") and concise.stderr.count("\n") == 1


def test_a_build_loads_only_what_it_needs(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from attncc.cli.main import cli\n"
        "code = cli.main(sys.argv[1:], standalone_mode=False)\n"
        "heavy = {'torch', 'triton', 'numpy', 'matplotlib', 'rich', 'sympy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy or code else 0)\n"
    )
    with_angles = ("cosformer.attn", "cosformer_causal.attn")  # sums of angles are turned by sympy
    specs = [str(path) for path in sorted(SPECS.glob("*.attn"))[::8] if path.name not in with_angles]
    command = [sys.executable, "-c", script, "build", *specs, "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
