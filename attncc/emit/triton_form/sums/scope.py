"""What the kernels of sums share: the tokens of both axes, where they lie, and how expressions of them are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from attncc.emit.dialects import TRITON
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.features import Feature
from attncc.emit.tile import Kernel, Sweep
from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.triton_form.places import KernelPlaces
from attncc.emit.triton_form.scope import (
    LENGTH,
    PLACE,
    POSITION,
    SCALARS,
    STEP,
    constexpr_of,
    is_literal,
    is_vector,
)
from attncc.emit.writer import Writer
from attncc.graph.ir import Node
from attncc.graph.ops import Axis
from attncc.rewrite.reassociate import StateSum
from attncc.spec.expr import Expr, Local, Name, Vector, rebuild, walk

HEAD = {Axis.ROW: "head", Axis.COLUMN: "kv_head"}
HEADS = {Axis.ROW: "heads", Axis.COLUMN: "kv_heads"}
OTHER = {Axis.ROW: Axis.COLUMN, Axis.COLUMN: Axis.ROW}
SIDE = {Axis.ROW: "row", Axis.COLUMN: "key"}


@dataclass(frozen=True, slots=True)
class Payload:
    """What features of a token are multiplied with, for each term: vectors and a number, or None of either.

    Attributes:
        vector: the operand whose vectors these are.
        factors: for each term what the vectors are multiplied with.
        numbers: for each term the number.
    """

    vector: Node
    factors: tuple[Expr | None, ...]
    numbers: tuple[Expr | None, ...]

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Everything that it reads of a token beside the vectors."""
        return tuple(each for each in (*self.factors, *self.numbers) if each is not None)


@dataclass(frozen=True, slots=True)
class Sides:
    """What all kernels of the sums of one plan know.

    Attributes:
        features: of each term, by the axis of the tokens that have them.
        payloads: by the axis of the tokens that have them: values of keys, gradients of the sums of rows.
        nodes: operands, saved numbers of rows and numbers of the call by name.
        tables: for each number of the call whether it is a table [batch, heads].
        sums: the sums of a row, by their terms.
        gradients: the operands that get gradients.
        d_values: the gradient of the values.
        by_query_head: whether features of a key differ between query heads.
    """

    features: dict[Axis, tuple[Feature, ...]]
    payloads: dict[Axis, Payload]
    nodes: dict[str, Node]
    tables: dict[str, bool]
    sums: tuple[StateSum, ...]
    gradients: tuple[str, ...]
    d_values: str
    by_query_head: bool
    widths: tuple[str, ...]

    @property
    def near(self) -> bool:
        """Whether features are relative to a token near by."""
        return any(not each.is_zero for one in self.features[Axis.ROW] for each in one.every_power)

    @property
    def of_rows(self) -> Payload:
        """The gradients of the sums of rows: None where nothing asks for them."""
        return self.payloads[Axis.ROW]

    @property
    def most_factors(self) -> int:
        """Of any term."""
        return max(len(each.formulas) for each in self.features[Axis.ROW])


class SumsScope(KernelPlaces):
    """One kernel of sums.

    Args:
        name: the kernel's, without what tells the piece.
        reads: for each axis what is read of its tokens: expressions of features or payloads.
        vectors_of: further operands whose vectors are loaded.
    """

    def __init__(
        self,
        writer: Writer,
        sides: Sides,
        piece: KernelPiece,
        used: set[str],
        name: str,
        fixed: Axis,
        reads: dict[Axis, tuple[Expr, ...]],
        vectors_of: tuple[Node, ...] = (),
    ) -> None:
        self.sides = sides
        names = {each.name for exprs in reads.values() for expr in exprs for each in leaves(expr)}
        names |= {node.name for node in vectors_of}
        nodes = [node for name, node in sides.nodes.items() if name in names]
        of_axis = {axis: tuple(node for node in nodes if node.axes[:1] == (axis,)) for axis in (fixed, OTHER[fixed])}
        uniform = tuple(node for node in nodes if not node.axes)
        sweep = Sweep((), of_axis[OTHER[fixed]], (), (), ())
        kernel = Kernel(name, fixed, uniform, of_axis[fixed], (), (), (sweep,), (), (), ())
        super().__init__(writer, kernel, {}, used, piece)
        self.of_axis = of_axis

    @property
    def name(self) -> str:
        """The kernel's own."""
        return f"_{self.kernel.name}_kernel{self.piece.name}"

    @property
    def tensors(self) -> list[str]:
        """The tensors of sums that it reads, and those that it writes."""
        raise NotImplementedError

    @property
    def lengths(self) -> list[str]:
        """What it is told beside lengths of the call."""
        raise NotImplementedError

    # --- terms ------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many terms there are."""
        return len(self.sides.features[Axis.ROW])

    @contextmanager
    def term(self, at: int) -> Iterator[None]:
        """What is done for one term alone."""
        with self.writer.block(f"if TERM == {at}:") if self.count > 1 else nullcontext():
            yield

    # --- parameters -------------------------------------------------------------------------------------------

    def numbers(self) -> list[str]:
        """The parameters of the call's numbers."""
        return [
            f"{node.name}_ptr" if self.sides.tables[node.name] else node.name
            for node in self.kernel.uniform
            if not is_literal(node)
        ]

    def pointers(self) -> list[str]:
        """The names of operands and saved numbers that it is given, in order."""
        return [node.name for axis in (Axis.ROW, Axis.COLUMN) for node in self.of_axis[axis]]

    @property
    def vectors(self) -> tuple[Node, ...]:
        """All of its operands that are made of vectors."""
        return tuple(node for axis in (Axis.ROW, Axis.COLUMN) for node in self.of_axis[axis] if is_vector(node))

    def print_signature(self, results: list[str], numbers: list[str], constexprs: list[str]) -> None:
        """The opening of the kernel."""
        widths = [constexpr_of(each) for each in self.sides.widths]
        terms = ["TERM"] if self.count > 1 else []
        constexprs = ["GROUP", *widths, "PRECISION", *terms, *constexprs, "WIDTH", "BLOCK_W", "BLOCK_E"]
        constexprs += ["BLOCK_M", "BLOCK_N"]
        whole = ["n", "m", "k_start", *numbers]
        self.writer.line(f"@triton.jit(do_not_specialize=[{', '.join(f'{chr(34)}{each}{chr(34)}' for each in whole)}])")
        groups = [
            [f"{name}_ptr" for name in (*self.pointers(), *results)],
            ["runs_ptr", "q_start_ptr", "kv_lengths_ptr", *(["classes_ptr"] if self.laid_out else [])],
            [f"{node.name}_strides" for node in self.vectors],
            [*whole, *(["classes"] if self.laid_out else []), *self.parts(), *self.numbers()],
            [f"{each}: tl.constexpr" for each in constexprs],
        ]
        self.writer.listing(f"def {self.name}(", groups, "):")

    def parts(self) -> list[str]:
        """What tells the part of heads whose keys are met, where heads differ in their strips."""
        return ["part"] if self.laid_out and self.has_parts and not self.rows_fixed else []

    # --- places -----------------------------------------------------------------------------------------------

    @property
    def by_head(self) -> bool:
        """Whether a program has a query head of its own."""
        raise NotImplementedError

    def print_heads(self) -> None:
        """The program's head and batch entry, and how many there are."""
        writer = self.writer
        if self.by_head:
            writer.line("head = tl.program_id(1)")
            writer.line("heads = tl.num_programs(1)")
            writer.line("kv_head = head // GROUP")
            writer.line("kv_heads = heads // GROUP")
        else:
            writer.line("kv_head = tl.program_id(1)")
            writer.line("kv_heads = tl.num_programs(1)")
            writer.line("heads = kv_heads * GROUP")
        writer.line("batch = tl.program_id(2)")
        self.print_call()

    def print_call(self) -> None:
        """Where the call stands."""
        self.writer.line("q_start = tl.cast(tl.load(q_start_ptr + batch), tl.int32)")
        if self.laid_out:
            self._print_class("lies", clips=False)
        else:
            self.writer.line("keys = tl.minimum(m, tl.cast(tl.load(kv_lengths_ptr + batch), tl.int32))")

    def print_numbers(self) -> None:
        """The call's numbers for the program's head."""
        for node in self.kernel.uniform:
            if is_literal(node):
                self.writer.line(f"{node.name} = {self.expression(node.value, pair=False)}")
            elif self.sides.tables[node.name]:
                self.writer.line(f"{node.name} = tl.load({node.name}_ptr + batch * heads + head)")

    def print_bases(self, axis: Axis) -> None:
        """Where the first token of the head, or of its class, lies in every tensor of an axis."""
        for node in self.of_axis[axis]:
            if is_vector(node):
                place = f" + tl.cast({PLACE[axis]}, tl.int64) * {node.name}_strides[2]" if self.laid_out else ""
                base = f"{node.name}_ptr + {self.of_head(node.name, HEAD[axis])}{place}"
                self.writer.line(f"{node.name}_at = {base}")
                self.writer.line(f"{node.name}_stride = {self.stride_of(node)}")
            else:
                self.writer.line(f"{node.name}_at = {node.name}_ptr + {self.first_place(axis)}")

    def stride_of(self, node: Node) -> str:
        """From one token of the class to the next."""
        return f"{node.name}_strides[2] * {STEP[node.axes[0]]}" if self.laid_out else f"{node.name}_strides[2]"

    def first_place(self, axis: Axis) -> str:
        """The place of the first token of the head, or of its class, in a tensor without gaps."""
        place = f" + {PLACE[axis]}" if self.laid_out else ""
        return f"(tl.cast(batch, tl.int64) * {HEADS[axis]} + {HEAD[axis]}) * {LENGTH[axis]}{place}"

    def step(self, axis: Axis) -> str:
        """From one token of a class to the next, in tokens; empty where they stand side by side."""
        return STEP[axis] if self.laid_out else ""

    # --- expressions ------------------------------------------------------------------------------------------

    def text(self, expr: Expr, axis: Axis, *, tile: bool, prefix: str = "", channel: str = "", context: int = 0) -> str:
        """An expression of tokens of one axis.

        Args:
            tile: whether it has a number for each lane and channel.
            prefix: of names that tell one token instead of each lane.
            channel: what names of vectors end in where one channel of them is read.
        """
        position = f"{prefix}at" if prefix else POSITION[axis]

        def spread(name: str) -> str:
            return f"{name}[:, None]" if tile and not prefix else name

        def symbol(name: Name) -> str:
            return spread(position) if name in (Name.I, Name.J) else SCALARS[name]

        def local(name: str) -> str:
            if name.startswith(_VECTOR):
                return f"{prefix}{name.removeprefix(_VECTOR)}{channel}{'[None, :]' if tile and prefix else ''}"
            node = self.node(name)
            return name if node is None or not node.axes else spread(f"{prefix}{name}")

        writer = ExpressionWriter(TRITON, symbol, local, is_positive=self.is_positive)
        written = writer.write(named(expr), context)
        self.used |= writer.used
        return written


_VECTOR = "vector "


def named(expr: Expr) -> Expr:
    """An expression with vectors under names of their own, as if they were numbers."""
    if isinstance(expr, Vector):
        return Local(f"{_VECTOR}{expr.name}")
    return rebuild(expr, named)


def leaves(expr: Expr) -> Iterable[Local | Vector]:
    """The operands and numbers that an expression reads."""
    return (each for each in walk(expr) if isinstance(each, Local | Vector))
