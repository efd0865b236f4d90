"""Pieces that are made whether or not they are worth it, and what holds of all of them, by brute force."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from attncc.plan import partition
from attncc.plan.domain import analyse
from attncc.plan.evaluate import evaluate, on_arrays
from attncc.plan.pieces import Part, Piece
from attncc.spec.expr import Expr, Name
from tests.plan.test_domain import Call_, check_sweep, positions

HEADS = 3


def forced(expr: Expr) -> tuple[Piece, ...]:
    """The pieces of a pattern whether or not they are worth having."""
    split = [partition._Splitter(each).parts() for each in analyse(expr).classes]
    return partition._side_by_side(split)


def always(monkeypatch: pytest.MonkeyPatch, *, apart: bool = False) -> None:
    """Make every legal layout worth having; with `apart`, conjunctions never go back to the layout of positions."""
    monkeypatch.setattr(partition, "_REFERENCE", 256)
    monkeypatch.setattr(partition, "_SAVING", 1e9)
    monkeypatch.setattr(partition, "_least", lambda *_: 1)
    if apart:
        monkeypatch.setattr(partition._Splitter, "_merged_back", lambda _, groups: groups)


def related(expr: Expr, rows: np.ndarray, keys: np.ndarray, symbols: dict[Name, int]) -> np.ndarray:
    found = on_arrays(expr, {**symbols, Name.I: rows[:, None], Name.J: keys[None, :]})
    return np.broadcast_to(found, (len(rows), len(keys)))


def coordinates(part: Part, size: Call_) -> Iterator[tuple[int, range, range]]:
    """Each class of rows, with the coordinates of its rows and of its keys in a call."""
    for residue in range(part.layout.classes):
        rows, keys = (
            range(strips.below(start, residue), strips.below(start + count, residue))
            for strips, start, count in (
                (part.layout.rows, size.q_start, size.n),
                (part.layout.keys, size.k_start, size.m),
            )
        )
        yield residue, rows, keys


def check_pieces(expr: Expr, pieces: tuple[Piece, ...], size: Call_) -> None:
    """Every related pair of a call is in one piece, no other is in any, and tiles look where their pairs are."""
    rows, keys = (np.array(positions(*each)) for each in ((size.q_start, size.n), (size.k_start, size.m)))
    for head in range(HEADS):
        symbols = symbols_of(size, head, HEADS)
        assert (times_of(pieces, size, head, HEADS) == related(expr, rows, keys, symbols)).all()
        for part in parts_of(pieces, symbols):
            assert (pairs_of(part, size, symbols) == related(part.pattern, rows, keys, symbols)).all()


def symbols_of(size: Call_, head: int, heads: int) -> dict[Name, int]:
    return {Name.HEAD: head, Name.HEADS: heads, Name.QUERIES: size.n, Name.KEYS: size.m}


def parts_of(pieces: tuple[Piece, ...], symbols: dict[Name, int]) -> list[Part]:
    """What a head does, piece after piece."""
    found = []
    for piece in pieces:
        own = [part for part in piece.parts if evaluate(part.one.condition, symbols)]
        assert len(own) <= 1
        found += own
    return found


def times_of(pieces: tuple[Piece, ...], size: Call_, head: int, heads: int) -> np.ndarray:
    """In how many pieces each pair of a call is."""
    symbols = symbols_of(size, head, heads)
    times = np.zeros((size.n, size.m), dtype=int)
    for part in parts_of(pieces, symbols):
        times += pairs_of(part, size, symbols)
    return times


def pairs_of(part: Part, size: Call_, symbols: dict[Name, int]) -> np.ndarray:
    """How often a part has each pair of a call; its tiles look where its pairs are."""
    times = np.zeros((size.n, size.m), dtype=int)
    for residue, rows, keys in coordinates(part, size):
        known = {**symbols, Name.RESIDUE: residue}
        mask = related(part.one.pattern, np.array(rows, dtype=int), np.array(keys, dtype=int), known)
        by_row, by_column = (rows.start, size.block_rows), (keys.start, size.block_columns)
        check_sweep(part.one.by_row, mask, by_row, by_column, known)
        check_sweep(part.one.by_column, mask.T, by_column, by_row, known)
        at_rows = [part.layout.rows.position(x, residue) - size.q_start for x in rows]
        at_keys = [part.layout.keys.position(y, residue) - size.k_start for y in keys]
        assert all(0 <= at < size.n for at in at_rows) and all(0 <= at < size.m for at in at_keys)
        times[np.ix_(at_rows, at_keys)] += mask
    return times
