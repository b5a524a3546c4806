"""The engine's thread: many callers, leaving early, deadlines, calls, and decodes that fail."""

from __future__ import annotations

import gc
import itertools
import threading
from typing import Any

import pytest

import pyspec
from pyspec import Finish
from pyspec.engine import SlotState
from pyspec.engine.worker import Workshop
from pyspec.errors import BusyError, DeadlineError, DecodeError, OutOfMemoryError, SpeculationError
from tests.at_work import Held, idle, in_threads, prompt
from tests.engine.conftest import Make
from tests.helpers import PROMPT
from tests.real_memories import NEVER_SAID

REPEATING = [1, *([60, 75, 112, 264, 300, 91, 130] * 5)]
LONG = [1, *(20 + i % 90 for i in range(200))]


# Callers


def test_threads_share_an_engine(make: Make) -> None:
    alone, shared = make("draft-simple", 1), make("draft-simple", 3)
    expected = [alone.generate(prompt(i), max_tokens=20 + i).tokens for i in range(12)]

    def ask(i: int) -> list[int]:
        if i % 2:
            return shared.generate(prompt(i), max_tokens=20 + i).tokens
        return [token for chunk in shared.stream(prompt(i), max_tokens=20 + i) for token in chunk.tokens]

    assert in_threads(12, ask) == expected
    assert idle(shared)


def test_a_thread_that_the_system_does_not_give(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OutOfMemoryError, match="The engine's thread cannot be started: can't start new thread"):
        make()


def test_one_stream_may_have_one_reader(make: Make) -> None:
    engine = make()
    with Held(engine):
        stream = engine.stream(PROMPT, max_tokens=3)
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.extend(stream))
        reader.start()
        while stream._turn.acquire(blocking=False):  # it has not begun to wait
            stream._turn.release()
        with pytest.raises(BusyError, match="Another thread"):
            next(stream)
    reader.join()
    assert len(found) == 3


def test_the_queue_is_bounded(make: Make) -> None:
    engine = make(n_slots=2, n_queue=3)
    with Held(engine):
        streams = [engine.stream(prompt(i), max_tokens=2) for i in range(5)]
        with pytest.raises(BusyError, match="5 requests"):
            engine.stream(PROMPT)
    assert [len(list(stream)) for stream in streams] == [2] * 5
    assert len(engine.generate(PROMPT, max_tokens=2).tokens) == 2


def test_a_request_that_is_refused_takes_no_place(make: Make) -> None:
    engine = make(n_slots=1, n_queue=0)
    for _ in range(3):
        with pytest.raises(pyspec.errors.ConfigError):
            engine.stream(PROMPT, max_tokens=-1)
        assert len(engine.generate(PROMPT, max_tokens=2).tokens) == 2


# Leaving


def test_a_forgotten_stream_frees_its_slot(make: Make) -> None:
    engine = make(n_slots=1)
    with Held(engine):
        stream = engine.stream(PROMPT)
        del stream
        gc.collect()
        waiting = engine.stream(PROMPT, max_tokens=2)
    assert len(list(waiting)) == 2
    status = engine.status()
    assert (status.n_emitted_tokens, status.n_requests) == (2, 2)


def test_a_forgotten_stream_that_runs_frees_its_slot(make: Make) -> None:
    engine = make(n_slots=1)
    stream = engine.stream(PROMPT)
    next(stream)
    waiting = engine.stream(PROMPT, max_tokens=2)
    with Held(engine) as held:
        del stream
        gc.collect()
    assert len(list(waiting)) == 2
    assert engine.status().n_emitted_tokens == held.n_emitted_tokens + 2  # not one more for the forgotten one


def test_another_thread_may_close_what_one_iterates_over(make: Make) -> None:
    engine = make(n_slots=1)
    for _ in range(20):
        stream = engine.stream(PROMPT)
        first = threading.Event()
        read: list[int] = []

        def iterate(stream: Any = stream, first: threading.Event = first, read: list[int] = read) -> None:
            for chunk in stream:
                read += chunk.tokens
                first.set()

        reader = threading.Thread(target=iterate)
        reader.start()
        first.wait()
        stream.close()
        reader.join()
        assert stream.result.finish in (Finish.CANCELLED, Finish.CONTEXT)
        assert stream.result.tokens[: len(read)] == read
        assert len(stream.result.sources) == len(stream.result.tokens)
    assert idle(engine)


def test_closing_while_another_thread_waits_for_the_first_chunk(make: Make) -> None:
    engine = make(n_slots=1)
    with Held(engine):
        stream = engine.stream(PROMPT)
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.extend(stream))
        reader.start()
        closer = threading.Thread(target=stream.close)
        closer.start()
    reader.join()
    closer.join()
    assert stream.result.finish is Finish.CANCELLED
    assert idle(engine)


def test_a_request_that_waits_can_be_cancelled(make: Make) -> None:
    engine = make(n_slots=1)
    running = engine.stream(PROMPT, max_tokens=30)
    waiting = engine.stream(PROMPT)
    waiting.close()
    assert (waiting.result.finish, waiting.result.tokens) == (Finish.CANCELLED, [])
    assert len([token for chunk in running for token in chunk.tokens]) == 30


# Deadlines and priorities


def test_no_time_at_all(make: Make) -> None:
    with pytest.raises(DeadlineError, match="had 0 seconds") as caught:
        make().generate(PROMPT, timeout=0)
    partial: Any = caught.value.partial
    assert (partial.tokens, partial.finish, partial.prompt_tokens) == ([], Finish.CANCELLED, PROMPT)


def test_a_deadline_while_it_waits(make: Make) -> None:
    engine = make(n_slots=1)
    running = engine.stream(PROMPT, max_tokens=40)
    with pytest.raises(DeadlineError):
        engine.generate(PROMPT, timeout=0)
    assert len([token for chunk in running for token in chunk.tokens]) == 40


def test_a_deadline_while_it_runs(make: Make) -> None:
    engine = make(n_slots=1)
    expected = engine.generate(PROMPT, max_tokens=200).tokens
    stream = engine.stream(PROMPT, max_tokens=200, timeout=1000)
    chunks = [next(stream), next(stream)]
    with Held(engine):
        stream._request.deadline = 0.0
    with pytest.raises(DeadlineError, match="has not ended"):
        chunks += stream
    tokens = [token for chunk in chunks for token in chunk.tokens]
    assert stream.result.tokens == tokens == expected[: len(tokens)]
    assert idle(engine)


def test_lower_priorities_go_first_and_equals_in_their_order(make: Make) -> None:
    engine = make(n_slots=1)
    began: list[int] = []

    with Held(engine):
        streams = {i: engine.stream(prompt(i), max_tokens=1, priority=p) for i, p in enumerate((0, 5, -3, 0, -3))}
        for i, stream in streams.items():
            told = stream._request.tell

            def tell(event: Any, i: int = i, told: Any = told) -> None:
                if isinstance(event, pyspec.engine.request.Began):
                    began.append(i)
                told(event)

            stream._request.tell = tell
    for stream in streams.values():
        list(stream)
    assert began == [2, 4, 0, 3, 1]


# Calls


def test_calls_run_between_rounds(make: Make) -> None:
    engine = make()
    stream = engine.stream(PROMPT)
    next(stream)

    def look(workshop: Workshop) -> bool:
        (slot,) = workshop.scheduler.running
        sequence: Any = slot.request.sequence  # type: ignore[union-attr]
        held = workshop.context.memory.length(slot.seq_id)
        return workshop.scheduler.playing == () and held == sequence.n_committed - sequence.lag

    assert all(engine.call(look) for _ in range(50) if not stream.result.finish)
    stream.close()
    assert engine.call(lambda workshop: engine.call(lambda other: other is workshop))


class Raising:
    """A function that raises."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def __call__(self, _workshop: Workshop) -> None:
        raise self._error


def test_an_error_in_a_call_is_the_callers(make: Make) -> None:
    engine = make()
    stream = engine.stream(PROMPT, max_tokens=20)
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            engine.call(Raising(error))
    assert len([token for chunk in stream for token in chunk.tokens]) == 20


def test_a_function_of_the_engine_cannot_wait_for_it(make: Make) -> None:
    engine = make()
    with pytest.raises(BusyError, match="cannot wait"):
        engine.call(lambda _workshop: engine.generate(PROMPT))
    stream = engine.stream(PROMPT)
    engine.call(lambda _workshop: stream.close())
    assert idle(engine)


def test_status_is_a_snapshot_that_adds_up(make: Make) -> None:
    engine = make("ngram-simple", n_slots=3)
    over = threading.Event()
    seen: list[pyspec.engine.EngineStatus] = []

    def watch() -> None:
        while not over.is_set():
            seen.append(engine.status())

    watcher = threading.Thread(target=watch)
    watcher.start()
    results = in_threads(12, lambda i: engine.generate(REPEATING[: 20 + i], max_tokens=30))
    over.set()
    watcher.join()
    for status in seen:
        assert status.n_running == sum(slot.state is not SlotState.IDLE for slot in status.slots) <= 3
        assert 0 <= status.n_waiting <= 12
        assert 0 <= status.n_reused_tokens <= status.n_prompt_tokens
    for before, after in itertools.pairwise(seen):
        assert before.n_emitted_tokens <= after.n_emitted_tokens
        assert before.drafters["ngram-simple"].n_asked <= after.drafters["ngram-simple"].n_asked
    last = engine.status()
    assert last.n_requests == 12
    assert last.n_prompt_tokens == sum(len(result.prompt_tokens) for result in results)
    assert last.n_reused_tokens == sum(result.stats.n_reused for result in results)
    assert last.n_emitted_tokens == sum(len(result.tokens) for result in results)
    assert last.n_rounds == sum(result.stats.n_rounds for result in results)
    drafted = last.drafters["ngram-simple"]
    assert drafted.n_drafted == sum(result.stats.n_drafted for result in results) > 0
    assert drafted.n_accepted == sum(result.stats.n_accepted for result in results)
    engine.generate(REPEATING, max_tokens=30)
    assert (
        drafted.n_drafted
        == last.drafters["ngram-simple"].n_drafted
        < engine.status().drafters["ngram-simple"].n_drafted
    )


# A decode that fails


def test_a_failed_decode_fails_the_requests_in_it_and_no_others(make: Make) -> None:
    engine, alone = make("draft-simple", 3), make("draft-simple", 1)
    expected = {i: alone.generate(prompt(i), max_tokens=24).tokens for i in range(4)}

    def poison(workshop: Workshop) -> None:
        context: Any = workshop.context
        decode = context.decode

        def failing(batch: pyspec.Batch) -> pyspec.Rows:
            rows: pyspec.Rows = decode(batch)
            if NEVER_SAID in batch.tokens:
                msg = "The computation failed."
                raise DecodeError(msg)
            return rows

        context.decode = failing

    engine.call(poison)
    with Held(engine):
        bad = engine.stream([1, 2, NEVER_SAID], max_tokens=8)
        good = {i: engine.stream(prompt(i), max_tokens=24) for i in expected}
    with pytest.raises(DecodeError, match="computation failed"):
        list(bad)
    for i, stream in good.items():
        assert [token for chunk in stream for token in chunk.tokens] == stream.result.tokens == expected[i]
    assert idle(engine)
    assert engine.generate(prompt(0), max_tokens=24).tokens == expected[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("method", ["begin", "draft"])
def test_a_drafter_that_wants_to_end_the_program_ends_its_requests(
    make: Make, error: type[BaseException], method: str
) -> None:
    engine = make("ngram-simple", 2)
    expected = engine.generate(PROMPT, max_tokens=12).tokens

    def raising(*_arguments: object) -> None:
        raise error

    def poison(workshop: Workshop) -> Any:
        drafter: Any = workshop.chain.drafters[0]
        kept = getattr(drafter, method)
        setattr(drafter, method, raising)
        return lambda _workshop: setattr(drafter, method, kept)

    heal = engine.call(poison)
    for _ in range(2):
        with pytest.raises(SpeculationError, match=error.__name__) as caught:
            engine.generate(REPEATING, max_tokens=12)
        assert isinstance(caught.value.__cause__, error)
    engine.call(heal)
    assert engine.generate(PROMPT, max_tokens=12).tokens == expected
    assert idle(engine)
