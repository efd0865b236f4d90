"""Command line arguments → sources and parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from attncc.diagnostics import AttnError, Diagnostic, Source
from attncc.sources import read_source


def parameters_of(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`name=value` texts by name; the last one of a name counts."""
    found: dict[str, str] = {}
    for each in values:
        name, equals, value = each.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise click.BadParameter(f"found `{each}`, expected `name=value`")
        found[name.strip()] = value.strip()
    return found


files_argument: Callable[[Any], Any] = click.argument("files", nargs=-1, required=True, metavar="FILE…")
define_option: Callable[[Any], Any] = click.option(
    "-D",
    "define",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parameters_of,
    help="Set a parameter; in every given file.",
)
stdin_option: Callable[[Any], Any] = click.option(
    "--stdin-filename",
    default="stdin.attn",
    metavar="NAME",
    help="What to call the text read from stdin (FILE is `-`).",
)


def sources_of(files: Iterable[str], stdin_filename: str) -> tuple[Source, ...]:
    """The sources in files, in folders (every *.attn, by name), and on stdin (`-`); each file once.

    Raises:
        AttnError: E901 for everything that cannot be read.
    """
    found: dict[str, Source] = {}
    faults: list[Diagnostic] = []
    for each in files:
        try:
            for source in _sources(each, stdin_filename):
                found.setdefault(source.name, source)
        except AttnError as error:
            faults += error.diagnostics
    if faults:
        raise AttnError(*faults)
    return tuple(found.values())


def _sources(path: str, stdin_filename: str) -> list[Source]:
    if path == "-":
        return [Source(stdin_filename, stdin_text())]
    if not Path(path).is_dir():
        return [read_source(path)]
    inside = sorted(each for each in Path(path).glob("*.attn") if each.is_file())
    if not inside:
        raise AttnError(Diagnostic("E901", f"there is no `.attn` file in `{path}`"))
    return [read_source(each) for each in inside]


def stdin_text() -> str:
    """The text on stdin, line ends as they are.

    Raises:
        AttnError: E901 when it is no text.
    """
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise AttnError(Diagnostic("E901", "stdin is no text", helps=("pass UTF-8",))) from None
