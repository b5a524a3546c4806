"""One target decode of ``[pending, draft...]`` for all sequences together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspec.errors import DrafterError
from pyspec.speculation.draft import Proposal
from pyspec.speculation.target import Target, TargetRows

if TYPE_CHECKING:
    from pyspec.speculation.round import RoundBatch


def verify(target: Target, batch: RoundBatch, proposals: Sequence[Proposal]) -> list[TargetRows]:
    """Evaluate the pending token and the draft of each sequence.

    Returns:
        Per sequence its logits rows, [n_drafted + 1, n_vocab]: row i decides what follows draft token i - 1.

    Raises:
        DrafterError: A draft holds what is not a token of the target.
    """
    buffer = batch.buffer
    buffer.clear()
    for sequence, proposal in zip(batch.sequences, proposals, strict=True):
        buffer.add(sequence.pending, len(sequence.history), sequence.seq_id, output=True)
        if proposal.draft.tokens:
            _check_tokens(proposal, target.n_vocab)
            buffer.extend(proposal.draft.tokens, sequence.n_committed + 1, sequence.seq_id, output=True)
    rows = target.decode(buffer)
    if len(proposals) == 1:
        return [rows]
    own_rows = []
    first = 0
    for proposal in proposals:
        end = first + 1 + len(proposal.draft.tokens)
        own_rows.append(rows[first:end])
        first = end
    return own_rows


def _check_tokens(proposal: Proposal, n_vocab: int) -> None:
    for token in proposal.draft.tokens:
        if not 0 <= token < n_vocab:
            msg = f"The drafter {proposal.drafter} proposed {token!r}; the target has the tokens 0 to {n_vocab - 1}."
            raise DrafterError(msg)
