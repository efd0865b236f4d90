"""Printing: an expression → text → the same expression."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attncc.diagnostics import Source
from attncc.spec import expr as e
from attncc.spec.functions import FUNCTIONS
from attncc.spec.resolve import load
from attncc.spec.text import text

_NAMES = (e.Name.I, e.Name.J, e.Name.HEAD, e.Name.QUERIES, e.Name.KEYS, e.Name.COUNT, e.Name.SCALE, e.Name.SCORE)
_SYMBOLS = st.sampled_from(_NAMES).map(e.Symbol)
_DOT = st.just(e.Dot(e.Vector("q"), e.Vector("k")))
_NUMBERS = st.one_of(
    st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from((-1, -0.0, 2, 0.5))
)
_CONSTANTS = _NUMBERS.filter(lambda value: value not in (0, 1)).map(e.Const)
_VALUES = st.lists(_NUMBERS, min_size=1, max_size=4).map(tuple)


def _binary(numbers: st.SearchStrategy[e.Expr]) -> st.SearchStrategy[e.Expr]:
    """Arithmetic with at most one constant side, as folding leaves it."""
    sides = st.one_of(st.tuples(numbers, numbers), st.tuples(numbers, _CONSTANTS), st.tuples(_CONSTANTS, numbers))
    return st.builds(lambda op, both: e.Binary(op, *both), st.sampled_from(e.BinaryOp), sides)


def _call(numbers: st.SearchStrategy[e.Expr]) -> st.SearchStrategy[e.Expr]:
    def build(name: str, arguments: list[e.Expr]) -> e.Expr:
        return e.Call(name, tuple(arguments[: FUNCTIONS[name].arity or len(arguments)]))

    return st.builds(build, st.sampled_from(sorted(FUNCTIONS)), st.lists(numbers, min_size=3, max_size=3))


def _numbers(inner: st.SearchStrategy[e.Expr]) -> st.SearchStrategy[e.Expr]:
    """Numbers made of numbers."""
    predicate = _predicates(inner)
    return st.one_of(
        _binary(inner),
        _call(inner),
        inner.map(e.Negate),
        st.builds(e.Indicator, predicate),
        st.builds(e.Select, predicate, inner, inner),
        st.builds(e.Table, _VALUES, st.just(e.Binary(e.BinaryOp.MODULO, e.Symbol(e.Name.HEAD), e.Const(2)))),
    )


def _predicates(numbers: st.SearchStrategy[e.Expr]) -> st.SearchStrategy[e.Expr]:
    compare = st.builds(e.Compare, st.sampled_from(e.CompareOp), numbers, numbers)
    either = st.builds(lambda *parts: e.Or(parts), compare, compare)
    both = st.builds(lambda *parts: e.And(parts), compare, either)
    select = st.builds(e.Select, compare, both, either)
    return st.one_of(compare, both, either, select, compare.map(e.Not), both.map(e.Not), select.map(e.Not))


_EXPRESSIONS = st.recursive(st.one_of(_SYMBOLS, _DOT), _numbers, max_leaves=12)
_SETTINGS = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def _read(written: str) -> e.Expr:
    return load(Source("x.attn", f"attention a {{\n  weight = {written}\n}}\n")).weight


@_SETTINGS
@given(_EXPRESSIONS)
def test_what_is_printed_reads_back(expr: e.Expr) -> None:
    assert _read(text(expr)) == expr


@_SETTINGS
@given(_predicates(_EXPRESSIONS))
def test_predicates_that_are_printed_read_back(expr: e.Expr) -> None:
    assert _read(f"[{text(expr)}]") == e.Indicator(expr)


def test_truth_values_are_words() -> None:
    assert load(Source("x.attn", "attention a { pattern = true }")).pattern == e.TRUE
    assert text(e.And(())) == "true"
    assert text(e.Or(())) == "false"
