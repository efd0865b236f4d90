"""Lengths of axes in symbols: sums of products of parameters and run-time lengths, of blocks of these, and of some.

Two axes fit where their lengths are the same sum. A quotient such as `dim / heads` is a product with a negative power;
that it is a whole number is demanded of the parameters when a module is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

RUN_TIME = ("n", "m")  # lengths of sequences, which the call decides


@dataclass(frozen=True, slots=True)
class Ceil:
    """How many blocks of `by` neighbours cover `of`; the last one may be shorter."""

    of: Dim
    by: Dim


@dataclass(frozen=True, slots=True)
class Least:
    """So many of `of`, or all where there are fewer."""

    of: Dim
    most: Dim


Atom = str | Ceil | Least
_Powers = tuple[tuple[Atom, int], ...]  # of one product, in the order of their texts


@dataclass(frozen=True, slots=True)
class Dim:
    """A sum of products, in one order."""

    terms: tuple[tuple[_Powers, Fraction], ...]

    def __add__(self, other: Dim) -> Dim:
        return _sum([*self.terms, *other.terms])

    def __sub__(self, other: Dim) -> Dim:
        return self + other * constant(-1)

    def __mul__(self, other: Dim) -> Dim:
        return _sum([(_product(a, b), x * y) for a, x in self.terms for b, y in other.terms])

    def over(self, other: Dim) -> Dim | None:
        """The quotient, if the divisor is one product."""
        if len(other.terms) != 1:
            return constant(1) if self == other else None
        ((powers, factor),) = other.terms
        inverse = tuple((atom, -power) for atom, power in powers)
        return self * Dim(((inverse, 1 / factor),))

    @property
    def number(self) -> int | None:
        """The length, where no symbol stands in it."""
        if not self.terms:
            return 0
        ((powers, factor), *rest) = self.terms
        return int(factor) if not rest and not powers and factor.denominator == 1 else None

    @property
    def symbols(self) -> frozenset[str]:
        """Every name in it."""
        return frozenset(_names(self))

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole number whatever whole numbers its symbols are."""
        return all(x.denominator == 1 and all(power > 0 for _, power in powers) for powers, x in self.terms)

    def value(self, sizes: Mapping[str, int]) -> Fraction:
        """The length for given symbols."""
        return sum((x * _evaluated(powers, sizes) for powers, x in self.terms), Fraction(0))

    def length(self, sizes: Mapping[str, int]) -> int:
        """The same as a whole number.

        Raises:
            ValueError: where it is none.
        """
        found = self.value(sizes)
        if found.denominator != 1:
            raise ValueError(f"{self} is {found}")
        return int(found)

    def given(self, sizes: Mapping[str, int]) -> Dim:
        """The same where some of the symbols are numbers."""
        total = constant(0)
        for powers, factor in self.terms:
            product: Dim | None = Dim((((), factor),))
            for atom, power in powers:
                one = _atom_given(atom, sizes)
                for _ in range(abs(power)):
                    product = product and (product * one if power > 0 else product.over(one))
            if product is None:
                return self
            total += product
        return total

    def __str__(self) -> str:
        return self.text(lambda name: name)

    def text(self, spell: Callable[[str], str], python: bool = False) -> str:
        """As a spec or as Python writes it; `spell` says how a name is written."""
        parts: list[str] = []
        for powers, factor in self.terms:
            sign = "-" if factor < 0 else "+"
            one = _term_text(powers, abs(factor), spell, python)
            parts += [sign, one] if parts else [f"-{one}" if factor < 0 else one]
        return " ".join(parts) or "0"


def constant(value: int) -> Dim:
    """A number."""
    return Dim((((), Fraction(value)),) if value else ())


def symbol(name: str) -> Dim:
    """A parameter or a run-time length."""
    return Dim(((((name, 1),), Fraction(1)),))


def blocks(of: Dim, by: Dim) -> Dim:
    """ceil(of / by)"""
    if by == constant(1):
        return of
    exact = of.over(by)
    if exact is not None and exact.is_whole:
        return exact
    return Dim(((((Ceil(of, by), 1),), Fraction(1)),))


def least(of: Dim, most: Dim) -> Dim:
    """min(of, most)"""
    return Dim(((((Least(of, most), 1),), Fraction(1)),))


def sequence_of(dim: Dim) -> Atom | None:
    """What an axis that holds tokens of a sequence has: the sequence, its blocks, or some of its tokens; else None.

    Such an axis is padded in batch entries whose sequence is shorter: of n tokens the first lengths[b] are there, of
    their blocks of c the first ceil(lengths[b] / c), of c chosen ones the first min(lengths[b], c).
    """
    if len(dim.terms) != 1:
        return None
    ((powers, factor),) = dim.terms
    match powers:
        case ((str() as name, 1),) if factor == 1 and name in RUN_TIME:
            return name
        case ((Ceil(of=of) | Least(of=of) as atom, 1),) if factor == 1 and sequence_of(of) is not None:
            return atom
    return None


def blocks_of(dim: Dim) -> Dim | None:
    """How many tokens of a sequence an entry of an axis stands for; None where it holds none, or chosen ones."""
    atom = sequence_of(dim)
    by = constant(1)
    while isinstance(atom, Ceil):
        by *= atom.by
        atom = sequence_of(atom.of)
    return by if isinstance(atom, str) else None


def _names(dim: Dim) -> Iterator[str]:
    for powers, _ in dim.terms:
        for atom, _ in powers:
            if isinstance(atom, str):
                yield atom
            else:
                yield from (*_names(atom.of), *_names(atom.by if isinstance(atom, Ceil) else atom.most))


def _key(powers: _Powers) -> tuple[int, str]:
    return -sum(power for _, power in powers), str(powers)


def _sum(terms: list[tuple[_Powers, Fraction]]) -> Dim:
    total: dict[_Powers, Fraction] = {}
    for powers, factor in terms:
        total[powers] = total.get(powers, Fraction(0)) + factor
    return Dim(tuple(sorted(((p, x) for p, x in total.items() if x), key=lambda each: _key(each[0]))))


def _product(a: _Powers, b: _Powers) -> _Powers:
    total: dict[Atom, int] = {}
    for atom, power in (*a, *b):
        total[atom] = total.get(atom, 0) + power
    return tuple(sorted(((atom, power) for atom, power in total.items() if power), key=lambda each: str(each[0])))


def _evaluated(powers: _Powers, sizes: Mapping[str, int]) -> Fraction:
    value = Fraction(1)
    for atom, power in powers:
        value *= _atom_value(atom, sizes) ** power
    return value


def _atom_value(atom: Atom, sizes: Mapping[str, int]) -> Fraction:
    match atom:
        case str():
            return Fraction(sizes[atom])
        case Ceil(of=of, by=by):
            return Fraction(-(-of.value(sizes) // by.value(sizes)))
        case Least(of=of, most=most):
            return min(of.value(sizes), most.value(sizes))


def _atom_given(atom: Atom, sizes: Mapping[str, int]) -> Dim:
    match atom:
        case str():
            return constant(sizes[atom]) if atom in sizes else symbol(atom)
        case Ceil(of=of, by=by):
            return blocks(of.given(sizes), by.given(sizes))
        case Least(of=of, most=most):
            return least(of.given(sizes), most.given(sizes))


def _term_text(powers: _Powers, factor: Fraction, spell: Callable[[str], str], python: bool) -> str:
    over = [_atom_text(atom, spell, python) for atom, power in powers for _ in range(power)]
    under = [_atom_text(atom, spell, python) for atom, power in powers for _ in range(-power)]
    if factor.numerator != 1 or not over:
        over.insert(0, str(factor.numerator))
    if factor.denominator != 1:
        under.insert(0, str(factor.denominator))
    divide = "//" if python else "/"
    return " ".join([" * ".join(over), *(f"{divide} {each}" for each in under)])


def _atom_text(atom: Atom, spell: Callable[[str], str], python: bool) -> str:
    if isinstance(atom, str):
        return spell(atom)
    if isinstance(atom, Least):
        return f"min({atom.of.text(spell, python)}, {atom.most.text(spell, python)})"
    of, by = (_bracketed(each.text(spell, python)) for each in (atom.of, atom.by))
    return f"-(-{of} // {by})" if python else f"ceil({of} / {by})"


def _bracketed(text: str) -> str:
    return f"({text})" if " " in text else text
