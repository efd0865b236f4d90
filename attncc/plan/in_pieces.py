"""Whether a spec runs in the pieces of its pattern: what its weights and numbers have to say to that."""

from __future__ import annotations

from attncc.graph.core import Core, Kind
from attncc.graph.ir import Graph
from attncc.graph.ops import Axis, Op
from attncc.plan.layout import Layout
from attncc.plan.linear import names_read
from attncc.plan.literals import Literal, Tree, conjunctions
from attncc.plan.own_rows import may_have
from attncc.plan.partition import partition
from attncc.plan.pieces import Pieces
from attncc.plan.predicates import outer_tree
from attncc.plan.ranges import Domain
from attncc.plan.split import MOST_PRODUCTS, has_remainders
from attncc.spec.expr import Name

SUM_FIRST = "weights read a sum over the row, which has to be known before any piece runs"


def pieces_of(domain: Domain, core: Core, forward: Graph) -> tuple[Pieces | None, str]:
    """The pieces of a pattern, or None where it is best taken as a whole, and why."""
    trees = [outer_tree(each.pattern)[0] for each in domain.classes]
    if not any(has_remainders(tree) or may_have(tree) for tree in trees):
        return None, "no remainder of positions decides pairs: related keys lie side by side as they stand"
    if counts_first(forward):
        return None, SUM_FIRST
    found = partition(domain)
    if found is None:
        return None, _as_a_whole(domain)
    if core.of_kind(Kind.OFFSET_NUMBER) and not all(
        _keeps_distances(part.layout) for piece in found.pieces for part in piece.parts
    ):
        return None, "numbers of distances are read in steps, which this layout does not have"
    return found, ""


def _as_a_whole(domain: Domain) -> str:
    """Why a pattern that remainders decide does not come apart."""
    trees = [outer_tree(each.pattern) for each in domain.classes]
    if not all(is_whole and conjunctions(tree, MOST_PRODUCTS) is not None for tree, is_whole in trees):
        return f"it is a union of more than {MOST_PRODUCTS} conjunctions, which are not told apart"
    if any(_moves_with_head(tree) for tree, _ in trees):
        return "where strips lie depends on the head by a formula: a choice of constants or `h % c` may be told apart"
    return "no other layout has tiles of so much less area that it is worth its pieces"


def _moves_with_head(tree: Tree) -> bool:
    """Whether a comparison reads a remainder of positions and the head."""
    if isinstance(tree, Literal):
        return has_remainders(tree) and Name.HEAD in names_read(tree.form)
    return any(map(_moves_with_head, tree.parts))


def counts_first(forward: Graph) -> bool:
    """Whether a number of pairs depends on a sum over the row."""
    sums = [node for node in forward if node.op is Op.SUM and Axis.ROW in node.axes]
    return any(each.is_tile and forward.depends(each.name, node.name) for each in forward for node in sums)


def _keeps_distances(layout: Layout) -> bool:
    """Whether a step of a coordinate is the same step of positions on both axes."""
    return layout.is_plain or (layout.rows.width == layout.keys.width == 1 and layout.rows.period == layout.keys.period)
