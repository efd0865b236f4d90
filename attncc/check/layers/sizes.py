"""Calls that a layer is checked with: parameters, lengths of sequences, padding, and numbers for all tensors."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attncc.check.fit import fits
from attncc.check.sizes import Case
from attncc.diagnostics import AttnError
from attncc.plan.layers import plan_layer
from attncc.spec.layers.model import Input, Kind, Layer, Learned, walk
from attncc.spec.layers.numbers import value_of
from attncc.spec.layers.resolve import load_layer

_SMALL = (12, 8, 6, 4, 3, 2, 1, 5, 16, 24, 32, 48, 64, 128)
_LARGEST = 16  # a default above this is replaced
_CUT = (12, 13, 8, 5, 16, 4)  # for numbers that cores are built with
_PARTS = (4, 8, 2, 16)  # of these numbers, where they depend on each other
_LONGEST = 96  # at least what the cases' sequences have, for tables that are indexed by position
_LONG = Case(batch=1, heads=1, kv_heads=1, n=_LONGEST, m=_LONGEST, d=1, e=1, dtype=torch.float64)
_MOST_TRIES = 200_000


@dataclass(frozen=True, slots=True)
class LayerCase:
    """One call."""

    name: str
    batch: int
    sizes: tuple[tuple[str, int], ...]  # run-time lengths
    lengths: tuple[tuple[str, tuple[int, ...] | None], ...]
    dtype: torch.dtype
    training: bool = False

    def as_case(self) -> Case:
        """What a report reads."""
        n = dict(self.sizes).get("n", 1)
        return Case(
            batch=self.batch, heads=1, kv_heads=1, n=n, m=n, d=1, e=1, dtype=self.dtype, name=self.name
        )  # fmt: skip


def parameters_of(layer: Layer) -> dict[str, int | float]:
    """Values for the parameters: small ones with which everything that is demanded holds.

    Raises:
        ValueError: where none are found.
    """
    free = [each for each in layer.parameters if not each.fixed and each.is_whole]
    known: dict[str, int | float] = {
        each.name: each.value for each in layer.parameters if each not in free and each.value is not None
    }
    least = _least_lengths(layer)
    choices: list[tuple[int, ...]] = []
    for each in free:
        if each.default is not None and each.value is None:
            choices.append((*_SMALL, 0))  # 0: made of others
        elif isinstance(each.value, int) and (each.value <= _LARGEST or each.name in layer.given):
            choices.append((each.value, *(_SMALL if each.name not in layer.given else ())))
        else:
            choices.append((*(size for size in least.get(each.name, ())), *_SMALL))
    for telling in (True, False):
        for values in itertools.islice(itertools.product(*choices), _MOST_TRIES):
            if telling and len(set(values)) < len(values):  # what is mistaken for something else has another size
                continue
            sizes = known | {each.name: value for each, value in zip(free, values, strict=True)}
            for each in free:
                if each.default is not None and sizes[each.name] == 0:
                    sizes[each.name] = value_of(each.default, sizes) or 0
            if _holds(layer, sizes, 2 if telling else 1):
                return sizes
    raise ValueError("no small values of the parameters fulfil what the layer requires")


def smaller_layer(layer: Layer, given: Mapping[str, str]) -> dict[str, str] | None:
    """Parameters for a copy of the layer whose cores are cut by the cases' lengths; None where they are."""
    fixed = {each.name: each.value for each in layer.parameters if each.fixed and isinstance(each.value, int)}
    if all(value <= _LARGEST for value in fixed.values()):
        return None
    for smaller in _smaller(fixed):
        chosen = dict(given) | {name: str(value) for name, value in smaller.items()}
        try:
            copy = load_layer(layer.source, chosen)
            plan_layer(copy)
        except AttnError:
            continue
        if all(fits(each.spec, _LONG) for each in copy.cores):
            return chosen
    return None


def _smaller(fixed: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Values to try: all in the same proportion, where there are several; large ones alike, or as long as the cases."""
    large = [name for name, value in fixed.items() if value > _LARGEST]
    for by in _PARTS if len(fixed) > 1 else ():
        parts = {name: max(value // by, min(value, 2)) for name, value in fixed.items()}
        yield {name: value if value < _LONGEST // 4 else _CUT[0] for name, value in parts.items()}
    yield from (dict.fromkeys(large, value) for value in _CUT)
    for long, value in itertools.product((*((each,) for each in large), large), _CUT):
        yield dict.fromkeys(large, value) | dict.fromkeys(long, _LONGEST)


def _least_lengths(layer: Layer) -> dict[str, tuple[int, ...]]:
    """Parameters that say how long a sequence can be, with what suits the cases below."""
    names = {
        symbol
        for _, value in layer.values
        for node in walk(value)
        if len(node.dims) == 3 and node.dims[1].symbols & {"n", "m"}
        for symbol in node.dims[2].symbols
    }
    return dict.fromkeys(names, (_LONGEST,))


def _holds(layer: Layer, sizes: Mapping[str, int | float], least: int) -> bool:
    """Whether everything that is demanded holds, and quotients such as widths of heads are not too small."""
    if not all(value_of(each, sizes) is True for each in layer.conditions):
        return False
    for each in layer.divisions:
        whole, by = each.whole.value(sizes), each.by.value(sizes)  # type: ignore[arg-type]
        if by == 0 or (whole / by).denominator != 1 or whole / by < least:
            return False
    return True


def cases_of(layer: Layer, quick: bool) -> Iterator[LayerCase]:
    """Calls of every dtype, with and without padding, of odd lengths."""
    sizes = (37, 1, 8, 90) if not quick else (19, 1)
    dtypes = (
        (torch.float64, torch.float32, torch.bfloat16, torch.float16) if not quick else (torch.float64, torch.float32)
    )
    for dtype, n, padded in itertools.product(dtypes, sizes, (False, True)):
        short = dtype in (torch.bfloat16, torch.float16)
        if short and n in (1, 8):
            continue
        batch = 4 if padded else 2
        lengths: dict[str, tuple[int, ...] | None] = {}
        run_time: dict[str, int] = {}
        for at, name in enumerate(layer.sequences):
            length = n if at == 0 else n // 2 + 3
            run_time[name] = length
            lengths[name] = (length, max(length // 2, 1), 1, 0) if padded else None
        if padded and not run_time:
            continue
        words = ", ".join(f"{name} = {size}" for name, size in run_time.items())
        title = f"{words}, {str(dtype).removeprefix('torch.')}{', padded' if padded else ''}"
        for training in (False, True) if any(each.is_running for each in layer.learned) and not short else (False,):
            own = title + (", training" if training else "")
            yield LayerCase(own, batch, tuple(run_time.items()), tuple(lengths.items()), dtype, training)


def tensors_of(layer: Layer, case: LayerCase, parameters: Mapping[str, int | float]) -> dict[str, Tensor]:
    """Inputs and learned tensors, in float64 but rounded to the type of the case."""
    sizes: dict[str, int] = {**parameters, **dict(case.sizes)}  # type: ignore[dict-item]  # real ones are in no axis
    found: dict[str, Tensor] = {}
    every: tuple[Input | Learned, ...] = (*layer.inputs, *layer.learned)
    for each in every:
        generator = torch.Generator().manual_seed(_seed(f"{case.name} {each.name}"))
        axes = [axis.length(sizes) for axis in each.type.axes]
        shape = [case.batch, *axes] if each.type.batched else axes
        if each.type.kind is not Kind.REAL:
            most = 2 if each.type.kind is Kind.BOOL else min(2, *(size for _, size in case.sizes))  # places
            found[each.name] = torch.randint(0, most, shape, generator=generator)
            if each.type.kind is Kind.BOOL:
                found[each.name] = found[each.name].bool()
            continue
        drawn = torch.randn(shape, dtype=torch.float64, generator=generator)
        if not each.type.batched and len(axes) > 1:
            drawn = drawn / max(axes[-2], 1) ** 0.5
        if isinstance(each, Learned) and each.is_running and each.numbers == (1.0,):
            drawn = drawn.square() + 0.5  # a variance is not negative
        found[each.name] = drawn.to(case.dtype).double()
    return found


def gradient_of(out: Tensor, case: LayerCase) -> Tensor:
    """What arrives at the output in backward."""
    generator = torch.Generator().manual_seed(_seed(f"{case.name} gradient"))
    return torch.randn(out.shape, dtype=torch.float64, generator=generator).to(case.dtype).double()


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
