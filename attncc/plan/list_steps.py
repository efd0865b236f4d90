"""How lists of tiles come about, as recorded steps, and why other laws do not apply where data decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attncc.plan.derivation import OWN_ROWS, SPLIT_UNION
from attncc.plan.describe import interval_text
from attncc.plan.in_pieces import SUM_FIRST
from attncc.plan.lists import Blocks, Bound, Lists, Pass, Runs
from attncc.plan.ranges import Interval
from attncc.rewrite.engine import Refusal, Step
from attncc.spec.expr import Expr
from attncc.spec.text import text

SEARCH_RUNS = "where a number ascends with the keys, those that a comparison allows are a run, found by two searches."
SORT_BY_KEY = "in the order of a number that is compared, the keys of a row are a run, and neighbours share it."
GATHER_KEYS = "keys that a predicate of their own chooses stand side by side, and keys that none chooses are left out."
LIST_TILES = "when data are known, the tiles of keys that a tile of rows meets are listed; no others are visited."


def list_steps(lists: Lists, pattern: Expr) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """The steps by which a pattern that reads data became lists of tiles, and why others were not taken."""
    found = (
        _split_union(lists, pattern),
        _search_runs(lists),
        _sort_by_key(lists),
        _gather_keys(lists),
        _own_rows(lists),
        _list_tiles(lists),
    )
    return (
        tuple(step for step in found if isinstance(step, Step)),
        tuple(refusal for refusal in found if isinstance(refusal, Refusal)),
    )


def _split_union(lists: Lists, pattern: Expr) -> Step | Refusal:
    if lists.in_one:
        return Refusal("split-union", SPLIT_UNION, SUM_FIRST)
    if len(lists.passes) == 1:
        return Refusal("split-union", SPLIT_UNION, "all pairs are met in one order of rows and keys")
    after = tuple(f"related = {text(each.pattern)}" for each in lists.passes)
    return Step("split-union", SPLIT_UNION, (f"related = {text(pattern)}",), after)


def _search_runs(lists: Lists) -> Step | Refusal:
    searched = [each for one in lists.passes for each in one.runs if any(_ascending(lists, each))]
    if not searched:
        return Refusal("search-runs", SEARCH_RUNS, "the pattern compares no number that ascends with the keys")
    before = tuple(f"related = {text(each.pattern)}" for each in searched)
    after = tuple(f"keys with {' and '.join(_bound_texts(_ascending(lists, each)))} are a run" for each in searched)
    return Step("search-runs", SEARCH_RUNS, before, after)


def _sort_by_key(lists: Lists) -> Step | Refusal:
    ordered = [each for each in lists.passes if each.order is not None]
    if not ordered:
        return Refusal("sort-by-key", SORT_BY_KEY, "no number that is compared has to be sorted by")
    after = []
    for each in ordered:
        assert each.order is not None
        equal = ", and of their places where these are equal" if each.order.alike else ""
        after.append(f"rows in the order of {text(each.order.row)}, keys in that of {each.order.fact}{equal}")
    return Step("sort-by-key", SORT_BY_KEY, tuple(f"related = {text(each.pattern)}" for each in ordered), tuple(after))


def _gather_keys(lists: Lists) -> Step | Refusal:
    gathered = [each for each in lists.passes if each.alive is not None or each.apart is not None]
    if not gathered:
        return Refusal("gather-keys", GATHER_KEYS, "no predicate of keys alone decides about all of a pass")
    after = tuple(line for each in gathered for line in _gathered(each))
    return Step("gather-keys", GATHER_KEYS, tuple(f"related = {text(each.pattern)}" for each in gathered), after)


def _gathered(one: Pass) -> Iterator[str]:
    if one.alive is not None:
        yield f"keys where {text(one.alive)} stand side by side, and no others"
    if one.apart is not None:
        yield f"keys where {text(one.apart)} stand side by side, after the others"


def _own_rows(lists: Lists) -> Step | Refusal:
    apart = [each for each in lists.passes if each.rows_first is not None]
    if not apart:
        return Refusal("own-rows", OWN_ROWS, "no predicate of rows alone tells rows apart")
    before = tuple(f"related = {text(each.pattern)}" for each in apart)
    after = tuple(f"rows {rows_text(each)}" for each in apart)
    return Step("own-rows", OWN_ROWS, before, after)


def _list_tiles(lists: Lists) -> Step:
    before = ("sum over all keys",)
    after = tuple(f"{text(each.pattern)}: {runs_text(each)}" for one in lists.passes for each in one.runs)
    return Step("list-tiles", LIST_TILES, before, after)


def rows_text(one: Pass) -> str:
    """How the rows of a pass stand."""
    if one.order is not None:
        return f"in the order of {text(one.order.row)}"
    first = "" if one.rows_first is None else f", or those where {text(one.rows_first)} first if that saves tiles"
    return f"as they stand{first}"


def keys_text(one: Pass) -> str:
    """How the keys of a pass stand, and which are left out."""
    left = f", only those where {text(one.alive)}" if one.alive is not None else ""
    if one.order is not None:
        return f"in the order of {one.order.fact}{left}"
    apart = f", then those where {text(one.apart)} side by side" if one.apart is not None else ""
    return f"as they stand{left}{apart}"


def runs_text(runs: Runs) -> str:
    """Which keys a conjunction names for the rows first … last of a tile, as far as it is known before data are."""
    named = [
        f"keys in blocks where {text(each.holds)}" if isinstance(each, Blocks) else f"keys that {each.of} names"
        for each in runs.blocks
    ]
    named += [f"keys with {each}" for each in _bound_texts(runs.bounds)]
    touched = [segment.touched for each in runs.classes for segment in each.by_row]
    if touched and Interval(None, None) not in touched:
        named.append(", ".join(dict.fromkeys(map(interval_text, touched))))
    if runs.keys:
        named.append(f"keys where {' & '.join(map(text, runs.keys))}")
    if not named:
        named.append("all keys")
    rows = f", for rows where {' & '.join(map(text, runs.rows))}" if runs.rows else ""
    return f"{', of these '.join(named)}{rows}"


def _ascending(lists: Lists, runs: Runs) -> list[Bound]:
    return [each for each in runs.bounds if each.of is not None and each.of in lists.ascending]


def _bound_texts(bounds: Sequence[Bound]) -> list[str]:
    """What bounds say of a key, two that make an equation as one."""
    found: dict[str, None] = {}
    for each in bounds:
        own = each.of, each.value, False
        ends = {other.lower for other in bounds if (other.of, other.value, other.strict) == own}
        sign = "==" if len(ends) == 2 else (">" if each.lower else "<") + "=" * (not each.strict)
        found[f"{each.of or 'j'} {sign} {text(each.value)}"] = None
    return list(found)


def with_lists(
    lists: Lists, pattern: Expr, steps: tuple[Step, ...], refusals: tuple[Refusal, ...]
) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """The steps of a pattern's outer domain, with those of lists in place of pieces, and without what these replace."""
    own, not_own = list_steps(lists, pattern)
    last = tuple(each for each in steps if each.law == "one-sweep")
    first = tuple(each for each in steps if each not in last)
    replaced = {step.law for step in own} | {refusal.law for refusal in not_own}
    left = tuple(each for each in refusals if each.law not in replaced)
    return (*first, *own, *last), (*not_own, *left)
