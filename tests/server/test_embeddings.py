"""``/v1/embeddings``."""

from __future__ import annotations

import base64
import struct
from typing import Any

import openai
import pytest

from pyspec.errors import ConfigError
from pyspec.server import ServerSettings
from tests.pairs import OpenZoo, Pair
from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import BOS, FakeEngine
from tests.server.in_thread import Running
from tests.server.real import client_of, real_engine

PATH = "/v1/embeddings"


@pytest.fixture
def pooling(start: Start) -> Client:
    return start(pooling="last")


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("Hi", [[BOS, *b"Hi"]]),
        (["a", "b"], [[BOS, ord("a")], [BOS, ord("b")]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_texts_become_vectors(pooling: Client, engine: FakeEngine, given: object, tokens: list[list[int]]) -> None:
    told = pooling.send(PATH, {"input": given, "model": "x", "user": "me", "dimensions": 3}).json()
    assert engine.embedded == tokens
    assert [entry["embedding"] for entry in told["data"]] == [[len(text), sum(text), 4] for text in tokens]
    assert [(entry["object"], entry["index"]) for entry in told["data"]] == [
        ("embedding", i) for i in range(len(tokens))
    ]
    n_tokens = sum(map(len, tokens))
    assert (told["object"], told["model"]) == ("list", "fake.gguf")
    assert told["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


def test_they_may_come_in_base64(pooling: Client) -> None:
    told = pooling.send(PATH, {"input": [1, 2], "encoding_format": "base64"}).json()
    assert struct.unpack("<3f", base64.b64decode(told["data"][0]["embedding"])) == (2, 3, 4)


def test_the_official_client_reads_them(engine: FakeEngine) -> None:
    with Running(engine, pooling="mean") as running:
        client = openai.OpenAI(base_url=f"{running.address}/v1", api_key="none")
        with client:
            told = client.embeddings.create(model="any", input=["a", "bc"])
    assert [entry.embedding for entry in told.data] == [[2, BOS + 97, 4], [3, BOS + 98 + 99, 4]]


def test_a_model_that_was_made_for_it_needs_no_flag(client: Client, engine: FakeEngine) -> None:
    answer = client.send(PATH, {"input": "Hi"})
    assert (answer.status, answer.error["code"], engine.embedded) == (501, "not_supported", [])
    assert "--pooling" in answer.error["message"]
    engine.model.metadata = {"fake.pooling_type": "1"}
    assert client.send(PATH, {"input": "Hi"}).json()["data"][0]["embedding"][2] == len("mean")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 2}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "pooling": "last"}, "pooling"),
    ],
)
def test_what_is_wrong_is_said(pooling: Client, engine: FakeEngine, body: dict[str, Any], param: str) -> None:
    answer = pooling.send(PATH, body)
    assert (answer.status, engine.embedded) == (400, [])
    assert answer.error["param"].startswith(param)


def test_a_text_that_is_too_long_is_refused(pooling: Client) -> None:
    answer = pooling.send(PATH, {"input": ["a", "b" * 1000]})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


def test_the_pooling_must_be_one() -> None:
    with pytest.raises(ConfigError, match="pooling must be one of mean, cls, last"):
        ServerSettings(pooling="rank")


def test_a_real_engine_makes_them(open_zoo: OpenZoo) -> None:
    with real_engine(open_zoo, Pair("target-llama", "none"), plain=True) as engine:
        told = client_of(engine, pooling="mean").send(PATH, {"input": [[1, 60, 75], [1, 60, 76]]}).json()
        assert told["data"][0]["embedding"] == engine.embed([1, 60, 75], pooling="mean").tolist()
        assert told["data"][0]["embedding"] != told["data"][1]["embedding"]
