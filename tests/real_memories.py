"""Sequences on every kind of real memory, computed so exactly that a wrong cell shows.

With keys and values of 32 bits and without flash attention, the zoo's rows are the same to 1e-5 in a batch of any
width, and the same bit for bit in batches of the same widths. So a larger difference is no rounding.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import numpy as np
import numpy.typing as npt

import pyspec
from pyspec import ContextConfig, Result, SamplingConfig, Speculation
from pyspec.drafters import Chain, registry
from pyspec.llama.batch import Batch
from pyspec.llama.sampler import make_sampler
from pyspec.speculation import Ending, Outcome, RoundBatch, Sequence, run_round
from pyspec.speculation.draft import Drafter
from pyspec.speculation.rules import make_rule
from pyspec.speculation.verify import catch_up
from tests.fakes import Fuse
from tests.pairs import OpenZoo, check_memories, sizes
from tests.pulled import PulledEngine
from tests.scripted import Move, Scripted

NEVER_SAID = 7  # <extra_1>, which no target of the zoo says
RULES = ("match", "rejection", "coupled")

T = TypeVar("T")
Numbers = npt.NDArray[np.float32]


class RealMemory(NamedTuple):
    """A target and how its memory is laid out.

    Attributes:
        target: Its name.
        ways: How rejected tokens leave it.
        settings: Of its context.
        n_prompt: Tokens of a prompt for a long run.
        near: How far rounding may move a logit.
    """

    target: str
    ways: frozenset[str]
    settings: dict[str, Any] = {}  # noqa: RUF012 - it is not changed
    n_prompt: int = 36
    near: float = 1e-4

    def sizes(self, n_sequences: int = 1, **settings: Any) -> ContextConfig:
        """Return the settings of a context of this kind."""
        exact = {"flash_attn": "off", "type_k": "f32", "type_v": "f32", "n_ctx": 640 * n_sequences}
        return sizes(n_sequences, **{**exact, **self.settings, **settings})

    def open(self, open_zoo: OpenZoo, n_sequences: int = 1, **settings: Any) -> pyspec.Context:
        """Return a context of this kind."""
        context = pyspec.Context(open_zoo(self.target), self.sizes(n_sequences, **settings))
        assert context.memory.rollback is not pyspec.RollbackKind.NONE  # found out while memory is empty
        return context

    def engine(self, open_zoo: OpenZoo, *drafters: Drafter, **settings: Any) -> PulledEngine:
        """Return an engine on such a context, with drafters that a test has made."""
        speculation = Speculation([drafter.name for drafter in drafters] or "none", n_snapshots=0)
        with registered(*drafters):
            return PulledEngine(open_zoo(self.target), speculation=speculation, context=self.sizes(**settings))


@contextlib.contextmanager
def registered(*drafters: Drafter) -> Iterator[None]:
    """Let engines find these drafters by their names, as if a package had brought them."""

    def point(drafter: Drafter) -> Any:
        return SimpleNamespace(value="tests", load=lambda: functools.partial(lambda given: given, drafter))

    found = {**registry._registered(), **{drafter.name: point(drafter) for drafter in drafters}}
    with mock.patch.object(registry, "_registered", return_value=found):
        yield


def at_context(engine: PulledEngine, look: Callable[[pyspec.Context], T]) -> T:
    """Look at an engine's context where that may be touched."""
    return look(engine.context)


_TRIM, _REPLAY, _BOUNDED = frozenset({"trim"}), frozenset({"replay"}), frozenset({"bounded"})
MEMORIES = {
    "trim": RealMemory("target-llama", _TRIM),
    # 256 cells, passed twice in 200 tokens. Its GELU is looked up in a table of 16-bit floats, whose steps show.
    "window": RealMemory("target-swa", _TRIM, {"swa_full": False}, 340, 1e-3),
    "whole": RealMemory("target-mamba", _REPLAY),
    "hybrid": RealMemory("target-mtp", _REPLAY),
    "bounded": RealMemory("target-lfm2", _BOUNDED, {"n_rs_seq": 8}),
    "too few snapshots": RealMemory("target-mtp", _BOUNDED | _REPLAY, {"n_rs_seq": 2}),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    Attributes:
        prompt: At least one token.
        max_tokens: Most tokens to emit.
        rule: Decides about drafts.
        sampling: How the target chooses.
        stops: Stop strings.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    rule: str = "match"
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stops: tuple[str, ...] = ()

    def stream(self, engine: PulledEngine, observer: Any = None) -> Any:
        """Let an engine generate."""
        return engine.stream(
            self.prompt,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            stop=self.stops,
            rule=self.rule,
            n_top=3,
            logprobs=True,
            observer=observer,
        )

    def generate(self, engine: PulledEngine, observer: Any = None) -> Result:
        """Let an engine generate to the end."""
        stream = self.stream(engine, observer)
        for _chunk in stream:
            pass
        result: Result = stream.result
        return result

    def sequence(self, context: pyspec.Context, seq_id: int = 0, fuse: Fuse | None = None) -> Sequence:
        """Return the sequence that this begins with."""
        vocab = context.model.vocab
        sampler = Looked(make_sampler(self.sampling, context.n_vocab, vocab), context.n_vocab, fuse or Fuse())
        stops = tuple(stop.encode() for stop in self.stops)
        piece = vocab.all_pieces().__getitem__
        return Sequence(
            seq_id=seq_id,
            history=list(self.prompt[:-1]),
            pending=self.prompt[-1],
            sampler=sampler,
            ending=Ending(eog=vocab.eog, max_tokens=self.max_tokens, stops=stops, piece=piece),
            temperature=self.sampling.temperature,
            seed=sampler.seed,
            n_top=3,
            wants_logprobs=True,
        )


class Looked:
    """A sampler that keeps what each token was chosen from.

    Its fuse fails at "sample" before, at "sampled" after the state has changed.

    Attributes:
        chosen_from: Probabilities per decided row, [n_vocab] each; goes back when the state does.
        n_calls: Rows that were decided or looked at; never goes back.
    """

    def __init__(self, sampler: Any, n_vocab: int, fuse: Fuse) -> None:
        self.seed: int | None = sampler.seed
        self.chosen_from: list[npt.NDArray[np.float64]] = []
        self.n_calls = 0
        self._sampler, self._n_vocab, self._fuse = sampler, n_vocab, fuse

    def accept(self, token: int) -> None:
        self._sampler.accept(token)
        self._fuse.burn("sampled")

    def distribution(self, rows: Any, i: int) -> Any:
        self._fuse.burn("sample")
        self.n_calls += 1
        tokens, probs = self._sampler.distribution(rows, i)
        everything = np.zeros(self._n_vocab)
        everything[tokens] = probs
        self.chosen_from.append(everything)
        return tokens, probs

    def sample(self, rows: Any, i: int) -> int:
        self.distribution(rows, i)
        token: int = self._sampler.sample(rows, i)
        self._fuse.burn("sampled")
        return token

    def save(self) -> Any:
        return self._sampler.save(), len(self.chosen_from)

    def restore(self, saved: Any) -> None:
        self._sampler.restore(saved[0])
        del self.chosen_from[saved[1] :]


@contextlib.contextmanager
def failing(context: Any, fuse: Fuse) -> Iterator[None]:
    """Let the decodes of a context fail at "decode" before, at "half-decoded" amid, and at "decoded" after the work."""
    decode = context.decode

    def burning(batch: Batch) -> pyspec.Rows:
        fuse.burn("decode")
        try:
            fuse.burn("half-decoded")
        except BaseException:
            half = Batch()
            for i in range(len(batch) // 2):
                half.add(batch.tokens[i], batch.positions[i], batch.seq_ids[i])
            if len(half):
                decode(half)
            raise
        rows: pyspec.Rows = decode(batch)
        fuse.burn("decoded")
        return rows

    context.decode = burning
    try:
        yield
    finally:
        del context.decode


# Several sequences together


@dataclass(slots=True)
class RealSeat:
    """A request, its sequence, and what it gave.

    Attributes:
        n_most: Emitted tokens with which it has ended, known beforehand; a round that raises may not say why.
    """

    asked: Asked
    sequence: Any
    n_ctx_seq: int
    outcomes: list[Outcome] = field(default_factory=list)
    n_most: int | None = None

    @property
    def emitted(self) -> list[int]:
        """Also what was emitted by a round that raised afterwards."""
        return [*self.sequence.history, self.sequence.pending][len(self.asked.prompt) :]

    @property
    def finish(self) -> str | None:
        """Why it has ended; None while it has not."""
        if self.outcomes and self.outcomes[-1].finish is not None:
            return self.outcomes[-1].finish.value
        if self.sequence.ending.remaining <= 0 or len(self.emitted) == self.n_most:
            return "length"
        return "context" if self.sequence.n_committed >= self.n_ctx_seq else None

    @property
    def text(self) -> bytes:
        ending = self.sequence.ending
        return bytes(ending.text if ending.cut is None else ending.text[: ending.cut])

    @property
    def logprobs(self) -> list[float]:
        return [value for outcome in self.outcomes for value in outcome.logprobs]


class RealTable:
    """Sequences that are played together on one context, with a check after each round.

    Args:
        context: The target; it has room for them.
        asked: Requests under one rule.
        chain: The drafters.
        fuse: The samplers'.
    """

    def __init__(
        self, context: pyspec.Context, asked: SequenceOf[Asked], chain: Chain | None = None, fuse: Fuse | None = None
    ) -> None:
        self.context = context
        self.chain = chain if chain is not None else Chain([])
        self.rule = make_rule(asked[0].rule, n_max=self.chain.n_max)
        self.seats = [RealSeat(one, one.sequence(context, i, fuse), context.n_ctx_seq) for i, one in enumerate(asked)]

    def begin(self) -> None:
        """Let target, samplers and drafters read the prompts."""
        self.context.memory.clear()
        for seat in self.seats:
            sequence = seat.sequence
            self.chain.begin(sequence.seq_id, sequence.history)
            sequence.lag = sequence.n_committed
            catch_up(self.context, Batch(), sequence, self.chain)
            if seat.asked.sampling.has_penalties:
                for token in seat.asked.prompt:
                    sequence.sampler.accept(token)

    @property
    def running(self) -> list[RealSeat]:
        """Who has not ended."""
        return [seat for seat in self.seats if seat.finish is None]

    def play(self) -> None:
        """Play until every sequence has ended."""
        while self.running:
            self.round()

    def round(self) -> None:
        """Play one round; it commits a token of each sequence at least."""
        running = self.running
        batch = RoundBatch([seat.sequence for seat in running])
        before = [len(seat.emitted) for seat in running]
        outcomes = run_round(batch, self.chain, self.context, self.rule)
        for seat, outcome, n_before in zip(running, outcomes, before, strict=True):
            seat.outcomes.append(outcome)
            assert len(seat.emitted) == n_before + len(outcome.emitted) > n_before
        self.check()

    def check(self) -> None:
        """Everything ends at the committed length."""
        for seat in self.seats:
            sequence = seat.sequence
            check_memories(self.context, self.chain, sequence.n_committed, sequence.lag, sequence.seq_id)
            assert len(seat.emitted) == sequence.ending.n_tokens == len(sequence.sampler.chosen_from)
            for drafter in self.chain.drafters:
                if isinstance(drafter, Scripted):
                    assert drafter.open.get(sequence.seq_id, 0) == 0
                    assert drafter.committed[sequence.seq_id] <= sequence.n_committed


def played(context: pyspec.Context, asked: Asked) -> RealSeat:
    """Decode plainly."""
    table = RealTable(context, [asked])
    table.begin()
    table.play()
    return table.seats[0]


def scripted(plains: SequenceOf[RealSeat], moves: SequenceOf[Move], fuse: Fuse | None = None) -> Scripted:
    """Return a drafter that knows what these say."""
    futures = {i: [*plain.asked.prompt, *plain.emitted] for i, plain in enumerate(plains)}
    return Scripted("scripted", futures, moves, fuse=fuse)


# What was decoded


class Decoded(NamedTuple):
    """One decode of a single sequence: position of its first entry, number of entries, and its rows."""

    first: int
    n_entries: int
    rows: Numbers


class Recorder:
    """An observer that also keeps the rows of every decode of a context, while it is ``watching``."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.decodes: list[Decoded] = []

    def begin(self, info: Any) -> None: ...
    def end(self, result: Any) -> None: ...
    def round(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    @contextlib.contextmanager
    def watching(self, context: Any) -> Iterator[None]:
        """Look at what a context decodes."""
        decode = context.decode

        def watched(batch: Batch) -> pyspec.Rows:
            rows: pyspec.Rows = decode(batch)
            block = context.logits_view().copy() if len(rows) else np.zeros((0, context.n_vocab), np.float32)
            self.decodes.append(Decoded(batch.positions[0], len(batch), block))
            return rows

        context.decode = watched
        try:
            yield
        finally:
            del context.decode
