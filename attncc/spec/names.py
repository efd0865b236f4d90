"""Names in expressions: parameters, declared data and their entries, the language's own symbols, lists of constants."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NoReturn

from attncc.diagnostics import Span
from attncc.spec.data import Axis, Blocks, Data, Size, axis_text
from attncc.spec.expr import (
    MADE_BY_PLANNING,
    AtRow,
    Binary,
    BinaryOp,
    Channel,
    Compare,
    CompareOp,
    Const,
    Dot,
    Entry,
    Expr,
    Indicator,
    Let,
    MatMul,
    Name,
    Symbol,
    Table,
    Token,
    Top,
    Type,
    Vector,
    names_in,
    type_of,
)
from attncc.spec.fields import READABLE, WHY_NOT, FieldName
from attncc.spec.functions import FUNCTIONS, KEY_FUNCTIONS, POOL, UP_TO, VECTOR_FUNCTIONS
from attncc.spec.scope import Bindings, Bound, Function, Matrix, Scope, Stop
from attncc.spec.sides import Side, reads_data, side_of
from attncc.spec.text import text as expr_text
from attncc.spec.words import nearest
from attncc.syntax import tree

SYMBOLS = {name.value: name for name in Name if name not in MADE_BY_PLANNING}
CONSTANTS = {"pi": math.pi, "true": True, "false": False}
_WITHOUT_VECTORS = (FieldName.PATTERN, FieldName.REQUIRE)
_FIELDS = (FieldName.PATTERN, FieldName.SCORE, FieldName.WEIGHT, FieldName.NORMALIZE)
_PAIRWISE = (FieldName.SCORE, FieldName.WEIGHT)


class NameScope(Scope):
    """Resolves names and what is indexed."""

    def reference(self, node: tree.Reference, bindings: Bindings, where: FieldName) -> Expr:
        """A bare name."""
        name, span = node.name, node.span
        if name in bindings:
            match bindings[name]:
                case None:
                    raise Stop
                case Data() as data:
                    return self._datum(data, span, where)
                case Function():
                    text = "expected `(`"
                    self.fail("E206", f"`{name}` is a function and needs its argument", span, text=text)
                case Matrix():
                    helps = (f"multiply a vector by it: `x @ {name}`",)
                    self.fail("E205", f"`{name}` is a matrix here", span, text="expected `@` before it", helps=helps)
                case Let(value=Top()) as bound:
                    if where is not FieldName.PATTERN:
                        note = "it says which pairs are related"
                        self.fail("E207", f"`{name}` cannot be read in `{where.value}`", span, notes=(note,))
                    return replace(bound, span=span)
                case Expr() as bound:
                    self._check_readable(bound, name, span, where)
                    is_let = isinstance(bound, Let) and where is FieldName.PATTERN
                    return replace(bound, span=span) if is_let else bound  # what a pattern may not read is shown there
        if name in CONSTANTS:
            return Const(CONSTANTS[name], span=span)
        if name == "channel" and where not in _WITHOUT_VECTORS:
            return Channel(span=span)
        if name in SYMBOLS:
            if SYMBOLS[name] not in READABLE[where]:
                self.unreadable(name, span, where)
            return Symbol(SYMBOLS[name], span=span)
        word = self.words.patterns.get(name)
        if word is not None and all(parameter.default is not None for parameter in word.parameters):
            return self.expand(word, {}, tree.Call(tree.Identifier(name, span=span), (), span=span), where)
        if word is not None or any(
            name in known for known in (self.words.functions, FUNCTIONS, VECTOR_FUNCTIONS, KEY_FUNCTIONS, (POOL, UP_TO))
        ):
            self.fail("E206", f"`{name}` needs its arguments", span, text="expected `(`", helps=(f"write `{name}(…)`",))
        self._unknown(name, span, bindings, where)

    def expand(self, word: tree.Word, bindings: Bindings, call: tree.Call, where: FieldName) -> Expr:
        """A word's body with its arguments put in."""
        raise NotImplementedError

    def _check_readable(self, bound: Expr, name: str, span: Span, where: FieldName) -> None:
        """What a name stands for may read less than the field where it is used allows (a let in `normalize`)."""
        for each in sorted(names_in(bound) - READABLE[where], key=lambda one: one.value):
            if where is not FieldName.REQUIRE or each in (Name.I, Name.J):
                note = f"`{name}` reads `{each.value}`: {WHY_NOT.get(each, 'it is not known there')}"
                self.fail("E207", f"`{name}` cannot be read in `{where.value}`", span, notes=(note,))

    # --- declared data ----------------------------------------------------------------------------------------

    def _datum(self, data: Data, span: Span, where: FieldName) -> Expr:
        """Declared data without an index: a token's own vector or number."""
        self._check_data(data, span, where)
        if data.is_vector:
            return Vector(data.name, span=span)
        if data.is_token:
            return Token(data.name, data.whole, data.truth, span=span)
        if not data.indexed:
            return Entry(data.name, (), whole=data.whole, truth=data.truth, span=span)
        if len(data.indexed) == 1 and _may_be_vector(data):
            return Entry(data.name, (), is_vector=True, span=span)
        index = ", ".join(map(_usual_index, data.indexed[: max(1, len(data.indexed) - _vector_axes(data))]))
        helps = (f"write `{data.name}[{index}]`",)
        self.fail("E216", f"`{data.name}[{data.shape}]` needs its index", span, text="expected `[`", helps=helps)

    def _check_data(self, data: Data, span: Span, where: FieldName, *, at_query: bool = False) -> None:
        if where in _WITHOUT_VECTORS and (data.is_vector or data.name in ("q", "k", "v")):
            side = "query" if data.is_row else "key"
            message = f"`{data.name}` is a vector of the {side}, but a number is wanted here"
            helps: tuple[str, ...] = ()
            if where is FieldName.PATTERN and data.name not in ("q", "k", "v"):
                shape = ", ".join(map(axis_text, data.axes[:-1]))
                helps = (f"declare a number for each {side}: `input {data.name}[{shape}]`",)
            self.fail("E205", message, span, text="expected a number", helps=helps)
        if where is FieldName.REQUIRE:
            note = "only parameters and constants are known when the spec is built"
            self.fail("E207", f"`{data.name}` cannot be read in `{where.value}`", span, notes=(note,))
        if where is FieldName.NORMALIZE and data.is_column and not at_query:
            note = f"`{data.name}` belongs to one key; a normaliser is a number of the whole row"
            self.fail("E207", f"`{data.name}` cannot be read in `normalize`", span, notes=(note,))

    def index(self, node: tree.Index, bindings: Bindings, where: FieldName) -> Expr:
        """`[a, b][h]`, or an entry of declared data."""
        match node.values:
            case tree.Bracket() as values if len(node.indices) == 1:
                return self._table(values, node.indices[0], node.span, bindings, where)
            case tree.Reference(name=name, span=span) if isinstance(bindings.get(name), Data):
                data = bindings[name]
                assert isinstance(data, Data)
                if data.is_token:
                    self._check_data(data, span, where, at_query=_is_query(node.indices[0]))
                    if data.is_vector:
                        return self._own(Vector(data.name, span=span), node, bindings, where)
                    return self._own(Token(data.name, data.whole, data.truth, span=span), node, bindings, where)
                self._check_data(data, span, where)
                expr = self._entry(data, node, bindings, where)
                if len(expr.indices) < len(data.indexed) - _may_be_vector(data):
                    self._too_few(data, node, expr.indices)
                return expr
            case tree.Reference(name=name) as values if self._is_of_token(bindings.get(name), bindings):
                return self._own(self.reference(values, bindings, where), node, bindings, where)
            case tree.Reference(name=name, span=span):
                if name in bindings and bindings[name] is None:
                    raise Stop
                what = "a list of constants or declared data"
                found = "is neither" if name in bindings or name in SYMBOLS else "is unknown"
                helps = nearest(name, [each for each, bound in bindings.items() if isinstance(bound, Data)])
                self.fail("E216", f"{what} can be indexed, and `{name}` {found}", span, helps=helps)
        if isinstance(node.values, tree.Bracket):
            message = f"a list has one index, but {len(node.indices)} are given"
            self.fail("E216", message, node.indices[1].span, text="one index too many")
        self.fail("E216", "only a list of constants or declared data can be indexed", node.values.span)

    def _is_of_token(self, bound: Bound | None, bindings: Bindings) -> bool:
        """Whether a name stands for a value of each query or of each key."""
        if isinstance(bound, Symbol):  # a position that a word was given
            return False
        return isinstance(bound, Expr) and side_of(bound, self.data(bindings)) in (Side.ROW, Side.COLUMN)

    def _own(self, value: Expr, node: tree.Index, bindings: Bindings, where: FieldName) -> Expr:
        """`u[i]` of what rows have, `w[j]` and `w[i]` of what keys have; `u[i, c]` is feature c of its vector.

        The feature may depend on the other token. As a product with a vector that is 1 in one place and 0 elsewhere it
        is a matrix product like any other, and exact.
        """
        of_keys = side_of(value, self.data(bindings)) is Side.COLUMN
        place = self.as_number(node.indices[0], bindings, where)
        if place == Symbol(Name.I):
            found: Expr | None = AtRow(value, span=node.span) if of_keys else value
        else:
            found = value if of_keys and place == Symbol(Name.J) else None
        if found is not None and isinstance(found, AtRow) and Name.I not in READABLE[where]:
            self.unreadable("i", node.indices[0].span, where)
        if found is not None and len(node.indices) == 2 and type_of(value) is Type.VECTOR:
            feature = self.as_number(node.indices[1], bindings, where)
            self._check_whole(feature, node.indices[1].span)
            chosen = Indicator(Compare(CompareOp.EQUAL, Channel(), feature), span=node.indices[1].span)
            return Dot(found, chosen, span=node.span)
        if found is None or len(node.indices) != 1:
            name = expr_text(value)
            wanted = "`j`, or by `i` for the key at the query's position" if of_keys else "`i` alone"
            who, own = ("key", "j") if of_keys else ("row", "i")
            note = f"`{name}` holds something for each {who}, and `{name}[{own}]` is that {who}'s own"
            helps = (f"write `{name}[{own}]`, or `{name}` alone",)
            self.fail("E216", f"`{name}` is indexed by {wanted}", node.span, notes=(note,), helps=helps)
        return found

    def _entry(self, data: Data, node: tree.Index, bindings: Bindings, where: FieldName) -> Entry:
        """A table at some of its axes."""
        if len(node.indices) > len(data.indexed):
            most = len(data.indexed)
            message = f"`{data.name}[{data.shape}]` has {_axes(data)}, but {len(node.indices)} indices are given"
            notes = ("an entry of the batch has its own part of the table, without being asked",) * _has_batch(data)
            self.fail("E216", message, node.indices[most].span, text="one index too many", notes=notes)
        indices: list[Expr] = []
        for axis, index in zip(data.indexed, node.indices, strict=False):
            place = self.as_number(index, bindings, where)
            self._check_whole(place, index.span)
            if isinstance(place, Const) and isinstance(axis, int) and not 0 <= place.value < axis:
                text = f"expected 0 … {axis - 1}"
                message = f"the axis has {axis} entries, but the index is {place.value}"
                self.fail("E216", message, index.span, text=text)
            indices.append(place)
        is_vector = len(indices) < len(data.indexed)
        return Entry(data.name, tuple(indices), is_vector, data.whole, data.truth, span=node.span)

    def _check_whole(self, index: Expr, span: Span) -> None:
        if type_of(index) is not Type.INT:
            helps = ("round it: `floor(…)`",)
            if isinstance(index, Binary) and index.op is BinaryOp.DIVIDE:
                helps = (f"round it down: `{expr_text(replace(index, op=BinaryOp.FLOOR_DIVIDE))}`",)
            text, message = "expected a whole number", "an index is a whole number, but this is a real one"
            self.fail("E216", message, span, text=text, helps=helps)

    def _too_few(self, data: Data, node: tree.Index, given: tuple[Expr, ...]) -> NoReturn:
        count = "1 index is" if len(given) == 1 else f"{len(given)} indices are"
        message = f"`{data.name}[{data.shape}]` has {_axes(data)}, but only {count} given"
        if not _may_be_vector(data):
            index = ", ".join([*map(expr_text, given), *map(_usual_index, data.indexed[len(given) :])])
            self.fail("E216", message, node.span, helps=(f"write `{data.name}[{index}]`",))
        note = "one axis may be left without an index: the features of a vector"
        self.fail("E216", message, node.span, notes=(note,), helps=("multiply a vector by a matrix with `x @ M[h]`",))

    def matrix_product(self, node: tree.Binary, bindings: Bindings, where: FieldName) -> Expr:
        """`x @ M` or `x @ M[h]`."""
        vector = self.as_vector(node.left, bindings, where)
        right = node.right
        while isinstance(right, tree.Group):
            right = right.inner
        name = right.values if isinstance(right, tree.Index) else right
        data = bindings.get(name.name) if isinstance(name, tree.Reference) else None
        if isinstance(data, Matrix) and name is right:
            return MatMul(vector, data.entry, span=node.span)
        if not isinstance(data, Data) or data.is_token or not _may_be_vector(data):
            text = "expected a declared matrix, such as `param W[H, d, 16]`"
            self.fail("E205", "`@` multiplies a vector by a matrix of declared data", node.right.span, text=text)
        self._check_data(data, node.right.span, where)
        matrix = Entry(data.name, (), span=right.span)
        if isinstance(right, tree.Index):
            matrix = self._entry(data, right, bindings, where)
        if len(data.axes) - len(matrix.indices) != 2:
            left = len(data.axes) - len(matrix.indices)
            message = f"a matrix has two axes, but {left} of `{data.name}[{data.shape}]` are left"
            self.fail("E216", message, node.right.span, text="expected an index for all axes but two")
        return MatMul(vector, Entry(matrix.name, matrix.indices, is_vector=True, span=matrix.span), span=node.span)

    def matrix(self, node: tree.Index, bindings: Bindings, where: FieldName) -> Matrix | None:
        """`M[h]` where two axes are left; None for anything else."""
        data = bindings.get(node.values.name) if isinstance(node.values, tree.Reference) else None
        if not isinstance(data, Data) or data.is_token or len(data.indexed) - len(node.indices) != 2:
            return None
        self._check_data(data, node.span, where)
        entry = self._entry(data, node, bindings, where)
        return Matrix(Entry(entry.name, entry.indices, is_vector=True, span=node.span))

    def _table(self, values: tree.Bracket, index: tree.Tree, span: Span, bindings: Bindings, where: FieldName) -> Expr:
        constants: list[int | float] = []
        for item in values.items:
            expr = self.expr(item, bindings, where)
            if type_of(expr) is Type.BOOL:
                help_ = "choose among predicates with `by_head […]`"
                self.fail("E216", "a list holds numbers, but this is a predicate", item.span, helps=(help_,))
            if not isinstance(expr, Const):
                text = "expected a constant"
                self.fail("E216", "a list holds constants, but this changes from pair to pair", item.span, text=text)
            constants.append(expr.value)
        place = self.as_number(index, bindings, where)
        read = sorted(name.value for name in names_in(place) - {Name.HEAD, Name.HEADS})
        if type_of(place) is not Type.INT or read or reads_data(place):
            found = f"this reads `{read[0]}`" if read else "this is a real number"
            found = found if read or not reads_data(place) else "this reads data"
            text = "expected a whole number made of `h` and `H`"
            self.fail("E216", f"a list is indexed by the head, but {found}", index.span, text=text)
        if isinstance(place, Const):
            if not 0 <= place.value < len(constants):
                text = f"expected 0 … {len(constants) - 1}"
                message = f"the list has {len(constants)} entries, but the index is {place.value}"
                self.fail("E216", message, index.span, text=text)
            return Const(constants[int(place.value)], span=span)
        if (least := _least(place)) >= len(constants):
            text = f"at least {least}, expected 0 … {len(constants) - 1}"
            self.fail("E216", f"no head has an entry in this list of {len(constants)}", index.span, text=text)
        return Table(tuple(constants), place, span=span)

    # --- findings ---------------------------------------------------------------------------------------------

    def unreadable(self, name: str, span: Span, where: FieldName) -> NoReturn:
        """A name of the language that this field may not read."""
        note = "only parameters and constants are known when the spec is built"
        symbol = SYMBOLS.get(name)
        if where is not FieldName.REQUIRE:
            note = WHY_NOT[symbol] if symbol is not None else "a dot product is a number of one pair"
        if name == where.value:
            note = f"`{name}` cannot be made of itself"
        allowed = [
            field
            for field in READABLE
            if field in _FIELDS and (symbol in READABLE[field] if symbol else field in _PAIRWISE)
        ]
        readable = ", ".join(f"`{field.value}`" for field in allowed)
        helps = (f"fields that can read it: {readable}",) if readable and where is not FieldName.REQUIRE else ()
        self.fail("E207", f"`{name}` cannot be read in `{where.value}`", span, notes=(note,), helps=helps)

    def _unknown(self, name: str, span: Span, bindings: Bindings, where: FieldName) -> NoReturn:
        if name == "none":
            note = "`normalize = none` leaves the row's sum as it is; it is no number to calculate with"
            self.fail("E207", f"`none` cannot be read in `{where.value}`", span, notes=(note,))
        if name in self.words.similarities:
            help_ = f"write `similarity = {name}`"
            self.fail("E201", f"`{name}` is a similarity, not a number or predicate", span, helps=(help_,))
        known = {each for each, bound in bindings.items() if each not in "qkv" or not isinstance(bound, Data)}
        known |= {each.value for each in READABLE[where]}
        if where is not FieldName.REQUIRE:
            known |= {each for each, word in self.words.patterns.items() if not word.parameters}
        self.fail("E201", f"there is no `{name}` here", span, text="unknown name", helps=nearest(name, known))


def _is_query(node: tree.Tree) -> bool:
    return isinstance(node, tree.Reference) and node.name == "i"


def _least(index: Expr) -> int:
    """What the sum of a head and a constant is at least; 0 for anything else."""
    match index:
        case (
            Binary(op=BinaryOp.ADD, left=Symbol(name=Name.HEAD), right=Const(value=int(offset)))
            | Binary(op=BinaryOp.ADD, left=Const(value=int(offset)), right=Symbol(name=Name.HEAD))
        ):
            return offset
        case _:
            return 0


def _axes(data: Data) -> str:
    count = len(data.indexed)
    return f"{count} {'axis' if count == 1 else 'axes'}{' beside B' * _has_batch(data)}"


def _has_batch(data: Data) -> bool:
    return len(data.indexed) < len(data.axes)


def _may_be_vector(data: Data) -> bool:
    """Whether one axis of a table may be that of features: it holds numbers, for every call the same."""
    blocks = any(isinstance(axis, Blocks) for axis in data.axes)
    return not (data.truth or blocks or _has_batch(data))


def _usual_index(axis: Axis) -> str:
    match axis:
        case Size.HEADS:
            return "h"
        case Blocks(size=size, width=width):
            return f"{'i' if size is Size.QUERIES else 'j'} // {width}"
        case _:
            return "…"


def _vector_axes(data: Data) -> int:
    """How many trailing axes are features."""
    return 1 if len(data.axes) > 1 and data.axes[-1] in (Size.WIDTH, Size.VALUE_WIDTH) else 0
