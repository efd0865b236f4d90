"""Texts and pictures → files, all of them or none: each is written beside its place first and then renamed."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from attncc.diagnostics import AttnError, Diagnostic
from attncc.sources import FILE_ERRORS, reason_of


def write_all(contents: Mapping[Path, str | bytes]) -> dict[Path, bool]:
    """Write every text (in UTF-8) or picture; says which files changed. Files that are right are left alone.

    Raises:
        AttnError: E901 when a file cannot be written; then none was touched, or only by renames that had succeeded.
    """
    wanted = {path: each.encode("utf-8") if isinstance(each, str) else each for path, each in contents.items()}
    changed = {path: data for path, data in wanted.items() if on_disk(path) != data}
    prepared: list[tuple[Path, Path]] = []
    current = Path()
    try:
        for current, data in changed.items():
            prepared.append((_beside(current, data), current))
        for temporary, current in prepared:
            temporary.replace(current)
    except FILE_ERRORS as error:
        raise AttnError(Diagnostic("E901", f"cannot write `{current}`: {reason_of(error)}")) from None
    finally:
        for temporary, _ in prepared:
            temporary.unlink(missing_ok=True)
    return {path: path in changed for path in wanted}


def on_disk(path: Path) -> bytes | None:
    """What is in a file; None where there is none."""
    try:
        return path.read_bytes()
    except FILE_ERRORS:
        return None


def _beside(path: Path, data: bytes) -> Path:
    """A temporary file in the folder of `path` with the data in it."""
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(0, f"`{path.parent}` is a file, not a folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, _mode(path))
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _mode(path: Path) -> int:
    """The permissions that a file has, or that a new one would have."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
