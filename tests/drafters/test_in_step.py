"""What a model drafter drafts depends on the tokens only, whatever became of the drafts before.

Beside it a scripted drafter drafts right, wrong, half right or not at all, so that the model drafter is asked now and
then. Its draft must be what it drafts alone, when the same tokens are a new prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

import pytest

import pyspec
from pyspec.drafters import Chain
from pyspec.speculation.draft import Draft, Drafter, DraftRequest
from tests.fakes import Fuse, InjectedError
from tests.pairs import LONG, MEDIUM, N_MAX, SHORT, ModelTable, OpenZoo, Pair, sizes
from tests.scripted import Move, Scripted

PROMPTS, LENGTHS = (LONG, SHORT, MEDIUM), (40, 24, 33)
NEVER_SAID = 7  # <extra_1>, which no target of the zoo says
MOVES = [Move()] * 6 + [
    Move(1),
    Move(3),
    Move(8),
    Move(0, (NEVER_SAID,) * 5),
    Move(1, (NEVER_SAID,)),
    Move(2, (NEVER_SAID,) * 3),
]
POINTS = ("decode", "decoded", "draft", "draft-decode", "draft-decoded", "drafted", "accepted", "observe", "observed")


class Case(NamedTuple):
    """A pair on a target with these settings."""

    pair: Pair
    settings: dict[str, Any]

    def __str__(self) -> str:
        return "-".join([str(self.pair), *(f"{name}={value}" for name, value in self.settings.items())])


CASES = [
    Case(Pair("target-llama", "draft-simple", "draft-llama"), {}),
    Case(Pair("target-llama", "draft-simple", "draft-mamba"), {}),
    Case(Pair("target-llama", "draft-simple", "target-mtp"), {}),
    Case(Pair("target-mamba", "draft-simple", "draft-mamba"), {}),
    Case(Pair("target-llama", "draft-eagle3", "draft-eagle3-d2t"), {}),
    *(Case(Pair("target-mtp", "draft-eagle3", "draft-eagle3"), {"n_rs_seq": n}) for n in (0, 2, 8)),
    Case(Pair("target-mtp", "draft-eagle3", "draft-eagle3-nextn"), {"n_rs_seq": 2}),
    *(Case(Pair("target-mtp", "draft-mtp"), {"n_rs_seq": n}) for n in (0, 2, 8)),
    *(Case(Pair("target-mtp-chain", "draft-mtp"), {"swa_full": full}) for full in (True, False)),
    *(Case(Pair("target-gemma4", "draft-mtp", "draft-gemma4"), {"swa_full": full}) for full in (True, False)),
    Case(Pair("target-llama", "draft-dflash", "draft-dflash"), {}),
    *(Case(Pair("target-lfm2", "draft-dflash", "draft-dflash2"), {"n_rs_seq": n}) for n in (0, 2, 8)),
    Case(Pair("target-llama", "draft-dspark", "draft-dspark"), {}),
    Case(Pair("target-mtp", "draft-dspark", "draft-dspark-noanchor"), {"n_rs_seq": 2}),
]


class Watched:
    """A drafter that keeps what it was asked and what it answered; everything else is the drafter's own.

    Attributes:
        answers: Tokens up to the pending one, budget, and draft.
    """

    def __init__(self, drafter: Any, fuse: Fuse) -> None:
        self.answers: list[tuple[tuple[int, ...], int, list[int]]] = []
        self._drafter, self._fuse = drafter, fuse
        with_fuse(drafter._context, fuse, "draft-decode")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def draft(self, requests: SequenceOf[DraftRequest]) -> list[Draft]:
        self._fuse.burn("draft")
        drafts: list[Draft] = self._drafter.draft(requests)
        for request, draft in zip(requests, drafts, strict=True):
            self.answers.append(((*request.tokens, request.pending), request.budget, list(draft.tokens)))
        self._fuse.burn("drafted")
        return drafts

    def observe(self, batch: Any) -> None:
        self._fuse.burn("observe")
        self._drafter.observe(batch)
        self._fuse.burn("observed")

    def accept(self, seq_id: int, n_accepted: int, *, own: bool) -> None:
        self._drafter.accept(seq_id, n_accepted, own=own)
        self._fuse.burn("accepted")


def with_fuse(context: Any, fuse: Fuse, point: str) -> None:
    """Let a context's decodes fail before or after the work is done."""
    decode = context.decode

    def burning(batch: Any) -> Any:
        fuse.burn(point)
        rows = decode(batch)
        fuse.burn(f"{point}d")
        return rows

    context.decode = burning


class Alone:
    """A target and a drafter of its own, which say what is drafted after some tokens that are a new prompt."""

    def __init__(self, pair: Pair, open_zoo: OpenZoo) -> None:
        self.context = pyspec.Context(open_zoo(pair.target), sizes())
        self.chain = pair.chain(open_zoo, self.context)
        self._table = ModelTable(self.context, self.chain)
        self._known: dict[tuple[int, ...], list[int]] = {}

    def draft(self, tokens: tuple[int, ...]) -> list[int]:
        """Return the longest draft after these tokens, the last of which is pending."""
        if tokens not in self._known:
            self._table.begin([tokens], [99])
            (proposal,) = self.chain.propose([DraftRequest(0, tokens[:-1], tokens[-1], len(tokens) - 1, N_MAX)])
            self._known[tokens] = list(proposal.draft.tokens)
        return self._known[tokens]

    def close(self) -> None:
        self.chain.close()
        self.context.close()


@pytest.fixture(scope="module")
def alone(open_zoo: OpenZoo) -> Iterator[Callable[[Pair], Alone]]:
    made: dict[Pair, Alone] = {}

    def of(pair: Pair) -> Alone:
        if pair not in made:
            made[pair] = Alone(pair, open_zoo)
        return made[pair]

    yield of
    for one in made.values():
        one.close()


@pytest.fixture(scope="module")
def future(open_zoo: OpenZoo) -> Callable[[str, list[int]], list[int]]:
    """Return a prompt and what a target says after it."""
    known: dict[tuple[str, int], list[int]] = {}

    def of(target: str, prompt: list[int]) -> list[int]:
        key = (target, len(prompt))
        if key not in known:
            with pyspec.Engine(open_zoo(target), context=sizes()) as engine:
                known[key] = [*prompt, *engine.generate(prompt, max_tokens=max(LENGTHS)).tokens]
        return known[key]

    return of


class Played:
    """A table whose drafters are a scripted one and a watched one."""

    def __init__(self, case: Case, n_sequences: int, seed: int, open_zoo: OpenZoo, future: Any) -> None:
        chance = random.Random(seed)  # noqa: S311 - no secret
        self.pair, self.fuse = case.pair, Fuse()
        self._future, self._n_sequences = future, n_sequences
        self.context = pyspec.Context(open_zoo(case.pair.target), sizes(n_sequences, **case.settings))
        self._futures: dict[int, list[int]] = {}
        scripted = Scripted("scripted", self._futures, [chance.choice(MOVES) for _ in range(97)])
        own = case.pair.chain(open_zoo, self.context)
        self.watched = Watched(own.drafters[0], self.fuse)
        with_fuse(self.context, self.fuse, "decode")
        drafters: list[Drafter] = [scripted, self.watched]
        self.table = ModelTable(self.context, Chain(drafters))

    def begin(self, first: int = 0) -> None:
        """Begin requests, those of the prompts from number ``first`` on."""
        self.arm(None)
        order = [(first + i) % len(PROMPTS) for i in range(self._n_sequences)]
        self._futures.update((i, self._future(self.pair.target, PROMPTS[number])) for i, number in enumerate(order))
        self.table.begin([PROMPTS[number] for number in order], [LENGTHS[number] for number in order])

    def arm(self, point: str | None, at: int = 0) -> None:
        """Fail when a point is passed for the next time but ``at``."""
        self.fuse._trigger = (point, self.fuse.counts[str(point)] + at)

    def fails(self, point: str, at: int) -> bool:
        """Play on until it fails at a point; return whether it did before the end."""
        self.arm(point, at)
        try:
            self.table.play()
        except InjectedError:
            return True
        return False

    def check(self, alone: Alone, *, at_least: int = 0) -> None:
        """The target said what it says alone, and so did the drafter, so many times since the last check."""
        self.table.check()
        for seat in self.table.seats:
            expected = self._futures[seat.sequence.seq_id][len(seat.prompt) :]
            assert seat.emitted == expected[: len(seat.emitted)]
        for tokens, budget, draft in self.watched.answers:
            assert draft == alone.draft(tokens)[:budget], f"after {len(tokens)} tokens"
        assert sum(bool(draft) for _tokens, _budget, draft in self.watched.answers) >= at_least
        self.watched.answers.clear()

    def close(self) -> None:
        self.table.chain.close()
        self.context.close()


@pytest.fixture
def played(open_zoo: OpenZoo, future: Any) -> Iterator[Callable[..., Played]]:
    made: list[Played] = []

    def make(case: Case, n_sequences: int, seed: int) -> Played:
        made.append(Played(case, n_sequences, seed, open_zoo, future))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("n_sequences", [1, 3])
def test_drafts_depend_on_the_tokens_only(case: Case, n_sequences: int, played: Any, alone: Any) -> None:
    n_drafted, n_accepted = 0, 0
    for seed in range(2):
        one = played(case, n_sequences, seed)
        one.begin()
        one.table.play()
        one.check(alone(case.pair), at_least=4)
        n_drafted += one.table.chain.stats["scripted"].n_drafted
        n_accepted += one.table.chain.stats["scripted"].n_accepted
    assert 0 < n_accepted < n_drafted


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("n_sequences", [1, 3])
def test_also_after_a_request_that_was_left(case: Case, n_sequences: int, played: Any, alone: Any) -> None:
    one = played(case, n_sequences, 5)
    for first, n_rounds in enumerate((3, 0, 1, 6, None)):
        one.begin(first)
        one.table.play(n_rounds)
        one.check(alone(case.pair), at_least=0 if n_rounds is not None else 4)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("n_sequences", [1, 3])
@pytest.mark.parametrize("then", ["same request", "new request"])
def test_also_after_rounds_that_were_undone(case: Case, n_sequences: int, then: str, played: Any, alone: Any) -> None:
    one = played(case, n_sequences, 11)
    reads_target = case.pair.drafter != "draft-simple"
    for at in range(2):
        for first, point in enumerate(POINTS if reads_target else POINTS[:-2]):
            if then == "new request" or not one.table.running:
                one.begin(first)
            if not one.fails(point, at):
                one.begin(first)
                assert one.fails(point, at)
            one.check(alone(case.pair))
    one.arm(None)
    one.table.play()
    one.begin()
    one.table.play()
    one.check(alone(case.pair), at_least=4)
