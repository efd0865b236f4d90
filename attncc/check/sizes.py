"""The sizes that a check runs: odd lengths, head dimensions, shared key heads, offsets, hidden keys, layouts, dtypes.

The full product would be tens of thousands of cases. Taken are the plain case of every dtype, every value of every
axis once beside an otherwise plain case, and then as many mixed cases as it takes for every pair of values of two axes
to meet at least once.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

PerBatch = int | tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: q [batch, heads, n, d], k [batch, kv_heads, m, d], v [batch, kv_heads, m, e]."""

    batch: int
    heads: int
    kv_heads: int
    n: int
    m: int
    d: int
    e: int
    dtype: torch.dtype
    q_start: PerBatch = None
    k_start: int = 0
    kv_lengths: PerBatch = None
    scale: float | None = None
    strided: bool = False  # q, k and g_out as [B, n, H, d] in memory, v as [B, H, e, m]
    garbage: bool = False  # NaN in hidden keys, and in memory before and after every tensor
    name: str = ""


_AXES: dict[str, tuple[object, ...]] = {
    "dtype": (torch.float32, torch.bfloat16, torch.float16, torch.float64),
    "n": (63, 1, 7, 521),
    "m": ("n", "longer", "shorter"),
    "d": (64, 1, 8, 40, 72, 128),
    "e": ("d", "wider", "narrower"),
    "heads": ((2, 2), (4, 2), (6, 1)),
    "batch": (2, 1, 3),
    "q_start": ("end", "k_start", "k_start+5", "k_start-3", "each"),
    "k_start": (0, 3, 11),
    "kv_lengths": (None, "half", "each"),
    "scale": (None, 0.3),
    "memory": ("plain", "strided", "garbage", "strided garbage"),
}
_QUICK: dict[str, tuple[object, ...]] = _AXES | {
    "n": (63, 1, 7),
    "d": (64, 8, 40),
    "e": ("d", "wider"),
    "batch": (2, 1),
    "k_start": (0, 3),
    "q_start": ("end", "k_start+5", "each"),
    "memory": ("plain", "strided garbage"),
}
_NOTHING: tuple[dict[str, object], ...] = ({"kv_lengths": 0}, {"m": "none"})  # no key: beside plain values only


def cases(
    seed: int, quick: bool = False, heads: Sequence[tuple[int, int]] = (), scale: bool = True
) -> tuple[Case, ...]:
    """The cases of a check, the same for the same arguments.

    `heads` replaces the pairs (heads, kv_heads); without `scale` every case leaves the scale to its default.
    """
    axes = dict(_QUICK if quick else _AXES)
    if not scale:
        axes["scale"] = (None,)
    if heads:
        axes["heads"] = tuple(heads)
    plain: dict[str, object] = {axis: values[0] for axis, values in axes.items()}
    chosen = [plain | {"dtype": dtype} for dtype in axes["dtype"]]
    chosen += [
        plain | {axis: value} for axis, values in axes.items() if axis != "dtype" and not quick for value in values[1:]
    ]
    chosen += [plain | values for values in _NOTHING]
    chosen += _pairwise(axes, chosen, random.Random(seed))
    return tuple({case.name: case for case in map(_case, chosen)}.values())


def _pairwise(
    axes: Mapping[str, tuple[object, ...]], done: Sequence[Mapping[str, object]], generator: random.Random
) -> list[dict[str, object]]:
    """Greedy: of a few random completions of a pair still missing, take the one that covers most."""
    missing = {
        ((one, left), (two, right)) for one, two in combinations(axes, 2) for left in axes[one] for right in axes[two]
    }
    order = sorted(missing, key=repr)
    missing -= {pair for case in done for pair in combinations(case.items(), 2)}
    found: list[dict[str, object]] = []
    for pair in order:
        if pair not in missing:
            continue
        candidates = [{axis: generator.choice(values) for axis, values in axes.items()} | dict(pair) for _ in range(40)]
        best = max(candidates, key=lambda case: len(missing & set(combinations(case.items(), 2))))
        missing -= set(combinations(best.items(), 2))
        found.append(best)
    return found


def _case(values: Mapping[str, object]) -> Case:
    """The case that the words of every axis describe."""
    n, d, batch = (_whole(values[axis]) for axis in ("n", "d", "batch"))
    m = {"n": n, "longer": n + n // 2 + 5, "shorter": n - n // 3, "none": 0}[str(values["m"])]
    e = {"d": d, "wider": d + 16, "narrower": max(1, d // 2)}[str(values["e"])]
    heads, kv_heads = values["heads"] if isinstance(values["heads"], tuple) else (1, 1)
    q_start, k_start, kv_lengths = values["q_start"], _whole(values["k_start"]), values["kv_lengths"]
    dtype = values["dtype"]
    assert isinstance(dtype, torch.dtype)
    case = Case(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        n=n,
        m=m,
        d=d,
        e=e,
        dtype=dtype,
        q_start=_start(q_start, k_start, n, m, batch),
        k_start=k_start,
        kv_lengths=_lengths(kv_lengths, m, batch),
        scale=values["scale"] if isinstance(values["scale"], float) else None,
        strided="strided" in str(values["memory"]),
        garbage="garbage" in str(values["memory"]),
        name=(
            f"{str(dtype).removeprefix('torch.')} batch={batch} heads={heads}/{kv_heads} n={n} m={m} d={d} e={e}"
            + (f" q_start={q_start}" if q_start != "end" else "")
            + (f" k_start={k_start}" if k_start else "")
            + (f" kv_lengths={kv_lengths}" if kv_lengths is not None else "")
            + (f" scale={values['scale']}" if values["scale"] is not None else "")
            + (f" {values['memory']}" if values["memory"] != "plain" else "")
        ),
    )
    return case


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def _start(word: object, k_start: int, n: int, m: int, batch: int) -> PerBatch:
    """`end`: the default, as None; `each`: the default moved by another distance for every batch entry."""
    match word:
        case "each":
            return tuple(k_start + m - n + (0, 9, -4)[b % 3] for b in range(batch))
        case str() if word != "end":
            return k_start + int(word.removeprefix("k_start") or 0)
        case _:
            return None


def _lengths(word: object, m: int, batch: int) -> PerBatch:
    """`half`: half of the keys; `each`: another part for every batch entry, none among them."""
    match word:
        case "half":
            return (m + 1) // 2
        case "each":
            return tuple((m - m // 4, 0, m)[b % 3] for b in range(batch))
        case int(length):
            return length
        case _:
            return None


def make_inputs(case: Case, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """q, k, v, gradients g_out [B, H, n, e] and g_lse [B, H, n], and the integers of each entry that `case` has."""
    seed = int.from_bytes(hashlib.sha256(case.name.encode()).digest()[:7])
    generator = torch.Generator().manual_seed(seed)
    widths = {
        "q": (case.heads, case.n, case.d),
        "k": (case.kv_heads, case.m, case.d),
        "v": (case.kv_heads, case.m, case.e),
        "g_out": (case.heads, case.n, case.e),
    }
    made = {
        name: torch.randn(case.batch, *shape, generator=generator, dtype=torch.float64)
        for name, shape in widths.items()
    }
    lse_dtype = torch.float64 if case.dtype == torch.float64 else torch.float32
    g_lse = torch.randn(case.batch, case.heads, case.n, generator=generator, dtype=torch.float64)
    if case.garbage and case.kv_lengths is not None:
        lengths = (case.kv_lengths,) * case.batch if isinstance(case.kv_lengths, int) else case.kv_lengths
        for b, length in enumerate(lengths):
            made["k"][b, :, length:], made["v"][b, :, length:] = math.nan, math.nan
    orders = {"v": (0, 1, 3, 2)} if case.strided else {}
    order = (0, 2, 1, 3) if case.strided else (0, 1, 2, 3)
    placed = {
        name: _place(each.to(device, case.dtype), orders.get(name, order), case.garbage) for name, each in made.items()
    }
    integers = {name: getattr(case, name) for name in ("q_start", "kv_lengths")}
    each = {name: torch.tensor(value, device=device) for name, value in integers.items() if isinstance(value, tuple)}
    return placed | {"g_lse": g_lse.to(device, lse_dtype)} | each


def arguments(case: Case, inputs: Mapping[str, Tensor]) -> dict[str, int | float | Tensor | None]:
    """The keyword arguments of the call: q_start, k_start, kv_lengths, and scale if the case has one."""
    scale = {} if case.scale is None else {"scale": case.scale}
    return scale | {
        "q_start": inputs.get("q_start", case.q_start if isinstance(case.q_start, int) else None),
        "k_start": case.k_start,
        "kv_lengths": inputs.get("kv_lengths", case.kv_lengths if isinstance(case.kv_lengths, int) else None),
    }


def _place(values: Tensor, order: tuple[int, ...], garbage: bool) -> Tensor:
    """The same values with their axes laid out in `order` in memory, between NaN if `garbage`."""
    source = values.permute(order)
    margin = 64 if garbage else 0
    memory = torch.full((source.numel() + 2 * margin,), math.nan, dtype=values.dtype, device=values.device)
    view = memory[margin : margin + source.numel()].view(source.shape).copy_(source)
    return view.permute(order)  # every order here is its own inverse
