"""Evaluating tokens with the target: what memory lacks, and ``[pending, draft...]`` of all sequences together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pyspec.errors import DrafterError
from pyspec.llama.batch import NO_TOKEN, Batch
from pyspec.speculation.draft import EvaluatedBatch, Needs, Proposal, Proposer
from pyspec.speculation.sequence import Sequence as SequenceState
from pyspec.speculation.target import Target, TargetRows

Asked = tuple[SequenceState, Proposal]


def catch_up(target: Target, buffer: Batch, sequence: SequenceState, proposer: Proposer) -> None:
    """Decode the committed tokens that memory lacks, a physical batch at a time; no logits are wanted.

    The pieces depend on the target's sizes only, so plain and speculative runs read a prompt alike.
    """
    while sequence.lag:
        first = sequence.n_committed - sequence.lag
        buffer.clear()
        count = add_piece(buffer, sequence.history, sequence.rows, first, target.n_ubatch, sequence.seq_id)
        evaluate(target, buffer, proposer)
        sequence.lag -= count
        sequence.checkpoint = None  # memory moved on


def add_piece(
    buffer: Batch,
    history: Sequence[int],
    rows: Mapping[int, npt.NDArray[np.float32]],
    first: int,
    limit: int,
    seq_id: int,
) -> int:
    """Append what follows in a history: tokens, or rows that stand in their place, but not both.

    Args:
        buffer: To append to.
        history: Tokens by position, ``NO_TOKEN`` where there is a row.
        rows: Position to row.
        first: Where to begin.
        limit: The most entries to append.
        seq_id: The sequence.

    Returns:
        How many were appended.
    """
    end = min(first + limit, len(history))
    if rows:
        end = next((i for i in range(first, end) if (i in rows) is not (first in rows)), end)
    if first not in rows:
        buffer.extend(history[first:end], first, seq_id)
    else:
        for position in range(first, end):
            buffer.add(NO_TOKEN, position, seq_id, state=rows[position])
    return end - first


def verify(target: Target, buffer: Batch, asked: Sequence[Asked], proposer: Proposer) -> list[TargetRows]:
    """Evaluate the pending token and the draft of each sequence in one decode.

    Returns:
        Per sequence its logits rows, [n_drafted + 1, n_vocab]: row i decides what follows draft token i - 1.

    Raises:
        DrafterError: A draft holds what is not a token of the target.
    """
    buffer.clear()
    for sequence, proposal in asked:
        if sequence.lag:
            buffer.extend(sequence.history[-sequence.lag :], sequence.n_committed - sequence.lag, sequence.seq_id)
        buffer.add(sequence.pending, len(sequence.history), sequence.seq_id, output=True)
        if proposal.draft.tokens:
            _check_tokens(proposal, target.n_vocab)
            buffer.extend(proposal.draft.tokens, sequence.n_committed + 1, sequence.seq_id, output=True)
    rows = evaluate(target, buffer, proposer)
    if len(asked) == 1:
        return [rows]
    own_rows = []
    first = 0
    for _sequence, proposal in asked:
        end = first + 1 + len(proposal.draft.tokens)
        own_rows.append(rows[first:end])
        first = end
    return own_rows


def evaluate(target: Target, buffer: Batch, proposer: Proposer) -> TargetRows:
    """Decode a batch and show it to the drafters that are fed by the target."""
    rows = target.decode(buffer)
    if proposer.needs is not Needs.NOTHING:
        proposer.observe(EvaluatedBatch(buffer.tokens, buffer.positions, buffer.seq_ids, target.hidden))
    return rows


def decodes(target: Target, asked: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    """Divide the sequences of a round among decodes; almost always that is one.

    A memory that can only drop what was computed at once must not have its sequences' shares torn apart. Shares of
    equal length are computed at once while they fit a physical batch (llama.cpp's ``split_equal``); others move a
    sequence's state on in between, and then its rollback reads another one's snapshot.
    """
    if len(asked) == 1 or not target.memory.one_ubatch:
        yield asked
        return
    by_length: dict[int, list[Asked]] = {}
    for one in asked:
        by_length.setdefault(n_rows(one), []).append(one)
    for length, group in by_length.items():
        n_together = max(1, target.n_ubatch // length)
        for first in range(0, len(group), n_together):
            yield group[first : first + n_together]


def n_rows(one: Asked) -> int:
    """Return how many entries a sequence has in its decode."""
    sequence, proposal = one
    return sequence.lag + 1 + len(proposal.draft.tokens)


def _check_tokens(proposal: Proposal, n_vocab: int) -> None:
    for token in proposal.draft.tokens:
        if not 0 <= token < n_vocab:
            msg = f"The drafter {proposal.drafter} proposed {token!r}; the target has the tokens 0 to {n_vocab - 1}."
            raise DrafterError(msg)
