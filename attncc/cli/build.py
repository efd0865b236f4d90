"""`attncc build`: specs → module files. Imports neither torch nor triton nor numpy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attncc.cli.command import FOUND, OK, code_of, command
from attncc.cli.compiling import build_all, warnings_of
from attncc.cli.inputs import DTYPES, define_option, files_argument, sources_of, stdin_option
from attncc.cli.render import Screen
from attncc.diagnostics import AttnError, Diagnostic
from attncc.outputs import on_disk, write_all

if TYPE_CHECKING:
    from attncc.compiler import Built

DEFAULT_FOLDER = "generated"


@click.command("build")
@files_argument
@click.option(
    "-o",
    "--output",
    default=DEFAULT_FOLDER,
    metavar="DIR|FILE|-",
    help="A folder, a .py file, or - for stdout.  [generated]",
)
@define_option
@stdin_option
@click.option(
    "--check", "run_check", is_flag=True, help="Then compare the modules with dense attention (imports torch)."
)
@click.option("--target", type=click.Choice(("c",)), help="Also compile kernels in C for this machine, ahead of calls.")
@click.option("--d", "width", default=64, show_default=True, type=click.IntRange(1, 256), help="Width for --target.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(DTYPES), help="Type for --target.")
@click.option("--fresh", is_flag=True, help="Write nothing; exit 1 unless the files on disk are up to date.")
@command(
    "Compile specs to modules: FILE is a spec, a folder of specs, or - for stdin.",
    "attncc build specs/sliding_window.attn",
    "attncc build specs/sliding_window.attn -D w=256 -o kernels/window_256.py",
    "attncc build specs/ -o generated --fresh",
    "attncc build specs/causal.attn --target c --d 128",
    "cat my.attn | attncc build - -o -",
)
def build(
    screen: Screen,
    files: tuple[str, ...],
    output: str,
    define: Mapping[str, str],
    stdin_filename: str,
    run_check: bool,
    target: str | None,
    width: int,
    dtype: str,
    fresh: bool,
) -> int:
    """The command's body; its help is made above."""
    if output == "-" and (fresh or screen.is_json):
        raise click.UsageError("`-o -` prints a module on stdout: it goes with neither --fresh nor --json")
    sources, unread = sources_of(files, stdin_filename)
    given = len(sources) + len(unread)
    if given > 1 and (output == "-" or _is_file(output)):
        raise click.UsageError(f"`-o {output}` takes one module, and {given} specs were given; pass a folder")
    compiled, faults = build_all(sources, define)
    found = [*unread, *faults, *warnings_of(compiled)]
    if output == "-":
        for each in compiled:
            click.echo(each.text.encode("utf-8"), nl=False)
        screen.diagnostics(found)
        code = code_of(found)
    else:
        code = _build(screen, compiled, found, output, fresh=fresh)
    if target == "c" and not fresh:
        code = max(code, _compiled_ahead(screen, compiled, width, dtype))
    if run_check and compiled and not fresh:
        code = max(code, _checked(screen, compiled, define))
    return code


def _compiled_ahead(screen: Screen, compiled: list[Built], width: int, dtype: str) -> int:
    """Run every module once, which leaves its kernels in the user's cache."""
    from attncc.check.ahead import compile_ahead
    from attncc.check.load import load_module

    for each in compiled:
        screen.progress(f"{each.spec.name}: compiling")
        try:
            compile_ahead(load_module(each.text, each.spec.name), each, width, dtype)
        except RuntimeError as error:
            screen.progress("")
            screen.warn(f"{each.spec.name}: {error}")
            return FOUND
    screen.progress("")
    return OK


def _is_file(output: str) -> bool:
    """Whether the one module goes to a file of this name, not into a folder."""
    return output.endswith(".py") and not os.path.isdir(output)


def _build(screen: Screen, compiled: list[Built], found: list[Diagnostic], output: str, *, fresh: bool) -> int:
    """Write the modules, or compare with what is there, and report; specs that have errors touch no file."""
    targets = _targets(compiled, output)
    if fresh:
        changed = {path: on_disk(path) != each.text.encode("utf-8") for path, each in targets.items()}
    else:
        try:
            changed = write_all({path: each.text for path, each in targets.items()})
        except AttnError as error:
            raise AttnError(*found, *error.diagnostics) from None
    return _report(screen, compiled, changed, found, fresh=fresh)


def _targets(compiled: list[Built], output: str) -> dict[Path, Built]:
    """Where each module goes."""
    if _is_file(output):
        return {Path(output): each for each in compiled}
    targets: dict[Path, Built] = {}
    for each in compiled:
        path = Path(output) / f"{each.spec.name}.py"
        if path in targets:
            first = targets[path].spec.source.name
            raise click.UsageError(
                f"`{first}` and `{each.spec.source.name}` both define `{each.spec.name}`: both would be {path}"
            )
        targets[path] = each
    return targets


def _report(
    screen: Screen, compiled: list[Built], changed: Mapping[Path, bool], found: list[Diagnostic], *, fresh: bool
) -> int:
    """Say what was written, or, with --fresh, what would be, and what was found; the exit code."""
    words = ("up to date", "not up to date") if fresh else ("unchanged", "wrote")
    code = max(code_of(found), FOUND if fresh and any(changed.values()) else OK)
    for path, is_changed in changed.items():
        if fresh and is_changed:
            screen.warn(f"{words[is_changed]}: {path}")
        else:
            screen.note(f"{words[is_changed]}: {path}")
    if screen.is_json:
        outputs = [
            {
                "spec": each.spec.source.name,
                "name": each.spec.name,
                "parameters": {one.name: one.value for one in each.spec.parameters},
                "path": str(path),
                "sha256": hashlib.sha256(each.text.encode()).hexdigest(),
                "changed": changed[path],
            }
            for path, each in zip(changed, compiled, strict=True)
        ]
        screen.json(code == OK, found, outputs=outputs)
    else:
        screen.diagnostics(found)
    return code


def _checked(screen: Screen, compiled: list[Built], define: Mapping[str, str]) -> int:
    """Compare with dense attention; the table goes to stderr, because stdout is the build's own."""
    from attncc.cli.checking import check_all

    reports = check_all(screen, compiled, define, quick=True, form=None)
    for each in reports:
        screen.note(each.text)
    return OK if all(each.ok for each in reports) else FOUND
