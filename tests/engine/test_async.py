"""An engine in event loops, and many prompts at once."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyspec
from pyspec import ContextConfig, Finish, Speculation
from pyspec.engine import AsyncGeneration
from pyspec.errors import BusyError, ClosedError, ConfigError, DeadlineError, LifetimeError, TokenError
from tests.at_work import Held, idle, prompt
from tests.helpers import PROMPT

OpenZoo = Callable[[str], pyspec.Model]
N = 24


@pytest.fixture(scope="module")
def engine(target: pyspec.Model, open_zoo: OpenZoo) -> Iterator[pyspec.Engine]:
    config = ContextConfig(n_ctx=256 * 3, n_batch=64, n_ubatch=16, n_threads=1)
    speculation = Speculation("draft-simple", open_zoo("draft-llama"))
    with pyspec.Engine(target, speculation=speculation, context=config, n_slots=3, n_queue=60) as made:
        yield made


@pytest.fixture(scope="module")
def expected(engine: pyspec.Engine) -> dict[int, list[int]]:
    """What each prompt is answered with."""
    return {i: engine.generate(prompt(i), max_tokens=N).tokens for i in range(12)}


@pytest.fixture(autouse=True)
def all_idle(engine: pyspec.Engine) -> Iterator[None]:
    yield
    assert idle(engine)
    assert engine._worker._n_open == 0


def test_fifty_at_once(engine: pyspec.Engine, expected: dict[int, list[int]]) -> None:
    async def play() -> list[pyspec.Result]:
        return await asyncio.gather(*(engine.agenerate(prompt(i % 12), max_tokens=N) for i in range(50)))

    for i, result in enumerate(asyncio.run(play())):
        assert (result.tokens, result.finish) == (expected[i % 12], Finish.LENGTH)


def test_the_loop_goes_on_meanwhile(engine: pyspec.Engine) -> None:
    """While the engine's thread stands still, the loop does not."""

    async def play() -> int:
        with Held(engine):
            task = asyncio.ensure_future(engine.agenerate(PROMPT, max_tokens=3))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not task.done()
        return len((await task).tokens)

    assert asyncio.run(play()) == 3


def test_chunks_come_one_by_one(engine: pyspec.Engine, expected: dict[int, list[int]]) -> None:
    async def play() -> tuple[list[Any], pyspec.Result]:
        async with engine.astream(prompt(2), max_tokens=N) as stream:
            return [chunk async for chunk in stream], stream.result

    chunks, result = asyncio.run(play())
    assert [token for chunk in chunks for token in chunk.tokens] == result.tokens == expected[2]
    assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + [Finish.LENGTH]


def test_leaving_early(engine: pyspec.Engine, expected: dict[int, list[int]]) -> None:
    async def play() -> pyspec.Result:
        async with engine.astream(prompt(3)) as stream:
            await anext_of(stream)
        await stream.aclose()
        assert [chunk async for chunk in stream] == []
        return stream.result

    result = asyncio.run(play())
    assert result.finish is Finish.CANCELLED
    n_known = min(N, len(result.tokens))
    assert result.tokens[:n_known] == expected[3][:n_known]


class Watching:
    """An observer that keeps how requests ended."""

    def __init__(self) -> None:
        self.ends: list[Finish | None] = []

    def begin(self, info: Any) -> None: ...
    def round(self, outcome: Any) -> None: ...
    def end(self, result: pyspec.Result) -> None:
        self.ends.append(result.finish)


async def anext_of(stream: AsyncGeneration) -> Any:
    return await stream.__anext__()


def test_a_forgotten_stream_is_ended(engine: pyspec.Engine) -> None:
    async def play() -> pyspec.Result:
        stream = engine.astream(PROMPT)
        await anext_of(stream)
        result = stream.result
        del stream
        assert idle(engine)
        return result

    assert asyncio.run(play()).finish is Finish.CANCELLED


def test_a_cancelled_task_ends_its_request(engine: pyspec.Engine) -> None:
    observer = Watching()

    async def play() -> None:
        with Held(engine):
            tasks = [asyncio.ensure_future(engine.agenerate(prompt(i), observer=observer)) for i in range(5)]
            await handed_in(engine, 5)
            for task in tasks:
                task.cancel()
            for task in tasks:
                with pytest.raises(asyncio.CancelledError) as caught:
                    await task
                partial: Any = caught.value.partial  # type: ignore[attr-defined]
                assert partial.finish is Finish.CANCELLED

    asyncio.run(play())
    assert observer.ends == [Finish.CANCELLED] * 5


def test_one_failure_of_many_leaves_the_others(engine: pyspec.Engine, expected: dict[int, list[int]]) -> None:
    async def play() -> list[Any]:
        wanted: list[Any] = [engine.agenerate(prompt(i), max_tokens=N) for i in range(4)]
        wanted += [engine.agenerate([999]), engine.agenerate(PROMPT, timeout=0)]
        return await asyncio.gather(*wanted, return_exceptions=True)

    *right, wrong, late = asyncio.run(play())
    assert [result.tokens for result in right] == [expected[i] for i in range(4)]
    assert isinstance(wrong, TokenError)
    assert isinstance(late, DeadlineError)


def test_two_loops_in_two_threads(engine: pyspec.Engine, expected: dict[int, list[int]]) -> None:
    async def play(which: int) -> list[pyspec.Result]:
        return await asyncio.gather(*(engine.agenerate(prompt(i), max_tokens=N) for i in range(which, 12, 2)))

    found: dict[int, list[pyspec.Result]] = {}
    threads = [
        threading.Thread(target=lambda which=which: found.update({which: asyncio.run(play(which))})) for which in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for which in (0, 1):
        assert [result.tokens for result in found[which]] == [expected[i] for i in range(which, 12, 2)]


def test_when_the_loop_is_closed_nobody_wants_it_any_more(engine: pyspec.Engine) -> None:
    kept: list[AsyncGeneration] = []

    async def play() -> None:
        kept.append(engine.astream(PROMPT))
        await anext_of(kept[0])

    asyncio.run(play())
    while not idle(engine):  # at its next round
        pass
    assert kept[0]._begun is not None
    request, _ = kept[0]._begun
    assert len(request.sequence.history) < 256
    assert request.cancelled


def test_a_loop_is_needed(engine: pyspec.Engine) -> None:
    with pytest.raises(RuntimeError, match="No event loop is running"):
        engine.astream(PROMPT)


def test_one_stream_may_have_one_reader(engine: pyspec.Engine) -> None:
    async def play() -> int:
        with Held(engine):
            stream = engine.astream(PROMPT, max_tokens=4)
            first = asyncio.ensure_future(collect(stream))
            await asyncio.sleep(0)
            with pytest.raises(BusyError, match="Another task"):
                await anext_of(stream)
        return len(await first)

    assert asyncio.run(play()) == 4


async def handed_in(engine: pyspec.Engine, n: int) -> None:
    """Wait until so many requests are open."""
    while engine._worker._n_open < n:  # noqa: ASYNC110 - nobody would set an event
        await asyncio.sleep(0.001)


async def collect(stream: AsyncGeneration) -> list[int]:
    return [token async for chunk in stream for token in chunk.tokens]


def test_another_task_may_close_what_one_iterates_over(engine: pyspec.Engine) -> None:
    observer = Watching()

    async def play() -> tuple[list[int], pyspec.Result]:
        with Held(engine):
            stream = engine.astream(PROMPT, observer=observer)
            reader = asyncio.ensure_future(collect(stream))
            await handed_in(engine, 1)
            await stream.aclose()
        return await reader, stream.result

    heard, result = asyncio.run(play())
    assert (heard, result.tokens, result.finish) == ([], [], Finish.CANCELLED)
    assert observer.ends == [Finish.CANCELLED]


def test_closing_an_engine_ends_what_a_loop_waits_for(target: pyspec.Model) -> None:
    async def play() -> list[Finish | None]:
        engine = pyspec.Engine(target, context=ContextConfig(n_ctx=256, n_threads=1))
        with Held(engine):
            tasks = [asyncio.ensure_future(engine.agenerate(PROMPT)) for _ in range(3)]
            await handed_in(engine, 3)
            closing = asyncio.ensure_future(asyncio.to_thread(engine.close))
            while not engine._worker._stopping:  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(0)
        await closing
        with pytest.raises(ClosedError):
            await engine.agenerate(PROMPT)
        return [(await task).finish for task in tasks]

    assert asyncio.run(play()) == [Finish.CANCELLED] * 3


# generate_many


def test_answers_come_in_the_order_of_the_prompts(engine: pyspec.Engine, expected: dict[int, list[int]]) -> None:
    order = [5, 1, 1, 11, 0, 7, 3, 9, 2, 5]
    assert [r.tokens for r in engine.generate_many([prompt(i) for i in order], max_tokens=N)] == [
        expected[i] for i in order
    ]
    assert engine.generate_many([]) == []


def test_prompts_are_taken_when_there_is_room(engine: pyspec.Engine) -> None:
    most_open = 0
    taken: list[int] = []

    def endless() -> Iterator[list[int]]:
        nonlocal most_open
        for i in range(30):
            most_open = max(most_open, engine._worker._n_open)
            taken.append(i)
            yield prompt(i % 12)

    assert len(engine.generate_many(endless(), max_tokens=3)) == 30
    assert most_open <= 2 * engine.n_slots
    assert taken == list(range(30))


def test_an_error_in_the_middle_keeps_what_there_is(engine: pyspec.Engine, expected: dict[int, list[int]]) -> None:
    prompts: list[list[int]] = [*(prompt(i) for i in range(8)), [999], *(prompt(i) for i in range(5))]
    with pytest.raises(TokenError) as caught:
        engine.generate_many(prompts, max_tokens=N)
    assert caught.value.prompt_index == 8  # type: ignore[attr-defined]
    partial: Any = caught.value.partial
    assert 2 <= len(partial) <= 8
    for i, result in enumerate(partial):
        assert result.tokens == expected[i][: len(result.tokens)]
        assert result.finish in (Finish.LENGTH, Finish.CANCELLED)
    assert [len(result.tokens) for result in partial[:2]] == [N, N]


def test_an_error_of_one_request_ends_the_others(engine: pyspec.Engine) -> None:
    class Failing:
        n_seen = 0

        def begin(self, info: Any) -> None: ...
        def end(self, result: Any) -> None: ...
        def round(self, outcome: Any) -> None:
            self.n_seen += outcome.finish is None  # any request may have the 40th one
            if outcome.finish is None and self.n_seen == 40:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        engine.generate_many([prompt(i) for i in range(12)], max_tokens=N, observer=Failing())
    partial: Any = caught.value.partial  # type: ignore[attr-defined]
    assert [result.finish for result in partial].count(Finish.ERROR) == 1
    assert partial[caught.value.prompt_index].finish is Finish.ERROR  # type: ignore[attr-defined]
    assert all(result.finish is not None for result in partial)


def test_an_error_of_the_prompts_themselves(engine: pyspec.Engine) -> None:
    def broken() -> Iterator[list[int]]:
        yield prompt(1)
        raise ConfigError

    with pytest.raises(ConfigError) as caught:
        engine.generate_many(broken(), max_tokens=2)
    partial: Any = caught.value.partial
    assert len(partial) == 1
    assert not hasattr(caught.value, "prompt_index")


def test_others_may_fill_the_queue(target: pyspec.Model) -> None:
    config = ContextConfig(n_ctx=512, n_threads=1)
    with pyspec.Engine(target, context=config, n_slots=2, n_queue=1) as small:
        with Held(small):
            others = [small.stream(PROMPT, max_tokens=60) for _ in range(2)]
            answers: list[pyspec.Result] = []
            thread = threading.Thread(
                target=lambda: answers.extend(small.generate_many([prompt(i) for i in range(5)], max_tokens=3))
            )
            thread.start()
            while small._worker._n_open < 3:
                pass
        thread.join()
        assert [len(answer.tokens) for answer in answers] == [3] * 5
        for other in others:
            other.close()


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "progress", "shows"), [
    (Terminal, None, True),
    (io.StringIO, None, False),
    (Terminal, False, False),
    (io.StringIO, True, True),
])  # fmt: skip
def test_progress_is_shown_on_terminals(
    engine: pyspec.Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stream: type[io.StringIO],
    progress: bool | None,  # noqa: FBT001 - a parameter of the test
    shows: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream())
    engine.generate_many([prompt(i) for i in range(7)], max_tokens=2, progress=progress)
    written: Any = sys.stderr
    assert ("7/7" in written.getvalue()) == shows
    assert shows or written.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_progress_must_be_a_bool(engine: pyspec.Engine) -> None:
    with pytest.raises(ConfigError, match="progress"):
        engine.generate_many([], progress=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("n_read", [None, 0, 2])
def test_another_event_loop_is_refused(engine: pyspec.Engine, n_read: int | None) -> None:
    made: list[AsyncGeneration] = []

    async def make() -> None:
        made.append(engine.astream(prompt(1), max_tokens=N))
        if n_read is not None:
            await made[0].begin()
        for _ in range(n_read or 0):
            await made[0].__anext__()

    async def read() -> None:
        for call in (made[0].begin, made[0].__anext__):
            with pytest.raises(LifetimeError, match="another event loop"):
                await call()
        await made[0].aclose()

    asyncio.run(make())
    asyncio.run(read())
    assert len(made[0].result.tokens) >= (n_read or 0)
    assert engine.generate(prompt(1), max_tokens=3).tokens
