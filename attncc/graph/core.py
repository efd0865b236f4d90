"""The core of an attention: what kernels read, and how it is derived from what the caller gives, token by token.

A kernel reads eight kinds of tensors and knows nothing of where they come from. Whatever a spec derives from one token
alone (a normalised key, a bias looked up at a position, a learned vector times a query) or from a distance alone (a
bucketed relative bias) is computed outside, once a token or distance instead of once a pair, by plain operations that
autograd differentiates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from attncc.spec.expr import Entry, Expr, Local, Token, walk


class Kind(Enum):
    """What an operand holds; the value says it in words."""

    ROW_VECTOR = "a vector a query"  # [batch, heads, n, width]
    COLUMN_VECTOR = "a vector a key"  # [batch, kv heads, m, width]
    ROW_NUMBER = "a number a query"  # [batch, heads, n]
    COLUMN_NUMBER = "a number a key"  # [batch, kv heads, m]
    OFFSET_NUMBER = "a number a distance"  # [batch or 1, heads, n + m], at r - c + m - 1 for row r and key c
    TABLE = "a table"  # declared data as they are, looked up pair by pair
    ROW_FACT = "what the pattern asks of a query"  # [batch or 1, heads or 1, n], of any type
    COLUMN_FACT = "what the pattern asks of a key"  # [batch or 1, heads or 1, m], of any type

    @property
    def is_of_token(self) -> bool:
        """Whether it holds something for each query or each key."""
        return self.is_vector or self.is_fact or self in (Kind.ROW_NUMBER, Kind.COLUMN_NUMBER)

    @property
    def is_vector(self) -> bool:
        """Whether it is made of vectors."""
        return self in (Kind.ROW_VECTOR, Kind.COLUMN_VECTOR)

    @property
    def is_fact(self) -> bool:
        """Whether it says which pairs are related: it has no gradient."""
        return self in (Kind.ROW_FACT, Kind.COLUMN_FACT)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that kernels read.

    Attributes:
        width: for vectors a name of their width; vectors that meet in a product share it. `e` is that of the values.
        value: how it is derived from declared data; None for declared data as the caller gives them.
        source: the declared data that it is, where it is not derived.
        like: the operand that has as many features, where a derived vector is a formula of their places alone.
        wide: whether vectors keep the type of sums, where that of q has too few digits.
        exact: whether numbers keep their own type, whole numbers or truth values, which are compared and never rounded.
        listed: whether a fact is a list, with an axis of entries, [batch or 1, heads or 1, n, entries].
    """

    name: str
    kind: Kind
    width: str | None = None
    value: Expr | None = None
    source: str | None = None
    like: str | None = None
    wide: bool = False
    exact: bool = False
    listed: bool = False

    @property
    def formula(self) -> Expr:
        """What it holds, in declared data."""
        return Token(self.source or self.name) if self.value is None else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """out_i = (sum over related j of weight_ij values_j) / normalizer_i, in operands.

    In the expressions, Dot is of two Vectors (a row operand and a column operand), Channels holds Vectors of both
    sides, Local names an operand of numbers, and Entry looks a table up.

    `pattern` reads positions, and where it depends on data also facts and tables.

    Attributes:
        operands: in the order in which kernels' host code passes them: row vectors, column vectors (the values last),
            numbers, tables.
        values: the column vectors that weights multiply.
        rows: a row vector; its shape tells batch, heads and n even where no weight reads it.
        spread_heads: whether query heads of one key head differ in their column operands.
    """

    operands: tuple[Operand, ...]
    values: str
    rows: str
    pattern: Expr
    score: Expr
    weight: Expr
    normalizer: Expr
    spread_heads: bool

    def __getitem__(self, name: str) -> Operand:
        return next(each for each in self.operands if each.name == name)

    @property
    def reads_data(self) -> bool:
        """Whether the pattern depends on what the caller passes."""
        return any(isinstance(node, Local | Entry) for node in walk(self.pattern))

    def of_kind(self, *kinds: Kind) -> tuple[Operand, ...]:
        """The operands of some kinds, in order."""
        return tuple(each for each in self.operands if each.kind in kinds)

    @property
    def derived(self) -> tuple[Operand, ...]:
        """The operands that are computed from the caller's, in order."""
        return tuple(each for each in self.operands if each.value is not None)


# Names of the graph's own quantities, and of what generated code holds beside them: operands get others.
TAKEN_NAMES = frozenset(
    "score weight kept norm rows count share out total peak lse related delta inverse sign slope exponent i j row "
    "column head heads kv_heads n m d e batch entry entries shape slab chunk chunks work call numbers visible channel "
    "dtype device wide lanes first last low high start starts lengths offset offsets residual scale grid torch "
    "triton tl functools math "
    # of the passes in torch
    "at blocked blocks form grads hidden joined k_start kv_at kv_head kv_lengths lane length new_peak numbers_of_rows "
    "outs own place prepared q_start q_starts rest results run run_group seen shrink store width value_width windows "
    "x d_out d_lse d_rows dq dk dv len range slice tuple abs "
    # of lists in torch
    "apart begins bisect counts dead end enumerate finishes is_met listed lists met most most_keys number of_keys "
    "order others places result runs scores start stop tiled tiles told widest widths "
    # of decoders
    "cache carried found full held state states "
    # of the kernels
    "alive by_slab done in_rows key_numbers keys part statistics step tile "
    # of kernels that walk lists
    "begin begins end key_place key_places key_slots keys_of_entry lists met number row_place row_places row_slots "
    "rows_of_entry "
    # of lists in torch
    "apart counts dead is_met listed most_keys numbers of_keys order others related runs seen stop tiled tiles told "
    "widest".split()
)

# How the graph names what it makes of quantities and operands.
_MADE = re.compile(
    r"(d|dot|part_of|slope|rows|weight|inverse|exponent)_.*|.*_(\d+|kept|term|constant|factor|total|entry|asked|listed|own|tiles)"
)


def is_taken(name: str) -> bool:
    """Whether an operand needs another name."""
    return name in TAKEN_NAMES or _MADE.fullmatch(name) is not None
