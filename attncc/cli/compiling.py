"""Sources → compiled specs, and what is wrong with those that cannot be compiled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from attncc.diagnostics import AttnError, Diagnostic, Source

if TYPE_CHECKING:
    from attncc.compiler import Compiled


def compile_all(sources: tuple[Source, ...], define: Mapping[str, str]) -> tuple[list[Compiled], list[Diagnostic]]:
    """The sources that are right, compiled, and the findings about the others."""
    from attncc.compiler import compile_source

    compiled: list[Compiled] = []
    faults: list[Diagnostic] = []
    for source in sources:
        try:
            compiled.append(compile_source(source, define))
        except AttnError as error:
            faults += error.diagnostics
    return compiled, faults


def warnings_of(compiled: Iterable[Compiled]) -> list[Diagnostic]:
    """The warnings of every spec, in the order of the specs."""
    return [warning for each in compiled for warning in each.warnings]
