"""Bytes → a file, whole or not at all: they are written beside their place first, and then renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from attncc.diagnostics import AttnError, Diagnostic
from attncc.sources import FILE_ERRORS, reason_of


def write_bytes(path: Path, data: bytes) -> bool:
    """Write a file; says whether it has changed. One that is as it should be is left alone.

    Raises:
        AttnError: E901 when the file cannot be written.
    """
    try:
        if path.is_file() and path.read_bytes() == data:
            return False
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, data)
    except FILE_ERRORS as error:
        raise AttnError(Diagnostic("E901", f"cannot write `{path}`: {reason_of(error)}")) from None
    return True


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
