"""A request is checked beside the event loop, and one that nobody waits for any more never reaches the engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pyspec.config import SamplingConfig
from pyspec.engine import AsyncGeneration
from pyspec.engine.admission import Admitted
from pyspec.engine.request import Began, Ended, Event
from pyspec.engine.request import Request as EngineRequest
from pyspec.engine.result import RunInfo
from pyspec.errors import BusyError, ConfigError
from pyspec.speculation import Finish
from tests.fakes import Fuse, cycle_logits
from tests.playing import Seat
from tests.reference import Request


class Desk:
    """Where requests are checked, by a thread that waits until it may go on, and what reaches the engine.

    Attributes:
        go: Lets the checks go on.
        entered: A check has begun.
        submitted: What was handed in.
        wrong: What a check raises.
        full: What handing in raises.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        self.submitted: list[EngineRequest] = []
        self.cancelled: list[EngineRequest] = []
        self.wrong: Exception | None = None
        self.full: Exception | None = None
        self.threads: set[int] = set()
        self.timeout = 100.0

    def admit(self, tell: Callable[[Event], None]) -> Admitted:
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.go.wait(60)
        if self.wrong is not None:
            raise self.wrong
        seat = Seat(Request(cycle_logits([1, 2], 8), 8, prompt=(1, 2), max_tokens=4), 0, Fuse())
        info = RunInfo("model", None, {}, {"seed": 7}, [1, 2])
        request = EngineRequest(seat.sequence, [1, 2], SamplingConfig(), tell)
        request.deadline = request.submitted + self.timeout
        return Admitted(request, info, None)

    def submit(self, request: EngineRequest) -> None:
        if self.full is not None:
            raise self.full
        self.submitted.append(request)
        request.tell(Began(0, 0.0))

    def cancel(self, request: EngineRequest) -> bool:
        self.cancelled.append(request)
        return True

    def stream(self) -> AsyncGeneration:
        return AsyncGeneration(self.admit, self.submit, self.cancel, lambda _token: b"")

    async def is_checking(self) -> None:
        while not self.entered.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.001)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def run(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(play())


def test_the_loop_goes_on_while_a_request_is_checked(desk: Desk) -> None:
    async def play() -> None:
        stream = desk.stream()
        beginning = asyncio.ensure_future(stream.begin())
        await desk.is_checking()  # which this loop could not say if it were the one that checks
        assert (desk.submitted, beginning.done()) == ([], False)
        desk.go.set()
        await beginning
        assert len(desk.submitted) == 1
        assert (stream.result.prompt_tokens, stream.result.seed) == ([1, 2], 7)
        await stream.begin()
        assert len(desk.submitted) == 1
        await stream.aclose()
        assert desk.cancelled == desk.submitted

    run(play)
    assert threading.get_ident() not in desk.threads


@pytest.mark.parametrize("begin", [AsyncGeneration.begin, AsyncGeneration.__anext__, AsyncGeneration.__aenter__])
def test_a_task_that_is_cancelled_meanwhile_leaves_nothing_behind(desk: Desk, begin: Any) -> None:
    async def play() -> None:
        stream = desk.stream()
        task = asyncio.ensure_future(begin(stream))
        await desk.is_checking()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        desk.go.set()
        assert [chunk async for chunk in stream] == []
        assert stream.result.finish is Finish.CANCELLED

    run(play)  # which waits for the thread
    assert (desk.submitted, desk.cancelled) == ([], [])


def test_another_task_may_close_it_meanwhile(desk: Desk) -> None:
    async def play() -> None:
        stream = desk.stream()
        reader = asyncio.ensure_future(stream.__anext__())
        await desk.is_checking()
        with pytest.raises(BusyError, match="Another task"):
            await stream.begin()
        await stream.aclose()
        desk.go.set()
        with pytest.raises(StopAsyncIteration):
            await reader
        assert stream.result.finish is Finish.CANCELLED

    run(play)
    assert (desk.submitted, desk.cancelled) == ([], [])


def test_the_time_it_takes_to_check_a_request_is_its_own(desk: Desk) -> None:
    async def play() -> None:
        desk.timeout = 5.0
        stream = desk.stream()
        beginning = asyncio.ensure_future(stream.begin())
        await desk.is_checking()
        checking = time.perf_counter()
        desk.go.set()
        await beginning
        request = desk.submitted[0]
        assert request.submitted < checking
        assert request.deadline == pytest.approx(request.submitted + 5.0)

    run(play)


def test_what_was_closed_before_it_began_never_begins(desk: Desk) -> None:
    async def play() -> None:
        stream = desk.stream()
        await stream.aclose()
        async with stream:
            assert [chunk async for chunk in stream] == []

    run(play)
    assert not desk.entered.is_set()


@pytest.mark.parametrize("which", ["wrong", "full"])
def test_what_is_wrong_is_raised_where_it_begins(desk: Desk, which: str) -> None:
    async def play() -> None:
        desk.go.set()
        setattr(desk, which, ConfigError("no"))
        stream = desk.stream()
        with pytest.raises(ConfigError):
            async with stream:
                pass
        assert [chunk async for chunk in stream] == []
        assert stream.result.finish is Finish.ERROR

    run(play)
    assert desk.submitted == []


def test_an_error_of_the_engine_comes_with_the_chunks(desk: Desk) -> None:
    async def play() -> None:
        desk.go.set()
        async with desk.stream() as stream:
            desk.submitted[0].tell(Ended(Finish.ERROR, error=ConfigError("later")))
            with pytest.raises(ConfigError, match="later"):
                await stream.__anext__()

    run(play)
