"""States → the functions of the torch form that sum keys once for all rows that see them."""

from __future__ import annotations

from attncc.emit.torch_form.state_features import FeaturePrinter
from attncc.emit.torch_form.state_gradients import GradientPrinter
from attncc.emit.writer import Writer


class StatesPrinter(FeaturePrinter, GradientPrinter):
    """Prints the functions of one plan's states."""

    def text(self) -> str:
        """All functions."""
        writer = Writer()
        printers = [self._print_row_features, self._print_key_features]
        if self.near:
            printers += [self._print_near, self._print_moved, self._print_joined]
        printers += [self._print_of_block, self._print_running, self._print_begun, self._print_sum_gradients]
        printers += [self._print_row_gradients] if self.row_gradients else []
        printers += [self._print_of_slab, self._print_key_gradients, self._print_add_key_gradients]
        for at, each in enumerate(printers):
            if at:
                writer.line()
                writer.line()
            each(writer)
        return writer.text()
