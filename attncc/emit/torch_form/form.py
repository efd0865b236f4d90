"""Plan → the functions of the torch form that depend on the spec; everything else is in the module template."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attncc.emit.numbers import print_numbers
from attncc.emit.operands import read_by_pairs
from attncc.emit.torch_form.body import TorchBody
from attncc.emit.torch_form.pattern import PatternPrinter, heads_apart
from attncc.emit.torch_form.pieces import PiecesPrinter
from attncc.emit.torch_form.slabs import SlabPrinter
from attncc.emit.writer import Writer
from attncc.graph.core import Operand
from attncc.graph.ops import Op


@dataclass(frozen=True, slots=True)
class Parts:
    """Texts for the template, and what it must know to fit around them."""

    pattern: str  # _segments and _related
    numbers: str  # _numbers, or empty
    slabs: str  # _forward_slab and _backward_slab
    plain: str  # _weights_of
    workspaces: int
    by_head: bool
    used: frozenset[str]


class TorchForm(SlabPrinter):
    """Prints the functions of one plan: forward and backward by slabs of rows, to which gradients of others add up."""

    def parts(self) -> Parts:
        """All texts."""
        slabs = Writer()
        forward_spaces = self._print_forward(slabs)
        backward_spaces = self._print_backward(slabs)
        return Parts(
            pattern=self._pattern(),
            numbers=self._numbers(),
            slabs=slabs.text(),
            plain=self._plain(),
            workspaces=max(forward_spaces, backward_spaces),
            by_head=self.by_head,
            used=frozenset(self.used),
        )

    # --- pattern ----------------------------------------------------------------------------------------------

    @property
    def by_head(self) -> bool:
        """Whether heads have different ranges."""
        return len(self.plan.domain.classes) > 1 or heads_apart(self.plan.domain)

    def _pattern(self) -> str:
        writer = Writer()
        domain = self.plan.domain
        pattern = PatternPrinter(self.used, self.operands.batched)
        pattern.print_segments(writer, "_segments", domain.classes)
        writer.line()
        writer.line()
        whole = replace(domain.classes[0], pattern=self.plan.core.pattern)
        facts = "".join(f"{each.name}, " for each in self.operands.facts)
        pattern.print_related(writer, "_related", (whole,), facts=facts, of=self.plan.spec.pattern)
        if self.pieces is not None:
            writer.line()
            writer.line()
            PiecesPrinter(self.pieces, pattern, whole_shifts=self.plan.depends_on_distance).print(writer)
        if self.by_head:
            writer.line()
            writer.line()
            pattern.print_head_groups(writer, domain)
        return writer.text()

    # --- call-wide numbers ------------------------------------------------------------------------------------

    def _numbers(self) -> str:
        return print_numbers(self.uniform(), "_numbers", self.used)

    # --- plain operations -------------------------------------------------------------------------------------

    def _plain(self) -> str:
        writer = Writer()
        kernel = self.forward
        body = TorchBody(writer, kernel, self.operands, self.used, in_place=False)
        outputs = [name for name in self.forward_graph.outputs if name != "out"]
        names = ", ".join(each.name for each in self.scored())
        with writer.block(f"def _weights_of({names}, i, j, hidden, numbers, call):"):
            writer.line(
                '"""Weights of pairs, what they are divided by, and the numbers of rows, in plain operations."""'
            )
            self._print_unpacking(writer, kernel)
            for node in kernel.before:
                body.print_row(node, set())
            for sweep in kernel.sweeps:
                for node in (*sweep.before, *sweep.numbers):
                    body.print_row(node, set())
                body.print_sweep(sweep)
            total = next(node for sweep in kernel.sweeps for node in sweep.reductions if node.op is Op.CONTRACT)
            norm = "None"
            for node in kernel.after:
                if node.op is Op.DIVIDE:
                    norm = node.inputs[1]
                elif node.op is Op.NUMBER:
                    writer.line(f"{node.name} = {self._safe_log(body.plain(node.value))}")
            weight = body.rename.get(total.inputs[0], total.inputs[0])
            writer.line(f"return {weight}, {norm}, ({', '.join(outputs)}{',' * (len(outputs) == 1)})")
        return writer.text()

    def scored(self) -> list[Operand]:
        """The operands that weights are made of, and that which says how many rows there are."""
        read = read_by_pairs(self.forward_graph) | {self.rows}
        return [each for each in self.operands if each.name in read]

    def _safe_log(self, written: str) -> str:
        """A logarithm of 0 must not make the gradient of the other branch NaN."""
        if "torch.log(" in written:
            self.used.add("_safe_log")
        return written.replace("torch.log(", "_safe_log(")
