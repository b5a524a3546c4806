"""Every drafter on every target of the zoo: the output is that of plain decoding, and everything adds up."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

import pytest

import pyspec
from pyspec.drafters import Chain
from tests.engine.test_engine_native import same_or_tied
from tests.pairs import (
    LONG,
    MEDIUM,
    MODEL_PAIRS,
    N_MAX,
    PAIRS,
    SHORT,
    TARGETS,
    WITH_SNAPSHOTS,
    WITH_STATE,
    WITH_WINDOW,
    ModelTable,
    OpenZoo,
    Pair,
    check_memories,
    check_statistics,
    sizes,
)
from tests.pulled import PulledEngine
from tests.scripted import Move, Scripted

PlainRun = Callable[..., pyspec.Result]
TOP = 5
NEAR = 0.01
MOST_TOKENS = 40
PROMPTS = (LONG, SHORT, MEDIUM, [1, 99, 98, 97], [1, 200, 150, 77, 301, 222])
LENGTHS = (MOST_TOKENS, 24, 33)  # of the first three
FEW_SNAPSHOTS = 2
NEVER_SAID = 7  # <extra_1>, which no target of the zoo says


@pytest.fixture(scope="module")
def plain(open_zoo: OpenZoo) -> PlainRun:
    """Decode without speculation, each run once."""
    known: dict[Any, pyspec.Result] = {}

    def run(target: str, prompt: list[int], max_tokens: int = MOST_TOKENS, **settings: Any) -> pyspec.Result:
        key = (target, tuple(prompt), max_tokens, tuple(settings.items()))
        if key not in known:
            with pyspec.Engine(open_zoo(target), context=sizes(**settings)) as engine:
                known[key] = engine.generate(prompt, max_tokens=max_tokens, n_top=TOP)
        return known[key]

    return run


def same(plain: pyspec.Result, other: pyspec.Result) -> None:
    """Require the output of plain decoding, but for ties, and its logits as near as f16 keys and values allow."""
    same_or_tied(plain, other)
    assert other.tokens != plain.tokens or other.finish is plain.finish
    for i, (token, other_token) in enumerate(zip(plain.tokens, other.tokens, strict=False)):
        if token != other_token:
            break
        ours, theirs = dict(plain.top[i]), dict(other.top[i])
        assert all(abs(ours[token] - theirs[token]) < NEAR for token in ours.keys() & theirs)


class Checks:
    """An observer that looks at the memories after each round."""

    def __init__(self, engine: PulledEngine) -> None:
        self._context, self._chain = engine.context, engine.chain
        self.ways_back: set[str] = set()

    def begin(self, info: Any) -> None: ...
    def end(self, result: Any) -> None: ...
    def round(self, outcome: Any) -> None:
        n_committed = outcome.position + 1 + outcome.n_accepted
        lag = n_committed - self._context.memory.length(0)
        assert (lag > 0) == (outcome.rollback == "replay")
        check_memories(self._context, self._chain, n_committed, lag)
        self.ways_back.add(outcome.rollback)


def alone(pair: Pair, open_zoo: OpenZoo, plain: PlainRun, n_snapshots: int | None = None, **settings: Any) -> set[str]:
    """Generate from a long and a short prompt with one engine; return how it rolled back."""
    speculation = pair.speculation(open_zoo, n_snapshots=n_snapshots)
    with PulledEngine(open_zoo(pair.target), speculation=speculation, context=sizes(**settings)) as engine:
        checks = Checks(engine)
        for prompt in (LONG, SHORT):
            result = engine.generate(prompt, max_tokens=MOST_TOKENS, n_top=TOP, observer=checks)
            same(plain(pair.target, prompt, **settings), result)
            check_statistics([result.stats], result.drafters)
            assert len(result.tokens) == result.stats.n_emitted
            assert result.stats.n_drafted > 0 or not (pair.has_model or prompt is LONG)
            assert result.stats.n_accepted > 0 or not pair.has_model
    return checks.ways_back


def together(pair: Pair, open_zoo: OpenZoo, plain: PlainRun, n_snapshots: int = N_MAX, **settings: Any) -> set[str]:
    """Play three sequences of unequal prompts and lengths together; return how they rolled back."""
    if pair.target in WITH_SNAPSHOTS:
        settings["n_rs_seq"] = n_snapshots
    with pyspec.Context(open_zoo(pair.target), sizes(3, **settings)) as context:
        chain = pair.chain(open_zoo, context)
        try:
            return play_together(ModelTable(context, chain), plain, PROMPTS[:3], LENGTHS)
        finally:
            chain.close()


def play_together(
    table: ModelTable, plain: PlainRun, prompts: SequenceOf[list[int]], lengths: SequenceOf[int], **settings: Any
) -> set[str]:
    target, swa_full = table.context.model.path.stem, table.context.config.swa_full
    table.begin(prompts, lengths, n_top=TOP)
    table.play()
    for seat, max_tokens in zip(table.seats, lengths, strict=True):
        same(plain(target, seat.prompt, max_tokens, swa_full=swa_full, **settings), seat.result)
    check_statistics([seat.result.stats for seat in table.seats], table.chain.stats)
    assert sum(counted.n_drafted for counted in table.chain.stats.values()) > 0
    return {outcome.rollback for outcome in table.outcomes}


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_one_sequence(pair: Pair, open_zoo: OpenZoo, plain: PlainRun) -> None:
    alone(pair, open_zoo, plain)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_three_sequences(pair: Pair, open_zoo: OpenZoo, plain: PlainRun) -> None:
    together(pair, open_zoo, plain)


STATEFUL = [pair for pair in PAIRS if pair.target in WITH_SNAPSHOTS]


@pytest.mark.parametrize("pair", STATEFUL, ids=str)
@pytest.mark.parametrize("n_snapshots", [FEW_SNAPSHOTS, 0])
def test_too_few_snapshots_or_none(pair: Pair, n_snapshots: int, open_zoo: OpenZoo, plain: PlainRun) -> None:
    ways_back = alone(pair, open_zoo, plain, n_snapshots) | together(pair, open_zoo, plain, n_snapshots)
    assert "replay" in ways_back
    if pair.has_model:  # lookups alone are wrong too seldom
        assert ("bounded" in ways_back) == (n_snapshots > 0)


@pytest.mark.parametrize("pair", STATEFUL, ids=str)
def test_enough_snapshots_save_every_replay(pair: Pair, open_zoo: OpenZoo, plain: PlainRun) -> None:
    assert alone(pair, open_zoo, plain) | together(pair, open_zoo, plain, 6) == {"none", "bounded"}


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.target in WITH_WINDOW], ids=str)
def test_a_window_that_keeps_nothing_else(pair: Pair, open_zoo: OpenZoo, plain: PlainRun) -> None:
    """The prompt alone is longer than both windows of the zoo; the output passes twice the window."""
    alone(pair, open_zoo, plain, swa_full=False)
    together(pair, open_zoo, plain, swa_full=False)


@pytest.mark.parametrize("pair", [*MODEL_PAIRS[::6], *STATEFUL[::6]], ids=str)
def test_one_buffer_for_all_sequences(pair: Pair, open_zoo: OpenZoo, plain: PlainRun) -> None:
    together(pair, open_zoo, plain, FEW_SNAPSHOTS, kv_unified=True)


@pytest.mark.parametrize("target", WITH_STATE)
def test_drafts_longer_than_a_physical_batch(target: str, open_zoo: OpenZoo, plain: PlainRun) -> None:
    """The snapshots fit a physical batch, and the drafts are cut to it."""
    pair = Pair(target, "ngram-simple,draft-simple", "draft-llama")
    speculation = pair.speculation(open_zoo, n_max=9)
    with PulledEngine(open_zoo(target), speculation=speculation, context=sizes(n_ubatch=8)) as engine:
        result = engine.generate(LONG, max_tokens=MOST_TOKENS, n_top=TOP, observer=Checks(engine))
    same(plain(target, LONG, n_ubatch=8), result)
    longest = 7 if target in WITH_SNAPSHOTS else 9
    assert len(result.drafters["draft-simple"].drafted_at) == longest


class Kind(NamedTuple):
    """A target whose memory is laid out in some way."""

    target: str
    settings: dict[str, Any]
    n_sequences: int
    n_prompt: int = 1  # at least so many tokens

    def __str__(self) -> str:
        return "-".join([self.target, *(f"{name}={value}" for name, value in self.settings.items())])


WINDOWED = {"swa_full": False, "n_ctx": 960}
KINDS = [
    *(Kind(target, {}, n) for target in TARGETS for n in (1, 3)),
    *(
        Kind(target, {"n_rs_seq": n_snapshots}, n)
        for target in WITH_SNAPSHOTS
        for n_snapshots in (2, 8)
        for n in (1, 3)
    ),
    *(Kind(target, {"n_rs_seq": FEW_SNAPSHOTS, "kv_unified": True}, 5) for target in WITH_SNAPSHOTS),
    *(Kind(target, {**WINDOWED, "kv_unified": unified}, 3, 230) for target in WITH_WINDOW for unified in (False, True)),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind}-{kind.n_sequences}")
def test_drafts_that_are_half_wrong(kind: Kind, open_zoo: OpenZoo, plain: PlainRun) -> None:
    """Here the rejected parts are long and of every length, and the shares of the sequences are unequal.

    llama.cpp rounds a window up to 256 cells, so it takes longer prompts until nothing but the window is kept.
    """
    chance = random.Random(4)  # noqa: S311 - no secret
    prompts = [[1, *(prompt[1:] * (1 + kind.n_prompt // len(prompt)))] for prompt in PROMPTS[: kind.n_sequences]]
    lengths = [MOST_TOKENS - 3 * seq_id for seq_id in range(kind.n_sequences)]
    futures = {}
    for seq_id, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        tokens = plain(kind.target, prompt, length, n_ctx=320, swa_full=kind.settings.get("swa_full", True)).tokens
        assert NEVER_SAID not in tokens
        futures[seq_id] = [*prompt, *tokens]
    moves = [Move(chance.randrange(5), (NEVER_SAID,) * chance.randrange(chance.choice((2, 20)))) for _ in range(53)]
    with pyspec.Context(open_zoo(kind.target), sizes(kind.n_sequences, **kind.settings)) as context:
        table = ModelTable(context, Chain([Scripted("half-wrong", futures, moves)]))
        play_together(table, plain, prompts, lengths, n_ctx=320)
    assert 0.1 < table.chain.stats["half-wrong"].acceptance < 0.6
