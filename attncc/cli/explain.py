"""`attncc explain`: what was derived from a spec and what it costs, or what a diagnostic code means; runs nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from attncc.cli.command import OK, command
from attncc.cli.inputs import define_option, one_source, stdin_option
from attncc.cli.render import Screen
from attncc.codes import CODES

if TYPE_CHECKING:
    from attncc.spec.layers.model import Layer

_LONGEST = 1 << 22
_WIDEST = 1 << 16


@click.command("explain")
@click.argument("file", metavar="FILE|CODE")
@define_option
@stdin_option
@click.option("--n", type=click.IntRange(1, _LONGEST), default=4096, help="Rows of queries.  [4096]")
@click.option("--m", type=click.IntRange(1, _LONGEST), help="Rows of keys.  [n]")
@click.option("--heads", type=click.IntRange(1, 1024), help="Query heads.  [8, or as many as the spec has]")
@click.option("--d", type=click.IntRange(1, _WIDEST), default=64, help="Width of q and k.  [64]")
@click.option("--e", type=click.IntRange(1, _WIDEST), help="Width of v.  [d]")
@command(
    "Explain a spec (derivation, ranges, cost) or a diagnostic code; runs nothing.",
    "attncc explain specs/sliding_window.attn",
    "attncc explain specs/sliding_window.attn -D w=512 --n 65536 --json",
    "attncc explain E211",
)
def explain(
    screen: Screen,
    file: str,
    define: Mapping[str, str],
    stdin_filename: str,
    n: int,
    m: int | None,
    heads: int | None,
    d: int,
    e: int | None,
) -> int:
    """The command's body; its help is made above."""
    if re.fullmatch(r"[EW]\d+", file):
        return _explain_code(screen, file)
    source = one_source("explain", file, stdin_filename)

    from attncc.cli.explain_text import as_text
    from attncc.cli.explanation import explanation, of_branches
    from attncc.compiler import load_any
    from attncc.plan.choose import plan as make_plan
    from attncc.plan.density import covered
    from attncc.plan.model import Mixture
    from attncc.spec.layers.model import Layer

    loaded = load_any(source, define)
    if isinstance(loaded, Layer):
        return _explain_layer(screen, loaded)
    plan = make_plan(loaded)
    plans = [one for _, one in plan.branches] if isinstance(plan, Mixture) else [plan]
    most = min(covered(one.domain, heads or 8) for one in plans)
    if most == 0 or (heads or 0) > most:
        raise click.UsageError(f"the lists of this spec give a pattern to {most} heads, and --heads is {heads}")
    sizes = (n, m or n, heads or most, d, e or d)
    found = of_branches(plan, *sizes) if isinstance(plan, Mixture) else explanation(plan, *sizes)
    if screen.is_json:
        screen.json(True, plan.warnings, **found)
    else:
        screen.diagnostics(plan.warnings)
        screen.data(as_text(found, screen.verbose))
    return OK


def _explain_layer(screen: Screen, layer: Layer) -> int:
    from attncc.cli.explain_layer import explain_layer, layer_text
    from attncc.plan.layers import plan_layer

    plan = plan_layer(layer)
    found = explain_layer(plan)
    if screen.is_json:
        screen.json(True, plan.warnings, **found)
    else:
        screen.diagnostics(plan.warnings)
        screen.data(layer_text(found))
    return OK


def _explain_code(screen: Screen, code: str) -> int:
    if code not in CODES:
        raise click.BadParameter(f"there is no code `{code}`; they are {', '.join(CODES)}", param_hint="FILE|CODE")
    from attncc.explanations import explain as explain_code

    if screen.is_json:
        screen.json(True, code=code, title=CODES[code], explanation=explain_code(code))
    else:
        screen.data(f"{code}: {CODES[code]}\n\n{explain_code(code)}")
    return OK
