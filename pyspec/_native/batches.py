"""Where a batch is laid out for a native decode."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyspec._native.declarations import BatchArrays

_INT32 = 4  # bytes

Int32s = ctypes.Array[ctypes.c_int32]


class BatchBuffer:
    """The arrays of a ``pys_batch``.

    They stay from one decode to the next, because making them takes longer than filling them. They are arrays of
    ctypes, whose code the call of the decode needs anyway; see ``fill``.

    Attributes:
        ref: What C takes.
        best: Receives the best token of each wanted row, [rows wanted or more].
    """

    __slots__ = ("_arrays", "_capacity", "_flags", "_numbers", "_rows", "best", "ref")

    def __init__(self) -> None:
        self._arrays = BatchArrays()
        self.ref = ctypes.byref(self._arrays)
        self._rows: npt.NDArray[np.float32] | None = None
        self._numbers: Int32s
        self._flags: ctypes.Array[ctypes.c_int8]
        self.best: Int32s
        self._reserve(64)

    def fill(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        seq_ids: Sequence[Sequence[int]],
        outputs: Sequence[bool],
        states: Sequence[npt.NDArray[np.float32]],
    ) -> None:
        """Take the entries of a batch.

        They are written one by one: most decodes have few, and what builds arrays at once is more code to run, which
        no cache holds any more after the decode before.
        """
        n, n_ids = len(tokens), 0
        for entry in seq_ids:
            n_ids += len(entry)
        if n > self._capacity or n_ids > self._capacity:
            self._reserve(2 * max(n, n_ids))
        numbers, c, k = self._numbers, self._capacity, 2 * self._capacity
        for i, entry in enumerate(seq_ids):
            numbers[i], numbers[c + i], self._flags[i] = tokens[i], positions[i], outputs[i]
            for seq_id in entry:
                numbers[k] = seq_id
                k += 1
            numbers[3 * c + i + 1] = k - 2 * c
        self._arrays.n_tokens = n
        if states or self._rows is not None:
            self._take_rows(states)

    def _take_rows(self, states: Sequence[npt.NDArray[np.float32]]) -> None:
        rows = self._rows = np.ascontiguousarray(states, np.float32) if states else None
        self._arrays.rows, self._arrays.row_width = (None, 0) if rows is None else (rows.ctypes.data, rows.shape[1])

    def _reserve(self, capacity: int) -> None:
        """Make room for so many entries, and as many sequences of theirs."""
        self._capacity = capacity
        self._numbers = (ctypes.c_int32 * (4 * capacity + 1))()  # tokens, positions, sequences, offsets
        self._flags = (ctypes.c_int8 * capacity)()
        self.best = (ctypes.c_int32 * capacity)()
        address, part = ctypes.addressof(self._numbers), _INT32 * capacity
        arrays = self._arrays
        arrays.tokens, arrays.positions = address, address + part
        arrays.seq_ids, arrays.seq_offsets = address + 2 * part, address + 3 * part
        arrays.outputs, arrays.best = ctypes.addressof(self._flags), ctypes.addressof(self.best)
