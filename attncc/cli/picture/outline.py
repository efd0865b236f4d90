"""The border of a set of cells as the data of an SVG path, filled by the even-odd rule.

One outline instead of a rectangle for each run leaves no seams between rows, at any size.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def corners(cells: NDArray[Any]) -> NDArray[Any]:
    """The points (row, column) where the border turns, by rows; twice where two cells meet at a point only."""
    import numpy as np

    padded = np.pad(cells, 1)
    above, below = padded[:-1], padded[1:]
    odd = above[:, :-1] ^ above[:, 1:] ^ below[:, :-1] ^ below[:, 1:]
    crossed = (above[:, :-1] == below[:, 1:]) & (above[:, 1:] == below[:, :-1]) & (above[:, :-1] != above[:, 1:])
    times = odd.astype(np.uint8) + 2 * crossed.astype(np.uint8)
    points = np.argwhere(times)
    return points.repeat(times[points[:, 0], points[:, 1]], axis=0)


def path(cells: NDArray[Any]) -> str:
    """The path, with a cell for a unit."""
    import numpy as np

    points = corners(cells)
    by_column = np.lexsort((points[:, 0], points[:, 1]))
    # along a row or a column every two neighbours are the ends of a line
    beside = [at ^ 1 for at in range(len(points))]
    beyond = [0] * len(points)
    for one, other in zip(by_column[::2].tolist(), by_column[1::2].tolist(), strict=True):
        beyond[one], beyond[other] = other, one
    places = points.tolist()
    seen = bytearray(len(points))
    return "".join(_loop(start, places, beside, beyond, seen) for start in range(len(points)) if not seen[start])


def _loop(start: int, places: list[list[int]], beside: list[int], beyond: list[int], seen: bytearray) -> str:
    """One closed line: sideways, then up or down, until it is back; `seen` is told of its points."""
    turns = [start]
    at, is_sideways = start, True
    while True:
        seen[at] = 1
        at = (beside if is_sideways else beyond)[at]
        seen[at] = 1
        is_sideways = not is_sideways
        if at == start:
            break
        turns.append(at)
    row, column = places[start]
    parts = [f"M{column} {row}"]
    for one, other in pairwise(turns):
        (row, column), (next_row, next_column) = places[one], places[other]
        parts.append(f"h{next_column - column}" if next_row == row else f"v{next_row - row}")
    return "".join((*parts, "z"))
