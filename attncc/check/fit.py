"""Which sizes a spec can be called with: tables, lists of constants and widths that have to agree limit them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import lcm

import torch

from attncc.check.given import check_widths, fields_read, sides_of
from attncc.check.oracle import OutsideTable, dense
from attncc.check.sizes import Case, arguments, cases, per_batch, shape_of
from attncc.spec.choices import choices_of
from attncc.spec.data import Data, Size
from attncc.spec.expr import (
    TRUE,
    AtRow,
    Binary,
    BinaryOp,
    Const,
    Dot,
    Entry,
    Expr,
    Let,
    Name,
    Negate,
    Or,
    Reduce,
    Symbol,
    Top,
    Vector,
    walk,
)
from attncc.spec.model import Spec

_HEADS = ((2, 2), (4, 2), (6, 1))
_WIDTHS = (64, 1, 8, 40, 72, 128)
_VALUE_WIDTHS = ("d", "wider", "narrower")
_NARROW = 40  # where states have the third power of the width
_LENGTHS = (31, 17, 9, 7, 5, 3, 2, 1)
_WHOLES = range(16)
_OF_PAIRS = (63, 1, 7, 130)  # lengths where vectors of pairs make [B, H, n, m, features] numbers
_TINY = Case(batch=1, heads=1, kv_heads=1, n=1, m=1, d=1, e=1, dtype=torch.float64, name="tiny")


@lru_cache(maxsize=64)
def cases_of(spec: Spec, seed: int = 0, quick: bool = False) -> tuple[Case, ...]:
    """The cases of a check that the spec's data allow."""
    widths, value_widths = _widths(spec)
    limits: dict[str, tuple[object, ...]] = {"d": widths, "e": value_widths}
    if _has_vectors_of_pairs(spec):
        limits["n"] = _OF_PAIRS
    step = step_of_blocks(spec)
    if step > 1:  # the first key begins a block
        limits["k_start"] = (0, step, 3 * step)
    if max(_most_dots(core.weight, core.score) for core in spec.cores) > 2:
        limits["d"] = tuple(each for each in widths if each <= _NARROW) or widths
    return cases(
        seed,
        quick,
        head_counts(spec),
        scale=spec.reads_scale,
        limits=limits,
        fits=(lambda case: fits(spec, case)) if reads_tables(spec) else None,
        lengths=lengths_of_tables(spec),
    )


def step_of_blocks(spec: Spec) -> int:
    """Of how many keys the first one has to stand at a multiple."""
    chosen = (each.let.value for each in choices_of(spec))
    return lcm(
        *(core.blocks.stride for core in spec.cores if core.blocks is not None),
        *(each.block for each in chosen if isinstance(each, Top)),
    )


def fits(spec: Spec, case: Case) -> bool:
    """Whether the first key begins a block, and indices lie in their tables.

    Those that one token decides have to everywhere, those of both at related pairs.
    """
    if case.k_start % step_of_blocks(spec):
        return False
    if not reads_tables(spec):
        return True
    d, e = fitting_widths(spec)
    shared = not any(isinstance(each, tuple) for each in (case.q_start, case.kv_lengths))
    places = replace(_TINY, heads=case.heads, n=case.n, m=case.m, q_start=case.q_start, k_start=case.k_start)
    return _fits(spec, replace(places, batch=1 if shared else case.batch, d=d, e=e, kv_lengths=case.kv_lengths))


def fits_everywhere(spec: Spec, case: Case) -> bool:
    """Whether indices lie in their tables for every row, key and distance of the call, related or not."""
    branches = tuple((name, replace(each, pattern=Or((each.pattern, TRUE)))) for name, each in spec.branches)
    everywhere = replace(spec, pattern=Or((spec.pattern, TRUE)), branches=branches)  # its indices are looked at
    return fits(everywhere, replace(case, n=max(case.n, 1), m=max(case.m, 1), kv_lengths=None))


@lru_cache(maxsize=4096)
def _fits(spec: Spec, case: Case) -> bool:
    try:
        with torch.no_grad():
            dense(spec, *_zeros(spec, case), **arguments(case, per_batch(case)))  # type: ignore[arg-type]
    except OutsideTable:
        return False
    return True


def _zeros(spec: Spec, case: Case, wholes: dict[str, int] | None = None) -> Iterator[torch.Tensor]:
    """Data of nothing but 0; whole numbers that are an index may have to be others."""
    if wholes is None:
        wholes = {name: values[0] for name, values in whole_values(spec).items()}
    for each in spec.data:
        shape = shape_of(each, case)
        match each:
            case Data(whole=True):
                yield torch.full(shape, wholes.get(each.name, 0))
            case Data(truth=True):
                yield torch.zeros(shape, dtype=torch.bool)
            case _:
                yield torch.zeros(shape, dtype=torch.float64)


@lru_cache(maxsize=64)
def whole_values(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Which small values declared whole numbers may have; empty where there are none, or where no value is seen to fit.

    Each is tried alone, beside others that fit: an index that two of them decide together may still lie outside.
    """
    names = [each.name for each in spec.data if each.whole]
    d, e = fitting_widths(spec)

    def serve(wholes: dict[str, int]) -> bool:
        try:
            with torch.no_grad():
                dense(spec, *_zeros(spec, replace(_TINY, d=d, e=e), wholes))
        except ValueError:
            return False
        return True

    first = next((value for value in _WHOLES if serve(dict.fromkeys(names, value))), None) if names else None
    if first is None:
        return {}
    usual = dict.fromkeys(names, first)
    return {name: tuple(value for value in _WHOLES if serve(usual | {name: value})) for name in names}


def fitted(spec: Spec, case: Case) -> Case | None:
    """The longest case with the same proportions that fits, and with widths that fit; None where there is none."""
    if not _widths_agree(spec, case):
        widths, words = _widths(spec)
        d = 8 if 8 in widths else widths[0]
        case = replace(case, d=d, e=_value_width(words[0], d))
    for n in (case.n, *sorted((each for each in lengths_of_tables(spec) if each < case.n), reverse=True)):
        shorter = _shortened(case, n)
        if fits(spec, shorter):
            return shorter
    return None


def _shortened(case: Case, n: int) -> Case:
    m = case.m * n // case.n

    def cut(lengths: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        if isinstance(lengths, tuple):
            return tuple(each * n // case.n for each in lengths)
        return None if lengths is None else lengths * n // case.n

    return replace(case, n=n, m=m, kv_lengths=cut(case.kv_lengths))


def reads_tables(spec: Spec) -> bool:
    """Whether declared data are indexed by something else than the head along the axis of heads, or keys by queries."""
    axes = {each.name: each.indexed for each in spec.data}
    return any(isinstance(node, AtRow) for node in _nodes(spec)) or any(
        index != Symbol(Name.HEAD) or axis is not Size.HEADS
        for node in _nodes(spec)
        if isinstance(node, Entry)
        for index, axis in zip(node.indices, axes[node.name], strict=False)
    )


def lengths_of_tables(spec: Spec) -> tuple[int, ...]:
    """Lengths to try where tables end: theirs, one less and half of it, and small ones."""
    sizes = {axis for each in spec.data if not each.is_token for axis in each.axes if isinstance(axis, int)}
    near = {length for size in sizes for length in (size, size - 1, (size + 1) // 2, size // 2)}
    return tuple(sorted((near | set(_LENGTHS)) - {0, -1}))


@lru_cache(maxsize=64)
def head_counts(spec: Spec) -> tuple[tuple[int, int], ...]:
    """The pairs (heads, kv_heads) to run: lists of constants and tables may limit the number of heads."""
    d, e = fitting_widths(spec)

    def fits_heads(heads: int) -> bool:
        case = replace(_TINY, heads=heads, kv_heads=heads, d=d, e=e)
        try:
            dense(spec, *_zeros(spec, case))
        except ValueError:
            return False
        return True

    usual = tuple(pair for pair in _HEADS if fits_heads(pair[0]))
    if usual:
        return usual
    most = max(filter(fits_heads, range(1, 65)), default=None)
    return _HEADS if most is None else ((most, most), (most, 1))


# Widths


def _widths(spec: Spec) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Widths d, and values of e as words, for which vectors that meet have the same number of features."""
    fixed = sorted(
        {axis * factor for each in spec.data for axis in each.axes if isinstance(axis, int) for factor in (1, 2)}
    )
    for candidates in (_WIDTHS, tuple(fixed)):
        widths = tuple(d for d in candidates if any(_agrees(spec, d, word) for word in _VALUE_WIDTHS))
        words = tuple(word for word in _VALUE_WIDTHS if all(_agrees(spec, d, word) for d in widths))
        if widths and words:
            return widths, words
    return _WIDTHS, _VALUE_WIDTHS


def _agrees(spec: Spec, d: int, word: str) -> bool:
    return _widths_agree(spec, replace(_TINY, d=d, e=_value_width(word, d)))


def _value_width(word: str, d: int) -> int:
    return {"d": d, "wider": d + 16, "narrower": max(1, d // 2)}[word]


def _widths_agree(spec: Spec, case: Case) -> bool:
    try:
        check_widths(spec, {each.name: torch.Size(shape_of(each, case)) for each in spec.data})
    except ValueError:
        return False
    return True


def fitting_widths(spec: Spec) -> tuple[int, int]:
    """Small widths that agree, for calls whose values do not matter."""
    if _widths_agree(spec, _TINY):
        return 1, 1
    widths, words = _widths(spec)
    d = min(widths)
    return d, _value_width(words[0], d)


# What a spec reads


def _nodes(spec: Spec) -> Iterator[Expr]:
    for expr in fields_read(spec):
        yield from walk(expr)


def _has_vectors_of_pairs(spec: Spec) -> bool:
    data = {each.name: each for each in spec.data}
    vectors = (
        vector
        for node in _nodes(spec)
        if isinstance(node, Dot | Reduce)
        for vector in ((node.left, node.right) if isinstance(node, Dot) else (node.vector,))
    )
    return any(sides_of(each, data) == (True, True) for each in vectors)


def _most_dots(expr: Expr, score: Expr) -> int:
    """How many dot products a polynomial multiplies: its features by states are as many as that power of the width."""
    match expr:
        case Dot() | Reduce():
            return 1
        case Symbol(name=Name.SCORE):
            return _most_dots(score, score)
        case Binary(op=BinaryOp.ADD | BinaryOp.SUBTRACT, left=left, right=right):
            return max(_most_dots(left, score), _most_dots(right, score))
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
            return _most_dots(left, score) + _most_dots(right, score)
        case Binary(op=BinaryOp.DIVIDE, left=inner) | Negate(operand=inner) | Let(value=inner):
            return _most_dots(inner, score)
        case Binary(op=BinaryOp.POWER, left=left, right=Const(value=int(power))):
            return _most_dots(left, score) * power
        case _:
            return 0


def rounds_vectors(spec: Spec) -> bool:
    """Whether products are of vectors that the spec derives, which are rounded to the type of q once more."""
    data = {each.name: each for each in spec.data}
    return any(
        (isinstance(node, Dot) and not (isinstance(node.left, Vector) and isinstance(node.right, Vector)))
        or (isinstance(node, Reduce) and sides_of(node.vector, data) == (True, True))
        for node in _nodes(spec)
    )
