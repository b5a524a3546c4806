"""Many requests share rounds: fairly, without one changing another, and for any length of time."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pyspec
from pyspec import ContextConfig, Finish, SamplingConfig, Speculation
from pyspec._native import handles
from pyspec.config import SamplingConfig as Sampling
from pyspec.drafters import Chain
from pyspec.engine import Drafting, EngineStatus, Generation, SlotState
from pyspec.errors import ContextFullError
from pyspec.speculation.draft import Draft, DraftRequest
from tests.engine.test_engine_native import same_or_tied
from tests.fakes import Decoded, Fuse, HashLogits
from tests.helpers import PROMPT
from tests.pairs import CHAIN_PAIRS, LONG, MEDIUM, SHORT, Pair
from tests.playing import DraftModelSpec, Machine, NgramSpec, Seat, Table
from tests.pulled import PulledEngine
from tests.real_memories import MEMORIES, RealMemory
from tests.reference import Request, plain_decode
from tests.workplace import Place, generation_of, workplace

OpenZoo = Callable[[str], pyspec.Model]


# Fairness


def start(place: Place, request: Request) -> Generation:
    return generation_of(place, Seat(request, 0, Fuse()), Sampling(presence_penalty=1.0))


def request(n_prompt: int, max_tokens: int = 40, first: int = 1) -> Request:
    prompt = (first, *(i % 7 for i in range(n_prompt - 1)))
    return Request(HashLogits(5, 8), 8, prompt, max_tokens=max_tokens, n_ctx=200)


def shares(decoded: Decoded) -> dict[int, int]:
    """Return the entries of each sequence in a decode."""
    found: dict[int, int] = {}
    for (seq_id,) in decoded.seq_ids:
        found[seq_id] = found.get(seq_id, 0) + 1
    return found


def table(n_slots: int, drafters: Sequence[Any] = ()) -> Table:
    first = request(1)
    return Table([first], drafters, machine=Machine(n_batch=64, n_ubatch=32, n_outputs_max=64, n_seq_max=n_slots))


def test_a_long_prompt_is_read_beside_those_who_speak() -> None:
    played = table(3)
    place = workplace(played, n_prefill=4)
    speaking = [start(place, request(3, first=i)) for i in (1, 2)]
    place.scheduler.step()
    before = len(played.target.decodes)
    late = start(place, request(41, max_tokens=3, first=6))
    for _ in range(11):
        place.scheduler.step()
    rounds = played.target.decodes[before:]
    assert len(rounds) == 11, "all of a round are in one decode"
    assert [shares(each) for each in rounds[:10]] == [{0: 1, 1: 1, 2: 4}] * 10
    for each in speaking:
        each.close()
        assert len(each.result.tokens) >= 12
    list(late)
    assert tuple(late.result.tokens) == plain_decode(request(41, max_tokens=3, first=6)).tokens


def test_alone_a_prompt_fills_physical_batches() -> None:
    played = table(2)
    place = workplace(played, n_prefill=4)
    list(start(place, request(100, max_tokens=1)))
    assert [len(each.tokens) for each in played.target.decodes] == [32, 32, 32, 4]


def test_prompts_share_what_is_left_of_a_round() -> None:
    played = table(4)
    place = workplace(played, n_prefill=9)
    first = start(place, request(3, first=5))
    place.scheduler.step()
    lengths = {1: 10, 2: 31, 3: 51}
    others = [start(place, request(length, max_tokens=2)) for length in lengths.values()]
    before = len(played.target.decodes)
    while any(each.result.finish is None for each in others) and place.busy:
        place.scheduler.step()
        for each in others:
            if not each._mailbox._events and each._mailbox._last is None:
                continue
            for event in list(each._mailbox.rest()):
                each._reply.take(event)
    rounds = [shares(each) for each in played.target.decodes[before:]]
    assert rounds[0] == {0: 1, 1: 9, 2: 9, 3: 9}  # three wait for one
    assert all(each.get(0) == 1 for each in rounds)
    assert max(sum(each.values()) for each in rounds) <= 1 + 3 * 9 + 3
    for slot in (2, 3):
        pieces = [each.get(slot, 0) for each in rounds if slot in each]
        assert sum(pieces) == lengths[slot] + 1  # its prompt, and the token after it
    first.close()


class Counting:
    """A drafter that counts its calls."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self.calls: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        self.calls.append(len(requests))
        drafts: Sequence[Draft] = self._drafter.draft(requests)
        return drafts


@pytest.mark.parametrize("n_slots", [1, 2, 4])
def test_drafts_of_all_slots_are_made_together(n_slots: int) -> None:
    played = table(n_slots, [DraftModelSpec(None, n_max=3)])
    counting = Counting(played.chain.drafters[0])
    played.chain = Chain([counting])
    place = workplace(played)
    assert played.draft_target is not None
    running = [start(place, request(4, max_tokens=25)) for _ in range(n_slots)]
    n_rounds = 0
    while place.busy:
        before = len(counting.calls), len(played.draft_target.decodes), len(played.target.decodes)
        place.scheduler.step()
        n_rounds += 1
        assert len(counting.calls) - before[0] <= 1, "one call for all slots"
        if n_rounds > 1:  # the draft model reads prompts one by one
            assert len(played.draft_target.decodes) - before[1] <= 3 + 1, "one per draft token, and one to catch up"
        assert len(played.target.decodes) - before[2] <= 1
    assert set(counting.calls) == {n_slots}
    assert n_rounds < 25 / 3  # the draft model is the target itself
    expected = plain_decode(request(4, max_tokens=25)).tokens
    assert all(tuple(token for chunk in each for token in chunk.tokens) == expected for each in running)


def test_who_comes_while_drafts_are_made_joins_the_round() -> None:
    played = table(2, [NgramSpec(12, 1)])  # finds nothing
    late: list[Generation] = []
    comes = request(3, max_tokens=4, first=3)
    place: Any = None

    def news() -> None:
        if not late and len(played.target.decodes) == 3:
            late.append(start(place, comes))

    place = workplace(played, news=news)
    early = start(place, request(3, max_tokens=9))
    while len(played.target.decodes) < 4:
        place.scheduler.step()
    assert set(shares(played.target.decodes[3])) == {0, 1}
    place.settle()
    assert [len(list(each)) for each in (early, *late)] == [9, 4]
    assert tuple(late[0].result.tokens) == plain_decode(comes).tokens


# Together as alone


def mixed(pair: Pair) -> list[dict[str, Any]]:
    """Return what eight requests ask of a pair's drafters."""
    own = pair.drafter
    return [
        {},
        {"drafting": Drafting("none")},
        {"drafting": Drafting("ngram-simple")},
        {"drafting": Drafting(own)},
        {"drafting": Drafting(own, n_max=1)},
        {"drafting": Drafting(n_max=2), "sampling": SamplingConfig(temperature=0.8, seed=3)},
        {"drafting": Drafting(p_min=0.5)},
        {"sampling": SamplingConfig(temperature=1.0, seed=4)},
    ]


def cases() -> list[Any]:
    found = []
    for name, memory in MEMORIES.items():
        pairs = [pair for pair in CHAIN_PAIRS if pair.target == memory.target]
        for i, pair in enumerate(pairs):
            widths = (1, 2, 4, 8) if i == 0 else ((2, 4, 8)[i % 3],)
            found += [pytest.param(memory, pair, n_slots, id=f"{name}-{pair}-{n_slots}") for n_slots in widths]
    return found


PROMPTS = [LONG, SHORT, MEDIUM, LONG[:20], [*MEDIUM, 90, 91], SHORT, [1, 2, 3], LONG]


@pytest.fixture(scope="module")
def alone(open_zoo: OpenZoo) -> Callable[[RealMemory, int, tuple[int, ...], SamplingConfig | None], pyspec.Result]:
    """Return what a request says by itself, without drafts and with nothing in memory."""
    known: dict[Any, pyspec.Result] = {}

    def result(memory: RealMemory, length: int, prompt: tuple[int, ...], sampling: SamplingConfig | None) -> Any:
        key = (memory.target, str(memory.settings), length, prompt, str(sampling))
        if key not in known:
            with memory.engine(open_zoo) as engine:
                known[key] = engine.generate(list(prompt), max_tokens=length, sampling=sampling, n_top=5)
        return known[key]

    return result


@pytest.mark.parametrize(("memory", "pair", "n_slots"), cases())
def test_each_says_what_it_says_alone(
    memory: RealMemory, pair: Pair, n_slots: int, open_zoo: OpenZoo, alone: Any
) -> None:
    speculation = replace(pair.speculation(open_zoo), n_snapshots=0)
    context = memory.sizes(n_slots)
    with PulledEngine(open_zoo(memory.target), speculation=speculation, context=context, n_slots=n_slots) as engine:
        asked = [(prompt, 10 + 2 * i, kind) for i, (prompt, kind) in enumerate(zip(PROMPTS, mixed(pair), strict=True))]
        running = [engine.stream(prompt, max_tokens=length, n_top=5, **kind) for prompt, length, kind in asked]
        for each, (prompt, length, kind) in zip(running, asked, strict=True):
            heard = [token for chunk in each for token in chunk.tokens]
            assert heard == each.result.tokens
            same_or_tied(alone(memory, length, tuple(prompt), kind.get("sampling")), each.result)
            drafting = kind.get("drafting", Drafting())
            for name, stats in each.result.drafters.items():
                assert drafting.allows(name) or stats.n_asked == 0
                assert drafting.n_max is None or len(stats.drafted_at) <= drafting.n_max
        totals = engine.place.scheduler.totals
        assert totals.n_emitted_tokens == sum(len(each.result.tokens) for each in running)
        assert totals.n_requests == len(running)
        assert sum(stats.n_drafted for stats in engine.chain.stats.values()) > 0


# For a long time


def resident() -> int:
    """Return the bytes that this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


N_MOST = 12
SAMPLINGS = (None, SamplingConfig(temperature=1.0, seed=2))
ASKED = [LONG[: 5 + 3 * i] for i in range(8)] + [[1, 60 + i, 75] for i in range(8)]
DRAFTING = (Drafting(), Drafting("none"), Drafting("ngram-simple"), Drafting(n_max=1))


class Clients:
    """Threads that ask an engine for random things, and know what it has to say."""

    def __init__(self, engine: pyspec.Engine, plain: pyspec.Engine) -> None:
        self.engine = engine
        self.results: list[pyspec.Result] = []
        self.errors: list[BaseException] = []
        self._expected = {
            (i, j): plain.generate(prompt, max_tokens=N_MOST, sampling=sampling).tokens
            for i, prompt in enumerate(ASKED)
            for j, sampling in enumerate(SAMPLINGS)
        }

    def ask(self, n_requests: int, seed: int) -> tuple[int, int]:
        """Ask from five threads; return the bytes and the native objects of this process after it."""
        threads = [threading.Thread(target=self._run, args=(n_requests // 5, seed + i)) for i in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        # The last round is remembered; this one has no native sampler.
        self.results.append(self.engine.generate(PROMPT, max_tokens=1))
        gc.collect()
        return resident(), len(handles._open)

    def _run(self, n_requests: int, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - no secret
        try:
            for _ in range(n_requests):
                self._ask_one(chance)
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            self.errors.append(error)

    def _ask_one(self, chance: random.Random) -> None:
        i, j = chance.randrange(len(ASKED)), chance.randrange(len(SAMPLINGS))
        length, leaves, expected = chance.randrange(N_MOST + 1), chance.random() < 0.2, self._expected[i, j]
        drafting = chance.choice(DRAFTING)
        stream = self.engine.stream(ASKED[i], max_tokens=length, sampling=SAMPLINGS[j], drafting=drafting)
        said: list[int] = []
        while not (leaves and chance.random() < 0.3) and (chunk := next(stream, None)):
            said += chunk.tokens
        stream.close()
        result = stream.result
        assert said == expected[: len(said)]
        assert result.tokens == expected[: len(result.tokens)]
        assert result.tokens[: len(said)] == said
        assert len(result.tokens) == length or (leaves and result.finish is Finish.CANCELLED)
        self.results.append(result)


def test_five_hundred_requests_some_of_which_leave(target: pyspec.Model, open_zoo: OpenZoo) -> None:
    options = {"ngram-simple": {"size_n": 2, "size_m": 6}}
    speculation = Speculation("ngram-simple,draft-simple", open_zoo("draft-llama"), options)
    config = ContextConfig(n_ctx=4 * 128, n_batch=64, n_ubatch=16, n_threads=1)
    with pyspec.Engine(target, speculation=speculation, context=config, n_slots=4, cache_bytes=1 << 18) as engine:
        with pyspec.Engine(target, context=replace(config, n_ctx=128)) as plain:
            clients = Clients(engine, plain)
        before, after = clients.ask(150, seed=1), clients.ask(350, seed=100)
        assert after[1] == before[1], "native objects"
        assert after[0] - before[0] < 4 << 20, "bytes"
        status, results = engine.status(), clients.results
        assert all(slot.state is SlotState.IDLE for slot in status.slots)
        assert engine._worker._n_open == 0
    check_totals(status, results)
    assert len(results) == 502
    assert 20 < sum(result.finish is Finish.CANCELLED for result in results) < 150


def check_totals(status: EngineStatus, results: Sequence[pyspec.Result]) -> None:
    """What the engine has counted is what its requests have counted."""
    assert (status.n_requests, status.n_running, status.n_waiting) == (len(results), 0, 0)
    assert status.n_emitted_tokens == sum(len(result.tokens) for result in results)
    assert status.n_rounds == sum(result.stats.n_rounds for result in results)
    assert status.n_prompt_tokens >= sum(len(result.prompt_tokens) for result in results if result.tokens)
    assert status.n_reused_tokens == sum(result.stats.n_reused for result in results) > 0
    for name, stats in status.drafters.items():
        each = [result.drafters[name] for result in results if result.drafters]
        assert stats.n_drafted == sum(counted.n_drafted for counted in each) > 0
        assert stats.n_accepted == sum(counted.n_accepted for counted in each)


# One buffer for all slots


def unified(open_zoo: OpenZoo, n_slots: int, n_ctx: int = 256, **settings: Any) -> PulledEngine:
    context = ContextConfig(n_ctx=n_ctx, n_batch=64, n_ubatch=16, n_threads=1, kv_unified=True)
    return PulledEngine(open_zoo("target-llama"), context=context, n_slots=n_slots, **settings)


def test_idle_slots_make_room_in_a_shared_buffer(open_zoo: OpenZoo) -> None:
    prompts = [[1, *range(first, first + 150)] for first in (10, 60, 120)]
    with unified(open_zoo, 1) as plain:
        expected = [plain.generate(prompt, max_tokens=60, n_top=5) for prompt in prompts]
    with unified(open_zoo, 3) as engine:
        for prompt, wanted in zip([*prompts, *prompts], [*expected, *expected], strict=True):
            same_or_tied(wanted, engine.generate(prompt, max_tokens=60, n_top=5))
        # What is left idle goes one after the other, the oldest first, and only as far as room is wanted.
        assert sorted(slot.n_held for slot in engine.place.scheduler.slots) == [0, 0, 210]


def test_where_no_room_can_be_made_one_request_fails_and_the_others_go_on(open_zoo: OpenZoo) -> None:
    prompts = [[1, *range(first, first + 100)] for first in (10, 60)]
    with unified(open_zoo, 1) as plain:
        expected = [plain.generate(prompt, max_tokens=120, n_top=5) for prompt in prompts]
    with unified(open_zoo, 2) as engine:
        running = [engine.stream(prompt, max_tokens=120, n_top=5) for prompt in prompts]
        n_failed = 0
        for each, wanted in zip(running, expected, strict=True):
            try:
                list(each)
            except ContextFullError:
                n_failed += 1
                assert each.result.tokens == wanted.tokens[: len(each.result.tokens)]
                continue
            same_or_tied(wanted, each.result)
        assert n_failed == 1
        assert len(engine.generate(PROMPT, max_tokens=5).tokens) == 5
