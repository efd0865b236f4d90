"""A piece of text that the parser takes as one, with its place."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.diagnostics import Span


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A token: its kind as the grammar names it, its text, and where it stands."""

    kind: str
    text: str
    span: Span
