"""The text of a module → the bytes of its file: formatted by ruff, which also checks its syntax."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from typing import IO

WIDTH = 100


class NotPython(Exception):
    """The emitted text is no Python: a fault of attncc itself."""


class Finishing:
    """A text that ruff formats while attncc goes on; files hold it, so that neither waits for the other.

    Attributes:
        given: the text as it was.
    """

    def __init__(self, text: str) -> None:
        self.given = text
        self._read, self._made, self._errors = _file(), _file(), _file()
        self._read.write(text.encode())
        self._read.seek(0)
        self._process = subprocess.Popen(
            [_ruff(), "format", "--isolated", "--line-length", str(WIDTH), "-"],
            stdin=self._read,
            stdout=self._made,
            stderr=self._errors,
        )

    def text(self) -> str:
        """The text as ruff formats it, without lines of trailing space; asked for once.

        Raises:
            NotPython: when ruff cannot parse the text.
        """
        with self._process as process, self._read, self._made, self._errors:
            found = self._made if process.wait() == 0 else self._errors
            found.seek(0)
            text = found.read().decode()
            if process.returncode != 0:
                raise NotPython(text)
            return text


def _file() -> IO[bytes]:
    """A file without a name: in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("attncc"), "w+b")
    from tempfile import TemporaryFile

    return TemporaryFile()


@cache
def _ruff() -> str:
    from ruff import find_ruff_bin

    return str(find_ruff_bin())
