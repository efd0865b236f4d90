"""Sources → compiled specs, and what is wrong with those that cannot be compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from attncc.diagnostics import AttnError, Diagnostic, Source

if TYPE_CHECKING:
    from attncc.compiler import Built, Compiled

_C = TypeVar("_C")


def compile_all(sources: tuple[Source, ...], define: Mapping[str, str]) -> tuple[list[Compiled], list[Diagnostic]]:
    """The sources that are right, compiled, and the findings about the others."""
    from attncc.compiler import compile_source

    return _each(sources, lambda source: compile_source(source, define))


def build_all(sources: tuple[Source, ...], define: Mapping[str, str]) -> tuple[list[Built], list[Diagnostic]]:
    """The same of layers, too."""
    from attncc.compiler import compile_any

    return _each(sources, lambda source: compile_any(source, define))


def _each(sources: tuple[Source, ...], compile_one: Callable[[Source], _C]) -> tuple[list[_C], list[Diagnostic]]:
    compiled: list[_C] = []
    faults: list[Diagnostic] = []
    for source in sources:
        try:
            compiled.append(compile_one(source))
        except AttnError as error:
            faults += error.diagnostics
    return compiled, faults


def warnings_of(compiled: Iterable[Built]) -> list[Diagnostic]:
    """The warnings of every spec, in the order of the specs."""
    return [warning for each in compiled for warning in each.warnings]
