"""Every kernel compiles for GPUs that are not there, uses matrix instructions, and spills next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("triton")

from attncc.check.kernel_table import RECORD, TESTED, Case, recorded
from attncc.check.kernel_text import KERNELS as OF_A_PLAN
from attncc.check.kernel_text import TileLoop, Variant, distinct, kernels_of
from attncc.check.offline import (
    TARGETS,
    Measurement,
    first_that_fits,
    loop_fault,
    serves,
    signature,
    tiles_of,
    workers,
)
from attncc.compiler import compile_source
from attncc.diagnostics import Source
from attncc.plan.model import Tile

GENERATED = Path(__file__).parents[2] / "generated"
MODULES = sorted(GENERATED.glob("*.py"))
TEXTS = {(text.module, text.kernel): text for path in MODULES for text in kernels_of(path)}
KERNELS = [
    (text.module, text.kernel, variant)
    for text in distinct(iter(TEXTS.values()))
    for variant in (text.variants if text.of_sums else ((),))
]
BROAD = [(*kernel, target, 128) for kernel in KERNELS for target in TESTED]
BY_STATES = (("BY_STATES", 1),)
RECORDED = recorded(GENERATED / RECORD.name)
CHOSEN = [  # the heaviest bodies, on all targets and widths
    ("longformer", "forward", ()),
    ("laplace", "forward", ()),
    ("based", "forward", BY_STATES),
    ("soft_cap", "backward_columns", ()),
    ("gated_linear_vector", "backward_columns", BY_STATES),
    ("based", "row_gradients_by_sums", (("TERM", 2), ("FACTOR", 0))),
    ("gated_linear_vector", "key_gradients_by_sums", (("TERM", 0), ("FACTOR", 0))),
    ("relative_toeplitz", "backward_rows", ()),
    ("additive", "backward_rows", ()),
    ("t5_bias", "backward_rows", ()),
    ("sparse_strided", "backward_rows_2", ()),
    ("dilated_linear", "sums_by_key_1", (("TERM", 0), ("FACTOR", 0))),
]
DEEP = [(*kernel, target, d) for kernel in CHOSEN for target in TARGETS for d in (64, 128)]
AGAIN = [(*kernel, ("sm_90", "gfx942")[at % 2], 128) for at, kernel in enumerate(CHOSEN)]


@pytest.fixture(scope="session")
def compiler() -> Iterator[ProcessPoolExecutor]:
    """A process that compiles, whatever this one has set for Triton's interpreter."""
    with workers(1) as pool:
        yield pool


@pytest.mark.parametrize(("module", "kernel", "variant", "target", "d"), sorted(AGAIN))
def test_kernel_compiles(
    compiler: ProcessPoolExecutor, module: str, kernel: str, variant: Variant, target: str, d: int
) -> None:
    """Whatever is on record."""
    path = GENERATED / f"{module}.py"
    tile, found = compiler.submit(first_that_fits, path, TEXTS[module, kernel], target, d, variant).result()
    _holds(tile, found, target)


@pytest.mark.parametrize(("module", "kernel", "variant", "target", "d"), sorted({*BROAD, *DEEP} - {*AGAIN}))
def test_kernel_is_measured(
    compiler: ProcessPoolExecutor, module: str, kernel: str, variant: Variant, target: str, d: int
) -> None:
    """Measured before, as the record says of this very text and this Triton, else now."""
    path, text = GENERATED / f"{module}.py", TEXTS[module, kernel]
    for tile in tiles_of(path, text, 2, d, target, variant):
        found = RECORDED.get(Case(text, tile, target, d, variant).key)
        if found is not None and serves(found, target):
            break
    else:
        tile, found = compiler.submit(first_that_fits, path, text, target, d, variant).result()
    _holds(tile, found, target)


def _holds(tile: Tile, found: Measurement, target: str) -> None:
    assert found.ok, f"{tile}: {found.why}"
    assert found.spills <= TARGETS[target].few_spills
    assert 0 < found.shared <= TARGETS[target].shared


LISTED = {  # patterns that read data, of every type, in every order of rows and keys
    "documents": ("input doc[B, m]: int ascending; pattern = causal & doc[i] == doc[j]", {"*i64"}),
    "labels": ("input label[B, H, m]: int; pattern = causal & (label[i] == label[j] | i - j < 64)", {"*i64"}),
    "bounds": ("input lo[B, n]: int, hi[B, n]: int; pattern = lo[i] <= j < hi[i]", {"*i64"}),
    "marks": ("input mark[B, m]: bool; pattern = window(20, 20) | mark[i] | mark[j]", {"*i1"}),
    "tables": (
        """input kind[B, m]: int, may[4, 4]: bool; param bias[H, 32]
  pattern = causal & (may[kind[i], kind[j]] | i - j < 64); score = scale * dot(q, k) + bias[h, clip(i - j, 0, 31)]""",
        {"*i64", "*i1"},
    ),
}


@pytest.mark.parametrize("name", LISTED)
def test_kernels_that_walk_lists_compile(compiler: ProcessPoolExecutor, name: str, tmp_path: Path) -> None:
    body, types = LISTED[name]
    target = ("sm_90", "gfx942")[list(LISTED).index(name) % 2]
    path = tmp_path / f"{name}.py"
    lines = "".join(f"  {line}\n" for line in body.split("; "))
    path.write_text(compile_source(Source(f"{name}.attn", f"attention {name} {{\n{lines}}}\n")).text)
    texts = kernels_of(path)
    assert {text.kernel.rstrip("_12") for text in texts} == set(OF_A_PLAN)
    assert {f"*{each}" for text in texts for _, each in text.asked} == types
    for text in texts:
        tile, found = compiler.submit(first_that_fits, path, text, target, 64).result()
        assert found.ok, f"{text.kernel}, {tile}: {found.why}"
        assert found.spills <= TARGETS[target].few_spills, text.kernel


LOOPS = """
  %a = scf.for %head = %0 to %1 step %c1 iter_args(%x = %y) -> (tensor<64xf32>)  : i32 {
    %b = scf.for %step = %0 to %2 step %c1 iter_args(%x_1 = %x) -> (tensor<64xf32>)  : i32 {
      %visible = arith.cmpi slt, %lanes, %high : tensor<64xi32>
      %tile = tt.load %pointers, %visible, %zero : tensor<64x!tt.ptr<bf16>>
      %dot = tt.dot %q, %tile, %zero : tensor<64x64xbf16> * tensor<64x64xbf16> -> tensor<64x64xf32>
      scf.yield %dot : tensor<64xf32>
    }
    %c = scf.for %tile_1 = %3 to %4 step %c1 iter_args(%x_2 = %b) -> (tensor<64xf32>)  : i32 {
      %far = arith.cmpi slt, %tile_1, %4 : i32
      %tile = tt.load %pointers : tensor<64x!tt.ptr<bf16>>
      %dot = tt.dot %q, %tile, %zero : tensor<64x64xbf16> * tensor<64x64xbf16> -> tensor<64x64xf32>
      %lost = arith.cmpf oeq, %lse, %low : tensor<64xf32>
      %kept = arith.select %lost, %high, %lse : tensor<64xi1>, tensor<64xf32>
      scf.yield %dot : tensor<64xf32>
    }
    scf.yield %c : tensor<64xf32>
  }
"""
PARTIAL, FULL = TileLoop(masked=True, dots=True), TileLoop(masked=False, dots=True)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", ""),
        ("%tile = tt.load %pointers : ", "%tile = tt.load %pointers, %seen, %zero : ", "loop 2 is over full tiles"),
        (
            "%far = arith.cmpi slt, %tile_1, %4 : i32",
            "%far = arith.cmpi slt, %j, %i : tensor<64xi32>",
            "loop 2 is over",
        ),
        ("arith.select %lost,", "arith.select %related,", "loop 2 is over full tiles"),
        ("%visible = arith.cmpi slt, %lanes, %high : tensor<64xi32>\n", "\n", ""),
        ("tt.load %pointers, %visible, %zero", "tt.load %pointers", ""),
        ("tt.dot %q, %tile, %zero", "arith.addf %q, %tile", "loop 1 has no tt.dot"),
    ],
)
def test_loops_over_full_tiles_are_free_of_masks(old: str, new: str, expected: str) -> None:
    text = LOOPS.replace(old, new, 1) if old else LOOPS
    assert loop_fault(text, (PARTIAL, FULL)).startswith(expected)
    assert bool(loop_fault(text, (PARTIAL, FULL))) == bool(expected)


def test_loops_are_counted() -> None:
    assert loop_fault(LOOPS, (PARTIAL,)) == "2 loops over tiles, 1 expected"
    assert loop_fault(LOOPS, (PARTIAL, PARTIAL)) == "loop 2 is over partial tiles and does not mask"


def test_kernels_are_read_from_their_text(tmp_path: Path) -> None:
    """Numbers do not make kernels differ; the loops are those of the text."""
    source = (GENERATED / "causal.py").read_text()
    (tmp_path / "other.py").write_text(source.replace("1.4426950408889634", "2.5"))
    (tmp_path / "masked.py").write_text(
        source.replace("PRECISION, False,\n            )", "PRECISION, True,\n            )")
    )
    texts = {
        name: kernels_of(folder / f"{name}.py")
        for folder, name in ((GENERATED, "causal"), (tmp_path, "other"), (tmp_path, "masked"))
    }
    for mine, other in zip(texts["causal"], texts["other"], strict=True):
        assert mine.loops == other.loops == (PARTIAL, FULL)
        assert mine.shape == other.shape
    assert [text.digest for text in texts["causal"]] != [text.digest for text in texts["other"]]
    assert texts["masked"][0].loops == (PARTIAL, PARTIAL)
    assert texts["masked"][0].shape != texts["causal"][0].shape


def test_arguments_have_the_types_of_a_launch() -> None:
    names = ["q_ptr", "d_out_ptr", "lse_ptr", "slope_ptr", "q_start_ptr", "k_strides", "n", "b_size_1", "scale_log2"]
    assert list(signature(names, "fp16", ("q_ptr", "d_out_ptr")).values()) == [
        *("*fp16", "*fp16", "*fp32", "*fp32", "*i32"),
        *(("i32",) * 3, "i32", "i32", "fp32"),
    ]
    asked = {"doc_ptr": "i64", "mark_ptr": "i1"}
    names = ["doc_ptr", "mark_ptr", "row_places_ptr", "begins_ptr", "met_ptr", "lists", "key_slots"]
    assert list(signature(names, "bf16", (), asked=asked).values()) == ["*i64", "*i1", *["*i32"] * 3, "i32", "i32"]


def test_a_loop_named_like_a_function_of_the_module_is_not_that_function(tmp_path: Path) -> None:
    """Kernels that differ in nothing are one, whatever stands elsewhere in their modules."""
    source = (GENERATED / "causal.py").read_text()
    assert "for step in range(" in source and "\ndef step(" in source
    (tmp_path / "other.py").write_text(source.replace("\ndef step(\n", "\ndef step(\n    extra,\n"))
    one, other = kernels_of(GENERATED / "causal.py"), kernels_of(tmp_path / "other.py")
    assert [each.digest for each in one] == [each.digest for each in other]
