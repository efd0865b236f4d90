"""Key and row ranges of a tile, in closed form: the numbers that index analysis hands to the tile program.

A tile covers the absolute positions first … last of its fixed axis. The other axis is swept over segments, each an
interval of absolute positions whose ends are expressions of `first`, `last`, the head, and n, m, H.
"""

from __future__ import annotations

from dataclasses import dataclass

from attncc.spec.expr import TRUE, Binary, BinaryOp, Const, Expr


@dataclass(frozen=True, slots=True)
class Interval:
    """The positions low … high, both included; None is unbounded. Empty when high < low or `when` does not hold."""

    low: Expr | None
    high: Expr | None
    when: Expr = TRUE


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of positions to sweep for one tile.

    `touched` covers every position that some lane of the tile is related to (it may be wider than needed); every
    position of `full` is related to every lane (it may be narrower than possible, None when nothing was proven).
    Segments come in an order that makes it safe to start each one where the ones before it have ended. For some tile
    `may_end_first` lets the end of what is touched lie before its beginning, maybe in the same tile of positions.
    """

    touched: Interval
    full: Interval | None
    may_end_first: bool = False


@dataclass(frozen=True, slots=True)
class HeadClass:
    """The heads for which `condition` holds, and their pattern, ranges and proven facts.

    `condition` reads h and H only. `pattern` has the condition's truth filled in; h stays in it only inside affine
    bounds. `by_row` sweeps keys for a tile of rows, `by_column` sweeps rows for a tile of keys.
    """

    condition: Expr
    pattern: Expr
    by_row: tuple[Segment, ...]
    by_column: tuple[Segment, ...]
    facts: Facts


@dataclass(frozen=True, slots=True)
class Facts:
    """What isl proved of a pattern; None and False mean that it was not proven, not that it is false."""

    full: bool  # every pair is related
    causal: bool  # related keys never lie after the query: P is a subset of {j <= i}
    self_related: bool  # every query is related to its own position: no row of a square call is empty
    empty: bool  # no pair at all is related
    shift: int | None  # P(i + s, j + s) = P(i, j) for this s > 0 (1 for every pattern of i - j alone)
    reach_back: int | None  # the largest i - j of a related pair
    reach_ahead: int | None  # the largest j - i of a related pair
    exact: bool  # ranges come from the whole predicate (False: the atom-by-atom fallback)


@dataclass(frozen=True, slots=True)
class Domain:
    """A pattern's head classes; their conditions are exclusive and cover every head."""

    classes: tuple[HeadClass, ...]


def plus(bound: Expr, amount: int) -> Expr:
    """bound + amount, with the amount folded into a constant at its end."""
    match bound:
        case Const(value=int(value)):
            return Const(value + amount)
        case Binary(op=BinaryOp.SUBTRACT, left=left, right=Const(value=int(value))):
            return left if value == amount else Binary(BinaryOp.SUBTRACT, left, Const(value - amount))
        case Binary(op=BinaryOp.ADD, left=left, right=Const(value=int(value))):
            return left if value == -amount else Binary(BinaryOp.ADD, left, Const(value + amount))
        case _:
            return Binary(BinaryOp.ADD, bound, Const(amount))
