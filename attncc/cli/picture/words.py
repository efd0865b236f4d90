"""The words of a picture: titles, figures, and the positions that are named on an axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attncc.plan.density import Density
from attncc.plan.mask import Look


def title(name: str, parameters: Mapping[str, int | float]) -> str:
    """The name of a spec and its parameters."""
    shown = ", ".join(f"{each} = {value}" for each, value in parameters.items())
    return f"{name} ({shown})" if shown else name


def subtitle(n: int, m: int, heads: int, start: int, *, made_up: bool = False) -> str:
    """The lengths of a call, where its first query stands if not at the first key, and whether data are made up."""
    stands = f", the first query at position {start}" if start else ""
    return f"n = {n}, m = {m}, {count(heads, 'head')}{stands}{', data made up' if made_up else ''}"


MADE_UP = (
    "Data decide which pairs are related: these are made up, the same every time.",
    "Tiles hold a related pair where tokens stand in their order; kernels may sort or gather them.",
)


def heads_text(heads: tuple[int, ...], every: int) -> str:
    """`every head`, `head 3`, `heads 0, 2-5`."""
    if len(heads) == every:
        return "every head"
    runs: list[tuple[int, int]] = []
    for head in heads:
        if runs and runs[-1][1] == head - 1:
            runs[-1] = (runs[-1][0], head)
        else:
            runs.append((head, head))
    parts = [
        f"{low}" if low == high else f"{low}, {high}" if high == low + 1 else f"{low}-{high}" for low, high in runs
    ]
    return f"head{'s' if len(heads) > 1 else ''} {', '.join(parts)}"


def counts_text(found: Density, tiles: int, pairs: int, *, each: bool = False) -> list[str]:
    """The figures of one head as sentences, one a line; `each` says that others have the same."""
    visited = f"{found.touched:,} of {count(tiles, 'tile')} visited" + (" in each" if each else "")
    return [
        f"{visited}: {found.full:,} without a mask, {found.partial:,} with one",
        f"{found.pairs:,} of {count(pairs, 'pair')} related ({share(found.pairs, pairs)})",
        f"{found.waste:.2f} scores computed for each of them" if found.pairs else "no score is computed",
    ]


def count(number: int, what: str) -> str:
    """`1 tile`, `2,000 tiles`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def share(part: int, whole: int) -> str:
    """A part of a whole in per cent, with the digits that matter."""
    return f"{100 * part / whole:.3g} %" if whole else "0 %"


def ticks(positions: range, most: int) -> list[int]:
    """The positions to name on an axis: multiples of a power of two, at most so many."""
    step = 1
    while _multiples(positions, step) > max(1, most):
        step *= 2
    return [each for each in positions if each % step == 0] or [positions[0]]


def _multiples(positions: range, step: int) -> int:
    return (positions.stop - 1) // step - (positions.start - 1) // step


def figures(looks: Iterable[Look], everything: Density, every: int) -> list[tuple[str, ...]]:
    """The table of figures: a line for each look, and one for all of them together; numbers stand to the right."""
    head = ("", "tiles", "visited", "no mask", "masked", "related pairs", "scores a pair")
    found = list(looks)
    shown = sum(len(look.heads) for look in found)
    lines = [(_of_each(look, every), look.states.size, look.density) for look in found]
    if shown > 1:
        tiles = sum(look.states.size * len(look.heads) for look in found)
        lines.append(("all of them" if shown < every else f"all {every} heads", tiles, everything))
    rows = [head, *((name, *_numbers(tiles, density)) for name, tiles, density in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [(row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))) for row in rows]


def _of_each(look: Look, every: int) -> str:
    shown = heads_text(look.heads, every)
    return shown if len(look.heads) in (1, every) else f"each of {shown}"


def _numbers(tiles: int, found: Density) -> tuple[str, ...]:
    counts = (tiles, found.touched, found.full, found.partial, found.pairs)
    return (*(f"{each:,}" for each in counts), f"{found.waste:.2f}")
