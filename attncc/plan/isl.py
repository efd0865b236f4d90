"""isl behind a budget: trees over positions → proofs of emptiness, exact ends, largest distances.

Every question may go unanswered (None): then the caller keeps what it knows without isl, which is sound.
This is the only file that imports islpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import islpy as isl

from attncc.plan.linear import Linear, Quotient, Remainder, linear, names_read, number, quotient, variable
from attncc.plan.literals import ALWAYS, All, Any, Literal, Tree, all_of, negated
from attncc.plan.reach import Reach, reach_tree
from attncc.plan.terms import Term, extreme
from attncc.spec.expr import Name

_AXES = (Name.I, Name.J)
_MOST_PARTS = 3  # an end with more cases than this is not worth its text
_MOST_FLOORS = 2  # nor one with more floors, where nothing is known yet
_MOST_ATOMS = 8  # nor is one with more atoms than this

_TILE = Literal(variable(Name.LAST) - variable(Name.FIRST))
# what holds at every call: 0 <= h < H, n >= 1, m >= 1
_CALL = (
    Literal(variable(Name.HEAD)),
    Literal(variable(Name.HEADS) - 1),
    Literal(variable(Name.HEADS) - variable(Name.HEAD) - 1),
    Literal(variable(Name.QUERIES) - 1),
    Literal(variable(Name.KEYS) - 1),
)

Answer = TypeVar("Answer")


class _Frame:
    """An isl space with some axes as set dimensions: builds sets and functions in it, and reads functions back."""

    def __init__(self, context: isl.Context, parameters: tuple[Name, ...], axes: tuple[Name, ...]) -> None:
        names = [name.value for name in parameters]
        if axes:
            space = isl.Space.create_from_names(context, set=[name.value for name in axes], params=names)
        else:
            space = isl.Space.params_alloc(context, len(names))
            for index, name in enumerate(names):
                space = space.set_dim_name(isl.dim_type.param, index, name)
        self.axes = axes
        self._parameters = parameters
        self._universe = isl.Set.universe(space)
        self._zero = isl.Aff.zero_on_domain(isl.LocalSpace.from_space(space))
        self._symbols = {
            name: self._zero.set_coefficient_val(kind, index, 1)
            for kind, names_of_kind in ((isl.dim_type.param, parameters), (isl.dim_type.in_, axes))
            for index, name in enumerate(names_of_kind)
        }
        self._sets: dict[Tree, isl.Set] = {}

    def set_of(self, tree: Tree) -> isl.Set:
        """The values for which the tree holds."""
        known = self._sets.get(tree)
        if known is not None:
            return known
        match tree:
            case Literal(form=form):
                found = isl.Set.from_basic_set(self.function(form).ge_basic_set(self._zero))
            case All(parts=parts):
                found = self._universe
                # single comparisons first: they keep the product of the rest small
                for part in sorted(parts, key=lambda part: not isinstance(part, Literal)):
                    found = found.intersect(self.set_of(part))
            case Any(parts=parts):
                found = isl.Set.empty(self._universe.get_space())
                for part in parts:
                    found = found.union(self.set_of(part))
        self._sets[tree] = found
        return found

    def function(self, form: Linear) -> isl.Aff:
        """The form as an isl function."""
        total = self._zero.set_constant_val(form.constant)
        for atom, count in form.terms:
            match atom:
                case Name():
                    value = self._symbols[atom]
                case Quotient(numerator=numerator, divisor=divisor):
                    value = self.function(numerator).scale_down_val(divisor).floor()
                case Remainder(numerator=numerator, divisor=divisor):
                    value = self.function(numerator).mod_val(divisor)
            total = total.add(value.scale_val(count))
        return total

    def term(self, term: Term) -> isl.PwAff:
        """The term as a piecewise isl function."""
        if isinstance(term, Linear):
            return isl.PwAff.from_aff(self.function(term))
        total = self.term(term.parts[0])
        for part in term.parts[1:]:
            total = total.max(self.term(part)) if term.largest else total.min(self.term(part))
        return total

    def form(self, function: isl.Aff) -> Linear | None:
        """An isl function of the parameters as a form; None where its values are not plainly whole numbers."""
        total = _whole(function.get_constant_val())
        if total is None:
            return None
        result = number(total)
        for index, name in enumerate(self._parameters):
            count = _whole(function.get_coefficient_val(isl.dim_type.param, index))
            if count is None:
                return None
            result = result + variable(name).scaled(count)
        for index in range(function.dim(isl.dim_type.div)):
            count = _whole(function.get_coefficient_val(isl.dim_type.div, index))
            if count is None:
                return None
            if count:
                inner = self._floored(function.get_div(index))
                if inner is None:
                    return None
                result = result + inner.scaled(count)
        return result

    def _floored(self, function: isl.Aff) -> Linear | None:
        divisor = function.get_denominator_val().get_num_si()
        inner = self.form(function.scale_val(divisor))
        return None if inner is None else _centred_quotient(inner, divisor)


def _centred_quotient(form: Linear, divisor: int) -> Linear:
    """floor(form / divisor) with small coefficients: isl writes (63 x) // 64 for x - ceil(x / 64)."""
    outside = linear((atom, (2 * count + divisor - 1) // (2 * divisor)) for atom, count in form.terms)
    inside = form - outside.scaled(divisor)
    if inside.terms and inside.terms[0][1] < 0:
        # floor(-x / d) is -ceil(x / d)
        return outside - quotient(-inside + (divisor - 1), divisor)
    return outside + quotient(inside, divisor)


def _floors(term: Term) -> int:
    """How many quotients and remainders a term is written with."""
    if isinstance(term, Linear):
        return sum(not isinstance(atom, Name) for atom, _ in term.terms)
    return sum(_floors(part) for part in term.parts)


def _optimum(question: Callable[[], isl.PwAff]) -> isl.PwAff | None:
    """The optimum; None where the set goes on for ever in that direction (isl tells only by failing)."""
    try:
        return question()
    except isl.Error as error:
        if "unbounded" in str(error):
            return None
        raise


def _whole(value: isl.Val) -> int | None:
    # (not to_python: it prints, and a printer fails without saying so once the budget is spent)
    return value.get_num_si() if value.is_int() else None


class Prover:
    """Answers questions about trees over i, j, first, last and `parameters`, within a budget of operations."""

    def __init__(self, budget: int, parameters: frozenset[Name]) -> None:
        self._budget = budget
        self._context = isl.Context()
        known = (Name.FIRST, Name.LAST, *(name for name in Name if name in parameters))
        self._frames = {axes: _Frame(self._context, known, axes) for axes in (_AXES, _AXES[:1], _AXES[1:], ())}
        self._pairs = self._frames[_AXES]
        self._call = all_of(each for each in _CALL if names_read(each.form) <= parameters)
        self._exhausted = True

    @property
    def exhausted(self) -> bool:
        """Whether a question of the running step went unanswered for want of budget."""
        return self._exhausted

    def start(self, share: float) -> None:
        """Begin a step that may spend this share of the budget."""
        self._exhausted = self._budget <= 0
        self._context.reset_operations()
        self._context.set_max_operations(max(1, int(self._budget * share)))

    def empty(self, *trees: Tree) -> bool | None:
        """Whether no values of the symbols make all the trees true."""
        return self._ask(lambda: self._pairs.set_of(all_of((*trees, self._call))).is_empty())

    def empty_in_tile(self, *trees: Tree) -> bool | None:
        """The same where first <= last."""
        return self.empty(_TILE, *trees)

    def within(self, tree: Tree, other: Tree) -> bool | None:
        """Whether the first tree implies the second."""
        return self._ask(lambda: self._pairs.set_of(tree).is_subset(self._pairs.set_of(other)))

    def equal(self, tree: Tree, other: Tree) -> bool | None:
        """Whether two trees hold for the same positions."""
        return self._ask(lambda: self._pairs.set_of(tree).is_equal(self._pairs.set_of(other)))

    def largest(self, tree: Tree, form: Linear) -> int | None:
        """The largest value of a form where the tree holds; None where it is unbounded or unknown, or nothing holds."""
        return self._ask(
            lambda: _whole(self._pairs.set_of(all_of((tree, self._call))).max_val(self._pairs.function(form)))
        )

    def touched(self, tree: Tree, fixed: Name, swept: Name, known: Reach) -> Reach | None:
        """The narrowest interval around the swept positions that some lane is related to; `known` is one such."""
        return self._ask(lambda: self._interval(self._some_lane(tree, fixed), swept, known))

    def full(self, tree: Tree, fixed: Name, swept: Name, inside: Reach) -> Reach | None:
        """All positions of `inside` that every lane is related to, where they are one interval with printable ends."""

        def ask() -> Reach | None:
            frame = self._frames[(swept,)]
            window = frame.set_of(all_of((reach_tree(inside, swept), _TILE, self._call)))
            related = window.subtract(self._some_lane(negated(tree), fixed))
            found = self._interval(related, swept, inside)
            everything = frame.set_of(all_of((reach_tree(found, swept), _TILE, self._call)))
            return found if everything.is_subset(related) else None

        return self._ask(ask)

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        if self._exhausted:
            return None
        try:
            return question()
        except isl.Error:
            self._exhausted = True
            return None

    def _some_lane(self, tree: Tree, fixed: Name) -> isl.Set:
        """The swept positions for which the tree holds in some lane first … last."""
        lanes = Literal(variable(fixed) - variable(Name.FIRST)), Literal(variable(Name.LAST) - variable(fixed))
        inside = self._pairs.set_of(all_of((tree, *lanes, self._call)))
        return inside.project_out(isl.dim_type.set, _AXES.index(fixed), 1)

    def _interval(self, found: isl.Set, swept: Name, known: Reach) -> Reach:
        """The hull of a set of swept positions, its ends printed like those of `known` where these are exact."""
        low, high = known.low, known.high
        if found.is_empty():
            return Reach(number(1), number(0))
        if found.dim_has_lower_bound(isl.dim_type.set, 0):
            low = self._end(_optimum(lambda: found.dim_min(0)), low, lower=True)
        if found.dim_has_upper_bound(isl.dim_type.set, 0):
            high = self._end(_optimum(lambda: found.dim_max(0)), high, lower=False)
        always = self._frames[()].set_of(all_of((_TILE, self._call))).is_subset(found.params())
        return Reach(low, high, ALWAYS if always else known.when)

    def _end(self, exact: isl.PwAff | None, known: Term | None, *, lower: bool) -> Term | None:
        """An end of an interval: the known one in its shortest form where it is exact, else isl's own if printable."""
        if exact is None:
            return known
        if known is not None and self._equals(exact, known):
            return self._shortened(exact, known)
        pieces: list[Linear] = []
        for _, function in exact.get_pieces():
            form = self._frames[()].form(function)
            if form is None or len(pieces) == _MOST_PARTS:
                return known
            pieces.append(form)
        # an end that is a few positions nearer is not worth new floors: strides are bounded by their hull
        allowed = _MOST_FLOORS if known is None else _floors(known)
        if sum(len(form.terms) for form in pieces) > _MOST_ATOMS or sum(map(_floors, pieces)) > allowed:
            return known
        for largest in (lower, not lower):
            candidate = extreme(largest, pieces)
            if self._equals(exact, candidate):
                return candidate
        return known

    def _equals(self, exact: isl.PwAff, term: Term) -> bool:
        return bool(exact.ne_set(self._frames[()].term(term)).is_empty())

    def _shortened(self, exact: isl.PwAff, term: Term) -> Term:
        """The term without the parts that never decide it."""
        if isinstance(term, Linear):
            return term
        for part in term.parts:
            rest = extreme(term.largest, (other for other in term.parts if other != part))
            if self._equals(exact, rest):
                return self._shortened(exact, rest)
        return term
