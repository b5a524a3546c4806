"""Chances: exact ones, by integrating over random numbers, and what to expect of counted ones."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pyspec.speculation import Candidates
from pyspec.speculation.noise import Stream, Uniform

T = TypeVar("T", bound=Hashable)
Key = tuple[int, int]
"""Position and stream of a random number."""

EXACT = 1e-13  # how closely steps are confirmed
N_GRID = 25  # no two steps lie closer together than 1 / 25


class Given:
    """Random numbers that a test gives; asking for another one ends the attempt.

    Attributes:
        notes: What was chosen so far. Whoever takes a number notes what it became, so that two outcomes that go on
            alike are told apart.
    """

    class Needed(Exception):  # noqa: N818 - a signal, not an error
        """A number that is not given."""

    def __init__(self, known: Mapping[Key, float]) -> None:
        self._known = known
        self.notes: list[Hashable] = []
        self.needed: Key | None = None

    def __call__(self, seed: int, position: int, stream: int) -> float:  # noqa: ARG002 - the interface
        key = (position, int(stream))
        if key not in self._known:
            self.needed = key
            raise Given.Needed
        return self._known[key]


def integrated(
    play: Callable[[Given], T], known: Mapping[Key, float] | None = None, *, parts: Mapping[int, int] | None = None
) -> dict[T, Fraction]:
    """Return the exact probability of each outcome, when all numbers are uniform in [0, 1) and independent.

    What ``play`` does must be a step function of each number, with steps at fractions of small denominator. They are
    found by bisection, taken as that fraction, and confirmed on both sides to ``EXACT``.

    Args:
        play: Plays with given numbers and returns the outcome.
        known: Numbers that are fixed.
        parts: Streams whose numbers are used more than once, with other steps, and into how many equal intervals
            all of these fall.
    """
    fixed, equal = dict(known or {}), parts or {}

    def attempt(numbers: Mapping[Key, float]) -> tuple[T | None, Key | None, tuple[Hashable, ...]]:
        given = Given(numbers)
        try:
            return play(given), None, ()
        except Given.Needed:
            return None, given.needed, tuple(given.notes)

    outcome, key, _notes = attempt(fixed)
    if key is None:
        return {outcome: Fraction(1)}  # type: ignore[dict-item]
    total: dict[T, Fraction] = defaultdict(Fraction)
    n = equal.get(key[1])
    edges = [Fraction(i, n) for i in range(n + 1)] if n else _edges(lambda number: attempt({**fixed, key: number}))
    for first, end in itertools.pairwise(edges):
        inside = {**fixed, key: float(first + end) / 2}
        for each, weight in integrated(play, inside, parts=equal).items():
            total[each] += weight * (end - first)
    return dict(total)


def _edges(result: Callable[[float], object]) -> list[Fraction]:
    """Return 0, where a function of [0, 1) changes, and 1."""
    grid = [0.0, *((i + 0.5) / N_GRID for i in range(N_GRID)), 1.0 - 2.0**-53]
    edges = [Fraction(0)]
    for left, right in itertools.pairwise(grid):
        low, after = left, result(right)
        while (before := result(low)) != after:
            edges.append(_edge(result, before, low, right))
            low = float(edges[-1]) + EXACT
    return [*edges, Fraction(1)]


def _edge(result: Callable[[float], object], before: object, low: float, high: float) -> Fraction:
    """Return where a function ceases to be ``before``."""
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if result(middle) == before else (low, middle)
    edge = Fraction(low).limit_denominator(144)
    assert result(float(edge) - EXACT) == before != result(float(edge) + EXACT), f"a step at {low}, not {edge}"
    return edge


class Weighted:
    """A distribution in whole numbers.

    Args:
        weights: Per token, [n_vocab].
        explicit: Whether tokens of weight 0 are listed too.
    """

    def __init__(self, weights: tuple[int, ...], *, explicit: bool = False) -> None:
        self._weights = weights
        listed = [token for token, weight in enumerate(weights) if weight or explicit][::-1]
        shares = np.array([weights[token] for token in listed], np.float64) / sum(weights)
        self.candidates = Candidates(np.array(listed, np.int32), shares)

    def __getitem__(self, token: int) -> Fraction:
        return Fraction(self._weights[token], sum(self._weights))


class DistributionTable:
    """A sampler whose distributions are given; ``sample`` draws with the numbers that rules draw with.

    Args:
        of: Tokens taken in so far to the distribution of the next one.
        numbers: Where ``sample`` gets them.
        first: Position of the first token.
        seed: See ``numbers``.

    Attributes:
        seen: Tokens taken in.
    """

    def __init__(
        self, of: Callable[[tuple[int, ...]], Candidates], numbers: Uniform, *, first: int = 0, seed: int = 0
    ) -> None:
        self.seen: list[int] = []
        self._of = of
        self._numbers = numbers
        self._first = first
        self._seed = seed

    def distribution(self, rows: Any, i: int) -> tuple[Any, Any]:  # noqa: ARG002 - the interface
        found = self._of(tuple(self.seen))
        return found.tokens, found.probs

    def sample(self, rows: Any, i: int) -> int:
        number = self._numbers(self._seed, self._first + len(self.seen), Stream.CHOICE)
        token = Candidates(*self.distribution(rows, i)).draw(number)
        self.accept(token)
        return token

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def save(self) -> list[int]:
        return self.seen.copy()

    def restore(self, saved: list[int]) -> None:
        self.seen[:] = saved


def chi_square(counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> float:
    """Return how many standard deviations the chi-square statistic lies above its mean."""
    n_free = len(expected) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - n_free) / math.sqrt(2 * n_free)


def standard_errors(n_hits: int, n_tries: int, chance: float) -> float:
    """Return how many standard errors a counted share lies from its chance."""
    return abs(n_hits / n_tries - chance) / math.sqrt(chance * (1.0 - chance) / n_tries)
