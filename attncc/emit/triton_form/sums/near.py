"""Tokens near by: what features that decay are relative to, and how sums pass from one to another."""

from __future__ import annotations

from collections.abc import Iterator

from attncc.emit.triton_form.scope import BLOCK, START
from attncc.emit.triton_form.sums.tokens import TokenTexts
from attncc.graph.ops import Axis
from attncc.plan.ranges import Segment
from attncc.spec.expr import Name, names_in


class NearTexts(TokenTexts):
    """Runs, and the token of each that is nearest to the fixed tile.

    Features of the swept axis are relative to it, so that exponents which grow with the distance grow from there: the
    end of a run that lies before its rows, the beginning of one that lies ahead of them.
    """

    @property
    def near(self) -> bool:
        """Whether features are relative to a token near by."""
        return self.sides.near

    def segments_by_class(self) -> Iterator[tuple[int, Segment]]:
        """Every segment of every class of heads, with its number."""
        for each in self.piece.domain.classes:
            yield from enumerate(each.by_row if self.rows_fixed else each.by_column)

    @property
    def segments(self) -> list[int]:
        """The segments that have runs which a whole tile sees."""
        return sorted({at for at, segment in self.segments_by_class() if segment.full is not None})

    @property
    def ranges_read_head(self) -> bool:
        """Whether query heads that share keys have different runs."""
        intervals = [
            interval
            for _, segment in self.segments_by_class()
            for interval in (segment.touched, segment.full)
            if interval is not None
        ]
        ends = [end for each in intervals for end in (each.low, each.high, each.when) if end is not None]
        return len(self.piece.domain.classes) > 1 or any(Name.HEAD in names_in(each) for each in ends)

    @property
    def has_numbers(self) -> bool:
        """Whether features are also summed by themselves."""
        return any(each is not None for each in self.sides.payloads[self.swept].numbers)

    def print_spots(self) -> None:
        """Where the runs of the head's tiles begin, and their sums."""
        head, heads = ("head", "heads") if self.sums_by_head else ("kv_head", "kv_heads")
        own, every = ("head", "heads") if self.ranges_read_head else ("0", "1")
        classes = ") * classes + residue" if self.laid_out else ""
        spot = f"batch * {every} + {own}" if own != "0" else "batch"
        spot, place = (f"{'(' * bool(classes)}{each}{classes}" for each in (spot, f"batch * {heads} + {head}"))
        spot = f"({spot})" if " " in spot else spot
        self.writer.line(f"run_spot = ({spot} * segments + segment) * tiles")
        self.writer.line(f"spot = tl.cast(({place}) * segments + segment, tl.int64)")

    @property
    def sums_by_head(self) -> bool:
        """Whether sums belong to query heads."""
        return not self.rows_fixed or self.sides.by_query_head or self.ranges_read_head

    def sums_at(self, tensor: str) -> str:
        """Where the sums of a block of features and of values lie, from `place` on."""
        self.used.add("_sums_at")
        return f"_sums_at({tensor}_ptr + place * values + value, 1, values, BLOCK_W, BLOCK_E)"

    def print_run(self) -> None:
        """`f0` and `f1`: the first tile of the run of a tile, and the one after the last."""
        self.writer.line("run = runs_ptr + (run_spot + tile) * 2")
        self.writer.line("f0 = tl.load(run)")
        self.writer.line("f1 = tl.load(run + 1)")

    def print_ahead(self, low: str) -> None:
        """Whether the run, whose end from which programs come is given, lies ahead of the fixed tile."""
        fixed, swept = self.fixed, self.swept
        end = self.position(swept, f"({low})")
        if self.rows_fixed:
            own = f"(tl.minimum(row + BLOCK_M, {self.limit(Axis.ROW)}) - 1)"
            self.writer.line(f"ahead = {end} >= {self.position(fixed, own)}")
        else:
            self.writer.line(f"ahead = {end} <= {self.position(fixed, START[fixed])}")

    def print_near_token(self, f0: str, f1: str) -> None:
        """`near`, for a run of tiles f0 … f1 - 1 of the swept axis."""
        block = BLOCK[self.swept]
        begin, end = f"{f0} * {block}", f"{f1} * {block} - 1"
        low, high = (begin, end) if self.rows_fixed else (end, begin)
        self.print_ahead(low)
        self.writer.line(f"near = tl.where(ahead, {low}, {high})")

    def print_moved(self, start: str, end: str, sums: str, numbers: str) -> None:
        """Sums relative to one token as sums relative to another."""
        for at in range(self.count):
            cut = self.cut(at)
            number, block = self.moved(cut, "old_", "new_")
            if not number and not block:
                continue
            with self.term(at):
                self.print_leads(cut)
                self.print_near("old_", start, cut)
                self.print_near("new_", end, cut)
                factors = [f"tl.exp({number})"] if number else []
                plain = [*factors, f"tl.exp({block})"] if block else factors
                own = [*factors, f"tl.exp({block})[:, None]"] if block else factors
                self.writer.line(f"{sums} = {' * '.join([sums, *own])}")
                if self.has_numbers:
                    self.writer.line(f"{numbers} = {' * '.join([numbers, *plain])}")
