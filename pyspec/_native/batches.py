"""Where a batch is laid out for a native decode."""

from __future__ import annotations

import ctypes
import itertools
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyspec._native.declarations import BatchArrays

_INT32 = 4  # bytes


class BatchBuffer:
    """The arrays of a ``pys_batch``.

    They stay from one decode to the next, because making them takes longer than filling them.

    Attributes:
        ref: What C takes.
        best: Receives the best token of each wanted row, [rows wanted or more].
    """

    __slots__ = ("_arrays", "_capacity", "_flags", "_numbers", "_plain", "_rows", "best", "ref")

    def __init__(self) -> None:
        self._arrays = BatchArrays()
        self.ref = ctypes.byref(self._arrays)
        self._rows: npt.NDArray[np.float32] | None = None
        self._numbers: array[int]
        self._flags: array[int]
        self._plain: bool
        self.best: array[int]
        self._reserve(64)

    def fill(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        seq_ids: Sequence[Sequence[int]],
        outputs: Sequence[bool],
        states: Sequence[npt.NDArray[np.float32]],
    ) -> None:
        """Take the entries of a batch."""
        n = len(tokens)
        flat = [seq_id for entry in seq_ids for seq_id in entry]
        if (needed := max(n, len(flat))) > self._capacity:
            self._reserve(2 * needed)
        c, numbers = self._capacity, self._numbers
        numbers[:n] = array("i", tokens)
        numbers[c : c + n] = array("i", positions)
        numbers[2 * c : 2 * c + len(flat)] = array("i", flat)
        is_plain = len(flat) == n  # one sequence each
        if not (is_plain and self._plain):
            offsets = range(c + 1) if is_plain else itertools.accumulate(map(len, seq_ids), initial=0)
            changed = array("i", offsets)
            numbers[3 * c : 3 * c + len(changed)] = changed
            self._plain = is_plain
        self._flags[:n] = array("b", outputs)
        self._arrays.n_tokens = n
        if states or self._rows is not None:
            self._take_rows(states)

    def _take_rows(self, states: Sequence[npt.NDArray[np.float32]]) -> None:
        rows = self._rows = np.ascontiguousarray(states, np.float32) if states else None
        self._arrays.rows, self._arrays.row_width = (None, 0) if rows is None else (rows.ctypes.data, rows.shape[1])

    def _reserve(self, capacity: int) -> None:
        """Make room for so many entries, and as many sequences of theirs."""
        self._capacity, self._plain = capacity, False
        self._numbers = array("i", bytes(_INT32 * (4 * capacity + 1)))  # tokens, positions, sequences, offsets
        self._flags = array("b", bytes(capacity))
        self.best = array("i", bytes(_INT32 * capacity))
        address, part = self._numbers.buffer_info()[0], _INT32 * capacity
        arrays = self._arrays
        arrays.tokens, arrays.positions = address, address + part
        arrays.seq_ids, arrays.seq_offsets = address + 2 * part, address + 3 * part
        arrays.outputs, arrays.best = self._flags.buffer_info()[0], self.best.buffer_info()[0]
