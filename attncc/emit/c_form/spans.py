"""Masked tiles → for some lanes of one side, which of the other side they relate to at all.

Lanes are what a vector of the processor holds. Products leave out what is related to none of them, which at the edge of
a pattern is near half of a tile.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from attncc.emit.c_form.expressions import Untranslatable
from attncc.emit.c_form.loops import indices_of, is_pairs
from attncc.emit.c_form.reading import PRODUCTS, is_call, walk
from attncc.emit.c_form.scope import FunctionScope
from attncc.emit.c_form.values import AND, Dims, Value


@dataclass(frozen=True, slots=True)
class Spans:
    """The array that has them, and the axes of the mask."""

    name: str
    dims: Dims

    @property
    def given(self) -> str:
        """What a product is given."""
        return f"MASKED ? {self.name} : NULL"


class SpanStatements(FunctionScope):
    """Finds the mask of a tile before its first product is taken."""

    spans: Spans | None = None

    @cached_property
    def mask(self) -> ast.expr | None:
        """What masked tiles of the function call related, if one expression says it."""
        return _mask_of(self.node)

    def tell_spans(self, statement: ast.stmt) -> None:
        """Write them before a statement with a product, if the mask is known by then."""
        mask = self.mask
        if self.spans is not None or mask is None or "MASKED" not in self.known:
            return
        if not self.may_have_apart(statement) or not any(is_call(each, PRODUCTS) for each in walk(statement)):
            return
        try:
            related = self.reader.read(mask)
        except Untranslatable:  # it reads what is computed later
            return
        if isinstance(related, Value) and is_pairs(related.dims):
            self.flush()
            self._write(related)

    def _write(self, related: Value) -> None:
        name, group, some = self.fresh("spans"), self.fresh("group"), self.fresh("some")
        self.taken |= {name, group, some}
        lanes, others = related.dims
        lane, other = indices_of(related.dims)
        text = self.text
        text.line(f"Span {name}[{lanes} / LANES];")
        with text.block(f"for (int {group} = 0; MASKED && {group} < {lanes} / LANES; {group}++)"):
            text.line(f"{name}[{group}] = (Span){{{others}, 0}};")
            with text.block(f"for (int {other} = 0; {other} < {others}; {other}++)"):
                text.line(f"int {some} = 0;")
                text.line(f"#pragma omp simd reduction(|:{some})")
                first, end = f"{group} * LANES", f"({group} + 1) * LANES"
                text.line(f"for (int {lane} = {first}; {lane} < {end}; {lane}++)")
                text.line(f"    {some} |= {related.at((lane, other), AND + 1)};")
                text.line(f"if ({some}) {name}[{group}] = with_span({name}[{group}], {other});")
        self.spans = Spans(name, related.dims)


def _mask_of(function: ast.FunctionDef) -> ast.expr | None:
    """What a function's masked tiles call related, if one expression says it."""
    for statement in function.body:
        match statement:
            case ast.If(
                test=ast.Name(id="MASKED"), body=[ast.Assign(targets=[ast.Name(id="related")], value=mask)], orelse=[]
            ):
                return mask
    return None
