"""Predicates and whole-number expressions → their values, at one pair of positions or at many."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import repeat
from typing import Any

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
    Name,
    Negate,
    Not,
    Or,
    Select,
    Symbol,
    Table,
)

PAIRS_AT_ONCE = 1 << 20  # as many as one step looks at: the terms of a pattern take eight bytes a pair


_OPERATORS = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUBTRACT: operator.sub,
    BinaryOp.MULTIPLY: operator.mul,
    BinaryOp.FLOOR_DIVIDE: operator.floordiv,
    BinaryOp.MODULO: operator.mod,
}
_COMPARISONS = {
    CompareOp.LESS: operator.lt,
    CompareOp.LESS_EQUAL: operator.le,
    CompareOp.GREATER: operator.gt,
    CompareOp.GREATER_EQUAL: operator.ge,
    CompareOp.EQUAL: operator.eq,
    CompareOp.NOT_EQUAL: operator.ne,
}


def evaluate(expr: Expr, values: Mapping[Name, int]) -> int | bool:
    """The value of a whole-number expression or predicate for given symbols; // and % are the floor forms."""
    match expr:
        case Const(value=value):
            if isinstance(value, float):
                raise TypeError(f"{value} is not a whole number")
            return value
        case Symbol(name=name):
            return values[name]
        case Negate(operand=operand):
            return -evaluate(operand, values)
        case Binary(op=op, left=left, right=right):
            return _arithmetic(op, evaluate(left, values), evaluate(right, values))
        case Compare(op=op, left=left, right=right):
            holds: bool = _COMPARISONS[op](evaluate(left, values), evaluate(right, values))
            return holds
        case And(operands=operands):
            return all(evaluate(operand, values) for operand in operands)
        case Or(operands=operands):
            return any(evaluate(operand, values) for operand in operands)
        case Not(operand=operand):
            return not evaluate(operand, values)
        case Select(condition=condition, then=then, otherwise=otherwise):
            return evaluate(then if evaluate(condition, values) else otherwise, values)
        case Indicator(predicate=predicate):
            return int(evaluate(predicate, values))
        case Table(values=entries, index=index):
            position = evaluate(index, values)
            if not 0 <= position < len(entries):
                raise IndexError(f"the table has {len(entries)} entries and is read at {position}")
            entry = entries[position]
            if isinstance(entry, float):
                raise TypeError(f"{entry} is not a whole number")
            return entry
        case Call(function=function, arguments=arguments):
            return _call(function, [evaluate(argument, values) for argument in arguments])
    raise TypeError(f"not a whole-number expression: {expr!r}")


Column = int | bool | list[int] | list[bool]  # a list has a value for each of some tiles; a number is that of all


def on_columns(expr: Expr, values: Mapping[Name, Column]) -> Column:
    """`evaluate` for many tiles at once, without numpy, which takes longer to import than the values to compute."""
    match expr:
        case Const(value=int(value)):
            return value
        case Symbol(name=name):
            return values[name]
        case Binary(op=op, left=left, right=right) if op in _OPERATORS:
            return _for_each(_OPERATORS[op], on_columns(left, values), on_columns(right, values))
        case Compare(op=op, left=left, right=right):
            return _for_each(_COMPARISONS[op], on_columns(left, values), on_columns(right, values))
        case And(operands=operands):
            return _for_each(_all, *(on_columns(operand, values) for operand in operands))
        case Call(function="min" | "max" as function, arguments=arguments):
            return _for_each(min if function == "min" else max, *(on_columns(each, values) for each in arguments))
    columns = [each for each in values.values() if isinstance(each, list)]
    names = [name for name, each in values.items() if isinstance(each, list)]
    if not columns:
        return evaluate(expr, values)  # type: ignore[arg-type]
    return [evaluate(expr, {**values, **dict(zip(names, row, strict=True))}) for row in zip(*columns, strict=True)]  # type: ignore[dict-item]


def _for_each(function: Callable[..., Any], *columns: Column) -> Column:
    spread = [each if isinstance(each, list) else repeat(each) for each in columns]
    if all(isinstance(each, repeat) for each in spread):
        found: Column = function(*columns)
        return found
    return list(map(function, *spread))


def _all(*values: int | bool) -> bool:
    return all(values)


def on_arrays(expr: Expr, values: Mapping[Name, Any]) -> Any:
    """`evaluate` for arrays of positions: numpy arrays that are broadcast, or plain numbers."""
    import numpy as np

    match expr:
        case Const(value=value):
            return value
        case Symbol(name=name):
            return values[name]
        case Negate(operand=operand):
            return -on_arrays(operand, values)
        case Binary(op=op, left=left, right=right):
            return _arithmetic(op, on_arrays(left, values), on_arrays(right, values))
        case Compare(op=op, left=left, right=right):
            return _COMPARISONS[op](on_arrays(left, values), on_arrays(right, values))
        case And(operands=operands):
            return reduce(np.logical_and, (on_arrays(operand, values) for operand in operands), True)
        case Or(operands=operands):
            return reduce(np.logical_or, (on_arrays(operand, values) for operand in operands), False)
        case Not(operand=operand):
            return np.logical_not(on_arrays(operand, values))
        case Select(condition=condition, then=then, otherwise=otherwise):
            return np.where(on_arrays(condition, values), on_arrays(then, values), on_arrays(otherwise, values))
        case Indicator(predicate=predicate):
            return np.asarray(on_arrays(predicate, values)).astype(np.int64)
        case Table(values=entries, index=index):
            return np.asarray(entries)[on_arrays(index, values)]
        case Call(function=function, arguments=arguments):
            found = [on_arrays(argument, values) for argument in arguments]
            match function, found:
                case "abs", [value]:
                    return abs(value)
                case "floor", [value]:
                    return value
                case "sign", [value]:
                    return np.sign(value)
                case "min", _:
                    return reduce(np.minimum, found)
                case "max", _:
                    return reduce(np.maximum, found)
                case "clip", [value, low, high]:
                    return np.minimum(np.maximum(value, low), high)
    raise TypeError(f"not a whole-number expression: {expr!r}")


def _arithmetic(op: BinaryOp, left: int, right: int) -> int:
    if op in _OPERATORS:
        found: int = _OPERATORS[op](left, right)
        return found
    if op is BinaryOp.POWER and right >= 0:
        return int(left**right)
    raise TypeError(f"`{op.value}` does not give a whole number")


def _call(function: str, arguments: list[int]) -> int:
    match function, arguments:
        case "abs", [value]:
            return abs(value)
        case "floor", [value]:
            return value
        case "sign", [value]:
            return (value > 0) - (value < 0)
        case "min", _:
            return min(arguments)
        case "max", _:
            return max(arguments)
        case "clip", [value, low, high]:
            return min(max(value, low), high)
    raise TypeError(f"`{function}` does not give a whole number")
