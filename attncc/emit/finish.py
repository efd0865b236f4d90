"""The text of a module → the bytes of its file: formatted by ruff, which also checks its syntax."""

from __future__ import annotations

import subprocess
from functools import cache

WIDTH = 100


class NotPython(Exception):
    """The emitted text is no Python: a fault of attncc itself."""


def finish(text: str) -> str:
    """The text as ruff formats it, without lines of trailing space.

    Raises:
        NotPython: when ruff cannot parse the text.
    """
    done = subprocess.run(
        [_ruff(), "format", "--isolated", "--line-length", str(WIDTH), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotPython(done.stderr)
    return done.stdout


@cache
def _ruff() -> str:
    from ruff import find_ruff_bin

    return str(find_ruff_bin())
