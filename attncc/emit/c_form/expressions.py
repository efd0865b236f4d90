"""Expressions of kernels → what they stand for in C."""

from __future__ import annotations

import ast
from collections.abc import Callable

from attncc.emit.c_form.values import (
    AND,
    ATOM,
    CHOICE,
    COMPARE,
    INT,
    LONG,
    ONE,
    OR,
    PRODUCT,
    REAL,
    SUM,
    UNARY,
    Address,
    Dims,
    Indices,
    Value,
    bracketed,
    is_whole,
    joined,
    loaded_type,
    scalar,
    spread,
)

Term = Value | Address

_ARITHMETIC = {
    ast.Add: (SUM, "+"),
    ast.Sub: (SUM, "-"),
    ast.Mult: (PRODUCT, "*"),
    ast.Div: (PRODUCT, "/"),
    ast.FloorDiv: (PRODUCT, "/"),  # Triton rounds towards 0, as C does
    ast.Mod: (PRODUCT, "%"),
    ast.BitAnd: (AND, "&"),
    ast.BitOr: (OR, "|"),
}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_CASTS = {"int32": INT, "int64": LONG, "float32": REAL}

# Functions of a number that the C library has under other names.
_FUNCTIONS = {
    "tl.exp2": "exp2_of",
    "tl.exp": "exp_of",
    "tl.log": "log_of",
    "tl.log2": "log2_of",
    "tl.sqrt": "sqrt_of",
    "tl.cos": "cos_of",
    "tl.sin": "sin_of",
    "tl.erf": "erf_of",
    "tl.floor": "floor_of",
    "tl.abs": "abs_of",
    "tl.sigmoid": "sigmoid_of",
    "_tanh": "tanh_of",
    "_silu": "silu_of",
    "_gelu": "gelu_of",
    "_softplus": "softplus_of",
    "_elu": "elu_of",
    "_elu_plus_one": "elu_plus_one_of",
    "_sign": "sign_of",
    "_square": "square_of",
    "_inverse": "inverse_of",
    "_log": "log_or_none_of",
    "_power": "power_of",
    "_signed_power": "signed_power_of",
}
_WHOLE_FUNCTIONS = {
    "tl.maximum": "larger",
    "tl.minimum": "smaller",
    "tl.cdiv": "ceil_div",
    "_floor_divide": "floor_div",
    "_modulo": "floor_mod",
    "_clamp": "clamped",
}
_AXES = "xyz"


class Untranslatable(Exception):
    """A construct of a kernel that has no translation: a fault of attncc itself."""


class ExpressionReader:
    """Reads expressions, given what names stand for."""

    def __init__(self, lookup: Callable[[str], Term]) -> None:
        self.lookup = lookup

    def number(self, node: ast.expr) -> Value:
        """What is no address."""
        found = self.read(node)
        if isinstance(found, Address):
            raise Untranslatable(f"an address as a number: {ast.unparse(node)}")
        return found

    def address(self, node: ast.expr) -> Address:
        """What is an address."""
        found = self.read(node)
        if not isinstance(found, Address):
            raise Untranslatable(f"a number as an address: {ast.unparse(node)}")
        return found

    def read(self, node: ast.expr) -> Term:
        """What an expression stands for."""
        match node:
            case ast.Name(id=name):
                return self.lookup(name)
            case ast.Constant(value=value):
                return _constant(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _unary(self.number(operand), "-")
            case ast.UnaryOp(op=ast.Invert() | ast.Not(), operand=operand):
                return _unary(self.number(operand), "!", INT)
            case ast.BinOp():
                return self._arithmetic(node)
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
                given = self.address(left).at(())
                return scalar(f"{given} {'==' if isinstance(op, ast.Is) else '!='} NULL", INT, COMPARE)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _binary(self.number(left), self.number(right), COMPARE, _COMPARISONS[type(op)], INT)
            case ast.BoolOp(op=kind, values=parts):
                found = [self.number(each) for each in parts]
                level, sign = (AND, " && ") if isinstance(kind, ast.And) else (OR, " || ")
                return scalar(sign.join(each.at((), COMPARE) for each in found), INT, level)
            case ast.Subscript(value=inner, slice=where):
                return self._subscript(inner, where)
            case ast.Call():
                return self._call(node)
            case _:
                raise Untranslatable(f"no translation of {ast.unparse(node)}")

    # --- operators --------------------------------------------------------------------------------------------

    def _arithmetic(self, node: ast.BinOp) -> Term:
        left, right = self.read(node.left), self.read(node.right)
        level, sign = _ARITHMETIC[type(node.op)]
        match left, right:
            case Address(), Value():
                return _moved(left, right, sign)
            case Value(), Address():
                return _moved(right, left, sign)
            case Value(), Value():
                pass
            case _:
                raise Untranslatable(f"no translation of {ast.unparse(node)}")
        ctype = joined(left.ctype, right.ctype)
        if isinstance(node.op, ast.BitAnd | ast.BitOr):
            return _both_of(left, right, level, sign, ctype)
        if isinstance(node.op, ast.Div):
            if is_whole(ctype):
                left = _cast(left, REAL)
            ctype = REAL
        return _binary(left, right, level, sign, ctype)

    def _subscript(self, value: ast.expr, where: ast.expr) -> Term:
        if isinstance(where, ast.Constant) and isinstance(value, ast.Name):  # an entry of strides
            return scalar(f"{value.id}[{ast.unparse(where)}]", LONG)
        found = self.read(value)
        if not isinstance(where, ast.Tuple) or len(where.elts) != 2 or len(found.dims) != 1:
            raise Untranslatable(f"no translation of {ast.unparse(where)}")
        first = isinstance(where.elts[0], ast.Slice)
        dims = (found.dims[0], ONE) if first else (ONE, found.dims[0])

        def own(indices: Indices) -> Indices:
            return indices[:1] if first else indices[1:]

        if isinstance(found, Address):
            address = found
            return Address(
                dims, address.of, lambda each: address.start(own(each)), lambda each: address.offset(own(each))
            )
        numbers = found
        return Value(dims, numbers.ctype, lambda each: numbers.element(own(each)))

    # --- calls ------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Term:
        function, arguments = function_of(node), node.args
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return self._converted(node.func.value, node.args[0])
        if function in _FUNCTIONS:
            return _applied(_FUNCTIONS[function], [self.number(each) for each in arguments], REAL)
        if function in _WHOLE_FUNCTIONS:
            values = [self.number(each) for each in arguments]
            if function in ("tl.maximum", "tl.minimum") and isinstance(arguments[0], ast.Constant):
                values.reverse()  # NaN that stands first stays
            return _applied(_WHOLE_FUNCTIONS[function], values, joined(*(each.ctype for each in values)))
        match function, arguments:
            case "float", [ast.Constant(value=text)]:
                return scalar("-INFINITY" if str(text).startswith("-") else "INFINITY", REAL, UNARY)
            case "tl.program_id" | "tl.num_programs", [ast.Constant(value=int(axis))]:
                return scalar(f"{'program' if function == 'tl.program_id' else 'programs'}.{_AXES[axis]}", INT)
            case "tl.arange", [ast.Constant(value=0), end]:
                return Value((ast.unparse(end),), INT, lambda indices: (ATOM, indices[0]))
            case "tl.cast", [value, to]:
                return _cast(self.number(value), _CASTS[ast.unparse(to).removeprefix("tl.")])
            case "tl.where", [condition, then, otherwise]:
                return _choice(self.number(condition), self.number(then), self.number(otherwise))
            case "tl.zeros", [shape, kind]:
                return _filled(shape, scalar("0", _CASTS[ast.unparse(kind).removeprefix("tl.")]))
            case "tl.full", [shape, value, *_]:
                return _filled(shape, self.number(value))
            case "tl.broadcast_to", [value, shape]:
                return _filled(shape, self.number(value))
            case "tl.load", [address]:
                options = {each.arg: each.value for each in node.keywords}
                return self.loaded(address, options.get("mask"), options.get("other"))
            case "_lists_at", [start, lanes]:
                return self.address(_plus(start, _arange(lanes)))
            case "_is_named", [number, lists, count, step]:
                return self._is_named(self.number(number), self.address(lists), self.number(count), self.number(step))
            case "_sums_at", [start, step, apart, rows, columns]:
                return self._sums_at(start, step, apart, rows, columns)
            case _:
                return self._library(function, arguments)

    def _library(self, function: str, arguments: list[ast.expr]) -> Value:
        match function, arguments:
            case "_load_facts", [start, visible, lanes]:
                return self.loaded(_plus(start, _arange(lanes)), visible, ast.Constant(0))
            case "_load_numbers", [start, visible, other, lanes, masked]:
                return self._guarded(_plus(start, _arange(lanes)), visible, other, masked)
            case "_load_spaced", [start, step, visible, other, lanes, masked]:
                return self._guarded(_plus(start, _times(_arange(lanes), step)), visible, other, masked)
            case "_load_lanes", [start, stride, visible, lanes, masked]:
                return self._guarded(_plus(start, _times(_arange(lanes), stride)), visible, ast.Constant(0.0), masked)
            case "_load_entries", [places, visible, masked]:
                return self._guarded(places, _of_columns(visible), ast.Constant(0.0), masked)
            case "_load_vector", [start, channel, width, block]:
                channels = _plus(channel, _arange(block))
                return self.loaded(_plus(start, channels), _less(channels, width), ast.Constant(0.0))
            case "_load_sums", [start, step, values, count, rows, columns]:
                places = ast.Call(ast.Name("_sums_at"), [start, step, values, rows, columns], [])
                return self.loaded(places, _of_rows(_less(_arange(rows), count)), ast.Constant(0.0))
            case "_load_tile", [start, stride, visible, lanes, width, block, masked]:
                places = _plus(start, _grid(_times(_of_rows(_arange(lanes)), stride), _of_columns(_arange(block))))
                there = _both(_of_rows(visible), _less(_of_columns(_arange(block)), width))
                if _is_false(masked):
                    there = _less(_of_columns(_arange(block)), width)
                return self.loaded(places, there, ast.Constant(0.0))
            case _:
                raise Untranslatable(f"no translation of {function}")

    def _is_named(self, number: Value, lists: Address, count: Value, step: Value) -> Value:
        """Whether a number is in the list that begins at its address."""

        def element(indices: Indices) -> tuple[int, str]:
            list_of = lists.at(indices)
            return ATOM, f"is_named({number.at(indices)}, {list_of}, {count.at(())}, {step.at(())})"

        return Value(spread(number.dims, lists.dims), INT, element)

    def _guarded(self, places: ast.expr, visible: ast.expr, other: ast.expr, masked: ast.expr) -> Value:
        """What is read at some places, where it is visible or nothing is hidden."""
        if _is_false(masked):
            return self.loaded(places, None, None)
        if not isinstance(masked, ast.Constant):
            found, shown = self.number(masked), self.number(visible)
            seen = Value(shown.dims, INT, lambda each: (OR, f"!{found.at((), UNARY)} || {shown.at(each, COMPARE)}"))
            return self._loaded(self.address(places), seen, self.number(other))
        return self.loaded(places, visible, other)

    def loaded(self, places: ast.expr, mask: ast.expr | None, other: ast.expr | None) -> Value:
        """What is read at some places; `other` where the mask is false."""
        shown = None if mask is None else self.number(mask)
        return self._loaded(self.address(places), shown, None if other is None else self.number(other))

    def _loaded(self, places: Address, mask: Value | None, other: Value | None) -> Value:
        ctype = loaded_type(places.of)
        if mask is None:
            return Value(places.dims, ctype, lambda each: (ATOM, f"number_of({places.place(each)})"))
        there, rest = mask, other or scalar("0", INT)
        dims = spread(places.dims, there.dims)

        def element(indices: Indices) -> tuple[int, str]:
            read = f"number_of({places.place(indices)})"
            return CHOICE, f"{there.at(indices, COMPARE)} ? {read} : {rest.at(indices, CHOICE + 1)}"

        return Value(dims, ctype, element)

    def _sums_at(self, start: ast.expr, step: ast.expr, apart: ast.expr, rows: ast.expr, columns: ast.expr) -> Address:
        features = _times(_times(_of_rows(_arange(rows)), step), apart)
        return self.address(_plus(start, _grid(features, _of_columns(_arange(columns)))))

    def _converted(self, value: ast.expr, to: ast.expr) -> Value:
        """A number of another type: tiles are held in the type of sums, whatever tensors hold."""
        kept = self.number(value)
        match to:
            case ast.Attribute(value=ast.Name(id="tl"), attr=name):
                return kept if kept.ctype == REAL else _cast(kept, _CASTS[name])
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id=pointer)), attr="element_ty"):
                of = self.address(ast.Name(pointer)).of
                return Value(kept.dims, REAL, lambda each: (ATOM, f"rounded({of}_type, {kept.at(each)})"))
            case ast.Attribute(attr="dtype"):
                return kept
        raise Untranslatable(f"no translation of a type {ast.unparse(to)}")


def _last(dims: Dims, indices: Indices) -> Indices:
    return indices[len(indices) - len(dims) :] if dims else ()


def function_of(call: ast.Call) -> str:
    """The name of what is called; empty where it is no name."""
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return f"{module}.{name}"
    return ""


# --- making values ----------------------------------------------------------------------------------------------


def _constant(value: object) -> Value:
    match value:
        case bool():
            return scalar(str(int(value)), INT)
        case int():
            return scalar(str(value), INT, ATOM if value >= 0 else UNARY)
        case float():
            return scalar(f"R({value!r})" if value not in (0.0, 1.0) else f"R({value:.1f})", REAL)
    raise Untranslatable(f"no translation of {value!r}")


def _unary(value: Value, sign: str, ctype: str = "") -> Value:
    return Value(value.dims, ctype or value.ctype, lambda each: (UNARY, f"{sign}{value.at(each, UNARY + 1)}"))


def _binary(left: Value, right: Value, level: int, sign: str, ctype: str) -> Value:
    """Two operands; the right one is bracketed where it binds as loosely as the operator."""

    def element(indices: Indices) -> tuple[int, str]:
        return level, f"{left.at(indices, level)} {sign} {right.at(indices, level + 1)}"

    return Value(spread(left.dims, right.dims), ctype, element)


def _both_of(left: Value, right: Value, level: int, sign: str, ctype: str) -> Value:
    """Two truth values; comparisons are bracketed, chains of one operator are not."""

    def element(indices: Indices) -> tuple[int, str]:
        inner, first = left.element(_last(left.dims, indices))
        first = first if inner == level else bracketed(inner, first, COMPARE + 1)
        return level, f"{first} {sign} {right.at(indices, COMPARE + 1)}"

    return Value(spread(left.dims, right.dims), ctype, element)


def _applied(function: str, arguments: list[Value], ctype: str) -> Value:
    def element(indices: Indices) -> tuple[int, str]:
        return ATOM, f"{function}({', '.join(each.at(indices) for each in arguments)})"

    return Value(spread(*(each.dims for each in arguments)), ctype, element)


def _cast(value: Value, ctype: str) -> Value:
    if value.ctype == ctype:
        return value
    return Value(value.dims, ctype, lambda each: (UNARY, f"({ctype}){value.at(each, UNARY)}"))


def _choice(condition: Value, then: Value, otherwise: Value) -> Value:
    def element(indices: Indices) -> tuple[int, str]:
        chosen = then.at(indices, CHOICE + 1), otherwise.at(indices, CHOICE + 1)
        return CHOICE, f"{condition.at(indices, CHOICE + 1)} ? {chosen[0]} : {chosen[1]}"

    dims = spread(condition.dims, then.dims, otherwise.dims)
    return Value(dims, joined(then.ctype, otherwise.ctype), element)


def _filled(shape: ast.expr, value: Value) -> Value:
    assert isinstance(shape, ast.List)
    return Value(
        tuple(ast.unparse(each) for each in shape.elts),
        value.ctype,
        lambda indices: value.element(_last(value.dims, indices)),
    )


def _moved(address: Address, by: Value, sign: str) -> Address:
    """An address and a number of elements."""
    dims = spread(address.dims, by.dims)
    if not dims:
        text = f"{address.at(())} {sign} {by.at((), SUM + 1)}"
        return Address((), address.of, lambda _: text, lambda _: "")

    def own(indices: Indices) -> Indices:
        return indices[len(indices) - len(address.dims) :] if address.dims else ()

    def offset(indices: Indices) -> str:
        before = address.offset(own(indices))
        minus = "-" if sign == "-" else ""
        if not before:
            return f"{minus}{by.at(indices, SUM + 1 if minus else SUM)}"
        return f"{before} {sign} {by.at(indices, SUM + 1)}"

    return Address(dims, address.of, lambda each: address.start(own(each)), offset)


# --- making expressions of the kernels' language ----------------------------------------------------------------


def _arange(lanes: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(ast.Name("tl"), "arange"), [ast.Constant(0), lanes], [])


def _plus(left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.BinOp(left, ast.Add(), right)


def _times(left: ast.expr, right: ast.expr) -> ast.expr:
    match right:
        case ast.Constant(value=1):
            return left
    return ast.BinOp(left, ast.Mult(), right)


def _grid(rows: ast.expr, columns: ast.expr) -> ast.expr:
    return _plus(rows, columns)


def _both(left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.BinOp(left, ast.BitAnd(), right)


def _less(left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.Compare(left, [ast.Lt()], [right])


def _of_rows(numbers: ast.expr) -> ast.expr:
    return ast.Subscript(numbers, ast.Tuple([ast.Slice(), ast.Constant(None)]))


def _of_columns(numbers: ast.expr) -> ast.expr:
    return ast.Subscript(numbers, ast.Tuple([ast.Constant(None), ast.Slice()]))


def _is_false(masked: ast.expr) -> bool:
    return isinstance(masked, ast.Constant) and not masked.value
