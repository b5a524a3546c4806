"""Work that ends when its client leaves, or when its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from pyspec.server.errors import timed_out

T = TypeVar("T")


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def watched(work: Coroutine[Any, Any, T], receive: Receive, seconds: float, is_answered: Callable[[], bool]) -> T:
    """Do work while a client waits for it.

    When this returns or raises, the work has ended; it was cancelled where it had not.

    Args:
        work: What to do.
        receive: ASGI's, with the body already read: what it says next is that the client has left.
        seconds: The most it may take.
        is_answered: Tells whether the client has the whole answer; then it may leave, and the work tidies up.

    Raises:
        ClientGoneError: The client left.
        ApiError: It took too long.
    """
    worker, watcher = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((worker, watcher), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if is_answered():
            await asyncio.wait((worker,))
        if worker.done():
            return worker.result()
        if watcher.done():
            raise ClientGoneError
        raise timed_out(f"The request took longer than {seconds:g} seconds.")
    finally:
        await ended(worker, watcher)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they are over."""
    for task in tasks:
        task.cancel()
    await finished(tasks)


async def finished(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait until tasks are over, whatever they raise; being cancelled meanwhile comes after that."""
    interrupted: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:  # noqa: PERF203 - each time anew
            interrupted = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # somebody has looked at it
    if interrupted is not None:
        raise interrupted
