"""Command line arguments → sources and parameters."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from attncc.diagnostics import AttnError, Diagnostic, Source
from attncc.sources import read_source, text_of


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
DTYPES = ("float32", "bfloat16", "float16")

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


def sources_of(
    files: Iterable[str], stdin_filename: str, *, words: bool = False
) -> tuple[tuple[Source, ...], list[Diagnostic]]:
    """The sources in files, in folders (every *.attn, by name), and on stdin (`-`), each file once; and an E901 for
    everything that cannot be read.

    Args:
        words: whether to take the files of a folder that hold words for others to use, neither attention nor layer.
    """
    found: dict[str, Source] = {}
    faults: list[Diagnostic] = []
    for given in files:
        inside = _inside(given)
        if not inside:
            faults.append(Diagnostic("E901", f"there is no `.attn` file in `{given}`"))
        for path in inside:
            try:
                source = text_of(sys.stdin.buffer, stdin_filename) if path == "-" else read_source(path)
                if words or path == given or not _has_words_alone(source):
                    found.setdefault(source.name, source)
            except AttnError as error:
                faults += error.diagnostics
    return tuple(found.values()), faults


def _has_words_alone(source: Source) -> bool:
    """Whether a file can be read and holds words, but neither an attention nor a layer."""
    from attncc.syntax import tree
    from attncc.syntax.parse import parse

    try:
        definitions = parse(source).definitions
    except AttnError:
        return False
    return bool(definitions) and not any(isinstance(each, tree.Attention | tree.Layer) for each in definitions)


def _inside(path: str) -> list[str]:
    """The files that an argument stands for."""
    if path == "-" or not os.path.isdir(path):  # unlike Path.is_dir, it takes any name
        return [path]
    names = Path(path).glob("*.attn")
    return sorted(
        str(each) for each in names if each.is_file() or not os.path.exists(each)
    )  # a link to nowhere is a fault


def one_source(command: str, file: str, stdin_filename: str) -> Source:
    """The source in the one file that a command takes.

    Raises:
        AttnError: E901 when it cannot be read.
        UsageError: when it is a folder of several.
    """
    sources, faults = sources_of([file], stdin_filename)
    if faults:
        raise AttnError(*faults)
    if len(sources) > 1:
        raise click.UsageError(f"`{command}` takes one spec, and `{file}` holds {len(sources)}")
    return sources[0]
