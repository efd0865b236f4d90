"""The command line: `attncc build`, `check`, `explain`, `show`, `bench`, `fmt`, `list`, `new`."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper

import click

from attncc.cli.command import UNUSABLE, examples
from attncc.diagnostics import Diagnostic, render
from attncc.sources import reason_of
from attncc.version import VERSION

_HELP = "\n\n".join(
    (
        "Compile attention specs (.attn) to Triton kernels and a PyTorch module.",
        examples(
            "attncc build specs/sliding_window.attn -D w=512",
            "attncc check specs/sliding_window.attn",
            "attncc explain specs/sliding_window.attn --n 16384",
            "attncc show specs/sliding_window.attn -D w=16",
            "attncc bench specs/sliding_window.attn --n 4096",
            "attncc fmt specs/ --check",
            "attncc explain E211",
        ),
    )
)


# The module of each command, and its name there.
_COMMANDS = {
    "build": ("attncc.cli.build", "build"),
    "check": ("attncc.cli.checking", "check"),
    "explain": ("attncc.cli.explain", "explain"),
    "show": ("attncc.cli.show", "show"),
    "bench": ("attncc.cli.benching", "bench"),
    "fmt": ("attncc.cli.formatting", "fmt"),
    "list": ("attncc.cli.listing", "list_specs"),
    "new": ("attncc.cli.new", "new"),
}


class _Commands(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        found = getattr(import_module(module), name)
        assert isinstance(found, click.Command)
        return found


@click.group(cls=_Commands, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="attncc")
def cli() -> None:
    """The group; its help is made above."""


def main() -> None:
    """Run the command line on sys.argv and exit."""
    gc.disable()  # a short run imports much and frees little; `check`, which runs long, turns it on again
    try:
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:  # the caller has closed it
                setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without `…` shows `?`
        sys.exit(cli.main(prog_name="attncc"))
    except OSError as error:  # a full disk, a folder that is gone: no fault of attncc
        what = "write the output" if error.filename is None else f"use `{error.filename}`"
        with suppress(OSError):
            click.echo(render(Diagnostic("E901", f"cannot {what}: {reason_of(error)}")), err=True)
        sys.exit(UNUSABLE)
    finally:
        if "triton" not in sys.modules:  # whose bindings complain of what is not collected
            gc.freeze()  # nothing is left to collect at the end
