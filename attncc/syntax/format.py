"""The one layout of `.attn` files: a source → the same text, laid out.

Tokens and comments stay as they are and in their order; `;` and trailing white space go. A statement has a line of its
own, except in bodies that were written on one line and still fit there. Blank lines between statements stay, one at
most.
"""

from __future__ import annotations

from collections.abc import Sequence

from attncc.diagnostics import Source
from attncc.syntax import tree
from attncc.syntax.arrange import assigned, bracketed, expression, parameter
from attncc.syntax.cursor import INDENT, Cursor, around_comments, trailing
from attncc.syntax.document import (
    LINE,
    NEW_LINE,
    NOTHING,
    SPACE,
    Document,
    Line,
    Text,
    concat,
    group,
    joined,
    layout,
    nest,
)
from attncc.syntax.parse import parse, parse_with_lexemes
from attncc.syntax.trivia import BLANK, Gap, gaps

WIDTH = 110  # a line that can be broken is no longer


def format_source(source: Source) -> str:
    """The text of a source in the one layout.

    Raises:
        AttnError: with the syntax errors of the text.
    """
    file, lexemes = parse_with_lexemes(source)
    cursor = Cursor(lexemes, gaps(source, lexemes))
    lines = _statements(cursor, cursor.take_gap(), file.definitions)
    text = layout(joined(NEW_LINE, lines), WIDTH)
    text = text + "\n" if text else ""
    if parse(Source(source.name, text)).definitions != file.definitions:
        raise RuntimeError("the text would mean something else after formatting")
    return text


def _statements(cursor: Cursor, gap: Gap, statements: Sequence[tree.Statement | tree.Definition]) -> list[Document]:
    """Lines: statements, and the comments and blank lines between them. The gap before the first one is given."""
    found: list[Document] = []
    found += [Text(each) for each in _without_blanks(gap.lines, first=True, last=not statements)]
    for left, statement in enumerate(statements, start=1 - len(statements)):
        written = _statement(cursor, statement)
        gap = cursor.take_gap()
        found.append(concat(written, trailing(gap)))
        found += [Text(each) for each in _without_blanks(gap.lines, first=False, last=left == 0)]
    return found


def _without_blanks(lines: tuple[str, ...], *, first: bool, last: bool) -> tuple[str, ...]:
    if first and lines[:1] == (BLANK,):
        lines = lines[1:]
    if last and lines[-1:] == (BLANK,):
        lines = lines[:-1]
    return lines


def _statement(cursor: Cursor, node: tree.Statement | tree.Definition) -> Document:
    match node:
        case tree.Field(value=value):
            return concat(cursor.token(), assigned(cursor, value))
        case tree.LetStatement(value=value, at=at):
            named = concat(cursor.token(), cursor.spaced(), assigned(cursor, value))
            return named if at is None else concat(named, cursor.spaced(), cursor.gap(SPACE), expression(cursor, at))
        case tree.Require(conditions=conditions):
            return concat(cursor.token(), cursor.gap(SPACE), _listed(cursor, conditions))
        case tree.Declaration(data=data):
            return concat(cursor.token(), cursor.gap(SPACE), _listed(cursor, data))
        case tree.Word(body=body):
            return concat(_header(cursor), _parameters(cursor, node.parameters), assigned(cursor, body))
        case tree.Attention() | tree.Layer() | tree.SimilarityWord():
            head = concat(_header(cursor), _parameters(cursor, node.parameters))
            return concat(head, _body(cursor, node.statements))
        case tree.Branch(statements=statements):
            return concat(_header(cursor), _body(cursor, statements))
        case tree.Use():
            return _header(cursor)


def _header(cursor: Cursor) -> Document:
    """A keyword and what it names."""
    return concat(cursor.token(), cursor.spaced())


def _parameters(cursor: Cursor, parameters: tuple[tree.Parameter, ...]) -> Document:
    if cursor.next.kind != "LPAR":
        return NOTHING
    return concat(cursor.gap(NOTHING), bracketed(cursor, parameters))


def _listed(cursor: Cursor, items: Sequence[tree.Tree | tree.Datum]) -> Document:
    """Items separated by commas, outside brackets."""
    parts = [_listed_item(cursor, items[0])]
    if len(items) == 1:
        return parts[0]
    for item in items[1:]:
        gap = cursor.take_gap()
        parts += [cursor.token(), around_comments(gap + cursor.take_gap(), LINE), _listed_item(cursor, item)]
    return group(nest(INDENT, *parts))


def _listed_item(cursor: Cursor, item: tree.Tree | tree.Datum) -> Document:
    if not isinstance(item, tree.Datum):
        return expression(cursor, item)
    axes: Document = NOTHING
    name = cursor.token()
    if item.axes is not None:
        axes = concat(cursor.gap(NOTHING), bracketed(cursor, item.axes))
    return concat(name, axes, parameter(cursor, item))


def _body(cursor: Cursor, statements: tuple[tree.Statement, ...]) -> Document:
    """Braces and what they hold, after a space."""
    is_on_one_line = cursor.is_body_on_one_line()
    opener = cursor.spaced()
    gap = cursor.take_gap()
    lines = _statements(cursor, gap, statements)
    closer = cursor.token()
    if not lines and gap.trailing is None:
        return concat(opener, closer)
    if is_on_one_line:
        return concat(opener, group(nest(INDENT, LINE, joined(Line("; "), lines)), LINE, closer))
    inner = [concat(NEW_LINE, each) for each in lines]
    return concat(opener, trailing(gap), nest(INDENT, *inner), NEW_LINE, closer)
