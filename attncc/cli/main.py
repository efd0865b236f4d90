"""The command line: `attncc build`, `check`, `explain`, `show`, `bench`, `fmt`, `list`, `new`."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from io import TextIOWrapper

import click

from attncc.cli.benching import bench
from attncc.cli.build import build
from attncc.cli.checking import check
from attncc.cli.command import UNUSABLE, examples
from attncc.cli.explain import explain
from attncc.cli.formatting import fmt
from attncc.cli.listing import list_specs
from attncc.cli.new import new
from attncc.cli.show import show
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


@click.group(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="attncc")
def cli() -> None:
    """The group; its help is made above."""


for each in (build, check, explain, show, bench, fmt, list_specs, new):
    cli.add_command(each)


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
