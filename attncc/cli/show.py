"""`attncc show`: the pairs that a spec relates and the tiles that its kernels visit, drawn; runs nothing."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attncc.cli.command import OK, command
from attncc.cli.inputs import define_option, one_source, stdin_option
from attncc.cli.render import Screen, table

if TYPE_CHECKING:
    from attncc.plan.density import Call, Density
    from attncc.plan.mask import Look
    from attncc.plan.pieces import Pieces
    from attncc.plan.ranges import Domain
    from attncc.spec.model import Spec

_LONGEST = 4096
_MOST_HEADS = 1024
_MOST_PAIRS = 1 << 27  # of all panels
_MOST_PAIRS_BY_DATA = 1 << 23  # of all heads; each is computed as the dense meaning of the spec
_MOST_PANELS = 64
_WIDTH = 80  # columns where the output is no terminal
_OTHER_LINES = 14  # lines of a terminal that the rest of the output takes


def _tile_of(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """`ROWSxCOLUMNS` as two numbers."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", value)
    tile = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(0 < size <= _LONGEST for size in tile):
        raise click.BadParameter(f"found `{value}`, expected `ROWSxCOLUMNS`, each from 1 to {_LONGEST}, such as 16x16")
    return tile


def _picture_path(_context: click.Context, _option: click.Parameter, value: str | None) -> Path | None:
    """The path of a picture whose kind is known."""
    if value is not None and Path(value).suffix.lower() not in (".png", ".svg"):
        raise click.BadParameter(f"`{value}` ends in neither .png nor .svg")
    return None if value is None else Path(value)


@click.command("show")
@click.argument("file", metavar="FILE")
@define_option
@stdin_option
@click.option("--n", type=click.IntRange(1, _LONGEST), default=64, help="Rows of queries.  [64]")
@click.option("--m", type=click.IntRange(1, _LONGEST), help="Rows of keys.  [n]")
@click.option(
    "--heads",
    type=click.IntRange(1, _MOST_HEADS),
    help="Query heads, a panel for each.  [8, or as many as the spec has; a panel for those that look alike]",
)
@click.option("--head", "only", type=click.IntRange(0), multiple=True, help="Show this head only; may be repeated.")
@click.option(
    "--tile", callback=_tile_of, metavar="ROWSxCOLUMNS", help="Size of a tile.  [128x64, less for short calls]"
)
@click.option(
    "-o", "--output", callback=_picture_path, metavar="FILE", help="Write a .png or .svg file instead of drawing here."
)
@command(
    "Draw which pairs a spec relates, and which tiles kernels visit.",
    "attncc show specs/sliding_window.attn -D w=16",
    "attncc show specs/sliding_window.attn -D w=40 --n 512 -o window.png",
    "attncc show my.attn --head 0 --head 5 --tile 16x16",
    "attncc show specs/causal.attn --n 2048 --json",
)
def show(
    screen: Screen,
    file: str,
    define: Mapping[str, str],
    stdin_filename: str,
    n: int,
    m: int | None,
    heads: int | None,
    only: tuple[int, ...],
    tile: tuple[int, int] | None,
    output: Path | None,
) -> int:
    """The command's body; its help is made above."""
    source = one_source("show", file, stdin_filename)

    from attncc.plan.density import Call
    from attncc.plan.domain import analyse
    from attncc.plan.mask import looks, usual_tile
    from attncc.plan.outer import outer
    from attncc.plan.partition import partition
    from attncc.spec.model import Align
    from attncc.spec.resolve import load
    from attncc.spec.sides import reads_data

    spec = load(source, define)
    by_data = reads_data(spec.pattern)
    domain = analyse(outer(spec.pattern) if by_data else spec.pattern)
    every, shown = _heads(domain, heads, only)
    m = m or n
    call = Call(n, m, every, 0 if spec.align is Align.START else m - n, tile or usual_tile(n, m))
    if n * m * len(shown) > _MOST_PAIRS:
        raise click.UsageError(f"{len(shown)} heads of {n} x {m} pairs are too many: choose some with --head")
    apart = bool(heads or only)
    found = _by_data(spec, domain, call, shown, apart) if by_data else looks(domain, call, shown, apart=apart)
    if not any(look.related.any() for look in found):
        screen.note(f"no pair is related at n = {n}, m = {m}")
    pieces = None if by_data else partition(domain)
    written = {} if output is None else _write(output, spec, call, found)
    if screen.is_json:
        outputs = [{"path": str(path), "changed": changed} for path, changed in written.items()]
        screen.json(True, **_numbers(spec, call, found), pieces=_told(pieces), outputs=outputs)
        return OK
    for path, changed in written.items():
        screen.note(f"{'wrote' if changed else 'unchanged'}: {path}")
    _print(screen, spec, call, found, draw=output is None)
    if pieces is not None:
        told = _told(pieces)
        rows = [(each["heads"], each["pattern"], each["layout"]) for piece in told["pieces"] for each in piece]
        screen.data(f"\nPieces that suit calls with {pieces.least:,} keys or more; `attncc explain` says what runs")
        screen.data("\n".join(f"  {line}" for line in table(rows).splitlines()))
    return OK


def _by_data(spec: Spec, domain: Domain, call: Call, shown: tuple[int, ...], apart: bool) -> list[Look]:
    """What heads look like where data decide, with data that are made up."""
    from dataclasses import replace

    from attncc.check.made_up import made_up_pairs
    from attncc.plan.mask import looks_of_pairs

    if call.n * call.m * call.heads > _MOST_PAIRS_BY_DATA:
        message = f"{call.heads} heads of {call.n} x {call.m} pairs that data decide are too many: lower --n or --heads"
        raise click.UsageError(message)
    pairs = made_up_pairs(spec, call.n, call.m, call.heads, call.start)
    if pairs is None:
        raise click.UsageError("no data could be made up that fit the tables of this spec at these lengths")
    whole = replace(domain, classes=tuple(replace(each, pattern=spec.pattern) for each in domain.classes))
    return looks_of_pairs(whole, call, shown, pairs.numpy(), apart=apart)


def _told(pieces: Pieces | None) -> dict[str, Any]:
    """Each piece: the heads, pairs and layout of its parts."""
    from attncc.plan.describe import heads_text, where_text
    from attncc.spec.text import text

    if pieces is None:
        return {"least_keys": None, "pieces": []}
    parts = [
        [
            {"heads": heads_text(part.one), "pattern": text(part.pattern), "layout": where_text(part)}
            for part in each.parts
        ]
        for each in pieces.pieces
    ]
    return {"least_keys": pieces.least, "pieces": parts}


def _heads(domain: Domain, heads: int | None, only: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """How many heads there are, and those to show."""
    from attncc.plan.density import covered

    most = covered(domain, heads or 8)
    if most == 0 or (heads or 0) > most:
        raise click.UsageError(f"the lists of this spec give a pattern to {most} heads, and --heads is {heads}")
    every = heads or most
    for head in only:
        if head >= every:
            raise click.UsageError(f"there is no head {head}: --heads is {every}, and heads count from 0")
    return every, tuple(dict.fromkeys(only)) or tuple(range(every))


def _numbers(spec: Spec, call: Call, found: Sequence[Look]) -> dict[str, Any]:
    """The figures of every head, in the order of the heads, and of all of them together."""
    from attncc.plan.mask import total
    from attncc.spec.sides import reads_data
    from attncc.spec.text import text

    by_head = {head: look for look in found for head in look.heads}
    rows, columns = call.tile
    return {
        "name": spec.name,
        "spec": spec.source.name,
        "parameters": {each.name: each.value for each in spec.parameters},
        "sizes": {"n": call.n, "m": call.m, "heads": call.heads},
        "first_position": call.start,
        "data": "made up" if reads_data(spec.pattern) else None,
        "tile": {"rows": rows, "columns": columns},
        "heads": [
            {"head": head, "pattern": text(look.one.pattern)} | _counts(look.density, look.states.size)
            for head, look in sorted(by_head.items())
        ],
        "total": _counts(total(found), sum(look.states.size for look in by_head.values())),
    }


def _counts(found: Density, tiles: int) -> dict[str, Any]:
    counts = {name: value for name, value in asdict(found).items() if name in ("touched", "full", "partial", "pairs")}
    return {"tiles": tiles} | counts | {"waste": round(found.waste, 4)}


def _write(output: Path, spec: Spec, call: Call, found: Sequence[Look]) -> dict[Path, bool]:
    """Write the picture; says whether the file has changed."""
    from attncc.cli.picture.page import page
    from attncc.outputs import write_all

    if len(found) > _MOST_PANELS:
        raise click.UsageError(f"{len(found)} panels are too many for a picture: choose some with --head")
    if output.suffix.lower() == ".png":
        from attncc.cli.picture.pixels import GUTTER, to_png

        return write_all({output: to_png(page(spec, call, found, GUTTER))})
    from attncc.cli.picture.vectors import MOST_CORNERS, corner_count, to_svg

    made = page(spec, call, found, 0)
    if corner_count(made) > MOST_CORNERS:
        raise click.UsageError(f"`{output}` would be too large, its pairs are so scattered: write a .png, or lower --n")
    return write_all({output: to_svg(made, spec.name)})


def _print(screen: Screen, spec: Spec, call: Call, found: Sequence[Look], *, draw: bool) -> None:
    """The drawings, unless they are in a file, and the figures."""
    from attncc.cli.picture.terminal import Terminal, can_draw, drawing, scale_text
    from attncc.cli.picture.words import MADE_UP, figures, heads_text, subtitle, title
    from attncc.plan.mask import total
    from attncc.spec.sides import reads_data
    from attncc.spec.text import text

    colored = screen.is_colored(sys.stdout)
    size = shutil.get_terminal_size((_WIDTH, 0)) if sys.stdout.isatty() else None
    terminal = Terminal(
        columns=(size.columns if size else _WIDTH) - 2,  # the drawing is set in by two
        lines=max(1, size.lines - _OTHER_LINES) if size and size.lines else 0,
        is_unicode=can_draw(sys.stdout.encoding),
        is_colored=colored,
    )
    screen.data(title(spec.name, {each.name: each.value for each in spec.parameters}))
    made_up = reads_data(spec.pattern)
    screen.data(f"  {subtitle(call.n, call.m, call.heads, call.start, made_up=made_up)}\n")
    if draw:
        for look in found:
            screen.data(f"{heads_text(look.heads, call.heads).capitalize()}")
            screen.data(f"  {text(look.one.pattern)}")
            click.echo("\n".join(f"  {line}" for line in drawing(look, terminal)), color=colored)
            click.echo()
        screen.data("\n".join(f"  {line}" for line in scale_text(found[0], terminal).splitlines()))
        click.echo()
    if made_up:
        screen.data("\n".join(f"  {line}" for line in MADE_UP) + "\n")
    rows = figures(found, total(found), call.heads)
    screen.data("Figures\n" + "\n".join(f"  {line}" for line in table(rows).splitlines()))
