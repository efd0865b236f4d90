"""What the text of a kernel and of its tile body agree on: names, broadcasting, and the expressions of one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attncc.emit.dialects import TRITON
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.tile import Kernel, Sweep
from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.writer import Writer
from attncc.graph.ir import Node
from attncc.graph.ops import Axis, Op
from attncc.plan.layout import position
from attncc.rewrite.bounds import is_positive
from attncc.spec.data import Axis as Length
from attncc.spec.expr import Const, Expr, Local, Name, Vector, names_in, walk

LOWEST = "-3.4028234663852886e38"

POSITION = {Axis.ROW: "i", Axis.COLUMN: "j"}
START = {Axis.ROW: "row", Axis.COLUMN: "column"}
LANES = {Axis.ROW: "row_lanes", Axis.COLUMN: "column_lanes"}
BLOCK = {Axis.ROW: "BLOCK_M", Axis.COLUMN: "BLOCK_N"}
ORIGIN = {Axis.ROW: "q_start", Axis.COLUMN: "k_start"}
LENGTH = {Axis.ROW: "n", Axis.COLUMN: "m"}
SCALARS = {
    Name.HEAD: "head",
    Name.HEADS: "heads",
    Name.QUERIES: "n",
    Name.KEYS: "m",
    Name.RESIDUE: "residue",
}
# Where tokens of a piece do not stand side by side: the coordinate of a lane, and what is loaded for each axis.
COORDINATE = {Axis.ROW: "x", Axis.COLUMN: "y"}
PLACE = {Axis.ROW: "row_place", Axis.COLUMN: "key_place"}  # where the first token of the class lies
STEP = {Axis.ROW: "row_step", Axis.COLUMN: "key_step"}  # from one token of the class to the next
FROM = {Axis.ROW: "row_origin", Axis.COLUMN: "key_origin"}  # the coordinate of the first token
COUNT = {Axis.ROW: "row_count", Axis.COLUMN: "key_count"}  # how many tokens may be seen
LIST = {Axis.ROW: "LIST_M", Axis.COLUMN: "LIST_N"}  # of a tile that lists name
SLOTS = {Axis.ROW: "row_slots", Axis.COLUMN: "key_slots"}  # how many tokens and holes an entry of lists has
OF_ENTRY = {Axis.ROW: "rows_of_entry", Axis.COLUMN: "keys_of_entry"}  # where those of an entry begin
OTHER = {
    "lse": 'float("-inf")',
    "count": "1.0",
}  # what a saved row number reads as beyond the last row, where 0 would do harm


# What kernels are told of classes of positions: how many there are, for which heads the keys are, and which one it is.
OF_CLASSES = ("classes", "part", "residue")
CPUS_ALONE = "cpus_alone"  # marks kernels that are only translated to C, and then leave the text


def width_of(node: Node) -> tuple[str, str]:
    """The constexprs of a vector's width and of the block that holds it."""
    name = constexpr_of(node.width or ("e" if Axis.VALUE in node.axes else "d"))
    return name, f"BLOCK_{name}"


def constexpr_of(width: str) -> str:
    """The constexpr of a width's name."""
    return width.upper()


def list_size(name: str) -> str:
    """The name of how many rows there is room for in lists, of which entries lie side by side."""
    return f"{name}_size_2"


def is_vector(node: Node) -> bool:
    """Whether a node is made of vectors, one a row or a key."""
    return bool(set(node.axes) & {Axis.FEATURE, Axis.VALUE})


def is_literal(node: Node) -> bool:
    """Whether a number is a constant, written where it is read."""
    return isinstance(node.expr, Const)


def is_by_offset(node: Node) -> bool:
    """Whether a node holds a number for each distance."""
    return Axis.OFFSET in node.axes


def is_offset_sum(node: Node) -> bool:
    """Whether a node is a sum over the pairs at one distance."""
    return node.op is Op.SUM and is_by_offset(node)


def tiled(kernels: Iterable[Kernel]) -> frozenset[str]:
    """The vectors of which kernels multiply whole tiles."""
    kernels = list(kernels)
    nodes = [node for each in kernels for sweep in each.sweeps for node in (*sweep.body, *sweep.reductions)]
    added = [name for each in kernels for node in each.added for name in (node.name, *node.inputs)]
    return frozenset(added).union(*(node.inputs for node in nodes if node.op in (Op.DOT, Op.CONTRACT)))


def by_channel(kernels: Iterable[Kernel]) -> frozenset[str]:
    """The vectors that kernels read channel by channel."""
    nodes = [node for each in kernels for sweep in each.sweeps for node in (*sweep.body, *sweep.reductions)]
    found = [node.value for node in nodes if node.op in (Op.CHANNELS, Op.SPREAD)]
    return frozenset(each.name for expr in found for each in walk(expr) if isinstance(each, Vector))


class KernelScope:
    """One kernel of the tile program, and how its numbers are written.

    Args:
        table_axes: the axes of each table.
        used: names of library helpers, extended by whatever is written.
        piece: what the kernel runs.
        keeps_residual: whether this is a forward kernel whose backward subtracts a number of `out`, so that it is to be
            exact beyond 16 bits, and can also store what rounding takes from it.
        by_states: whether it can leave full tiles to kernels of sums.
    """

    def __init__(
        self,
        writer: Writer,
        kernel: Kernel,
        table_axes: Mapping[str, tuple[Length, ...]],
        used: set[str],
        piece: KernelPiece,
        *,
        keeps_residual: bool = False,
        by_states: bool = False,
    ) -> None:
        self.piece = piece
        self.by_states = by_states
        self.laid_out = bool(piece.layouts)
        self.listing = piece.listing
        self.table_axes = table_axes
        self.writer = writer
        self.kernel = kernel
        self.used = used
        self.fixed, self.swept = kernel.fixed, kernel.swept
        self.rows_fixed = self.fixed is Axis.ROW
        self.keeps_residual = keeps_residual
        self.tiled = tiled([kernel])
        self.by_channel = by_channel([kernel])
        self.offset_sums = tuple(node for sweep in kernel.sweeps for node in sweep.sums if is_offset_sum(node))

    @property
    def decorator(self) -> str:
        """What stands above functions."""
        return CPUS_ALONE if self.kernel.in_order else "triton.jit"

    # --- tensors ----------------------------------------------------------------------------------------------

    @property
    def vectors(self) -> tuple[Node, ...]:
        """The vectors that are loaded tile by tile."""
        return tuple(node for node in self.kernel.operands if is_vector(node) and node.name in self.tiled)

    @property
    def channels(self) -> tuple[Node, ...]:
        """The vectors that are loaded channel by channel."""
        return tuple(node for node in self.kernel.operands if node.name in self.by_channel)

    @property
    def numbers_of_tokens(self) -> tuple[Node, ...]:
        """The operands that are numbers of rows or keys."""
        return tuple(node for node in self.kernel.operands if not is_vector(node) and self._is_token(node))

    @property
    def by_offset(self) -> tuple[Node, ...]:
        """The operands that are numbers of distances."""
        return tuple(node for node in self.kernel.tables if is_by_offset(node))

    @property
    def entries(self) -> tuple[Node, ...]:
        """The tables."""
        return tuple(node for node in self.kernel.tables if Axis.TABLE in node.axes)

    @property
    def hides_lanes(self) -> bool:
        """Whether what is not visible has to be told by a mask: it reads as 0, of which a product alone makes 0."""
        plain = len(self.vectors) == len(self.kernel.operands) and self.listing is None
        return not plain or bool(self.offset_sums)

    def carried(self, sweep: Sweep) -> list[str]:
        """What goes from tile to tile in registers."""
        return [node.name for node in sweep.reductions if not is_offset_sum(node)]

    def _is_token(self, node: Node) -> bool:
        return node.axes in ((Axis.ROW,), (Axis.COLUMN,))

    # --- where tokens lie -------------------------------------------------------------------------------------

    def stride(self, node: Node) -> str:
        """From one vector of the tile to the next."""
        return f"{node.name}_stride" if self.laid_out else f"{node.name}_strides[2]"

    def limit(self, axis: Axis) -> str:
        """How many tokens there are to see."""
        return COUNT[axis] if self.laid_out else {Axis.ROW: "n", Axis.COLUMN: "keys"}[axis]

    def moves(self, axis: Axis) -> bool:
        """Whether tokens stand in the order of lists."""
        return self.listing is not None and axis in self.listing.moves

    def is_fact(self, node: Node) -> bool:
        """Whether the pattern asks it of tokens."""
        return self.listing is not None and node.name in self.listing.facts

    def is_list(self, node: Node) -> bool:
        """Whether the pattern asks whether numbers are in a list that it is, one of each row."""
        return self.listing is not None and node.name in self.listing.lists

    @property
    def lists(self) -> tuple[Node, ...]:
        """The lists of rows."""
        return tuple(node for node in self.kernel.operands if self.is_list(node))

    def length(self, axis: Axis) -> str:
        """How long tensors are along an axis."""
        return SLOTS[axis] if self.moves(axis) else LENGTH[axis]

    def exist(self, axis: Axis, limit: str = "") -> str:
        """The text that tells which lanes have a token."""
        return f"{PLACE[axis] if self.moves(axis) else LANES[axis]} < {limit or self.limit(axis)}"

    def place(self, axis: Axis, at: str) -> str:
        """Where the token of a lane, or of the first lane of a tile, lies."""
        if not self.laid_out:
            return at
        at = f"({at})" if " " in at and "(" not in at.split(" ")[0] else at
        return f"{PLACE[axis]} + {at} * {STEP[axis]}"

    def position(self, axis: Axis, lanes: str = "") -> str:
        """The position of each lane, or of other places of a class."""
        lanes, origin = lanes or (PLACE[axis] if self.moves(axis) else LANES[axis]), ORIGIN[axis]
        if not self.laid_out:
            return f"{origin} + {lanes}"
        if self.piece.copies(axis):
            layout, name = self.piece.layouts[0], Name.I if axis is Axis.ROW else Name.J
            here = {name: f"({FROM[axis]} + {lanes})", Name.RESIDUE: SCALARS[Name.RESIDUE]}
            writer = ExpressionWriter(TRITON, lambda symbol: here[symbol], lambda local: local)
            text = writer.write(position(layout.rows if axis is Axis.ROW else layout.keys, name, layout))
            self.used |= writer.used
            return text
        return f"{origin} + {self.place(axis, lanes)}"

    # --- expressions ------------------------------------------------------------------------------------------

    def _writer_for(self, pair: bool, rename: dict[str, str], names: Mapping[Axis, str]) -> ExpressionWriter:
        """An expression writer for numbers of pairs (broadcast) or of one axis."""

        def symbol(name: Name) -> str:
            if name in (Name.I, Name.J):
                axis = Axis.ROW if name is Name.I else Axis.COLUMN
                return self.broadcast(names[axis], axis, pair)
            return SCALARS[name]

        def local(name: str) -> str:
            node = self.node(name)
            text = rename.get(name, name)
            if node is None or node.is_tile or not node.axes:
                return text
            return self.broadcast(text, node.axes[0], pair)

        return ExpressionWriter(TRITON, symbol, local, is_positive=self.is_positive)

    def is_positive(self, expr: Expr) -> bool:
        """Whether a number of the kernel is proven > 0."""

        def value_of(name: str) -> Expr | None:
            node = self.node(name)
            return node.expr if node is not None and node.op is Op.NUMBER else None

        return is_positive(expr, value_of)

    def broadcast(self, text: str, axis: Axis, pair: bool = True) -> str:
        """Numbers of one axis, spread over pairs."""
        if not pair:
            return text
        return f"{text}[:, None]" if axis is self.fixed else f"{text}[None, :]"

    def node(self, name: str) -> Node | None:
        if name == "related":
            return None
        kernel = self.kernel
        everything = [*kernel.uniform, *kernel.loads, *kernel.before, *kernel.after]
        for sweep in kernel.sweeps:
            everything += [*sweep.before, *sweep.loads, *sweep.numbers, *sweep.body, *sweep.reductions]
        return next((node for node in everything if node.name == name), None)

    def expression(self, expr: Expr, pair: bool, rename: dict[str, str] | None = None, context: int = 0) -> str:
        writer = self._writer_for(pair, rename or {}, POSITION)
        text = writer.write(expr, context)
        self.used |= writer.used
        return text

    def related(self, predicate: Expr, context: int = 0) -> str:
        """The text of a predicate of pairs, by coordinates where tokens do not stand side by side."""
        writer = self._writer_for(True, {}, COORDINATE if self.laid_out else POSITION)
        text = writer.write(predicate, context)
        self.used |= writer.used
        return text

    def names_read(self, sweep: Sweep) -> set[Name]:
        names = self._names_of_numbers(sweep) | self._names_of_pattern(sweep)
        by_class = self.laid_out and self.piece.copies(self.swept) and self.reads_position(sweep, self.swept)
        return names | ({Name.RESIDUE} if by_class else set())

    def _names_of_numbers(self, sweep: Sweep) -> set[Name]:
        ops = (Op.NUMBER, Op.ENTRY, Op.CHANNELS, Op.SPREAD)
        nodes = [node for node in (*sweep.body, *sweep.numbers, *sweep.sums) if node.op in ops]
        return {name for node in nodes if node.expr is not None for name in names_in(node.expr)}

    def _names_of_pattern(self, sweep: Sweep) -> set[Name]:
        related = [node.value for node in sweep.body if node.op is Op.RELATED]
        return {name for each in related for name in names_in(self.pattern(each))}

    def pattern(self, own: Expr) -> Expr:
        """The pairs of the piece, or those of the pattern itself."""
        return own if self.piece.pattern is None else self.piece.pattern

    def spans(self, expr: Expr, axis: Axis) -> bool:
        """Whether a number of the pair differs along an axis."""
        position = Name.I if axis is Axis.ROW else Name.J
        read = [self.node(each.name) for each in walk(expr) if isinstance(each, Local)]
        return position in names_in(expr) or any(node is not None and axis in node.axes for node in read)

    def reads_position(self, sweep: Sweep, axis: Axis) -> bool:
        names = self._names_of_numbers(sweep)
        names |= set() if self.laid_out else self._names_of_pattern(sweep)
        return (Name.I if axis is Axis.ROW else Name.J) in names

    def reads_coordinate(self, sweep: Sweep, axis: Axis) -> bool:
        """Whether pairs are related by coordinates of an axis, beside positions."""
        return self.laid_out and (Name.I if axis is Axis.ROW else Name.J) in self._names_of_pattern(sweep)

    def point_to_lists(self, name: str, pointer: str) -> None:
        """Where the list of each row begins."""
        self.used.add("_lists_at")
        self.writer.line(f"{name}_at = _lists_at({pointer}, {BLOCK[Axis.ROW]})")

    def load_facts(self, name: str, pointer: str, visible: str, axis: Axis) -> None:
        """What the pattern asks of rows or keys."""
        self.used.add("_load_facts")
        self.writer.line(f"{name} = _load_facts({pointer}, {visible}, {BLOCK[axis]})")

    def load_numbers(self, name: str, pointer: str, visible: str, axis: Axis, masked: str) -> None:
        """A number of rows or keys. A log-sum-exp of -inf (no key at all) becomes +inf, so that all weights are 0."""
        other = OTHER.get(name, "0.0")
        step = f"{STEP[axis]}, " if self.laid_out else ""
        self.used |= {"_load_spaced"} if step else set()
        function = "_load_spaced" if step else "_load_numbers"
        self.writer.line(f"{name} = {function}({pointer}, {step}{visible}, {other}, {BLOCK[axis]}, {masked})")
        if name == "lse":
            self.writer.line('lse = tl.where(lse == float("-inf"), float("inf"), lse)')
