"""Whether a layer works token by token, and which of its operators keep something of the tokens before."""

from __future__ import annotations

from collections.abc import Mapping

from attncc.plan.decoder import Decoder, decoder_of, decoders_of
from attncc.plan.look_ahead import ALONG_AN_AXIS, OVER_FEATURES, WHOLE, LookAhead
from attncc.plan.model import Mixture, Planned
from attncc.spec.layers.dims import constant, sequence_of, symbol
from attncc.spec.layers.model import Layer, Node, Op, walk

KEEPING = (Op.SHIFT, Op.CONVOLVE, Op.DEPTHWISE, Op.RUNNING_SUM, Op.RUNNING_MEAN, Op.AVERAGE)
_RUN_TIME = frozenset("nm")


def no_step(layer: Layer, cores: Mapping[str, Planned]) -> str:
    """Why the layer does not work token by token; empty where it does."""
    nodes = [node for _, value in layer.values for node in walk(value)]
    if not cores and not any(node.op in KEEPING for node in nodes):
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
    reach = LookAhead(layer, cores)
    for node in nodes:
        reason = _reason(node, reach)
        if reason:
            return reason
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
    if node.op in KEEPING:
        tokens = node.along == symbol("n") and (node.op not in (Op.CONVOLVE, Op.DEPTHWISE) or _is_plain(node))
        return "" if tokens and reach.of(node).most <= max(reach.of(node.args[0]).most, 0) else along
    if node.op is Op.SLICE and node.dims[1].symbols & _RUN_TIME:
        return along
    if node.op in (*WHOLE, Op.POOL, Op.POOL_LARGEST, Op.UNPOOL):
        return along
    if node.op in ALONG_AN_AXIS and node.along is not None and sequence_of(node.along) is not None:
        return along
    if node.op in OVER_FEATURES or node.op is Op.MATMUL:
        return along if sequence_of(node.args[0].type.axes[-1]) is not None else ""
    return ""


def _is_plain(node: Node) -> bool:
    """Whether a convolution makes an entry for each token, of this one and those before."""
    return node.dims[0] == constant(1)
