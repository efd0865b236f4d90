"""Where the sizes of a call stand in the tensors that the caller gives."""

from __future__ import annotations

from collections.abc import Callable

from attncc.spec.data import Data, Size
from attncc.spec.model import Spec


class Sizes:
    """The texts of the sizes of a call, read off declared data."""

    def __init__(self, spec: Spec, absent: frozenset[str] = frozenset()) -> None:
        self.data = tuple(each for each in spec.data if each.name not in absent)

    @property
    def rows(self) -> Data:
        """The vectors of rows whose type is that of the call."""
        return next(each for each in self.data if each.is_row and each.is_full)

    def __getitem__(self, size: Size) -> str:
        return self.text(size)

    def text(self, size: Size) -> str:
        """The text of a size; heads are those of queries."""
        if size is Size.HEADS:
            return self._first(size, lambda each: each.is_row, lambda each: not each.is_token)
        if size in (Size.WIDTH, Size.VALUE_WIDTH):
            found = self._find(size, lambda each: each.is_vector, lambda _: True)
            return found or f"{self.rows.name}.shape[-1]"
        return self._first(size, lambda each: each.is_vector, lambda _: True)

    @property
    def kv_heads(self) -> str:
        """The text of the number of key heads."""
        return self._first(Size.HEADS, lambda each: each.is_column, lambda _: True)

    @property
    def columns(self) -> Data:
        """The data of keys that tell how many there are."""
        found = [each for each in self.data if each.is_column]
        return next((each for each in found if Size.HEADS in each.axes), found[0])

    def _first(self, size: Size, *wanted: Callable[[Data], bool]) -> str:
        found = self._find(size, *wanted)
        assert found is not None, f"no data have an axis {size.value}"
        return found

    def _find(self, size: Size, *wanted: Callable[[Data], bool]) -> str | None:
        for want in wanted:
            for each in self.data:
                if size in each.axes and want(each):
                    at = each.axes.index(size)
                    last = at == len(each.axes) - 1 and each.is_vector
                    return f"{each.name}.shape[{-1 if last else at}]"
        return None
