"""The checked spec: what one attention means, with every name resolved and every parameter bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from attncc.diagnostics import Source, Span
from attncc.spec.data import Data, K, Q, V
from attncc.spec.expr import Expr, Name, Vector, names_in
from attncc.spec.pooled import Blocked


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

    `weight` may read `score` (as Symbol(Name.SCORE)), dot products and declared data; `normalizer` is a number of the
    row that may read rows, RowSum(w), count and data; `none` is the constant 1. What the spec derives by `let` stands
    in the expressions themselves, as Let nodes.
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
    blocks: Blocked | None = None  # what the keys are, where these are not the keys of the call
    value: Expr = field(default_factory=lambda: Vector("v"))  # the vector of a key that weights multiply
    align: Align = Align.END
    data: tuple[Data, ...] = (Q, K, V)  # what the emitted function takes, in order
    branches: tuple[tuple[str, Spec], ...] = ()  # several attentions in place of one; the fields above are not read
    combine: Expr | None = None  # the vector of a query, made of those that the branches give

    @property
    def cores(self) -> tuple[Spec, ...]:
        """The attentions that it is made of: its branches, or itself."""
        return tuple(branch for _, branch in self.branches) or (self,)

    @property
    def names(self) -> frozenset[Name]:
        """Every symbol that the spec reads."""
        if self.combine is not None:
            return names_in(self.combine).union(*(branch.names for _, branch in self.branches))
        fields = (self.pattern, self.score, self.weight, self.normalizer, self.value)
        return frozenset(name for expr in fields for name in names_in(expr))

    @property
    def reads_scale(self) -> bool:
        """Whether the emitted function takes `scale`."""
        return Name.SCALE in self.names
