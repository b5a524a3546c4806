"""An output of at least so many tokens: until then, no token that ends it is legal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from pyspec.llama.mask import TokenMask

_WORD = 32  # bits


class Constraint(Protocol):
    """What may follow the tokens of an output so far; ``GrammarState`` is one."""

    def mask(self) -> TokenMask | None:
        """Return which tokens are legal; None: all."""
        ...

    def accept(self, token: int) -> None:
        """Take in a token of the output."""
        ...

    def save(self) -> int:
        """Return a mark to come back to with ``restore``."""
        ...

    def restore(self, mark: int) -> None:
        """Return to a mark."""
        ...

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens are legal, one after the other."""
        ...

    def forced(self) -> list[int]:
        """Return the tokens that must follow as text."""
        ...


class MinimumLength:
    """Lets no output end before it has so many tokens, alone or beside another constraint.

    Where the other one allows nothing but an end, the output ends.

    Args:
        n_tokens: At least so many, before the one that ends the output.
        ends: The tokens that end it.
        n_vocab: Size of the vocabulary.
        other: What else must hold, or None.
    """

    __slots__ = ("_ends", "_n", "_n_min", "_other", "_words")

    def __init__(self, n_tokens: int, ends: Collection[int], n_vocab: int, other: Constraint | None = None) -> None:
        self._n = 0
        self._n_min = n_tokens
        self._ends = ends
        self._other = other
        bits = np.ones(-(-n_vocab // _WORD) * _WORD, np.uint8)
        bits[list(ends)] = 0
        self._words = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)

    def mask(self) -> TokenMask | None:
        """Return which tokens are legal; None: all."""
        other = None if self._other is None else self._other.mask()
        if self._n >= self._n_min or other is None:
            return other if self._n >= self._n_min else self._words
        both = other & self._words
        return both if both.any() else other

    def accept(self, token: int) -> None:
        """Take in a token of the output."""
        if self._other is not None:
            self._other.accept(token)
        self._n += 1

    def save(self) -> int:
        """Return a mark to come back to with ``restore``: the number of tokens, which is the other one's mark too."""
        return self._n

    def restore(self, mark: int) -> None:
        """Return to a mark."""
        if self._other is not None:
            self._other.restore(mark)
        self._n = mark

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens are legal; an end that comes too early is taken for illegal everywhere."""
        n_legal = len(tokens) if self._other is None else self._other.legal_prefix(tokens)
        early = tokens[: max(0, min(n_legal, self._n_min - self._n))]
        return next((i for i, token in enumerate(early) if token in self._ends), n_legal)

    def forced(self) -> list[int]:
        """Return the tokens that must follow as text."""
        return [] if self._other is None else self._other.forced()
