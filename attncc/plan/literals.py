"""Predicates in negation normal form: trees of All and Any over literals `form >= 0`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from attncc.plan.linear import Linear, linear, value_range


@dataclass(frozen=True)
class Literal:
    """form >= 0"""

    form: Linear


@dataclass(frozen=True)
class All:
    """Every part holds; no part means true."""

    parts: tuple[Tree, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((True, self.parts))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Any:
    """Some part holds; no part means false."""

    parts: tuple[Tree, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((False, self.parts))

    def __hash__(self) -> int:
        return self._hash


Tree = Literal | All | Any
ALWAYS = All(())
NEVER = Any(())


def literal(form: Linear) -> Tree:
    """form >= 0 with the common factor of its coefficients divided out, decided where its range decides it."""
    low, high = value_range(form)
    if low is not None and low >= 0:
        return ALWAYS
    if high is not None and high < 0:
        return NEVER
    common = gcd(*(count for _, count in form.terms))
    return Literal(linear(((atom, count // common) for atom, count in form.terms), form.constant // common))


def all_of(parts: Iterable[Tree]) -> Tree:
    """Conjunction, flattened."""
    flat: list[Tree] = []
    for part in parts:
        if part == NEVER:
            return NEVER
        flat += part.parts if isinstance(part, All) else (part,)
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else All(unique)


def any_of(parts: Iterable[Tree]) -> Tree:
    """Disjunction, flattened."""
    flat: list[Tree] = []
    for part in parts:
        if part == ALWAYS:
            return ALWAYS
        flat += part.parts if isinstance(part, Any) else (part,)
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else Any(unique)


def union_of(trees: Iterable[Tree]) -> Tree:
    """Disjunction, with the literals that all of its conjunctions have before it."""
    parts = [each.parts if isinstance(each, All) else (each,) for each in dict.fromkeys(trees)]
    shared = [each for each in parts[0] if isinstance(each, Literal) and all(each in other for other in parts[1:])]
    rests = (all_of(each for each in part if each not in shared) for part in parts)
    return all_of((*shared, any_of(rests)))


def negated(tree: Tree) -> Tree:
    """The tree of the opposite."""
    match tree:
        case Literal(form=form):
            return literal(-form - 1)
        case All(parts=parts):
            return any_of(negated(part) for part in parts)
        case Any(parts=parts):
            return all_of(negated(part) for part in parts)


def tree_size(tree: Tree) -> int:
    """How many literals a tree has."""
    return 1 if isinstance(tree, Literal) else sum(tree_size(part) for part in tree.parts)


def conjunctions(tree: Tree, limit: int) -> tuple[tuple[Literal, ...], ...] | None:
    """The disjunctive normal form as tuples of literals; None where it has more than `limit` of them."""
    match tree:
        case Literal():
            return ((tree,),)
        case Any(parts=parts):
            found: list[tuple[Literal, ...]] = []
            for part in parts:
                inner = conjunctions(part, limit)
                if inner is None:
                    return None
                found += inner
            return _capped(found, limit)
        case All(parts=parts):
            products: list[tuple[Literal, ...]] = [()]
            for part in parts:
                inner = conjunctions(part, limit)
                if inner is None or len(products) * len(inner) > limit:
                    return None
                products = [(*left, *right) for left in products for right in inner]
            return _capped(products, limit)


def _capped(products: list[tuple[Literal, ...]], limit: int) -> tuple[tuple[Literal, ...], ...] | None:
    unique = tuple(dict.fromkeys(tuple(dict.fromkeys(each)) for each in products))
    return unique if len(unique) <= limit else None
