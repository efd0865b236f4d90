"""attncc: a compiler from attention specs to Triton kernels and a PyTorch module. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attncc.version import VERSION as __version__

if TYPE_CHECKING:
    from attncc.compiler import Compiled, CompiledLayer, compile_any, compile_source, make_plan
    from attncc.diagnostics import AttnError, Diagnostic, Source
    from attncc.loading import load
    from attncc.sources import read_source
    from attncc.spec.model import Spec
    from attncc.spec.resolve import load as load_spec

__all__ = [
    "AttnError",
    "Compiled",
    "CompiledLayer",
    "Diagnostic",
    "Source",
    "Spec",
    "__version__",
    "compile_any",
    "compile_source",
    "load",
    "load_spec",
    "make_plan",
    "read_source",
]

_PLACES = {
    "AttnError": ("attncc.diagnostics", "AttnError"),
    "Compiled": ("attncc.compiler", "Compiled"),
    "CompiledLayer": ("attncc.compiler", "CompiledLayer"),
    "Diagnostic": ("attncc.diagnostics", "Diagnostic"),
    "Source": ("attncc.diagnostics", "Source"),
    "Spec": ("attncc.spec.model", "Spec"),
    "compile_any": ("attncc.compiler", "compile_any"),
    "compile_source": ("attncc.compiler", "compile_source"),
    "load": ("attncc.loading", "load"),
    "load_spec": ("attncc.spec.resolve", "load"),
    "make_plan": ("attncc.compiler", "make_plan"),
    "read_source": ("attncc.sources", "read_source"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
