"""Layers with parts changed at random: each is compiled, or refused with diagnostics that have a place."""

from __future__ import annotations

import re
from random import Random

import pytest

from attncc.diagnostics import AttnError, Source, render
from attncc.plan.layers import plan_layer
from attncc.spec.layers.resolve import load_layer
from tests.layers.shared import LAYERS

TEXTS = [path.read_text(encoding="utf-8") for path in sorted(LAYERS.glob("*.attn"))]
TOKEN = re.compile(r"\s+|#[^\n]*|\w+|->|//|\.\.|[<>=!]=|.")


def changed(text: str, random: Random) -> str:
    """The text with one to three tokens dropped, doubled, exchanged, or taken from elsewhere."""
    tokens = TOKEN.findall(text)
    places = [at for at, each in enumerate(tokens) if each.strip() and not each.startswith("#")]
    if random.random() < 0.8:  # names, numbers and signs of arithmetic alone, so that the text can still be read
        places = [at for at in places if tokens[at] in "+-*/@" or re.fullmatch(r"\w+", tokens[at])]
    for _ in range(random.randint(1, 3)):
        at, other = random.choice(places), random.choice(places)
        kind = re.fullmatch(r"\w+", tokens[at])
        if random.random() < 0.8 and bool(kind) != bool(re.fullmatch(r"\w+", tokens[other])):
            continue
        match random.choice((0, 1, 2, 3, 3, 3, 3, 3)):
            case 0:
                tokens[at] = ""
            case 1:
                tokens[at] += f" {tokens[at]}"
            case 2:
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 3:
                tokens[at] = tokens[other]
    return "".join(tokens)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_written_is_answered(seed: int) -> None:
    random = Random(seed)
    for _ in range(60):
        text = changed(random.choice(TEXTS), random)
        try:
            layer = load_layer(Source(str(LAYERS / "changed.attn"), text))
        except AttnError as error:
            assert all(render(each) for each in error.diagnostics)
            assert all(each.labels for each in error.diagnostics), text
            continue
        if layer.cores and random.random() < 0.05:
            try:
                plan_layer(layer)
            except AttnError as error:
                assert all(each.labels for each in error.diagnostics), text
