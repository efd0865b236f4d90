"""The grammar has no ambiguity, and reads texts as it should."""

from __future__ import annotations

import pytest

from attncc.diagnostics import AttnError, Source
from attncc.syntax import tree
from attncc.syntax.parse import DEEPEST, LONGEST_TEXT, make_parser, parse


def test_the_grammar_is_free_of_conflicts_and_collisions() -> None:
    make_parser(strict=True)  # refuses shift-reduce conflicts and terminals that match the same text


def _shape(node: object) -> str:
    """An expression with every bracket written out."""
    match node:
        case tree.Number(value=value):
            return str(value)
        case tree.Reference(name=name):
            return name
        case tree.Group(inner=inner):
            return _shape(inner)
        case tree.Unary(operator=operator, operand=operand):
            return f"({operator}{_shape(operand)})"
        case tree.Binary(operator=operator, left=left, right=right):
            return f"({_shape(left)} {operator} {_shape(right)})"
        case tree.Comparison(operators=operators, operands=operands):
            first, *rest = map(_shape, operands)
            return f"({first} {' '.join(f'{op} {each}' for op, each in zip(operators, rest, strict=True))})"
        case tree.Logical(operator=operator, operands=operands):
            return f"({f' {operator} '.join(map(_shape, operands))})"
        case tree.Conditional(condition=condition, then=then, otherwise=otherwise):
            return f"({_shape(condition)} ? {_shape(then)} : {_shape(otherwise)})"
        case tree.Bracket(items=items):
            return f"[{', '.join(map(_shape, items))}]"
        case tree.Index(values=values, indices=indices):
            return f"{_shape(values)}[{', '.join(map(_shape, indices))}]"
        case tree.ByHead(items=items):
            return f"by_head {_shape(items)}"
        case tree.Range(first=first, last=last):
            return f"{_shape(first)}..{_shape(last)}"
        case tree.Membership(operand=operand, choices=choices):
            return f"({_shape(operand)} in {_shape(choices)})"
        case tree.Quantified(variable=variable, choices=choices, body=body):
            return f"(exists {variable.text} in {_shape(choices)}: {_shape(body)})"
        case tree.Lambda(parameter=parameter, body=body):
            return f"({parameter.text} -> {_shape(body)})"
        case tree.NamedArgument(name=name, value=value):
            return f"{name.text}={_shape(value)}"
        case tree.Call(name=name, arguments=arguments):
            return f"{name.text}({', '.join(map(_shape, arguments))})"
    raise TypeError(node)


def _value(text: str) -> tree.Tree:
    (definition,) = parse(Source("x.attn", f"attention a {{\n  f = {text}\n}}\n")).definitions
    assert isinstance(definition, tree.Attention)
    (field,) = definition.statements
    assert isinstance(field, tree.Field)
    return field.value


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("a - b - c", "((a - b) - c)"),
        ("a - b * c", "(a - (b * c))"),
        ("a // b % c * d / e", "((((a // b) % c) * d) / e)"),
        ("-a ^ b", "(-(a ^ b))"),
        ("a ^ -b ^ c", "(a ^ (-(b ^ c)))"),
        ("a ^ b ^ c", "(a ^ (b ^ c))"),
        ("a * -b", "(a * (-b))"),
        ("--a", "(-(-a))"),
        ("a < b + 1 <= c", "(a < (b + 1) <= c)"),
        ("!a < b", "(!(a < b))"),
        ("!a & b | c & !d", "(((!a) & b) | (c & (!d)))"),
        ("a == b & c != d | e > f", "(((a == b) & (c != d)) | (e > f))"),
        ("a & b & c", "(a & b & c)"),
        ("a & (b & c)", "(a & (b & c))"),
        ("a ? b : c ? d : e", "(a ? b : (c ? d : e))"),
        ("a ? b ? c : d : e", "(a ? (b ? c : d) : e)"),
        ("a | b ? c + 1 : d & e", "((a | b) ? (c + 1) : (d & e))"),
        ("[a < b] + 1", "([(a < b)] + 1)"),
        ("[1, 2, 4,][h % 3] ^ 2", "([1, 2, 4][(h % 3)] ^ 2)"),
        ("f()", "f()"),
        ("f(a, b = c < d, e,)", "f(a, b=(c < d), e)"),
        ("2 * 1.5e-3 + .5", "((2 * 0.0015) + 0.5)"),
        ("a @ b * c", "((a @ b) * c)"),
        ("a[b, c + 1,] ^ 2", "(a[b, (c + 1)] ^ 2)"),
        ("-a[b]", "(-a[b])"),
        ("f(a)[b]", "f(a)[b]"),
        ("by_head [a, b] + c", "(by_head [a, b] + c)"),
        ("by_head [1, 2][b] * 3", "(by_head [1, 2][b] * 3)"),
        ("a + b in [1, 2] & c", "(((a + b) in [1, 2]) & c)"),
        ("a in b - 1..b + 1 | c", "((a in (b - 1)..(b + 1)) | c)"),
        ("!a in 0..3", "(!(a in 0..3))"),
        ("a in [0, 1][b]..3", "(a in [0, 1][b]..3)"),
        ("a in [0, 1] ? b : c", "((a in [0, 1]) ? b : c)"),
        ("a in 1...5", None),
        ("a in 1.. .5", "(a in 1..0.5)"),
        ("a in .5..1.5", "(a in 0.5..1.5)"),
        ("exists t in 0..3 : a | b & t == c", "(exists t in 0..3: (a | (b & (t == c))))"),
        ("exists t in [1] : exists u in 0..t : a ? b : c", "(exists t in [1]: (exists u in 0..t: (a ? b : c)))"),
        ("a ? exists t in 0..b : c : d", "(a ? (exists t in 0..b: c) : d)"),
        ("f(x -> x + 1, b = y -> -y)", "f((x -> (x + 1)), b=(y -> (-y)))"),
        ("f(x -> a ? x : 2)", "f((x -> (a ? x : 2)))"),
    ],
)
def test_operators_bind_as_the_design_says(text: str, shape: str | None) -> None:
    if shape is None:
        with pytest.raises(AttnError):
            _value(text)
        return
    assert _shape(_value(text)) == shape


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("a\n  | b\n  | c", "(a | b | c)"),
        ("a |\n b", "(a | b)"),
        ("a\n  ? b\n  : c", "(a ? b : c)"),
        ("(a\n  - b)", "(a - b)"),
        ("f(a,\n\n  # why\n  b)", "f(a, b)"),
        ("\n  a", "a"),
        ("a  # a comment; with (brackets", "a"),
        ("a;", "a"),
        ("a;;\n;", "a"),
        ("a\t-\tb", "(a - b)"),
        ("a\r\n  & b\r\n", "(a & b)"),
        ("a\n  in\n  0\n  ..\n  3", "(a in 0..3)"),
        ("a\n  @ b", "(a @ b)"),
        ("exists t in 0..3 :\n  a", "(exists t in 0..3: a)"),
        ("f(x\n  ->\n  x)", "f((x -> x))"),
    ],
)
def test_statements_go_on_where_they_cannot_end(text: str, shape: str) -> None:
    assert _shape(_value(text)) == shape


@pytest.mark.parametrize(
    "text",
    ["", "\n", ";", "# nothing", "\ufeffattention a {}", "attention a {}\r\nattention b {}\r", "attention a() {;}\f"],
)
def test_texts_without_a_mistake_parse(text: str) -> None:
    parse(Source("x.attn", text))


def test_statements_of_every_kind_are_read() -> None:
    text = """
        use\t  "a folder/#1.attn"  # the words; "quoted"
        attention a(w: int = 3,) {
          require w > 0, w < 9
          param table[H, 2 * w + 1]: real = 0, gate
          input ids[n,]; input lengths
          let x = 3
          pattern near(c) = i - j < c
          function twice(x) = 2 * x
          similarity own(s = score) { let y = s; weight = y }
          branch low { score = 1; branch lower {} }
          pattern = near(w)
          similarity = own
        }
    """
    use, attention = parse(Source("x.attn", text.replace("\n", "\r\n"))).definitions
    assert isinstance(use, tree.Use) and use.path.text == "a folder/#1.attn"
    assert isinstance(attention, tree.Attention)
    require, param, ids, _, let, near, twice, own, low, pattern, similarity = attention.statements
    assert isinstance(require, tree.Require) and len(require.conditions) == 2
    assert isinstance(param, tree.Declaration) and param.kind == "param"
    table, gate = param.data
    assert table.axes is not None and [_shape(each) for each in table.axes] == ["H", "((2 * w) + 1)"]
    assert table.type is not None and table.type.text == "real" and table.initial is not None
    assert (gate.axes, gate.type, gate.initial) == (None, None, None)
    assert isinstance(ids, tree.Declaration) and ids.kind == "input"
    assert isinstance(let, tree.LetStatement) and let.name.text == "x"
    assert isinstance(near, tree.Word) and isinstance(twice, tree.Word) and isinstance(own, tree.SimilarityWord)
    assert (near.kind, twice.kind, len(own.statements)) == ("pattern", "function", 2)
    assert isinstance(low, tree.Branch) and isinstance(low.statements[1], tree.Branch)
    assert isinstance(pattern, tree.Field) and pattern.name.text == "pattern"
    assert isinstance(similarity, tree.Field) and similarity.name.text == "similarity"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('use "a.attn"', "a.attn"),
        ('use"a.attn"', "a.attn"),
        ('use\t \t"é ü.attn"', "é ü.attn"),
        ('use "a.attn"# "b.attn"', "a.attn"),
        ('# use "b.attn" "\nuse "a#b.attn"', "a#b.attn"),
        ('use "a.attn";', "a.attn"),
    ],
)
def test_a_path_may_hold_anything_but_quotes(text: str, path: str) -> None:
    (use,) = parse(Source("x.attn", text)).definitions
    assert isinstance(use, tree.Use) and use.path.text == path


@pytest.mark.parametrize(
    "text", ['use "a', 'reuse "a"', 'use "a"b"', 'use\n"a"', 'use "a" "b"', 'x = "a"', '"', "use 'a'"]
)
def test_quotes_elsewhere_are_refused(text: str) -> None:
    with pytest.raises(AttnError):
        parse(Source("x.attn", text))


@pytest.mark.parametrize(
    "text", ["...", ".", "1.", "1..", "..1", "1...2", "a.b", ".٣", "1.e5", "->", "- >", "@", '@"', "!"]
)
@pytest.mark.parametrize("frame", ["{}", "attention a {{\n  f = {}\n}}", "attention a {{\n  f = g({}\n}}", "use {}"])
def test_signs_at_odd_places_are_refused(text: str, frame: str) -> None:
    with pytest.raises(AttnError):
        parse(Source("x.attn", frame.format(text)))


def test_spans_are_those_of_the_text() -> None:
    value = _value("1 + window(2,\n    left = 3)")
    assert isinstance(value, tree.Binary)
    call = value.right
    assert isinstance(call, tree.Call)
    assert (call.span.line, call.span.column, call.span.end_line, call.span.end_column) == (2, 11, 3, 14)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_line_ends_do_not_move_a_label(line_end: str) -> None:
    with pytest.raises(AttnError) as caught:
        parse(Source("x.attn", line_end.join(["attention a {", "  pattern = causal", "  score = ≤", "}"])))
    assert caught.value.diagnostics[0].labels[0].span.place == "x.attn:3:11"


_DEEP = {  # what is repeated before, what stands in the middle, what is repeated after
    "minus": ("-", "3", ""),
    "not": ("!", "causal", ""),
    "powers": ("2 ^ ", "2", ""),
    "brackets": ("(", "3", ")"),
    "lists": ("[", "3", "]"),
    "calls": ("exp(", "3", ")"),
    "choices": ("j < i ? 1 : ", "2", ""),
    "nested choices": ("j < i ? ", "2", " : 1"),
    "sum": ("i + ", "i", ""),
    "tables": ("a[", "3", "]"),
    "by head": ("by_head [", "3", "]"),
    "lambdas": ("f(x -> ", "x", ")"),
    "quantifiers": ("exists t in 0..1 : ", "t == 1", ""),
}


@pytest.mark.parametrize("count", [110, 1_000, 3_000, 100_000])
@pytest.mark.parametrize("kind", _DEEP)
def test_deep_texts_are_refused(kind: str, count: int) -> None:
    before, middle, after = _DEEP[kind]
    with pytest.raises(AttnError) as caught:
        parse(Source("x.attn", f"attention a {{\n  score = {before * count}{middle}{after * count}\n}}"))
    assert [each.code for each in caught.value.diagnostics] == ["E104"]


def test_the_limits_are_not_met_by_a_page() -> None:
    page = "# " + "word " * 100 + "\n"
    nested = "(" * (DEEPEST // 2) + "i" + ")" * (DEEPEST // 2)
    text = page * 100 + f"attention a {{\n  score = {nested} * [{', '.join(map(str, range(1000)))}][h]\n}}"
    assert len(text) < LONGEST_TEXT
    parse(Source("x.attn", text))


@pytest.mark.parametrize("character", ["\0", "\x1b", "\x07", "\u2028", "\u202e", "\ud800", "\x85"])
@pytest.mark.parametrize("place", ["code", "comment"])
def test_characters_that_would_act_on_a_reader_are_refused_everywhere(character: str, place: str) -> None:
    text = f"attention a {{ {'#' if place == 'comment' else ''} {character}\n}}"
    with pytest.raises(AttnError) as caught:
        parse(Source("x.attn", text))
    assert [each.code for each in caught.value.diagnostics] == ["E103"]
    assert character not in str(caught.value)
    assert f"U+{ord(character):04X}" in str(caught.value)
