"""Expressions → documents: where a long one breaks, and where spaces stand.

Lines break at the weakest operators first. The operator leads the new line, except after `+` and `-`, which could
begin an expression, so that the line above would end there.
"""

from __future__ import annotations

from collections.abc import Sequence

from attncc.syntax import tree
from attncc.syntax.cursor import INDENT, Cursor, around_comments, before_closer
from attncc.syntax.document import LINE, NOTHING, SOFT, SPACE, Document, concat, group, nest
from attncc.syntax.trivia import Gap

_SUMS = ("+", "-")
_PRODUCTS = ("*", "/", "//", "%", "@")
Written = tree.Tree | tree.NamedArgument | tree.Range


def expression(cursor: Cursor, node: Written) -> Document:
    """The expression whose first token comes next; the gap before it has been taken."""
    match node:
        case tree.Number() | tree.Reference():
            return cursor.token()
        case tree.Call(arguments=arguments):
            return concat(cursor.token(), cursor.gap(NOTHING), bracketed(cursor, arguments))
        case tree.Attend(arguments=arguments):
            called = concat(cursor.token(), cursor.gap(SPACE), cursor.token())
            return concat(called, cursor.gap(NOTHING), bracketed(cursor, arguments))
        case tree.Group(inner=inner):
            return bracketed(cursor, (inner,))
        case tree.Bracket(items=items):
            return bracketed(cursor, items)
        case tree.Index(values=values, indices=indices):
            return concat(expression(cursor, values), cursor.gap(NOTHING), bracketed(cursor, indices))
        case tree.ByHead(items=items):
            return concat(cursor.token(), cursor.gap(SPACE), expression(cursor, items))
        case tree.Unary(operand=operand):
            reaches_far = isinstance(operand, tree.Comparison | tree.Membership)  # `! i < j` is not `(!i) < j`
            return concat(cursor.token(), cursor.gap(SPACE if reaches_far else NOTHING), expression(cursor, operand))
        case tree.Binary(operator="^", left=left, right=right):
            return _power(cursor, left, right)
        case tree.Binary() | tree.Comparison() | tree.Logical():
            return _chain(cursor, node)
        case tree.Conditional():
            return _conditional(cursor, node)
        case tree.Range(first=first, last=last):
            return _range(cursor, first, last)
        case tree.Membership(operand=operand, choices=choices):
            return group(expression(cursor, operand), nest(INDENT, _leading(cursor), expression(cursor, choices)))
        case tree.Quantified(choices=choices, body=body):
            head = concat(cursor.token(), cursor.spaced(), cursor.spaced(), cursor.gap(SPACE))
            return group(head, expression(cursor, choices), cursor.spaced(), _below(cursor, body))
        case tree.Lambda(body=body):
            return group(cursor.token(), cursor.spaced(), _below(cursor, body))
        case tree.NamedArgument(value=value):
            return concat(cursor.token(), assigned(cursor, value))


def assigned(cursor: Cursor, value: tree.Tree | tree.Lambda) -> Document:
    """` = value`; where it is too long, a value goes below as a whole, except for a list, which breaks within."""
    equals = cursor.spaced()
    if _takes_breaks(value) and not isinstance(value, tree.Call):
        return concat(equals, cursor.gap(SPACE), expression(cursor, value))
    return group(equals, _below(cursor, value))


def bracketed(cursor: Cursor, items: Sequence[Written | tree.Parameter]) -> Document:
    """Brackets around items: on one line, or an item a line; constants fill their lines."""
    opener = cursor.token()
    if not items:
        return group(opener, before_closer(cursor.take_gap(), SOFT), cursor.token())
    is_table = len(items) > 1 and all(_is_constant(each) for each in items)
    between = group(LINE) if is_table else LINE
    parts: list[Document] = [cursor.gap(SOFT), _item(cursor, items[0])]
    rest = list(items[1:])
    gap = cursor.take_gap()
    while cursor.next.kind == "COMMA":
        parts.append(cursor.token())
        gap += cursor.take_gap()
        if rest:
            parts += [around_comments(gap, between), _item(cursor, rest.pop(0))]
            gap = cursor.take_gap()
    return group(opener, nest(INDENT, *parts), before_closer(gap, SOFT), cursor.token())


def parameter(cursor: Cursor, node: tree.Parameter | tree.Datum) -> Document:
    """`: type facts = default`, what stands before it having been taken."""
    parts: list[Document] = []
    if node.type is not None:
        parts += [cursor.gap(NOTHING), cursor.token(), cursor.spaced()]
    for _ in node.facts if isinstance(node, tree.Datum) else ():
        parts.append(cursor.spaced())
    value = node.default if isinstance(node, tree.Parameter) else node.initial
    if value is not None:
        parts.append(assigned(cursor, value))
    return concat(*parts)


def _item(cursor: Cursor, node: Written | tree.Parameter) -> Document:
    if isinstance(node, tree.Parameter):
        return concat(cursor.token(), parameter(cursor, node))
    return expression(cursor, node)


def _chain(cursor: Cursor, node: tree.Binary | tree.Comparison | tree.Logical) -> Document:
    """Operands of operators that bind alike."""
    first, *rest = _operands(node)
    start = expression(cursor, first)
    parts = [start if _takes_breaks(first) else nest(INDENT, start)]
    for operand in rest:
        before = cursor.take_gap()
        if cursor.next.kind in ("PLUS", "MINUS"):
            parts += [SPACE, cursor.token(), around_comments(before + cursor.take_gap(), LINE)]
        else:
            parts.append(_leading(cursor, before))
        parts.append(nest(INDENT, expression(cursor, operand)))
    return group(*parts)


def _operands(node: tree.Binary | tree.Comparison | tree.Logical) -> list[tree.Tree]:
    if not isinstance(node, tree.Binary):
        return list(node.operands)
    alike = _SUMS if node.operator in _SUMS else _PRODUCTS
    found: list[tree.Tree] = []
    left: tree.Tree = node
    while isinstance(left, tree.Binary) and left.operator in alike:
        found.insert(0, left.right)
        left = left.left
    return [left, *found]


def _leading(cursor: Cursor, before: Gap | None = None) -> Document:
    """An operator that begins a line, if one begins here; comments around it come before it."""
    before = cursor.take_gap() if before is None else before
    operator = cursor.token()
    return concat(around_comments(before + cursor.take_gap(), LINE), operator, SPACE)


def _conditional(cursor: Cursor, node: tree.Conditional) -> Document:
    """One choice has `?` and `:` on lines of their own; several in a row have a line each."""
    if not isinstance(node.otherwise, tree.Conditional):
        parts = [expression(cursor, node.condition)]
        for branch in (node.then, node.otherwise):
            parts.append(nest(INDENT, _leading(cursor), nest(INDENT, expression(cursor, branch))))
        return group(*parts)
    rows: list[Document] = []
    rest: tree.Tree = node
    while isinstance(rest, tree.Conditional):
        start = _leading(cursor) if rows else NOTHING
        condition = expression(cursor, rest.condition)
        choice = group(condition, nest(INDENT, _leading(cursor), nest(INDENT, expression(cursor, rest.then))))
        rows += [start, nest(INDENT, choice)]
        rest = rest.otherwise
    return group(*rows, _leading(cursor), nest(INDENT, expression(cursor, rest)))


def _power(cursor: Cursor, left: tree.Tree, right: tree.Tree) -> Document:
    """Tight before a number or a name, as in `x^2`."""
    space = NOTHING if isinstance(right, tree.Number | tree.Reference) else SPACE
    base = expression(cursor, left)
    return concat(base, cursor.gap(space), cursor.token(), cursor.gap(space), expression(cursor, right))


def _range(cursor: Cursor, first: tree.Tree, last: tree.Tree) -> Document:
    """Tight, unless an end is a sum or a product; `...` would be no range."""
    space = SPACE if isinstance(first, tree.Binary) or isinstance(last, tree.Binary) else NOTHING
    start = concat(expression(cursor, first), cursor.gap(space), cursor.token())
    after = cursor.take_gap()
    if cursor.next.text.startswith("."):
        space = SPACE
    return concat(start, around_comments(after, space), expression(cursor, last))


def _below(cursor: Cursor, node: tree.Tree | tree.Lambda) -> Document:
    return nest(INDENT, cursor.gap(LINE), expression(cursor, node))


def _takes_breaks(node: Written) -> bool:
    """Whether a break inside the expression leaves its first line where it is, or it has no place to break at all."""
    match node:
        case tree.Unary(operand=operand):
            return _takes_breaks(operand)
        case tree.Binary() | tree.Comparison() | tree.Logical() | tree.Conditional() | tree.Membership():
            return False
    return True


def _is_constant(node: Written | tree.Parameter) -> bool:
    match node:
        case tree.Unary(operand=operand):
            return _is_constant(operand)
        case tree.Number() | tree.Reference():
            return True
    return False
