"""Conjunctions of facts → the runs of keys that they leave to a row, and the order in which keys are runs."""

from __future__ import annotations

from attncc.graph.core import Core, Kind
from attncc.plan.conjunctions import FLIPPED
from attncc.plan.domain import analyse
from attncc.plan.lists import Blocks, Bound, Named, Order, Runs
from attncc.plan.outer import outer
from attncc.plan.ranges import Interval, Segment
from attncc.plan.rising import rises
from attncc.spec.data import Data, Size
from attncc.spec.expr import (
    TRUE,
    And,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Entry,
    Expr,
    Local,
    Member,
    Name,
    Negate,
    Symbol,
    Token,
    Top,
    Type,
    Vector,
    names_in,
    substitute,
    type_of,
    walk,
)

_BUDGET = 30_000  # isl operations for one conjunction


class FactReader:
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
                return [] if width is None else [Named(name, width, self._entries(name))]
            case Compare(op=op, left=left, right=right) if op is not CompareOp.NOT_EQUAL:
                return self._comparison(op, left, right)
        return []

    def _entries(self, name: str) -> int:
        """How long a list of rows is: as many as are chosen, or as it is declared."""
        operand = self.core[name]
        chosen = [each.count for each in walk(operand.formula) if isinstance(each, Top)]
        if chosen:
            return chosen[0]
        last = self.data[operand.source or name].axes[-1]
        assert isinstance(last, int)
        return last

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
        return list(_bounds(op if sign > 0 else FLIPPED[op], of, _sum([(-sign * each, x) for each, x in others])))

    def _is_of_key(self, expr: Expr) -> bool:
        """Whether a number is a key's position, or a fact of it."""
        if isinstance(expr, Local):
            return self.core[expr.name].kind is Kind.COLUMN_FACT
        return expr == Symbol(Name.J)

    def ascends(self, name: str) -> bool:
        """Whether a fact never falls from one key to the next."""
        operand = self.core[name]
        return operand.kind is Kind.COLUMN_FACT and rises(operand.formula, lambda each: self.data[each].ascending)


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
