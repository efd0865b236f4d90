"""Data that patterns read, drawn so that they decide something: documents, padding, ranges of rows, tables of blocks.

What a number is follows from how the spec reads it: one that is compared with a position is drawn among positions, one
that is an index keeps values that fit its axis, and others are labels. Every row of data (of a batch entry, of a head)
has a style of its own, so one call has an entry without padding beside one that is nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import Enum, auto

import torch
from torch import Tensor

from attncc.check.sizes import Case, shape_of
from attncc.spec.data import Data, Size
from attncc.spec.expr import (
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Entry,
    Expr,
    Member,
    Name,
    Reduce,
    Symbol,
    Token,
    Top,
    UpTo,
    Vector,
    children,
    names_in,
    walk,
)
from attncc.spec.model import Align, Spec

_LOWER = (CompareOp.LESS, CompareOp.LESS_EQUAL)
_UPPER = (CompareOp.GREATER, CompareOp.GREATER_EQUAL)
_STEP = 8.0  # real numbers are so many parts of 1, so that 16 bits hold them and their differences are exact
_FAR = 1 << 40  # labels may be wider than 32 bits


class Use(Enum):
    """What a pattern does with a number."""

    LABEL = auto()  # compares it with others
    SUM = auto()  # calculates with it
    LOWER = auto()  # is below a position
    UPPER = auto()  # is above a position
    PLACE = auto()  # compares it with a position in another way
    DISTANCE = auto()  # compares it with a distance
    INDEX = auto()  # looks a table up


def uses_of(spec: Spec) -> dict[str, Use]:
    """How the patterns of a spec use each of the data that they read; an index in any field is one."""
    found: dict[str, Use] = {}
    for core in spec.cores:
        for name, use in _uses(core.pattern):
            found[name] = use if found.get(name, use) is use else max(found[name], use, key=_strength)
    read = set(found)
    for core in spec.cores:
        for field in (core.pattern, core.score, core.weight, core.normalizer, core.value):
            for entry in (node for node in walk(field) if isinstance(node, Entry)):
                found |= {node.name: Use.INDEX for each in entry.indices for node in _numbers(each)}
    return {name: use for name, use in found.items() if name in read}


def _strength(use: Use) -> int:
    return (Use.LABEL, Use.SUM, Use.DISTANCE, Use.PLACE, Use.LOWER, Use.UPPER, Use.INDEX).index(use)


def _uses(expr: Expr) -> Iterator[tuple[str, Use]]:
    match expr:
        case Compare(op=op, left=left, right=right):
            for mine, other, lower, upper in ((left, right, _LOWER, _UPPER), (right, left, _UPPER, _LOWER)):
                yield from ((node.name, _compared(mine, other, op, lower, upper)) for node in _numbers(mine))
            for each in walk(expr):
                if isinstance(each, Entry):
                    yield from (use for index in each.indices for use in _uses(index))
                elif isinstance(each, UpTo):
                    yield each.name, Use.PLACE
        case UpTo(name=name, value=value):
            yield name, Use.PLACE
            yield from _uses(value)
        case Top(among=among):
            yield from _uses(among)
        case Member(element=element):
            yield from ((node.name, Use.LABEL) for node in _numbers(element))
        case Token(name=name):
            yield name, Use.LABEL
        case Entry(name=name, indices=indices):
            yield name, Use.LABEL
            for index in indices:
                yield from _uses(index)
        case _:
            for child in children(expr):
                yield from _uses(child)


def _compared(
    mine: Expr, other: Expr, op: CompareOp, lower: tuple[CompareOp, ...], upper: tuple[CompareOp, ...]
) -> Use:
    """What a number in `mine` is that is compared with `other`."""
    places = {
        node.name
        for side in (mine, other)
        for node in _outside_indices(side)
        if isinstance(node, Symbol) and node.name in (Name.I, Name.J)
    }
    if len(places) == 2:
        return Use.DISTANCE
    if places:
        return Use.LOWER if op in lower else Use.UPPER if op in upper else Use.PLACE
    return Use.LABEL if len(list(_outside_indices(mine))) <= 3 and not names_in(mine) - {Name.I, Name.J} else Use.SUM


def _outside_indices(expr: Expr) -> Iterator[Expr]:
    """The nodes of an expression but for those in indices, and for what choices are made of."""
    yield expr
    if not isinstance(expr, Entry | Reduce):
        for child in children(expr):
            yield from _outside_indices(child)


def _numbers(expr: Expr) -> Iterator[Token | Entry]:
    return (node for node in _outside_indices(expr) if isinstance(node, Token | Entry))


def drawn(spec: Spec, case: Case) -> dict[str, Tensor]:
    """The data that patterns read, but for those that are indices and learned numbers that weights may read as well."""
    uses = uses_of(spec)
    found: dict[str, Tensor] = {}
    for each in spec.data:
        use = uses.get(each.name)
        if use is not None and use is not Use.INDEX and not each.is_vector:
            found[each.name] = _Drawer(spec, case, each, use).all()
    for core in spec.cores:
        for node in walk(core.pattern):
            if isinstance(node, Member) and isinstance(node.of, Vector):
                found[node.of.name] = _entries(
                    next(each for each in spec.data if each.name == node.of.name), node, case
                )
    return found


def _entries(declared: Data, member: Member, case: Case) -> Tensor:
    """Lists of what keys are: some entries twice, some -1, some beyond all keys, some lists empty."""
    generator = _generator(f"{case.name} {declared.name}")
    end = case.k_start + case.m + 2
    match member.element:
        case Binary(op=BinaryOp.FLOOR_DIVIDE, right=Const(value=int(width))):
            end = end // width + 2
        case element if any(isinstance(node, Token) for node in walk(element)):
            end = 6
    shape = shape_of(declared, case)
    entries = torch.randint(-1, end, shape, generator=generator)
    return torch.where(torch.rand((*shape[:-1], 1), generator=generator) < 0.1, -1, entries)


class _Drawer:
    """Draws one of the data, row by row."""

    def __init__(self, spec: Spec, case: Case, declared: Data, use: Use) -> None:
        self.case, self.declared, self.use = case, declared, use
        self.generator = _generator(f"{case.name} {declared.name}")
        self.start = case.q_start
        if self.start is None:
            self.start = 0 if spec.align is Align.START else case.k_start + case.m - case.n

    def all(self) -> Tensor:
        """Every row."""
        shape = shape_of(self.declared, self.case)
        length = _length_of_rows(self.declared, shape)
        count = 1
        for size in shape:
            count *= size
        rows = count // length if length else 0
        styles = torch.randperm(64, generator=self.generator)  # what one call has of each other is not all the same
        parts = [self._row(length, int(styles[at % 64]), at * self.case.batch // max(rows, 1)) for at in range(rows)]
        values = torch.stack(parts) if parts else torch.zeros(0, dtype=torch.int64)
        if self.declared.truth:
            return values.bool().reshape(shape)
        if self.declared.whole:
            return values.reshape(shape)
        if self.use in (Use.LABEL, Use.SUM):
            return (values.clamp(-32, 32) / _STEP).double().reshape(shape)
        return (values + 0.5).double().reshape(shape)

    def _row(self, length: int, style: int, batch: int) -> Tensor:
        if self.declared.truth:
            return self._truths(length, style)
        match self.use:
            case Use.LOWER | Use.UPPER | Use.PLACE:
                return self._places(length, batch)
            case Use.DISTANCE:
                values = self._whole(length, -1, max(self.case.n, self.case.m) + 1)
                values = torch.where(self._share(length, 0.5), self._whole(length, -1, 9), values)
            case _:
                return self._labels(length, style)
        return values.sort().values if self.declared.ascending else values

    # --- styles -----------------------------------------------------------------------------------------------

    def _truths(self, length: int, style: int) -> Tensor:
        """None, all, few, many, one, a run at the end or at the start."""
        at = torch.arange(length)
        match style % 8:
            case 0:
                return at < 0
            case 1:
                return at >= 0
            case 2:
                return self._share(length, 0.1)
            case 3:
                return self._share(length, 0.9)
            case 4:
                return at == self._one(length)
            case 5:
                return at >= self._one(length)
            case 6:
                return at < self._one(length)
            case _:
                return self._share(length, 0.5)

    def _labels(self, length: int, style: int) -> Tensor:
        """Runs of random lengths, mixed or ascending; few values or many; all equal; each its own."""
        match style % 6:
            case 0:
                values = self._runs(length, 1 + length // 3)
            case 1:
                values = self._runs(length, 4)
            case 2:
                values = torch.full((length,), self._one(7) - 3)
            case 3:
                values = self._whole(length, 0, 3)
            case 4:
                values = self._whole(length, -length, length + 1)
            case _:
                values = torch.where(self._share(length, 0.3), self._whole(length, -2, 3), self._runs(length, 9))
        if self.declared.ascending:
            values = values.sort().values
        elif style % 3 == 0:
            values = values[torch.randperm(length, generator=self.generator)]
        if style >= 48 and self.use is Use.LABEL and self.declared.whole:
            values = values * _FAR + self._one(9)
        return values

    def _runs(self, length: int, longest: int) -> Tensor:
        """Runs of 1 to `longest` tokens, each with a number of its own, with gaps between the numbers."""
        lengths = self._whole(length, 1, longest + 1)
        own = torch.repeat_interleave(torch.arange(length), lengths)[:length]
        steps = torch.where(self._share(length, 0.8), 1, self._whole(length, 1, 5)).cumsum(0) - 3
        return steps[own] if length else own

    def _places(self, length: int, batch: int) -> Tensor:
        """Positions: all of the keys, none, those near the token's own, or any; ends of one entry agree on it."""
        first, end = self.case.k_start, self.case.k_start + self.case.m
        start = self.start if isinstance(self.start, int) else (self.start or (0,))[batch % len(self.start or (0,))]
        own = torch.arange(length) + (start if self.declared.is_row else first)
        low = self.use is Use.LOWER
        any_ = self._whole(length, first - 1, end + 2)
        near = own + self._whole(length, -5 if low else 0, 1 if low else 6)
        mixed = torch.where(self._share(length, 0.5), any_, near)
        match int(torch.randint(6, (1,), generator=_generator(f"{self.case.name} {batch}"))):
            case 0:
                values = torch.full((length,), first - 1 if low else end)
            case 1:
                values = torch.full((length,), end if low else first - 1)
            case 2:
                values = near
            case 3:
                values = any_
            case _:
                extreme = torch.where(self._share(length, 0.5), first - 1, end)
                values = torch.where(self._share(length, 0.2), extreme, mixed)
        return values.sort().values if self.declared.ascending else values

    # --- numbers ------------------------------------------------------------------------------------------------

    def _whole(self, length: int, low: int, end: int) -> Tensor:
        return torch.randint(low, max(end, low + 1), (length,), generator=self.generator)

    def _one(self, end: int) -> int:
        return int(torch.randint(max(end, 1), (1,), generator=self.generator))

    def _share(self, length: int, share: float) -> Tensor:
        return torch.rand(length, generator=self.generator) < share


def _generator(text: str) -> torch.Generator:
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]))


def _length_of_rows(declared: Data, shape: tuple[int, ...]) -> int:
    """How many entries have one style: the tokens of a batch entry or head, or the blocks of a table."""
    length = 1
    for axis, size in zip(declared.axes[::-1], shape[::-1], strict=True):
        if axis in (Size.BATCH, Size.HEADS):
            break
        length *= size
    return length
