"""The call of an operator of layers: its arguments by place and by name, as values, lengths and axes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attncc.diagnostics import Label, Span
from attncc.spec.layers.algebra import ONE, describe, length
from attncc.spec.layers.dims import RUN_TIME, Dim, sequence_of
from attncc.spec.layers.findings import fail
from attncc.spec.layers.model import NUMBER, Divides, Kind, Node, Op
from attncc.spec.words import nearest
from attncc.syntax import tree


@dataclass(frozen=True, slots=True)
class Operator:
    """What is called by name; `along` says whether it may mix the tokens of a sequence."""

    name: str
    signature: str
    meaning: str
    shape: Callable[[Call], Node]


@dataclass(frozen=True, slots=True)
class Function:
    """An argument `z -> f(z)`."""

    parameter: tree.Identifier
    of: Callable[[Node], Node]


class Call:
    """One call: its arguments by place and by name, as values, lengths and axes."""

    def __init__(
        self, name: str, signature: str, span: Span, values: tuple[Node, ...], named: Mapping[str, Node],
        dims: Mapping[str, Dim | None], demand: Callable[[Divides], None], require: Callable[[Node], None],
        definitions: Mapping[str, Node], functions: Mapping[int, Function],
    ) -> None:  # fmt: skip
        self.name = name
        self.signature = signature
        self.span = span
        self.values = values
        self.named = named
        self.dims = dims  # by place ("0", "1", …) and by name: arguments that are lengths
        self.demand = demand
        self.require = require
        self.definitions = definitions  # what names of values stand for
        self.functions = functions
        self._read: set[str] = set()

    @property
    def x(self) -> Node:
        """The first argument, a tensor."""
        return self.tensor(0)

    def tensor(self, at: int) -> Node:
        """An argument that has axes."""
        node = self._at(at)
        if node.type.is_number:
            fail("E401", f"`{self.name}` of a number", node.span, "expected a value with axes")
        if node.type.kind is not Kind.REAL:
            fail("E204", f"{describe(node)} holds no real numbers", node.span, f"it holds {node.type.kind.value}")
        return node

    def places(self, at: int) -> Node:
        """An argument of whole numbers, one for each entry of an axis."""
        node = self._at(at)
        if node.type.kind is not Kind.INT or len(node.type.axes) != 1 or not node.type.batched:
            text = f"expected whole numbers [k], such as those of `top`, found {node.type}"
            fail("E401", f"{describe(node)} says no places", node.span, text)
        return node

    def attended(self) -> tuple[Node, Node]:
        """The first argument, a named value that `attend` has made, and the call that made it."""
        node = self._at(0)
        made = self.definitions.get(node.name) if node.op is Op.NAME else None
        while made is not None and made.op is Op.DROP:
            made = made.args[0]
        if made is None or made.op is not Op.ATTEND:
            help_ = f"name what an attention gives, `a = attend …`, and write `{self.name}(a)`"
            fail("E401", f"`{self.name}` is about a call of an attention", node.span, helps=(help_,))
        return node, made

    def function(self, at: int) -> Function:
        """An argument that is a function of one value."""
        if at not in self.functions:
            span = self.values[at].span if at < len(self.values) else self.span
            fail("E206", f"`{self.name}` takes a function", span, f"expected `{self.signature}`")
        self._read.add(str(at))
        return self.functions[at]

    def _at(self, at: int) -> Node:
        if at >= len(self.values):
            fail("E206", f"`{self.name}` lacks an argument", self.span, f"expected `{self.signature}`")
        self._read.add(str(at))
        if at in self.functions:
            fail("E206", f"`{self.name}` takes no function here", self.values[at].span, f"expected `{self.signature}`")
        return self.values[at]

    def has(self, name: str) -> bool:
        """Whether a named argument was given."""
        return name in self.named

    def count(self, at: int) -> int:
        """How many arguments by place there are beyond one."""
        return len(self.values) - at

    def dim(self, at: int, name: str) -> Dim:
        """An argument that is a length: made of whole numbers and parameters."""
        key = name if name in self.named else str(at)
        if key not in self.named and at >= len(self.values):
            fail("E206", f"`{self.name}` lacks an argument", self.span, f"expected `{self.signature}`")
        self._read.add(key)
        node = self.named[key] if key in self.named else self.values[at]
        found = self.dims.get(key)
        if found is None:
            fail("E401", "a length is made of whole numbers and parameters", node.span, "this is no length")
        return found

    def positive(self, at: int, name: str) -> Dim:
        """An argument that is a length of 1 or more: a module is made with such parameters alone."""
        found = self.dim(at, name)
        node = self.named[name] if name in self.named else self.values[at]
        if found.symbols & set(RUN_TIME):
            fail("E401", f"`{self.name}` takes a number that a call does not decide", node.span, f"this is {found}")
        if found.number is not None and found.number < 1:
            fail("E401", f"`{self.name}` takes 1 or more here", node.span, f"this is {found}")
        if found.number is None:
            sides = (length(found, node.span), length(ONE, node.span))
            self.require(Node(Op.COMPARE, sides, NUMBER, name=">=", span=node.span))
        return found

    def taken(self, name: str) -> Dim | None:
        """A named argument as a length, if it is one."""
        self._read.add(name)
        return self.dims.get(name)

    def number(self, name: str, default: float) -> float:
        """A named argument that is a constant."""
        if name not in self.named:
            return default
        self._read.add(name)
        node = self.named[name]
        if node.op is Op.SIZE and node.dims[0].number is not None:
            return float(node.dims[0].number)
        if node.op is not Op.CONST:
            fail("E212", f"`{name}` is a constant", node.span, "this is none")
        return float(node.numbers[0])

    def axis(self, default: int | None = None, *, of_batch: bool = False) -> int:
        """The axis that `over = …` names, counted from the end."""
        if "over" not in self.named:
            if default is not None:
                return default
            help_ = f"write `{self.name}(…, over = n)`, or the length of another axis"
            fail(
                "E206", f"`{self.name}` does not say over which axis", self.span, "expected `over = …`", helps=(help_,)
            )
        self._read.add("over")
        node = self.named["over"]
        if of_batch and node.op is Op.NAME and node.name == "B":
            if not self.x.type.batched:
                fail("E402", f"{describe(self.x)} has no batch axis", self.x.span, str(self.x.type))
            return -len(self.x.type.axes) - 1
        return axis_of(self.x, self.named["over"], self.dims.get("over"))

    def done(self) -> None:
        """Refuse arguments that nothing has read."""
        for at, node in enumerate(self.values):
            if str(at) not in self._read:
                fail("E206", f"`{self.name}` has too many arguments", node.span, f"expected `{self.signature}`")
        for name, node in self.named.items():
            if name not in self._read:
                helps = nearest(name, re.findall(r"(\w+) =", self.signature))
                fail("E206", f"`{self.name}` has no argument `{name}`", node.span,
                     f"expected `{self.signature}`", helps=helps)  # fmt: skip


def axis_of(x: Node, node: Node, dim: Dim | None) -> int:
    """The one axis of a length, counted from the end; `features` is the last one."""
    if node.op is Op.NAME and node.name == "features":
        return -1
    found = [at for at, each in enumerate(x.type.axes) if each == dim]
    if dim is None or not found:
        note = f"{describe(x)} has the axes {', '.join(map(str, x.type.axes)) or 'none'}; `features` is the last one"
        labels = (Label(x.span, str(x.type)),) if x.span is not None else ()
        fail("E402", f"there is no axis `{dim if dim is not None else '?'}`", node.span, "", *labels, notes=(note,))
    if len(found) > 1:
        labels = (Label(x.span, str(x.type)),) if x.span is not None else ()
        fail("E402", f"two axes have the length `{dim}`", node.span, "which of them?", *labels,
             helps=("write `features` for the last one",))  # fmt: skip
    return found[0] - len(x.type.axes)


def tokens_axis(call: Call, x: Node) -> int:
    """The one axis that is a sequence, or the one that `over` names."""
    if call.has("over"):
        return call.axis()
    found = [at for at, each in enumerate(x.type.axes) if sequence_of(each) is not None]
    if len(found) != 1:
        fail("E402", f"`{call.name}` works along a sequence", x.span, str(x.type), helps=("write `over = n`",))
    return found[0] - len(x.type.axes)
