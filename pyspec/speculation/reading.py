"""Reading prompts piece by piece, beside the sequences that are already speaking."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import Target
from pyspec.speculation.verify import Share, piece_end


def prompt_room(n_prefill: int, n_ubatch: int, n_speaking: int, n_reading: int) -> int:
    """Return the most prompt tokens of a round.

    What is left of a physical batch where nobody speaks. Otherwise few enough that those who speak are not held up for
    long; but where more wait for their prompts than speak, as many times more, since then it is they who are held up.

    Args:
        n_prefill: The most that one reader may add to a round of one who speaks.
        n_ubatch: Entries that a physical batch has room for.
        n_speaking: Sequences that speak.
        n_reading: Sequences whose prompts are read.

    Example:
        >>> [prompt_room(128, 512, n, 8 - n) for n in (0, 1, 2, 4, 7)]
        [512, 512, 384, 128, 128]
    """
    if not n_speaking:
        return max(0, n_ubatch)
    return max(n_prefill, min(n_ubatch, n_prefill * (n_reading // n_speaking)))


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
        n_prefill: See ``prompt_room``.

    Returns:
        A share for each that gets room.
    """
    n_taken = sum(share.n_entries for share in others)
    n_speaking = sum(not share.sequence.reading for share in others)
    n_reading = len(readers) + len(others) - n_speaking
    room = min(target.n_batch - n_taken, prompt_room(n_prefill, target.n_ubatch - n_taken, n_speaking, n_reading))
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
