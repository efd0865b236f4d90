"""Trees of expressions → typed `Expr`: names looked up, words expanded, kinds checked, constants folded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn

from attncc.diagnostics import Diagnostic, Label, Span
from attncc.spec.expr import (
    FALSE,
    TRUE,
    And,
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Dot,
    Expr,
    Indicator,
    Name,
    Negate,
    Not,
    Or,
    RowSum,
    Select,
    Symbol,
    Table,
    Type,
    children,
    names_in,
    type_of,
)
from attncc.spec.fields import READABLE, WHY_NOT, FieldName
from attncc.spec.fold import NoValue, fold
from attncc.spec.functions import FUNCTIONS
from attncc.spec.words import Words, nearest
from attncc.syntax import tree

# What parameters stand for; None for one whose value was reported already.
Bindings = Mapping[str, Expr | None]

_SYMBOLS = {name.value: name for name in Name if name not in (Name.FIRST, Name.LAST)}
_CONSTANTS = {"pi": math.pi}
_VECTORS = {"q": "a vector of the query", "k": "a vector of the key", "v": "a vector of the key"}
_RESERVED = set(_SYMBOLS) | set(_CONSTANTS) | set(_VECTORS) | {"none", "dot"}
_LARGEST_EXPRESSION = 2000  # nodes; a spec is one page
_DEEPEST_WORDS = 40


class _Stop(Exception):
    """The expression has been reported; nothing more to learn from it."""


class ExpressionResolver:
    """Resolves expressions of one file; every finding is appended to `errors`."""

    def __init__(self, words: Words, errors: list[Diagnostic]) -> None:
        self.words = words
        self.errors = errors
        self._open: list[str] = []  # the words being expanded, outermost first
        self._calls: list[Span] = []  # where each of them was called
        self._sizes: dict[int, tuple[Expr, int]] = {}

    # --- entry points -----------------------------------------------------------------------------------------

    def predicate(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """The predicate written at `node`; TRUE after an error."""
        try:
            return self._predicate(node, bindings, where)
        except _Stop:
            return TRUE

    def number(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """The number written at `node`; 1 after an error."""
        try:
            return self._number(node, bindings, where)
        except _Stop:
            return Const(1)

    def constant(self, node: tree.Tree, bindings: Bindings) -> int | float | None:
        """The value of a constant expression; None after an error."""
        try:
            expr = self._number(node, bindings, FieldName.REQUIRE)
            if isinstance(expr, Const):
                return expr.value
            self._fail("E212", "a default must be a constant", node.span)
        except _Stop:
            return None

    def check_new_name(self, name: tree.Identifier) -> None:
        """Report a parameter that takes a name of the language."""
        if name.text in _RESERVED or name.text in FUNCTIONS:
            message = f"`{name.text}` is a name of the language"
            self.errors.append(Diagnostic("E203", message, (Label(name.span),), helps=("choose another name",)))

    def arguments(
        self,
        word: tree.Identifier,
        parameters: tuple[tree.Parameter, ...],
        call: tree.Call,
        bindings: Bindings,
        where: FieldName,
    ) -> dict[str, Expr] | None:
        """What a word's parameters stand for in one call; None after an error."""
        try:
            return self._arguments(word, parameters, call, bindings, where)
        except _Stop:
            return None

    # --- kinds ------------------------------------------------------------------------------------------------

    def _predicate(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        expr = self._expr(node, bindings, where)
        if type_of(expr) is not Type.BOOL:
            help_ = "compare it with another number, for instance `… < 8`"
            self._fail("E204", "a predicate is wanted here, but this is a number", node.span, helps=(help_,))
        return expr

    def _number(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        expr = self._expr(node, bindings, where)
        if type_of(expr) is Type.BOOL:
            help_ = "write `[…]` around a predicate to get 1 where it holds and 0 elsewhere"
            self._fail("E204", "a number is wanted here, but this is a predicate", node.span, helps=(help_,))
        return expr

    # --- expressions ------------------------------------------------------------------------------------------

    def _expr(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        expr = self._node(node, bindings, where)
        try:
            expr = fold(expr)
        except NoValue as reason:
            self._fail("E212", "the expression has no value", node.span, notes=(str(reason),))
        self._check_size(expr, node.span)
        return expr

    def _node(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        span = node.span
        match node:
            case tree.Number(value=value):
                return Const(value, span=span)
            case tree.Reference(name=name):
                return self._reference(name, span, bindings, where)
            case tree.Group(inner=inner):
                return self._expr(inner, bindings, where)
            case tree.Unary(operator="-", operand=operand):
                return Negate(self._number(operand, bindings, where), span=span)
            case tree.Unary(operand=operand):
                return Not(self._predicate(operand, bindings, where), span=span)
            case tree.Binary(operator=operator, left=left, right=right):
                sides = self._number(left, bindings, where), self._number(right, bindings, where)
                return Binary(BinaryOp(operator), *sides, span=span)
            case tree.Comparison():
                return self._comparison(node, bindings, where)
            case tree.Logical(operator=operator, operands=operands):
                return self._logical(operator, operands, span, bindings, where)
            case tree.Conditional(condition=condition, then=then, otherwise=otherwise):
                return self._conditional(
                    self._predicate(condition, bindings, where), then, otherwise, span, bindings, where
                )
            case tree.Bracket(items=items):
                return self._bracket(items, span, bindings, where)
            case tree.Index(values=values, index=index):
                return self._table(values, index, span, bindings, where)
            case tree.Call(name=name):
                return self._call(node, name, bindings, where)

    def _reference(self, name: str, span: Span, bindings: Bindings, where: FieldName) -> Expr:
        if name in bindings:
            bound = bindings[name]
            if bound is None:
                raise _Stop
            return bound
        if name in _CONSTANTS:
            return Const(_CONSTANTS[name], span=span)
        if name in _VECTORS:
            help_ = "take a dot product: `dot(q, k)`"
            message = f"`{name}` is {_VECTORS[name]}, but a number is wanted here"
            self._fail("E205", message, span, helps=(help_,))
        if name in _SYMBOLS:
            symbol = _SYMBOLS[name]
            if symbol not in READABLE[where]:
                notes = (WHY_NOT[symbol],) if symbol in WHY_NOT and where is not FieldName.REQUIRE else ()
                if where is FieldName.REQUIRE:
                    notes = ("only parameters and constants are known when the spec is built",)
                self._fail("E207", f"`{name}` cannot be read in `{where.value}`", span, notes=notes)
            return Symbol(symbol, span=span)
        if name in self.words.patterns and not self.words.patterns[name].parameters:
            word = self.words.patterns[name]
            return self._expand(word, {}, tree.Call(tree.Identifier(name, span=span), (), span=span), where)
        if name in self.words.patterns or name in self.words.functions or name in FUNCTIONS:
            self._fail("E206", f"`{name}` needs its arguments", span, helps=(f"write `{name}(…)`",))
        known = set(bindings) | {each.value for each in READABLE[where]}
        if where is not FieldName.REQUIRE:
            known |= {each for each, word in self.words.patterns.items() if not word.parameters}
        self._fail("E201", f"there is no `{name}` here", span, helps=nearest(name, known))

    def _comparison(self, node: tree.Comparison, bindings: Bindings, where: FieldName) -> Expr:
        numbers = [self._number(operand, bindings, where) for operand in node.operands]
        links = [
            fold(Compare(CompareOp(operator), left, right, span=node.span))
            for operator, left, right in zip(node.operators, numbers, numbers[1:], strict=False)
        ]
        return _conjunction(links, node.span)

    def _logical(
        self, operator: str, operands: tuple[tree.Tree, ...], span: Span, bindings: Bindings, where: FieldName
    ) -> Expr:
        parts = [self._predicate(operand, bindings, where) for operand in operands]
        return _conjunction(parts, span) if operator == "&" else _disjunction(parts, span)

    def _conditional(
        self, condition: Expr, then: tree.Tree, otherwise: tree.Tree, span: Span, bindings: Bindings, where: FieldName
    ) -> Expr:
        if isinstance(condition, Const):  # the other branch may have no value: `c > 0 ? i // c : 0`
            return self._expr(then if condition.value else otherwise, bindings, where)
        yes, no = self._expr(then, bindings, where), self._expr(otherwise, bindings, where)
        if (type_of(yes) is Type.BOOL) != (type_of(no) is Type.BOOL):
            self._fail("E204", "one branch is a number, the other a predicate", span)
        return Select(condition, yes, no, span=span)

    def _bracket(self, items: tuple[tree.Tree, ...], span: Span, bindings: Bindings, where: FieldName) -> Expr:
        if len(items) == 1:
            inner = self._expr(items[0], bindings, where)
            if type_of(inner) is Type.BOOL:
                if isinstance(inner, Const):
                    return Const(int(inner.value), span=span)
                return Indicator(inner, span=span)
        self._fail("E216", "a list of constants needs an index", span, helps=("write `[…][h]`",))

    def _table(self, values: tree.Bracket, index: tree.Tree, span: Span, bindings: Bindings, where: FieldName) -> Expr:
        constants: list[int | float] = []
        for item in values.items:
            expr = self._number(item, bindings, where)
            if not isinstance(expr, Const):
                self._fail("E216", "a list holds constants only", item.span)
            constants.append(expr.value)
        place = self._number(index, bindings, where)
        if type_of(place) is not Type.INT or names_in(place) - {Name.HEAD, Name.HEADS}:
            self._fail("E216", "the index of a list is a whole number made of h and H", index.span)
        if isinstance(place, Const):
            if not 0 <= place.value < len(constants):
                self._fail("E216", f"the list has {len(constants)} entries, but the index is {place.value}", index.span)
            return Const(constants[int(place.value)], span=span)
        return Table(tuple(constants), place, span=span)

    # --- calls ------------------------------------------------------------------------------------------------

    def _call(self, node: tree.Call, name: tree.Identifier, bindings: Bindings, where: FieldName) -> Expr:
        if name.text == "dot":
            return self._dot(node, where)
        if name.text == "rows" and where is FieldName.NORMALIZE:
            return self._row_sum(node, bindings)
        if name.text in FUNCTIONS:
            return self._function(node, name, bindings, where)
        word = self.words.patterns.get(name.text) or self.words.functions.get(name.text)
        if word is not None:
            return self._expand(word, bindings, node, where)
        if name.text in bindings or name.text in _SYMBOLS:
            self._fail("E206", f"`{name.text}` is a number and takes no arguments", name.span)
        known = {*self.words.patterns, *self.words.functions, *FUNCTIONS, "dot"}
        if name.text in self.words.similarities:
            help_ = f"write `similarity = {name.text}(…)`"
            self._fail("E201", f"`{name.text}` is a similarity, not a function", name.span, helps=(help_,))
        self._fail("E201", f"there is no word or function `{name.text}`", name.span, helps=nearest(name.text, known))

    def _dot(self, node: tree.Call, where: FieldName) -> Expr:
        if where not in (FieldName.SCORE, FieldName.WEIGHT):
            note = "a dot product is a number of one pair; `score` and `weight` may read it"
            self._fail("E207", f"`dot` cannot be read in `{where.value}`", node.span, notes=(note,))
        names = [each.name if isinstance(each, tree.Reference) else None for each in node.arguments]
        if sorted(filter(None, names)) == ["k", "q"] and len(names) == 2:
            return Dot("q", "k", span=node.span)
        for argument, name in zip(node.arguments, names, strict=True):
            if name not in ("q", "k"):
                self._fail(
                    "E205", "this is no vector that a dot product can take", argument.span, helps=("write `dot(q, k)`",)
                )
        note = "one vector must belong to the query and one to the key"
        self._fail("E205", "a dot product takes `q` and `k`", node.span, notes=(note,), helps=("write `dot(q, k)`",))

    def _row_sum(self, node: tree.Call, bindings: Bindings) -> Expr:
        match node.arguments:
            case (weight,) if not isinstance(weight, tree.NamedArgument):
                return RowSum(self._number(weight, bindings, FieldName.WEIGHT), span=node.span)
        self._fail("E206", "`rows(w)` takes one weight", node.span)

    def _function(self, node: tree.Call, name: tree.Identifier, bindings: Bindings, where: FieldName) -> Expr:
        function = FUNCTIONS[name.text]
        arguments: list[Expr] = []
        for argument in node.arguments:
            match argument:
                case tree.NamedArgument(span=span):
                    self._fail("E206", f"`{name.text}` takes no named arguments", span)
                case value:
                    arguments.append(self._number(value, bindings, where))
        wanted = function.arity
        if (wanted is not None and len(arguments) != wanted) or (wanted is None and len(arguments) < 2):
            count = "two or more arguments" if wanted is None else f"{wanted} argument{'s' * (wanted != 1)}"
            self._fail("E206", f"`{name.text}` takes {count}, but {len(arguments)} are given", node.span)
        return Call(name.text, tuple(arguments), span=node.span)

    def _expand(self, word: tree.Word, bindings: Bindings, call: tree.Call, where: FieldName) -> Expr:
        if word.name.text in self._open or len(self._open) >= _DEEPEST_WORDS:
            chain = " → ".join([*self._open, word.name.text])
            self._fail("E213", f"the word `{word.name.text}` uses itself", call.span, notes=(chain,))
        inner = self._arguments(word.name, word.parameters, call, bindings, where)
        self._open.append(word.name.text)
        self._calls.append(call.span)
        try:
            wanted = self._predicate if word.kind == "pattern" else self._number
            return wanted(word.body, inner, where)
        finally:
            self._open.pop()
            self._calls.pop()

    def _arguments(
        self,
        word: tree.Identifier,
        parameters: tuple[tree.Parameter, ...],
        call: tree.Call,
        bindings: Bindings,
        where: FieldName,
    ) -> dict[str, Expr]:
        given: dict[str, tree.Tree] = {}
        names = [parameter.name.text for parameter in parameters]
        for at, argument in enumerate(call.arguments):
            if isinstance(argument, tree.NamedArgument):
                name, value = argument.name.text, argument.value
                if name not in names:
                    helps = nearest(name, names)
                    self._fail("E206", f"`{word.text}` has no argument `{name}`", argument.name.span, helps=helps)
            elif at >= len(names):
                takes = f"takes {len(names)} argument{'s' * (len(names) != 1)}" if names else "takes no arguments"
                self._fail("E206", f"`{word.text}` {takes}, but {len(call.arguments)} are given", argument.span)
            else:
                name, value = names[at], argument
            if name in given:
                self._fail("E206", f"`{word.text}` is given `{name}` twice", argument.span)
            given[name] = value
        inner: dict[str, Expr] = {}
        for parameter in parameters:
            name = parameter.name.text
            if name in given:
                inner[name] = self._number(given[name], bindings, where)
                span = given[name].span
            elif parameter.default is not None:
                inner[name] = self._number(parameter.default, inner, where)
                span = parameter.span
            else:
                declared = Label(parameter.span, "declared here")
                self._fail("E206", f"`{word.text}` needs a value for `{name}`", call.span, declared)
            if parameter.type is not None and parameter.type.text == "int" and type_of(inner[name]) is not Type.INT:
                declared = Label(parameter.span, "declared here")
                self._fail("E209", f"`{word.text}` wants a whole number for `{name}`", span, declared)
        return inner

    # --- limits -----------------------------------------------------------------------------------------------

    def _check_size(self, expr: Expr, span: Span) -> None:
        size = 1 + sum(self._sizes[id(child)][1] if id(child) in self._sizes else 1 for child in children(expr))
        self._sizes[id(expr)] = (expr, size)  # keeps the node alive, so that its id stays its own
        if size > _LARGEST_EXPRESSION:
            note = f"with every word expanded it has more than {_LARGEST_EXPRESSION} parts"
            self._fail("E213", "the expression grows too large", span, notes=(note,))

    def _fail(
        self,
        code: str,
        message: str,
        span: Span,
        *labels: Label,
        notes: tuple[str, ...] = (),
        helps: tuple[str, ...] = (),
    ) -> NoReturn:
        """Report and give up on this expression. Inside a word, the place of the call is shown as well."""
        called = tuple(Label(call, "used here") for call in self._calls[:1] if call.source != span.source)
        self.errors.append(Diagnostic(code, message, (Label(span), *labels, *called), notes, helps))
        raise _Stop


def _conjunction(parts: list[Expr], span: Span) -> Expr:
    flat = _flatten(parts, And, TRUE)
    if FALSE in flat:
        return Const(False, span=span)
    return flat[0] if len(flat) == 1 else And(tuple(flat), span=span) if flat else Const(True, span=span)


def _disjunction(parts: list[Expr], span: Span) -> Expr:
    flat = _flatten(parts, Or, FALSE)
    if TRUE in flat:
        return Const(True, span=span)
    return flat[0] if len(flat) == 1 else Or(tuple(flat), span=span) if flat else Const(False, span=span)


def _flatten(parts: list[Expr], kind: type[And] | type[Or], neutral: Expr) -> list[Expr]:
    """The operands of nested conjunctions (disjunctions) in one list, without the neutral element."""
    flat: list[Expr] = []
    for part in parts:
        flat += part.operands if isinstance(part, kind) else [part]
    return [part for part in flat if part != neutral]
