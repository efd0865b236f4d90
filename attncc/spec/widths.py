"""How many features vectors have: what a spec rules out by itself, and what it asks of the tensors of a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from attncc.spec.data import Axis, Data, Size
from attncc.spec.expr import (
    Channel,
    Compare,
    CompareOp,
    Const,
    Dot,
    Entry,
    Expr,
    Indicator,
    Join,
    MatMul,
    Reduce,
    Rotate,
    Vector,
    Width,
    children,
    varies_by_feature,
    walk,
)


@dataclass(frozen=True, slots=True)
class Features:
    """As many features as an axis of some data is long."""

    axis: Axis
    data: str


@dataclass(frozen=True, slots=True)
class Demand:
    """What `size`, as found in `data`, has to be: `equal` to an axis of other data, or `even`, or above a feature."""

    size: Size
    data: str
    equal: Features | None = None
    even: bool = False
    above: int | None = None


class NoFit(Exception):
    """Vectors that do not fit each other, whatever a call brings: where, and why."""

    def __init__(self, place: Expr, message: str, label: str) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.label = label


def demands_of(fields: Iterable[Expr], data: Mapping[str, Data]) -> tuple[Demand, ...]:
    """What the fields of a spec ask of the widths of a call, each once.

    Raises:
        NoFit: where no call could be right.
    """
    found: dict[Demand, Demand] = {}
    for field in fields:
        for node in walk(field):
            for each in _demands(node, data):  # the width of q is that of every vector with an axis d
                found.setdefault(replace(each, data=""), each)
    return tuple(found.values())


def _demands(node: Expr, data: Mapping[str, Data]) -> Iterator[Demand]:
    match node:
        case Reduce(vector=vector) | Width(vector=vector) if is_joined(vector):
            return
        case Reduce(vector=vector) | Width(vector=vector) if features_of(vector, data) is None:
            raise NoFit(node, "nothing says how many features this has", "expected a vector of a token or of data")
        case Join(left=left, right=right):
            for each in (left, right):
                if features_of(each, data) is None and not is_joined(each):
                    text = "expected a vector of a token or of data"
                    raise NoFit(each if each.span else node, "nothing says how many features this has", text)
        case _ if _meets_joined(node):
            message = "joined vectors meet no others: their features are compared, added up, or worked on one by one"
            raise NoFit(node, message, "meets another vector")
        case Dot(left=left, right=right):
            one, other = features_of(left, data), features_of(right, data)
            if one is None and other is None:
                raise NoFit(node, "nothing says how many features this has", "expected a vector of a token or of data")
            yield from _met(node, [one, other])
            if isinstance(left, Vector) and one is not None:
                yield from _chosen(right, one)
        case MatMul(vector=vector, matrix=matrix):
            yield from _met(node, [features_of(vector, data), Features(data[matrix.name].axes[-2], matrix.name)])
        case Rotate(vector=vector):
            yield from _even(node, features_of(vector, data))
        case _ if varies_by_feature(node):
            yield from _met(node, [features_of(each, data) for each in children(node) if varies_by_feature(each)])


def is_joined(vector: Expr) -> bool:
    """Whether the features of a vector are those of two, one after the other."""
    match vector:
        case Join():
            return True
        case Vector() | Entry() | MatMul() | Channel():
            return False
        case _:
            return any(is_joined(each) for each in children(vector) if varies_by_feature(each))


def _meets_joined(node: Expr) -> bool:
    match node:
        case Dot(left=left, right=right):
            return is_joined(left) or is_joined(right)
        case MatMul(vector=vector) | Rotate(vector=vector):
            return is_joined(vector)
        case _:
            vectors = [each for each in children(node) if varies_by_feature(each)]
            return len(vectors) > 1 and any(map(is_joined, vectors))


def features_of(vector: Expr, data: Mapping[str, Data]) -> Features | None:
    """Where the length of a vector stands; None for one that is made of `channel` and numbers."""
    match vector:
        case Vector(name=name) | Entry(name=name, is_vector=True):
            return Features(data[name].axes[-1], name)
        case MatMul(matrix=matrix):
            return Features(data[matrix.name].axes[-1], matrix.name)
        case Channel():
            return None
        case _:
            inner = (features_of(each, data) for each in children(vector) if varies_by_feature(each))
            return next((each for each in inner if each is not None), None)


def _met(node: Expr, widths: list[Features | None]) -> Iterator[Demand]:
    """Vectors that meet feature by feature have one width."""
    known = [each for each in widths if each is not None]
    for one, other in pairwise(known):
        if one.axis == other.axis:
            continue
        if isinstance(one.axis, Size):
            yield Demand(one.axis, one.data, equal=other)
        elif isinstance(other.axis, Size):
            yield Demand(other.axis, other.data, equal=one)
        else:
            raise NoFit(
                node, f"vectors of {one.axis} and {other.axis} features meet", "expected as many features in both"
            )


def _even(node: Expr, width: Features | None) -> Iterator[Demand]:
    if width is None:
        raise NoFit(node, "nothing says how many features this has", "expected a vector of a token or of data")
    if isinstance(width.axis, Size):
        yield Demand(width.axis, width.data, even=True)
    elif isinstance(width.axis, int) and width.axis % 2:
        message = f"a rotation turns pairs of features, but there are {width.axis}"
        raise NoFit(node, message, "expected an even number of features")


def _chosen(selector: Expr, width: Features) -> Iterator[Demand]:
    """`u[i, c]` reads a feature that has to be there."""
    match selector:
        case Indicator(predicate=Compare(op=CompareOp.EQUAL, left=Channel(), right=Const(value=int(place)))):
            if place < 0 or (isinstance(width.axis, int) and place >= width.axis):
                last = f"0 … {width.axis - 1}" if isinstance(width.axis, int) else "0 or more"
                raise NoFit(selector, f"there is no feature {place}", f"expected {last}")
            if isinstance(width.axis, Size):
                yield Demand(width.axis, width.data, above=place)
