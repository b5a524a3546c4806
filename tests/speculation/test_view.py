"""A list as it is shown to those who may not change it: all that reads it works, and nothing changes it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pyspec.speculation.view import ReadOnly

ITEMS = [5, 6, 7, 6]


def raised(call: Callable[[], object]) -> type[Exception] | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whichever it is
        return type(error)
    return None


READS: dict[str, Callable[[Sequence[int]], Any]] = {
    "length": len,
    "truth": bool,
    "first and last": lambda items: (items[0], items[-1]),
    "numpy's number": lambda items: items[np.int64(1)],
    "slices": lambda items: (items[1:3], items[-2:], items[::-1], items[9:]),
    "iteration": lambda items: [*items],
    "backwards": lambda items: list(reversed(items)),
    "contents": lambda items: (6 in items, 9 in items),
    "search": lambda items: (items.index(6), items.index(6, 2), items.index(6, -1, 9), items.count(6), items.count(9)),
    "equality": lambda items: (items == [5, 6, 7, 6], items != [5, 6, 7, 6], items == [5], items == (5, 6, 7, 6)),
    "the other way round": lambda items: ([5, 6, 7, 6] == items, [5] == items),  # noqa: SIM300
    "a tuple": tuple,
    "an array": lambda items: (np.asarray(items).tolist(), np.array(items[-3:]).tolist()),
    "an array of a type": lambda items: (
        np.asarray(items, np.float32).dtype,
        np.array(items, np.int32, copy=True).dtype,
    ),
    "past the end": lambda items: raised(lambda: items[4]),
    "not found": lambda items: raised(lambda: items.index(9)),
    "no hash": lambda items: raised(lambda: hash(items)),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_it_reads_like_its_list(read: Callable[[Sequence[int]], Any]) -> None:
    assert read(ReadOnly(ITEMS)) == read(ITEMS)


@pytest.mark.parametrize("kind", [list, ReadOnly])
def test_views_of_equal_lists_are_equal(kind: Callable[[list[int]], Any]) -> None:
    assert ReadOnly([5, 6]) == kind([5, 6])
    assert ReadOnly([5, 6]) != kind([6, 5])


def test_it_shows_what_is_in_the_list_now() -> None:
    items = [5, 6]
    view = ReadOnly(items)
    items.append(7)
    assert (len(view), view[-1], repr(view)) == (3, 7, "ReadOnly([5, 6, 7])")


CHANGES: dict[str, Callable[[Any], object]] = {
    "append": lambda items: items.append(1),
    "extend": lambda items: items.extend([1]),
    "insert": lambda items: items.insert(0, 1),
    "pop": lambda items: items.pop(),
    "remove": lambda items: items.remove(5),
    "clear": lambda items: items.clear(),
    "sort": lambda items: items.sort(),
    "reverse": lambda items: items.reverse(),
    "set an item": lambda items: operator.setitem(items, 0, 1),
    "set a slice": lambda items: operator.setitem(items, slice(0, 2), []),
    "delete an item": lambda items: operator.delitem(items, 0),
    "delete a slice": lambda items: operator.delitem(items, slice(None)),
    "add in place": lambda items: operator.iadd(items, [1]),  # type: ignore[no-untyped-call]
    "repeat in place": lambda items: operator.imul(items, 2),  # type: ignore[no-untyped-call]
    "construct again": list.__init__,
}
"""All ways to change a list."""


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_changes_it(change: Callable[[Any], object]) -> None:
    items = [5, 6, 7, 6]
    with pytest.raises((AttributeError, TypeError)):
        change(ReadOnly(items))
    assert items == ITEMS
    change(items)
    assert items != ITEMS, "it does change a list"


def test_what_is_got_from_it_may_be_changed() -> None:
    items = [5, 6, 7, 6]
    view = ReadOnly(items)
    view[:].clear()  # type: ignore[attr-defined]
    np.asarray(view)[0] = 9
    assert items == ITEMS
    assert not [name for name in dir(view) if not name.startswith("_") and getattr(view, name) is items]
    with pytest.raises(ValueError, match="by a copy only"):
        view.__array__(copy=False)
