"""The dense oracle: what a spec means, computed pair by pair from its own expressions.

It shares nothing with planning and emission, stores the full [batch, heads, n, m] matrix, and lets autograd derive
the gradients. Two things make it exact where a plain transcription is not. Numbers carry an exponent apart from
their mantissa, so e^10000 has a value and no formula needs to know about running maxima. And unrelated pairs are
removed twice, from the dot products before a weight is computed and from the weights after, so that no value or
derivative at such a pair reaches a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import assert_never

import torch
from torch import Tensor
from torch.nn import functional

from attncc.spec.expr import (
    And,
    Binary,
    BinaryOp,
    Call,
    Compare,
    CompareOp,
    Const,
    Dot,
    Expr,
    Indicator,
    Name,
    Negate,
    Not,
    Or,
    RowSum,
    Select,
    Symbol,
    Table,
    Vector,
    dots_in,
    walk,
)
from attncc.spec.model import Align, Spec
from attncc.spec.text import text

Lengths = int | Tensor | None


@dataclass(frozen=True, slots=True)
class Dense:
    """out [B, H, n, e], lse [B, H, n] (None if the normalizer reads no row sum), weights [B, H, n, m] = w_ij / N_i."""

    out: Tensor
    lse: Tensor | None
    weights: Tensor


def dense(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    kv_lengths: Lengths = None,
    q_start: Lengths = None,
    k_start: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Dense:
    """Evaluate `spec` on q [B, H, n, d], k [B, Hk, m, d], v [B, Hk, m, e]; head h reads key head h // (H / Hk).

    In a 16-bit `dtype` it is what a user would write in PyTorch: matrix products and the weight matrix are rounded to
    that dtype, the formula of a weight is evaluated in float32, as `torch.softmax` does.
    """
    heads, key_heads = q.shape[1], k.shape[1]
    if key_heads == 0 or heads % key_heads:
        raise ValueError(f"{heads} query heads cannot share {key_heads} key heads")
    q, k, v = (each.to(dtype) for each in (q, k, v))
    visible = _visible(k.shape[0], k.shape[2], kv_lengths, k.device)[:, None, :, None]
    k, v = torch.where(visible, k, 0), torch.where(visible, v, 0)
    symbols = _symbols(spec, q, k.shape[2], kv_lengths, q_start, k_start) | {
        Name.VALUE_WIDTH: _integer(v.shape[3], q.device),
        Name.SCALE: torch.tensor(
            1 / math.sqrt(q.shape[3]) if scale is None else scale, dtype=_real(dtype), device=q.device
        ),
    }
    related = _related(_Scope(symbols, _products(q, k, v, dtype), dtype), spec, visible, q)

    used_keys = (
        related.any(2).reshape(q.shape[0], key_heads, heads // key_heads, k.shape[2]).any(2)[..., None]
    )  # [B, Hk, m, 1]
    q = torch.where(related.any(-1, keepdim=True), q, 0)
    k, v = torch.where(used_keys, k, 0), torch.where(used_keys, v, 0)
    symbols |= {Name.COUNT: related.sum(-1, keepdim=True)}
    scope = _Scope(symbols, _products(q, k, v, dtype), dtype, score=spec.score).where(related)

    weight = _only(related, scope.number(spec.weight), scope.real)
    total = _sum(weight)
    normalizer = scope.row_number(spec.normalizer, total, related)
    present = normalizer.mantissa != 0
    safe = replace(normalizer, mantissa=torch.where(present, normalizer.mantissa, 1))
    weights = torch.where(related & present, _divide(weight, safe).value(), 0).to(dtype)
    out = weights @ v.repeat_interleave(heads // key_heads, 1)
    return Dense(out, _logarithm(normalizer) if _reads_row_sum(spec.normalizer) else None, weights)


def related(
    spec: Spec,
    n: int,
    m: int,
    heads: int,
    *,
    batch: int = 1,
    q_start: Lengths = None,
    k_start: int = 0,
    kv_lengths: Lengths = None,
    width: int = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Which pairs the pattern relates and `kv_lengths` leaves visible: bool [B, H, n, m]."""
    q = torch.zeros(batch, heads, n, width, device=device)
    if dots_in(spec.pattern) or any(node == Symbol(Name.SCORE) for node in walk(spec.pattern)):
        raise ValueError("this pattern depends on q and k: read the weights of `dense` instead")
    symbols = _symbols(spec, q, m, kv_lengths, q_start, k_start)
    visible = _visible(batch, m, kv_lengths, q.device)[:, None, :, None]
    return _related(_Scope(symbols, _no_product, torch.float64), spec, visible, q)


def _no_product(dot: Dot) -> Tensor:
    raise ValueError(f"{text(dot)} has no value here")


def _related(scope: _Scope, spec: Spec, visible: Tensor, q: Tensor) -> Tensor:
    pairs = replace(scope, score=spec.score).predicate(spec.pattern) & visible[:, :, None, :, 0]
    return pairs.expand(q.shape[0], q.shape[1], q.shape[2], visible.shape[2])


def _visible(batch: int, m: int, kv_lengths: Lengths, device: torch.device) -> Tensor:
    """bool [B, m]: the key columns that `kv_lengths` does not hide."""
    return (
        torch.arange(m, device=device) < _per_batch(m if kv_lengths is None else kv_lengths, device)[:, None]
    ).expand(batch, m)


def _per_batch(value: int | Tensor, device: torch.device) -> Tensor:
    return torch.as_tensor(value, device=device).to(torch.int64).reshape(-1)


def _integer(value: int, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=torch.int64, device=device)


def _real(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scalar formulas."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _symbols(spec: Spec, q: Tensor, m: int, kv_lengths: Lengths, q_start: Lengths, k_start: int) -> dict[Name, Tensor]:
    """The integer symbols, each broadcastable to [B, H, n, m]."""
    heads, n, width = q.shape[1:]
    if q_start is None:
        q_start = 0 if spec.align is Align.START else k_start + m - n
    start = _per_batch(q_start, q.device)[:, None, None, None]
    valid = _per_batch(m if kv_lengths is None else kv_lengths, q.device).clamp(0, m)
    return {
        Name.I: start + torch.arange(n, device=q.device)[:, None],
        Name.J: k_start + torch.arange(m, device=q.device),
        Name.HEAD: torch.arange(heads, device=q.device)[:, None, None],
        Name.HEADS: _integer(heads, q.device),
        Name.QUERIES: _integer(n, q.device),
        Name.KEYS: _integer(m, q.device),
        Name.WIDTH: _integer(width, q.device),
        Name.VALID: valid[:, None, None, None],
    }


def _products(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype) -> Callable[[Dot], Tensor]:
    """Dot products by name, [B, H, n, m]."""
    columns = {"k": k, "v": v}

    @cache
    def product(dot: Dot) -> Tensor:
        match dot:
            case Dot(left=Vector(name="q"), right=Vector(name=name)) if name in columns:
                column = columns[name]
            case _:
                return _no_product(dot)
        return (q @ column.repeat_interleave(q.shape[1] // column.shape[1], 1).mT).to(_real(dtype))

    return product


def _reads_row_sum(normalizer: Expr) -> bool:
    return any(isinstance(node, RowSum) or node == Symbol(Name.ROWS) for node in walk(normalizer))


# Numbers with a wide exponent


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


def _choose(condition: Tensor, left: Number, right: Number) -> Number:
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


def _multiply(left: Number, right: Number) -> Number:
    exponents = [each.exponent for each in (left, right) if each.exponent is not None]
    return Number(left.mantissa * right.mantissa, sum(exponents[1:], exponents[0]) if exponents else None)


def _divide(left: Number, right: Number) -> Number:
    plain = left.exponent is None and right.exponent is None
    return Number(left.mantissa / right.mantissa, None if plain else _minus(left.exponent, right.exponent))


def _only(related: Tensor, weight: Number, real: torch.dtype) -> Number:
    """`weight` where pairs are related, else 0 (value and derivative)."""
    mantissa = torch.where(related, weight.mantissa.to(real), 0)
    return Number(mantissa, None if weight.exponent is None else torch.where(related, weight.exponent, -math.inf))


def _sum(weight: Number) -> Number:
    """The sum of each row, [B, H, n, 1]."""
    if weight.exponent is None:
        return Number(weight.mantissa.sum(-1, keepdim=True))
    if weight.mantissa.shape[-1] == 0:
        return Number(weight.mantissa.sum(-1, keepdim=True), torch.zeros_like(weight.mantissa.sum(-1, keepdim=True)))
    top = weight.level().amax(-1, keepdim=True)
    top = _finite(torch.where(top == -math.inf, weight.exponent.detach().amax(-1, keepdim=True), top))
    return Number(weight.at(top).sum(-1, keepdim=True), top)


def _logarithm(number: Number) -> Tensor:
    """log of [B, H, n, 1] as [B, H, n]; -inf where the number is not positive."""
    positive = number.mantissa > 0
    logarithm = torch.where(positive, number.mantissa, 1).log()
    if number.exponent is not None:
        logarithm = logarithm + number.exponent
    return torch.where(positive, logarithm, -math.inf).squeeze(-1)


# Expressions


@dataclass(frozen=True, slots=True)
class _Scope:
    """What an expression may read; every tensor broadcasts to [B, H, n, m]."""

    symbols: Mapping[Name, Tensor]
    product: Callable[[Dot], Tensor]
    dtype: torch.dtype
    score: Expr | None = None
    rows: Number | None = None  # readable in a normalizer only
    related: Tensor | None = None  # the pairs that a sum over keys takes

    @property
    def real(self) -> torch.dtype:
        return _real(self.dtype)

    def where(self, condition: Tensor) -> _Scope:
        """The same scope with dot products kept at some pairs only: elsewhere they are 0 and pass no gradient."""
        return replace(self, product=lambda dot: torch.where(condition, self.product(dot), 0))

    def row_number(self, normalizer: Expr, total: Number, related: Tensor) -> Number:
        """N_i as [B, H, n, 1]; a row without keys whose N has no value (0 / 0) has N = 0."""
        number = replace(self, rows=total, related=related).number(normalizer)
        mantissa = number.mantissa.to(self.real).expand(*related.shape[:3], 1)
        lost = ~related.any(-1, keepdim=True) & ~mantissa.isfinite()
        return replace(number, mantissa=torch.where(lost, 0, mantissa))

    def number(self, expr: Expr) -> Number:
        """The value of an integer or a real expression."""
        match expr:
            case Const(value=value):
                real = isinstance(value, float)
                return Number(torch.tensor(value, dtype=self.real if real else torch.int64, device=self._device))
            case Symbol(name=Name.SCORE) if self.score is not None:
                return self.number(self.score)
            case Symbol(name=Name.ROWS) if self.rows is not None:
                return self.rows
            case Symbol(name=name):
                if name not in self.symbols:
                    raise ValueError(f"`{name.value}` has no value here")
                return Number(self.symbols[name])
            case Dot():
                return Number(self.product(expr))
            case RowSum(weight=weight) if self.rows is not None and self.related is not None:
                return _sum(_only(self.related, replace(self, rows=None).number(weight), self.real))
            case Negate(operand=operand):
                number = self.number(operand)
                return replace(number, mantissa=-number.mantissa)
            case Binary(op=op, left=left, right=right):
                return self._binary(op, left, right)
            case Call(function=function, arguments=arguments):
                return self._call(function, tuple(self.number(each) for each in arguments))
            case Select(condition=condition, then=then, otherwise=otherwise):
                holds = self.predicate(condition)
                return _choose(holds, self.where(holds).number(then), self.where(~holds).number(otherwise))
            case Indicator(predicate=predicate):
                return Number(self.predicate(predicate).to(torch.int64))
            case Table(values=values, index=index):
                return Number(self._entry(values, self.number(index).mantissa))
            case _:
                raise ValueError(f"{type(expr).__name__} is not a number here")

    def predicate(self, expr: Expr) -> Tensor:
        """The truth of a predicate, bool."""
        match expr:
            case Const(value=bool(value)):
                return torch.tensor(value, device=self._device)
            case And(operands=operands):
                return reduce(torch.logical_and, map(self.predicate, operands), torch.tensor(True, device=self._device))
            case Or(operands=operands):
                return reduce(torch.logical_or, map(self.predicate, operands), torch.tensor(False, device=self._device))
            case Not(operand=operand):
                return ~self.predicate(operand)
            case Select(condition=condition, then=then, otherwise=otherwise):
                return torch.where(self.predicate(condition), self.predicate(then), self.predicate(otherwise))
            case Compare(op=op, left=left, right=right):
                first, second, _ = _aligned(self.number(left), self.number(right))
                return _compare(op, first, second)
            case _:
                raise ValueError(f"{type(expr).__name__} is not a predicate")

    @property
    def _device(self) -> torch.device:
        return self.symbols[Name.I].device

    def _binary(self, op: BinaryOp, left: Expr, right: Expr) -> Number:
        first, second = self.number(left), self.number(right)
        match op:
            case BinaryOp.ADD | BinaryOp.SUBTRACT:
                one, two, exponent = _aligned(first, second)
                return Number(one + two if op is BinaryOp.ADD else one - two, exponent)
            case BinaryOp.MULTIPLY:
                return _multiply(first, second)
            case BinaryOp.DIVIDE:
                return _divide(self._as_real(first), self._as_real(second))
            case BinaryOp.FLOOR_DIVIDE | BinaryOp.MODULO:
                return Number(_floor_form(op, first.value(), second.value()))
            case BinaryOp.POWER:
                return self._power(left, first, right, second)
            case _:
                assert_never(op)

    def _as_real(self, number: Number) -> Number:
        return replace(number, mantissa=number.mantissa.to(self.real))

    def _power(self, left: Expr, base: Number, right: Expr, power: Number) -> Number:
        match left, right:
            case _, Const(value=int(value)) if value >= 0 and base.exponent is None:
                return Number(base.mantissa**value)
            case Const(value=constant), _ if constant > 0 and not isinstance(right, Const):
                return self._exp(power.value().to(self.real) * math.log(constant))
        exponent = power.value().to(self.real)
        scaled = None if base.exponent is None else base.exponent * exponent
        return Number(base.mantissa.to(self.real) ** exponent, scaled)

    def _exp(self, exponent: Tensor) -> Number:
        return Number(torch.ones_like(exponent), exponent)

    def _call(self, function: str, arguments: tuple[Number, ...]) -> Number:
        match function:
            case "min" | "max":
                return reduce(_smaller if function == "min" else _larger, arguments)
            case "clip":
                x, low, high = arguments
                return _smaller(_larger(x, low), high)
            case "abs":
                return replace(arguments[0], mantissa=arguments[0].mantissa.abs())
        x = self._as_real(arguments[0])
        match function:
            case "exp":
                return self._exp(x.value())
            case "exp2":
                return self._exp(x.value() * math.log(2))
            case "log" | "log2":
                logarithm = x.mantissa.log() if x.exponent is None else x.mantissa.log() + x.exponent
                return Number(logarithm if function == "log" else logarithm / math.log(2))
            case "sqrt":
                return Number(x.mantissa.sqrt(), None if x.exponent is None else x.exponent / 2)
            case "relu":
                return replace(x, mantissa=x.mantissa.relu())
            case "floor":
                return Number(x.value().floor().to(torch.int64))
            case _ if function in _FUNCTIONS:
                return Number(_FUNCTIONS[function](x.value()))
            case _:
                raise ValueError(f"no function `{function}`")

    def _entry(self, values: tuple[int | float, ...], index: Tensor) -> Tensor:
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= len(values)):
            raise ValueError(f"a list of {len(values)} constants is read at {int(index.min())}…{int(index.max())}")
        whole = all(isinstance(value, int) for value in values)
        return torch.tensor(values, dtype=torch.int64 if whole else self.real, device=index.device)[index]


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
    return _choose(first <= second, left, right)


def _larger(left: Number, right: Number) -> Number:
    first, second, _ = _aligned(left, right)
    return _choose(first >= second, left, right)


def _compare(op: CompareOp, left: Tensor, right: Tensor) -> Tensor:
    match op:
        case CompareOp.LESS:
            return left < right
        case CompareOp.LESS_EQUAL:
            return left <= right
        case CompareOp.GREATER:
            return left > right
        case CompareOp.GREATER_EQUAL:
            return left >= right
        case CompareOp.EQUAL:
            return left == right
        case CompareOp.NOT_EQUAL:
            return left != right
        case _:
            assert_never(op)


def _floor_form(op: BinaryOp, left: Tensor, right: Tensor) -> Tensor:
    """// and % rounded towards minus infinity; 0 where the divisor is 0."""
    divisor = torch.where(right == 0, 1, right)
    result = left.div(divisor, rounding_mode="floor") if op is BinaryOp.FLOOR_DIVIDE else left.remainder(divisor)
    return torch.where(right == 0, 0, result)
