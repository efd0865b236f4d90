"""Tiles on CPUs: as large as pays for the pattern, and while what a tile works on stays in a core's cache.

A larger tile spends less on what each one begins with, but computes more pairs that are not related, where runs of
keys begin and end. Which of the two weighs more is found by counting the pairs in the tiles of a sample call.
"""

from __future__ import annotations

from attncc.plan.density import Call, density, density_of_piece
from attncc.plan.pieces import Pieces
from attncc.plan.ranges import Domain

SMALLEST = 32
CARRIED = 16  # where sums go from tile to tile: only pairs within the rows' own tile are left to be computed
_SPEEDS = {64: 1.0, 32: 0.85}  # pairs a second in tiles with so many rows and keys, against the best
_TOKENS = 2048  # of the sample call
_HEADS = 8


def edge_for(domain: Domain, pieces: Pieces | None) -> int:
    """How many rows and keys a tile has for vectors that are narrow enough."""
    try:
        times = {edge: _pairs(domain, pieces, edge) / speed for edge, speed in _SPEEDS.items()}
    except IndexError:  # a list of the pattern is for other numbers of heads
        return SMALLEST
    return min(times, key=lambda edge: times[edge])


def _pairs(domain: Domain, pieces: Pieces | None, edge: int) -> int:
    """The pairs that a call computes, related or not."""
    call = Call(_TOKENS, _TOKENS, _HEADS, 0, (edge, edge))
    if pieces is None or call.m < pieces.least:
        return density(domain, call, pairs=0).scores  # related ones need not be counted
    return sum(density_of_piece(each, call, pairs=0).scores for each in pieces.pieces)
