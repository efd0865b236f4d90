"""What commands print and where: data on stdout, the rest on stderr. The only importer of rich, used for colour."""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TextIO

import click

from attncc.diagnostics import Diagnostic, Span, render

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Screen:
    """Where and how a command prints."""

    command: str
    color: str = "auto"  # auto, always, never
    style: str = "text"  # text, json, concise: the form of diagnostics
    quiet: bool = False
    verbose: bool = False

    @property
    def is_json(self) -> bool:
        """Whether stdout carries one JSON object and nothing else."""
        return self.style == "json"

    def data(self, text: str) -> None:
        """Print what was asked for; headings stand out on a terminal."""
        _print(text, sys.stdout, self.is_colored(sys.stdout), _style_data)

    def json(self, ok: bool, diagnostics: Iterable[Diagnostic] = (), **values: Any) -> None:
        """Print the one object of `--json`."""
        head = {"schema_version": SCHEMA_VERSION, "command": self.command, "ok": ok}
        found = [as_json(each) for each in diagnostics]
        click.echo(json.dumps(head | values | {"diagnostics": found}, indent=2, ensure_ascii=False))

    def note(self, text: str) -> None:
        """Say what happened, on stderr, unless told to be quiet."""
        if not self.quiet:
            click.echo(text, err=True)

    def warn(self, text: str) -> None:
        """Say what went wrong, on stderr, also when quiet."""
        _print(text, sys.stderr, self.is_colored(sys.stderr), _style_diagnostic)

    def diagnostics(self, found: Iterable[Diagnostic]) -> None:
        """Print findings about a user's own text, unless told to be quiet about those that stop nothing."""
        shown = [each for each in found if each.is_error or not self.quiet]
        if self.style == "concise":
            for each in shown:
                self.warn(concise(each))
        elif shown:
            self.warn("\n\n".join(render(each) for each in shown))

    def internal_error(self, error: BaseException) -> None:
        """A fault of attncc itself: never shown as an error in the user's text."""
        if self.verbose:
            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        detail = " ".join(str(error).split())[:200]
        self.warn(f"internal error: {type(error).__name__}{': ' if detail else ''}{detail}")
        self.warn("  = note: this is a fault of attncc, not of the spec; please report it with the spec")
        if not self.verbose:
            self.warn("  = help: run again with -v to see where it happened")

    def progress(self, text: str) -> None:
        """Overwrite the current line of a terminal; an empty text clears it. Silent elsewhere."""
        if not self.quiet and not self.is_json and sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)

    def is_colored(self, stream: TextIO) -> bool:
        """Whether text for a stream is coloured: as `--color` says, and by itself only in a terminal that can."""
        if self.color != "auto":
            return self.color == "always"
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def concise(diagnostic: Diagnostic) -> str:
    """`file:line:column: error[E201]: sentence`, a line a finding."""
    severity = "error" if diagnostic.is_error else "warning"
    place = f"{diagnostic.labels[0].span.place}: " if diagnostic.labels else ""
    return f"{place}{severity}[{diagnostic.code}]: {diagnostic.message}"


def as_json(diagnostic: Diagnostic) -> dict[str, Any]:
    """A finding with 1-based spans."""
    return {
        "code": diagnostic.code,
        "severity": "error" if diagnostic.is_error else "warning",
        "message": diagnostic.message,
        "labels": [{"text": label.text, **_span_json(label.span)} for label in diagnostic.labels],
        "notes": list(diagnostic.notes),
        "helps": list(diagnostic.helps),
    }


def _span_json(span: Span) -> dict[str, Any]:
    return {
        "file": span.source.name,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Rows in aligned columns, two spaces apart."""
    cells = list(rows)
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))] if cells else []
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


# --- colour: a text is cut into spans by patterns; it is never read as markup ------------------------------------

_DIAGNOSTIC_STYLES = (
    (re.compile(r"^(internal error|error)(\[\w+\])?", re.MULTILINE), "bold red"),
    (re.compile(r"^warning(\[\w+\])?", re.MULTILINE), "bold yellow"),
    (re.compile(r"^ *(-->|:::)", re.MULTILINE), "blue"),
    (re.compile(r"^ *\d* \|", re.MULTILINE), "blue"),
    (re.compile(r"(?<=\| ) *\^+.*$", re.MULTILINE), "red"),
    (re.compile(r"(?<=\| ) *-+(?= |$).*$", re.MULTILINE), "cyan"),
    (re.compile(r"^ *= (note|help):", re.MULTILINE), "bold cyan"),
)
_DATA_STYLES = ((re.compile(r"^[A-Z][\w ,()=.-]*:?$", re.MULTILINE), "bold"),)


def _style_diagnostic() -> tuple[tuple[re.Pattern[str], str], ...]:
    return _DIAGNOSTIC_STYLES


def _style_data() -> tuple[tuple[re.Pattern[str], str], ...]:
    return _DATA_STYLES


def _print(text: str, stream: TextIO, colored: bool, styles: Any) -> None:
    if not colored:
        click.echo(text, file=stream)
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in styles():
        styled.highlight_regex(pattern, style)
    console = Console(file=stream, force_terminal=True, color_system="standard", highlight=False, soft_wrap=True)
    console.print(styled, soft_wrap=True)
