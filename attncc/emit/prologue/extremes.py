"""The least and the largest value of an index of pairs in one call, as formulas of its first and last positions."""

from __future__ import annotations

from attncc.spec.expr import Binary, BinaryOp, Call, Const, Expr, Let, Local, Name, Negate, Select, Symbol, Table

Extremes = tuple[Expr, Expr]
FIRST_ROW, LAST_ROW, FIRST_KEY, LAST_KEY = map(Local, ("first_row", "last_row", "first_key", "last_key"))
_ZERO, _ONE = Const(0), Const(1)


def extremes(expr: Expr) -> Extremes | None:
    """Formulas between which an index lies; None where there are no such of positions alone."""
    match expr:
        case Const() | Symbol(name=Name.HEADS | Name.QUERIES | Name.KEYS):
            return expr, expr
        case Symbol(name=Name.I):
            return FIRST_ROW, LAST_ROW
        case Symbol(name=Name.J):
            return FIRST_KEY, LAST_KEY
        case Symbol(name=Name.HEAD):
            return _ZERO, Binary(BinaryOp.SUBTRACT, Symbol(Name.HEADS), _ONE)
        case Table(values=values):
            return Const(min(values)), Const(max(values))
        case Let(value=value):
            return extremes(value)
        case Select(then=then, otherwise=otherwise):
            return _hull(then, otherwise)
        case Negate(operand=operand):
            found = extremes(operand)
            return None if found is None else (Negate(found[1]), Negate(found[0]))
        case Binary(op=op, left=left, right=right):
            return _of_binary(op, left, right)
        case Call(function="min" | "max" as function, arguments=arguments):
            parts = [extremes(each) for each in arguments]
            known = [each for each in parts if each is not None]
            if len(known) < len(parts):
                return None
            return Call(function, tuple(low for low, _ in known)), Call(function, tuple(high for _, high in known))
        case Call(function="clip", arguments=(argument, least, most)):
            return extremes(Call("min", (Call("max", (argument, least)), most)))
        case Call(function="abs", arguments=(argument,)):
            found = extremes(argument)
            return None if found is None else (_ZERO, Call("max", (found[1], Negate(found[0]))))
        case _:
            return None


def _of_binary(op: BinaryOp, left: Expr, right: Expr) -> Extremes | None:
    one, other = extremes(left), extremes(right)
    if op is BinaryOp.MODULO and isinstance(right, Const) and right.value > 0:
        return _ZERO, Const(right.value - 1)
    if one is None or other is None:
        return None
    match op:
        case BinaryOp.ADD:
            return Binary(op, one[0], other[0]), Binary(op, one[1], other[1])
        case BinaryOp.SUBTRACT:
            return Binary(op, one[0], other[1]), Binary(op, one[1], other[0])
        case BinaryOp.MULTIPLY if isinstance(left, Const):
            return _of_binary(op, right, left)
        case BinaryOp.MULTIPLY if isinstance(right, Const):
            ends = Binary(op, one[0], right), Binary(op, one[1], right)
            return ends if right.value >= 0 else ends[::-1]
        case BinaryOp.FLOOR_DIVIDE if isinstance(right, Const) and right.value > 0:
            return Binary(op, one[0], right), Binary(op, one[1], right)
        case _:
            return None


def _hull(*parts: Expr) -> Extremes | None:
    first, second = (extremes(each) for each in parts)
    if first is None or second is None:
        return None
    return Call("min", (first[0], second[0])), Call("max", (first[1], second[1]))
