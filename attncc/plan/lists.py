"""The lists of a pattern that depends on data: which runs of keys a row may be related to, by numbers of its own.

A pattern is taken as a union of conjunctions. Of each, what reads positions alone has ranges in closed form, and some
of what reads data has too: `lo[i] <= j`, or a comparison of a number of the query with one of the keys that ascends,
which a binary search answers. What has no range is left to the mask. From the runs of its rows follows which tiles of
keys a tile of rows has to meet, in work that grows as the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from attncc.plan.ranges import HeadClass
from attncc.rewrite.reassociate import States
from attncc.spec.expr import Entry, Expr

LIST = 64  # rows and keys of a tile that lists name


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a run: the keys whose number is at least (`lower`) or at most that of the row.

    Attributes:
        of: the fact of keys that is bounded; None where positions of keys are.
        value: a number of the row.
        strict: whether equal numbers lie outside.
    """

    of: str | None
    value: Expr
    lower: bool
    strict: bool


@dataclass(frozen=True, slots=True)
class Blocks:
    """Keys told by a table: those of a block of positions, for every row of the table that a row reads.

    Attributes:
        entry: of the table, in which the last index is the block.
        width: of a block, in keys.
        holds: the predicate of the entry, which alone decides.
    """

    entry: Entry
    width: int
    holds: Expr


@dataclass(frozen=True, slots=True)
class Named:
    """Keys told by the lists of rows: those of a block of positions, for every entry of a row's list."""

    of: str  # the fact that is the list
    width: int  # of a block, in keys
    entries: int  # of a list


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The keys that a row may be related to by one conjunction.

    Attributes:
        pattern: the conjunction.
        classes: its ranges by positions alone, for each class of heads.
        bounds: what bounds them besides.
        rows: predicates of the row alone, which have to hold.
        keys: predicates of the key alone.
        blocks: tables and lists that name blocks of keys.
        exact: whether a row is related to every key of its run.
    """

    pattern: Expr
    classes: tuple[HeadClass, ...]
    bounds: tuple[Bound, ...]
    rows: tuple[Expr, ...]
    keys: tuple[Expr, ...]
    blocks: tuple[Blocks | Named, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class Order:
    """Rows and keys in the order of numbers that are compared."""

    row: Expr
    fact: str  # of keys
    alike: bool  # whether the numbers have to be equal, so that keys of a run stand in the order of their places


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Conjunctions whose rows and keys can stand in one order.

    Attributes:
        pattern: the pairs of this pass; no pair is in two.
        order: by which numbers rows and keys are sorted; None where they stand in the order of their places.
        rows_first: rows for which this holds have tiles of their own, where there are fewer of these then.
        alive: keys for which this does not hold are related to no row, and are left out.
        apart: keys for which this holds stand apart from the others, side by side.
        few: how many keys lists name at a time that each row has for itself, if such say which keys it sees. Rows may
            then stand alone, where neighbours see much that a row does not.
    """

    pattern: Expr
    runs: tuple[Runs, ...]
    order: Order | None = None
    rows_first: Expr | None = None
    alive: Expr | None = None
    apart: Expr | None = None
    few: int | None = None

    @property
    def alone(self) -> tuple[int, int] | None:
        """Rows and keys of a tile where rows stand alone."""
        return None if self.few is None else (1, min(self.few, LIST))

    @property
    def moves_rows(self) -> bool:
        """Whether rows stand in another order than that of their places."""
        return self.order is not None or self.rows_first is not None

    @property
    def moves_keys(self) -> bool:
        """Whether keys do."""
        return self.order is not None or self.alive is not None or self.apart is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """How tiles of related pairs are found, pass by pass; `by_head` says whether heads differ.

    `states` are there where rows sum the tiles of keys by states that all of them see; `in_one` where parts that could
    stand in orders of their own do not, for all pairs of a row have to be met twice.
    """

    by_head: bool
    passes: tuple[Pass, ...]
    ascending: frozenset[str]  # the facts of keys that never fall from one key to the next
    states: States | None = None
    in_one: bool = False

    @property
    def has_few(self) -> bool:
        """Whether rows of some pass may stand alone."""
        return any(each.few is not None for each in self.passes)

    @property
    def has_runs(self) -> bool:
        """Whether a row's keys are one run, all of which it is related to."""
        (first, *others) = self.passes
        if others or len(first.runs) > 1 or not first.runs[0].exact:
            return False
        return first.order is None or first.order.alike


def named_by(runs: Runs) -> int | None:
    """How many keys each entry of the lists names that say which keys a row sees, if such do."""
    return min((each.width for each in runs.blocks if isinstance(each, Named)), default=None)


def is_marked(runs: Runs) -> bool:
    """Whether nothing but predicates of keys says which these are, wherever they stand."""
    if not runs.keys or runs.bounds or runs.blocks:
        return False
    touched = [segment.touched for each in runs.classes for segment in each.by_row]
    return any(None in (each.low, each.high) for each in touched)
