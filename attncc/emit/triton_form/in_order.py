"""Tile program → sums of keys that a head's tiles of rows carry from one to the next, for CPUs alone.

On GPUs all tiles of rows run at once, so that other kernels make the sums of each before. Where one thread has all
tiles of a head, one after the other, what earlier rows have seen is summed already: a tile adds the keys that are new
to it, and multiplies its rows with the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attncc.emit.features import Feature
from attncc.emit.tile import Sweep
from attncc.emit.triton_form.places import KernelPlaces
from attncc.emit.triton_form.scope import BLOCK, LANES, POSITION, KernelScope, width_of
from attncc.emit.triton_form.sums.running import RunningSums
from attncc.emit.triton_form.sums.scope import Sides, leaves
from attncc.graph.core import Core
from attncc.graph.ir import Node
from attncc.graph.ops import Axis
from attncc.rewrite.reassociate import StateSum
from attncc.spec.expr import Binary, Call, Const, Expr, Let, Local, Name, Negate, Vector, names_in, rebuild, walk

STATES = ("state", "plain", "summed")  # what programs hand on: sums of vectors, of numbers, and of how many tiles
_ONE = Const(1)


@dataclass(frozen=True, slots=True)
class Term:
    """What one term's sums are made of: a vector of a row and one of a key, each times a number of its token."""

    row: str
    row_factor: Expr
    key: str
    key_factor: Expr


@dataclass(frozen=True, slots=True)
class SumsInOrder:
    """The sums of a plan that can be carried.

    Attributes:
        values: the operand that is summed.
        width: the name of the width of all vectors.
        sums: the sums of a row, by their terms.
        formulas: of operands that are made feature by feature of the data of their token alone, where all are that
            are made: the kernel may take the data, and make them tile by tile.
    """

    terms: tuple[Term, ...]
    values: str
    width: str
    sums: tuple[StateSum, ...]
    formulas: Mapping[str, Expr]

    @property
    def block(self) -> str:
        """The width of all vectors, padded."""
        return f"BLOCK_{self.width.upper()}"

    def state(self, at: int) -> str:
        """Where a term's sums of vectors begin."""
        return f"state_ptr + {at} * ({self.block} * BLOCK_E)" if at else "state_ptr"

    def plain(self, at: int) -> str:
        """Where a term's sums of numbers are."""
        return f"plain_ptr + {f'{at} * {self.block} + ' if at else ''}tl.arange(0, {self.block})"

    def met_by(self, sweep: Sweep) -> bool:
        """Whether a sweep loads all that the sums are made of, as they need it."""
        loaded = {node.name for node in sweep.loads}
        keys = all(term.key in loaded and term.key_factor == _ONE for term in self.terms)
        return keys and self.values in loaded


def sums_in_order(core: Core, sides: Sides, running: RunningSums, known: frozenset[str]) -> SumsInOrder | None:
    """None where runs of keys do not begin at the first one, or terms are no plain products.

    Args:
        known: the numbers of the call that the kernel has.
    """
    payload = sides.payloads[Axis.COLUMN]
    if running.slides or len(running.segments) != 1 or sides.near or sides.by_query_head:
        return None
    if any(each not in (None, _ONE) for each in (*payload.factors, *payload.numbers)):
        return None
    pairs = zip(sides.features[Axis.ROW], sides.features[Axis.COLUMN], strict=True)
    terms = [_term(row, key) for row, key in pairs]
    factors = [factor for each in terms if each is not None for factor in (each.row_factor, each.key_factor)]
    if any(each.name not in known for factor in factors for each in leaves(factor)):
        return None
    widths = {width for each in sides.features[Axis.ROW] for width in each.widths}
    if len(widths) != 1 or None in terms:
        return None
    return SumsInOrder(tuple(filter(None, terms)), payload.vector.name, widths.pop(), sides.sums, _formulas(core))


def _formulas(core: Core) -> dict[str, Expr]:
    vectors = (each for each in core.operands if each.kind.is_vector and each.value is not None)
    found = {each.name: _of_feature(each.value, each.name) for each in vectors if each.value is not None}
    return {name: each for name, each in found.items() if each is not None} if None not in found.values() else {}


def _of_feature(value: Expr, name: str) -> Expr | None:
    """A formula of one feature, under the name of what it makes; None where it is made of more."""
    if any(not isinstance(each, Vector | Const | Binary | Negate | Call | Let) for each in walk(value)):
        return None

    def named(expr: Expr) -> Expr:
        return Local(name) if isinstance(expr, Vector) else rebuild(expr, named)

    return named(value)


def _term(row: Feature, key: Feature) -> Term | None:
    match row.formulas, key.formulas:
        case (Vector(name=own),), (Vector(name=other),):
            return Term(own, row.coefficient, other, key.coefficient)
    return None


def print_sums_in_order(kernel: KernelPlaces, carried: SumsInOrder) -> None:
    """Take up the keys that are new to the tile, and begin its rows' sums with those of all that were taken up."""
    writer = kernel.writer
    width, values = carried.block, "BLOCK_E"
    writer.line("spot = tl.cast(batch, tl.int64) * heads + head")
    writer.line("summed = tl.load(summed_ptr + spot)")
    places = len(carried.terms)
    several = f"{places} * " if places > 1 else ""
    writer.line(f"state_ptr += spot * ({several}{width} * {values})")
    writer.line(f"plain_ptr += spot * ({several}{width})")
    with writer.block("if f1 < summed:  # the run has lost keys, and nothing is ever subtracted"):
        kernel.used.add("_sums_at")
        for at in range(places):
            sums = f"{carried.state(at)}, 1, {values}, {width}, {values}"
            writer.line(f"tl.store(_sums_at({sums}), tl.zeros([{width}, {values}], tl.float32))")
            writer.line(f"tl.store({carried.plain(at)}, tl.zeros([{width}], tl.float32))")
        writer.line("summed = 0")
    with writer.block("for tile in range(tl.maximum(summed, f0), f1):"):
        names = dict.fromkeys((carried.values, *(term.key for term in carried.terms)))
        for node in kernel.vectors:
            if node.name in names:
                sizes = f"{BLOCK[Axis.COLUMN]}, {', '.join(width_of(node))}"
                place = f"{node.name}_ptr + tile * {node.name}_step"
                writer.line(f"{node.name} = _load_tile({place}, {kernel.stride(node)}, visible, {sizes}, False)")
                print_formula(kernel, carried, node)
        if any(Name.J in names_in(term.key_factor) for term in carried.terms):
            lanes = LANES[Axis.COLUMN]
            writer.line(f"{lanes} = tile * BLOCK_N + tl.arange(0, BLOCK_N)")
            writer.line(f"{POSITION[Axis.COLUMN]} = {kernel.position(Axis.COLUMN)}")
        print_added(kernel, carried)
    writer.line("summed = f1")
    for one in carried.sums:
        shape = f"[{BLOCK[Axis.ROW]}, {values}]" if one.of_values else f"[{BLOCK[Axis.ROW]}]"
        writer.line(f"{one.node} = tl.zeros({shape}, tl.float32)")
    for number, term in enumerate(carried.terms):
        features = _features(kernel, term.row, term.row_factor)
        for one in carried.sums:
            if number not in one.terms:
                continue
            if one.of_values:
                sums = f"{carried.state(number)}, {values}, visible, {width}, {values}, {values}, False"
                writer.line(f"state = _load_tile({sums})")
                writer.line(f"{one.node} = _dot({features}, state, {one.node}, PRECISION)")
            else:
                writer.line(f"plain = tl.load({carried.plain(number)})")
                writer.line(f"{one.node} += tl.sum({features} * plain[None, :], 1)")


def print_added(kernel: KernelScope, carried: SumsInOrder) -> None:
    """Add a tile of keys that are loaded to the sums."""
    writer, width, values = kernel.writer, carried.block, "BLOCK_E"
    for at, term in enumerate(carried.terms):
        features = _features(kernel, term.key, term.key_factor)
        product = f"tl.trans({features}), {carried.values}, {width}, {values}"
        writer.line(f"_add_product({carried.state(at)}, {values}, {product})")
        writer.line(f"numbers = tl.sum({features}, 0)")
        writer.line(f"tl.store({carried.plain(at)}, tl.load({carried.plain(at)}) + numbers)")


def print_formula(kernel: KernelScope, carried: SumsInOrder | None, node: Node) -> None:
    """What is made of data that were loaded; beyond their width vectors are 0."""
    formula = carried.formulas.get(node.name) if carried is not None else None
    if formula is None:
        return
    width, block = width_of(node)
    with kernel.writer.block("if RAW:"):
        made = kernel.expression(formula, pair=False)
        kernel.writer.line(f"{node.name} = tl.where(tl.arange(0, {block})[None, :] < {width}, {made}, 0.0)")


def _features(kernel: KernelScope, name: str, factor: Expr) -> str:
    """A vector times its number, under a name."""
    if factor == _ONE:
        return name
    text = kernel.expression(factor, pair=False)
    lanes = "[:, None]" if names_in(factor) & {Name.I, Name.J} else ""
    kernel.writer.line(f"{name}_features = {name} * ({text}){lanes}")
    return f"{name}_features"
