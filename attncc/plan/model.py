"""The plan: what will run, with every number decided and no text."""

from __future__ import annotations

from dataclasses import dataclass, field

from attncc.diagnostics import Diagnostic
from attncc.graph.core import Core
from attncc.graph.ir import Graph
from attncc.plan.lists import Lists
from attncc.plan.pieces import Pieces
from attncc.plan.ranges import Domain
from attncc.rewrite.engine import Refusal, Step
from attncc.rewrite.reassociate import States
from attncc.spec.expr import Expr, Name, names_in
from attncc.spec.model import Spec


@dataclass(frozen=True, slots=True)
class Tile:
    """One way to run a kernel: tile sizes in rows and columns, and Triton's warps and pipeline stages."""

    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tile sizes that one Triton kernel tries on a GPU, for elements of so many bytes and vectors up to a width.

    `chunk` is the one that it has where other kernels sum the tiles that need no mask.
    """

    kernel: str
    bytes: int
    width: int
    tries: tuple[Tile, ...]
    chunk: Tile


@dataclass(frozen=True, slots=True)
class Slabs:
    """How the torch form cuts rows: so many rows that a slab of scores has about `elements` numbers.

    With states a slab has `block` rows, and keys come in blocks of as many: so many that products are worth their
    calls, and the scores at the ends of runs are few.
    """

    elements: int
    least_rows: int
    most_rows: int
    block: int


@dataclass(frozen=True, slots=True)
class Passes:
    """The forward and the backward graph of one target, and the numbers that its states read."""

    forward: Graph
    backward: Graph
    numbers: Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A spec, the laws that were applied, and the decisions that printers carry out.

    `saved` are the row numbers that forward keeps for backward. Where that reads delta, forward also keeps out, and
    what rounding to 16 bits takes from it. `pieces` is None where the pattern runs as a whole, `lists` where it does
    not depend on data, `states` where every pair is computed; `of_sums` tells the gradients of a row's sums, by the
    names of what backward reads. `chosen` are attentions whose weights are the numbers by which the pattern chooses
    keys. `gpu` holds exponents in base two, `torch` natural. `edge` is how many rows and keys a tile has on CPUs.
    """

    spec: Spec
    core: Core
    domain: Domain
    pieces: Pieces | None
    lists: Lists | None
    states: States | None
    of_sums: tuple[tuple[str, Expr], ...]
    steps: tuple[Step, ...]
    refusals: tuple[Refusal, ...]
    dense: Graph = field(repr=False)
    gpu: Passes = field(repr=False)
    torch: Passes = field(repr=False)
    saved: tuple[str, ...]
    reads_delta: bool
    has_lse: bool
    tiles: tuple[Tiles, ...]
    edge: int
    slabs: Slabs
    warnings: tuple[Diagnostic, ...]
    chosen: tuple[Chosen, ...] = ()

    @property
    def depends_on_distance(self) -> bool:
        """Whether the pattern is the same for every head and length, and depends on i - j alone."""
        alone = names_in(self.spec.pattern) <= {Name.I, Name.J}
        return alone and all(each.facts.shift == 1 for each in self.domain.classes)


@dataclass(frozen=True, slots=True)
class Chosen:
    """An attention whose weights are the numbers by which keys are chosen.

    Attributes:
        choice: the name of the choice.
        plan: the attention.
        among: where the numbers are what that attention gives to keys, one that relates the keys, or blocks of keys,
            among which a query chooses, all with the weight 0.
    """

    choice: str
    plan: Plan
    among: Plan | None = None

    @property
    def of_shares(self) -> bool:
        """Whether the numbers are weights over normalisers."""
        return self.among is not None


@dataclass(frozen=True, slots=True)
class Mixture:
    """Several plans, one for each branch that is combined; what their outputs are combined to stands in the spec."""

    spec: Spec
    branches: tuple[tuple[str, Plan], ...]
    own_warnings: tuple[Diagnostic, ...] = ()

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Its own and those of every branch, each once."""
        of_branches = (each for _, plan in self.branches for each in plan.warnings)
        return tuple(dict.fromkeys((*self.own_warnings, *of_branches)))


Planned = Plan | Mixture
