"""Files → sources."""

from __future__ import annotations

from pathlib import Path

from attncc.diagnostics import AttnError, Diagnostic, Source


def read_source(path: str | Path) -> Source:
    """The source in a file.

    Raises:
        AttnError: E901 when the file cannot be read as text.
    """
    try:
        return Source(str(path), Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        help_ = "save the file as UTF-8"
        raise AttnError(Diagnostic("E901", f"`{path}` is no text", helps=(help_,))) from None
    except FILE_ERRORS as error:
        raise AttnError(Diagnostic("E901", f"cannot read `{path}`: {reason_of(error)}")) from None


FILE_ERRORS = (OSError, ValueError)  # the latter for names that no file can have


def reason_of(error: Exception) -> str:
    """What the system says about a file, in words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
