"""Trees of expressions → typed `Expr`: names looked up, words expanded, kinds checked, constants folded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from attncc.diagnostics import Diagnostic, Label, Source, Span
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
from attncc.spec.fold import NoValue, fold, in_range
from attncc.spec.functions import FUNCTIONS
from attncc.spec.words import Words, nearest
from attncc.syntax import tree

# What parameters stand for; None for one whose value was reported already.
Bindings = Mapping[str, Expr | None]

_SYMBOLS = {name.value: name for name in Name if name not in (Name.FIRST, Name.LAST)}
_CONSTANTS = {"pi": math.pi, "true": True, "false": False}
_VECTORS = {"q": "a vector of the query", "k": "a vector of the key", "v": "a vector of the key"}
_LARGEST = {FieldName.PATTERN: 2000}  # parts of an expression with every word expanded; a spec is one page
_LARGEST_NUMBER = 250
_DEEPEST = 50  # expressions within expressions, through words too; later stages walk them recursively


_TOO_DEEP = f"with every word expanded it has more than {_DEEPEST} levels"
_PAIRWISE = (FieldName.SCORE, FieldName.WEIGHT)  # the fields that are numbers of a pair
_FIELDS = (FieldName.PATTERN, *_PAIRWISE, FieldName.NORMALIZE)


class _Stop(Exception):
    """The expression has been reported; nothing more to learn from it."""


class ExpressionResolver:
    """Resolves expressions of one file; every finding is appended to `errors`."""

    def __init__(self, source: Source, words: Words, errors: list[Diagnostic]) -> None:
        self.source = source
        self.words = words
        self.errors = errors
        self.used: set[str] = set()  # the words that were expanded
        self._open: list[str] = []  # the words being expanded, outermost first
        self._calls: list[Span] = []  # where each of them was called
        self._depth = 0
        self._sizes: dict[int, tuple[Expr, int, int]] = {}  # nodes and depth by identity

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
            self._fail("E212", "a default is a constant, but this is not", node.span)
        except _Stop:
            return None

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

    @contextmanager
    def within(self, name: str, call: Span) -> Iterator[None]:
        """While a word that was called at `call` is expanded: findings inside it show the call too."""
        self.used.add(name)
        self._open.append(name)
        self._calls.append(call)
        try:
            yield
        finally:
            self._open.pop()
            self._calls.pop()

    # --- kinds ------------------------------------------------------------------------------------------------

    def _predicate(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        expr = self._expr(node, bindings, where)
        if type_of(expr) is not Type.BOOL:
            help_ = "compare it with another number, for instance `… < 8`"
            label = "expected a predicate, found a number"
            self._fail(
                "E204", "a predicate is wanted here, but this is a number", node.span, text=label, helps=(help_,)
            )
        return expr

    def _number(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        expr = self._expr(node, bindings, where)
        if type_of(expr) is Type.BOOL:
            help_ = "write `[…]` around a predicate to get 1 where it holds and 0 elsewhere"
            label = "expected a number, found a predicate"
            self._fail(
                "E204", "a number is wanted here, but this is a predicate", node.span, text=label, helps=(help_,)
            )
        return expr

    # --- expressions ------------------------------------------------------------------------------------------

    def _expr(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        if self._depth >= _DEEPEST:
            self._fail("E213", "the expression is nested too deep", node.span, notes=(_TOO_DEEP,))
        self._depth += 1
        try:
            expr = fold(self._node(node, bindings, where))
        except NoValue as reason:
            self._fail("E212", "this has no value", node.span, text=str(reason))
        finally:
            self._depth -= 1
        self._check_size(expr, node.span, where)
        return expr

    def _node(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        span = node.span
        match node:
            case tree.Number(value=value):
                return Const(in_range(value), span=span)
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
            helps = ("take a dot product: `dot(q, k)`",) if where in _PAIRWISE and name != "v" else ()
            message = f"`{name}` is {_VECTORS[name]}, but a number is wanted here"
            self._fail("E205", message, span, text="expected a number", helps=helps)
        if name in _SYMBOLS:
            if _SYMBOLS[name] not in READABLE[where]:
                self._unreadable(name, span, where)
            return Symbol(_SYMBOLS[name], span=span)
        word = self.words.patterns.get(name)
        if word is not None and all(parameter.default is not None for parameter in word.parameters):
            return self._expand(word, {}, tree.Call(tree.Identifier(name, span=span), (), span=span), where)
        if word is not None or name in self.words.functions or name in FUNCTIONS or name == "dot":
            self._fail(
                "E206", f"`{name}` needs its arguments", span, text="expected `(`", helps=(f"write `{name}(…)`",)
            )
        self._unknown(name, span, bindings, where)

    def _unreadable(self, name: str, span: Span, where: FieldName) -> NoReturn:
        """A name of the language that this field may not read."""
        note = "only parameters and constants are known when the spec is built"
        symbol = _SYMBOLS.get(name)
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
        helps = (f"fields that can read it: {readable}",) if where is not FieldName.REQUIRE else ()
        self._fail("E207", f"`{name}` cannot be read in `{where.value}`", span, notes=(note,), helps=helps)

    def _unknown(self, name: str, span: Span, bindings: Bindings, where: FieldName) -> NoReturn:
        if name == "none":
            note = "`normalize = none` leaves the row's sum as it is; it is no number to calculate with"
            self._fail("E207", f"`none` cannot be read in `{where.value}`", span, notes=(note,))
        if name in self.words.similarities:
            help_ = f"write `similarity = {name}`"
            self._fail("E201", f"`{name}` is a similarity, not a number or predicate", span, helps=(help_,))
        known = set(bindings) | {each.value for each in READABLE[where]}
        if where is not FieldName.REQUIRE:
            known |= {each for each, word in self.words.patterns.items() if not word.parameters}
        self._fail("E201", f"there is no `{name}` here", span, text="unknown name", helps=nearest(name, known))

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
            taken, dead = (then, otherwise) if condition.value else (otherwise, then)
            expr = self._expr(taken, bindings, where)
            self._same_kind(expr, self._without_value(dead, bindings, where), span)
            return expr
        yes, no = self._expr(then, bindings, where), self._expr(otherwise, bindings, where)
        self._same_kind(yes, no, span)
        return Select(condition, yes, no, span=span)

    def _same_kind(self, one: Expr, other: Expr | None, span: Span) -> None:
        if other is not None and (type_of(one) is Type.BOOL) != (type_of(other) is Type.BOOL):
            text = "expected two numbers or two predicates"
            self._fail("E204", "one branch is a number, the other a predicate", span, text=text)

    def _without_value(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr | None:
        """A branch that is never taken: names and kinds are checked, values are not."""
        mark = len(self.errors)
        try:
            return self._expr(node, bindings, where)
        except _Stop:
            kept = [error for error in self.errors[mark:] if error.code not in ("E209", "E212", "E216")]
            self.errors[mark:] = kept
            if kept:
                raise
            return None

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
            expr = self._expr(item, bindings, where)
            if type_of(expr) is Type.BOOL:
                help_ = "choose among predicates with `h % 2 == 0 ? … : …`"
                self._fail("E216", "a list holds numbers, but this is a predicate", item.span, helps=(help_,))
            if not isinstance(expr, Const):
                text = "expected a constant"
                self._fail("E216", "a list holds constants, but this changes from pair to pair", item.span, text=text)
            constants.append(expr.value)
        place = self._number(index, bindings, where)
        read = sorted(name.value for name in names_in(place) - {Name.HEAD, Name.HEADS})
        if type_of(place) is not Type.INT or read:
            found = f"this reads `{read[0]}`" if read else "this is a real number"
            text = "expected a whole number made of `h` and `H`"
            self._fail("E216", f"a list is indexed by the head, but {found}", index.span, text=text)
        if isinstance(place, Const):
            if not 0 <= place.value < len(constants):
                text = f"expected 0 … {len(constants) - 1}"
                message = f"the list has {len(constants)} entries, but the index is {place.value}"
                self._fail("E216", message, index.span, text=text)
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
        if name.text == "rows":
            self._unreadable("rows", name.span, where)
        if name.text in bindings or name.text in _SYMBOLS or name.text in _CONSTANTS:
            help_ = f"write `{name.text}`, or `{name.text} * (…)` for a product"
            self._fail(
                "E206", f"`{name.text}` takes no arguments", name.span, text="no word or function", helps=(help_,)
            )
        known = {*self.words.patterns, *self.words.functions, *FUNCTIONS, "dot"}
        if name.text in self.words.similarities:
            help_ = f"write `similarity = {name.text}(…)`"
            self._fail("E201", f"`{name.text}` is a similarity, not a function", name.span, helps=(help_,))
        message = f"there is no word or function `{name.text}`"
        self._fail("E201", message, name.span, text="unknown name", helps=nearest(name.text, known))

    def _dot(self, node: tree.Call, where: FieldName) -> Expr:
        if where not in _PAIRWISE:
            self._unreadable("dot", node.span, where)
        names = [each.name if isinstance(each, tree.Reference) else None for each in node.arguments]
        if sorted(filter(None, names)) == ["k", "q"] and len(names) == 2:
            return Dot("q", "k", span=node.span)
        for argument, name in zip(node.arguments, names, strict=True):
            if name not in ("q", "k"):
                message = "a dot product takes `q` and `k`, but this is neither"
                self._fail("E205", message, argument.span, text="expected `q` or `k`", helps=("write `dot(q, k)`",))
        note = "one vector belongs to the query and one to the key"
        found = " and ".join(f"`{name}`" for name in names) or "nothing"
        message = f"a dot product takes `q` and `k`, but is given {found}"
        self._fail("E205", message, node.span, notes=(note,), helps=("write `dot(q, k)`",))

    def _row_sum(self, node: tree.Call, bindings: Bindings) -> Expr:
        match node.arguments:
            case (weight,) if not isinstance(weight, tree.NamedArgument):
                return RowSum(self._number(weight, bindings, FieldName.WEIGHT), span=node.span)
        given = len(node.arguments)
        self._fail("E206", f"`rows(w)` takes one weight without a name, but {given} arguments are given", node.span)

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
        if word.name.text in self._open:
            chain = " → ".join([*self._open[self._open.index(word.name.text) :], word.name.text])
            defined = Label(word.name.span, "defined here")
            note = f"{chain}; words are replaced by their bodies, so none may contain itself"
            self._fail("E213", f"the word `{word.name.text}` uses itself", call.span, defined, notes=(note,))
        inner = self._arguments(word.name, word.parameters, call, bindings, where)
        with self.within(word.name.text, call.span):
            wanted = self._predicate if word.kind == "pattern" else self._number
            return wanted(word.body, inner, where)

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
                first = Label(given[name].span, "given first here")
                self._fail("E206", f"`{word.text}` is given `{name}` twice", argument.span, first)
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
                text = f"expected a value for `{name}`"
                self._fail("E206", f"`{word.text}` needs a value for `{name}`", call.span, declared, text=text)
            if parameter.type is not None and parameter.type.text == "int" and type_of(inner[name]) is not Type.INT:
                declared = Label(parameter.span, "declared here")
                message = f"`{word.text}` wants a whole number for `{name}`, but this is a real one"
                self._fail("E209", message, span, declared, text="expected a whole number")
        return inner

    # --- limits -----------------------------------------------------------------------------------------------

    def _check_size(self, expr: Expr, span: Span, where: FieldName) -> None:
        size, depth = self._measure(expr)
        most = _LARGEST.get(where, _LARGEST_NUMBER)
        if size > most:
            note = f"with every word expanded it has more than {most} parts"
            self._fail("E213", "the expression grows too large", span, notes=(note,))
        if depth > _DEEPEST:
            self._fail("E213", "the expression is nested too deep", span, notes=(_TOO_DEEP,))

    def _measure(self, expr: Expr) -> tuple[int, int]:
        """How many nodes an expression has, shared ones counted each time, and how deep they are nested."""
        known = self._sizes.get(id(expr))
        if known is None:
            inner = [self._measure(child) for child in children(expr)]
            size = 1 + sum(each for each, _ in inner)
            depth = 1 + max((each for _, each in inner), default=0)
            known = self._sizes[id(expr)] = (expr, size, depth)  # keeps the node alive, so that its id stays its own
        return known[1:]

    def _fail(
        self,
        code: str,
        message: str,
        span: Span,
        *labels: Label,
        text: str = "",
        notes: tuple[str, ...] = (),
        helps: tuple[str, ...] = (),
    ) -> NoReturn:
        """Report and give up on this expression."""
        self.errors.append(Diagnostic(code, message, self.labels(Label(span, text), *labels), notes, helps))
        raise _Stop

    def labels(self, place: Label, *others: Label) -> tuple[Label, ...]:
        """The labels of a finding inside the word being expanded: those in the user's own text come first."""
        own = [call for call in self._calls if call.source == self.source]
        if place.span.source == self.source or not own:
            used = tuple(Label(call, "used here") for call in own[-1:] if place.span.source == self.source)
            return (place, *others, *(label for label in used if label.span != place.span))
        text = place.text or "here"
        return (Label(own[-1], "in this use"), Label(place.span, text), *others)


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
