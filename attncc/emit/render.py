"""Templates of emitted text, with values put in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import resources

import jinja2
from jinja2.bccache import Bucket

from attncc.sources import cache_folder
from attncc.version import VERSION


def render(template: str, values: Mapping[str, object]) -> str:
    """A template with its values put in."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> jinja2.Environment:
    """Where templates come from; it keeps those that it has read."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        bytecode_cache=_kept(),
    )


class _Kept(jinja2.FileSystemBytecodeCache):
    """Compiled templates for later processes: to compile them takes a quarter of a build."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep one, if there is room."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


def _kept() -> _Kept | None:
    """Where compiled templates stay; nowhere if the user has no cache that can be written."""
    with suppress(OSError, RuntimeError):
        folder = cache_folder() / f"templates-{VERSION}-{jinja2.__version__}"
        folder.mkdir(parents=True, exist_ok=True)
        return _Kept(str(folder)) if os.access(folder, os.W_OK) else None
    return None


def _template(name: str) -> str:
    return resources.files("attncc.emit").joinpath("templates", name).read_text(encoding="utf-8")
