"""ngram-mod: a hash table from n tokens to the token that followed.

The table has a fixed number of entries and no keys: different n-grams may share an entry, the last writer wins, and a
wrong entry costs a wrong draft and nothing else. A draft rolls the window over its own output until an entry is empty.
The rule is llama.cpp's ``common_ngram_mod``; its one table for everybody is an option here (``share``), because by
default nothing of one request may be drafted in the next.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyspec.config import require_bool, require_int
from pyspec.drafters.base import ModelFreeDrafter
from pyspec.drafters.matching import signals_of
from pyspec.speculation.draft import Draft, DraftRequest, TokenView

_logger = logging.getLogger(__name__)

TABLE_SIZE = 4 * 1024 * 1024
_MULTIPLIER = 6364136223846793005
_MASK = 2**64 - 1
_FULL_SHARE = 0.25  # of the table: beyond it collisions spoil the drafts
_INDEX_EVERY = 32  # tokens
_LOW_ACCEPTANCE = 0.25
_LOW_ROUNDS = 5  # in a row: the table is of another text
_SHORT_MATCH = 16
_SHORT_DRAFT = 48  # tokens, as in llama.cpp
_LONGEST = 1 << 16


@dataclass(slots=True)
class _Seat:
    """One sequence.

    Attributes:
        table: Index to following token.
        n_indexed: Starts ``[0, n_indexed)`` of the history are in the table.
        n_drafted: Length of the last draft, before it was cut to the budget.
        n_low: Rounds in a row with low acceptance.
    """

    table: dict[int, int] = field(default_factory=dict)
    n_indexed: int = 0
    n_drafted: int = 0
    n_low: int = 0


class NgramMod(ModelFreeDrafter):
    """Continues the last ``n_match`` tokens by table look-ups.

    Args:
        n_match: Tokens per look-up; below 16 the drafts are poor.
        n_max: Longest draft.
        n_min: A shorter draft is not proposed; None: one of fewer than 48 tokens, or than ``n_max`` if that is less.
        share: One table for all sequences and requests of this drafter, as in llama.cpp, instead of one each.
        forgets: Clear the table when several drafts in a row were mostly wrong, as in llama.cpp. ``auto`` sees to that
            itself, and verifies less than is proposed.

    Raises:
        ConfigError: An option is out of range.
    """

    name = "ngram-mod"
    reads_only = True

    def __init__(
        self, *, n_match: int = 24, n_max: int = 64, n_min: int | None = None, share: bool = False, forgets: bool = True
    ) -> None:
        self.n_match = require_int("n_match", n_match, 1, _LONGEST)
        self.n_max = require_int("n_max", n_max, 1, _LONGEST)
        self.n_min = min(_SHORT_DRAFT, self.n_max) if n_min is None else require_int("n_min", n_min, 0, self.n_max)
        self.share = require_bool("share", share)
        self.forgets = require_bool("forgets", forgets)
        self._shared: dict[int, int] = {}
        self._seats: dict[int, _Seat] = {}
        if self.n_match < _SHORT_MATCH:
            _logger.warning("ngram-mod with n_match %d drafts poorly; %d or more is better.", n_match, _SHORT_MATCH)

    def begin(self, seq_id: int, tokens: TokenView) -> None:
        """Index the prompt."""
        seat = self._seats[seq_id] = self._new_seat()
        self._index(seat, tokens)
        if len(seat.table) > _FULL_SHARE * TABLE_SIZE:
            seat.table.clear()

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Roll each sequence's window forward."""
        return [self._draft(request) for request in requests]

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        """Clear the table when several drafts in a row were mostly wrong."""
        seat = self._seats.get(seq_id)
        if not own or seat is None or not seat.n_drafted or not self.forgets:
            return
        if n_accepted >= _LOW_ACCEPTANCE * seat.n_drafted:
            seat.n_low = 0
            return
        seat.n_low += 1
        if seat.n_low == _LOW_ROUNDS:
            seat.table.clear()
            seat.n_low = seat.n_indexed = 0

    def _new_seat(self) -> _Seat:
        return _Seat(self._shared) if self.share else _Seat()

    def _draft(self, request: DraftRequest) -> Draft:
        tokens, n = request.tokens, self.n_match
        if request.seq_id not in self._seats:
            self._seats[request.seq_id] = self._new_seat()
        seat = self._seats[request.seq_id]
        seat.n_drafted = 0
        if len(tokens) < n:
            return Draft()
        if seat.n_indexed > len(tokens) - n:  # the history became shorter
            seat.n_indexed = 0
        if seat.n_indexed + _INDEX_EVERY < len(tokens):
            self._index(seat, tokens)
        window = [*tokens[len(tokens) - n + 1 :], request.pending] if n > 1 else [request.pending]
        drafted = self._roll(seat.table, window)
        if len(drafted) < self.n_min:
            return Draft()
        seat.n_drafted = len(drafted)
        drafted = drafted[: request.budget]
        return Draft(tuple(drafted), signals=signals_of(n, len(drafted)) if request.wants_signals else None)

    def _index(self, seat: _Seat, tokens: TokenView) -> None:
        """Enter every start that is followed by a token and not in the table yet."""
        first, n = seat.n_indexed, self.n_match
        end = len(tokens) - n
        if end <= first:
            return
        hashes = _rolling_hashes(tokens[first : end + n], n)
        for following, key in zip(tokens[first + n :], hashes, strict=False):
            seat.table[key % TABLE_SIZE] = following
        seat.n_indexed = end

    def _roll(self, table: dict[int, int], window: list[int]) -> list[int]:
        """Return what the table says, token after token, until an entry is empty."""
        n = self.n_match
        rolling = list(window)
        key = next(_rolling_hashes(window, n))
        factor = pow(_MULTIPLIER, n, 2**64)
        for i in range(self.n_max):
            token = table.get(key % TABLE_SIZE)
            if token is None:
                break
            rolling.append(token)
            key = (key * _MULTIPLIER + token - rolling[i] * factor) & _MASK
        return rolling[n:]


def _rolling_hashes(tokens: TokenView, n: int) -> Iterator[int]:
    """Yield h of each run of n tokens: h = h * multiplier + token over the run, in 64 bits.

    Moving by one token drops the oldest one's share, token * multiplier ** n, after the multiplication.
    """
    key = 0
    factor = pow(_MULTIPLIER, n, 2**64)
    for i, token in enumerate(tokens):
        key = (key * _MULTIPLIER + token) & _MASK
        if i >= n:
            key = (key - tokens[i - n] * factor) & _MASK
        if i >= n - 1:
            yield key
