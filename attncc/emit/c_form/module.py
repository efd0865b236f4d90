"""The text of a module → the same module with its kernels in C, and what compiles and runs these."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from attncc.emit.c_form.source import CKernel, kernels_in_c
from attncc.emit.finish import Finishing
from attncc.emit.render import render
from attncc.emit.triton_form.library import ALWAYS, OPTIONAL
from attncc.emit.triton_form.scope import CPUS_ALONE
from attncc.emit.units import GUARD, statements_of
from attncc.emit.writer import literal

_IMPORTS = (
    "atexit",
    "concurrent.futures",
    "contextlib",
    "ctypes",
    "functools",
    "hashlib",
    "itertools",
    "mmap",
    "os",
    "pathlib",
    "platform",
    "shlex",
    "shutil",
    "subprocess",
    "tempfile",
    "warnings",
)
_PLAIN_IMPORT = re.compile(r"^import (\w+)$", re.MULTILINE)
_DEFINED = re.compile(r"^def (\w+)\(", re.MULTILINE)
_WRITTEN = re.compile(r"\b(?:put|add_to)\((\w+)_type,")
_HELPERS = frozenset(name for helper in (ALWAYS, *OPTIONAL.values()) for name in _DEFINED.findall(helper))
_FROM = "from typing import NamedTuple\n"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A kernel as the template writes it."""

    name: str
    arguments: str
    whole: str
    constants: str
    written: str
    text: str


def with_kernels_in_c(module: Finishing, *, wanted: bool = True) -> str:
    """A module with a section of kernels in C, if it has kernels; where none are wanted, one that says so.

    Kernels are translated while the module is being formatted.
    """
    if f"\n{GUARD}\n" not in module.given:
        return module.text()
    if not wanted:
        return f"{_without_marked(module.text()).rstrip()}\n\n\n{render('no_c_form.py.jinja', {}).strip()}\n"
    kernels = [_entry(each) for each in kernels_in_c(module.given, _HELPERS)]
    section = Finishing(render("c_form.py.jinja", {"library": _library(), "kernels": kernels}))
    text = _with_imports(_without_marked(module.text()))
    return f"{text.rstrip()}\n\n\n{section.text().strip()}\n"


def _without_marked(text: str) -> str:
    """The text without the kernels that only C has."""
    lines = text.split("\n")
    for block in reversed(statements_of(lines)):
        if lines[block.start] != GUARD:
            continue
        first = block.start + 1
        inside = [line.removeprefix("    ") for line in lines[first : block.stop]]
        for each in reversed(statements_of(inside)):
            if inside[each.start].startswith(f"@{CPUS_ALONE}"):
                start = each.start
                while start > 0 and not inside[start - 1].strip():
                    start -= 1
                del lines[first + start : first + each.stop]
    return "\n".join(lines)


def _entry(kernel: CKernel) -> _Entry:
    written = dict.fromkeys(f"{name}_ptr" for name in _WRITTEN.findall(kernel.text))
    arguments, whole, constants, results = (
        literal(" ".join(each)) for each in (kernel.arguments, kernel.whole, kernel.constants, written)
    )
    return _Entry(kernel.name, arguments, whole, constants, results, kernel.text)


@cache
def _library() -> str:
    return resources.files("attncc.emit").joinpath("c_form", "library.c").read_text(encoding="utf-8")


def _with_imports(text: str) -> str:
    """The text with what the section imports among its own imports of whole modules."""
    head, rest = text.split(_FROM, 1)
    own: list[str] = _PLAIN_IMPORT.findall(head)
    before = head[: head.index(f"import {own[0]}\n")] if own else head
    after = _PLAIN_IMPORT.sub("", head[len(before) :]).strip("\n")
    imports = "".join(f"import {name}\n" for name in sorted({*own, *_IMPORTS}))
    return f"{before}{imports}{after}{chr(10) * bool(after)}{_FROM}{rest}"
