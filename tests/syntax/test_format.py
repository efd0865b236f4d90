"""The one layout: what is written well stays, all else becomes it, and nothing is lost on the way."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attncc.diagnostics import Source
from attncc.explanations import EXPLANATIONS
from attncc.syntax import tree
from attncc.syntax.format import WIDTH, format_source
from attncc.syntax.lines import CANNOT_BEGIN, CANNOT_END
from attncc.syntax.parse import DEEPEST, parse, parse_with_lexemes
from tests.syntax.random_trees import definitions, tokens

ROOT = Path(__file__).parents[2]
CASES = sorted((Path(__file__).parent / "layouts").glob("*.attn"))
WRITTEN = [*sorted((ROOT / "specs").rglob("*.attn")), ROOT / "attncc/spec/prelude.attn"]
README = re.findall(r"^```attn\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


def formatted(text: str) -> str:
    return format_source(Source("x.attn", text))


def _parsed(text: str) -> tuple[tree.Definition, ...]:
    return parse(Source("x.attn", text)).definitions


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_the_specs_and_the_prelude_are_in_the_layout(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert formatted(text) == text


@pytest.mark.parametrize("text", README)
def test_the_specs_that_are_shown_are_in_the_layout(text: str) -> None:
    assert formatted(text) == text


@pytest.mark.parametrize("text", [each.right for each in EXPLANATIONS.values() if each.right])
def test_the_specs_of_explanations_are_in_the_layout(text: str) -> None:
    assert formatted(text) == text + "\n"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_text_becomes_the_golden_one(path: Path, golden: object) -> None:
    text = formatted(path.read_text(encoding="utf-8"))
    golden(path.name, text)  # type: ignore[operator]
    assert formatted(text) == text


@pytest.mark.parametrize("text", ["", "\n", " \t\n;\n\n", "\ufeff"])
def test_nothing_stays_nothing(text: str) -> None:
    assert formatted(text) == ""


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("attention a{pattern=causal;score=1}", "attention a { pattern = causal; score = 1 }\n"),
        ("attention a{pattern=causal;\nscore=1}", "attention a {\n  pattern = causal\n  score = 1\n}\n"),
        ("attention a { p = causal;; }; ;attention b{\n\n}", "attention a { p = causal }\nattention b {}\n"),
        ("# one\r\n\r\n\r\nattention a { }\r\n\r\n", "# one\n\nattention a {}\n"),
        ("attention a {}  # why", "attention a {}  # why\n"),
        ("attention a ( ) { # why\n}", "attention a() {  # why\n}\n"),
        ('use\t "a  b#c.attn"#why', 'use "a  b#c.attn"  #why\n'),
        ("function f(x)=x^2-x ^ -2*2 ^ f(x)", "function f(x) = x^2 - x ^ -2 * 2 ^ f(x)\n"),
        ("pattern p=i-j in 0 .. 3|i in i-1..i+1", "pattern p = i - j in 0..3 | i in i - 1 .. i + 1\n"),
        ("pattern p=i in 1.. .5", "pattern p = i in 1.. .5\n"),
        ("pattern p=! i<j&!p(x->x [1,2])", "pattern p = ! i < j & !p(x -> x[1, 2])\n"),
        ("pattern p=exists t in[1,2]:t==i", "pattern p = exists t in [1, 2] : t == i\n"),
        ("function f(x)=by_head[1,-2]*--x@1e3", "function f(x) = by_head [1, -2] * --x @ 1e3\n"),
        ("attention a(\n  w = 3,\n) {}", "attention a(w = 3,) {}\n"),
    ],
)
def test_short_texts(text: str, layout: str) -> None:
    assert formatted(text) == layout


def test_the_deepest_expression_is_laid_out() -> None:
    level = (DEEPEST - 10) // 2
    text = f"function f(x) = {'f(' * level}x{')' * level}\n"
    assert _parsed(formatted(text)) == _parsed(text)


# --- random trees ------------------------------------------------------------------------------------------------


def _settings(examples: int) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=checks)


def _plain(trees: tuple[tree.Definition, ...]) -> str:
    return "".join(" ".join(tokens(each)) + "\n" for each in trees)


def _read(text: str) -> tuple[tuple[tree.Definition, ...], list[str]]:
    """The definitions of a text, and its tokens and comments."""
    file, lexemes = parse_with_lexemes(Source("x.attn", text))
    return file.definitions, [each.text for each in lexemes]


@_settings(100)
@given(definitions)
def test_formatting_keeps_every_token(trees: tuple[tree.Definition, ...]) -> None:
    text = _plain(trees)
    done = formatted(text)
    read = _read(text)
    assert read[0] == trees
    assert _read(done) == read
    assert formatted(done) == done


def _spread(trees: tuple[tree.Definition, ...], random: Random) -> tuple[str, list[str]]:
    """The trees as text with comments and line ends wherever a line may end, and the comments."""
    text = ""
    comments: list[str] = []
    words = [*itertools.chain(*((*tokens(each), ";") for each in trees))]
    depth = 0
    for this, following in itertools.pairwise([*words, ";"]):
        text += this
        depth += (this in ("(", "[")) - (this in (")", "]"))
        may_break = depth > 0 or this in {"{", "}", ";", *_OPEN_ENDED} or following in {"}", *_LEADING}
        for kind in random.choice(_SPREADS) if may_break and following != "{" else ():
            comments += [f"#{len(comments)} ;("] if kind == "#" else []
            text += f"{comments[-1]}\n" if kind == "#" else f"{kind}  "
        text += " "
    return text, comments


_SPREADS = (*[()] * 6, ("\n",), ("#",), ("\n", "#"), ("#", "#", "\n\n\n"))
_SIGNS = {
    "VBAR": ("|",),
    "AMPERSAND": ("&",),
    "COMPARE": ("<", "<=", "==", "!=", ">", ">="),
    "MULTIPLY": ("*", "/", "//", "%", "@"),
    "POWER": ("^",),
    "QMARK": ("?",),
    "COLON": (":",),
    "EQUAL": ("=",),
    "COMMA": (",",),
    "IN": ("in",),
    "RANGE": ("..",),
    "PLUS": ("+",),
    "MINUS": ("-",),
    "BANG": ("!",),
    "_ARROW": ("->",),
}
_LEADING = {sign for kind in CANNOT_BEGIN for sign in _SIGNS[kind]}
_OPEN_ENDED = {sign for kind in CANNOT_END for sign in _SIGNS[kind]}


@_settings(100)
@given(definitions, st.integers(0))
def test_formatting_keeps_every_comment(trees: tuple[tree.Definition, ...], seed: int) -> None:
    text, comments = _spread(trees, Random(seed))
    done = formatted(text)
    assert re.findall(r"#\d+ ;\(", done) == comments
    read = _read(text)
    assert read[0] == trees
    assert _read(done) == read
    assert formatted(done) == done
    assert "\n\n\n" not in done and not re.search(r"\{\n\n|\n\n *\}|^\n|[ \t]$", done)


@_settings(50)
@given(definitions)
def test_lines_that_can_be_broken_are_not_long(trees: tuple[tree.Definition, ...]) -> None:
    for line in formatted(_plain(trees)).splitlines():
        assert len(line) <= WIDTH + 40, line  # a head without brackets, or a choice's condition, has no place to break
