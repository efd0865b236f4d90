"""Kernels in C on a machine: without a compiler, by several processes, with sanitizers, and what callers may say."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from attncc.check.ahead import compile_ahead
from attncc.check.load import load_module
from attncc.compiler import compile_any
from attncc.emit.c_form.expressions import Untranslatable
from attncc.emit.c_form.source import kernels_in_c
from attncc.sources import read_source
from tests.modules import SMALL, SPECS, Built, build_file

CALL = """
import sys, torch, importlib.util, warnings
spec = importlib.util.spec_from_file_location("module", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["module"] = module
spec.loader.exec_module(module)
torch.manual_seed(0)
for n, m, d, e in ((1, 1, 1, 1), (7, 33, 5, 3), (65, 70, 16, 15)):
    q, k, v = torch.randn(1, 2, n, d), torch.randn(1, 1, m, d), torch.randn(1, 1, m, e)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out = {form: module.attention(q, k, v, form=form) for form in (None, "torch")}
    grads = [torch.autograd.grad(each.sum(), (q, k, v)) for each in out.values()]
    for found, expected in zip((out[None], *grads[0]), (out["torch"], *grads[1]), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
print("equal")
"""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_file("sliding_window", tmp_path_factory.mktemp("window"), in_c=True, **SMALL["sliding_window"])


def _run(built: Built, cache: Path, **variables: str) -> subprocess.Popen[str]:
    file = built.module.__file__
    assert file is not None
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "ATTNCC_TARGET": "c", "ATTNCC_CFLAGS": "-O1"} | variables
    return subprocess.Popen(
        [sys.executable, "-c", CALL, file],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_several_processes_compile_at_once(window: Built, tmp_path: Path) -> None:
    running = [_run(window, tmp_path) for _ in range(2)]
    said = [each.communicate() for each in running]
    assert [out for out, _ in said] == ["equal\n"] * 2, said
    made = [each.suffix for each in (tmp_path / "attncc" / "c").iterdir()]
    assert made == [".so"] * 5  # two kernels by two tiles, and a probe


# AVX2 and SSE: what a compiler is told of the processor decides how wide vectors are.
OTHER_PROCESSORS = {"x86_64": ("-march=haswell", "-march=x86-64")}.get(platform.machine(), ("",))


@pytest.mark.parametrize("processor", OTHER_PROCESSORS)
def test_vectors_may_be_narrower(processor: str, window: Built, tmp_path: Path) -> None:
    running = _run(window, tmp_path, ATTNCC_CFLAGS=f"-O1 {processor}")
    said = running.communicate()
    assert said[0] == "equal\n", said


def test_without_a_compiler_torch_serves(window: Built, tmp_path: Path) -> None:
    out, error = _run(window, tmp_path, PATH=str(tmp_path), CC="").communicate()
    assert out == "equal\n", error
    assert error.count("no C compiler is found: attention runs in torch on the CPU, which is slower") == 1


@pytest.mark.parametrize("compiler", ["/bin/true", "g++"])  # kernels are no C++
def test_a_compiler_that_makes_nothing_is_none(compiler: str, window: Built, tmp_path: Path) -> None:
    out, error = _run(window, tmp_path, CC=compiler).communicate()
    assert out == "equal\n", error
    said = f"{compiler} -O1 makes nothing that runs: attention runs in torch on the CPU, which is slower"
    assert error.count(said) == 1


def test_without_openmp_python_has_the_threads(window: Built, tmp_path: Path) -> None:
    compiler = tmp_path / "plain"
    compiler.write_text('#!/bin/sh\ncase " $* " in *" -fopenmp "*) exit 1; esac\nexec gcc "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    out, error = _run(window, tmp_path, CC=str(compiler), OMP_NUM_THREADS="3").communicate()
    assert (out, error) == ("equal\n", "")
    libraries = [ctypes.CDLL(str(each)) for each in (tmp_path / "attncc" / "c").iterdir()]
    kernels = [each for each in libraries if hasattr(each, "has_threads")]
    assert [ctypes.c_int.in_dll(each, "has_threads").value for each in kernels] == [0] * (len(libraries) - 1)


def test_what_the_cache_holds_in_part_is_made_anew(window: Built, tmp_path: Path) -> None:
    """Also where `CC` is several words, in quotes too."""
    for _ in range(2):
        out, error = _run(window, tmp_path, CC="env 'OF=two words' gcc").communicate()
        assert (out, error) == ("equal\n", "")
        for library in (tmp_path / "attncc" / "c").iterdir():
            library.write_bytes(library.read_bytes()[:100])


def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Addresses and undefined behaviour, in the shapes of CALL."""
    gcc = shutil.which("gcc")
    assert gcc is not None, "the sanitizers are gcc's"
    found = subprocess.run([gcc, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    flags = "-O0 -fsanitize=address,undefined -fno-sanitize-recover=all -Wall -Werror -Wno-unused"
    variables: Mapping[str, str] = {
        "CC": gcc,
        "ATTNCC_CFLAGS": flags,
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    built = build_file("sparse_strided", tmp_path, in_c=True, **SMALL["sparse_strided"])
    out, error = _run(built, tmp_path / "cache", **variables).communicate()
    assert out == "equal\n", error


@pytest.mark.parametrize("is_layer", [False, True], ids=["attention", "layer"])
def test_compiled_ahead_is_every_kernel_of_one_type(is_layer: bool) -> None:
    """Whatever the number of threads; nothing is compiled here."""
    name = "layers/multi_head_causal" if is_layer else "sparse_strided"
    compiled = compile_any(read_source(SPECS / f"{name}.attn"))
    module = load_module(compiled.text, "ahead")
    module._c_library = module._c_run = lambda *given: None
    compile_ahead(module, compiled, 64, "float32")
    for kernel in module._C_KERNELS.values():
        assert len({constants for _, constants in kernel.compiled}) == 2, kernel.__name__  # tiles
        assert all(torch.float64 not in types for types, _ in kernel.compiled)


def test_caches_may_be_emptied_and_named_oddly(window: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = window.module
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which is none, as it would move with the process
    assert module._c_folder.__wrapped__().is_absolute()
    monkeypatch.setattr(module, "_c_folder", lambda: tmp_path / "gone" / "since")
    command, fault = module._c_found()
    assert not fault
    assert module._c_compiled("int run(void) { return 0; }", command).exists()


def test_what_callers_may_say(window: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(1, 1, 3, 8)
    compiled = torch.compile(lambda x: window.module.attention(x, x, x, form="c"), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q), window.module.attention(q, q, q, form="torch"))
    monkeypatch.setenv("ATTNCC_TARGET", "cpp")
    with pytest.raises(ValueError, match=r"ATTNCC_TARGET.*'cpp'.*'c' or 'torch'"):
        window.module.attention(q, q, q)
    with pytest.raises(ValueError, match=r"form.*'cuda'.*'triton', 'c' or 'torch'"):
        window.module.attention(q, q, q, form="cuda")
    monkeypatch.setenv("CC", "gcc '")
    with pytest.raises(ValueError, match=r"CC is .*quotation"):
        window.module._c_words("CC")


def test_what_has_no_translation_is_said() -> None:
    kernel = """
if triton is not None:
    @triton.jit
    def _odd_kernel(x_ptr, n, BLOCK_M: tl.constexpr):
        row = tl.program_id(0)
        x = tl.associative_scan(row, 0, None)
        tl.store(x_ptr + row, x)
"""
    with pytest.raises(Untranslatable, match="associative_scan"):
        kernels_in_c(kernel, ())
