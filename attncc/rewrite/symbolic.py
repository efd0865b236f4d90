"""Derivatives by sympy, built node by node (spec text never reaches sympy's parser).

Only the parts of an expression that depend on the variable are converted; everything else stays one opaque symbol, so
that it comes back exactly as it was written. Loading sympy takes longer than the rest of a build, so `algebra` imports
this file only where its own rules do not reach.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy

from attncc.rewrite.slopes import INNER, SLOPES, depends
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Expr,
    Negate,
    Select,
)


def derivative(expr: Expr, variable: Expr) -> Expr:
    """d expr / d variable, for a variable that is a leaf of `expr`."""
    conversion = _Conversion(variable)
    return conversion.back(_tidy(sympy.diff(conversion.into(expr), conversion.variable)))


def multiplied_out(expr: Expr) -> tuple[tuple[int | float, tuple[tuple[Expr, int], ...]], ...]:
    """A polynomial as its monomials, each a coefficient and parts with their powers; sines of sums come apart.

    Sums, products, powers that are whole numbers, sines and cosines are taken apart; everything else is a part.
    """
    expansion = _Expansion()
    result = sympy.expand(expansion.into(expr), trig=True)
    terms = result.as_ordered_terms() if result != 0 else ()
    return tuple(expansion.monomial(term) for term in terms)


def _tidy(result: Any) -> Any:
    """relu(x) * step(x) is relu(x): the step is 1 wherever relu is not 0."""

    def without_step(product: Any) -> Any:
        grows = {factor.args[0] for factor in product.args if _is_power_of(factor, "relu")}
        kept = [factor for factor in product.args if not (_is_power_of(factor, "step") and factor.args[0] in grows)]
        return sympy.Mul(*kept)

    return result.replace(lambda node: node.is_Mul, without_step)


def _is_power_of(factor: Any, name: str) -> bool:
    return isinstance(factor, _function(name))


# --- functions with their derivatives ---------------------------------------------------------------------------


@cache
def _function(name: str) -> Any:
    """A sympy function class that knows its derivative and evaluates nothing by itself."""

    def fdiff(self: Any, argindex: int = 1) -> Any:
        first = self.args[0]
        match name:
            case "min" | "max":
                ahead = "less" if name == "min" else "more"
                winner = _function(ahead)(self.args[0], self.args[1])
                return winner if argindex == 1 else 1 - winner
            case "mod":
                return 1 if argindex == 1 else 0
            case "less" | "more" | "floordiv":
                return 0
            case "choose":  # choose(condition symbol, then, otherwise)
                return {1: 0, 2: _function("choose")(first, 1, 0), 3: _function("choose")(first, 0, 1)}[argindex]
            case "step":
                return 0
            case _:
                slope = _Conversion(INNER)
                return slope.into(SLOPES[name]).xreplace({slope.variable: first})

    return type(name, (sympy.Function,), {"fdiff": fdiff})


# --- conversion ---------------------------------------------------------------------------------------------------


class _Conversion:
    """Expr ↔ sympy for one variable."""

    def __init__(self, variable: Expr) -> None:
        self.expr_variable = variable
        self.variable = sympy.Symbol("x", real=True)
        self._opaque: dict[Expr, Any] = {}

    def into(self, expr: Expr) -> Any:
        if expr == self.expr_variable:
            return self.variable
        if isinstance(expr, Const) and not isinstance(expr.value, bool):
            return sympy.Integer(expr.value) if isinstance(expr.value, int) else sympy.Float(expr.value)
        if not depends(expr, self.expr_variable):
            return self._symbol(expr)
        match expr:
            case Negate(operand=operand):
                return -self.into(operand)
            case Binary(op=op, left=left, right=right):
                return _binary(op, self.into(left), self.into(right))
            case Call(function="clip", arguments=(x, low, high)):
                return self.into(Call("min", (Call("max", (x, low)), high)))
            case Call(function="min" | "max" as name, arguments=arguments):
                result = self.into(arguments[0])
                for argument in arguments[1:]:
                    result = _function(name)(result, self.into(argument))
                return result
            case Call(function=name, arguments=(argument,)):
                return _function(name)(self.into(argument))
            case Select(
                condition=Compare(op=CompareOp.GREATER, left=left, right=Const(value=0)),
                then=Const(value=1),
                otherwise=Const(value=0),
            ) if depends(left, self.expr_variable):
                return _function("step")(self.into(left))
            case Select(condition=condition, then=then, otherwise=otherwise):
                return _function("choose")(self._symbol(condition), self.into(then), self.into(otherwise))
            case _:  # an indicator or another whole number: constant but for its jumps
                return self._symbol(expr)

    def _symbol(self, expr: Expr) -> Any:
        return self._opaque.setdefault(expr, sympy.Symbol(f"c{len(self._opaque):04d}", real=True))

    def back(self, result: Any) -> Expr:
        """A sympy expression as an Expr, terms and factors in sympy's own (deterministic) order."""
        match result:
            case sympy.Symbol():
                return self._from_symbol(result)
            case sympy.Integer():
                return Const(int(result))
            case sympy.Number() | sympy.NumberSymbol():
                return Const(float(result))
            case sympy.Add():
                return self._sum(result.as_ordered_terms())
            case sympy.Mul():
                return self._product(result)
            case sympy.Pow():
                return self._power(result.base, result.exp)
            case sympy.log():
                return Call("log", (self.back(result.args[0]),))
            case _:
                return self._from_function(type(result).__name__, result.args)

    def _from_symbol(self, symbol: Any) -> Expr:
        if symbol == self.variable:
            return self.expr_variable
        return next(expr for expr, known in self._opaque.items() if known == symbol)

    def _from_function(self, name: str, args: tuple[Any, ...]) -> Expr:
        match name:
            case "less" | "more":
                op = CompareOp.LESS if name == "less" else CompareOp.GREATER
                return Select(Compare(op, self.back(args[0]), self.back(args[1])), Const(1), Const(0))
            case "step":
                return Select(Compare(CompareOp.GREATER, self.back(args[0]), Const(0)), Const(1), Const(0))
            case "choose":
                return Select(self.back(args[0]), self.back(args[1]), self.back(args[2]))
            case "Abs":  # what sympy makes of the root of a square
                return Call("abs", (self.back(args[0]),))
            case "floordiv":
                return Binary(BinaryOp.FLOOR_DIVIDE, self.back(args[0]), self.back(args[1]))
            case "mod":
                return Binary(BinaryOp.MODULO, self.back(args[0]), self.back(args[1]))
            case _:
                return Call(name, tuple(self.back(each) for each in args))

    def _sum(self, terms: list[Any]) -> Expr:
        terms = sorted(terms, key=lambda term: bool(term.could_extract_minus_sign()))  # `1 - x`, not `-x + 1`
        total = self.back(terms[0])
        for term in terms[1:]:
            negative = term.could_extract_minus_sign()
            op = BinaryOp.SUBTRACT if negative else BinaryOp.ADD
            total = Binary(op, total, self.back(-term if negative else term))
        return total

    def _product(self, result: Any) -> Expr:
        coefficient, rest = result.as_coeff_Mul()
        if coefficient == -1:
            return Negate(self.back(rest))
        factors = [coefficient] if float(coefficient) != 1 else []
        factors += rest.as_ordered_factors() if rest.is_Mul else [rest]
        above = [each for each in factors if not (each.is_Pow and each.exp.is_number and each.exp.is_negative)]
        below = [each for each in factors if each not in above]
        value = self._multiply(above)
        for each in below:
            value = Binary(BinaryOp.DIVIDE, value, self._power(each.base, -each.exp))
        return value

    def _multiply(self, factors: list[Any]) -> Expr:
        if not factors:
            return Const(1)
        value = self.back(factors[0])
        for factor in factors[1:]:
            value = Binary(BinaryOp.MULTIPLY, value, self.back(factor))
        return value

    def _power(self, base: Any, exponent: Any) -> Expr:
        if exponent == 1:
            return self.back(base)
        if exponent.is_number and exponent.is_negative:
            return Binary(BinaryOp.DIVIDE, Const(1), self._power(base, -exponent))
        if exponent == sympy.Rational(1, 2):
            return Call("sqrt", (self.back(base),))
        return Binary(BinaryOp.POWER, self.back(base), self.back(exponent))


def _binary(op: BinaryOp, left: Any, right: Any) -> Any:
    match op:
        case BinaryOp.ADD:
            return left + right
        case BinaryOp.SUBTRACT:
            return left - right
        case BinaryOp.MULTIPLY:
            return left * right
        case BinaryOp.DIVIDE:
            return left / right
        case BinaryOp.POWER:
            return left**right
        case BinaryOp.FLOOR_DIVIDE:
            return _function("floordiv")(left, right)
        case BinaryOp.MODULO:
            return _function("mod")(left, right)


def _keeps_polynomials(op: BinaryOp, right: Expr) -> bool:
    """Whether an operation makes a polynomial of polynomials."""
    match op, right:
        case BinaryOp.ADD | BinaryOp.SUBTRACT | BinaryOp.MULTIPLY, _:
            return True
        case BinaryOp.DIVIDE, Const(value=value):
            return value != 0
        case BinaryOp.POWER, Const(value=int(power)):
            return power > 0
        case _:
            return False


class _Expansion:
    """Expr ↔ sympy for polynomials."""

    def __init__(self) -> None:
        self._parts: dict[Expr, Any] = {}

    def into(self, expr: Expr) -> Any:
        match expr:
            case Const(value=bool()):
                return self._part(expr)
            case Const(value=int(value)):
                return sympy.Integer(value)
            case Const(value=value):
                return sympy.Float(value)
            case Negate(operand=operand):
                return -self.into(operand)
            case Binary(op=op, left=left, right=right) if _keeps_polynomials(op, right):
                return _binary(op, self.into(left), self.into(right))
            case Call(function="cos" | "sin" as name, arguments=(angle,)):
                return getattr(sympy, name)(self.into(angle))
            case _:
                return self._part(expr)

    def _part(self, expr: Expr) -> Any:
        return self._parts.setdefault(expr, sympy.Symbol(f"p{len(self._parts):04d}", real=True))

    def monomial(self, term: Any) -> tuple[int | float, tuple[tuple[Expr, int], ...]]:
        coefficient, rest = term.as_coeff_Mul()
        factors = () if rest == 1 else rest.as_ordered_factors() if rest.is_Mul else (rest,)
        powers = tuple((self._back(each.as_base_exp()[0]), int(each.as_base_exp()[1])) for each in factors)
        return int(coefficient) if coefficient.is_Integer else float(coefficient), powers

    def _back(self, base: Any) -> Expr:
        match base:
            case sympy.Symbol():
                return next(expr for expr, known in self._parts.items() if known == base)
            case sympy.cos() | sympy.sin():
                return Call(type(base).__name__, (self._back(base.args[0]),))
            case _:
                raise TypeError(f"{base} is no part of a polynomial")
