"""Trees of expressions → typed `Expr`: names looked up, words expanded, kinds checked, constants folded."""

from __future__ import annotations

from attncc.diagnostics import Span
from attncc.spec.calls import CallScope
from attncc.spec.data import Data
from attncc.spec.expr import (
    FALSE,
    TRUE,
    And,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Indicator,
    Member,
    Name,
    Negate,
    Not,
    Or,
    Select,
    Symbol,
    Type,
    Vector,
    type_of,
)
from attncc.spec.fields import READABLE, FieldName
from attncc.spec.fold import NoValue, fold, in_range
from attncc.spec.scope import DEEPEST, TOO_DEEP, Bindings, Bound, Stop
from attncc.syntax import tree

_MOST_CHOICES = 64  # values that a membership or `exists` is written out for


class ExpressionResolver(CallScope):
    """Resolves expressions of one file; every finding is appended to `errors`."""

    # --- entry points -----------------------------------------------------------------------------------------

    def predicate(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """The predicate written at `node`; TRUE after an error."""
        try:
            return self.as_predicate(node, bindings, where)
        except Stop:
            return TRUE

    def number(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """The number written at `node`; 1 after an error."""
        try:
            return self.as_number(node, bindings, where)
        except Stop:
            return Const(1)

    def value(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr | None:
        """The number or vector written at `node`; None after an error."""
        try:
            return self.as_value(node, bindings, where)
        except Stop:
            return None

    def vector(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr | None:
        """The vector written at `node`; None after an error."""
        try:
            return self.as_vector(node, bindings, where)
        except Stop:
            return None

    def constant(self, node: tree.Tree, bindings: Bindings) -> int | float | None:
        """The value of a constant expression; None after an error."""
        try:
            expr = self.as_number(node, bindings, FieldName.REQUIRE)
            if isinstance(expr, Const):
                return expr.value
            self.fail("E212", "a default is a constant, but this is not", node.span)
        except Stop:
            return None

    def arguments(
        self,
        word: tree.Identifier,
        parameters: tuple[tree.Parameter, ...],
        call: tree.Call,
        bindings: Bindings,
        where: FieldName,
    ) -> dict[str, Bound] | None:
        """What a word's parameters stand for in one call; None after an error."""
        try:
            return self._arguments(word, parameters, call, bindings, where)
        except Stop:
            return None

    # --- expressions ------------------------------------------------------------------------------------------

    def expr(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """Any expression: a number, a vector or a predicate."""
        if self._depth >= DEEPEST:
            self.fail("E213", "the expression is nested too deep", node.span, notes=(TOO_DEEP,))
        self._depth += 1
        try:
            expr = fold(self._node(node, bindings, where))
        except NoValue as reason:
            helps = ("divide by a number other than 0",) if str(reason) == "the divisor is 0" else ()
            self.fail("E212", "this has no value", node.span, text=str(reason), helps=helps)
        finally:
            self._depth -= 1
        self.check_size(expr, node.span, where)
        return expr

    def _node(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        span = node.span
        match node:
            case tree.Number(value=value):
                return Const(in_range(value), span=span)
            case tree.Reference():
                return self.reference(node, bindings, where)
            case tree.Group(inner=inner):
                return self.expr(inner, bindings, where)
            case tree.Unary(operator="-", operand=operand):
                return Negate(self.as_value(operand, bindings, where), span=span)
            case tree.Unary(operand=operand):
                return Not(self.as_predicate(operand, bindings, where), span=span)
            case tree.Binary(operator="@"):
                return self.matrix_product(node, bindings, where)
            case tree.Binary(operator=operator, left=left, right=right):
                sides = self.as_value(left, bindings, where), self.as_value(right, bindings, where)
                return Binary(BinaryOp(operator), *sides, span=span)
            case tree.Comparison():
                return self._comparison(node, bindings, where)
            case tree.Logical(operator=operator, operands=operands):
                return self._logical(operator, operands, span, bindings, where)
            case tree.Conditional(condition=condition, then=then, otherwise=otherwise):
                return self._conditional(
                    self.as_condition(condition, bindings, where), then, otherwise, span, bindings, where
                )
            case tree.Bracket(items=items):
                return self._bracket(items, span, bindings, where)
            case tree.Index():
                return self.index(node, bindings, where)
            case tree.ByHead(items=items):
                return self._by_head(items, span, bindings, where)
            case tree.Membership():
                return self._membership(node, bindings, where)
            case tree.Quantified():
                return self._quantified(node, bindings, where)
            case tree.Lambda():
                text = "expected a number or predicate"
                help_ = "pass it to a word: `features(x -> elu(x) + 1)`"
                self.fail(
                    "E204", "a function stands only among the arguments of a word", span, text=text, helps=(help_,)
                )
            case tree.Call():
                return self.call(node, bindings, where)
            case tree.Attend(name=name):
                help_ = "write `layer name { … }` beside the attentions that it calls"
                self.fail("E404", f"`{name.text}` cannot be called here: layers call attentions", span, helps=(help_,))

    # --- predicates -------------------------------------------------------------------------------------------

    def _comparison(self, node: tree.Comparison, bindings: Bindings, where: FieldName) -> Expr:
        numbers = [self.as_value(operand, bindings, where) for operand in node.operands]
        links = [
            fold(Compare(CompareOp(operator), left, right, span=node.span))
            for operator, left, right in zip(node.operators, numbers, numbers[1:], strict=False)
        ]
        return _conjunction(links, node.span)

    def _logical(
        self, operator: str, operands: tuple[tree.Tree, ...], span: Span, bindings: Bindings, where: FieldName
    ) -> Expr:
        parts = [self.as_condition(operand, bindings, where) for operand in operands]
        return _conjunction(parts, span) if operator == "&" else _disjunction(parts, span)

    def _membership(self, node: tree.Membership, bindings: Bindings, where: FieldName) -> Expr:
        """`x in [a, b]` is `x == a | x == b`; `x in a..b` is `a <= x <= b`."""
        operand = self.as_number(node.operand, bindings, where)
        match node.choices:
            case tree.Range(first=first, last=last):
                low, high = (self.as_number(each, bindings, where) for each in (first, last))
                links = [
                    fold(Compare(CompareOp.LESS_EQUAL, low, operand, span=node.span)),
                    fold(Compare(CompareOp.LESS_EQUAL, operand, high, span=node.span)),
                ]
                return _conjunction(links, node.span)
            case tree.Bracket(items=items):
                values = [self.as_number(item, bindings, where) for item in items]
                equal = [fold(Compare(CompareOp.EQUAL, operand, value, span=node.span)) for value in values]
                return _disjunction(equal, node.span)
            case tree.Reference() as name:
                return self._listed(operand, node, name, bindings, where)

    def _listed(
        self, operand: Expr, node: tree.Membership, name: tree.Reference, bindings: Bindings, where: FieldName
    ) -> Expr:
        """`x in sel`, with a list for each query."""
        bound = bindings.get(name.name)
        if name.name in bindings and bound is None:
            raise Stop
        if not (isinstance(bound, Data) and bound.is_row and bound.is_vector and bound.whole):
            helps = (f"declare one for each query: `input {name.name}[B, H, n, 4]: int`", "write `x in [a, b]`")
            self.fail("E205", f"`{name.name}` is no list", name.span, text="expected a list of data", helps=helps)
        if where is not FieldName.PATTERN:
            note = "lists say which pairs are related"
            self.fail("E207", f"`{name.name}` cannot be read in `{where.value}`", name.span, notes=(note,))
        if type_of(operand) is not Type.INT:
            text, help_ = "expected a whole number", "round it: `floor(…)`"
            self.fail(
                "E209",
                "a list holds whole numbers, but this is a real one",
                node.operand.span,
                text=text,
                helps=(help_,),
            )
        return Member(operand, Vector(bound.name, span=name.span), span=node.span)

    def _quantified(self, node: tree.Quantified, bindings: Bindings, where: FieldName) -> Expr:
        """`exists t in a..b : p` is p with each value of t, joined by `|`."""
        self.free_name(node.variable)
        parts = []
        for value in self._values(node.choices, bindings):
            parts.append(self.as_predicate(node.body, {**bindings, node.variable.text: value}, where))
        return _disjunction(parts, node.span)

    def _values(self, choices: tree.Choices, bindings: Bindings) -> list[Expr]:
        match choices:
            case tree.Bracket(items=items):
                nodes = list(items)
            case tree.Range(first=first, last=last):
                nodes = [first, last]
        values: list[Expr] = []
        for node in nodes:
            expr = self.as_number(node, bindings, FieldName.REQUIRE)
            if not isinstance(expr, Const):
                self.fail("E212", "`exists` runs over constants, but this is none", node.span)
            values.append(expr)
        if isinstance(choices, tree.Range):
            first_value, last_value = (each.value for each in values if isinstance(each, Const))
            if not isinstance(first_value, int) or not isinstance(last_value, int):
                self.fail("E212", "a range has whole ends", choices.span)
            if last_value - first_value >= _MOST_CHOICES:
                self._too_many(choices.span, last_value - first_value + 1)
            values = [Const(value, span=choices.span) for value in range(first_value, last_value + 1)]
        if len(values) > _MOST_CHOICES:
            self._too_many(choices.span, len(values))
        return values

    def _too_many(self, span: Span, count: int) -> None:
        note = f"each value makes a predicate of its own; at most {_MOST_CHOICES} are written out"
        self.fail("E213", f"`exists` runs over {count} values", span, notes=(note,))

    def _by_head(self, items: tree.Bracket, span: Span, bindings: Bindings, where: FieldName) -> Expr:
        """Item h % count, for predicates and for numbers."""
        if Name.HEAD not in READABLE[where]:
            self.unreadable("h", span, where)
        parts = [self.expr(item, bindings, where) for item in items.items]
        for item, part in zip(items.items[1:], parts[1:], strict=True):
            self._same_kind(parts[0], part, item.span)
        head = Binary(BinaryOp.MODULO, Symbol(Name.HEAD), Const(len(parts)))
        chosen = parts[-1]
        for at in range(len(parts) - 2, -1, -1):
            chosen = Select(Compare(CompareOp.EQUAL, head, Const(at)), parts[at], chosen, span=span)
        return chosen

    def _conditional(
        self, condition: Expr, then: tree.Tree, otherwise: tree.Tree, span: Span, bindings: Bindings, where: FieldName
    ) -> Expr:
        if isinstance(condition, Const):  # the other branch may have no value: `c > 0 ? i // c : 0`
            taken, dead = (then, otherwise) if condition.value else (otherwise, then)
            expr = self.expr(taken, bindings, where)
            self._same_kind(expr, self._without_value(dead, bindings, where), span)
            return expr
        yes, no = self.expr(then, bindings, where), self.expr(otherwise, bindings, where)
        self._same_kind(yes, no, span)
        return Select(condition, yes, no, span=span)

    def _same_kind(self, one: Expr, other: Expr | None, span: Span) -> None:
        if other is not None and (type_of(one) is Type.BOOL) != (type_of(other) is Type.BOOL):
            text = "expected two numbers or two predicates"
            self.fail("E204", "one choice is a number, another a predicate", span, text=text)

    def _without_value(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr | None:
        """A branch that is never taken: names and kinds are checked, values are not."""
        mark = len(self.errors)
        try:
            return self.expr(node, bindings, where)
        except Stop:
            kept = [error for error in self.errors[mark:] if error.code not in ("E209", "E212", "E216")]
            self.errors[mark:] = kept
            if kept:
                raise
            return None

    def _bracket(self, items: tuple[tree.Tree, ...], span: Span, bindings: Bindings, where: FieldName) -> Expr:
        if len(items) == 1:
            inner = self.expr(items[0], bindings, where)
            if type_of(inner) is Type.BOOL:
                if isinstance(inner, Const):
                    return Const(int(inner.value), span=span)
                return Indicator(inner, span=span)
        self.fail("E216", "a list of constants needs an index", span, helps=("write `[…][h]`",))


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
