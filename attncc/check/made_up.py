"""Pairs of a pattern that reads data, for pictures: with data that are made up, the same every time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attncc.check.calls import inputs_of
from attncc.check.fit import fitting_widths
from attncc.check.oracle import OutsideTable, related
from attncc.check.sizes import Case
from attncc.spec.model import Spec

_TRIES = 24
_SHARE = 0.2  # of the pairs, which a picture shows best


def made_up_pairs(spec: Spec, n: int, m: int, heads: int, start: int) -> Tensor | None:
    """Which pairs are related, bool [heads, n, m], the first query at `start`; None where no data are found to fit.

    Of several draws that one is taken whose pairs are neither few nor most of all.
    """
    found = list(_draws(spec, n, m, heads, start))
    return min(found, key=lambda each: abs(float(each.float().mean()) - _SHARE)) if found else None


def _draws(spec: Spec, n: int, m: int, heads: int, start: int) -> Iterator[Tensor]:
    d, e = fitting_widths(spec)
    for at in range(_TRIES):
        case = Case(
            batch=1, heads=heads, kv_heads=heads, n=n, m=m, d=d, e=e, dtype=torch.float64, q_start=start,
            name=f"picture {at}",
        )  # fmt: skip
        try:
            yield related(spec, n, m, heads, width=d, q_start=start, data=inputs_of(spec, case))[0]
        except OutsideTable:
            continue
