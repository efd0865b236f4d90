"""What an attention defines beside its fields: declared data, words of its own, and named values."""

from __future__ import annotations

from attncc.diagnostics import Diagnostic, Label, Span
from attncc.spec.choices import unnamed
from attncc.spec.data import Data, K, Q, V
from attncc.spec.declared import Declarations
from attncc.spec.expr import Expr, Let, Pooled, Type, type_of, walk
from attncc.spec.expressions import ExpressionResolver
from attncc.spec.fields import FieldName
from attncc.spec.pooled import placed, step_of
from attncc.spec.scope import Bound, data_of
from attncc.spec.sides import Side, reads_data, side_of
from attncc.spec.text import text as expr_text
from attncc.spec.words import Words, taken
from attncc.syntax import tree


class BodyResolver:
    """Makes what one pair of braces defines known to its expressions."""

    def __init__(
        self, words: Words, expressions: ExpressionResolver, errors: list[Diagnostic], bindings: dict[str, Bound | None]
    ) -> None:
        self.words = words
        self.expressions = expressions
        self.errors = errors
        self.bindings = bindings

    def declare(self, statements: tuple[tree.Statement, ...], names: dict[str, Span]) -> list[Data]:
        """q, k, v and what `param` and `input` declare; `names` are taken already."""
        declared = Declarations(self.expressions, self.errors).of(statements, self.bindings, names)
        for statement in statements:
            for datum in statement.data if isinstance(statement, tree.Declaration) else ():
                self.bindings.setdefault(datum.name.text, None)
        self.bindings |= {each.name: each for each in (Q, K, V, *declared)}
        self.expressions.declared |= {each.name: each for each in declared}
        return declared

    def define(self, statements: tuple[tree.Statement, ...]) -> None:
        """Words of its own, which see its parameters, data and values, and values, each made of what is above it."""
        for statement in statements:
            if isinstance(statement, tree.Word | tree.SimilarityWord):
                self.errors += self.words.add(statement)
                self.words.inner.add(id(statement))
        for statement in statements:
            if isinstance(statement, tree.LetStatement) and self._is_free(statement.name):
                name = statement.name.text
                if isinstance(statement.value, tree.Call) and statement.value.name.text == "top":
                    chosen = self.expressions.predicate(statement.value, self.bindings, FieldName.PATTERN)
                    self.bindings[name] = None  # where it was reported
                    if isinstance(chosen, Let):
                        self.bindings[name] = Let(name, chosen.value, span=statement.name.span)
                    continue
                value = self.expressions.value(statement.value, self.bindings, FieldName.LET)
                if statement.at is not None and value is not None:
                    value = self._placed(value, statement.at)
                self.bindings[name] = None if value is None else self._named(statement.name, value)
                self._check_choice(self.bindings[name])

    def _check_choice(self, value: Bound | None) -> None:
        """A choice is a value with a name, not a part of another."""
        found = unnamed(value) if isinstance(value, Expr) else None
        if found is not None and isinstance(value, Expr):
            note = "what it gives is a choice, which callers may ask for and pass by its name"
            help_ = f"give it a line of its own: `let name = {expr_text(found)}`"
            place = found.span or value.span
            labels = (Label(place, "expected a name of its own"),) if place is not None else ()
            self._error("E207", "`argmax` is a part of another value", *labels, notes=(note,), helps=(help_,))

    def _placed(self, value: Expr, at: tree.Tree) -> Expr | None:
        """A value of blocks of keys, which stand where the spec says."""
        where = self.expressions.number(at, self.bindings, FieldName.PATTERN)
        if not any(isinstance(each, Pooled) for each in walk(value)):
            label = Label(at.span, "expected `pool(…)` before this")
            note = "`at` says where blocks of keys stand; other values stand where their keys do"
            self._error("E205", "this has one of each key", label, notes=(note,))
            return None
        if step_of(where) is None:
            label = Label(at.span, "expected a number such as `16 * j + 15`")
            note = "blocks of keys stand at a whole number of steps, one behind the other: a * j + b with a > 0"
            self._error("E211", "this does not place blocks one behind the other", label, notes=(note,))
            return None
        return placed(value, where)

    def _is_free(self, name: tree.Identifier) -> bool:
        """Whether a value may have this name; q, k and v may be made anew."""
        if name.text in ("q", "k", "v"):
            return True
        before = len(self.errors)
        self.errors += taken(name)
        if name.text in self.bindings:
            bound = self.bindings[name.text]
            first = bound.span if isinstance(bound, Data | Expr) else None
            labels = [Label(name.span, "defined again here")]
            labels += [Label(first, "first defined here")] if first is not None else []
            self._error("E203", f"`{name.text}` is defined twice", *labels)
        return len(self.errors) == before

    def _named(self, name: tree.Identifier, value: Expr) -> Expr | None:
        """The value under its name; q, k and v stay vectors of their own token."""
        if not reads_data(value):
            return value
        data = data_of(self.bindings)
        if name.text in ("q", "k", "v"):
            wanted = Side.ROW if name.text == "q" else Side.COLUMN
            whose = "query" if name.text == "q" else "key"
            if type_of(value) is not Type.VECTOR:
                label = Label(value.span or name.span, "expected a vector")
                self._error("E205", f"`{name.text}` is a vector, but this is a number", label)
                return None
            if side_of(value, data) not in (wanted, Side.NONE):
                label = Label(value.span or name.span, f"expected a vector of the {whose}")
                note = f"`{name.text}` belongs to one {whose}, and this reads another token"
                self._error("E205", f"`{name.text}` is a vector of the {whose}", label, notes=(note,))
                return None
        return Let(name.text, value, span=name.span)

    def _error(
        self, code: str, message: str, *labels: Label, notes: tuple[str, ...] = (), helps: tuple[str, ...] = ()
    ) -> None:
        self.errors.append(Diagnostic(code, message, labels, notes, helps))
