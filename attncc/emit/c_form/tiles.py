"""Statements on whole tiles: what is loaded, multiplied and summed."""

from __future__ import annotations

import ast

from attncc.emit.c_form.expressions import function_of
from attncc.emit.c_form.loops import Step
from attncc.emit.c_form.reading import REDUCTIONS, is_call, names_read, unconverted
from attncc.emit.c_form.spans import SpanStatements
from attncc.emit.c_form.values import INT, REAL, SUM, Form, Indices, Variable, is_whole


class TileStatements(SpanStatements):
    """Translates assignments of tiles."""

    # --- loads ------------------------------------------------------------------------------------------------

    def load_rows(self, name: str, call: ast.Call) -> None:
        """Vectors: left where they are if nothing has to be changed, else copied into a tile."""
        if is_call(call, ("_load_tile",)):
            start, stride, visible, lanes, width, block, masked = call.args
            channel = ""
        else:
            start, stride, first, visible, lanes, width, block, masked = call.args
            channel = self.reader.number(first).at((), SUM + 1)
        dims = ast.unparse(lanes), ast.unparse(block)
        address = self.reader.address(start)
        stays = self.assigned[name] == 1
        target = self.variable(name, dims, REAL, Form.ROWS if stays else Form.PLAIN)
        room = f"{target.name}_room" if stays else target.name
        self.storage.setdefault(room, Variable(room, dims, REAL))
        self.settle(name, start)
        of = address.at(()) + (f" + {channel}" if channel not in ("", "0") else "")
        wide = ast.unparse(width) + (f" - {channel}" if channel not in ("", "0") else "")
        shown = self._shown(visible, masked)
        step = self.reader.number(stride).at(())
        how = f"{target.name} = load_rows" if stays else "copy_rows"
        self.text.line(f"{how}({address.of}_type, &{room}[0][0], {of}, {step}, {shown}, {dims[0]}, {wide}, {dims[1]});")
        if name in self.turned:
            self.turn(target)

    def _shown(self, visible: ast.expr, masked: ast.expr) -> str:
        """The array that tells which tokens are to be read; NULL for all of them."""
        if isinstance(masked, ast.Constant) and not masked.value:
            return "NULL"
        if not isinstance(visible, ast.Name):
            own = self.fresh("seen")
            self.assign(own, visible)
            visible = ast.Name(own, ast.Load())
        known = self.known[visible.id]
        if self.group is not None and any(step.target is known for step in self.group.steps):
            self.flush()
        assert isinstance(known, Variable), "a mask is held in an array"
        return known.name if isinstance(masked, ast.Constant) else f"MASKED ? {known.name} : NULL"

    def turn(self, source: Variable) -> str:
        """The transpose of a tile, in an array of its own."""
        rows, columns = source.dims
        name = f"{source.name}_turned"
        if name not in self.storage:
            self.storage[name] = Variable(name, (columns, rows), REAL)
            self.taken.add(name)
        start, first, second = source.strides()
        self.text.line(f"turn({rows}, {columns}, {start}, {first}, {second}, &{name}[0][0]);")
        source.turned = name
        return name

    # --- products ---------------------------------------------------------------------------------------------

    def _operand(self, node: ast.expr, stem: str) -> tuple[Variable, bool]:
        """The tile that is multiplied, and whether its transpose is meant."""
        node = unconverted(node)
        if is_call(node, ("tl.trans",)):
            assert isinstance(node, ast.Call)
            found, turned = self._operand(node.args[0], stem)
            return found, not turned
        known = self.known.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(known, Variable):
            return known, False
        own = self.fresh(stem)
        self.assigned[own] += 2  # no other name for something else
        self.assign(own, node)
        found_own = self.known[own]
        assert isinstance(found_own, Variable)
        return found_own, False

    def multiply(self, name: str, call: ast.Call) -> None:
        left, left_turned = self._operand(call.args[0], f"{name}_left")
        right, right_turned = self._operand(call.args[1], f"{name}_right")
        rows, inner = reversed(left.dims) if left_turned else left.dims
        columns = right.dims[0] if right_turned else right.dims[1]
        before = call.args[2]
        added = not (isinstance(before, ast.Constant) and before.value is None)
        if added and not (isinstance(before, ast.Name) and before.id == name):
            self.assign_elements(name, before)
        out = self.variable(name, (rows, columns), REAL)
        self.flush()
        left_start, left_row, left_inner = _strides(left, left_turned)
        right_start, right_inner, right_column = _strides(right, right_turned)
        start, out_row, out_column = out.strides()
        if out.pairs:  # keys or rows of the other side one after the other, those of the tile side by side
            if left_row != "1":
                left_start, left_inner = f"&{left.turned or self.turn(left)}[0][0]", rows
            a = f"{right_start}, {right_column}, {right_inner}"
            sizes, b, step = f"{columns}, {inner}, {rows}", f"{left_start}, {left_inner}", out_column
            if self.spans is not None and self.spans.dims == out.dims:
                given = self.spans.given
                self.text.line(f"multiply_pairs({given}, {sizes}, {a}, {b}, {start}, {step}, {int(added)});")
                return
        else:
            if right_column != "1":
                right_start, right_inner = f"&{self.turn(right)}[0][0]", columns
            a = f"{left_start}, {left_row}, {left_inner}"
            sizes, b, step = f"{rows}, {inner}, {columns}", f"{right_start}, {right_inner}", out_row
        self._multiply(left, left_turned, f"{sizes}, {a}, {b}, {start}, {step}", added=added)

    def add_product(self, start: ast.expr, stride: ast.expr, left: ast.expr, right: ast.expr) -> None:
        """The numbers in memory are of the type of sums, and there is room for whole tiles."""
        first, first_turned = self._operand(left, "left")
        second, second_turned = self._operand(right, "right")
        place, step = self.reader.address(start).at(()), self.reader.number(stride).at(())
        self.flush()
        rows, inner = reversed(first.dims) if first_turned else first.dims
        columns = second.dims[0] if second_turned else second.dims[1]
        a = ", ".join(_strides(first, first_turned))
        second_start, second_inner, second_column = _strides(second, second_turned)
        if second_column != "1":
            second_start, second_inner = f"&{self.turn(second)}[0][0]", columns
        b = f"{second_start}, {second_inner}"
        self._multiply(first, first_turned, f"{rows}, {inner}, {columns}, {a}, {b}, {place}, {step}", added=True)

    def _multiply(self, left: Variable, turned: bool, arguments: str, *, added: bool) -> None:
        """The call; numbers of pairs that are not related are 0, so that sums leave them out."""
        if self.spans is not None and self.spans.dims == left.dims and added:
            how = "multiply_others" if turned else "multiply_lanes"
            self.text.line(f"{how}({self.spans.given}, {arguments});")
        else:
            self.text.line(f"multiply({arguments}, {int(added)});")

    # --- sums -------------------------------------------------------------------------------------------------

    def reduce(self, name: str, call: ast.Call) -> None:
        operator, of_reals, of_whole = REDUCTIONS[function_of(call)]
        axis = call.args[1]
        assert isinstance(axis, ast.Constant) and isinstance(axis.value, int)
        value = self.reader.number(call.args[0])
        kept = tuple(length for at, length in enumerate(value.dims) if at != axis.value)
        ctype, start = (INT, of_whole) if is_whole(value.ctype) else (REAL, of_reals)
        if operator != "+" and ctype == REAL != value.ctype:  # as loaded: whole or real, as the data are
            ctype = value.ctype
            start = f"{'least' if operator == 'max' else 'largest'}_of({ctype})"
        target = self.variable(name, kept, ctype)
        self.storage.setdefault(target.name, target)
        reads = names_read(call.args[0])
        self.add(Step(value.at, reads, target, axis=axis.value, start=start, operator=operator), value.dims)

    def add_channel(self, name: str, call: ast.Call) -> None:
        """A number of each row or key, added to one channel of its vector."""
        total, channel, numbers, _ = call.args
        assert isinstance(total, ast.Name) and total.id == name
        target = self.known[name]
        assert isinstance(target, Variable)
        value, at = self.reader.number(numbers), self.reader.number(channel).at(())

        def write(indices: Indices) -> str:
            return f"{target.at((indices[0], at))} += {value.at(indices)}"

        self.add(Step(write, names_read(call)), (target.dims[0],))


def _strides(tile: Variable, turned: bool) -> tuple[str, str, str]:
    start, first, second = tile.strides()
    return (start, second, first) if turned else (start, first, second)
