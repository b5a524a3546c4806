"""Logits rows of one decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyspec._native import Handle
from pyspec._native import contexts as native
from pyspec.config import MAX_INT32, as_index, require_int
from pyspec.errors import ConfigError, DecodeError, LifetimeError

if TYPE_CHECKING:
    from pyspec.llama.context import Context


class Rows:
    """Logits rows of one decode in batch order, [n_rows, n_vocab].

    They lie in the context's own buffer. The context's next decode overwrites them, so a ``Rows`` refuses
    to work after it. An array taken with ``logits`` cannot refuse: it shows the new values. Copy what must
    last. It stays safe to read after the context is closed.
    """

    __slots__ = ("_best", "_context", "_count", "_n_decodes", "_start")

    def __init__(self, context: Context, best: Sequence[int], start: int, count: int) -> None:
        self._context = context
        self._best = best  # of all rows of the decode
        self._start = start
        self._count = count
        self._n_decodes = context.n_decodes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> Rows:
        """Return consecutive rows as a ``Rows`` of their own."""
        try:
            start, end, step = part.indices(self._count)
        except (AttributeError, TypeError):
            msg = f"Rows can only be sliced, as in rows[1:3], not indexed with {part!r}; see logits() and argmax()."
            raise ConfigError(msg) from None
        if step != 1:
            msg = "Rows can only be sliced without a step."
            raise ConfigError(msg)
        rows = Rows(self._context, self._best, self._start + start, max(0, end - start))
        rows._n_decodes = self._n_decodes
        return rows

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        """Return row ``i`` as a read-only view, [n_vocab]; see the class for its lifetime."""
        row: npt.NDArray[np.float32] = self._context.logits_view()[self.locate(i)]
        return row

    def argmax(self, i: int) -> int:
        """Return the most likely token of row ``i``, the lowest id among equals; it was found with the decode.

        Raises:
            DecodeError: The row is not of numbers.
        """
        token = self._best[self.locate(i)]
        if token < 0:
            msg = "The logits of this row are not numbers; the model or its quantisation is broken."
            raise DecodeError(msg)
        return token

    def top_k(self, i: int, k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return ids and logits of the k largest logits of row ``i``, best first, both [k]."""
        count = min(require_int("k", k, 1, MAX_INT32), self._context.n_vocab)
        return native.top_k(self._context.handle, self.locate(i), count)

    @property
    def context_handle(self) -> Handle:
        """The native context, for samplers."""
        return self._context.handle

    def locate(self, i: int) -> int:
        """Return the row's number in the context's buffer.

        Raises:
            ConfigError: There is no such row.
            LifetimeError: The context has decoded again.
        """
        number = i if type(i) is int else as_index(i)
        if number is None or not 0 <= number < self._count:
            msg = f"There are {self._count} logits rows; row {i!r} does not exist."
            raise ConfigError(msg)
        if self._n_decodes != self._context.n_decodes:
            msg = "These logits rows were overwritten by a later decode; copy what must last."
            raise LifetimeError(msg)
        return self._start + number
