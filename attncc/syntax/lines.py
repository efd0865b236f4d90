"""Line ends: lark's token stream → the same stream with `_END` where a statement ends.

A statement ends at a line end outside ( and [, or at `;`. It goes on when the next line begins with an operator
that cannot begin an expression, or when this one ends with an operator that wants an operand.
"""

from __future__ import annotations

from collections.abc import Iterator

from lark import Token
from lark.lark import PostLex

_OPEN = {"LPAR", "LSQB"}
_CLOSE = {"RPAR", "RSQB"}
CANNOT_BEGIN = {"VBAR", "COMPARE", "MULTIPLY", "POWER", "QMARK", "COLON", "EQUAL", "COMMA", "AMPERSAND", "IN", "RANGE"}
CANNOT_END = {
    "VBAR",
    "COMPARE",
    "MULTIPLY",
    "POWER",
    "QMARK",
    "COLON",
    "EQUAL",
    "COMMA",
    "AMPERSAND",
    "PLUS",
    "MINUS",
    "BANG",
    "IN",
    "RANGE",
    "_ARROW",
}


class StatementEnds(PostLex):
    """Inserts `_END` tokens; line ends and semicolons themselves are ignored by the grammar."""

    always_accept = ("LINE_END", "SEMICOLON")

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """The stream with runs of line ends and semicolons outside brackets made into one `_END`."""
        depth = 0
        pending: Token | None = None
        last: Token | None = None
        for token in stream:
            if token.type in ("LINE_END", "SEMICOLON"):
                if depth == 0 and pending is None:
                    pending = token
                continue
            goes_on = token.type in CANNOT_BEGIN or (last is not None and last.type in CANNOT_END)
            if pending is not None and not goes_on:
                yield Token.new_borrow_pos("_END", pending.value, pending)
            pending = None
            depth += (token.type in _OPEN) - (token.type in _CLOSE)
            depth = max(depth, 0)
            if token.type in ("LBRACE", "RBRACE"):
                depth = 0
            last = token
            yield token
        if pending is not None:
            yield Token.new_borrow_pos("_END", pending.value, pending)
