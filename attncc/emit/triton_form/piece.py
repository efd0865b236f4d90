"""What a kernel has to know of the piece that it runs: heads, ranges, pairs, layout, and its place among the pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from attncc.graph.core import Operand
from attncc.graph.ops import Axis
from attncc.plan.headclasses import disjunction
from attncc.plan.layout import Layout
from attncc.plan.lists import Pass
from attncc.plan.model import Plan
from attncc.plan.pieces import Part, Piece, Pieces
from attncc.plan.ranges import Domain, HeadClass
from attncc.spec.expr import FALSE, TRUE, Entry, Expr, Let, Name, Select, Top, names_in, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How kernels that walk lists of tiles find tokens, and what they ask of them.

    Attributes:
        by_head: whether every query head has lists of its own, and, where keys move, keys.
        moves: the axes whose tokens stand in another order than that of their places, with holes.
        facts: what the pattern asks of tokens.
        lists: how many entries those of the facts have that are lists, one of each row.
        tables: what it asks of pairs.
    """

    by_head: bool
    moves: frozenset[Axis]
    facts: frozenset[str]
    lists: Mapping[str, int]
    tables: frozenset[str]


@dataclass(frozen=True, slots=True)
class KernelPiece:
    """One piece, or the whole pattern.

    Attributes:
        name: what follows the names of its kernels; empty for the whole.
        domain: the ranges of every class of heads; a class that is not in the piece has none.
        pattern: the related pairs, by coordinates; None for the pattern itself.
        parts: what the classes do that are in the piece; none for the whole.
        resumes: for which heads the kernel goes on with the sums of a piece before.
        finishes: for which heads no piece follows.
        adds: whether gradients are added to those of other pieces.
        again: for which heads another piece has the parts of rows' gradients that are no sums over keys.
        has_list: whether its rows are a list, whose tiles are small.
        listing: lists of the tiles that meet, where data decide it; None where ranges say it.
    """

    name: str
    domain: Domain
    pattern: Expr | None = None
    parts: tuple[Part, ...] = ()
    resumes: Expr = FALSE
    finishes: Expr = TRUE
    adds: bool = False
    again: Expr = FALSE
    has_list: bool = False
    listing: Listing | None = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts of its parts, if tokens do not stand side by side in them."""
        found = tuple(part.layout for part in self.parts)
        return () if all(each.is_plain for each in found) else found

    @property
    def step(self) -> int:
        """How far apart neighbours of a tile stand in memory, in tokens, at most."""
        sides = [side for each in self.layouts for side in (each.rows, each.keys) if side.width == 1]
        return max((side.period for side in sides), default=1)

    @property
    def compacts(self) -> bool:
        """Whether its keys are copied side by side before the kernel runs."""
        return any(each.copies_keys for each in self.layouts)

    @property
    def sorts(self) -> bool:
        """Whether its rows are copied class by class, and what was made of them goes back."""
        return any(each.copies_rows for each in self.layouts)

    def copies(self, axis: Axis) -> bool:
        """Whether kernels see copies of the tokens of an axis, whose places say nothing of positions."""
        return self.sorts if axis is Axis.ROW else self.compacts


def whole_of(plan: Plan) -> KernelPiece:
    """The whole pattern."""
    return KernelPiece("", plan.domain)


def listed_pieces(plan: Plan) -> tuple[KernelPiece, ...]:
    """The passes over lists of tiles; none where ranges say which tiles meet."""
    passes = plan.lists.passes if plan.lists is not None else ()
    several, last = len(passes) > 1, len(passes) - 1
    return tuple(
        KernelPiece(
            name=f"_{at + 1}" if several else "",
            domain=plan.domain,
            pattern=one.pattern,
            resumes=TRUE if at > 0 else FALSE,
            finishes=TRUE if at == last else FALSE,
            adds=several,
            again=TRUE if at > 0 else FALSE,
            listing=_listing(plan, one),
        )
        for at, one in enumerate(passes)
    )


def _listing(plan: Plan, one: Pass) -> Listing:
    core = plan.core
    moves = {Axis.ROW: one.moves_rows, Axis.COLUMN: one.moves_keys}
    return Listing(
        by_head=plan.lists is not None and plan.lists.by_head,
        moves=frozenset(axis for axis, is_moved in moves.items() if is_moved),
        facts=frozenset(each.name for each in core.operands if each.kind.is_fact),
        lists={each.name: _entries(plan, each) for each in core.operands if each.listed},
        tables=frozenset(node.name for node in walk(core.pattern) if isinstance(node, Entry)),
    )


def _entries(plan: Plan, operand: Operand) -> int:
    """How many entries the lists of rows have that an operand is."""
    if isinstance(operand.value, Let) and isinstance(operand.value.value, Top):
        return operand.value.value.count
    count = next(each.axes[-1] for each in plan.spec.data if each.name == (operand.source or operand.name))
    assert isinstance(count, int)
    return count


def kernel_pieces(plan: Plan) -> tuple[KernelPiece, ...]:
    """The pieces that kernels run; none where they take the pattern as a whole."""
    pieces = plan.pieces
    if pieces is None:
        return ()
    found = tuple(_piece(plan.domain, pieces, at) for at in range(len(pieces.pieces)))
    reads_length = any(node.expr is not None and Name.KEYS in names_in(node.expr) for node in plan.gpu.forward)
    reads_length |= any(Name.KEYS in names_in(each.pattern) for piece in found for each in piece.domain.classes)
    return () if reads_length and any(each.compacts for each in found) else found


def _piece(domain: Domain, pieces: Pieces, at: int) -> KernelPiece:
    piece = pieces.pieces[at]
    shared = [each for each in pieces.pieces if not each.alone]
    follows = () if piece.alone else shared[shared.index(piece) + 1 :]
    precedes = () if piece.alone else shared[: shared.index(piece)]
    before, own, after = map(_conditions, (precedes, (piece,), follows))
    resumes = _heads_where(piece, lambda condition: condition in before)
    absent = [each.condition for each in domain.classes if each.condition not in own]
    classes = [part.one for part in piece.parts]
    if absent:
        classes.append(HeadClass(disjunction(absent), FALSE, (), (), classes[0].facts))
    pattern = reduce(
        lambda rest, part: Select(part.one.condition, part.one.pattern, rest),
        reversed(piece.parts[:-1]),
        piece.parts[-1].one.pattern,
    )
    return KernelPiece(
        name=f"_{at + 1}",
        domain=Domain(tuple(classes)),
        pattern=pattern,
        parts=piece.parts,
        resumes=resumes,
        finishes=_heads_where(piece, lambda condition: condition not in after),
        adds=len(pieces.pieces) > 1 or any(not part.layout.is_plain for part in piece.parts),
        again=TRUE if piece.alone else resumes,
        has_list=piece.has_list,
    )


def _conditions(pieces: Iterable[Piece]) -> set[Expr]:
    """The conditions of the classes of heads that are in some piece."""
    return {part.one.condition for piece in pieces for part in piece.parts}


def _heads_where(piece: Piece, chosen: Callable[[Expr], bool]) -> Expr:
    """The heads of a piece whose class is chosen: TRUE, FALSE, or a condition."""
    found = [part.one.condition for part in piece.parts if chosen(part.one.condition)]
    return TRUE if len(found) == len(piece.parts) else disjunction(found)
