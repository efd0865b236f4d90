"""`attncc new`: a spec to begin with, in which every field is explained."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from attncc.cli.command import FOUND, OK, command
from attncc.cli.render import Screen
from attncc.diagnostics import AttnError, Diagnostic, Label, Source, Span
from attncc.outputs import write_all
from attncc.syntax.mistake import KEYWORDS

_PLACEHOLDER = "NAME"  # of the template, which is a spec of that name
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = tuple(each.lower() for each in sorted(KEYWORDS))


@click.command("new")
@click.argument("name")
@click.option("-o", "--output", default=".", metavar="DIR|-", help="A folder, or - for stdout.  [.]")
@click.option("--layer", "is_layer", is_flag=True, help="Write a layer: a whole module around an attention.")
@command(
    "Write NAME.attn, a spec to begin with, in which every field is explained.",
    "attncc new mine",
    "attncc new mine -o specs",
    "attncc new mine --layer",
    "attncc new mine -o -",
)
def new(screen: Screen, name: str, output: str, is_layer: bool) -> int:
    """The command's body; its help is made above."""
    if output == "-" and screen.is_json:
        raise click.UsageError("`-o -` prints a spec on stdout: it does not go with --json")
    if output.endswith(".attn"):
        raise click.UsageError(f"`-o {output}` is no folder: the file is called {name}.attn")
    _check(name)
    text = _template(name, "template_layer.attn" if is_layer else "template.attn")
    if output == "-":
        click.echo(text, nl=False)
        return OK
    path = Path(output) / f"{name}.attn"
    if os.path.lexists(path):
        helps = (f"choose another name, or another folder: `attncc new {name} -o DIR`",)
        found = Diagnostic("E901", f"`{path}` is there already, and stays as it is", helps=helps)
        if screen.is_json:
            screen.json(False, [found])
        else:
            screen.diagnostics([found])
        return FOUND
    write_all({path: text})
    if screen.is_json:
        screen.json(True, name=name, path=str(path))
    else:
        screen.note(f"wrote: {path}")
    return OK


def _template(name: str, file: str) -> str:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return re.sub(rf"\b{_PLACEHOLDER}(?=\b|_)", name, text)


def _check(name: str) -> None:
    """Refuse what cannot be the name of an attention.

    Raises:
        AttnError: E217.
    """
    from attncc.spec.resolve import load

    reason = None
    if not _NAME.fullmatch(name):
        reason = "a name is made of the letters a-z, digits and `_`, and begins with a letter"
    elif name in _RESERVED:
        reason = f"`{name}` is a word of the language"
    if reason is not None:
        source = Source("NAME", name)
        label = Label(Span(source, 1, 1, 1, len(name) + 1), "expected a name for a Python module")
        message = f"an attention cannot be named `{name}`"
        raise AttnError(Diagnostic("E217", message, (label,), notes=(reason,), helps=("choose another name",)))
    load(Source("NAME", f"attention {name} {{}}"))
