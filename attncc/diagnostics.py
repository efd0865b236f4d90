"""Source spans, diagnostics and the error that carries them: what went wrong, where, and the fix.

Every message a user sees about their own text is a `Diagnostic`. It stands alone as a sentence, points at the
text with one primary and any number of secondary labels, states facts in notes and edits in helps.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Source:
    """A named text: a `.attn` file, the prelude, or a command line option."""

    name: str
    text: str = field(repr=False)

    def line(self, number: int) -> str:
        """Line `number` (1-based) without its line end; empty past the last line."""
        lines = self.text.splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else ""


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
    return "\n".join(lines)


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
            text = source.line(number).replace("\t", " ")
            lines.append(f"{number:>{width}} | {text}".rstrip())
            for label in sorted((one for one in shown if one.span.line == number), key=lambda one: one is not primary):
                lines.append(f"{gutter} | {_underline(label, text, '^' if label is primary else '-')}".rstrip())
    lines.append(f"{gutter} |")
    return lines


def _underline(label: Label, text: str, mark: str) -> str:
    span = label.span
    stop = span.end_column if span.end_line == span.line else len(text) + 1
    length = max(1, stop - span.column)
    return " " * (span.column - 1) + mark * length + (f" {label.text}" if label.text else "")
