"""Expressions → the text that a spec would write, with the fewest brackets."""

from __future__ import annotations

import math

from attncc.spec.expr import (
    And,
    AtRow,
    Binary,
    BinaryOp,
    Call,
    Channel,
    Channels,
    Compare,
    Const,
    Dot,
    Entry,
    Expr,
    Indicator,
    Join,
    Let,
    Local,
    MatMul,
    Member,
    Merge,
    Negate,
    Not,
    Or,
    Output,
    OverKeys,
    Pooled,
    Reduce,
    Rotate,
    RowSum,
    Select,
    Shares,
    Symbol,
    Table,
    Token,
    Top,
    UpTo,
    Vector,
    Width,
)

_TERNARY, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _UNARY, _POWER, _ATOM = range(10)
_PRECEDENCE = {BinaryOp.ADD: _SUM, BinaryOp.SUBTRACT: _SUM, BinaryOp.POWER: _POWER}


def text(expr: Expr) -> str:
    """The expression in the language's own syntax."""
    return _write(expr, _TERNARY)


def number(value: int | float | bool) -> str:
    """A constant as short as it can be without losing bits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else repr(value)


def _write(expr: Expr, context: int) -> str:
    level, written = _written(expr)
    return f"({written})" if level < context else written


def _written(expr: Expr) -> tuple[int, str]:
    match expr:
        case Const(value=value):
            negative = not isinstance(value, bool) and math.copysign(1, value) < 0
            return _UNARY if negative else _ATOM, number(value)
        case Symbol(name=name):
            return _ATOM, name.value
        case Local(name=local):
            return _ATOM, local
        case Vector(name=name) | Token(name=name) | Let(name=name):
            return _ATOM, name
        case Entry(name=name, indices=indices):
            return _ATOM, f"{name}[{', '.join(map(text, indices))}]" if indices else name
        case Channel():
            return _ATOM, "channel"
        case Width(vector=vector):
            return _ATOM, f"width({text(vector)})"
        case Dot(left=left, right=right):
            return _ATOM, f"dot({text(left)}, {text(right)})"
        case Pooled(value=value, width=width, stride=stride):
            sizes = f"{width}" if width == stride else f"{width}, {stride}"
            return _ATOM, f"pool({text(value)}, {sizes})"
        case UpTo(name=name, value=value):
            return _ATOM, f"up_to({name}, {text(value)})"
        case OverKeys(function=function, value=value):
            return _ATOM, f"{function}({text(value)})"
        case AtRow(value=value):
            return _ATOM, f"{_write(value, _ATOM)}[i]"
        case Reduce(function=function, vector=vector):
            return _ATOM, f"{function}({text(vector)})"
        case Rotate(layout=layout, vector=vector):
            return _ATOM, f"rotate_{layout}({text(vector)})"
        case Join(left=left, right=right):
            return _ATOM, f"join({text(left)}, {text(right)})"
        case MatMul(vector=vector, matrix=matrix):
            return _PRODUCT, f"{_write(vector, _PRODUCT)} @ {_write(matrix, _UNARY)}"
        case Output(branch=branch):
            return _ATOM, branch
        case Merge(branches=branches):
            return _ATOM, f"merge({', '.join(branches)})"
        case Channels(body=body):
            return _ATOM, f"sum({text(body)})"
        case Negate(operand=operand):
            return _UNARY, f"-{_write(operand, _UNARY)}"
        case Binary(op=BinaryOp.POWER, left=left, right=right):
            return _POWER, f"{_write(left, _ATOM)}^{_write(right, _UNARY)}"
        case Binary(op=op, left=left, right=right):
            level = _PRECEDENCE.get(op, _PRODUCT)
            return level, f"{_write(left, level)} {op.value} {_write(right, level + 1)}"
        case Compare(op=compare, left=left, right=right):
            return _COMPARE, f"{_write(left, _SUM)} {compare.value} {_write(right, _SUM)}"
        case Member(element=element, of=of):
            return _COMPARE, f"{_write(element, _SUM)} in {text(of)}"
        case Shares(branch=branch):
            return _ATOM, f"shares({branch})"
        case Top(count=count, by=by, among=among, block=block, grouped=grouped):
            more = f", blocks = {block}" * (block > 1) + ", heads = grouped" * grouped
            return _ATOM, f"top({count}, by = {text(by)}, among = {text(among)}{more})"
        case And(operands=operands):
            return _AND, " & ".join(_write(each, _NOT) for each in operands) or "true"
        case Or(operands=operands):
            return _OR, " | ".join(_write(each, _AND) for each in operands) or "false"
        case Not(operand=operand):
            return _NOT, f"!{_write(operand, _ATOM)}"  # `!a < b` would be right, and misread
        case Select(condition=condition, then=then, otherwise=otherwise):
            parts = (_write(condition, _OR), _write(then, _TERNARY), _write(otherwise, _TERNARY))
            return _TERNARY, "{} ? {} : {}".format(*parts)
        case Indicator(predicate=predicate):
            return _ATOM, f"[{text(predicate)}]"
        case Table(values=values, index=index):
            return _ATOM, f"[{', '.join(map(number, values))}][{text(index)}]"
        case RowSum(weight=weight):
            return _ATOM, f"rows({text(weight)})"
        case Call(function=function, arguments=arguments):
            return _ATOM, f"{function}({', '.join(map(text, arguments))})"
        case _:
            raise TypeError(f"no text for {type(expr).__name__}")
