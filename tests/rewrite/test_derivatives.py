"""The derivatives of the function table: what it says, what the compiler derives, and what numbers say."""

from __future__ import annotations

import pytest

from attncc.diagnostics import Source
from attncc.rewrite.algebra import derivative
from attncc.spec.expr import Call, Const, Dot, Expr, Vector, rebuild
from attncc.spec.fold import call, fold
from attncc.spec.functions import FUNCTIONS
from attncc.spec.resolve import load

UNARY = [name for name, function in FUNCTIONS.items() if function.arity == 1]
POINTS = (0.3, 0.9, 1.7)
X = Dot(Vector("q"), Vector("k"))


def said(text: str, x: float) -> float:
    """The value of an expression of x, read by the language itself."""
    spec = load(Source("table.attn", f"attention table(x: real = {x}) {{ score = {text} }}"))
    assert isinstance(spec.score, Const)
    return float(spec.score.value)


def at(expr: Expr, x: float) -> float:
    """The value of an expression whose only variable is the dot product."""

    def value(each: Expr) -> Expr:
        each = Const(x) if each == X else rebuild(each, value)
        for name in ("condition", "then", "otherwise"):  # a choice is a constant once its condition is
            if not hasattr(each, name):
                return fold(each)
        return each.then if each.condition.value else each.otherwise

    found = value(expr)
    assert isinstance(found, Const)
    return float(found.value)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("sign", (1, -1))
def test_table_compiler_and_numbers_agree(name: str, sign: int) -> None:
    if sign < 0 and FUNCTIONS[name].domain_low is not None:
        return
    for point in POINTS:
        x = sign * point
        numeric = (call(name, [x + 1e-6]) - call(name, [x - 1e-6])) / 2e-6
        assert said(FUNCTIONS[name].derivative, x) == pytest.approx(numeric, abs=1e-6)
        assert at(derivative(Call(name, (X,)), X), x) == pytest.approx(numeric, abs=1e-6)


@pytest.mark.parametrize("name", UNARY)
def test_values_lie_in_the_range_of_the_table(name: str) -> None:
    function = FUNCTIONS[name]
    for step in range(-400, 401):
        x = step / 50
        if function.domain_low is not None and x <= function.domain_low:
            continue
        value = call(name, [x])
        assert function.low is None or value >= function.low - 1e-3
        assert function.high is None or value <= function.high
