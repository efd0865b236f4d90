"""The text of a module → the module, from a real file, so that triton can read the source of its kernels."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType


def load_module(text: str, name: str) -> ModuleType:
    """Import a module from its text; the same text gives the same module, once a process."""
    unique = f"attncc_generated_{name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if unique in sys.modules:
        return sys.modules[unique]
    path = _folder() / f"{unique}.py"
    path.write_text(text, encoding="utf-8")
    return imported(path)


def imported(path: Path) -> ModuleType:
    """The module in a file, under the file's name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # before it runs: what is compiled later finds its module by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


@cache
def _folder() -> Path:
    """A folder that goes when the process ends: tracebacks and triton read the files until then."""
    folder = tempfile.mkdtemp(prefix="attncc-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
