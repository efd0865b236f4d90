"""A look → lines of characters: two pairs a character, or more of them where the terminal is smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attncc.cli.picture.shades import Shade, shades
from attncc.cli.picture.words import ticks
from attncc.plan.mask import Look, State

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNICODE = "┌─┐│└┘", " ▀▄█", " ░▒▓█", "·▒█"
_ASCII = "+-+|++", " '.#", " .+*#", ".+#"
# of the 256 colours that terminals have; nothing is painted where a kernel does nothing
_COLORS = {Shade.MASKED: 223, Shade.PARTIAL: 74, Shade.FULL: 25, Shade.WRONG: 160}
_LABEL_LINES = 4  # lines from one position that is named to the next
_LEAST_LINES = 8
_MOST_TILES = 64  # of a column that are shown


@dataclass(frozen=True, slots=True)
class Terminal:
    """What can be shown: characters, colours, columns, and lines (0 where they do not end)."""

    columns: int
    lines: int
    is_unicode: bool
    is_colored: bool

    @property
    def characters(self) -> tuple[str, str, str, str]:
        """Frames; upper and lower half; how much of a square; what is done with a tile."""
        return _UNICODE if self.is_unicode else _ASCII


def can_draw(encoding: str | None) -> bool:
    """Whether an encoding has the characters of pictures."""
    try:
        "".join(_UNICODE).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def drawing(look: Look, terminal: Terminal) -> list[str]:
    """The pairs in a frame with positions beside it, the tiles next to it or under it, and what a character is."""
    scale = _scale(look, terminal)
    tiles = _tile_map(look, terminal)
    lines = _framed(look, terminal, scale)
    wide = _label_width(look) + 2 + -(-len(look.keys) // scale)
    beside = 3 + len(look.states[0]) * _tile_width(look)
    if wide + beside <= terminal.columns and len(tiles) <= len(lines) - 2:
        padding = ["", "", *tiles, *[""] * (len(lines) - 2 - len(tiles))]
        lines = [f"{line}   {tile}".rstrip() if tile else line for line, tile in zip(lines, padding, strict=True)]
    else:
        lines += [" " * (_label_width(look) + 1) + tile for tile in tiles]
    return lines


def scale_text(look: Look, terminal: Terminal) -> str:
    """What a character of the drawing is."""
    scale = _scale(look, terminal)
    _, halves, squares, kinds = terminal.characters
    rows, columns = look.tile
    tile = f"Tiles of {rows} x {columns}: {kinds[0]} skipped  {kinds[1]} with a mask  {kinds[2]} without a mask"
    if scale == 1:
        what = "A character is 2 queries i by 1 key j"
        if not terminal.is_unicode:
            what += f": {halves[1]} is the upper pair, {halves[2]} the lower one, {halves[3]} both"
    else:
        some = " ".join(squares[1:-1])
        what = f"Scaled down: a character is {2 * scale} queries i by {scale} keys j"
        what += f": {some} some related, {squares[-1]} all"
    return f"{what}\n{tile}"


def _scale(look: Look, terminal: Terminal) -> int:
    """How many pairs of a row a character stands for."""
    room = max(8, terminal.columns - _label_width(look) - 2)
    lines = max(_LEAST_LINES, terminal.lines) if terminal.lines else len(look.rows)
    return max(1, -(-len(look.keys) // room), -(-len(look.rows) // (2 * lines)))


def _label_width(look: Look) -> int:
    return max(len(str(look.rows[0])), len(str(look.rows[-1])), 3)


def _framed(look: Look, terminal: Terminal, scale: int) -> list[str]:
    frame = terminal.characters[0]
    cells = _halves(look, terminal) if scale == 1 else _squares(look, terminal, scale)
    wide = -(-len(look.keys) // scale)
    margin = _label_width(look)
    named = {(each - look.rows.start) // (2 * scale): str(each) for each in _named_rows(look, len(cells))}
    lines = [f"{'i j':>{margin}} " + _named_keys(look, wide, scale)]
    lines.append(" " * margin + frame[0] + frame[1] * wide + frame[2])
    lines += [f"{named.get(at, ''):>{margin}}{frame[3]}{line}{frame[3]}" for at, line in enumerate(cells)]
    lines.append(" " * margin + frame[4] + frame[1] * wide + frame[5])
    return lines


def _named_rows(look: Look, lines: int) -> list[int]:
    return ticks(look.rows, max(1, lines // _LABEL_LINES))


def _named_keys(look: Look, wide: int, scale: int) -> str:
    """The positions of some keys, each over the character that it begins."""
    longest = max(len(str(look.keys[0])), len(str(look.keys[-1])))
    line = ""
    for each in ticks(look.keys, wide // (longest + 3)):
        line = line.ljust((each - look.keys.start) // scale) + str(each)
    return line


def _halves(look: Look, terminal: Terminal) -> list[str]:
    """A line for every two rows, in which a character has an upper and a lower half."""
    import numpy as np

    found = shades(look)
    if len(found) % 2:
        found = np.pad(found, ((0, 1), (0, 0)))
    return [
        "".join(_half(int(upper), int(lower), terminal) for upper, lower in zip(*pair, strict=True))
        if not terminal.is_colored
        else _painted([_half_color(int(upper), int(lower)) for upper, lower in zip(*pair, strict=True)])
        for pair in zip(found[::2], found[1::2], strict=True)
    ]


def _half(upper: int, lower: int, terminal: Terminal) -> str:
    return terminal.characters[1][(upper >= Shade.PARTIAL) + 2 * (lower >= Shade.PARTIAL)]


def _half_color(upper: int, lower: int) -> tuple[str, int | None, int | None]:
    """A character, its colour, and that of its ground."""
    above, below = _COLORS.get(Shade(upper)), _COLORS.get(Shade(lower))
    if above is None:
        return (" ", None, None) if below is None else ("▄", below, None)
    return ("█", above, None) if above == below else ("▀", above, below)


def _squares(look: Look, terminal: Terminal, scale: int) -> list[str]:
    """A line for every 2 * scale rows, in which a character tells how much of its pairs are related."""
    import numpy as np

    n, m = look.related.shape
    rows, columns = np.arange(0, n, 2 * scale), np.arange(0, m, scale)
    related = _sums(look.related, rows, columns)
    visited = _sums(shades(look) != Shade.SKIPPED, rows, columns)
    areas = np.diff(np.append(rows, n))[:, None] * np.diff(np.append(columns, m))[None, :]
    # from 0 for none to 4 for all, and only for those
    amounts = np.where(related == areas, 4, -(-3 * related // areas)).astype(int)
    if not terminal.is_colored:
        return ["".join(terminal.characters[2][amount] for amount in line) for line in amounts.tolist()]
    return [
        _painted([_square_color(terminal, amount, is_visited) for amount, is_visited in zip(line, ground, strict=True)])
        for line, ground in zip(amounts.tolist(), (visited > 0).tolist(), strict=True)
    ]


def _square_color(terminal: Terminal, amount: int, is_visited: bool) -> tuple[str, int | None, int | None]:
    color = _COLORS[Shade.FULL] if amount == 4 else _COLORS[Shade.PARTIAL]
    return terminal.characters[2][amount], color, _COLORS[Shade.MASKED] if is_visited else None


def _sums(cells: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    return np.add.reduceat(np.add.reduceat(cells, columns, axis=1, dtype=np.int64), rows, axis=0)


def _painted(cells: Sequence[tuple[str, int | None, int | None]]) -> str:
    """Characters with their colours; a colour is set where it changes."""
    parts: list[str] = []
    now: tuple[int | None, int | None] = (None, None)
    for character, color, ground in cells:
        if (color, ground) != now:
            codes = [f"38;5;{color}" if color is not None else "", f"48;5;{ground}" if ground is not None else ""]
            parts.append(f"\x1b[{';'.join(('0', *(each for each in codes if each)))}m")
            now = (color, ground)
        parts.append(character)
    if now != (None, None):
        parts.append("\x1b[0m")
    return "".join(parts)


def _tile_width(look: Look) -> int:
    """Characters of a tile in the small map, so that it has its shape: a character is twice as high as wide."""
    rows, columns = look.tile
    return max(1, min(4, round(2 * columns / rows)))


def _tile_map(look: Look, terminal: Terminal) -> list[str]:
    """A line for every row of tiles."""
    kinds = terminal.characters[3]
    wide = _tile_width(look)
    if len(look.states) > _MOST_TILES or _label_width(look) + 1 + look.states.shape[1] * wide > terminal.columns:
        return [f"({' x '.join(map(str, look.states.shape))} tiles: too many to be shown)"]
    if not terminal.is_colored:
        return ["".join(kinds[state] * wide for state in line) for line in look.states.tolist()]
    colors = {State.EMPTY: None, State.PARTIAL: _COLORS[Shade.PARTIAL], State.FULL: _COLORS[Shade.FULL]}
    return [
        _painted([(kinds[state], colors[State(state)], None) for state in line for _ in range(wide)])
        for line in look.states.tolist()
    ]
