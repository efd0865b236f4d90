"""A page → a PNG picture. Each pair has pixels of its own: no line is drawn over one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncc.cli.picture.layout import Anchor, Label, Page, Panel
from attncc.cli.picture.letters import BASELINE, BEARING, CELL, GREYS, letters_of, width_of
from attncc.cli.picture.png import Color, encode
from attncc.cli.picture.shades import COLORS, DIM, INK, LINE, PAPER, Shade, shades

if TYPE_CHECKING:
    from numpy.typing import NDArray

GUTTER = 2
_FINE = 8  # cells of so many pixels are set apart
_DOTS_PER_METER = 7559  # 192 to the inch: text comes out at 8 points


def _mix(color: Color, part: float) -> Color:
    """The color on paper, so thick."""
    red, green, blue = (round(paper + (own - paper) * part) for own, paper in zip(color, PAPER, strict=True))
    return red, green, blue


_INK, _DIM = 0, GREYS  # where the greys of letters begin in the palette
_SHADES = 2 * GREYS
_EDGES = _SHADES + len(Shade)  # the same shades between the pairs of a tile
_LINE = _EDGES + len(Shade)
PALETTE: tuple[Color, ...] = (
    *(_mix(INK, at / (GREYS - 1)) for at in range(GREYS)),
    *(_mix(DIM, at / (GREYS - 1)) for at in range(GREYS)),
    *(COLORS[each] for each in Shade),
    *(_mix(COLORS[each], 0.7) for each in Shade),
    LINE,
)


def to_png(page: Page) -> bytes:
    """The bytes of the picture."""
    import numpy as np

    image = np.zeros((page.height, page.width), dtype=np.uint8)
    for panel in page.panels:
        _paint_panel(image, panel)
    for box in page.boxes:
        place = image[box.y : box.y + box.height, box.x : box.x + box.width]
        if box.shade is None:
            place[:] = _DIM + GREYS - 1
        else:
            place[:] = _LINE
            place[2:-2, 2:-2] = _SHADES + box.shade
    for label in page.labels:
        _paint_label(image, label)
    return encode(image, PALETTE, dots_per_meter=_DOTS_PER_METER)


def _paint_panel(image: NDArray[Any], panel: Panel) -> None:
    rows, thin_rows = _lines(len(panel.look.rows), panel.cell[0], panel.look.tile[0], panel.gutter)
    columns, thin_columns = _lines(len(panel.look.keys), panel.cell[1], panel.look.tile[1], panel.gutter)
    frame = image[panel.y - 2 : panel.y + len(rows) + 2, panel.x - 2 : panel.x + len(columns) + 2]
    frame[:] = _LINE
    inner = frame[2:-2, 2:-2]
    inner[:] = (shades(panel.look) + _SHADES)[rows][:, columns]
    if min(panel.cell) >= _FINE:
        inner[thin_rows[:, None] | thin_columns[None, :]] += _EDGES - _SHADES
    inner[rows < 0] = _LINE
    inner[:, columns < 0] = _LINE


def _lines(count: int, size: int, tile: int, gutter: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """For every line of pixels of a panel: its row or column, -1 in a gutter; and whether it ends a cell."""
    import numpy as np

    at = np.arange(count)
    found = np.full(count * size + (count - 1) // tile * gutter, -1)
    starts = at * size + at // tile * gutter
    for step in range(size):
        found[starts + step] = at
    ends = np.zeros(len(found), dtype=np.bool_)
    ends[starts[(at + 1) % tile != 0] + size - 1] = True
    ends[-1] = False
    return found, ends


def _paint_label(image: NDArray[Any], label: Label) -> None:
    """Letters, the darker of two where they meet; on a page that is turned for those that are read from below."""
    import numpy as np

    width = width_of(label.text, label.bold)
    strip = np.zeros((CELL - 1, width + CELL), dtype=np.uint8)
    x = BEARING
    for letter in letters_of(label.text, label.bold):
        place = strip[:, x - BEARING : x - BEARING + CELL]
        np.maximum(place, letter.ink, out=place)
        x += letter.advance
    strip = strip[:, : x + 2]
    back = {Anchor.START: 0, Anchor.MIDDLE: width // 2, Anchor.END: width}[label.anchor] + BEARING
    if label.upright:
        strip = np.rot90(strip)
        top, left = label.y + back - strip.shape[0], label.x - BASELINE
    else:
        top, left = label.y - BASELINE, label.x - back
    strip = strip[max(0, -top) :, max(0, -left) :]
    place = image[max(0, top) :, max(0, left) :][: strip.shape[0], : strip.shape[1]]
    strip = strip[: place.shape[0], : place.shape[1]]
    place[strip > 0] = strip[strip > 0] + (_DIM if label.dim else _INK)
