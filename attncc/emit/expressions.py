"""Expressions → Python text in one of the dialects.

Python's `&` and `|` bind tighter than comparisons, so these are bracketed.
"""

from __future__ import annotations

from collections.abc import Callable

from attncc.emit.dialects import Dialect
from attncc.graph.widths import width_of
from attncc.spec.expr import (
    And,
    AtRow,
    Binary,
    BinaryOp,
    Call,
    Channel,
    Compare,
    CompareOp,
    Const,
    Entry,
    Expr,
    Indicator,
    Let,
    Local,
    Member,
    Name,
    Negate,
    Not,
    Or,
    Select,
    Symbol,
    Table,
    Token,
    Type,
    Width,
    names_in,
    type_of,
    walk,
)

_LOOSE, _OR, _AND, _COMPARE, _SUM, _PRODUCT, _UNARY, _POWER, _ATOM = range(9)
CONJUNCT = _SUM  # the context of an operand of `&`

_NEGATED = {
    CompareOp.LESS: CompareOp.GREATER_EQUAL,
    CompareOp.LESS_EQUAL: CompareOp.GREATER,
    CompareOp.GREATER: CompareOp.LESS_EQUAL,
    CompareOp.GREATER_EQUAL: CompareOp.LESS,
    CompareOp.EQUAL: CompareOp.NOT_EQUAL,
    CompareOp.NOT_EQUAL: CompareOp.EQUAL,
}


class ExpressionWriter:
    """Writes expressions in one dialect.

    Args:
        symbol: the text of a position, length or other name.
        local: the text of a node's value, broadcast to where it is read.
        never_negative: whether an integer expression is proven >= 0, so that // and % need no floor form.
        is_positive: whether a base is proven > 0, so that its power is a plain exponential.
        host: writes what reads neither positions, heads nor nodes, and is therefore a plain Python number.
    """

    def __init__(
        self,
        dialect: Dialect,
        symbol: Callable[[Name], str],
        local: Callable[[str], str],
        never_negative: Callable[[Expr], bool] = lambda _: False,
        is_positive: Callable[[Expr], bool] = lambda _: False,
        host: ExpressionWriter | None = None,
    ) -> None:
        self.dialect = dialect
        self.symbol = symbol
        self.local = local
        self.never_negative = never_negative
        self.is_positive = is_positive
        self.host = host
        self.used: set[str] = set()  # helpers that the written text calls

    def write(self, expr: Expr, context: int = _LOOSE) -> str:
        """The text of `expr`, bracketed where `context` binds tighter."""
        if self.host is not None and self.is_plain(expr):
            return self.host.write(expr, context)
        level, written = self._written(expr)
        return f"({written})" if level < context else written

    def is_plain(self, expr: Expr) -> bool:
        """Whether an expression is a Python number at run time."""
        return _is_plain_number(expr)

    def is_whole(self, expr: Expr) -> bool:
        """Whether an expression is a tensor of whole numbers."""
        return type_of(expr) is Type.INT and bool(names_in(expr) & {Name.I, Name.J})

    def _written(self, expr: Expr) -> tuple[int, str]:
        match expr:
            case Const(value=value):
                return self._constant(value)
            case Symbol(name=name):
                return _ATOM, self.symbol(name)
            case Local(name=name):
                return _ATOM, self.local(name)
            case Negate(operand=operand):
                return _UNARY, f"-{self.write(operand, _UNARY)}"
            case Binary():
                return self._binary(expr)
            case Compare(op=op, left=left, right=right):
                return self._compare(op, left, right)
            case Member(element=element, of=of):
                self.used.add("_is_among")
                return _ATOM, f"_is_among({self.write(element)}, {self.write(of)})"
            case And(operands=operands):
                return _AND, " & ".join(self.write(each, _SUM) for each in operands)
            case Or(operands=operands):
                return _OR, " | ".join(self.write(each, _SUM) for each in operands)
            case Not(operand=Local() | Entry() | Token() | AtRow() | Let() | Member() as operand):
                return _UNARY, f"~{self.write(operand, _ATOM)}"
            case Not(operand=operand):
                return self._written(negated(operand))
            case Select(condition=condition, then=then, otherwise=otherwise) if type_of(expr) is Type.BOOL:
                both = Or((And((condition, then)), And((negated(condition), otherwise))))
                return self._written(both)
            case Select(condition=condition, then=then, otherwise=otherwise):
                return _ATOM, self._select(condition, self._real(then), self._real(otherwise))
            case Indicator(predicate=predicate):
                return _ATOM, self._select(predicate, "1.0", "0.0")
            case Table(values=values, index=index):
                return self._table(values, index)
            case Call(function=function, arguments=arguments):
                return self._call(expr, function, arguments)
            case Channel():
                return _ATOM, "channel"
            case Width(vector=vector):
                source = width_of(vector)
                assert source is not None, "a vector that no tensor gives its width"
                return _ATOM, f"{source}.shape[-1]"
            case _:
                raise TypeError(f"no text for {type(expr).__name__}")

    def _constant(self, value: int | float | bool) -> tuple[int, str]:
        if isinstance(value, float) and value in (float("inf"), -float("inf")):
            text = self.dialect.infinity
            negative = text.replace('"inf"', '"-inf"') if '"' in text else f"-{text}"
            return (_ATOM, text) if value > 0 else (_UNARY, negative)
        return (_UNARY if not isinstance(value, bool) and value < 0 else _ATOM), repr(value)

    def _select(self, condition: Expr, then: str, otherwise: str) -> str:
        if self.dialect.select.startswith("_where"):
            self.used.add("_where")
        return self.dialect.select.format(self.write(condition), then, otherwise)

    def _real(self, expr: Expr) -> str:
        """Branches of a choice between numbers are written as reals when they are constants."""
        if isinstance(expr, Const) and not isinstance(expr.value, bool):
            return self._constant(float(expr.value))[1]
        return self.write(expr)

    def _operand(self, expr: Expr, operand: Expr, context: int) -> str:
        """An operand of arithmetic or of a function whose result is real."""
        needed = self.dialect.real_operands or isinstance(expr, Call)
        if needed and type_of(expr) in (Type.REAL, Type.VECTOR) and self.is_whole(operand):
            return self.dialect.real.format(self.write(operand))
        return self.write(operand, context)

    def _binary(self, expr: Binary) -> tuple[int, str]:
        left, right = expr.left, expr.right
        match expr:
            case (
                Binary(op=BinaryOp.ADD, left=Call(function="elu", arguments=(inner,)), right=Const(value=1))
                | Binary(op=BinaryOp.ADD, left=Const(value=1), right=Call(function="elu", arguments=(inner,)))
            ) if self.dialect.elu_plus_one:
                self.used.add("_elu_plus_one")  # the sum of the two would lose all digits where x is far below 0
                return _ATOM, self.dialect.elu_plus_one.format(self._operand(expr, inner, _LOOSE))
        match expr.op:
            case BinaryOp.ADD | BinaryOp.SUBTRACT:
                first, second = self._operand(expr, left, _SUM), self._operand(expr, right, _PRODUCT)
                return _SUM, f"{first} {expr.op.value} {second}"
            case BinaryOp.MULTIPLY | BinaryOp.DIVIDE:
                first, second = self._operand(expr, left, _PRODUCT), self._operand(expr, right, _UNARY)
                return _PRODUCT, f"{first} {expr.op.value} {second}"
            case BinaryOp.FLOOR_DIVIDE | BinaryOp.MODULO:
                return self._floor(expr)
            case BinaryOp.POWER:
                return self._power(expr, left, right)

    def _floor(self, expr: Binary) -> tuple[int, str]:
        divides = expr.op is BinaryOp.FLOOR_DIVIDE
        template = self.dialect.floor_divide if divides else self.dialect.modulo
        plain = "{0} // {1}" if divides else "{0} % {1}"
        if template == plain or self.never_negative(expr.left):
            return _PRODUCT, plain.format(self.write(expr.left, _PRODUCT), self.write(expr.right, _UNARY))
        self.used.add("_floor_divide" if divides else "_modulo")
        return _ATOM, template.format(self.write(expr.left), self.write(expr.right))

    def _power(self, expr: Expr, left: Expr, right: Expr) -> tuple[int, str]:
        match right:
            case Const(value=int(value)) if 2 <= value <= 4 and isinstance(left, Local | Symbol):
                return _PRODUCT, " * ".join([self.write(left, _UNARY)] * value)
            case Const(value=int()) if not self.dialect.power.startswith("_"):
                pass
            case Const(value=2):
                self.used.add("_square")
                return _ATOM, f"_square({self.write(left)})"
            case Const(value=int(value)) if value > 2 and value % 2 == 0:
                self.used.add("_square")
                half = Binary(BinaryOp.POWER, left, Const(value // 2))
                return _ATOM, f"_square({self.write(half)})"
            case Const(value=int(value)) if value > 2:
                lower = Binary(BinaryOp.POWER, left, Const(value - 1))
                return _PRODUCT, f"{self.write(lower, _PRODUCT)} * {self.write(left, _UNARY)}"
        if self.dialect.power.startswith("_"):
            called = self.dialect.power if self.is_positive(left) else f"_signed{self.dialect.power}"
            self.used.add(called.partition("(")[0])
            return _ATOM, called.format(self.write(left), self.write(right))
        base, exponent = self._operand(expr, left, _ATOM), self._operand(expr, right, _UNARY)
        return _POWER, self.dialect.power.format(base, exponent)

    def _compare(self, op: CompareOp, left: Expr, right: Expr) -> tuple[int, str]:
        match op, left, right:
            # Whether a remainder is 0 does not depend on how it is rounded.
            case (
                (CompareOp.EQUAL | CompareOp.NOT_EQUAL),
                Binary(op=BinaryOp.MODULO, left=inner, right=by),
                Const(value=0),
            ):
                return _COMPARE, f"{self.write(inner, _PRODUCT)} % {self.write(by, _UNARY)} {op.value} 0"
            case _, Binary(op=BinaryOp.SUBTRACT, left=inner, right=other), Const(value=0):
                left, right = inner, other
        return _COMPARE, f"{self.write(left, _SUM)} {op.value} {self.write(right, _SUM)}"

    def _table(self, values: tuple[int | float, ...], index: Expr) -> tuple[int, str]:
        if self.dialect.table:
            self.used.add("_entry")
            listed = ", ".join(self._constant(value)[1] for value in values)
            comma = "," if len(values) == 1 else ""
            return _ATOM, self.dialect.table.format(f"({listed}{comma})", self.write(index))
        text = self._constant(values[-1])[1]
        at = self.write(index, _SUM)
        for position in range(len(values) - 2, -1, -1):
            text = self.dialect.select.format(f"{at} == {position}", self._constant(values[position])[1], text)
        return _ATOM, text

    def _call(self, expr: Expr, function: str, arguments: tuple[Expr, ...]) -> tuple[int, str]:
        if function in self.dialect.helpers:
            self.used.add(self.dialect.helpers[function])
        if function == "clip" and "max" in self.dialect.helpers:
            self.used.add(self.dialect.helpers["max"])
        template = self.dialect.functions[function]
        written = [self._operand(expr, each, _LOOSE) for each in arguments]
        if function in ("min", "max"):
            text = written[0]
            for each in written[1:]:
                text = template.format(text, each)
            return _ATOM, text
        return _ATOM, template.format(*written)


_PLAIN_NAMES = frozenset({Name.HEADS, Name.QUERIES, Name.KEYS, Name.WIDTH, Name.VALUE_WIDTH, Name.SCALE})


def _is_plain_number(expr: Expr) -> bool:
    """Whether an expression is a Python number at run time (a predicate or a constant needs no such care)."""
    if isinstance(expr, Const | Symbol) or type_of(expr) is Type.BOOL:
        return False
    leaves = [node for node in walk(expr) if isinstance(node, Symbol | Local | Token | Entry)]
    return all(isinstance(leaf, Symbol) and leaf.name in _PLAIN_NAMES for leaf in leaves)


def negated(predicate: Expr) -> Expr:
    """The complement of a predicate, with the negation moved down to comparisons."""
    match predicate:
        case Const(value=value):
            return Const(not value)
        case Compare(op=op, left=left, right=right):
            return Compare(_NEGATED[op], left, right)
        case And(operands=operands):
            return Or(tuple(negated(each) for each in operands))
        case Or(operands=operands):
            return And(tuple(negated(each) for each in operands))
        case Not(operand=operand):
            return operand
        case Select(condition=condition, then=then, otherwise=otherwise):
            return Select(condition, negated(then), negated(otherwise))
        case Local() | Entry() | Token() | AtRow() | Let() | Member():
            return Not(predicate)
        case _:
            raise TypeError(f"{type(predicate).__name__} is no predicate")
