"""What a pair looks like: a shade for each thing that can be true of it, the same in every form of picture.

Blue and orange are told apart by every common kind of colour blindness, and the shades also differ in lightness, so
that they survive a grey printer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from attncc.plan.mask import Look, State

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Shade(IntEnum):
    """What is true of a pair."""

    SKIPPED = 0  # not related, in a tile that is skipped
    MASKED = 1  # not related, but computed, because it shares a tile with related ones
    PARTIAL = 2  # related, in a tile with a mask
    FULL = 3  # related, in a tile that needs no mask
    WRONG = 4  # related and skipped, or not related and not masked: the ranges do not fit the pattern


COLORS = {
    Shade.SKIPPED: (0xFF, 0xFF, 0xFF),
    Shade.MASKED: (0xFB, 0xDF, 0xB3),
    Shade.PARTIAL: (0x5A, 0xA5, 0xDA),
    Shade.FULL: (0x0B, 0x4F, 0x8F),
    Shade.WRONG: (0xD5, 0x00, 0x32),
}
INK, DIM, LINE, PAPER = (0x1F, 0x23, 0x28), (0x59, 0x63, 0x6E), (0xC4, 0xCB, 0xD3), (0xFF, 0xFF, 0xFF)
MEANINGS = {
    Shade.FULL: "related, tile without a mask",
    Shade.PARTIAL: "related, tile with a mask",
    Shade.MASKED: "computed, then masked",
    Shade.SKIPPED: "skipped",
    Shade.WRONG: "a fault of attncc",
}

# by the state of a tile, in its order: first of pairs that are not related, then of those that are
_SHADES = (Shade.SKIPPED, Shade.MASKED, Shade.WRONG, Shade.WRONG, Shade.PARTIAL, Shade.FULL)


def shades(look: Look) -> NDArray[Any]:
    """The shade of every pair."""
    import numpy as np

    rows, columns = look.tile
    n, m = look.related.shape
    states = look.states.repeat(rows, axis=0)[:n].repeat(columns, axis=1)[:, :m]
    found: NDArray[Any] = np.array(_SHADES, dtype=np.uint8)[states + np.uint8(len(State)) * look.related]
    return found


def legend(found: Iterable[NDArray[Any]]) -> list[Shade]:
    """The shades to explain: always the same, and the one that should never be seen where it is."""
    is_wrong = any((each == Shade.WRONG).any() for each in found)
    return [each for each in MEANINGS if each is not Shade.WRONG or is_wrong]
