"""Connections that bring nothing, or half a request, are closed: uvicorn would wait for the rest for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

LONGEST_HEAD = 64 << 10  # bytes of a request's line and headers


class ImpatientProtocol(H11Protocol):
    """uvicorn's protocol with a limit on the time from a connection, or from the end of an answer, to a whole head.

    How long a body may take is the endpoint's affair, because by then it is known whose it is.

    Attributes:
        head_timeout: Seconds.
    """

    head_timeout: float

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client has gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request is there."""
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """An answer is complete; the next request may have come already."""
        super().on_response_complete()
        if not self._is_answering:
            self._wait()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self._waiting = self.loop.call_later(self.head_timeout, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def impatient(seconds: float) -> type[ImpatientProtocol]:
    """Return a protocol that waits so long for a head."""
    return type("ImpatientProtocol", (ImpatientProtocol,), {"head_timeout": seconds})
