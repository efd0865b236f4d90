"""`attncc build`: specs → module files. Imports neither torch nor triton nor numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attncc.cli.command import FOUND, OK, command
from attncc.cli.compiling import compile_all, warnings_of
from attncc.cli.inputs import define_option, files_argument, sources_of, stdin_option
from attncc.cli.outputs import on_disk, write_all
from attncc.cli.render import Screen

if TYPE_CHECKING:
    from attncc.compiler import Compiled

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
@click.option("--fresh", is_flag=True, help="Write nothing; exit 1 unless the files on disk are up to date.")
@command(
    "Compile specs to modules: FILE is a spec, a folder of specs, or - for stdin.",
    "attncc build specs/sliding_window.attn",
    "attncc build specs/sliding_window.attn -D w=256 -o kernels/window_256.py",
    "attncc build specs/ -o generated --fresh",
    "cat my.attn | attncc build - -o -",
)
def build(
    screen: Screen,
    files: tuple[str, ...],
    output: str,
    define: Mapping[str, str],
    stdin_filename: str,
    run_check: bool,
    fresh: bool,
) -> int:
    """The command's body; its help is made above."""
    if output == "-" and (fresh or screen.is_json):
        raise click.UsageError("`-o -` prints a module on stdout: it goes with neither --fresh nor --json")
    compiled = compile_all(sources_of(files, stdin_filename), define)
    if output == "-":
        if len(compiled) > 1:
            raise click.UsageError(f"`-o -` prints one module, and {len(compiled)} specs were given")
        screen.warnings(warnings_of(compiled))
        click.echo(compiled[0].text.encode("utf-8"), nl=False)
        return _checked(screen, compiled, define) if run_check else OK
    targets = _targets(compiled, output)
    screen.warnings(warnings_of(compiled))
    if fresh:
        return _report(
            screen, compiled, {path: on_disk(path) != each.text for path, each in targets.items()}, fresh=True
        )
    changed = write_all({path: each.text for path, each in targets.items()})
    code = _report(screen, compiled, changed, fresh=False)
    return max(code, _checked(screen, compiled, define)) if run_check else code


def _targets(compiled: list[Compiled], output: str) -> dict[Path, Compiled]:
    """Where each module goes."""
    if output.endswith(".py") and not Path(output).is_dir():
        if len(compiled) > 1:
            raise click.UsageError(f"`-o {output}` is one file, and {len(compiled)} specs were given; pass a folder")
        return {Path(output): compiled[0]}
    targets: dict[Path, Compiled] = {}
    for each in compiled:
        path = Path(output) / f"{each.spec.name}.py"
        if path in targets:
            first = targets[path].spec.source.name
            raise click.UsageError(
                f"`{first}` and `{each.spec.source.name}` both define `{each.spec.name}`: both would be {path}"
            )
        targets[path] = each
    return targets


def _report(screen: Screen, compiled: list[Compiled], changed: Mapping[Path, bool], *, fresh: bool) -> int:
    """Say what was written, or, with --fresh, what would be; the exit code."""
    words = ("up to date", "not up to date") if fresh else ("unchanged", "wrote")
    code = FOUND if fresh and any(changed.values()) else OK
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
        screen.json(code == OK, warnings_of(compiled), outputs=outputs)
    return code


def _checked(screen: Screen, compiled: list[Compiled], define: Mapping[str, str]) -> int:
    """Compare with dense attention; the table goes to stderr, because stdout is the build's own."""
    from attncc.cli.checking import check_all

    reports = check_all(screen, [each.spec.source for each in compiled], define, quick=True, form=None)
    for each in reports:
        screen.note(each.text)
    return OK if all(each.ok for each in reports) else FOUND
