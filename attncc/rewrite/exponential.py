"""Weights as sums of (coefficient x exp(exponent)), and normalisers scaled by a power of e.

A weight that grows like exp needs a running maximum; this is where its exponents are found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Const,
    Dot,
    Expr,
    Indicator,
    Let,
    Local,
    Name,
    Negate,
    Reduce,
    Select,
    Symbol,
    Table,
    names_in,
    rebuild,
    walk,
)

_MOST_TERMS = 4


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient * exp(exponent); without an exponent the coefficient alone."""

    coefficient: Expr
    exponent: Expr | None


def varies_with_pair(expr: Expr) -> bool:
    """Whether the expression can differ between two keys of one row (it reads j, or a node)."""
    return Name.J in names_in(expr) or any(isinstance(node, Local) for node in walk(expr))


def terms_of(weight: Expr) -> tuple[Term, ...] | None:
    """The weight as a sum of terms; None when no term has an exponent that varies along a row."""
    terms = _terms(weight)
    if terms is None or not any(term.exponent is not None for term in terms):
        return None
    return terms


def _terms(expr: Expr) -> tuple[Term, ...] | None:
    """The terms, or None where there are too many."""
    plain = (Term(expr, None),)
    match expr:
        case Call(function="exp", arguments=(exponent,)) if varies_with_pair(exponent):
            return (Term(Const(1), exponent),)
        case Call(function="exp2", arguments=(exponent,)) if varies_with_pair(exponent):
            return (Term(Const(1), _times(Const(math.log(2)), exponent)),)
        case Binary(op=BinaryOp.POWER, left=Const(value=base), right=exponent) if base > 0 and varies_with_pair(
            exponent
        ):
            return (Term(Const(1), _times(Const(math.log(base)), exponent)),)
        case Binary(op=BinaryOp.POWER, left=left, right=Const(value=int(power))) if power > 0:
            inner = _terms(left)
            if inner is None or len(inner) != 1 or inner[0].exponent is None:
                return plain
            coefficient = Binary(BinaryOp.POWER, inner[0].coefficient, Const(power))
            return (Term(coefficient, _times(Const(power), inner[0].exponent)),)
        case Negate(operand=operand):
            return _scaled(_terms(operand), lambda coefficient: Negate(coefficient))
        case Binary(op=BinaryOp.ADD, left=left, right=right):
            return _joined(_terms(left), _terms(right), plain)
        case Binary(op=BinaryOp.SUBTRACT, left=left, right=right):
            return _joined(_terms(left), _scaled(_terms(right), lambda coefficient: Negate(coefficient)), plain)
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
            return _product(_terms(left), _terms(right))
        case Binary(op=BinaryOp.DIVIDE, left=left, right=right):
            return _quotient(_terms(left), _terms(right), right, plain)
        case Select(condition=condition, then=then, otherwise=otherwise):
            return _chosen(condition, _terms(then), _terms(otherwise), plain)
        case _:
            return plain


def _scaled(terms: tuple[Term, ...] | None, change) -> tuple[Term, ...] | None:  # type: ignore[no-untyped-def]
    return None if terms is None else tuple(Term(change(term.coefficient), term.exponent) for term in terms)


def _joined(
    left: tuple[Term, ...] | None, right: tuple[Term, ...] | None, plain: tuple[Term, ...]
) -> tuple[Term, ...] | None:
    if left is None or right is None or len(left) + len(right) > _MOST_TERMS:
        return None
    if all(term.exponent is None for term in (*left, *right)):
        return plain
    return (*left, *right)


def _chosen(
    condition: Expr, yes: tuple[Term, ...] | None, no: tuple[Term, ...] | None, plain: tuple[Term, ...]
) -> tuple[Term, ...] | None:
    """Terms that count on one side of a condition: elsewhere their exponents are -inf and raise no maximum."""
    if yes is None or no is None or all(term.exponent is None for term in (*yes, *no)):
        return None if yes is None or no is None else plain
    if len(yes) == len(no) == 1:
        (one,), (two,) = yes, no
        same = one.coefficient == two.coefficient
        coefficient = one.coefficient if same else Select(condition, one.coefficient, two.coefficient)
        return (Term(coefficient, Select(condition, _exponent(one), _exponent(two))),)
    first = tuple(_where(condition, term, True) for term in yes)
    return _joined(first, tuple(_where(condition, term, False) for term in no), plain)


def _where(condition: Expr, term: Term, holds: bool) -> Term:
    """A term that is 0 where the condition does not hold (or, for `holds` = False, where it does)."""

    def choose(value: Expr, otherwise: Expr) -> Expr:
        return Select(condition, value, otherwise) if holds else Select(condition, otherwise, value)

    constant = isinstance(term.coefficient, Const)
    coefficient = term.coefficient if constant else choose(term.coefficient, Const(0))
    return Term(coefficient, choose(_exponent(term), _NOTHING))


def _exponent(term: Term) -> Expr:
    if term.exponent is None:
        return _NOTHING if term.coefficient == Const(0) else Const(0)
    return term.exponent


_NOTHING = Const(-math.inf)


def _product(left: tuple[Term, ...] | None, right: tuple[Term, ...] | None) -> tuple[Term, ...] | None:
    if left is None or right is None or len(left) * len(right) > _MOST_TERMS:
        return None
    return tuple(_multiplied(a, b) for a in left for b in right)


def _multiplied(left: Term, right: Term) -> Term:
    for one, other in ((left, right), (right, left)):
        if one.exponent is None and isinstance(one.coefficient, Indicator) and other.exponent is not None:
            return _where(one.coefficient.predicate, other, True)
    return Term(_times(left.coefficient, right.coefficient), _plus(left.exponent, right.exponent))


def _quotient(
    above: tuple[Term, ...] | None, below: tuple[Term, ...] | None, divisor: Expr, plain: tuple[Term, ...]
) -> tuple[Term, ...] | None:
    if above is None or below is None:
        return None
    if len(below) == 1 and below[0].exponent is not None:
        inverse = Negate(below[0].exponent)
        divisor = below[0].coefficient
        return tuple(Term(_over(term.coefficient, divisor), _plus(term.exponent, inverse)) for term in above)
    if any(term.exponent is not None for term in below):
        return plain  # 1 / (1 + exp(s)) and the like: bounded or not, no exponential of its own
    return tuple(Term(_over(term.coefficient, divisor), term.exponent) for term in above)


def _times(left: Expr, right: Expr) -> Expr:
    if left == Const(1):
        return right
    return left if right == Const(1) else Binary(BinaryOp.MULTIPLY, left, right)


def _over(left: Expr, right: Expr) -> Expr:
    return left if right == Const(1) else Binary(BinaryOp.DIVIDE, left, right)


def _plus(left: Expr | None, right: Expr | None) -> Expr | None:
    if left is None or right is None:
        return left if right is None else right
    return Binary(BinaryOp.ADD, left, right)


# --- normalisers ----------------------------------------------------------------------------------------------------


def scaled_normalizer(norm: Expr, sums: frozenset[str], peak: Expr) -> tuple[Expr, tuple[Expr, ...]] | None:
    """norm * exp(-peak), given that the Locals named in `sums` hold sums that are scaled by exp(-peak) already.

    Returns:
        The scaled normaliser and the parts of it that read no sum (each must stay below exp(peak)), or None when the
        normaliser is not proportional to its sums, as in sqrt(rows).
    """
    constants: list[Expr] = []

    def reads_sum(expr: Expr) -> bool:
        return any(isinstance(node, Local) and node.name in sums for node in walk(expr))

    def scale(expr: Expr) -> Expr | None:
        if expr == Const(0):
            return expr
        if not reads_sum(expr):
            constants.append(expr)
            if isinstance(expr, Call) and expr.function == "exp":  # in one step, so that neither factor overflows
                return Call("exp", (Binary(BinaryOp.SUBTRACT, expr.arguments[0], peak),))
            return _times(expr, Call("exp", (Negate(peak),)))
        match expr:
            case Local():
                return expr
            case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT, left=left, right=right):
                return _rebuilt(expr, (scale(left), scale(right)))
            case Binary(op=BinaryOp.MULTIPLY, left=left, right=right) if not (reads_sum(left) and reads_sum(right)):
                return _rebuilt(expr, (scale(left), right) if reads_sum(left) else (left, scale(right)))
            case Binary(op=BinaryOp.DIVIDE, left=left, right=right) if not reads_sum(right):
                return _rebuilt(expr, (scale(left), right))
            case Negate(operand=operand):
                return _rebuilt(expr, (scale(operand),))
            case Select(condition=condition, then=then, otherwise=otherwise) if not reads_sum(condition):
                return _rebuilt(expr, (condition, scale(then), scale(otherwise)))
            case Call(function="max" | "min" | "abs" | "relu", arguments=arguments):
                return _rebuilt(expr, tuple(scale(argument) for argument in arguments))
            case _:
                return None

    scaled = scale(norm)
    return None if scaled is None else (scaled, tuple(constants))


def _rebuilt(expr: Expr, parts: tuple[Expr | None, ...]) -> Expr | None:
    """`expr` with its children replaced in order; None when one of them is None."""
    if any(part is None for part in parts):
        return None
    queue = list(parts)
    return rebuild(expr, lambda _: queue.pop(0))  # type: ignore[arg-type, return-value]


def never_negative(expr: Expr, known: frozenset[str] = frozenset()) -> bool:
    """Whether an expression is proven to be >= 0; Locals named in `known` are."""
    match expr:
        case Const(value=value):
            return value >= 0
        case Symbol(name=name):
            return name in (
                Name.HEAD,
                Name.HEADS,
                Name.QUERIES,
                Name.KEYS,
                Name.WIDTH,
                Name.VALUE_WIDTH,
                Name.VALID,
                Name.J,
                Name.COUNT,
            )
        case Let(value=value):
            return never_negative(value, known)
        case Indicator():
            return True
        case Table(values=values):
            return min(values) >= 0
        case Reduce(vector=vector):
            return never_negative(vector, known)
        case Dot(left=left, right=right):
            return left == right or (never_negative(left, known) and never_negative(right, known))
        case Local(name=local):
            return local in known
        case Call(function="exp" | "exp2" | "sigmoid" | "relu" | "abs" | "sqrt" | "softplus"):
            return True
        case Call(function="log", arguments=(Binary(op=BinaryOp.ADD, left=left, right=right),)):
            at_least_one = [isinstance(each, Const) and each.value >= 1 for each in (left, right)]
            rest = (never_negative(right, known), never_negative(left, known))
            return any(one and other for one, other in zip(at_least_one, rest, strict=True))
        case Call(function="max", arguments=arguments):
            return any(never_negative(each, known) for each in arguments)
        case Call(function="min", arguments=arguments):
            return all(never_negative(each, known) for each in arguments)
        case Binary(op=BinaryOp.POWER, right=Const(value=int(power))) if power % 2 == 0:
            return True
        case Binary(op=BinaryOp.POWER, left=left):
            return never_negative(left, known)
        case Binary(op=BinaryOp.ADD | BinaryOp.MULTIPLY | BinaryOp.DIVIDE, left=left, right=right):
            return (never_negative(left, known) and never_negative(right, known)) or _bounded_sum(expr)
        case Select(then=then, otherwise=otherwise):
            return never_negative(then, known) and never_negative(otherwise, known)
        case _:
            return False


def _bounded_sum(expr: Expr) -> bool:
    """(1 + erf(x)) / 2, 1 + tanh(x), 1 + cos(x) and positive multiples: never negative although a part is."""
    match expr:
        case Binary(op=BinaryOp.DIVIDE | BinaryOp.MULTIPLY, left=left, right=Const(value=value)):
            return value > 0 and _bounded_sum(left)
        case Binary(
            op=BinaryOp.ADD, left=Const(value=value), right=Call(function="erf" | "tanh" | "cos" | "sin" | "elu")
        ):
            return value >= 1
        case Binary(
            op=BinaryOp.ADD, left=Call(function="erf" | "tanh" | "cos" | "sin" | "elu"), right=Const(value=value)
        ):
            return value >= 1
        case _:
            return False
