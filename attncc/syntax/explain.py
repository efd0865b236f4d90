"""Why a token does not fit: the place where parsing stopped → a diagnostic in the user's own terms."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from attncc.diagnostics import Diagnostic, Label, Span
from attncc.syntax.lexeme import Lexeme

_KEYWORDS = frozenset(
    "ATTENTION PATTERN SIMILARITY FUNCTION REQUIRE PARAM INPUT LET BRANCH USE EXISTS IN BY_HEAD".split()
)
_DEFINITIONS = ("attention", "pattern", "similarity", "function", "use")
_STATEMENTS = ("require", "param", "input", "let", "branch")
_FIELD_NAMES = {"NAME", "PATTERN", "SIMILARITY"}
_LATER = {"layer"}
_FOREIGN = {
    "**": ("`**` is not an operator here", "write `^` for powers"),
    "&&": ("`&&` is not an operator here", "write `&`"),
    "||": ("`||` is not an operator here", "write `|`"),
    "and": ("`and` is not an operator here", "write `&`"),
    "or": ("`or` is not an operator here", "write `|`"),
    "not": ("`not` is not an operator here", "write `!`"),
    "if": ("`if` is not an operator here", "write `condition ? then : otherwise`"),
    "else": ("`else` is not an operator here", "write `condition ? then : otherwise`"),
    "lambda": ("`lambda` is not an operator here", "write `x -> …`"),
}
_TOKEN_NAMES = {
    "_END": "the end of the line",
    "$END": "the end of the file",
    "NUMBER": "a number",
    "NAME": "a name",
    "COMPARE": "a comparison",
    "PLUS": "`+`",
    "MINUS": "`-`",
    "MULTIPLY": "`*`, `/`, `//`, `%` or `@`",
    "ARROW": "`->`",
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
_OPERATORS = {"COMPARE", "PLUS", "MINUS", "MULTIPLY", "POWER", "QMARK", "VBAR", "AMPERSAND", "IN", "RANGE"}
_CANNOT_END = {*_OPERATORS, "COLON", "EQUAL", "BANG", "COMMA"}
_EXPRESSION_STARTS = {"NUMBER", "NAME", "LPAR", "LSQB", "MINUS", "BANG", "BY_HEAD", "EXISTS"}


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
    def wants_expression(self) -> bool:
        """Whether an expression would fit."""
        return {"NUMBER", "MINUS"} <= self.accepted and "MULTIPLY" not in self.accepted


def explain(mistake: Mistake) -> Diagnostic:
    """The diagnostic for a mistake: the most telling of the known ones."""
    cases = (
        _header,
        _definition_inside,
        _keyword,
        _outside,
        _field,
        _foreign_word,
        _number,
        _two_statements,
        _open_bracket,
        _operand,
    )
    for case in cases:
        found = case(mistake)
        if found is not None:
            return found
    return _plain(mistake)


def expected(names: frozenset[str]) -> str:
    """The kinds in words, operators and expression starts summed up."""
    words: list[str] = []
    if len(names & _EXPRESSION_STARTS) >= 5:
        words.append("an expression")
        names = names - _EXPRESSION_STARTS
    if len(names & _OPERATORS) >= 3:
        words.append("an operator")
        names = names - _OPERATORS - {"LPAR"}
    words += sorted(_TOKEN_NAMES.get(name, f"`{name.lower()}`") for name in names)
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def _error(message: str, span: Span, text: str, *labels: Label, helps: tuple[str, ...] = ()) -> Diagnostic:
    return Diagnostic("E101", message, (Label(span, text), *labels), helps=helps)


def _header(mistake: Mistake) -> Diagnostic | None:
    """`attention a` without a body."""
    if "LBRACE" not in mistake.accepted:
        return None
    name = mistake.lexemes[mistake.start + 1].text
    help_ = f"write `{mistake.first.text} {name} {{ … }}`"
    text = "expected `{`" if "LPAR" not in mistake.accepted else "expected `(` or `{`"
    return _error(f"`{mistake.first.text} {name}` has no body", mistake.found.span, text, helps=(help_,))


def _definition_inside(mistake: Mistake) -> Diagnostic | None:
    """A definition within the braces of another."""
    if mistake.body is None:
        return None
    kind = mistake.first.kind
    word = kind in ("PATTERN", "SIMILARITY") and mistake.at == mistake.start + 1
    word = word and mistake.found.kind == "NAME" and mistake.following in ("LPAR", "EQUAL", "LBRACE")
    if not word and not (kind in ("ATTENTION", "FUNCTION") and mistake.at == mistake.start):
        return None
    what = "an attention" if kind == "ATTENTION" else f"a {mistake.first.text} word"
    opened = Label(mistake.body.span, "these braces are still open")
    helps = ("move it out of the braces" if word or kind == "FUNCTION" else "close the braces before it with `}`",)
    return _error(f"{what} cannot be defined inside braces", mistake.first.span, "", opened, helps=helps)


def _keyword(mistake: Mistake) -> Diagnostic | None:
    """A keyword where a name or an expression is wanted."""
    if mistake.found.kind not in _KEYWORDS or "NAME" not in mistake.accepted or mistake.accepted & _KEYWORDS:
        return None
    text = "expected an expression" if mistake.wants_expression else "expected a name"
    helps: tuple[str, ...] = () if mistake.wants_expression else ("choose another name",)
    return _error(f"`{mistake.found.text}` is a keyword", mistake.found.span, text, helps=helps)


def _outside(mistake: Mistake) -> Diagnostic | None:
    """What begins a statement outside all braces is no definition."""
    if mistake.body is not None:
        return None
    first, second = mistake.first, mistake.found
    helps: tuple[str, ...]
    if first.kind in ("PATTERN", "SIMILARITY") and mistake.at == mistake.start + 1 and second.kind == "EQUAL":
        helps = (f"write `attention name {{ {first.text} = … }}`",)
        return _error("a field stands outside an attention", first.span, "", helps=helps)
    if mistake.at > mistake.start or "ATTENTION" not in mistake.accepted:
        return None
    if second.kind == "NAME" and mistake.following == "EQUAL":
        helps = (f"write `attention name {{ {second.text} = … }}`",)
        return _error("a field stands outside an attention", second.span, "", helps=helps)
    close = difflib.get_close_matches(second.text, _DEFINITIONS, n=1, cutoff=0.6)
    helps = tuple(f"write `{each}`" for each in close)
    text = "expected `attention`, `pattern`, `similarity` or `function`"
    return _error(f"`{second.text}` begins no definition", second.span, text, helps=helps)


def _field(mistake: Mistake) -> Diagnostic | None:
    """Inside braces, something that is neither `name = value` nor `require`."""
    if mistake.body is None:
        return None
    first, found = mistake.first, mistake.found
    if mistake.at == mistake.start and "REQUIRE" in mistake.accepted:
        return _no_statement(mistake)
    if mistake.at != mistake.start + 1 or first.kind not in _FIELD_NAMES or "EQUAL" not in mistake.accepted:
        return None
    if first.text in _LATER and found.kind in ("NAME", "LBRACE"):
        text = "expected a field, such as `pattern = …`, or `require`"
        return _error(f"`{first.text}` begins no statement of this version", first.span, text)
    helps = (f"write `{first.text} = …`",)
    close = difflib.get_close_matches(first.text, _STATEMENTS, n=1, cutoff=0.7)
    if close and found.kind == "NAME":
        helps = (f"write `{close[0]} …`",)
    here = "the line ends" if found.kind == "_END" else f"`{found.text}`"
    text = f"expected `=` after `{first.text}`"
    return _error(f"a field is written `name = value`, but {here} follows the name", found.span, text, helps=helps)


def _no_statement(mistake: Mistake) -> Diagnostic:
    found = mistake.found
    helps: tuple[str, ...] = ()
    if found.text in ("/", "//"):
        helps = ("a comment begins with `#`",)
    elif found.kind in ("PLUS", "MINUS"):
        helps = (f"to go on with the statement above, end its line with `{found.text}`",)
    text = "expected a field, such as `pattern = …`, or `require`"
    return _error(f"no statement begins with `{found.text}`", found.span, text, helps=helps)


def _foreign_word(mistake: Mistake) -> Diagnostic | None:
    """Operators of other languages."""
    found, previous = mistake.found, mistake.previous
    text = f"expected {expected(mistake.accepted)}"
    if found.text in _FOREIGN:
        message, help_ = _FOREIGN[found.text]
        return _error(message, found.span, text, helps=(help_,))
    if previous is None:
        return None
    doubled = previous.text + found.text
    if doubled in _FOREIGN and previous.span.end_column == found.span.column:
        message, help_ = _FOREIGN[doubled]
        return _error(message, previous.span.until(found.span), "", helps=(help_,))
    if previous.text in _FOREIGN:
        message, help_ = _FOREIGN[previous.text]
        return _error(message, previous.span, "", helps=(help_,))
    return None


def _number(mistake: Mistake) -> Diagnostic | None:
    """Something sticks to a number."""
    found, previous = mistake.found, mistake.previous
    if previous is None or previous.kind != "NUMBER" or previous.span.end_column != found.span.column:
        return None
    if found.kind not in ("NAME", "NUMBER"):
        return None
    helps: tuple[str, ...] = ()
    if found.kind == "NAME":
        helps = (f"write `{previous.text} * {found.text}` for a product",)
    if found.kind == "NAME" and found.text.lower().startswith("e") and not found.text[1:].isalpha():
        helps = (f"an exponent is written `{previous.text}e3`",)
    both = previous.span.until(found.span)
    return _error(
        f"`{previous.text}{found.text}` is no number", both, f"expected it to end after `{previous.text}`", helps=helps
    )


def _two_statements(mistake: Mistake) -> Diagnostic | None:
    """A statement begins where another has not ended."""
    found = mistake.found
    begins = (found.kind in _FIELD_NAMES and mistake.following == "EQUAL") or found.kind in _KEYWORDS
    if mistake.body is None or "_END" not in mistake.accepted or not (begins or found.kind == "COMMA"):
        return None
    helps = ("begin a new line, or write `;` between the statements",)
    return _error(
        f"`{found.text}` does not fit here", found.span, f"expected {expected(mistake.accepted)}", helps=helps
    )


def _open_bracket(mistake: Mistake) -> Diagnostic | None:
    """A bracket that an earlier line opened: most likely it should have been closed there."""
    opener = mistake.open_bracket
    if opener is None or opener.span.line == mistake.found.span.line or mistake.wants_expression:
        return None
    closer = ")" if opener.kind == "LPAR" else "]"
    label = Label(mistake.found.span, f"expected `{closer}` before this `{mistake.found.text}`")
    message = f"`{opener.text}` is never closed"
    return Diagnostic("E101", message, (Label(opener.span, "opened here"), label), helps=(f"close it with `{closer}`",))


def _operand(mistake: Mistake) -> Diagnostic | None:
    """An operator or `=` at the end of a line, and nothing that belongs to it."""
    found, before = mistake.found, mistake.at - 1
    if found.kind == "EQUAL" and mistake.body is not None:  # the name before it begins the next statement
        before -= 1
    elif not mistake.wants_expression or found.kind not in ("_END", "$END", "RBRACE"):
        return None
    operator, after = mistake.lexemes[max(before, mistake.start)], mistake.lexemes[before + 1]
    if operator.kind not in _CANNOT_END or (found.kind == "EQUAL" and operator.span.line == after.span.line):
        return None
    return _error(f"an expression is missing after `{operator.text}`", operator.span, "expected an expression after it")


def _plain(mistake: Mistake) -> Diagnostic:
    found, accepted = mistake.found, mistake.accepted
    text = f"expected {expected(accepted)}"
    helps: tuple[str, ...] = ()
    within = {lexeme.kind for lexeme in mistake.lexemes[mistake.start : mistake.at]}
    if found.kind == "$END":
        return Diagnostic("E102", "the text ends too early", (Label(found.span, text),))
    opener = mistake.open_bracket
    labels = () if opener is None else (Label(opener.span, f"this `{opener.text}` is still open"),)
    if found.kind == "_END":
        message = "the line ends in the middle of a statement"
    elif mistake.wants_expression:
        message = f"an expression is missing before `{found.text}`"
    else:
        message = f"`{found.text}` does not fit here"
    if "QMARK" in within and "COLON" in accepted:
        helps = ("a choice is written `condition ? then : otherwise`",)
    elif found.kind == "EQUAL" and "COMPARE" in accepted:
        helps = ("write `==` to compare two numbers",)
    elif found.kind == "PLUS":
        helps = ("leave the `+` out",)
    return _error(message, found.span, text, *labels, helps=helps)
