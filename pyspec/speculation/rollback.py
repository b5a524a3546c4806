"""Leaving a round with everything at the committed length, whatever happened in it.

How positions that were decoded for nothing go, by the kind of memory:

=======  =============================================================================================
trim     they are dropped
bounded  they are dropped, as long as they are at most ``bound``; else as below
whole    a checkpoint, taken before the decode, is restored. The decided tokens after it are missing
         then (``Sequence.lag``); they go in front of the next decode, and nothing is decided again
=======  =============================================================================================

What else a round changes, and what takes it back when the round is not kept:

====================  ==========================================================================
drafter, draft model  ``discard``, which trims the draft model's memory
sampler               restored from what was saved before
text and its length   rewound
history, pending      put back
====================  ==========================================================================

A sequence whose outcome was kept stays kept, also when a later one of the same round fails.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspec.errors import ContextError
from pyspec.llama.memory import RollbackKind
from pyspec.speculation.draft import Proposer
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import Target, TargetMemory

if TYPE_CHECKING:
    from pyspec.speculation.round import Outcome
    from pyspec.speculation.verify import Share

_logger = logging.getLogger(__name__)


def way_back(memory: TargetMemory, n_dropped: int) -> str:
    """Return how a memory gives up its newest positions: "none", "trim", "bounded" or "replay"."""
    if n_dropped == 0:
        return "none"
    kind = memory.rollback
    if kind is RollbackKind.TRIM:
        return "trim"
    return "bounded" if kind is RollbackKind.BOUNDED and n_dropped <= memory.bound else "replay"


class RollbackPoint:
    """The state of the sequences before a round; leaving the ``with`` block undoes whatever was not kept.

    Raises:
        RollbackError: From ``keep``: the target's memory cannot drop what has to go.

    Attributes:
        checkpoint_bytes: Sequence to the size of the checkpoint that was taken for its draft.
    """

    __slots__ = ("_open", "_proposer", "_sequences", "_target", "checkpoint_bytes")

    def __init__(self, sequences: SequenceOf[Sequence], target: Target, proposer: Proposer) -> None:
        self._target = target
        self._proposer = proposer
        self.checkpoint_bytes: dict[int, int] = {}
        self._sequences: list[Sequence] = []
        self._open: dict[int, _Before] = {}
        self.add(sequences)

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Note the state of sequences that join."""
        for sequence in sequences:
            self._sequences.append(sequence)
            self._open[sequence.seq_id] = _Before(sequence)

    def prepare(self, shares: SequenceOf[Share]) -> None:
        """Save a checkpoint of each memory that could not drop its whole draft otherwise; the decode comes next."""
        for share in shares:
            if share.proposal is not None and share.proposal.draft.tokens:
                self._save(share.sequence, len(share.proposal.draft.tokens))

    def way_back(self, n_dropped: int) -> str:
        """See the function of this name."""
        return "none" if n_dropped == 0 else way_back(self._target.memory, n_dropped)

    def keep(self, outcomes: SequenceOf[Outcome], pieces: SequenceOf[Share], kept: dict[int, Outcome]) -> None:
        """Commit what was emitted; drop from memory what was not accepted.

        Args:
            outcomes: What was decided.
            pieces: The parts of prompts that were read beside.
            kept: Gets each outcome, by sequence, as soon as its drafters know it; also when a later one raises.
        """
        for outcome in outcomes:
            sequence = self._open[outcome.seq_id].sequence
            length = outcome.position + 1 + outcome.n_accepted
            if outcome.rollback == "replay":
                self._target.memory.restore(sequence.seq_id, sequence.checkpoint)
                length = sequence.checkpoint.length
            else:
                sequence.checkpoint = None  # memory moved on
                if outcome.rollback != "none":
                    self._target.memory.trim(sequence.seq_id, length)
            sequence.commit(outcome.emitted)
            sequence.lag = len(sequence.history) - length
            sequence.reading = False
            del self._open[outcome.seq_id]  # from here on this sequence is not undone
            if outcome.proposal.draft.tokens:
                self._proposer.accept(sequence.seq_id, outcome.proposal, outcome.n_accepted)
            kept[outcome.seq_id] = outcome
        for share in pieces:
            share.sequence.lag -= share.n_lag
            share.sequence.checkpoint = None
            del self._open[share.sequence.seq_id]

    def _save(self, sequence: Sequence, n_drafted: int) -> None:
        """Take a checkpoint if the memory could not drop a draft without."""
        if sequence.checkpoint is None and self.way_back(n_drafted) == "replay":
            sequence.checkpoint = self._target.memory.checkpoint(sequence.seq_id)
            self.checkpoint_bytes[sequence.seq_id] = sequence.checkpoint.n_bytes

    def __enter__(self) -> RollbackPoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put every sequence that was not kept back to where it was."""
        if not self._open and kind is None:
            return
        steps: list[Callable[[], object]] = []
        for before in self._open.values():
            steps += [before.put_back, functools.partial(self._proposer.discard, before.sequence.seq_id)]
        # What failed may have emptied the memory of those that were kept before.
        steps += [functools.partial(put_right, self._target.memory, sequence) for sequence in self._sequences]
        self._open.clear()
        run_all(steps)


def put_right(memory: TargetMemory, sequence: Sequence) -> None:
    """Return memory to what is known of a sequence, or else empty it, so that the next round reads the history again.

    It differs after a round that failed, its own or that of others.
    """
    seq_id, held = sequence.seq_id, memory.length(sequence.seq_id)
    known = sequence.n_committed - sequence.lag
    if held == known:
        return
    try:
        if sequence.checkpoint is not None and held >= sequence.checkpoint.length:
            memory.restore(seq_id, sequence.checkpoint)
            known = sequence.checkpoint.length
        elif memory.rollback is RollbackKind.TRIM and held >= known:
            memory.trim(seq_id, known)
        else:
            known = 0
    except ContextError:
        known = 0
    if known == 0:
        _logger.debug("Sequence %d is read again: its memory of %d positions is in doubt.", seq_id, held)
        memory.clear(seq_id)
        sequence.checkpoint = None
    sequence.lag = sequence.n_committed - known


class _Before:
    """One sequence before a round."""

    __slots__ = ("n_committed", "n_emitted", "pending", "sampler", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.n_committed = len(sequence.history)
        self.n_emitted = sequence.ending.n_tokens
        self.pending = sequence.pending
        self.sampler: Any = sequence.sampler.save()

    def put_back(self) -> None:
        sequence = self.sequence
        del sequence.history[self.n_committed :]
        sequence.pending = self.pending
        sequence.sampler.restore(self.sampler)
        sequence.ending.rewind(self.n_emitted)


def run_all(steps: Iterable[Callable[[], object]]) -> None:
    """Take every step, also when one raises; an error after that has the former one as its context."""
    remaining = iter(steps)
    for step in remaining:
        try:
            step()
        except BaseException:  # noqa: PERF203 - one error must not keep the other steps from being taken
            run_all(remaining)
            raise
