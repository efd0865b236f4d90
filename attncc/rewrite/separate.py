"""The law `separate`: a weight → a sum of products of features of the query and features of the key.

The weight is written in parts that belong to one side, products of both sides' vectors, and exponents; sympy multiplies
the polynomial out. What fails is told with the part that is no such product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from attncc.graph.ir import Graph, Node
from attncc.graph.ops import Axis, Op
from attncc.rewrite.bounds import is_positive
from attncc.rewrite.exponential import never_negative
from attncc.rewrite.polynomials import Monomial, degree, most_monomials, multiplied_out, opened, sealed
from attncc.rewrite.separable import NO_EXPONENT, ONE, Exponent, Factor, Term
from attncc.rewrite.slopes import plus, times
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Expr,
    Indicator,
    Local,
    Name,
    Negate,
    Not,
    Select,
    Symbol,
    Vector,
    children,
    rebuild,
    walk,
)
from attncc.spec.text import text

STATEMENT = "a weight that is a sum of products of a number of the query and one of the key is a product of vectors."
MOST_TERMS = 8
MOST_FACTORS = 3  # dot products that are multiplied: features of one are as many as all its widths multiplied
MOST_MONOMIALS = 256  # that are multiplied out: their number grows fast with powers of sums
_SIDE = {Name.I: Axis.ROW, Name.J: Axis.COLUMN}
_LEAST = 1e-38  # a size that is no less than 32 bits hold
_ARITHMETIC = (BinaryOp.ADD, BinaryOp.SUBTRACT, BinaryOp.MULTIPLY)


class NotSeparable(Exception):
    """Why a weight is no sum of products."""


def separate(graph: Graph, weight: str, sources: Mapping[str, Expr]) -> tuple[Term, ...]:
    """The terms of a number of pairs.

    Args:
        graph: a forward graph before any number is lowered by a peak.
        weight: the name of the number.
        sources: for operands of numbers and vectors what they are made of, with the token left open, where it is known.

    Raises:
        NotSeparable: with the part that stands in the way.
    """
    return _Separation(graph, sources).terms(weight)


class _Separation:
    def __init__(self, graph: Graph, sources: Mapping[str, Expr]) -> None:
        self.graph = graph
        self.sources = sources
        self.factors: dict[Expr, tuple[Factor, ...]] = {}  # by the placeholder that stands for it
        self.exponents: dict[Expr, Exponent] = {}

    def terms(self, weight: str) -> tuple[Term, ...]:
        """The terms of a number of pairs, alike ones added up."""
        prepared = self._prepared(self._inlined(self.graph[weight].value))
        found: dict[tuple[Expr, tuple[Factor, ...], Exponent], Expr] = {}
        self._expect_few(degree(prepared, self.factors))
        for monomial in self._monomials(prepared):
            for term in self._assembled(monomial):
                key = (term.key, term.factors, term.exponent)
                found[key] = term.row if key not in found else Binary(BinaryOp.ADD, found[key], term.row)
        if len(found) > MOST_TERMS:
            raise NotSeparable(f"it is a sum of {len(found)} products, more than are worth their features")
        self._expect_no_differences(found)
        return tuple(Term(row, *key) for key, row in found.items())

    def _monomials(self, expr: Expr) -> tuple[Monomial, ...]:
        """A polynomial multiplied out, unless that takes long and comes to nothing."""
        if most_monomials(expr, MOST_MONOMIALS) == MOST_MONOMIALS:
            raise NotSeparable(f"multiplied out it may be a sum of {MOST_MONOMIALS} products or more")
        return multiplied_out(expr)

    def _expect_few(self, factors: int) -> None:
        if factors > MOST_FACTORS:
            raise NotSeparable(f"a product of {factors} dot products has too many features")

    def _expect_no_differences(self, found: Mapping[tuple[Expr, tuple[Factor, ...], Exponent], Expr]) -> None:
        """Refuse (i - j)^p and the like: each product is as large as positions are, and little of their sum is left."""
        alike: dict[tuple[tuple[Factor, ...], Exponent], list[tuple[Expr, Expr]]] = {}
        for (key, factors, exponent), row in found.items():
            alike.setdefault((factors, exponent), []).append((row, key))
        for products in alike.values():
            rows, keys = zip(*products, strict=True)
            if len(products) > 1 and any(map(_grows, rows)) and any(map(_grows, keys)):
                raise NotSeparable("a difference of positions comes apart into numbers that grow where it does not")

    def _inlined(self, expr: Expr) -> Expr:
        """The expression with the numbers of pairs that it names written out."""
        if isinstance(expr, Local) and self.graph[expr.name].op is Op.NUMBER:
            return self._inlined(self.graph[expr.name].value)
        return rebuild(expr, self._inlined)

    # --- sides ------------------------------------------------------------------------------------------------

    def _axes(self, expr: Expr) -> set[Axis]:
        """Which of both tokens a number depends on."""
        found: set[Axis] = set()
        for each in walk(expr):
            match each:
                case Symbol(name=name):
                    found |= {_SIDE[name]} if name in _SIDE else {Axis.ROW} if name is Name.COUNT else set()
                case Local(name=name) | Vector(name=name):
                    found |= set(self._axes_of(self.graph[name]))
        return found & {Axis.ROW, Axis.COLUMN}

    def _axes_of(self, node: Node) -> tuple[Axis, ...]:
        is_number_of_pairs = node.axes == (Axis.OFFSET,)  # of the distance
        return (Axis.ROW, Axis.COLUMN) if is_number_of_pairs else node.axes

    def _of_pair(self, expr: Expr) -> bool:
        return len(self._axes(expr)) == 2

    # --- the polynomial ---------------------------------------------------------------------------------------

    def _prepared(self, expr: Expr) -> Expr:
        """The expression as a polynomial of parts of one side, which stand in Lets, and placeholders."""
        if not self._of_pair(expr):
            return sealed(expr)
        match expr:
            case Local(name=name) if name in self.graph:
                return self._placeholder(self.graph[name])
            case Negate() | Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT | BinaryOp.MULTIPLY):
                return rebuild(expr, self._prepared)
            case Binary(op=BinaryOp.DIVIDE, left=left, right=Const(value=value)) if value:
                return Binary(BinaryOp.MULTIPLY, self._prepared(left), Const(1 / value))
            case Binary(op=BinaryOp.DIVIDE, left=left, right=right) if not self._of_pair(right):
                return Binary(BinaryOp.MULTIPLY, self._prepared(left), sealed(Binary(BinaryOp.DIVIDE, ONE, right)))
            case Binary(op=BinaryOp.POWER, left=left, right=Const(value=int(power))) if power > 0:
                return Binary(BinaryOp.POWER, self._prepared(left), Const(power))
            case Binary(op=BinaryOp.POWER, left=base, right=exponent) if not self._axes(base):
                return self._power(base, exponent, expr)
            case Call(function="exp", arguments=(exponent,)):
                return self._raised(exponent, expr)
            case Call(function="exp2", arguments=(exponent,)):
                return self._raised(times(Const(math.log(2)), exponent), expr)
            case Call(function="cos" | "sin" as name, arguments=(angle,)):
                return self._turned(name, angle)
            case Select(condition=condition, then=then, otherwise=otherwise) if not self._of_pair(condition):
                yes, no = (sealed(Indicator(each)) for each in (condition, Not(condition)))
                return plus(times(yes, self._prepared(then)), times(no, self._prepared(otherwise)))
            case _:
                raise NotSeparable(f"`{_short(expr)}` is no sum of products of numbers of the query and of the key")

    def _placeholder(self, node: Node) -> Expr:
        """A product of vectors as one part of the polynomial."""
        here = Local(node.name)
        match node.op:
            case Op.DOT:
                row, column = node.inputs
                self.factors[here] = (Factor(Vector(row), Vector(column)),)
                return here
            case Op.CHANNELS:
                return self._channels(node)
            case _:
                raise NotSeparable(f"`{node.name}` is a number of its own for each pair")

    def _raised(self, exponent: Expr, whole: Expr) -> Expr:
        """e to a sum of a number of the query and one of the key, as one part of the polynomial."""
        found = self._exponent(exponent, whole)
        here: Expr = Local(f"exponential_{len(self.exponents) + 1}")
        here = next((known for known, other in self.exponents.items() if other == found), here)
        self.exponents[here] = found
        return here

    def _power(self, base: Expr, exponent: Expr, whole: Expr) -> Expr:
        """A power of a number of no token: e to a multiple of its logarithm.

        A base that may be 0 or less has one of its size, and a sign for each token: (-1)^(a + b) = (-1)^a (-1)^b for
        whole numbers. The least size stands for 0, whose powers are 1 and nothing.
        """
        if isinstance(base, Const) or is_positive(base, lambda name: self.graph[name].expr):
            return self._raised(times(_log(base), exponent), whole)
        sign: Expr = ONE
        if not never_negative(base):
            for _, _, part in self._summands(exponent, whole):
                odd = Binary(BinaryOp.MODULO, part, Const(2))
                flips = Binary(BinaryOp.SUBTRACT, ONE, Binary(BinaryOp.MULTIPLY, Const(2), odd))
                sign = times(sign, sealed(Select(Compare(CompareOp.LESS, base, Const(0)), flips, ONE)))
        size = Call("max", (Call("abs", (base,)), Const(_LEAST)))
        return times(self._raised(times(_log(size), exponent), whole), sign)

    def _turned(self, name: str, angle: Expr) -> Expr:
        """cos(a_i + b_j) by the sines and cosines of both."""
        parts: dict[Axis | None, Expr] = {}
        for side, _, part in self._summands(angle, Call(name, (angle,))):
            parts[side] = part if side not in parts else Binary(BinaryOp.ADD, parts[side], part)
        row = parts.get(Axis.ROW, Const(0))
        row = plus(row, parts[None]) if None in parts else row
        return Call(name, (Binary(BinaryOp.ADD, sealed(row), sealed(parts[Axis.COLUMN])),))

    # --- sums of two sides ------------------------------------------------------------------------------------

    def _exponent(self, expr: Expr, whole: Expr) -> Exponent:
        """The exponent as slope * (i - j) and numbers of both sides."""
        slopes: dict[Axis, list[Expr]] = {Axis.ROW: [], Axis.COLUMN: []}
        rest: dict[Axis, list[Expr]] = {Axis.ROW: [], Axis.COLUMN: []}
        for side, position, part in self._summands(expr, whole):
            (rest if position is None else slopes)[side or Axis.ROW].append(part if position is None else position)
        slope, other = (_total(slopes[side]) for side in (Axis.ROW, Axis.COLUMN))
        if slope is not None or other is not None:
            if slope is None or other is None or multiplied_out(plus(slope, other)):
                raise NotSeparable(f"the exponent of `{_short(whole)}` reads positions other than by their difference")
        return Exponent(slope, tuple(self._differences(rest[Axis.ROW], rest[Axis.COLUMN], whole)))

    def _differences(self, rows: list[Expr], keys: list[Expr], whole: Expr) -> Iterator[tuple[Expr, Expr]]:
        """Numbers of the query with those of the key that are the same number of a token, subtracted."""
        left = list(keys)
        for row in rows:
            key = next((each for each in left if self._follows(row, each)), None)
            if key is None:
                break
            left.remove(key)
            yield row, key
        else:
            if not left:
                return
        reason = "may be large where the other factors are small: only a running maximum keeps it in range"
        raise NotSeparable(f"`{_short(whole)}` {reason}")

    def _follows(self, row: Expr, key: Expr) -> bool:
        """Whether an exponent is a difference of one number of tokens, as of a sum along the sequence."""
        return not multiplied_out(plus(self._at_token(row), self._at_token(key)))

    def _at_token(self, expr: Expr) -> Expr:
        """A number of one side as one of a token, with the side forgotten."""
        match expr:
            case Local(name=name) | Vector(name=name) if name in self.sources:
                return sealed(self.sources[name])
            case Symbol() | Const() | Local() | Vector():
                return sealed(expr)
            case Binary(op=op) if op in _ARITHMETIC:
                return rebuild(expr, self._at_token)
            case Negate():
                return rebuild(expr, self._at_token)
            case _:
                return sealed(rebuild(expr, lambda each: opened(self._at_token(each))))

    def _summands(self, expr: Expr, whole: Expr) -> Iterator[tuple[Axis | None, Expr | None, Expr]]:
        """A sum as its summands of one side each: the side, the factor of a position if it is one, and the whole."""
        for coefficient, powers in self._monomials(self._opened_sum(expr)):
            parts = [(opened(each), power) for each, power in powers]
            sides = set().union(*(self._axes(each) for each, _ in parts)) if parts else set()
            if len(sides) > 1:
                raise NotSeparable(f"`{_short(whole)}` does not come apart into the query's part and the key's")
            position = next((each for each, power in parts if each in _POSITIONS and power == 1), None)
            others = [(each, power) for each, power in parts if each != position]
            is_slope = position is not None and not any(self._axes(each) for each, _ in others)
            yield (
                next(iter(sides), None),
                _product(coefficient, others) if is_slope else None,
                _product(coefficient, parts),
            )

    def _opened_sum(self, expr: Expr) -> Expr:
        """A sum down to its smallest summands."""
        match expr:
            case Const():
                return expr
            case Negate() | Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT | BinaryOp.MULTIPLY):
                return rebuild(expr, self._opened_sum)
            case Binary(op=BinaryOp.DIVIDE, left=left, right=Const(value=value)) if value:
                return Binary(BinaryOp.MULTIPLY, self._opened_sum(left), Const(1 / value))
            case Binary(op=BinaryOp.DIVIDE, left=left, right=right) if not self._axes(right):
                inverse = Binary(BinaryOp.DIVIDE, ONE, right)
                return Binary(BinaryOp.MULTIPLY, self._opened_sum(left), sealed(inverse))
            case Local(name=name) if self.graph[name].is_tile or self.graph[name].axes == (Axis.OFFSET,):
                raise NotSeparable(f"the exponent reads `{name}`, a number of the pair")
            case _:
                return sealed(expr)

    # --- channels ---------------------------------------------------------------------------------------------

    def _channels(self, node: Node) -> Expr:
        """A sum over channels of a formula of both sides' vectors, as a sum of factors times numbers."""
        inner = _Separation(self.graph, self.sources)
        total: Expr = Const(0)
        for coefficient, powers in self._monomials(inner._prepared(node.value)):
            exponents = {part: found for part, found in inner.exponents.items() if _has_vector(found)}
            inside = tuple(each for each in powers if each[0] in exponents or _reads_vector(each[0]))
            (term,) = inner._assembled((1, inside))
            here = Local(f"{node.name}_{len(self.factors) + 1}")
            self.factors[here] = (Factor(term.row, term.key, term.exponent),)
            outside: Expr = Const(coefficient)
            for part, power in powers:
                if (part, power) not in inside:
                    outside = times(outside, part if power == 1 else Binary(BinaryOp.POWER, part, Const(power)))
                    self.exponents |= {part: inner.exponents[part]} if part in inner.exponents else {}
            total = plus(total, times(outside, here))
        return total

    # --- terms ------------------------------------------------------------------------------------------------

    def _assembled(self, monomial: Monomial) -> Iterator[Term]:
        """A monomial by what it is made of."""
        coefficient, powers = monomial
        sides: dict[Axis, list[tuple[Expr, int]]] = {Axis.ROW: [], Axis.COLUMN: []}
        factors: list[Factor] = []
        exponents: list[Exponent] = []
        for part, power in powers:
            if part in self.factors:
                factors += self.factors[part] * power
            elif part in self.exponents:
                exponents += [self.exponents[part]] * power
            else:
                inner = opened(part)
                is_key = Axis.COLUMN in self._axes(inner)
                sides[Axis.COLUMN if is_key else Axis.ROW].append((inner, power))
        self._expect_few(len(factors))
        exponent = NO_EXPONENT
        for each in exponents:
            exponent = _sum(exponent, each)
        yield Term(_product(coefficient, sides[Axis.ROW]), _product(1, sides[Axis.COLUMN]), tuple(factors), exponent)


def _reads_vector(expr: Expr) -> bool:
    return any(isinstance(each, Vector) for each in walk(expr))


def _has_vector(exponent: Exponent) -> bool:
    return any(_reads_vector(each) for pair in exponent.differences for each in pair)


def _grows(expr: Expr) -> bool:
    """Whether a number of one side grows with its position."""
    match expr:
        case Symbol(name=Name.I | Name.J):
            return True
        case Binary(op=BinaryOp.MODULO) | Call(function="cos" | "sin" | "tanh" | "sigmoid" | "sign") | Indicator():
            return False
        case _:
            return any(map(_grows, children(expr)))


_POSITIONS = (Symbol(Name.I), Symbol(Name.J))


def _log(base: Expr) -> Expr:
    if isinstance(base, Const):
        if base.value <= 0:
            raise NotSeparable(f"{text(base)} has no logarithm")
        return Const(math.log(base.value))
    return Call("log", (base,))


def _sum(one: Exponent, other: Exponent) -> Exponent:
    def both(left: Expr | None, right: Expr | None) -> Expr | None:
        if left is None or right is None:
            return right if left is None else left
        if isinstance(left, Const) and isinstance(right, Const):
            return Const(left.value + right.value)
        return plus(left, right)

    return Exponent(both(one.slope, other.slope), one.differences + other.differences)


def _total(parts: list[Expr]) -> Expr | None:
    total: Expr | None = None
    for part in parts:
        total = part if total is None else plus(total, part)
    return total


def _product(coefficient: float, parts: list[tuple[Expr, int]]) -> Expr:
    total: Expr = Const(coefficient)
    for part, power in parts:
        total = times(total, part if power == 1 else Binary(BinaryOp.POWER, part, Const(power)))
    return total


def _short(expr: Expr) -> str:
    written = text(expr)
    return written if len(written) <= 60 else f"{written[:57]} …"
