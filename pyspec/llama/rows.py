"""Logits rows of one decode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyspec._native import Handle
from pyspec._native import contexts as native
from pyspec.config import MAX_INT32, as_index, as_list, require_int, shown
from pyspec.errors import ConfigError, DecodeError, LifetimeError, TokenError
from pyspec.llama.mask import TokenMask, allows, checked_mask

if TYPE_CHECKING:
    from pyspec._native.batches import Int32s
    from pyspec.llama.context import Context

_NO_COUNT = -1


class Rows:
    """Logits rows of one decode in batch order, [n_rows, n_vocab].

    They lie in the context's own buffer. The context's next decode overwrites them, so a ``Rows`` refuses
    to work after it. An array taken with ``logits`` cannot refuse: it shows the new values. Copy what must
    last. It stays safe to read after the context is closed.
    """

    __slots__ = ("_best", "_context", "_count", "_n_decodes", "_start")

    def __init__(self, context: Context, best: Int32s, n_decodes: int, start: int, count: int) -> None:
        self._context = context
        self._best = best  # of all rows of the decode
        self._n_decodes = n_decodes
        self._start = start
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> Rows:
        """Return consecutive rows as a ``Rows`` of their own."""
        try:
            start, end, step = part.indices(self._count)
        except (AttributeError, TypeError):
            msg = (
                f"Rows can only be sliced, as in rows[1:3], not indexed with {shown(part)}; see logits() and argmax()."
            )
            raise ConfigError(msg) from None
        if step != 1:
            msg = "Rows can only be sliced without a step."
            raise ConfigError(msg)
        return Rows(self._context, self._best, self._n_decodes, self._start + start, max(0, end - start))

    def split(self, counts: Iterable[int]) -> list[Rows]:
        """Return consecutive rows, so many each.

        Raises:
            ConfigError: ``counts`` are no numbers of rows, or more than all rows together.
        """
        given = as_list(counts)
        if given is not None and not {*map(type, given)} <= {int}:
            given = [_NO_COUNT if (number := as_index(count)) is None else number for count in given]
        if given is None or min(given, default=0) < 0 or sum(given) > self._count:
            msg = f"counts must be numbers of rows, {self._count} at most together, not {shown(counts)}."
            raise ConfigError(msg)
        if given == [self._count]:
            return [self]
        parts, start = [], self._start
        for count in given:
            parts.append(Rows(self._context, self._best, self._n_decodes, start, count))
            start += count
        return parts

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        """Return row ``i`` as a read-only view, [n_vocab]; see the class for its lifetime."""
        row: npt.NDArray[np.float32] = self._context.logits_view()[self.locate(i)]
        return row

    def argmax(self, i: int, mask: TokenMask | None = None) -> int:
        """Return the most likely token of row ``i``, the lowest id among equals; it was found with the decode.

        Args:
            i: Which row.
            mask: The tokens that may be chosen; None allows all. It costs time only where it bans the most likely one.

        Raises:
            ConfigError: The mask does not fit the vocabulary.
            DecodeError: The row is not of numbers, or the mask leaves no token.
        """
        if type(i) is int and 0 <= i < self._count and self._n_decodes == self._context.n_decodes:
            row = self._start + i
        else:
            row = self.locate(i)
        token = self._best[row]
        if token < 0:
            msg = "The logits of this row are not numbers; the model or its quantisation is broken."
            raise DecodeError(msg)
        return token if mask is None else self._best_allowed(row, token, mask)

    def top_k(self, i: int, k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return ids and logits of the k largest logits of row ``i``, best first, both [k]."""
        count = min(require_int("k", k, 1, MAX_INT32), self._context.n_vocab)
        return native.top_k(self._context.handle, self.locate(i), count)

    def logprobs(self, i: int, tokens: Iterable[int]) -> npt.NDArray[np.float64]:
        """Return the logarithms of the probabilities that row ``i`` as it is gives to tokens, [k].

        It is the row's log-softmax at these ids, before any sampler; -inf where there is no probability.

        Raises:
            TokenError: An id is outside the vocabulary.
            DecodeError: The row is not of numbers.
        """
        row, n_vocab = self.locate(i), self._context.n_vocab
        given = as_list(tokens)
        ids = [None] if given is None else [as_index(token) for token in given]
        if not all(token is not None and 0 <= token < n_vocab for token in ids):
            msg = f"tokens must be a list of ids from 0 to {n_vocab - 1}, not {shown(tokens)}."
            raise TokenError(msg)
        return native.logprobs(self._context.handle, row, np.array(ids, np.int32))

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
            msg = f"There are {self._count} logits rows; row {shown(i)} does not exist."
            raise ConfigError(msg)
        if self._n_decodes != self._context.n_decodes:
            msg = "These logits rows were overwritten by a later decode; copy what must last."
            raise LifetimeError(msg)
        return self._start + number

    def _best_allowed(self, row: int, best: int, mask: TokenMask) -> int:
        words = checked_mask(mask, self._context.n_vocab)
        if allows(words, best):
            return best
        token = native.best_allowed(self._context.handle, row, words)
        if token < 0:
            msg = "Every token of this row is banned; the grammar or mask must leave at least one."
            raise DecodeError(msg)
        return token
