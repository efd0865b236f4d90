"""The tokens of a text one by one, as documents: none is lost, and neither is a comment between two of them."""

from __future__ import annotations

from collections.abc import Sequence

from attncc.syntax.document import NEW_LINE, SPACE, Document, Text, concat, nest
from attncc.syntax.lexeme import Lexeme
from attncc.syntax.trivia import Gap

INDENT = 2


class Cursor:
    """Goes through tokens and gaps in turns."""

    def __init__(self, lexemes: Sequence[Lexeme], gaps: Sequence[Gap]) -> None:
        self._lexemes = lexemes
        self._gaps = gaps
        self._at = 0
        self._is_before_gap = True

    @property
    def next(self) -> Lexeme:
        """The next token."""
        return self._lexemes[self._at]

    def token(self) -> Document:
        """The next token; the gap before it has been taken."""
        if self._is_before_gap:
            raise RuntimeError(f"the gap before `{self.next.text}` was left out")
        lexeme = self.next
        self._at += 1
        self._is_before_gap = True
        return Text(lexeme.text)

    def take_gap(self) -> Gap:
        """What stands before the next token."""
        if not self._is_before_gap:
            raise RuntimeError(f"the gap before `{self.next.text}` was taken twice")
        self._is_before_gap = False
        return self._gaps[self._at]

    def gap(self, plain: Document) -> Document:
        """`plain`, or the comments that stand before the next token."""
        return around_comments(self.take_gap(), plain)

    def spaced(self) -> Document:
        """The next token after a space."""
        return concat(self.gap(SPACE), self.token())

    def is_body_on_one_line(self) -> bool:
        """Whether the `{` that comes next stands on one line with its `}`."""
        depth = 0
        for at in range(self._at, len(self._lexemes)):
            kind = self._lexemes[at].kind
            if depth and not self._gaps[at].is_one_line:
                return False
            depth += (kind == "LBRACE") - (kind == "RBRACE")
            if depth == 0:
                return True
        return False


def around_comments(gap: Gap, plain: Document) -> Document:
    """`plain`, or comments and the new line that must follow them."""
    if gap.trailing is None and not gap.comments:
        return plain
    return concat(trailing(gap), *_own_lines(gap), NEW_LINE)


def before_closer(gap: Gap, plain: Document) -> Document:
    """As `around_comments`, where a closing bracket comes next: the comments belong to what it closes."""
    if gap.trailing is None and not gap.comments:
        return plain
    return concat(nest(INDENT, trailing(gap), *_own_lines(gap)), NEW_LINE)


def trailing(gap: Gap) -> Document:
    """The comment that ends the line before, two spaces apart."""
    return Text("" if gap.trailing is None else f"  {gap.trailing}", is_counted=False)


def _own_lines(gap: Gap) -> list[Document]:
    return [concat(NEW_LINE, Text(each)) for each in gap.comments]
