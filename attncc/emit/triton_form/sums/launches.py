"""Launches of kernels of sums, beside those of the kernels that leave full tiles to them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from attncc.emit.tile import Kernel
from attncc.emit.triton_form.launch_shapes import LaunchShapes
from attncc.emit.triton_form.piece import KernelPiece
from attncc.emit.triton_form.scope import is_literal
from attncc.emit.triton_form.sums.near import NearTexts
from attncc.emit.triton_form.sums.pulled import PulledSums
from attncc.emit.triton_form.sums.running import RunningSums
from attncc.emit.triton_form.sums.runs import Runs
from attncc.emit.writer import Writer
from attncc.graph.ops import Axis
from attncc.plan.pieces import SHORT


class SumLaunches(LaunchShapes):
    """Prints them."""

    def print_sums(self, writer: Writer, kernel: Kernel, piece: KernelPiece) -> None:
        """What kernels of sums do beside one kernel: for rows before it, for gradients after it."""
        if self.sides is None:
            return
        sums, fixed = self.sums(piece), kernel.fixed
        if not sums.has_runs(fixed) or (kernel is not self.forward and not sums.gives(fixed)):
            return
        running, applied, pulled = sums.running[fixed], sums.applied[fixed], sums.pulled[fixed]
        rows = fixed is Axis.ROW
        heads, owners = "heads" if rows else "kv_heads", "heads" if running.by_head else "kv_heads"
        classes = f"classes{piece.name}.shape[2]" if piece.layouts else ""
        segments = len(running.segments)
        with writer.block("if by_states:"):
            width = self.shapes().arguments
            most = f", most_rows={SHORT}" if piece.has_list else ""
            writer.line(f'tile = _chunk("{kernel.name}", {width}{most})')
            self._print_runs(writer, piece, sums.runs[fixed], running)
            lengths = f"{self.longest(piece, Axis.ROW)}, {self.longest(piece, Axis.COLUMN)}"
            count = _product("batch", owners, classes, _times(segments))
            with writer.block(f"for each in _rooms(tile, {rows}, {lengths}, {count}, {running.slides}, {width}):"):
                jobs = _product("each.programs", classes, _times(segments))
                with self._where_met(writer, running.terms):
                    self._print_launch_sums(writer, kernel, piece, running, f"({jobs}, {owners}, batch)", "-1")
                if kernel is self.forward or (not rows and applied.terms):
                    grid = _product("each.tiles", "each.value_blocks", classes)
                    with self._where_met(writer, applied.terms):
                        self._print_launch_sums(writer, kernel, piece, applied, f"({grid}, {heads}, batch)", "-1")
                if kernel is not self.forward:
                    grid = f"({_product('each.tiles', classes)}, {heads}, batch)"
                    self._print_pulled(writer, kernel, piece, pulled, grid)

    def _print_runs(self, writer: Writer, piece: KernelPiece, runs: Runs, running: RunningSums) -> None:
        """The runs of every tile, which kernels of sums read."""
        rows = runs.rows_fixed
        block = "tile[0]" if rows else "tile[1]"
        count = f"_cdiv({self.longest(piece, runs.fixed)}, {block})"
        heads = "heads" if running.ranges_read_head else "1"
        classes = f"classes{piece.name}.shape[2]" if piece.layouts else "1"
        m = f"places{piece.name}.shape[0]" if piece.compacts else "m"
        own = ["starts", "lengths", *([f"classes{piece.name}"] if piece.layouts else [])]
        numbers = ["n", m, "k_start", count, "heads", *([classes] if piece.layouts else []), *runs.parts()]
        about = [runs.name, "tile", count, heads, "batch", classes, str(len(running.segments))]
        writer.listing("runs = _runs_of(", [about, own, numbers], ")")

    def _print_pulled(self, writer: Writer, kernel: Kernel, piece: KernelPiece, pulled: PulledSums, grid: str) -> None:
        """Launches of the kernel of gradients, for each term one by each factor that gives something."""
        by_term = [tuple(cut.factor for cut in pulled.cuts if cut.term == at) for at in range(pulled.count)]
        for factors in filter(None, dict.fromkeys(by_term)):
            with self._where_met(writer, [at for at, each in enumerate(by_term) if each == factors]):
                for factor in factors:
                    self._print_launch_sums(writer, kernel, piece, pulled, grid, str(factor))

    def _where_met(self, writer: Writer, terms: Sequence[int]) -> AbstractContextManager[None]:
        """A condition on the term, where not all of them are met."""
        assert self.sides is not None
        if len(terms) == len(self.sides.features[Axis.ROW]):
            return nullcontext()
        if len(terms) == 1:
            return writer.block(f"if each.term == {terms[0]}:")
        return writer.block(f"if each.term in {tuple(terms)}:")

    def _print_launch_sums(
        self, writer: Writer, kernel: Kernel, piece: KernelPiece, sums: NearTexts, grid: str, factor: str
    ) -> None:
        moved = self.moved(kernel, piece)

        def placed(name: str) -> str:
            return f"{name}{piece.name}" if name in moved else name

        known = {
            "sums": "each.sums",
            "plain": "each.plain",
            "sums_kept": "each.kept",
            "plain_kept": "each.plain_kept",
            "tiles": "each.tiles",
            "others": "each.others",
            "segments": str(len(sums.segments)),
            "leads": "each.leads",
            "choices": f"each.choices({factor})",
            "group": "each.group",
            "span": "each.span",
        }
        pointers = [placed(name) for name in sums.pointers()]
        pointers += [known.get(name) or placed(name) for name in sums.tensors]
        own = ["runs", "starts", "lengths", *([f"classes{piece.name}"] if piece.layouts else [])]
        strides = [f"{placed(node.name)}.stride()[:3]" for node in sums.vectors]
        m = f"places{piece.name}.shape[0]" if piece.compacts else "m"
        numbers = ["n", m, "k_start", *(known[name] for name in sums.lengths)]
        numbers += [f"classes{piece.name}.shape[2]"] if piece.layouts else []
        numbers += [*sums.parts(), *(node.name for node in sums.kernel.uniform if not is_literal(node))]
        run = ["each", factor, self.shapes().arguments]
        writer.listing("_launch_sums(", [[sums.name, grid], run, pointers, own, strides, numbers], ")")


def _times(count: int) -> str:
    """A factor, where it is one."""
    return str(count) if count > 1 else ""


def _product(*factors: str) -> str:
    return " * ".join(filter(None, factors))
