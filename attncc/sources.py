"""Files → sources."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from attncc.diagnostics import AttnError, Diagnostic, Source


def read_source(path: str | Path) -> Source:
    """The source in a file.

    Raises:
        AttnError: E901 when the file cannot be read as text.
    """
    try:
        with Path(path).open("rb") as file:
            return text_of(file, str(path))
    except FILE_ERRORS as error:
        raise AttnError(Diagnostic("E901", f"cannot read `{path}`: {reason_of(error)}")) from None


def text_of(file: BinaryIO, name: str) -> Source:
    """The source in an open file, called `name`.

    Raises:
        AttnError: E901 when it is no text; E104 when it is so long that it may never end, as devices do not.
    """
    data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise AttnError(Diagnostic("E104", f"`{name}` is too long for a spec"))
    try:
        return Source(name, data.decode("utf-8"))
    except UnicodeDecodeError:
        raise AttnError(Diagnostic("E901", f"`{name}` is no text", helps=("save it as UTF-8",))) from None


def cache_folder() -> Path:
    """Where the user keeps what can be made again; it need not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "attncc"


_MOST_BYTES = 1 << 24
FILE_ERRORS = (OSError, ValueError)  # the latter for names that no file can have


def reason_of(error: Exception) -> str:
    """What the system says about a file, in words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
