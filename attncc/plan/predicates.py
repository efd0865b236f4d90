"""Typed patterns → trees of literals: comparisons of whole numbers, in which min, max and choices become cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from attncc.plan.linear import Linear, number, quotient, remainder, variable
from attncc.plan.literals import ALWAYS, NEVER, Tree, all_of, any_of, literal, negated, tree_size
from attncc.spec.affine import whole_constant
from attncc.spec.expr import (
    And,
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Expr,
    Indicator,
    Negate,
    Not,
    Or,
    Select,
    Symbol,
)

_MOST_FORMS = 16  # forms that one number may split into
_MOST_LITERALS = 300  # literals of a tree


class TooLarge(Exception):
    """A predicate whose tree would be too large to analyse."""


@dataclass(frozen=True)
class Least:
    """A number that is the smallest of some forms."""

    forms: tuple[Linear, ...]


@dataclass(frozen=True)
class Most:
    """A number that is the largest of some forms."""

    forms: tuple[Linear, ...]


@dataclass(frozen=True)
class Cases:
    """A number that is the form beside the one guard that holds."""

    choices: tuple[tuple[Tree, Linear], ...]


Number = Linear | Least | Most | Cases


@lru_cache(maxsize=64)
def outer_tree(predicate: Expr) -> tuple[Tree, bool]:
    """The tree, and whether it is the predicate itself; else it holds at least wherever the predicate does."""
    try:
        return tree_of(predicate), True
    except TooLarge:
        if not isinstance(predicate, And):
            return ALWAYS, False
        return all_of(outer_tree(operand)[0] for operand in predicate.operands), False


def tree_of(predicate: Expr) -> Tree:
    """The tree of a predicate that `spec.affine.check_affine` accepts and that has no per-head constants left.

    Raises:
        TooLarge: more cases than are worth looking at.
    """
    tree = _tree_of(predicate)
    if tree_size(tree) > _MOST_LITERALS:
        raise TooLarge
    return tree


def _tree_of(predicate: Expr) -> Tree:
    match predicate:
        case Const(value=value):
            return ALWAYS if value else NEVER
        case And(operands=operands):
            return all_of(tree_of(operand) for operand in operands)
        case Or(operands=operands):
            return any_of(tree_of(operand) for operand in operands)
        case Not(operand=operand):
            return negated(tree_of(operand))
        case Select(condition=condition, then=then, otherwise=otherwise):
            holds = tree_of(condition)
            return any_of((all_of((holds, tree_of(then))), all_of((negated(holds), tree_of(otherwise)))))
        case Compare(op=op, left=left, right=right):
            return _comparison(op, _number(left), _number(right))
    raise TypeError(f"not an affine predicate: {predicate!r}")


def _comparison(op: CompareOp, left: Number, right: Number) -> Tree:
    match op:
        case CompareOp.LESS_EQUAL:
            return _not_negative(_sum(right, _scaled(left, -1)))
        case CompareOp.LESS:
            return _not_negative(_sum(right, _scaled(left, -1)), shift=-1)
        case CompareOp.GREATER_EQUAL:
            return _comparison(CompareOp.LESS_EQUAL, right, left)
        case CompareOp.GREATER:
            return _comparison(CompareOp.LESS, right, left)
        case CompareOp.EQUAL:
            difference = _sum(left, _scaled(right, -1))
            if isinstance(difference, Cases):
                return any_of(all_of((guard, literal(form), literal(-form))) for guard, form in difference.choices)
            return all_of((_not_negative(difference), _not_negative(_scaled(difference, -1))))
        case CompareOp.NOT_EQUAL:
            return negated(_comparison(CompareOp.EQUAL, left, right))


def _not_negative(value: Number, shift: int = 0) -> Tree:
    match value:
        case Linear():
            return literal(value + shift)
        case Least(forms=forms):
            return all_of(literal(form + shift) for form in forms)
        case Most(forms=forms):
            return any_of(literal(form + shift) for form in forms)
        case Cases(choices=choices):
            return any_of(all_of((guard, literal(form + shift))) for guard, form in choices)


def _number(expr: Expr) -> Number:
    value = _number_of(expr)
    if len(_forms(value)) > _MOST_FORMS:
        raise TooLarge
    return value


def _number_of(expr: Expr) -> Number:
    constant = whole_constant(expr)
    if constant is not None:
        return number(constant)
    match expr:
        case Symbol(name=name):
            return variable(name)
        case Negate(operand=operand):
            return _scaled(_number(operand), -1)
        case Binary(op=BinaryOp.ADD, left=left, right=right):
            return _sum(_number(left), _number(right))
        case Binary(op=BinaryOp.SUBTRACT, left=left, right=right):
            return _sum(_number(left), _scaled(_number(right), -1))
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
            factor = whole_constant(left)
            if factor is not None:
                return _scaled(_number(right), factor)
            return _scaled(_number(left), _whole(right))
        case Binary(op=BinaryOp.FLOOR_DIVIDE, left=left, right=right):
            divisor = _whole(right)
            return _mapped(_number(left), lambda form: quotient(form, divisor))
        case Binary(op=BinaryOp.MODULO, left=left, right=right):
            divisor = _whole(right)
            # a remainder is not monotone: minima and maxima have to be told apart before it
            value = _number(left)
            cases = value if isinstance(value, Linear) else _cases(value)
            return _mapped(cases, lambda form: remainder(form, divisor))
        case Indicator(predicate=predicate):
            holds = tree_of(predicate)
            return Cases(((holds, number(1)), (negated(holds), number(0))))
        case Select(condition=condition, then=then, otherwise=otherwise):
            holds = tree_of(condition)
            return Cases((*_guarded(holds, _number(then)), *_guarded(negated(holds), _number(otherwise))))
        case Call(function=function, arguments=arguments):
            return _call(function, tuple(_number(argument) for argument in arguments))
    raise TypeError(f"not an affine number: {expr!r}")


def _whole(expr: Expr) -> int:
    value = whole_constant(expr)
    if value is None:
        raise TypeError(f"not a whole constant: {expr!r}")
    return value


def _call(function: str, arguments: tuple[Number, ...]) -> Number:
    match function, arguments:
        case "floor", (value,):
            return value
        case "abs", (value,):
            return _largest((value, _scaled(value, -1)))
        case "max", _:
            return _largest(arguments)
        case "min", _:
            return _scaled(_largest(tuple(_scaled(argument, -1) for argument in arguments)), -1)
        case "clip", (value, low, high):
            return _call("min", (_largest((value, low)), high))
    raise TypeError(f"{function} has no affine form")


def _largest(values: tuple[Number, ...]) -> Number:
    forms: list[Linear] = []
    for value in values:
        match value:
            case Linear():
                forms.append(value)
            case Most(forms=inner):
                forms += inner
            case _:
                return _largest_of_cases(values)
    return Most(tuple(dict.fromkeys(forms)))


def _largest_of_cases(values: tuple[Number, ...]) -> Number:
    total = values[0]
    for value in values[1:]:
        total = Cases(
            tuple(
                choice
                for guard, one in _cases(total).choices
                for other_guard, other in _cases(value).choices
                for choice in (
                    (all_of((guard, other_guard, literal(one - other))), one),
                    (all_of((guard, other_guard, literal(other - one - 1))), other),
                )
                if choice[0] != NEVER
            )
        )
    return total


def _sum(left: Number, right: Number) -> Number:
    match left, right:
        case Linear(), Linear():
            return left + right
        case (Least(), Linear() | Least()) | (Linear(), Least()):
            return Least(tuple(one + other for one in _forms(left) for other in _forms(right)))
        case (Most(), Linear() | Most()) | (Linear(), Most()):
            return Most(tuple(one + other for one in _forms(left) for other in _forms(right)))
    return Cases(
        tuple(
            (all_of((guard, other_guard)), one + other)
            for guard, one in _cases(left).choices
            for other_guard, other in _cases(right).choices
        )
    )


def _forms(value: Number) -> tuple[Linear, ...]:
    match value:
        case Linear():
            return (value,)
        case Least(forms=forms) | Most(forms=forms):
            return forms
        case Cases(choices=choices):
            return tuple(form for _, form in choices)


def _scaled(value: Number, factor: int) -> Number:
    scaled = tuple(form.scaled(factor) for form in _forms(value))
    match value:
        case Linear():
            return scaled[0]
        case Least():
            return Least(scaled) if factor >= 0 else Most(scaled)
        case Most():
            return Most(scaled) if factor >= 0 else Least(scaled)
        case Cases(choices=choices):
            return Cases(tuple((guard, form) for (guard, _), form in zip(choices, scaled, strict=True)))


def _mapped(value: Number, change: Callable[[Linear], Linear]) -> Number:
    """A function applied to every form; it must be monotone unless `value` is one form or cases."""
    match value:
        case Linear():
            return change(value)
        case Least(forms=forms):
            return Least(tuple(change(form) for form in forms))
        case Most(forms=forms):
            return Most(tuple(change(form) for form in forms))
        case Cases(choices=choices):
            return Cases(tuple((guard, change(form)) for guard, form in choices))


def _cases(value: Number) -> Cases:
    """Any number as guarded cases; of equal extremes the first one counts."""
    match value:
        case Linear():
            return Cases(((ALWAYS, value),))
        case Cases():
            return value
        case Least(forms=forms):
            opposite = _cases(Most(tuple(-form for form in forms)))
            return Cases(tuple((guard, -form) for guard, form in opposite.choices))
        case Most(forms=forms):
            choices: list[tuple[Tree, Linear]] = []
            for index, form in enumerate(forms):
                beats = [form - other - 1 for other in forms[:index]] + [form - other for other in forms[index + 1 :]]
                choices.append((all_of(literal(margin) for margin in beats), form))
            return Cases(tuple(choices))


def _guarded(guard: Tree, value: Number) -> tuple[tuple[Tree, Linear], ...]:
    return tuple((all_of((guard, inner)), form) for inner, form in _cases(value).choices)
