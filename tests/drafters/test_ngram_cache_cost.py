"""What a round of ngram-cache reads does not grow with the history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspec.drafters import ngram_file
from pyspec.drafters.ngram_cache import NgramCache
from pyspec.drafters.ngram_table import Followers, Table
from tests.drafters.test_ngram_cache import ask, save


class CountedTokens(list[int]):
    """A list that counts how many of its tokens are read."""

    n_read = 0

    def __getitem__(self, part: Any) -> Any:
        found = super().__getitem__(part)
        self.n_read += len(found) if isinstance(part, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        self.n_read += len(self)
        return super().__iter__()


def tokens_read_per_round(n_history: int) -> float:
    history = CountedTokens(i % 50 for i in range(n_history))
    drafter = NgramCache()
    drafter.begin(0, history)
    history.n_read = 0
    for round_ in range(100):
        assert len(ask(drafter, history, (n_history + round_) % 50)) == 8
        history.append((n_history + round_) % 50)
    return history.n_read / 100


def test_a_round_costs_the_same_however_long_the_history_is() -> None:
    short, long = tokens_read_per_round(200), tokens_read_per_round(20_000)
    assert short == long < 60


def test_a_token_with_many_followers_costs_no_more(tmp_path: Path) -> None:
    """The best follower is kept, and with a static cache the smaller side is walked."""
    table = Table()
    for token in range(10_000):
        table.add((1,), token, token)
    followers = table.get((1,))
    assert followers is not None
    n_read = 0

    class Counted(Followers):
        __slots__ = ()

        def __iter__(self) -> Iterator[int]:
            nonlocal n_read
            for token in super().__iter__():
                n_read += 1
                yield token

        def rank_of(self, token: int) -> int:
            nonlocal n_read
            n_read += 1
            return super().rank_of(token)

    followers.__class__ = Counted
    static = Table(ngram_file.read(save(tmp_path / "static.bin", {(0, 1): {3: 1, 4: 1}}))).get((0, 1))
    assert followers.choose(static)[0] == 4
    assert n_read < 20
