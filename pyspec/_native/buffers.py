"""Small buffers for results of native calls."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any

import numpy as np


class Int32Out:
    """An int32 that a native function writes; pass ``.ref``, read ``.value``."""

    __slots__ = ("_cell", "ref")

    def __init__(self) -> None:
        self._cell = ctypes.c_int32(0)
        self.ref = ctypes.byref(self._cell)

    @property
    def value(self) -> int:
        return self._cell.value


class TextBuffer:
    """A byte buffer that a native function fills; pass ``address, capacity, length.ref``."""

    __slots__ = ("_bytes", "address", "capacity", "length")

    def __init__(self, capacity: int) -> None:
        self._bytes = ctypes.create_string_buffer(capacity)
        self.address = ctypes.addressof(self._bytes)
        self.capacity = capacity
        self.length = Int32Out()

    def raw(self) -> bytes:
        return ctypes.string_at(self.address, self.length.value)

    def text(self) -> str:
        return self.raw().decode("utf-8", errors="replace")


def address_of(data: array[Any] | np.ndarray[Any, Any]) -> int:
    """Return the address of an array's first element; the caller keeps the array alive."""
    if isinstance(data, array):
        return data.buffer_info()[0]
    return int(data.ctypes.data)
