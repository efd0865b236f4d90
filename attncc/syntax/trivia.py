"""What the grammar skips: a text and its tokens → the comments and blank lines between neighbouring tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attncc.diagnostics import Source
from attncc.syntax.lexeme import Lexeme

BLANK = ""  # stands for one or more blank lines among `Gap.lines`


@dataclass(frozen=True, slots=True)
class Gap:
    """What stands between two tokens, besides spaces, line ends and `;`."""

    trailing: str | None = None  # a comment on the line of the token before
    lines: tuple[str, ...] = ()  # comments that have a line of their own, and BLANK
    is_one_line: bool = True  # no line ends here

    @property
    def comments(self) -> tuple[str, ...]:
        """The comments on lines of their own."""
        return tuple(each for each in self.lines if each != BLANK)

    def __add__(self, other: Gap) -> Gap:
        """Both, where the token between them goes elsewhere; only one comment can end the line before."""
        if self.trailing is None and not self.comments:
            return Gap(other.trailing, other.comments, other.is_one_line and self.is_one_line)
        late = () if other.trailing is None else (other.trailing,)
        return Gap(self.trailing, (*self.comments, *late, *other.comments), is_one_line=False)


def gaps(source: Source, lexemes: Sequence[Lexeme]) -> tuple[Gap, ...]:
    """The gap before each token; the last token is the end of the text."""
    starts = [0]
    for line in source.lines:
        starts.append(starts[-1] + len(line) + 1)
    found: list[Gap] = []
    end = 0
    for lexeme in lexemes:
        span = lexeme.span
        start = len(source.text) if lexeme.kind == "$END" else starts[span.line - 1] + span.column - 1
        found.append(_gap(source.text[end:start], is_first=not found))
        end = starts[span.end_line - 1] + span.end_column - 1
    return tuple(found)


def _gap(text: str, *, is_first: bool) -> Gap:
    """Strings are tokens, so that `#` begins a comment here wherever it stands."""
    rest, *own = (line.lstrip(" \t\f;").rstrip() for line in text.split("\n"))
    if is_first:
        rest, own = "", [rest, *own]
    lines: list[str] = []
    for line in own[:-1] if own and not own[-1] else own:  # what is left of the last line is the next token's
        if line != BLANK or (lines[-1:] != [BLANK]):
            lines.append(line)
    return Gap(rest or None, tuple(lines), is_one_line="\n" not in text)
