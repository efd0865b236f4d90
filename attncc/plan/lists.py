"""Patterns that depend on data: which runs of keys a row may be related to, told by numbers of its own.

A pattern is taken as a union of conjunctions. Of each, what reads positions alone has ranges in closed form, and some
of what reads data has too: `lo[i] <= j`, or a comparison of a number of the query with one of the keys that ascends,
which a binary search answers. What has no range is left to the mask. From the runs of its rows follows which tiles of
keys a tile of rows has to meet, in work that grows as the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from attncc.graph.core import Core, Kind
from attncc.plan.domain import analyse
from attncc.plan.outer import outer
from attncc.plan.ranges import HeadClass, Interval, Segment
from attncc.rewrite.reassociate import States
from attncc.spec.data import Data, Size
from attncc.spec.expr import (
    TRUE,
    And,
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Entry,
    Expr,
    Local,
    Member,
    Name,
    Negate,
    Not,
    Or,
    Select,
    Symbol,
    Token,
    Top,
    Type,
    UpTo,
    Vector,
    names_in,
    substitute,
    type_of,
    walk,
)
from attncc.spec.pooled import step_of

_MOST_PARTS = 8  # conjunctions of a union; of more, unions inside are left to the mask
LIST = 64  # rows and keys of a tile that lists name
_BUDGET = 30_000  # isl operations for one of them


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
    """

    pattern: Expr
    runs: tuple[Runs, ...]
    order: Order | None = None
    rows_first: Expr | None = None
    alive: Expr | None = None
    apart: Expr | None = None

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

    `states` are there where rows sum the tiles of keys by states that all of them see.
    """

    by_head: bool
    passes: tuple[Pass, ...]
    ascending: frozenset[str]  # the facts of keys that never fall from one key to the next
    states: States | None = None

    @property
    def has_runs(self) -> bool:
        """Whether a row's keys are one run, all of which it is related to."""
        (first, *others) = self.passes
        if others or len(first.runs) > 1 or not first.runs[0].exact:
            return False
        return first.order is None or first.order.alike


def lists_of(core: Core, data: dict[str, Data]) -> Lists:
    """The lists of a core whose pattern reads data."""
    reader = _Reader(core, data)
    groups: dict[Order | None, list[Runs]] = {}
    for each in map(reader.runs, _conjunctions(core.pattern)):
        groups.setdefault(reader.order(each), []).append(each)
    in_order = [
        (order, some)
        for order, runs in sorted(groups.items(), key=lambda each: each[0] is not None)  # stable: as they are written
        for some in _by_layout(order, runs)
    ]
    before: list[Expr] = []
    passes = []
    for order, runs in in_order:
        own = _union([each.pattern for each in runs])
        pattern = core.pattern if len(in_order) == 1 else own
        if before:
            pattern = And((own, *(Not(each) for each in before)))
        passes.append(_pass(pattern, tuple(runs), order))
        before.append(own)
    return Lists(
        by_head=Name.HEAD in names_in(core.pattern) or any(map(reader.has_heads, _read(core.pattern))),
        passes=tuple(passes),
        ascending=frozenset(filter(reader.ascends, _read(core.pattern))),
    )


def _pass(pattern: Expr, runs: tuple[Runs, ...], order: Order | None) -> Pass:
    told = any(each.blocks for each in runs)  # blocks are told by places
    alive = _any_of([each.keys for each in runs]) if all(each.keys for each in runs) and not told else None
    if order is not None:
        return Pass(pattern=pattern, runs=runs, order=order, alive=alive)
    rows = [each.rows for each in runs if each.rows]
    marked = [] if told or len(runs) == 1 else list(filter(is_marked, runs))
    return Pass(
        pattern=pattern,
        runs=runs,
        rows_first=None if not rows else _any_of(rows if len(rows) == len(runs) else rows[:1]),
        alive=alive,
        apart=_any_of([each.keys for each in marked]) if 0 < len(marked) < len(runs) else None,
    )


def _by_layout(order: Order | None, runs: list[Runs]) -> list[list[Runs]]:
    """Conjunctions of one order, those apart whose keys may stand side by side where others are told by places."""
    marked = [each for each in runs if is_marked(each)]
    if order is not None or not marked or not any(each.blocks for each in runs):
        return [runs]
    return [[each for each in runs if each not in marked], marked]


def is_marked(runs: Runs) -> bool:
    """Whether nothing but predicates of keys says which these are, wherever they stand."""
    if not runs.keys or runs.bounds or runs.blocks:
        return False
    touched = [segment.touched for each in runs.classes for segment in each.by_row]
    return any(None in (each.low, each.high) for each in touched)


def _any_of(parts: Sequence[tuple[Expr, ...]]) -> Expr:
    """Whether all predicates of one part hold; parts that ask for more than another does add nothing."""
    sets = [frozenset(each) for each in parts]
    least = [each for each, own in zip(parts, sets, strict=True) if not any(other < own for other in sets)]
    return _union([_conjunction(each) for each in least])


def _union(parts: list[Expr]) -> Expr:
    each = tuple(dict.fromkeys(parts))
    return each[0] if len(each) == 1 else Or(each)


def _read(pattern: Expr) -> tuple[str, ...]:
    names = (node.name for node in walk(pattern) if isinstance(node, Local | Entry))
    return tuple(dict.fromkeys(names))


class _Reader:
    """Reads conjunctions of facts."""

    def __init__(self, core: Core, data: dict[str, Data]) -> None:
        self.core = core
        self.data = data

    def has_heads(self, name: str) -> bool:
        """Whether what the pattern reads differs between heads."""
        operand = self.core[name]
        sources = {each.name for each in walk(operand.formula) if isinstance(each, Token | Entry | Vector)}
        has_axis = any(Size.HEADS in self.data[each].axes for each in sources)
        chooses = any(isinstance(each, Top) for each in walk(operand.formula))
        return has_axis or chooses or Name.HEAD in names_in(operand.formula)

    def runs(self, pattern: Expr) -> Runs:
        """What is known of the keys of a conjunction."""
        atoms = pattern.operands if isinstance(pattern, And) else (pattern,)
        found = [each for atom in atoms for each in self._atom(atom)]
        return Runs(
            pattern=pattern,
            classes=analyse(outer(pattern), _BUDGET).classes,
            bounds=tuple(
                each for each in found if isinstance(each, Bound) and not (each.of is None and _is_affine(each.value))
            ),
            rows=tuple(each for each in atoms if self._side(each) == {Kind.ROW_FACT} and not _is_affine(each)),
            keys=tuple(each for each in atoms if self._side(each) == {Kind.COLUMN_FACT} and not _is_affine(each)),
            blocks=tuple(each for each in found if isinstance(each, Blocks | Named)),
            exact=all(map(self._is_run, atoms)) and _is_one_run(outer(pattern)),
        )

    def _is_run(self, atom: Expr) -> bool:
        """Whether what an atom asks is all told by where runs begin and end, or by what is left out."""
        sides = self._side(atom)
        if _is_affine(atom) or sides in ({Kind.ROW_FACT}, {Kind.COLUMN_FACT}):
            return True
        bounds = [each for each in self._atom(atom) if isinstance(each, Bound)]
        told = bool(bounds) and all(each.of is None or self.ascends(each.of) for each in bounds)
        alike = len({each.value for each in bounds}) == 1 and {each.lower for each in bounds} == {True, False}
        whole = all(self._is_whole(each.value) for each in bounds)
        return whole and (told or alike)

    def _is_whole(self, value: Expr) -> bool:
        """Whether a number of a row is as the caller gives it, or made of whole numbers: not rounded."""
        if isinstance(value, Local):
            return True
        reals = (self.core[each.name].formula for each in walk(value) if isinstance(each, Local | Entry))
        return all(type_of(each) is Type.INT for each in reals)

    def order(self, runs: Runs) -> Order | None:
        """The order in which a conjunction's keys are runs: by a fact that has to be equal, or lies between two."""
        if runs.blocks or any(each.of is not None and self.ascends(each.of) for each in runs.bounds):
            return None
        ends: dict[str, list[Bound]] = {}
        for each in runs.bounds:
            if each.of is not None:
                ends.setdefault(each.of, []).append(each)
        between = {of: each for of, each in ends.items() if {one.lower for one in each} == {True, False}}
        alike = {of: each for of, each in between.items() if len({one.value for one in each}) == 1}
        for candidates in (alike, between):
            for of, both in candidates.items():
                return Order(both[0].value, of, candidates is alike)
        return None

    def _side(self, expr: Expr) -> set[Kind]:
        """The sides whose facts or positions an expression reads, in indices too."""
        sides = {self.core[each.name].kind for each in walk(expr) if isinstance(each, Local)}
        sides |= {kind for name, kind in _POSITIONS.items() if name in names_in(expr)}
        return sides

    def _atom(self, atom: Expr) -> list[Bound | Blocks | Named]:
        blocks = self._blocks(atom)
        if blocks is not None:
            return [blocks]
        match atom:
            case Member(element=element, of=Local(name=name)):
                width = _block_width(element)
                return [] if width is None else [Named(name, width)]
            case Compare(op=op, left=left, right=right) if op is not CompareOp.NOT_EQUAL:
                return self._comparison(op, left, right)
        return []

    def _blocks(self, atom: Expr) -> Blocks | None:
        """What an atom says that asks something of an entry of a table and of nothing else."""
        entries = {each for each in walk(atom) if isinstance(each, Entry)}
        if len(entries) != 1:
            return None
        (entry,) = entries
        if not entry.indices:
            return None
        width = _block_width(entry.indices[-1])
        others = {kind for each in entry.indices[:-1] for kind in self._side(each)}
        beside = substitute(atom, {entry: TRUE if entry.truth else Const(0)})
        alone = not any(isinstance(each, Local | Symbol) for each in walk(beside))
        return Blocks(entry, width, atom) if width is not None and others <= {Kind.ROW_FACT} and alone else None

    def _comparison(self, op: CompareOp, left: Expr, right: Expr) -> list[Bound | Blocks | Named]:
        terms = [*_summands(left, 1), *_summands(right, -1)]
        of_keys = [each for each in terms if self._is_of_key(each[1])]
        others = [each for each in terms if not self._is_of_key(each[1])]
        if len(of_keys) != 1 or not all(self._side(each) <= {Kind.ROW_FACT} for _, each in others):
            return []
        ((sign, term),) = of_keys
        of = term.name if isinstance(term, Local) else None
        return list(_bounds(op if sign > 0 else _FLIPPED[op], of, _sum([(-sign * each, x) for each, x in others])))

    def _is_of_key(self, expr: Expr) -> bool:
        """Whether a number is a key's position, or a fact of it."""
        if isinstance(expr, Local):
            return self.core[expr.name].kind is Kind.COLUMN_FACT
        return expr == Symbol(Name.J)

    def ascends(self, name: str) -> bool:
        """Whether a fact is declared to ascend with the keys."""
        operand = self.core[name]
        if operand.kind is not Kind.COLUMN_FACT:
            return False
        match operand.value:
            case None:
                return self.data[operand.source or name].ascending
            case UpTo(value=value):
                return step_of(value) is not None
            case _:
                return False


def _is_one_run(affine: Expr) -> bool:
    """Whether a predicate of positions relates each row to all keys of one run."""
    for one in analyse(affine, _BUDGET).classes:
        match one.by_row:
            case (Segment(touched=touched, full=Interval() as full),):
                here: dict[Expr, Expr] = {Symbol(Name.LAST): Symbol(Name.FIRST)}
                for each, other in ((touched.low, full.low), (touched.high, full.high), (touched.when, full.when)):
                    if (each and substitute(each, here)) != (other and substitute(other, here)):
                        return False
            case _:
                return False
    return True


def _is_affine(expr: Expr) -> bool:
    """Whether a predicate reads positions alone."""
    return not any(isinstance(each, Local | Entry) for each in walk(expr))


_POSITIONS = {Name.I: Kind.ROW_FACT, Name.J: Kind.COLUMN_FACT}
_FLIPPED = {
    CompareOp.LESS: CompareOp.GREATER,
    CompareOp.LESS_EQUAL: CompareOp.GREATER_EQUAL,
    CompareOp.GREATER: CompareOp.LESS,
    CompareOp.GREATER_EQUAL: CompareOp.LESS_EQUAL,
    CompareOp.EQUAL: CompareOp.EQUAL,
}


def _summands(expr: Expr, sign: int) -> list[tuple[int, Expr]]:
    match expr:
        case Negate(operand=operand):
            return _summands(operand, -sign)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT as op, left=left, right=right):
            return [*_summands(left, sign), *_summands(right, sign if op is BinaryOp.ADD else -sign)]
        case _:
            return [(sign, expr)]


def _sum(terms: list[tuple[int, Expr]]) -> Expr:
    """The sum of signed terms, those that are added first."""
    terms = sorted((each for each in terms if each[1] != Const(0)), key=lambda each: -each[0])
    if not terms:
        return Const(0)
    sign, total = terms[0]
    total = total if sign > 0 else Negate(total)
    for sign, term in terms[1:]:
        total = Binary(BinaryOp.ADD if sign > 0 else BinaryOp.SUBTRACT, total, term)
    return total


def _bounds(op: CompareOp, of: str | None, value: Expr) -> list[Bound]:
    """key op value as ends of a run."""
    match op:
        case CompareOp.EQUAL:
            return [Bound(of, value, lower, strict=False) for lower in (True, False)]
        case CompareOp.GREATER | CompareOp.GREATER_EQUAL:
            return [Bound(of, value, lower=True, strict=op is CompareOp.GREATER)]
        case _:
            return [Bound(of, value, lower=False, strict=op is CompareOp.LESS)]


def _block_width(index: Expr) -> int | None:
    """How many keys share an index that is made of the key's position alone."""
    match index:
        case Symbol(name=Name.J):
            return 1
        case Binary(op=BinaryOp.FLOOR_DIVIDE, left=Symbol(name=Name.J), right=Const(value=int(width))) if width > 0:
            return width
        case _:
            return None


def _conjunctions(pattern: Expr) -> list[Expr]:
    """Conjunctions that a pattern is a union of."""
    parts = _parts(pattern, holds=True)
    return [_conjunction(each) for each in parts]


def _conjunction(atoms: tuple[Expr, ...]) -> Expr:
    atoms = tuple(dict.fromkeys(atoms))
    return atoms[0] if len(atoms) == 1 else And(atoms)


def _parts(expr: Expr, *, holds: bool) -> list[tuple[Expr, ...]]:
    match expr:
        case Not(operand=operand):
            return _parts(operand, holds=not holds)
        case And(operands=operands) | Or(operands=operands):
            inner = [_parts(each, holds=holds) for each in operands]
            if isinstance(expr, Or) is holds:
                found = [each for one in inner for each in one]
            else:
                found = [tuple(atom for part in parts for atom in part) for parts in product(*inner)]
            return found if len(found) <= _MOST_PARTS else [(expr if holds else Not(expr),)]
        case Select(condition=condition, then=then, otherwise=otherwise):
            both = Or((And((condition, then)), And((Not(condition), otherwise))))
            return _parts(both, holds=holds)
        case Compare(op=op, left=left, right=right) if not holds:
            return _parts(Compare(_OPPOSITE[op], left, right), holds=True)
        case Compare(op=CompareOp.GREATER | CompareOp.GREATER_EQUAL as op, left=left, right=Call(function="abs")):
            return _parts(Compare(_FLIPPED[op], expr.right, left), holds=True)
        case Compare(
            op=CompareOp.LESS | CompareOp.LESS_EQUAL as op, left=Call(function="abs", arguments=(inner,)), right=right
        ):
            return [(Compare(op, inner, right), Compare(op, Negate(inner), right))]
        case _:
            return [(expr if holds else Not(expr),)]


_OPPOSITE = {
    CompareOp.LESS: CompareOp.GREATER_EQUAL,
    CompareOp.LESS_EQUAL: CompareOp.GREATER,
    CompareOp.GREATER: CompareOp.LESS_EQUAL,
    CompareOp.GREATER_EQUAL: CompareOp.LESS,
    CompareOp.EQUAL: CompareOp.NOT_EQUAL,
    CompareOp.NOT_EQUAL: CompareOp.EQUAL,
}
