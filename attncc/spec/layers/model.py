"""The checked layer: values with their shapes, learned parameters, and the attentions that are called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from attncc.diagnostics import Source, Span
from attncc.spec.layers.dims import Dim
from attncc.spec.model import Spec


class Kind(Enum):
    """What the entries of a tensor are."""

    REAL = "real"
    INT = "int"
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class Type:
    """The axes of a value behind the batch axis, and whether it has one.

    A value without axes that is not batched is a number that Python knows: made of constants and parameters.
    """

    axes: tuple[Dim, ...] = ()
    batched: bool = False
    kind: Kind = Kind.REAL
    is_number: bool = False

    def __str__(self) -> str:
        if self.is_number:
            return "a number"
        return f"[{', '.join([*(['B'] if self.batched else []), *map(str, self.axes)])}]"


NUMBER = Type(is_number=True)


class Op(Enum):
    """What a value is made by; the value of the member is what messages and tables call it."""

    CONST = "a constant"  # numbers[0]
    SIZE = "a length"  # dims[0], as a number
    NAME = "a name"  # of an input, a learned parameter or a value above
    FUNCTION = "a function of numbers"  # `name` of spec.functions, entry by entry
    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    FLOOR_DIVIDE = "//"
    MODULO = "%"
    POWER = "^"
    NEGATE = "-x"
    COMPARE = "comparison"  # `name` is the operator; of numbers, in `require`
    AND = "&"
    OR = "|"
    NOT = "!"
    MATMUL = "@"
    TRANSPOSE = "transposed"  # of the last two axes
    INSERT = "a new axis"  # of length 1, at `axis`
    DROP = "an axis left out"  # of length 1, at `axis`
    LAYER_NORM = "layer_norm"  # x, gain, bias; numbers[0] is epsilon
    RMS_NORM = "rms_norm"  # x, gain; numbers[0] is epsilon
    UNIT = "l2_norm"  # numbers[0] is epsilon
    SCALE_NORM = "scale_norm"  # x, gain; numbers[0] is epsilon
    SOFTMAX = "softmax"  # over `axis`
    SUM = "sum"  # these leave `axis` out
    MEAN = "mean"
    LARGEST = "max"
    CONCAT = "concat"  # along `axis`
    SPLIT_HEADS = "heads"  # [n, heads * d] -> [heads, n, d]; dims[0] heads
    MERGE_HEADS = "merge"  # [heads, n, d] -> [n, heads * d]
    SLICE = "slice"  # along `axis`, from dims[0], dims[1] of them
    PICK = "x[0]"  # of the first axis entry dims[0]
    POOL = "pool"  # means of blocks of dims[0] along `axis`
    REPEAT = "repeat"  # each entry dims[0] times along `axis`
    SHIFT = "shift"  # along `axis` by dims[0] entries, zeros come in
    CONVOLVE = "convolve"  # along `axis`; dims are the stride, and how many entries before are read where that is said
    DEPTHWISE = "depthwise"  # the same, each feature by itself
    RUNNING_SUM = "running_sum"  # along `axis`
    RUNNING_MEAN = "running_mean"
    AVERAGE = "ema"  # x, decays, gains; along `axis`
    AVERAGE_BACK = "ema_back"
    POOL_LARGEST = "pool_max"  # the largest of the same blocks
    UNPOOL = "unpool"  # each entry dims[0] times along `axis`, dims[1] in all
    SEGMENTS = "segments"  # means of dims[0] segments of `axis`, which is dims[1] long
    PRESENT = "present"  # 1 for each token along `axis` of x
    CONVOLVE_2D = "convolve_2d"  # x, kernel; dims[0] is the stride
    BATCH_NORM = "batch_norm"  # x, gain, bias, mean, variance; of each entry of `axis`; numbers: epsilon, momentum
    IDENTITY = "identity"  # [dims[0], dims[0]]
    ITERATE = "iterate"  # first value, next value made of `name`; dims[0] times
    ROTATE = "rope"  # vectors turned by their position along `axis`; numbers: base, closed; name "halves" | "pairs"
    SINUSOIDS = "sinusoids"  # the sines and cosines of the same angles
    ATTEND = "attend"  # `name` of the core
    EXPAND = "the same for each batch entry"  # a value without a batch axis gets one
    CHOOSE = "? :"  # of the rows of two values, by truth values of tokens
    LARGEST_AT = "top"  # the places of the dims[0] largest along the last axis, in order; the first dims[1] always
    GATHER = "gather"  # along `axis` the entries at the places of the second
    # Of a value that `attend` has made, which is named:
    LOG_SUMS = "log_sums"  # the logarithms of what its rows are divided by
    COLUMN_SUMS = "column_sums"  # how much weight all rows give to each key; numbers[0] is 0 without their own keys'
    BLOCK_SUMS = "block_sums"  # how much weight dims[0] rows together give to dims[1] keys together


@dataclass(frozen=True, slots=True)
class Node:
    """A value: what makes it, of which values, and its shape."""

    op: Op
    args: tuple[Node, ...]
    type: Type
    name: str = ""
    axis: int = 0  # counted from the end: -1 is the last
    dims: tuple[Dim, ...] = ()
    numbers: tuple[float, ...] = ()
    options: tuple[tuple[str, Node], ...] = ()  # of a call: numbers by name
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def along(self) -> Dim | None:
        """The length of `axis` of the first argument; None for the batch axis."""
        axes = self.args[0].type.axes
        return axes[self.axis] if len(axes) + self.axis >= 0 else None


def walk(node: Node) -> Iterator[Node]:
    """A value and all that it is made of."""
    yield node
    for each in node.args:
        yield from walk(each)
    for _, each in node.options:
        yield from walk(each)


@dataclass(frozen=True, slots=True)
class LayerParameter:
    """A number that a module is made with; one that a core reads is `fixed` when the module's file is built."""

    name: str
    is_whole: bool
    default: Node | None  # made of the parameters before it
    value: int | float | None  # of the default, or what the caller gave; None where symbols without one stand in it
    fixed: bool = False
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Divides:
    """`whole` has to be a multiple of `by`, because of what stands at the span."""

    whole: Dim
    by: Dim
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that `forward` takes: [B, axes]."""

    name: str
    type: Type
    span: Span = field(compare=False, repr=False)


SIDES = (Op.LOG_SUMS, Op.COLUMN_SUMS, Op.BLOCK_SUMS)


class Draw(Enum):
    """How entries of a learned parameter are drawn at first."""

    CONSTANT = "constant"  # numbers[0]
    NORMAL = "normal"  # numbers[0] is the deviation
    UNIFORM = "uniform"  # between -numbers[0] and numbers[0]
    FAN_IN = "fan_in"  # uniform within 1 / sqrt(rows), as torch.nn.Linear does
    XAVIER = "xavier"  # uniform within sqrt(6 / (rows + columns))
    KAIMING = "kaiming"  # normal with deviation sqrt(2 / rows)


@dataclass(frozen=True, slots=True)
class Learned:
    """A learned tensor and how it begins; one that is fixed stays so, a buffer of the module."""

    name: str
    type: Type
    draw: Draw | None  # None until all values are known
    numbers: tuple[float, ...] = ()
    is_fixed: bool = False
    span: Span | None = field(default=None, compare=False, repr=False)
    is_running: bool = False  # not learned: it follows what is seen in training


@dataclass(frozen=True, slots=True)
class Core:
    """An attention as one place in the layer calls it: its parameters are bound."""

    name: str  # of its section in the module
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Values in their order; the last one is `out`."""

    name: str
    summary: str
    source: Source = field(repr=False)
    span: Span = field(compare=False, repr=False)
    parameters: tuple[LayerParameter, ...]
    conditions: tuple[Node, ...]  # what `require` demands
    divisions: tuple[Divides, ...]
    inputs: tuple[Input, ...]
    learned: tuple[Learned, ...]
    values: tuple[tuple[str, Node], ...]
    cores: tuple[Core, ...]
    given: tuple[str, ...] = ()  # parameters whose values the caller of the compiler gave
    sources: tuple[Source, ...] = field(default=(), repr=False)  # of attentions and layers from other files

    @property
    def out(self) -> Node:
        """What the layer returns."""
        return self.values[-1][1]

    @property
    def sequences(self) -> tuple[str, ...]:
        """The run-time lengths that inputs have, in their order."""
        found = [name for each in self.inputs for axis in each.type.axes for name in sorted(axis.symbols & {"n", "m"})]
        return tuple(dict.fromkeys(found))

    def core(self, name: str) -> Core:
        """The core of a name."""
        return next(each for each in self.cores if each.name == name)


def sides_of(layer: Layer) -> list[Node]:
    """What values read of calls of attentions beside their output."""
    return [node for _, value in layer.values for node in walk(value) if node.op in SIDES]
