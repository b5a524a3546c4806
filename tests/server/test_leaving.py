"""Clients that leave, requests that take too long, and a server that is asked to stop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import FakeEngine, Script

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    TEXT: {"prompt": ["a", "b"]},
    NATIVE: {"prompt": "Hi"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_leaves_frees_its_slots(start: Start, engine: FakeEngine, path: str, stream: bool) -> None:  # noqa: FBT001
    async def play() -> None:
        engine.script = Script(gate=asyncio.Event())  # which nobody opens
        client = start()
        exchange = client.begin(path, {**BODIES[path], "stream": stream})
        n_running = 2 if path == TEXT else 1
        await exchange.until(lambda: len(engine.running) == n_running and (exchange.answer.body or not stream))
        exchange.disconnect()
        await exchange.task
        assert engine.running == set()
        assert engine.n_closed == n_running
        assert exchange.answer.status == (200 if stream else 0)
        engine.script = Script()
        assert (await client.asend(path, BODIES[path])).status == 200

    asyncio.run(play())


def test_a_client_that_leaves_before_its_body_has_come(client: Client, engine: FakeEngine) -> None:
    async def play() -> None:
        exchange = client.begin(TEXT, [b'{"prompt'], complete=False)
        exchange.disconnect()
        await exchange.task
        assert (exchange.answer.status, engine.requests) == (0, [])

    asyncio.run(play())


@pytest.mark.parametrize("path", BODIES)
def test_a_request_that_takes_too_long_is_ended(start: Start, engine: FakeEngine, path: str) -> None:
    async def play() -> None:
        engine.script = Script(gate=asyncio.Event())
        client = start(timeout=0.2)
        answer = await client.asend(path, BODIES[path])
        assert (answer.status, answer.error["code"]) == (504, "timeout")
        assert engine.running == set()
        streamed = await client.asend(path, {**BODIES[path], "stream": True})
        assert streamed.status == 200
        assert streamed.events()[-1]["error"]["code"] == "timeout"
        assert b"[DONE]" not in streamed.body
        assert engine.running == set()

    asyncio.run(play())


def test_a_server_that_stops_finishes_what_it_has(client: Client, engine: FakeEngine) -> None:
    async def play() -> None:
        gate = asyncio.Event()
        engine.script = Script(gate=gate)
        exchange = client.begin(TEXT, {"prompt": "Hi"})
        await exchange.until(lambda: engine.running)
        client.app.state.service.stopping = True  # type: ignore[attr-defined]
        refused = await client.asend(TEXT, {"prompt": "Hi"})
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        gate.set()
        await exchange.task
        assert exchange.answer.json()["choices"][0]["text"] == "Hello, world!"

    asyncio.run(play())


def test_a_request_that_the_server_cancels_frees_its_slot(client: Client, engine: FakeEngine) -> None:
    """uvicorn does so when the time for an orderly end is over."""

    async def play() -> None:
        engine.script = Script(gate=asyncio.Event())
        exchange = client.begin(TEXT, {"prompt": "Hi", "stream": True})
        await exchange.until(lambda: exchange.answer.body)
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.task
        assert engine.running == set()

    asyncio.run(play())


def test_a_silent_stream_is_kept_alive(start: Start, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspec.server.calling._IDLE_SECONDS", 0.01)

    async def play() -> None:
        gate = asyncio.Event()
        engine.script = Script(gate=gate)
        exchange = start().begin(TEXT, {"prompt": "Hi", "stream": True})
        await exchange.until(lambda: exchange.answer.body.count(b": still here\n\n") >= 2)
        gate.set()
        await exchange.task
        events = exchange.answer.events()
        assert "".join(event["choices"][0]["text"] for event in events) == "Hello, world!"  # nothing was lost

    asyncio.run(play())


def test_many_requests_at_once_get_their_own_answers(client: Client, engine: FakeEngine) -> None:
    engine.n_queue = 100
    engine.script = lambda request: Script(text=f"for {request.text.removeprefix('<s>')}")

    async def play() -> None:
        answers = await asyncio.gather(
            *(client.asend(TEXT, {"prompt": f"prompt {i}", "stream": bool(i % 2)}) for i in range(50))
        )
        for i, answer in enumerate(answers):
            parts = answer.events() if i % 2 else [answer.json()]
            assert "".join(part["choices"][0]["text"] for part in parts) == f"for prompt {i}"
        assert engine.running == set()

    asyncio.run(play())
