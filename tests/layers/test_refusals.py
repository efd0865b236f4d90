"""What modules of layers refuse, by the argument's name, and the smallest calls, which they take."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attncc.check.load import load_module
from tests.layers.shared import compiled

# Operators that keep something, blocks that end, learned numbers that are no tensors, two inputs of one sequence.
TEXT = """
attention ended(c = 4) { align = start; pattern = c * j + c - 1 <= i; normalize = rows + 1 }
attention all_keys {}
layer every(dim, h = 2, c = 4, states = 3, by = 1, rest: real = 0.5, most = dim - 2) {
  input x[n, dim], mark[n]: bool
  param a[dim, states] = normal(1), e[dim, states] = normal(1), K[3, dim, dim], S[c, dim, dim], E[most, dim], F[dim - 3]
  moved = shift(convolve(ema(x, sigmoid(a), e), K, before = 2), by)
  q = heads(moved + x, h)
  seen = merge(attend ended(q, heads(convolve(moved, S, stride = c), h), pool(q, c), c = c))
  chosen = mark ? seen : x * rest
  out = chosen + chosen @ transposed(E) @ E + mean(F, over = features)
}
"""
SQUARED = """
layer squared(dim, c = 3) {
  input x[n, dim]
  param W[3, dim, dim], C[2, dim], a[dim, 4], e[dim, 4]
  most = max(ema_back(x, sigmoid(a), e) + unpool(depthwise(convolve(x, W, stride = c), C), c), over = n)
  out = x + most
}
"""


def _module(text: str, **arguments: Any) -> Any:
    found = compiled(text)
    name = found.spec.name
    return getattr(load_module(found.text, name), name.capitalize())(**arguments)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dim", 0, "dim is 0, expected a whole number of 32 bits, 1 or more"),
        ("dim", -8, "dim is -8"),
        ("dim", "8", "dim is '8'"),
        ("dim", 8.0, "dim is 8.0"),
        ("dim", None, "dim is None"),
        ("dim", 2, "h|most|dim - 3"),
        ("h", True, "h is True"),
        ("states", 0, "states is 0"),
        ("by", -1, "by is -1, expected a whole number of 32 bits, 0 or more"),
        ("rest", "1", "rest is '1', expected a finite number"),
        ("rest", float("nan"), "rest is nan"),
        ("most", 2**40, "most is 1099511627776"),
        ("form", "fast", "form is 'fast', expected None, 'triton', 'c' or 'torch'"),
    ],
)
def test_sizes_that_cannot_be(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        _module(TEXT, **{"dim": 8, name: value})


X, MARK = torch.zeros(2, 9, 8), torch.ones(2, 9, dtype=torch.bool)
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "nothing": ((None, MARK), "x is NoneType, expected a tensor"),
    "a list": ((X, MARK.tolist()), "mark is list, expected a tensor"),
    "another type": ((X.double(), MARK), r"x is torch.float64, expected the dtype of a, torch.float32"),
    "whole numbers": ((X.int(), MARK), "x is torch.int32"),
    "no truth values": ((X, MARK.int()), "mark is torch.int32, expected torch.bool"),
    "another device": ((X.to("meta"), MARK), "x is on meta"),
    "sparse": ((X.to_sparse(), MARK), "x is nested or sparse"),
    "another width": ((X[..., :5], MARK), r"x is \[2, 9, 5\], expected \[batch, n, 8\]"),
    "another batch": ((X, MARK[:1]), r"mark is \[1, 9\].*x \[2, 9, 8\]"),
    "another length": ((X, MARK[:, :1]), r"mark is \[2, 1\]"),
    "one length": ((X, MARK, 5), "lengths is int, expected a tensor or None"),
    "real lengths": ((X, MARK, torch.ones(2)), "lengths is torch.float32, expected whole numbers"),
    "lengths of others": ((X, MARK, torch.ones(3).long()), r"lengths is \[3\], expected a number for each of 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_that_do_not_fit(case: str) -> None:
    made = _module(TEXT, dim=8)
    arguments, expected = REFUSED[case]
    with pytest.raises(ValueError, match=f"every: {expected}"):
        made(*arguments)
    for call in (made.prefill, made.step) if len(arguments) == 2 else ():
        with pytest.raises(ValueError, match=f"every: {expected}"):
            call(*arguments)


def test_steps_that_do_not_follow() -> None:
    made = _module(TEXT, dim=8)
    with pytest.raises(ValueError, match="cache is dict, expected a Cache"):
        made.step(X, MARK, {})
    _, cache = made.prefill(X, MARK)
    before = cache.position, cache.averaged.clone()
    with pytest.raises(ValueError, match=r"x is \[3, 1, 8\], expected the batch of the cache, 2"):
        made.step(torch.zeros(3, 1, 8), torch.ones(3, 1, dtype=torch.bool), cache)
    assert cache.position == before[0] and torch.equal(cache.averaged, before[1])
    out, _ = made.step(X[:, :0], MARK[:, :0], cache)
    assert out.shape == (2, 0, 8) and torch.equal(cache.averaged, before[1])


def test_autocast_takes_other_types() -> None:
    made = _module(SQUARED, dim=4)
    with torch.autocast("cpu", torch.bfloat16):
        made(torch.zeros(2, 6, 4, dtype=torch.bfloat16))


@pytest.mark.parametrize(("batch", "n"), [(2, 0), (0, 5), (0, 0), (1, 1)])
def test_the_smallest_calls(batch: int, n: int) -> None:
    x, mark = torch.zeros(batch, n, 8, requires_grad=True), torch.ones(batch, n, dtype=torch.bool)
    for made, inputs in ((_module(TEXT, dim=8), (x, mark)), (_module(SQUARED, dim=8), (x,))):
        out = made(*inputs, torch.full((batch,), n))
        assert out.shape == x.shape and out.isfinite().all()
        out.sum().backward()
