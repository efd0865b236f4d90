"""Bounds atom by atom, without isl: literals → the positions a tile touches, and those related to all of its lanes.

A tile fixes the positions first … last of one axis (`fixed`) and sweeps the other (`swept`). Each literal bounds the
swept position from one side; a term that the tile does not settle is replaced by its extreme: towards more positions
for `touched`, towards fewer for `full`. So the result is always sound, and tight for the patterns people write.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from attncc.plan.linear import (
    Linear,
    Quotient,
    Remainder,
    linear,
    names_of,
    names_read,
    never_negative,
    number,
    quotient,
    variable,
)
from attncc.plan.literals import ALWAYS, NEVER, All, Any, Literal, Tree, all_of, any_of, conjunctions, literal, negated
from attncc.plan.reach import Reach, bounded, hull, is_short, plain_union
from attncc.plan.terms import Term, extreme
from attncc.spec.expr import Name

FIRST, LAST = variable(Name.FIRST), variable(Name.LAST)
MOST_PIECES = 16  # beyond this many disjuncts a conjunction is bounded part by part
_MOST_BOUNDS = 24  # bounds of one side that are compared with each other
_MOST_SUMMED = 8  # literals of a conjunction that are added in pairs
_MOST_ENDS = 3  # bounds of the fixed axis that are tried against each bound of the swept one


@dataclass(frozen=True)
class Piece:
    """A part of the pattern and what a tile needs of it."""

    tree: Tree
    touched: Reach
    full: Reach | None


def pieces_of(tree: Tree, fixed: Name, swept: Name) -> list[Piece]:
    """The pieces whose union is the tree: its disjuncts, as far as their number is reasonable."""
    products = conjunctions(tree, MOST_PIECES)
    if products is not None:
        pieces = [piece_of(product, fixed, swept) for product in products]
    elif isinstance(tree, Any):
        pieces = [piece for part in tree.parts for piece in pieces_of(part, fixed, swept)]
    else:
        assert isinstance(tree, All)
        parts = [pieces_of(part, fixed, swept) for part in tree.parts]
        if any(not part for part in parts):
            return []
        pieces = [_intersection(tree, [_hull_of_all(part) for part in parts])]
    pieces = [piece for piece in pieces if piece.touched.when != NEVER]
    return pieces if len(pieces) <= MOST_PIECES else [_hull_of_all(pieces)]


def piece_of(literals: tuple[Literal, ...], fixed: Name, swept: Name) -> Piece:
    """The bounds of a conjunction: of touched positions, and of those related to every lane."""
    forms = [each.form for each in literals]
    return Piece(
        all_of(literals),
        _touched([*forms, *_sums(forms)], fixed, swept),
        _full(forms, fixed, swept),
    )


def _sums(forms: list[Linear]) -> list[Linear]:
    """Forms implied by two others whose remainders cancel: from a + r <= c and a - r <= c follows a <= c."""
    rests = [linear(term for term in form.terms if isinstance(term[0], Remainder)) for form in forms]
    pairs = [
        forms[one] + forms[two]
        for one, two in combinations(range(len(forms[:_MOST_SUMMED])), 2)
        if rests[one].terms and rests[one] == -rests[two]
    ]
    return [found.form for found in map(literal, pairs) if isinstance(found, Literal)]


def _touched(forms: list[Linear], fixed: Name, swept: Name) -> Reach:
    solved = [solve(form, swept, generous=True) for form in forms]
    lane_forms = [form.rest for form in solved if form is not None and form.factor == 0]
    lows, highs = [FIRST], [LAST]
    for form in lane_forms:
        lane = solve(form, fixed, generous=True)
        if lane is not None and lane.factor:
            (lows if lane.factor > 0 else highs).append(lane.bound)
    ends = [(low, high) for low in lows[:_MOST_ENDS] for high in highs[:_MOST_ENDS]]
    bounds: tuple[list[Linear], list[Linear]] = ([], [])
    for each in solved:
        if each is None or each.factor == 0:
            continue
        for low, high in ends:
            moved = Solved(each.factor, over_lanes(each.rest, fixed, low, high, largest=True))
            bounds[each.factor < 0].append(moved.bound)
    when = all_of(
        [tile_condition(over_lanes(form, fixed, FIRST, LAST, largest=True)) for form in lane_forms]
        + [_some_lane(window, fixed) for window in _windows(lane_forms)]
    )
    return Reach(_narrowest(bounds[0], True), _narrowest(bounds[1], False), when)


def _full(forms: list[Linear], fixed: Name, swept: Name) -> Reach | None:
    bounds: tuple[list[Linear], list[Linear]] = ([], [])
    lane_forms: list[Linear] = []
    for form in forms:
        solved = solve(form, swept, generous=False)
        if solved is None:
            return None
        if solved.factor == 0:
            lane_forms.append(solved.rest)
            continue
        moved = Solved(solved.factor, over_lanes(solved.rest, fixed, FIRST, LAST, largest=False))
        bounds[solved.factor < 0].append(moved.bound)
    conditions: list[Tree] = []
    for form in lane_forms:
        window = _window(form)
        if window is None:
            conditions.append(tile_condition(over_lanes(form, fixed, FIRST, LAST, largest=False)))
        else:
            conditions += [negated(_some_lane(outside, fixed)) for outside in window.outside()]
    when = all_of(conditions)
    if when == NEVER or max(map(len, bounds)) > _MOST_BOUNDS:
        return None
    return Reach(_narrowest(bounds[0], True), _narrowest(bounds[1], False), when)


def _narrowest(bounds: list[Linear], low: bool) -> Term | None:
    # leaving out a bound only widens what is touched; `_full` asks for few enough to keep them all
    return extreme(low, list(dict.fromkeys(bounds))[:_MOST_BOUNDS]) if bounds else None


@dataclass(frozen=True)
class Solved:
    """factor * position + rest >= 0"""

    factor: int
    rest: Linear

    @property
    def bound(self) -> Linear:
        """The least (factor > 0) or the largest (factor < 0) position."""
        return -quotient(self.rest, self.factor) if self.factor > 0 else quotient(self.rest, -self.factor)


def solve(form: Linear, name: Name, *, generous: bool) -> Solved | None:
    """`form >= 0` for one position; its remainders are replaced by an extreme (generous: the largest value)."""
    rest = Linear(tuple(term for term in form.terms if name not in names_of(term[0])), form.constant)
    found = [term for term in form.terms if name in names_of(term[0]) and not isinstance(term[0], Remainder)]
    for atom, count in form.terms:
        if isinstance(atom, Remainder) and name in names_of(atom):
            reach = count * (atom.divisor - 1)
            rest = rest + (max(reach, 0) if generous else min(reach, 0))
    match found:
        case []:
            return Solved(0, rest)
        case [(Name(), count)]:
            return Solved(count, rest)
        case [(Quotient(numerator=numerator, divisor=divisor), count)]:
            # c * (u // d) + r >= 0: u >= d * ceil(-r / c), or, for c < 0, u < d * (r // -c + 1)
            if count > 0:
                return solve(numerator + quotient(rest, count).scaled(divisor), name, generous=generous)
            inner = quotient(rest, -count).scaled(divisor) + (divisor - 1)
            return solve(inner - numerator, name, generous=generous)
    return None


def over_lanes(form: Linear, fixed: Name, low: Linear, high: Linear, *, largest: bool) -> Linear:
    """A bound of the form over the lanes low … high that no longer reads the lane."""
    if fixed not in names_read(form):
        return form
    total = number(form.constant)
    for atom, count in form.terms:
        upwards = (count > 0) == largest
        match atom:
            case _ if fixed not in names_of(atom):
                value = Linear(((atom, 1),), 0)
            case Name():
                value = high if upwards else low
            case Quotient(numerator=numerator, divisor=divisor):
                value = quotient(over_lanes(numerator, fixed, low, high, largest=upwards), divisor)
            case Remainder(divisor=divisor):
                value = number(divisor - 1 if upwards else 0)
        total = total + value.scaled(count)
    return total


@dataclass(frozen=True)
class _Window:
    """low <= remainder <= high"""

    remainder: Remainder
    low: int
    high: int

    def outside(self) -> list[_Window]:
        """The remainders that are not in the window."""
        below = _Window(self.remainder, 0, self.low - 1)
        above = _Window(self.remainder, self.high + 1, self.remainder.divisor - 1)
        return [window for window in (below, above) if window.low <= window.high]


def _window(form: Linear) -> _Window | None:
    """`form >= 0` as a window of one remainder."""
    match form.terms:
        case ((Remainder() as rest, count),):
            if count > 0:
                return _Window(rest, max(-(form.constant // count), 0), rest.divisor - 1)
            return _Window(rest, 0, min(form.constant // -count, rest.divisor - 1))
    return None


def _windows(forms: list[Linear]) -> list[_Window]:
    joined: dict[Remainder, _Window] = {}
    for form in forms:
        window = _window(form)
        if window is not None:
            known = joined.get(window.remainder, window)
            low, high = max(known.low, window.low), min(known.high, window.high)
            joined[window.remainder] = _Window(window.remainder, low, high)
    return list(joined.values())


def _some_lane(window: _Window, fixed: Name) -> Tree:
    """Whether the remainder falls into the window for some lane (for some value between the outer lanes' values)."""
    if window.low > window.high:
        return NEVER
    start = over_lanes(window.remainder.numerator, fixed, FIRST, LAST, largest=False)
    stop = over_lanes(window.remainder.numerator, fixed, FIRST, LAST, largest=True)
    divisor = window.remainder.divisor
    return tile_condition(quotient(stop - window.low, divisor) - quotient(start - (window.high + 1), divisor) - 1)


def tile_condition(form: Linear) -> Tree:
    """`form >= 0` for a tile, decided where first <= last decides it."""
    if never_negative(form):
        return ALWAYS
    return NEVER if never_negative(-form - 1) else literal(form)


def _intersection(tree: Tree, pieces: list[Piece]) -> Piece:
    touched = _meet([piece.touched for piece in pieces])
    fulls = [piece.full for piece in pieces if piece.full is not None]
    return Piece(tree, bounded(touched), _short(_meet(fulls)) if len(fulls) == len(pieces) else None)


def _meet(reaches: list[Reach]) -> Reach:
    lows = [reach.low for reach in reaches if reach.low is not None]
    highs = [reach.high for reach in reaches if reach.high is not None]
    return Reach(
        extreme(True, lows) if lows else None,
        extreme(False, highs) if highs else None,
        all_of(reach.when for reach in reaches),
    )


def _hull_of_all(pieces: list[Piece]) -> Piece:
    total = pieces[0]
    for piece in pieces[1:]:
        fulls = [full for full in (total.full, piece.full) if full is not None]
        union = plain_union(fulls[0], fulls[1]) if len(fulls) == 2 else None
        # of two runs that do not join, keep the one that is open on more sides
        full = union or max(fulls, key=_openness, default=None)
        total = Piece(any_of((total.tree, piece.tree)), bounded(hull((total.touched, piece.touched))), _short(full))
    return total


def _short(full: Reach | None) -> Reach | None:
    return full if full is not None and is_short(full) else None


def _openness(reach: Reach) -> int:
    return (reach.when == ALWAYS) + (reach.low is None) + (reach.high is None)
