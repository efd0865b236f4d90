"""Segments → the scalar code with which a kernel finds its runs of partial and full tiles."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.emit.dialects import TRITON
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.writer import Writer
from attncc.graph.ops import Axis
from attncc.plan.ranges import Domain, HeadClass, Interval, Segment, plus
from attncc.spec.expr import TRUE, Name

_NAMES = {
    Name.HEAD: "head",
    Name.HEADS: "heads",
    Name.QUERIES: "n",
    Name.KEYS: "m",
    Name.FIRST: "first",
    Name.LAST: "last",
    Name.RESIDUE: "residue",
}


@dataclass(frozen=True, slots=True)
class Runs:
    """The names of the scalars that bound one segment, in tiles: partial [t0, f0), full [f0, f1), partial [f1, t1)."""

    t0: str
    f0: str
    f1: str
    t1: str
    has_full: bool


class RangePrinter:
    """Prints the bounds of one kernel's sweeps.

    Args:
        fixed: the axis of the tile; the other one is swept.
        of: what all names begin with that say where the tile is, and that the runs get.
    """

    def __init__(self, writer: Writer, domain: Domain, fixed: Axis, *, laid_out: bool = False, of: str = "") -> None:
        self.writer = writer
        self.of = of
        self.domain = domain
        self.by_rows = fixed is Axis.ROW
        self.origin = "k_start" if self.by_rows else "q_start"
        self.limit = "keys" if self.by_rows else "in_rows"
        if laid_out:
            self.origin = "key_origin" if self.by_rows else "row_origin"
            self.limit = "key_count" if self.by_rows else "in_rows"
        self.block = "BLOCK_N" if self.by_rows else "BLOCK_M"
        self.expressions = ExpressionWriter(TRITON, self._name, lambda name: name)

    def print(self) -> tuple[Runs, ...]:
        """Write the code; the names it leaves the runs in. `low` and `high` bound everything that is swept."""
        count = max(len(self._segments(each)) for each in self.domain.classes)
        runs = []
        for at in range(count):
            runs.append(self._segment(at, count))
        if count == 0:
            self.writer.line("low, high = 0, 0  # nothing is related")
        elif count > 1:
            self.writer.line(f"low, high = 0, {self.limit}")
        return tuple(runs)

    def _name(self, name: Name) -> str:
        return f"{self.of}{_NAMES[name]}" if name in (Name.FIRST, Name.LAST) else _NAMES[name]

    def _segments(self, each: HeadClass) -> tuple[Segment, ...]:
        return each.by_row if self.by_rows else each.by_column

    def _segment(self, at: int, count: int) -> Runs:
        suffix = f"_{at + 1}" if count > 1 else ""
        touched = [self._interval(each, at, full=False) for each in self.domain.classes]
        full = [self._interval(each, at, full=True) for each in self.domain.classes]
        low, high = f"{self.of}low{suffix}", f"{self.of}high{suffix}"
        self.writer.line(f"{low} = {self._low(touched)}")
        self.writer.line(f"{high} = {self._high(touched)}")
        t0, f0, f1, t1 = (f"{self.of}{name}{suffix}" for name in ("t0", "f0", "f1", "t1"))
        after = "" if at == 0 else "done"
        start = f"{low} // {self.block}"
        self.writer.line(f"{t0} = {start}" if not after else f"{t0} = tl.maximum({start}, {after})")
        end = f"tl.maximum(tl.cdiv(tl.maximum({high}, 0), {self.block}), {t0})"
        if at + 1 < count and self._may_end_first(at):  # a tile that no run has is left to those that follow
            end = f"tl.where({high} > {low}, {end}, {t0})"
        self.writer.line(f"{t1} = {end}")
        has_full = any(interval is not None for interval in full)
        if has_full:
            full_low, full_high = f"{self.of}full_low{suffix}", f"{self.of}full_high{suffix}"
            self.writer.line(f"{full_low} = {self._low(full)}")
            self.writer.line(f"{full_high} = {self._high(full)}")
            self.writer.line(f"{f0} = tl.minimum(tl.maximum(tl.cdiv({full_low}, {self.block}), {t0}), {t1})")
            last_full = f"tl.maximum({full_high}, 0) // {self.block}"
            self.writer.line(f"{f1} = tl.minimum(tl.maximum({last_full}, {f0}), {t1})")
        if at + 1 < count:  # later segments start where this one ended, if it was not empty
            ended = f"tl.where({high} > {low}, {t1}, {after or 0})"
            self.writer.line(f"done = {ended}")
        return Runs(t0, f0 if has_full else t1, f1 if has_full else t1, t1, has_full)

    def _may_end_first(self, at: int) -> bool:
        segments = (segments[at : at + 1] for segments in map(self._segments, self.domain.classes))
        return any(each.may_end_first for found in segments for each in found)

    def _interval(self, each: HeadClass, at: int, *, full: bool) -> Interval | None:
        segments = self._segments(each)
        if at >= len(segments):
            return None
        return segments[at].full if full else segments[at].touched

    def _low(self, intervals: list[Interval | None]) -> str:
        return self._by_class([self._end(each, high=False) for each in intervals])

    def _high(self, intervals: list[Interval | None]) -> str:
        return self._by_class([self._end(each, high=True) for each in intervals])

    def _end(self, interval: Interval | None, *, high: bool) -> str:
        """One end of an interval as an index into the swept axis, clipped to what exists."""
        if interval is None:
            return "0"
        bound = interval.high if high else interval.low
        if bound is None:
            text = self.limit if high else "0"
        elif high:
            text = f"tl.minimum({self.expressions.write(plus(bound, 1), 4)} - {self.origin}, {self.limit})"
        else:
            text = f"tl.maximum({self.expressions.write(bound, 4)} - {self.origin}, 0)"
        if high and interval.when != TRUE:
            text = f"tl.where({self.expressions.write(interval.when)}, {text}, 0)"
        return text

    def _by_class(self, texts: list[str]) -> str:
        """The choice between head classes; the last class is what remains."""
        if len(set(texts)) == 1:
            return texts[0]
        text = texts[-1]
        for each, candidate in zip(reversed(self.domain.classes[:-1]), reversed(texts[:-1]), strict=True):
            text = f"tl.where({self.expressions.write(each.condition)}, {candidate}, {text})"
        return text
