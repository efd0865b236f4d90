"""Numbers with an exponent apart from their mantissa, elementwise: e^10000 has a value, and so does its derivative.

A formula written in them needs to know nothing of running maxima.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import assert_never

import torch
from torch import Tensor
from torch.nn import functional

from attncc.spec.expr import BinaryOp, CompareOp


@dataclass(frozen=True, slots=True)
class Number:
    """mantissa · e^exponent; without an exponent, the mantissa, which may then be an integer."""

    mantissa: Tensor
    exponent: Tensor | None = None

    def at(self, level: Tensor | None) -> Tensor:
        """This number divided by e^level; a zero stays a zero however large its exponent."""
        if self.exponent is None and level is None:
            return self.mantissa
        excess = _minus(self.exponent, level)
        limit = math.log(torch.finfo(excess.dtype).max) / 2
        return self.mantissa * torch.where(self.mantissa == 0, excess.clamp(max=limit), excess).exp()

    def value(self) -> Tensor:
        """The plain number; may overflow."""
        return self.at(None)

    def level(self) -> Tensor:
        """The exponent as a constant, -inf where the number is 0."""
        exponent = torch.zeros_like(self.mantissa, dtype=torch.float32) if self.exponent is None else self.exponent
        return torch.where(self.mantissa == 0, -math.inf, exponent).detach()

    def to(self, dtype: torch.dtype) -> Number:
        """The same number with a mantissa of another dtype."""
        return replace(self, mantissa=self.mantissa.to(dtype))

    def map(self, change: Callable[[Tensor], Tensor]) -> Number:
        """`change`, which moves numbers about, applied to both parts."""
        return Number(change(self.mantissa), None if self.exponent is None else change(self.exponent))

    @property
    def shape(self) -> torch.Size:
        """The shape that both parts broadcast to."""
        if self.exponent is None:
            return self.mantissa.shape
        return joint_shape(self.mantissa.shape, self.exponent.shape)

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient flows through it."""
        return self.mantissa.requires_grad or (self.exponent is not None and self.exponent.requires_grad)


def joint_shape(*shapes: Sequence[int]) -> torch.Size:
    """The shape that all broadcast to."""
    return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _minus(left: Tensor | None, right: Tensor | None) -> Tensor:
    match left, right:
        case Tensor(), Tensor():
            return left - right
        case Tensor(), None:
            return left
        case None, Tensor():
            return -right
        case _:
            raise AssertionError("neither number has an exponent")


def _aligned(left: Number, right: Number) -> tuple[Tensor, Tensor, Tensor | None]:
    """Two mantissas at one exponent, that of the larger number."""
    if left.exponent is None and right.exponent is None:
        return left.mantissa, right.mantissa, None
    exponent = _finite(torch.maximum(left.level(), right.level()))
    return left.at(exponent), right.at(exponent), exponent


def _finite(level: Tensor) -> Tensor:
    return torch.where(level == -math.inf, 0, level)


def choose(condition: Tensor, left: Number, right: Number) -> Number:
    """`left` where the condition holds, else `right`."""
    mantissa = torch.where(condition, left.mantissa, right.mantissa)
    match left.exponent, right.exponent:
        case None, None:
            return Number(mantissa)
        case Tensor() as exponent, None:
            return Number(mantissa, torch.where(condition, exponent, 0))
        case None, Tensor() as exponent:
            return Number(mantissa, torch.where(condition, 0, exponent))
        case Tensor() as one, Tensor() as two:
            return Number(mantissa, torch.where(condition, one, two))
    raise AssertionError("an exponent is a tensor or None")


def multiply(left: Number, right: Number) -> Number:
    """The product."""
    exponents = [each.exponent for each in (left, right) if each.exponent is not None]
    return Number(left.mantissa * right.mantissa, sum(exponents[1:], exponents[0]) if exponents else None)


def divide(left: Number, right: Number) -> Number:
    """The quotient."""
    plain = left.exponent is None and right.exponent is None
    return Number(left.mantissa / right.mantissa, None if plain else _minus(left.exponent, right.exponent))


def arithmetic(op: BinaryOp, left: Number, right: Number, real: torch.dtype) -> Number:
    """Two numbers combined, but for powers, which depend on how they are written; `real` is the dtype of quotients."""
    match op:
        case BinaryOp.ADD | BinaryOp.SUBTRACT:
            one, two, exponent = _aligned(left, right)
            return Number(one + two if op is BinaryOp.ADD else one - two, exponent)
        case BinaryOp.MULTIPLY:
            return multiply(left, right)
        case BinaryOp.DIVIDE:
            return divide(left.to(real), right.to(real))
        case BinaryOp.FLOOR_DIVIDE | BinaryOp.MODULO:
            return Number(_floor_form(op, left.value(), right.value()))
        case BinaryOp.POWER:
            raise ValueError("powers have their own function")
        case _:
            assert_never(op)


def whole_power(base: Number, power: int) -> Number:
    """base^power for a constant power of at least 0."""
    return Number(base.mantissa**power, None if base.exponent is None else base.exponent * power)


def power(base: Number, exponent: Number, real: torch.dtype) -> Number:
    """base^exponent for real numbers."""
    raised = exponent.value().to(real)
    return Number(base.mantissa.to(real) ** raised, None if base.exponent is None else base.exponent * raised)


def exponential(exponent: Tensor) -> Number:
    """e^exponent."""
    return Number(torch.ones_like(exponent), exponent)


def only(related: Tensor, weight: Number, real: torch.dtype) -> Number:
    """`weight` where pairs are related, else 0 (value and derivative)."""
    mantissa = torch.where(related, weight.mantissa.to(real), 0)
    return Number(mantissa, None if weight.exponent is None else torch.where(related, weight.exponent, -math.inf))


def total(terms: Number) -> Number:
    """The sum over the last axis, which stays with length 1."""
    if terms.exponent is None:
        return Number(terms.mantissa.sum(-1, keepdim=True))
    if terms.shape[-1] == 0:
        nothing = terms.mantissa.sum(-1, keepdim=True)
        return Number(nothing, torch.zeros_like(nothing))
    top = _top(terms)
    return Number(terms.at(top).sum(-1, keepdim=True), top)


def largest(terms: Number) -> Number:
    """The largest number of the last axis, which stays with length 1."""
    if terms.exponent is None:
        return Number(terms.mantissa.amax(-1, keepdim=True))
    top = _top(terms)
    return Number(terms.at(top).amax(-1, keepdim=True), top)


def _top(terms: Number) -> Tensor:
    """The largest exponent of the last axis."""
    top = terms.level().amax(-1, keepdim=True)
    assert terms.exponent is not None
    return _finite(torch.where(top == -math.inf, terms.exponent.detach().amax(-1, keepdim=True), top))


def logarithm(number: Number) -> Tensor:
    """The natural logarithm; -inf where the number is not positive."""
    positive = number.mantissa > 0
    result = torch.where(positive, number.mantissa, 1).log()
    if number.exponent is not None:
        result = result + number.exponent
    return torch.where(positive, result, -math.inf)


def call(function: str, arguments: tuple[Number, ...], real: torch.dtype) -> Number:
    """A function of `spec.functions`."""
    match function:
        case "min" | "max":
            return reduce(_smaller if function == "min" else _larger, arguments)
        case "clip":
            x, low, high = arguments
            return _smaller(_larger(x, low), high)
        case "abs":
            return replace(arguments[0], mantissa=arguments[0].mantissa.abs())
    x = arguments[0].to(real)
    match function:
        case "exp":
            return exponential(x.value())
        case "exp2":
            return exponential(x.value() * math.log(2))
        case "log" | "log2":
            result = x.mantissa.log() if x.exponent is None else x.mantissa.log() + x.exponent
            return Number(result if function == "log" else result / math.log(2))
        case "sqrt":
            return Number(x.mantissa.sqrt(), None if x.exponent is None else x.exponent / 2)
        case "stop_gradient":
            return x.map(torch.Tensor.detach)
        case "relu":
            return replace(x, mantissa=x.mantissa.relu())
        case "floor":
            return Number(x.value().floor().to(torch.int64))
        case _ if function in _FUNCTIONS:
            return Number(_FUNCTIONS[function](x.value()))
        case _:
            raise ValueError(f"no function `{function}`")


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),  # exact: functional.softplus turns linear at 20
    "elu": functional.elu,
    "cos": torch.cos,
    "sin": torch.sin,
    "erf": torch.erf,
    "sign": torch.sign,
}


def _smaller(left: Number, right: Number) -> Number:
    first, second, _ = _aligned(left, right)
    return choose(first < second, left, right)


def _larger(left: Number, right: Number) -> Number:
    first, second, _ = _aligned(left, right)
    return choose(first > second, left, right)


def compare(op: CompareOp, left: Number, right: Number) -> Tensor:
    """The truth of a comparison."""
    first, second, _ = _aligned(left, right)
    match op:
        case CompareOp.LESS:
            return first < second
        case CompareOp.LESS_EQUAL:
            return first <= second
        case CompareOp.GREATER:
            return first > second
        case CompareOp.GREATER_EQUAL:
            return first >= second
        case CompareOp.EQUAL:
            return first == second
        case CompareOp.NOT_EQUAL:
            return first != second
        case _:
            assert_never(op)


def _floor_form(op: BinaryOp, left: Tensor, right: Tensor) -> Tensor:
    """// and % rounded towards minus infinity; 0 where the divisor is 0."""
    divisor = torch.where(right == 0, 1, right)
    result = left.div(divisor, rounding_mode="floor") if op is BinaryOp.FLOOR_DIVIDE else left.remainder(divisor)
    return torch.where(right == 0, 0, result)
