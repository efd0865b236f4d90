"""Intervals and head classes → words, for derivations, `explain` and the head of a module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attncc.graph.ir import Graph, Node
from attncc.graph.ops import Op
from attncc.graph.widths import sizes_of
from attncc.plan.decoder import Decoder
from attncc.plan.layout import Layout, Strips, position
from attncc.plan.lists import Lists
from attncc.plan.model import Plan
from attncc.plan.pieces import Part, Pieces
from attncc.plan.ranges import Domain, HeadClass, Interval, Segment
from attncc.spec.data import axis_text
from attncc.spec.expr import TRUE, Expr, Local, Name, Symbol, substitute
from attncc.spec.text import text


def interval_text(interval: Interval, what: str = "keys") -> str:
    """`keys first - 511 … last`, `all keys if first < 16`: the positions, and when there are any."""
    match interval:
        case Interval(low=None, high=None):
            span = f"all {what}"
        case Interval(low=None, high=high) if high is not None:
            span = f"{what} up to {text(high)}"
        case Interval(low=low, high=None) if low is not None:
            span = f"{what} from {text(low)}"
        case Interval(low=low, high=high):
            assert low is not None and high is not None
            span = f"{what} {text(low)} … {text(high)}"
    return span if interval.when == TRUE else f"{span} if {text(interval.when)}"


def is_everything(interval: Interval) -> bool:
    """Whether the interval is the whole axis for every tile."""
    return interval == Interval(None, None)


def is_restricted(domain: Domain) -> bool:
    """Whether some head skips keys that its tiles do not touch."""
    return any(not _sees_all(each.by_row) for each in domain.classes)


def _sees_all(segments: tuple[Segment, ...]) -> bool:
    return any(is_everything(each.touched) for each in segments)


def layout_text(layout: Layout) -> str:
    """Which positions a piece takes: `128 classes: i = 128 * x + r, j = 128 * y + r for r = 0 … 127`."""
    if layout.is_plain:
        return "positions as they stand"
    if layout.rows.turn:
        return f"{layout.classes} classes: {coordinates_text(layout)} for r = 0 … {layout.classes - 1}"
    sides = ((layout.rows, "rows"), (layout.keys, "keys"))
    strips = [f"{what} {_strips_text(each)}" for each, what in sides if not each.is_everything]
    coordinates = coordinates_text(layout)
    return f"{' and '.join(strips)}{f': {coordinates}' if coordinates else ''}"


def where_text(part: Part) -> str:
    """Which positions a part takes, and whether its rows are in no other part."""
    return f"{layout_text(part.layout)}{', by themselves' if part.alone else ''}"


def _strips_text(strips: Strips) -> str:
    if strips.stop is not None:
        return f"up to {strips.stop - 1}" if strips.first is None else f"{strips.first} … {strips.stop - 1}"
    return f"on strips of {strips.width}, one every {strips.period}"


def coordinates_text(layout: Layout) -> str:
    """What positions are by coordinates: `j = 128 * (y // 8) + y % 8 + 120`."""
    sides = ((layout.rows, Name.I), (layout.keys, Name.J))
    return ", ".join(
        f"{name.value} = {_by_coordinates(position(each, name, layout))}"
        for each, name in sides
        if not each.has_positions
    )


def by_coordinates(part: Part) -> str:
    """The pattern of a part by coordinates: x for rows and y for keys, where these are not positions."""
    layout = part.layout
    plain = [name for each, name in ((layout.rows, Name.I), (layout.keys, Name.J)) if each.has_positions]
    return _by_coordinates(part.one.pattern, *plain)


def _by_coordinates(expr: Expr, *positions: Name) -> str:
    letters = {Name.I: "x", Name.J: "y", Name.RESIDUE: "r"}
    named: dict[Expr, Expr] = {Symbol(name): Local(own) for name, own in letters.items() if name not in positions}
    return text(substitute(expr, named))


def heads_text(one: HeadClass) -> str:
    """Which heads a class holds."""
    return "every head" if one.condition == TRUE else f"heads where {text(one.condition)}"


def plan_sentence(domain: Domain, pieces: Pieces | None = None, lists: Lists | None = None, most: int = 2) -> str:
    """What a tile of rows does, for at most so many classes of heads, and in which pieces long calls take it."""
    if lists is not None:
        count = len(lists.passes)
        passes = "" if count == 1 else f", in {count} passes"
        told = f"data tell the tiles of keys that a tile of rows visits{passes}"
        if not is_restricted(domain):
            return f"{told}."
        return f"{told}, within what positions allow: {_classes_sentence(domain.classes, most)}"
    whole = _classes_sentence(domain.classes, most)
    return whole if pieces is None else f"{whole} {_pieces_sentence(pieces, most)}"


def _classes_sentence(classes: Sequence[HeadClass], most: int) -> str:
    parts = [_class_sentence(each, len(classes) > 1) for each in classes[:most]]
    left = len(classes) - most
    if left > 0:
        parts.append(f"and {left} more {'class' if left == 1 else 'classes'} of heads")
    return "; ".join(parts) + "."


def _pieces_sentence(pieces: Pieces, most: int) -> str:
    count = len(pieces.pieces)
    start = f"Calls with {pieces.least} keys or more run in {count} {'piece' if count == 1 else 'pieces'}"
    parts = [part for piece in pieces.pieces for part in piece.parts]
    shown = [f"({at}) {_part_sentence(each)}" for at, each in enumerate(parts[: most + 1], 1)]
    return f"{start}: {'; '.join(shown)}{'; …' if len(parts) > most + 1 else ''}."


def _part_sentence(part: Part) -> str:
    named = "" if part.one.condition == TRUE else f"{heads_text(part.one)}: "
    visited = ", then ".join(interval_text(each.touched) for each in part.one.by_row)
    return f"{named}{text(part.pattern)}, {where_text(part)}, visits {visited}"


def _class_sentence(one: HeadClass, named: bool) -> str:
    start = f"{heads_text(one)}: a tile" if named else "a tile"
    if one.facts.empty or not one.by_row:
        return f"{start} of rows first … last visits nothing"
    visited = ", then ".join(interval_text(each.touched) for each in one.by_row)
    if all(each.full == each.touched for each in one.by_row):
        return f"{start} of rows first … last visits {visited}, without a mask"
    unmasked = ", ".join(interval_text(each.full) for each in one.by_row if each.full is not None)
    return f"{start} of rows first … last visits {visited}" + (f"; without a mask: {unmasked}" if unmasked else "")


def decoder_text(decoder: Decoder) -> str:
    """What a decoder keeps for all heads."""
    if decoder.sums:
        return "sums over the keys that all later queries see, and the other keys so far"
    if decoder.anew:
        if decoder.blocks:
            return "every key so far as it was given, and blocks that are full; choices are made anew"
        return "every key so far as it was given, of which blocks and choices are made anew"
    if decoder.back is None:
        return "every key so far"
    last = _last(decoder.back + 1)
    return f"{_first(decoder.leading)} and {last}" if decoder.leading else last


def decoder_sentence(decoder: Decoder | str) -> str:
    """What a decoder keeps, or why there is none."""
    return f"none: {decoder}." if isinstance(decoder, str) else f"keeps {decoder_text(decoder)}."


def _first(count: int) -> str:
    return "the first key" if count == 1 else f"the first {count} keys"


def _last(count: int) -> str:
    return "the last key" if count == 1 else f"the last {count} keys"


def product_widths(graph: Graph) -> Counter[str]:
    """How many products of each width a visited pair takes part in, by the names of widths."""
    return Counter(width_in(graph, node) for node in graph if node.op in (Op.DOT, Op.CONTRACT))


def width_in(graph: Graph, node: Node) -> str:
    """The name of the width that a product or a sum over channels goes through."""
    widths = (node.width, *(graph[name].width for name in reversed(node.inputs)))
    return next(each for each in widths if each is not None)


def cost_sentence(plan: Plan) -> str:
    """What a forward pass spends, in words that need no algebra: `explain` has the formulas."""
    forward = plan.gpu.forward
    sizes = sizes_of(plan.core, {each.name: each for each in plan.spec.data})

    def length(width: str) -> str:
        return axis_text(sizes[width])

    counts = product_widths(forward)
    flops = " + ".join(f"{2 * counts[width]}·{length(width)}" for width in sorted(counts))
    channels = {length(width_in(forward, node)): None for node in forward.find(Op.CHANNELS)}
    beside = f", and {' + '.join(channels)} channels one by one" if channels else ""
    return f"{flops} flops forward for each visited pair{beside}; nothing of size n·m is stored."
