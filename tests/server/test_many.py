"""Five hundred requests of all kinds, a fifth of them cancelled at random moments: nothing is lost or mixed up."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.server.asgi import Answer, Client, Exchange
from tests.server.conftest import Start
from tests.server.fakes import FakeEngine, Request, Script
from tests.server.test_status import samples

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
N_REQUESTS, N_AT_ONCE = 500, 40
SHARE_CANCELLED = 0.2


def reversed_prompt(request: Request) -> Script:
    """Say the last word of the prompt backwards."""
    words = request.text.replace("<|im_end|>\n<|im_start|>assistant\n", "").split()
    return Script(text=f"said {words[-1][::-1]}")


def body(rng: random.Random, i: int) -> tuple[str, dict[str, Any], list[str]]:
    """Return a path, a body, and what must come back for each choice."""
    path = rng.choice([CHAT, TEXT, NATIVE])
    n = rng.choice([1, 1, 2]) if path != NATIVE else 1
    limit = rng.choice([0, 1, 5, 100])
    word = f"word{i}"
    fields: dict[str, Any] = {"max_tokens": limit, "stream": rng.random() < 0.5}
    if path == CHAT:
        fields["messages"] = [{"role": "user", "content": f"reverse {word}"}]
    else:
        fields["prompt"] = f"reverse {word}"
    if n > 1:
        fields["n"] = n
    if rng.random() < 0.3:
        fields["speculative"] = {"off": True}
    return path, fields, [f"said {word[::-1]}"[:limit]] * n


def texts(path: str, answer: Answer, n: int) -> list[str]:
    """Return what each choice says."""
    said = [""] * n
    for part in answer.events() if answer.headers["content-type"].startswith("text/event-stream") else [answer.json()]:
        if path == NATIVE:
            said[0] += part["content"]
        for choice in part.get("choices", ()):
            message = choice.get("delta") or choice.get("message") or choice
            said[choice["index"]] += message.get("content") or message.get("text") or ""
    return said


def test_nothing_is_lost_or_mixed_up(start: Start, engine: FakeEngine) -> None:
    engine.script, engine.n_queue = reversed_prompt, 2 * N_AT_ONCE
    client, rng = start(), random.Random(5)  # noqa: S311 - the same in each run
    n_asked = {"whole": 0, "left": 0}

    async def one(i: int) -> None:
        path, fields, expected = body(rng, i)
        exchange = client.begin(path, fields)
        if rng.random() < SHARE_CANCELLED:
            n_asked["left"] += 1
            await leave(exchange, rng.randrange(12))
            return
        await exchange.task
        assert exchange.answer.status == 200, exchange.answer.body
        assert texts(path, exchange.answer, len(expected)) == expected
        n_asked["whole"] += 1

    async def leave(exchange: Exchange, n_turns: int) -> None:
        for _ in range(n_turns):
            await asyncio.sleep(0)
        exchange.disconnect()
        await exchange.task

    async def play() -> None:
        for first in range(0, N_REQUESTS, N_AT_ONCE):
            await asyncio.gather(*(one(i) for i in range(first, min(first + N_AT_ONCE, N_REQUESTS))))

    asyncio.run(play())
    assert engine.running == set()
    assert client.app.state.service.n_requests == 0  # type: ignore[attr-defined]
    check_metrics(client, engine, **n_asked)


def check_metrics(client: Client, engine: FakeEngine, *, whole: int, left: int) -> None:
    """What the server counted is what was asked for."""
    found = samples(client)
    answered = {name: value for name, value in found.items() if name.startswith("pyspec:http_requests_total[")}
    assert sum(answered.values()) == whole + left == N_REQUESTS
    n_left = sum(value for name, value in answered.items() if name.endswith("[499]"))
    assert 0 < n_left <= left  # the others had their answers when they left
    ended = {name: value for name, value in found.items() if name.startswith("pyspec:request_success_total[")}
    assert sum(ended.values()) == found["pyspec:engine_requests_total"] == len(engine.requests)
    n_aborted = ended.get(
        "pyspec:request_success_total[abort]", 0
    )  # none where threads are slow: test_real_load has some
    assert n_aborted == engine.n_closed
    assert found["pyspec:e2e_request_latency_seconds_count"] == len(engine.requests)
    assert found["pyspec:num_requests_running"] == found["pyspec:num_requests_waiting"] == 0
    assert found["pyspec:generation_tokens_total"] == (
        found["pyspec:rounds_total"] + found["pyspec:spec_decode_num_accepted_tokens_total[fake]"]
    )
