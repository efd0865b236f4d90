"""Random formulas of vectors: the oracle against a plain evaluation that spreads everything over pairs and features."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_data import HEADS, SIZES, D, drawn, heads_of, param, with_data
from test_oracle import CAUSAL, ONE, SCORE, H, I, J, call, op
from torch import Tensor

from attncc.check import formulas
from attncc.check.oracle import dense
from attncc.spec import expr as e
from attncc.spec.expr import BinaryOp, Expr

A, W = param("a", HEADS, D), param("W", HEADS, D, D)
VECTORS = (e.Vector("q"), e.Vector("k"), e.Entry("a", (H,), is_vector=True))


def numbers(vectors: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(e.Dot, vectors, vectors),
        st.builds(e.Reduce, st.sampled_from(["sum", "largest"]), vectors),
        st.sampled_from([e.Const(0.5), op("*", e.Const(0.1), op("-", I, J))]),
    )


def larger(vectors: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(e.Binary, st.sampled_from([BinaryOp.ADD, BinaryOp.SUBTRACT, BinaryOp.MULTIPLY]), vectors, vectors),
        st.builds(lambda number, vector: op("*", call("tanh", number), vector), numbers(vectors), vectors),
        st.builds(call, st.sampled_from(["tanh", "sin", "sigmoid"]), vectors),
        st.builds(e.Negate, vectors),
        st.builds(e.Let, st.just("name"), vectors),
        st.builds(e.Rotate, st.sampled_from(["half", "pairs"]), vectors),
        st.builds(lambda vector: e.MatMul(vector, e.Entry("W", (H,), is_vector=True)), vectors),
        st.builds(lambda vector: op("*", vector, call("cos", op("*", I, e.Channel()))), vectors),
    )


FORMULAS = numbers(st.recursive(st.sampled_from(VECTORS), larger, max_leaves=5))
OPERATIONS = {BinaryOp.ADD: torch.add, BinaryOp.SUBTRACT: torch.sub, BinaryOp.MULTIPLY: torch.mul}


def plain(expr: Expr, given: Mapping[str, Tensor]) -> Tensor:
    """[B, H, n, m, features], or with one feature for numbers."""
    match expr:
        case e.Vector(name=name):
            return given[name]
        case e.Entry():
            return given["a"][None, :, None, None]
        case e.Const(value=value):
            return torch.tensor([value], dtype=torch.float64)
        case e.Symbol(name=name):
            return given[name.value]
        case e.Channel():
            return torch.arange(6.0, dtype=torch.float64)
        case e.Let(value=value):
            return plain(value, given)
        case e.Negate(operand=operand):
            return -plain(operand, given)
        case e.Binary(op=sign, left=left, right=right):
            return OPERATIONS[sign](plain(left, given), plain(right, given))
        case e.Call(function=function, arguments=(argument,)):
            found: Tensor = getattr(torch, function)(plain(argument, given))
            return found
        case e.Dot(left=left, right=right):
            return (plain(left, given) * plain(right, given)).sum(-1, keepdim=True)
        case e.Reduce(function="sum", vector=vector):
            return plain(vector, given).sum(-1, keepdim=True)
        case e.Reduce(vector=vector):
            return plain(vector, given).amax(-1, keepdim=True)
        case e.Rotate(layout=layout, vector=vector):
            features = plain(vector, given)
            turned = torch.zeros(6, 6, dtype=torch.float64)
            for t in range(3):
                x, y = (t, t + 3) if layout == "half" else (2 * t, 2 * t + 1)
                turned[y, x], turned[x, y] = -1, 1
            return features @ turned
        case e.MatMul(vector=vector):
            return torch.einsum("bhijd,hdf->bhijf", plain(vector, given).expand(2, 4, 5, 7, 6), given["W"])
        case _:
            raise TypeError(type(expr).__name__)


@pytest.mark.parametrize("slabs", ["at once", "in slabs"])
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(formula=FORMULAS, causal=st.booleans())
def test_random_formulas(slabs: str, monkeypatch: pytest.MonkeyPatch, formula: Expr, causal: bool) -> None:
    if slabs == "in slabs":
        monkeypatch.setattr(formulas, "_MOST_FEATURES", 900)
    fields = {"pattern": CAUSAL} if causal else {}
    spec = with_data(A, W, score=formula, weight=call("sin", SCORE), normalizer=ONE, **fields)
    data = drawn(spec, SIZES)  # type: ignore[arg-type]
    q, k, v, a, w = data
    i, j = torch.arange(5)[:, None, None] + 2, torch.arange(7)[:, None]
    pairs = {"q": q[:, :, :, None], "k": heads_of(k)[:, :, None], "a": a, "W": w, "i": i, "j": j}
    weights = plain(formula, pairs)[..., 0].sin().expand(2, 4, 5, 7)
    expected = torch.where((j <= i)[..., 0], weights, 0) @ heads_of(v) if causal else weights @ heads_of(v)
    found = dense(spec, *data).out
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    seed = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad(each, data, seed, materialize_grads=True) for each in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
