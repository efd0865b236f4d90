"""Keys that a pattern chooses → the function that computes the numbers by which it chooses, in the same module.

The numbers are the weights of an attention of their own. Of its module only what `weights` needs is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence

from attncc.emit.prologue.derive import numbers_name
from attncc.emit.units import Unit, laid_out, renamed, shared, units_of


def with_numbers(text: str, choice: str, numbers: str) -> str:
    """A module's text with the function that computes the numbers for a choice.

    Args:
        numbers: the module whose `weights` these are.
    """
    own, others = units_of(text), units_of(numbers)
    alike = shared([own, others])
    taken = {name for unit in own for name in unit.names}
    kept = [unit for unit in _needed(others) if not alike.issuperset(unit.names)]
    names = {name: f"_{choice}{name}" for unit in kept for name in unit.names if name in taken and name != "weights"}
    written = [
        Unit(unit.names, renamed(unit.text, names).replace("def weights(", f"def {numbers_name(choice)}(", 1), False)
        for unit in kept
    ]
    heading = f"# --- the numbers by which `{choice}` is chosen ".ljust(100, "-")
    return f"{text.rstrip()}\n\n\n{heading}\n\n\n{laid_out(written)}\n"


def _needed(units: Sequence[Unit]) -> list[Unit]:
    """`weights` and what it needs, in order."""
    known = frozenset(name for unit in units for name in unit.names)
    by_name = {name: unit for unit in units for name in unit.names}
    pending, found = ["weights"], set[str]()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += by_name[name].reads(known)
    return [unit for unit in units if not found.isdisjoint(unit.names)]
