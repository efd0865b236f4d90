"""Tile program → Triton: the helper that is the tile body of one sweep: its parameters, its text, and calls to it."""

from __future__ import annotations

from attncc.emit.tile import Sweep
from attncc.emit.triton_form.body import BodyPrinter
from attncc.emit.triton_form.in_order import SumsInOrder
from attncc.emit.triton_form.places import KernelPlaces
from attncc.emit.triton_form.scope import (
    BLOCK,
    COORDINATE,
    FROM,
    OF_ENTRY,
    ORIGIN,
    PLACE,
    POSITION,
    SCALARS,
    START,
    STEP,
    is_literal,
    is_offset_sum,
    is_vector,
    list_size,
    width_of,
)
from attncc.graph.ir import Node, peaked
from attncc.graph.ops import Axis


class TileFunctions(KernelPlaces):
    """The tile bodies of one kernel, as functions."""

    in_order: SumsInOrder | None = None  # sums that tiles of rows carry from one to the next

    def adds_keys_of(self, sweep: Sweep) -> bool:
        """Whether the tile body of a sweep adds its keys to sums that later rows begin with."""
        return self.in_order is not None and self.in_order.met_by(sweep)

    def tile_name(self, at: int) -> str:
        """The helper of one sweep."""
        count = "" if at == len(self.kernel.sweeps) - 1 else "_count"
        return f"_{self.kernel.name}{count}_tile{self.piece.name}"

    def body_arguments(self, sweep: Sweep) -> tuple[list[list[str]], list[str]]:
        """Parameters of the tile body (values; pointers and strides; places and scalars), and its constexprs."""
        carried = self.carried(sweep)
        read = {name for node in (*sweep.body, *sweep.sums, *sweep.numbers) for name in node.inputs}
        read |= set(peaked(sweep.peak)) if sweep.peak is not None else set()
        read |= {name for node in self.kernel.added for name in node.inputs}
        fixed = [name for node in self.kernel.loads if node.name in read for name in self._held(node)]
        fixed += [node.name for node in self.kernel.before if node.name in read]
        fixed += [node.name for earlier in self._earlier(sweep) for node in earlier.reductions if node.name in read]
        fixed += [node.name for each in (*self._earlier(sweep), sweep) for node in each.before if node.name in read]
        fixed += [f"{node.name}_at" for node in self.by_offset if node.name in read]
        fixed += [f"{node.name}_{what}" for node in sweep.sums if is_offset_sum(node) for what in ("at", "line")]
        fixed += ["alive"] if self.offset_sums else []
        loads = self._swept_loads(sweep)
        pointers = [f"{name}_ptr" for node in loads for name in self.tensors_of(node)]
        pointers += [f"{node.name}_ptr" for node in self.entries if node.name in read]
        pointers += ["state_ptr", "plain_ptr"] if self.adds_keys_of(sweep) else []
        strides = [f"{node.name}_stride" for node in loads if node in self.vectors]
        scalars = [node.name for node in self.kernel.uniform if node.name in read and not is_literal(node)]
        scalars += [size for node in self.entries if node.name in read for size in self.sizes(node)]
        scalars += [list_size(node.name) for node in self.lists if node.name in read]
        names = self.names_read(sweep)
        positions = [POSITION[self.fixed]] if self.reads_position(sweep, self.fixed) else []
        positions += [COORDINATE[self.fixed]] if self.reads_coordinate(sweep, self.fixed) else []
        needs_origin = self.reads_position(sweep, self.swept)
        needs_origin &= not self.piece.copies(self.swept)
        places = [self._lanes_from(), *([ORIGIN[self.swept]] if needs_origin else [])]
        places += self._class_scalars(sweep)
        by_ranges = self.rows_fixed and self.listing is None
        places += ["low", "high"] if by_ranges else [self.limit(self.swept)]
        places += ["adds"] if self.adds_keys_of(sweep) else []
        extra = [text for name, text in SCALARS.items() if name in names]
        extra += [self.length(node.axes[0]) for node in self.channels if node.name in read]
        extra += ["batch" for node in self.entries if node.name in read and self.is_batched(node)]
        extra = [name for name in dict.fromkeys(extra) if name not in places]
        parameters = [carried + fixed, pointers + strides, positions + places + extra + scalars]
        constexprs = [name for node in loads if is_vector(node) for name in width_of(node)]
        constexprs += [name for node in self.channels if node.name in read for name in width_of(node)]
        constexprs += [BLOCK[Axis.ROW], BLOCK[Axis.COLUMN], "PRECISION"]
        constexprs += ["RAW"] if self.in_order is not None and self.in_order.formulas else []
        return parameters, list(dict.fromkeys(constexprs))

    def _lanes_from(self) -> str:
        """What tells a tile body which tokens it meets: the first one, or their places."""
        return f"{PLACE[self.swept]}s_ptr" if self.moves(self.swept) else START[self.swept]

    def _class_scalars(self, sweep: Sweep) -> list[str]:
        """What a tile body is told of the class whose tokens it meets."""
        if not self.laid_out:
            return []
        swept = self.swept
        at_steps = self.reads_position(sweep, swept) and not self.piece.copies(swept)
        at_steps |= any(node.name in self._read(sweep) for node in self.by_offset)
        at_steps |= any(is_offset_sum(node) for node in sweep.sums)
        numbers = any(not is_vector(node) or node in self.channels for node in self._swept_loads(sweep))
        by_coordinate = self.reads_coordinate(sweep, swept) or (self.reads_position(sweep, swept) and not at_steps)
        found = [PLACE[swept]] if at_steps else []
        found += [STEP[swept]] if at_steps or numbers else []
        return [*found, *([FROM[swept]] if by_coordinate else [])]

    def _read(self, sweep: Sweep) -> set[str]:
        return {name for node in (*sweep.body, *sweep.sums, *sweep.numbers) for name in node.inputs}

    def _held(self, node: Node) -> list[str]:
        """The names under which a tile body gets an operand or number of the fixed axis."""
        if self.is_list(node):
            return [f"{node.name}_at"]
        if not is_vector(node):
            return [node.name]
        tile = [node.name] if node.name in self.tiled else []
        return tile + ([f"{node.name}_at"] if node.name in self.by_channel else [])

    def _swept_loads(self, sweep: Sweep) -> list[Node]:
        read = {name for node in (*sweep.body, *sweep.reductions, *sweep.numbers) for name in node.inputs}
        return [node for node in sweep.loads if node.name in read or is_vector(node)]

    def _earlier(self, sweep: Sweep) -> tuple[Sweep, ...]:
        return self.kernel.sweeps[: self.kernel.sweeps.index(sweep)]

    def print_body(self, at: int) -> None:
        """Write the helper of one sweep."""
        sweep = self.kernel.sweeps[at]
        start = self.writer.place
        parameters, constexprs = self.body_arguments(sweep)
        typed = [f"{name}: tl.constexpr" for name in (*constexprs, "MASKED")]
        self.writer.line(f"@{self.decorator}")
        self.writer.listing(f"def {self.tile_name(at)}(", [*parameters, typed], "):")
        with self.writer.indented():
            BodyPrinter(self, sweep, self.in_order).print()
        self.writer.drop_unread(start)
        self.writer.line()
        self.writer.line()

    def print_call(self, at: int, sweep: Sweep, *, masked: bool) -> None:
        """Write a call of the helper of a sweep, for the tile `tile`."""
        parameters, constexprs = self.body_arguments(sweep)
        carried = ", ".join(self.carried(sweep))
        loads = self._swept_loads(sweep)
        pointers = [self._tile_of(node, name) for node in loads for name in self.tensors_of(node)]
        pointers += parameters[1][len(pointers) : len(parameters[1]) - sum(node in self.vectors for node in loads)]
        strides = [self.stride(node) for node in loads if node in self.vectors]
        swept_start = f"tile * {BLOCK[self.swept]}"
        if self.moves(self.swept):
            swept_start = f"{self._lanes_from()} + {OF_ENTRY[self.swept]} + {swept_start}"
        values = [swept_start if name == self._lanes_from() else name for name in parameters[2]]
        self.writer.listing(
            f"{carried}{' = ' if carried else ''}{self.tile_name(at)}(",
            [parameters[0], pointers + strides, values, [*constexprs, str(masked)]],
            ")",
        )

    def _tile_of(self, node: Node, name: str) -> str:
        """Where a tensor's part for the tile of the swept axis begins."""
        head = "_head" if self.is_swept_row(node) else ""
        if node in self.vectors and name == node.name:
            return f"{name}{head}_ptr + tile * {name}_step"
        first = self.place(self.swept, f"tile * {BLOCK[self.swept]}")
        if is_vector(node):
            return f"{name}{head}_ptr + {first}"
        if self.is_list(node):
            return f"{name}_lists + {first}"
        start = "key_numbers" if self.rows_fixed else "statistics"
        start = OF_ENTRY[self.swept] if self.is_fact(node) else start
        return f"{name}_ptr + {start} + {first}"
