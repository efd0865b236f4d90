"""The whole pipeline in one call: the text of a spec → its plan → the text of its module.

What is of layers alone, a sixth of the compiler, is imported for layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attncc.diagnostics import Diagnostic, Source
from attncc.emit.whole import emit, emit_layer
from attncc.plan.choose import plan
from attncc.plan.model import Planned
from attncc.sources import read_source
from attncc.spec.model import Spec
from attncc.spec.resolve import load, resolve
from attncc.syntax.parse import parse

if TYPE_CHECKING:
    from attncc.plan.layers import LayerPlan
    from attncc.spec.layers.model import Layer

__all__ = [
    "Built",
    "Compiled",
    "CompiledLayer",
    "compile_any",
    "compile_source",
    "load_any",
    "make_plan",
    "read_source",
]


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


@dataclass(frozen=True, slots=True)
class CompiledLayer:
    """The same of a layer."""

    spec: Layer
    plan: LayerPlan = field(repr=False)
    text: str = field(repr=False)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Findings that stopped nothing."""
        return self.plan.warnings


Built = Compiled | CompiledLayer


def make_plan(source: Source, parameters: Mapping[str, str] | None = None) -> Planned:
    """The plan of an attention; nothing is emitted.

    Raises:
        AttnError: with every diagnostic found.
    """
    return plan(load(source, parameters))


def compile_source(source: Source, parameters: Mapping[str, str] | None = None, *, in_c: bool = True) -> Compiled:
    """Compile an attention.

    Args:
        parameters: values by name, as text, in place of the defaults.
        in_c: as in `emit`.

    Raises:
        AttnError: with every diagnostic found.
    """
    spec = load(source, parameters)
    planned = plan(spec)
    return Compiled(spec, planned, emit(planned, in_c=in_c))


def load_any(source: Source, parameters: Mapping[str, str] | None = None) -> Spec | Layer:
    """The layer of a source, or else its attention, checked.

    Raises:
        AttnError: with every diagnostic found.
    """
    file = parse(source)
    if not file.has_layer:
        return resolve(file, parameters or {})
    from attncc.spec.layers.resolve import resolve_layer

    return resolve_layer(file, parameters or {})


def compile_any(
    source: Source, parameters: Mapping[str, str] | None = None, *, in_c: bool = True
) -> Compiled | CompiledLayer:
    """Compile what a source defines: its layer, which calls its attentions, or else its one attention.

    Args:
        in_c: as in `compile_source`.

    Raises:
        AttnError: with every diagnostic found.
    """
    loaded = load_any(source, parameters)
    if isinstance(loaded, Spec):
        planned = plan(loaded)
        return Compiled(loaded, planned, emit(planned, in_c=in_c))
    from attncc.plan.layers import plan_layer

    made = plan_layer(loaded)
    return CompiledLayer(made.layer, made, emit_layer(made, in_c=in_c))
