"""Five hundred requests of all kinds to a real engine, a fifth of them left at random moments: nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspec.engine import AsyncGeneration, Engine, SlotState
from tests.pairs import OpenZoo, Pair
from tests.server.asgi import Client, Exchange
from tests.server.real import CHAT, NATIVE, TEXT, Said, client_of, prompted, real_engine, said
from tests.server.test_status import samples

PAIRS = [
    Pair("target-llama", "ngram-simple,draft-simple", "draft-llama"),
    Pair("target-mtp", "ngram-simple,draft-mtp"),  # a memory that does not drop suffixes
]
N_REQUESTS, N_AT_ONCE, N_SLOTS = 500, 25, 4
SHARE_LEFT = 0.2
N_WARM_UP = 200
MOST_GROWTH = 4 << 20  # bytes; 14 kB for each request after the warm-up
FORMS: tuple[dict[str, Any], ...] = (
    {"regex": "[a-f]{3,12}"},
    {"json_schema": {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"]}},
    {"grammar": 'root ::= "yes" | "no" | "may" "be"?'},
)
EXTRAS: tuple[dict[str, Any], ...] = (
    {"stop": ["e", "in"]},
    {"repeat_penalty": 1.3},
    {"logit_bias": {"300": 15.0, "301": 15.0}},
    {"priority": -1},
    {"priority": 2},
)
WANTED: tuple[Any, ...] = (
    None,
    {"off": True},
    {"types": "ngram-simple"},
    {"n_max": 1},
    {"rule": "coupled"},
    {"rule": "match", "n_max": 3},
)
Body = tuple[str, dict[str, Any]]


def body(rng: random.Random, i: int) -> Body:
    """Return a request of a random kind."""
    path = rng.choice([CHAT, TEXT, NATIVE])
    beginning = "once upon a time there was " * rng.choice([0, 0, 1, 3])
    fields: dict[str, Any] = prompted(path, f"{beginning}{i % 25}")
    fields.update(max_tokens=rng.choice([0, 1, 2, 7, 30]), stream=rng.random() < 0.5, speculative=rng.choice(WANTED))
    if rng.random() < 0.5:
        fields.update(temperature=0.9, seed=i % 10)
    for extra in (*FORMS, *EXTRAS):
        if rng.random() < 0.1 and not (extra in FORMS and any(form.keys() & fields.keys() for form in FORMS)):
            fields.update(extra)
    if path != NATIVE and rng.random() < 0.2:
        fields["n"] = 2
    if path == TEXT and rng.random() < 0.2:
        fields["echo"] = True
    return path, fields


def plainly(request: Body) -> Body:
    """Return the same without drafts."""
    path, fields = request
    rule = (fields["speculative"] or {}).get("rule")
    return path, {**fields, "speculative": {"off": True, "rule": rule}, "stream": False}


class Load:
    """Sends requests to a server, leaves some of them, and checks the answers to the others.

    Args:
        client: Of the server.
        bodies: What is asked.
        expected: What must come back.
    """

    def __init__(self, client: Client, bodies: list[Body], expected: list[list[Said]]) -> None:
        self.client, self.bodies, self.expected = client, bodies, expected
        self.rng = random.Random(11)  # noqa: S311 - the same in each run
        self.n_whole = self.n_left = self.n_tokens = self.n_prompt = 0

    async def play(self, first: int, last: int) -> None:
        """Send some of the requests, always so many at once."""
        numbers = iter(range(first, last))
        await asyncio.gather(*(self._one_after_another(numbers) for _ in range(N_AT_ONCE)))

    async def _one_after_another(self, numbers: Any) -> None:
        for i in numbers:
            path, fields = self.bodies[i]
            leaves = self.rng.random() < SHARE_LEFT
            exchange = self.client.begin(path, fields)
            if leaves:
                await self._leave(exchange)
            else:
                await exchange.task
                assert said(path, exchange.answer) == self.expected[i], (path, fields)
                self._count(path, fields, exchange)

    async def _leave(self, exchange: Exchange) -> None:
        self.n_left += 1
        if self.rng.random() < 0.5:
            await asyncio.wait((exchange.task,), timeout=self.rng.random() * 0.1)
        else:
            for _ in range(self.rng.randrange(20)):
                await asyncio.sleep(0)
        exchange.disconnect()
        await exchange.task

    def _count(self, path: str, fields: dict[str, Any], exchange: Exchange) -> None:
        self.n_whole += 1
        if path == NATIVE or fields["stream"]:
            return
        usage = exchange.answer.json()["usage"]
        self.n_tokens += usage["completion_tokens"]
        self.n_prompt += usage["prompt_tokens"] * fields.get("n", 1)


def memory_in_use() -> int:
    """Bytes of this process that are in memory; 0 where only Linux tells."""
    gc.collect()
    if sys.platform != "linux":
        return 0
    import resource

    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_nothing_is_lost_mixed_up_or_kept(pair: Pair, open_zoo: OpenZoo, zoo: object) -> None:
    del zoo
    rng = random.Random(5)  # noqa: S311 - the same in each run
    kinds = [body(rng, i) for i in range(N_REQUESTS // 4)]
    numbers = [rng.randrange(len(kinds)) for _ in range(N_REQUESTS)]
    with real_engine(open_zoo, pair, plain=True) as engine:
        plain = client_of(engine)
        answers = [said(path, plain.send(path, fields)) for path, fields in map(plainly, kinds)]
    with real_engine(open_zoo, pair, n_slots=N_SLOTS, cache_bytes=1 << 20) as engine:
        load = Load(client_of(engine), [kinds[i] for i in numbers], [answers[i] for i in numbers])
        asyncio.run(load.play(0, N_WARM_UP))
        before = memory_in_use()
        asyncio.run(load.play(N_WARM_UP, N_REQUESTS))
        grown = memory_in_use() - before
        check_slots(load, engine)
        check_metrics(load, engine)
    assert grown < MOST_GROWTH


def check_slots(load: Load, engine: Engine) -> None:
    """Every slot is free, and nobody holds on to a request."""
    status = engine.status()
    assert [slot.state for slot in status.slots] == [SlotState.IDLE] * N_SLOTS
    assert status.n_waiting == 0
    assert load.client.app.state.service.n_requests == 0  # type: ignore[attr-defined]
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, AsyncGeneration)]
    assert status.cache_bytes <= 1 << 20


def check_metrics(load: Load, engine: Engine) -> None:
    """What the server counted is what was asked for, and what the engine did."""
    found, status = samples(load.client), engine.status()
    answered = {name: value for name, value in found.items() if name.startswith("pyspec:http_requests_total[")}
    assert sum(answered.values()) == load.n_whole + load.n_left == N_REQUESTS
    n_left = sum(value for name, value in answered.items() if name.endswith("[499]"))
    assert 0 < n_left <= load.n_left  # the others had their answers when they left
    ended = {name: value for name, value in found.items() if name.startswith("pyspec:request_success_total[")}
    assert sum(ended.values()) == found["pyspec:engine_requests_total"] == status.n_requests
    assert found["pyspec:e2e_request_latency_seconds_count"] == status.n_requests
    assert ended["pyspec:request_success_total[abort]"] > 0
    assert "pyspec:request_success_total[error]" not in ended
    assert found["pyspec:num_requests_running"] == found["pyspec:num_requests_waiting"] == 0
    n_accepted = 0.0
    for name, stats in status.drafters.items():
        n_accepted += (accepted := found[f"pyspec:spec_decode_num_accepted_tokens_total[{name}]"])
        assert 0 < accepted == stats.n_accepted < stats.n_drafted
    n_forced = found["pyspec:grammar_tokens_total"]
    assert n_forced > 0
    assert found["pyspec:generation_tokens_total"] == found["pyspec:rounds_total"] + n_accepted + n_forced
    assert found["pyspec:generation_tokens_total"] > load.n_tokens
    assert found["pyspec:prompt_tokens_total"] > load.n_prompt
    assert 0 < found["pyspec:prompt_tokens_reused_total"] < found["pyspec:prompt_tokens_total"]
