"""Index analysis: named patterns have the expected ranges, and random ones agree with brute force."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from attncc.plan import counting
from attncc.plan.counting import tile_ranges
from attncc.plan.domain import analyse
from attncc.plan.evaluate import evaluate
from attncc.plan.ranges import HeadClass, Interval, Segment
from attncc.spec.affine import check_affine
from attncc.spec.expr import (
    FALSE,
    TRUE,
    And,
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Dot,
    Expr,
    Indicator,
    Name,
    Negate,
    Not,
    Or,
    Select,
    Symbol,
    Table,
    Vector,
    names_in,
)
from tests.plan.counts import tile_counts

# ---- a notation for expressions: Python's operators build nodes ----------------------------------------------------


@dataclass(frozen=True, eq=False)
class P:
    """An expression that Python's operators extend (`eq` gives an equation, so P itself is not comparable)."""

    expr: Expr

    def __add__(self, other: P | int) -> P:
        return P(Binary(BinaryOp.ADD, self.expr, lift(other)))

    def __radd__(self, other: int) -> P:
        return P(Binary(BinaryOp.ADD, lift(other), self.expr))

    def __sub__(self, other: P | int) -> P:
        return P(Binary(BinaryOp.SUBTRACT, self.expr, lift(other)))

    def __rsub__(self, other: int) -> P:
        return P(Binary(BinaryOp.SUBTRACT, lift(other), self.expr))

    def __mul__(self, other: P | int) -> P:
        return P(Binary(BinaryOp.MULTIPLY, self.expr, lift(other)))

    def __rmul__(self, other: int) -> P:
        return P(Binary(BinaryOp.MULTIPLY, lift(other), self.expr))

    def __floordiv__(self, other: P | int) -> P:
        return P(Binary(BinaryOp.FLOOR_DIVIDE, self.expr, lift(other)))

    def __mod__(self, other: P | int) -> P:
        return P(Binary(BinaryOp.MODULO, self.expr, lift(other)))

    def __neg__(self) -> P:
        return P(Negate(self.expr))

    def __lt__(self, other: P | int) -> P:
        return P(Compare(CompareOp.LESS, self.expr, lift(other)))

    def __le__(self, other: P | int) -> P:
        return P(Compare(CompareOp.LESS_EQUAL, self.expr, lift(other)))

    def __gt__(self, other: P | int) -> P:
        return P(Compare(CompareOp.GREATER, self.expr, lift(other)))

    def __ge__(self, other: P | int) -> P:
        return P(Compare(CompareOp.GREATER_EQUAL, self.expr, lift(other)))

    def equals(self, other: P | int) -> P:
        return P(Compare(CompareOp.EQUAL, self.expr, lift(other)))

    def differs(self, other: P | int) -> P:
        return P(Compare(CompareOp.NOT_EQUAL, self.expr, lift(other)))

    def __and__(self, other: P) -> P:
        return P(And((self.expr, other.expr)))

    def __or__(self, other: P) -> P:
        return P(Or((self.expr, other.expr)))

    def __invert__(self) -> P:
        return P(Not(self.expr))


def lift(value: P | int) -> Expr:
    return value.expr if isinstance(value, P) else Const(value)


def call(function: str, *arguments: P | int) -> P:
    return P(Call(function, tuple(lift(argument) for argument in arguments)))


def choose(condition: P, then: P | int, otherwise: P | int) -> P:
    return P(Select(condition.expr, lift(then), lift(otherwise)))


def table(values: list[int], index: P) -> P:
    return P(Table(tuple(values), index.expr))


i, j, h, n, m, first, last = (
    P(Symbol(name)) for name in (Name.I, Name.J, Name.HEAD, Name.QUERIES, Name.KEYS, Name.FIRST, Name.LAST)
)
causal = j <= i
anything = P(TRUE)


def window(left: int, right: int = 0) -> P:
    return (i - j <= left) & (j - i <= right)


def between(low: P | int | None, high: P | int | None, when: P = anything) -> Interval:
    return Interval(None if low is None else lift(low), None if high is None else lift(high), when.expr)


def run(touched: Interval, full: Interval | None = None) -> Segment:
    return Segment(touched, full)


def only_class(pattern: P, **options: int) -> HeadClass:
    (one,) = analyse(pattern.expr, **options).classes
    assert one.condition == TRUE
    return one


# ---- named patterns ------------------------------------------------------------------------------------------------

CHUNK = i.__floordiv__(64).equals(j // 64)
BY_ROW = {
    "everything": (anything, [run(between(None, None), between(None, None))]),
    "causal": (causal, [run(between(None, last), between(None, first))]),
    "a causal window": (window(511), [run(between(first - 511, last), between(last - 511, first))]),
    "a window on both sides": (
        call("abs", i - j) <= 5,
        [run(between(first - 5, last + 5), between(last - 5, first + 5))],
    ),
    "a chunk": (
        CHUNK,
        [
            run(
                between(64 * (first // 64), 64 * (last // 64) + 63),
                between(64 * (last // 64), 64 * (first // 64) + 63),
            )
        ],
    ),
    "a chunk and the one before": (
        causal & (i // 64 - j // 64 <= 1),
        [run(between(64 * (first // 64) - 64, last), between(64 * (last // 64) - 64, first))],
    ),
    "a prefix": (
        causal | (j < 100),
        [run(between(None, call("max", 99, last)), between(None, call("max", 99, first)))],
    ),
    "sinks and a window": (
        causal & ((j < 4) | (i - j < 512)),
        [
            run(between(None, call("min", last, 3)), between(None, call("min", first, 3))),
            run(between(first - 511, last), between(last - 511, first)),
        ],
    ),
    "a dilated window": (window(511) & ((i - j) % 16).equals(0), [run(between(first - 496, last))]),
    "a window and a stride": (
        causal & ((i - j < 128) | ((i - j) % 128).equals(0)),
        [run(between(None, last), between(last - 127, first))],
    ),
    "a chunk and summaries": (
        causal & ((i // 128).equals(j // 128) | (j % 128 >= 120)),
        [run(between(None, last), between(128 * (last // 128), first))],
    ),
    "all but itself": (
        i.differs(j),
        [
            run(between(None, last - 1), between(None, first - 1)),
            run(between(first + 1, None), between(last + 1, None)),
        ],
    ),
    "all but the chunk": (
        ~CHUNK,
        [
            run(between(None, 64 * (last // 64) - 1), between(None, 64 * (first // 64) - 1)),
            run(between(64 * (first // 64) + 64, None), between(64 * (last // 64) + 64, None)),
        ],
    ),
    "global tokens and a window": (
        (i < 16) | (j < 16) | window(256, 256),
        [
            run(between(None, 15), between(None, 15)),
            run(between(None, None, first < 16), between(None, None, last < 16)),
            run(between(first - 256, last + 256), between(last - 256, first + 256)),
        ],
    ),
    "two windows apart": (
        ((i - j >= 100) & (i - j < 200)) | window(9),
        [
            run(between(first - 199, last - 100), between(last - 199, first - 100)),
            run(between(first - 9, last), between(last - 9, first)),
        ],
    ),
    "windows that join": (
        window(3) | ((i - j >= 4) & (i - j < 9)),
        [run(between(first - 8, last), between(last - 8, first))],
    ),
    "itself": (i.equals(j), [run(between(first, last))]),
    "nothing": (P(FALSE), []),
    "a window that no pair fits": (window(-1), []),
    "a window per head": (
        causal & (i - j < 64 * (h + 1)),
        [run(between(first - 64 * h - 63, last), between(last - 64 * h - 63, first))],
    ),
    "rows at half the pace": (2 * j <= i, [run(between(None, last // 2), between(None, first // 2))]),
}


@pytest.mark.parametrize("name", BY_ROW)
def test_the_keys_of_a_row_tile_are_as_expected(name: str) -> None:
    pattern, expected = BY_ROW[name]
    assert only_class(pattern).by_row == tuple(expected)


BY_COLUMN = {
    "causal": (causal, [run(between(first, None), between(last, None))]),
    "a causal window": (window(511), [run(between(first, last + 511), between(last, first + 511))]),
    "a prefix": (
        causal | (j < 100),
        [
            run(between(None, None, first < 100), between(None, None, last < 100)),
            run(between(first, None), between(last, None)),
        ],
    ),
    "a chunk and summaries": (
        causal & ((i // 128).equals(j // 128) | (j % 128 >= 120)),
        [
            run(between(first, 128 * (last // 128) + 127), between(last, 128 * (first // 128) + 127)),
            run(
                between(first, None, first // 128 < (last + 8) // 128),
                between(last, None, last // 128 < (first + 8) // 128),
            ),
        ],
    ),
}


@pytest.mark.parametrize("name", BY_COLUMN)
def test_the_rows_of_a_column_tile_are_as_expected(name: str) -> None:
    pattern, expected = BY_COLUMN[name]
    # conditions are compared by their meaning: they may be written with either comparison
    found = only_class(pattern).by_column
    assert [(each.touched.low, each.touched.high) for each in found] == [
        (each.touched.low, each.touched.high) for each in expected
    ]
    for one, other in zip(found, expected, strict=True):
        for start in range(-300, 300, 7):
            symbols = {Name.FIRST: start, Name.LAST: start + 40}
            assert evaluate(one.touched.when, symbols) == evaluate(other.touched.when, symbols)
            assert one.full is not None and other.full is not None
            assert evaluate(one.full.when, symbols) == evaluate(other.full.when, symbols)


# ---- head classes --------------------------------------------------------------------------------------------------


def test_a_condition_on_the_head_splits_the_heads_in_two() -> None:
    domain = analyse((causal & choose((h % 2).equals(0), i - j < 128, ((i - j) % 128).equals(0))).expr)
    assert [one.condition for one in domain.classes] == [(h % 2).equals(0).expr, (h % 2).differs(0).expr]
    assert domain.classes[0].by_row == (run(between(first - 127, last), between(last - 127, first)),)
    assert domain.classes[1].by_row == (run(between(None, last)),)


def test_equal_entries_of_a_table_form_one_class() -> None:
    domain = analyse((causal & (i - j < table([1, 1, 2, 4], h))).expr)
    conditions = [(h.equals(0) | h.equals(1)).expr, h.equals(2).expr, h.equals(3).expr]
    assert [one.condition for one in domain.classes] == conditions
    assert [one.facts.reach_back for one in domain.classes] == [0, 1, 3]


def test_a_class_condition_reads_the_index_of_the_table() -> None:
    domain = analyse(((i - j) % table([1, 4], h % 2)).equals(0).expr)
    assert [one.condition for one in domain.classes] == [(h % 2).equals(0).expr, (h % 2).equals(1).expr]
    assert domain.classes[0].facts.full


def test_a_class_that_no_head_is_in_is_dropped() -> None:
    pattern = choose(h % 2 > 1, causal, window(3)) & (i - j < table([8, 8, 9, 9], h // 2 % 2))
    (one,) = analyse(pattern.expr).classes
    assert one.condition == TRUE
    assert one.facts.reach_back == 3


def test_heads_with_equal_patterns_are_one_class() -> None:
    (one,) = analyse(choose(h < 3, causal, causal).expr).classes
    assert one.condition == TRUE


# ---- facts ---------------------------------------------------------------------------------------------------------


def test_the_facts_of_a_causal_window() -> None:
    facts = only_class(window(511)).facts
    assert (facts.full, facts.causal, facts.self_related, facts.empty) == (False, True, True, False)
    assert (facts.shift, facts.reach_back, facts.reach_ahead, facts.exact) == (1, 511, 0, True)


def test_the_facts_of_a_chunk() -> None:
    facts = only_class(CHUNK).facts
    assert (facts.causal, facts.shift, facts.reach_back, facts.reach_ahead) == (False, 64, 63, 63)


def test_the_shift_is_the_smallest_that_serves_all_moduli() -> None:
    pattern = causal & ((i // 4).equals(j // 4) | (j % 6).equals(0) | ((i - j) % 5).equals(0))
    assert only_class(pattern).facts.shift == 12


def test_a_pattern_that_is_always_true_is_full() -> None:
    assert only_class(causal | (j > i)).facts.full
    assert only_class(causal | (j > i)).by_row == (run(between(None, None), between(None, None)),)


def test_reach_is_open_where_the_head_decides_it() -> None:
    assert only_class(causal & (i - j < 64 * (h + 1))).facts.reach_back is None


# ---- without isl ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, 40, 400])
def test_without_the_budget_a_window_still_has_its_bounds(budget: int) -> None:
    one = only_class(window(511), budget=budget)
    assert one.by_row == (run(between(first - 511, last), between(last - 511, first)),)
    assert one.facts.causal
    assert one.facts.reach_back == 511
    assert one.facts.exact is False or budget == 400


def test_a_pattern_with_too_many_cases_is_widened_to_the_parts_that_have_few() -> None:
    steps = [P(Indicator((i // size).equals(j // size).expr)) for size in (2, 3, 4, 5, 6, 7, 8)]
    alike = sum(steps[1:], steps[0])
    one = only_class(window(30) & (alike >= 3))
    assert one.by_row == (run(between(first - 30, last)),)
    assert (one.facts.causal, one.facts.reach_back, one.facts.self_related) == (True, 30, False)
    check_against_brute_force(window(30) & (alike >= 3), Call_(24, 24, 0, 0, 4, 4), 100_000)


def test_a_pattern_that_is_not_affine_is_refused() -> None:
    with pytest.raises(ValueError, match="not affine"):
        analyse((i * j < 4).expr)


REFUSED = {
    "a product of positions": (i * j < 4, "product of two variables"),
    "a length as a coefficient": (i * m - j * n < 4, "bind the ratio"),
    "a length as a divisor": (i // n < 4, "by a length"),
    "a variable as a divisor": (i % j < 4, "by a variable"),
    "a divisor of zero": (i % 0 < 4, "at least 1"),
    "a real constant": (i - j < 3.5, "whole number"),  # type: ignore[operator]
    "a power": (P(Binary(BinaryOp.POWER, Const(2), (i - j).expr)) < 4, "power"),
    "a real quotient": (P(Binary(BinaryOp.DIVIDE, i.expr, Const(2))) < 4, "`//`"),
    "a real function": (call("sqrt", i) < 4, "`sqrt`"),
    "a dot product": (P(Dot(Vector("q"), Vector("k"))) > 0, "value of the data"),
    "the score": (P(Symbol(Name.SCORE)) > 0, "value of the data"),
    "the count": (P(Symbol(Name.COUNT)) > 0, "`count`"),
    "hidden keys": (j < P(Symbol(Name.VALID)), "`valid`"),
    "a table read by position": (i - j < table([1, 2], i), "looked up by the head"),
    "a number": (i - j, "predicate"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_term_and_says_why(name: str) -> None:
    pattern, reason = REFUSED[name]
    found = check_affine(pattern.expr)
    assert found is not None
    assert reason in found[1]


def test_what_is_affine_is_accepted() -> None:
    weight = P(Indicator((j < 4).expr))
    pattern = (call("abs", 2 * i - j) <= table([1, 2], h % 2) * 64 + weight) & (i - j < m - n + P(Const(2)) * 3)
    assert check_affine(pattern.expr) is None


# ---- random patterns against brute force ---------------------------------------------------------------------------

small = st.integers(-9, 9)
divisors = st.integers(1, 7)


@st.composite
def numbers(draw: st.DrawFn, depth: int = 2) -> P:
    """A whole number that is affine in positions, lengths and the head."""
    kind = draw(st.integers(0, 11 if depth else 2))
    if kind <= 2:
        return draw(st.sampled_from([i, j, i - j, j - i, i + j, 2 * i - j, h - j, i - j + m - n]))
    inner = draw(numbers(depth=depth - 1))
    match kind:
        case 3 | 4:
            return inner // draw(divisors)
        case 5 | 6:
            return inner % draw(divisors)
        case 7:
            return inner * draw(st.integers(-2, 3)) + draw(small)
        case 8:
            return call("abs", inner)
        case 9:
            return call(draw(st.sampled_from(["min", "max"])), inner, draw(numbers(depth=depth - 1)))
        case 10:
            return choose(draw(atoms), inner, draw(small))
        case _:
            return inner - draw(numbers(depth=depth - 1))


@st.composite
def comparisons(draw: st.DrawFn) -> P:
    left = draw(numbers())
    right = draw(st.one_of(small, st.just(table([1, 3, 3], h % 3))))
    return draw(st.sampled_from([left < right, left <= right, left >= right, left.equals(right), left.differs(right)]))


atoms = st.one_of(
    st.builds(window, small, small),
    st.builds(lambda c, r: ((i - j) % c).equals(r % c), divisors, small),
    st.builds(lambda c, r: j % c >= r, divisors, st.integers(0, 6)),
    st.builds(lambda c, r: i % c < r, divisors, st.integers(0, 6)),
    st.builds(lambda c, r: call("abs", i // c - j // c) <= r, divisors, st.integers(0, 2)),
    st.builds(lambda g: j < g, small),
    st.builds(lambda g: i < g, small),
    st.builds(lambda a, b: (j >= a) & (j < a + b), small, divisors),
    st.builds(lambda a, b: (i >= a) & (i < a + b), small, divisors),
    st.builds(lambda g: (h % 2).equals(g), st.integers(0, 2)),
    st.just(causal),
)


def extended(inner: st.SearchStrategy[P]) -> st.SearchStrategy[P]:
    return st.one_of(
        st.builds(lambda one, other: one & other, inner, inner),
        st.builds(lambda one, other: one | other, inner, inner),
        st.builds(lambda one: ~one, inner),
        st.builds(choose, st.one_of(atoms, st.just(h < 1)), inner, inner),
    )


predicates = st.recursive(st.one_of(atoms, comparisons()), extended, max_leaves=5)


@dataclass(frozen=True)
class Call_:
    """A call's sizes: rows stand at q_start …, keys at k_start …"""

    n: int
    m: int
    q_start: int
    k_start: int
    block_rows: int
    block_columns: int


calls = st.builds(
    Call_,
    st.integers(1, 24),
    st.integers(1, 24),
    st.integers(-20, 30),
    st.integers(-5, 20),
    st.integers(1, 12),
    st.integers(1, 9),
)
HEADS = 3
SETTINGS = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # to shrink takes minutes
    suppress_health_check=list(HealthCheck),
)


def related(pattern: Expr, size: Call_, head: int) -> np.ndarray:
    """The mask by evaluating the pattern pair by pair."""
    symbols = {Name.HEAD: head, Name.HEADS: HEADS, Name.QUERIES: size.n, Name.KEYS: size.m}
    rows, keys = positions(size.q_start, size.n), positions(size.k_start, size.m)
    pairs = [[bool(evaluate(pattern, {**symbols, Name.I: row, Name.J: key})) for key in keys] for row in rows]
    return np.array(pairs, dtype=bool)


def positions(start: int, count: int) -> range:
    return range(start, start + count)


def check_sweep(
    segments: tuple[Segment, ...],
    mask: np.ndarray,
    fixed: tuple[int, int],
    swept: tuple[int, int],
    symbols: dict[Name, int],
) -> None:
    """Every related pair is visited once, and tiles without a mask have only related pairs."""
    (fixed_start, fixed_block), (swept_start, swept_block) = fixed, swept
    length = mask.shape[1]
    for start in range(0, mask.shape[0], fixed_block):
        lanes = mask[start : start + fixed_block]
        position = fixed_start + start
        ranges = tile_ranges(
            segments, position, position + len(lanes) - 1, swept_start, swept_start + length, swept_block, symbols
        )
        visited = np.zeros(-(-length // swept_block), dtype=int)
        for low, high, full_low, full_high in ranges:
            assert low <= full_low <= full_high <= high or low == high == full_low == full_high
            visited[low:high] += 1
            assert lanes[:, full_low * swept_block : full_high * swept_block].all()
            assert full_high * swept_block <= length or full_low == full_high
        assert visited.max(initial=0) <= 1
        for tile in np.flatnonzero(visited == 0):
            assert not lanes[:, tile * swept_block : (tile + 1) * swept_block].any()


def check_against_brute_force(pattern: P, size: Call_, budget: int) -> None:
    domain = analyse(pattern.expr, budget)
    for head in range(HEADS if Name.HEAD in names_in(pattern.expr) else 1):
        symbols = {Name.HEAD: head, Name.HEADS: HEADS, Name.QUERIES: size.n, Name.KEYS: size.m}
        (one,) = (each for each in domain.classes if evaluate(each.condition, symbols))
        mask = related(pattern.expr, size, head)
        pairs = counting.related_pairs(
            one.pattern, positions(size.q_start, size.n), positions(size.k_start, size.m), symbols
        )
        assert pairs == mask.sum()
        rows, columns = (size.q_start, size.block_rows), (size.k_start, size.block_columns)
        check_sweep(one.by_row, mask, rows, columns, symbols)
        check_sweep(one.by_column, mask.T, columns, rows, symbols)
        check_facts(one, mask, size)


def check_facts(one: HeadClass, mask: np.ndarray, size: Call_) -> None:
    distance = (size.q_start + np.arange(size.n))[:, None] - (size.k_start + np.arange(size.m))[None, :]
    facts = one.facts
    assert not facts.full or mask.all()
    assert not facts.empty or not mask.any()
    assert not facts.causal or (distance[mask] >= 0).all()
    assert not facts.self_related or mask[distance == 0].all()
    assert facts.reach_back is None or (distance[mask] <= facts.reach_back).all()
    assert facts.reach_ahead is None or (-distance[mask] <= facts.reach_ahead).all()
    if facts.shift is not None and facts.shift < min(mask.shape):
        assert (mask[facts.shift :, facts.shift :] == mask[: -facts.shift, : -facts.shift]).all()


@SETTINGS
@given(predicates, calls)
def test_ranges_agree_with_brute_force(pattern: P, size: Call_) -> None:
    check_against_brute_force(pattern, size, 100_000)


@SETTINGS
@given(predicates, calls, st.sampled_from([0, 0, 300, 3_000]))
def test_ranges_agree_with_brute_force_when_the_budget_ends(pattern: P, size: Call_, budget: int) -> None:
    check_against_brute_force(pattern, size, budget)


@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize("budget", [0, 100_000])
def test_named_patterns_agree_with_brute_force(name: str, budget: int) -> None:
    pattern, _ = BY_ROW[name]
    for size in (Call_(20, 110, 90, 0, 7, 16), Call_(25, 9, -16, 0, 5, 2)):
        check_against_brute_force(pattern, size, budget)


@pytest.mark.parametrize("budget", [0, 100_000])
@pytest.mark.parametrize("start", [-12, -3, 4, 15])
def test_no_pair_is_lost_where_two_segments_change_places(start: int, budget: int) -> None:
    # a strip of keys lies before the window of late rows and after that of early ones
    pattern = ((j >= start) & (j < start + 4)) | window(5)
    for block_columns in (1, 2, 4):
        check_against_brute_force(pattern, Call_(40, 60, -20, -30, 3, block_columns), budget)


# ---- counts and time -----------------------------------------------------------------------------------------------


def test_the_counts_of_a_causal_window_add_up() -> None:
    counts = tile_counts(analyse(window(63).expr), n=256, m=256, heads=2, block_rows=32, block_columns=32)
    assert counts.pairs == 2 * sum(min(row, 63) + 1 for row in range(256))
    # per row tile: its own tile and the oldest are masked, the one between is full
    assert (counts.touched, counts.full, counts.partial) == (2 * 21, 2 * 7, 2 * 14)


def test_counts_are_summed_over_head_classes() -> None:
    pattern = choose(h < 1, causal, window(3))
    counts = tile_counts(analyse(pattern.expr), n=64, m=64, heads=3, block_rows=16, block_columns=16)
    windowed = sum(min(row, 3) + 1 for row in range(64))
    assert counts.pairs == 64 * 65 // 2 + 2 * windowed
    assert counts.touched == 10 + 2 * 7


def test_counts_follow_the_offset_of_the_rows() -> None:
    domain = analyse(window(3).expr)
    assert tile_counts(domain, n=1, m=100, heads=1, block_rows=16, block_columns=16).pairs == 4
    assert tile_counts(domain, n=1, m=100, heads=1, block_rows=16, block_columns=16, q_start=1).pairs == 2


def test_counting_many_pairs_at_once_equals_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "PAIRS_AT_ONCE", 100)
    pattern = ~((call("min", i % 3, 5) > 0) & causal) | P(Indicator(window(2, 2).expr)).equals(call("clip", i, 0, 1))
    size = Call_(20, 31, -4, 3, 1, 1)
    counted = counting.related_pairs(pattern.expr, range(-4, 16), range(3, 34), {})
    assert counted == related(pattern.expr, size, 0).sum()


def test_a_typical_pattern_is_analysed_in_a_blink() -> None:
    analyse(causal.expr)
    for pattern, _ in BY_ROW.values():
        start = time.process_time()
        analyse(pattern.expr)
        # 30 ms are meant; the rest is for slow machines
        assert time.process_time() - start < 0.3
