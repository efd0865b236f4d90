"""The scalar functions that a spec may call, in one table: signature, range, derivative and what it means.

The table is what the language promises: derivatives that kernels use come from `rewrite.algebra`, target texts from the
printers, and tests hold both to it.
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
    derivative: str  # by x, as a spec would write it; of several arguments, by the one that wins
    domain_low: float | None = None  # arguments below this have no value

    @property
    def range_text(self) -> str:
        """The range of its values in words."""
        low = "-∞" if self.low is None else f"{self.low:g}"
        high = "∞" if self.high is None else f"{self.high:g}"
        return f"{low} … {high}"


FUNCTIONS: dict[str, Function] = {
    each.name: each
    for each in (
        Function("abs", 1, 0, None, "|x|", "sign(x)"),
        Function("exp", 1, 0, None, "e^x", "exp(x)"),
        Function("exp2", 1, 0, None, "2^x", "log(2) * exp2(x)"),
        Function("log", 1, None, None, "natural logarithm", "1 / x", domain_low=0),
        Function("log2", 1, None, None, "logarithm to base 2", "1 / (x * log(2))", domain_low=0),
        Function("sqrt", 1, 0, None, "square root", "1 / (2 * sqrt(x))", domain_low=0),
        Function("tanh", 1, -1, 1, "hyperbolic tangent", "1 - tanh(x)^2"),
        Function("sigmoid", 1, 0, 1, "1 / (1 + e^-x)", "sigmoid(x) * (1 - sigmoid(x))"),
        Function("silu", 1, -0.2785, None, "x * sigmoid(x)", "sigmoid(x) * (1 + x * (1 - sigmoid(x)))"),
        Function(
            "gelu",
            1,
            -0.17,
            None,
            "x * (1 + erf(x / sqrt(2))) / 2",
            "(1 + erf(x / sqrt(2))) / 2 + x * exp(-x^2 / 2) / sqrt(2 * pi)",
        ),
        Function("softplus", 1, 0, None, "log(1 + e^x)", "sigmoid(x)"),
        Function("relu", 1, 0, None, "max(x, 0)", "[x > 0]"),
        Function("elu", 1, -1, None, "x where x > 0, else e^x - 1", "x > 0 ? 1 : exp(x)"),
        Function("cos", 1, -1, 1, "cosine of x radians", "-sin(x)"),
        Function("sin", 1, -1, 1, "sine of x radians", "cos(x)"),
        Function("erf", 1, -1, 1, "error function", "2 / sqrt(pi) * exp(-x^2)"),
        Function("floor", 1, None, None, "largest whole number <= x; an integer", "0"),
        Function("sign", 1, -1, 1, "-1, 0 or 1", "0"),
        Function("stop_gradient", 1, None, None, "x, taken for a constant by gradients", "0"),
        Function("min", None, None, None, "the smallest argument", "1"),
        Function("max", None, None, None, "the largest argument", "1"),
        Function("clip", 3, None, None, "clip(x, low, high) = min(max(x, low), high)", "[low < x < high]"),
    )
}


@dataclass(frozen=True, slots=True)
class KeyFunction:
    """A function of a value that each key has, feature by feature where that is a vector; its result is one, too.

    Attributes:
        looks_ahead: whether a key's result depends on later keys.
        instead: what a causal attention may use, where there is something.
        of_whole: whether it is of a whole number, and gives one, which has no gradient.
    """

    name: str
    meaning: str
    looks_ahead: bool
    instead: str = ""
    of_whole: bool = False


UP_TO = "up_to"  # how many numbers of a list are at most a number
POOL = "pool"  # of blocks of keys: it gives fewer than there are

KEY_FUNCTIONS: dict[str, KeyFunction] = {
    each.name: each
    for each in (
        KeyFunction("cumsum", "the sum over the keys up to each, its own included", looks_ahead=False),
        KeyFunction(
            "softmax_over_keys",
            "e^x over the sum of e^x of all keys",
            looks_ahead=True,
            instead="take `exp(…)` in its place, and divide by `rows` or, each channel by itself, by "
            "`normalize = channels`",
        ),
        KeyFunction(
            "largest_over_keys",
            "the largest of all keys",
            looks_ahead=True,
            instead="`largest(…)` is over the features of one key",
        ),
        KeyFunction(
            "mean_over_keys",
            "the mean of all keys",
            looks_ahead=True,
            instead="`cumsum(…)` sums over the keys up to each",
        ),
        KeyFunction(
            "rank",
            "the place of each among all keys in order of x, a whole number, and then of position: 0, 1, …",
            looks_ahead=True,
            of_whole=True,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class VectorFunction:
    """A function of whole vectors."""

    name: str
    arity: int
    result: str
    meaning: str


VECTOR_FUNCTIONS: dict[str, VectorFunction] = {
    each.name: each
    for each in (
        VectorFunction("dot", 2, "number", "sum over the features of x * y"),
        VectorFunction("sum", 1, "number", "sum of the features of x"),
        VectorFunction("largest", 1, "number", "the largest feature of x"),
        VectorFunction(
            "argmax", 1, "integer", "the place of the largest feature of x, the first of several; in `let` alone"
        ),
        VectorFunction("width", 1, "integer", "how many features x has"),
        VectorFunction("rotate_half", 1, "vector", "(x, y) → (-y, x) for features t and t + width / 2"),
        VectorFunction("rotate_pairs", 1, "vector", "(x, y) → (-y, x) for features 2t and 2t + 1"),
        VectorFunction("join", 2, "vector", "the features of x, then those of y"),
    )
}
