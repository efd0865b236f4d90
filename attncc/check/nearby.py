"""What the dense formula loses at inputs that are a rounding away: one run alone may be right by luck.

A tensor of a few numbers, such as the gradient of a gate of each head, is a sum whose roundings may happen to cancel.
So the yardstick is that of several inputs, which differ in their last bits and so in nothing but these roundings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from attncc.check.calls import Tensors, run_dense
from attncc.check.sizes import Case
from attncc.spec.model import Spec

RUNS = 6


def dense_nearby(
    spec: Spec, case: Case, inputs: Mapping[str, Tensor], with_lse: bool
) -> Iterator[tuple[Tensors, Tensors]]:
    """The exact results and those in the case's own dtype, for each of the inputs."""
    real = [each.name for each in spec.data if each.is_real]
    for seed in range(RUNS):
        moved = {**inputs, **{name: _moved(inputs[name], seed) for name in real}}
        yield (
            run_dense(spec, case, moved, torch.float64, with_lse),
            run_dense(spec, case, moved, case.dtype, with_lse),
        )


def _moved(x: Tensor, seed: int) -> Tensor:
    """Every number up or down by about one unit in its last place."""
    signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(seed)).to(x.device) * 2 - 1
    return (x.double() * (1 + signs * torch.finfo(x.dtype).eps)).to(x.dtype)
