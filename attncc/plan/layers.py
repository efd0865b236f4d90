"""Layer → plan: the plan of each core, the order of products, what is causal, and whether it decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from attncc.diagnostics import AttnError, Diagnostic, Label
from attncc.plan.choose import plan
from attncc.plan.decoder import Decoder, decoder_of, decoders_of
from attncc.plan.model import Mixture, Plan, Planned
from attncc.rewrite.chains import ordered
from attncc.rewrite.engine import Step
from attncc.spec.expr import Merge
from attncc.spec.layers.dims import sequence_of
from attncc.spec.layers.model import Layer, Node, Op, sides_of, walk

_ALONG_AN_AXIS = (Op.SOFTMAX, Op.SUM, Op.MEAN, Op.LARGEST, Op.POOL, Op.PICK)
_ALONG_ALL = (Op.LARGEST_AT, Op.GATHER, Op.COLUMN_SUMS, Op.BLOCK_SUMS)
_OVER_FEATURES = (Op.LAYER_NORM, Op.RMS_NORM, Op.UNIT, Op.SCALE_NORM)


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

    @property
    def is_causal(self) -> bool:
        """Whether no token of the output reads a later one."""
        tokens = any(sequence_of(axis) is not None for axis in self.layer.out.type.axes)
        return tokens and not _mixing(self.layer, dict(self.cores), self.layer.out)


def plan_layer(layer: Layer) -> LayerPlan:
    """The plan of a layer.

    Raises:
        AttnError: as the plans of its cores, and E405 where something reads whole sequences before a causal core.
    """
    cores = tuple((each.name, plan(each.spec)) for each in layer.cores)
    _check_sides(layer, dict(cores))
    _check_causal(layer, dict(cores))
    ordered_layer, steps = ordered(layer)
    return LayerPlan(ordered_layer, cores, steps, _no_step(ordered_layer, dict(cores)))


def plans_of(planned: Planned) -> tuple[Plan, ...]:
    """The plan, or those of all branches."""
    return tuple(each for _, each in planned.branches) if isinstance(planned, Mixture) else (planned,)


def is_causal(planned: Planned) -> bool:
    """Whether no query of an attention sees a later key."""
    classes = (each for one in plans_of(planned) for each in one.domain.classes)
    return all(each.facts.causal or each.facts.empty for each in classes)


def _mixing(layer: Layer, cores: Mapping[str, Planned], start: Node) -> list[Node]:
    """What a value is made of that lets a token read later ones."""
    values = dict(layer.values)
    found: list[Node] = []
    seen: set[str] = set()
    todo = [start]
    while todo:
        node = todo.pop()
        for each in walk(node):
            if each.op is Op.NAME and each.name in values and each.name not in seen:
                seen.add(each.name)
                todo.append(values[each.name])
            elif _mixes(each, cores):
                found.append(each)
    return sorted(found, key=lambda each: (each.span.line, each.span.column) if each.span else (0, 0))


def _mixes(node: Node, cores: Mapping[str, Planned]) -> bool:
    """Whether an operator by itself lets a token read later ones."""
    if node.op is Op.ATTEND:
        return not is_causal(cores[node.name])
    if node.op in _ALONG_ALL:
        return True
    if node.op in _ALONG_AN_AXIS:
        return sequence_of(node.args[0].type.axes[node.axis]) is not None
    if node.op in _OVER_FEATURES or node.op is Op.MATMUL:
        return sequence_of(node.args[0].type.axes[-1]) is not None
    return False


def _check_causal(layer: Layer, cores: Mapping[str, Planned]) -> None:
    errors: list[Diagnostic] = []
    for _, value in layer.values:
        for call in (each for each in walk(value) if each.op is Op.ATTEND and is_causal(cores[each.name])):
            for each in (mixing for argument in call.args for mixing in _mixing(layer, cores, argument)):
                assert each.span is not None
                assert call.span is not None
                labels = (Label(each.span, "reads the whole sequence"), Label(call.span, f"`{call.name}` is causal"))
                note = "a token of what it makes depends on later ones, which a causal core must not see"
                what = f"`attend {each.name}`" if each.op is Op.ATTEND else f"`{each.op.value}`"
                message = f"{what} along the sequence comes before the causal core `{call.name}`"
                helps = ("take a core whose pattern is not causal, or let the core itself see the tokens",)
                errors.append(Diagnostic("E405", message, labels, (note,), helps))
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


def _no_step(layer: Layer, cores: Mapping[str, Planned]) -> str:
    """Why the layer does not work token by token; empty where it does."""
    if not cores:
        return "it calls no core"
    if layer.sequences != ("n",):
        return "it reads other sequences than that of its tokens"
    if not any(sequence_of(axis) for axis in layer.out.type.axes):
        return "its output has no tokens"
    for name, planned in cores.items():
        found = decoders_of(planned) if isinstance(planned, Mixture) else decoder_of(planned)
        if isinstance(found, str):
            return f"of the core `{name}`, {found}"
        decoders = found.values() if isinstance(found, dict) else (found,)
        if any(isinstance(each, Decoder) and each.reads_length for each in decoders):
            return f"the core `{name}` reads how long the whole sequence is"
    for _, value in layer.values:
        for each in walk(value):
            if each.op is Op.SIZE and each.dims[0].symbols & {"n", "m"}:
                return "it reads how many tokens there are"
            if each.op is Op.LOG_SUMS:
                return f"`{each.op.value}` is not part of a step"
            if each.op is Op.SHIFT or (each.op is Op.SLICE and each.dims[1].symbols & {"n", "m"}):
                return f"`{each.op.value}` works along the sequence"
            if each.op is not Op.ATTEND and _mixes(each, cores):
                return f"`{each.op.value}` works along the sequence"
    return ""
