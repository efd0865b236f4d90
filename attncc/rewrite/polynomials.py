"""Polynomials of parts that are taken as they are: what a weight is, once its sides are told apart."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from functools import reduce
from itertools import product
from math import comb

from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, Let, Negate

Polynomial = dict[tuple[tuple[Expr, int], ...], float | int]  # by the parts of a monomial its coefficient
Monomial = tuple[float | int, tuple[tuple[Expr, int], ...]]  # a coefficient, and parts with their powers


def sealed(expr: Expr) -> Expr:
    """A part that the polynomial takes as it is."""
    return expr if isinstance(expr, Const) else Let("", expr)


def opened(expr: Expr) -> Expr:
    """The part itself, in whatever stands around it."""
    match expr:
        case Let(name="", value=value):
            return value
        case Call(arguments=(Let(name="", value=value),)):
            return replace(expr, arguments=(value,))
        case _:
            return expr


def multiplied_out(expr: Expr) -> tuple[Monomial, ...]:
    """The monomials of a polynomial; sympy, which takes long to load, multiplies sums by sums and turns angles."""
    plain = _plainly(expr)
    if plain is not None:
        return tuple((coefficient, powers) for powers, coefficient in plain.items() if coefficient != 0)
    from attncc.rewrite import symbolic

    return symbolic.multiplied_out(expr)


def most_monomials(expr: Expr, most: int) -> int:
    """A bound for the number of monomials, told without multiplying out; `most` stands for itself and all above."""
    match expr:
        case Negate(operand=operand):
            found = most_monomials(operand, most)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT, left=left, right=right):
            found = most_monomials(left, most) + most_monomials(right, most)
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
            found = most_monomials(left, most) * most_monomials(right, most)
        case Binary(op=BinaryOp.POWER, left=left, right=Const(value=int(power))) if power > 0:
            one = most_monomials(left, most)
            power = min(power, most)
            found = comb(one + power - 1, power)
        case Call(function="cos" | "sin"):
            found = 2
        case _:
            found = 1
    return min(found, most)


def degree(expr: Expr, parts: Container[Expr]) -> int:
    """The most of some parts that a monomial multiplies, told without multiplying out."""
    match expr:
        case _ if expr in parts:
            return 1
        case Negate(operand=operand):
            return degree(operand, parts)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT, left=left, right=right):
            return max(degree(left, parts), degree(right, parts))
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
            return degree(left, parts) + degree(right, parts)
        case Binary(op=BinaryOp.POWER, left=left, right=Const(value=int(power))) if power > 0:
            return degree(left, parts) * power
        case _:
            return 0


def _plainly(expr: Expr) -> Polynomial | None:
    """The coefficients of monomials where no sum is multiplied by a sum; None where one is."""
    match expr:
        case Const(value=int() | float() as value) if not isinstance(value, bool):
            return {(): value}
        case Negate(operand=operand):
            return _plain_product({(): -1}, _plainly(operand))
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT as op, left=left, right=right):
            one, other = _plainly(left), _plainly(right)
            if one is None or other is None:
                return None
            sign = 1 if op is BinaryOp.ADD else -1
            return {each: one.get(each, 0) + sign * other.get(each, 0) for each in {**one, **other}}
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
            return _plain_product(_plainly(left), _plainly(right))
        case Binary(op=BinaryOp.DIVIDE, left=left, right=Const(value=value)) if value:
            return _plain_product(_plainly(left), {(): 1 / value})
        case Binary(op=BinaryOp.POWER, left=left, right=Const(value=int(power))) if power > 0:
            return reduce(_plain_product, [_plainly(left)] * power)
        case Binary() | Call(function="cos" | "sin"):
            return None
        case _:
            return {((expr, 1),): 1}


def _plain_product(
    one: Polynomial | None,
    other: Polynomial | None,
) -> Polynomial | None:
    if one is None or other is None or min(len(one), len(other)) > 1:
        return None
    found: Polynomial = {}
    for (left, a), (right, b) in product(one.items(), other.items()):
        powers: dict[Expr, int] = {}
        for part, power in (*left, *right):
            powers[part] = powers.get(part, 0) + power
        monomial = tuple(sorted(powers.items(), key=lambda each: repr(each[0])))
        found[monomial] = found.get(monomial, 0) + a * b
    return found
