"""What separation makes of a weight: a sum of products of features of the query and features of the key.

w_ij = sum over terms of row_i * key_j * exp(exponent_ij) * product over factors of sum_c (row_c * key_c * exp(...)),
so that each term is a product of a vector of the query and a vector of the key, as long as its factors' widths
multiplied. Exponents are sums of a number of the query and a number of the key.
"""

from __future__ import annotations

from dataclasses import dataclass

from attncc.spec.expr import Const, Expr


@dataclass(frozen=True, slots=True)
class Exponent:
    """slope * (i - j), where there is a slope, and differences x_i - x_j, each as the number x_i and the number -x_j.

    Over long sequences both grow where their difference does not: they are taken relative to a key near by.
    """

    slope: Expr | None = None
    differences: tuple[tuple[Expr, Expr], ...] = ()

    @property
    def is_zero(self) -> bool:
        """Whether there is nothing to raise e to."""
        return self.slope is None and not self.differences


NO_EXPONENT = Exponent()


@dataclass(frozen=True, slots=True)
class Factor:
    """A sum over channels of a formula of the query's vectors times one of the key's, times exp(exponent)."""

    row: Expr
    key: Expr
    exponent: Exponent = NO_EXPONENT


@dataclass(frozen=True, slots=True)
class Term:
    """One product; without factors its features are one number."""

    row: Expr
    key: Expr
    factors: tuple[Factor, ...]
    exponent: Exponent

    @property
    def exponents(self) -> tuple[Exponent, ...]:
        """Its own, and those of its factors."""
        return (self.exponent, *(each.exponent for each in self.factors))


ONE = Const(1)
