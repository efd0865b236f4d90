"""Inputs that are made where a caller leaves them out: `= random(3, seed = 1)`, `= normal(seed = 1)`."""

from __future__ import annotations

from attncc.diagnostics import Diagnostic, Label
from attncc.spec.data import Make, Maker
from attncc.spec.expressions import ExpressionResolver
from attncc.spec.scope import Bindings
from attncc.spec.words import nearest
from attncc.syntax import tree

_KNOWN = {each.value: each for each in Make}
_ARGUMENTS = {Make.RANDOM: ("count", "seed"), Make.NORMAL: ("seed",)}


class MakerResolver:
    """Checks how an input is made."""

    def __init__(self, expressions: ExpressionResolver, errors: list[Diagnostic]) -> None:
        self.expressions = expressions
        self.errors = errors

    def maker(self, datum: tree.Datum, call: tree.Call, type_: str | None, bindings: Bindings) -> Maker | None:
        """`random(count, seed = 0)` of truth values, `normal(seed = 0)` of real numbers; None after an error."""
        make = _KNOWN.get(call.name.text)
        if make is None:
            helps = nearest(call.name.text, _KNOWN) or ("`random(3)` makes truth values, `normal()` real numbers",)
            label = Label(call.name.span, "expected `random` or `normal`")
            self._error("E218", f"inputs are not made by `{call.name.text}`", label, helps=helps)
            return None
        wanted = "bool" if make is Make.RANDOM else "real"
        if type_ is not None and type_ != wanted:
            note = f"`{make.value}` makes {'truth values' if wanted == 'bool' else 'real numbers'}"
            label = Label(call.span, f"`{datum.name.text}` is `{type_}`")
            self._error("E218", f"`{datum.name.text}` cannot be made so", label, notes=(note,))
            return None
        given = {"count": 1, "seed": 0}
        for at, argument in enumerate(call.arguments):
            name, node = self._argument(make, at, argument)
            value = None if node is None else self.expressions.constant(node, bindings)
            if node is None or value is None:
                return None
            least = int(name == "count")
            if not isinstance(value, int) or not least <= value < 2**31:
                label = Label(node.span, f"this is {value}")
                message = f"the {name} of `{make.value}` is a whole number of at least {least}"
                self._error("E218", message, label)
                return None
            given[name] = value
        return Maker(make, given["count"], given["seed"])

    def _argument(
        self, make: Make, at: int, argument: tree.Tree | tree.NamedArgument | tree.Lambda
    ) -> tuple[str, tree.Tree | None]:
        """The name and the value of an argument."""
        names = _ARGUMENTS[make]
        match argument:
            case tree.NamedArgument(name=tree.Identifier(text=name), value=value) if name in names:
                if not isinstance(value, tree.Lambda):
                    return name, value
            case tree.NamedArgument() | tree.Lambda():
                pass
            case node if at < len(names):
                return names[at], node
        label = Label(argument.span, f"expected {' and '.join(names)}")
        self._error("E206", f"`{make.value}` has no such argument", label)
        return "", None

    def _error(
        self, code: str, message: str, *labels: Label, notes: tuple[str, ...] = (), helps: tuple[str, ...] = ()
    ) -> None:
        self.errors.append(Diagnostic(code, message, labels, notes, helps))
