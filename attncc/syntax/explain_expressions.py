"""Mistakes within expressions: operators, brackets, ranges, and what only some places may hold."""

from __future__ import annotations

from attncc.diagnostics import Diagnostic, Label
from attncc.syntax.mistake import CANNOT_END, Mistake, error, expected

_FOREIGN = {
    "**": ("`**` is not an operator here", "write `^` for powers"),
    "&&": ("`&&` is not an operator here", "write `&`"),
    "||": ("`||` is not an operator here", "write `|`"),
    "=>": ("`=>` is not an operator here", "write `>=` to compare, `->` for a function of the name before it"),
    "=<": ("`=<` is not an operator here", "write `<=`"),
    "and": ("`and` is not an operator here", "write `&`"),
    "or": ("`or` is not an operator here", "write `|`"),
    "not": ("`not` is not an operator here", "write `!`"),
    "if": ("`if` is not an operator here", "write `condition ? then : otherwise`"),
    "else": ("`else` is not an operator here", "write `condition ? then : otherwise`"),
    "lambda": ("`lambda` is not an operator here", "write `x -> …`"),
}
_ENDS = {"_END", "$END", "RBRACE", "RPAR", "RSQB", "COMMA", "VBAR", "AMPERSAND", "QMARK", "COLON", "COMPARE"}


def foreign_word(mistake: Mistake) -> Diagnostic | None:
    """Operators of other languages."""
    found, previous = mistake.found, mistake.previous
    text = f"expected {expected(mistake.accepted)}"
    if found.text == "not" and mistake.following == "IN":
        return error("`not in` is not an operator here", found.span, text, helps=("write `!(… in …)`",))
    if found.text in _FOREIGN:
        message, help_ = _FOREIGN[found.text]
        return error(message, found.span, text, helps=(help_,))
    for first, second in ((mistake.at - 1, mistake.at), (mistake.at, mistake.at + 1)):
        if first < mistake.start or second >= len(mistake.lexemes):
            continue
        one, other = mistake.lexemes[first], mistake.lexemes[second]
        if one.text + other.text in _FOREIGN and one.span.end_column == other.span.column:
            message, help_ = _FOREIGN[one.text + other.text]
            return error(message, one.span.until(other.span), "", helps=(help_,))
    if previous is not None and previous.text in _FOREIGN:
        message, help_ = _FOREIGN[previous.text]
        return error(message, previous.span, "", helps=(help_,))
    return None


def number(mistake: Mistake) -> Diagnostic | None:
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
    text = f"expected it to end after `{previous.text}`"
    return error(f"`{previous.text}{found.text}` is no number", both, text, helps=helps)


def lambda_(mistake: Mistake) -> Diagnostic | None:
    """`->` elsewhere than between a name and a value in the arguments of a call."""
    found, opener = mistake.found, mistake.open_bracket
    if found.kind != "_ARROW":
        return None
    if opener is not None and opener.kind == "LPAR" and {"COMMA", "PLUS"} <= mistake.accepted:
        text, helps = "expected a name alone before it", ("write `x -> …`",)
        return error("`->` follows something else than the name of a variable", found.span, text, helps=helps)
    helps = ("a function is an argument, as in `sum(c -> q[c])`, or a word: `function name(x) = …`",)
    text = f"expected {expected(mistake.accepted)}"
    return error("`->` stands outside the arguments of a call", found.span, text, helps=helps)


def exists(mistake: Mistake) -> Diagnostic | None:
    """`exists` as an operand, or without one of its parts."""
    found, kinds = mistake.found, mistake.within
    if found.kind == "EXISTS" and mistake.wants_expression:
        helps = ("write it in brackets: `(exists t in a..b : …)`",)
        return error("`exists` is no operand: it reaches as far as it can", found.span, "", helps=helps)
    if "EXISTS" not in kinds:
        return None
    since = len(kinds) - kinds[::-1].index("EXISTS")  # the token after it
    name = mistake.lexemes[mistake.start + since].text if since < len(kinds) else "t"
    helps = (f"write `exists {name} in first..last : predicate`",)
    if mistake.accepted == {"NAME"} and since == len(kinds):
        return error("a name is missing after `exists`", found.span, "expected a name", helps=helps)
    if mistake.accepted == {"IN"}:
        return error(f"`exists {name}` does not say what `{name}` may be", found.span, "expected `in`", helps=helps)
    if "COLON" in mistake.accepted and "COLON" not in kinds[since:] and "QMARK" not in kinds[since:]:
        return error("`exists` has no predicate", found.span, "expected `:`", helps=helps)
    return None


def choices(mistake: Mistake) -> Diagnostic | None:
    """What follows `in` is neither a list nor a range, and what holds `..` does not follow `in`."""
    found, previous = mistake.found, mistake.previous
    if previous is not None and previous.kind == "IN" and found.kind == "LBRACE":
        helps = ("write the values in square brackets: `in [1, 2]`",)
        return error("a set is written in square brackets", found.span, "expected `[` or a range", helps=helps)
    opener = mistake.open_bracket
    if found.kind == "COMMA" and opener is not None and mistake.lexemes[mistake.lexemes.index(opener) - 1].kind == "IN":
        helps = ("write the values in square brackets: `in [1, 2]`",)
        return error("a list is written in square brackets", opener.span, "expected `[`", helps=helps)
    if found.kind == "RANGE":
        if mistake.wants_expression:
            helps = ("a range has both ends: `first..last`",)
            return error("an expression is missing before `..`", found.span, "expected an expression", helps=helps)
        helps = ("a range stands after `in`, as in `i - j in 0..3`",)
        text = f"expected {expected(mistake.accepted)}"
        if previous is not None and "RANGE" in mistake.within:
            return error("a range has two ends", found.span, text, helps=("a range is written `first..last`",))
        return error("a range stands only after `in`", found.span, text, helps=helps)
    if "RANGE" in mistake.accepted and found.kind in _ENDS:
        helps = ("write `x in [a, b]` or `x in first..last`",)
        return error("neither a list nor a range follows `in`", found.span, "expected `..`", helps=helps)
    return None


def by_head(mistake: Mistake) -> Diagnostic | None:
    """`by_head` without a list."""
    if mistake.previous is None or mistake.previous.kind != "BY_HEAD":
        return None
    helps = ("write `by_head [a, b, …]`",)
    return error("no list follows `by_head`", mistake.found.span, "expected `[`", helps=helps)


def open_bracket(mistake: Mistake) -> Diagnostic | None:
    """A bracket that an earlier line opened: most likely it should have been closed there."""
    opener = mistake.open_bracket
    if opener is None or opener.span.line == mistake.found.span.line or mistake.wants_expression:
        return None
    closer = ")" if opener.kind == "LPAR" else "]"
    label = Label(mistake.found.span, f"expected `{closer}` before this `{mistake.found.text}`")
    message = f"`{opener.text}` is never closed"
    return Diagnostic("E101", message, (Label(opener.span, "opened here"), label), helps=(f"close it with `{closer}`",))


def operand(mistake: Mistake) -> Diagnostic | None:
    """An operator or `=` at the end of a line, and nothing that belongs to it."""
    found, before = mistake.found, mistake.at - 1
    if found.kind == "EQUAL" and mistake.body is not None:  # the name before it begins the next statement
        before -= 1
    elif not mistake.wants_expression or found.kind not in ("_END", "$END", "RBRACE"):
        return None
    operator, after = mistake.lexemes[max(before, mistake.start)], mistake.lexemes[before + 1]
    if operator.kind not in CANNOT_END or (found.kind == "EQUAL" and operator.span.line == after.span.line):
        return None
    helps = ("a range has both ends: `first..last`",) if operator.kind == "RANGE" else ()
    message = f"an expression is missing after `{operator.text}`"
    return error(message, operator.span, "expected an expression after it", helps=helps)


def plain(mistake: Mistake) -> Diagnostic:
    """What fits no other case."""
    found, accepted = mistake.found, mistake.accepted
    text = f"expected {expected(accepted)}"
    helps: tuple[str, ...] = ()
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
    if "QMARK" in mistake.within and "COLON" in accepted:
        helps = ("a choice is written `condition ? then : otherwise`",)
    elif found.kind == "EQUAL" and "COMPARE" in accepted:
        helps = ("write `==` to compare two numbers",)
    elif found.kind == "COLON" and "_ARROW" in accepted and mistake.previous is not None:
        helps = (f"write `{mistake.previous.text} -> …` for a function of that name",)
    elif found.kind == "LSQB" and mistake.previous is not None and mistake.previous.kind == "RSQB":
        helps = ("write all indices in one pair of brackets: `a[i, j]`",)
    elif found.kind == "PLUS":
        helps = ("leave the `+` out",)
    return error(message, found.span, text, *labels, helps=helps)
