"""Text → syntax tree. The only importer of lark, with `lines.py`; its errors become diagnostics here."""

from __future__ import annotations

import os
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.tree import Meta

from attncc.diagnostics import AttnError, Diagnostic, Label, Source, Span
from attncc.syntax import tree
from attncc.syntax.lines import StatementEnds

MOST_ERRORS = 10  # further syntax errors of one text are rarely independent
_DEEPEST_NESTING = 100  # brackets within brackets; later stages walk the tree recursively
_LONGEST_TEXT = 200_000  # characters


def parse(source: Source) -> tree.File:
    """The syntax tree of a source.

    Raises:
        AttnError: with one diagnostic for each independent syntax error (E101 … E104).
    """
    _check_size(source)
    errors: list[Diagnostic] = []
    text = source.text
    while len(errors) < MOST_ERRORS:
        try:
            parsed = _parser().parse(text)
        except UnexpectedInput as error:
            found = _explain(error, source)
            if any(found.labels[0].span.line == earlier.labels[0].span.line for earlier in errors):
                break
            errors.append(found)
            blanked = _without_line(text, found.labels[0].span.line)
            if blanked is None:
                break
            text = blanked
            continue
        if not errors:
            definitions: tuple[Any, ...] = _Builder(source).transform(parsed)
            return tree.File(source, definitions)
        break
    raise AttnError(*errors)


@cache
def _parser() -> Lark:
    grammar = resources.files("attncc.syntax").joinpath("attn.lark").read_text(encoding="utf-8")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attncc"
    options: dict[str, Any] = {
        "parser": "lalr",
        "lexer": "basic",
        "propagate_positions": True,
        "maybe_placeholders": False,
        "postlex": StatementEnds(),
    }
    try:  # building the tables takes longer than all else that `build` does, so lark keeps them
        folder.mkdir(parents=True, exist_ok=True)
        return Lark(grammar, cache=str(folder / "grammar.bin"), **options)
    except OSError:
        return Lark(grammar, **options)


def _check_size(source: Source) -> None:
    start = Span(source, 1, 1, 1, 2)
    if len(source.text) > _LONGEST_TEXT:
        note = f"it has {len(source.text)} characters; at most {_LONGEST_TEXT} are read"
        raise AttnError(Diagnostic("E104", "the text is too long for a spec", (Label(start),), notes=(note,)))
    depth = 0
    for number, line in enumerate(source.text.splitlines(), start=1):
        for column, character in enumerate(line.split("#", 1)[0], start=1):
            depth += (character in "([{") - (character in ")]}")
            if depth > _DEEPEST_NESTING:
                place = Label(Span(source, number, column, number, column + 1), "one bracket too many")
                help_ = "name a part of the expression as a pattern or function word"
                message = f"brackets are nested more than {_DEEPEST_NESTING} deep"
                raise AttnError(Diagnostic("E104", message, (place,), helps=(help_,)))


def _without_line(text: str, number: int) -> str | None:
    """The text with one statement line blanked, to look for further errors; None where that would not help."""
    lines = text.split("\n")
    if number > len(lines) or any(bracket in lines[number - 1] for bracket in "{}"):
        return None
    lines[number - 1] = ""
    return "\n".join(lines)


_TOKEN_NAMES = {
    "_END": "the end of the line",
    "$END": "the end of the file",
    "NUMBER": "a number",
    "NAME": "a name",
    "COMPARE": "a comparison",
    "PLUS": "`+`",
    "MINUS": "`-`",
    "MULTIPLY": "`*`, `/`, `//` or `%`",
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
_OPERATORS = {"COMPARE", "PLUS", "MINUS", "MULTIPLY", "POWER", "QMARK", "VBAR", "AMPERSAND"}
_EXPRESSION_STARTS = {"NUMBER", "NAME", "LPAR", "LSQB", "MINUS", "BANG"}


def _expected(names: set[str]) -> str:
    """The follow set in words, operators and expression starts summed up."""
    words: list[str] = []
    if len(names & _EXPRESSION_STARTS) >= 5:
        words.append("an expression")
        names = names - _EXPRESSION_STARTS
    if len(names & _OPERATORS) >= 3:
        words.append("an operator")
        names = names - _OPERATORS
    words += sorted(_TOKEN_NAMES.get(name, f"`{name.lower()}`") for name in names)
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


_FOREIGN = {
    "**": ("`**` is not an operator here", "write `^` for powers"),
    "&&": ("`&&` is not an operator here", "write `&`"),
    "||": ("`||` is not an operator here", "write `|`"),
    "and": ("`and` is not an operator here", "write `&`"),
    "or": ("`or` is not an operator here", "write `|`"),
    "not": ("`not` is not an operator here", "write `!`"),
    "if": ("`if` is not an operator here", "write `condition ? then : otherwise`"),
}


def _explain(error: UnexpectedInput, source: Source) -> Diagnostic:
    match error:
        case UnexpectedToken(token=Token(type="$END")):
            last = max(1, len(source.text.splitlines()))
            column = len(source.line(last)) + 1
            label = Label(
                Span(source, last, column, last, column + 1),
                f"expected {_expected(set(error.accepts or error.expected))}",
            )
            return Diagnostic(
                "E102", "the text ends too early", (label,), helps=("close what was opened, for instance with `}`",)
            )
        case UnexpectedToken(token=token):
            span = _token_span(source, token)
            return _explain_token(span, str(token), set(error.accepts or error.expected), source, token.type)
        case UnexpectedCharacters(line=line, column=column):
            character = source.line(line)[column - 1 : column] or "?"
            label = Label(Span(source, line, column, line, column + 1), "no part of the language begins like this")
            return Diagnostic("E103", f"the character `{character}` has no meaning here", (label,))
        case _:
            raise error


def _explain_token(span: Span, text: str, expected: set[str], source: Source, kind: str) -> Diagnostic:
    before = source.line(span.line)[max(0, span.column - 2) : span.column - 1]
    doubled = before + text if before == text and text in "*&|" else text
    helps: tuple[str, ...] = ()
    if kind == "_END":
        message = "the line ends in the middle of a statement"
        span = Span(source, span.line, span.column, span.line, span.column + 1)
    elif doubled in _FOREIGN:
        message, help_ = _FOREIGN[doubled]
        helps = (help_,)
    else:
        message = f"`{text}` does not fit here"
    if kind == "EQUAL" and "COMPARE" in expected:
        helps = ("write `==` to compare two numbers",)
    return Diagnostic("E101", message, (Label(span, f"expected {_expected(expected)}"),), helps=helps)


def _token_span(source: Source, token: Token) -> Span:
    line, column = token.line or 1, token.column or 1
    if token.type == "_END":
        return Span(source, line, column, line, column + 1)
    return Span(source, line, column, token.end_line or line, token.end_column or column + 1)


@v_args(meta=True)
class _Builder(Transformer[Token, Any]):
    """Lark's tree → `tree` nodes."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    def _span(self, meta: Meta) -> Span:
        return Span(self.source, meta.line, meta.column, meta.end_line, meta.end_column)

    def _identifier(self, token: Token) -> tree.Identifier:
        return tree.Identifier(str(token), span=_token_span(self.source, token))

    def start(self, _meta: Meta, parts: list[Any]) -> tuple[Any, ...]:
        return tuple(part for part in parts if not isinstance(part, Token))

    def attention(self, meta: Meta, parts: list[Any]) -> tree.Attention:
        name, parameters, statements = self._headed(parts)
        return tree.Attention(name, parameters, statements, span=self._span(meta))

    def similarity_word(self, meta: Meta, parts: list[Any]) -> tree.SimilarityWord:
        name, parameters, statements = self._headed(parts)
        return tree.SimilarityWord(name, parameters, statements, span=self._span(meta))

    def pattern_word(self, meta: Meta, parts: list[Any]) -> tree.Word:
        name, parameters, body = self._headed(parts)
        return tree.Word("pattern", name, parameters, body[0], span=self._span(meta))

    def function_word(self, meta: Meta, parts: list[Any]) -> tree.Word:
        name, parameters, body = self._headed(parts)
        return tree.Word("function", name, parameters, body[0], span=self._span(meta))

    def _headed(self, parts: list[Any]) -> tuple[tree.Identifier, tuple[tree.Parameter, ...], tuple[Any, ...]]:
        """keyword, name, parameters if any, and the rest without statement ends."""
        rest = [part for part in parts[2:] if not (isinstance(part, Token) and part.type == "_END")]
        parameters: tuple[tree.Parameter, ...] = ()
        if rest and isinstance(rest[0], _Parameters):
            parameters, rest = rest[0].items, rest[1:]
        return self._identifier(parts[1]), parameters, tuple(rest)

    def parameters(self, _meta: Meta, parts: list[Any]) -> _Parameters:
        return _Parameters(tuple(parts))

    def parameter(self, meta: Meta, parts: list[Any]) -> tree.Parameter:
        type_ = next((part.value for part in parts[1:] if isinstance(part, _Type)), None)
        default = next((part for part in parts[1:] if not isinstance(part, _Type)), None)
        return tree.Parameter(self._identifier(parts[0]), type_, default, span=self._span(meta))

    def type(self, _meta: Meta, parts: list[Any]) -> _Type:
        return _Type(self._identifier(parts[0]))

    def default(self, _meta: Meta, parts: list[Any]) -> Any:
        return parts[0]

    def field(self, meta: Meta, parts: list[Any]) -> tree.Field:
        return tree.Field(self._identifier(parts[0]), parts[1], span=self._span(meta))

    def require(self, meta: Meta, parts: list[Any]) -> tree.Require:
        return tree.Require(tuple(parts[1:]), span=self._span(meta))

    def conditional(self, meta: Meta, parts: list[Any]) -> tree.Conditional:
        return tree.Conditional(parts[0], parts[1], parts[2], span=self._span(meta))

    def disjunction(self, meta: Meta, parts: list[Any]) -> tree.Logical:
        return tree.Logical("|", tuple(parts), span=self._span(meta))

    def conjunction(self, meta: Meta, parts: list[Any]) -> tree.Logical:
        return tree.Logical("&", tuple(parts), span=self._span(meta))

    def not_(self, meta: Meta, parts: list[Any]) -> tree.Unary:
        return tree.Unary("!", parts[-1], span=self._span(meta))

    def comparison(self, meta: Meta, parts: list[Any]) -> tree.Comparison:
        return tree.Comparison(tuple(map(str, parts[1::2])), tuple(parts[::2]), span=self._span(meta))

    def binary(self, meta: Meta, parts: list[Any]) -> tree.Binary:
        return tree.Binary(str(parts[1]), parts[0], parts[2], span=self._span(meta))

    def negate(self, meta: Meta, parts: list[Any]) -> tree.Unary:
        return tree.Unary("-", parts[-1], span=self._span(meta))

    def index(self, meta: Meta, parts: list[Any]) -> tree.Index:
        return tree.Index(parts[0], parts[1], span=self._span(meta))

    def number(self, meta: Meta, parts: list[Token]) -> tree.Number:
        text = str(parts[0])
        value = float(text) if any(mark in text for mark in ".eE") else int(text)
        return tree.Number(value, span=self._span(meta))

    def name(self, meta: Meta, parts: list[Token]) -> tree.Reference:
        return tree.Reference(str(parts[0]), span=self._span(meta))

    def call(self, meta: Meta, parts: list[Any]) -> tree.Call:
        return tree.Call(self._identifier(parts[0]), parts[1], span=self._span(meta))

    def arguments(self, _meta: Meta, parts: list[Any]) -> tuple[Any, ...]:
        return tuple(parts)

    def named_argument(self, meta: Meta, parts: list[Any]) -> tree.NamedArgument:
        return tree.NamedArgument(self._identifier(parts[0]), parts[1], span=self._span(meta))

    def group(self, meta: Meta, parts: list[Any]) -> tree.Group:
        return tree.Group(parts[0], span=self._span(meta))

    def list_(self, meta: Meta, parts: list[Any]) -> tree.Bracket:
        return tree.Bracket(tuple(parts), span=self._span(meta))


class _Parameters:
    """Marks a parameter list among the parts of a definition."""

    def __init__(self, items: tuple[tree.Parameter, ...]) -> None:
        self.items = items


class _Type:
    """Marks a type among the parts of a parameter."""

    def __init__(self, value: tree.Identifier) -> None:
        self.value = value
