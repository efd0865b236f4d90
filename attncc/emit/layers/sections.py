"""Modules of cores → sections of one module: private, what is alike once, and only what is reached."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from attncc.emit.units import Unit, renamed, shared, units_of

_PUBLIC = re.compile(r"\bCache\b|\b(?:attention|prefill|step)(?=\()")
_LEFT_OUT = ("Attention", "weights")  # a layer is a module of its own, and few read what pictures are of


@dataclass(frozen=True, slots=True)
class Section:
    """What belongs to a core, or under no name to several."""

    name: str
    function: str  # the attention under its private name
    cache: str
    units: tuple[Unit, ...]
    weights: tuple[str, ...] = ()  # the data that its weights depend on, where the layer reads weights


def sections(
    cores: Sequence[tuple[str, str]], others: Set[str] = frozenset(), weighed: Set[str] = frozenset()
) -> list[Section]:
    """Names and texts of modules → their sections, beside functions of other names; of those that are weighed, with
    the function of their weights.
    """
    parts = [(name, units_of(text)) for name, text in cores]
    taken = {name for _, units in parts for unit in units for name in unit.names} | others
    modules: list[tuple[str, str, list[Unit]]] = []
    for name, whole in parts:
        called = f"_{name}" if f"_{name}" not in taken else f"_{name}_core"
        private = _private(whole, called, keeps_weights=name in weighed)
        modules.append((name, called, _reached(private, called)))
    alike = shared([units for _, _, units in modules]) - others if len(modules) > 1 else frozenset()
    once = [each for _, _, units in modules for unit in units for each in unit.names]
    clashing = frozenset(each for each in once if once.count(each) > 1 or each in others) - alike
    found: list[Section] = []
    every = {unit.names: unit for _, _, units in modules for unit in units if unit.names}
    common = tuple(unit for names, unit in every.items() if alike.issuperset(names))
    if common:
        found.append(Section("", "", "", common))
    for name, called, units in modules:
        names = {each: f"_{name}{each}" for each in clashing}
        own = [unit for unit in units if not (unit.names and alike.issuperset(unit.names))]
        made = tuple(replace(unit, text=renamed(unit.text, names)) for unit in own)
        found.append(Section(name, called, _cache_name(called), made, _arguments(made, weights_name(called))))
    return found


def weights_name(called: str) -> str:
    """The function of a core's weights."""
    return f"{called}_weights"


def _arguments(units: Sequence[Unit], function: str) -> tuple[str, ...]:
    """What a function takes by place; nothing where it is not there."""
    for unit in units:
        if unit.names == (function,):
            (definition,) = ast.parse(unit.text).body
            assert isinstance(definition, ast.FunctionDef)
            return tuple(each.arg for each in definition.args.args)
    return ()


def _cache_name(called: str) -> str:
    return f"_{''.join(part.capitalize() for part in called.split('_'))}Cache"


def _private(units: Sequence[Unit], called: str, *, keeps_weights: bool) -> list[Unit]:
    """The units with the public functions under the core's name."""
    names = {"attention": called, "Cache": _cache_name(called)}
    names |= {name: f"{called}_{name}" for name in ("prefill", "step")}
    weights = [
        Unit((weights_name(called),), unit.text.replace("def weights(", f"def {weights_name(called)}(", 1), False)
        for unit in units
        if unit.names == ("weights",) and keeps_weights
    ]
    return weights + [
        Unit(
            tuple(names.get(each, each) for each in unit.names),
            _PUBLIC.sub(lambda match: names[match[0]], unit.text),
            unit.is_kernel,
        )
        for unit in units
        if unit.names not in [(each,) for each in _LEFT_OUT]
    ]


def _reached(units: list[Unit], called: str) -> list[Unit]:
    """The units that the core's functions, or statements without a name, mention by way of others."""
    known = frozenset(name for unit in units for name in unit.names)
    wanted = {called, weights_name(called), f"{called}_step", f"{called}_prefill", _cache_name(called)}
    while True:
        more = {
            name for unit in units if not unit.names or wanted.intersection(unit.names) for name in unit.reads(known)
        }
        if more <= wanted:
            return [unit for unit in units if not unit.names or wanted.intersection(unit.names)]
        wanted |= more
