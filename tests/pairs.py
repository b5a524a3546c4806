"""Every drafter beside every target of the zoo that it fits, and sequences that are played on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import pyspec
from pyspec import ContextConfig, RollbackKind, SamplingConfig, Speculation
from pyspec.drafters import Chain, Resources, create, sorted_by_priority
from pyspec.llama.batch import Batch
from pyspec.llama.sampler import make_sampler
from pyspec.speculation import Ending, MatchRule, Outcome, RoundBatch, Sequence, run_round
from pyspec.speculation.draft import Draft, Drafter
from pyspec.speculation.stats import DrafterStats, GenerationStats
from pyspec.speculation.verify import catch_up
from tests.helpers import PROMPT
from tests.zoo import MODELS

OpenZoo = Callable[[str], pyspec.Model]

TARGETS = tuple(name for name in MODELS if name.startswith("target-"))
WITH_LAYER_INPUTS = ("target-llama", "target-llama-eog", "target-mtp", "target-lfm2", "target-moe")
WITH_SNAPSHOTS = ("target-mtp", "target-lfm2")
WITH_STATE = (*WITH_SNAPSHOTS, "target-mamba")
WITH_WINDOW = ("target-swa", "target-mtp-chain", "target-gemma4")
EAGLE3 = ("draft-eagle3", "draft-eagle3-shared", "draft-eagle3-d2t")
DFLASH = ("draft-dflash", "draft-dflash2")
DSPARK = ("draft-dspark", "draft-dspark-noanchor", "draft-dspark-noconf")

SHORT = PROMPT
MEDIUM = [1, *range(100, 116)]  # one token more than a physical batch
LONG = [1, *([60, 75, 112, 264, 300, 91, 130] * 5)]
N_UBATCH = 16
N_MAX = 4
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "ngram-simple": {"size_n": 2, "size_m": 6},
    "ngram-mod": {"n_match": 3, "n_max": 6, "n_min": 1},
}


class Pair(NamedTuple):
    """A target, the drafters of a chain and their draft model."""

    target: str
    types: str
    draft_model: str | None = None

    def __str__(self) -> str:
        return "+".join(filter(None, (self.target.removeprefix("target-"), self.types, self.draft_model)))

    @property
    def drafter(self) -> str:
        """Name of the drafter with a model; of the only one where none has a model."""
        return self.types.split(",")[-1]

    @property
    def has_model(self) -> bool:
        """Whether its last drafter has a model."""
        return self.drafter.startswith("draft-")

    def options(self, **options: Any) -> dict[str, dict[str, Any]]:
        """Return options per drafter; those given are for the one with a model."""
        own = {name: dict(OPTIONS.get(name, {"n_max": N_MAX})) for name in self.types.split(",")}
        own[self.drafter].update(options)
        return own

    def speculation(
        self, open_zoo: OpenZoo, *, n_snapshots: int | None = None, self_check: bool = False, **options: Any
    ) -> Speculation:
        """Return what an engine is asked for."""
        draft_model = open_zoo(self.draft_model) if self.draft_model else None
        return Speculation(
            self.types, draft_model, self.options(**options), n_snapshots=n_snapshots, self_check=self_check
        )

    def chain(
        self, open_zoo: OpenZoo, context: pyspec.Context, first: SequenceOf[Drafter] = (), **options: Any
    ) -> Chain:
        """Return the chain for all sequences of a context, behind drafters that are asked first."""
        assert context.memory.rollback is not RollbackKind.NONE  # found out while memory is empty
        draft_model = open_zoo(self.draft_model) if self.draft_model else None
        resources = Resources(context.model, context, draft_model, n_sequences=context.n_seq_max)
        own = self.options(**options)
        return Chain([*first, *(create(name, resources=resources, **own[name]) for name in sorted_by_priority(own))])


def _with_draft_model() -> Iterator[Pair]:
    for target in TARGETS:
        yield Pair(target, "draft-simple", "draft-llama")
        yield Pair(target, "draft-simple", "draft-mamba")
    yield Pair("target-llama", "draft-simple", "draft-llama-paddedvocab")
    yield Pair("target-llama", "draft-simple", "target-mtp")
    yield Pair("target-llama-eog", "draft-simple", "draft-llama-eog")
    for target in (*WITH_LAYER_INPUTS, "target-gemma4"):  # whose layer 3 stands for its next-n rows
        yield from (Pair(target, "draft-eagle3", name) for name in EAGLE3)
    yield Pair("target-mtp", "draft-eagle3", "draft-eagle3-nextn")
    yield Pair("target-mtp", "draft-mtp")
    yield Pair("target-mtp", "draft-mtp", "draft-mtp")
    yield Pair("target-mtp-chain", "draft-mtp")
    yield Pair("target-gemma4", "draft-mtp", "draft-gemma4")
    for target in WITH_LAYER_INPUTS:
        yield from (Pair(target, "draft-dflash", name) for name in DFLASH)
        yield from (Pair(target, "draft-dspark", name) for name in DSPARK)


MODEL_PAIRS = tuple(_with_draft_model())
NGRAM_PAIRS = tuple(Pair(target, name) for target in TARGETS for name in OPTIONS)
CHAIN_PAIRS = tuple(
    Pair(target, f"ngram-simple,{drafter}", draft_model)
    for (target, drafter), draft_model in {pair[:2]: pair.draft_model for pair in reversed(MODEL_PAIRS)}.items()
)
PAIRS = (*NGRAM_PAIRS, *MODEL_PAIRS, *CHAIN_PAIRS)


def sizes(n_sequences: int = 1, **settings: Any) -> ContextConfig:
    """Return sizes of a target's context, 128 tokens per sequence."""
    chosen = {"n_ctx": 128 * n_sequences, "n_batch": 64, "n_ubatch": N_UBATCH, "n_seq_max": n_sequences, "n_threads": 1}
    return ContextConfig(**{**chosen, **settings})


@dataclass(slots=True)
class Seat:
    """A sequence and what it gave."""

    prompt: list[int]
    sequence: Sequence
    result: pyspec.Result = field(default_factory=pyspec.Result)

    @property
    def emitted(self) -> list[int]:
        """What was emitted, also by a round that raised afterwards."""
        return [*self.sequence.history, self.sequence.pending][len(self.prompt) :]


class ModelTable:
    """A real target, its drafters, and sequences that are played together, with a check after each round.

    Args:
        context: The target.
        chain: The drafters.
    """

    def __init__(self, context: pyspec.Context, chain: Chain) -> None:
        assert context.memory.rollback is not RollbackKind.NONE  # found out while memory is empty
        self.context, self.chain = context, chain
        self.seats: list[Seat] = []
        self.outcomes: list[Outcome] = []

    def begin(
        self,
        prompts: SequenceOf[SequenceOf[int]],
        max_tokens: SequenceOf[int],
        *,
        n_top: int = 0,
        sampling: SamplingConfig | None = None,
    ) -> None:
        """Forget the former sequences, and read new prompts."""
        context, settings = self.context, sampling if sampling is not None else SamplingConfig()
        self.chain.new_stats()
        self.seats, self.outcomes = [], []
        for seq_id, (prompt, limit) in enumerate(zip(prompts, max_tokens, strict=True)):
            sampler = make_sampler(settings, context.n_vocab)
            sequence = Sequence(
                seq_id=seq_id,
                history=list(prompt[:-1]),
                pending=prompt[-1],
                sampler=sampler,
                ending=Ending(eog=context.model.vocab.eog, max_tokens=limit),
                temperature=settings.temperature,
                seed=sampler.seed,
                n_top=n_top,
            )
            self.seats.append(Seat(list(prompt), sequence))
            context.memory.clear(seq_id)
            self.chain.begin(seq_id, sequence.history)
            sequence.lag = sequence.n_committed
            catch_up(context, Batch(), sequence, self.chain)

    @property
    def running(self) -> list[Seat]:
        """Who has not ended."""
        return [seat for seat in self.seats if seat.result.finish is None and seat.sequence.ending.remaining > 0]

    def play(self, n_rounds: int | None = None) -> None:
        """Play so many rounds, or until every sequence has ended."""
        while self.running and n_rounds != 0:
            self.round()
            n_rounds = None if n_rounds is None else n_rounds - 1

    def round(self) -> None:
        """Play one round."""
        running = self.running
        batch = RoundBatch([seat.sequence for seat in running])
        try:
            outcomes = run_round(batch, self.chain, self.context, MatchRule())
        except BaseException:
            for seat in running:
                seat.result.tokens = seat.emitted  # what was kept before it raised
            raise
        for seat, outcome in zip(running, outcomes, strict=True):
            self.outcomes.append(outcome)
            result = seat.result
            result.stats.count(outcome)
            result.tokens += outcome.emitted
            result.top += outcome.top
            result.finish = outcome.finish
            assert result.tokens == seat.emitted
        self.check()

    def check(self) -> None:
        """Everything ends at the committed length."""
        for seat in self.seats:
            sequence = seat.sequence
            check_memories(self.context, self.chain, sequence.n_committed, sequence.lag, sequence.seq_id)


class Drafts:
    """An observer that keeps every draft, with the position of the pending token."""

    def __init__(self) -> None:
        self.drafts: list[tuple[int, Draft]] = []

    def begin(self, info: Any) -> None: ...
    def end(self, result: Any) -> None: ...
    def round(self, outcome: Any) -> None:
        self.drafts.append((outcome.position, outcome.proposal.draft))

    @property
    def tokens(self) -> list[tuple[int, list[int]]]:
        """The same without probabilities."""
        return [(position, list(draft.tokens)) for position, draft in self.drafts]


def check_memories(context: pyspec.Context, chain: Chain, n_committed: int, lag: int, seq_id: int = 0) -> None:
    """The target's memory holds what is committed but for the lag, and the draft model's at most one token more."""
    memory = context.memory
    assert memory.length(seq_id) == n_committed - lag
    assert lag >= 0
    assert lag == 0 or memory.rollback is not RollbackKind.TRIM
    for drafter in chain.drafters:
        if hasattr(drafter, "memory"):
            assert drafter.memory.length(seq_id) <= n_committed + 1


def check_statistics(stats: SequenceOf[GenerationStats], drafters: Mapping[str, DrafterStats]) -> None:
    """The counters of generations, and those of the drafters that served them all, add up."""
    for each in stats:
        assert each.n_emitted == each.n_accepted + each.n_rounds
        assert each.n_accepted <= each.n_drafted
        assert sum(each.lengths.values()) == each.n_rounds
        assert sum(length * count for length, count in each.lengths.items()) == each.n_emitted
    for counted in drafters.values():
        assert counted.n_drafts_accepted <= counted.n_drafts <= counted.n_asked
        assert (sum(counted.drafted_at), sum(counted.accepted_at)) == (counted.n_drafted, counted.n_accepted)
        assert counted.drafted_at[:1] == ([counted.n_drafts] if counted.n_drafts else [])
        assert counted.accepted_at[:1] == ([counted.n_drafts_accepted] if counted.n_drafts else [])
        for lengths in (counted.drafted_at, counted.accepted_at):
            assert all(more >= fewer for more, fewer in pairwise(lengths))
        assert all(fewer <= more for fewer, more in zip(counted.accepted_at, counted.drafted_at, strict=True))
    assert sum(each.n_drafted for each in stats) == sum(each.n_drafted for each in drafters.values())
    assert sum(each.n_accepted for each in stats) == sum(each.n_accepted for each in drafters.values())
