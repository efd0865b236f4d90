"""`attncc.load`: builds once for all processes, and again when anything changes that the module depends on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import attncc
from attncc import loading
from tests.modules import ROOT

WINDOW = "attention near(w = 3) {\n  pattern = i - w < j <= i\n}\n"


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; the folder of its modules."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/attncc/modules"


def written(tmp_path: Path, text: str, name: str = "near.attn") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_becomes_its_module(tmp_path: Path) -> None:
    module = attncc.load(written(tmp_path, WINDOW), w=2)
    q, k, v = (torch.randn(1, 1, 5, 4, requires_grad=True) for _ in range(3))
    out = module.attention(q, k, v)
    band = torch.ones(5, 5, dtype=torch.bool).tril().triu(-1)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, band)
    torch.testing.assert_close(out, wanted)
    out.sum().backward()


def test_the_same_content_is_built_once(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, WINDOW)
    module = attncc.load(path)
    assert attncc.load(str(path)) is module
    del sys.modules[module.__name__]
    monkeypatch.delattr(loading, "compile_any")  # another process finds the file
    again = attncc.load(path)
    assert again is not module and again.__file__ == module.__file__
    assert [each.name for each in kept.iterdir() if each.is_file()] == [f"{module.__name__}.py"]


def test_changes_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = written(tmp_path, "pattern near_by = i - 3 < j <= i\n", "words.attn")
    path = written(
        tmp_path, 'use "words.attn"\nattention near(w = 3, far = 0) { pattern = near_by & i - w - far < j }\n'
    )
    modules = [attncc.load(path), attncc.load(path, w=4), attncc.load(path, w="4"), attncc.load(path, far=1)]
    assert modules[1] is modules[2]
    inner.write_text("pattern near_by = i - 5 < j <= i\n", encoding="utf-8")
    modules.append(attncc.load(path))
    monkeypatch.setattr(loading, "_compiler", lambda: "another compiler")
    modules.append(attncc.load(path))
    assert len({module.__name__ for module in modules}) == 5


def test_mistakes_are_the_diagnostics_of_a_build(tmp_path: Path, kept: Path) -> None:
    path = written(tmp_path, WINDOW.replace("i - w", "i - width"))
    with pytest.raises(attncc.AttnError, match=rf"{path}:2:17"):
        attncc.load(path)
    with pytest.raises(attncc.AttnError, match="width"):
        attncc.load(written(tmp_path, WINDOW), width=2)
    with pytest.raises(attncc.AttnError, match="cannot read"):
        attncc.load(tmp_path / "nowhere.attn")
    assert not kept.exists()


def test_a_layer_is_a_class_of_its_module() -> None:
    module = attncc.load(ROOT / "specs/layers/multi_head_causal.attn")
    assert module.MultiHeadCausal(16, h=2)(torch.randn(2, 5, 16)).shape == (2, 5, 16)


def test_processes_may_load_at_once(tmp_path: Path, kept: Path) -> None:
    code = "import attncc, sys; print(attncc.load(sys.argv[1]).__file__)"
    command = [sys.executable, "-c", code, str(written(tmp_path, WINDOW))]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    found = {each.communicate()[0].strip() for each in started}
    assert all(each.returncode == 0 for each in started) and len(found) == 1
    assert [str(each) for each in kept.iterdir() if each.is_file()] == list(found)


def test_every_text_of_the_compiler_counts() -> None:
    root = Path(attncc.__file__).parent
    others = {each.suffix for each in root.rglob("*") if each.suffix} - {*loading._TEXTS, ".pyc", ".png", ".typed"}
    assert not others, "a changed file of this kind would not be seen by `attncc.load`"
