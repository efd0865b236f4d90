"""Spec → core: what one token or one distance determines alone is taken out of the pair.

The law behind it: sum_j f(g(k_j), …) computes g(k_j) for every query although it is the same for all of them. So the
largest parts that depend on data of one side only become operands, and what stays is what truly differs from pair to
pair: products of a row vector and a column vector, and formulas that are summed channel by channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from attncc.graph.core import Core, Kind, Operand, is_taken
from attncc.graph.far_sums import Parted, parted, rest_of, whole_of
from attncc.graph.widths import as_wide_as
from attncc.spec.choices import is_choice
from attncc.spec.data import Size
from attncc.spec.expr import (
    AtRow,
    Binary,
    BinaryOp,
    Call,
    Channels,
    Compare,
    Const,
    Dot,
    Entry,
    Expr,
    Join,
    Let,
    Local,
    MatMul,
    Member,
    Name,
    Negate,
    Not,
    Reduce,
    Rotate,
    RowSum,
    Symbol,
    Token,
    Top,
    Type,
    Vector,
    names_in,
    rebuild,
    substitute,
    type_of,
    varies_by_feature,
    walk,
)
from attncc.spec.model import Spec
from attncc.spec.sides import Side, join, reads_data, side_of

_MOST_PRODUCTS = 6  # dot products that one may split into


class Mixed(Exception):
    """A vector that depends on both tokens where one of a single token is needed; `term` is that vector."""

    def __init__(self, term: Expr, reason: str) -> None:
        super().__init__(reason)
        self.term = term
        self.reason = reason


def split(spec: Spec) -> Core:
    """The core of a spec.

    Raises:
        Mixed: a vector of a pair is rotated, multiplied by a matrix, or reduced by something else than a sum.
    """
    return _Splitter(spec).run()


_NUMBERS = {Side.NONE: Kind.ROW_NUMBER, Side.ROW: Kind.ROW_NUMBER, Side.COLUMN: Kind.COLUMN_NUMBER}
_SUFFIX = {
    Kind.ROW_VECTOR: "of_row",
    Kind.COLUMN_VECTOR: "of_key",
    Kind.ROW_NUMBER: "of_row",
    Kind.COLUMN_NUMBER: "of_key",
    Kind.OFFSET_NUMBER: "by_offset",
    Kind.TABLE: "table",
    Kind.ROW_FACT: "of_row",
    Kind.COLUMN_FACT: "of_key",
}
_FACTS = {Side.ROW: Kind.ROW_FACT, Side.COLUMN: Kind.COLUMN_FACT}


class _Splitter:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.data = {each.name: each for each in spec.data}
        # Where data say which pairs are related, tiles have no common distances: pairs look tables up one by one.
        self._by_data = reads_data(spec.pattern)
        self.operands: dict[str, Operand] = {}
        self._known: dict[tuple[Expr, Kind, bool], str] = {}
        self._lowered = True  # whether a running maximum may lower the expression at hand: a weight, not a score
        self._width: dict[str, str] = {}  # of a vector operand: one that it meets in a product

    def run(self) -> Core:
        spec = self.spec
        values = self._vector(spec.value, Kind.COLUMN_VECTOR)
        is_read = any(Name.SCORE in names_in(expr) for expr in (spec.weight, spec.normalizer))
        self._lowered = False
        score = self._number(spec.score) if is_read else Const(1)
        self._lowered = True
        weight, normalizer = self._number(spec.weight), self._number(spec.normalizer)
        score, weight, normalizer = self._widths(values, score, weight, normalizer)
        rows = next((each.name for each in self.operands.values() if each.kind is Kind.ROW_VECTOR), None)
        if rows is None:
            carrier = next(each for each in spec.data if each.is_row and each.is_full)
            rows = self._vector(Vector(carrier.name), Kind.ROW_VECTOR)
        pattern = self._pattern(spec.pattern)
        spread = any(Name.HEAD in names_in(value) for each in self.operands.values() for value in _of_keys(each))
        return Core(
            operands=tuple(sorted(self._finished(values), key=lambda each: self._order(each, values))),
            values=values,
            rows=rows,
            pattern=pattern,
            score=score,
            weight=weight,
            normalizer=normalizer,
            spread_heads=spread,
        )

    def _widths(self, values: str, *numbers: Expr) -> Iterator[Expr]:
        """The numbers, with an operand in place of a width that no vector beside them tells."""
        told = {
            Name.WIDTH: as_wide_as(Size.WIDTH, tuple(self.operands.values()), self.data),
            Name.VALUE_WIDTH: as_wide_as(Size.VALUE_WIDTH, (self.operands[values],), self.data),
        }
        missing = {name for expr in numbers for name in names_in(expr) if name in told and told[name] is None}
        held: dict[Expr, Expr] = {
            Symbol(name): self._taken_out(Let(f"width_{name.value}", Symbol(name)), Side.NONE)
            for name in sorted(missing, key=lambda each: each.value)
        }
        return (substitute(expr, held) for expr in numbers)

    def _order(self, operand: Operand, values: str) -> tuple[int, int]:
        given = [each.name for each in self.spec.data]
        source = operand.source or operand.name
        place = given.index(source) if source in given else len(given)
        return list(Kind).index(operand.kind) * 2 + (operand.name == values), place

    def _finished(self, values: str) -> Iterator[Operand]:
        """The operands with names for their widths: `d` for the first product, `e` for the values."""
        names: dict[str, str] = {self._root(values): "e"}
        for operand in self.operands.values():
            width = None
            if operand.kind.is_vector:
                root = self._root(operand.name)
                count = len(names)
                width = names.setdefault(root, "d" if count == 1 else f"d_{count}")
            yield replace(operand, width=width)

    def _root(self, name: str) -> str:
        while (parent := self._width.get(name, name)) != name:
            name = parent
        return name

    # --- pattern ----------------------------------------------------------------------------------------------

    def _pattern(self, expr: Expr) -> Expr:
        """A predicate or number of the pattern: positions stay, what data say of one token becomes a fact."""
        if not reads_data(expr):
            return expr
        if isinstance(expr, Let) and isinstance(expr.value, Top):
            own = self._derived(expr, Kind.ROW_FACT, expr.name)
            self.operands[own] = replace(self.operands[own], listed=True)
            block, key = expr.value.block, Symbol(Name.J)
            of: Expr = key if block == 1 else Binary(BinaryOp.FLOOR_DIVIDE, key, Const(block))
            return Member(of, Local(own), span=expr.span)
        side = side_of(expr, self.data)
        if side in _FACTS and not any(isinstance(node, Member) for node in walk(expr)):
            return self._taken_out(expr, side, _FACTS[side])
        match expr:
            case Let(value=value):
                return self._pattern(value)
            case Member(element=element, of=Vector(name=name)):
                own = self._direct(name, Kind.ROW_FACT)
                self.operands[own] = replace(self.operands[own], listed=True)
                return replace(expr, element=self._pattern(element), of=Local(own))
            case Entry(name=name, indices=indices):
                return replace(expr, name=self._direct(name, Kind.TABLE), indices=tuple(map(self._pattern, indices)))
            case _:
                return rebuild(expr, self._pattern)

    # --- numbers ----------------------------------------------------------------------------------------------

    def _number(self, expr: Expr) -> Expr:
        """A number of the pair or row in operands."""
        side = side_of(expr, self.data)
        one_sided = side is not Side.PAIR and not (side is Side.OFFSET and self._by_data)
        if one_sided and reads_data(expr):
            if type_of(expr) is Type.BOOL and side is not Side.OFFSET:
                return self._taken_out(expr, side, exact=True)
            if type_of(expr) is not Type.BOOL and not (self._lowered and _raises(expr)):
                return self._taken_out(expr, side)
        match expr:
            case Let(value=value):
                return self._number(value)
            case Compare(left=left, right=right) if type_of(left) is Type.INT is type_of(right):
                return replace(expr, left=self._whole(left), right=self._whole(right))
            case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT) if (found := parted(expr, self.data)) is not None:
                return self._apart(found, self._number, self._taken_out)
            case RowSum(weight=weight):
                return RowSum(self._number(weight), span=expr.span)
            case Dot(left=left, right=right):
                return self._product(expr, left, right)
            case Reduce(function="sum", vector=vector):
                return self._product(expr, vector, None)
            case Reduce(function=function, vector=vector):
                reason = f"`{function}` of a vector that depends on both tokens has to be a sum"
                raise Mixed(vector if vector.span else expr, reason)
            case Entry(name=name, indices=indices):
                own = self._direct(name, Kind.TABLE)
                return replace(expr, name=own, indices=tuple(self._number(each) for each in indices))
            case _:
                return rebuild(expr, self._number)

    def _whole(self, expr: Expr) -> Expr:
        """A whole number of a pair that is compared with another: what tokens have of it stays as it is."""
        side = side_of(expr, self.data)
        if side in _NUMBERS and reads_data(expr):
            return self._taken_out(expr, side, exact=True)
        match expr:
            case Let(value=value):
                return self._whole(value)
            case Binary() | Negate() | Call() if type_of(expr) is Type.INT and side is Side.PAIR:
                return rebuild(expr, self._whole)
            case _:
                return self._number(expr)

    def _taken_out(self, expr: Expr, side: Side, kind: Kind | None = None, *, exact: bool = False) -> Expr:
        kind = kind or (Kind.OFFSET_NUMBER if side is Side.OFFSET else _NUMBERS[side])
        inner, hint = _named(expr)
        if isinstance(inner, Token):
            return Local(self._direct(inner.name, kind, exact=exact), span=expr.span)
        base = hint or next((node.name for node in walk(inner) if isinstance(node, Entry | Token)), None) or "number"
        base = f"not_{base}" if isinstance(inner, Not) else base
        return Local(self._derived(inner, kind, base, exact=exact), span=expr.span)

    def _apart(self, found: Parted, other: Callable[[Expr], Expr], operand: Callable[[Expr, Side], Expr]) -> Expr:
        """A difference of far sums as one of whole parts, which is exact, and one of what is left of them."""
        whole, rest = (
            Binary(BinaryOp.SUBTRACT, operand(part(found.row), Side.ROW), operand(part(found.key), Side.COLUMN))
            for part in (whole_of, rest_of)
        )
        total: Expr = Binary(BinaryOp.ADD, whole, rest)
        total = total if found.sign > 0 else Negate(total)
        return total if found.other is None else Binary(BinaryOp.ADD, other(found.other), total)

    # --- products of vectors ----------------------------------------------------------------------------------

    def _product(self, expr: Expr, left: Expr, right: Expr | None) -> Expr:
        """A sum over features: as products of a row vector and a column vector where the formula is one."""
        terms = list(_terms(left, right, lambda each: side_of(each, self.data) is Side.PAIR))
        if len(terms) <= _MOST_PRODUCTS and all(self._is_separable(factors) for _, factors in terms):
            total: Expr | None = None
            for sign, factors in terms:
                part = self._separated(factors)
                if total is None:
                    total = part if sign > 0 else Negate(part)
                else:
                    total = Binary(BinaryOp.ADD if sign > 0 else BinaryOp.SUBTRACT, total, part)
            assert total is not None
            return total
        body = left if right is None else Binary(BinaryOp.MULTIPLY, left, right)
        met: list[str] = []
        inner = self._channel(body, met)
        for name in met[1:]:
            self._meet(met[0], name)
        return Channels(inner, span=expr.span)

    def _is_separable(self, factors: tuple[Expr, ...]) -> bool:
        sides = [side_of(each, self.data) for each in factors]
        return all(side in (Side.NONE, Side.ROW, Side.COLUMN) for side in sides)

    def _separated(self, factors: tuple[Expr, ...]) -> Expr:
        rows = [each for each in factors if side_of(each, self.data) is not Side.COLUMN]
        columns = [each for each in factors if side_of(each, self.data) is Side.COLUMN]
        vectors = [any(type_of(each) is Type.VECTOR for each in part) for part in (rows, columns)]
        one_sided = not columns or all(side_of(each, self.data) is Side.NONE for each in rows)
        if one_sided:
            vector = _multiplied([*rows, *columns])
            side = Side.COLUMN if columns else _joined([side_of(each, self.data) for each in rows])
            return self._taken_out(Reduce("sum", vector), side)
        if not all(vectors):  # a number of one token times the features of the other
            numbers, features = (rows, columns) if vectors[1] else (columns, rows)
            return Binary(
                BinaryOp.MULTIPLY,
                self._number(_multiplied(numbers)),
                self._number(Reduce("sum", _multiplied(features))),
            )
        row = self._vector(_multiplied(rows), Kind.ROW_VECTOR)
        column = self._vector(_multiplied(columns), Kind.COLUMN_VECTOR)
        self._meet(row, column)
        for one, other in ((row, column), (column, row)):
            operand = self.operands[one]
            if operand.value is not None and not _has_features(operand.value):
                self.operands[one] = replace(operand, like=other)
        return Dot(Vector(row), Vector(column))

    def _channel(self, expr: Expr, met: list[str]) -> Expr:
        """A formula of features in operands; `met` collects the vectors."""
        side = side_of(expr, self.data)
        if side in (Side.ROW, Side.COLUMN, Side.NONE) and reads_data(expr) and not _is_truth_of_features(expr):
            if type_of(expr) is Type.VECTOR:
                kind = Kind.COLUMN_VECTOR if side is Side.COLUMN else Kind.ROW_VECTOR
                name = self._vector(expr, kind)
                met.append(name)
                return Vector(name, span=expr.span)
            return self._number(expr)
        if not varies_by_feature(expr) and reads_data(expr):
            return self._number(expr)
        match expr:
            case Let(value=value):
                return self._channel(value, met)
            case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT) if (found := parted(expr, self.data)) is not None:
                return self._apart(found, lambda each: self._channel(each, met), lambda each, _: self._far(each, met))
            case Rotate() | Join() | MatMul() | Entry(is_vector=True):
                raise Mixed(expr, "it would have to be computed for every pair of tokens")
            case _:
                return rebuild(expr, lambda each: self._channel(each, met))

    def _far(self, expr: Expr, met: list[str]) -> Expr:
        """A part of a far sum for a formula of features; in 16 bits it would lose what it is apart for."""
        inner = self._channel(expr, met)
        if isinstance(inner, Vector):
            self.operands[inner.name] = replace(self.operands[inner.name], wide=True)
        return inner

    # --- operands ---------------------------------------------------------------------------------------------

    def _vector(self, expr: Expr, kind: Kind) -> str:
        inner, hint = _named(expr)
        if isinstance(inner, Vector) and (self.data[inner.name].is_row) == (kind is Kind.ROW_VECTOR):
            return self._direct(inner.name, kind)
        base = hint or next((node.name for node in walk(inner) if isinstance(node, Let)), None)
        base = base or next((node.name for node in walk(inner) if isinstance(node, Vector | Entry)), "vector")
        return self._derived(inner, kind, base)

    def _direct(self, name: str, kind: Kind, *, exact: bool = False) -> str:
        exact = exact or (kind is Kind.TABLE and self.data[name].truth)
        known = self._known.get((Vector(name), kind, exact))
        if known is not None:
            return known
        own = self._free(name, kind)
        self._known[Vector(name), kind, exact] = own
        self._add(Operand(own, kind, source=name, exact=exact))
        return own

    def _derived(self, expr: Expr, kind: Kind, base: str, *, exact: bool = False) -> str:
        known = self._known.get((expr, kind, exact))
        if known is None:
            known = self._known[expr, kind, exact] = self._free(f"{base}_{_SUFFIX[kind]}", kind)
            self._add(Operand(known, kind, value=expr, exact=exact))
        return known

    def _free(self, name: str, kind: Kind) -> str:
        suffix = f"_{_SUFFIX[kind]}"
        if (name in self.operands or is_taken(name)) and not name.endswith(suffix):
            name += suffix
        at, candidate = 1, name
        while candidate in self.operands or (candidate in self.data and candidate != name):
            at += 1
            candidate = f"{name}_{at}"
        return candidate

    def _add(self, operand: Operand) -> None:
        self.operands.setdefault(operand.name, operand)

    def _meet(self, one: str, other: str) -> None:
        """Two vectors that are multiplied have one width."""
        first, second = self._root(one), self._root(other)
        if first != second:
            self._width[second] = first


def _is_truth_of_features(expr: Expr) -> bool:
    """Whether a predicate has a truth value for each feature."""
    return type_of(expr) is Type.BOOL and varies_by_feature(expr)


def _named(expr: Expr) -> tuple[Expr, str | None]:
    """The value inside Let nodes, and the outermost name."""
    hint = None
    while isinstance(expr, Let):
        hint = hint or expr.name
        if is_choice(expr):
            break  # its name is how callers know it
        expr = expr.value
    if hint is None and isinstance(expr, AtRow):
        return expr, _named(expr.value)[1]
    return expr, hint


def _of_keys(operand: Operand) -> Iterator[Expr]:
    """What an operand computes of keys."""
    if operand.value is None or operand.listed:
        return
    if operand.kind in (Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER, Kind.COLUMN_FACT):
        yield operand.value
    yield from (node for node in walk(operand.value) if isinstance(node, AtRow))


def _raises(expr: Expr) -> bool:
    """Whether a number grows like exp: inside a weight it has to stay where a running maximum can lower it."""
    match expr:
        case Call(function="exp" | "exp2"):
            return True
        case Binary(op=BinaryOp.POWER, right=right) if not isinstance(right, Const):
            return True
        case Dot() | Reduce() | Entry():
            return False
        case Let(value=value):
            return _raises(value)
        case Binary(left=left, right=right):
            return _raises(left) or _raises(right)
        case Negate(operand=operand):
            return _raises(operand)
        case Call(arguments=arguments):
            return any(_raises(each) for each in arguments)
        case _:
            return False


def _has_features(vector: Expr) -> bool:
    """Whether a formula names a vector that tells how many features it has."""
    return any(
        isinstance(node, Vector | MatMul) or (isinstance(node, Entry) and node.is_vector) for node in walk(vector)
    )


def _joined(sides: list[Side]) -> Side:
    total = Side.NONE
    for side in sides:
        total = join(total, side)
    return total


def _multiplied(factors: list[Expr]) -> Expr:
    total = factors[0]
    for factor in factors[1:]:
        total = Binary(BinaryOp.MULTIPLY, total, factor)
    return total


_Signed = tuple[int, tuple[Expr, ...]]


def _terms(left: Expr, right: Expr | None, is_mixed: Callable[[Expr], bool]) -> Iterator[_Signed]:
    """The sum over features of left * right as signed products of factors; mixed sums are multiplied out."""
    parts = _summands(left, 1, is_mixed)
    others: list[_Signed] = [(1, ())] if right is None else _summands(right, 1, is_mixed)
    for (sign, factors), (other_sign, other_factors) in product(parts, others):
        yield sign * other_sign, (*factors, *other_factors)


def _summands(expr: Expr, sign: int, is_mixed: Callable[[Expr], bool]) -> list[_Signed]:
    if not is_mixed(expr):
        return [(sign, (expr,))]
    match expr:
        case Let(value=value):
            return _summands(value, sign, is_mixed)
        case Negate(operand=operand):
            return _summands(operand, -sign, is_mixed)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT as op, left=left, right=right) if (
            type_of(left) is Type.VECTOR is type_of(right)
        ):
            other = sign if op is BinaryOp.ADD else -sign
            return _summands(left, sign, is_mixed) + _summands(right, other, is_mixed)
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
            return [
                (one * other * sign, (*factors, *other_factors))
                for (one, factors), (other, other_factors) in product(
                    _summands(left, 1, is_mixed), _summands(right, 1, is_mixed)
                )
            ]
        case _:
            return [(sign, (expr,))]
