"""The whole pipeline in one call: the text of a spec → its plan → the text of its module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attncc.diagnostics import Diagnostic, Source
from attncc.emit.combined import emit
from attncc.plan.choose import plan
from attncc.plan.model import Planned
from attncc.sources import read_source
from attncc.spec.model import Spec
from attncc.spec.resolve import load

__all__ = ["Compiled", "compile_source", "make_plan", "read_source"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A spec, its plan, and the text of the module that carries the plan out."""

    spec: Spec
    plan: Planned = field(repr=False)
    text: str = field(repr=False)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Findings that stopped nothing."""
        return self.plan.warnings


def make_plan(source: Source, parameters: Mapping[str, str] | None = None) -> Planned:
    """The plan of a spec; nothing is emitted.

    Raises:
        AttnError: with every diagnostic found.
    """
    return plan(load(source, parameters))


def compile_source(source: Source, parameters: Mapping[str, str] | None = None) -> Compiled:
    """Compile a spec.

    Args:
        parameters: values by name, as text, in place of the defaults.

    Raises:
        AttnError: with every diagnostic found.
    """
    spec = load(source, parameters)
    planned = plan(spec)
    return Compiled(spec, planned, emit(planned))
