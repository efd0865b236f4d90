"""Expressions of one token, or of a distance → torch text; what is computed once gets a line and a name of its own."""

from __future__ import annotations

from dataclasses import replace

from attncc.emit.dialects import HOST, TORCH
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.operands import Operands
from attncc.emit.prologue.sizes import Sizes
from attncc.emit.prologue.within import proven
from attncc.emit.writer import Writer
from attncc.graph.core import TAKEN_NAMES, Kind
from attncc.graph.widths import width_of
from attncc.plan.model import Plan
from attncc.spec.choices import choices_of
from attncc.spec.data import Axis, Data, Size
from attncc.spec.expr import (
    AtRow,
    Binary,
    BinaryOp,
    Call,
    Channel,
    Dot,
    Entry,
    Expr,
    Join,
    Let,
    Local,
    MatMul,
    Merge,
    Name,
    Negate,
    Output,
    OverKeys,
    Pooled,
    Reduce,
    Rotate,
    Symbol,
    Token,
    Type,
    UpTo,
    Vector,
    Width,
    children,
    names_in,
    type_of,
    walk,
)
from attncc.spec.functions import KEY_FUNCTIONS
from attncc.spec.sides import Side, side_of
from attncc.spec.text import text as spec_text

_ATOM = 8  # how tight a call or an index binds
_SYMBOLS = {
    Name.I: "i",
    Name.J: "j",
    Name.HEAD: "head",
    Name.HEADS: "heads",
    Name.QUERIES: "n",
    Name.KEYS: "m",
    Name.WIDTH: "d",
    Name.VALUE_WIDTH: "e",
    Name.VALID: "valid",
    Name.SCALE: "scale",
}
_LOCALS = frozenset("batch kv_heads wide device head distance hidden valid scale q_start q_starts k_start".split())
_TENSORS = (
    Vector,
    Token,
    Entry,
    Channel,
    Rotate,
    Join,
    MatMul,
    Dot,
    Reduce,
    Local,
    Output,
    Merge,
    OverKeys,
    AtRow,
    Pooled,
    UpTo,
)
_METHODS = {"sum": "sum", "largest": "amax", "argmax": "argmax"}
_TENSOR_NAMES = frozenset({Name.I, Name.J, Name.HEAD, Name.VALID})


class TokenWriter(ExpressionWriter):
    """Writes values of tokens; `body` takes the lines of what has a name.

    Where it `carries`, running sums go on from those that a decoder hands over; `carried` counts them.
    """

    def __init__(self, body: Writer, plan: Plan, operands: Operands, *, carries: bool = False) -> None:
        rows = next(each.name for each in plan.spec.data if each.is_row and each.is_full)
        dialect = replace(TORCH, select=f"_where({{0}}, {{1}}, {{2}}, {rows})", real="({0}).to(wide)")
        host = ExpressionWriter(HOST, lambda name: _SYMBOLS[name], lambda name: name)
        super().__init__(dialect, self._symbol, lambda name: name, host=host)
        self.body = body
        self.plan = plan
        self.data = operands.data
        self.spread_heads = operands.core.spread_heads
        self.spreads = self.spread_heads  # whether keys are repeated for every query head
        self.kv_heads = Sizes(plan.spec).kv_heads  # as the caller has them, also where keys are spread over query heads
        self.choices = {each.name: each for each in choices_of(plan.spec)}
        self.carries = carries
        self.carried = 0
        self._of_distance = False
        self._in_block = plan.spec.blocks is None  # whether `j` is the position of a key, not the number of a block
        self._widths: list[str | None] = []  # of the vectors that are being written, outermost first
        self._named: dict[object, str] = {}
        self._taken = set(TAKEN_NAMES | _LOCALS | self.data.keys() | set(operands.names))

    def root(self, expr: Expr, kind: Kind, like: Expr | None = None) -> str:
        """The text of an operand's value; `like` is as wide where the value itself does not tell its width."""
        self._of_distance = kind is Kind.OFFSET_NUMBER
        self.spreads = self.spread_heads or (kind.is_fact and Name.HEAD in names_in(expr))
        self._widths = [width_of(like)] if like is not None else []
        written = self._vector(expr) if kind.is_vector else self.write(expr)
        self._of_distance, self.spreads = False, self.spread_heads
        return written

    # --- names ------------------------------------------------------------------------------------------------

    def _bind(self, key: object, wanted: str, text: str) -> str:
        name, at = wanted, 1
        while name in self._taken:
            at += 1
            name = f"{wanted}_{at}"
        self._taken.add(name)
        self._named[key] = name
        self.body.line(f"{name} = {text}")
        return name

    def _widened(self, name: str) -> str:
        """Something in the type of sums, once: the gradients of what is taken twice would be rounded twice."""
        key = ("wide", name)
        return self._named.get(key) or self._bind(key, f"{name}_wide", f"{name}.to(wide)")

    def _key(self, expr: Expr) -> object:
        """What a value's name goes by: positions mean others for distances, and features others for other widths."""
        width = self._widths[-1] if self._widths and any(isinstance(each, Channel) for each in walk(expr)) else None
        by_distance = self._of_distance and bool(names_in(expr) & {Name.I, Name.J})
        return by_distance, self._in_block and Name.J in names_in(expr), self.spreads, width, expr

    def _symbol(self, name: Name) -> str:
        if self._of_distance and name in (Name.I, Name.J):
            return "distance" if name is Name.I else "0"
        return "block" if name is Name.J and not self._in_block else _SYMBOLS[name]

    # --- expressions ------------------------------------------------------------------------------------------

    def is_plain(self, expr: Expr) -> bool:
        """Whether a number is none of tensors; widths are numbers whatever the vectors."""
        return super().is_plain(expr) and not any(isinstance(each, _TENSORS) for each in _outside_widths(expr))

    def is_whole(self, expr: Expr) -> bool:
        """Whether an expression is a tensor of whole numbers."""
        return _is_integer(expr) and any(
            isinstance(each, _TENSORS) or (isinstance(each, Symbol) and each.name in _TENSOR_NAMES)
            for each in _outside_widths(expr)
        )

    def _written(self, expr: Expr) -> tuple[int, str]:
        match expr:
            case Let(name=name, value=value):
                return _ATOM, self._let(name, value)
            case Vector(name=name) | Token(name=name):
                return _ATOM, self.given(self.data[name])
            case Entry():
                return _ATOM, self._entry(expr, 1 if expr.is_vector else 0)
            case Channel():
                return _ATOM, self._channel()
            case Output(branch=branch):
                return _ATOM, self._widened(branch)
            case Merge(branches=branches):
                self.used.add("_merged")
                listed = ", ".join(f"({name}, {name}_lse)" for name in branches)
                return _ATOM, f"_merged({listed})[0]"
            case Dot(left=left, right=right):
                self._widths.append(width_of(left) or width_of(right))
                product = f"({self._vector(left, 5)} * {self._vector(right, 6)})"
                self._widths.pop()
                return _ATOM, f"{product}.sum(-1, keepdim=True)"
            case Reduce(function=function, vector=vector):
                return _ATOM, f"({self._vector(vector)}).{_METHODS[function]}(-1, keepdim=True)"
            case OverKeys(function=function, value=value):
                return _ATOM, self._over_keys(function, value)
            case UpTo(name=name, value=value):
                self.used.add("_up_to")
                return _ATOM, f"_up_to({name}, {self.write(value)})"
            case Pooled(value=value, width=width, stride=stride):
                return _ATOM, self._pooled(value, width, stride)
            case AtRow(value=value):
                return _ATOM, self._at_row(value)
            case Rotate(layout=layout, vector=vector):
                self.used.add(f"_rotated_{layout}")
                return _ATOM, f"_rotated_{layout}({self._vector(vector)})"
            case Join(left=left, right=right):
                self.used.add("_joined")
                return _ATOM, f"_joined({self._vector(left)}, {self._vector(right)})"
            case MatMul(vector=vector, matrix=matrix):
                return self._product(vector, matrix)
            case Binary(op=BinaryOp.FLOOR_DIVIDE, left=left, right=right) if not _is_integer(expr):
                sides = [self._step(each) for each in (left, right)]
                return 5, " // ".join(sides)
            case Width(vector=vector):
                return _ATOM, f"{width_of(vector)}.shape[-1]"
            case _:
                return super()._written(expr)

    def _step(self, expr: Expr) -> str:
        """A side of a quotient that is rounded down, which has no derivative: torch would refuse to take one."""
        is_tensor = any(isinstance(each, _TENSORS) for each in _outside_widths(expr))
        return f"({self.write(expr)}).detach()" if is_tensor else self.write(expr, 6)

    def _vector(self, expr: Expr, context: int = 0) -> str:
        """The text of a vector, of whose features `Channel` counts the places."""
        self._widths.append(width_of(expr) or (self._widths[-1] if self._widths else None))
        written = self.write(expr, context)
        self._widths.pop()
        return written

    def _over_keys(self, function: str, value: Expr) -> str:
        """A function of all keys or of those before each; hidden ones take no part."""
        self.used.add(f"_{function}")
        whole = self.is_whole(value)
        written = self._vector(value) if type_of(value) is Type.VECTOR else self.write(value)
        written = f"({written}).to(wide)" if whole and not KEY_FUNCTIONS[function].of_whole else written
        if self.carries and function == "cumsum":
            self.used.add("_cumsum_on")
            self.carried += 1
            return f"_cumsum_on({written}, hidden, carried, {self.carried - 1})"
        return f"_{function}({written}, hidden)"

    def _pooled(self, value: Expr, width: int, stride: int) -> str:
        """Means of blocks of keys; hidden ones take no part."""
        self.used.add("_pooled")
        outer, self._in_block = self._in_block, True
        written = self._vector(value) if type_of(value) is Type.VECTOR else self.write(value)
        written = f"({written}).to(wide)" if self.is_whole(value) else written
        self._in_block = outer
        return f"_pooled({written}, {width}, {stride}, m, hidden)"

    def _at_row(self, value: Expr) -> str:
        """What the key at the query's position has, after a line that refuses queries without one."""
        key = ("at row", self.spreads, value)
        if key not in self._named:
            written = self._vector(value) if type_of(value) is Type.VECTOR else self.write(value)
            said = spec_text(value)
            name = said if said.isidentifier() else "keys"
            if "first key" not in self._named:
                self.used.add("_within")
                self._bind("first key", "own_key", "i - k_start")
                self.body.line(f'_within({self._named["first key"]}, m, "the keys", "i - k_start", 2)')
            self.used.add("_at_rows")
            at = "q_start - k_start, q_starts, n, heads"
            self._bind(key, f"{name}_at_row", f"_at_rows({written}, {at})")
        return self._named[key]

    def _let(self, name: str, value: Expr) -> str:
        key = self._key(value)
        if key not in self._named:
            written = self._vector(value) if type_of(value) is Type.VECTOR else self.write(value)
            choice = self.choices.get(name)
            if choice is not None and choice.let.value == value:
                self.used.add("_chosen")
                heads, length = "heads" if choice.by_query_head else "kv_heads", "n" if choice.of_rows else "m"
                written = f'_chosen(choices, "{name}", lambda: {written}, batch, {heads}, {length})'
                if self.spreads and not choice.by_query_head:
                    self.used.add("_of_heads")
                    written = f"_of_heads({written.replace('kv_heads', self.kv_heads)}, heads)"
            return self._bind(key, name, written)
        return self._named[key]

    def choice(self, let: Let) -> str:
        """A choice as callers have it, [batch, heads, tokens]."""
        spread = self.spreads and not self.choices[let.name].by_query_head
        return f"{self.write(let)}[{f':, :: heads // {self.kv_heads}, :' if spread else '...'}, 0]"

    def _channel(self) -> str:
        width = self._widths[-1] if self._widths else None
        if width is None:
            raise TypeError("places of features are counted where no vector has features")
        key = ("channel", width)
        if key not in self._named:
            self._bind(key, "feature", f"torch.arange({width}.shape[-1], device=device)")
        return self._named[key]

    def _product(self, vector: Expr, matrix: Entry) -> tuple[int, str]:
        left = self._vector(vector, 5)
        right = self._entry(matrix, 2)
        if all(side_of(index, self.data) is Side.NONE for index in matrix.indices):
            return 5, f"{left} @ {right}"
        return _ATOM, f"({left}[..., None, :] @ {right})[..., 0, :]"

    # --- data -------------------------------------------------------------------------------------------------

    def given(self, data: Data) -> str:
        """The tokens' own vectors or numbers, in the type of sums; of keys that are hidden, 0."""
        key = (data, self.spreads)
        if key not in self._named:
            aligned = self.aligned(data)
            if data.is_column:
                self.used.add("_seen")
                aligned = f"_seen({aligned}, hidden)"
            self._bind(key, f"{data.name}_{'whole' if data.whole else 'wide'}", aligned)
        return self._named[key]

    def aligned(self, data: Data, *, in_dtype: bool = False, as_given: bool = False) -> str:
        """Data of tokens as [batch, heads, tokens, width or 1]."""
        places = [Size.BATCH, Size.HEADS, Size.KEYS if data.is_column else Size.QUERIES]
        index = [":" if place in data.axes else "None" for place in places]
        index += [":"] if data.is_vector else ["None"]
        written = data.name
        if not as_given and not data.truth and not (in_dtype and data.is_vector and not data.whole):
            written += ".long()" if data.whole else ".to(wide)"
        if index != [":"] * 4:
            written += f"[{', '.join(index[:-1] if index[-1] == ':' else index)}]"
        if self.spreads and data.is_column and Size.HEADS in data.axes:
            self.used.add("_of_heads")
            written = f"_of_heads({written}, heads)"
        return written

    def _entry(self, entry: Entry, features: int) -> str:
        """An entry of a table: a number, a vector or, where it is multiplied with one, a matrix."""
        data = self.data[entry.name]
        if data.is_token:
            raise TypeError(f"{entry.name} holds something for each token and is no table")
        written = entry.name if data.truth else f"{entry.name}.long()" if data.whole else self._widened(entry.name)
        free = data.axes[: len(data.axes) - features]
        own = [axis for axis, index in zip(free[::-1], entry.indices[::-1], strict=False) if index == Symbol(Name.HEAD)]
        if len(own) == len(entry.indices) and set(free) <= {Size.BATCH, Size.HEADS}:
            return written + _view(free, features)
        key = ("entry", features, self._key(entry))
        if key not in self._named:
            batch = len(free) > len(entry.indices)
            at = [f"torch.arange({entry.name}.shape[0], device=device)[:, None, None, None]"] if batch else []
            for place, index in enumerate(entry.indices, start=int(batch)):
                at.append(self.checked(entry.name, index, free[place], place, of_distance=self._of_distance))
            self.used.add("_looked_up")
            looked = f"_looked_up({written}, {', '.join(at)})"
            if features == 2 and all(side_of(index, self.data) is Side.NONE for index in entry.indices):
                looked += ".squeeze(-3)"
            self._bind(key, f"{entry.name}_entry", looked)
        return self._named[key]

    def checked(self, name: str, index: Expr, axis: Axis, place: int, *, of_distance: bool) -> str:
        """The text of an index, after a line that refuses it where it lies outside its axis."""
        outer, self._of_distance = self._of_distance, of_distance
        written = self.write(index)
        if not (proven(index, axis) or (index == Symbol(Name.HEAD) and axis is Size.HEADS)):
            key = ("index", name, place, self._key(index))
            if key not in self._named:
                written = self._bind(key, f"{name}_at", written)
                self.used.add("_within")
                met = f", {self._met()}" if of_distance and names_in(index) & {Name.I, Name.J} else ""
                about = f'"{name}", {spec_text(index)!r}, {place}'
                looked_at = written
                of_keys = side_of(index, self.data) is Side.COLUMN
                if of_keys and any(isinstance(each, Token) for each in walk(index)):
                    self.used.add("_seen")  # a hidden key's number is read as 0, which `s - 1` would take outside
                    looked_at = f"_seen({written}, hidden)"
                self.body.line(f"_within({looked_at}, {name}.shape[{place}], {about}{met})")
            written = self._named[key]
        self._of_distance = outer
        return written

    def _met(self) -> str:
        """The distances of related pairs, as far as they are bounded."""
        facts = [each.facts for each in self.plan.domain.classes]
        backs, aheads = [each.reach_back for each in facts], [each.reach_ahead for each in facts]
        low = "-_FAR" if None in aheads else str(-max(each for each in aheads if each is not None))
        high = "_FAR" if None in backs else str(max(each for each in backs if each is not None))
        return f"distance, {low}, {high}"


def _view(free: tuple[Axis, ...], features: int) -> str:
    """The index that gives a table of heads or batch entries the axes of tokens."""
    if not free:
        return ""
    index = [":"] if Size.BATCH in free else []
    if Size.HEADS in free:
        index.append(":")
    elif index:
        index.append("None")
    index += {0: ["None", "None"], 1: ["None"], 2: []}[features]
    return "" if all(each == ":" for each in index) else f"[{', '.join(index)}]"


def _is_integer(expr: Expr) -> bool:
    """Whether a number or the features of a vector are whole numbers."""
    match expr:
        case Channel():
            return True
        case Let(value=value):
            return _is_integer(value)
        case Binary(op=BinaryOp.DIVIDE | BinaryOp.POWER):
            return type_of(expr) is Type.INT
        case Binary() | Negate() | Call(function="abs" | "min" | "max" | "clip"):
            return all(map(_is_integer, children(expr)))
        case _:
            return type_of(expr) is Type.INT


def _outside_widths(expr: Expr) -> list[Expr]:
    """An expression and what is inside it, but not the vectors of which it reads only the width."""
    if isinstance(expr, Width):
        return [expr]
    return [expr, *(each for child in children(expr) for each in _outside_widths(child))]
