"""A list as it is shown to those who may not change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

Item = TypeVar("Item")


class ReadOnly(Sequence[Item]):  # noqa: PLW1641 - a list has no hash, either
    """What is in someone else's list now. It cannot be changed here, and nothing is copied but by a slice, a list.

    Args:
        items: The list.

    Example:
        >>> tokens = [5, 6, 7]
        >>> view = ReadOnly(tokens)
        >>> tokens.append(8)
        >>> view[-2:], len(view), view == [5, 6, 7, 8]
        ([7, 8], 4, True)
    """

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self._items[index]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __reversed__(self) -> Iterator[Item]:
        return reversed(self._items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __eq__(self, other: object) -> bool:
        return self._items == (other._items if isinstance(other, ReadOnly) else other)

    def __repr__(self) -> str:
        return f"ReadOnly({self._items!r})"

    def __array__(  # numpy asks for it
        self,
        dtype: npt.DTypeLike | None = None,
        copy: bool | None = None,  # noqa: FBT001 - its interface
    ) -> npt.NDArray[Any]:
        if copy is False:
            msg = "A ReadOnly becomes an array by a copy only; leave copy out."
            raise ValueError(msg)
        return np.array(self._items, dtype)

    def index(self, value: Any, *bounds: int) -> int:
        """Return the number of the first item that equals a value; see ``list.index``."""
        return self._items.index(value, *bounds)

    def count(self, value: Any) -> int:
        """Return how many items equal a value."""
        return self._items.count(value)
