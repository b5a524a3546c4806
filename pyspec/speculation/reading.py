"""Reading prompts piece by piece, beside the sequences that are already speaking."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import Target
from pyspec.speculation.verify import Share, piece_end


def reaches_end(sequence: Sequence, target: Target, n_sharing: int, n_prefill: int) -> bool:
    """Return whether the rest of a prompt fits into this round, with the pending token and a draft behind it.

    Args:
        sequence: One whose ``reading`` is set.
        target: Who reads.
        n_sharing: Sequences that share the decode.
        n_prefill: The most prompt tokens in it.
    """
    if sequence.ending.remaining <= 0 or (sequence.lag and (sequence.pause or _has_rows(sequence))):
        return False
    most = min(target.n_batch // n_sharing, n_prefill // n_sharing, target.n_ubatch)
    return sequence.lag == 0 or sequence.lag < most


def read_on(readers: SequenceOf[Sequence], target: Target, others: SequenceOf[Share], n_prefill: int) -> list[Share]:
    """Divide the room that is left in a round's decode among prompts that do not reach their end.

    All get equal parts, and what a short one does not need goes to the longer ones.

    Args:
        readers: These sequences.
        target: Who reads.
        others: What the decode holds already.
        n_prefill: The most prompt tokens beside others; alone, prompts fill a physical batch.

    Returns:
        A share for each that gets room.
    """
    room = min(target.n_batch - sum(share.n_entries for share in others), n_prefill if others else target.n_ubatch)
    shares = []
    for i, sequence in enumerate(sorted(readers, key=lambda reader: reader.lag)):
        first = sequence.n_committed - sequence.lag
        end = piece_end(sequence.rows, first, min(first + room // (len(readers) - i), sequence.n_committed))
        if end > first:
            shares.append(Share(sequence, None, end - first))
            room -= end - first
    return shares


def _has_rows(sequence: Sequence) -> bool:
    """Return whether rows that stand in place of tokens have not been read."""
    return bool(sequence.rows) and max(sequence.rows) >= sequence.n_committed - sequence.lag
