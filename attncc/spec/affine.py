"""The syntactic check that a pattern is affine: predicate → None, or the offending term and a sentence why.

Affine means: sums and differences of i, j, h, n, m and H, multiplied, divided (//) or reduced (%) by whole constants,
then compared and combined. Such patterns have exact index ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from attncc.spec.expr import (
    And,
    AtRow,
    Binary,
    BinaryOp,
    Call,
    Compare,
    Const,
    Dot,
    Entry,
    Expr,
    Indicator,
    Let,
    Local,
    Name,
    Negate,
    Not,
    Or,
    RowSum,
    Select,
    Symbol,
    Table,
    Token,
    Vector,
    names_in,
)
from attncc.spec.text import text as expr_text

PATTERN_NAMES = frozenset({Name.I, Name.J, Name.HEAD, Name.HEADS, Name.QUERIES, Name.KEYS})
LENGTHS = frozenset({Name.QUERIES, Name.KEYS, Name.HEADS})
_HEAD_ONLY = frozenset({Name.HEAD, Name.HEADS})
_MOST_VALUES = 4096  # per-head constants with more combinations than this are not looked through

_WORDS_OUTSIDE = {
    Name.COUNT: "`count` is the number of keys that the pattern relates, so the pattern cannot read it",
    Name.VALID: "`valid` changes from batch entry to batch entry; hidden keys are left out without being asked",
    Name.WIDTH: "`d` is the width of q and k, and which keys are related cannot depend on it",
    Name.VALUE_WIDTH: "`e` is the width of v, and which keys are related cannot depend on it",
    Name.SCALE: "`scale` is a real number that scales scores, and which keys are related cannot depend on it",
    Name.SCORE: "`score` is a value of the data; a pattern reads positions",
    Name.ROWS: "`rows` is known only after the weights; it belongs in `normalize`",
    Name.CHANNELS: "`channels` is known only after the weights; it belongs in `normalize`",
    Name.FIRST: "`first` is a bound that planning makes; a spec cannot read it",
    Name.LAST: "`last` is a bound that planning makes; a spec cannot read it",
    Name.RESIDUE: "`residue` is a class that planning makes; a spec cannot read it",
}

Refusal = tuple[Expr, str]


def why_outside(name: Name) -> str:
    """Why a pattern cannot read a symbol."""
    return _WORDS_OUTSIDE[name]


def check_affine(expr: Expr) -> Refusal | None:
    """The first term that keeps a predicate from being affine and the reason in a sentence, or None."""
    match expr:
        case Const(value=bool()):
            return None
        case And(operands=operands) | Or(operands=operands):
            return _first(*operands)
        case Not(operand=operand):
            return check_affine(operand)
        case Select(condition=condition, then=then, otherwise=otherwise):
            return _first(condition, then, otherwise)
        case Compare(left=left, right=right):
            return _check_number(left) or _check_number(right)
    return expr, "this is a number, and a pattern is a predicate; compare it with something, such as `… > 0`"


def whole_constant(expr: Expr) -> int | None:
    """The value of an integer expression that is the same for all positions, lengths and heads, or None."""
    values = constant_values(expr)
    return values[0] if values is not None and len(values) == 1 else None


def constant_values(expr: Expr) -> tuple[int, ...] | None:
    """The values that an integer expression takes over the heads; None where it is no whole constant of a head."""
    match expr:
        case Const(value=bool() | float()):
            return None
        case Const(value=int() as value):
            return (value,)
        case Table(values=values):
            return tuple(dict.fromkeys(values)) if all(type(value) is int for value in values) else None  # type: ignore[arg-type]
        case Indicator(predicate=predicate):
            return (0, 1) if names_in(predicate) <= _HEAD_ONLY else None
        case Select(condition=condition, then=then, otherwise=otherwise):
            if not names_in(condition) <= _HEAD_ONLY:
                return None
            left, right = constant_values(then), constant_values(otherwise)
            return None if left is None or right is None else tuple(dict.fromkeys(left + right))
        case Negate(operand=operand):
            inner = constant_values(operand)
            return None if inner is None else tuple(-value for value in inner)
        case Binary(op=op, left=first, right=second):
            return _combined((first, second), lambda pair: _arithmetic(op, *pair))
        case Call(function=function, arguments=arguments):
            return _combined(arguments, lambda values: _call(function, values))
    return None


def _combined(operands: tuple[Expr, ...], combine: Callable[[tuple[int, ...]], int | None]) -> tuple[int, ...] | None:
    """The results for all combinations of the operands' values."""
    choices: list[tuple[int, ...]] = []
    size = 1
    for operand in operands:
        values = constant_values(operand)
        if values is None:
            return None
        choices.append(values)
        size *= len(values)
    if size > _MOST_VALUES:
        return None
    results: dict[int, None] = {}
    for values in product(*choices):
        result = combine(values)
        if result is None:
            return None
        results[result] = None
    return tuple(results)


def _arithmetic(op: BinaryOp, left: int, right: int) -> int | None:
    match op:
        case BinaryOp.ADD:
            return left + right
        case BinaryOp.SUBTRACT:
            return left - right
        case BinaryOp.MULTIPLY:
            return left * right
        case BinaryOp.FLOOR_DIVIDE:
            return left // right if right else None
        case BinaryOp.MODULO:
            return left % right if right else None
        case BinaryOp.POWER:
            return int(left**right) if 0 <= right <= 64 else None
        case BinaryOp.DIVIDE:
            return None


def _call(function: str, values: tuple[int, ...]) -> int | None:
    match function, values:
        case "abs", (value,):
            return abs(value)
        case "floor", (value,):
            return value
        case "sign", (value,):
            return (value > 0) - (value < 0)
        case "min", _:
            return min(values)
        case "max", _:
            return max(values)
        case "clip", (value, low, high):
            return min(max(value, low), high)
    return None


def _first(*operands: Expr) -> Refusal | None:
    return next((refusal for refusal in map(check_affine, operands) if refusal is not None), None)


def _check_number(expr: Expr) -> Refusal | None:
    """The first offending term of a whole number inside a pattern."""
    match expr:
        case Const(value=float() as value):
            near = round(value) if abs(value) < 2**53 else 0
            return expr, f"positions are whole numbers and {value} is a real one; write a whole number, such as {near}"
        case Const():
            return None
        case Symbol(name=name):
            if name in PATTERN_NAMES:
                return None
            return expr, _WORDS_OUTSIDE[name]
        case Dot():
            return expr, "a dot product is a value of the data; a pattern reads positions"
        case AtRow(value=value):
            return expr, f"`{expr_text(value)}` is a value of the data; a pattern reads positions"
        case Vector(name=name) | Token(name=name) | Entry(name=name) | Let(name=name):
            return expr, f"`{name}` is a value of the data; a pattern reads positions"
        case Local(name=name):
            return (
                expr,
                f"`{name}` is a value of the data; a pattern's arithmetic is over positions, lengths and the head",
            )
        case RowSum():
            return expr, _WORDS_OUTSIDE[Name.ROWS]
        case Negate(operand=operand):
            return _check_number(operand)
        case Indicator(predicate=predicate):
            return check_affine(predicate)
        case Select(condition=condition, then=then, otherwise=otherwise):
            return check_affine(condition) or _check_number(then) or _check_number(otherwise)
        case Table(values=values, index=index):
            return _check_table(expr, values, index)
        case Binary(op=op, left=left, right=right):
            return _check_number(left) or _check_number(right) or _check_arithmetic(expr, op, left, right)
        case Call(function=function, arguments=arguments):
            return _check_call(expr, function, arguments)
    return expr, "this is a predicate where a number is expected; `[p]` is 1 where p holds, else 0"


def _check_table(expr: Expr, values: tuple[int | float, ...], index: Expr) -> Refusal | None:
    real = next((value for value in values if isinstance(value, float)), None)
    if real is not None:
        return expr, f"positions are whole numbers and this table holds {real}; write whole numbers"
    if not names_in(index) <= _HEAD_ONLY:
        return index, "a constant table is looked up by the head; index it with h, such as `h` or `h % 4`"
    return _check_number(index)


def _check_arithmetic(expr: Expr, op: BinaryOp, left: Expr, right: Expr) -> Refusal | None:
    match op:
        case BinaryOp.ADD | BinaryOp.SUBTRACT:
            return None
        case BinaryOp.MULTIPLY:
            return _check_product(expr, left, right)
        case BinaryOp.FLOOR_DIVIDE | BinaryOp.MODULO:
            return _check_divisor(op, right)
        case BinaryOp.DIVIDE:
            return expr, "`/` gives a real number, and positions are whole ones; `//` rounds down to a whole number"
        case BinaryOp.POWER:
            if constant_values(expr) is not None:
                return None
            return expr, ("a power of a position is not affine; list the distances: `i - j in [1, 2, 4]`")


def _check_product(expr: Expr, left: Expr, right: Expr) -> Refusal | None:
    if constant_values(left) is not None or constant_values(right) is not None:
        return None
    if names_in(left) <= LENGTHS or names_in(right) <= LENGTHS:
        return expr, (
            "lengths may be added but not multiplied, since n, m and H are known only at the call; "
            "bind the ratio as a parameter, such as `ratio = 4` and `i - ratio*j`"
        )
    return expr, "the product of two variables is not affine; one factor has to be a whole constant or a parameter"


def _check_divisor(op: BinaryOp, right: Expr) -> Refusal | None:
    values = constant_values(right)
    if values is None:
        what = "a length" if names_in(right) and names_in(right) <= LENGTHS else "a variable"
        return right, f"`{op.value}` by {what} is not affine; divide by a whole constant or a parameter"
    if min(values) <= 0:
        return right, f"`{op.value}` needs a divisor of at least 1, and this one is {min(values)}"
    return None


def _check_call(expr: Expr, function: str, arguments: tuple[Expr, ...]) -> Refusal | None:
    if function in {"floor", "abs", "min", "max", "clip"} or constant_values(expr) is not None:
        if function == "floor" and isinstance(arguments[0], Binary) and arguments[0].op is BinaryOp.DIVIDE:
            return arguments[0], "write `x // c`, which rounds down to a whole number, instead of `floor(x / c)`"
        return next((refusal for refusal in map(_check_number, arguments) if refusal is not None), None)
    return expr, (
        f"`{function}` gives a real number, and positions are whole ones; "
        "abs, min, max, clip, // and % keep whole numbers"
    )
