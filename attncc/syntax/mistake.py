"""A mistake as the parser sees it: a token that does not fit, what stands before it, and what would have fitted."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.diagnostics import Diagnostic, Label, Span
from attncc.syntax.lexeme import Lexeme

KEYWORDS = frozenset(
    "ATTENTION LAYER ATTEND PATTERN SIMILARITY FUNCTION REQUIRE PARAM INPUT LET BRANCH USE EXISTS IN AT BY_HEAD".split()
)
_TOKEN_NAMES = {
    "_END": "the end of the line",
    "$END": "the end of the file",
    "NUMBER": "a number",
    "NAME": "a name",
    "COMPARE": "a comparison",
    "PLUS": "`+`",
    "MINUS": "`-`",
    "MULTIPLY": "`*`, `/`, `//`, `%` or `@`",
    "_ARROW": "`->`",
    "RANGE": "`..`",
    "STRING": "a path in quotes",
    "POWER": "`^`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "EQUAL": "`=`",
    "COMMA": "`,`",
    "COLON": "`:`",
    "QMARK": "`?`",
    "VBAR": "`|`",
    "AMPERSAND": "`&`",
    "BANG": "`!`",
}
OPERATORS = {"COMPARE", "PLUS", "MINUS", "MULTIPLY", "POWER", "QMARK", "VBAR", "AMPERSAND", "IN", "RANGE"}
CANNOT_END = {*OPERATORS, "COLON", "EQUAL", "BANG", "COMMA"}
EXPRESSION_STARTS = {"NUMBER", "NAME", "LPAR", "LSQB", "MINUS", "BANG", "BY_HEAD", "EXISTS", "ATTEND"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A token that does not fit, and what would have."""

    lexemes: list[Lexeme]  # the whole text; the last one is its end
    at: int  # the token that does not fit
    start: int  # the first token of its statement
    body: Lexeme | None  # the `{` around the statement, if any
    accepted: frozenset[str]  # kinds of tokens that would fit

    @property
    def found(self) -> Lexeme:
        """The token that does not fit."""
        return self.lexemes[self.at]

    @property
    def first(self) -> Lexeme:
        """The first token of the statement."""
        return self.lexemes[self.start]

    @property
    def previous(self) -> Lexeme | None:
        """The token before, on the same statement."""
        return self.lexemes[self.at - 1] if self.at > self.start else None

    @property
    def following(self) -> str:
        """The kind of the token after the one that does not fit."""
        return self.lexemes[self.at + 1].kind if self.at + 1 < len(self.lexemes) else "$END"

    @property
    def open_bracket(self) -> Lexeme | None:
        """The innermost round or square bracket of the statement that is open where it stops."""
        opened: list[Lexeme] = []
        for lexeme in self.lexemes[self.start : self.at]:
            if lexeme.kind in ("LPAR", "LSQB"):
                opened.append(lexeme)
            elif lexeme.kind in ("RPAR", "RSQB") and opened:
                opened.pop()
        return opened[-1] if opened else None

    @property
    def within(self) -> list[str]:
        """The kinds of the statement's tokens before the one that does not fit."""
        return [lexeme.kind for lexeme in self.lexemes[self.start : self.at]]

    @property
    def here(self) -> str:
        """The token that does not fit, as a sentence may name it."""
        ends = {"_END": "the line ends", "$END": "the text ends"}
        return ends.get(self.found.kind, f"`{self.found.text}` follows")

    @property
    def wants_expression(self) -> bool:
        """Whether an expression would fit."""
        return {"NUMBER", "MINUS"} <= self.accepted and "MULTIPLY" not in self.accepted


def expected(names: frozenset[str]) -> str:
    """The kinds in words, operators and expression starts summed up."""
    words: list[str] = []
    if len(names & EXPRESSION_STARTS) >= 5:
        words.append("an expression")
        names = names - EXPRESSION_STARTS
    if len(names & OPERATORS) >= 3:
        words.append("an operator")
        names = names - OPERATORS - {"LPAR", "LSQB"}
    words += sorted(_TOKEN_NAMES.get(name, f"`{name.lower()}`") for name in names)
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def error(message: str, span: Span, text: str, *labels: Label, helps: tuple[str, ...] = ()) -> Diagnostic:
    return Diagnostic("E101", message, (Label(span, text), *labels), helps=helps)
