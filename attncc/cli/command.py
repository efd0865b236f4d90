"""What every command has: the same options, and the same exit code for the same kind of end.

0 all is well · 1 something was found · 2 the command line or a file cannot be used · 3 a fault of attncc.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import click

from attncc.cli.render import Screen
from attncc.diagnostics import AttnError, Diagnostic

OK, FOUND, UNUSABLE, FAULT = range(4)

_COMMON = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout; the same as --format json."),
    click.option(
        "--format",
        "style",
        type=click.Choice(["text", "json", "concise"]),
        default="text",
        help="The form of diagnostics; json puts everything on stdout.",
    ),
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="When to colour; NO_COLOR is honoured.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Print errors and results only."),
    click.option("-v", "--verbose", is_flag=True, help="Say more; show tracebacks of internal errors."),
)


def examples(*lines: str) -> str:
    """The EXAMPLES block of a help text."""
    return "\n".join(("\b", "EXAMPLES", *(f"  {line}" for line in lines)))


def command(summary: str, *lines: str) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Make a function a command body: it is given a `screen` and its own options, and returns the exit code."""

    def wrap(body: Callable[..., int]) -> Callable[..., None]:
        @functools.wraps(body)
        def run(*, as_json: bool, style: str, color: str, quiet: bool, verbose: bool, **arguments: Any) -> None:
            context = click.get_current_context()
            style = "json" if as_json else style
            screen = Screen(context.command.name or "", color, style, quiet, verbose)
            context.exit(_run(screen, body, arguments))

        for option in reversed(_COMMON):
            run = option(run)
        run.__doc__ = f"{summary}\n\n{examples(*lines)}"
        return run

    return wrap


def code_of(found: Iterable[Diagnostic]) -> int:
    """The exit code that findings stand for."""
    errors = [each for each in found if each.is_error]
    return UNUSABLE if any(each.code == "E901" for each in errors) else FOUND if errors else OK


def _run(screen: Screen, body: Callable[..., int], arguments: dict[str, Any]) -> int:
    try:
        return body(screen, **arguments)
    except AttnError as error:
        if screen.is_json:
            screen.json(ok=False, diagnostics=error.diagnostics)
        else:
            screen.diagnostics(error.diagnostics)
        return code_of(error.diagnostics)
    except (click.ClickException, click.exceptions.Exit, click.Abort, OSError):
        raise  # click and `main` know what to say
    except Exception as error:  # noqa: BLE001 - the last resort: a traceback is no message
        screen.internal_error(error)
        return FAULT
