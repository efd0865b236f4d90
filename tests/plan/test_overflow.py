"""Which exponentials are warned of: those that some dot product makes infinite, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attncc.check.load import load_module
from attncc.compiler import compile_source, make_plan
from attncc.diagnostics import Source
from tests.cli.runs import run

LARGE = (
    "weight = exp(score); normalize = none",
    "weight = exp2(score); normalize = count",
    "weight = 1.5^score; normalize = none",
    "weight = exp(softcap(score, 100)); normalize = none",
    "weight = exp(max(score, 1)); normalize = none",
    "normalize = sqrt(rows)",
    "normalize = rows^2 + 1",
    "weight = exp(score) / (1 + exp(score))",
    "weight = 1 / (1 + exp(-score)); normalize = none",
    "weight = log(1 + exp(score)); normalize = none",
    "similarity = softmax(exp(score))",
)
SMALL = (
    "",
    "normalize = 2 * rows + 1",
    "weight = exp(score) + exp(-score)",
    "weight = 2 * exp(score) + 3; normalize = rows + 2 * exp(3)",
    "weight = exp(-score^2); normalize = none",
    "weight = exp(-scale * score^2 / 2); normalize = none",
    "weight = exp(-score * score); normalize = none",
    "weight = exp(-abs(score)); normalize = none",
    "weight = exp(-relu(score)); normalize = none",
    "weight = exp(softcap(score, 20)); normalize = none",
    "weight = exp(min(score, 11)); normalize = none",
    "weight = exp(clip(score, -9, 9) * [1, 2][h % 2]); normalize = none",
    "weight = exp(i % 2 == 0 ? tanh(score) : 1); normalize = none",
    "weight = exp(-abs(i - j) / 8) * relu(score); normalize = none",
    "weight = elu(score) + 1; normalize = none",
    "weight = exp(-dot(q, q) / 2 - dot(k, k) / 2) * (1 + score)^2; normalize = none",
    "weight = exp(-0.5 * dot(q, q)) * dot(relu(q), relu(k))",
    "similarity = sigmoid",
    "similarity = laplace",
)


def spec(body: str) -> Source:
    return Source("x.attn", f"attention x {{ {body} }}")


@pytest.mark.parametrize("body", LARGE)
def test_large_scores_do_overflow_where_a_build_warns(body: str) -> None:
    compiled = compile_source(spec(body), in_c=False)
    assert [each.code for each in compiled.warnings] == ["W301"] * len(compiled.warnings) != []
    q, k, v = (x.requires_grad_() for x in torch.full((3, 1, 1, 4, 8), 30.0).unbind())
    k.data[:, :, ::2] *= -1
    out = load_module(compiled.text, "x").attention(q, k, v)
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert not all(each.isfinite().all() for each in (out, *gradients))


@pytest.mark.parametrize("body", SMALL)
def test_what_is_bounded_or_taken_relative_to_the_row_is_not_warned_of(body: str) -> None:
    assert make_plan(spec(body)).warnings == ()


def test_warnings_are_shown_and_change_no_exit_code(tmp_path: Path) -> None:
    text = spec("weight = exp(score); normalize = none").text
    for command in (("build", "-", "-o", tmp_path), ("build", "-", "-o", "-"), ("explain", "-")):
        result = run(*command, stdin=text)
        assert result.exit_code == 0 and "warning[W301]" in result.stderr and "warning[" not in result.stdout
        assert "warning" not in run(*command, "-q", stdin=text).stderr
    for command in (("build", "-", "-o", tmp_path, "--json"), ("explain", "-", "--json")):
        found = json.loads(run(*command, stdin=text).stdout)
        assert found["ok"] and [(each["code"], each["severity"]) for each in found["diagnostics"]] == [
            ("W301", "warning")
        ]
