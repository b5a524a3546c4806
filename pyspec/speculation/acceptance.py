"""How likely a draft's next token is accepted, given that those before it were: learned per drafter and request.

What is known of a token is its *signal*, the drafter's own opinion: a draft model's share of probability, below 1, or
the length of the match that a lookup continues, from 1 on; and its place in the draft. Tokens of like signal and place
are counted together, in *bins*::

    draft model  by share                    0.2  0.4  0.6  0.8  0.9  0.97
    lookup       by length of the match      2  4  8  16  32   and by place   1st  2nd-3rd  4th-7th  8th on
    neither      by place alone

A bin holds Beta counts twice: of all requests, and of the request alone, which start from the former. Both forget, so
that they follow the text. Every token also counts in the bin of its place alone, which tells what to expect before
anything is drafted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

_SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)
_PRIOR_OF_SHARE = (0.15, 0.3, 0.5, 0.65, 0.8, 0.9, 0.96)
_PRIOR_OF_MATCH = {1: 0.35, 2: 0.45, 3: 0.6, 4: 0.7, 5: 0.8, 6: 0.85}
_PRIOR_OF_PLACE = 0.5
_LAST_PLACE = 4
_LONGEST_MATCH = 6
_ANY = 0  # the bin of a place alone
_MATCH = 100

_KEEP_ALL, _KEEP_OWN = 0.998, 0.97  # of the counts, per token
_STRENGTH_ALL, _STRENGTH_OWN = 4.0, 6.0  # tokens that a prior counts for

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

    def mean(self, prior: float, strength: float) -> float:
        return (self.right + strength * prior) / (self.n + strength)


class Acceptance:
    """Estimates for all drafters and sequences.

    Attributes:
        priors: Drafter to the chance of its tokens before any was seen, where they have no signals; 0.5 for others.
    """

    def __init__(self) -> None:
        self.priors: dict[str, float] = {}
        self._all: dict[Bin, _Counts] = {}
        self._own: dict[int, dict[Bin, _Counts]] = {}

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
        key = bin_of(drafter, signal, i)
        own, every = self._own.get(seq_id, {}).get(key), self._all.get(key)
        prior = self._prior(key)
        mean = prior if every is None else every.mean(prior, _STRENGTH_ALL)
        return mean if own is None else own.mean(mean, _STRENGTH_OWN)

    def _prior(self, key: Bin) -> float:
        """Return the chance in a bin before any token was seen."""
        drafter, signal, _place = key
        if signal == _ANY:
            return self.priors.get(drafter, _PRIOR_OF_PLACE)
        return _PRIOR_OF_SHARE[signal - 1] if signal < _MATCH else _PRIOR_OF_MATCH[signal - _MATCH]

    def path(self, seq_id: int, drafter: str, signals: Sequence[float] | None, n_tokens: int) -> list[float]:
        """Return for each draft token the chance that it and all before it are accepted, [n_tokens]."""
        chances: list[float] = []
        together = 1.0
        for i in range(n_tokens):
            together *= self.chance(seq_id, drafter, None if signals is None else signals[i], i)
            chances.append(together)
        return chances

    def expected(self, seq_id: int, drafter: str, n_tokens: int, *, hopeful: bool = False) -> list[float]:
        """Return the chance of each token, given those before it, before anything is drafted, [n_tokens].

        Args:
            seq_id: The sequence.
            drafter: Who would draft.
            n_tokens: How many tokens.
            hopeful: Add two standard deviations of what is known.
        """
        by_place: dict[int, float] = {}
        found = []
        for i in range(n_tokens):
            place = _place(i)
            if place not in by_place:
                by_place[place] = self._of_place(seq_id, (drafter, _ANY, place), hopeful=hopeful)
            found.append(by_place[place])
        return found

    def learn(self, seq_id: int, drafter: str, i: int, signal: float | None, *, right: bool) -> None:
        """Take in what became of draft token i, all before which stood."""
        own = self._own.setdefault(seq_id, {})
        for key in {bin_of(drafter, signal, i), (drafter, _ANY, _place(i))}:
            self._all.setdefault(key, _Counts()).take(_KEEP_ALL, right=right)
            own.setdefault(key, _Counts()).take(_KEEP_OWN, right=right)

    def _of_place(self, seq_id: int, key: Bin, *, hopeful: bool) -> float:
        own, every = self._own.get(seq_id, {}).get(key), self._all.get(key)
        prior = self._prior(key)
        mean = prior if every is None else every.mean(prior, _STRENGTH_ALL)
        n = _STRENGTH_ALL + (min(every.n, 1 / (1 - _KEEP_OWN)) if every is not None else 0.0)
        if own is not None:
            mean = own.mean(mean, _STRENGTH_OWN)
            n += own.n
        return min(0.98, mean + 2 * (mean * (1 - mean) / n) ** 0.5) if hopeful else mean


def bin_of(drafter: str, signal: float | None, i: int) -> Bin:
    """Return the bin of draft token i.

    Example:
        >>> bin_of("draft-simple", 0.85, 3), bin_of("suffix", 12.0, 3)
        (('draft-simple', 5, 0), ('suffix', 104, 3))
    """
    if signal is None:
        return drafter, _ANY, _place(i)
    if signal < 1.0:
        return drafter, 1 + bisect_right(_SHARES, signal), 0
    return drafter, _MATCH + min(int(signal).bit_length(), _LONGEST_MATCH), _place(i)


def _place(i: int) -> int:
    return min((i + 1).bit_length(), _LAST_PLACE)
