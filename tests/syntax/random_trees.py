"""Random syntax trees of every kind of node, and their tokens written one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

from attncc.diagnostics import Source
from attncc.syntax import tree

_HERE = Source("random.attn", "").end
_NAMES = ("a", "b", "i", "j", "q", "scale", "left_of", "a_rather_long_name")
_NUMBERS = (0, 1, 25, 512, 1_000_000, 0.5, 1.5, 1e-3, 2e20)
_MOST = 60  # nodes of one definition, about
T = TypeVar("T")


class _Grower:
    """Grows trees that need no more brackets than they have; when the budget is spent, only leaves grow."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.budget = 0

    def definitions(self) -> tuple[tree.Definition, ...]:
        return self.some(self.definition, 1, 4)

    def definition(self) -> tree.Definition:
        self.budget = self.random.randint(0, _MOST)
        match self.random.choice(("attention", "attention", "attention", "layer", "word", "similarity", "use")):
            case "attention":
                name, parameters = self.name(), self.some(self.parameter, 0, 3)
                return tree.Attention(name, parameters, self.some(self.statement, 0, 6), span=_HERE)
            case "layer":
                name, parameters = self.name(), self.some(self.parameter, 0, 3)
                return tree.Layer(name, parameters, self.some(self.statement, 0, 6), span=_HERE)
            case "word":
                return self.word()
            case "similarity":
                return self.similarity()
        path = self.random.choice(("other.attn", "../a folder/x.attn", "#1.attn", ""))
        return tree.Use(tree.Identifier(path, span=_HERE), span=_HERE)

    def statement(self) -> tree.Statement:
        kinds = ("field", "field", "require", "declaration", "let", "word", "similarity", "branch")
        match self.random.choice(kinds[: 5 if self.budget <= 0 else None]):
            case "field":
                name = self.random.choice((*_NAMES, "pattern", "similarity"))
                return tree.Field(tree.Identifier(name, span=_HERE), self.expression(), span=_HERE)
            case "require":
                return tree.Require(self.some(self.expression), span=_HERE)
            case "declaration":
                return tree.Declaration(self.random.choice(("param", "input")), self.some(self.datum), span=_HERE)
            case "let":
                return tree.LetStatement(self.name(), self.expression(), span=_HERE)
            case "word":
                return self.word()
            case "similarity":
                return self.similarity()
        return tree.Branch(self.name(), self.some(self.statement, 0, 2), span=_HERE)

    def word(self) -> tree.Word:
        kind = self.random.choice(("pattern", "function"))
        return tree.Word(kind, self.name(), self.some(self.parameter, 0, 3), self.expression(), span=_HERE)

    def similarity(self) -> tree.SimilarityWord:
        name, parameters = self.name(), self.some(self.parameter, 0, 2)
        return tree.SimilarityWord(name, parameters, self.some(self.statement, 0, 2), span=_HERE)

    def parameter(self) -> tree.Parameter:
        return tree.Parameter(self.name(), self.maybe(self.name), self.maybe(self.expression), span=_HERE)

    def datum(self) -> tree.Datum:
        axes = self.maybe(lambda: self.some(self.expression))
        type_ = self.maybe(self.name)
        facts = () if type_ is None else self.some(self.name, 0, 2)
        return tree.Datum(self.name(), axes, type_, facts, self.maybe(self.expression), span=_HERE)

    def expression(self) -> tree.Tree:
        match self.kind("conditional", "exists"):
            case "conditional":
                return tree.Conditional(self.disjunction(), self.expression(), self.expression(), span=_HERE)
            case "exists":
                return tree.Quantified(self.name(), self.choices(), self.expression(), span=_HERE)
        return self.disjunction()

    def disjunction(self) -> tree.Tree:
        return self.logical("|", lambda: self.logical("&", self.comparison))

    def logical(self, operator: str, grow: Callable[[], tree.Tree]) -> tree.Tree:
        if self.kind("chain"):
            return tree.Logical(operator, self.some(grow, 2, 4), span=_HERE)
        return grow()

    def comparison(self) -> tree.Tree:
        match self.kind("comparison", "membership", "not"):
            case "comparison":
                signs = self.some(lambda: self.random.choice(("<", "<=", "==", "!=", ">", ">=")), 1, 2)
                return tree.Comparison(signs, tuple(self.sum() for _ in range(len(signs) + 1)), span=_HERE)
            case "membership":
                named = tree.Reference(self.random.choice(_NAMES), span=_HERE)
                choices = named if self.random.random() < 0.3 else self.choices()
                return tree.Membership(self.sum(), choices, span=_HERE)
            case "not":
                return tree.Unary("!", self.comparison(), span=_HERE)
        return self.sum()

    def sum(self) -> tree.Tree:
        return self.chain(("+", "-"), lambda: self.chain(("*", "/", "//", "%", "@"), self.unary))

    def chain(self, signs: tuple[str, ...], grow: Callable[[], tree.Tree]) -> tree.Tree:
        found = grow()
        for _ in range(self.random.randint(1, 3) if self.kind("chain") else 0):
            found = tree.Binary(self.random.choice(signs), found, grow(), span=_HERE)
        return found

    def unary(self) -> tree.Tree:
        match self.kind("negate", "power"):
            case "negate":
                return tree.Unary("-", self.unary(), span=_HERE)
            case "power":
                return tree.Binary("^", self.postfix(), self.unary(), span=_HERE)
        return self.postfix()

    def postfix(self) -> tree.Tree:
        if self.kind("index"):
            return tree.Index(self.atom(), self.some(self.expression, 1, 2), span=_HERE)
        return self.atom()

    def atom(self) -> tree.Tree:
        match self.kind("call", "attend", "group", "list", "by_head"):
            case "attend":
                return tree.Attend(self.name(), self.some(self.argument, 0, 3), span=_HERE)
            case "call":
                return tree.Call(self.name(), self.some(self.argument, 0, 3), span=_HERE)
            case "group":
                return tree.Group(self.expression(), span=_HERE)
            case "list":
                return self.list()
            case "by_head":
                return tree.ByHead(self.list(), span=_HERE)
        return self.random.choice((self.number, lambda: tree.Reference(self.random.choice(_NAMES), span=_HERE)))()

    def argument(self) -> tree.Tree | tree.Lambda | tree.NamedArgument:
        match self.kind("lambda", "named"):
            case "lambda":
                return tree.Lambda(self.name(), self.expression(), span=_HERE)
            case "named":
                value = self.argument()
                return value if isinstance(value, tree.NamedArgument) else self.named(value)
        return self.expression()

    def named(self, value: tree.Tree) -> tree.NamedArgument:
        return tree.NamedArgument(self.name(), value, span=_HERE)

    def choices(self) -> tree.Choices:
        if self.random.random() < 0.5:
            return tree.Range(self.sum(), self.sum(), span=_HERE)
        return self.list()

    def list(self) -> tree.Bracket:
        if self.random.random() < 0.1:
            return tree.Bracket(self.some(self.number, 1, 60), span=_HERE)
        return tree.Bracket(self.some(self.expression), span=_HERE)

    def number(self) -> tree.Number:
        return tree.Number(self.random.choice(_NUMBERS), span=_HERE)

    def name(self) -> tree.Identifier:
        return tree.Identifier(self.random.choice(_NAMES), span=_HERE)

    def kind(self, *kinds: str) -> str:
        """One of the kinds, or more often none; growing costs."""
        if self.budget <= 0 or self.random.random() < 0.6:
            return ""
        self.budget -= 3
        return self.random.choice(kinds)

    def some(self, grow: Callable[[], T], least: int = 1, most: int = 3) -> tuple[T, ...]:
        return tuple(grow() for _ in range(self.random.randint(least, most)))

    def maybe(self, grow: Callable[[], T]) -> T | None:
        return grow() if self.random.random() < 0.5 else None


definitions = st.integers(0, 2**32).map(lambda seed: _Grower(seed).definitions())


def tokens(node: object) -> Iterator[str]:
    """The tokens of a node; `;` ends each statement."""
    match node:
        case tree.Identifier(text=text):
            yield text
        case tree.Number(value=value):
            yield repr(value)
        case tree.Reference(name=name):
            yield name
        case tree.Call(name=name, arguments=arguments):
            yield from (name.text, "(", *_separated(arguments), ")")
        case tree.Attend(name=name, arguments=arguments):
            yield from ("attend", name.text, "(", *_separated(arguments), ")")
        case tree.NamedArgument(name=name, value=value):
            yield from (name.text, "=", *tokens(value))
        case tree.Lambda(parameter=parameter, body=body):
            yield from (parameter.text, "->", *tokens(body))
        case tree.Unary(operator=operator, operand=operand):
            yield from (operator, *tokens(operand))
        case tree.Binary(operator=operator, left=left, right=right):
            yield from (*tokens(left), operator, *tokens(right))
        case tree.Comparison(operators=operators, operands=operands):
            yield from tokens(operands[0])
            for operator, operand in zip(operators, operands[1:], strict=True):
                yield from (operator, *tokens(operand))
        case tree.Logical(operator=operator, operands=operands):
            yield from _separated(operands, operator)
        case tree.Conditional(condition=condition, then=then, otherwise=otherwise):
            yield from (*tokens(condition), "?", *tokens(then), ":", *tokens(otherwise))
        case tree.Group(inner=inner):
            yield from ("(", *tokens(inner), ")")
        case tree.Bracket(items=items):
            yield from ("[", *_separated(items), "]")
        case tree.Index(values=values, indices=indices):
            yield from (*tokens(values), "[", *_separated(indices), "]")
        case tree.ByHead(items=items):
            yield from ("by_head", *tokens(items))
        case tree.Range(first=first, last=last):
            yield from (*tokens(first), "..", *tokens(last))
        case tree.Membership(operand=operand, choices=choices):
            yield from (*tokens(operand), "in", *tokens(choices))
        case tree.Quantified(variable=variable, choices=choices, body=body):
            yield from ("exists", variable.text, "in", *tokens(choices), ":", *tokens(body))
        case _:
            yield from _statement(node)


def _statement(node: object) -> Iterator[str]:
    match node:
        case tree.Parameter(name=name, type=type_, default=default):
            yield name.text
            yield from () if type_ is None else (":", type_.text)
            yield from () if default is None else ("=", *tokens(default))
        case tree.Datum(name=name, axes=axes, type=type_, facts=facts, initial=initial):
            yield name.text
            yield from () if axes is None else ("[", *_separated(axes), "]")
            yield from () if type_ is None else (":", type_.text, *(each.text for each in facts))
            yield from () if initial is None else ("=", *tokens(initial))
        case tree.Field(name=name, value=value):
            yield from (name.text, "=", *tokens(value))
        case tree.Require(conditions=conditions):
            yield from ("require", *_separated(conditions))
        case tree.Declaration(kind=kind, data=data):
            yield from (kind, *_separated(data))
        case tree.LetStatement(name=name, value=value):
            yield from ("let", name.text, "=", *tokens(value))
        case tree.Branch(name=name, statements=statements):
            yield from ("branch", name.text, *_body(statements))
        case tree.Word(kind=kind, name=name, parameters=parameters, body=body):
            yield from (kind, name.text, *_parameter_list(parameters, kind == "function"), "=", *tokens(body))
        case tree.SimilarityWord(name=name, parameters=parameters, statements=statements):
            yield from ("similarity", name.text, *_parameter_list(parameters), *_body(statements))
        case tree.Attention(name=name, parameters=parameters, statements=statements):
            yield from ("attention", name.text, *_parameter_list(parameters), *_body(statements))
        case tree.Layer(name=name, parameters=parameters, statements=statements):
            yield from ("layer", name.text, *_parameter_list(parameters), *_body(statements))
        case tree.Use(path=path):
            yield from ("use", f'"{path.text}"')
        case _:
            raise TypeError(node)


def _separated(nodes: tuple[object, ...], separator: str = ",") -> Iterator[str]:
    for at, node in enumerate(nodes):
        yield from (separator,) if at else ()
        yield from tokens(node)


def _parameter_list(parameters: tuple[tree.Parameter, ...], always: bool = False) -> Iterator[str]:
    yield from ("(", *_separated(parameters), ")") if parameters or always else ()


def _body(statements: tuple[tree.Statement, ...]) -> Iterator[str]:
    yield "{"
    for each in statements:
        yield from (*tokens(each), ";")
    yield "}"
