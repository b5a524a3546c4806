"""Counts of what followed which n-gram, as a table that grows and is asked all the time."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import numpy as np

from pyspec.config import MAX_INT32, as_index
from pyspec.drafters.ngram_counts import MAX_N, NO_TOKEN, Ngram, NgramCounts, sum_rows
from pyspec.errors import TokenError

_TIME_BITS = 40  # of a rank; more tokens than a process will ever see
_TIME_MASK = (1 << _TIME_BITS) - 1


def count_of(rank: int) -> int:
    """Return the count in a rank."""
    return rank >> _TIME_BITS


def time_of(rank: int) -> int:
    """Return the time in a rank."""
    return rank & _TIME_MASK


class Followers:
    """What followed an n-gram.

    A *rank* holds how often a follower was seen and when last, in one integer: ranks compare as the rule for ties
    says, the higher count first, then the more recently seen. Times are whatever grows: positions in a history.

    Attributes:
        total: How often the n-gram was followed by anything.
        best: The follower of the highest rank.
        rank: Its rank.
    """

    __slots__ = ("_others", "best", "rank", "total")

    def __init__(self, token: int, time: int, count: int = 1) -> None:
        self.best = token
        self.rank = count << _TIME_BITS | time
        self.total = count
        self._others: dict[int, int] | None = None  # most n-grams have one follower only

    def __len__(self) -> int:
        return 1 + len(self._others or ())

    def __iter__(self) -> Iterator[int]:
        yield self.best
        yield from self._others or ()

    def add(self, token: int, time: int, count: int = 1) -> None:
        """Count a follower; ``time`` is not before that of any former call."""
        self.total += count
        rank = (count_of(self.rank_of(token)) + count) << _TIME_BITS | time
        if token == self.best:
            self.rank = rank
            return
        others = self._others
        if others is None:
            others = self._others = {}
        if rank < self.rank:
            others[token] = rank
            return
        others.pop(token, None)
        others[self.best] = self.rank
        self.best, self.rank = token, rank

    def rank_of(self, token: int) -> int:
        """Return the rank of a follower, 0 for what never followed."""
        if token == self.best:
            return self.rank
        return self._others.get(token, 0) if self._others else 0

    def choose(self, static: Followers | None) -> tuple[int, int]:
        """Return the follower with the largest product of its count and 100 times its count in ``static``.

        What ``static`` does not know counts as 1 there. Equal products: the higher rank. The work is bounded by the
        smaller of the two.

        Returns:
            The follower and its rank.
        """
        if static is None:
            return self.best, self.rank
        fewer, more = (self, static) if len(self) <= len(static) else (static, self)
        shared = {token for token in fewer if more.rank_of(token)}
        shared.add(self.best)  # the best of all that static does not know, or better than all those

        def weight(token: int) -> tuple[int, int]:
            rank = self.rank_of(token)
            return count_of(rank) * (100 * count_of(static.rank_of(token)) or 1), rank

        chosen = max(shared, key=weight)
        return chosen, self.rank_of(chosen)


class Table:
    """Followers by n-gram.

    Args:
        base: What is known at the beginning. It stays in its columns until somebody asks, so a file of millions of
            n-grams is neither slow to load nor large in memory.

    Attributes:
        clock: Every time in the table is below.
    """

    __slots__ = ("_base", "_rows", "clock")

    def __init__(self, base: NgramCounts | None = None) -> None:
        self._base = base
        self._rows: dict[Ngram, Followers] = {}
        self.clock = 0 if base is None else len(base.tokens)

    def get(self, ngram: Ngram) -> Followers | None:
        """Return what followed an n-gram, None when it was never seen."""
        found = self._rows.get(ngram)
        if found is None and self._base is not None:
            found = self._take_from_base(ngram, self._base)
        return found

    def add(self, ngram: Ngram, token: int, time: int, count: int = 1) -> None:
        """Count a follower; ``time`` is not before that of any former call."""
        found = self.get(ngram)
        if found is None:
            self._rows[ngram] = Followers(token, time, count)
        else:
            found.add(token, time, count)
        if time >= self.clock:
            self.clock = time + 1

    def merge(self, other: Table) -> None:
        """Add what another table, one without a base, has counted, as seen after everything here."""
        begin = self.clock
        for time, ngram, token, count in other._by_time():
            self.add(ngram, token, begin + time, count)

    def to_counts(self) -> NgramCounts:
        """Return what a table without a base has counted.

        Raises:
            TokenError: A token is not an id from 0 to 2**31 - 1.
        """
        rows = list(self._by_time())
        ngrams = [(*ngram, *(NO_TOKEN,) * (MAX_N - len(ngram))) for _, ngram, _, _ in rows]
        for wrong in (token for _, ngram, token, _ in rows for token in (*ngram, token) if not _is_token(token)):
            msg = f"A token is {wrong!r}; an n-gram cache holds ids from 0 to {MAX_INT32}."
            raise TokenError(msg)
        return sum_rows(
            np.array(ngrams, np.int32).reshape(-1, MAX_N),
            np.array([token for _, _, token, _ in rows], np.int32),
            np.array([min(count, MAX_INT32) for _, _, _, count in rows], np.int32),
        )

    def __len__(self) -> int:
        return len(self._rows)

    def _by_time(self) -> list[tuple[int, Ngram, int, int]]:
        """Return (time, n-gram, follower, count) of everything counted, the latest last."""
        assert self._base is None  # noqa: S101 - what lies in the base has no place among what was counted
        rows = [
            (time_of(followers.rank_of(token)), ngram, token, count_of(followers.rank_of(token)))
            for ngram, followers in self._rows.items()
            for token in followers
        ]
        rows.sort(key=operator.itemgetter(0))
        return rows

    def _take_from_base(self, ngram: Ngram, base: NgramCounts) -> Followers | None:
        """Bring an n-gram's followers over from the columns; their order is their time."""
        found = base.get(ngram)
        if found is None:
            return None
        tokens, counts = found
        followers = self._rows[ngram] = Followers(tokens[0], 0, counts[0])
        for time in range(1, len(tokens)):
            followers.add(tokens[time], time, counts[time])
        return followers


def _is_token(value: object) -> bool:
    number = as_index(value)
    return number is not None and 0 <= number <= MAX_INT32
