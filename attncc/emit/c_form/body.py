"""Functions of kernels → functions in C, statement by statement."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from attncc.emit.c_form.expressions import Term, Untranslatable, function_of
from attncc.emit.c_form.loops import Step, step_of
from attncc.emit.c_form.reading import (
    APART,
    LOADS,
    PRODUCTS,
    REDUCTIONS,
    Called,
    c_name,
    is_call,
    is_none_test,
    name_of,
    names_read,
    walk,
)
from attncc.emit.c_form.stores import StoreStatements
from attncc.emit.c_form.text import CText
from attncc.emit.c_form.tiles import TileStatements
from attncc.emit.c_form.values import COMPARE, INT, ONE, REAL, Address, Form, Variable, address_type, scalar


class _Inner(ast.NodeTransformer):
    """Takes sums and products out of an expression, the innermost first."""

    def __init__(self, translator: FunctionTranslator, name: str, whole: ast.expr) -> None:
        self.translator, self.name, self.whole = translator, name, whole

    def visit_Call(self, call: ast.Call) -> ast.expr:
        self.generic_visit(call)
        if call is self.whole or not is_call(call, APART):
            return call
        return self.translator.apart(self.name, call)


class FunctionTranslator(TileStatements, StoreStatements):
    """Translates a whole function."""

    def translate(self) -> list[str]:
        """The lines of its body."""
        body = self.node.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        for statement in body:
            self.tell_spans(statement)
            self._statements([statement])
        self.flush()
        declarations = [f"    {each.declaration}" for each in self.storage.values() if each.form is not Form.LOCAL]
        return [*declarations, *self.text.written]

    # --- statements -------------------------------------------------------------------------------------------

    def _statements(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self._comment(statement)
            self._statement(statement)

    def _comment(self, statement: ast.stmt) -> None:
        """The comments that stand above a statement."""
        lines = range(self.last_line + 1, statement.lineno + 1)
        found = [self.comments[line] for line in lines if line in self.comments]
        self.last_line = max(self.last_line, statement.lineno)
        if found:
            self.flush()
            for each in found:
                self.text.line(f"// {each}")

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.assign(name, value)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                self.assign(name, ast.BinOp(ast.Name(name, ast.Load()), op, value))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.text.line(f"const int {name} = {self.reader.number(value).at(())};")
                self.known[name] = scalar(name, INT)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                self._assign_all([name_of(each) for each in names], values)
            case ast.Assign(targets=[ast.Tuple() | ast.Name()], value=ast.Call() as call):
                self._call(call)
            case ast.If():
                self._if(statement)
            case ast.For():
                self._for(statement)
            case ast.Expr(value=ast.Call() as call) if function_of(call) in self.called:
                self._call(call)  # a tile that adds to memory alone
            case ast.Expr(value=ast.Call() as call):
                call.args = [self.without_inner(function_of(call).strip("_"), each) for each in call.args]
                self.effect(call)
            case ast.Return():
                self.flush()
            case _:
                raise Untranslatable(f"no translation of {ast.unparse(statement)}")

    def _assign_all(self, names: list[str], values: list[ast.expr]) -> None:
        """Several at once; each value is of before."""
        if any(name in names_read(value) for at, name in enumerate(names) for value in values[at + 1 :]):
            before = [self.fresh(f"{name}_then") for name in names]
            for name, value in zip(before, values, strict=True):
                self.assign(name, value)
            values = [ast.Name(name, ast.Load()) for name in before]
        for name, value in zip(names, values, strict=True):
            self.assign(name, value)

    def _if(self, statement: ast.If) -> None:
        test = statement.test
        if isinstance(test, ast.Name) and test.id == "MASKED" and not statement.orelse and self._is_plain(statement):
            for each in statement.body:
                assert isinstance(each, ast.Assign)
                self.assign(name_of(each.targets[0]), each.value, "MASKED")
            return
        self.flush()
        condition = self.reader.number(test) if not is_none_test(test) else self.reader.read(test)
        with self.text.block(f"if ({condition.at(())})"):
            self._statements(statement.body)
            self.flush()
        if statement.orelse:
            with self.text.block("else"):
                self._statements(statement.orelse)
                self.flush()

    def _is_plain(self, statement: ast.If) -> bool:
        """Whether a guarded body only computes numbers of pairs."""
        special = (*PRODUCTS, *REDUCTIONS, *LOADS, "_add_channel")
        return all(
            isinstance(each, ast.Assign) and not any(is_call(inner, special) for inner in walk(each))
            for each in statement.body
        )

    def _for(self, statement: ast.For) -> None:
        self.flush()
        name = name_of(statement.target)
        own = c_name(name)
        assert isinstance(statement.iter, ast.Call)
        arguments = [self.reader.number(each) for each in statement.iter.args]
        start, stop = (scalar("0", INT), arguments[0]) if len(arguments) == 1 else arguments[:2]
        step = f"{own} += {arguments[2].at(())}" if len(arguments) > 2 else f"{own}++"
        before = self.known.get(name)
        self.known[name] = Variable(own, (), INT)
        self.taken.add(own)
        with self.text.block(f"for (int {own} = {start.at(())}; {own} < {stop.at((), COMPARE + 1)}; {step})"):
            self._statements(statement.body)
            self.flush()
        del self.known[name]  # it is known in its loop alone
        if before is not None:
            self.known[name] = before

    # --- assignments ------------------------------------------------------------------------------------------

    def assign(self, name: str, node: ast.expr, guard: str = "") -> None:
        node = self.without_inner(name, node)
        match node:
            case ast.Call() if is_call(node, LOADS):
                self.load_rows(name, node)
            case ast.Call() if is_call(node, PRODUCTS):
                self.multiply(name, node)
            case ast.Call() if is_call(node, REDUCTIONS):
                self.reduce(name, node)
            case ast.Call() if is_call(node, ("_add_channel",)):
                self.add_channel(name, node)
            case ast.Call(func=ast.Name(id=function)) if function in self.called:
                self._call(node)
            case _:
                self.assign_elements(name, node, guard)

    def without_inner(self, name: str, node: ast.expr) -> ast.expr:
        """An expression whose sums and products have become variables; it may be one of these itself."""
        if not self.may_have_apart(node):
            return node
        if not any(each is not node and is_call(each, APART) for each in walk(node)):
            return node
        found = _Inner(self, name, node).visit(node)
        assert isinstance(found, ast.expr)
        return found

    def apart(self, name: str, call: ast.Call) -> ast.expr:
        """A variable for a sum or a product that stands within an expression."""
        stem = {"tl.sum": "sum", "tl.max": "largest", "tl.min": "least"}.get(function_of(call), "product")
        own = self.fresh(f"{name}_{stem}" if stem != "largest" else stem)
        self.assigned[own] += 1
        self.reads[own] += 1
        self.assign(own, call)
        return ast.Name(own, ast.Load())

    def assign_elements(self, name: str, node: ast.expr, guard: str = "") -> None:
        found = self.reader.read(node)
        if not found.dims:
            self._assign_number(name, node, found)
            return
        if ONE in found.dims or self._is_alias(name, node):
            self.known[name] = self.known[node.id] if isinstance(node, ast.Name) else found
            return
        if isinstance(found, Address):
            target = self.variable(name, found.dims, address_type(found.of), of=found.of)
            places = found
            self.add(Step(places.at, names_read(node), target, guard), found.dims)
        else:
            target = self.variable(name, found.dims, found.ctype)
            self.add(step_of(found, target, names_read(node), guard), found.dims)
            if target.turned and not target.is_parameter:  # its transpose, which others read, changes with it
                self.flush()
                self.turn(target)

    def _is_alias(self, name: str, node: ast.expr) -> bool:
        """Whether a name is another one of what never changes."""
        if not isinstance(node, ast.Name) or self.assigned[name] > 1:
            return False
        known = self.known[node.id]
        return not isinstance(known, Variable) or (self.assigned[node.id] == 1 and not known.is_parameter)

    def _assign_number(self, name: str, node: ast.expr, found: Term) -> None:
        self.settle(name, node)
        before = self.known.get(name)
        if isinstance(found, Address):
            target = self.variable(name, (), address_type(found.of), of=found.of)
        else:
            target = self.variable(name, (), found.ctype)
        if before is None and self._is_declared_here(name):
            self.text.line(f"{target.typed}{target.name} = {found.at(())};")
            return
        if target is not before:  # maybe the name held something of another kind
            self.storage[target.name] = target
        self.text.line(f"{target.name} = {found.at(())};")

    def _is_declared_here(self, name: str) -> bool:
        """Whether the block of a name's first assignment has all places where it stands."""
        places = self.blocks.get(name, [])
        return all(place[: len(places[0])] == places[0] for place in places)

    # --- calls of tile functions ------------------------------------------------------------------------------

    def _call(self, call: ast.Call) -> None:
        """A tile of pairs: arrays that it returns are those that it is given."""
        self.flush()
        function = self.called[function_of(call)]
        given = {
            parameter.arg: argument
            for parameter, argument in zip(function.node.args.args, call.args, strict=True)
            if parameter.arg in function.arguments
        }
        texts, parameters = [], {}
        for name, argument in given.items():
            text, parameter = self._argument(name, argument)
            texts.append(text)
            parameters[name] = parameter
            if name in function.turned:
                source = self.known[name_of(argument)]
                assert isinstance(source, Variable)
                turned = source.turned or self.turn(source)
                rows, columns = source.dims
                parameter.turned = f"{parameter.name}_turned"
                own = Variable(parameter.turned, (columns, rows), REAL)
                parameters[f"{name} turned"] = own
                texts.append(turned)
        if not function.lines:
            self._translate(function, parameters)
        self.text.line(f"{c_name(function.node.name)}({', '.join(texts)});")

    def _argument(self, name: str, argument: ast.expr) -> tuple[str, Variable]:
        if isinstance(argument, ast.Name) and isinstance(known := self.known.get(argument.id), Variable) and known.dims:
            parameter = Variable(c_name(name), known.dims, known.ctype, known.form, known.of, pairs=known.pairs)
            parameter.is_parameter = True
            return known.name, parameter
        found = self.reader.read(argument)
        if found.dims:
            own = self.fresh(name)
            self.assigned[own] += 2
            self.assign(own, argument)
            self.flush()
            return self._argument(name, ast.Name(own, ast.Load()))
        of = found.of if isinstance(found, Address) else ""
        ctype = address_type(of) if isinstance(found, Address) else found.ctype
        return found.at(()), Variable(c_name(name), (), ctype, of=of, is_parameter=True)

    def _translate(self, function: Called, parameters: Mapping[str, Variable]) -> None:
        own = {name: each for name, each in parameters.items() if not name.endswith(" turned")}
        inner = FunctionTranslator(function.node, own, self.called, self.constants, self.comments)
        body = inner.translate()
        declared = ", ".join(
            f"const {each.parameter}" if name == "MASKED" or name.endswith(" turned") else each.parameter
            for name, each in parameters.items()
        )
        opening = CText()
        opening.line(f"INLINE void {c_name(function.node.name)}({declared})")
        function.lines = [*opening.written, "{", *body, "}"]
