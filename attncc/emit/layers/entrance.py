"""What the methods of a layer's module refuse before they compute: inputs, lengths and caches that do not fit."""

from __future__ import annotations

from collections.abc import Callable

from attncc.spec.layers.dims import Dim, sequence_of, symbol
from attncc.spec.layers.model import Input, Kind, Layer

_ARGUMENTS = {"n": "lengths", "m": "m_lengths"}


def size_of(layer: Layer, name: str) -> str:
    """How long a sequence is."""
    for each in layer.inputs:
        if symbol(name) in each.type.axes:
            return f"{each.name}.shape[{each.type.axes.index(symbol(name)) + 1}]"
    raise ValueError(name)


class Entrance:
    """The lines of `_check`, which `forward`, `prefill` and `step` begin with, and the helpers that they call."""

    def __init__(self, layer: Layer, spell: Callable[[str], str]) -> None:
        self.layer = layer
        self.spell = spell  # a parameter's name → Python
        self.helpers = {"_demand_tensor", *["_demand_lengths"] * bool(layer.sequences)}

    def lines(self) -> list[str]:
        """Refuse by the argument's name: each input by itself, then inputs that have axes in common."""
        found = [line for each in self.layer.inputs for line in self._own(each)]
        found += [line for each in self.layer.inputs for line in self._with_others(each)]
        first = self.layer.inputs[0].name
        found += [
            f'_demand_lengths("{_ARGUMENTS[name]}", {_ARGUMENTS[name]}, {first})' for name in self.layer.sequences
        ]
        return found

    def _own(self, each: Input) -> list[str]:
        name, axes = each.name, each.type.axes
        holds = [f"{name}.dim() == {len(axes) + 1}"]
        holds += [f"{name}.shape[{at + 1}] == {self._dim(dim)}" for at, dim in enumerate(axes) if not _is_free(dim)]
        like, whose = self._like(each)
        kind = {Kind.REAL: "", Kind.INT: ', "whole numbers"', Kind.BOOL: ', "truth values"'}[each.type.kind]
        return [
            f'_demand_tensor("{name}", {name}, "{whose}", {like}{kind})',
            f'_demand({" and ".join(holds)}, "{name}", list({name}.shape), {self._words(each)})',
        ]

    def _like(self, each: Input) -> tuple[str, str]:
        """A tensor whose type and device an input has to have, and what it is called."""
        if self.layer.learned:
            name = self.layer.learned[0].name
            return f"self.{name}", name
        real = next((one for one in self.layer.inputs if one.type.kind is Kind.REAL), each)
        return real.name, real.name

    def _with_others(self, each: Input) -> list[str]:
        """The batch, and sequences that inputs share."""
        name, first = each.name, self.layer.inputs[0]
        holds = [f"{name}.shape[0] == {first.name}.shape[0]"] if each != first else []
        for at, dim in enumerate(each.type.axes):
            here = f"{name}.shape[{at + 1}]"
            if _is_free(dim) and (there := self._sequence(dim)) != here:
                holds.append(f"{here} == {there}")
        if not holds:
            return []
        shapes = ", ".join(f"{one.name} {{list({one.name}.shape)}}" for one in self.layer.inputs if one != each)
        words = "the batch and the tokens of the other inputs" if shapes else "as many tokens wherever its axes say so"
        expected = f'f"{words}: {shapes}"' if shapes else f'"{words}"'
        return [f'_demand({" and ".join(holds)}, "{name}", list({name}.shape), {expected})']

    def _sequence(self, dim: Dim) -> str:
        """The length of an axis of tokens, by the input that says how many there are."""
        return dim.text(lambda name: size_of(self.layer, name) if name in _ARGUMENTS else self.spell(name), python=True)

    def _words(self, each: Input) -> str:
        words = [str(dim) if _is_free(dim) else f"{{{self._dim(dim)}}}" for dim in each.type.axes]
        listed = ", ".join(["batch", *words])
        return f'f"[{listed}]"' if "{" in listed else f'"[{listed}]"'

    def _dim(self, dim: Dim) -> str:
        return dim.text(self.spell, python=True)


def _is_free(dim: Dim) -> bool:
    return sequence_of(dim) is not None
