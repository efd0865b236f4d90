"""Texts → files, all of them or none: each is written beside its place first and then renamed."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from attncc.diagnostics import AttnError, Diagnostic


def write_all(texts: Mapping[Path, str]) -> dict[Path, bool]:
    """Write every text; says which files changed. Files that are as they should be are left alone.

    Raises:
        AttnError: E901 when a file cannot be written; then none was touched, or only by renames that had succeeded.
    """
    changed = {path: text for path, text in texts.items() if on_disk(path) != text}
    prepared: list[tuple[Path, Path]] = []
    current = Path()
    try:
        for current, text in changed.items():
            prepared.append((_beside(current, text), current))
        for temporary, current in prepared:
            temporary.replace(current)
    except OSError as error:
        reason = error.strerror or str(error)
        raise AttnError(Diagnostic("E901", f"cannot write `{current}`: {reason}")) from None
    finally:
        for temporary, _ in prepared:
            temporary.unlink(missing_ok=True)
    return {path: path in changed for path in texts}


def on_disk(path: Path) -> str | None:
    """The text of a file; None where there is no such text."""
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _beside(path: Path, text: str) -> Path:
    """A temporary file in the folder of `path` with the text in it."""
    if path.parent.exists() and not path.parent.is_dir():
        raise NotADirectoryError(0, f"`{path.parent}` is a file, not a folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
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
