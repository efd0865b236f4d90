"""What an expression of a kernel stands for in C: the text of one element, given the indices of its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

ONE = "1"  # the extent of an axis along which a value is the same

LOOSE, CHOICE, OR, AND, COMPARE, SUM, PRODUCT, UNARY, ATOM = range(9)

INT, LONG, REAL = "int", "int64_t", "real"
_WHOLE = (INT, LONG)

Dims = tuple[str, ...]
Indices = Sequence[str]


def bracketed(level: int, text: str, context: int) -> str:
    """A text of some precedence, as it stands in a context."""
    return f"({text})" if level < context else text


def _own(dims: Dims, indices: Indices) -> Indices:
    """The indices of a value's own axes, the last ones of a shape to which it is spread."""
    return indices[len(indices) - len(dims) :] if dims else ()


@dataclass(frozen=True, slots=True)
class Value:
    """A number, or numbers along one or two axes.

    Attributes:
        dims: the constants that say how long each axis is; ONE where the value is spread.
        ctype: the C type of an element.
        element: the text of the element at some indices, one for each axis, with its precedence.
    """

    dims: Dims
    ctype: str
    element: Callable[[Indices], tuple[int, str]]

    def at(self, indices: Indices, context: int = LOOSE) -> str:
        """The text at some indices of a shape to which this one is spread."""
        return bracketed(*self.element(_own(self.dims, indices)), context)


@dataclass(frozen=True, slots=True)
class Address:
    """A place in a tensor, or places along one or two axes.

    Attributes:
        of: the tensor, as its types are named.
        start: the text of the pointer at some indices.
        offset: the text of how far it is from there; empty where it is not.
    """

    dims: Dims
    of: str
    start: Callable[[Indices], str]
    offset: Callable[[Indices], str]

    def at(self, indices: Indices, context: int = LOOSE) -> str:
        """The text of the pointer."""
        own = _own(self.dims, indices)
        start, offset = self.start(own), self.offset(own)
        return bracketed(SUM, f"{start} + {offset}", context) if offset else bracketed(SUM, start, context)

    def place(self, indices: Indices) -> str:
        """The text of what lies there."""
        own = _own(self.dims, indices)
        start = self.start(own)
        return f"{f'({start})' if ' ' in start else start}[{self.offset(own) or '0'}]"


def scalar(text: str, ctype: str, level: int = ATOM) -> Value:
    """One number."""
    return Value((), ctype, lambda _: (level, text))


def spread(*shapes: Dims) -> Dims:
    """The shape that several have together."""
    several = {shape for shape in shapes if shape}
    if len(several) < 2:
        return several.pop() if several else ()
    longest = max(map(len, several))
    padded = [(ONE,) * (longest - len(shape)) + shape for shape in shapes if shape]
    return tuple(next((each for each in axis if each != ONE), ONE) for axis in zip(*padded, strict=True))


def joined(*ctypes: str) -> str:
    """The type of what arithmetic makes of some types."""
    if REAL in ctypes:
        return REAL
    loaded = [each for each in ctypes if each not in _WHOLE]
    if loaded:
        return loaded[0]
    return LONG if LONG in ctypes else INT


def is_whole(ctype: str) -> bool:
    """Whether a type is known to be of whole numbers."""
    return ctype in _WHOLE


class Form(Enum):
    """How a variable is held."""

    PLAIN = "plain"  # a number, or an array of them
    ROWS = "rows"  # vectors in memory, one every so many numbers
    LOCAL = "local"  # a number of the innermost loop, made and read within it


@dataclass(slots=True)
class Variable:
    """A variable of a function.

    Attributes:
        of: the tensor into which it points, if it does.
        pairs: whether it has a number for each pair: the first axis is then the inner one.
        turned: the array that holds its transpose, where one is kept.
    """

    name: str
    dims: Dims
    ctype: str
    form: Form = Form.PLAIN
    of: str = ""
    is_parameter: bool = False
    pairs: bool = False
    turned: str = ""

    def at(self, indices: Indices) -> str:
        """The text of an element."""
        if self.form is Form.LOCAL or not self.dims:
            return self.name
        if self.form is Form.ROWS:
            row, column = indices
            return f"{self.name}.at[{row} * {self.name}.step + {column}]"
        order = reversed(indices) if self.pairs else indices
        return self.name + "".join(f"[{each}]" for each in order)

    def read(self) -> Value | Address:
        """What it stands for where it is read."""
        if self.of:
            return Address(self.dims, self.of, self.at, lambda _: "")
        return Value(self.dims, self.ctype, lambda indices: (ATOM, self.at(indices)))

    @property
    def typed(self) -> str:
        """Its C type, as it stands before its name."""
        return self.ctype if self.ctype.endswith("*") else f"{self.ctype} "

    @property
    def declaration(self) -> str:
        """How it is declared."""
        if self.form is Form.ROWS:
            return f"Rows {self.name};"
        dims = reversed(self.dims) if self.pairs else self.dims
        return f"{self.typed}{self.name}{''.join(f'[{each}]' for each in dims)};"

    @property
    def parameter(self) -> str:
        """How a function that is given it declares it."""
        match self.form, tuple(reversed(self.dims) if self.pairs else self.dims):
            case Form.ROWS, _:
                return f"const Rows {self.name}"
            case _, ():
                return f"{self.typed}{self.name}"
            case _, (_,):
                return f"{self.typed}*restrict {self.name}"
            case _, (_, inner):
                return f"{self.typed}(*restrict {self.name})[{inner}]"
        raise TypeError(f"{self.name} has {len(self.dims)} axes")

    def strides(self) -> tuple[str, str, str]:
        """Where its first number is, and how far it is along each of its two axes."""
        if self.form is Form.ROWS:
            return f"{self.name}.at", f"{self.name}.step", "1"
        first, second = self.dims
        start = f"&{self.name}[0][0]"
        return (start, "1", first) if self.pairs else (start, second, "1")


def address_type(of: str) -> str:
    """The C type of a pointer into a tensor."""
    return f"{of}_type *"


def loaded_type(of: str) -> str:
    """The C type of what is read from a tensor."""
    return f"{of}_value"
