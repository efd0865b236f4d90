"""How a finding about a layer is reported: it ends the statement, and the others are looked at as ever."""

from __future__ import annotations

from typing import NoReturn

from attncc.diagnostics import Diagnostic, Label, Span


class Fault(Exception):
    """A statement that cannot be understood, with what to say about it."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__()
        self.diagnostics = diagnostics


def fail(
    code: str, message: str, span: Span | None, text: str = "", *labels: Label, notes: tuple[str, ...] = (),
    helps: tuple[str, ...] = (),
) -> NoReturn:  # fmt: skip
    """Raise a Fault with one diagnostic."""
    places = (*((Label(span, text),) if span is not None else ()), *labels)
    raise Fault(Diagnostic(code, message, places, notes, helps))
