"""A call of a spec and what its heads look like → the page of a picture."""

from __future__ import annotations

from collections.abc import Sequence

from attncc.cli.picture.layout import Page, Words, layout
from attncc.cli.picture.shades import legend, shades
from attncc.cli.picture.words import MADE_UP, counts_text, heads_text, subtitle, title
from attncc.plan.density import Call
from attncc.plan.mask import Look, total
from attncc.spec.model import Spec
from attncc.spec.sides import reads_data
from attncc.spec.text import text


def page(spec: Spec, call: Call, looks: Sequence[Look], gutter: int) -> Page:
    """The page, with so many pixels between tiles."""
    rows, columns = call.tile
    pairs = call.n * call.m
    shown = sum(len(look.heads) for look in looks)
    panels = tuple(
        (
            heads_text(look.heads, call.heads).capitalize(),
            text(look.one.pattern),
            tuple(counts_text(look.density, look.states.size, pairs, each=len(look.heads) > 1)),
        )
        for look in looks
    )
    footer: tuple[str, ...] = ()
    if shown > 1:
        tiles = sum(look.states.size * len(look.heads) for look in looks)
        counts = counts_text(total(looks), tiles, pairs * shown)
        who = f"All {shown} heads" if shown == call.heads else f"These {shown} heads"
        footer = (who, *counts)
    made_up = reads_data(spec.pattern)
    footer += MADE_UP if made_up else ()
    words = Words(
        title=title(spec.name, {each.name: each.value for each in spec.parameters}),
        subtitle=f"{subtitle(call.n, call.m, call.heads, call.start, made_up=made_up)}, tiles of {rows} × {columns}",
        footer=footer,
        panels=panels,
        legend=tuple(legend(map(shades, looks))),
    )
    return layout(looks, words, gutter)
