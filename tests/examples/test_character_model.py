"""The character model: a short run learns, and what it writes step by step is what whole passes write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.examples.test_sentence_search import example


def test_a_short_run_learns_and_writes_the_same_in_two_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = example("character_model")
    plan = model.Plan(dim=32, chunk=8, stride=4, pairs=1, length=48, batch=4, steps=24, every=8)
    result = model.main(plan, tmp_path / "curve.svg", count=16)
    losses = [loss for _, loss in result.curve]
    assert [step for step, _ in result.curve] == [8, 16, 24]
    assert losses[-1] < 3.6 < losses[0]
    assert 2 < result.bigram < 2.6  # of the text that this Python brings
    assert len(result.by_steps) == 16 and result.by_steps == result.by_forward
    svg = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg") and f"bigram model {result.bigram:.2f}" in svg
    assert re.search(r"held-out loss \d\.\d+ nats per character; of a bigram model", capsys.readouterr().out)


def test_the_held_out_text_is_not_seen() -> None:
    text = example("character_model").Text("".join(chr(97 + at // 2048 % 26) for at in range(2048 * 30)))
    assert len(text.held_out) == 2048 and len(text.seen) == 2048 * 29
    assert text.read(text.held_out[:1]) == "k"
    assert torch.equal(text.seen[:1], torch.tensor([0]))
