"""ngram-simple: what followed the last time.

A *key* is the last ``size_n`` tokens, the pending one included. Its latest earlier occurrence is found, and the
tokens that followed there, at most ``size_m``, are proposed. The rule is llama.cpp's ``common_ngram_simple_draft``;
the search is not: an index is kept, so a round costs the same however long the history is.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspec.config import require_int
from pyspec.drafters.base import ModelFreeDrafter
from pyspec.drafters.matching import match_length, signals_of
from pyspec.speculation.draft import Draft, DraftRequest, TokenView

_LONGEST = 1 << 16


class NgramSimple(ModelFreeDrafter):
    """Proposes what followed the latest earlier occurrence of the last ``size_n`` tokens.

    Args:
        size_n: Length of the key.
        size_m: Longest draft.

    Raises:
        ConfigError: A size is out of range.
    """

    name = "ngram-simple"
    reads_only = True

    def __init__(self, *, size_n: int = 12, size_m: int = 48) -> None:
        self.size_n = require_int("size_n", size_n, 1, _LONGEST)
        self.size_m = require_int("size_m", size_m, 1, _LONGEST)
        self.n_max = self.size_m
        self._indexes: dict[int, _Index] = {}

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """Forget the former request and index the new history."""
        index = self._indexes[seq_id] = _Index(self.size_n)
        index.follow(tokens)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Look each key up."""
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        tokens, n = request.tokens, self.size_n
        if len(tokens) <= n + self.size_m + 1:
            return Draft()
        key = (*tokens[len(tokens) - n + 1 :], request.pending) if n > 1 else (request.pending,)
        start = self._indexes.setdefault(request.seq_id, _Index(n)).latest(key, tokens)
        if start is None:
            return Draft()
        found = tokens[start + n : start + n + self.size_m]
        if len(found) < min(n, self.size_m):  # too close to the end, as in llama.cpp
            return Draft()
        drafted = tuple(found[: request.budget])
        if not request.wants_signals:
            return Draft(drafted)
        return Draft(drafted, signals=signals_of(match_length(tokens, request.pending, start + n), len(drafted)))


class _Index:
    """Latest start of each run of n tokens that is followed by at least one more token.

    Position 0 is never a match, as in llama.cpp.
    """

    __slots__ = ("_last_token", "_n", "_n_indexed", "_starts")

    def __init__(self, n: int) -> None:
        self._n = n
        self._clear()

    def _clear(self) -> None:
        self._starts: dict[tuple[int, ...], int] = {}
        self._n_indexed = 0  # tokens seen
        self._last_token: int | None = None

    def follow(self, tokens: TokenView) -> None:
        """Index what was added since the last call; start again when the history is another one."""
        count, n = len(tokens), self._n
        seen = self._n_indexed
        if seen > count or (seen and tokens[seen - 1] != self._last_token):
            self._clear()
            seen = 0
        starts = self._starts
        for start in range(max(1, seen - n), count - n):
            starts[tuple(tokens[start : start + n])] = start
        self._n_indexed = count
        self._last_token = tokens[count - 1] if count else None

    def latest(self, key: tuple[int, ...], tokens: TokenView) -> int | None:
        """Return the latest start of a key in the history, or None."""
        self.follow(tokens)
        start = self._starts.get(key)
        if start is not None and tuple(tokens[start : start + self._n]) != key:
            self._clear()  # the history was changed in the middle
            self.follow(tokens)
            start = self._starts.get(key)
        return start
