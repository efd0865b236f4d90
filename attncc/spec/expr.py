"""The typed expressions of a checked spec: numbers and predicates of one query-key pair.

Names are resolved, parameters are bound, prelude words are expanded: what remains are the positions i and j, the
head h, the lengths, dot products of operands, constants and the functions of `functions.FUNCTIONS`. Every later
stage, and the dense oracle, reads these nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from functools import lru_cache

from attncc.diagnostics import Span


class Type(Enum):
    """What an expression is."""

    INT = auto()  # a whole number: positions and everything affine in them
    REAL = auto()  # a real number
    BOOL = auto()  # a predicate
    VECTOR = auto()  # a number for every feature of a token or a head


class Name(Enum):
    """The symbols that an expression may read; the value is how a spec writes them."""

    I = "i"  # absolute position of the query  # noqa: E741
    J = "j"  # absolute position of the key
    HEAD = "h"  # query head
    HEADS = "H"  # number of query heads
    QUERIES = "n"  # number of query rows in the call
    KEYS = "m"  # number of key rows in the call, hidden ones included
    WIDTH = "d"  # width of q and k
    VALUE_WIDTH = "e"  # width of v
    VALID = "valid"  # number of keys that kv_lengths leaves visible (m without it)
    COUNT = "count"  # number of keys related to this query
    SCALE = "scale"  # the caller's scale, 1/sqrt(d) by default
    SCORE = "score"  # the value of the score field for this pair
    CHANNELS = "channels"  # the sums of the row's weights, each feature's by itself (normalize alone)
    ROWS = "rows"  # the sum of the row's weights (normalize only)
    FIRST = "first"  # absolute position of a tile's first row or column (bounds only, made by planning)
    LAST = "last"  # absolute position of a tile's last row or column (bounds only, made by planning)
    RESIDUE = "residue"  # which class of positions a tile is of (bounds only, made by planning)

    __hash__ = object.__hash__  # that of Enum is written in Python, and names are looked up all the time


MADE_BY_PLANNING = frozenset({Name.FIRST, Name.LAST, Name.RESIDUE})  # a spec cannot read these


INTEGER_NAMES = frozenset(
    {
        Name.I,
        Name.J,
        Name.HEAD,
        Name.HEADS,
        Name.QUERIES,
        Name.KEYS,
        Name.WIDTH,
        Name.VALUE_WIDTH,
        Name.VALID,
        Name.COUNT,
        Name.FIRST,
        Name.LAST,
        Name.RESIDUE,
    }
)


class BinaryOp(Enum):
    """Arithmetic; the value is how a spec writes it. // and % are the floor forms."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    FLOOR_DIVIDE = "//"
    MODULO = "%"
    POWER = "^"


class CompareOp(Enum):
    """Comparisons of two numbers."""

    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    EQUAL = "=="
    NOT_EQUAL = "!="


@dataclass(frozen=True, slots=True)
class Expr:
    """A node; `span` is where it was written and takes no part in equality."""

    span: Span | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A number or a truth value; `type_of` tells which by the Python type."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Symbol(Expr):
    """A position, a length, or one of the row quantities."""

    name: Name


@dataclass(frozen=True, slots=True)
class Vector(Expr):
    """The vector of a token: a row operand's at the query, a column operand's at the key."""

    name: str


@dataclass(frozen=True, slots=True)
class Token(Expr):
    """What declared data hold for a token: at the query where they have an axis n, at the key for m.

    A number, a whole one or not, or a truth value, which is a predicate.
    """

    name: str
    whole: bool = False
    truth: bool = False


@dataclass(frozen=True, slots=True)
class Entry(Expr):
    """An entry of declared data; a vector where one axis, that of the features, is left without an index.

    A table with an axis B has no index for it: the entry is that of the pair's own batch entry.
    """

    name: str
    indices: tuple[Expr, ...]
    is_vector: bool = False
    whole: bool = False
    truth: bool = False


@dataclass(frozen=True, slots=True)
class Channel(Expr):
    """The index of a feature within its vector, 0, 1, …"""


@dataclass(frozen=True, slots=True)
class UpTo(Expr):
    """How many numbers of a list that ascends are at most a number."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Width(Expr):
    """How many features a vector has."""

    vector: Expr


@dataclass(frozen=True, slots=True)
class Dot(Expr):
    """The sum over the features of the product of two vectors."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """The `sum` or the `largest` of the features of a vector, or the place of the largest, `argmax`: the first one."""

    function: str
    vector: Expr


@dataclass(frozen=True, slots=True)
class Rotate(Expr):
    """Features turned by 90 degrees, (x, y) → (-y, x): `half` pairs t with t + width/2, `pairs` 2t with 2t+1."""

    layout: str
    vector: Expr


@dataclass(frozen=True, slots=True)
class Join(Expr):
    """The features of one vector, then those of another."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class MatMul(Expr):
    """A vector times a matrix of declared data, of which the last two axes are left without an index."""

    vector: Expr
    matrix: Entry


@dataclass(frozen=True, slots=True)
class OverKeys(Expr):
    """A value of each key that is made of those of others: `function` is one of `functions.KEY_FUNCTIONS`."""

    function: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Pooled(Expr):
    """The mean over a block of keys: block t holds the keys t * stride … t * stride + width - 1 that there are.

    There is one for each `stride` keys. Block j stands at the position `at`; None where the spec does not say.
    """

    value: Expr
    width: int
    stride: int
    at: Expr | None = None


@dataclass(frozen=True, slots=True)
class AtRow(Expr):
    """A value of a key, that of the key which stands where the query does."""

    value: Expr


@dataclass(frozen=True, slots=True)
class Let(Expr):
    """A value that the spec gave a name; it means what the value means."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Output(Expr):
    """The vector that a branch gives for a query (combine only)."""

    branch: str


@dataclass(frozen=True, slots=True)
class Merge(Expr):
    """Branches as one attention over all their pairs, each pair counted once a branch: weights and rows add up."""

    branches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Channels(Expr):
    """The sum over features of a formula of the vectors of a pair that is no product of the two (made by lowering)."""

    body: Expr


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """Arithmetic on two numbers."""

    op: BinaryOp
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Negate(Expr):
    """-x"""

    operand: Expr


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A scalar function of `functions.FUNCTIONS`."""

    function: str
    arguments: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Compare(Expr):
    """A comparison; chains have been split into conjunctions."""

    op: CompareOp
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Member(Expr):
    """Whether a whole number is one of those that a query's list has; lists have -1 where they have none."""

    element: Expr
    of: Expr


@dataclass(frozen=True, slots=True)
class Shares(Expr):
    """What a key gets of a query in another attention, its weight over the row's normaliser (in `top` alone).

    It holds that attention's own fields. Where its keys are blocks of keys (`width` at least 1), so many keys make one,
    one for each `stride` keys, which stands `at` a position; what a block gets is spread evenly over its keys.
    """

    branch: str
    pattern: Expr
    score: Expr
    weight: Expr
    normalizer: Expr
    value: Expr
    width: int = 0
    stride: int = 1
    at: Expr | None = None


@dataclass(frozen=True, slots=True)
class Top(Expr):
    """Whether a key is one of the few with the largest number `by` among those that a predicate relates to the query.

    Of equal numbers the first keys count. It always has a name, that of a Let: it is a choice.

    Attributes:
        block: so many keys are chosen together, and their number is the sum of theirs; `among` is asked of the first.
        grouped: whether heads that share a key head choose together, by the sum of their numbers.
    """

    count: int
    by: Expr
    among: Expr
    block: int = 1
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class And(Expr):
    """Every operand holds; no operand means true."""

    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Or(Expr):
    """Some operand holds; no operand means false."""

    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Not(Expr):
    """The operand does not hold."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """`condition ? then : otherwise`, of numbers or of predicates."""

    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class Indicator(Expr):
    """`[p]`: 1 where the predicate holds, else 0 (an integer)."""

    predicate: Expr


@dataclass(frozen=True, slots=True)
class Table(Expr):
    """`[c0, c1, …][index]`: a constant chosen by an integer expression of h."""

    values: tuple[int | float, ...]
    index: Expr


@dataclass(frozen=True, slots=True)
class RowSum(Expr):
    """`rows(w)`: the sum of another weight over the same related keys (normalize only)."""

    weight: Expr


@dataclass(frozen=True, slots=True)
class Local(Expr):
    """A quantity that a later stage has named: a node of the graph."""

    name: str


TRUE = Const(True)
FALSE = Const(False)


_PARTS: dict[type[Expr], tuple[str, ...]] = {}


def _parts(kind: type[Expr]) -> tuple[str, ...]:
    """The fields of a class of nodes, without the span."""
    if kind not in _PARTS:
        _PARTS[kind] = tuple(each.name for each in fields(kind) if each.name != "span")
    return _PARTS[kind]


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside `expr`, in source order."""
    found: list[Expr] = []
    for name in _parts(expr.__class__):
        value = getattr(expr, name)
        if isinstance(value, Expr):
            found.append(value)
        elif isinstance(value, tuple):
            found += [item for item in value if isinstance(item, Expr)]
    return tuple(found)


def walk(expr: Expr) -> Iterator[Expr]:
    """`expr` and everything inside it, outermost first."""
    pending = [expr]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(children(node))


def rebuild(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """`expr` with `change` applied to each direct child."""
    updates: dict[str, object] = {}
    for name in _parts(expr.__class__):
        value = getattr(expr, name)
        if isinstance(value, Expr):
            updates[name] = change(value)
        elif isinstance(value, tuple) and any(isinstance(item, Expr) for item in value):
            updates[name] = tuple(change(item) if isinstance(item, Expr) else item for item in value)
    return replace(expr, **updates) if updates else expr  # type: ignore[arg-type]


def substitute(expr: Expr, mapping: dict[Expr, Expr]) -> Expr:
    """`expr` with every node that equals a key of `mapping` replaced by its value (values are not revisited)."""
    if expr in mapping:
        return mapping[expr]
    return rebuild(expr, lambda child: substitute(child, mapping))


@lru_cache(4096)  # printers ask for the same formulas over and over
def names_in(expr: Expr) -> frozenset[Name]:
    """The symbols that `expr` reads; what is read of a key at the query's position depends on the query."""
    found: set[Name] = set()
    pending = [expr]
    while pending:
        match pending.pop():
            case Symbol(name=name):
                found.add(name)
            case AtRow(value=value):
                found |= names_in(value) - {Name.J} | {Name.I}
            case Pooled(value=value):
                found |= names_in(value) - {Name.J}
            case Shares() as shares:
                inner = frozenset(name for each in children(shares) for name in names_in(each))
                found |= inner - {Name.SCORE, Name.ROWS, Name.COUNT} | {Name.I, Name.J}
            case node:
                pending += children(node)
    return frozenset(found)


def dots_in(expr: Expr) -> tuple[Dot, ...]:
    """The distinct dot products in `expr`, in order of appearance."""
    return tuple(dict.fromkeys(node for node in walk(expr) if isinstance(node, Dot)))


def varies_by_feature(expr: Expr) -> bool:
    """Whether a value or predicate is one for every feature: it reads a vector, or the index of a feature, as such."""
    match expr:
        case Vector() | Channel() | Rotate() | Join() | MatMul() | Entry(is_vector=True) | Output() | Merge():
            return True
        case Dot() | Reduce() | Width() | Entry() | RowSum() | Channels() | UpTo() | Member() | Top() | Shares():
            return False
        case _:
            return any(varies_by_feature(child) for child in children(expr))


def type_of(expr: Expr) -> Type:
    """The type of a well-typed expression."""
    match expr:
        case (
            Const(value=bool())
            | Compare()
            | Member()
            | Top()
            | And()
            | Or()
            | Not()
            | Token(truth=True)
            | Entry(truth=True, is_vector=False)
        ):
            return Type.BOOL
        case Binary() | Negate() | Call() | Select() | Indicator() if varies_by_feature(expr):
            return Type.VECTOR
        case Const(value=int()) | Indicator() | Width() | UpTo():
            return Type.INT
        case Vector() | Channel() | Rotate() | Join() | MatMul() | Entry(is_vector=True) | Output() | Merge():
            return Type.VECTOR
        case Token(whole=True) | Entry(whole=True) | Reduce(function="argmax") | OverKeys(function="rank"):
            return Type.INT
        case Let(value=value) | AtRow(value=value):
            return type_of(value)
        case OverKeys(value=value) | Pooled(value=value):
            return Type.VECTOR if varies_by_feature(value) else Type.REAL
        case Symbol(name=name):
            return Type.INT if name in INTEGER_NAMES else Type.REAL
        case Binary(op=BinaryOp.DIVIDE):
            return Type.REAL
        case Binary(op=BinaryOp.POWER, left=left, right=right):
            whole = (
                type_of(left) is Type.INT
                and isinstance(right, Const)
                and isinstance(right.value, int)
                and right.value >= 0
            )
            return Type.INT if whole else Type.REAL
        case Binary(left=left, right=right) | Select(then=left, otherwise=right):
            kinds = {type_of(left), type_of(right)}
            return kinds.pop() if len(kinds) == 1 else Type.REAL
        case Negate(operand=operand):
            return type_of(operand)
        case Table(values=values):
            return Type.INT if all(isinstance(value, int) for value in values) else Type.REAL
        case Call(function="floor"):
            return Type.INT
        case Call(function="abs" | "min" | "max" | "clip", arguments=arguments):
            return Type.INT if all(type_of(each) is Type.INT for each in arguments) else Type.REAL
        case _:
            return Type.REAL
