"""Sources → compiled specs, all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from attncc.diagnostics import AttnError, Diagnostic, Source

if TYPE_CHECKING:
    from attncc.compiler import Compiled


def compile_all(sources: tuple[Source, ...], define: Mapping[str, str]) -> list[Compiled]:
    """Every source compiled.

    Raises:
        AttnError: with the findings of all of them.
    """
    from attncc.compiler import compile_source

    compiled: list[Compiled] = []
    faults: list[Diagnostic] = []
    for source in sources:
        try:
            compiled.append(compile_source(source, define))
        except AttnError as error:
            faults += error.diagnostics
    if faults:
        raise AttnError(*faults)
    return compiled


def warnings_of(compiled: Iterable[Compiled]) -> list[Diagnostic]:
    """The warnings of every spec, in the order of the specs."""
    return [warning for each in compiled for warning in each.warnings]
