"""Pieces against brute force: every related pair is in exactly one of them, and where the tiles of its class look."""

from __future__ import annotations

import random

import pytest

from attncc.compiler import compile_source
from attncc.diagnostics import Source
from attncc.plan import partition
from attncc.plan.domain import analyse
from attncc.plan.layout import PLAIN
from tests.plan.forced import always, check_pieces, forced
from tests.plan.test_domain import Call_, P, causal, choose, h, i, j, window

DRAWS = 70

Draw = random.Random


def band(draw: Draw) -> P:
    low = draw.randint(-6, 12)
    return draw.choice([causal, window(low, draw.randint(-3, 9)), i - j >= low, j < low, i < low, j >= low])


def remainder(draw: Draw) -> P:
    period, width = draw.randint(2, 7), draw.randint(1, 3)
    rest = draw.randint(0, period - 1)
    number = draw.choice([i - j, i - j, j, j, i, i + j, j - i, i // width - j // width, j // width, 2 * i - j])
    return draw.choice([(number % period).equals(rest), number % period >= rest, number % period < rest])


def quotient(draw: Draw) -> P:
    width = draw.randint(2, 7)
    alike = (i // width).equals(j // width)
    return draw.choice([alike, alike, abs_at_most(i // width - j // width, 1), j // width < i // width])


def abs_at_most(number: P, most: int) -> P:
    return (number <= most) & (number >= -most)


def pattern(draw: Draw, depth: int) -> P:
    kind = draw.randint(0, 9) if depth else 0
    if kind <= 2:
        return draw.choice([band, remainder, remainder, quotient])(draw)
    one, other = pattern(draw, depth - 1), pattern(draw, depth - 1)
    if kind <= 5:
        return one & other
    if kind <= 7:
        return one | other
    return ~one if kind == 8 else choose(draw.choice([h < 1, (h % 2).equals(0)]), one, other)


def call_of(draw: Draw) -> Call_:
    return Call_(
        n=draw.randint(1, 40),
        m=draw.randint(1, 40),
        q_start=draw.randint(-20, 30),
        k_start=draw.choice([0, 0, draw.randint(-9, 20)]),
        block_rows=draw.randint(1, 9),
        block_columns=draw.randint(1, 6),
    )


NEAR = window(64, 64)


def own_rows(expr: P) -> list[tuple[int | None, int | None, int]]:
    """First row, end and period of the rows that run by themselves."""
    found = partition.partition(analyse(expr.expr))
    parts = [] if found is None else [part for piece in found.pieces for part in piece.parts if part.alone]
    return [(part.layout.rows.first, part.layout.rows.stop, part.layout.rows.period) for part in parts]


def test_rows_that_see_much_more_than_their_neighbours_run_by_themselves() -> None:
    assert own_rows(NEAR | (i < 16) | (j < 16)) == [(None, 16, 1)]
    assert own_rows(NEAR | (i // 8).equals(1)) == [(8, 16, 1)]
    assert own_rows(NEAR | (3 * i < 30)) == [(None, 10, 1)]
    assert own_rows(NEAR | (i % 64).equals(0) | (j % 64).equals(0)) == [(None, None, 64)]
    assert own_rows(causal & (NEAR | ((i + j) % 2 + i % 32 >= 32))) == [(None, None, 32)]


def test_rows_stay_among_others_where_that_is_no_dearer() -> None:
    assert own_rows(window(512, 512) | (i < 16)) == []  # one tile in many
    assert own_rows(NEAR | (i < 4096)) == []  # no short list
    assert own_rows(NEAR | ((i < 16) & (j < 16))) == []  # which see little
    assert own_rows((i // 64).equals(j // 64)) == []


def layouts(expr: P) -> list[tuple[int, int, int]]:
    """Period, width and start of the keys of every part."""
    found = partition.partition(analyse(expr.expr))
    parts = [] if found is None else [part for piece in found.pieces for part in piece.parts]
    return [(part.layout.keys.period, part.layout.keys.width, part.layout.keys.start) for part in parts]


def test_remainders_of_the_head_are_told_apart() -> None:
    assert layouts(causal & ((i - j) % 4).equals(h % 4)) == [(4, 1, start) for start in (0, 3, 2, 1)]
    assert layouts(causal & ((i - j + h) % 3).equals(0)) == [(3, 1, start) for start in (0, 1, 2)]
    assert layouts(causal & (j % 64).equals(h % 2)) == [(64, 1, 0), (64, 1, 1)]
    assert layouts(causal & (j % 64 >= 60 - h)) == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("causal & j % 64 >= 60 - h", "depends on the head by a formula"),
        ("exists t in 1..14 : (i - j) % (t + 20) == t", "more than 12 conjunctions"),
        ("abs(i - j) < 8 & (i - j) % 2 == 0", "no other layout"),
        ("j <= i", "no remainder of positions"),
    ],
)
def test_what_runs_as_a_whole_is_explained(pattern: str, why: str) -> None:
    compiled = compile_source(Source("x.attn", f"attention x {{ pattern = {pattern} }}"))
    reasons = [each.reason for each in compiled.plan.refusals if each.law == "split-union"]
    assert len(reasons) == 1 and why in reasons[0]


def test_random_patterns_come_apart_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    apart = several = 0
    for at in range(DRAWS):
        always(monkeypatch, apart=at >= DRAWS // 2)
        expr = pattern(draw, depth=3 if at % 4 == 0 else 2).expr
        pieces = forced(expr)
        for _ in range(2):
            check_pieces(expr, pieces, call_of(draw))
        layouts = [part.layout for piece in pieces for part in piece.parts]
        apart += any(layout != PLAIN for layout in layouts)
        several += len(pieces) > 1
    assert apart > DRAWS // 4 and several > DRAWS // 8  # enough of them test anything
