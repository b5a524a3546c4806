"""Setting a table of fakes and playing rounds on it, with a check after each."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pyspec.drafters import Chain
from pyspec.drafters.choosing import Sampling
from pyspec.drafters.controller import Controller
from pyspec.drafters.ngram_simple import NgramSimple
from pyspec.drafters.suffix import Suffix
from pyspec.llama.memory import RollbackKind
from pyspec.speculation import AcceptRule, Ending, MatchRule, Outcome, RoundBatch, Sequence, run_round
from pyspec.speculation.costs import Costs, Decoded
from pyspec.speculation.curves import CostCurve, Level
from pyspec.speculation.draft import Drafter
from tests.fake_sampling import FakeSampler
from tests.fakes import FakeTarget, Fuse, Logits, Row
from tests.reference import Plain, Request, plain_decode
from tests.scripted import Move, Scripted, make_draft_simple


@dataclass(frozen=True)
class ScriptedSpec:
    """A scripted drafter."""

    moves: tuple[Move, ...]


@dataclass(frozen=True)
class NgramSpec:
    """An n-gram drafter."""

    size_n: int
    size_m: int


@dataclass(frozen=True)
class SuffixSpec:
    """The drafter suffix."""

    n_match: int = 1
    n_max: int = 6
    share: bool = False


@dataclass(frozen=True)
class DraftModelSpec:
    """A draft model: ``logits`` None means the target's own."""

    logits: Logits | None
    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0
    n_ctx: int = 0
    n_batch: int | None = None
    kind: RollbackKind = RollbackKind.TRIM
    sampling: Sampling = "greedy"


DrafterSpec = ScriptedSpec | NgramSpec | SuffixSpec | DraftModelSpec


@dataclass(frozen=True)
class Machine:
    """Sizes of a fake target."""

    n_batch: int = 32
    n_ubatch: int = 8
    n_outputs_max: int = 32
    n_seq_max: int = 1
    kind: RollbackKind = RollbackKind.TRIM
    n_snapshots: int = 0
    consecutive: bool = False


@dataclass(frozen=True)
class RuleSpec:
    """A rule and what is known of its output.

    Attributes:
        rule: The rule.
        says: Returns what it says to a request after some tokens, whatever is drafted; None means what plain decoding
            says (``tests.reference``).
        free: Drafts may change the output; then ``says`` is what follows what was said, while nothing is drafted.
    """

    rule: AcceptRule
    says: Callable[[Request, tuple[int, ...]], int] | None = None
    free: bool = False


MATCH = RuleSpec(MatchRule())


class Table:
    """A fake target, a chain of drafters, and sequences on it.

    Args:
        requests: Requests to one target; all have its logits and context size.
        drafters: The chain.
        machine: Sizes.
        seq_ids: Sequence of each request; 0, 1, ... unless given.
        fuse: Shared by everything but the draft model, whose points are those of ``draft_fuse``.
        draft_fuse: See ``fuse``.
        rule: Who decides about drafts.
        costs: Rows to seconds of a machine; with it a controller chooses among the drafters.
    """

    def __init__(  # noqa: PLR0913 - what a table is set with
        self,
        requests: SequenceOf[Request],
        drafters: SequenceOf[DrafterSpec] = (),
        *,
        costs: Mapping[int, float] | None = None,
        machine: Machine | None = None,
        seq_ids: SequenceOf[int] = (),
        fuse: Fuse | None = None,
        draft_fuse: Fuse | None = None,
        rule: RuleSpec = MATCH,
    ) -> None:
        sizes = machine if machine is not None else Machine(n_seq_max=max([len(requests), *(i + 1 for i in seq_ids)]))
        first = requests[0]
        self.fuse = fuse if fuse is not None else Fuse()
        self.draft_fuse = draft_fuse if draft_fuse is not None else Fuse()
        self.target = FakeTarget(
            first.logits,
            first.n_vocab,
            n_ctx_seq=first.n_ctx,
            n_batch=sizes.n_batch,
            n_ubatch=sizes.n_ubatch,
            n_outputs_max=sizes.n_outputs_max,
            n_seq_max=sizes.n_seq_max,
            kind=sizes.kind,
            n_snapshots=sizes.n_snapshots,
            consecutive=sizes.consecutive,
            fuse=self.fuse,
        )
        ids = seq_ids or range(len(requests))
        self.seats = [Seat(request, seq_id, self.fuse, rule) for request, seq_id in zip(requests, ids, strict=True)]
        self.futures: dict[int, SequenceOf[int]] = {seat.seq_id: _Future(seat) for seat in self.seats}
        self.draft_target: FakeTarget | None = None
        made = [self._made(spec, i) for i, spec in enumerate(drafters)]
        self.chain = Chain(made) if costs is None else TimedController(made, self.target, costs)
        self.rule = rule.rule

    def _made(self, spec: DrafterSpec, i: int) -> Drafter:
        if isinstance(spec, ScriptedSpec):
            return Scripted(f"scripted-{i}", self.futures, spec.moves, fuse=self.fuse)
        if isinstance(spec, NgramSpec):
            return NgramSimple(size_n=spec.size_n, size_m=spec.size_m)
        if isinstance(spec, SuffixSpec):
            return Suffix(n_match=spec.n_match, n_max=spec.n_max, share=spec.share)
        logits = spec.logits if spec.logits is not None else self.target.logits
        drafter, self.draft_target = make_draft_simple(
            self.target,
            logits,
            n_batch=spec.n_batch,
            fuse=self.draft_fuse,
            kind=spec.kind,
            n_max=spec.n_max,
            n_min=min(spec.n_min, spec.n_max),
            p_min=spec.p_min,
            n_ctx=spec.n_ctx,
            sampling=spec.sampling,
        )
        return drafter

    def begin(self) -> None:
        """Let target, samplers and drafters read the prompts; the fuses are armed after it."""
        self.fuse.armed = self.draft_fuse.armed = False
        for seat in self.seats:
            batch = RoundBatch([seat.sequence]).buffer
            for position, token in enumerate(seat.sequence.history):
                batch.clear()
                batch.add(token, position, seat.seq_id)
                self.target.decode(batch)
            for token in seat.request.prompt:
                seat.sampler.accept(token)
            self.chain.begin(seat.seq_id, seat.sequence.history)
        self.fuse.armed = self.draft_fuse.armed = True

    def play(self, check: Callable[[], None] | None = None) -> None:
        """Play rounds until every sequence has ended."""
        while running := [seat for seat in self.seats if not self.has_ended(seat)]:
            self.round(running)
            (check or self.check)()

    def round(self, running: SequenceOf[Seat]) -> list[Outcome]:
        """Play one round."""
        lengths = [seat.n_emitted for seat in running]
        batch = RoundBatch([seat.sequence for seat in running])
        outcomes = run_round(batch, self.chain, self.target, self.rule)
        for seat, outcome, n_before in zip(running, outcomes, lengths, strict=True):
            assert outcome.seq_id == seat.seq_id
            assert seat.n_emitted == n_before + len(outcome.emitted) > n_before, "a round commits at least one token"
            seat.outcomes.append(outcome)
        return outcomes

    def has_ended(self, seat: Seat) -> bool:
        """Return whether a sequence ended, also when the round that ended it raised."""
        sequence = seat.sequence
        over = sequence.ending.remaining <= 0 or sequence.n_committed >= self.target.n_ctx_seq
        return over or seat.last_finish is not None or seat.n_emitted == len(seat.plain.tokens)

    def check(self, *, draft_memory: bool = True) -> None:
        """Everything ends at the committed length."""
        for seat in self.seats:
            sequence = seat.sequence
            in_memory = sequence.history[: sequence.n_committed - sequence.lag]
            held = self.target.memory.tokens(seat.seq_id)
            emptied = not held and self.has_ended(seat) and self.target.kind is not RollbackKind.TRIM
            assert emptied or held == tuple(in_memory)
            assert sequence.lag == 0 or self.target.kind is not RollbackKind.TRIM
            said = (*sequence.history, sequence.pending)
            assert said == seat.plain.history[: len(said)]
            emitted = said[len(seat.request.prompt) :]
            assert seat.sampler.seen == [*seat.request.prompt, *emitted]
            assert len(emitted) == sequence.ending.n_tokens
            n_draws = seat.sampler.n_draws
            assert n_draws == len(emitted) if self.rule.valid else n_draws <= len(emitted)
            text = b"".join(seat.request.piece(token) for token in emitted if token not in seat.request.eog)
            assert bytes(sequence.ending.text) == text
            if self.draft_target is not None and draft_memory:
                held = self.draft_target.memory.tokens(seat.seq_id)
                assert held == tuple(sequence.history[: len(held)])
            for drafter in self.chain.drafters:
                if isinstance(drafter, Scripted):
                    assert drafter.open.get(seat.seq_id, 0) == 0
                    assert drafter.committed[seat.seq_id] <= sequence.n_committed

    def check_end(self) -> None:
        """Every sequence gave what plain decoding gives."""
        for seat in self.seats:
            seat.check_end(self.target.n_ctx_seq)


class TimedController(Controller):
    """A controller for which decodes and drafts take what a table says, so that it always decides alike."""

    def __init__(self, drafters: SequenceOf[Drafter], target: FakeTarget, costs: Mapping[int, float]) -> None:
        ticks = itertools.count()
        super().__init__(drafters, target.memory, costs=Costs(costs), clock=lambda: 1e-5 * next(ticks))
        self._curve = CostCurve(Level(), costs)

    def played(self, decodes: SequenceOf[Decoded], outcomes: SequenceOf[Outcome]) -> None:
        timed = [decoded._replace(seconds=self._curve.seconds(decoded.n_entries)) for decoded in decodes]
        verify = sum(decoded.seconds for decoded in timed)
        seconds = {"draft": 1e-5, "verify": verify, "accept": 0.0, "rollback": 0.0, "total": verify + 2e-5}
        super().played(timed, [dataclasses.replace(outcome, seconds=seconds) for outcome in outcomes])


@dataclass
class Seat:
    """A request, its sequence and what it gave."""

    request: Request
    seq_id: int
    fuse: Fuse
    rule: RuleSpec = MATCH
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        request = self.request
        self.sampler = FakeSampler(request.seed, penalty=request.penalty, banned=request.banned, fuse=self.fuse)
        self.sequence = Sequence(
            seq_id=self.seq_id,
            history=list(request.prompt[:-1]),
            pending=request.prompt[-1],
            sampler=self.sampler,
            ending=Ending(eog=request.eog, max_tokens=request.max_tokens, stops=request.stops, piece=request.piece),
            temperature=0.0 if request.seed is None else 1.0,
            seed=request.seed,
        )
        says = self.rule.says
        self._says = functools.cache(functools.partial(says, request)) if says is not None else None
        self._said: tuple[int, ...] = request.prompt
        self._plain = plain_decode(self._saying(self._said))

    @property
    def plain(self) -> Plain:
        """What plain decoding gives; where drafts may change that, with the tokens that were said already."""
        said = (*self.sequence.history, self.sequence.pending)
        if self.rule.free and said != self._said:
            self._said, self._plain = said, plain_decode(self._saying(said))
        return self._plain

    def _saying(self, said: tuple[int, ...]) -> Request:
        """Return a request whose plain decoding repeats what was said and goes on with what the rule says."""
        request, says = self.request, self._says
        if says is None:
            return request

        def logits(tokens: tuple[int, ...]) -> Row:
            row = np.zeros(request.n_vocab, np.float32)
            row[said[len(tokens)] if len(tokens) < len(said) else says(tokens)] = 1.0
            return row

        return replace(request, logits=logits, seed=None, penalty=0.0, banned=frozenset())

    @property
    def n_emitted(self) -> int:
        return self.sequence.n_committed + 1 - len(self.request.prompt)

    @property
    def emitted(self) -> tuple[int, ...]:
        return (*self.sequence.history, self.sequence.pending)[len(self.request.prompt) :]

    @property
    def last_finish(self) -> str | None:
        finish = self.outcomes[-1].finish if self.outcomes else None
        return finish.value if finish is not None else None

    def check_end(self, n_ctx: int) -> None:
        ending = self.sequence.ending
        assert self.emitted == self.plain.tokens
        finish = self.last_finish or ("length" if ending.remaining <= 0 else "context")
        assert finish == self.plain.finish
        assert finish != "context" or self.sequence.n_committed == n_ctx
        text = bytes(ending.text if ending.cut is None else ending.text[: ending.cut])
        assert text.decode("utf-8", errors="replace") == self.plain.text


class _Future(SequenceOf[int]):
    """What a seat is going to say, the prompt included, as far as that is known now."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def __len__(self) -> int:
        return len(self._seat.plain.history)

    def __getitem__(self, at: Any) -> Any:
        return self._seat.plain.history[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self._seat.plain.history)
