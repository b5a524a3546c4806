"""Leaving a round with everything at the committed length, whatever happened in it.

What a round changes, and what takes it back when the round is not kept:

====================  ==================================================
target memory         trimmed to the committed length
drafter, draft model  ``discard``, which trims the draft model's memory
sampler               restored from what was saved before
text and its length   rewound
history, pending      put back
====================  ==================================================

A sequence whose outcome was kept stays kept, also when a later one of the same round fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspec.speculation.draft import Proposer
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import Target

if TYPE_CHECKING:
    from pyspec.speculation.round import Outcome


class RollbackPoint:
    """The state of the sequences before a round; leaving the ``with`` block undoes whatever was not kept.

    Raises:
        RollbackError: On leaving: the target's memory cannot drop what has to go.
    """

    __slots__ = ("_open", "_proposer", "_target")

    def __init__(self, sequences: SequenceOf[Sequence], target: Target, proposer: Proposer) -> None:
        self._target = target
        self._proposer = proposer
        self._open = [_Before(sequence) for sequence in sequences]

    def keep(self, outcomes: SequenceOf[Outcome]) -> None:
        """Commit what was emitted; drop from memory what was not accepted."""
        for outcome in outcomes:
            before = self._open[0]
            sequence = before.sequence
            if outcome.rollback != "none":
                self._target.memory.trim(sequence.seq_id, sequence.n_committed + 1 + outcome.n_accepted)
            sequence.commit(outcome.emitted)
            self._open.pop(0)  # from here on this sequence is not undone
            if outcome.proposal.draft.tokens:
                self._proposer.accept(sequence.seq_id, outcome.proposal, outcome.n_accepted)

    def __enter__(self) -> RollbackPoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put every sequence that was not kept back to where it was."""
        if not self._open:
            return
        steps: list[Callable[[], object]] = []
        for before in self._open:
            seq_id = before.sequence.seq_id
            steps += [
                before.put_back,
                functools.partial(self._proposer.discard, seq_id),
                functools.partial(self._target.memory.trim, seq_id, before.n_committed),
            ]
        self._open.clear()
        run_all(steps)


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
