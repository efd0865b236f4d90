"""Words that the attention does not use: what is wrong in every use is an error, what depends on the use is not."""

from __future__ import annotations

import pytest

from attncc.diagnostics import AttnError, Source
from attncc.spec.resolve import load

WRONG = {
    "pattern a = casual": "E201",
    "pattern a(w) = i - j < ww": "E201",
    "pattern a(w = ww) = i < w": "E201",
    "pattern a(c) = c > 0 ? i // c < foo : j < 2": "E201",
    "function f(x) = (x > 0 & j > 1 ? nope : 1)": "E201",
    "function f(x) = foo(x)": "E201",
    "similarity s(x = scroe) { weight = exp(x) }": "E201",
    "similarity s { weight = exp(score); normalize = row }": "E201",
    "similarity s { normalize = rows }": "E202",
    "pattern a = i": "E204",
    "function f(x) = x < 1": "E204",
    "function f(x) = dot(q, 3)": "E205",
    "function f(x) = tanh(x, x)": "E206",
    "pattern a(w) = window(w, w, w)": "E206",
    "function f() = rows + j": "E207",
    "pattern a(c) = a(c - 1)": "E213",
    "function f(x) = g(x)\nfunction g(x) = f(x)": "E213",
}
RIGHT = (
    "pattern a(x) = x[i] == x[j]",
    "pattern a(p) = !p",
    "pattern a(t, x) = t[h, x[i], x[j]]",
    "pattern a(p, c) = p[i] | i - j < c",
    "pattern a(w) = i - j < w",
    "pattern a(w, r = w) = dilated(w, r, 2)",
    "pattern a(r = 3, w) = window(w, r)",
    "pattern a(r) = dilated(r, r, r) | chunk(r) & !causal",
    "pattern a = score > 1",
    "function f(x) = x / (x - 7) + log(6 - x)",
    "function f(a, b) = [a, b][h]",
    "function f(x) = [1, 2, 3][x]",
    "function f(x: real) = x^2",
    "function f(c: int) = i // c",
    "function f() = rows + 1",
    "function f() = dot(q, k) + valid",
    "similarity s(t = score, c = 1) { require c > 8; weight = relu(t)^c }",
    "similarity s { weight = exp(score); normalize = rows(exp(-score)) }",
)


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_in_every_use_is_an_error(words: str) -> None:
    with pytest.raises(AttnError) as caught:
        load(Source("x.attn", f"{words}\nattention x {{}}"))
    assert [each.code for each in caught.value.diagnostics][:1] == [WRONG[words]]


@pytest.mark.parametrize("words", RIGHT)
def test_what_depends_on_the_use_is_not(words: str) -> None:
    assert load(Source("x.attn", f"{words}\nattention x {{}}")).name == "x"


def test_a_finding_is_told_once_wherever_words_use_one_another() -> None:
    for words in ("function f(x) = g(x)\nfunction g(x) = y", "function g(x) = y\nfunction f(x) = g(x)"):
        for score in ("", "score = f(1)", "score = g(2) + f(2)"):
            with pytest.raises(AttnError) as caught:
                load(Source("x.attn", f"{words}\nattention x {{ {score} }}"))
            places = [each.labels[0].span for each in caught.value.diagnostics]
            assert len(places) == len(set(places)) == 1
