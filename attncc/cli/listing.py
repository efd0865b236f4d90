"""`attncc list`: the specs of a folder."""

from __future__ import annotations

import os

import click

from attncc.cli.command import code_of, command
from attncc.cli.inputs import sources_of
from attncc.cli.render import Screen, table
from attncc.diagnostics import AttnError, Diagnostic


@click.command("list")
@click.argument("folder", default="specs", required=False)
@command(
    "List the specs in a folder (specs/ by default): name, parameters, summary.",
    "attncc list",
    "attncc list my/specs --json",
)
@click.option("--markdown", is_flag=True, help="Print a table of what each relates, weighs, and runs as.")
def list_specs(screen: Screen, folder: str, *, markdown: bool) -> int:
    """The command's body; its help is made above."""
    from attncc.compiler import load_any

    if not os.path.isdir(folder):
        raise AttnError(
            Diagnostic("E901", f"there is no folder `{folder}`", helps=("name the folder: `attncc list FOLDER`",))
        )
    specs = []
    sources, faults = sources_of([folder], "")
    for source in sources:
        try:
            specs.append(load_any(source))
        except AttnError as error:
            faults += error.diagnostics
    if markdown:
        from attncc.cli.systems import systems_table

        screen.data(systems_table(specs).rstrip("\n"))
        screen.diagnostics(faults)
        return code_of(faults)
    if screen.is_json:
        found = [
            {
                "name": each.name,
                "path": each.source.name,
                "parameters": {one.name: one.value for one in each.parameters},
                "summary": each.summary,
            }
            for each in specs
        ]
        screen.json(not faults, faults, specs=found)
        return code_of(faults)
    rows = [
        (each.name, ", ".join(_parameter_text(one.name, one.value) for one in each.parameters), each.summary)
        for each in specs
    ]
    if rows:
        screen.data(table(rows))
    screen.diagnostics(faults)
    return code_of(faults)


def _parameter_text(name: str, value: float | None) -> str:
    """`w = 256`, or the name alone where whoever makes the module gives the value."""
    return name if value is None else f"{name} = {value}"
