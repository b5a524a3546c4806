"""A generation as coroutines see it; it is checked in a thread, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING

from pyspec.engine.generation import Cancel, Events, Reply, finish_of, leave, when_forgotten
from pyspec.engine.request import Ended, Event, Request
from pyspec.engine.result import Chunk, Result
from pyspec.errors import BusyError, LifetimeError
from pyspec.speculation.ending import Finish

if TYPE_CHECKING:
    from pyspec.engine.admission import Admitted

Admit = Callable[[Callable[[Event], None]], "Admitted"]
"""Checks a request, and gives it who is told of its events; called in a thread."""


class AsyncMailbox(Events):
    """Events on their way from the engine's thread to a coroutine of the loop that makes this.

    Attributes:
        request: Whose events these are; when the loop is closed, nobody wants it any more.
    """

    __slots__ = ("_filled", "_loop", "request")

    def __init__(self) -> None:
        super().__init__()
        self._filled = asyncio.Event()
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            msg = (
                "No event loop is running here; astream and agenerate are for coroutines, stream and generate are not."
            )
            raise LifetimeError(msg) from None
        self.request: Request | None = None

    def require_own_loop(self) -> None:
        """Refuse another loop, which would never hear of what comes.

        Raises:
            LifetimeError: This is not the loop that made the mailbox.
        """
        if asyncio.get_running_loop() is not self._loop:
            msg = "This stream was made in another event loop; ask for its chunks there. Its result has what has come."
            raise LifetimeError(msg)

    def put(self, event: Event) -> None:
        """Add an event, from any thread."""
        self._add(event)
        try:
            self._loop.call_soon_threadsafe(self._filled.set)
        except RuntimeError:  # the loop is closed
            if self.request is not None:
                self.request.cancelled = True
        if isinstance(event, Ended):
            self.request = None  # which refers to this

    async def take(self) -> Event:
        """Return the oldest event; wait for it."""
        while True:
            self._filled.clear()
            event = self._next()
            if event is not None:
                return event
            await self._filled.wait()


class AsyncGeneration(AsyncIterator[Chunk]):
    """What ``Generation`` is, for coroutines. A task that is cancelled while it waits ends the generation.

    It begins with ``begin()``, on entering its ``async with`` block, or when its first chunk is asked for, whichever
    comes first; what is wrong with the request is raised there. All that is in the event loop that made it.

    Args:
        admit: Checks the request.
        submit: Hands it to the engine.
        cancel: Ends it.
        piece: Returns the bytes of a token.

    Attributes:
        result: What there is so far; complete when the iteration ends.
    """

    def __init__(
        self, admit: Admit, submit: Callable[[Request], None], cancel: Cancel, piece: Callable[[int], bytes]
    ) -> None:
        self.result = Result()
        self._mailbox = AsyncMailbox()
        self._admit = admit
        self._submit = submit
        self._cancel = cancel
        self._piece = piece
        self._begun: tuple[Request, Reply] | None = None
        self._forgetting: weakref.finalize[..., object] | None = None
        self._is_over = False  # before it has begun
        self._busy = False

    async def begin(self) -> None:
        """Let the engine begin; what comes is kept until it is asked for. After the first time, nothing happens.

        A task that is cancelled here leaves nothing behind: the engine never hears of the request.

        Raises:
            PyspecError: As in ``Engine.stream``.
        """
        self._enter()
        try:
            await self._begin()
        except BaseException as error:
            self._leave(finish_of(error))
            raise
        finally:
            self._busy = False

    async def __anext__(self) -> Chunk:
        self._enter()
        try:
            reply = await self._begin()
            while reply is not None and not reply.is_over:
                chunk = reply.take(await self._mailbox.take())
                if chunk is not None:
                    return chunk
        except BaseException as error:
            self._leave(finish_of(error))
            raise
        finally:
            self._busy = False
        if self._forgetting is not None:
            self._forgetting.detach()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the generation now; its slot is free within one round. May be called again."""
        self._leave(Finish.CANCELLED)

    async def __aenter__(self) -> AsyncGeneration:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _enter(self) -> None:
        self._mailbox.require_own_loop()
        if self._busy:
            msg = "Another task is waiting for this stream's next chunk."
            raise BusyError(msg)
        self._busy = True

    async def _begin(self) -> Reply | None:
        """Hand the request in, if that has not happened yet; None when nobody wants it any more."""
        if self._begun is None and not self._is_over:
            asked = time.perf_counter()
            request, info, observer = await asyncio.to_thread(self._admit, self._mailbox.put)
            request.came_at(asked)  # the wait for a thread counts too
            if self._is_over:  # another task has closed it meanwhile
                return None
            reply = Reply(request, info, self._piece, observer, self.result)
            self._mailbox.request = request
            self._submit(request)
            self._begun = request, reply
            self._forgetting = when_forgotten(self, request, reply, self._mailbox, self._cancel)
        return None if self._begun is None else self._begun[1]

    def _leave(self, finish: Finish) -> None:
        if self._begun is None:
            self.result.finish = self.result.finish or finish
            self._is_over = True
            return
        if self._forgetting is not None:
            self._forgetting.detach()
        leave(*self._begun, self._mailbox, self._cancel, finish)
