"""Whether a layer works token by token, and which of its operators keep something of the tokens before.

A block of tokens counts once its last token has come: before that nothing is made of it, and no core may see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attncc.plan.decoder import Decoder, decoder_of, decoders_of
from attncc.plan.later_choices import later_choices
from attncc.plan.look_ahead import ALONG_AN_AXIS, OVER_FEATURES, WHOLE, LookAhead, plans_of
from attncc.plan.model import Mixture, Planned
from attncc.spec.data import Blocks
from attncc.spec.expr import Name, names_in
from attncc.spec.layers.dims import Dim, blocks_of, sequence_of, symbol
from attncc.spec.layers.model import Layer, Node, Op, walk
from attncc.spec.model import Align

_OF_TOKENS = (Op.SHIFT, Op.RUNNING_SUM, Op.RUNNING_MEAN, Op.AVERAGE)
_OF_BLOCKS = (Op.POOL, Op.POOL_LARGEST, Op.CONVOLVE, Op.DEPTHWISE)
KEEPING = (*_OF_TOKENS, *_OF_BLOCKS)
OF_BLOCKS = "keeps every block of tokens that has ended."
_RUN_TIME = frozenset("nm")
_TOKENS = symbol("n")
_LENGTHS = frozenset({Name.QUERIES, Name.KEYS, Name.VALID})


def no_step(layer: Layer, cores: Mapping[str, Planned]) -> str:
    """Why the layer does not work token by token; empty where it does."""
    nodes = [node for _, value in layer.values for node in walk(value)]
    if not cores and not any(node.op in KEEPING for node in nodes):
        return _alone(layer, nodes)
    if layer.sequences != ("n",):
        return "it reads other sequences than that of its tokens"
    if not any(sequence_of(axis) for axis in layer.out.type.axes):
        return "its output has no tokens"
    reach = LookAhead(layer, cores)
    calls = [node for node in nodes if node.op is Op.ATTEND]
    reasons = (*(_no_call(node, cores[node.name], reach) for node in calls), *(_reason(node, reach) for node in nodes))
    found = next((each for each in reasons if each), "")
    if not found and not any(axis == _TOKENS for axis in layer.out.type.axes):
        return "its output has no single tokens"
    return found


def _alone(layer: Layer, nodes: Sequence[Node]) -> str:
    """Why a layer that calls no core and keeps nothing has no step of its own."""
    places = any(node.op in (Op.ROTATE, Op.SINUSOIDS) for node in nodes)
    tokens = any(axis == _TOKENS for axis in layer.out.type.axes)
    if tokens and not places and LookAhead(layer, {}).value("out").most <= 0:
        return "nothing of earlier tokens is read, so that `forward` of new ones alone is one"
    return "it calls no core"


def calls_blocks(node: Node) -> bool:
    """Whether the keys of a call of a core are blocks of tokens."""
    return node.op is Op.ATTEND and node.dims[0] != _TOKENS and blocks_of(node.dims[0]) is not None


def _no_call(node: Node, planned: Planned, reach: LookAhead) -> str:
    """Why a core cannot be called for new tokens alone."""
    name, rows = node.name, node.type.axes[-2]
    if calls_blocks(node) and rows == _TOKENS:
        return _no_blocks(node, planned, reach)
    found = decoders_of(planned) if isinstance(planned, Mixture) else decoder_of(planned)
    if isinstance(found, str):
        return f"of the core `{name}`, {found}"
    if not rows == node.dims[0] == _TOKENS:
        return f"queries or keys of the core `{name}` are no single tokens"
    decoders = found.values() if isinstance(found, dict) else (found,)
    if any(isinstance(each, Decoder) and each.reads_length for each in decoders):
        return f"the core `{name}` reads how long the whole sequence is"
    return ""


def _no_blocks(node: Node, planned: Planned, reach: LookAhead) -> str:
    """Why a core cannot look at those blocks alone that have ended."""
    of = f"of the core `{node.name}`, whose keys are blocks of tokens"
    if not reach.sees_blocks_that_ended(node):
        return f"{of}, it is not proven that no query sees one before its last token has come"
    combine = planned.spec.combine
    for plan in plans_of(planned):
        spec, derived = plan.spec, [each.value for each in plan.core.derived if each.value is not None]
        fields = (spec.pattern, spec.score, spec.weight, spec.normalizer, *derived)
        if reason := later_choices(plan):
            return f"{of}, {reason}"
        if spec.align is not Align.START:
            return f"{of}, the first query stands where the last one decides: write `align = start`"
        if any(names_in(each) & _LENGTHS for each in (*fields, *([combine] if combine is not None else []))):
            return f"{of}, something reads how many there are"
        if any(isinstance(axis, Blocks) for each in spec.data for axis in each.axes):
            return f"{of}, a table has entries for all of them"
    return ""


def _reason(node: Node, reach: LookAhead) -> str:
    """Why a value cannot be made of new tokens and what is kept."""
    if node.op is Op.SIZE and node.dims[0].symbols & _RUN_TIME:
        return "it reads how many tokens there are"
    if node.op is Op.ITERATE and any(each.op in (*KEEPING, Op.ATTEND) for each in walk(node.args[1])):
        return "a loop looks at other tokens"
    if node.op is Op.LOG_SUMS:
        return f"`{node.op.value}` is not part of a step"
    along = f"`{node.op.value}` works along the sequence"
    if node.op in _OF_TOKENS:
        if node.along is not None and node.along != _TOKENS and blocks_of(node.along) is not None:
            return f"{along} of blocks"
        return "" if node.along == _TOKENS and reach.of(node).most <= 0 else along
    if node.op in _OF_BLOCKS:
        return along if node.along is not None and not _ends_in_time(node, node.along, reach) else ""
    if node.op is Op.SLICE and node.dims[1].symbols & _RUN_TIME:
        return along
    if node.op in (*WHOLE, Op.UNPOOL):
        return along
    if node.op in ALONG_AN_AXIS and node.along is not None and sequence_of(node.along) is not None:
        return along
    if node.op in OVER_FEATURES or node.op is Op.MATMUL:
        return along if sequence_of(node.args[0].type.axes[-1]) is not None else ""
    return ""


def _ends_in_time(node: Node, along: Dim, reach: LookAhead) -> bool:
    """Whether each entry is made of tokens up to the last one of its block; of features too."""
    if sequence_of(along) is None:
        return True
    by = blocks_of(node.type.axes[node.axis])
    tokens = None if by is None else reach.number(by)
    return tokens is not None and reach.of(node).most <= tokens - 1
