"""The fields of an attention and which names each may read."""

from __future__ import annotations

from enum import Enum

from attncc.spec.expr import Name


class FieldName(Enum):
    """A field; the value is how a spec writes it."""

    PATTERN = "pattern"
    SCORE = "score"
    WEIGHT = "weight"
    NORMALIZE = "normalize"
    SIMILARITY = "similarity"
    ALIGN = "align"
    VALUE = "value"
    COMBINE = "combine"
    REQUIRE = "require"  # not a field by grammar, but its conditions are resolved like one
    LET = "let"  # likewise


_LENGTHS = frozenset({Name.QUERIES, Name.KEYS, Name.HEADS})
_PAIR = frozenset({Name.I, Name.J, Name.HEAD})
_SIZES = _LENGTHS | {Name.WIDTH, Name.VALUE_WIDTH, Name.VALID}

READABLE: dict[FieldName, frozenset[Name]] = {
    FieldName.PATTERN: _PAIR | _LENGTHS,
    FieldName.SCORE: _PAIR | _SIZES | {Name.COUNT, Name.SCALE},
    FieldName.WEIGHT: _PAIR | _SIZES | {Name.COUNT, Name.SCALE, Name.SCORE},
    FieldName.NORMALIZE: frozenset({Name.I, Name.HEAD, Name.COUNT, Name.SCALE, Name.ROWS}) | _SIZES,
    FieldName.VALUE: frozenset({Name.J, Name.HEAD, Name.SCALE}) | _SIZES,
    FieldName.COMBINE: frozenset({Name.I, Name.HEAD, Name.SCALE}) | _SIZES,
    FieldName.LET: _PAIR | _SIZES | {Name.SCALE},
    FieldName.REQUIRE: frozenset(),
}

WHY_NOT: dict[Name, str] = {
    Name.I: "the position of a query is known only at the call",
    Name.HEAD: "heads are known only at the call",
    Name.HEADS: "heads are known only at the call",
    Name.QUERIES: "lengths are known only at the call",
    Name.KEYS: "lengths are known only at the call",
    Name.J: "j is one key; a normaliser is a number of the whole row",
    Name.SCORE: "score is a number of one pair",
    Name.ROWS: "rows is the sum of the row's weights, so weights cannot read it; only `normalize` can",
    Name.CHANNELS: "`normalize = channels` divides each feature of the keys by its own sum; it is no number",
    Name.COUNT: "count is the number of related keys, so the pattern cannot read it",
    Name.VALID: "kv_lengths already hides keys; the pattern speaks of positions only",
    Name.WIDTH: "the pattern speaks of positions, heads and lengths only",
    Name.VALUE_WIDTH: "the pattern speaks of positions, heads and lengths only",
    Name.SCALE: "scale is a real number; the pattern speaks of positions, heads and lengths only",
}
