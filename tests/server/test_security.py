"""Who may come in, and how much."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

import pytest

from pyspec.errors import ConfigError
from pyspec.server import ServerSettings, security
from pyspec.server.security import default_hosts
from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import FakeEngine, Script

PATH = "/v1/completions"
HI = {"prompt": "Hi"}


# Keys


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer one"}, 200),
        ({"authorization": "bearer two"}, 200),
        ({"x-api-key": "two"}, 200),
        ({"authorization": "Bearer three"}, 401),
        ({"authorization": "Bearer one two"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "one"}, 401),
        ({"authorization": "Basic one"}, 401),
        ({"authorization": "Bearer \xe9"}, 401),
        ({"x-api-key": ""}, 401),
    ],
)
def test_a_key_is_needed(start: Start, engine: FakeEngine, headers: dict[str, str], status: int) -> None:
    client = start(api_keys=["one", "two"])
    answer = client.send(PATH, HI, headers=headers)
    assert answer.status == status
    if status == 401:
        assert (answer.error["code"], answer.headers["www-authenticate"]) == ("invalid_api_key", "Bearer")
        assert engine.requests == []


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/slots", "/openapi.json", "/v1/models/x"])
def test_only_health_is_for_everybody(start: Start, path: str) -> None:
    client = start(api_keys=["one"])
    assert client.send(path).status == 401
    assert client.send("/health").status == 200


def test_keys_are_compared_in_constant_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every comparison is of digests of one length, and all keys are compared whichever fits."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return hmac.compare_digest(first, second)

    client = start(api_keys=["one", "two", "three"])
    monkeypatch.setattr(security, "hmac", type("Spy", (), {"compare_digest": staticmethod(compare)}))
    for key in ("one", "o", "three", "x" * 5000):
        client.send(PATH, HI, headers={"x-api-key": key})
    assert len(compared) == 12
    assert {len(part) for pair in compared for part in pair} == {32}


def test_keys_are_not_shown() -> None:
    assert "hidden" not in repr(ServerSettings(api_keys=["hidden"]))
    with pytest.raises(ConfigError) as caught:
        ServerSettings(api_keys=["hidden", ""])
    assert "hidden" not in str(caught.value)


# Hosts and origins


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
def test_other_names_are_refused_on_loopback(start: Start, host: str, status: int) -> None:
    client = start(allowed_hosts=default_hosts("127.0.0.1", has_keys=False, more=[]))
    assert client.send(PATH, HI, headers={"host": host}).status == status


def test_which_names_are_let_in() -> None:
    assert default_hosts("localhost", has_keys=False, more=["me"]) == [
        "localhost",
        "127.0.0.1",
        "::1",
        "localhost",
        "me",
    ]
    assert default_hosts("0.0.0.0", has_keys=False, more=[]) is None  # noqa: S104
    assert default_hosts("127.0.0.1", has_keys=True, more=[]) is None
    assert default_hosts("0.0.0.0", has_keys=True, more=["me"]) == ["me"]  # noqa: S104


def test_other_origins_are_shut_out_unless_they_are_let_in(start: Start) -> None:
    origin = {"origin": "https://page.example", "access-control-request-method": "POST"}
    answer = start().send(PATH, HI, headers=origin)
    assert "access-control-allow-origin" not in answer.headers
    assert start().send(PATH, method="OPTIONS", headers=origin).status == 405
    client = start(cors_origins=["https://page.example"], api_keys=["one"])
    preflight = client.send(PATH, method="OPTIONS", headers=origin)
    assert preflight.status == 200  # which has no key
    assert preflight.headers["access-control-allow-origin"] == "https://page.example"
    assert "access-control-allow-credentials" not in preflight.headers
    other = client.send(PATH, HI, headers={"origin": "https://other.example", "x-api-key": "one"})
    assert "access-control-allow-origin" not in other.headers
    refused = client.send(PATH, HI, headers=origin)
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "https://page.example")


# Limits


def test_a_body_that_is_too_long_is_not_read(start: Start, engine: FakeEngine) -> None:
    client = start(max_body_bytes=100)
    assert client.send(PATH, {"prompt": "x" * 50}).status == 200
    whole = client.send(PATH, {"prompt": "x" * 100})
    assert (whole.status, whole.error["code"]) == (413, "body_too_long")
    declared = client.send(PATH, b"{}", headers={"content-type": "application/json", "content-length": "9" * 30})
    assert declared.status == 413
    pieces = client.send(PATH, [b"x" * 60] * 1000, headers={"content-type": "application/json"})
    assert pieces.status == 413
    assert len(engine.requests) == 1


def test_a_body_in_pieces_is_read(client: Client) -> None:
    assert client.send(PATH, [b'{"prom', b'pt": "Hi"}'], headers={"content-type": "application/json"}).status == 200


def test_a_prompt_that_is_too_long_is_refused(start: Start, engine: FakeEngine) -> None:
    client = start(max_prompt_tokens=5)
    assert client.send(PATH, {"prompt": "1234"}).status == 200  # and BOS
    for path, body in (
        (PATH, {"prompt": "12345"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}]}),
    ):
        answer = client.send(path, body)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert len(engine.requests) == 1


def test_only_so_many_requests_at_once(start: Start, engine: FakeEngine) -> None:
    async def play() -> None:
        gate = asyncio.Event()
        engine.script = Script(gate=gate)
        client = start(max_requests=2)
        running = [client.begin(PATH, HI) for _ in range(2)]
        await running[1].until(lambda: len(engine.running) == 2)
        refused = await client.asend(PATH, HI)
        assert (refused.status, refused.error["type"], refused.headers["retry-after"]) == (429, "rate_limit_error", "1")
        for path in ("/health", "/metrics", "/slots"):
            assert (await client.asend(path)).status == 200  # how it is can always be asked
        gate.set()
        for exchange in running:
            await exchange.task
            assert exchange.answer.status == 200
        assert (await client.asend(PATH, HI)).status == 200

    asyncio.run(play())


def test_a_full_queue_is_said(client: Client, engine: FakeEngine) -> None:
    async def play() -> None:
        gate = asyncio.Event()
        engine.script = Script(gate=gate)
        running = [client.begin(PATH, HI) for _ in range(engine.n_slots + engine.n_queue - 1)]
        await running[-1].until(lambda: len(engine.running) == len(running))
        refused = await client.asend(PATH, {"prompt": ["a", "b"]})
        assert (refused.status, refused.error["code"]) == (429, "busy")
        assert len(engine.running) == len(running)  # the half that there was room for is not kept
        gate.set()
        await asyncio.gather(*(exchange.task for exchange in running))
        assert engine.running == set()

    asyncio.run(play())


def test_a_body_that_does_not_come_is_given_up(start: Start) -> None:
    async def play() -> None:
        client = start(body_timeout=0.05)
        exchange = client.begin(PATH, [b'{"pro'], complete=False)
        await exchange.task
        assert (exchange.answer.status, exchange.answer.error["code"]) == (408, "timeout")

    asyncio.run(play())


# Settings


@pytest.mark.parametrize(
    "settings",
    [
        {"aliases": "name"},
        {"api_keys": [""]},
        {"api_keys": [5]},
        {"api_keys": ["a\nb"]},
        {"cors_origins": [None]},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"max_body_bytes": 0},
        {"max_requests": 0},
        {"max_choices": 0},
        {"max_tokens": -1},
        {"slots": 1},
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ServerSettings(**settings)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("::", False),
        ("192.168.1.1", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_what_is_loopback(host: str, expected: bool) -> None:  # noqa: FBT001
    assert security.is_loopback(host) is expected
