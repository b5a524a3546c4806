"""One run, and who makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspec.bench.setting import Setting
from pyspec.engine import Result


@dataclass(frozen=True, slots=True)
class Run:
    """Some prompts answered at once.

    The speed of one prompt by itself is that of generating: its tokens after the first round by the seconds after it,
    whatever happened in them. With several prompts, reading one goes on beside generating the others, so there it is
    all tokens by all seconds.

    Attributes:
        results: One per prompt.
        seconds: From handing in the prompts to the last answer.
        rounds: Per round after the first its tokens and seconds; only of a prompt by itself, or when inspected.
    """

    results: tuple[Result, ...]
    seconds: float
    rounds: tuple[tuple[int, float], ...] = ()

    @property
    def counted_tokens(self) -> int:
        """Tokens that count for the speed."""
        n_tokens = sum(len(result.tokens) for result in self.results)
        return n_tokens - self.results[0].stats.n_first if len(self.results) == 1 else n_tokens

    @property
    def counted_seconds(self) -> float:
        """Seconds that count for the speed."""
        if len(self.results) > 1:
            return self.seconds
        stats = self.results[0].stats
        return self.seconds - stats.queue_seconds - stats.prompt_seconds

    @property
    def counted(self) -> tuple[int, float]:
        """Both."""
        return self.counted_tokens, self.counted_seconds

    def after_first_token(self, n_same: int, reading: float) -> tuple[int, float]:
        """Return how many of the first tokens of a prompt by itself came after the very first one, and their seconds.

        A round's tokens come evenly, and what is beside the rounds belongs to each of them by its share of their time.

        Args:
            n_same: Tokens that count.
            reading: What reading the prompt takes in plain decoding, up to the first token. What it took longer here is
                the time of the first round's draft.
        """
        stats = self.results[0].stats
        of_first = min(n_same, stats.n_first)
        if of_first < 1:
            return 0, 0.0
        share = (of_first - 1) / (stats.n_first - 1) if stats.n_first > 1 else 1.0
        spent = (stats.prompt_seconds - reading) * share
        left, rounds, whole = n_same - of_first, 0.0, sum(seconds for _n_tokens, seconds in self.rounds)
        for n_tokens, seconds in self.rounds:
            taken = min(left, n_tokens)
            left -= taken
            rounds += seconds * taken / n_tokens
        return n_same - 1, spent + (self.counted_seconds * rounds / whole if whole > 0 else 0.0)


class Runner(Protocol):
    """Answers prompts with one setting; the model is loaded, what is needed is allocated."""

    def run(self, prompts: Sequence[str], n_tokens: int, *, inspect: bool = False) -> Run:
        """Answer some prompts at once, at temperature 0.

        Args:
            prompts: At most as many are answered at once as there are slots.
            n_tokens: Most tokens of an answer.
            inspect: Also note the rounds and the largest logits, which costs a little time.
        """
        ...

    def close(self) -> None:
        """Free what was allocated."""
        ...


class Lab(Protocol):
    """Makes runners of one model on one machine."""

    def open(self, setting: Setting, n_threads: int | None = None) -> Runner:
        """Return a runner.

        Args:
            setting: Which drafters propose.
            n_threads: In place of the lab's own number of threads.

        Raises:
            PyspecError: The setting cannot work.
        """
        ...

    def piece(self, token: int) -> str:
        """Return the text of a token."""
        ...
