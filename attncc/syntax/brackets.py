"""Brackets that do not match: tokens → a diagnostic at each token where that comes to light."""

from __future__ import annotations

from attncc.diagnostics import Diagnostic, Label
from attncc.syntax.lexeme import Lexeme

_PAIRS = {"LPAR": "RPAR", "LSQB": "RSQB", "LBRACE": "RBRACE"}
_CLOSER = {"LPAR": ")", "LSQB": "]", "LBRACE": "}"}
_OPENER = {"RPAR": "(", "RSQB": "[", "RBRACE": "{"}


def mismatches(lexemes: list[Lexeme]) -> dict[int, Diagnostic]:
    """By the index of the token that cannot stand where it does; the last token is the end of the text."""
    found: dict[int, Diagnostic] = {}
    opened: list[Lexeme] = []
    for at, lexeme in enumerate(lexemes):
        if lexeme.kind in ("LBRACE", "RBRACE", "$END"):
            inner = _pop_inner(opened)
            if inner:
                found[at] = _never_closed(inner[-1], lexeme)
        if lexeme.kind in _PAIRS:
            opened.append(lexeme)
        elif lexeme.kind in _OPENER:
            found |= _close(opened, lexeme, at)
        elif lexeme.kind == "$END" and opened and at not in found:
            found[at] = _never_closed(opened[-1], lexeme)
    return found


def _close(opened: list[Lexeme], closer: Lexeme, at: int) -> dict[int, Diagnostic]:
    if opened and _PAIRS[opened[-1].kind] == closer.kind:
        opened.pop()
        return {}
    if not opened or opened[-1].kind == "LBRACE":
        label = Label(closer.span, f"expected a `{_OPENER[closer.kind]}` before it")
        help_ = f"delete the `{closer.text}`"
        return {at: Diagnostic("E101", f"`{closer.text}` closes nothing", (label,), helps=(help_,))}
    wrong = opened.pop()
    if opened and _PAIRS[opened[-1].kind] == closer.kind:
        opened.pop()
        return {at: _never_closed(wrong, closer)}
    expected = _CLOSER[wrong.kind]
    labels = (Label(closer.span, f"expected `{expected}`"), Label(wrong.span, "opened here"))
    message = f"`{closer.text}` does not close `{wrong.text}`"
    return {at: Diagnostic("E101", message, labels, helps=(f"write `{expected}`",))}


def _pop_inner(opened: list[Lexeme]) -> list[Lexeme]:
    """Take the round and square brackets that are open within the innermost brace."""
    inner: list[Lexeme] = []
    while opened and opened[-1].kind != "LBRACE":
        inner.insert(0, opened.pop())
    return inner


def _never_closed(opener: Lexeme, before: Lexeme) -> Diagnostic:
    closer = _CLOSER[opener.kind]
    where = "the text ends" if before.kind == "$END" else f"this `{before.text}`"
    labels = (Label(opener.span, "opened here"), Label(before.span, f"expected `{closer}` before {where}"))
    code = "E102" if before.kind == "$END" else "E101"
    return Diagnostic(code, f"`{opener.text}` is never closed", labels, helps=(f"close it with `{closer}`",))
