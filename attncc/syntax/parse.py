"""Text → syntax tree. The only importer of lark, with `lines.py`; its errors become diagnostics here."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from lark import Lark, Token, Transformer, Tree, v_args
from lark.exceptions import UnexpectedToken
from lark.tree import Meta

from attncc.diagnostics import AttnError, Diagnostic, Label, Source, Span
from attncc.sources import cache_folder
from attncc.syntax import tree
from attncc.syntax.brackets import mismatches
from attncc.syntax.characters import check_characters
from attncc.syntax.lexeme import Lexeme
from attncc.syntax.lines import StatementEnds

MOST_ERRORS = 10  # further syntax errors of one text are rarely independent
DEEPEST = 100  # expressions within expressions; later stages walk trees recursively
LONGEST_TEXT = 100_000  # characters, comments included
MOST_TOKENS = 10_000
_BRACED = ("ATTENTION", "LAYER")
_LONGEST_WHOLE = 300  # digits of a whole number that is kept as one; longer ones are refused later


def parse(source: Source) -> tree.File:
    """The syntax tree of a source.

    Raises:
        AttnError: with one diagnostic for each independent syntax error (E101 … E104).
    """
    return parse_with_lexemes(source)[0]


def parse_with_lexemes(source: Source) -> tuple[tree.File, list[Lexeme]]:
    """The same, with every token and the end of the text; ends of statements are left out.

    Raises:
        AttnError: as `parse` does.
    """
    if len(source.text) > LONGEST_TEXT:
        raise _too_long(source, f"{len(source.text)} characters; at most {LONGEST_TEXT} are read")
    text, errors = check_characters(source, MOST_ERRORS)
    tokens = _tokens(text)
    if len(tokens) > MOST_TOKENS:
        raise _too_long(source, f"{len(tokens)} words and signs; at most {MOST_TOKENS} are read")
    attempt = _Attempt(source, tokens, spoilt=frozenset(error.labels[0].span.line for error in errors))
    parsed = attempt.run()
    errors += attempt.errors
    if errors or parsed is None:
        errors.sort(key=lambda error: (error.labels[0].span.line, error.labels[0].span.column))
        raise AttnError(*errors[:MOST_ERRORS])
    _check_depth(parsed, source)
    definitions: tuple[Any, ...] = _Builder(source).transform(parsed)
    written = [each for each in attempt.lexemes if each.kind != "_END"]
    return tree.File(source, definitions), written


@cache
def _parser() -> Lark:
    folder = cache_folder()
    try:  # building the tables takes longer than all else that `build` does, so lark keeps them
        folder.mkdir(parents=True, exist_ok=True)
        return make_parser(cache=str(folder / "grammar.bin"))
    except OSError:
        return make_parser()


def make_parser(**options: Any) -> Lark:
    """Lark for the grammar; `strict=True` refuses every ambiguity of the grammar."""
    grammar = resources.files("attncc.syntax").joinpath("attn.lark").read_text(encoding="utf-8")
    return Lark(
        grammar,
        parser="lalr",
        lexer="basic",
        propagate_positions=True,
        maybe_placeholders=False,
        postlex=StatementEnds(),
        **options,
    )


def _tokens(text: str) -> list[Token]:
    fresh: Any = _parser().parse_interactive(text)
    return list(fresh.lexer_thread.lex(fresh.parser_state))


class _Attempt:
    """Feeds tokens to the parser one by one; after an error it goes on with the next statement."""

    def __init__(self, source: Source, tokens: list[Token], *, spoilt: frozenset[int]) -> None:
        self.source = source
        self.spoilt = spoilt  # lines that have lost characters: what is wrong there was reported
        self.tokens = tokens
        self.lexemes = _lexemes(source, tokens)
        self.errors: list[Diagnostic] = []
        self._bodies = _bodies(self.lexemes)
        self._mismatches = mismatches(self.lexemes)
        interactive: Any = _parser().parse_interactive()  # Any: lark leaves the methods without types
        self._parser = interactive
        self._start = 0  # the first token of the current statement
        self._at_start = self._parser.copy(deepcopy_values=False)

    def run(self) -> Tree[Token] | None:
        """Lark's tree; None after an error."""
        at: int | None = 0
        depth = 0  # of round and square brackets
        while at is not None and at < len(self.tokens) and len(self.errors) < MOST_ERRORS:
            token = self.tokens[at]
            try:
                self._parser.feed_token(token)
            except UnexpectedToken:
                self._report(at)
                at, depth = self._resume(at), 0
                continue
            depth = max(0, depth + (token.type in ("LPAR", "LSQB")) - (token.type in ("RPAR", "RSQB")))
            at += 1
            if token.type in ("_END", "LBRACE") and depth == 0:
                self._begin_statement(at)
        if at is None or len(self.errors) == MOST_ERRORS:
            return None
        try:
            last = self.tokens[-1] if self.tokens else None
            result: Tree[Token] = self._parser.feed_eof(last)
        except UnexpectedToken:
            self._report(len(self.tokens))
            return None
        return result

    def _begin_statement(self, at: int) -> None:
        self._start = at
        self._at_start = self._parser.copy(deepcopy_values=False)

    def _report(self, at: int) -> None:
        first, found = self.lexemes[self._start].span, self.lexemes[at].span
        if not self.spoilt.isdisjoint(range(first.line, found.line + 1)):
            return
        if at in self._mismatches:
            self.errors.append(self._mismatches[at])
            return
        from attncc.syntax.explain import explain  # most texts have no errors
        from attncc.syntax.mistake import Mistake

        accepted = frozenset(self._parser.accepts())
        body = self._bodies[min(self._start, len(self._bodies) - 1)]
        opener = None if body is None else self.lexemes[body]
        self.errors.append(
            explain(Mistake(lexemes=self.lexemes, at=at, start=self._start, body=opener, accepted=accepted))
        )

    def _resume(self, at: int) -> int | None:
        """The token to go on with after a statement that failed; None where what follows cannot be trusted."""
        body = self._bodies[self._start]
        if self.lexemes[at].kind in _BRACED or (body is None and self.lexemes[self._start].kind in _BRACED):
            return None
        if body is None and self.lexemes[self._start].kind not in ("PATTERN", "FUNCTION", "USE"):
            return None
        for index in range(at, len(self.tokens)):
            same = self._bodies[index] == body
            if same and self.lexemes[index].kind in (("_END",) if body is None else ("_END", "RBRACE")):
                self._parser = self._at_start
                resumed = index + (self.lexemes[index].kind == "_END")
                self._begin_statement(resumed)
                return resumed
        return None


def _lexemes(source: Source, tokens: list[Token]) -> list[Lexeme]:
    """The tokens with their places, and the end of the text; a line end stands right after what it ends."""
    found: list[Lexeme] = []
    for token in tokens:
        if token.type == "_END" and found:
            last = found[-1].span
            span = Span(source, last.end_line, last.end_column, last.end_line, last.end_column + 1)
        else:
            span = _token_span(source, token)
        found.append(Lexeme(token.type, str(token), span))
    end = source.end
    if found:
        last = found[-1].span
        end = Span(source, last.end_line, last.end_column, last.end_line, last.end_column + 1)
        if found[-1].kind == "_END":
            end = last
    return [*found, Lexeme("$END", "", end)]


def _bodies(lexemes: list[Lexeme]) -> list[int | None]:
    """For each token the index of the `{` that it stands in; braces themselves stand outside."""
    found: list[int | None] = []
    opened: list[int] = []
    for at, lexeme in enumerate(lexemes):
        found.append(opened[-1] if opened else None)
        if lexeme.kind == "LBRACE":
            opened.append(at)
        elif lexeme.kind == "RBRACE" and opened:
            opened.pop()
    return found


def _too_long(source: Source, found: str) -> AttnError:
    start = Label(Span(source, 1, 1, 1, 2))
    note = f"it has {found}"
    return AttnError(Diagnostic("E104", "the text is too long for a spec", (start,), notes=(note,)))


def _check_depth(parsed: Tree[Token], source: Source) -> None:
    level: list[Tree[Token]] = [parsed]
    for _ in range(DEEPEST):
        level = [child for each in level for child in each.children if isinstance(child, Tree)]
        if not level:
            return
    meta = level[0].meta
    place = Label(Span(source, meta.line, meta.column, meta.line, meta.column + 1), "one level too many")
    help_ = "name a part of the expression as a pattern or function word"
    message = f"expressions are nested more than {DEEPEST} deep"
    raise AttnError(Diagnostic("E104", message, (place,), helps=(help_,)))


def _token_span(source: Source, token: Token) -> Span:
    line, column = token.line or 1, token.column or 1
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

    def layer(self, meta: Meta, parts: list[Any]) -> tree.Layer:
        name, parameters, statements = self._headed(parts)
        return tree.Layer(name, parameters, statements, span=self._span(meta))

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
        return tree.Index(parts[0], tuple(parts[1:]), span=self._span(meta))

    def by_head(self, meta: Meta, parts: list[Any]) -> tree.ByHead:
        return tree.ByHead(parts[1], span=self._span(meta))

    def range(self, meta: Meta, parts: list[Any]) -> tree.Range:
        return tree.Range(parts[0], parts[2], span=self._span(meta))

    def listed(self, meta: Meta, parts: list[Any]) -> tree.Reference:
        return tree.Reference(str(parts[0]), span=self._span(meta))

    def membership(self, meta: Meta, parts: list[Any]) -> tree.Membership:
        return tree.Membership(parts[0], parts[2], span=self._span(meta))

    def quantified(self, meta: Meta, parts: list[Any]) -> tree.Quantified:
        return tree.Quantified(self._identifier(parts[1]), parts[3], parts[4], span=self._span(meta))

    def lambda_(self, meta: Meta, parts: list[Any]) -> tree.Lambda:
        return tree.Lambda(self._identifier(parts[0]), parts[1], span=self._span(meta))

    def declaration(self, meta: Meta, parts: list[Any]) -> tree.Declaration:
        return tree.Declaration(str(parts[0]), tuple(parts[1:]), span=self._span(meta))

    def datum(self, meta: Meta, parts: list[Any]) -> tree.Datum:
        axes = next((part.items for part in parts[1:] if isinstance(part, _Axes)), None)
        type_ = next((part.value for part in parts[1:] if isinstance(part, _Type)), None)
        facts = next((part.names for part in parts[1:] if isinstance(part, _Facts)), ())
        initial = next((part for part in parts[1:] if not isinstance(part, _Type | _Facts | _Axes)), None)
        return tree.Datum(self._identifier(parts[0]), axes, type_, facts, initial, span=self._span(meta))

    def facts(self, _meta: Meta, parts: list[Token]) -> _Facts:
        return _Facts(tuple(map(self._identifier, parts)))

    def axes(self, _meta: Meta, parts: list[Any]) -> _Axes:
        return _Axes(tuple(parts))

    def let(self, meta: Meta, parts: list[Any]) -> tree.LetStatement:
        at = parts[4] if len(parts) > 3 else None
        return tree.LetStatement(self._identifier(parts[1]), parts[2], at, span=self._span(meta))

    def branch(self, meta: Meta, parts: list[Any]) -> tree.Branch:
        name, _, statements = self._headed(parts)
        return tree.Branch(name, statements, span=self._span(meta))

    def use(self, meta: Meta, parts: list[Any]) -> tree.Use:
        token = parts[1]
        path = tree.Identifier(str(token)[1:-1], span=_token_span(self.source, token))
        return tree.Use(path, span=self._span(meta))

    def number(self, meta: Meta, parts: list[Token]) -> tree.Number:
        text = str(parts[0])
        whole = text.isdigit() and len(text) <= _LONGEST_WHOLE
        return tree.Number(int(text) if whole else float(text), span=self._span(meta))

    def name(self, meta: Meta, parts: list[Token]) -> tree.Reference:
        return tree.Reference(str(parts[0]), span=self._span(meta))

    def call(self, meta: Meta, parts: list[Any]) -> tree.Call:
        return tree.Call(self._identifier(parts[0]), parts[1], span=self._span(meta))

    def attend(self, meta: Meta, parts: list[Any]) -> tree.Attend:
        return tree.Attend(self._identifier(parts[1]), parts[2], span=self._span(meta))

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


class _Axes:
    """Marks the axes of declared data among the parts of a declaration."""

    def __init__(self, items: tuple[tree.Tree, ...]) -> None:
        self.items = items


class _Facts:
    """Marks what is promised of declared data among the parts of a declaration."""

    def __init__(self, names: tuple[tree.Identifier, ...]) -> None:
        self.names = names


class _Type:
    """Marks a type among the parts of a parameter."""

    def __init__(self, value: tree.Identifier) -> None:
        self.value = value
