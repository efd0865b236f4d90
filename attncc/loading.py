"""The file of a spec → its module, built once for all processes: `attncc.load("my.attn", w=512)`."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from attncc.check.load import imported
from attncc.compiler import compile_any
from attncc.diagnostics import AttnError, Source, render
from attncc.outputs import write_all
from attncc.sources import cache_folder, read_source
from attncc.spec.used import sources_of
from attncc.syntax.parse import parse
from attncc.version import VERSION

_TEXTS = (".py", ".jinja", ".lark", ".attn", ".c")  # of the compiler, which decide what it writes


def load(path: str | Path, /, **parameters: float | str) -> ModuleType:
    """The module that `attncc build` makes of a file, imported.

    It is kept in the user's cache under a digest of all that decides its text: the file, the files that it uses, the
    parameters, and the compiler. Several processes may load the same file at once: each writes a whole module or none.

    Args:
        path: a file with an attention or a layer.
        parameters: values in place of the defaults: numbers, truth values, or text as after `-D name=`.

    Returns:
        The module, the same one for the same content: of an attention with `attention`, `weights` and a
        `torch.nn.Module`; of a layer with its `torch.nn.Module`.

    Raises:
        AttnError: with every diagnostic found.

    Warns:
        UserWarning: for findings that stop nothing, when the module is built.
    """
    source = read_source(path)
    given = {name: _written(value) for name, value in parameters.items()}
    name = f"{_word(Path(path).stem)}_{_digest(source, given)}"
    if name in sys.modules:
        return sys.modules[name]
    place = cache_folder() / "modules" / f"{name}.py"
    if not place.is_file():
        compiled = compile_any(source, given)
        for warning in compiled.warnings:
            warnings.warn(render(warning), stacklevel=2)
        write_all({place: compiled.text})
    return imported(place)


def _written(value: float | str) -> str:
    """A value as a spec writes it."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
    return repr(value)


def _word(name: str) -> str:
    """A file's name as the first part of a module's."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)


def _digest(source: Source, given: Mapping[str, str]) -> str:
    """Of all that a module's text depends on."""
    try:
        used = sources_of(parse(source))
    except AttnError:
        used = (source,)  # compiling it reports what is wrong
    parts = [VERSION, _compiler(), *(each.text for each in used), *(f"{key}={given[key]}" for key in sorted(given))]
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(b"%d:%s" % (len(data), data))
    return digest.hexdigest()[:16]


@cache
def _compiler() -> str:
    """A digest of the compiler's own files, so that a changed one does not find what it wrote before."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(each for each in root.rglob("*") if each.suffix in _TEXTS):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
