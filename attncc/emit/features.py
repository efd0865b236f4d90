"""States → what one side of the tokens gives to each term, with every number of a token written out."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.graph.core import Core
from attncc.graph.ir import Graph
from attncc.graph.ops import Axis
from attncc.rewrite.reassociate import States, written_out
from attncc.rewrite.separable import Exponent
from attncc.spec.expr import Expr, Vector, walk


@dataclass(frozen=True, slots=True)
class Power:
    """The part of an exponent that one side has: slope times a distance, and numbers or vectors that are added."""

    slope: Expr | None
    parts: tuple[Expr, ...]

    @property
    def is_zero(self) -> bool:
        """Whether there is nothing to raise e to."""
        return self.slope is None and not self.parts


@dataclass(frozen=True, slots=True)
class Feature:
    """One side of a term: a number of the token times, for each factor, a formula of its vectors.

    The features are the products of the factors' channels, `widths` of them in each; without factors there is one.
    """

    coefficient: Expr
    power: Power
    formulas: tuple[Expr, ...]
    powers: tuple[Power, ...]
    widths: tuple[str, ...]

    @property
    def every_power(self) -> tuple[Power, ...]:
        """Its own, and those of its factors."""
        return (self.power, *self.powers)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Everything that it reads."""
        powers = [part for each in self.every_power for part in (each.slope, *each.parts) if part is not None]
        return (self.coefficient, *self.formulas, *powers)


def features_of(states: States, numbers: Graph, core: Core, axis: Axis) -> tuple[Feature, ...]:
    """What the queries (axis ROW) or the keys (axis COLUMN) give to each term.

    Args:
        numbers: the graph of the numbers that terms read; those of the call keep their names.
    """

    of_call = {node.name for node in numbers if not node.axes}

    def own(row: Expr, key: Expr) -> Expr:
        return written_out(row if axis is Axis.ROW else key, numbers, of_call)

    def power(exponent: Exponent) -> Power:
        slope = None if exponent.slope is None else written_out(exponent.slope, numbers, of_call)
        return Power(slope, tuple(own(row, key) for row, key in exponent.differences))

    return tuple(
        Feature(
            own(term.row, term.key),
            power(term.exponent),
            tuple(own(each.row, each.key) for each in term.factors),
            tuple(power(each.exponent) for each in term.factors),
            tuple(_width(core, each.row, each.key) for each in term.factors),
        )
        for term in states.terms
    )


def _width(core: Core, *formulas: Expr) -> str:
    """The name of the width of a factor: that of the vectors which either side reads."""
    names = [each.name for formula in formulas for each in walk(formula) if isinstance(each, Vector)]
    return core[names[0]].width or "e"
