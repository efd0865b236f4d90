"""`attncc check`: exit codes, which parameters are used, and that a wrong module is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attncc import compiler
from attncc.check.load import load_module
from attncc.check.shrink import LARGEST, smaller
from attncc.diagnostics import Source
from attncc.plan.model import Planned
from attncc.spec.resolve import load
from tests.cli.runs import SPECS, run

SMALL = "attention tiny(w = 4) { pattern = window(w) }"


def test_a_right_module_passes_and_says_with_which_parameters() -> None:
    result = run("check", "-", "--quick", stdin=SMALL)
    assert result.exit_code == 0, result.stdout
    assert result.stdout.startswith("tiny (w = 4)\n") and "smaller" not in result.stdout
    assert "float64" in result.stdout and "ok: " in result.stdout


# Right modules, of which a check has to know which calls they take and how wide their outputs are.
RIGHT = {
    "a table that the pattern keeps from being left": (
        "param R[H, 9, 9]; pattern = i < 9 & j < 9; score = scale * dot(q, k) + R[h, i, j]"
    ),
    "a table that a condition keeps from being left": (
        "param b[9]; pattern = causal; score = scale * dot(q, k) + (i - j < 9 ? b[i - j] : 0)"
    ),
    "kinds of keys, from 1 on": (
        "input s[B, m]: int; param b[H, 3]; pattern = causal; score = scale * dot(q, k) + b[h, s - 1]"
    ),
    "a table of a branch": (
        "param R[9, 9]; branch one { pattern = i < 9 & j < 9; score = R[i, j] }; "
        "branch two { pattern = window(2) }; combine = one - two"
    ),
    "branches that cancel where there is one key": (
        "branch one { pattern = window(3) }; branch two { pattern = window(2); score = dot(q, k) / 3 }; "
        "combine = one - two"
    ),
    "a width that a branch fixes": (
        "param W[H, d, 16]; branch one { pattern = window(4); score = scale * dot(q @ W[h], k) }; "
        "branch two { pattern = causal }; combine = one + two / (1 + sum(two^2))"
    ),
    "outputs as wide as keys": (
        "branch one { value = k }; branch two { pattern = causal }; combine = one * dot(one, two) + mean(two) * one"
    ),
    "outputs of another width": (
        "param P[e, 5]; branch one {}; branch two { pattern = causal }; combine = (one + two) @ P"
    ),
    "outputs of keys alone": (
        "branch one { value = k }; branch two { pattern = causal; value = k }; combine = one - 2 * two"
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_modules_pass_with_many_cases(name: str) -> None:
    result = run("check", "-", "--quick", "--form", "torch", "--json", stdin=f"attention right {{ {RIGHT[name]} }}")
    assert result.exit_code == 0, result.stdout[-2000:] + result.stderr
    assert len(json.loads(result.stdout)["reports"][0]["cases"]) > 20


def test_a_spec_without_a_value_is_told_from_a_wrong_module() -> None:
    text = "attention bare { input keep[B, m]; score = scale * dot(q, k) + log(keep) }"
    result = run("check", "-", "--quick", "--form", "torch", stdin=text)
    assert result.exit_code == 1
    assert "its own formula makes NaN" in result.stdout
    assert "differ" not in result.stdout and "times the limit" not in result.stdout


def test_a_wrong_module_fails_with_both_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    original = compiler.emit

    def wrong(plan: Planned, *, in_c: bool) -> str:
        return original(plan, in_c=in_c).replace("i - j <= ", "i - j <= 1 + ")

    monkeypatch.setattr(compiler, "emit", wrong)
    result = run("check", "-", "--quick", "--form", "torch", "-D", "w=40", "--json", stdin=SMALL)
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
    result = run("check", tmp_path, "--quick", "--form", "torch")
    assert result.exit_code == 1 and "error[E201]" in result.stderr
    assert result.stdout.startswith("tiny (w = 4)\n") and "ok: " in result.stdout
