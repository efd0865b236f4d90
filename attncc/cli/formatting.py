"""`attncc fmt`: specs in the one layout. Imports neither torch nor sympy."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import click

from attncc.cli.command import FOUND, OK, code_of, command
from attncc.cli.inputs import files_argument, sources_of, stdin_option
from attncc.cli.render import Screen
from attncc.diagnostics import AttnError, Diagnostic, Source
from attncc.outputs import on_disk, write_all
from attncc.sources import text_of
from attncc.syntax.format import format_source


@dataclass(frozen=True, slots=True)
class _Formatted:
    """A spec as it is and as it should be."""

    name: str
    before: str
    after: str

    @property
    def is_changed(self) -> bool:
        return self.before != self.after

    @property
    def diff(self) -> str:
        """What would change, empty where line ends alone do."""
        before, after = Source("", self.before).text, self.after
        lines = difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), self.name, f"{self.name} (formatted)"
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@click.command("fmt")
@files_argument
@stdin_option
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 and name the files that would change.")
@click.option("--diff", "show_diff", is_flag=True, help="Write nothing; print what would change.")
@command(
    "Rewrite specs in one layout: files, folders, or - from stdin to stdout.",
    "attncc fmt specs/",
    "attncc fmt specs/ --check --diff",
    "cat my.attn | attncc fmt -",
)
def fmt(screen: Screen, files: tuple[str, ...], stdin_filename: str, only_check: bool, show_diff: bool) -> int:
    """The command's body; its help is made above."""
    is_stdin = "-" in files
    if is_stdin and len(files) > 1:
        raise click.UsageError("`-` is stdin and goes to stdout: no other FILE can be given with it")
    texts, unread = _texts(files, stdin_filename)
    found, faults = _format(texts)
    faults = [*unread, *faults]
    changed = [each for each in found if each.is_changed]
    is_written = not only_check and not show_diff
    if is_written and not is_stdin:
        write_all({Path(each.name).resolve(): each.after for each in changed})
    code = max(code_of(faults), FOUND if only_check and changed else OK)
    if screen.is_json:
        screen.json(code == OK, faults, files=[_json(each, show_diff, is_written and is_stdin) for each in found])
        return code
    if show_diff:
        click.echo("".join(each.diff for each in found).encode("utf-8"), nl=False)
    elif is_written and is_stdin:
        click.echo("".join(each.after for each in found).encode("utf-8"), nl=False)
    elif is_written:
        for each in found:
            screen.note(f"{'formatted' if each.is_changed else 'unchanged'}: {each.name}")
    if only_check:
        for each in changed:
            screen.warn(f"not formatted: {each.name}")
    if faults:
        screen.diagnostics(faults)
    return code


def _texts(files: tuple[str, ...], stdin_filename: str) -> tuple[dict[Source, str], list[Diagnostic]]:
    """Every source, and its text with the line ends that it has; and what cannot be read."""
    if "-" in files:
        data = sys.stdin.buffer.read()
        return {text_of(BytesIO(data), stdin_filename): data.decode("utf-8")}, []
    sources, faults = sources_of(files, stdin_filename, words=True)
    return {each: (on_disk(Path(each.name)) or b"").decode("utf-8") for each in sources}, faults


def _format(texts: dict[Source, str]) -> tuple[list[_Formatted], list[Diagnostic]]:
    """Every text that can be read, and the syntax errors of the others."""
    found: list[_Formatted] = []
    faults: list[Diagnostic] = []
    for source, text in texts.items():
        try:
            found.append(_Formatted(source.name, text, format_source(source)))
        except AttnError as error:
            faults += error.diagnostics
    return found, faults


def _json(one: _Formatted, with_diff: bool, with_text: bool) -> dict[str, object]:
    found: dict[str, object] = {"path": one.name, "changed": one.is_changed}
    if with_diff:
        found["diff"] = one.diff
    if with_text:
        found["text"] = one.after
    return found
