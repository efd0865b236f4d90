"""What a spec declares beside q, k and v: learned parameters and further inputs, with their axes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from attncc.diagnostics import Span


class Role(Enum):
    """Who provides the numbers; the value is how a spec says it."""

    INPUT = "input"  # the caller, anew in each call
    PARAMETER = "param"  # the module learns it; the functional form takes it as an argument


class Size(Enum):
    """An axis whose length the call decides; the value is its letter."""

    BATCH = "B"
    HEADS = "H"  # query heads; for data of keys, key heads too
    QUERIES = "n"
    KEYS = "m"
    WIDTH = "d"
    VALUE_WIDTH = "e"


@dataclass(frozen=True, slots=True)
class Blocks:
    """An axis of a table with one entry for each block of neighbouring rows or keys: ceil(n / width), ceil(m / width).

    The last block may be shorter than the others.
    """

    size: Size
    width: int

    def count(self, length: int) -> int:
        """How many blocks so many rows or keys make."""
        return -(-length // self.width)


@dataclass(frozen=True, slots=True)
class Free:
    """An axis of a list that is as long as the caller likes."""


Axis = Size | Blocks | Free | int


def axis_text(axis: Axis) -> str:
    """An axis as a spec writes it."""
    match axis:
        case Size(value=letter):
            return letter
        case Blocks(size=size, width=width):
            return f"ceil({size.value} / {width})"
        case Free():
            return "any"
        case _:
            return str(axis)


class Make(Enum):
    """What stands in for data that a caller leaves out; the value is how a spec says it."""

    RANDOM = "random"  # truth values: so many along the last axis hold
    NORMAL = "normal"  # real numbers of deviation 1


@dataclass(frozen=True, slots=True)
class Maker:
    """Data made from a seed, the same in every call."""

    make: Make
    count: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A tensor that the emitted function takes.

    Data with an axis n hold something for each query row, data with an axis m for each key, and others are tables. A
    table with an axis B, which comes first, has entries of its own for each batch entry; no index is written for it.
    q is [B, H, n, d], k [B, H, m, d], v [B, H, m, e].
    """

    name: str
    role: Role
    axes: tuple[Axis, ...]
    whole: bool = False  # integers
    truth: bool = False  # truth values
    ascending: bool = False  # the caller promises that numbers of tokens never fall from one token to the next
    maker: Maker | None = None  # of an input that may be left out
    initial: float | None = None  # of a parameter; None draws from a normal distribution
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def is_row(self) -> bool:
        """Whether it holds something for each query row."""
        return Size.QUERIES in self.axes

    @property
    def is_column(self) -> bool:
        """Whether it holds something for each key."""
        return Size.KEYS in self.axes

    @property
    def is_token(self) -> bool:
        """Whether it holds something for each row or each key."""
        return self.is_row or self.is_column

    @property
    def is_vector(self) -> bool:
        """Whether it holds a vector for each row or key; else a number."""
        return self.is_token and self.axes[-1] not in (Size.QUERIES, Size.KEYS)

    @property
    def is_real(self) -> bool:
        """Whether it holds real numbers, which have gradients."""
        return not self.whole and not self.truth

    @property
    def is_full(self) -> bool:
        """Whether it holds real vectors with every axis, as q, k and v do."""
        return self.is_vector and len(self.axes) == 4 and self.is_real

    @property
    def indexed(self) -> tuple[Axis, ...]:
        """The axes of a table that an index is written for."""
        return self.axes[1:] if self.axes[:1] == (Size.BATCH,) else self.axes

    @property
    def shape(self) -> str:
        """The axes as a spec writes them."""
        return ", ".join(map(axis_text, self.axes))


Q = Data(name="q", role=Role.INPUT, axes=(Size.BATCH, Size.HEADS, Size.QUERIES, Size.WIDTH))
K = Data(name="k", role=Role.INPUT, axes=(Size.BATCH, Size.HEADS, Size.KEYS, Size.WIDTH))
V = Data(name="v", role=Role.INPUT, axes=(Size.BATCH, Size.HEADS, Size.KEYS, Size.VALUE_WIDTH))

# What emitted functions that take data call other things: arguments, sizes, positions, what they import and call.
RESERVED = frozenset(
    "scale kv_lengths q_start k_start q_starts dropout_p return_lse form plan rows self options name x batch "
    "heads kv_heads width shapes n m d e dtype wide device head i j distance hidden valid torch nn functools math "
    "triton tl Tensor len int float bool abs min max str list type isinstance getattr hasattr any map range repr "
    "set slice super tuple zip property staticmethod ValueError ImportError Ellipsis NoneType attention weights "
    "args data branch branches choices return_choices own_choices made_choices prepared keep_residual cache "
    "carried length prefill step to Cache dataclasses".split()
)
# What torch.nn.Module calls other things than a module's parameters.
OF_MODULES = frozenset(
    "T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches "
    "eval extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict "
    "modules mtia named_buffers named_children named_modules named_parameters parameters register_backward_hook "
    "register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook "
    "register_full_backward_pre_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook "
    "register_module register_parameter register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ "
    "reset_parameters set_extra_state set_submodule share_memory state_dict to to_empty train training type xpu "
    "zero_grad scale form heads prefill step".split()
)
