"""The sizes that a check runs: odd lengths, head dimensions, shared key heads, offsets, hidden keys, layouts, dtypes.

The full product would be tens of thousands of cases. Taken are the plain case of every dtype, every value of every
axis once beside an otherwise plain case, and then as many mixed cases as it takes for every pair of values of two axes
to meet at least once.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import torch
from torch import Tensor

from attncc.check.given import length_of
from attncc.spec.data import Data, K, Q, Size, V

PerBatch = int | tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: q [batch, heads, n, d], k [batch, kv_heads, m, d], v [batch, kv_heads, m, e], or other data."""

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
    strided: bool = False  # q and k as [B, n, H, d] in memory, v as [B, H, e, m], others with their axes reversed
    garbage: bool = False  # NaN in hidden keys, and in memory before and after every tensor
    name: str = ""


_AXES: dict[str, tuple[object, ...]] = {
    "dtype": (torch.float32, torch.bfloat16, torch.float16, torch.float64),
    "n": (63, 1, 7, 521, 128),  # and whole tiles
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
    "n": (63, 1, 7, 64),
    "d": (64, 8, 40),
    "e": ("d", "wider"),
    "batch": (2, 1),
    "k_start": (0, 3),
    "q_start": ("end", "k_start+5", "each"),
    "memory": ("plain", "strided garbage"),
}
_SHORT = 7  # rows that a case should keep when it is made to fit
_NOTHING: tuple[dict[str, object], ...] = ({"kv_lengths": 0}, {"m": "none"})  # no key: beside plain values only
_WHOLE_TILES = {"n": 128, "batch": 1, "memory": "strided"}  # tokens that are read where they lie


def cases(
    seed: int,
    quick: bool = False,
    heads: Sequence[tuple[int, int]] = (),
    scale: bool = True,
    limits: Mapping[str, tuple[object, ...]] | None = None,
    fits: Callable[[Case], bool] | None = None,
    lengths: Sequence[int] = (),
) -> tuple[Case, ...]:
    """The cases of a check, the same for the same arguments.

    Args:
        heads: replaces the pairs (heads, kv_heads).
        scale: whether there is one; without, every case leaves it to its default.
        limits: what may stand on some axes; a quick check takes those of its own that may.
        fits: whether a case can be run; one that cannot is made shorter, or moved to the first positions.
        lengths: the lengths to try for it, beside its own.
    """
    axes = dict(_QUICK if quick else _AXES)
    if not scale:
        axes["scale"] = (None,)
    if heads:
        axes["heads"] = tuple(heads)
    for axis, values in (limits or {}).items():
        axes[axis] = tuple(each for each in axes[axis] if each in values) or values[:2] if quick else values
    plain: dict[str, object] = {axis: values[0] for axis, values in axes.items()}
    chosen = [plain | {"dtype": dtype} for dtype in axes["dtype"]]
    chosen += [
        plain | {axis: value} for axis, values in axes.items() if axis != "dtype" and not quick for value in values[1:]
    ]
    chosen += [plain | values for values in (*_NOTHING, _WHOLE_TILES)]
    chosen += _pairwise(axes, chosen, random.Random(seed))
    made = (_case(values) if fits is None else _fitted(values, fits, lengths) for values in chosen)
    return tuple({case.name: case for case in made if case is not None}.values())


def _fitted(values: Mapping[str, object], fits: Callable[[Case], bool], lengths: Sequence[int]) -> Case | None:
    """The first case near a wanted one that can be run.

    A shorter one comes before one at other positions, but not if it is short beyond use.
    """
    n = _whole(values["n"])
    shorter = (n, *sorted((each for each in set(lengths) if each < n), reverse=True))
    moves: tuple[dict[str, object], ...] = ({}, {"q_start": "end"}, {"q_start": "end", "k_start": 0})
    moves = (*moves, moves[-1] | {"m": "n"})
    for least in (min(n, _SHORT), 1):
        for moved, length in product(moves, (each for each in shorter if each >= least)):
            case = _case({**values, **moved, "n": length})
            if fits(case):
                return case
    return None


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


GIVEN = (Q, K, V)
G_OUT, G_LSE = "gradient of out", "gradient of lse"  # beside names of data, which have no spaces


def shape_of(declared: Data, case: Case) -> tuple[int, ...]:
    """The shape of declared data in a case."""
    sizes: dict[Size, int] = {
        Size.BATCH: case.batch,
        Size.HEADS: case.kv_heads if declared.is_column else case.heads,
        Size.QUERIES: case.n,
        Size.KEYS: case.m,
        Size.WIDTH: case.d,
        Size.VALUE_WIDTH: case.e,
    }
    return tuple(length_of(axis, sizes) for axis in declared.axes)


def make_inputs(
    case: Case,
    device: torch.device | str = "cpu",
    data: Sequence[Data] = GIVEN,
    width: int | None = None,
    given: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Data by name, gradients of out [B, H, n, width] and of lse [B, H, n], and what of `case` differs in a batch.

    Vectors and numbers of tokens are drawn from N(0, 1), tables from N(0, 1/4); `width` is e by default.
    `given` are data that were drawn already, which are only laid out. Hidden keys have no garbage where something is
    promised of all keys.
    """
    given = given or {}
    seed = int.from_bytes(hashlib.sha256(case.name.encode()).digest()[:7])
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    made = {each.name: normal(*shape_of(each, case)) for each in data if each in GIVEN}
    made[G_OUT] = normal(case.batch, case.heads, case.n, case.e if width is None else width)
    g_lse = normal(case.batch, case.heads, case.n)
    for each in data:
        if each.name in given:
            made[each.name] = given[each.name]
        elif each not in GIVEN:
            made[each.name] = normal(*shape_of(each, case)) * (1.0 if each.is_token else 0.5)
    for each in data:
        if case.garbage and each.is_column and not each.ascending and made[each.name].is_floating_point():
            made[each.name] = _with_garbage(each, made[each.name], case)
    wholes = {each.name for each in data if each.whole}
    truths = {each.name for each in data if each.truth}
    lse_dtype = torch.float64 if case.dtype == torch.float64 else torch.float32

    def placed(name: str, values: Tensor) -> Tensor:
        if not values.is_floating_point():
            return values.to(device)
        if name in wholes:
            return (values.nan_to_num() * 4).abs().to(device, torch.int64)
        if name in truths:
            return (values > 0).to(device)
        return _place(values.to(device, case.dtype), _order(name, values.dim(), case.strided), case.garbage)

    tensors = {name: placed(name, each) for name, each in made.items()}
    return tensors | {G_LSE: g_lse.to(device, lse_dtype)} | per_batch(case, device)


def per_batch(case: Case, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The integers of each batch entry that a case has."""
    integers = {name: getattr(case, name) for name in ("q_start", "kv_lengths")}
    return {name: torch.tensor(value, device=device) for name, value in integers.items() if isinstance(value, tuple)}


def _with_garbage(declared: Data, values: Tensor, case: Case) -> Tensor:
    """NaN in the keys that are hidden, in every batch entry where they have none of their own."""
    if case.kv_lengths is None:
        return values
    lengths = (case.kv_lengths,) * case.batch if isinstance(case.kv_lengths, int) else case.kv_lengths
    hidden = torch.arange(case.m) >= torch.tensor(lengths)[:, None]
    shape = [case.batch if axis is Size.BATCH else case.m if axis is Size.KEYS else 1 for axis in declared.axes]
    hidden = hidden if Size.BATCH in declared.axes else hidden.all(0)
    return torch.where(hidden.reshape(shape), math.nan, values)


def _order(name: str, axes: int, strided: bool) -> tuple[int, ...]:
    """The order of axes in memory."""
    if not strided:
        return tuple(range(axes))
    if axes != 4:
        return tuple(reversed(range(axes)))
    return (0, 1, 3, 2) if name == "v" else (0, 2, 1, 3)


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
