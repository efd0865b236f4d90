"""Mistakes in the frame of a text: definitions, statements, their names and their bodies."""

from __future__ import annotations

import difflib

from attncc.diagnostics import Diagnostic, Label
from attncc.syntax.mistake import CANNOT_END, EXPRESSION_STARTS, KEYWORDS, Mistake, error, expected

_WORDS = ("PATTERN", "SIMILARITY", "FUNCTION")
_DEFINITIONS = ("attention", "layer", "pattern", "similarity", "function", "use")
_STATEMENTS = ("require", "param", "input", "let", "branch")
_FIELD_NAMES = {"NAME", "PATTERN", "SIMILARITY"}
_SPELLINGS = {
    "import": "use",
    "include": "use",
    "from": "use",
    "def": "function",
    "fn": "function",
    "const": "let",
    "var": "let",
    "assert": "require",
    "parameter": "param",
}
_FORMS = {
    "attend": "attend core(q, k, v)",
    "attention": "attention name { … }",
    "branch": "branch name { … }",
    "function": "function name(x) = …",
    "input": "input name[n]",
    "layer": "layer name { … }",
    "let": "let name = …",
    "param": "param name[H, d]",
    "pattern": "pattern name = …",
    "similarity": "similarity name { … }",
}
_A_STATEMENT = "expected a field, such as `pattern = …`, or `let`, `param`, `input`, `branch` or `require`"


def header(mistake: Mistake) -> Diagnostic | None:
    """`attention a` without a body."""
    if "LBRACE" not in mistake.accepted:
        return None
    first = mistake.first.text
    name = mistake.lexemes[mistake.start + 1].text
    if mistake.found.kind == "LPAR" and first == "branch":
        return error("a branch has no parameters", mistake.found.span, "expected `{`", helps=(_body(first, name),))
    text = "expected `{`" if "LPAR" not in mistake.accepted else "expected `(` or `{`"
    return error(f"`{first} {name}` has no body", mistake.found.span, text, helps=(_body(first, name),))


def _body(first: str, name: str) -> str:
    return f"write `{first} {name} {{ … }}`"


def name_missing(mistake: Mistake) -> Diagnostic | None:
    """`let = 3`, `param [H]`, `attention {`: a keyword and not the name that it introduces."""
    found, previous = mistake.found, mistake.previous
    if mistake.accepted != {"NAME"} or previous is None or found.kind in KEYWORDS or previous.text not in _FORMS:
        return None
    if mistake.body is None and found.kind == "EQUAL" and previous.kind in ("PATTERN", "SIMILARITY"):
        return None  # a field
    message = f"a name is missing after `{previous.text}`"
    return error(message, found.span, "expected a name", helps=(f"write `{_FORMS[previous.text]}`",))


def path_missing(mistake: Mistake) -> Diagnostic | None:
    """`use words` without quotes."""
    if mistake.accepted != {"STRING"}:
        return None
    found = mistake.found
    path = found.text if found.kind == "NAME" else "file.attn"
    return error("`use` names no file", found.span, "expected a path in quotes", helps=(f'write `use "{path}"`',))


def value_missing(mistake: Mistake) -> Diagnostic | None:
    """A name and no `=`: in `let x 3`, in words and in `function f = …`."""
    helps: tuple[str, ...]
    first, found = mistake.first, mistake.found
    after = mistake.at - mistake.start
    kinds = (*_WORDS, "LET")
    if after < 2 or first.kind not in kinds or not mistake.accepted <= {"EQUAL", "LPAR", "LBRACE"}:
        return None
    name = mistake.lexemes[mistake.start + 1]
    if after == 2 and mistake.body is not None and first.kind in ("PATTERN", "SIMILARITY"):
        helps = (f"write `{first.text} = {name.text}`", f"a word is written `{_FORMS[first.text]}`")
        message = f"a field is written `name = value`, but `{name.text}` follows the name"
        return error(message, name.span, f"expected `=` after `{first.text}`", helps=helps)
    if first.kind == "FUNCTION" and "EQUAL" not in mistake.accepted:
        helps = (f"write `function {name.text}(x) = …`, or `let` in an attention for a value",)
        return error(f"`function {name.text}` has no parameters", found.span, "expected `(`", helps=helps)
    if "EQUAL" not in mistake.accepted:
        return None
    head = f"{first.text} {name.text}" + ("(…)" if after > 2 else "")
    helps = (f"write `{head} = …`",)
    if mistake.body is not None and first.kind == "PATTERN":
        helps = (f"write `pattern = {name.text}(…)` for a field", f"write `{head} = …` for a word")
    return error(f"`{head}` has no value: {mistake.here}", found.span, "expected `=`", helps=helps)


def parameter_names(mistake: Mistake) -> Diagnostic | None:
    """`pattern window(3)` in an attention: the start of a word, where a field was meant."""
    first, opener = mistake.first, mistake.open_bracket
    if mistake.body is None or first.kind not in ("PATTERN", "SIMILARITY") or opener is None:
        return None
    if opener is not mistake.lexemes[mistake.start + 2] or "EQUAL" in mistake.within or "NAME" not in mistake.accepted:
        return None
    name = mistake.lexemes[mistake.start + 1].text
    label = Label(mistake.lexemes[mistake.start + 1].span, "so far this defines a word")
    help_ = f"write `{first.text} = {name}(…)` for a field"
    text = "expected the name of a parameter"
    return error(f"`{mistake.found.text}` is no parameter", mistake.found.span, text, label, helps=(help_,))


def outside_only(mistake: Mistake) -> Diagnostic | None:
    """An attention, a layer or `use` within braces."""
    kind = mistake.first.kind
    if mistake.body is None or mistake.at != mistake.start or kind not in ("ATTENTION", "LAYER", "USE"):
        return None
    opened = Label(mistake.body.span, "these braces are still open")
    if kind == "USE":
        message, help_ = "`use` stands outside braces", "move it to the start of the file"
    else:
        what = "an attention" if kind == "ATTENTION" else "a layer"
        message, help_ = f"{what} cannot be defined inside braces", "close the braces before it with `}`"
    return error(message, mistake.first.span, "", opened, helps=(help_,))


def keyword(mistake: Mistake) -> Diagnostic | None:
    """A keyword where a name or an expression is wanted."""
    found, previous = mistake.found, mistake.previous
    starts = mistake.accepted & (KEYWORDS - {"BY_HEAD", "EXISTS", "ATTEND"})
    if found.kind not in KEYWORDS or "NAME" not in mistake.accepted or starts:
        return None
    if found.kind in ("IN", "EXISTS") and (mistake.wants_expression or (previous and previous.kind == "EXISTS")):
        return None
    if previous is not None and previous.kind in CANNOT_END and previous.span.line < found.span.line:
        what = "an expression" if mistake.wants_expression else "a name"
        text = f"expected {what} after it"
        return error(f"{what} is missing after `{previous.text}`", previous.span, text)
    text = "expected an expression" if mistake.wants_expression else "expected a name"
    helps: tuple[str, ...] = () if mistake.wants_expression else ("choose another name",)
    return error(f"`{mistake.found.text}` is a keyword", mistake.found.span, text, helps=helps)


def outside(mistake: Mistake) -> Diagnostic | None:
    """What begins a statement outside all braces is no definition."""
    if mistake.body is not None:
        return None
    first, second = mistake.first, mistake.found
    helps: tuple[str, ...]
    if first.kind in ("PATTERN", "SIMILARITY") and mistake.at == mistake.start + 1 and second.kind == "EQUAL":
        helps = (f"write `attention name {{ {first.text} = … }}`",)
        return error("a field stands outside an attention", first.span, "", helps=helps)
    if mistake.at > mistake.start or "ATTENTION" not in mistake.accepted:
        return None
    if second.kind == "NAME" and mistake.following == "EQUAL":
        helps = (f"write `attention name {{ {second.text} = … }}`",)
        return error("a field stands outside an attention", second.span, "", helps=helps)
    if second.text in _STATEMENTS:
        helps = (f"write `attention name {{ {second.text} … }}`",)
        return error(f"`{second.text}` stands outside an attention", second.span, "", helps=helps)
    close = _spelling(second.text, _DEFINITIONS, 0.6)
    helps = tuple(f"write `{each}`" for each in close)
    text = "expected `attention`, `layer`, `pattern`, `similarity`, `function` or `use`"
    return error(f"`{second.text}` begins no definition", second.span, text, helps=helps)


def field(mistake: Mistake) -> Diagnostic | None:
    """Inside braces, something that is neither `name = value` nor a statement of another kind."""
    if mistake.body is None:
        return None
    first, found = mistake.first, mistake.found
    if mistake.at == mistake.start and "REQUIRE" in mistake.accepted:
        return _no_statement(mistake)
    if mistake.at != mistake.start + 1 or first.kind not in _FIELD_NAMES or "EQUAL" not in mistake.accepted:
        return None
    helps = (f"write `{first.text} = …`",)
    close = _spelling(first.text, _STATEMENTS, 0.7)
    if close and found.kind in EXPRESSION_STARTS:
        return error(f"`{first.text}` begins no statement", first.span, "", helps=(f"write `{close[0]} …`",))
    here = "the line ends" if found.kind == "_END" else f"`{found.text}`"
    text = f"expected `=` after `{first.text}`"
    return error(f"a field is written `name = value`, but {here} follows the name", found.span, text, helps=helps)


def _no_statement(mistake: Mistake) -> Diagnostic:
    found = mistake.found
    helps: tuple[str, ...] = ()
    if found.text in ("/", "//"):
        helps = ("a comment begins with `#`",)
    elif found.kind in ("PLUS", "MINUS"):
        helps = (f"to go on with the statement above, end its line with `{found.text}`",)
    return error(f"no statement begins with `{found.text}`", found.span, _A_STATEMENT, helps=helps)


def data(mistake: Mistake) -> Diagnostic | None:
    """`param table(H)`, `input a b` and `input a[B, m] ascending`."""
    first, found, previous = mistake.first, mistake.found, mistake.previous
    if first.kind not in ("PARAM", "INPUT") or previous is None or mistake.open_bracket is not None:
        return None
    if "EQUAL" not in mistake.accepted or found.kind not in ("LPAR", "NAME", "NUMBER"):
        return None
    if found.kind == "LPAR":
        helps = (f"write `{first.text} {previous.text}[…]`",)
        return error("axes stand in square brackets", found.span, "expected `[`", helps=helps)
    if found.text == "ascending":
        helps = ("say what is ascending: `: int ascending`, or `: real ascending`",)
        return error("a type comes before `ascending`", found.span, "expected `:`", helps=helps)
    return error(f"`{found.text}` does not fit here", found.span, "expected `,`", helps=("separate names with `,`",))


def two_statements(mistake: Mistake) -> Diagnostic | None:
    """A statement begins where another has not ended."""
    found = mistake.found
    begins = (found.kind in _FIELD_NAMES and mistake.following == "EQUAL") or found.text in (*_STATEMENTS, "function")
    if mistake.body is None or "_END" not in mistake.accepted or not (begins or found.kind == "COMMA"):
        return None
    return error(
        f"`{found.text}` does not fit here",
        found.span,
        f"expected {expected(mistake.accepted)}",
        helps=("begin a new line, or write `;` between the statements",),
    )


def _spelling(word: str, of: tuple[str, ...], cutoff: float) -> list[str]:
    """The keyword that is meant, if there is one."""
    if _SPELLINGS.get(word) in of:
        return [_SPELLINGS[word]]
    return difflib.get_close_matches(word, of, n=1, cutoff=cutoff)
