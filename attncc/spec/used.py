"""`use "other.attn"`: the words of other files, found beside the file that asks for them or on the search path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from attncc.diagnostics import AttnError, Diagnostic, Label, Source
from attncc.sources import read_source
from attncc.syntax import tree
from attncc.syntax.parse import parse

SEARCH_PATH = "ATTNCC_PATH"  # directories, separated as in PATH
_MOST_FILES = 32


def with_used(file: tree.File, *, attentions: bool = False) -> tuple[list[tree.Definition], list[Diagnostic]]:
    """The definitions of a file after the words of all files that it uses, directly or not; each file counts once.

    Args:
        attentions: whether to take the attentions and layers of used files as well.

    Returns:
        Definitions and findings: a file that is not there, uses itself, or has mistakes of its own.
    """
    reader = _Reader(attentions)
    definitions = list(reader.read(file, ()))
    return definitions, reader.errors


def sources_of(file: tree.File) -> tuple[Source, ...]:
    """A file's source and those of all files that it uses, directly or not: all that its meaning depends on."""
    reader = _Reader(attentions=True)
    list(reader.read(file, ()))
    return tuple(reader.sources)


class _Reader:
    def __init__(self, attentions: bool) -> None:
        self.errors: list[Diagnostic] = []
        self.sources: list[Source] = []
        self._beside = () if attentions else (tree.Attention, tree.Layer)  # what is left where it is
        self._done: set[Path] = set()

    def read(self, file: tree.File, chain: tuple[Path, ...]) -> Iterator[tree.Definition]:
        self.sources.append(file.source)
        here = _place(file.source)
        for definition in file.definitions:
            if isinstance(definition, tree.Use):
                yield from self._used(definition, file.source, (*chain, here))
        for definition in file.definitions:
            if not isinstance(definition, tree.Use) and not (chain and isinstance(definition, self._beside)):
                yield definition

    def _used(self, use: tree.Use, source: Source, chain: tuple[Path, ...]) -> Iterator[tree.Definition]:
        written = use.path.text
        found = _find(written, source)
        if found is None:
            is_folder = any((each / written).is_dir() for each in _directories(source)) if written.strip() else False
            text = "this is a folder" if is_folder else "no such file"
            looked = ", ".join(f"`{each}`" for each in _directories(source))
            self._report(
                use, f"cannot find `{written}`", text, notes=(f"looked in {looked}",), helps=_similar(written, source)
            )
            return
        place = found.resolve()
        if place in chain:
            names = " → ".join(each.name for each in (*chain[chain.index(place) :], place))
            self._report(use, f"`{written}` uses itself", "closes the circle", notes=(names,))
            return
        if place in self._done:
            return
        if len(self._done) >= _MOST_FILES:
            self._report(use, f"more than {_MOST_FILES} files are used", "one file too many")
            return
        self._done.add(place)
        try:
            inner = parse(read_source(found))
        except AttnError as error:
            asked = Label(use.path.span, "used here")
            self.errors += (each if each.labels else replace(each, labels=(asked,)) for each in error.diagnostics)
            return
        yield from self.read(inner, chain)

    def _report(
        self, use: tree.Use, message: str, text: str, notes: tuple[str, ...] = (), helps: tuple[str, ...] = ()
    ) -> None:
        self.errors.append(Diagnostic("E219", message, (Label(use.path.span, text),), notes, helps))


def _place(source: Source) -> Path:
    return Path(source.name).resolve()


def _directories(source: Source) -> list[Path]:
    listed = os.environ.get(SEARCH_PATH, "").split(os.pathsep)
    return [Path(source.name).parent, *(Path(each) for each in listed if each)]


def _find(written: str, source: Source) -> Path | None:
    if "\0" in written or not written.strip():
        return None
    return next((each / written for each in _directories(source) if (each / written).is_file()), None)


def _similar(written: str, source: Source) -> tuple[str, ...]:
    """The same name with its suffix, if only that is missing."""
    if not written.endswith(".attn") and written.strip() and _find(f"{written}.attn", source) is not None:
        return (f'write `use "{written}.attn"`',)
    return (f"other directories can be listed in the environment variable {SEARCH_PATH}",)
