"""Templates of emitted text, with values put in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import jinja2


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
    )


def _template(name: str) -> str:
    return resources.files("attncc.emit").joinpath("templates", name).read_text(encoding="utf-8")
