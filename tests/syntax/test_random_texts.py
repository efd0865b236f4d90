"""Whatever the text: it compiles, or it is refused with labels inside it. Nothing else is raised, nothing hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attncc.codes import CODES
from attncc.compiler import compile_source
from attncc.diagnostics import AttnError, Source
from attncc.spec.resolve import load
from attncc.spec.words import prelude
from attncc.syntax.format import format_source
from attncc.syntax.parse import parse

LAYOUTS = [path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parent / "layouts").glob("*.attn"))]
SPECS = [path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[2] / "specs").rglob("*.attn"))]
_LONGEST = 2.0  # seconds of the processor for one text

_TOKENS = (
    *"(){}[]=,:;?|&!<>+-*/%^#.",
    *("<=", "==", "!=", "//", "\n", "  ", "\t"),
    *("..", "...", "->", "@", '"', "'", '"a.attn"', 'use "a#b.attn"', "\\", "\r\n"),
    *("attention", "pattern", "function", "similarity", "require", "a", "w", "x"),
    *("param", "input", "let", "branch", "use", "exists", "in", "by_head"),
    *("param t[H, d]", "input t[n]", "t[h, j]", "let x = ", "branch b {"),
    *("exists t in", "in 0..3 :", "in [1, 2]", "x -> "),
    *("score", "weight", "normalize", "align", "start", "none", "true", "rows", "count", "scale", "dot(q, k)"),
    *("i", "j", "h", "n", "m", "H", "d", "pi", "q", "k", "v"),
    *("causal", "window(3)", "chunk(4)", "softmax", "relu2", "exp(", "floor(", "min(", "log2(", "window("),
    *("0", "1", "2", "7", "0.5", "1e3", "9007199254740992", "[1, 2][h]", "attention a {", "pattern = ", "score = "),
)
_SOUP = st.lists(st.sampled_from(_TOKENS), max_size=40).map(" ".join)
_BODY = st.lists(st.sampled_from(_TOKENS), max_size=14).map(" ".join)
_PLACED = st.builds(
    lambda field, value: f"attention a {{\n  {field} = {value}\n}}",
    st.sampled_from(("pattern", "score", "weight", "normalize", "similarity", "align")),
    _BODY,
)


@st.composite
def _mutated(draw: st.DrawFn, texts: list[str] = SPECS) -> str:
    """A spec of the catalogue with a few pieces deleted, doubled, swapped, or put in."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.integers(0, 12)))
        other = draw(st.integers(0, len(text)))
        piece = text[start:stop]
        match draw(st.sampled_from(("delete", "double", "move", "insert", "replace", "character"))):
            case "delete":
                text = text[:start] + text[stop:]
            case "double":
                text = text[:stop] + piece + text[stop:]
            case "move":
                text = text[:start] + text[stop:]
                text = text[:other] + piece + text[other:]
            case "insert":
                text = text[:start] + draw(st.sampled_from(_TOKENS)) + text[start:]
            case "replace":
                text = text[:start] + draw(st.sampled_from(_TOKENS)) + text[stop:]
            case "character":
                text = text[:start] + draw(st.characters()) + text[start:]
    return text


def _check(text: str, *, whole: bool) -> None:
    source = Source("fuzz.attn", text)
    began = time.process_time()
    try:
        if whole:
            compile_source(source, in_c=False)
        else:
            load(source)
    except AttnError as error:
        _check_error(error, source)
    assert time.process_time() - began < _LONGEST


def _check_error(error: AttnError, source: Source) -> None:
    assert str(error)
    assert error.diagnostics
    for diagnostic in error.diagnostics:
        assert diagnostic.code in CODES
        assert diagnostic.labels[0].span.source == source
        for label in diagnostic.labels:
            span = label.span
            assert span.source in (source, prelude().source)
            assert 1 <= span.line <= span.end_line <= len(span.source.lines)
            assert 1 <= span.column <= len(span.source.line(span.line)) + 1
            assert 1 <= span.end_column <= len(span.source.line(span.end_line)) + 2
            assert (span.line, span.column) < (span.end_line, span.end_column)


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    )


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Tables, sympy and isl are loaded before the clock runs."""
    compile_source(Source("full.attn", "attention full {}"))


@_settings(300)
@given(st.one_of(_SOUP, _PLACED, _mutated(SPECS), _mutated(LAYOUTS)))
def test_soup_is_laid_out_or_refused(text: str) -> None:
    source = Source("fuzz.attn", text)
    try:
        done = format_source(source)
    except AttnError as error:
        _check_error(error, source)
    else:
        assert format_source(Source("fuzz.attn", done)) == done


@_settings(250)
@given(_SOUP)
def test_soup_is_refused_or_read(text: str) -> None:
    _check(text, whole=False)


@_settings(150)
@given(st.text(max_size=40))
def test_any_characters_are_refused_or_read(text: str) -> None:
    try:
        parse(Source("fuzz.attn", text))
    except AttnError as error:
        _check_error(error, Source("fuzz.attn", text))


@_settings(250)
@given(_PLACED)
def test_soup_in_a_field_is_refused_or_read(text: str) -> None:
    _check(text, whole=False)


@_settings(200)
@given(_mutated())
def test_mutated_specs_are_refused_or_read(text: str) -> None:
    _check(text, whole=False)


@_settings(30)
@given(_mutated())
def test_mutated_specs_are_refused_or_compiled(text: str) -> None:
    _check(text, whole=True)
