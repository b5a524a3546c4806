"""The answer to a request: one JSON object, or server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.types import Send

from pyspec.server.errors import ApiError


def to_json(answer: object) -> bytes:
    """Return an answer as JSON in UTF-8; half of a surrogate pair, which a model can write, becomes "?".

    Raises:
        ValueError: It has a number that JSON has not.
    """
    return json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


class Reply:
    """Sends an answer. Exactly one of ``json``, ``text`` and ``begin`` … ``end`` may be used.

    Args:
        send: ASGI's.

    Attributes:
        started: Whether a status has been sent, so that it cannot be changed any more.
        ended: Whether everything has been sent.
    """

    def __init__(self, send: Send) -> None:
        self.started = False
        self.ended = False
        self._send = send

    async def json(self, answer: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send an object."""
        await self.whole(to_json(answer), "application/json", status, headers)

    async def whole(
        self, body: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send something else in one piece."""
        await self._start(status, {"content-type": media_type, "content-length": str(len(body)), **(headers or {})})
        await self._last(body)

    async def error(self, error: ApiError) -> None:
        """Send an error, as an event where events have begun."""
        if not self.started:
            await self.json(error.to_dict(), error.status, error.headers)
            return
        await self.event(error.to_dict())
        await self.end(done=False)

    async def begin(self) -> None:
        """Begin to send events."""
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        await self._start(200, {**headers, "x-accel-buffering": "no"})  # nginx would collect them

    async def event(self, answer: object) -> None:
        """Send an event."""
        await self._part(b"data: " + to_json(answer) + b"\n\n")

    async def ping(self) -> None:
        """Send a comment, so that nobody on the way takes the connection for dead."""
        await self._part(b": still here\n\n")

    async def end(self, *, done: bool) -> None:
        """End the events, with OpenAI's last one where it is wanted."""
        await self._last(b"data: [DONE]\n\n" if done else b"")

    async def _last(self, data: bytes) -> None:
        self.ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _part(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
