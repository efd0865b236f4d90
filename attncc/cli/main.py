"""The command line: `attncc build`, `check`, `explain`, `bench`, `fmt`, `list`."""

from __future__ import annotations

import gc
import sys
from io import TextIOWrapper

import click

from attncc.cli.benching import bench
from attncc.cli.build import build
from attncc.cli.checking import check
from attncc.cli.command import examples
from attncc.cli.explain import explain
from attncc.cli.formatting import fmt
from attncc.cli.listing import list_specs
from attncc.version import VERSION

_HELP = "\n\n".join(
    (
        "Compile attention specs (.attn) to Triton kernels and a PyTorch module.",
        examples(
            "attncc build specs/sliding_window.attn -D w=512",
            "attncc check specs/sliding_window.attn",
            "attncc explain specs/sliding_window.attn --n 16384",
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


for each in (build, check, explain, bench, fmt, list_specs):
    cli.add_command(each)


def main() -> None:
    """Run the command line on sys.argv and exit."""
    gc.disable()  # a short run imports much and frees little; `check`, which runs long, turns it on again
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without `…` shows `?`
        sys.exit(cli.main(prog_name="attncc"))
    finally:
        gc.freeze()  # nothing is left to collect at the end
