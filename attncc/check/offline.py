"""Kernels of a generated module → what each takes on a GPU: registers, spills, shared memory, matrix instructions.

Triton compiles for a GPU that is not there. What it leaves is read: the assembly, the binary, and the loops of its
first form, in which full tiles must be free of masks. `attncc.check.kernel_table` tabulates.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from attncc.check.kernel_text import SUMS, KernelText, TileLoop, Variant, function_of, in_branch
from attncc.plan.lists import LIST
from attncc.plan.model import Tile

_PLACES = frozenset({"runs", "q_start", "kv_lengths", "classes", "begins", "met", "row_places", "key_places"})
_LENGTHS = frozenset("n m k_start classes part residue tiles others segments leads choices group span heads".split())
_LENGTHS |= {"lists", "row_slots", "key_slots"}
_SIZE = re.compile(r"_size_\d+$")  # of a table's axis
_MATRIX = re.compile(r"\bmma\.sync\b|\bwgmma\.mma_async\b|\btcgen05\.mma\b|\bv_mfma_")
_ALIGNED: list[list[str | int]] = [["tt.divisibility", 16]]  # of every pointer and stride, as a launch finds it


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU and what a kernel may take of it.

    Spills are bytes of stack a thread on NVIDIA, registers on AMD. A list of tile sizes needs one with at most
    `few_spills`, and none of it may have more than `most_spills`.
    """

    name: str
    backend: str
    architecture: int | str
    lanes: int
    shared: int
    few_spills: int
    most_spills: int
    most_warps: int


TARGETS = {
    "sm_80": Target("sm_80", "cuda", 80, lanes=32, shared=163 << 10, few_spills=64, most_spills=256, most_warps=8),
    "sm_90": Target("sm_90", "cuda", 90, lanes=32, shared=227 << 10, few_spills=64, most_spills=256, most_warps=8),
    "sm_100": Target("sm_100", "cuda", 100, lanes=32, shared=227 << 10, few_spills=64, most_spills=256, most_warps=8),
    "gfx942": Target("gfx942", "hip", "gfx942", lanes=64, shared=64 << 10, few_spills=16, most_spills=16, most_warps=4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one kernel takes; `why` says what is wrong with it where `ok` is false.

    `seconds` are the processor's, spent compiling.
    """

    registers: int = 0
    stack: int = 0
    spills: int = 0
    shared: int = 0
    matrix_instructions: int = 0
    seconds: float = 0.0
    ok: bool = False
    why: str = ""


@functools.cache
def load(path: Path) -> ModuleType:
    """A generated module, imported from its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tiles_of(
    path: Path, kernel: KernelText, size: int, width: int, target: str, variant: Variant = ()
) -> tuple[Tile, ...]:
    """What a module's kernel tries on a target, for elements of `size` bytes and vectors up to a width.

    Where it leaves full tiles to kernels of sums, there is one tile for all of these.
    """
    module, (_, own) = load(path), in_branch(kernel.kernel)
    # A branch's lists bear its name where another branch has others, also beside kernels that only one branch has.
    text = path.read_text(encoding="utf-8")
    launch = re.search(rf"\b(\w*)_launch(?:_sums)?\(\s*{function_of(kernel.kernel)}\b", text)
    assert launch is not None, f"nothing launches {kernel.kernel}"

    def of(lists: str, named: str) -> Any:
        name = f"{launch[1]}{lists}"
        return getattr(module, name if hasattr(module, name) else lists).get((named, size, max(64, _block(width))))

    if own in SUMS:
        found = (of("_CHUNKS", each) for each in SUMS[own])  # not every module has a pass over rows
        chunks = dict.fromkeys(chunk[:2] for chunk in found if chunk is not None)
        warps = 8 if _crosses(variant, kernel.variants) and TARGETS[target].backend != "hip" else 4
        return tuple(Tile(rows, columns, warps, 2) for rows, columns in chunks)
    if dict(variant).get("BY_STATES"):
        return (Tile(*of("_CHUNKS", own)),)
    tiles = [Tile(*each) for each in of("_TILES", own)]
    return tuple(tile for tile in tiles if tile.warps <= TARGETS[target].most_warps) or tuple(tiles)


def _crosses(variant: Variant, variants: Sequence[Variant]) -> bool:
    """Whether a kernel of gradients meets another factor than the last in blocks, for which it has more warps."""
    own = dict(variant)
    last = max((dict(each)["FACTOR"] for each in variants if dict(each)["TERM"] == own.get("TERM")), default=0)
    return own.get("FACTOR", 0) < last


def measure(
    path: Path, text: KernelText, tile: Tile, target: str, d: int, dtype: str = "bf16", variant: Variant = ()
) -> Measurement:
    """Compile a kernel of a generated module for one target, with keys and values of width `d`.

    `variant` is one of the text's, by default the first. The process must not run Triton's interpreter
    (`TRITON_INTERPRET`).
    """
    jitted = getattr(load(path), function_of(text.kernel))
    started = sum(os.times()[:4])
    try:
        variant = variant or next(iter(text.variants), ())
        compiled = _compile(jitted, text, tile, TARGETS[target], d, dtype, variant)
    except Exception as error:  # noqa: BLE001 - ptxas, LLVM and Triton's passes raise whatever they like
        message = str(error).strip().splitlines() or [""]
        return Measurement(why=f"{type(error).__name__}: {message[0][:150]}")
    seconds = sum(os.times()[:4]) - started
    loops = None if text.of_sums else [each for each in text.loops if each.masked or not dict(variant).get("BY_STATES")]
    return _read(compiled, TARGETS[target], loops, seconds, needs_matrix=dtype != "fp32")


def first_that_fits(
    path: Path, text: KernelText, target: str, d: int, variant: Variant = ()
) -> tuple[Tile, Measurement]:
    """A config of a kernel's list for bf16 that spills next to nothing; otherwise the last one tried."""
    for tile in in_order(tiles_of(path, text, 2, d, target, variant)):
        found = measure(path, text, tile, target, d, "bf16", variant)
        if serves(found, target):
            break
    return tile, found


def in_order(tiles: Iterable[Tile]) -> list[Tile]:
    """Configs as they are tried: small ones compile sooner."""
    return sorted(tiles, key=lambda tile: tile.rows * tile.columns / tile.warps)


def serves(found: Measurement, target: str) -> bool:
    """Whether a config is one of which every list needs one: it spills next to nothing."""
    return found.ok and found.spills <= TARGETS[target].few_spills


def workers(jobs: int) -> ProcessPoolExecutor:
    """Processes that compile, whether or not this one runs Triton's interpreter."""
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_compile_for_real)


def _compile_for_real() -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # a tenth of the time


# --- compiling ----------------------------------------------------------------------------------------------


def _block(width: int) -> int:
    return max(16, 1 << (width - 1).bit_length())


def signature(
    names: Sequence[str],
    dtype: str,
    vectors: Collection[str],
    stride: str = "i32",
    asked: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str | tuple[str, ...]]:
    """The types of a kernel's arguments, known by their names; `vectors` are those of the pointers to vectors.

    `asked` tells what is behind pointers to what a pattern reads.
    """

    def kind(name: str) -> str | tuple[str, ...]:
        if name.endswith("_strides"):
            return (stride,) * 3
        if name in _LENGTHS or _SIZE.search(name):
            return "i32"
        if not name.endswith("_ptr"):
            return "fp32"
        if name in asked:
            return f"*{asked[name]}"
        what = name.removesuffix("_ptr")
        return "*i32" if what in _PLACES else f"*{dtype}" if name in vectors else "*fp32"

    return {name: kind(name) for name in names}


def _compile(kernel: Any, text: KernelText, tile: Tile, target: Target, d: int, dtype: str, variant: Variant) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [each.name for each in kernel.params if each.is_constexpr]
    constants: dict[str, int | str | None] = {name: _block(d) if name.startswith("BLOCK_") else d for name in names}
    constants |= {"GROUP": 1, "PRECISION": "ieee", "BLOCK_M": tile.rows, "BLOCK_N": tile.columns}
    constants |= {name: LIST for name in names if name in ("LIST_M", "LIST_N")}
    if text.of_sums:
        block = min(64, _block(d))
        constants |= {"BLOCK_W": block, "BLOCK_E": block}
        constants["PRECISION"] = "ieee" if target.backend == "hip" else "tf32"
    constants |= {name: value for name, value in variant if name in constants}
    if dtype == "fp32" and "residual_ptr" in kernel.arg_names:
        constants["residual_ptr"] = None  # nothing is rounded
    types: dict[str, Any] = dict.fromkeys(constants, "constexpr")
    types = signature(kernel.arg_names, dtype, text.vectors, asked=dict(text.asked)) | types
    source = ASTSource(kernel, types, constants, _alignment(kernel.arg_names, types))
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget(target.backend, target.architecture, target.lanes), options=options)


def _alignment(names: Sequence[str], types: dict[str, Any]) -> dict[tuple[int, ...], list[list[str | int]]]:
    found: dict[tuple[int, ...], list[list[str | int]]] = {}
    for index, name in enumerate(names):
        if isinstance(types[name], tuple):
            found |= {(index, part): _ALIGNED for part in range(len(types[name]))}
        elif types[name].startswith("*"):
            found[index,] = _ALIGNED
    return found


# --- reading ------------------------------------------------------------------------------------------------


def _read(
    compiled: Any, target: Target, loops: Sequence[TileLoop] | None, seconds: float, *, needs_matrix: bool
) -> Measurement:
    assembly = compiled.asm["amdgcn" if target.backend == "hip" else "ptx"]
    registers, stack, spills = _amd(assembly) if target.backend == "hip" else _nvidia(compiled.asm["cubin"])
    shared, matrix = compiled.metadata.shared, len(_MATRIX.findall(assembly))
    faults = [loop_fault(compiled.asm["ttir"], loops)] if loops is not None else []
    if needs_matrix and not matrix and "tt.dot " in compiled.asm["ttir"]:
        faults.append("no matrix instruction")
    if shared > target.shared:
        faults.append(f"{shared >> 10} KiB of shared memory, {target.shared >> 10} allowed")
    if spills > target.most_spills:
        faults.append(f"spills {spills}, {target.most_spills} allowed")
    why = "; ".join(fault for fault in faults if fault)
    return Measurement(
        registers=registers,
        stack=stack,
        spills=spills,
        shared=shared,
        matrix_instructions=matrix,
        seconds=seconds,
        ok=not why,
        why=why,
    )


def _amd(assembly: str) -> tuple[int, int, int]:
    def field(name: str) -> int:
        return int(re.findall(rf"\.{name}:\s+(\d+)", assembly)[0])

    return field("vgpr_count"), field("private_segment_fixed_size"), field("vgpr_spill_count")


def _nvidia(binary: bytes) -> tuple[int, int, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.findall(rf"\b{name}:(\d+)", usage)[0]) for name in ("REG", "STACK"))
    return registers, stack, stack


def loop_fault(ttir: str, expected: Sequence[TileLoop]) -> str:
    """What is wrong with the loops over tiles in Triton's first form: '' if they are as the text says.

    A loop over full tiles has no integer comparison of tiles, no masked load, and selects by nothing from outside;
    what is known of a lane by its number alone is no mask.
    """
    outside, loops = _tile_loops(ttir)
    if len(loops) != len(expected):
        return f"{len(loops)} loops over tiles, {len(expected)} expected"
    for at, (body, loop) in enumerate(zip(loops, expected, strict=True)):
        if loop.dots != any("tt.dot " in line for line in body):
            return f"loop {at + 1} has {'no' if loop.dots else 'a'} tt.dot"
        defined = _definitions([*outside, *body])
        masks = [line for line in body if _is_mask(line, body, defined)]
        if masks and not loop.masked:
            return f"loop {at + 1} is over full tiles and masks: {masks[0].split(' loc(')[0].strip()[:100]}"
        if not masks and loop.masked:
            return f"loop {at + 1} is over partial tiles and does not mask"
    return ""


_OVER_TILES = re.compile(r"\bscf\.for %(step|tile)(_\d+)? ")
_DEFINITION = re.compile(r"^\s*%(\w+) = ([\w.]+)(.*)")
_VALUE = re.compile(r"%(\w+)")


def _tile_loops(ttir: str) -> tuple[list[str], list[list[str]]]:
    """The lines outside of the loops over tiles, and those of every such loop, loops inside it included."""
    outside: list[str] = []
    loops: list[list[str]] = []
    depth = inside = 0
    for line in ttir.splitlines():
        depth += line.count("{") - line.count("}")
        if inside and depth < inside:
            inside = 0
        if inside:
            loops[-1].append(line)
        else:
            outside.append(line)
        if not inside and _OVER_TILES.search(line):
            loops.append([])
            inside = depth
    return outside, loops


def _definitions(lines: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    """For each value its operation and what that reads."""
    found = {}
    for line in lines:
        match = _DEFINITION.match(line)
        if match is not None:
            found[match[1]] = (match[2], _VALUE.findall(match[3]))
    return found


def _is_of_lanes(name: str, defined: dict[str, tuple[str, list[str]]]) -> bool:
    """Whether a value follows from numbers of lanes and channels: it is the same in every tile."""
    if name.startswith("channel"):
        return True
    operation, read = defined.get(name, ("", []))
    if operation in ("tt.make_range", "arith.constant"):
        return True
    return operation != "scf.for" and bool(read) and all(_is_of_lanes(each, defined) for each in read)


def _is_mask(line: str, body: Sequence[str], defined: dict[str, tuple[str, list[str]]]) -> bool:
    if "tensor<" not in line:
        return False
    if "arith.cmpi " in line:
        return not all(_is_of_lanes(name, defined) for name in _VALUE.findall(line.split(" = ")[1]))
    if "tt.load " in line:
        return "," in line.split("tt.load ")[1].split(" : ")[0]
    if "arith.select " in line:
        condition = line.split("arith.select ")[1].split(",")[0]
        if _is_of_lanes(condition.removeprefix("%"), defined):
            return False
        return not any(each.lstrip().startswith(f"{condition} =") for each in body)
    return False
