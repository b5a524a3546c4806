"""The drafts of a round: who may draft how much, and what of it a grammar lets through."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import cast

from pyspec.speculation.draft import GRAMMAR, NO_DRAFT, Draft, DraftRequest, Proposal, Proposer
from pyspec.speculation.sequence import ConstrainedSampler, Sequence
from pyspec.speculation.target import Target

_LEAST = 2  # tokens that a draft is of use for


def propose(
    sequences: SequenceOf[Sequence], proposer: Proposer, target: Target, n_sharing: int | None = None
) -> list[Proposal]:
    """Ask once for the drafts of all sequences that may draft; the others get an empty one.

    Where a grammar leaves one continuation only, that is the draft, and nobody is asked. Plain decoding has no drafts
    at all: it is what the others are compared with.

    Args:
        sequences: Those that are about to decide.
        proposer: Whom to ask.
        target: Who verifies.
        n_sharing: Sequences that share the batch; None means these.
    """
    if proposer.n_max == 0:
        return [NO_DRAFT] * len(sequences)
    n_entries = _n_entries(sequences)
    resting = _resting(sequences, proposer, n_entries)
    if resting is not None:
        return list(resting)
    proposals: dict[int, Proposal] = {}
    requests = []
    for sequence in sequences:
        budget = draft_budget(sequence, target, n_sharing or len(sequences))
        if budget < 1:
            continue
        if hasattr(sequence.sampler, "forced") and (forced := _forced(sequence, min(budget, proposer.n_max))):
            proposals[sequence.seq_id] = Proposal(Draft(forced), GRAMMAR)
            continue
        requests.append(
            DraftRequest(
                seq_id=sequence.seq_id,
                tokens=sequence.history,
                pending=sequence.pending,
                position=sequence.n_committed,
                budget=budget,
                temperature=sequence.temperature,
                seed=sequence.seed,
                drafting=sequence.drafting,
                n_entries=n_entries,
            )
        )
    if requests:
        for i, proposal in enumerate(proposer.propose(requests)):
            proposals[requests[i].seq_id] = proposal
    return [_legal(sequence, proposals.get(sequence.seq_id, NO_DRAFT), proposer) for sequence in sequences]


def _n_entries(sequences: SequenceOf[Sequence]) -> int:
    """Return the entries of the round's decode without drafts."""
    n_entries = len(sequences)
    for sequence in sequences:
        n_entries += 0 if sequence.reading else sequence.lag
    return n_entries


def _resting(sequences: SequenceOf[Sequence], proposer: Proposer, n_entries: int) -> SequenceOf[Proposal] | None:
    """Return proposals without a draft where nobody is to be asked; that is found out before requests are made."""
    seq_ids = []
    for sequence in sequences:
        if sequence.ending.remaining < _LEAST or hasattr(sequence.sampler, "forced"):
            return None
        seq_ids.append(sequence.seq_id)
    return proposer.rest(seq_ids, n_entries)


def draft_budget(sequence: Sequence, target: Target, n_sharing: int) -> int:
    """Return the most tokens that may be drafted for a sequence now.

    A draft of k tokens puts k + 1 tokens into memory and emits up to k + 1, so it must fit the context, what
    may still be emitted, what its request wants, and this sequence's share of the batch and of the logits rows.
    """
    drafting = sequence.drafting
    if drafting.types == ():
        return 0
    context_left = target.n_ctx_seq - sequence.n_committed - 1
    share = min(target.n_batch // n_sharing - sequence.lag, target.n_outputs_max // n_sharing)
    memory = target.memory
    if memory.one_ubatch or memory.reuses_cells:
        share = min(share, target.n_ubatch - sequence.lag)
    budget = min(context_left, sequence.ending.remaining - 1, share - 1)
    return budget if drafting.n_max is None else min(budget, drafting.n_max)


def _forced(sequence: Sequence, limit: int) -> tuple[int, ...]:
    """Return the tokens that the sequence's grammar forces now."""
    return tuple(cast("ConstrainedSampler", sequence.sampler).forced()[:limit])


def _legal(sequence: Sequence, proposal: Proposal, proposer: Proposer) -> Proposal:
    """Cut a draft at the first token that the sequence's grammar forbids.

    A drawn one is cut behind it: the target gives that token no probability, and must reject it as what it is. Were
    it left out, whether a token is proposed would depend on which one was drawn (see ``rejection.py``).
    """
    tokens = proposal.draft.tokens
    if not tokens or not hasattr(sequence.sampler, "legal_prefix"):
        return proposal
    drawn = proposal.draft.probs is not None
    n_tokens = cast("ConstrainedSampler", sequence.sampler).legal_prefix(tokens) + drawn
    if n_tokens >= len(tokens):
        return proposal
    if n_tokens == 0:
        proposer.discard(sequence.seq_id)  # it will not hear of a decision
        return Proposal(Draft(), None, proposal.expected)
    return Proposal(proposal.draft.cut(n_tokens), proposal.drafter, proposal.expected)
