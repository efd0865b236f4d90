"""The vocabulary of the graph: a dozen operations over rows (queries), columns (keys) and features."""

from __future__ import annotations

from enum import Enum


class Axis(Enum):
    """What a tensor is indexed by, batch and head aside; the value is its letter in texts."""

    ROW = "i"  # queries
    COLUMN = "j"  # keys
    FEATURE = "d"  # the width of q and k
    VALUE = "e"  # the width of v


class Op(Enum):
    """An operation; the value is how the graph is printed."""

    OPERAND = "operand"  # a tensor of vectors that the caller gives
    STATISTIC = "statistic"  # a number a row, saved by the forward pass
    NUMBER = "number"  # a scalar expression, elementwise
    RELATED = "related"  # the pattern, elementwise
    DOT = "dot"  # contraction of a row operand and a column operand over their features
    RESTRICT = "restrict"  # its first input where the second (related) holds, else a constant
    PEAK = "peak"  # the largest of its inputs along the keys of a row
    SUM = "sum"  # sum along the keys of a row
    CONTRACT = "contract"  # sum of (number x vector) along the axis that both inputs share
    DIVIDE = "divide"  # first input / second input, and 0 where the second is 0
    MULTIPLY = "multiply"  # vectors times a number
