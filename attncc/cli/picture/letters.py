"""Letters as pixels: `letters.png` holds them, in sixteen greys, for pictures that are made of pixels.

Each letter has a cell of its own, plain ones first, then bold ones. The last line of a cell tells how far the next
letter stands from this one: so many pixels are set. The shapes are those of DejaVu Sans (dejavu-fonts.github.io,
under the Bitstream Vera licence) at 22 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

LETTERS = "".join(map(chr, range(32, 127))) + "×–…≤≥·"
GREYS = 16
SIZE = 22  # pixels of the type: from the foot of one line to the next they need some more
BASELINE = 21  # lines of a cell above the foot of a letter
BEARING = 2  # pixels of a cell before the place where a letter begins: some reach back
CELL = 30
PER_LINE = 16
_UNKNOWN = "?"


@dataclass(frozen=True, slots=True, eq=False)
class Letter:
    """How dark each pixel is, 0 … GREYS - 1, and how many pixels the letter takes."""

    ink: NDArray[Any]
    advance: int


@cache
def alphabet(bold: bool) -> dict[str, Letter]:
    """Every letter of a weight."""
    from attncc.cli.picture.png import decode

    sheet = decode(Path(__file__).with_name("letters.png").read_bytes())
    lines = -(-len(LETTERS) // PER_LINE)
    found = {}
    for at, letter in enumerate(LETTERS):
        top = (at // PER_LINE + (lines if bold else 0)) * CELL
        cell = sheet[top : top + CELL, at % PER_LINE * CELL :][:, :CELL]
        found[letter] = Letter(cell[:-1], int((cell[-1] > 0).sum()))
    return found


def letters_of(text: str, bold: bool) -> list[Letter]:
    """The letters of a text, with `?` for those that are not there."""
    known = alphabet(bold)
    return [known.get(each, known[_UNKNOWN]) for each in text]


def width_of(text: str, bold: bool = False) -> int:
    """The pixels that a text takes."""
    return sum(each.advance for each in letters_of(text, bold))
