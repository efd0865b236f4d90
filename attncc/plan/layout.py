"""Layouts: which positions the tiles of a piece are made of.

A piece does not take positions one after the other but by coordinates: strips of `width` positions, one every `period`,
laid end to end. A pattern that relates every sixteenth key becomes one that relates neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from attncc.plan.linear import Linear, number, quotient, remainder, substitute_names, variable
from attncc.plan.literals import All, Any, Literal, Tree, all_of, any_of, literal
from attncc.plan.terms import term_expr
from attncc.spec.expr import Binary, BinaryOp, Const, Expr, Name, Symbol, substitute


@dataclass(frozen=True, slots=True)
class Strips:
    """The positions p with start <= p mod period < start + width; coordinate x is the x-th of them, from position 0 on.

    `turn` is 0 where the strips stand still; else there is a class of positions for every residue r, whose strips
    start at (start + turn * width * r) mod period. A list is what of them lies before `stop`, and not before `first`.
    """

    period: int = 1
    width: int = 1
    start: int = 0
    turn: int = 0
    first: int | None = None
    stop: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether these are all positions."""
        return self.has_positions and not self.is_list

    @property
    def has_positions(self) -> bool:
        """Whether coordinates are positions."""
        return self.period == self.width

    @property
    def is_list(self) -> bool:
        """Whether there are a few positions only."""
        return self.stop is not None

    @property
    def classes(self) -> int:
        """How many classes of positions there are."""
        return self.period // self.width if self.turn else 1

    def start_of(self, residue: int) -> int:
        """Where the strips of a class start."""
        return (self.start + self.turn * self.width * residue) % self.period

    def position(self, coordinate: int, residue: int = 0) -> int:
        """The position at a coordinate."""
        return self.period * (coordinate // self.width) + self.start_of(residue) + coordinate % self.width

    def below(self, position: int, residue: int = 0) -> int:
        """How many of the positions 0 … position - 1 there are: the coordinate of the first at or after `position`."""
        if self.stop is not None:
            position = min(position if self.first is None else max(position, self.first), self.stop)
        rest = position % self.period - self.start_of(residue)
        return self.width * (position // self.period) + min(max(rest, 0), self.width)

    def tree(self, position: Name) -> Tree:
        """Which positions these are, where they do not turn."""
        here = variable(position)
        parts = [] if self.has_positions else [literal(-remainder(here - self.start, self.period) + (self.width - 1))]
        parts += [] if self.first is None else [literal(here - self.first)]
        parts += [] if self.stop is None else [literal(-here + (self.stop - 1))]
        return all_of(parts)

    def form(self, coordinate: Name) -> Linear:
        """The position at a coordinate, as a form."""
        here = variable(coordinate)
        strip = quotient(here, self.width).scaled(self.period) + remainder(here, self.width)
        return strip + self._start_form()

    def _start_form(self) -> Linear:
        if not self.turn:
            return number(self.start)
        residue = remainder(variable(Name.RESIDUE), self.classes)  # its range is known by this
        if self.turn == 1 and self.start == 0:
            return residue.scaled(self.width)
        turned = remainder(residue.scaled(self.turn) + self.start // self.width, self.classes)
        return turned.scaled(self.width)


@dataclass(frozen=True, slots=True)
class Layout:
    """The strips of rows and keys that a piece takes; both turn together, or neither does."""

    rows: Strips = Strips()
    keys: Strips = Strips()

    @property
    def classes(self) -> int:
        """How many classes of rows, each with its keys, run apart."""
        return self.rows.classes

    def spans(self, rows: range, keys: range, residue: int) -> tuple[range, range]:
        """The coordinates of those rows and keys of a class that stand at given positions."""
        of_rows, of_keys = (
            range(strips.below(each.start, residue), strips.below(each.stop, residue))
            for strips, each in ((self.rows, rows), (self.keys, keys))
        )
        return of_rows, of_keys

    @property
    def copies_keys(self) -> bool:
        """Whether kernels want copies of its keys side by side, the same for all heads."""
        return self.keys.width > 1 and not self.keys.is_everything

    @property
    def copies_rows(self) -> bool:
        """Whether they want copies of its rows."""
        return self.rows.width > 1 and not self.rows.is_everything

    @property
    def is_plain(self) -> bool:
        """Whether coordinates are positions on both axes."""
        return self.rows.is_everything and self.keys.is_everything


PLAIN = Layout()


def in_coordinates(tree: Tree, layout: Layout) -> Tree:
    """A tree over positions as one over coordinates."""
    values = {Name.I: layout.rows.form(Name.I), Name.J: layout.keys.form(Name.J)}
    match tree:
        case Literal(form=form):
            return literal(substitute_names(form, values))
        case All(parts=parts):
            return all_of(in_coordinates(part, layout) for part in parts)
        case Any(parts=parts):
            return any_of(in_coordinates(part, layout) for part in parts)


def position(strips: Strips, coordinate: Name, layout: Layout) -> Expr:
    """The position at a coordinate, as an expression."""
    return with_plain_residue(term_expr(strips.form(coordinate)), layout)


def with_plain_residue(expr: Expr, layout: Layout) -> Expr:
    """The expression with `residue % classes`, by which its range was known, written as `residue`."""
    residue = Symbol(Name.RESIDUE)
    return substitute(expr, {Binary(BinaryOp.MODULO, residue, Const(layout.classes)): residue})
