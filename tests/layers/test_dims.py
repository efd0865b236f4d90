"""Lengths in symbols: what is equal, what divides, how it is written."""

from __future__ import annotations

import pytest

from attncc.spec.layers.dims import Ceil, Least, blocks, constant, least, sequence_of, symbol

n, m, dim, heads = (symbol(name) for name in ("n", "m", "dim", "heads"))


def test_sums_and_products_have_one_form() -> None:
    assert (dim + n) * constant(2) == n * constant(2) + dim + dim
    assert dim - dim == constant(0) and (dim - dim).number == 0
    assert str(constant(2) * dim * heads) == "2 * dim * heads"
    assert str(dim - constant(3)) == "dim - 3"


def test_a_quotient_times_its_divisor_is_the_whole() -> None:
    width = dim.over(heads)
    assert width is not None and not width.is_whole and str(width) == "dim / heads"
    assert width * heads == dim
    assert width.length({"dim": 12, "heads": 3}) == 4
    with pytest.raises(ValueError, match="dim / heads is 13/3"):
        width.length({"dim": 13, "heads": 3})
    assert width.text(lambda name: f"self.{name}", python=True) == "self.dim // self.heads"
    assert dim.over(dim + heads) is None and (dim + heads).over(dim + heads) == constant(1)


def test_blocks_of_a_sequence_are_rounded_up() -> None:
    few = blocks(n, constant(8))
    assert str(few) == "ceil(n / 8)" and few.length({"n": 17}) == 3
    assert few.text(lambda name: name, python=True) == "-(-n // 8)"
    assert blocks(n, heads).given({"heads": 8}) == few
    assert (dim.over(heads) or n).given({"heads": 2, "dim": 6}) == constant(3)
    assert blocks(constant(8) * n, constant(8)) == n and blocks(n, constant(1)) == n


def test_which_axes_hold_the_tokens_of_a_sequence() -> None:
    assert sequence_of(n) == "n"
    assert sequence_of(blocks(m, constant(8))) == Ceil(m, constant(8))
    few = least(blocks(n, constant(4)), dim)
    assert sequence_of(blocks(few, constant(2))) == Ceil(few, constant(2))
    assert sequence_of(few) == Least(blocks(n, constant(4)), dim)
    assert sequence_of(n + constant(1)) is None and sequence_of(dim) is None and sequence_of(least(dim, n)) is None


def test_some_of_a_sequence_are_all_where_there_are_fewer() -> None:
    few = least(n, heads)
    assert str(few) == "min(n, heads)" and few.symbols == {"n", "heads"}
    assert [few.length({"n": size, "heads": 4}) for size in (3, 4, 9)] == [3, 4, 4]
    assert few.text(lambda name: f"self.{name}", python=True) == "min(self.n, self.heads)"
