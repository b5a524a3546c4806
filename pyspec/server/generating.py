"""Several generations of one request, followed together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

from pyspec.engine import Chunk, Result, Settings
from pyspec.server.metrics import Meter
from pyspec.server.service import ServedGeneration, Service
from pyspec.server.watching import ended, finished


@dataclass(frozen=True, slots=True)
class Job:
    """What the engine is asked for.

    Attributes:
        prompt: Token ids.
        settings: Keyword arguments of ``Engine.astream``.
    """

    prompt: Sequence[int]
    settings: Settings


class Event(NamedTuple):
    """Something that happened.

    Attributes:
        which: Of the generations.
        chunk: What its round added.
    """

    which: int
    chunk: Chunk


class Generations:
    """Generations that begin and end together: with the ``async with`` block, whatever happens in it.

    Args:
        service: Whose engine works.
        jobs: One for each.

    Raises:
        PyspecError: On entering, what is wrong with one of them; then none of them runs.
    """

    def __init__(self, service: Service, jobs: Sequence[Job]) -> None:
        self._service = service
        self._jobs = jobs
        self._running: list[ServedGeneration] = []
        self._meters: list[Meter] = []

    @property
    def results(self) -> list[Result]:
        """What there is so far, complete when the events have ended."""
        return [generation.result for generation in self._running]

    async def __aenter__(self) -> Generations:
        try:
            for job in self._jobs:
                generation = self._service.engine.astream(job.prompt, **job.settings)
                await generation.begin()
                self._running.append(generation)
                self._meters.append(self._service.metrics.meter())
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        try:
            await finished([asyncio.ensure_future(generation.aclose()) for generation in self._running])
        finally:
            for meter, generation in zip(self._meters, self._running, strict=False):
                meter.end(generation.result)

    async def events(self, idle_seconds: float | None = None) -> AsyncGenerator[Event | None, None]:
        """Follow all of them to their ends.

        Args:
            idle_seconds: Yield None whenever nothing has happened for so long.

        Raises:
            PyspecError: What one of them raises; the others are left as they are.
        """
        happened: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(_follow(i, generation, self._meters[i], happened))
            for i, generation in enumerate(self._running)
        ]
        n_running = len(tasks)
        try:
            while n_running:
                waiting = asyncio.ensure_future(happened.get())
                tasks.append(waiting)
                # wait_for would lose a cancellation that comes together with an item, before Python 3.12.
                while not (await asyncio.wait((waiting,), timeout=idle_seconds))[0]:
                    yield None
                tasks.remove(waiting)
                item = waiting.result()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    n_running -= 1
                else:
                    yield item
        finally:
            await ended(*tasks)


async def _follow(
    index: int, generation: ServedGeneration, meter: Meter, happened: asyncio.Queue[Event | Exception | None]
) -> None:
    """Report what one generation does."""
    try:
        async for chunk in generation:
            meter.count(len(chunk.tokens))
            happened.put_nowait(Event(index, chunk))
    except Exception as error:  # noqa: BLE001 - it is raised where the events are read
        happened.put_nowait(error)
    else:
        happened.put_nowait(None)
