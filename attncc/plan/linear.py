"""Whole-number linear forms over positions, lengths, quotients and remainders: the alphabet of index analysis.

`Linear` is a normal form, so equal bounds look equal. It can be bounded over a tile, moved and evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from attncc.spec.expr import Name


@dataclass(frozen=True)
class Quotient:
    """floor(numerator / divisor), divisor > 1."""

    numerator: Linear
    divisor: int

    @cached_property
    def key(self) -> str:
        """A text that orders atoms the same way on every machine."""
        return f"~({self.numerator.key})//{self.divisor}"


@dataclass(frozen=True)
class Remainder:
    """numerator modulo divisor, in 0 … divisor - 1."""

    numerator: Linear
    divisor: int

    @cached_property
    def key(self) -> str:
        """A text that orders atoms the same way on every machine."""
        return f"~({self.numerator.key})%{self.divisor}"


Atom = Name | Quotient | Remainder


@dataclass(frozen=True)
class Linear:
    """The sum of coefficient * atom over `terms`, plus `constant`; built by `linear`, which sorts and merges."""

    terms: tuple[tuple[Atom, int], ...]
    constant: int

    @cached_property
    def key(self) -> str:
        """A text that orders forms the same way on every machine."""
        return " ".join([*(f"{factor}*{atom_key(atom)}" for atom, factor in self.terms), str(self.constant)])

    def __hash__(self) -> int:
        return hash(self.key)  # a string remembers its hash; forms are looked up often

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.terms, self.constant + other)
        if not self.terms or not other.terms:  # nothing to merge
            return Linear(self.terms or other.terms, self.constant + other.constant)
        return linear((*self.terms, *other.terms), self.constant + other.constant)

    def __neg__(self) -> Linear:
        return self.scaled(-1)

    def __sub__(self, other: Linear | int) -> Linear:
        return self + (-other)

    def scaled(self, factor: int) -> Linear:
        """The form times a whole number."""
        if factor == 1:
            return self
        if factor == 0:
            return Linear((), 0)
        return Linear(tuple((atom, count * factor) for atom, count in self.terms), self.constant * factor)


def atom_key(atom: Atom) -> str:
    """Names first, then quotients and remainders."""
    return atom.value if isinstance(atom, Name) else atom.key


def linear(terms: Iterable[tuple[Atom, int]], constant: int = 0) -> Linear:
    """The normal form of a sum of terms."""
    total: dict[Atom, int] = {}
    for atom, count in terms:
        total[atom] = total.get(atom, 0) + count
    kept = [(atom, count) for atom, count in total.items() if count]
    if len(kept) > 1:
        kept.sort(key=lambda term: atom_key(term[0]))
    return Linear(tuple(kept), constant)


def number(value: int) -> Linear:
    """A constant."""
    return Linear((), value)


def variable(name: Name) -> Linear:
    """A single symbol."""
    return Linear(((name, 1),), 0)


def quotient(form: Linear, divisor: int) -> Linear:
    """floor(form / divisor): multiples of the divisor are taken out, common factors cancelled."""
    if divisor == 1:
        return form
    outside = [(atom, count // divisor) for atom, count in form.terms if count % divisor == 0]
    inside = Linear(tuple(term for term in form.terms if term[1] % divisor), form.constant % divisor)
    whole = linear(outside, form.constant // divisor)
    if not inside.terms:
        return whole
    common = gcd(divisor, *(count for _, count in inside.terms))
    if common > 1:
        inside = Linear(tuple((atom, count // common) for atom, count in inside.terms), inside.constant // common)
        return whole + quotient(inside, divisor // common)
    match inside.terms:
        case ((Quotient(numerator=numerator, divisor=inner), 1),):
            # (x // a + k) // b is (x + k a) // (a b)
            return whole + quotient(numerator + inside.constant * inner, inner * divisor)
    low, high = value_range(inside)
    if low is not None and high is not None and low // divisor == high // divisor:
        return whole + low // divisor
    if all(count < 0 for _, count in inside.terms):
        # floor(-x / d) is -ceil(x / d), that is -floor((x + d - 1) / d)
        return whole - quotient(-inside + (divisor - 1), divisor)
    return whole + Linear(((Quotient(inside, divisor), 1),), 0)


def remainder(form: Linear, divisor: int) -> Linear:
    """form modulo divisor: multiples of the divisor are dropped."""
    # the sign of a coefficient is kept, so that i - j stays i - j
    kept = [(atom, count % divisor if count > 0 else -(-count % divisor)) for atom, count in form.terms]
    inside = linear(kept, form.constant % divisor)
    low, high = value_range(inside)
    if low is not None and high is not None and low // divisor == high // divisor:
        return inside - divisor * (low // divisor)
    match inside:
        case Linear(terms=((Remainder(numerator=numerator, divisor=inner), 1),), constant=0) if inner % divisor == 0:
            return remainder(numerator, divisor)
    return Linear(((Remainder(inside, divisor), 1),), 0)


def value_range(form: Linear) -> tuple[int | None, int | None]:
    """The least and the largest value that the form can take, whatever the symbols are (None: unbounded)."""
    low = high = form.constant
    for atom, count in form.terms:
        if not isinstance(atom, Remainder):
            return None, None
        reach = count * (atom.divisor - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def names_of(atom: Atom) -> frozenset[Name]:
    """The symbols that an atom reads."""
    if isinstance(atom, Name):
        return frozenset({atom})
    return frozenset().union(*(names_of(inner) for inner, _ in atom.numerator.terms))


def names_read(form: Linear) -> frozenset[Name]:
    """The symbols that a form reads."""
    return frozenset().union(*(names_of(atom) for atom, _ in form.terms))


def substitute_names(form: Linear, values: Mapping[Name, Linear]) -> Linear:
    """The form with symbols replaced by forms."""
    total = number(form.constant)
    for atom, count in form.terms:
        match atom:
            case Name():
                value = values.get(atom, Linear(((atom, 1),), 0))
            case Quotient(numerator=numerator, divisor=divisor):
                value = quotient(substitute_names(numerator, values), divisor)
            case Remainder(numerator=numerator, divisor=divisor):
                value = remainder(substitute_names(numerator, values), divisor)
        total = total + value.scaled(count)
    return total


def value_at(form: Linear, values: Mapping[Name, int]) -> int:
    """The value of the form for given symbols."""
    total = form.constant
    for atom, count in form.terms:
        match atom:
            case Name():
                total += count * values[atom]
            case Quotient(numerator=numerator, divisor=divisor):
                total += count * (value_at(numerator, values) // divisor)
            case Remainder(numerator=numerator, divisor=divisor):
                total += count * (value_at(numerator, values) % divisor)
    return total


def never_negative(form: Linear) -> bool:
    """Whether form >= 0 follows from first <= last, h >= 0, n, m >= 0, H >= 1 and the ranges of remainders."""
    return _never_negative(form) or _never_negative(with_remainders(form))


def _never_negative(form: Linear) -> bool:
    least = form.constant
    ends: dict[Name, int] = {}
    steps: list[tuple[Quotient, int]] = []
    for atom, count in form.terms:
        match atom:
            case Name.FIRST | Name.LAST:
                ends[atom] = count
            case Name():
                if count < 0 or atom in (Name.I, Name.J):
                    return False
                least += count if atom is Name.HEADS else 0
            case Remainder(divisor=divisor):
                least += min(0, count * (divisor - 1))
            case Quotient():
                steps.append((atom, count))
    if least < 0 or ends.get(Name.LAST, 0) < 0 or sum(ends.values()) != 0:
        return False
    if not steps:
        return True
    # c * (u // d) - c * (v // d) with c > 0 and u >= v; one such pair is all that bounds need
    if len(steps) != 2:
        return False
    (one, factor), (two, opposite) = steps
    if factor < 0:
        one, factor, two, opposite = two, opposite, one, factor
    return factor + opposite == 0 and one.divisor == two.divisor and _never_negative(one.numerator - two.numerator)


def with_remainders(form: Linear) -> Linear:
    """The form with d * (u // d) written as u - u % d."""
    total = number(form.constant)
    for atom, count in form.terms:
        if isinstance(atom, Quotient) and count % atom.divisor == 0:
            rest = atom.numerator - remainder(atom.numerator, atom.divisor)
            total = total + rest.scaled(count // atom.divisor)
        else:
            total = total + Linear(((atom, count),), 0)
    return total
