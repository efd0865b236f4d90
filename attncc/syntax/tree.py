"""The syntax tree of an `.attn` file: what was written, nothing resolved, every node with its span."""

from __future__ import annotations

from dataclasses import dataclass, field

from attncc.diagnostics import Source, Span


@dataclass(frozen=True, slots=True)
class Node:
    """Anything that was written; `span` takes no part in equality."""

    span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Identifier(Node):
    """A name where it was written."""

    text: str


@dataclass(frozen=True, slots=True)
class Number(Node):
    """A literal; whole when it has neither point nor exponent."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Reference(Node):
    """A bare name in an expression."""

    name: str


@dataclass(frozen=True, slots=True)
class Call(Node):
    """`name(arguments)`: a function or a word of the language."""

    name: Identifier
    arguments: tuple[Tree | NamedArgument, ...]


@dataclass(frozen=True, slots=True)
class Attend(Node):
    """`attend core(arguments)`: an attention called by a layer."""

    name: Identifier
    arguments: tuple[Tree | NamedArgument, ...]


@dataclass(frozen=True, slots=True)
class NamedArgument(Node):
    """`name = value` in a call."""

    name: Identifier
    value: Tree


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """`-x` or `!p`."""

    operator: str
    operand: Tree


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """Arithmetic: + - * / // % ^"""

    operator: str
    left: Tree
    right: Tree


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """`a < b <= c`: one more operand than operators."""

    operators: tuple[str, ...]
    operands: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Logical(Node):
    """`a & b & c` or `a | b | c`."""

    operator: str
    operands: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Conditional(Node):
    """`condition ? then : otherwise`"""

    condition: Tree
    then: Tree
    otherwise: Tree


@dataclass(frozen=True, slots=True)
class Group(Node):
    """A parenthesised expression; kept so that formatting can keep it."""

    inner: Tree


@dataclass(frozen=True, slots=True)
class Bracket(Node):
    """`[a, b, …]`: a list of constants, or with one predicate inside its value as a number."""

    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Index(Node):
    """`values[a, b]`: an entry of declared data, or with one index of a list of constants."""

    values: Tree
    indices: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class ByHead(Node):
    """`by_head [a, b, …]`: item h modulo their number."""

    items: Bracket


@dataclass(frozen=True, slots=True)
class Range(Node):
    """`first..last`, both ends included."""

    first: Tree
    last: Tree


Choices = Bracket | Range


@dataclass(frozen=True, slots=True)
class Membership(Node):
    """`x in [a, b]`, `x in a..b`, or `x in name`, a list that declared data give"""

    operand: Tree
    choices: Choices | Reference


@dataclass(frozen=True, slots=True)
class Quantified(Node):
    """`exists t in a..b : p`"""

    variable: Identifier
    choices: Choices
    body: Tree


@dataclass(frozen=True, slots=True)
class Lambda(Node):
    """`x -> body`, only as an argument."""

    parameter: Identifier
    body: Tree


Tree = (
    Number
    | Reference
    | Call
    | Attend
    | Unary
    | Binary
    | Comparison
    | Logical
    | Conditional
    | Group
    | Bracket
    | Index
    | ByHead
    | Membership
    | Quantified
    | Lambda
)


@dataclass(frozen=True, slots=True)
class Parameter(Node):
    """`name: type = default`; type and default may be absent."""

    name: Identifier
    type: Identifier | None
    default: Tree | None


@dataclass(frozen=True, slots=True)
class Field(Node):
    """`name = value` inside an attention or a similarity word."""

    name: Identifier
    value: Tree


@dataclass(frozen=True, slots=True)
class Require(Node):
    """`require p, …`: what must hold of the parameters."""

    conditions: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Datum(Node):
    """`name[axes]: type facts = initial`; all but the name may be absent."""

    name: Identifier
    axes: tuple[Tree, ...] | None
    type: Identifier | None
    facts: tuple[Identifier, ...]
    initial: Tree | None


@dataclass(frozen=True, slots=True)
class Declaration(Node):
    """`param a[…], b[…]` or `input a[…]`."""

    kind: str
    data: tuple[Datum, ...]


@dataclass(frozen=True, slots=True)
class LetStatement(Node):
    """`let name = value`, or `let name = value at position` where there are fewer of it than keys"""

    name: Identifier
    value: Tree
    at: Tree | None = None


@dataclass(frozen=True, slots=True)
class Branch(Node):
    """`branch name { … }`"""

    name: Identifier
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Attention(Node):
    """`attention name(parameters) { … }`"""

    name: Identifier
    parameters: tuple[Parameter, ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Layer(Node):
    """`layer name(parameters) { … }`; its values are fields as far as the grammar knows."""

    name: Identifier
    parameters: tuple[Parameter, ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Word(Node):
    """`pattern name(parameters) = body` or `function name(parameters) = body`."""

    kind: str
    name: Identifier
    parameters: tuple[Parameter, ...]
    body: Tree


@dataclass(frozen=True, slots=True)
class SimilarityWord(Node):
    """`similarity name(parameters) { weight = …; normalize = … }`"""

    name: Identifier
    parameters: tuple[Parameter, ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Use(Node):
    """`use "other.attn"`: the words of another file."""

    path: Identifier


Statement = Field | Require | Declaration | LetStatement | Branch | Word | SimilarityWord
Definition = Attention | Layer | Word | SimilarityWord | Use


@dataclass(frozen=True, slots=True)
class File:
    """A parsed source and its definitions, in order."""

    source: Source = field(repr=False)
    definitions: tuple[Definition, ...]

    @property
    def has_layer(self) -> bool:
        """Whether it defines a layer, which is what it is built to then."""
        return any(isinstance(each, Layer) for each in self.definitions)
