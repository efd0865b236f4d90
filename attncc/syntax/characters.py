"""The characters of a text: those that mean nothing in the language become diagnostics and are blanked."""

from __future__ import annotations

import re
import unicodedata

from attncc.diagnostics import Diagnostic, Label, Source, Span

# Outside comments and paths. A point belongs to a number, so a digit follows it, or to the `..` of a range.
_FOREIGN = re.compile(r"[^A-Za-z0-9_ \t\f()\[\]{}=,:;?|&!<>+\-*/%^.@]|\.(?![0-9])")
_RANGE = re.compile(r"(?<!\.)\.\.(?!\.)")
# What may hold any characters: a comment, or the path of a file; whichever begins first may hold the other.
_FREE = re.compile(r'#.*|(?<![A-Za-z0-9_])use[ \t\f]*"[^"]*"')
_USE = re.compile(r"(?<![A-Za-z0-9_])use[ \t\f]*$")
_UNQUOTED = re.compile(r"[ \t\f]*use[ \t\f][^\"]*$")
# Anywhere, comments included, which generated files repeat: control characters, lone surrogates, and marks that
# break lines or turn the direction of what follows.
_HARMFUL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")

_SPELLINGS = {
    "≤": "<=",
    "⩽": "<=",
    "≥": ">=",
    "⩾": ">=",
    "≠": "!=",
    "−": "-",
    "–": "-",
    "—": "-",
    "·": "*",
    "⋅": "*",
    "×": "*",
    "÷": "/",
    "∧": "&",
    "∩": "&",
    "∨": "|",
    "∪": "|",
    "¬": "!",
    "~": "!",
    "π": "pi",
    "√": "sqrt(…)",
    "²": "^2",
    "³": "^3",
    "∞": "a large number",
}


def check_characters(source: Source, most: int) -> tuple[str, list[Diagnostic]]:
    """The text with every meaningless character blanked, and at most `most` diagnostics, one each in a line."""
    lines = source.lines
    found: list[Diagnostic] = []
    for number, line in enumerate(lines, start=1):
        plain = _RANGE.sub("  ", _FREE.sub(lambda free: " " * len(free[0]), line))
        bad = sorted(
            {match.start() for found in (_FOREIGN.finditer(plain), _HARMFUL.finditer(line)) for match in found}
        )
        if not bad:
            continue
        one_path = _USE.search(line, 0, bad[0]) or _UNQUOTED.match(line, 0, bad[0])
        for column in _first_of_each(bad[:1] if one_path else bad, line):
            if len(found) < most:
                found.append(_meaningless(source, number, column, line))
        blank = set(bad)
        lines[number - 1] = "".join(" " if at in blank else one for at, one in enumerate(line))
    return "\n".join(lines), found


def _first_of_each(columns: list[int], line: str) -> list[int]:
    """The columns where a character stands for the first time, and not right after another one."""
    firsts: dict[str, int] = {}
    for at, column in enumerate(columns):
        if at == 0 or columns[at - 1] != column - 1:
            firsts.setdefault(line[column], column)
    return list(firsts.values())


def _meaningless(source: Source, line: int, column: int, text: str) -> Diagnostic:
    character = text[column]
    label = Label(Span(source, line, column + 1, line, column + 2), _instead(text, column))
    message = f"the character {_shown(character)} has no meaning here"
    return Diagnostic("E103", message, (label,), helps=_help(character, text, column))


def _shown(character: str) -> str:
    if character.isprintable() and character != "`":
        return f"`{character}`"
    name = unicodedata.name(character, "").lower()
    return f"U+{ord(character):04X}" + (f" ({name})" if name else "")


def _instead(text: str, column: int) -> str:
    character = text[column]
    before, after = text[:column], text[column + 1 :]
    if character == '"' and _USE.search(before):
        return "this quote is never closed"
    if _UNQUOTED.match(before) or _USE.search(before):
        return "expected a path in quotes"
    if character == "." and before[-1:].isdigit() and not after.startswith("."):
        return "expected digits after the point"
    if character.isalpha():
        return "expected a letter a–z or A–Z, a digit or `_`"
    return "no part of the language"


def _help(character: str, text: str, column: int) -> tuple[str, ...]:
    before, after = text[:column], text[column + 1 :]
    if character == "." and after.startswith("."):
        return ("a range is written `first..last`",)
    if character == '"' and _USE.search(before):
        return ('end the path with another `"`',)
    if (character in "\"'`“”‘’" and _USE.search(before)) or (character in "./" and _UNQUOTED.match(before)):
        return ('write the path in double quotes: `use "file.attn"`',)
    plain = unicodedata.normalize("NFKC", character)
    if character in _SPELLINGS:
        spelling = _SPELLINGS[character]
        return (f"write `{spelling}`" if spelling != "a large number" else f"write {spelling}",)
    if character in "\"'`“”‘’":
        return ('leave quotes out: only `use "file.attn"` has them',)
    if character == "\\":
        return ("leave it out: a line that ends with an operator goes on in the next one",)
    if not character.isprintable():
        return ("write a plain space" if plain == " " else "delete it; an editor may not show it",)
    if len(plain) == 1 and plain != character and plain.isascii():
        return (f"write `{plain}`",)
    return ()
