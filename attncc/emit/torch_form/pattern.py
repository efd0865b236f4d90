"""Which pairs are related, and which keys a run of rows touches, as functions of the torch form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attncc.emit.dialects import HOST, PATTERN
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.torch_form.tensors import SYMBOLS
from attncc.emit.writer import Writer
from attncc.plan.ranges import Domain, HeadClass, Interval, Segment, plus
from attncc.spec.expr import TRUE, Binary, BinaryOp, Entry, Expr, Name, names_in
from attncc.spec.text import text

_FAR = "_FAR"
_PRODUCT, _ATOM = 5, 8  # how tight a quotient and a call bind


class PatternPrinter:
    """Prints `_segments` and `_related`, of a whole pattern or of a piece.

    Args:
        used: gets the names of helpers.
        batched: tables of which each batch entry has its own part.
    """

    def __init__(self, used: set[str], batched: frozenset[str] = frozenset()) -> None:
        self._used = used
        self._batched = batched

    def host(self, expr: Expr) -> str:
        """The text of plain numbers."""
        return self._host().write(expr)

    def _host(self) -> ExpressionWriter:
        return ExpressionWriter(HOST, lambda name: SYMBOLS[name], lambda name: name)

    # --- related pairs ----------------------------------------------------------------------------------------

    def print_related(
        self,
        writer: Writer,
        name: str,
        classes: Sequence[HeadClass],
        where: str = "",
        *,
        facts: str = "",
        of: Expr | None = None,
    ) -> None:
        """Which pairs are related, for heads of some classes; the last class is what remains.

        Args:
            facts: what the pattern reads beside positions, as arguments.
            of: the pattern as it is described.
        """
        with writer.block(f"def {name}(i, j, {facts}call):"):
            if len(classes) == 1:
                writer.line(f'"""{_sentence(text(of or classes[0].pattern), where)}"""')
            else:
                writer.line(f'"""The pattern{where}."""')
            for each in classes[:-1]:
                with writer.block(f"if {self.host(each.condition)}:"):
                    writer.line(self._returned(each.pattern))
            writer.line(self._returned(classes[-1].pattern))

    def print_predicate(self, writer: Writer, name: str, pattern: Expr, facts: str, says: str) -> None:
        """A predicate of pairs that reads facts."""
        with writer.block(f"def {name}(i, j, {facts}call):"):
            writer.line(f'"""{says}"""')
            writer.line(self._returned(pattern))

    def _returned(self, pattern: Expr) -> str:
        if pattern == TRUE:
            return "return torch.ones_like(i + j, dtype=torch.bool)"
        expressions = PairWriter(PATTERN, lambda name: SYMBOLS[name], lambda name: name, host=self._host())
        expressions.batched = {name: f"_batch_entries({name}, i.dim())" for name in self._batched}
        found = f"return {expressions.write(pattern)}"
        self._used |= expressions.used
        return found

    # --- ranges -----------------------------------------------------------------------------------------------

    def print_segments(self, writer: Writer, name: str, classes: Sequence[HeadClass], what: str = "positions") -> None:
        """Which keys rows first … last touch, for heads of some classes; the last class is what remains."""
        with writer.block(f"def {name}(first, last, call):"):
            touched = f"Intervals of {what} that rows first … last touch"
            writer.line(
                f'"""{touched}, each with the part all of them see."""' if len(what) < 10 else f'"""{touched}."""'
            )
            for each in classes[:-1]:
                with writer.block(f"if {self.host(each.condition)}:"):
                    self._print_class(writer, each)
            self._print_class(writer, classes[-1])

    def _print_class(self, writer: Writer, each: HeadClass) -> None:
        items = [self._segment(segment) for segment in each.by_row]
        if not items:
            writer.line("return ()")
        elif len(items) == 1:
            writer.line(f"return ({items[0]},)")
        else:
            writer.line("return (")
            with writer.indented():
                for item in items:
                    writer.line(f"{item},")
            writer.line(")")

    def _segment(self, segment: Segment) -> str:
        touched = self._interval(segment.touched)
        full = self._interval(segment.full) if segment.full is not None else "(0, 0)"
        return f"({touched}, {full})"

    def _interval(self, interval: Interval) -> str:
        host = self._host()
        low = f"-{_FAR}" if interval.low is None else host.write(interval.low)
        high = _FAR if interval.high is None else host.write(plus(interval.high, 1))
        both = f"({low}, {high})"
        return both if interval.when == TRUE else f"({both} if {host.write(interval.when)} else (0, 0))"

    # --- heads ------------------------------------------------------------------------------------------------

    def print_head_groups(self, writer: Writer, domain: Domain) -> None:
        """Heads that share ranges run together."""
        with writer.block("def _head_groups(heads, n, m):"):
            writer.line('"""Lists of heads whose ranges are the same."""')
            if heads_apart(domain):
                writer.line("return [[head] for head in range(heads)]")
                return
            writer.line("groups = {}")
            with writer.block("for head in range(heads):"):
                writer.line("call = _Call(n, m, heads, head)")
                conditions = ", ".join(self.host(each.condition) for each in domain.classes)
                comma = "," if len(domain.classes) == 1 else ""
                writer.line(f"groups.setdefault(({conditions}{comma}), []).append(head)")
            writer.line("return list(groups.values())")


class PairWriter(ExpressionWriter):
    """Writes predicates that may look tables up, and numbers that they compare."""

    batched: Mapping[str, str] = {}  # how batch entries are told of tables in which each has its own part

    def _written(self, expr: Expr) -> tuple[int, str]:
        match expr:
            case Binary(op=BinaryOp.DIVIDE, left=left, right=right):  # whole numbers would give the default type
                return _PRODUCT, f"({self.write(left)}).double() / {self.write(right, _PRODUCT + 1)}"
            case Entry():
                pass
            case _:
                return super()._written(expr)
        self.used.add("_picked")
        at = [*map(self.write, expr.indices)]
        if expr.name in self.batched:
            at.insert(0, self.batched[expr.name])
            self.used |= {"_batch_entries"} if "_batch_entries(" in at[0] else set()
        return _ATOM, f"_picked({expr.name}, {', '.join(at)})"


def heads_apart(domain: Domain) -> bool:
    """Whether even the heads of one class have ranges of their own."""
    return any(Name.HEAD in names_in(each.pattern) for each in domain.classes)


def _sentence(pattern: str, where: str) -> str:
    return f"The pattern{where}: {pattern}" if len(pattern) + len(where) < 80 else f"The pattern{where}."
