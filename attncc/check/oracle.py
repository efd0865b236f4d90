"""The dense oracle: what a spec means, computed pair by pair from its own expressions.

It shares nothing with planning and emission, stores the full [batch, heads, n, m] matrix, and lets autograd derive
the gradients. Two things make it exact where a plain transcription is not. Numbers carry an exponent apart from
their mantissa (`wide`), so e^10000 has a value and no formula needs to know about running maxima. And unrelated pairs
are removed twice, from what a weight is computed of (`formulas`) and from the weights after, so that no value or
derivative at such a pair reaches a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attncc.check import wide
from attncc.check.formulas import OutsideTable, Scope, real_of
from attncc.check.given import check_widths, joint_width, laid_out, length_of, output_width, sides_of, sizes_of
from attncc.check.wide import Number
from attncc.spec.choices import choices_of
from attncc.spec.data import Data, Free, Role, Size
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Const,
    Dot,
    Entry,
    Expr,
    Let,
    Merge,
    Name,
    Negate,
    Output,
    RowSum,
    Shares,
    Symbol,
    Token,
    UpTo,
    Vector,
    substitute,
    walk,
)
from attncc.spec.model import Align, Spec
from attncc.spec.pooled import Blocked, outside

__all__ = ["Dense", "Lengths", "OutsideTable", "dense", "related"]

Lengths = int | Tensor | None


@dataclass(frozen=True, slots=True)
class Dense:
    """out [B, H, n, e], lse [B, H, n] (None if the normalizer reads no row sum), weights [B, H, n, m] = w_ij / N_i.

    Of several branches the weights are those of the branches one after the other, along the keys.
    """

    out: Tensor
    lse: Tensor | None
    weights: Tensor
    normalizer: Number | None = None  # N_i, [B, H, n, 1]


def dense(
    spec: Spec,
    *data: Tensor,
    scale: float | None = None,
    kv_lengths: Lengths = None,
    q_start: Lengths = None,
    k_start: int = 0,
    dtype: torch.dtype = torch.float64,
    choices: Mapping[str, Tensor] | None = None,
) -> Dense:
    """Evaluate `spec` on its data, in the order in which it declares them; head h reads key head h // (H / Hk).

    In a 16-bit `dtype` it is what a user would write in PyTorch: matrix products, derived vectors and the weight matrix
    are rounded to that dtype, formulas are evaluated in float32, as `torch.softmax` does.

    Args:
        choices: what lets that choose by comparing have chosen, [B, heads, tokens] by name.

    Raises:
        OutsideTable: where a related pair, or any row or key by itself, reads beside the entries of declared data.
        ValueError: where data do not fit the spec or each other.
    """
    if spec.combine is not None:
        options = {"scale": scale, "kv_lengths": kv_lengths, "q_start": q_start, "k_start": k_start}
        return _combined(spec, data, dtype=dtype, choices=choices, **options)  # type: ignore[arg-type]
    scope = every_pair(spec, *data, scale=scale, kv_lengths=kv_lengths, q_start=q_start, k_start=k_start, dtype=dtype)
    visible = scope.mask
    assert visible is not None
    batch, heads, _, m = visible.shape
    scope = replace(scope, choices=laid_choices(spec, choices or {}, heads))
    laid = scope.data
    shapes = {name: values.shape for name, (_, values) in laid.items()}
    check_widths(spec, shapes)
    related = _related(scope, spec, visible)

    symbols = dict(scope.symbols)
    symbols |= {Name.COUNT: related.sum(-1, keepdim=True)}
    laid = {name: (each, _without_garbage(each, values, related)) for name, (each, values) in laid.items()}
    scope = replace(scope, symbols=symbols, data=laid, mask=related, related=related, _known={}, _masks={})
    if spec.normalizer == Symbol(Name.CHANNELS):
        return _by_channel(spec, scope, related, shapes)
    weight = wide.only(related, scope.number(spec.weight), scope.real)
    normalizer = _normalizer(spec, replace(scope, mask=None, _known={}, _masks={}), wide.total(weight))
    present = normalizer.mantissa != 0
    safe = replace(normalizer, mantissa=torch.where(present, normalizer.mantissa, 1))
    weights = torch.where(related & present, wide.divide(weight, safe).value(), 0).to(dtype)

    value = scope.settled(spec.value, joint_width((spec.value,), shapes) or 1)
    out = weights @ value.value().to(dtype)[..., 0, :, :].expand(batch, heads, m, -1)
    lse = wide.logarithm(normalizer).squeeze(-1) if _reads_row_sum(spec.normalizer) else None
    return Dense(out, lse, weights, normalizer)


def _blocked(
    blocks: Blocked,
    symbols: Mapping[Name, Tensor],
    batch: int,
    m: int,
    kv_lengths: Lengths,
    k_start: int,
    device: torch.device,
) -> tuple[int, Lengths, dict[Name, Tensor], Tensor]:
    """The number of blocks of keys, how many of them are visible, where they stand, and the mask of these."""
    stride = blocks.stride
    if k_start % stride:
        raise ValueError(f"k_start is {k_start}, and blocks begin at multiples of {stride}")
    count = -(-m // stride)
    lengths = None if kv_lengths is None else -(-_per_batch(kv_lengths, device) // stride)
    number = (k_start // stride + torch.arange(count, device=device))[None, None, None]
    at = number
    if blocks.at is not None:
        at = Scope({**symbols, Name.J: number}, {}, torch.float64).number(blocks.at).value()
    return count, lengths, {**symbols, Name.J: at}, _visible(batch, count, lengths, device)


def every_pair(
    spec: Spec,
    *data: Tensor,
    scale: float | None = None,
    kv_lengths: Lengths = None,
    q_start: Lengths = None,
    k_start: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Scope:
    """What expressions of a spec without branches may read, at every pair whose key is visible."""
    given = {
        each.name: tensor.to(dtype) if each.is_real else tensor for each, tensor in zip(spec.data, data, strict=True)
    }
    sizes = sizes_of(spec.data, given)
    laid = {
        each.name: (each, laid_out(each, given[each.name], sizes[Size.HEADS]) if each.is_token else given[each.name])
        for each in spec.data
    }
    batch, heads, n, m = (sizes[axis] for axis in (Size.BATCH, Size.HEADS, Size.QUERIES, Size.KEYS))
    device = data[0].device
    symbols = _symbols(spec, sizes, kv_lengths, q_start, k_start, device) | _call_symbols(sizes, scale, dtype, device)
    shown = _visible(batch, m, kv_lengths, device)
    keys = None
    if spec.blocks is not None:
        keys = Scope(symbols, laid, dtype, visible=shown)
        m, kv_lengths, symbols, shown = _blocked(spec.blocks, symbols, batch, m, kv_lengths, k_start, device)
    visible = shown.expand(batch, heads, n, m)

    def shares(of: Shares) -> Tensor:
        options = {"scale": scale, "kv_lengths": kv_lengths, "q_start": q_start, "k_start": k_start, "dtype": dtype}
        return _shares(spec, of, data, options)

    return Scope(
        symbols,
        laid,
        dtype,
        mask=visible,
        score=spec.score,
        visible=shown,
        keys=keys,
        key_heads=_key_heads(spec, given),
        shares=shares,
    )


def _key_heads(spec: Spec, data: Mapping[str, Tensor]) -> int | None:
    """How many key heads there are, where data of keys have such."""
    found = (each for each in spec.data if each.is_column and Size.HEADS in each.axes and each.name in data)
    return next((data[each.name].shape[each.axes.index(Size.HEADS)] for each in found), None)


@torch.no_grad()
def _shares(spec: Spec, of: Shares, data: Sequence[Tensor], options: Mapping[str, Any]) -> Tensor:
    """What another attention gives to the positions from the first key on, [B, H, n, positions]."""
    blocks = Blocked(of.width, of.stride, of.at) if of.width else None
    fields = {"pattern": of.pattern, "score": of.score, "weight": of.weight, "normalizer": of.normalizer}
    own = replace(spec, value=of.value, blocks=blocks, branches=(), combine=None, **fields)  # type: ignore[arg-type]
    found = dense(own, *data, **options).weights
    if blocks is None:
        return found
    spread = found.new_zeros(*found.shape[:3], max(found.shape[3] - 1, 0) * blocks.stride + blocks.width)
    for block in range(found.shape[3]):
        first = block * blocks.stride
        spread[..., first : first + blocks.width] += found[..., block, None] / blocks.width
    return spread


def laid_choices(spec: Spec, choices: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Choices as [B, H, n, m], 1 along the axis of the other token."""
    found = {}
    for each in choices_of(spec):
        if each.name in choices:
            values = choices[each.name].repeat_interleave(heads // choices[each.name].shape[1], 1)
            if each.entries is None:
                values = values[..., None] if each.of_rows else values[:, :, None]
            found[each.name] = values
    return found


def _by_channel(spec: Spec, scope: Scope, related: Tensor, shapes: Mapping[str, torch.Size]) -> Dense:
    """Weights g_ij a_i . (b_j / Z_i), in which Z_i = sum_j g_ij b_j is divided by feature by feature."""
    factors = list(_factors(substitute(spec.weight, {Symbol(Name.SCORE): spec.score})))
    (product,) = (each for each in factors if isinstance(each, Dot))
    factor = torch.ones((), dtype=scope.real, device=related.device)
    for each in factors:
        factor = factor if each is product else factor * scope.number(each).value()
    factor = torch.where(related, factor, 0).to(scope.dtype)
    declared = {name: each for name, (each, _) in scope.data.items()}
    row, column = product.left, product.right
    if sides_of(row, declared)[1]:
        row, column = column, row
    width = joint_width((row, column), shapes) or 1
    a = scope.settled(row, width).value()[..., 0, :]
    b = scope.settled(column, width).value()[..., 0, :, :].to(scope.dtype)
    sums = factor @ b
    shares = torch.where(sums == 0, 0, a / torch.where(sums == 0, 1, sums)).to(scope.dtype)
    weights = factor * (shares @ b.mT)
    value = scope.settled(spec.value, joint_width((spec.value,), shapes) or 1).value().to(scope.dtype)
    return Dense(weights @ value[..., 0, :, :].expand(*related.shape[:2], *value.shape[3:]), None, weights)


def _factors(weight: Expr) -> Iterator[Expr]:
    """What a weight is a product of."""
    match weight:
        case Binary(op=BinaryOp.MULTIPLY, left=left, right=right):
            yield from (*_factors(left), *_factors(right))
        case Binary(op=BinaryOp.DIVIDE, left=left, right=right):
            yield from (*_factors(left), Binary(BinaryOp.DIVIDE, Const(1.0), right))
        case Negate(operand=operand):
            yield from (Const(-1), *_factors(operand))
        case Let(value=Dot() | Binary() | Negate() as value):
            yield from _factors(value)
        case _:
            yield weight


def _combined(
    spec: Spec,
    data: Sequence[Tensor],
    *,
    scale: float | None,
    kv_lengths: Lengths,
    q_start: Lengths,
    k_start: int,
    dtype: torch.dtype,
    choices: Mapping[str, Tensor] | None,
) -> Dense:
    """The vectors of branches, each evaluated alone, and the formula that combines them."""
    assert spec.combine is not None
    check_widths(spec, {each.name: tensor.shape for each, tensor in zip(spec.data, data, strict=True)})
    given = dict(zip((each.name for each in spec.data), data, strict=True))
    options = {"scale": scale, "kv_lengths": kv_lengths, "q_start": q_start, "k_start": k_start, "dtype": dtype}
    found = {
        name: dense(branch, *(given[each.name] for each in branch.data), choices=choices, **options)  # type: ignore[arg-type]
        for name, branch in spec.branches
    }
    parts: dict[Expr, Number] = {Output(name): Number(each.out) for name, each in found.items()}
    rows: dict[Expr, Number] = {}
    for node in walk(spec.combine):
        if isinstance(node, Merge):
            rows[node], parts[node] = _merged([found[name] for name in node.branches])
    stand_ins = {part: Vector(f"output {at}") for at, part in enumerate(parts)}  # no datum has such a name
    declared = [
        Data(name=each.name, role=Role.INPUT, axes=(Size.BATCH, Size.HEADS, Size.QUERIES, part.shape[-1]))
        for each, part in zip(stand_ins.values(), parts.values(), strict=True)
    ]
    tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in given.items()}
    tensors |= {each.name: part.value() for each, part in zip(declared, parts.values(), strict=True)}
    every = (*spec.data, *declared)
    sizes = sizes_of(every, tensors)
    laid = {
        each.name: (
            each,
            laid_out(each, tensors[each.name], sizes[Size.HEADS]) if each.is_token else tensors[each.name],
        )
        for each in every
    }
    device = data[0].device
    symbols = _symbols(spec, sizes, kv_lengths, q_start, k_start, device) | _call_symbols(sizes, scale, dtype, device)
    shown = _visible(sizes[Size.BATCH], sizes[Size.KEYS], kv_lengths, device)
    scope = Scope(symbols, laid, dtype, visible=shown, choices=laid_choices(spec, choices or {}, sizes[Size.HEADS]))
    formula = substitute(spec.combine, stand_ins)  # type: ignore[arg-type]
    width = output_width(spec, {name: values.shape for name, values in tensors.items()})
    out = scope.vector(formula, width or 1).value()[..., 0, :].to(dtype)
    lse = wide.logarithm(rows[spec.combine]).squeeze(-1) if spec.combine in rows else None
    return Dense(out, lse, torch.cat([each.weights for each in found.values()], -1))


def _merged(branches: Sequence[Dense]) -> tuple[Number, Number]:
    """The sum of the branches' normalisers, and the vector that their weighted sums make when divided by it."""
    total, vectors = Number(torch.zeros(())), Number(torch.zeros(()))
    for each in branches:
        assert each.normalizer is not None
        total = wide.arithmetic(BinaryOp.ADD, total, each.normalizer, each.normalizer.mantissa.dtype)
        weighted = wide.multiply(Number(each.out.to(real_of(each.out.dtype))), each.normalizer)
        vectors = wide.arithmetic(BinaryOp.ADD, vectors, weighted, weighted.mantissa.dtype)
    safe = replace(total, mantissa=torch.where(total.mantissa == 0, 1, total.mantissa))
    return total, wide.divide(vectors, safe)


def _normalizer(spec: Spec, scope: Scope, total: Number) -> Number:
    """N_i as [B, H, n, 1]; a row without keys whose N has no value (0 / 0) has N = 0.

    All rows count here, also those without keys: their log-sum-exp is that of what else stands in N.
    """
    assert scope.related is not None
    number = replace(scope, rows=total).number(spec.normalizer)
    mantissa = number.mantissa.to(scope.real).expand(*scope.related.shape[:3], 1)
    lost = ~scope.related.any(-1, keepdim=True) & ~mantissa.isfinite()
    return replace(number, mantissa=torch.where(lost, 0, mantissa))


def _without_garbage(declared: Data, values: Tensor, related: Tensor) -> Tensor:
    """Data of rows with 0 for what is no number in rows without keys."""
    if not declared.is_row or not values.is_floating_point():
        return values
    used = related.any(-1, keepdim=True)
    for axis in (0, 1):
        used = used.any(axis, keepdim=True) if values.shape[axis] == 1 else used
    return torch.where((used[..., None] if declared.is_vector else used) | values.isfinite(), values, 0)


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
    data: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Which pairs the pattern relates and `kv_lengths` leaves visible: bool [B, H, n, m].

    Where keys are blocks of keys, a query is related to every key of a block that it is related to.

    Args:
        data: the declared data that the pattern reads, by name.

    Raises:
        OutsideTable: where a related pair, or any row or key by itself, reads beside the entries of declared data.
        ValueError: where data that the pattern reads are missing, or have other axes.
    """
    vectors = {node.name for node in walk(spec.pattern) if isinstance(node, Vector)}
    if vectors - (data or {}).keys() or any(node == Symbol(Name.SCORE) for node in outside(spec.pattern)):
        raise ValueError("this pattern depends on q and k: read the weights of `dense` instead")
    sizes = {Size.BATCH: batch, Size.HEADS: heads, Size.QUERIES: n, Size.KEYS: m, Size.WIDTH: width}
    read = {node.name for node in walk(spec.pattern) if isinstance(node, Token | Entry | UpTo)} | vectors
    sizes |= {Size.VALUE_WIDTH: width}
    for each in spec.data:
        if each.name in vectors and each.axes[-1] is Size.VALUE_WIDTH and data is not None:
            sizes[Size.VALUE_WIDTH] = data[each.name].shape[-1]
    laid = {each.name: (each, _fitting(each, data or {}, sizes)) for each in spec.data if each.name in read}
    where = torch.device(device)
    symbols = _symbols(spec, sizes, kv_lengths, q_start, k_start, where)
    symbols |= _call_symbols(sizes, None, torch.float64, where)
    shown = _visible(batch, m, kv_lengths, where)
    if spec.blocks is None:
        visible = shown.expand(batch, heads, n, m)

        def shares(of: Shares) -> Tensor:
            given = {"kv_lengths": kv_lengths, "q_start": q_start, "k_start": k_start}
            tensors = ((data or {})[each.name] for each in spec.data)
            return _shares(spec, of, [each.double() if each.is_floating_point() else each for each in tensors], given)

        key_heads = _key_heads(spec, data or {})
        scope = Scope(symbols, laid, torch.float64, mask=visible, visible=shown, key_heads=key_heads, shares=shares)
        return _related(scope, spec, visible)
    count, _, symbols, visible = _blocked(spec.blocks, symbols, batch, m, kv_lengths, k_start, where)
    scope = Scope(symbols, laid, torch.float64, mask=visible, visible=visible)
    pairs = _related(scope, spec, visible.expand(batch, heads, n, count))
    found = torch.zeros(batch, heads, n, m, dtype=torch.bool, device=where)
    for block in range(count):
        keys = slice(block * spec.blocks.stride, block * spec.blocks.stride + spec.blocks.width)
        found[..., keys] |= pairs[..., block, None] & shown[..., keys]
    return found


def _fitting(declared: Data, data: Mapping[str, Tensor], sizes: Mapping[Size, int]) -> Tensor:
    """Data of a call of these sizes, laid out."""
    if declared.name not in data:
        raise ValueError(f"the pattern reads `{declared.name}`, which is not given")
    tensor, heads = data[declared.name], sizes[Size.HEADS]
    shared = [axis is Size.HEADS and declared.is_column for axis in declared.axes]
    wanted = [
        own if isinstance(axis, Free) else length_of(axis, sizes)
        for axis, own in zip(declared.axes, tensor.shape, strict=False)
    ]
    fits = len(wanted) == tensor.dim() and all(
        length and heads % length == 0 if may_be_shared else length == all_of_them
        for length, all_of_them, may_be_shared in zip(tensor.shape, wanted, shared, strict=True)
    )
    if not fits:
        raise ValueError(f"`{declared.name}` has the shape {list(tensor.shape)}, not {wanted}")
    return laid_out(declared, tensor, heads) if declared.is_token else tensor


def _related(scope: Scope, spec: Spec, visible: Tensor) -> Tensor:
    """The pattern's pairs; entries that both tokens decide have to be there where the pair turns out to be related."""
    found = (scope.predicate(spec.pattern) & visible).expand(visible.shape)
    known = replace(scope, related=found, _known={}, _masks={})
    for node in walk(spec.pattern):
        if isinstance(node, Entry):
            known.check_places(node)
    return found


def _visible(batch: int, m: int, kv_lengths: Lengths, device: torch.device) -> Tensor:
    """bool [B, 1, 1, m]: the keys that `kv_lengths` does not hide."""
    lengths = _per_batch(m if kv_lengths is None else kv_lengths, device)[:, None]
    return (torch.arange(m, device=device) < lengths).expand(batch, m)[:, None, None]


def _per_batch(value: int | Tensor, device: torch.device) -> Tensor:
    return torch.as_tensor(value, device=device).to(torch.int64).reshape(-1)


def _symbols(
    spec: Spec,
    sizes: Mapping[Size, int],
    kv_lengths: Lengths,
    q_start: Lengths,
    k_start: int,
    device: torch.device,
) -> dict[Name, Tensor]:
    """The integer symbols, each broadcastable to [B, H, n, m]."""
    n, m, heads = sizes[Size.QUERIES], sizes[Size.KEYS], sizes[Size.HEADS]
    if q_start is None:
        q_start = 0 if spec.align is Align.START else k_start + m - n
    start = _per_batch(q_start, device)[:, None, None, None]
    valid = _per_batch(m if kv_lengths is None else kv_lengths, device).clamp(0, m)
    lengths = {Name.HEADS: heads, Name.QUERIES: n, Name.KEYS: m, Name.WIDTH: sizes.get(Size.WIDTH)}
    return {
        Name.I: start + torch.arange(n, device=device)[:, None],
        Name.J: (k_start + torch.arange(m, device=device))[None, None, None],
        Name.HEAD: torch.arange(heads, device=device)[None, :, None, None],
        Name.VALID: valid[:, None, None, None],
    } | _integers(lengths, device)


def _call_symbols(
    sizes: Mapping[Size, int], scale: float | None, dtype: torch.dtype, device: torch.device
) -> dict[Name, Tensor]:
    """What only a call with data knows: the width of the values and the scale."""
    found = _integers({Name.VALUE_WIDTH: sizes.get(Size.VALUE_WIDTH)}, device)
    if scale is None and Size.WIDTH in sizes:
        scale = 1 / math.sqrt(sizes[Size.WIDTH])
    if scale is not None:
        found[Name.SCALE] = torch.tensor(scale, dtype=real_of(dtype), device=device)
    return found


def _integers(values: Mapping[Name, int | None], device: torch.device) -> dict[Name, Tensor]:
    return {
        name: torch.tensor(value, dtype=torch.int64, device=device)
        for name, value in values.items()
        if value is not None
    }


def _reads_row_sum(normalizer: Expr) -> bool:
    return any(isinstance(node, RowSum) or node == Symbol(Name.ROWS) for node in walk(normalizer))
