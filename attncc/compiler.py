"""The whole pipeline in one call: the text of a spec → its plan → the text of its module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attncc.diagnostics import AttnError, Diagnostic, Source
from attncc.emit.module import emit
from attncc.plan.choose import plan
from attncc.plan.model import Plan
from attncc.spec.model import Spec
from attncc.spec.resolve import load


@dataclass(frozen=True, slots=True)
class Compiled:
    """A spec, its plan, and the text of the module that carries the plan out."""

    spec: Spec
    plan: Plan = field(repr=False)
    text: str = field(repr=False)


def read_source(path: str | Path) -> Source:
    """The source in a file.

    Raises:
        AttnError: E901 when the file cannot be read as text.
    """
    try:
        return Source(str(path), Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise AttnError(Diagnostic("E901", f"cannot read `{path}`: {reason}")) from None
    except UnicodeDecodeError:
        help_ = "save the file as UTF-8"
        raise AttnError(Diagnostic("E901", f"`{path}` is no text", helps=(help_,))) from None


def make_plan(source: Source, parameters: Mapping[str, str] | None = None) -> Plan:
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
    planned = make_plan(source, parameters)
    return Compiled(planned.spec, planned, emit(planned))
