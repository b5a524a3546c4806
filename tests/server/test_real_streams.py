"""Streams at once, each speculated on in its own way: every one says what it says alone and plainly decoded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.pairs import OpenZoo, Pair
from tests.server.asgi import Client
from tests.server.real import CHAT, NATIVE, TEXT, Said, client_of, prompted, real_engine, said

PAIRS = [
    Pair("target-llama", "ngram-simple,draft-simple", "draft-llama"),
    Pair("target-llama", "ngram-mod,draft-eagle3", "draft-eagle3"),
    Pair("target-mtp", "ngram-simple,draft-mtp"),
    Pair("target-swa", "ngram-mod,draft-simple", "draft-mamba"),
]
N_STREAMS = 8


def requests(pair: Pair) -> list[tuple[str, dict[str, Any]]]:
    """Return requests that differ in all that speculation can differ in."""
    first, second = pair.types.split(",")
    wanted: list[Any] = [None, {"types": first}, {"types": [second]}, {"off": True}]
    wanted += [{"types": second, "n_max": 1}, {"n_max": 2}, {"types": first, "n_max": 3}, {"types": "none"}]
    made: list[tuple[str, dict[str, Any]]] = []
    for i in range(N_STREAMS):
        path = (CHAT, TEXT, NATIVE)[i % 3]
        text = f"{'one two ' * (1 + 5 * (i % 3))}number {i}"  # some prompts are longer than a physical batch
        chosen: dict[str, Any] = {"temperature": 0} if i % 2 else {"temperature": 0.8, "seed": i}
        if i in (0, 1, 6):  # few tokens come again and again, which n-grams see
            chosen["logit_bias"] = {str(token): 20.0 for token in range(300, 303)}
        fields = {**prompted(path, text), **chosen, "max_tokens": 40, "stream": True, "speculative": wanted[i]}
        made.append((path, fields))
    return made


def plainly(path: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return path, {**fields, "speculative": None}


async def together(client: Client, bodies: list[tuple[str, dict[str, Any]]]) -> list[list[Said]]:
    answers = await asyncio.gather(*(client.asend(path, fields) for path, fields in bodies))
    return [said(path, answer) for (path, _), answer in zip(bodies, answers, strict=True)]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_each_stream_says_what_it_says_alone(pair: Pair, open_zoo: OpenZoo, zoo: object) -> None:
    del zoo
    bodies = requests(pair)
    with real_engine(open_zoo, pair, plain=True) as engine:
        plain = client_of(engine)
        expected = [said(path, plain.send(path, body)) for path, body in (plainly(*each) for each in bodies)]
    with real_engine(open_zoo, pair, n_slots=N_STREAMS) as engine:
        client = client_of(engine)
        assert [said(path, client.send(path, body)) for path, body in bodies] == expected
        for n in (1, 2, 4, 8):
            for first in range(0, N_STREAMS, n):
                assert asyncio.run(together(client, bodies[first : first + n])) == expected[first : first + n]
        status = engine.status()
    assert all(stats.n_accepted for stats in status.drafters.values()), status.drafters
    assert status.n_reused_tokens
    assert len(set(map(str, expected))) == N_STREAMS
