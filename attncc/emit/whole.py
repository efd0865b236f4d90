"""Plan → the whole text of its module, kernels in C and all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncc.emit.c_form.module import with_kernels_in_c
from attncc.emit.combined import emit_cores
from attncc.plan.model import Planned

if TYPE_CHECKING:
    from attncc.plan.layers import LayerPlan


def emit(plan: Planned, *, in_c: bool = True) -> str:
    """The module of an attention, formatted; the same for the same plan.

    Args:
        in_c: whether it has kernels in C, which take as long to write as all the rest.
    """
    return with_kernels_in_c(emit_cores(plan), wanted=in_c)


def emit_layer(plan: LayerPlan, *, in_c: bool = True) -> str:
    """The module of a layer, likewise."""
    from attncc.emit.layers.module import emit_module

    return with_kernels_in_c(emit_module(plan), wanted=in_c)
