"""Where everything of a picture stands, in pixels: texts, legend, ticks and panels. Nothing is drawn here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from attncc.cli.picture.letters import width_of
from attncc.cli.picture.shades import MEANINGS, Shade
from attncc.cli.picture.words import ticks
from attncc.plan.mask import Look

LINE_HEIGHT = 32
_MARGIN = 40
_GAP = 56  # between panels
_TICK = 8
_SWATCH = 22
_LEAST = 48  # pixels of a side, however few its pairs are
_LARGEST_CELL = 40
# pixels of a panel's longer side, by the number of panels
_SIDES = ((1, 760), (2, 620), (4, 540), (9, 500), (1 << 30, 400))


class Anchor(Enum):
    """Which end of a text stands at its place."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


@dataclass(frozen=True, slots=True)
class Label:
    """A text whose foot stands at a place; an upright one is read from below."""

    x: int
    y: int
    text: str
    anchor: Anchor = Anchor.START
    bold: bool = False
    dim: bool = False
    upright: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of one shade, or a tick where there is no shade."""

    x: int
    y: int
    width: int
    height: int
    shade: Shade | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """A look and its place: cells of so many pixels, with a gutter between tiles."""

    look: Look
    x: int
    y: int
    cell: tuple[int, int]  # height and width
    gutter: int

    @property
    def height(self) -> int:
        """The pixels of all rows."""
        return self.row(len(self.look.rows) - 1) + self.cell[0] - self.y

    @property
    def width(self) -> int:
        """The pixels of all columns."""
        return self.column(len(self.look.keys) - 1) + self.cell[1] - self.x

    def row(self, at: int) -> int:
        """The first line of pixels of a row."""
        return self.y + at * self.cell[0] + at // self.look.tile[0] * self.gutter

    def column(self, at: int) -> int:
        """The first pixels of a column."""
        return self.x + at * self.cell[1] + at // self.look.tile[1] * self.gutter


@dataclass(frozen=True, slots=True)
class Words:
    """The texts beside panels: over and under all of them, and for each its title, pattern and figures."""

    title: str
    subtitle: str
    footer: tuple[str, ...]
    panels: tuple[tuple[str, str, tuple[str, ...]], ...]
    legend: tuple[Shade, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole picture."""

    width: int
    height: int
    labels: tuple[Label, ...]
    boxes: tuple[Box, ...]
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """A panel with its texts, placed as if it stood alone in the corner."""

    width: int
    height: int
    labels: tuple[Label, ...]
    boxes: tuple[Box, ...]
    panel: Panel


def layout(looks: Sequence[Look], words: Words, gutter: int) -> Page:
    """The picture of some looks, in rows of panels."""
    parts = [_part(look, text, len(looks), gutter) for look, text in zip(looks, words.panels, strict=True)]
    across = _across(parts)
    width = max(part.width for part in parts)
    whole = across * width + (across - 1) * _GAP
    whole = max(whole, width_of(words.title, bold=True), *(width_of(text) for text in (words.subtitle, *words.footer)))
    labels = [
        Label(_MARGIN, _MARGIN + LINE_HEIGHT - 8, words.title, bold=True),
        Label(_MARGIN, _MARGIN + 2 * LINE_HEIGHT - 8, words.subtitle, dim=True),
    ]
    boxes: list[Box] = []
    panels: list[Panel] = []
    y = _MARGIN + 2 * LINE_HEIGHT + 24
    for at in range(0, len(parts), across):
        line = parts[at : at + across]
        for place, part in enumerate(line):
            x = _MARGIN + place * (width + _GAP)
            labels += [replace(each, x=each.x + x, y=each.y + y) for each in part.labels]
            boxes += [replace(each, x=each.x + x, y=each.y + y) for each in part.boxes]
            panels.append(replace(part.panel, x=part.panel.x + x, y=part.panel.y + y))
        y += max(part.height for part in line) + 36
    for place, text in enumerate(words.footer):
        labels.append(Label(_MARGIN, y + LINE_HEIGHT - 8, text, bold=place == 0))
        y += LINE_HEIGHT
    more_labels, more_boxes, y = _legend(words.legend, whole, y + (20 if words.footer else 0))
    return Page(whole + 2 * _MARGIN, y + _MARGIN - 8, (*labels, *more_labels), (*boxes, *more_boxes), tuple(panels))


def _across(parts: Sequence[_Part]) -> int:
    """How many panels stand side by side, so that the whole is about as wide as high, and no line is left short."""
    width, height = max(part.width for part in parts), max(part.height for part in parts)
    ideal = max(1, round(math.sqrt(len(parts) * height / width)))
    lines = -(-len(parts) // ideal)
    return -(-len(parts) // lines)


def _part(look: Look, text: tuple[str, str, tuple[str, ...]], count: int, gutter: int) -> _Part:
    heading, pattern, figures = text
    panel = Panel(look, 0, 0, _cell(look, count), gutter)
    named = ticks(look.rows, panel.height // (LINE_HEIGHT + 20))
    left = max(width_of(str(each)) for each in named) + _TICK + 6
    axis = "query position i"
    is_tall = width_of(axis) <= panel.height
    left += LINE_HEIGHT if is_tall else width_of("i ")
    panel = replace(panel, x=left, y=2 * LINE_HEIGHT + 12)
    right, bottom = panel.x + panel.width, panel.y + panel.height
    room = max(panel.width, *map(width_of, figures))
    labels = [
        Label(left, LINE_HEIGHT - 8, _cut(heading, room, bold=True), bold=True),
        Label(left, 2 * LINE_HEIGHT - 8, _cut(pattern, room), dim=True),
        Label(LINE_HEIGHT - 10, panel.y + panel.height // 2, axis, Anchor.MIDDLE, dim=True, upright=True)
        if is_tall
        else Label(0, panel.y + panel.height // 2 + 8, "i", dim=True),
    ]
    boxes: list[Box] = []
    for position in named:
        y = panel.row(position - look.rows.start) + panel.cell[0] // 2
        labels.append(Label(left - _TICK - 6, y + 8, str(position), Anchor.END))
        boxes.append(Box(left - _TICK - 1, y - 1, _TICK, 2))
    widest = width_of(str(max(look.keys, key=lambda each: len(str(each))))) + 28
    for position in ticks(look.keys, panel.width // widest):
        x = panel.column(position - look.keys.start) + panel.cell[1] // 2
        labels.append(Label(x, bottom + _TICK + 26, str(position), Anchor.MIDDLE))
        boxes.append(Box(x - 1, bottom + 1, 2, _TICK))
    name = "key position j" if width_of("key position j") <= panel.width else "j"
    y = bottom + _TICK + LINE_HEIGHT + 26
    labels.append(Label(panel.x + panel.width // 2, y, name, Anchor.MIDDLE, dim=True))
    y += 14
    for line in figures:
        y += LINE_HEIGHT
        labels.append(Label(left, y, line))
    width = max([right, *(left + width_of(line) for line in figures), left + min(room, width_of(pattern))])
    return _Part(width, y + 8, tuple(labels), tuple(boxes), panel)


def _cell(look: Look, count: int) -> tuple[int, int]:
    """Height and width of a pair: squares, but for strips of so few rows or columns that they could not be seen."""
    n, m = len(look.rows), len(look.keys)
    side = next(pixels for most, pixels in _SIDES if count <= most)
    longer = max(n, m)
    square = -(-side // longer)
    if square * longer > 1.5 * side:
        square = max(1, side // longer)
    square = min(square, _LARGEST_CELL)
    return max(square, -(-_LEAST // n)), max(square, -(-_LEAST // m))


def _cut(text: str, room: int, *, bold: bool = False) -> str:
    """The text, or its beginning and `…` where it is wider than its room."""
    if width_of(text, bold) <= room:
        return text
    kept = len(text)
    while kept and width_of(text[:kept] + "…", bold) > room:
        kept -= 1
    return text[:kept].rstrip() + "…"


def _legend(shown: Sequence[Shade], room: int, y: int) -> tuple[list[Label], list[Box], int]:
    """The legend under all panels, in as many lines as it takes; and where it ends."""
    labels: list[Label] = []
    boxes: list[Box] = []
    wide = max(_SWATCH + 12 + width_of(MEANINGS[shade]) for shade in shown) + 36
    across = len(shown) if len(shown) * wide <= room else max(1, min(2, room // wide))
    for at, shade in enumerate(shown):
        if at and at % across == 0:
            y += LINE_HEIGHT + 4
        x = at % across * wide
        boxes.append(Box(_MARGIN + x, y + 4, _SWATCH, _SWATCH, shade))
        labels.append(Label(_MARGIN + x + _SWATCH + 12, y + LINE_HEIGHT - 9, MEANINGS[shade]))
    return labels, boxes, y + LINE_HEIGHT
