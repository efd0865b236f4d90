"""What a spec is measured against: dense attention and FlexAttention, for the specs that they can express."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attncc.check.oracle import dense, related
from attncc.spec.data import Data, Size
from attncc.spec.expr import (
    TRUE,
    And,
    AtRow,
    Binary,
    BinaryOp,
    Call,
    Channel,
    Compare,
    CompareOp,
    Const,
    Dot,
    Entry,
    Expr,
    Indicator,
    Let,
    MatMul,
    Name,
    Negate,
    Not,
    Or,
    Reduce,
    Select,
    Symbol,
    Table,
    Token,
    UpTo,
    Vector,
    Width,
    walk,
)
from attncc.spec.model import Spec
from attncc.spec.sides import Side, reads_data, side_of

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Attention = Callable[..., Tensor]  # (*data) -> out
_DOT = Dot(Vector("q"), Vector("k"))
_MOST_DENSE = 8192  # the largest n at which a rival may hold n x n scores


@dataclass(frozen=True, slots=True)
class Rival:
    """Another way to compute the same; `prepare` is what it must do before its first answer (masks, compiling)."""

    name: str
    prepare: Callable[[int, int, torch.device], Attention]
    has_backward: bool = True
    refusal: str = ""  # why it cannot compute this spec, although it computes the like


def rivals(spec: Spec, n: int, device: torch.device) -> tuple[Rival, ...]:
    """The rivals that can compute a spec at length n on a device."""
    found: list[Rival] = []
    if _is_plain_softmax(spec):
        if n <= _MOST_DENSE or spec.pattern == TRUE or _is_causal(spec):
            found.append(Rival("SDPA", lambda n, heads, device: _sdpa(spec, n, heads, device)))
    elif n <= _MOST_DENSE // 2:
        found.append(Rival("dense", lambda n, heads, device: _dense(spec)))
    if _is_softmax(spec):
        refusal = "" if _is_of_products(spec) else "reads vectors or tables that a score_mod is not given"
        prepare = lambda n, heads, device: _flex(spec, n, heads, device)  # noqa: E731  bound to the spec
        found.append(Rival("FlexAttention", prepare, device.type == "cuda", refusal))
    return tuple(found)


def _is_of_products(spec: Spec) -> bool:
    """Whether the score is made of dot(q, k), positions and constants, and weights multiply v as it is given."""
    unread = {Vector("q"), Vector("k")}
    nodes = list(walk(spec.score))  # what a pattern reads becomes a mask
    data = [node for node in nodes if isinstance(node, Vector | Token | Entry | MatMul | Reduce | Channel | Width)]
    dots = [node for node in nodes if isinstance(node, Dot)]
    return (
        spec.value == Vector("v")
        and all(node == _DOT for node in dots)
        and all(node in unread for node in data)
        and {"q", "k", "v"} <= {each.name for each in spec.data}
    )


def _operands(spec: Spec) -> Callable[[tuple[Tensor, ...]], tuple[Tensor, Tensor, Tensor]]:
    """How q, k and v are found among the data of a call."""
    names = [each.name for each in spec.data]
    places = [names.index(name) for name in ("q", "k", "v")]
    return lambda data: (data[places[0]], data[places[1]], data[places[2]])


def _is_softmax(spec: Spec) -> bool:
    return spec.weight == Call("exp", (Symbol(Name.SCORE),)) and spec.normalizer == Symbol(Name.ROWS)


def _is_plain_softmax(spec: Spec) -> bool:
    scaled = Binary(BinaryOp.MULTIPLY, Symbol(Name.SCALE), _DOT)
    return _is_softmax(spec) and spec.score == scaled and _is_of_products(spec)


def _is_causal(spec: Spec) -> bool:
    return spec.pattern == Compare(CompareOp.LESS_EQUAL, Symbol(Name.J), Symbol(Name.I))


def _dense(spec: Spec) -> Attention:
    return lambda *data: dense(spec, *data, dtype=data[0].dtype).out


def _sdpa(spec: Spec, n: int, heads: int, device: torch.device) -> Attention:
    operands = _operands(spec)
    is_causal = _is_causal(spec)
    made: list[Tensor] = []  # of data, in the first call
    if not (spec.pattern == TRUE or is_causal or reads_data(spec.pattern)):
        made.append(related(spec, n, n, heads, device=str(device)))

    def attention(*data: Tensor) -> Tensor:
        q, k, v = operands(data)
        shared = q.shape[1] != k.shape[1]
        if not made and reads_data(spec.pattern):
            given = {each.name: tensor for each, tensor in zip(spec.data, data, strict=True)}
            batch, width = q.shape[0], q.shape[-1]
            made.append(related(spec, n, n, heads, batch=batch, width=width, device=str(device), data=given))
        mask = made[0] if made else None
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=shared
        )

    return attention


def _flex(spec: Spec, n: int, heads: int, device: torch.device) -> Attention:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    lengths = {Name.HEADS: heads, Name.QUERIES: n, Name.KEYS: n, Name.VALID: n}

    def block_mask(data: tuple[Tensor, ...]) -> BlockMask:
        related_pair = pair_of(spec, heads, n, data)
        read = {node.name for node in walk(spec.pattern) if isinstance(node, Token | Entry)}
        axes = {axis for each in spec.data if each.name in read for axis in each.axes}
        by_head = Name.HEAD in spec.names or Size.HEADS in axes
        batch = data[0].shape[0] if Size.BATCH in axes else None
        heads_or_none = heads if by_head else None
        return torch.compile(create_block_mask)(related_pair, batch, heads_or_none, n, n, device=str(device))

    made: list[BlockMask] = []  # of data, in the first call
    if spec.pattern != TRUE and not reads_data(spec.pattern):
        made.append(block_mask(()))
    change = None
    if not _is_plain_softmax(spec):

        def change(score: Tensor, _: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return _value(spec.score, {**lengths, Name.HEAD: h, Name.I: i, Name.J: j, Name.SCALE: 1.0}, score)

    compiled = torch.compile(flex_attention)

    operands = _operands(spec)

    def attention(*data: Tensor) -> Tensor:
        q, k, v = operands(data)
        if not made and spec.pattern != TRUE:
            made.append(block_mask(data))
        mask = made[0] if made else None
        out = compiled(q, k, v, score_mod=change, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        assert isinstance(out, Tensor)
        return out

    return attention


_Names = dict[Name, Tensor | int | float]


def pair_of(spec: Spec, heads: int, n: int, data: Sequence[Tensor]) -> Callable[..., Tensor]:
    """Whether a pair is related, as a function of its batch entry, head, row and key; of the data of one call."""
    lengths = {Name.HEADS: heads, Name.QUERIES: n, Name.KEYS: n, Name.VALID: n}
    given = {each.name: (each, tensor) for each, tensor in zip(spec.data, data, strict=False)}
    counts = {each: _counts(each, heads, n, given, data) for each in walk(spec.pattern) if isinstance(each, UpTo)}

    def related_pair(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        names: _Names = {**lengths, Name.HEAD: h, Name.I: i, Name.J: j}
        return _value(spec.pattern, names, None, read(b))

    def read(b: Tensor) -> Callable[[Token | Entry | UpTo, _Names], Tensor]:
        def found(expr: Token | Entry | UpTo, names: _Names) -> Tensor:
            if not isinstance(expr, UpTo):
                return _read(expr, names, b, given)
            own = side_of(expr.value, {name: declared for name, (declared, _) in given.items()})
            return counts[expr][b, names[Name.HEAD], names[Name.I if own is Side.ROW else Name.J]]  # type: ignore[index]

        return found

    return related_pair


def _counts(expr: UpTo, heads: int, n: int, given: dict[str, tuple[Data, Tensor]], data: Sequence[Tensor]) -> Tensor:
    """How many numbers of a list are at most that of each token, [batch, heads, n]: what masks of pairs look up."""
    batch, device = data[0].shape[0], data[0].device
    b, h, at = torch.arange(batch), torch.arange(heads), torch.arange(n)
    b, h, at = (x.to(device) for x in (b[:, None, None], h[:, None], at))
    names: _Names = dict.fromkeys((Name.QUERIES, Name.KEYS, Name.VALID), n)
    names |= {Name.HEADS: heads, Name.HEAD: h, Name.I: at, Name.J: at}
    found = _value(expr.value, names, None, lambda inner, own: _read(inner, own, b, given))
    values = torch.as_tensor(found, device=device)
    listed = given[expr.name][1]
    return torch.searchsorted(listed, values.to(listed.dtype), right=True).expand(batch, heads, n)


def _read(expr: Token | Entry | UpTo, names: _Names, b: Tensor, given: dict[str, tuple[Data, Tensor]]) -> Tensor:
    """What a pattern reads of data at one pair, in a call where rows and keys stand at their places."""
    if isinstance(expr, UpTo):
        raise TypeError(f"a count of {expr.name} within another")
    declared, tensor = given[expr.name]
    if isinstance(expr, Token):
        own = names[Name.J] if declared.is_column else names[Name.I]
        of_head = names[Name.HEAD] * tensor.shape[-2] // names[Name.HEADS] if Size.HEADS in declared.axes else 0
        leading = {Size.BATCH: b, Size.HEADS: of_head}
        return tensor[tuple(leading.get(axis, own) for axis in declared.axes)]  # type: ignore[arg-type, index]
    indices = [_value(each, names, None, lambda inner, at: _read(inner, at, b, given)) for each in expr.indices]
    places = (b, *indices) if Size.BATCH in declared.axes else tuple(indices)
    return tensor[places]


def _value(
    expr: Expr,
    names: _Names,
    dot: Tensor | None,
    read: Callable[[Token | Entry | UpTo, _Names], Tensor] | None = None,
) -> Tensor:
    """An expression at one pair; with `scale` read as 1, `dot` is the scaled product that FlexAttention hands over."""

    def at(each: Expr) -> Tensor:
        return _value(each, names, dot, read)

    match expr:
        case Token() | Entry() | UpTo() if read is not None:
            return read(expr, names)
        case AtRow(value=value):
            return _value(value, names | {Name.J: names[Name.I]}, dot, read)
        case Const(value=value):
            return value  # type: ignore[return-value]
        case Symbol(name=name):
            return names[name]  # type: ignore[return-value]
        case Dot():
            assert dot is not None
            return dot
        case Let(value=value):
            return at(value)
        case Negate(operand=operand):
            return -at(operand)
        case Not(operand=operand):
            return ~at(operand)
        case Binary(op=op, left=left, right=right):
            return _binary(op, at(left), at(right))
        case Compare(op=op, left=left, right=right):
            return _compare(op, at(left), at(right))
        case And(operands=operands):
            return _fold(lambda a, b: a & b, [at(each) for each in operands])
        case Or(operands=operands):
            return _fold(lambda a, b: a | b, [at(each) for each in operands])
        case Select(condition=condition, then=then, otherwise=otherwise):
            return torch.where(at(condition), at(then), at(otherwise))
        case Indicator(predicate=predicate):
            return torch.where(at(predicate), 1, 0)
        case Table(values=values, index=index):
            return torch.tensor(values)[at(index)]
        case Call(function=function, arguments=arguments):
            return _call(function, [at(each) for each in arguments])
        case _:
            raise TypeError(f"{type(expr).__name__} is no number of one pair")


def _fold(combine: Callable[[Tensor, Tensor], Tensor], parts: list[Tensor]) -> Tensor:
    result = parts[0]
    for part in parts[1:]:
        result = combine(result, part)
    return result


def _binary(op: BinaryOp, left: Tensor, right: Tensor) -> Tensor:
    match op:
        case BinaryOp.ADD:
            return left + right
        case BinaryOp.SUBTRACT:
            return left - right
        case BinaryOp.MULTIPLY:
            return left * right
        case BinaryOp.DIVIDE:
            return left / right
        case BinaryOp.FLOOR_DIVIDE:
            return left // right
        case BinaryOp.MODULO:
            return left % right
        case BinaryOp.POWER:
            return left**right


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


def _call(function: str, arguments: list[Tensor]) -> Tensor:
    if not isinstance(arguments[0], Tensor):
        return math.floor(arguments[0]) if function == "floor" else getattr(math, function)(*arguments)
    match function:
        case "min":
            return _fold(torch.minimum, arguments)
        case "max":
            return _fold(torch.maximum, arguments)
        case "silu" | "gelu" | "softplus" | "elu":
            return getattr(torch.nn.functional, function)(*arguments)  # type: ignore[no-any-return]
        case _:
            return getattr(torch, function)(*arguments)  # type: ignore[no-any-return]
