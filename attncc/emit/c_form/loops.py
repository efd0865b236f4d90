"""Statements on tiles, gathered into loops: what has the same shape shares one nest, until a sum is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from attncc.emit.c_form.text import CText
from attncc.emit.c_form.values import Dims, Form, Indices, Value, Variable

TOKENS = {"BLOCK_M": "r", "BLOCK_N": "c", "LIST_M": "r", "LIST_N": "c"}  # lengths of axes of rows and of keys


def is_pairs(dims: Dims) -> bool:
    """Whether a tile has a number for each pair of a row and a key."""
    return len(dims) == 2 and dims[1] in TOKENS


def indices_of(dims: Dims) -> Indices:
    """The names of the indices of a shape."""
    others = iter("xy")
    return tuple(TOKENS.get(each) or next(others) for each in dims)


@dataclass(frozen=True, slots=True)
class Step:
    """One statement for each element.

    Attributes:
        write: its text at some indices, without a semicolon.
        target: the variable that it writes, if it writes one.
        guard: the constant under which alone it is done.
        reads: the names that it reads, and how often.
        axis: of a reduction, the axis along which it runs.
    """

    write: Callable[[Indices], str]
    reads: Counter[str]
    target: Variable | None = None
    guard: str = ""
    axis: int = -1
    start: str = ""  # of a reduction
    operator: str = ""


@dataclass(slots=True)
class Group:
    """Statements of one nest of loops."""

    dims: Dims
    steps: list[Step] = field(default_factory=list)

    @property
    def reads(self) -> Counter[str]:
        """The names that its statements read, and how often."""
        return sum((step.reads for step in self.steps), Counter())

    @property
    def reduced(self) -> frozenset[str]:
        """The names of what is known after the loops only."""
        return frozenset(step.target.name for step in self.steps if step.axis >= 0 and step.target)

    @property
    def _inner(self) -> int:
        """The axis of the innermost loop: that along which elements lie side by side."""
        return 0 if is_pairs(self.dims) or len(self.dims) == 1 else 1

    def across(self, step: Step) -> bool:
        """Whether a reduction runs along the innermost loop."""
        return step.axis == self._inner

    def write(self, text: CText) -> None:
        """The nest."""
        indices = indices_of(self.dims)
        inner = self._inner
        for step in self.steps:
            if step.axis >= 0 and not self.across(step) and step.target is not None:
                index = indices[inner]
                text.line(f"for (int {index} = 0; {index} < {self.dims[inner]}; {index}++)")
                text.line(f"    {step.target.at((index,))} = {step.start};")
        across = [step for step in self.steps if self.across(step)]
        lines = [line for step in self.steps for line in self._lines(step, indices)]
        if len(self.dims) == 1:
            for step in across:
                text.line(f"{_kind(step)} {_own(step)} = {step.start};")
            self._write_inner(text, indices[0], self.dims[0], lines, across)
            for step in across:
                assert step.target is not None
                text.line(f"{step.target.name} = {_own(step)};")
            return
        outer = 1 - inner
        with text.block(f"for (int {indices[outer]} = 0; {indices[outer]} < {self.dims[outer]}; {indices[outer]}++)"):
            for step in across:
                text.line(f"{_kind(step)} {_own(step)} = {step.start};")
            self._write_inner(text, indices[inner], self.dims[inner], lines, across)
            for step in across:
                assert step.target is not None
                text.line(f"{step.target.at((indices[outer],))} = {_own(step)};")

    def _write_inner(self, text: CText, index: str, length: str, lines: list[str], across: list[Step]) -> None:
        clauses = "".join(f" reduction({step.operator}:{_own(step)})" for step in across)
        text.line(f"#pragma omp simd{clauses}")
        loop = f"for (int {index} = 0; {index} < {length}; {index}++)"
        if len(lines) == 1:
            text.line(loop)
            text.line(f"    {lines[0]}")
            return
        with text.block(loop):
            for line in lines:
                text.line(line)

    def _lines(self, step: Step, indices: Indices) -> list[str]:
        written = step.write(indices)
        guard = f"if ({step.guard}) " if step.guard else ""
        target = step.target
        if target is None:
            return [f"{guard}{written};"]
        if step.axis >= 0:
            kept = _own(step) if self.across(step) else target.at((indices[self._inner],))
            if step.operator == "+":
                return [f"{guard}{kept} += {written};"]
            chosen = {"max": "larger", "min": "smaller"}[step.operator]
            return [f"{guard}{kept} = {chosen}({kept}, {written});"]
        place = target.at(indices)
        if target.form is not Form.LOCAL:
            return [f"{guard}{place} = {written};"]
        own = [each for each in self.steps if each.target is target]
        if own[0] is not step:
            return [f"{guard}{place} = {written};"]
        if guard:
            return [f"{target.ctype} {place} = 0;", f"{guard}{place} = {written};"]
        return [f"{'const ' if len(own) == 1 else ''}{target.ctype} {place} = {written};"]


def _own(step: Step) -> str:
    """The number in which a reduction along the innermost loop is gathered."""
    assert step.target is not None
    return f"{step.target.name}_here"


def _kind(step: Step) -> str:
    assert step.target is not None
    return step.target.ctype


def step_of(value: Value, target: Variable, reads: Counter[str], guard: str = "") -> Step:
    """The statement that writes a value."""
    return Step(value.at, reads, target, guard)
