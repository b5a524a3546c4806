"""A sampler over rows of fakes, all of whose state can be seen."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec.speculation.draft import Candidates
from tests.fakes import FakeRows, Fuse, Row


def choose(row: Row, seen: list[int], *, uniform: float | None, penalty: float, banned: frozenset[int]) -> int:
    """Choose a token as the fake samplers do.

    Args:
        row: Logits, [n_vocab].
        seen: The tokens before, which the penalty counts.
        uniform: A draw from [0, 1), or None for the most likely token.
        penalty: Taken off a token's logit for each time it was seen.
        banned: Tokens that are never chosen.
    """
    logits = _adjusted(row, seen, penalty, banned)
    if uniform is None:
        return int(np.argmax(logits))
    shares = np.exp(logits - logits.max()).cumsum()
    return int(np.searchsorted(shares, uniform * shares[-1], side="right"))


def distribution(row: Row, seen: list[int], *, greedy: bool, penalty: float, banned: frozenset[int]) -> Candidates:
    """Return what ``choose`` draws from; banned tokens are in it, with probability 0."""
    logits = _adjusted(row, seen, penalty, banned)
    if greedy:
        return Candidates(np.array([np.argmax(logits)], np.int32), np.ones(1))
    weights = np.exp(logits - logits.max())
    return Candidates(np.arange(len(row), dtype=np.int32), weights / weights.sum())


def _adjusted(row: Row, seen: list[int], penalty: float, banned: frozenset[int]) -> npt.NDArray[np.float64]:
    counts = Counter(seen)
    return np.array(
        [-np.inf if token in banned else float(logit) - penalty * counts[token] for token, logit in enumerate(row)]
    )


Saved = tuple[Any, tuple[int, ...], int]


class FakeSampler:
    """A sampler with penalties, bans and a seed, all of whose state can be seen.

    Args:
        seed: None takes the most likely token.
        penalty: See ``choose``.
        banned: See ``choose``.
        fuse: Fails at "distribution", at "sample" before, at "sampled" after the state has changed.

    Attributes:
        seen: Tokens taken in.
        n_draws: Rows it chose from or gave the distribution of; goes back when the state does.
        n_calls: The same; never goes back.
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        penalty: float = 0.0,
        banned: frozenset[int] = frozenset(),
        fuse: Fuse | None = None,
    ) -> None:
        self.seed = seed
        self.seen: list[int] = []
        self.n_draws = 0
        self.n_calls = 0
        self._penalty = penalty
        self._banned = banned
        self._fuse = fuse if fuse is not None else Fuse()
        self._random = np.random.default_rng(seed)
        self._saved: Saved | None = None

    def sample(self, rows: FakeRows, i: int) -> int:
        self._fuse.burn("sample")
        self.n_calls += 1
        uniform = None if self.seed is None else self._random.random()
        token = choose(rows.logits(i), self.seen, uniform=uniform, penalty=self._penalty, banned=self._banned)
        self.n_draws += 1
        self.seen.append(token)
        self._fuse.burn("sampled")
        return token

    def distribution(self, rows: FakeRows, i: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        self._fuse.burn("distribution")
        self.n_calls += 1
        self.n_draws += 1
        found = distribution(
            rows.logits(i), self.seen, greedy=self.seed is None, penalty=self._penalty, banned=self._banned
        )
        return found.tokens, found.probs

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def save(self) -> Saved:
        self._fuse.burn("save")
        self._saved = (self._random.bit_generator.state, tuple(self.seen), self.n_draws)
        return self._saved

    def restore(self, saved: Saved) -> None:
        assert saved is self._saved, "only the last state saved need be restorable"
        state, seen, self.n_draws = saved
        self._random.bit_generator.state = state
        self.seen[:] = seen
