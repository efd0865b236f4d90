"""The scalar functions that a spec may call, in one table: signature, range and what it means.

Derivatives follow from `rewrite.algebra`, target texts from the printers; this table says which functions exist.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """One scalar function: how many arguments it takes, the range of its values, and its meaning."""

    name: str
    arity: int | None  # None: two or more
    low: float | None  # a lower bound of its values (None: unbounded)
    high: float | None
    meaning: str
    domain_low: float | None = None  # arguments below this have no value


FUNCTIONS: dict[str, Function] = {
    each.name: each
    for each in (
        Function("abs", 1, 0, None, "|x|"),
        Function("exp", 1, 0, None, "e^x"),
        Function("exp2", 1, 0, None, "2^x"),
        Function("log", 1, None, None, "natural logarithm", domain_low=0),
        Function("log2", 1, None, None, "logarithm to base 2", domain_low=0),
        Function("sqrt", 1, 0, None, "square root", domain_low=0),
        Function("tanh", 1, -1, 1, "hyperbolic tangent"),
        Function("sigmoid", 1, 0, 1, "1 / (1 + e^-x)"),
        Function("silu", 1, -0.2785, None, "x * sigmoid(x)"),
        Function("gelu", 1, -0.17, None, "x * (1 + erf(x / sqrt(2))) / 2"),
        Function("softplus", 1, 0, None, "log(1 + e^x)"),
        Function("relu", 1, 0, None, "max(x, 0)"),
        Function("elu", 1, -1, None, "x where x > 0, else e^x - 1"),
        Function("cos", 1, -1, 1, "cosine of x radians"),
        Function("sin", 1, -1, 1, "sine of x radians"),
        Function("erf", 1, -1, 1, "error function"),
        Function("floor", 1, None, None, "largest whole number <= x; an integer"),
        Function("sign", 1, -1, 1, "-1, 0 or 1"),
        Function("min", None, None, None, "the smallest argument"),
        Function("max", None, None, None, "the largest argument"),
        Function("clip", 3, None, None, "clip(x, low, high) = min(max(x, low), high)"),
    )
}
