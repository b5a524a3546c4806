"""Reading prompts piece by piece, beside the sequences that are already speaking."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from pyspec.speculation.draft import NO_DRAFT
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import Target
from pyspec.speculation.verify import Share, piece_end


def read_on(readers: SequenceOf[Sequence], target: Target, others: SequenceOf[Share], n_prefill: int) -> list[Share]:
    """Divide the room that is left in a round's decode among the prompts that are being read.

    All get equal parts, and what a short one does not need goes to the longer ones. The part that reaches a prompt's
    end has the pending token behind it, so that the first token is decided in the same decode; there is no draft yet.

    Args:
        readers: The sequences whose ``reading`` is set.
        target: Who reads.
        others: What the decode holds already.
        n_prefill: The most prompt tokens beside others; alone, prompts fill a physical batch.

    Returns:
        A share for each that gets room.
    """
    room = min(target.n_batch - sum(share.n_entries for share in others), n_prefill if others else target.n_ubatch)
    n_rows = target.n_outputs_max - sum(share.n_outputs for share in others)
    shares = []
    for i, sequence in enumerate(sorted(readers, key=lambda reader: reader.lag)):
        share = _piece(sequence, room // (len(readers) - i), decides=n_rows > 0 and sequence.ending.remaining > 0)
        if share.n_entries:
            shares.append(share)
            room -= share.n_entries
            n_rows -= share.n_outputs
    return shares


def _piece(sequence: Sequence, limit: int, *, decides: bool) -> Share:
    """Return the next part of a prompt, at most so many entries."""
    end = sequence.n_committed
    first = end - sequence.lag
    if first < sequence.pause:
        limit = min(limit, sequence.pause - first)
    length = piece_end(sequence.rows, first, min(first + limit, end)) - first
    has_rows = first in sequence.rows and length > 0
    if decides and length == sequence.lag and length < limit and not has_rows:
        return Share(sequence, NO_DRAFT, length)
    return Share(sequence, None, length)
