"""Statements that write to tensors."""

from __future__ import annotations

import ast
from collections import Counter

from attncc.emit.c_form.expressions import Untranslatable, function_of
from attncc.emit.c_form.loops import Step, indices_of
from attncc.emit.c_form.reading import names_read
from attncc.emit.c_form.scope import FunctionScope
from attncc.emit.c_form.values import SUM, Indices


class StoreStatements(FunctionScope):
    """Translates what a kernel does to tensors."""

    # --- what is written to tensors ---------------------------------------------------------------------------

    def effect(self, call: ast.Call) -> None:
        function = function_of(call)
        arguments = call.args
        match function, arguments:
            case "tl.debug_barrier" | "tl.static_assert", _:
                return
            case "tl.store", [places, value]:
                mask = next((each.value for each in call.keywords if each.arg == "mask"), None)
                self._store(places, value, mask, "put")
            case "_add_lanes", [start, step, visible, numbers, lanes]:
                here = ast.Call(ast.Attribute(ast.Name("tl"), "arange"), [ast.Constant(0), lanes], [])
                place = here if isinstance(step, ast.Constant) else ast.BinOp(here, ast.Mult(), step)
                self._store(ast.BinOp(start, ast.Add(), place), numbers, visible, "add_to")
            case "_store_tile", [start, visible, tile, lanes, width, block]:
                self._store_rows(start, width, visible, tile, (lanes, block), width, "put")
            case "_store_spaced", [start, stride, visible, tile, lanes, width, block]:
                self._store_rows(start, stride, visible, tile, (lanes, block), width, "put")
            case "_add_part", [start, stride, channel, visible, part, lanes, width, block]:
                start = ast.BinOp(start, ast.Add(), channel)
                width = ast.BinOp(width, ast.Sub(), channel)
                self._store_rows(start, stride, visible, part, (lanes, block), width, "add_to")
            case "_add_product", [start, stride, left, right, *_]:
                self.add_product(start, stride, left, right)
            case "_add_by_offset", [start, line, tile, rows, columns]:
                self._add_by_offset(start, line, ast.Constant(1), tile, (rows, columns))
            case "_add_by_spaced_offset", [start, line, step, tile, rows, columns]:
                self._add_by_offset(start, line, step, tile, (rows, columns))
            case _:
                raise Untranslatable(f"no translation of {function}")

    def _store(self, places: ast.expr, value: ast.expr, mask: ast.expr | None, how: str) -> None:
        address, number = self.reader.address(places), self.reader.number(value)
        there = None if mask is None else self.reader.number(mask)

        def write(indices: Indices) -> str:
            guard = f"if ({there.at(indices)}) " if there is not None else ""
            return f"{guard}{how}({address.of}_type, {address.place(indices)}, {number.at(indices)})"

        if not address.dims:
            self.flush()
            self.text.line(f"{write(())};")
            return
        reads = names_read(places) + names_read(value) + (names_read(mask) if mask is not None else Counter())
        self.add(Step(write, reads), address.dims)

    def _store_rows(
        self,
        start: ast.expr,
        stride: ast.expr,
        visible: ast.expr,
        tile: ast.expr,
        shape: tuple[ast.expr, ast.expr],
        width: ast.expr,
        how: str,
    ) -> None:
        """Write the visible vectors of a tile, or add them to what is there."""
        value, there = self.reader.number(tile), self.reader.number(visible)
        address, step = self.reader.address(start), self.reader.number(stride).at((), SUM + 1)
        self.flush()
        lanes, block = (ast.unparse(each) for each in shape)
        row, column = indices_of((lanes, block))
        channels = self.reader.number(width).at(())
        own = f"{channels}" if how == "put" else f"smaller({block}, {channels})"
        with self.text.block(f"for (int {row} = 0; {row} < {lanes}; {row}++)"):
            self.text.line(f"if (!({there.at((row,))})) continue;")
            self.text.line(f"{address.of}_type *to = {address.at(())} + (int64_t){row} * ({step});")
            self.text.line("#pragma omp simd")
            self.text.line(f"for (int {column} = 0; {column} < {own}; {column}++)")
            self.text.line(f"    {how}({address.of}_type, to[{column}], {value.at((row, column))});")

    def _add_by_offset(
        self, start: ast.expr, line: ast.expr, step: ast.expr, tile: ast.expr, shape: tuple[ast.expr, ast.expr]
    ) -> None:
        """Add each number of a tile to the sum of its distance; distances in different spans to different lines."""
        value, address = self.reader.number(tile), self.reader.address(start)
        lanes, apart = self.reader.number(line).at((), SUM + 1), self.reader.number(step).at((), SUM + 1)
        rows, columns = (ast.unparse(each) for each in shape)

        def write(indices: Indices) -> str:
            row, column = indices
            span = f"({row} - {column} + {columns}) / {columns}"
            distance = f"({row} - {column})" + (f" * {apart}" if apart != "1" else "")
            place = f"({address.at(())})[{span} * {lanes} + {distance}]"
            return f"add_to({address.of}_type, {place}, {value.at(indices)})"

        self.add(Step(write, names_read(tile)), (rows, columns))
        self.flush()
