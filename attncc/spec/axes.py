"""The axes of declared data: letters of sizes, whole numbers made of parameters, and blocks, `ceil(m / 16)`."""

from __future__ import annotations

from attncc.diagnostics import Diagnostic, Label
from attncc.spec.data import Axis, Blocks, Free, Size
from attncc.spec.expressions import ExpressionResolver
from attncc.spec.fold import LARGEST_POSITION
from attncc.spec.scope import Bindings
from attncc.spec.words import nearest
from attncc.syntax import tree

_SIZES = {each.value: each for each in Size}
_OF_BLOCKS = (Size.QUERIES, Size.KEYS)


class AxisResolver:
    """Checks axes, one at a time."""

    def __init__(self, expressions: ExpressionResolver, errors: list[Diagnostic]) -> None:
        self.expressions = expressions
        self.errors = errors

    def axis(self, node: tree.Tree, bindings: Bindings) -> Axis | None:
        """What is written at `node`; None after an error."""
        match node:
            case tree.Group(inner=inner):
                return self.axis(inner, bindings)
            case tree.Reference(name=name, span=span) if name not in bindings:
                if name in _SIZES:
                    return _SIZES[name]
                if name == "any":
                    return Free()
                helps = nearest(name, [*_SIZES, "any", *bindings])
                self._error("E201", f"there is no size `{name}`", Label(span, "unknown name"), helps=helps)
                return None
            case tree.Call(name=tree.Identifier(text="ceil"), arguments=arguments) if "ceil" not in bindings:
                return self._blocks(node, arguments, bindings)
            case tree.Binary() if (letter := _length_in(node, bindings)) is not None:
                helps = (f"blocks of 16, of which the last may be shorter: `ceil({letter} / 16)`",)
                self._error(
                    "E218", "an axis is no formula of lengths", Label(node.span, "expected blocks"), helps=helps
                )
                return None
        return self._count(node, bindings)

    def _blocks(
        self, node: tree.Call, arguments: tuple[tree.Tree | tree.NamedArgument, ...], bindings: Bindings
    ) -> Axis | None:
        """`ceil(n / width)`, `ceil(m / width)`"""
        match arguments:
            case (tree.Binary(operator="/", left=left, right=right),):
                size = _bare(left)
                if isinstance(size, tree.Reference) and size.name in _SIZES and size.name not in bindings:
                    if _SIZES[size.name] not in _OF_BLOCKS:
                        note = f"`{size.name}` is no length: blocks are of rows, n, or of keys, m"
                        self._error("E218", "only rows and keys have blocks", Label(size.span, note))
                        return None
                    width = self._count(right, bindings)
                    if width is not None and width > LARGEST_POSITION:
                        text = f"expected at most {LARGEST_POSITION}"
                        self._error("E218", f"a block cannot have {width} tokens", Label(right.span, text))
                        return None
                    return None if width is None else Blocks(_SIZES[size.name], width)
        helps = ("write `ceil(n / 16)` for blocks of rows, `ceil(m / 16)` for blocks of keys",)
        self._error("E218", "blocks are a length over a whole number", Label(node.span, "expected blocks"), helps=helps)
        return None

    def _count(self, node: tree.Tree, bindings: Bindings) -> int | None:
        value = self.expressions.constant(node, bindings)
        if value is None:
            return None
        if not isinstance(value, int) or value < 1:
            text = "expected a whole number of at least 1"
            self._error("E218", f"an axis cannot have length {value}", Label(node.span, text))
            return None
        return value

    def _error(self, code: str, message: str, *labels: Label, helps: tuple[str, ...] = ()) -> None:
        self.errors.append(Diagnostic(code, message, labels, (), helps))


def _bare(node: tree.Tree) -> tree.Tree:
    while isinstance(node, tree.Group):
        node = node.inner
    return node


def _length_in(node: tree.Tree, bindings: Bindings) -> str | None:
    """The letter of a length that a formula reads."""
    match node:
        case tree.Reference(name="n" | "m" as name) if name not in bindings:
            return name
        case tree.Binary(left=left, right=right):
            return _length_in(left, bindings) or _length_in(right, bindings)
        case tree.Group(inner=inner):
            return _length_in(inner, bindings)
    return None
