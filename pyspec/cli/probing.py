"""What a model's memory costs and how long its decodes take, measured.

A draft of k tokens pays off when verifying k + 1 tokens takes less time than k + 1 decodes of one token. So

* ``t(n)`` is the time of a decode of n tokens, each with a logits row, relative to one of a single token;
* the *ceiling* is the largest ``n / t(n)``: the speed-up when drafts of n - 1 tokens cost nothing and always stand.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspec.engine.timing import timed_decode
from pyspec.llama import Batch, Context, RollbackKind

N_TIMED = 8
"""Tokens in the longest decode that is measured."""
_MOST_REPEATS = 15
_SECONDS = 3.0  # no new repetition begins after this time
_STATE_LENGTHS = (16, 48)


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Bytes that the memory of one sequence takes.

    Attributes:
        per_token: For each token.
        fixed: Whatever its length; for a recurrent model that is nearly all.
        full: With the context full.
        checkpoint: For a checkpoint, or for a snapshot per drafted token; 0 when tokens can just be dropped.
    """

    per_token: float
    fixed: int
    full: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Decodes of 1 to ``len(seconds)`` tokens.

    Attributes:
        seconds: Median seconds of a decode of i + 1 tokens.
        repeats: Measurements behind each.
    """

    seconds: tuple[float, ...]
    repeats: int

    @property
    def relative(self) -> tuple[float, ...]:
        """t(n) for n = 1, 2, ..."""
        return tuple(seconds / self.seconds[0] for seconds in self.seconds)

    def ceiling(self, draft_cost: float = 0.0) -> tuple[int, float]:
        """Return the best n and its speed-up, when drafts always stand.

        Args:
            draft_cost: Time to draft a token, relative to a decode of one token by the target.
        """
        gains = [n / (cost + (n - 1) * draft_cost) for n, cost in enumerate(self.relative, 1)]
        best = max(range(len(gains)), key=gains.__getitem__)
        return best + 1, gains[best]


def memory_cost(context: Context) -> MemoryCost | None:
    """Compare saved states of two lengths; None when the context is too small or cannot save."""
    if not context.has_memory or context.n_ctx_seq < _STATE_LENGTHS[-1]:
        return None
    sizes, checkpoint = [], 0
    for length in _STATE_LENGTHS:
        _fill(context, length)
        sizes.append(context.memory.n_bytes(0))
        checkpoint = context.memory.n_bytes(0, checkpoint=True)
        context.memory.clear(0)
    per_token = max(0.0, (sizes[1] - sizes[0]) / (_STATE_LENGTHS[1] - _STATE_LENGTHS[0]))
    fixed = max(0, round(sizes[0] - per_token * _STATE_LENGTHS[0]))
    if context.memory.rollback is RollbackKind.TRIM:
        checkpoint = 0
    return MemoryCost(per_token, fixed, round(fixed + per_token * context.n_ctx_seq), checkpoint)


def time_decodes(context: Context, *, longest: int = N_TIMED, progress: Callable[[float], None] | None) -> Timing:
    """Measure decodes of 1 to ``longest`` tokens from an empty memory, for some seconds at most.

    The lengths take turns, so that a machine that becomes faster or slower meanwhile treats them alike.
    """
    lengths = range(1, min(longest, context.n_ctx_seq, context.n_batch, context.n_outputs_max) + 1)
    measured: list[list[float]] = [[] for _ in lengths]
    began = time.perf_counter()
    while not _enough(len(measured[-1]), time.perf_counter() - began):
        for seconds, length in zip(measured, lengths, strict=True):
            seconds.append(timed_decode(context, length))
            context.memory.clear(0)
        if progress is not None:
            progress(min(1.0, max(len(measured[-1]) / _MOST_REPEATS, (time.perf_counter() - began) / _SECONDS)))
    if len(measured[-1]) > 1:
        measured = [seconds[1:] for seconds in measured]  # the first decode of a size prepares its computation
    return Timing(tuple(map(statistics.median, measured)), len(measured[-1]))


def _enough(repeats: int, seconds: float) -> bool:
    return repeats >= _MOST_REPEATS or (repeats > 0 and seconds >= _SECONDS)


def _fill(context: Context, length: int) -> None:
    """Decode some tokens at positions 0, 1, ..., in pieces that fit."""
    n_batch = min(context.n_batch, context.n_ubatch)
    tokens = [(7 * i + 1) % context.n_vocab for i in range(length)]  # any will do
    for first in range(0, length, n_batch):
        batch = Batch()
        batch.extend(tokens[first : first + n_batch], first, 0)
        context.decode(batch)
