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

from pyspec.errors import StalledError
from pyspec.llama.batch import Batch
from pyspec.speculation.accept import AcceptRule
from pyspec.speculation.draft import Proposal, Proposer
from pyspec.speculation.ending import Finish
from pyspec.speculation.propose import propose
from pyspec.speculation.rollback import RollbackPoint, way_back
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import Target, TargetRows
from pyspec.speculation.verify import Asked, catch_up, decodes, verify

_MOST_LAG = 16  # decided tokens to decode again in front of a draft; more of them get a pass of their own


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
        rollback: How rejected tokens left memory: "none", "trim", "bounded" or "replay"; see ``rollback``.
        n_checkpoint_bytes: Size of the checkpoint that was taken for the draft; 0 when none was.
        logprobs: Per emitted token the log-probability that its row, as it is, gives it; empty unless asked.
        top: Per emitted token the most likely ones of its row, best first, as (token, logit), or as (token,
            log-probability) where log-probabilities are asked for; empty unless asked.
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
    n_checkpoint_bytes: int = 0
    logprobs: tuple[float, ...] = ()

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
    clock = _Clock()
    outcomes: dict[int, Outcome] = {}
    with RollbackPoint(batch.sequences, target, proposer) as point:
        for sequence in _far_behind(batch, target):
            point.expect_decode()
            catch_up(target, batch.buffer, sequence, proposer)
        clock.lap("rollback")
        asked = list(zip(batch.sequences, propose(batch.sequences, proposer, target), strict=True))
        clock.lap("draft")
        point.prepare(asked)
        clock.lap("rollback")
        for together in decodes(target, asked):
            rows = verify(target, batch.buffer, together, proposer)
            clock.lap("verify")
            decided = [
                _decide(rule, one, own_rows, target, point, clock.seconds)
                for one, own_rows in zip(together, rows, strict=True)
            ]
            clock.lap("accept")
            point.keep(decided)
            clock.lap("rollback")
            outcomes.update((outcome.seq_id, outcome) for outcome in decided)
    clock.stop()
    return [outcomes[sequence.seq_id] for sequence in batch.sequences]


def _far_behind(batch: RoundBatch, target: Target) -> list[Sequence]:
    """Return the sequences whose memory lacks more than can go in front of a draft."""
    share = target.n_batch // len(batch.sequences) - 1
    if target.memory.one_ubatch:
        share = min(share, target.n_ubatch - 1)
    most = min(_MOST_LAG, share)
    return [
        sequence
        for sequence in batch.sequences
        if sequence.lag > most or (sequence.rows and max(sequence.rows) >= sequence.n_committed - sequence.lag)
    ]


def _decide(
    rule: AcceptRule,
    one: Asked,
    rows: TargetRows,
    target: Target,
    point: RollbackPoint,
    seconds: dict[str, float],
) -> Outcome:
    """Let the rule decide about one sequence's draft.

    Raises:
        StalledError: It emitted nothing, so the next round would be the same again.
    """
    sequence, proposal = one
    emitted, finish = rule.accept(proposal.draft, rows, sequence)
    if not emitted:
        msg = f'The rule "{rule.name}" emitted no token for sequence {sequence.seq_id}; each round must emit one.'
        raise StalledError(msg)
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
        rollback=way_back(target.memory, len(proposal.draft.tokens) - n_accepted),
        top=_top(rows, len(emitted), sequence) if sequence.n_top else (),
        seconds=seconds,
        n_checkpoint_bytes=point.checkpoint_bytes.get(sequence.seq_id, 0),
        logprobs=_logprobs(rows, emitted) if sequence.wants_logprobs else (),
    )


def _top(rows: TargetRows, n_emitted: int, sequence: Sequence) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the most likely tokens of the rows that decided."""
    found = []
    for i in range(n_emitted):
        tokens, logits = rows.top_k(i, sequence.n_top)
        values = rows.logprobs(i, tokens) if sequence.wants_logprobs else logits
        found.append(tuple(zip(tokens.tolist(), values.tolist(), strict=True)))
    return tuple(found)


def _logprobs(rows: TargetRows, emitted: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(float(rows.logprobs(i, [token])[0]) for i, token in enumerate(emitted))


class _Clock:
    """Seconds per stage of a round."""

    __slots__ = ("_began", "_last", "seconds")

    def __init__(self) -> None:
        self.seconds = {"draft": 0.0, "verify": 0.0, "accept": 0.0, "rollback": 0.0, "total": 0.0}
        self._began = self._last = perf_counter()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap."""
        now = perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now

    def stop(self) -> None:
        self.seconds["total"] = perf_counter() - self._began
