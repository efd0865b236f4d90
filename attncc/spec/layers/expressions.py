"""Expressions of a layer → values with their shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from attncc.diagnostics import Label, Span
from attncc.spec.functions import FUNCTIONS
from attncc.spec.layers.algebra import choose, describe, elementwise, length, matmul, number
from attncc.spec.layers.calls import Call, Function
from attncc.spec.layers.dims import RUN_TIME, Dim, blocks, constant, least, symbol
from attncc.spec.layers.findings import fail
from attncc.spec.layers.iteration import MARK
from attncc.spec.layers.model import NUMBER, Divides, Node, Op, walk
from attncc.spec.layers.numbers import NUMBER_FUNCTIONS
from attncc.spec.layers.operators import OPERATORS
from attncc.spec.words import Words, nearest
from attncc.syntax import tree

Scope = Mapping[str, Node | None]  # None for a name whose value was reported already

_ARITHMETIC = {
    "+": Op.ADD, "-": Op.SUBTRACT, "*": Op.MULTIPLY, "/": Op.DIVIDE, "//": Op.FLOOR_DIVIDE, "%": Op.MODULO,
    "^": Op.POWER,
}  # fmt: skip
_DEEPEST = 50


class Reported(Exception):
    """The statement reads something that has no value, which was reported where it was defined."""


class Expressions:
    """Resolves expressions; `attend` is handed on to whoever knows the cores."""

    def __init__(
        self,
        words: Words,
        attend: Callable[[tree.Attend, Scope], Node],
        layers: Mapping[str, Callable[[tree.Call, Scope], Node]],
        sequences: frozenset[str],
    ) -> None:
        self.words = words
        self.layers = layers
        self.attend = attend
        self.sequences = sequences  # run-time lengths that inputs have
        self.definitions: dict[str, Node] = {}  # what names of values stand for
        self.bind: Callable[[str, Node], Node]  # gives a value a name like this one
        self.divisions: list[Divides] = []
        self.conditions: list[Node] = []  # that operators demand of parameters
        self.used: set[str] = set()  # words that were expanded
        self._depth = 0

    def value(self, node: tree.Tree, scope: Scope) -> Node:
        """The value written at `node`.

        Raises:
            Fault: with what is wrong.
            Reported: where that is known already.
        """
        if self._depth > _DEEPEST:
            fail("E213", "the expression is nested too deep", node.span)
        self._depth += 1
        try:
            return self._node(node, scope)
        finally:
            self._depth -= 1

    def _node(self, node: tree.Tree, scope: Scope) -> Node:
        span = node.span
        match node:
            case tree.Number(value=value):
                return number(value, span)
            case tree.Reference(name=name):
                return self.reference(name, span, scope)
            case tree.Group(inner=inner):
                return replace(self.value(inner, scope), span=span)
            case tree.Unary(operator="-", operand=operand):
                return elementwise(Op.NEGATE, (self.value(operand, scope),), span)
            case tree.Unary(operand=operand):
                return Node(Op.NOT, (self.condition(operand, scope),), NUMBER, span=span)
            case tree.Binary(operator="@", left=left, right=right):
                return matmul(self.value(left, scope), self.value(right, scope), span)
            case tree.Binary(operator=sign, left=left, right=right):
                return self._binary(_ARITHMETIC[sign], self.value(left, scope), self.value(right, scope), span)
            case tree.Comparison() | tree.Logical():
                return self.condition(node, scope)
            case tree.Index(values=values, indices=indices):
                return self._picked(self.value(values, scope), indices, scope, span)
            case tree.Call():
                return self._call(node, scope)
            case tree.Attend():
                return self.attend(node, scope)
            case tree.Conditional(condition=condition, then=then, otherwise=otherwise):
                parts = [self.value(each, scope) for each in (condition, then, otherwise)]
                return choose(parts[0], parts[1], parts[2], span)
        fail("E204", "a layer has no use for this", span, "expected arithmetic, `@`, or a call")

    def _binary(self, op: Op, left: Node, right: Node, span: Span) -> Node:
        if op in (Op.FLOOR_DIVIDE, Op.MODULO) and not (left.type.is_number and right.type.is_number):
            fail("E204", f"`{op.value}` is of whole numbers", span)
        if op is Op.POWER and not right.type.is_number:
            fail("E401", "an exponent is a number", right.span, str(right.type))
        return elementwise(op, (left, right), span)

    def _picked(self, x: Node, indices: tuple[tree.Tree, ...], scope: Scope, span: Span) -> Node:
        """`x[0]`: an entry of the first axis."""
        index = self.dim(indices[0], scope)
        if len(indices) != 1 or index is None or index.number is None:
            fail("E401", "an index is one whole number", indices[0].span, helps=("write `x[0]`, or `part(x, 0, 2)`",))
        if not x.type.axes:
            fail("E401", f"{describe(x)} has no axes", x.span, str(x.type))
        first, *rest = x.type.axes
        if first.number is not None and index.number >= first.number:
            fail("E401", f"there is no entry {index} of {first}", indices[0].span, f"the first axis is {first} long")
        made = replace(x.type, axes=tuple(rest))
        return Node(Op.PICK, (x,), made, axis=-len(x.type.axes), dims=(index,), span=span)

    def condition(self, node: tree.Tree, scope: Scope) -> Node:
        """What `require` demands: comparisons of numbers."""
        match node:
            case tree.Group(inner=inner):
                return self.condition(inner, scope)
            case tree.Unary(operator="!", operand=operand):
                return Node(Op.NOT, (self.condition(operand, scope),), NUMBER, span=node.span)
            case tree.Logical(operator=sign, operands=operands):
                parts = tuple(self.condition(each, scope) for each in operands)
                return Node(Op.AND if sign == "&" else Op.OR, parts, NUMBER, span=node.span)
            case tree.Comparison(operators=signs, operands=operands):
                values = [self.value(each, scope) for each in operands]
                for each in values:
                    if not each.type.is_number:
                        fail("E204", "conditions are about numbers", each.span, str(each.type))
                links = tuple(
                    Node(Op.COMPARE, (a, b), NUMBER, name=sign, span=node.span)
                    for sign, a, b in zip(signs, values, values[1:], strict=False)
                )
                return links[0] if len(links) == 1 else Node(Op.AND, links, NUMBER, span=node.span)
        fail("E204", "a condition is wanted here", node.span, "expected a comparison")

    def reference(self, name: str, span: Span, scope: Scope) -> Node:
        """A value by its name; of the run-time lengths and parameters, a number."""
        if name in scope:
            found = scope[name]
            if found is None:
                raise Reported
            return replace(found, span=span)
        if name in RUN_TIME and name in self.sequences:
            return length(symbol(name), span)
        if name == "pi":
            return number(3.141592653589793, span)
        known = [*scope, *self.sequences]
        fail("E201", f"there is no value `{name}`", span, "unknown name", helps=nearest(name, known))

    def dim(self, node: tree.Tree, scope: Scope) -> Dim | None:
        """The length written at `node`; None where it is none."""
        match node:
            case tree.Number(value=int(value)):
                return constant(value)
            case tree.Group(inner=inner):
                return self.dim(inner, scope)
            case tree.Reference(name=name):
                found = scope.get(name)
                if found is None:
                    return symbol(name) if name in RUN_TIME and name in self.sequences else None
                return found.dims[0] if found.op is Op.SIZE else None
            case tree.Binary(operator="+" | "-" | "*" | "/" as sign, left=left, right=right):
                a, b = self.dim(left, scope), self.dim(right, scope)
                if a is None or b is None:
                    return None
                return a.over(b) if sign == "/" else {"+": a.__add__, "-": a.__sub__, "*": a.__mul__}[sign](b)
            case tree.Binary(operator="//", left=left, right=right):
                a, b = self.dim(left, scope), self.dim(right, scope)
                found_dim = None if a is None or b is None else a.over(b)
                if found_dim is not None and not found_dim.is_whole and a is not None and b is not None:
                    self.divisions.append(Divides(a, b, node.span))
                return found_dim
            case tree.Call(name=tree.Identifier(text="ceil"), arguments=(tree.Binary(operator="/") as quotient,)):
                a, b = self.dim(quotient.left, scope), self.dim(quotient.right, scope)
                return None if a is None or b is None else blocks(a, b)
            case tree.Call(name=tree.Identifier(text="min"), arguments=(tree.Reference(name=name), most)) if (
                name in RUN_TIME and name not in scope and not isinstance(most, tree.NamedArgument)
            ):
                count = self.dim(most, scope)
                return None if count is None or count.symbols & set(RUN_TIME) else least(symbol(name), count)
        return None

    # --- calls ------------------------------------------------------------------------------------------------

    def _call(self, node: tree.Call, scope: Scope) -> Node:
        name = node.name.text
        over_axis = any(isinstance(each, tree.NamedArgument) and each.name.text == "over" for each in node.arguments)
        if name in self.layers:
            return self.layers[name](node, scope)
        if name in FUNCTIONS and not (over_axis and name in OPERATORS):
            return self._function(node, scope)
        if name in OPERATORS:
            return self._operator(node, scope)
        if name in self.words.functions:
            return self._word(node, self.words.functions[name], scope)
        found = self.dim(node, scope)
        if found is not None:  # `ceil(n / 8)`
            return length(found, node.span)
        known = (*OPERATORS, *FUNCTIONS, *self.words.functions, *self.layers)
        fail("E201", f"there is no operator or function `{name}`", node.name.span, "unknown name",
             helps=nearest(name, known))  # fmt: skip

    def _positional(self, node: tree.Call, scope: Scope) -> list[Node]:
        values = []
        for each in node.arguments:
            if isinstance(each, tree.NamedArgument):
                fail("E206", f"`{node.name.text}` has no named arguments", each.span)
            values.append(self.value(each, scope))
        return values

    def _function(self, node: tree.Call, scope: Scope) -> Node:
        function = FUNCTIONS[node.name.text]
        values = self._positional(node, scope)
        wrong = len(values) < 2 if function.arity is None else len(values) != function.arity
        if wrong:
            wanted = "two or more arguments" if function.arity is None else f"{function.arity}"
            of_axes = (
                (f"`{OPERATORS[function.name].signature}` works along an axis",) if function.name in OPERATORS else ()
            )
            fail("E206", f"`{function.name}` takes {wanted}", node.span, f"found {len(values)}", helps=of_axes)
        made = elementwise(Op.FUNCTION, tuple(values), node.span, function.name)
        if made.type.is_number and function.name not in NUMBER_FUNCTIONS:
            fail("E401", f"`{function.name}` of a number", node.span, "expected a value with axes")
        return made

    def _operator(self, node: tree.Call, scope: Scope) -> Node:
        values: list[Node] = []
        named: dict[str, Node] = {}
        dims: dict[str, Dim | None] = {}
        functions: dict[int, Function] = {}
        for each in node.arguments:
            if isinstance(each, tree.Lambda):
                functions[len(values)] = self._lambda(each, scope)
                values.append(number(0, each.span))
                continue
            written = each.value if isinstance(each, tree.NamedArgument) else each
            key = each.name.text if isinstance(each, tree.NamedArgument) else str(len(values))
            axis = written.name if isinstance(written, tree.Reference) and key in ("over", "channels") else ""
            if axis in ("features", "B") and axis not in scope:
                found = Node(Op.NAME, (), NUMBER, name=axis, span=written.span)
            else:
                dims[key] = self.dim(written, scope)
                found = self.value_or_length(written, scope)
            if isinstance(each, tree.NamedArgument):
                if key in named:
                    fail("E206", f"`{key}` is given twice", each.span)
                named[key] = found
            else:
                if named:
                    fail("E206", "arguments by name come last", each.span)
                values.append(found)
        operator = OPERATORS[node.name.text]
        call = Call(
            operator.name, operator.signature, node.span, tuple(values), named, dims, self.divisions.append,
            self.conditions.append, self.definitions, functions,
        )  # fmt: skip
        made = operator.shape(call)
        call.done()
        return made

    def _lambda(self, node: tree.Lambda, scope: Scope) -> Function:
        """`z -> f(z)`, whose value has a name that nothing else has."""
        name = node.parameter
        if name.text in scope:
            fail(
                "E203", f"`{name.text}` is defined twice", name.span, helps=("each value has one name: choose another",)
            )
        return Function(name, lambda value: self.value(node.body, {**scope, name.text: value}))

    def value_or_length(self, node: tree.Tree, scope: Scope) -> Node:
        """A length is one whatever else it may be: `ceil(n / 8)` has no value of another kind."""
        dim = self.dim(node, scope)
        return length(dim, node.span) if dim is not None else self.value(node, scope)

    def _word(self, node: tree.Call, word: tree.Word, scope: Scope) -> Node:
        """A function word: its body, of the values that it is called with."""
        self.used.add(word.name.text)
        given: dict[str, Node | None] = {}
        for at, each in enumerate(node.arguments):
            if isinstance(each, tree.NamedArgument):
                given[each.name.text] = self.value(each.value, scope)
            elif at < len(word.parameters):
                given[word.parameters[at].name.text] = self.value(each, scope)
            else:
                fail(
                    "E206", f"`{word.name.text}` has too many arguments", each.span, f"expected {len(word.parameters)}"
                )
        names = {each.name.text for each in word.parameters}
        for name in given.keys() - names:
            fail("E206", f"`{word.name.text}` has no argument `{name}`", node.span)
        left = [each for each in word.parameters if each.name.text not in given]
        readers = [word.body, *(each.default for each in left if each.default is not None)]

        def once(name: str) -> None:
            """What is read more than once gets a name, and is computed once."""
            value = given[name]
            if value is None or value.type.is_number or value.op is Op.NAME:
                return
            if any(each.op is Op.NAME and each.name.startswith(MARK) for each in walk(value)):
                return  # a loop computes it anew in each turn
            if sum(_count(each, name) for each in readers) > 1:
                given[name] = self.bind(f"{word.name.text}_{name}", value)

        for name in list(given):
            once(name)
        for parameter in left:
            if parameter.default is None:
                label = Label(word.name.span, "defined here")
                fail("E206", f"`{word.name.text}` lacks `{parameter.name.text}`", node.span, "", label)
            given[parameter.name.text] = self.value(parameter.default, given)
            once(parameter.name.text)
        return replace(self.value(word.body, given), span=node.span)


def _count(node: tree.Node, name: str) -> int:
    """How often an expression reads a name."""
    if isinstance(node, tree.Reference):
        return int(node.name == name)
    parts = (getattr(node, each) for each in node.__dataclass_fields__ if each != "span")
    every = (each for part in parts for each in (part if isinstance(part, tuple) else (part,)))
    return sum(_count(each, name) for each in every if isinstance(each, tree.Node))
