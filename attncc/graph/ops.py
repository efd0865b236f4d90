"""The vocabulary of the graph: a dozen operations over rows (queries), columns (keys) and features."""

from __future__ import annotations

from enum import Enum


class Axis(Enum):
    """What a tensor is indexed by, batch and head aside; the value is its letter in texts."""

    ROW = "i"  # queries
    COLUMN = "j"  # keys
    FEATURE = "d"  # the width of q and k
    VALUE = "e"  # the width of v
    OFFSET = "i - j"  # distances
    TABLE = "table"  # whatever a table is indexed by


class Op(Enum):
    """An operation; the value is how the graph is printed."""

    OPERAND = "operand"  # a tensor that the kernels are given: vectors, numbers of rows, keys or distances, a table
    STATISTIC = "statistic"  # a number a row, saved by the forward pass
    NUMBER = "number"  # a scalar expression, elementwise
    RELATED = "related"  # the pattern, elementwise
    ENTRY = "entry"  # for each pair an entry of an operand: by its distance, or of a table by the indices of `expr`
    DOT = "dot"  # contraction of a row operand and a column operand over their features
    CHANNELS = "channels"  # the sum over features of a formula of vectors of both sides
    RESTRICT = "restrict"  # its first input where the second (related) holds, else a constant
    PEAK = "peak"  # the largest of its inputs along the keys of a row
    SUM = "sum"  # sum of a number of pairs along a row, a key or a distance, or into a table: what the axes leave out
    CONTRACT = "contract"  # sum of (number x vector) along the axis that both inputs share
    SPREAD = "spread"  # for each feature, the sum along an axis of (number x formula of vectors of both sides)
    ADD = "add"  # sum of vectors
    DIVIDE = "divide"  # first input / second input, and 0 where the second is 0
    MULTIPLY = "multiply"  # vectors times a number
