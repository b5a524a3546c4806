"""How likely a draft's next token is accepted, given that those before it were: learned per drafter and request.

What is known of a token is its *signal*, the drafter's own opinion: a draft model's share of probability, below 1, or
from 1 on how much of the text speaks for it, such as the length of the match that a lookup continues. Tokens of like
signal are counted together, in *bins*; those without one by their place in the draft::

    draft model  by share                    0.2  0.4  0.6  0.8  0.9  0.97
    lookup       by match                    2  4  8  16  32
    neither      by place                    1st  2nd-3rd  4th-7th  8th on

A bin holds Beta counts twice: of all requests, and of the request alone, which start from the former. Both forget, so
that they follow the text. Every token also counts in the bin of its place alone, which tells what to expect before
anything is drafted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

_SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)
_PRIOR_OF_SHARE = (0.15, 0.3, 0.5, 0.65, 0.8, 0.9, 0.96)
_PRIOR_OF_MATCH = {1: 0.4, 2: 0.55, 3: 0.7, 4: 0.8, 5: 0.87, 6: 0.92}
_PRIOR_OF_PLACE = 0.5
_SURE = 0.98  # nothing is surer than that before it was drafted
_PLACES = (1, 2, 2, 3, 3, 3, 3)  # by number of the token; all others are at the last one
_LAST_PLACE = 4
_MATCHES = (2, 4, 8, 16, 32)
_MOST_REMEMBERED = 50.0  # tokens
_ANY = 0  # the bin of a place alone
_MATCH = 100

_KEEP_ALL, _KEEP_OWN = 0.99, 0.97  # of the counts, per token: one request after the other may be of another kind
_KEEP_STALE = 0.99  # of the request's own counts, per token since the drafter was asked
_STRENGTH_ALL, _STRENGTH_OWN = 8.0, 8.0  # tokens that a prior counts for
_STRENGTH_MATCH = 16.0  # the same, for matches
_STRENGTH_OWN_HOPE = 20.0  # the same, for drafters with a prior of their own: giving them up too soon is not made good
_STRENGTH_HOPE = 20.0  # the same, for the first place: a good drafter may begin badly
_STRENGTH_PLACE = 48.0  # the same, where the prior is what the place before has

Bin = tuple[str, int, int]  # drafter, signal, place


class _Counts:
    """Tokens that stood, and all that were decided; both fade."""

    __slots__ = ("n", "right")

    def __init__(self) -> None:
        self.n = 0.0
        self.right = 0.0

    def take(self, keep: float, *, right: bool) -> None:
        self.n = self.n * keep + 1.0
        self.right = self.right * keep + right

    def mean(self, prior: float, strength: float, weight: float = 1.0) -> float:
        return (self.right * weight + strength * prior) / (self.n * weight + strength)


class Acceptance:
    """Estimates for all drafters and sequences.

    Attributes:
        priors: Drafter to the chance of its tokens before any was seen, where they have no signals; 0.5 for others.
    """

    def __init__(self) -> None:
        self.priors: dict[str, float] = {}
        self._all: dict[Bin, _Counts] = {}
        self._own: dict[int, dict[Bin, _Counts]] = {}

    def known(self) -> list[list[Any]]:
        """Return what all requests showed, for JSON."""
        return [[*key, counts.right, counts.n] for key, counts in self._all.items()]

    def load(self, known: Iterable[Sequence[Any]]) -> None:
        """Begin with what was known elsewhere; it counts for less than what is seen here.

        Raises:
            ValueError: It is not of the form that ``known`` returns.
        """
        for drafter, signal, place, right, n in known:
            if not 0.0 <= right <= n < float("inf"):
                msg = f"{right!r} of {n!r} tokens cannot have been right."
                raise ValueError(msg)
            counts = self._all[str(drafter), int(signal), int(place)] = _Counts()
            weight = min(1.0, _MOST_REMEMBERED / n) if n else 1.0
            counts.right, counts.n = right * weight, n * weight

    def begin(self, seq_id: int) -> None:
        """A new request starts: of the former one only what all requests share is left."""
        self._own[seq_id] = {}

    def chance(self, seq_id: int, drafter: str, signal: float | None, i: int) -> float:
        """Return the chance of draft token i, given that those before it are accepted.

        Args:
            seq_id: The sequence.
            drafter: Who drafted it.
            signal: Its signal; None if the drafter gives none.
            i: Its number in the draft, from 0.
        """
        if signal is None:
            return self._by_place(seq_id, drafter, _place(i))[-1]
        return self._of_bin(self._own.get(seq_id), bin_of(drafter, signal, i))

    def path(
        self, seq_id: int, drafter: str, signals: Sequence[float] | None, n_tokens: int, least: float = 0.0
    ) -> list[float]:
        """Return for each draft token the chance that it and all before it are accepted, [at most n_tokens].

        Args:
            seq_id: The sequence.
            drafter: Who drafted them.
            signals: Their signals, if the drafter gives any.
            n_tokens: How many tokens.
            least: Where the chance is lower, the path ends, but for its first token.
        """
        if signals is None:
            return list(accumulate(self.expected(seq_id, drafter, n_tokens), mul))
        own, former = self._own.get(seq_id), None
        path: list[float] = []
        together, chance = 1.0, 1.0
        for i in range(n_tokens):
            key = bin_of(drafter, signals[i], i)
            if key != former:  # tokens of one bin mostly follow each other
                chance, former = self._of_bin(own, key), key
            together *= chance
            if together < least and path:
                break
            path.append(together)
        return path

    def expected(
        self, seq_id: int, drafter: str, n_tokens: int, *, n_stale: int = 0, hopeful: bool = False
    ) -> list[float]:
        """Return the chance of each token, given those before it, before anything is drafted, [n_tokens].

        Args:
            seq_id: The sequence.
            drafter: Who would draft.
            n_tokens: How many tokens.
            n_stale: Tokens since the drafter was asked; the more, the less counts what this request showed.
            hopeful: Add two standard deviations of what is known.
        """
        means = self._by_place(seq_id, drafter, _place(n_tokens - 1), n_stale) if n_tokens else []
        if hopeful:
            own = self._own.get(seq_id, {})
            means = [
                min(_SURE, mean + 2 * (mean * (1 - mean) / self._known(own, (drafter, _ANY, place))) ** 0.5)
                for place, mean in enumerate(means, 1)
            ]
        return [means[_place(i) - 1] for i in range(n_tokens)]

    def learn(self, seq_id: int, drafter: str, i: int, signal: float | None, *, right: bool) -> None:
        """Take in what became of draft token i, all before which stood."""
        own = self._own.setdefault(seq_id, {})
        for key in {bin_of(drafter, signal, i), (drafter, _ANY, _place(i))}:
            self._all.setdefault(key, _Counts()).take(_KEEP_ALL, right=right)
            own.setdefault(key, _Counts()).take(_KEEP_OWN, right=right)

    def _of_bin(self, own: dict[Bin, _Counts] | None, key: Bin) -> float:
        """Return the chance of tokens that have signals."""
        signal = key[1]
        if signal < _MATCH:
            return self._mean(own, key, _PRIOR_OF_SHARE[signal - 1])
        return self._mean(own, key, _PRIOR_OF_MATCH[signal - _MATCH], _STRENGTH_MATCH, _STRENGTH_MATCH)

    def _by_place(self, seq_id: int, drafter: str, last: int, n_stale: int = 0) -> list[float]:
        """Return the chance at each place up to the last; of a place that is unknown, what the one before has."""
        own, mean = self._own.get(seq_id), self.priors.get(drafter, _PRIOR_OF_PLACE)
        means, strength, weight = [], _STRENGTH_HOPE, _KEEP_STALE**n_stale
        for place in range(1, last + 1):
            mean = self._mean(own, (drafter, _ANY, place), mean, strength, weight=weight)
            means.append(mean)
            strength = _STRENGTH_PLACE
        return means

    def _mean(
        self,
        own: dict[Bin, _Counts] | None,
        key: Bin,
        prior: float,
        strength: float = _STRENGTH_ALL,
        own_strength: float = _STRENGTH_OWN,
        *,
        weight: float = 1.0,
    ) -> float:
        every, mine = self._all.get(key), None if own is None else own.get(key)
        mean = prior if every is None else every.mean(prior, strength)
        if mine is None:
            return mean
        if key[0] in self.priors:
            own_strength = max(own_strength, _STRENGTH_OWN_HOPE)
        return mine.mean(mean, own_strength, weight)

    def _known(self, own: dict[Bin, _Counts], key: Bin) -> float:
        """Return how many tokens an estimate rests on, its prior included."""
        every, mine = self._all.get(key), own.get(key)
        n = _STRENGTH_ALL if every is None else _STRENGTH_ALL + min(every.n, 1 / (1 - _KEEP_OWN))
        return n if mine is None else n + mine.n


def bin_of(drafter: str, signal: float | None, i: int) -> Bin:
    """Return the bin of draft token i.

    Example:
        >>> bin_of("draft-simple", 0.85, 3), bin_of("suffix", 12.0, 3)
        (('draft-simple', 5, 0), ('suffix', 104, 0))
    """
    if signal is None:
        return drafter, _ANY, _place(i)
    if signal < 1.0:
        return drafter, 1 + bisect_right(_SHARES, signal), 0
    return drafter, _MATCH + 1 + bisect_right(_MATCHES, signal), 0


def _place(i: int) -> int:
    return _PLACES[i] if i < len(_PLACES) else _LAST_PLACE
