"""ngram-map-k and ngram-map-k4v: look-ups with statistics per key.

A *key* is the last ``size_n`` tokens, the pending one included. Both remember per key how much of its last draft was
accepted and never propose more than that again. ngram-map-k4v also counts up to four different continuations
(*values*) per key, and proposes only when one of them is at least twice as frequent as the others together.

The rules are llama.cpp's ``common_ngram_map``, with these differences: occurrences are indexed, so a round costs the
same however long the history is; a new request forgets the former one; and the most frequent value is
proposed rather than what followed the match (``value``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyspec.config import require_int
from pyspec.drafters.base import ModelFreeDrafter
from pyspec.drafters.matching import match_length, signals_of
from pyspec.errors import ConfigError
from pyspec.speculation.draft import Draft, DraftRequest, TokenView

_MAX_VALUES = 4
_LONGEST = 1 << 15
_MAX_COUNT = 16380
_NOWHERE = (0, 0)

Key = tuple[int, ...]


@dataclass(slots=True)
class _Value:
    """A continuation of a key: where it stands, how often it was seen, how much of it was accepted last."""

    start: int
    n_seen: int
    n_accepted: int


@dataclass(slots=True)
class _KeyStats:
    """What is known about a key.

    Attributes:
        n_hits: How often it was met while drafting.
        n_accepted: For ngram-map-k, how much of its last draft was accepted.
        counted_to: Occurrences before this start are in ``values``.
        values: For ngram-map-k4v.
    """

    n_accepted: int
    n_hits: int = 0
    counted_to: int = 0
    values: list[_Value] = field(default_factory=list)


class _History:
    """Where each key occurs, and which occurrence counts as its match.

    A match must start at least ``n + m + 1`` tokens before the end, so that its continuation is complete. Positions
    become eligible as the history grows; the match of a key is the latest one that was eligible when the key's first
    occurrence became so, and position 0 never is one.
    """

    __slots__ = ("_eligible_to", "_listed_to", "_m", "_matches", "_n", "_n_begin", "_occurrences")

    def __init__(self, n: int, m: int, n_begin: int) -> None:
        self._n, self._m, self._n_begin = n, m, n_begin
        self._matches: dict[Key, int] = {}
        self._eligible_to = 0  # positions up to here were offered as matches
        self._occurrences: dict[Key, list[int]] = {}
        self._listed_to = 0

    def match(self, key: Key, tokens: TokenView) -> int | None:
        """Return the start of the key's match, or None."""
        newest = len(tokens) - self._n - self._m - 1
        for start in self._new_positions(newest):
            self._matches.setdefault(tuple(tokens[start : start + self._n]), start)
        self._eligible_to = max(newest, self._eligible_to)
        return self._matches.get(key)

    def occurrences(self, key: Key, first: int, last: int, tokens: TokenView) -> Sequence[int]:
        """Return the starts of a key from ``first`` to ``last``, both included."""
        for start in range(self._listed_to, last + 1):
            self._occurrences.setdefault(tuple(tokens[start : start + self._n]), []).append(start)
        self._listed_to = max(self._listed_to, last + 1)
        starts = self._occurrences.get(key, [])
        return starts[bisect_left(starts, first) : bisect_right(starts, last)]

    def _new_positions(self, newest: int) -> Iterator[int]:
        """Yield the positions that have become eligible, those of the prompt first, the latest first."""
        in_prompt = self._n_begin - self._n - self._m - 1
        yield from range(in_prompt, self._eligible_to, -1)
        yield from range(newest, max(self._n_begin, self._eligible_to), -1)


@dataclass(slots=True)
class _Seat:
    """One sequence: its history, its keys, and what was drafted last."""

    history: _History
    keys: dict[Key, _KeyStats] = field(default_factory=dict)
    last: _KeyStats | _Value | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """A key, what is known about it, and the start of its match."""

    key: Key
    stats: _KeyStats
    match: int


class NgramMapK(ModelFreeDrafter):
    """Proposes what followed a key's match, as much as was accepted the last time.

    Args:
        size_n: Length of the key.
        size_m: Longest draft.

    Raises:
        ConfigError: A size is out of range.
    """

    name = "ngram-map-k"
    reads_only = True

    def __init__(self, *, size_n: int = 12, size_m: int = 48) -> None:
        self.size_n = require_int("size_n", size_n, 1, _LONGEST)
        self.size_m = require_int("size_m", size_m, 1, _LONGEST)
        self.n_max = self.size_m
        self._seats: dict[int, _Seat] = {}

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """Forget the former request."""
        self._seats[seq_id] = _Seat(_History(self.size_n, self.size_m, len(tokens)))

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Look each key up."""
        return [self._answer(request) for request in requests]

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        """Remember how much of the draft stood."""
        seat = self._seats.get(seq_id)
        if own and seat is not None and seat.last is not None:
            seat.last.n_accepted = n_accepted

    def _answer(self, request: DraftRequest) -> Draft:
        start, length = self._draft(request)
        drafted = tuple(request.tokens[start : start + min(length, request.budget)])
        if not (drafted and request.wants_signals):
            return Draft(drafted)
        match = match_length(request.tokens, request.pending, start)
        return Draft(drafted, signals=signals_of(match, len(drafted)))

    def _draft(self, request: DraftRequest) -> tuple[int, int]:
        """Return where in the history the draft stands, and its length."""
        tokens, n, m = request.tokens, self.size_n, self.size_m
        if request.seq_id not in self._seats:
            self.begin(request.seq_id, tokens)
        seat = self._seats[request.seq_id]
        seat.last = None
        if len(tokens) < 2 * n + m:
            return _NOWHERE
        key = (*tokens[len(tokens) - n + 1 :], request.pending) if n > 1 else (request.pending,)
        match = seat.history.match(key, tokens)
        if match is None:
            return _NOWHERE
        stats = seat.keys.setdefault(key, _KeyStats(n_accepted=m))
        stats.n_hits = min(stats.n_hits + 1, _MAX_COUNT)
        return self._continue(seat, _Found(key, stats, match), tokens)

    def _continue(self, seat: _Seat, found: _Found, tokens: TokenView) -> tuple[int, int]:  # noqa: ARG002 - k4v reads it
        seat.last = found.stats
        return found.match + self.size_n, min(self.size_m, found.stats.n_accepted)


class NgramMapK4V(NgramMapK):
    """Proposes the most frequent of up to four continuations, when it stands out.

    Args:
        size_n: Length of the key.
        size_m: Longest draft.
        min_hits: How often a key must have been met before it is used.
        value: "most-frequent" proposes the value that was chosen; "latest" what followed the match, as llama.cpp does.

    Raises:
        ConfigError: An option is out of range.
    """

    name = "ngram-map-k4v"
    reads_only = True

    def __init__(
        self,
        *,
        size_n: int = 12,
        size_m: int = 48,
        min_hits: int = 1,
        value: Literal["latest", "most-frequent"] = "most-frequent",
    ) -> None:
        super().__init__(size_n=size_n, size_m=size_m)
        self.min_hits = require_int("min_hits", min_hits, 1, _MAX_COUNT)
        if value not in ("latest", "most-frequent"):
            msg = f'value must be "latest" or "most-frequent", not {value!r}.'
            raise ConfigError(msg)
        self.value = value

    def _continue(self, seat: _Seat, found: _Found, tokens: TokenView) -> tuple[int, int]:
        stats = found.stats
        if stats.n_hits < self.min_hits:
            return _NOWHERE
        for start in seat.history.occurrences(found.key, stats.counted_to, found.match, tokens):
            self._count(stats, start + self.size_n, tokens)
        stats.counted_to = found.match
        if not stats.values:
            return _NOWHERE
        best = max(stats.values, key=lambda value: value.n_seen)
        others = sum(value.n_seen for value in stats.values) - best.n_seen
        if others and best.n_seen < 2 * others:
            return _NOWHERE
        seat.last = best
        first = best.start if self.value == "most-frequent" else found.match + self.size_n
        return first, min(self.size_m, best.n_accepted)

    def _count(self, stats: _KeyStats, start: int, tokens: TokenView) -> None:
        """Count the value at ``start`` among those of its key; a fifth different one is ignored."""
        m = self.size_m
        here = tokens[start : start + m]
        for value in stats.values:
            if tokens[value.start : value.start + m] == here:
                value.n_seen = min(value.n_seen + 1, _MAX_COUNT)
                return
        if len(stats.values) < _MAX_VALUES:
            stats.values.append(_Value(start, 1, m))
