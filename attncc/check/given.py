"""What a caller gives: the sizes of a call, and tensors laid out so that those of queries and of keys broadcast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from attncc.spec.data import Axis, Blocks, Data, Free, Size, axis_text
from attncc.spec.expr import (
    AtRow,
    Channel,
    Dot,
    Entry,
    Expr,
    Join,
    MatMul,
    Member,
    Merge,
    Name,
    Output,
    OverKeys,
    Pooled,
    Reduce,
    Rotate,
    RowSum,
    Symbol,
    Token,
    Vector,
    Width,
    children,
    names_in,
    substitute,
    walk,
)
from attncc.spec.model import Spec
from attncc.spec.text import text


def sizes_of(data: Sequence[Data], tensors: Mapping[str, Tensor]) -> dict[Size, int]:
    """The lengths that the axes of a call have.

    Raises:
        ValueError: where tensors do not have the axes that are declared.
    """
    sizes: dict[Size, int] = {}
    key_heads: set[int] = set()
    for declared in sorted(data, key=_has_blocks):  # what tells how many rows and keys there are comes first
        shape = tensors[declared.name].shape
        if len(shape) != len(declared.axes):
            raise ValueError(f"`{declared.name}` has {len(shape)} axes, not {len(declared.axes)}")
        for axis, length in zip(declared.axes, shape, strict=True):
            if axis is Size.HEADS and declared.is_column:
                key_heads.add(length)
                continue
            if isinstance(axis, Size):
                sizes.setdefault(axis, length)
            wanted = length if isinstance(axis, Free) else length_of(axis, sizes)
            if length != wanted:
                raise ValueError(f"`{declared.name}` has {length} entries along {axis_text(axis)}, not {wanted}")
    heads = sizes.setdefault(Size.HEADS, max(key_heads, default=1))
    for each in key_heads:
        if each == 0 or heads % each:
            raise ValueError(f"{heads} query heads cannot share {each} key heads")
    if Size.WIDTH not in sizes and "q" in tensors:
        sizes[Size.WIDTH] = tensors["q"].shape[-1]
    sizes.setdefault(Size.BATCH, 1)
    return sizes


def length_of(axis: Axis, sizes: Mapping[Size, int]) -> int:
    """How many entries declared data have along an axis."""
    match axis:
        case Size():
            return sizes[axis]
        case Blocks(size=size):
            return axis.count(sizes[size])
        case Free():
            return sizes.get(Size.KEYS, 0) // 9 + 1  # of a list that a check makes up
        case _:
            return axis


def _has_blocks(declared: Data) -> bool:
    return any(isinstance(axis, Blocks) for axis in declared.axes)


_PLACES = (Size.BATCH, Size.HEADS, Size.QUERIES, Size.KEYS)


def laid_out(declared: Data, tensor: Tensor, heads: int) -> Tensor:
    """Data of tokens as [B, H, n, m] (numbers) or [B, H, n, m, width] (vectors), 1 along axes that it does not have.

    Key heads are repeated: query head h reads key head h // (H / Hk).
    """
    axes = list(declared.axes)
    places = [axes.index(axis) for axis in _PLACES if axis in axes]
    rest = [at for at in range(len(axes)) if at not in places]
    if len(rest) != declared.is_vector:
        raise ValueError(f"`{declared.name}` has other axes than B, H, n or m, and a width")
    tensor = tensor.permute(*places, *rest)
    for at, axis in enumerate(_PLACES):
        if axis not in axes:
            tensor = tensor.unsqueeze(at)
    shared = Size.HEADS in axes and tensor.shape[1] != heads
    return tensor.repeat_interleave(heads // tensor.shape[1], 1) if shared else tensor


def fields_read(spec: Spec) -> tuple[Expr, ...]:
    """The expressions that a spec's meaning depends on: a score that no other reads is not among them."""
    if spec.combine is not None:
        return (*(expr for core in spec.cores for expr in fields_read(core)), spec.combine)
    fields = (spec.pattern, spec.weight, spec.normalizer, spec.value)
    reads_score = any(Name.SCORE in names_in(each) for each in fields)
    return (*fields, spec.score) if reads_score else fields


def sides_of(expr: Expr, data: Mapping[str, Data]) -> tuple[bool, bool]:
    """Whether an expression depends on the query, and on the key."""
    row = column = False
    pending = [expr]
    while pending:
        node = pending.pop()
        match node:
            case OverKeys() | Pooled():
                column = True
                continue
            case AtRow():
                row = True
                continue
            case Vector(name=name) | Token(name=name) if name in data:
                row |= data[name].is_row
                column |= data[name].is_column
            case Symbol(name=Name.SCORE) | RowSum():
                row = column = True
            case Symbol(name=symbol):
                row |= symbol in (Name.I, Name.COUNT, Name.ROWS)
                column |= symbol is Name.J
        pending += children(node)
    return row, column


@cache
def is_vector(expr: Expr) -> bool:
    """Whether a number or a truth value has one value for each feature."""
    match expr:
        case Vector() | Channel() | Rotate() | Join() | MatMul():
            return True
        case Entry(is_vector=vector):
            return vector
        case Dot() | Reduce() | Width() | Token() | RowSum() | Member():
            return False
        case _:
            return any(map(is_vector, children(expr)))


def width_of(expr: Expr, shapes: Mapping[str, torch.Size]) -> int | None:
    """How many features a vector has; None for what fits every width.

    Raises:
        ValueError: where vectors of different widths meet.
    """
    match expr:
        case Vector(name=name) | Entry(name=name, is_vector=True):
            if name not in shapes:
                raise ValueError(f"`{name}` has no value here")
            return shapes[name][-1]
        case Join(left=left, right=right):
            widths = [width_of(each, shapes) for each in (left, right)]
            if None in widths:
                raise ValueError(f"nothing says how many features {text(expr)} has")
            return sum(width for width in widths if width is not None)
        case Rotate(vector=vector):
            width = width_of(vector, shapes)
            if width is not None and width % 2:
                raise ValueError(f"{text(expr)} turns pairs of features, and there are {width}")
            return width
        case MatMul(vector=vector, matrix=matrix):
            rows, columns = shapes[matrix.name][-2:]
            width = width_of(vector, shapes)
            if width not in (None, rows):
                raise ValueError(f"{text(expr)} multiplies {width} features by a matrix with {rows} rows")
            return columns
        case _:
            return joint_width(tuple(each for each in children(expr) if is_vector(each)), shapes)


def joint_width(vectors: Sequence[Expr], shapes: Mapping[str, torch.Size]) -> int | None:
    """The width of vectors that meet."""
    widths = {width for each in vectors if (width := width_of(each, shapes)) is not None}
    if len(widths) > 1:
        raise ValueError(f"vectors of {' and '.join(map(str, sorted(widths)))} features meet")
    return widths.pop() if widths else None


def output_width(spec: Spec, shapes: Mapping[str, torch.Size]) -> int | None:
    """How many features the vector of a query has; None for what fits every width.

    Raises:
        ValueError: where vectors of different widths meet.
    """
    if spec.combine is None:
        return width_of(spec.value, shapes)
    return width_of(*_of_outputs(spec, spec.combine, shapes))


def _of_outputs(spec: Spec, combine: Expr, shapes: Mapping[str, torch.Size]) -> tuple[Expr, Mapping[str, torch.Size]]:
    """The formula that combines branches with a datum in place of each output, and the shapes of all data."""
    widths = {name: width_of(branch.value, shapes) for name, branch in spec.branches}
    stand_ins: dict[Expr, Expr] = {}
    known = dict(shapes)
    for node in walk(combine):
        if isinstance(node, Output | Merge) and node not in stand_ins:
            merged = node.branches if isinstance(node, Merge) else (node.branch,)
            found = {widths[name] for name in merged} - {None}
            if len(found) > 1:
                raise ValueError(f"{text(node)} merges vectors of different widths")
            if found:
                stand_in = Vector(f"output {len(stand_ins)}")  # no datum has such a name
                stand_ins[node], known[stand_in.name] = stand_in, torch.Size([found.pop() or 0])
    return substitute(combine, stand_ins), known


def check_widths(spec: Spec, shapes: Mapping[str, torch.Size]) -> None:
    """Raise ValueError where the widths of vectors do not fit each other."""
    for core in spec.cores:
        for expr in fields_read(core):
            _check_widths(expr, shapes)
        width_of(core.value, shapes)
    if spec.combine is not None:
        formula, known = _of_outputs(spec, spec.combine, shapes)
        _check_widths(formula, known)
        width_of(formula, known)


def _check_widths(expr: Expr, shapes: Mapping[str, torch.Size]) -> None:
    for node in walk(expr):
        if isinstance(node, Dot):
            joint_width((node.left, node.right), shapes)
        elif isinstance(node, Reduce | Width):
            width_of(node.vector, shapes)
