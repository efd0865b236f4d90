"""Specs → a Markdown table of what every kernel takes on every target; a stop loses no results."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path

from attncc.check.kernel_text import KERNELS, SUMS, KernelText, Variant, distinct, in_branch, kernels_of
from attncc.check.offline import TARGETS, Measurement, in_order, measure, serves, tiles_of, workers
from attncc.compiler import compile_source, read_source
from attncc.plan.model import Tile

WIDTHS = (128, 64)
ORDER = ("sm_90", "gfx942", "sm_100", "sm_80")  # of measuring
TESTED = ORDER[:2]
RECORD = Path("generated/kernels.jsonl")


@dataclass(frozen=True, slots=True)
class Case:
    """One compilation."""

    text: KernelText
    tile: Tile
    target: str
    d: int
    variant: Variant = ()

    @property
    def key(self) -> str:
        """What the result depends on."""
        tile = self.tile
        sizes = f"{tile.rows} {tile.columns} {tile.warps} {tile.stages}"
        found = f"{self.text.digest} {sizes} {self.target} {self.d} triton {version('triton')}"
        return f"{found} {self.what}" if self.what else found

    @property
    def what(self) -> str:
        """Which of the programs that its text is."""
        return " ".join(f"{name.lower()} {value}" for name, value in self.variant if value or self.text.of_sums)


@dataclass(frozen=True, slots=True)
class Row:
    """A case and what came of it."""

    case: Case
    found: Measurement

    @property
    def fits(self) -> bool:
        """Whether the tiles fit into shared memory; those that do not are never run."""
        return 0 < self.found.shared <= TARGETS[self.case.target].shared

    @property
    def few_spills(self) -> bool:
        """Whether this config satisfies its list's need of one that spills next to nothing."""
        return self.found.ok and self.found.spills <= TARGETS[self.case.target].few_spills


def build(specs: Path, folder: Path) -> list[Path]:
    """Compile every spec of a folder (or the one spec) into modules."""
    paths = []
    for source in sorted(specs.glob("*.attn")) if specs.is_dir() else [specs]:
        compiled = compile_source(read_source(source))
        paths.append(folder / f"{compiled.spec.name}.py")
        paths[-1].write_text(compiled.text, encoding="utf-8")
    return paths


def cases(texts: Sequence[KernelText], folder: Path, first: Sequence[str] = ()) -> Iterator[Case]:
    """The whole matrix, modules named `first` and large kernels early, wide vectors before narrow ones."""
    texts = sorted(texts, key=lambda text: (text.module not in first, -text.size))
    early = [text for text in texts if text.module in first]
    for some in (early, texts[len(early) :]):
        for d, target in product(WIDTHS, ORDER):
            for text in some:
                for variant in text.variants or ((),):
                    for tile in tiles_of(folder / f"{text.module}.py", text, 2, d, target, variant):
                        yield Case(text, tile, target, d, variant)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m attncc.check.kernel_table", description=__doc__)
    parser.add_argument("specs", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RECORD, help="results that are kept, for tests too")
    parser.add_argument("--one", action="store_true", help="only one tile of each list, as tests ask for")
    parser.add_argument("--no-measuring", action="store_true", help="only print what was measured before")
    parser.add_argument("--first", default="", help="names of specs to begin with, by commas")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the table is written
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = build(options.specs, folder)
        groups = distinct(text for path in paths for text in kernels_of(path))
        matrix = list(cases(list(groups), folder, options.first.split(",")))
        kept = recorded(options.results)

        try:
            if options.one:
                matrix = [case for case in matrix if case.target in TESTED and case.d == WIDTHS[0]]
                while todo := _next_tiles(matrix, kept):
                    _measure_all(todo, folder, options, kept)
            elif not options.no_measuring:
                _measure_all([case for case in matrix if case.key not in kept], folder, options, kept)
        finally:
            rows = [Row(case, kept[case.key]) for case in matrix if case.key in kept]
            options.output.write_text(table(rows, len(matrix), groups), encoding="utf-8")
    return 0


def _next_tiles(matrix: Sequence[Case], kept: Mapping[str, Measurement]) -> list[Case]:
    """For each list that has no tile which serves the one to be tried next."""
    lists: dict[tuple[KernelText, str, Variant], list[Case]] = {}
    for case in matrix:
        lists.setdefault((case.text, case.target, case.variant), []).append(case)
    found = []
    for cases in lists.values():
        known = [kept.get(case.key) for case in cases]
        if not any(each is not None and serves(each, cases[0].target) for each in known):
            by_tile = {case.tile: case for case in cases}
            ordered = [by_tile[tile] for tile in in_order(by_tile)]
            found += [case for case in ordered if case.key not in kept][:1]
    return found


def recorded(path: Path) -> dict[str, Measurement]:
    """What has been measured, by the keys of cases."""
    if not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {entry.pop("key"): Measurement(**entry) for entry in entries}


def _measure_all(todo: list[Case], folder: Path, options: argparse.Namespace, kept: dict[str, Measurement]) -> None:
    options.results.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with workers(options.jobs) as pool, options.results.open("a", encoding="utf-8") as log:
        futures = {
            pool.submit(
                measure,
                folder / f"{case.text.module}.py",
                case.text,
                case.tile,
                case.target,
                case.d,
                "bf16",
                case.variant,
            ): case
            for case in todo
        }
        try:
            for done, future in enumerate(as_completed(futures), 1):
                case, found = futures[future], future.result()
                kept[case.key] = found
                log.write(json.dumps({"key": case.key, **asdict(found)}) + "\n")
                log.flush()
                left = (time.monotonic() - started) / done * (len(todo) - done)
                what = f"{case.text.kernel} {case.text.module} d={case.d} {case.target}"
                print(f"\r{done}/{len(todo)}  {left / 60:.0f} min left  {what:60}", end="", file=sys.stderr, flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            print(file=sys.stderr)


# --- the table ----------------------------------------------------------------------------------------------


def table(rows: Sequence[Row], total: int, groups: dict[KernelText, tuple[str, ...]]) -> str:
    """The Markdown text."""
    lines = [
        "# What the kernels take",
        "",
        f"Made by `make kernels`: compiled with Triton {version('triton')} without a GPU, never run. Elements are",
        f"bf16, every query head has its own keys. {len(groups)} kernels differ in more than numbers;",
        f"{len(rows)} of {total} combinations are measured.",
        "",
        "A tile is rows × columns, warps, stages. Spills are bytes of stack a thread on sm_*, registers on gfx942.",
        "Every list of tiles needs one with few spills (64 bytes; 16 registers), and none may spill more than 256",
        "bytes or 16 registers. Tiles beyond shared memory are in a list for larger devices and are not run.",
        "",
        *_summary(rows),
        "",
        *_misses(rows),
    ]
    for target in TARGETS:
        own = [row for row in rows if row.case.target == target]
        if own:
            lines += ["", f"## {target}", "", *_section(own, groups)]
    return "\n".join(lines) + "\n"


def _lists(rows: Sequence[Row]) -> dict[tuple[str, int, KernelText, Variant], list[Row]]:
    lists: dict[tuple[str, int, KernelText, Variant], list[Row]] = {}
    for row in rows:
        lists.setdefault((row.case.target, row.case.d, row.case.text, row.case.variant), []).append(row)
    return lists


def _summary(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| target | kernel | d | kernels | lists with few spills | most spills | most shared KiB | beyond shared |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lists = _lists(rows)
    for target in TARGETS:
        for kernel in (*KERNELS, *SUMS):
            for d in sorted(WIDTHS):
                own = [
                    each
                    for (t, w, text, _), each in lists.items()
                    if (t, w, in_branch(text.kernel)[1]) == (target, d, kernel)
                ]
                if own:
                    good = sum(any(row.few_spills for row in each) for each in own)
                    run = [row.found for each in own for row in each if row.fits]
                    beyond = sum(not row.fits for each in own for row in each)
                    spills = max((found.spills for found in run), default=0)
                    shared = max((found.shared for found in run), default=0)
                    cells = (target, kernel, d, len(own), good, spills, f"{shared / 1024:.0f}", beyond)
                    lines.append(_cells(cells))
    return lines


def _misses(rows: Sequence[Row]) -> list[str]:
    """Lists without a config of few spills, and configs with too many, in words."""
    found = []
    for (target, d, text, _), each in _lists(rows).items():
        where = f"{text.kernel} of {text.module}, d = {d}, {target}"
        if not any(row.few_spills for row in each):
            found.append(f"- {where}: no tile with few spills")
        found += [f"- {where}: {_tile(row)}: {row.found.why}" for row in each if row.fits and not row.found.ok]
    return ["## Beyond the limits", "", *(found or ["Nothing of what is measured."])]


def _section(rows: Sequence[Row], groups: dict[KernelText, tuple[str, ...]]) -> list[str]:
    lines = [
        "| kernel | specs | d | tile | registers | stack | spills | shared KiB | matrix instructions | |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in sorted(rows, key=lambda row: (row.found.ok or not row.fits, -row.found.spills, -row.found.stack)):
        case, found = row.case, row.found
        numbers = (found.registers, found.stack, found.spills, f"{found.shared / 1024:.0f}", found.matrix_instructions)
        kernel = f"{case.text.kernel} {case.what}" if case.what else case.text.kernel
        lines.append(_cells((kernel, ", ".join(groups[case.text]), case.d, _tile(row), *numbers, found.why)))
    return lines


def _tile(row: Row) -> str:
    tile = row.case.tile
    return f"{tile.rows} × {tile.columns}, {tile.warps}, {tile.stages}"


def _cells(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
