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
    except OSError as error:
        reason = error.strerror or str(error)
        raise AttnError(Diagnostic("E901", f"cannot read `{path}`: {reason}")) from None
    except UnicodeDecodeError:
        help_ = "save the file as UTF-8"
        raise AttnError(Diagnostic("E901", f"`{path}` is no text", helps=(help_,))) from None
