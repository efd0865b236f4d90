"""The files in `generated/`: the same bytes in every order of sets, standing on torch and triton alone, lint clean."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ruff import find_ruff_bin

from attncc.check.calls import inputs_of
from attncc.check.sizes import Case
from attncc.compiler import read_source
from attncc.spec.resolve import load
from tests.modules import ROOT, SPECS

GENERATED = ROOT / "generated"
NAMES = sorted(path.stem for path in SPECS.glob("*.attn"))


def run(code: str, *arguments: str, **variables: str) -> str:
    """The output of a Python program."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_spec_has_its_file() -> None:
    assert NAMES == sorted(path.stem for path in GENERATED.glob("*.py"))


HASHES = """
import hashlib, sys
from attncc.compiler import compile_source, read_source
from attncc.spec.resolve import load
for path in sys.argv[1:]:
    print(hashlib.sha256(compile_source(read_source(path)).text.encode()).hexdigest())
"""


def test_the_order_of_sets_does_not_matter() -> None:
    """A given order and the one of whoever wrote the files give the same bytes; the other tests draw theirs."""
    names = NAMES[::8]
    paths = [str(SPECS / f"{name}.attn") for name in names]
    written = [hashlib.sha256((GENERATED / f"{name}.py").read_bytes()).hexdigest() for name in names]
    assert run(HASHES, *paths, PYTHONHASHSEED="1").split() == written


@pytest.mark.parametrize("name", NAMES)
def test_files_import_torch_triton_and_the_standard_library(name: str) -> None:
    text = (GENERATED / f"{name}.py").read_text(encoding="utf-8")
    imported = re.findall(r"^ *(?:import|from) ([.\w]+)", text, re.M)
    foreign = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert foreign == ({"torch", "triton"} if "@triton.jit" in text else {"torch"})


WITHOUT_TRITON = """
import importlib.util, json, sys
sys.modules["triton"] = None
import torch
for path, inputs in json.loads(sys.argv[1]).items():
    spec = importlib.util.spec_from_file_location("copied", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = [x.requires_grad_(x.is_floating_point()) for x in torch.load(inputs)]
    out = module.attention(*data)
    out.sum().backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in data)  # None: only its shape is read
    assert "attncc" not in sys.modules
    try:
        module.attention(*data, form="triton")
    except ValueError as error:
        assert "triton" in str(error)
    else:
        raise AssertionError("the Triton form ran without triton")
print("ok")
"""


def test_files_work_without_triton_and_without_attncc(tmp_path: Path) -> None:
    case = Case(
        batch=1, heads=2, kv_heads=2, n=20, m=20, d=8, e=8, dtype=torch.float32, q_start=None, name="without triton"
    )  # fmt: skip
    inputs = {}
    for name in NAMES[::3]:
        spec = load(read_source(SPECS / f"{name}.attn"))
        drawn = inputs_of(spec, case)
        torch.save([drawn[each.name] for each in spec.data], path := tmp_path / f"{name}.pt")
        inputs[str(GENERATED / f"{name}.py")] = str(path)
    assert run(WITHOUT_TRITON, json.dumps(inputs), PYTHONPATH="") == "ok\n"


def ruff(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [find_ruff_bin(), *arguments, "--isolated", "--line-length", "100", str(GENERATED)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_files_are_formatted() -> None:
    done = ruff("format", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_are_lint_clean() -> None:
    done = ruff("check", "--select", "E,F,B", "--ignore", "E501", "--output-format", "concise")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_short(name: str) -> None:
    """Except where the spec is quoted: its lines and its indices are its author's."""
    lines = (GENERATED / f"{name}.py").read_text(encoding="utf-8").splitlines()
    body = lines[next(at for at, line in enumerate(lines) if not line.startswith("#")) :]
    long = [line for line in body if len(line) > 100 and not line.endswith("# fmt: skip")]
    assert [line for line in long if not re.fullmatch(r' *"[^"]*",', line)] == []
