"""Expressions evaluated pair by pair: numbers as [B, H, n, m], vectors as [B, H, n, m, features], 1 along equal ones.

A scope knows which pairs count. Everywhere else tensors are replaced by 0 where they are read, and again where what was
made of them is spread over more pairs: so whatever a formula gives at a pair that does not count, be it NaN, reaches
neither a result nor a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attncc.check import wide
from attncc.check.given import is_vector, joint_width, sides_of
from attncc.check.wide import Number
from attncc.spec.choices import is_choice
from attncc.spec.data import Data, Size
from attncc.spec.expr import (
    And,
    AtRow,
    Binary,
    BinaryOp,
    Call,
    Channel,
    Compare,
    Const,
    Dot,
    Entry,
    Expr,
    Indicator,
    Join,
    Let,
    MatMul,
    Member,
    Name,
    Negate,
    Not,
    Or,
    OverKeys,
    Pooled,
    Reduce,
    Rotate,
    RowSum,
    Select,
    Shares,
    Symbol,
    Table,
    Token,
    Top,
    UpTo,
    Vector,
    Width,
    walk,
)
from attncc.spec.text import text

_MOST_FEATURES = 1 << 24  # features of pairs held at once; more are computed row by row, and again for gradients
_SAFE_EXPONENT = 300.0  # two factors below e^this have a product in float64


class OutsideTable(ValueError):
    """Declared data are read beside their entries, at a pair that counts."""


def real_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype of formulas."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression may read; every tensor broadcasts to [B, H, n, m], those of vectors to [B, H, n, m, features].

    `data` are laid out by `given.laid_out`, tables as they are. `mask` are the pairs that count, `features` those of
    their features; None stands for all.
    """

    symbols: Mapping[Name, Tensor]
    data: Mapping[str, tuple[Data, Tensor]]
    dtype: torch.dtype
    mask: Tensor | None = None
    features: Tensor | None = None
    score: Expr | None = None
    rows: Number | None = None  # readable in a normalizer only
    related: Tensor | None = None  # the pairs that a sum over keys takes
    visible: Tensor | None = None  # the pairs whose key `kv_lengths` does not hide
    keys: Scope | None = None  # that of single keys, where the keys of pairs are blocks of these
    key_heads: int | None = None  # how many there are, if there are fewer than query heads
    shares: Callable[[Shares], Tensor] | None = None  # what another attention gives to the positions of keys
    choices: Mapping[str, Tensor] = field(default_factory=dict)  # by the names of lets, in place of what these mean
    _known: dict[object, Number] = field(default_factory=dict, compare=False)
    _masks: dict[object, Tensor] = field(default_factory=dict, compare=False)

    @property
    def real(self) -> torch.dtype:
        """The dtype of formulas."""
        return real_of(self.dtype)

    def where(self, condition: Tensor, of_features: bool = False) -> Scope:
        """The same scope at fewer pairs."""
        features = self.features
        if of_features:
            features = condition if features is None else features & condition
            condition = condition.any(-1)
        condition = condition.reshape((1,) * (4 - condition.dim()) + condition.shape)
        mask = condition if self.mask is None else self.mask & condition
        return replace(self, mask=mask, features=features, _known={}, _masks={})

    # --- numbers and vectors ------------------------------------------------------------------------------------

    def number(self, expr: Expr) -> Number:
        """The value of an integer or a real expression."""
        return self._value(expr, None)

    def vector(self, expr: Expr, width: int) -> Number:
        """The value of a vector, with its features as the last axis."""
        result = self._value(expr, width)
        return result.map(lambda part: part.expand(wide.joint_shape(part.shape, (width,))))

    def _value(self, expr: Expr, width: int | None) -> Number:
        if width is not None and not is_vector(expr):
            return self._value(expr, None).map(lambda part: part[..., None])  # the same for every feature
        if width is None and is_vector(expr):
            raise ValueError(f"{text(expr)} is a vector, and a number is wanted")
        match expr:
            case Const(value=value):
                real = isinstance(value, float)
                return Number(torch.tensor(value, dtype=self.real if real else torch.int64, device=self._device))
            case Symbol(name=Name.SCORE) if self.score is not None:
                return self._value(self.score, None)
            case Symbol(name=Name.ROWS) if self.rows is not None:
                return self.rows
            case Symbol(name=name):
                if name not in self.symbols:
                    raise ValueError(f"`{name.value}` has no value here")
                return Number(self.symbols[name])
            case RowSum(weight=weight) if self.rows is not None and self.related is not None:
                inner = replace(self, rows=None, mask=self.related, _known={}, _masks={})
                return wide.total(wide.only(self.related, inner.number(weight), self.real))
            case Negate(operand=operand):
                number = self._value(operand, width)
                return replace(number, mantissa=-number.mantissa)
            case Binary(op=op, left=left, right=right):
                return self._binary(op, left, right, width)
            case Call(function=function, arguments=arguments):
                numbers = self._met([self._value(each, width) for each in arguments], width)
                return wide.call(function, numbers, self.real)
            case Select(condition=condition, then=then, otherwise=otherwise):
                of_features = is_vector(condition)
                holds = self.predicate(condition, width)
                one = self.where(holds, of_features)._value(then, width)
                other = self.where(~holds, of_features)._value(otherwise, width)
                return wide.choose(holds if width is None or of_features else holds[..., None], one, other)
            case Indicator(predicate=predicate):
                return Number(self.predicate(predicate, width).to(torch.int64))
            case Table(values=values, index=index):
                return Number(self._constant(values, self.number(index).mantissa))
            case UpTo(name=name, value=value):
                listed = self.data[name][1]
                return Number((listed <= self.number(value).value()[..., None]).sum(-1))
            case Channel() if width is not None:
                return Number(torch.arange(width, device=self._device))
            case Width(vector=vector):
                return Number(torch.tensor(self._width(vector), device=self._device))
            case (
                Let()
                | Dot()
                | Reduce()
                | Vector()
                | Token()
                | Entry()
                | Rotate()
                | Join()
                | MatMul()
                | OverKeys()
                | AtRow()
                | Pooled()
            ):
                key = (expr, width)
                if key not in self._known:
                    self._known[key] = self._read(expr, width)
                return self._known[key]
            case _:
                raise ValueError(f"{type(expr).__name__} is not a number here")

    def _read(self, expr: Expr, width: int | None) -> Number:
        """What is worth keeping: data, and what is computed from whole vectors."""
        if self.features is not None and isinstance(expr, Dot | Reduce | Rotate | Join | MatMul):
            return replace(self, features=None, _known={}, _masks={})._read(expr, width)
        match expr:
            case Let(name=name) if name in self.choices and is_choice(expr):
                return Number(self.choices[name])
            case Let(value=value):
                return self._value(value, width)
            case Vector(name=name) | Token(name=name):
                if name not in self.data:
                    raise ValueError(f"`{name}` has no value here")
                values = self.data[name][1]
                return self._kept(Number(values.to(self.real) if values.is_floating_point() else values), width)
            case Entry():
                return self._kept(Number(self._entry(expr)), width)
            case Dot(left=left, right=right):
                return self._kept(self._product(left, right), None)
            case Reduce(function=function, vector=vector):
                sides = self._sides(vector)
                return self._kept(self._over_features((vector,), sides, function), None)
            case OverKeys(function=function, value=value):
                return self._over_keys(function, value, width)
            case Pooled():
                return self._kept(self._pooled(expr, width), width)
            case AtRow(value=value):
                return self._kept(self._at_row(value, width), width)
            case Rotate(layout=layout, vector=vector):
                return _rotated(layout, self.vector(vector, self._width(vector)))
            case Join(left=left, right=right):
                return self._joined(left, right)
            case MatMul(vector=vector, matrix=matrix):
                return self._matrix_product(vector, matrix)
            case _:
                raise ValueError(f"{type(expr).__name__} is not a number here")

    @property
    def _device(self) -> torch.device:
        return self.symbols[Name.I].device

    def _binary(self, op: BinaryOp, left: Expr, right: Expr, width: int | None) -> Number:
        first, second = self._met([self._value(each, width) for each in (left, right)], width)
        if op is not BinaryOp.POWER:
            return wide.arithmetic(op, first, second, self.real)
        match left, right:
            case _, Const(value=int(value)) if value >= 0:
                return wide.whole_power(first, value)
            case Const(value=constant), _ if constant > 0 and not isinstance(right, Const):
                return wide.exponential(second.value().to(self.real) * math.log(constant))
        return wide.power(first, second, self.real)

    # --- predicates ---------------------------------------------------------------------------------------------

    def predicate(self, expr: Expr, width: int | None = None) -> Tensor:
        """The truth of a predicate, bool; of one that reads vectors, for each feature."""
        if not is_vector(expr):
            width = None

        def inner(each: Expr) -> Tensor:
            truth = self.predicate(each, width)
            return truth if width is None or is_vector(each) else truth[..., None]

        match expr:
            case Const(value=bool(value)):
                return torch.tensor(value, device=self._device)
            case And(operands=operands):
                return reduce(torch.logical_and, map(inner, operands), torch.tensor(True, device=self._device))
            case Or(operands=operands):
                return reduce(torch.logical_or, map(inner, operands), torch.tensor(False, device=self._device))
            case Not(operand=operand):
                return ~inner(operand)
            case Select(condition=condition, then=then, otherwise=otherwise):
                return torch.where(inner(condition), inner(then), inner(otherwise))
            case Compare(op=op, left=left, right=right):
                return wide.compare(op, self._value(left, width), self._value(right, width))
            case Member(element=element, of=of):
                return self._is_member(element, of)
            case Let(name=name, value=Top() as top):
                return self._is_chosen(name, top)
            case Token() | Entry() | AtRow() | Let():
                return self._value(expr, None).mantissa
            case _:
                raise ValueError(f"{type(expr).__name__} is not a predicate")

    def _is_chosen(self, name: str, top: Top) -> Tensor:
        """Whether a key is among those that the query has chosen, or would choose."""
        if name in self.choices:
            found = torch.tensor(False, device=self._device)
            of = self.symbols[Name.J] // top.block
            for entry in self.choices[name].unbind(-1):
                found = found | ((of == entry[..., None]) & (entry[..., None] >= 0))
            return found
        numbers, related, _ = self.ranked(top)
        order = torch.where(related, numbers, -math.inf).sort(dim=-1, descending=True, stable=True).indices
        is_first: Tensor = torch.zeros_like(related).scatter(-1, order[..., : top.count], value=True)
        keys = self.symbols[Name.J]
        of = keys // top.block - keys[..., :1] // top.block
        return (is_first & related).gather(-1, of.expand(*related.shape[:3], of.shape[-1]))

    def ranked(self, top: Top) -> tuple[Tensor, Tensor, Tensor]:
        """The numbers by which keys, or blocks of keys, are chosen, among which ones, and where each stands."""
        keys = self.symbols[Name.J]
        visible = torch.tensor(True, device=self._device) if self.visible is None else self.visible
        if top.block > 1:
            first = keys[..., :: top.block]
            visible = visible[..., :: top.block] if visible.dim() else visible
            if (first % top.block).any():
                raise ValueError(f"keys do not begin where a block of {top.block} does")
            among = replace(self, symbols={**self.symbols, Name.J: first}, mask=None, _known={}, _masks={})
            keys = first
        else:
            among = self
        rows = (1, 1, 1) if self.mask is None else self.mask.shape[:3]
        own = self.symbols[Name.I].shape[:3]
        shape = wide.joint_shape((*rows, keys.shape[-1]), (*own, keys.shape[-1]))
        related = (among.predicate(top.among) & visible).expand(shape)
        if isinstance(top.by, Shares):
            assert self.shares is not None
            numbers = self.shares(top.by).to(self.real)  # of each position from the first key on
            size = shape[-1] * top.block
            numbers = torch.nn.functional.pad(numbers, (0, max(size - numbers.shape[-1], 0)))[..., :size]
            numbers = numbers.reshape(*numbers.shape[:-1], shape[-1], top.block).sum(-1)
        else:
            numbers = replace(self, mask=related, _known={}, _masks={}).number(top.by).value().detach().to(self.real)
        numbers = numbers.expand(shape)
        if top.grouped:
            numbers = self._of_groups(numbers, lambda each: torch.stack(each).sum(0))
            related = self._of_groups(related, lambda each: torch.stack(each).all(0))
        return numbers, related, keys // top.block

    def _of_groups(self, values: Tensor, join: Callable[[list[Tensor]], Tensor]) -> Tensor:
        """What heads that share a key head have together, for each of them."""
        heads = values.shape[1]
        group = heads // (self.key_heads or heads)
        together = [join(list(values[:, at : at + group].unbind(1))) for at in range(0, heads, group)]
        return torch.stack(together, 1).repeat_interleave(group, 1)

    def _is_member(self, element: Expr, of: Expr) -> Tensor:
        number, entries = self.number(element).mantissa, self.vector(of, self._width(of)).mantissa
        found = torch.tensor(False, device=self._device)
        for entry in entries.unbind(-1):
            found = found | ((number == entry) & (entry >= 0))
        return found

    # --- sums over features -------------------------------------------------------------------------------------

    def width(self, vector: Expr) -> int:
        """How many features a vector has."""
        return self._width(vector)

    def _width(self, *vectors: Expr) -> int:
        width = joint_width(vectors, {name: values.shape for name, (_, values) in self.data.items()})
        if width is None:
            raise ValueError(f"nothing says how many features {text(vectors[0])} has")
        return width

    def _sides(self, expr: Expr) -> tuple[bool, bool]:
        return sides_of(expr, {name: declared for name, (declared, _) in self.data.items()})

    def _product(self, left: Expr, right: Expr) -> Number:
        sides = [self._sides(each) for each in (left, right)]
        if sides == [(False, True), (True, False)]:
            left, right, sides = right, left, sides[::-1]
        if sides == [(True, False), (False, True)]:
            width = self._width(left, right)
            row, column = (self.settled(each, width) for each in (left, right))
            if self.dtype is not torch.float64 or (_is_moderate(row) and _is_moderate(column)):
                rows = row.value().to(self.dtype)[..., 0, :]
                columns = column.value().to(self.dtype)[..., 0, :, :]
                return Number((rows @ columns.mT).to(self.real))
        return self._over_features((left, right), _joined(sides), "sum")

    def _over_features(self, vectors: tuple[Expr, ...], sides: tuple[bool, bool], function: str) -> Number:
        """A sum or the largest of the features of a product, slab by slab of rows where there are many."""
        width = self._width(*vectors)
        pairs = 1 if self.mask is None else self.mask.numel()
        if sides != (True, True) or self.mask is None or pairs * width <= _MOST_FEATURES or self.mask.shape[2] < 2:
            return self._reduced(vectors, width, function)
        n = self.mask.shape[2]
        rows = max(1, _MOST_FEATURES * n // (pairs * width))

        def slab(start: int) -> tuple[Tensor, Tensor | None]:
            part = self._at_rows(start, start + rows)
            shape = part.mask.shape if part.mask is not None else ()
            found = part._reduced(vectors, width, function).map(lambda each: each.expand(shape))
            return found.mantissa, found.exponent

        parts = [checkpoint(slab, start, use_reentrant=False, preserve_rng_state=False) for start in range(0, n, rows)]
        mantissas, exponents = ([part[at] for part in parts] for at in (0, 1))
        return Number(torch.cat(mantissas, 2), None if exponents[0] is None else torch.cat(exponents, 2))

    def _reduced(self, vectors: tuple[Expr, ...], width: int, function: str) -> Number:
        factors = self._met([self.settled(each, width) for each in vectors], width)
        terms = reduce(wide.multiply, factors)
        if function == "argmax":
            return Number(terms.value().detach().argmax(-1))
        if function not in ("sum", "largest"):
            raise ValueError(f"features have no `{function}`")
        return (wide.total if function == "sum" else wide.largest)(terms).map(lambda part: part[..., 0])

    def _at_rows(self, start: int, stop: int) -> Scope:
        """The same scope for some rows of the call."""
        assert self.mask is not None
        n = self.mask.shape[2]

        def cut(values: Tensor, axis: int) -> Tensor:
            return values.narrow(axis, start, min(stop, n) - start) if values.shape[axis] == n else values

        return replace(
            self,
            symbols=dict(self.symbols)
            | {name: cut(self.symbols[name], 2) for name in (Name.I, Name.COUNT) if name in self.symbols},
            data={
                name: (declared, cut(values, 2) if declared.is_row else values)
                for name, (declared, values) in self.data.items()
            },
            mask=cut(self.mask, 2),
            features=None if self.features is None or self.features.dim() < 5 else cut(self.features, 2),
            rows=None if self.rows is None else self.rows.map(lambda part: cut(part, 2)),
            related=None if self.related is None else cut(self.related, 2),
            choices={name: cut(each, 2) for name, each in self.choices.items()},
            _known={},
            _masks={},
        )

    def _joined(self, left: Expr, right: Expr) -> Number:
        """The features of one vector, then those of another, as plain numbers."""
        parts = [self.settled(each, self._width(each)).value().to(self.real) for each in (left, right)]
        shape = wide.joint_shape(*(each.shape[:-1] for each in parts))
        return Number(torch.cat([each.expand(*shape, each.shape[-1]) for each in parts], -1))

    def _matrix_product(self, vector: Expr, matrix: Entry) -> Number:
        """In 16 bit a matrix product like any other: its operands and its result are rounded."""
        table = self._entry(matrix).to(self.dtype)  # [..., rows, columns]
        inner = self.settled(vector, table.shape[-2]).value().to(self.dtype)
        if table.dim() < 6 or table.shape[2:4] == (1, 1):  # one matrix for all rows and keys, though heads may differ
            table = table.reshape((1,) * (6 - table.dim()) + table.shape)[:, :, 0, 0]
            inner = inner.reshape((1,) * (5 - inner.dim()) + inner.shape)
            product = inner.flatten(2, 3) @ table
            product = product.reshape(*product.shape[:2], *inner.shape[2:4], table.shape[-1])
        else:
            product = (inner[..., None, :] @ table)[..., 0, :]
        return Number(product.to(self.real))

    # --- tables -------------------------------------------------------------------------------------------------

    def _entry(self, expr: Entry) -> Tensor:
        """Entries of declared data, [B, H, n, m] and the axes that are left without an index."""
        if expr.name not in self.data:
            raise ValueError(f"`{expr.name}` has no value here")
        declared, table = self.data[expr.name]
        if declared.is_token:
            raise ValueError(f"`{expr.name}` holds something for each token and is no table")
        if table.is_floating_point():
            table = table.to(self.real)
        places = list(self._places(expr))
        if Size.BATCH in declared.axes:
            places.insert(0, torch.arange(table.shape[0], device=self._device)[:, None, None, None])
        return table[tuple(places)] if places else table

    def check_places(self, expr: Entry) -> None:
        """Raise OutsideTable where an entry that has to be there is not."""
        for _ in self._places(expr):
            pass

    def _places(self, expr: Entry) -> Iterator[Tensor]:
        """The indices of an entry, along the axes that have one."""
        declared, table = self.data[expr.name]
        first = len(declared.axes) - len(declared.indexed)
        for at, each in enumerate(expr.indices):
            yield self._inside(expr, at, self.number(each).value(), table.shape[first + at])

    def _inside(self, expr: Entry, axis: int, index: Tensor, size: int) -> Tensor:
        """An index that is right where it has to be, and legal elsewhere.

        It has to be right at related pairs, whether or not a condition there needs it; for every token where one alone
        decides it, but for what the call says of hidden keys.
        """
        if not size and index.numel():
            raise OutsideTable(f"{text(expr)} reads a table without entries")
        outside = (index < 0) | (index >= size)
        data = {name: declared for name, (declared, _) in self.data.items()}
        mask = self.related
        if not all(sides_of(expr.indices[axis], data)):
            tokens = [data[each.name] for each in walk(expr.indices[axis]) if isinstance(each, Token)]
            mask = self.visible if any(each.is_column for each in tokens) else None
        elif mask is None:  # which pairs are related is being found out: those that turn out to be are looked at again
            return index.clamp(0, max(size - 1, 0))
        if mask is not None:
            outside = outside & _any_of(mask, index.shape)
        if outside.any():
            found = index.expand(outside.shape)[outside]
            raise OutsideTable(
                f"{text(expr)} reads {int(found.min())}…{int(found.max())} along axis {axis}, which has {size} entries"
            )
        return index.clamp(0, max(size - 1, 0))

    def _constant(self, values: tuple[int | float, ...], index: Tensor) -> Tensor:
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= len(values)):
            raise ValueError(f"a list of {len(values)} constants is read at {int(index.min())}…{int(index.max())}")
        whole = all(isinstance(value, int) for value in values)
        return torch.tensor(values, dtype=torch.int64 if whole else self.real, device=index.device)[index]

    # --- values of all keys ---------------------------------------------------------------------------------------

    def _of_keys(self, value: Expr, width: int | None) -> tuple[Tensor, Tensor]:
        """What every key has, related to a query or not, as plain numbers; and which keys are visible."""
        visible = torch.tensor(True, device=self._device).expand(1, 1, 1, self.symbols[Name.J].shape[-1])
        visible = visible if self.visible is None else self.visible
        data = {
            name: (declared, values * (visible[..., None] if declared.is_vector else visible))
            if declared.is_column and not declared.is_real
            else (declared, values)
            for name, (declared, values) in self.data.items()
        }
        keys = replace(self, data=data, mask=visible, features=None, related=None, _known={}, _masks={})
        found = keys._value(value, width).value()
        visible = visible if width is None else visible[..., None]
        return found.expand(wide.joint_shape(found.shape, visible.shape)), visible

    def _pooled(self, expr: Pooled, width: int | None) -> Number:
        """The mean of each block of keys; hidden keys take no part."""
        assert self.keys is not None
        values, visible = self.keys._of_keys(expr.value, width)
        values, axis = torch.where(visible, values.to(self.real), 0), 3
        length = values.shape[axis]
        starts = range(0, length, expr.stride)
        blocks = [slice(start, min(start + expr.width, length)) for start in starts]
        along = (slice(None),) * axis
        totals = [values[(*along, block)].sum(axis) for block in blocks]
        counts = [visible[(*along, block)].sum(axis).clamp(min=1) for block in blocks]
        if not blocks:
            return Number(values)
        return Number(torch.stack([total / count for total, count in zip(totals, counts, strict=True)], axis))

    def _over_keys(self, function: str, value: Expr, width: int | None) -> Number:
        """A function of all keys, or of those up to each. Hidden keys take no part; but for sums, they have 0."""
        values, visible = self._of_keys(value, width)
        if function == "rank":
            return Number(_places_in_order(values, visible))
        values, axis = values.to(self.real), 3
        match function:
            case "cumsum":
                return Number(torch.where(visible, values, 0).cumsum(axis))
            case "softmax_over_keys":
                least = torch.finfo(values.dtype).min
                result = torch.where(visible, values, least).softmax(axis)
            case "largest_over_keys":
                result = torch.where(visible, values, -math.inf)
                result = result.amax(axis, keepdim=True) if result.shape[axis] else result
            case "mean_over_keys":
                count = visible.sum(axis, keepdim=True).clamp(min=1)
                result = torch.where(visible, values, 0).sum(axis, keepdim=True) / count
            case _:
                raise ValueError(f"keys have no `{function}`")
        return Number(torch.where(visible, result, 0))

    def _at_row(self, value: Expr, width: int | None) -> Number:
        """What the key at the query's position has: a query where no key stands is an error."""
        values, _ = self._of_keys(value, width)
        own, keys = self.symbols[Name.I], self.symbols[Name.J]
        place = own - keys[..., :1] if keys.shape[-1] else own
        if ((place < 0) | (place >= keys.shape[-1])).any():
            raise OutsideTable(f"{text(value)} is read at queries that stand where no key does")
        place = place[..., None] if width is not None else place
        batch, heads = (max(values.shape[at], place.shape[at]) for at in (0, 1))
        features = values.shape[4:]
        values = values.expand(batch, heads, 1, *values.shape[3:]).transpose(2, 3)
        return Number(values.gather(2, place.expand(batch, heads, place.shape[2], 1, *features)))

    # --- pairs that do not count --------------------------------------------------------------------------------

    def _mask_at(self, shape: Sequence[int], width: int | None) -> Tensor | None:
        """Whether a pair counts, for a tensor of this shape: any of the pairs that one entry stands for."""
        if self.mask is None:
            return None
        mask = self.mask
        if width is not None:
            mask = mask[..., None] if self.features is None else mask[..., None] & self.features
        padded = (1,) * (mask.dim() - len(shape)) + tuple(shape)
        key = (padded, width is not None)
        if key not in self._masks:
            self._masks[key] = _any_of(mask, padded)
        return self._masks[key]

    def _kept(self, number: Number, width: int | None, shape: torch.Size | None = None) -> Number:
        """A number, or one spread to a shape, with 0 at pairs that do not count."""
        mask = self._mask_at(number.shape if shape is None else shape, width)
        if mask is None or not number.mantissa.is_floating_point():
            return number
        return number.map(lambda part: torch.where(mask, part, 0))

    def settled(self, expr: Expr, width: int) -> Number:
        """A vector that is about to meet other tokens in a sum: 0 for tokens that no pair which counts has."""
        return self._kept(self.vector(expr, width), width)

    def _met(self, numbers: list[Number], width: int | None) -> tuple[Number, ...]:
        """Numbers of different tokens that are about to be combined, so that pairs which do not count stay apart.

        In 16 bit, what one token's vector has come to is rounded once here, as it is where it is stored.
        """
        shape = wide.joint_shape(*(each.shape for each in numbers))
        met: list[Number] = []
        for each in numbers:
            if width is not None and self.real is not self.dtype and _is_spread(each.shape, shape):
                each = Number(each.value().to(self.dtype).to(self.real))
            met.append(self._kept(each, width, shape) if each.has_gradient and each.shape != shape else each)
        return tuple(met)


def _joined(sides: list[tuple[bool, bool]]) -> tuple[bool, bool]:
    return any(row for row, _ in sides), any(column for _, column in sides)


def _is_moderate(number: Number) -> bool:
    """Whether a matrix product of plain values loses nothing."""
    exponent = number.exponent
    return exponent is None or not exponent.numel() or float(exponent.detach().abs().max()) < _SAFE_EXPONENT


def _is_spread(shape: torch.Size, pairs: torch.Size) -> bool:
    """Whether a vector of one token is spread over the tokens of the other side."""
    own, joint = ((1,) * (5 - len(each)) + tuple(each) for each in (shape, pairs))
    return own[2:4] != joint[2:4] or joint[2:4] == (1, 1)


def _places_in_order(values: Tensor, visible: Tensor) -> Tensor:
    """The place of each key in order of its whole number, then of its position: how many come before it."""
    at = torch.arange(values.shape[3], device=values.device)
    shape = (*values.shape[:2], 1, values.shape[3])
    found = torch.zeros(shape, dtype=torch.int64, device=values.device)
    hidden = ~visible.expand(shape)
    for key in range(values.shape[3]):
        one, its = values[..., key : key + 1], hidden[..., key : key + 1]
        earlier = (values < one) | ((values == one) & (at < key))
        before = torch.where(hidden == its, earlier, its)  # the visible come before the hidden
        found[..., key] = before.sum(-1)
    return found


def _rotated(layout: str, vector: Number) -> Number:
    """(x, y) → (-y, x); signs belong to the mantissa."""
    match layout:
        case "half":
            swapped = vector.map(lambda part: torch.cat(part.chunk(2, -1)[::-1], -1))
            signs = torch.tensor([-1, 1], device=swapped.mantissa.device).repeat_interleave(swapped.shape[-1] // 2)
        case "pairs":
            half = vector.shape[-1] // 2
            swapped = vector.map(lambda part: part.reshape(*part.shape[:-1], half, 2).flip(-1).flatten(-2))
            signs = torch.tensor([-1, 1], device=swapped.mantissa.device).repeat(swapped.shape[-1] // 2)
        case _:
            raise ValueError(f"there is no rotation of {layout}")
    return replace(swapped, mantissa=swapped.mantissa * signs)


def _any_of(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """Whether any of the pairs counts that one entry of a tensor of this shape stands for."""
    for at, size in enumerate(shape):
        if size == 1 and mask.shape[at] != 1:
            mask = mask.any(at, keepdim=True)
    return mask
