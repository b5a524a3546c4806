"""What a handler is given, and what all that generate have in common."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspec.engine import Chunk, Result
from pyspec.server.answers import FinishReason
from pyspec.server.generating import Event, Generations, Job
from pyspec.server.reply import Reply
from pyspec.server.service import Service
from pyspec.speculation import Finish

T = TypeVar("T")
_IDLE_SECONDS = 15.0  # some proxies give up after 30
_REASONS: dict[Finish, FinishReason] = {
    Finish.EOG: "stop",
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.CONTEXT: "length",
}


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was let in.

    Attributes:
        service: Who serves it.
        body: What it says, checked; None where it says nothing.
        path: Parameters of its path.
        reply: Where the answer goes.
        notes: What its line in the log says besides.
    """

    service: Service
    body: Any
    path: dict[str, str]
    reply: Reply
    notes: MutableMapping[str, Any] = field(default_factory=dict)

    def piece(self, token: int) -> bytes:
        """Return the text of a token, a special one's name included."""
        return self.service.engine.model.vocab.pieces([token], special=True)[0]

    async def computed(self, function: Callable[[Service, Any], T]) -> T:
        """Return what a function makes of the body; it runs in a thread, because it may take its time."""
        return await asyncio.to_thread(function, self.service, self.body)

    @asynccontextmanager
    async def generations(self, jobs: Sequence[Job]) -> AsyncIterator[Generations]:
        """Run jobs, and note what came of them."""
        running = Generations(self.service, jobs)
        try:
            async with running:
                yield running
        finally:
            self._note(running.results)

    def _note(self, results: Sequence[Result]) -> None:
        self.notes["prompt_tokens"] = sum(len(result.prompt_tokens) for result in results)
        self.notes["tokens"] = sum(len(result.tokens) for result in results)
        self.notes["accepted"] = sum(result.stats.n_accepted for result in results)
        self.notes["finish"] = ",".join(str(result.finish or "cancelled") for result in results)

    async def whole(self, running: Generations) -> list[list[Chunk]]:
        """Return all chunks of all generations."""
        chunks: list[list[Chunk]] = [[] for _ in running.results]
        async with aclosing(running.events()) as events:
            async for event in events:
                if event is not None:
                    chunks[event.which].append(event.chunk)
        return chunks

    async def streamed(self, running: Generations) -> AsyncGenerator[Event, None]:
        """Follow the generations, and keep the connection alive while nothing happens. Close it with ``aclosing``."""
        async with aclosing(running.events(_IDLE_SECONDS)) as events:
            async for event in events:
                if event is None:
                    await self.reply.ping()
                else:
                    yield event


def new_id(prefix: str) -> str:
    """Return an id that nobody can guess."""
    return f"{prefix}-{secrets.token_hex(16)}"


def now() -> int:
    """Return seconds since 1970."""
    return int(time.time())


def reason(finish: Finish | None) -> FinishReason | None:
    """Return why a generation ended, in OpenAI's words."""
    return None if finish is None else _REASONS.get(finish, "stop")
