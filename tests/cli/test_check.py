"""`attncc check`: exit codes, which parameters are used, and that a wrong module is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attncc import compiler
from attncc.check.load import load_module
from attncc.check.shrink import LARGEST, smaller
from attncc.diagnostics import Source
from attncc.spec.resolve import load
from tests.cli.runs import SPECS, run

SMALL = "attention tiny(w = 4) { pattern = window(w) }"


def test_a_right_module_passes_and_says_with_which_parameters() -> None:
    result = run("check", "-", "--quick", stdin=SMALL)
    assert result.exit_code == 0, result.stdout
    assert result.stdout.startswith("tiny (w = 4)\n") and "smaller" not in result.stdout
    assert "float64" in result.stdout and "ok: " in result.stdout


def test_a_wrong_module_fails_with_both_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    original = compiler.emit
    monkeypatch.setattr(compiler, "emit", lambda plan: original(plan).replace("i - j <= ", "i - j <= 1 + "))
    result = run("check", "-", "--quick", "-D", "w=40", "--json", stdin=SMALL)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [each["parameters"] for each in found["reports"]] == [{"w": 40}, {"w": 13}]
    assert [each["smaller_parameters"] for each in found["reports"]] == [False, True]
    assert not found["ok"] and found["reports"][1]["failures"]
    assert set(found["reports"][0]["cases"][0]) == {"case", "form", "in_pieces", "ok", "fault", "tensors"}


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.attn")), ids=lambda path: path.stem)
def test_smaller_parameters_meet_the_requirements(path: object) -> None:
    spec = load(compiler.read_source(str(path)))
    found = smaller(spec, {})
    if all(not isinstance(each.value, int) or each.value <= LARGEST for each in spec.parameters):
        assert found is None
    else:
        assert found is not None
        assert all(
            isinstance(each.value, float) or each.value <= LARGEST for each in load(spec.source, found).parameters
        )


def test_a_text_is_loaded_once() -> None:
    text = "import inspect\n\n\ndef attention():\n    return inspect.getsource(attention)\n"
    module = load_module(text, "twice")
    assert module is load_module(text, "twice")
    assert "getsource" in module.attention()
    with pytest.raises(ZeroDivisionError):
        load_module("1 / 0", "broken")


def test_requirements_that_no_small_value_meets_leave_the_spec_as_it_is() -> None:
    text = "attention big(w = 64) { require w >= 64; pattern = window(w) }"
    assert smaller(load(Source("big.attn", text)), {}) is None


def test_a_spec_with_an_error_keeps_no_other_from_being_checked(tmp_path: Path) -> None:
    (tmp_path / "bad.attn").write_text("attention bad { pattern = casual }")
    (tmp_path / "tiny.attn").write_text(SMALL)
    result = run("check", tmp_path, "--quick")
    assert result.exit_code == 1 and "error[E201]" in result.stderr
    assert result.stdout.startswith("tiny (w = 4)\n") and "ok: " in result.stdout
