"""Layer → plan: the plan of each core, the order of products, what is causal, and whether it decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from attncc.diagnostics import AttnError, Diagnostic, Label
from attncc.plan.choose import plan
from attncc.plan.look_ahead import LookAhead
from attncc.plan.model import Mixture, Planned
from attncc.plan.token_by_token import calls_blocks, no_step
from attncc.rewrite.chains import ordered
from attncc.rewrite.engine import Step
from attncc.spec.expr import Merge
from attncc.spec.layers.dims import sequence_of
from attncc.spec.layers.model import Layer, Op, sides_of, walk

_IN_BLOCKS = (Op.POOL, Op.POOL_LARGEST, Op.CONVOLVE, Op.DEPTHWISE)
_OF_BLOCKS = "a core with `align = start` may see blocks of c tokens that have ended: `c * j + c - 1 <= i`"
_OF_ALL = "take a core whose pattern is not causal, or let the core itself see the tokens"


@dataclass(frozen=True)
class LayerPlan:
    """A layer whose products stand in their order, and the plan of each core by its name.

    `decoding` is why the layer has no `step`; empty where it has one.
    """

    layer: Layer
    cores: tuple[tuple[str, Planned], ...] = field(repr=False)
    steps: tuple[Step, ...]
    decoding: str

    @cached_property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Those of the cores, each once."""
        return tuple(dict.fromkeys(each for _, planned in self.cores for each in planned.warnings))

    @cached_property
    def of_blocks(self) -> frozenset[str]:
        """The cores whose keys are blocks of tokens, of which a step keeps those that have ended."""
        nodes = [node for _, value in self.layer.values for node in walk(value)]
        return frozenset(node.name for node in nodes if calls_blocks(node)) if not self.decoding else frozenset()

    @property
    def is_causal(self) -> bool:
        """Whether no token of the output reads a later one."""
        tokens = any(sequence_of(axis) is not None for axis in self.layer.out.type.axes)
        return tokens and LookAhead(self.layer, dict(self.cores)).value("out").most <= 0


def plan_layer(layer: Layer) -> LayerPlan:
    """The plan of a layer.

    Raises:
        AttnError: as the plans of its cores, and E405 where something reads whole sequences before a causal core.
    """
    cores = tuple((each.name, plan(each.spec)) for each in layer.cores)
    _check_sides(layer, dict(cores))
    _check_causal(LookAhead(layer, dict(cores)))
    ordered_layer, steps = ordered(layer)
    return LayerPlan(ordered_layer, cores, steps, no_step(ordered_layer, dict(cores)))


def _check_causal(reach: LookAhead) -> None:
    errors: list[Diagnostic] = []
    for call, because in ((each.call, each.because) for each in reach.early):
        for each in because:
            assert each.span is not None
            assert call.span is not None
            reads = "reads later tokens" if each.op in _IN_BLOCKS else "reads the whole sequence"
            labels = (Label(each.span, reads), Label(call.span, f"`{call.name}` is causal"))
            note = "a token of what it makes depends on later ones, which a causal core must not see"
            what = f"`attend {each.name}`" if each.op is Op.ATTEND else f"`{each.op.value}`"
            message = f"{what} along the sequence comes before the causal core `{call.name}`"
            help_ = _OF_BLOCKS if each.op in _IN_BLOCKS else _OF_ALL
            errors.append(Diagnostic("E405", message, labels, (note,), (help_,)))
    if errors:
        raise AttnError(*dict.fromkeys(errors))


def _check_sides(layer: Layer, cores: Mapping[str, Planned]) -> None:
    """Refuse what a core does not give beside its output."""
    for each in sides_of(layer):
        planned = cores[each.name]
        if each.op is not Op.LOG_SUMS:
            what = "weights of its own, for it has branches" if isinstance(planned, Mixture) else ""
        elif isinstance(planned, Mixture):
            what = "" if isinstance(planned.spec.combine, Merge) else "sum that its rows are divided by"
        else:
            what = "" if planned.has_lse else "sum that its rows are divided by"
        if what:
            label = (Label(each.span, f"reads it of `{each.name}`"),) if each.span is not None else ()
            raise AttnError(Diagnostic("E404", f"`{each.name}` has no {what}", label))
