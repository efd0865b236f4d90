"""The derivatives of the function table: what it says, what the compiler derives, and what numbers say."""

from __future__ import annotations

import pytest

from attncc.compiler import make_plan
from attncc.diagnostics import Source
from attncc.rewrite.algebra import derivative
from attncc.spec.expr import Binary, BinaryOp, Call, Const, Dot, Expr, Select, Vector, rebuild, walk
from attncc.spec.fold import call, fold
from attncc.spec.functions import FUNCTIONS
from attncc.spec.resolve import load

UNARY = [name for name, function in FUNCTIONS.items() if function.arity == 1 and name != "stop_gradient"]
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
@pytest.mark.parametrize("inside", ("{x} * {f}", "{f}^2", "({f}^2)^1.5", "1 / (3 + {f})", "max({f}, {x})"))
def test_sympy_knows_the_derivatives_of_functions_inside_others(name: str, inside: str) -> None:
    text = inside.format(x="dot(q, k)", f=f"{name}(dot(q, k))")
    expr = load(Source("product.attn", f"attention product {{ score = {text} }}")).score
    for x in POINTS:
        numeric = (at(expr, x + 1e-6) - at(expr, x - 1e-6)) / 2e-6
        assert at(derivative(expr, X), x) == pytest.approx(numeric, abs=1e-5)


@pytest.mark.parametrize("power", (1, 2, 3, 2.5))
def test_a_power_of_relu_needs_no_choice(power: float) -> None:
    found = derivative(Binary(BinaryOp.POWER, Call("relu", (X,)), Const(power)), X)
    assert power == 1 or not any(isinstance(each, Select) for each in walk(found))
    assert at(found, 1.7) == pytest.approx(power * 1.7 ** (power - 1))
    assert at(found, -1.7) == 0


@pytest.mark.parametrize("jump", ("[score > 0]", "floor(score)", "(score > 0 ? 2 : 1)", "sign(score)"))
def test_numbers_that_jump_are_constants_beside_their_jumps(jump: str) -> None:
    plan = make_plan(
        Source("jump.attn", f"attention jump {{ weight = score * {jump} * relu(score); normalize = none }}")
    )
    assert {"dq", "dk", "dv"} == set(plan.torch.backward.outputs)


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
