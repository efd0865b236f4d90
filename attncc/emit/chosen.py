"""Keys that a pattern chooses → the function that computes the numbers by which it chooses, in the same module.

The numbers are the weights of an attention of their own. Of its module only what `weights` needs is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence

from attncc.emit.prologue.derive import function_of
from attncc.emit.units import Unit, laid_out, renamed, shared, units_of


def with_numbers(text: str, choice: str, part: str, numbers: str) -> str:
    """A module's text with the function that computes something for a choice.

    Args:
        part: `numbers` by which keys are chosen, or which ones they are chosen `among`.
        numbers: the module whose `weights` these are.
    """
    own, others = units_of(text), units_of(numbers)
    alike = shared([own, others])
    taken = {name for unit in own for name in unit.names}
    kept = [unit for unit in _needed(others) if not alike.issuperset(unit.names)]
    prefix = choice if part == "numbers" else f"{choice}_{part}"
    names = {name: f"_{prefix}{name}" for unit in kept for name in unit.names if name in taken and name != "weights"}
    written = [
        Unit(
            unit.names, renamed(unit.text, names).replace("def weights(", f"def {function_of(choice, part)}(", 1), False
        )
        for unit in kept
    ]
    what = f"the numbers by which `{choice}` is chosen" if part == "numbers" else f"what `{choice}` is chosen among"
    heading = f"# --- {what} ".ljust(100, "-")
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
