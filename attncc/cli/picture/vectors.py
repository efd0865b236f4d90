"""A page → an SVG picture: one path for the related pairs of a panel, one for each kind of tile."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from attncc.cli.picture.layout import Box, Label, Page, Panel
from attncc.cli.picture.letters import SIZE
from attncc.cli.picture.outline import corners, path
from attncc.cli.picture.png import Color
from attncc.cli.picture.shades import COLORS, DIM, INK, LINE, PAPER, Shade, shades
from attncc.plan.mask import State

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CORNERS = 1 << 19  # of a page: about two megabytes
_FINE = 8  # cells of so many pixels are set apart


def corner_count(page: Page) -> int:
    """How many points the page's paths turn at: what the file's size follows."""
    return sum(len(corners(panel.look.related)) for panel in page.panels)


def to_svg(page: Page, title: str) -> str:
    """The text of the picture."""
    size = f'viewBox="0 0 {page.width} {page.height}" width="{page.width // 2}" height="{page.height // 2}"'
    font = f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="{SIZE}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title" {font}>',
        f'<title id="title">{escape(title)}</title>',
        f'<rect width="{page.width}" height="{page.height}" fill="{_hex(PAPER)}"/>',
    ]
    for panel in page.panels:
        lines += _panel(panel)
    lines += [_box(each) for each in page.boxes]
    lines += [_label(each) for each in page.labels]
    return "\n".join((*lines, "</svg>", ""))


def _panel(panel: Panel) -> list[str]:
    """Layers, each over the one before it: visited tiles, related pairs, tiles without a mask, edges of tiles."""
    look = panel.look
    n, m = look.related.shape
    rows, columns = look.tile
    width, height = panel.cell[1] * m, panel.cell[0] * n
    states = look.states.repeat(rows, axis=0)[:n].repeat(columns, axis=1)[:, :m]
    layers: list[tuple[str, NDArray[Any], Color]] = [
        ("visited", states != State.EMPTY, COLORS[Shade.MASKED]),
        ("related", look.related, COLORS[Shade.PARTIAL]),
        ("unmasked", states == State.FULL, COLORS[Shade.FULL]),
        ("wrong", shades(look) == Shade.WRONG, COLORS[Shade.WRONG]),
    ]
    heads = " ".join(map(str, look.heads))
    lines = [
        f'<g class="panel" data-heads="{heads}" transform="translate({panel.x} {panel.y})">',
        f'<g transform="scale({panel.cell[1]} {panel.cell[0]})" fill-rule="evenodd" shape-rendering="crispEdges">',
        *(
            f'<path class="{name}" fill="{_hex(color)}" d="{path(cells)}"/>'
            for name, cells, color in layers
            if cells.any()
        ),
        "</g>",
    ]
    if min(panel.cell) >= _FINE:
        lines.append(_grid("pairs", (width, height), panel.cell, PAPER, 'stroke-opacity="0.35"'))
    sizes = (rows * panel.cell[0], columns * panel.cell[1])
    lines.append(_grid("tiles", (width, height), sizes, LINE, 'stroke-width="2"'))
    lines += [f'<rect width="{width}" height="{height}" fill="none" stroke="{_hex(LINE)}" stroke-width="2"/>', "</g>"]
    return lines


def _grid(name: str, size: tuple[int, int], step: tuple[int, int], color: Color, more: str) -> str:
    """Lines between cells of a size: height and width in `step`."""
    width, height = size
    down = "".join(f"M{x} 0v{height}" for x in range(step[1], width, step[1]))
    across = "".join(f"M0 {y}h{width}" for y in range(step[0], height, step[0]))
    return f'<path class="{name}" fill="none" stroke="{_hex(color)}" {more} d="{down}{across}"/>'


def _box(box: Box) -> str:
    fill = DIM if box.shade is None else COLORS[box.shade]
    edge = "" if box.shade is None else f' stroke="{_hex(LINE)}" stroke-width="2"'
    return f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" fill="{_hex(fill)}"{edge}/>'


def _label(label: Label) -> str:
    place = f"translate({label.x} {label.y}) rotate(-90)" if label.upright else ""
    where = f'transform="{place}"' if place else f'x="{label.x}" y="{label.y}"'
    weight = ' font-weight="bold"' if label.bold else ""
    fill = _hex(DIM if label.dim else INK)
    return f'<text {where} fill="{fill}" text-anchor="{label.anchor.value}"{weight}>{escape(label.text)}</text>'


def _hex(color: Color) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)
