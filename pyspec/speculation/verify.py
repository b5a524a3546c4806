"""Evaluating tokens with the target: what memory lacks, and ``[pending, draft...]`` of all sequences together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyspec.errors import DrafterError
from pyspec.llama.batch import NO_TOKEN, Batch
from pyspec.speculation.draft import EvaluatedBatch, Needs, Proposal, Proposer
from pyspec.speculation.drawn import check_drawn
from pyspec.speculation.sequence import Sequence as SequenceState
from pyspec.speculation.target import Target, TargetRows

_NOTHING = Needs.NOTHING  # members of an enumeration are found slowly, and this one is asked for in every round


@dataclass(slots=True)
class Share:
    """A sequence's part of a round's decode: ``[what memory lacks..., pending, draft...]``, or a piece of its prompt.

    Attributes:
        sequence: The sequence.
        proposal: What follows its pending token; None for a piece of a prompt, after which nothing is decided.
        n_lag: How many of the committed tokens that memory lacks come first.
    """

    sequence: SequenceState
    proposal: Proposal | None
    n_lag: int

    @property
    def n_outputs(self) -> int:
        """Logits rows it asks for."""
        return 0 if self.proposal is None else 1 + len(self.proposal.draft.tokens)

    @property
    def n_entries(self) -> int:
        """Entries it has in the batch."""
        return self.n_lag + self.n_outputs

    @property
    def first(self) -> int:
        """Position of its first entry."""
        return self.sequence.n_committed - self.sequence.lag

    @property
    def has_rows(self) -> bool:
        """Whether rows of floats stand in place of its tokens; such entries have a decode of their own."""
        return self.n_lag > 0 and self.first in self.sequence.rows


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
    end = piece_end(rows, first, min(first + limit, len(history)))
    if first not in rows:
        buffer.extend(history[first:end], first, seq_id)
    else:
        for position in range(first, end):
            buffer.add(NO_TOKEN, position, seq_id, state=rows[position])
    return end - first


def piece_end(rows: Mapping[int, npt.NDArray[np.float32]], first: int, end: int) -> int:
    """Return where a piece that begins at ``first`` ends, at most at ``end``: where tokens and rows meet."""
    if not rows:
        return end
    return next((i for i in range(first, end) if (i in rows) is not (first in rows)), end)


def verify(target: Target, buffer: Batch, shares: Sequence[Share], proposer: Proposer) -> Sequence[TargetRows]:
    """Evaluate the shares of sequences in one decode.

    Returns:
        Per share its logits rows, [n_outputs, n_vocab]: row i decides what follows draft token i - 1.

    Raises:
        DrafterError: A draft holds what is not a token of the target, or cannot have been drawn as it says.
    """
    buffer.clear()
    counts = []
    for share in shares:
        sequence, proposal = share.sequence, share.proposal
        if share.n_lag:
            add_piece(buffer, sequence.history, sequence.rows, share.first, share.n_lag, sequence.seq_id)
        n_before = buffer.n_outputs
        if proposal is not None:
            buffer.add(sequence.pending, len(sequence.history), sequence.seq_id, output=True)
            if proposal.draft.tokens:
                _check(proposal, target.n_vocab)
                buffer.extend(proposal.draft.tokens, sequence.n_committed + 1, sequence.seq_id, output=True)
        counts.append(buffer.n_outputs - n_before)
    rows = evaluate(target, buffer, proposer)
    return [rows] if len(shares) == 1 else rows.split(counts)


def evaluate(target: Target, buffer: Batch, proposer: Proposer) -> TargetRows:
    """Decode a batch and show it to the drafters that are fed by the target."""
    rows = target.decode(buffer)
    if proposer.needs is not _NOTHING:
        proposer.observe(EvaluatedBatch(buffer.tokens, buffer.positions, buffer.seq_ids, target.hidden))
    return rows


def decodes(target: Target, shares: Sequence[Share]) -> Sequence[Sequence[Share]]:
    """Divide the shares of a round among decodes; almost always that is one.

    A memory that can only drop what was computed at once must not have its sequences' shares torn apart. Shares of
    equal length are computed at once while they fit a physical batch, and on some memories while their numbers follow
    each other (llama.cpp's ``split_equal``); others move a sequence's state on in between, and then its rollback reads
    another one's snapshot. Where cells are reused, whatever fits a physical batch is computed at once.
    """
    if len(shares) == 1:
        return [shares]
    one_ubatch = target.memory.one_ubatch
    packs = target.memory.reuses_cells and sum(share.n_entries for share in shares) > target.n_ubatch
    if not (one_ubatch or packs or any(share.n_lag for share in shares)):
        return [shares]
    return list(_divided(target, shares, one_ubatch=one_ubatch, packs=packs))


def _divided(target: Target, shares: Sequence[Share], *, one_ubatch: bool, packs: bool) -> Iterator[Sequence[Share]]:
    """Divide shares where not all can be computed at once."""
    together: dict[int, list[Share]] = {}
    for share in shares:
        if share.has_rows:
            yield [share]
        else:
            together.setdefault(share.n_entries if one_ubatch else 0, []).append(share)
    for length, group in together.items():
        for run in _runs(group) if one_ubatch and target.memory.consecutive else [group]:
            yield from _packed(run, target.n_ubatch) if length or packs else [run]


def _packed(shares: Sequence[Share], n_ubatch: int) -> Iterator[Sequence[Share]]:
    """Divide shares where a physical batch is full."""
    together: list[Share] = []
    room = n_ubatch
    for share in shares:
        if together and share.n_entries > room:
            yield together
            together, room = [], n_ubatch
        together.append(share)
        room -= share.n_entries
    yield together


def _runs(shares: Sequence[Share]) -> Iterator[Sequence[Share]]:
    """Divide shares where the number of a sequence is not the next one."""
    in_order = sorted(shares, key=lambda share: share.sequence.seq_id)
    for _, run in itertools.groupby(enumerate(in_order), key=lambda each: each[1].sequence.seq_id - each[0]):
        yield [share for _, share in run]


def _check(proposal: Proposal, n_vocab: int) -> None:
    for token in proposal.draft.tokens:
        if not 0 <= token < n_vocab:
            msg = f"The drafter {proposal.drafter} proposed {token!r}; the target has the tokens 0 to {n_vocab - 1}."
            raise DrafterError(msg)
    if proposal.draft.probs is not None:
        check_drawn(proposal.draft, n_vocab, proposal.drafter)
