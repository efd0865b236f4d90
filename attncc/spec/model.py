"""The checked spec: what one attention means, with every name resolved and every parameter bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from attncc.diagnostics import Source, Span
from attncc.spec.expr import Dot, Expr, Name, dots_in, names_in


class Align(Enum):
    """Where the first query row stands when the caller does not say."""

    END = "end"  # the queries are the last n positions: q_start = k_start + m - n
    START = "start"  # q_start = 0


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter and the value it was built with."""

    name: str
    value: int | float
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """out_i = (sum over related j of weight_ij v_j) / normalizer_i.

    `weight` may read `score` (as Symbol(Name.SCORE)) and dot products; `normalizer` is a number of the row that may
    read rows, RowSum(w) and count; `none` is the constant 1.
    """

    name: str
    summary: str  # the comment above the attention, first line
    source: Source = field(repr=False)
    span: Span = field(compare=False, repr=False)
    parameters: tuple[Parameter, ...]
    pattern: Expr
    score: Expr
    weight: Expr
    normalizer: Expr
    align: Align = Align.END

    @property
    def dots(self) -> tuple[Dot, ...]:
        """The distinct dot products that weights are made of, in order of appearance."""
        return tuple(dict.fromkeys(dot for expr in (self.score, self.weight, self.normalizer) for dot in dots_in(expr)))

    @property
    def names(self) -> frozenset[Name]:
        """Every symbol that the spec reads."""
        fields = (self.pattern, self.score, self.weight, self.normalizer)
        return frozenset(name for expr in fields for name in names_in(expr))

    @property
    def reads_scale(self) -> bool:
        """Whether the emitted function takes `scale`."""
        return Name.SCALE in self.names
