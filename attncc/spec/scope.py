"""What the resolvers of expressions share: the scope of names, kinds, limits, and how a finding is reported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from attncc.diagnostics import Diagnostic, Label, Source, Span
from attncc.spec.data import Data, K, Q, Size, V
from attncc.spec.expr import (
    AtRow,
    Channel,
    Entry,
    Expr,
    Join,
    Let,
    MatMul,
    Rotate,
    Shares,
    Token,
    Type,
    Vector,
    children,
    type_of,
    varies_by_feature,
)
from attncc.spec.fields import FieldName
from attncc.spec.text import text as expr_text
from attncc.spec.words import Words, taken
from attncc.syntax import tree


@dataclass(frozen=True, slots=True)
class Function:
    """A function passed as an argument: `x -> body` with the names it sees, or a named function or word."""

    name: str
    span: Span = field(compare=False, repr=False)
    parameter: str | None = None
    body: tree.Tree | None = None
    scope: Bindings | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix passed as an argument: a table at some of its axes, of which two are left."""

    entry: Entry


# What names stand for; None for one whose value was reported already.
Bound = Expr | Data | Function | Matrix
Bindings = Mapping[str, Bound | None]

_FEATURES = (Size.WIDTH, Size.VALUE_WIDTH)
LARGEST = {FieldName.PATTERN: 2000}  # parts of an expression with every word expanded; a spec is one page
LARGEST_NUMBER = 400  # what `let` names is one part of what reads it: its token is worked on before pairs are
LARGEST_WITH_LETS = 4000
MOST_WORDS = 10_000  # put in for one that is called: what they compute may be a constant, which never grows large
DEEPEST = 50  # expressions within expressions, through words too; later stages walk them recursively
TOO_DEEP = f"with every word expanded it has more than {DEEPEST} levels"


class Stop(Exception):
    """The expression has been reported; nothing more to learn from it."""


class Scope(ABC):
    """One file's words, the words being expanded, and the findings."""

    def __init__(self, source: Source, words: Words, errors: list[Diagnostic]) -> None:
        self.source = source
        self.words = words
        self.errors = errors
        self.used: set[str] = set()  # the words that were expanded
        self.declared: dict[
            str, Data
        ] = {}  # what the attention declares, which words see through their arguments alone
        self.branches: dict[str, Shares | str] = {}  # what branches that stand above give to keys, or why none can say
        self._open: list[str] = []  # the words being expanded, outermost first
        self._expanded = 0  # words, since the outermost one was called
        self._calls: list[Span] = []  # where each of them was called
        self._depth = 0
        self._sizes: dict[int, tuple[Expr, int, int, int]] = {}  # by identity

    def data(self, bindings: Bindings) -> dict[str, Data]:
        """The declared data that a value may be made of, whether or not their names are known here."""
        return self.declared | data_of(bindings)

    @abstractmethod
    def expr(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """Any expression."""

    # --- kinds ------------------------------------------------------------------------------------------------

    def as_predicate(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """A predicate."""
        return self._checked_predicate(self.expr(node, bindings, where), node, bindings, where)

    def _checked_predicate(self, expr: Expr, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        if varies_by_feature(expr):
            self._vector_found(expr, node.span, "predicate", where, bindings)
        if type_of(expr) is not Type.BOOL:
            help_ = "compare it with another number, for instance `… < 8`"
            label = "expected a predicate, found a number"
            self.fail("E204", "a predicate is wanted here, but this is a number", node.span, text=label, helps=(help_,))
        return expr

    def as_condition(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """A predicate, or one for every feature: `channel < 8`."""
        expr = self.expr(node, bindings, where)
        if varies_by_feature(expr) and type_of(expr) is Type.BOOL:
            return expr
        return self._checked_predicate(expr, node, bindings, where)

    def as_number(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """A number of a pair, a row or a token."""
        expr = self.as_value(node, bindings, where)
        if type_of(expr) is Type.VECTOR:
            self._vector_found(expr, node.span, "number", where, bindings)
        return expr

    def as_value(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """A number or a vector."""
        return self.checked_value(self.expr(node, bindings, where), node, where)

    def checked_value(self, expr: Expr, node: tree.Tree, where: FieldName) -> Expr:
        """What stands at `node`, which has to be a number or a vector."""
        if type_of(expr) is Type.BOOL:
            found, text = "this is a predicate", "expected a number, found a predicate"
            helps = ["write `[…]` around a predicate to get 1 where it holds and 0 elsewhere"]
            if is_truth(expr):
                name = expr_text(expr)
                found, text = f"`{name}` holds truth values", "expected a number, found a truth value"
                helps = [f"write `[{name}]`, which is 1 where it holds and 0 elsewhere", f"`{name}` is a predicate"]
            elif where is FieldName.LET:
                helps.append("a predicate gets a name as a pattern: `pattern name = …`")
            self.fail("E204", f"a number is wanted here, but {found}", node.span, text=text, helps=tuple(helps))
        return expr

    def as_vector(self, node: tree.Tree, bindings: Bindings, where: FieldName) -> Expr:
        """A vector."""
        expr = self.expr(node, bindings, where)
        if type_of(expr) is not Type.VECTOR:
            found = "a predicate" if type_of(expr) is Type.BOOL else "a number"
            helps = ("write `dot(q, k)`",) if where in (FieldName.SCORE, FieldName.WEIGHT) else ()
            message = f"a vector is wanted here, but this is {found}"
            self.fail("E205", message, node.span, text="expected a vector, such as `q`", helps=helps)
        return expr

    def _vector_found(self, expr: Expr, span: Span, wanted: str, where: FieldName, bindings: Bindings) -> NoReturn:
        for entry in _vectors(expr):
            data = bindings.get(entry.name)
            if isinstance(entry, Entry) and isinstance(data, Data) and data.axes[-1] not in _FEATURES:
                indices = [*map(expr_text, entry.indices), "h" if data.axes[-1] is Size.HEADS else "…"]
                message = f"`{data.name}` lacks an index, which makes it a vector, but a {wanted} is wanted here"
                help_ = f"write `{data.name}[{', '.join(indices)}]`"
                self.fail("E205", message, entry.span or span, text="its last axis has no index", helps=(help_,))
        what = describe_vector(expr)
        pairs = where in (FieldName.SCORE, FieldName.WEIGHT)
        helps = ("take a dot product: `dot(q, k)`",) if pairs else ()
        message = f"{what}, but a {wanted} is wanted here"
        self.fail("E205", message, span, text=f"expected a {wanted}", helps=helps)

    # --- limits -----------------------------------------------------------------------------------------------

    def check_size(self, expr: Expr, span: Span, where: FieldName) -> None:
        """Refuse what later stages could only work through slowly."""
        own, size, depth = self._measure(expr)
        most = LARGEST.get(where, LARGEST_NUMBER)
        for found, limit, what in ((own, most, "word"), (size, LARGEST_WITH_LETS, "`let`")):
            if found > limit:
                note = f"with every {what} expanded it has more than {limit} parts"
                self.fail("E213", "the expression grows too large", span, notes=(note,))
        if depth > DEEPEST:
            self.fail("E213", "the expression is nested too deep", span, notes=(TOO_DEEP,))

    def _measure(self, expr: Expr) -> tuple[int, int, int]:
        """How many nodes an expression has, without and with those of named vectors and whole numbers, and how deep.

        What is shared counts each time.
        """
        known = self._sizes.get(id(expr))
        if known is None:
            inner = [self._measure(child) for child in children(expr)]
            is_named = isinstance(expr, Let) and type_of(expr) in (Type.VECTOR, Type.INT)
            own = 1 if is_named else 1 + sum(each for each, _, _ in inner)
            size = 1 + sum(each for _, each, _ in inner)
            depth = 1 + max((each for _, _, each in inner), default=0)
            known = self._sizes[id(expr)] = (expr, own, size, depth)  # kept alive, so that its id stays its own
        return known[1:]

    def free_name(self, name: tree.Identifier) -> None:
        """Refuse a variable that is named like something of the language."""
        found = taken(name)
        if found:
            self.errors += found
            raise Stop

    # --- findings ---------------------------------------------------------------------------------------------

    @contextmanager
    def within(self, name: str, call: Span) -> Iterator[None]:
        """While a word that was called at `call` is expanded: findings inside it show the call too."""
        self.used.add(name)
        self._expanded = self._expanded + 1 if self._open else 1
        if self._expanded > MOST_WORDS:
            note = f"words are replaced by their bodies, here more than {MOST_WORDS} times"
            self.fail("E213", "the expression grows too large", call, notes=(note,))
        self._open.append(name)
        self._calls.append(call)
        try:
            yield
        finally:
            self._open.pop()
            self._calls.pop()

    def fail(
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
        raise Stop

    def labels(self, place: Label, *others: Label) -> tuple[Label, ...]:
        """The labels of a finding inside the word being expanded: those in the user's own text come first."""
        own = [call for call in self._calls if call.source == self.source]
        if place.span.source == self.source or not own:
            used = tuple(Label(call, "used here") for call in own[-1:] if place.span.source == self.source)
            return (place, *others, *(label for label in used if label.span != place.span))
        text = place.text or "here"
        return (Label(own[-1], "in this use"), Label(place.span, text), *others)


def is_truth(expr: Expr) -> bool:
    """Whether a predicate is what the data themselves say."""
    return isinstance(expr, Token | Entry | AtRow) and type_of(expr) is Type.BOOL


def data_of(bindings: Bindings) -> dict[str, Data]:
    """The declared data among names, and q, k and v also where their names stand for values now."""
    return {each.name: each for each in (Q, K, V, *bindings.values()) if isinstance(each, Data)}


def _vectors(expr: Expr) -> Iterator[Vector | Entry]:
    """The vectors that make an expression one, each as often as it stands there."""
    if isinstance(expr, Vector | Entry):
        yield expr
        return
    for child in (expr.vector,) if isinstance(expr, MatMul) else children(expr):
        if varies_by_feature(child):
            yield from _vectors(child)


def describe_vector(expr: Expr) -> str:
    """What a vector is, as the subject of a sentence."""
    match expr:
        case Vector(name="q"):
            return "`q` is a vector of the query"
        case Vector(name="k" | "v" as name):
            return f"`{name}` is a vector of the key"
        case Vector(name=name) | Entry(name=name):
            return f"`{name}` is a vector"
        case Rotate() | Join() | MatMul() | Channel():
            return "this is a vector"
    read = sorted({node.name for node in _vectors(expr)})
    return f"this is a vector made of {' and '.join(f'`{name}`' for name in read)}" if read else "this is a vector"
