"""One round of speculative decoding: draft, verify, accept, roll back.

Plain decoding is a round with an empty draft, so this is the only loop there is.

A round for one sequence, with the draft ``[7, 8, 9]`` and the pending token 5 at position 20::

    verify      [5, 7, 8, 9] at positions 20..23  ->  rows 0..3
    accept      row 0 gives 7 (accepted), row 1 gives 8 (accepted), row 2 gives 4 (recovered)
    roll back   memory keeps positions 0..22; emitted [7, 8, 4]; 4 is the new pending token
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from pyspec.llama.batch import Batch
from pyspec.speculation.accept import AcceptRule
from pyspec.speculation.draft import NO_DRAFT, DraftRequest, Proposal, Proposer
from pyspec.speculation.ending import Finish
from pyspec.speculation.rollback import RollbackPoint
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import Target, TargetRows
from pyspec.speculation.verify import verify


@dataclass(slots=True)
class RoundBatch:
    """The sequences of a round and the buffer they share.

    Attributes:
        sequences: At least one, each with another ``seq_id``.
        buffer: Reused from round to round.
    """

    sequences: list[Sequence]
    buffer: Batch = field(default_factory=Batch)


class Outcome(NamedTuple):
    """What a round did for one sequence.

    Attributes:
        seq_id: The sequence.
        position: Position of the token that was pending when the round began.
        pending: That token.
        proposal: The draft and who made it.
        n_accepted: Draft tokens that stand.
        emitted: The accepted tokens and the recovered or bonus token.
        finish: Why the sequence ends with the last emitted token, or None.
        rule: Name of the rule.
        rollback: "none" or "trim".
        top: Per emitted token the largest logits of its row as (token, logit), best first; empty unless asked.
        seconds: Per stage, and "total"; shared by all sequences of the round.
    """

    seq_id: int
    position: int
    pending: int
    proposal: Proposal
    n_accepted: int
    emitted: tuple[int, ...]
    finish: Finish | None
    rule: str
    rollback: str
    top: tuple[tuple[tuple[int, float], ...], ...]
    seconds: dict[str, float]

    @property
    def sources(self) -> tuple[str, ...]:
        """Where each emitted token came from: "plain", "draft:<name>", "recovered" or "bonus"."""
        draft, n_accepted = self.proposal.draft.tokens, self.n_accepted
        if not draft:
            return ("plain",)
        last = "bonus" if n_accepted == len(draft) else "recovered"
        return (f"draft:{self.proposal.drafter}",) * n_accepted + (last,)


def run_round(batch: RoundBatch, proposer: Proposer, target: Target, rule: AcceptRule) -> list[Outcome]:
    """Play one round for every sequence in the batch.

    On return, and also when a stage raises, each sequence's memory (target and draft), drafter state and
    sampler end at its committed length.

    Args:
        batch: The sequences; each has room for its pending token.
        proposer: Who drafts.
        target: Who verifies.
        rule: Who decides.

    Returns:
        One outcome per sequence, in their order.
    """
    seconds: dict[str, float] = {}
    began = perf_counter()
    with RollbackPoint(batch.sequences, target, proposer) as point:
        proposals = propose(batch, proposer, target)
        drafted = perf_counter()
        rows = verify(target, batch, proposals)
        verified = perf_counter()
        outcomes = [
            _decide(rule, sequence, proposal, own_rows, seconds)
            for sequence, proposal, own_rows in zip(batch.sequences, proposals, rows, strict=True)
        ]
        decided = perf_counter()
        point.keep(outcomes)
    ended = perf_counter()
    seconds["draft"] = drafted - began
    seconds["verify"] = verified - drafted
    seconds["accept"] = decided - verified
    seconds["rollback"] = ended - decided
    seconds["total"] = ended - began
    return outcomes


def propose(batch: RoundBatch, proposer: Proposer, target: Target) -> list[Proposal]:
    """Ask once for the drafts of all sequences that may draft; the others get an empty one."""
    if proposer.n_max == 0:
        return [NO_DRAFT] * len(batch.sequences)
    requests = [
        DraftRequest(
            seq_id=sequence.seq_id,
            tokens=sequence.history,
            pending=sequence.pending,
            position=sequence.n_committed,
            budget=budget,
            temperature=sequence.temperature,
            seed=sequence.seed,
        )
        for sequence in batch.sequences
        if (budget := draft_budget(sequence, target, len(batch.sequences))) > 0
    ]
    if not requests:
        return [NO_DRAFT] * len(batch.sequences)
    answers = dict(zip((request.seq_id for request in requests), proposer.propose(requests), strict=True))
    return [answers.get(sequence.seq_id, NO_DRAFT) for sequence in batch.sequences]


def draft_budget(sequence: Sequence, target: Target, n_sequences: int) -> int:
    """Return the most tokens that may be drafted for a sequence now.

    A draft of k tokens puts k + 1 tokens into memory and emits up to k + 1, so it must fit the context, what
    may still be emitted, and this sequence's share of the batch and of the logits rows.
    """
    context_left = target.n_ctx_seq - sequence.n_committed - 1
    share = min(target.n_batch, target.n_outputs_max) // n_sequences - 1
    return min(context_left, sequence.ending.remaining - 1, share)


def _decide(
    rule: AcceptRule, sequence: Sequence, proposal: Proposal, rows: TargetRows, seconds: dict[str, float]
) -> Outcome:
    """Let the rule decide about one sequence's draft."""
    emitted, finish = rule.accept(proposal.draft, rows, sequence)
    n_accepted = len(emitted) - 1
    return Outcome(
        seq_id=sequence.seq_id,
        position=len(sequence.history),
        pending=sequence.pending,
        proposal=proposal,
        n_accepted=n_accepted,
        emitted=emitted,
        finish=finish,
        rule=rule.name,
        rollback="trim" if n_accepted < len(proposal.draft.tokens) else "none",
        top=_top(rows, len(emitted), sequence.n_top) if sequence.n_top else (),
        seconds=seconds,
    )


def _top(rows: TargetRows, n_emitted: int, n_top: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the largest logits of the rows that decided."""
    largest = (rows.top_k(i, n_top) for i in range(n_emitted))
    return tuple(tuple(zip(tokens.tolist(), logits.tolist(), strict=True)) for tokens, logits in largest)
