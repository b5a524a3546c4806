"""When texts are looked up, and which drafts are worth weighing. Both take time that a small model's rounds show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyspec.speculation.costs import Costs
from pyspec.speculation.curves import taken_in
from pyspec.speculation.draft import DraftRequest
from pyspec.speculation.planning import Prices, least_chance

_IDLE = 4  # rounds without a draft, after which a text sleeps
_SHARE = 0.005  # of the time, for looking up what sleeps
_SELDOM, _SELDOMEST = 4, 16  # one round of so many, at least and at most
_LASTS = 32  # rounds in which costs hardly change, as long as nothing but plain decoding is seen


class Looking:
    """Follows which texts offer something.

    A text in which nothing was worth verifying for a while *sleeps*: it is looked up in one round of several, so that
    looking takes a small share of the time.

    Args:
        costs: Of the machine.
        n_max: Longest draft.
    """

    def __init__(self, costs: Costs, n_max: int) -> None:
        self._costs = costs
        self._n_max = n_max
        self._n_rounds = 0
        self._n_idle: dict[int, int] = {}  # rounds since a draft of a sequence was verified
        self._vain: list[float] = []  # seconds of the last looks that nothing came of
        self._period = _SELDOM
        self._prices: Prices | None = None
        self._least: float | None = None
        self._last_for = self._last_until = 0  # entries of the decode before those prices, and the round they last to

    def begin(self, seq_id: int) -> None:
        """A sequence has another text, which may be of another depth."""
        self._n_idle[seq_id] = 0
        self._prices = None

    def sleep(self, seq_ids: Sequence[int]) -> bool:
        """Begin a round if nothing is to be looked up in it, and return whether that is so."""
        if (self._n_rounds + 1) % self._period == 0:
            return False
        for seq_id in seq_ids:
            if self._n_idle.get(seq_id, 0) < _IDLE:
                return False
        self._n_rounds += 1
        return True

    def awake(self, requests: Sequence[DraftRequest]) -> list[int]:
        """Begin a round, and return the numbers of those to look up."""
        self._n_rounds += 1
        if self._n_rounds % self._period == 0:
            return list(range(len(requests)))
        return [i for i, request in enumerate(requests) if self._n_idle.get(request.seq_id, 0) < _IDLE]

    def count(self, seq_id: int, n_tokens: int) -> None:
        """Take in how much of a draft is verified in this round."""
        self._n_idle[seq_id] = 0 if n_tokens else self._n_idle.get(seq_id, 0) + 1
        if n_tokens:  # what rows cost will be known better
            self._prices = None

    def took(self, seconds: float, n_looked_up: int, requests: Sequence[DraftRequest]) -> None:
        """Take in what it took to look up some of the texts in vain."""
        each = taken_in(self._vain, seconds / n_looked_up)
        plain = self._costs.verify.seconds(requests[0].n_entries)
        rounds = len(requests) * each / (_SHARE * plain) if plain > 0.0 else 1.0
        self._period = min(_SELDOMEST, max(_SELDOM, math.ceil(rounds)))

    def prices(self, requests: Sequence[DraftRequest]) -> Prices:
        """Return what rows of this round cost; they are reckoned anew when something but plain decoding was seen."""
        n_entries, n_last = requests[0].n_entries, self._costs.n_entries
        known = self._prices
        fits = known is not None and (known.n_entries, known.base.tokens) == (n_entries, len(requests))
        if known is None or not fits or n_last != self._last_for or self._n_rounds >= self._last_until:
            known = self._prices = Prices(self._costs, n_entries, len(requests))
            self._last_for, self._last_until = n_last, self._n_rounds + _LASTS
            self._least = None
        return known

    def least_chance(self, requests: Sequence[DraftRequest], *, doubting: bool) -> float:
        """Return the chance that the first token of some draft must have, so that any can be worth its rows.

        Args:
            requests: Of this round.
            doubting: Rows may cost less than is thought, by what is in doubt.
        """
        prices = self.prices(requests)
        if self._least is None:
            verify, n_entries, most = self._costs.verify, prices.n_entries, self._n_max * len(requests)
            rows = {1, most, *(n - n_entries for n in verify.points if 0 < n - n_entries < most)}
            more = {n: prices.more(n) - (verify.doubt(n_entries + n) if doubting else 0.0) for n in rows}
            self._least = least_chance(more, prices.base)
        return self._least
