"""Timing a spec against its rivals in one run: interleaved, repeated, with the time before each first answer."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from attncc.check.drawn import drawn
from attncc.check.fit import whole_values
from attncc.check.given import output_width
from attncc.check.rivals import Attention, rivals
from attncc.check.sizes import Case, shape_of
from attncc.spec.data import Data
from attncc.spec.model import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is measured: lengths n = m, one batch entry unless said otherwise."""

    n: int
    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    d: int = 64
    e: int = 64
    dtype: str = "float32"
    backward: bool = False
    repeat: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One contender at one setting; seconds, bytes. `ratio` is its best time divided by ours."""

    spec: str
    contender: str
    setting: Setting
    first_answer: float  # from the spec (or mask function) to the first result: build, mask, compile, run
    best: float
    median: float
    peak_bytes: int | None  # above what stood before the call; None where the system does not say
    ratio: float
    share: float  # of the rate of a large product of matrices in the same run, counting related pairs alone
    failure: str = ""

    def record(self) -> dict[str, object]:
        """The timing as one flat JSON object, with what it was measured on."""
        fields = asdict(self)
        setting = fields.pop("setting")
        versions = {name: _version(name) for name in ("attncc", "torch", "triton")}
        return {"schema_version": 1, **fields, **setting, "device": device_name(), "versions": versions}


def device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name() -> str:
    """The device in words."""
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"


def bench(
    spec: Spec,
    prepare_ours: Callable[[], Attention],
    setting: Setting,
    progress: Callable[[str], None] = lambda _: None,
    pairs: int | None = None,
) -> tuple[Timing, ...]:
    """Time a spec and every rival that can compute it; on CPUs its torch form, too.

    Args:
        prepare_ours: builds and loads the spec's module; timed as part of its first answer.
        progress: called with a short text before each step.
        pairs: how many pairs are related, over all heads, where each of them costs the products of two vectors.
    """
    where = device()
    inputs = inputs_of(spec, setting, where)
    contenders: list[tuple[str, Callable[[], Attention], str]] = [("attncc", prepare_ours, "")]
    if where.type == "cpu":
        contenders.append((_IN_TORCH, lambda: partial(prepare_ours(), form="torch"), ""))
    for rival in rivals(spec, setting.n, where):
        prepare = rival.prepare

        def prepared(prepare: Callable[[int, int, torch.device], Attention] = prepare) -> Attention:
            return prepare(setting.n, setting.heads, where)

        unable = "" if rival.has_backward or not setting.backward else "has no backward pass on this device"
        contenders.append((rival.name, prepared, rival.refusal or unable))
    runs: dict[str, Callable[[], object]] = {}
    first: dict[str, float] = {}
    peaks: dict[str, int | None] = {}
    failures: dict[str, str] = {}
    for name, prepare_one, unable in contenders:
        progress(f"{name}: first answer at n = {setting.n}")
        if unable:
            failures[name] = unable
            continue
        try:
            first[name], runs[name] = _first_answer(prepare_one, inputs, setting)
            peaks[name] = _peak(runs[name])
        except Exception as error:  # noqa: BLE001 - a rival may refuse what the spec asks; that is a result, too
            failures[name] = str(error).strip().splitlines()[0][:120] if str(error) else type(error).__name__
    runs[_PRODUCT] = _product(getattr(torch, setting.dtype), where)
    samples = _samples(runs, setting, progress)
    passes = 3.5 if setting.backward else 1  # two products forward, five backward
    work = None if pairs is None else passes * setting.batch * pairs * 2 * (setting.d + setting.e)
    return tuple(_timing(spec, name, setting, first, samples, peaks, failures, work) for name, _, _ in contenders)


def _timing(
    spec: Spec,
    name: str,
    setting: Setting,
    first: dict[str, float],
    samples: dict[str, list[float]],
    peaks: dict[str, int | None],
    failures: dict[str, str],
    work: float | None,
) -> Timing:
    nothing = float("nan")
    rate = 2 * _SIDE**3 / min(samples[_PRODUCT])
    ours = min(samples["attncc"]) if samples.get("attncc") else nothing
    best = min(samples[name]) if samples.get(name) else nothing
    return Timing(
        spec=spec.name,
        contender=name,
        setting=setting,
        first_answer=first.get(name, nothing),
        best=best,
        median=statistics.median(samples[name]) if samples.get(name) else nothing,
        peak_bytes=peaks.get(name),
        ratio=best / ours,
        share=nothing if work is None else work / best / rate,
        failure=failures.get(name, ""),
    )


_IN_TORCH = "attncc, torch form"
_PRODUCT = "a product of matrices"  # which tells what the machine can do
_SIDE = 2048


def _product(dtype: torch.dtype, where: torch.device) -> Callable[[], object]:
    first, second = (torch.randn(_SIDE, _SIDE, device=where).to(dtype) for _ in range(2))
    return lambda: torch.mm(first, second)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The data of a spec, in order, and the gradient of its output."""

    data: tuple[Tensor, ...]
    d_out: Tensor


def inputs_of(spec: Spec, setting: Setting, where: torch.device) -> Inputs:
    sizes = ("n", "batch", "heads", "kv_heads", "d", "e")
    dtype = getattr(torch, setting.dtype)
    case = Case(**{name: getattr(setting, name) for name in sizes}, m=setting.n, dtype=dtype, name="bench")
    generator = torch.Generator(device="cpu").manual_seed(0)
    read = drawn(spec, case)

    def made(declared: Data) -> Tensor:
        shape = shape_of(declared, case)
        if declared.name in read:
            return read[declared.name].to(where)
        if declared.truth:
            return (torch.randint(2, shape, generator=generator) > 0).to(where)
        if declared.whole:
            values = torch.tensor(whole_values(spec).get(declared.name, range(8)))
            values = values[torch.randint(0, len(values), shape, generator=generator)]
            return (values.sort(-1).values if declared.ascending else values).to(where)
        values = torch.randn(shape, generator=generator) * (1.0 if declared.is_token else 0.5)
        values = values.sort(-1).values if declared.ascending else values
        return values.to(where, dtype).requires_grad_(setting.backward)

    data = tuple(map(made, spec.data))
    width = output_width(spec, {each.name: torch.Size(shape_of(each, case)) for each in spec.data})
    d_out = torch.randn(setting.batch, setting.heads, setting.n, width or setting.e, generator=generator)
    return Inputs(data, d_out.to(where, dtype))


def _first_answer(
    prepare: Callable[[], Attention], inputs: Inputs, setting: Setting
) -> tuple[float, Callable[[], object]]:
    leaves = [each for each in inputs.data if each.requires_grad]
    start = time.perf_counter()
    attention = prepare()

    def run() -> object:
        if not setting.backward:
            with torch.no_grad():
                return attention(*inputs.data)
        return torch.autograd.grad(attention(*inputs.data), leaves, inputs.d_out, allow_unused=True)

    run()
    _wait()
    return time.perf_counter() - start, run


def _samples(
    runs: dict[str, Callable[[], object]], setting: Setting, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds of each repeat; contenders take turns, so that a noisy minute hits them all."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for at in range(setting.repeat):
        progress(f"round {at + 1} of {setting.repeat} at n = {setting.n}")
        for name, run in _turns(runs, at):
            samples[name].append(_seconds(run))
    return samples


def _turns(runs: dict[str, Callable[[], object]], at: int) -> Iterator[tuple[str, Callable[[], object]]]:
    items = list(runs.items())
    yield from items[at % len(items) :] + items[: at % len(items)] if items else []


def _seconds(run: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        from triton.testing import do_bench

        return float(do_bench(run, warmup=10, rep=40, quantiles=(0.5,))) / 1000
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _peak(run: Callable[[], object]) -> int | None:
    """The memory that one call needs above what stood before it."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        _wait()
        return int(torch.cuda.max_memory_allocated() - before)
    try:  # Linux forgets the peak of a process on request
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        run()
        return max(0, _resident("VmHWM") - before)
    except OSError:
        return None


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def table(timings: tuple[Timing, ...]) -> str:
    """The timings as a table: one row a contender, times in milliseconds."""
    head = ("contender", "n", "first answer", "best", "median", "peak memory", "time / ours", "of mm rate")
    rows = [head]
    for each in timings:
        if each.failure:
            rows.append((each.contender, str(each.setting.n), each.failure, "", "", "", "", ""))
            continue
        peak = "?" if each.peak_bytes is None else f"{each.peak_bytes / 2**20:.1f} MiB"
        share = "" if math.isnan(each.share) else f"{100 * each.share:.0f} %"
        times = (f"{each.first_answer:.2f} s", f"{1000 * each.best:.2f} ms", f"{1000 * each.median:.2f} ms")
        rows.append((each.contender, str(each.setting.n), *times, peak, f"{each.ratio:.2f}", share))
    widths = [max(len(row[at]) for row in rows if not (at == 2 and row[3:] == ("",) * 5)) for at in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
