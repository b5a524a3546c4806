"""One round of speculative decoding: draft, verify, accept, roll back.

Plain decoding is a round with an empty draft, so this is the only loop there is.

A round for one sequence, with the draft ``[7, 8, 9]`` and the pending token 5 at position 20::

    verify      [5, 7, 8, 9] at positions 20..23  ->  rows 0..3
    accept      row 0 gives 7 (accepted), row 1 gives 8 (accepted), row 2 gives 4 (recovered)
    roll back   memory keeps positions 0..22; emitted [7, 8, 4]; 4 is the new pending token
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from pyspec.llama.batch import Batch
from pyspec.speculation.accept import AcceptRule, check_verdict
from pyspec.speculation.costs import Decoded
from pyspec.speculation.draft import GRAMMAR, Expectation, Proposal, Proposer
from pyspec.speculation.ending import Finish
from pyspec.speculation.propose import propose
from pyspec.speculation.reading import prompt_room, reaches_end, read_on
from pyspec.speculation.rollback import RollbackPoint
from pyspec.speculation.sequence import Sequence
from pyspec.speculation.target import Target, TargetRows
from pyspec.speculation.verify import Share, catch_up, decodes, verify

_MOST_LAG = 16  # decided tokens to decode again in front of a draft; more of them get a pass of their own
_N_PREFILL = 128


class Changes(NamedTuple):
    """What happened while drafts were made.

    Attributes:
        arrived: Sequences that begin; their prompts are read beside the others.
        left: Numbers of sequences that nobody wants any more; they are put back to where the round began.
    """

    arrived: SequenceOf[Sequence] = ()
    left: Collection[int] = ()


NO_CHANGES = Changes()


def no_changes() -> Changes:
    """Nothing happened."""
    return NO_CHANGES


@dataclass(slots=True)
class RoundBatch:
    """The sequences of a round and what they share.

    Attributes:
        sequences: At least one, each with another ``seq_id``; those that arrive are appended.
        buffer: Reused from round to round.
        n_prefill: The most prompt tokens that are read beside sequences that speak; see ``prompt_room``.
        changes: Asked once, when the drafts are there.
        outcomes: What was decided so far, by sequence; complete when ``run_round`` returns, and right when it raises.
    """

    sequences: list[Sequence]
    buffer: Batch = field(default_factory=Batch)
    n_prefill: int = _N_PREFILL
    changes: Callable[[], Changes] = no_changes
    outcomes: dict[int, Outcome] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
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
        first: The round read the end of its prompt too, and its time is the prompt's.
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
    first: bool = False

    @property
    def n_forced(self) -> int:
        """Accepted tokens that a grammar proposed."""
        return self.n_accepted if self.proposal.drafter == GRAMMAR else 0

    @property
    def expected(self) -> Expectation | None:
        """What was expected of the round, with ``auto``."""
        return self.proposal.expected

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
    sampler end at its committed length. What was decided before something raised stays, in ``batch.outcomes``.

    Args:
        batch: The sequences; each has room for its pending token.
        proposer: Who drafts.
        target: Who verifies.
        rule: Who decides, unless a sequence has a rule of its own.

    Returns:
        The outcomes, in the order of their sequences; those whose prompt is still being read have none.
    """
    clock = _Clock()
    outcomes = batch.outcomes = {}
    computed: list[Decoded] = []
    with RollbackPoint(batch.sequences, target, proposer) as point:
        if behind := _far_behind(batch, target):
            for sequence in behind:
                catch_up(target, batch.buffer, sequence, proposer)
            clock.lap("rollback")
        shares = _drafted(batch, proposer, target)
        clock.lap("draft")
        shares = _with_others(batch, shares, target, point)
        point.prepare(shares)
        for together in decodes(target, shares) if shares else ():
            clock.lap("rollback")
            rows = verify(target, batch.buffer, together, proposer)
            seconds, reading = clock.lap("verify"), False
            decided, pieces = [], []
            for i, share in enumerate(together):
                reading = reading or share.sequence.reading
                if share.proposal is None:
                    pieces.append(share)
                else:
                    own_rule = share.sequence.rule or rule
                    decided.append(_decide(own_rule, share, rows[i], point, clock.seconds, target.n_vocab))
            if proposer.n_max:  # else nothing is chosen by what it cost
                positions = batch.buffer.positions
                computed.append(Decoded(len(positions), reading, seconds, sum(positions) / len(positions)))
            clock.lap("accept")
            point.keep(decided, pieces, outcomes)
    clock.stop("rollback")
    played = _in_order(batch)
    proposer.played(computed, played)
    return played


def _in_order(batch: RoundBatch) -> list[Outcome]:
    """Return what was decided, in the order of the sequences."""
    decided = []
    for sequence in batch.sequences:
        if sequence.seq_id in batch.outcomes:
            decided.append(batch.outcomes[sequence.seq_id])
    return decided


def _drafted(batch: RoundBatch, proposer: Proposer, target: Target) -> list[Share]:
    """Return the shares of the sequences that will decide, each with its draft."""
    n_sharing = len(batch.sequences)
    deciding: list[Sequence] = []
    for sequence in batch.sequences:
        if not sequence.reading:
            deciding.append(sequence)
    if len(deciding) < n_sharing:
        n_prefill = prompt_room(batch.n_prefill, target.n_ubatch, len(deciding), n_sharing - len(deciding))
        deciding = [
            sequence
            for sequence in batch.sequences
            if not sequence.reading or reaches_end(sequence, target, n_sharing, n_prefill)
        ]
    if not deciding:
        return []
    proposals = propose(deciding, proposer, target, n_sharing)
    shares = []
    for i, sequence in enumerate(deciding):
        shares.append(Share(sequence, proposals[i], sequence.lag))
    return shares


def _with_others(batch: RoundBatch, shares: list[Share], target: Target, point: RollbackPoint) -> list[Share]:
    """Return the shares of those who still want a round, and pieces of the prompts that are read on beside them."""
    arrived, left = batch.changes()
    if arrived:
        batch.sequences += arrived
        point.add(arrived)
    if left:
        shares = [share for share in shares if share.sequence.seq_id not in left]
    if len(shares) < len(batch.sequences):
        known = {share.sequence.seq_id for share in shares}.union(left)
        readers = [sequence for sequence in batch.sequences if sequence.seq_id not in known]
        shares += read_on(readers, target, shares, batch.n_prefill) if readers else []
    return shares


def _far_behind(batch: RoundBatch, target: Target) -> list[Sequence]:
    """Return the sequences whose memory lacks more than can go in front of a draft."""
    behind: list[Sequence] = []
    for sequence in batch.sequences:
        if sequence.lag and not sequence.reading:
            behind.append(sequence)
    if not behind:
        return behind
    share = target.n_batch // len(batch.sequences) - 1
    if target.memory.one_ubatch or target.memory.reuses_cells:
        share = min(share, target.n_ubatch - 1)
    most = min(_MOST_LAG, share)
    return [
        sequence
        for sequence in behind
        if sequence.lag > most or (sequence.rows and max(sequence.rows) >= sequence.n_committed - sequence.lag)
    ]


def _decide(
    rule: AcceptRule,
    share: Share,
    rows: TargetRows,
    point: RollbackPoint,
    seconds: dict[str, float],
    n_vocab: int,
) -> Outcome:
    """Let the rule decide about one sequence's draft; raises what ``check_verdict`` does."""
    sequence, proposal = share.sequence, share.proposal
    assert proposal is not None  # noqa: S101 - others have nothing to decide
    verdict = rule.accept(proposal.draft, rows, sequence)
    check_verdict(verdict, rule, proposal.draft, n_vocab)
    emitted = verdict.emitted
    seq_id, n_accepted = sequence.seq_id, len(emitted) - 1
    rollback = point.way_back(len(proposal.draft.tokens) - n_accepted)
    top = _top(rows, len(emitted), sequence) if sequence.n_top else ()
    logprobs = _logprobs(rows, emitted) if sequence.wants_logprobs else ()
    return Outcome(
        seq_id,
        len(sequence.history),
        sequence.pending,
        proposal,
        n_accepted,
        emitted,
        verdict.finish,
        rule.name,
        rollback,
        top,
        seconds,
        point.checkpoint_bytes.get(seq_id, 0),
        logprobs,
        sequence.reading,
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

    def lap(self, stage: str) -> float:
        """Count the time since the last lap, and return it."""
        now = perf_counter()
        taken = now - self._last
        self.seconds[stage] += taken
        self._last = now
        return taken

    def stop(self, stage: str) -> None:
        """Count the time since the last lap, and the whole."""
        self.lap(stage)
        self.seconds["total"] = self._last - self._began
