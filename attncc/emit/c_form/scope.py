"""What the statements of one function share: its variables, and the loops that are being gathered."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping

from attncc.emit.c_form.expressions import ExpressionReader, Term, Untranslatable, function_of
from attncc.emit.c_form.loops import Group, Step, is_pairs
from attncc.emit.c_form.reading import (
    APART,
    Called,
    blocks_of,
    c_name,
    c_name_of,
    calls_in,
    calls_of,
    names_read,
    nodes_of,
    turned_arguments,
)
from attncc.emit.c_form.text import CText
from attncc.emit.c_form.values import INT, REAL, Dims, Form, Variable, is_whole, scalar


class FunctionScope:
    """Translates one function.

    Args:
        node: the function.
        parameters: what its arguments are.
        called: the functions that it may call.
        comments: the comments of the text by line.
    """

    def __init__(
        self,
        node: ast.FunctionDef,
        parameters: Mapping[str, Variable],
        called: Mapping[str, Called],
        constants: frozenset[str],
        comments: Mapping[int, str],
    ) -> None:
        self.node = node
        self.called = called
        self.constants = constants
        self.comments = comments
        self.text = CText(depth=1)
        self.known: dict[str, Variable | Term] = dict(parameters)
        self.storage: dict[str, Variable] = {}
        self.taken = {each.name for each in parameters.values()} | {each.turned for each in parameters.values()}
        self.group: Group | None = None
        self.reader = ExpressionReader(self.lookup)
        names = [each for each in nodes_of(node) if isinstance(each, ast.Name)]
        self.reads = Counter(each.id for each in names if isinstance(each.ctx, ast.Load))
        self.assigned = Counter(each.id for each in names if isinstance(each.ctx, ast.Store))
        self.blocks = blocks_of(node)
        self.lines_apart = frozenset(each.lineno for each in calls_in(node) if function_of(each) in APART)
        self.turned = {name for each in calls_of(node, called) for name in turned_arguments(each, called)}
        self.last_line = node.lineno

    def may_have_apart(self, node: ast.AST) -> bool:
        """Whether sums or products may stand within a node: what was made here has no lines."""
        first = getattr(node, "lineno", None)
        return first is None or not self.lines_apart.isdisjoint(range(first, node.end_lineno + 1))  # type: ignore[attr-defined]

    # --- names ------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Term:
        if name in self.constants:
            return scalar(name, INT)
        found = self.known.get(name)
        if found is None:
            raise Untranslatable(f"nothing known of {name} in {self.node.name}")
        return found.read() if isinstance(found, Variable) else found

    def variable(self, name: str, dims: Dims, ctype: str, form: Form = Form.PLAIN, of: str = "") -> Variable:
        """The variable of a name; another one where it held something of another kind."""
        known = self.known.get(name)
        if isinstance(known, Variable) and (known.dims, known.form, known.of) == (dims, form, of):
            if is_whole(known.ctype) and ctype == REAL:
                raise Untranslatable(f"{name} becomes real in {self.node.name}")
            return known
        if isinstance(known, Variable) and known.dims and dims:
            raise Untranslatable(f"{name} is held in two ways in {self.node.name}")
        own = c_name(name)
        while own in self.taken:
            own += "_"
        self.taken.add(own)
        found = Variable(own, dims, ctype, form, of, pairs=is_pairs(dims))
        self.known[name] = found
        if dims:
            self.storage[own] = found
        return found

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        name, at = stem, 1
        while name in self.known or name in self.assigned or name in self.taken:
            at += 1
            name = f"{stem}_{at}"
        return name

    def assign(self, name: str, node: ast.expr, guard: str = "") -> None:
        """Translate an assignment."""
        raise NotImplementedError

    def assign_elements(self, name: str, node: ast.expr, guard: str = "") -> None:
        """Translate an assignment of what has no sums or products within."""
        raise NotImplementedError

    def add_product(self, start: ast.expr, stride: ast.expr, left: ast.expr, right: ast.expr) -> None:
        """Translate a product of tiles that is added to numbers in memory."""
        raise NotImplementedError

    # --- loops ------------------------------------------------------------------------------------------------

    def add(self, step: Step, dims: Dims) -> None:
        """A statement for each element of a shape."""
        group = self.group
        if group is not None:
            depends = {c_name_of(each, self.known) for each in step.reads} & group.reduced
            crosses = step.axis >= 0 and any(group.across(each) for each in group.steps)
            if group.dims != dims or depends or crosses:
                self.flush()
        if self.group is None:
            self.group = Group(dims)
        self.group.steps.append(step)

    def flush(self) -> None:
        """Write the loops that have been gathered."""
        group, self.group = self.group, None
        if group is None:
            return
        for step in group.steps:
            target = step.target
            if target is None or step.axis >= 0 or target.is_parameter or target.of:
                continue
            names = [name for name, known in self.known.items() if known is target]
            if len(names) == 1 and self._is_read_only_by(group, names[0]):
                target.form = Form.LOCAL
                self.storage.pop(target.name, None)
        group.write(self.text)

    def _is_read_only_by(self, group: Group, name: str) -> bool:
        """Whether nothing else writes or reads what a group computes."""
        written = sum(step.target is self.known[name] for step in group.steps)
        return 0 < self.reads[name] == group.reads[name] and self.assigned[name] == written

    def settle(self, name: str, node: ast.expr) -> None:
        """Write the loops that read what a number is about to change, or compute what it is made of."""
        if self.group is not None:
            made = {step.target.name for step in self.group.steps if step.target is not None}
            if name in self.group.reads or made & {c_name_of(each, self.known) for each in names_read(node)}:
                self.flush()
