"""A client inside the process: it calls the application as an HTTP server would, and can leave at any moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

JSON = {"content-type": "application/json"}


@dataclass
class Answer:
    """What came back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error, in OpenAI's form and no other."""
        answer = self.json()
        assert answer.keys() == {"error"}
        assert answer["error"].keys() == {"message", "type", "param", "code"}
        return answer["error"]  # type: ignore[no-any-return]

    def events(self) -> list[Any]:
        """The data of server-sent events, without the last one's ``[DONE]``."""
        assert self.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in self.body.decode().split("\n\n") if line and not line.startswith(":")]
        assert all(line.startswith("data: ") for line in lines)
        data = [line.removeprefix("data: ") for line in lines]
        return [json.loads(text) for text in data if text != "[DONE]"]


class Exchange:
    """One request under way.

    Attributes:
        answer: What has come back so far.
    """

    def __init__(self, app: ASGIApp, scope: dict[str, Any], parts: list[bytes], *, complete: bool = True) -> None:
        self.answer = Answer()
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        for i, part in enumerate(parts):
            more = not complete or i < len(parts) - 1
            self._incoming.put_nowait({"type": "http.request", "body": part, "more_body": more})
        self.task = asyncio.ensure_future(app(scope, self._incoming.get, self._send))

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert not self.answer.status, "a second answer began"
            self.answer.status = message["status"]
            self.answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.answer.body += message.get("body", b"")
            if not message.get("more_body", False):
                self._incoming.put_nowait({"type": "http.disconnect"})

    def disconnect(self) -> None:
        """Leave."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is so, or until the request is over."""
        while not condition() and not self.task.done():  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.001)
        assert condition()


class Client:
    """Sends requests to an application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def scope(self, path: str, method: str, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return what ASGI says about a request."""
        found = {"host": "testserver", **headers}
        return {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in found.items()],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("testserver", 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
        }

    def begin(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        complete: bool = True,
    ) -> Exchange:
        """Begin a request; bytes are sent as they are, a list of bytes piece by piece, all else as JSON."""
        found = {**(JSON if body is not None else {}), **(headers or {})}
        scope = self.scope(path, method or ("GET" if body is None else "POST"), found)
        return Exchange(self.app, scope, _parts(body), complete=complete)

    async def asend(self, path: str, body: object = None, **options: Any) -> Answer:
        """Send a request and return the answer."""
        exchange = self.begin(path, body, **options)
        await exchange.task
        return exchange.answer

    def send(self, path: str, body: object = None, **options: Any) -> Answer:
        """Send a request from outside an event loop."""
        return asyncio.run(self.asend(path, body, **options))


def _parts(body: object) -> list[bytes]:
    if isinstance(body, list) and body and all(isinstance(part, bytes) for part in body):
        return body
    if isinstance(body, bytes):
        return [body]
    return [b"" if body is None else json.dumps(body).encode()]
