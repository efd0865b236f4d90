"""The imports of an emitted module: what its text reads, and nothing else."""

from __future__ import annotations

import re

from attncc.emit.render import render

_MODULES = ("bisect", "dataclasses", "functional", "functools", "math")
_NAMES = {
    "callable": "Callable",
    "named_tuple": "NamedTuple",
    "triton": "@triton.jit",
    "checkpoint": "checkpoint(",
}


def with_imports(header: str, body: str) -> str:
    """A module's text: the comment at its top, what it imports, and its body."""
    needs = {name: re.search(rf"{name}(?<![\w.]{name})\.", body) is not None for name in _MODULES}
    needs |= {name: text in body for name, text in _NAMES.items()}
    return render("imports.py.jinja", {"header": header, "needs": needs, "body": body})
