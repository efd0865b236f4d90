"""Layers written in tests → checked layers, plans and modules."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

from attncc.check.layers.sizes import smaller_layer
from attncc.check.load import load_module
from attncc.check.report import Report
from attncc.compiler import CompiledLayer, compile_any, read_source
from attncc.diagnostics import Source
from tests.modules import ROOT

LAYERS = ROOT / "specs" / "layers"
PATHS = sorted(LAYERS.glob("*.attn"))


@cache
def compiled(text: str, *given: tuple[str, str]) -> CompiledLayer:
    """A layer of this text; files that it uses lie beside the others."""
    found = compile_any(Source(str(LAYERS / "written.attn"), text), dict(given), in_c=False)
    assert isinstance(found, CompiledLayer)
    return found


def small(path: Path) -> tuple[CompiledLayer, ModuleType]:
    """A layer of the catalogue and its module, with cores that are small enough for tests."""
    source = read_source(path)
    found = compile_any(source, in_c=False)
    assert isinstance(found, CompiledLayer)
    smaller = smaller_layer(found.spec, {})
    if smaller is not None:
        found = compile_any(source, smaller, in_c=False)
        assert isinstance(found, CompiledLayer)
    return found, load_module(found.text, found.spec.name)


def checked(text: str, *, quick: bool = True) -> Report:
    """What a check of its module finds."""
    from attncc.check.layers.compare import check_layer

    found = compiled(text)
    return check_layer(load_module(found.text, found.spec.name), found.plan, ("torch",), quick)


def layer_of(body: str, parameters: str = "dim", inputs: str = "x[n, dim]") -> str:
    """A layer with one input, beside two attentions."""
    cores = "attention full_core {}\nattention causal_core { pattern = causal }\n"
    return f"{cores}layer written({parameters}) {{\ninput {inputs}\n{body}\n}}\n"
