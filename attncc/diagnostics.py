"""Source spans, diagnostics and the error that carries them: what went wrong, where, and the fix.

Every message a user sees about their own text is a `Diagnostic`. It stands alone as a sentence, points at the
text with one primary and any number of secondary labels, states facts in notes and edits in helps.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

_LONG_NAME = re.compile(r"`(\w{32})\w{33,}`")
_WIDEST = 110  # columns of a source line that are shown


@dataclass(frozen=True, slots=True)
class Source:
    """A named text: a `.attn` file, the prelude, or a command line option.

    The text is kept without a byte order mark and with `\n` for every line end.
    """

    name: str
    text: str = field(repr=False)

    def __post_init__(self) -> None:
        plain = self.text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        object.__setattr__(self, "text", plain)

    @property
    def lines(self) -> list[str]:
        """The lines; at least one, and an empty last one where the text ends with a line end."""
        return self.text.split("\n")

    def line(self, number: int) -> str:
        """Line `number` (1-based) without its line end; empty past the last line."""
        lines = self.lines
        return lines[number - 1] if 0 < number <= len(lines) else ""

    @property
    def end(self) -> Span:
        """The place after the last character that is no white space."""
        lines = self.text.rstrip().split("\n")
        column = len(lines[-1]) + 1
        return Span(self, len(lines), column, len(lines), column + 1)


@dataclass(frozen=True, slots=True)
class Span:
    """A run of characters in a source; lines and columns are 1-based, `end_column` is exclusive."""

    source: Source = field(repr=False)
    line: int
    column: int
    end_line: int
    end_column: int

    def until(self, other: Span) -> Span:
        """The span from the start of this one to the end of `other`."""
        return Span(self.source, self.line, self.column, other.end_line, other.end_column)

    @property
    def place(self) -> str:
        """`file:line:column`, as compilers print it."""
        return f"{self.source.name}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Label:
    """A span and what to say about it; an empty text only underlines."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: a code from `codes.CODES`, a sentence, labels (the first is the primary one), notes, helps."""

    code: str
    message: str
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()

    @property
    def is_error(self) -> bool:
        """Errors stop the build; warnings (W…) do not."""
        return self.code.startswith("E")


class AttnError(Exception):
    """Raised when a spec cannot be compiled; carries every diagnostic found, in source order."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n\n".join(render(diagnostic) for diagnostic in diagnostics))


def render(diagnostic: Diagnostic) -> str:
    """The diagnostic as text: sentence, place, source lines with carets, notes, helps (no colour)."""
    severity = "error" if diagnostic.is_error else "warning"
    lines = [f"{severity}[{diagnostic.code}]: {diagnostic.message}"]
    if diagnostic.labels:
        lines += _excerpt(diagnostic.labels)
    lines += [f"  = note: {note}" for note in diagnostic.notes]
    lines += [f"  = help: {help_}" for help_ in diagnostic.helps]
    return "\n".join(_LONG_NAME.sub(r"`\1…`", line) for line in lines)


def _excerpt(labels: tuple[Label, ...]) -> list[str]:
    primary = labels[0]
    width = max(len(str(label.span.line)) for label in labels)
    gutter = " " * width
    lines = [f"{gutter}--> {primary.span.place}"]
    here = primary.span.source
    for source in dict.fromkeys(label.span.source for label in labels):
        shown = [label for label in labels if label.span.source == source]
        if source != here:
            lines.append(f"{gutter}::: {shown[0].span.place}")
        lines.append(f"{gutter} |")
        for number in sorted({label.span.line for label in shown}):
            here_too = sorted((one for one in shown if one.span.line == number), key=lambda one: one is not primary)
            text, start = _window(source.line(number), here_too[0].span)
            lines.append(f"{number:>{width}} | {_visible(text)}".rstrip())
            for label in here_too:
                mark = "^" if label is primary else "-"
                lines.append(f"{gutter} | {_underline(label, text, start, mark)}".rstrip())
    lines.append(f"{gutter} |")
    return lines


def _window(text: str, span: Span) -> tuple[str, int]:
    """The part of a line to show, and how many characters are left out before it."""
    if len(text) <= _WIDEST:
        return text, 0
    start = max(0, min(span.column - 1 - _WIDEST // 3, len(text) - _WIDEST))
    shown = text[start : start + _WIDEST]
    if start:
        shown = "…" + shown[1:]
    if start + _WIDEST < len(text):
        shown = shown[:-1] + "…"
    return shown, start


def _underline(label: Label, text: str, start: int, mark: str) -> str:
    """Marks under the label's characters, counted in the columns that a terminal gives to `text`."""
    span = label.span
    first = min(max(0, span.column - 1 - start), len(text))
    stop = span.end_column - 1 - start if span.end_line == span.line else len(text)
    marked = text[first : max(first, min(stop, len(text)))]
    return " " * _columns(text[:first]) + mark * max(1, _columns(marked)) + (f" {label.text}" if label.text else "")


def _visible(text: str) -> str:
    """The text with one harmless character for each that would move the cursor."""
    return "".join(" " if one == "\t" else one if one.isprintable() else "\ufffd" for one in text)


def _columns(text: str) -> int:
    """How many terminal columns the visible text takes."""
    return sum(_width(one) for one in _visible(text))


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
